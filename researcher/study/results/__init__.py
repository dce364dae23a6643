"""The results of a study: scores, excluded arms, findings."""
