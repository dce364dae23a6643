"""How the bundled base model nano is made: tokenizer, demonstrations, warm-up and evaluation, all deterministic."""
