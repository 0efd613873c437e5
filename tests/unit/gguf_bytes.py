"""GGUF files made by hand, byte by byte, sound ones and hostile ones."""

from __future__ import annotations

import struct

from gguf import GGML_QUANT_SIZES

F32, F16, Q4_1, Q8_0, BF16, MXFP4 = 0, 1, 3, 8, 30, 39
UINT8, INT32, UINT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 0, 5, 4, 6, 7, 8, 9, 10
BLOCKS = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}  # elements, bytes
ALIGNMENT = 32


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def value(python: object) -> tuple[int, bytes]:
    """The (type, bytes) of a Python value: int -> uint32, float -> float32, lists -> arrays.

    A tuple is taken as the type and bytes themselves.
    """
    if isinstance(python, tuple):
        return python
    if isinstance(python, bool):
        return BOOL, bytes([python])
    if isinstance(python, int):
        return UINT32, u32(python)
    if isinstance(python, float):
        return FLOAT32, struct.pack("<f", python)
    if isinstance(python, str):
        return STRING, text(python)
    if all(isinstance(element, str) for element in python):
        return ARRAY, u32(STRING) + u64(len(python)) + b"".join(map(text, python))
    if all(isinstance(element, float) for element in python):
        return ARRAY, u32(FLOAT32) + u64(len(python)) + struct.pack(f"<{len(python)}f", *python)
    return ARRAY, u32(INT32) + u64(len(python)) + struct.pack(f"<{len(python)}i", *python)


def entry(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + u32(kind) + payload


def tensor(name: str | bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(kind) + u64(offset)


def header(n_tensors: int, n_entries: int, version: int = 3) -> bytes:
    return b"GGUF" + u32(version) + u64(n_tensors) + u64(n_entries)


def padded(raw: bytes, alignment: int = ALIGNMENT) -> bytes:
    return raw + bytes(-len(raw) % alignment)


def nbytes(shape: tuple[int, ...], kind: int) -> int:
    size, block = BLOCKS[kind]
    count = 1
    for dimension in shape:
        count *= dimension
    return count // size * block


def gguf(
    metadata: dict[str, object],
    tensors: dict[str, tuple[tuple[int, ...], int]],
    alignment: int = ALIGNMENT,
) -> bytes:
    """A sound file; the bytes of tensor n are all n + 1, and the last one is not padded."""
    table, data = b"", b""
    for number, (name, (shape, kind)) in enumerate(tensors.items(), 1):
        data = padded(data, alignment)
        table += tensor(name, shape, kind, len(data))
        data += bytes([number % 256]) * nbytes(shape, kind)
    entries = b"".join(entry(key, *value(python)) for key, python in metadata.items())
    front = header(len(tensors), len(metadata)) + entries + table
    return padded(front, alignment) + data if tensors else front


def byte_alphabet() -> list[str]:
    """The 256 one-byte tokens of byte-level BPE, in byte order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġ Ġ", "Ċ Ċ"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer_metadata() -> dict[str, object]:
    """Three control tokens, the 256 bytes from id 3 on, and seven merges."""
    tokens = CONTROL + byte_alphabet() + [merge.replace(" ", "") for merge in MERGES]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)),
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


PIECE_CONTROL = ["<unk>", "<s>", "</s>"]
PIECES = [
    "\u2581",
    *"abcdehlor",
    "he",
    "ll",
    "hell",
    "hello",
    "\u2581hello",
    "\u2581a",
    "\u2581\u2581",
]


def piece_metadata() -> dict[str, object]:
    """A SentencePiece vocabulary: three control tokens, the 256 bytes from id 3 on, and PIECES."""
    tokens = [*PIECE_CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(PIECES))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def llama_metadata() -> dict[str, object]:
    """Two layers, 64 wide, 2 heads of 32 sharing one key/value head, and the tokenizer above."""
    return {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 32,
        "llama.vocab_size": len(CONTROL) + 256 + len(MERGES),
        **tokenizer_metadata(),
    }


def llama_tensors(layers: int = 2) -> dict[str, tuple[tuple[int, ...], int]]:
    """The tensors of that model, embedding and output tied."""
    tensors: dict[str, tuple[tuple[int, ...], int]] = {
        "token_embd.weight": ((64, len(CONTROL) + 256 + len(MERGES)), Q8_0)
    }
    for layer in range(layers):
        for name, shape, kind in (
            ("attn_norm", (64,), F32),
            ("attn_q", (64, 64), Q4_1),
            ("attn_k", (64, 32), Q4_1),
            ("attn_v", (64, 32), F16),
            ("attn_output", (64, 64), F32),
            ("ffn_norm", (64,), F32),
            ("ffn_gate", (64, 96), Q4_1),
            ("ffn_up", (64, 96), Q4_1),
            ("ffn_down", (96, 64), Q4_1),
        ):
            tensors[f"blk.{layer}.{name}.weight"] = (shape, kind)
    tensors["output_norm.weight"] = ((64,), F32)
    return tensors
