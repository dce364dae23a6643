"""How the bundled base model micro is made: words, kinds of task, wordings, warm-up and score, all deterministic."""
