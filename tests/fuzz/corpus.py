"""Crafted GGUF files, each built from a named fault, and the sound file they are made from.

A case is (bytes, words of the sentence that refuses it). All are small: what a hostile file costs
must not depend on what it claims.
"""

from __future__ import annotations

import struct

from tests.unit import gguf_bytes as made

HUGE = (1 << 64) - 1
Case = tuple[bytes, str]

TOKENS = [*made.CONTROL, *"abcdefgh", "ab", "Ġ"]
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}"
METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "general.alignment": 32,
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 32,
    "llama.attention.head_count": 1,
    "llama.attention.head_count_kv": 1,
    "llama.attention.key_length": 32,
    "llama.attention.value_length": 32,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 32,
    "llama.vocab_size": len(TOKENS),
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * len(made.CONTROL) + [1] * (len(TOKENS) - len(made.CONTROL)),
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.ggml.add_space_prefix": False,
    "tokenizer.chat_template": TEMPLATE,
}
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
TENSORS: dict[str, tuple[tuple[int, ...], int]] = {
    "token_embd.weight": ((32, len(TOKENS)), made.Q8_0),
    "blk.0.attn_norm.weight": ((32,), made.F32),
    "blk.0.ffn_norm.weight": ((32,), made.F32),
    **{f"blk.0.{name}.weight": ((32, 32), made.Q4_1) for name in _MATRICES},
    "output_norm.weight": ((32,), made.F32),
}
SOUND = made.gguf(METADATA, TENSORS)


def _as(name: str, more: dict[str, object]) -> dict[str, object]:
    renamed = {key.replace("llama.", f"{name}."): value for key, value in METADATA.items()}
    return {**renamed, "general.architecture": name, **more}


def _floats(*values: float) -> tuple[int, bytes]:
    payload = struct.pack(f"<{len(values)}f", *values)
    return made.ARRAY, made.u32(made.FLOAT32) + made.u64(len(values)) + payload


_VECTORS = {"attn_q.bias": 32, "attn_k.bias": 32, "attn_v.bias": 32}
_NORMS = {"attn_q_norm.weight": 32, "attn_k_norm.weight": 32, "post_attention_norm.weight": 32}
_NORMS["post_ffw_norm.weight"] = 32
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abcd▁", "ab"]
SOUNDS: dict[str, bytes] = {
    "llama": SOUND,
    "qwen2": made.gguf(
        _as("qwen2", {"tokenizer.ggml.pre": "qwen2"}),
        TENSORS | {f"blk.0.{name}": ((size,), made.F32) for name, size in _VECTORS.items()},
    ),
    "gemma3": made.gguf(
        _as("gemma3", {
            "gemma3.attention.sliding_window": 16,
                "gemma3.vocab_size": len(PIECES),
            "gemma3.rope.freq_base_swa": 5000.0,
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": PIECES,
            "tokenizer.ggml.scores": _floats(*(-float(i) for i in range(len(PIECES)))),
            "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 259)],
        }),
        TENSORS
        | {"token_embd.weight": ((32, len(PIECES)), made.Q8_0)}
        | {f"blk.0.{name}": ((size,), made.F32) for name, size in _NORMS.items()},
    ),
}  # fmt: skip


def with_metadata(**changes: object) -> bytes:
    """The sound file with other values; a dot in a key is written as two underscores."""
    changed = {key.replace("__", "."): value for key, value in changes.items()}
    return made.gguf({**METADATA, **changed}, TENSORS)


def without(key: str) -> bytes:
    """The sound file less one metadata key."""
    return made.gguf({k: v for k, v in METADATA.items() if k != key}, TENSORS)


def with_tensor(name: str, shape: tuple[int, ...], kind: int) -> bytes:
    """The sound file with one tensor of another shape or type, or one more."""
    return made.gguf(METADATA, {**TENSORS, name: (shape, kind)})


def one_tensor(shape: tuple[int, ...], kind: int = made.F32, offset: int = 0) -> bytes:
    return made.padded(made.header(1, 0) + made.tensor("t", shape, kind, offset)) + bytes(512)


def one_entry(kind: int, payload: bytes, key: str | bytes = "key") -> bytes:
    return made.header(0, 1) + made.entry(key, kind, payload) + bytes(64)


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return one_entry(made.ARRAY, made.u32(kind) + made.u64(count) + payload)


def two_tensors(second: bytes) -> bytes:
    table = made.tensor("t", (8,), made.F32, 0) + second
    return made.padded(made.header(2, 0) + table) + bytes(256)


def _aligned(value: object) -> bytes:
    return made.header(0, 1) + made.entry("general.alignment", *made.value(value))


