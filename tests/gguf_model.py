"""A GGUF file of a random llama of one layer, with a byte-level tokenizer of single characters."""

from __future__ import annotations

from pathlib import Path

CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WIDTH, HEADS, INNER = 32, 2, 64


def write_gguf(path: Path, *, split: str = "smollm") -> Path:
    """Write the file and return its path; `split` names how its tokenizer splits a text."""
    import gguf
    import numpy as np
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    tokens = [*SPECIAL, *letters, "ĠĠ", "ĠĠĠ"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["Ġ Ġ", "ĠĠ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHAT)
    shapes = {
        "token_embd": (len(tokens), WIDTH),
        "output_norm": (WIDTH,),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.ffn_norm": (WIDTH,),
        **{f"blk.0.attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")},
        **{f"blk.0.ffn_{part}": (INNER, WIDTH) for part in ("gate", "up")},
        "blk.0.ffn_down": (WIDTH, INNER),
    }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        values = np.ones(shape) if len(shape) == 1 else random.normal(0, 0.1, shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
