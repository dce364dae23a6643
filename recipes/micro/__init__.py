"""The recipe of the bundled base model micro: words, kinds of task, wordings, warm-up and score, all deterministic."""
