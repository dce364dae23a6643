"""The measuring of runs: the evaluator, and what shows whether a score is the arm's own."""