OTHER_FILES: dict[str, Case] = {
    "empty": (b"", "empty (0 bytes)"),
    "web page": (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
    "web page without doctype": (b"<HTML><head>", "web page"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    "zip": (b"PK\x03\x04" + bytes(99), "convert the model to GGUF"),
    "old ggml": (b"tjgg" + bytes(99), "convert the model to GGUF"),
    "noise": (bytes(range(99)), "b'GGUF' is expected"),
    "split file": (
        made.gguf({"split.no": 0, "split.count": 3}, {}),
        "part 1 of a model split in 3 parts",
    ),
}
HEADERS: dict[str, Case] = {
    "magic alone": (b"GGUF", "header: truncated"),
    "half the magic": (b"GG", "header: truncated"),
    "version 1": (made.header(0, 0, version=1), "version 1"),
    "version 99": (made.header(0, 0, version=99), "version 99"),
    "big-endian": (b"GGUF\x00\x00\x00\x03" + bytes(16), "big-endian"),
    "too many tensors": (made.header(HUGE, 0), f"{HUGE} tensors exceed the cap"),
    "too many entries": (made.header(0, HUGE), f"{HUGE} metadata entries exceed the cap"),
    "tensors that cannot fit": (made.header(16_000, 0), "header: truncated"),
    "entries that cannot fit": (made.header(0, 16_000), "header: truncated"),
}
ENTRIES: dict[str, Case] = {
    "key of 2^64 bytes": (made.header(0, 1) + made.u64(HUGE) + bytes(99), "cap of 65535"),
    "key longer than the file": (made.header(0, 1) + made.u64(999) + bytes(99), "truncated"),
    "key not UTF-8": (one_entry(made.UINT8, b"\0", b"\xff\xfe"), "not valid UTF-8"),
    "empty key": (one_entry(made.UINT8, b"\0", b""), "key is empty"),
    "key twice": (
        made.header(0, 2) + 2 * made.entry("key", made.UINT8, b"\0") + bytes(9),
        "'key'): the key is there twice",
    ),
    "value of type 13": (one_entry(13, bytes(8)), "value type 13 is unknown"),
    "boolean 2": (one_entry(made.BOOL, b"\x02"), "a boolean is 0 or 1"),
    "string of 1 GiB": (one_entry(made.STRING, made.u64(1 << 30)), "exceeds the cap"),
    "string of 2^64 bytes": (one_entry(made.STRING, made.u64(HUGE)), "exceeds the cap"),
    "string longer than the file": (one_entry(made.STRING, made.u64(1 << 20)), "truncated"),
    "string not UTF-8": (one_entry(made.STRING, made.text(b"\xc3")), "not valid UTF-8"),
    "alignment 0": (_aligned(0), "general.alignment must be a power of two"),
    "alignment 24": (_aligned(24), "found 24"),
    "alignment 2^30": (_aligned(1 << 30), "found 1073741824"),
    "alignment text": (_aligned("32"), "found '32'"),
    "alignment of many": (_aligned([7] * 200), "found an array of 200 int32 values"),
}
ARRAYS: dict[str, Case] = {
    "array of arrays": (array(made.ARRAY, 1), "arrays of arrays"),
    "array of type 77": (array(77, 1), "array element type 77 is unknown"),
    "array of 2^64 numbers": (array(made.UINT32, HUGE), "truncated"),
    "array longer than the file": (array(made.UINT32, 1 << 20), "truncated"),
    "array of 2^64 strings": (array(made.STRING, HUGE), "truncated"),
    "strings longer than the file": (array(made.STRING, 1 << 20), "truncated"),
    "second string runs out": (array(made.STRING, 2, made.text("a") + made.u64(99)), "truncated"),
    "second string of 2^64": (array(made.STRING, 2, made.text("a") + made.u64(HUGE)), "the cap"),
    "second string not UTF-8": (
        array(made.STRING, 2, made.text("a") + made.text(b"\xff")),
        "string 1 of the array is not valid UTF-8",
    ),
    "booleans of 3": (array(made.BOOL, 2, b"\x01\x03"), "a boolean is 0 or 1"),
}
TENSOR_TABLES: dict[str, Case] = {
    "no dimensions": (one_tensor(()), "1 to 4 dimensions, found 0"),
    "five dimensions": (one_tensor((1,) * 5), "1 to 4 dimensions, found 5"),
    "2^32 dimensions": (
        made.header(1, 0) + made.text("t") + made.u32(0xFFFFFFFF) + bytes(99),
        "found 4294967295",
    ),
    "zero dimension": (one_tensor((8, 0)), "a dimension is zero"),
    "shape overflows 64 bits": (one_tensor((1 << 33, 1 << 33)), "the whole file has"),
    "shape overflows 256 bits": (one_tensor((HUGE,) * 4), "the whole file has"),
    "shape beyond the file": (one_tensor((1 << 20,)), "the whole file has"),
    "rows not whole blocks": (one_tensor((40,), made.Q8_0), "multiples of 32, found 40"),
    "unknown tensor type": (one_tensor((8,), 999), "'t' has ggml type 999"),
    "removed tensor type": (one_tensor((8,), 4), "'t' has ggml type 4"),
    "offset unaligned": (one_tensor((8,), offset=4), "not a multiple of the alignment 32"),
    "offset beyond the file": (one_tensor((8,), offset=1 << 40), "tensor data: truncated"),
    "offset overflows": (one_tensor((8,), offset=HUGE - 31), "tensor data: truncated"),
    "tensors overlap": (two_tensors(made.tensor("u", (8,), made.F32, 0)), "'t' and 'u' overlap"),
    "tensor twice": (two_tensors(made.tensor("t", (8,), made.F32, 32)), "name is there twice"),
    "empty tensor name": (two_tensors(made.tensor("", (8,), made.F32, 32)), "name is empty"),
    "tensor name of 300 bytes": (
        two_tensors(made.tensor("n" * 300, (8,), made.F32, 32)),
        "exceeds the cap of 256",
    ),
    "long tensor names overlap": (
        made.padded(
            made.header(2, 0)
            + made.tensor("\1" * 255, (8,), made.F32, 0)
            + made.tensor("\2" * 255, (8,), made.F32, 0)
        )
        + bytes(64),
        "overlap at byte",
    ),
}
READER: dict[str, Case] = {**OTHER_FILES, **HEADERS, **ENTRIES, **ARRAYS, **TENSOR_TABLES}

# Sound as files; the model, the tokenizer or the chat template refuses them.
MODELS: dict[str, Case] = {
    "no metadata": (made.header(0, 0), "general.architecture is missing"),
    "unknown architecture": (with_metadata(general__architecture="mamba" * 99), "architecture"),
    "no tensors": (made.gguf(METADATA, {}), "token_embd.weight is missing"),
    "unknown key": (with_metadata(llama__some_key=[1] * 300), "llama.some_key"),
    "unknown key of many strings": (with_metadata(llama__some_key=["x"] * 300), "llama.some_key"),
    "unknown tensor": (with_tensor("blk.0.extra.weight", (32,), made.F32), "blk.0.extra.weight"),
    "embedding too short": (with_tensor("token_embd.weight", (32, 4), made.Q8_0), "4"),
    "embedding of one dimension": (
        with_tensor("token_embd.weight", (32,), made.Q8_0), "token_embd.weight",
    ),
    "norm of another type": (
        with_tensor("blk.0.attn_norm.weight", (32,), made.Q8_0), "blk.0.attn_norm.weight",
    ),
    "matrix turned": (with_tensor("blk.0.ffn_up.weight", (64, 16), made.Q4_1), "blk.0.ffn_up"),
    "2^32 - 1 layers": (with_metadata(llama__block_count=0xFFFFFFFF), "block_count"),
    "1024 layers": (with_metadata(llama__block_count=1024), "blk.1."),
    "no layers": (with_metadata(llama__block_count=0), "block_count"),
    "no heads": (with_metadata(llama__attention__head_count=0), "head_count"),
    "more key heads than heads": (with_metadata(llama__attention__head_count_kv=3), "head_count"),
    "odd head": (with_metadata(llama__attention__key_length=7), "7"),
    "epsilon NaN": (
        with_metadata(llama__attention__layer_norm_rms_epsilon=float("nan")), "rms_epsilon",
    ),
    "rope base infinite": (with_metadata(llama__rope__freq_base=float("inf")), "freq_base"),
    "vocabulary of another size": (with_metadata(llama__vocab_size=0xFFFFFFF), "vocab"),
}  # fmt: skip
TEXT: dict[str, Case] = {
    "unknown tokenizer": (with_metadata(tokenizer__ggml__model="what"), "tokenizer.ggml.model"),
    "unknown pre-tokenizer": (with_metadata(tokenizer__ggml__pre="\n" * 999), "ggml.pre"),
    "no tokens": (without("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens"),
    "tokens of numbers": (with_metadata(tokenizer__ggml__tokens=[1] * 13), "ggml.tokens"),
    "too few tokens": (with_metadata(tokenizer__ggml__tokens=["a"]), "1 tokens"),
    "token twice": (with_metadata(tokenizer__ggml__tokens=[*TOKENS[:-1], "a"]), "'a'"),
    "too few types": (with_metadata(tokenizer__ggml__token_type=[1]), "token_type"),
    "type 99": (with_metadata(tokenizer__ggml__token_type=[99] * len(TOKENS)), "type"),
    "merge of nothing": (with_metadata(tokenizer__ggml__merges=[""]), "merge"),
    "merge of one": (with_metadata(tokenizer__ggml__merges=["a"]), "merge"),
    "merge of strangers": (with_metadata(tokenizer__ggml__merges=["x " + "\0" * 999]), "merge"),
    "end beyond the vocabulary": (with_metadata(tokenizer__ggml__eos_token_id=999), "999"),
}


def templated(source: object) -> bytes:
    return with_metadata(tokenizer__chat_template=source)


NEST = 200
TEMPLATES: dict[str, Case] = {
    "template of numbers": (templated([1]), "tokenizer.chat_template"),
    "template not closed": (templated("{% for m in messages %}"), "chat template"),
    "template with 25 loops": (
        templated("{% for a in 'a' %}" * 25 + "{% endfor %}" * 25), "chat template",
    ),
    "break outside a loop": (templated("{% break %}"), "chat template"),
    "argument twice": (templated("{% macro f(a, a) %}{% endmacro %}"), "chat template"),
    "nested ifs": (templated("{% if 1 %}" * NEST + "{% endif %}" * NEST), "chat template"),
    "nested lists": (templated("{{ " + "[" * NEST + "]" * NEST + " }}"), "chat template"),
    "number of 5000 digits": (templated("{{ " + "9" * 5000 + " }}"), "chat template"),
    "macro without end": (
        templated("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "chat template",
    ),
    "macro with two of itself": (
        templated("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
                  "{{ f(99) }}"),
        "chat template",
    ),
    "block with two of itself": (
        templated("{% block a %}{{ self.a() }}{{ self.a() }}{% endblock %}"), "chat template",
    ),
    "loops in loops": (
        templated("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
        "chat template",
    ),
    "loops that find nothing": (
        templated("{% for a in range(99999) %}{% for b in range(99999) if b < 0 %}{% endfor %}"
                  "{% endfor %}"),
        "chat template",
    ),
    "loop in itself": (
        templated("{% for a in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}"),
        "chat template",
    ),
    "text of 10^9": (templated("{{ 'a' * 10 ** 9 }}"), "chat template"),
    "list of 10^9": (templated("{{ [1] * 10 ** 9 }}"), "chat template"),
    "power of a power": (templated("{{ 9 ** 9 ** 9 ** 9 ** 9 }}"), "chat template"),
    "number of 10^6 digits": (templated("{{ (10 ** 4000) ** 250 }}"), "chat template"),
    "padding of 10^9": (templated("{{ 'a'.ljust(10 ** 9) }}"), "chat template"),
    "filter pads 10^9": (templated("{{ 'a' | center(10 ** 9) }}"), "chat template"),
    "format of 10^9": (templated("{{ '%999999999d' % 1 }}"), "chat template"),
    "filter formats 10^9": (templated("{{ '%999999999d' | format(1) }}"), "chat template"),
    "method formats 10^9": (templated("{{ '{:999999999}'.format(1) }}"), "chat template"),
    "text doubled 40 times": (
        templated("{% set n = namespace(x='ab') %}{% for i in range(40) %}"
                  "{% set n.x = n.x ~ n.x %}{% endfor %}"),
        "chat template",
    ),
    "block text doubled 40 times": (
        templated("{% set n = namespace(x='ab') %}{% for i in range(40) %}"
                  "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}"),
        "chat template",
    ),
    "page in a block in a loop": (
        templated("{% for i in range(60000) %}{% set x %}" + "x" * 999 + "{% endset %}"
                  "{% endfor %}"),
        "chat template",
    ),
    "gigantic template": (templated("{# #}" * 20_000), "chat template"),
    "list doubled 40 times": (
        templated("{% set n = namespace(x=[1]) %}{% for i in range(40) %}"
                  "{% set n.x = n.x + n.x %}{% endfor %}"),
        "chat template",
    ),
    "long refusal": (templated("{{ raise_exception('x' * 5000) }}"), "chat template"),
    "unsafe attribute": (templated("{{ ''.__class__.__mro__ }}"), "chat template"),
}  # fmt: skip
LOADING: dict[str, Case] = {**MODELS, **TEXT, **TEMPLATES}
CASES: dict[str, Case] = {**READER, **LOADING}
