"""Random models of two layers, in any architecture of transformers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

MakeModel = Callable[..., Any]
MakeBatch = Callable[..., Any]

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256, "eos_token_id": None}


def random_model(kind: str = "Qwen3", *, seed: int = 0, dtype: str = "float32", **sizes: Any) -> Any:
    """A model of the configuration `kind`: the same seed gives the same weights."""
    import torch
    import transformers

    chosen = {**(GPT2 if kind == "GPT2" else SIZES), **sizes}
    if kind == "Qwen3":
        chosen.setdefault("head_dim", 16)
    config = getattr(transformers, f"{kind}Config")(**chosen)
    attention = sizes.get("attn_implementation", "sdpa")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation=attention
        )
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=0.15)
    return model.eval()


def raises_in_pass(model: Any, number: int, error: BaseException) -> Any:
    """A context in which a forward pass of the model raises an error: the one with this number, from 0 on."""
    numbers = count()

    def look(*_: object) -> None:
        if next(numbers) == number:
            raise error

    return model.base_model.register_forward_pre_hook(look)
