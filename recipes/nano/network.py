# pyright: reportUnknownMemberType=false
"""The network of all bundled models: a Qwen3 with tied embeddings, in single precision."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from recipes.nano.vocabulary import END, MAX_LENGTH, PAD


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a network, in which each head has `hidden_size / heads` dimensions and its own keys and values."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int


def make_network(tokenizer: PreTrainedTokenizerFast, shape: Shape) -> Qwen3ForCausalLM:
    """Return a network that is randomly initialized from torch's global generator."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.hidden_size // shape.heads,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.vocab[END],
        pad_token_id=tokenizer.vocab[PAD],
    )
    model = Qwen3ForCausalLM(config).float()
    model.generation_config = GenerationConfig(eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id)
    return model
