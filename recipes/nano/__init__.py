"""The recipe of the bundled base model nano: tokenizer, demonstrations, warm-up and evaluation, all deterministic."""
