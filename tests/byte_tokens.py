"""Tokenizer keys for tiny models: one token a byte, one merge, and control tokens."""

from __future__ import annotations

from gguf import GGUFValueType as Kind

ENDS = 256


def byte_tokenizer(vocab_size: int) -> dict[str, tuple]:
    """Keys of a file as training/draft_file.py copies them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    spelled = {byte: chr(byte if byte in printable else next(others)) for byte in range(256)}
    words = [*(spelled[byte] for byte in range(256)), "<|end|>", "ab"]
    words += [f"<|{n}|>" for n in range(len(words), vocab_size)]
    kinds = [1] * 256 + [3, 1] + [3] * (vocab_size - 258)
    return {
        "tokenizer.ggml.model": ("gpt2", Kind.STRING, None),
        "tokenizer.ggml.pre": ("smollm", Kind.STRING, None),
        "tokenizer.ggml.tokens": (words, Kind.ARRAY, Kind.STRING),
        "tokenizer.ggml.token_type": (kinds, Kind.ARRAY, Kind.INT32),
        "tokenizer.ggml.merges": (["a b"], Kind.ARRAY, Kind.STRING),
        "tokenizer.ggml.eos_token_id": (ENDS, Kind.UINT32, None),
        "tokenizer.ggml.add_bos_token": (False, Kind.BOOL, None),
    }
