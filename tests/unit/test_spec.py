"""The model description: every number and tensor is checked, and nothing unknown is ignored."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import gguf_bytes as made
import numpy as np
import pytest

from drafthead.errors import DraftheadError, GgufError, UnsupportedError
from drafthead.gguf.model import Layer, ModelSpec, Rope
from drafthead.gguf.reader import read_gguf
from drafthead.gguf.spec import MATRIX_TYPES, model_spec, tensor_plan, vector_values
from drafthead.text.template import ChatTemplate
from drafthead.text.tokenizer import Tokenizer

Metadata = dict[str, object]
Tensors = dict[str, tuple[tuple[int, ...], int]]


def spec_of(folder: Path, metadata: Metadata, tensors: Tensors) -> ModelSpec:
    path = folder / "model.gguf"
    path.write_bytes(made.gguf(metadata, tensors))
    return model_spec(read_gguf(path))


def test_a_llama_file_gives_its_numbers(tmp_path: Path) -> None:
    """Each field is the file's number; the native dictionary holds all but the name."""
    spec = spec_of(tmp_path, made.llama_metadata(), made.llama_tensors())
    expected = ModelSpec(
        architecture="llama",
        n_layers=2,
        d_model=64,
        n_heads=2,
        n_kv_heads=1,
        head_dim=32,
        d_ff=96,
        vocab_size=266,
        context_length=128,
        rms_eps=pytest.approx(1e-5),
        tied_output=True,
        rope_interleaved=True,
        embedding_scale=1.0,
        gelu=False,
        qkv_bias=False,
        qk_norm=False,
        post_norms=False,
        attention_scale=pytest.approx(32**-0.5),
        attention_softcap=0.0,
        final_softcap=0.0,
        rope_factors=False,
        ropes=(Rope(10000.0, 1.0),),
        layers=(Layer(0, 0), Layer(0, 0)),
    )
    assert spec == expected
    assert spec.rope_base == 10000.0
    native = spec.native()
    assert native.keys() == vars(spec).keys() - {"architecture"}
    assert native["rope_interleaved"] == 1
    assert native.pop("ropes") == [{"base": 10000.0, "scale": 1.0}]
    assert native.pop("layers") == [(0, 0), (0, 0)]
    assert all(type(number) in (int, float) for number in native.values())


def test_the_plan_names_each_tensor_of_the_file_once(tmp_path: Path) -> None:
    """Planned columns and rows are the file's shapes, vectors have one row, none is left over."""
    tensors = made.llama_tensors()
    plan = tensor_plan(spec_of(tmp_path, made.llama_metadata(), tensors))
    assert {p.name for p in plan} == tensors.keys()
    assert len(plan) == len(tensors)
    for planned in plan:
        shape = tensors[planned.name][0]
        assert (planned.columns, planned.rows) == (shape if len(shape) == 2 else (*shape, 1))
        assert (planned.kind == "vector") == ("norm" in planned.name)


def test_an_output_tensor_unties_the_output(tmp_path: Path) -> None:
    """With output.weight in the file the plan has it, and the output is not tied."""
    tensors = made.llama_tensors() | {"output.weight": ((64, 266), made.Q8_0)}
    spec = spec_of(tmp_path, made.llama_metadata(), tensors)
    assert not spec.tied_output
    assert tensor_plan(spec)[-1] == ("output.weight", 64, 266, "matrix")


def test_absent_keys_mean_what_the_format_says(tmp_path: Path) -> None:
    """No rope base is 10,000; no key/value head count is the head count."""
    metadata, tensors = made.llama_metadata(), made.llama_tensors()
    del metadata["llama.rope.freq_base"], metadata["llama.rope.dimension_count"]
    del metadata["llama.attention.head_count_kv"], metadata["llama.vocab_size"]
    for layer in range(2):
        for name in ("attn_k", "attn_v"):
            tensors[f"blk.{layer}.{name}.weight"] = ((64, 64), made.F32)
    spec = spec_of(tmp_path, metadata, tensors)
    assert (spec.rope_base, spec.n_kv_heads, spec.vocab_size) == (10_000.0, 2, 266)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "none"),
        ("llama.rope.scaling.factor", 1.0),
        ("llama.rope.scaling.attn_factor", 1.0),
        ("llama.tensor_data_layout", "Meta AI original pth"),
        ("llama.attention.sliding_window", 0),
        ("llama.expert_count", 0),
        ("llama.attention.key_length", 32),
        ("general.anything", "else"),
    ],
)
def test_keys_that_change_nothing_are_accepted(tmp_path: Path, key: str, value: object) -> None:
    """A key with its neutral value, or outside the architecture's room, is no obstacle."""
    spec_of(tmp_path, made.llama_metadata() | {key: value}, made.llama_tensors())


REFUSED_KEYS: list[tuple[str, object, type[DraftheadError], str]] = [
    ("general.architecture", "mamba", UnsupportedError, "architecture 'mamba'"),
    ("general.architecture", 3, GgufError, "must be a string"),
    ("llama.rope.scaling.type", "yarn", UnsupportedError, "'none' and 'linear', found 'yarn'"),
    ("llama.rope.scaling.type", "longrope", UnsupportedError, "found 'longrope'"),
    ("llama.rope.scaling.type", 1, GgufError, "rope.scaling.type must be a string"),
    ("llama.rope.scaling.factor", 0.0, GgufError, "rope.scaling.factor must be a float from 1"),
    ("llama.rope.scale_linear", 0.5, GgufError, "rope.scale_linear must be a float from 1"),
    ("llama.rope.scaling.attn_factor", 1.2, UnsupportedError, "attn_factor' other than 1.0"),
    ("llama.tensor_data_layout", "halves", UnsupportedError, "found 'halves'"),
    ("llama.attention.sliding_window", -1.0, GgufError, "sliding_window must be an integer"),
    ("llama.attention.sliding_window_pattern", 2, UnsupportedError, "sliding_window_pattern"),
    ("llama.attn_logit_softcapping", 50.0, UnsupportedError, "attn_logit_softcapping"),
    ("llama.expert_count", 8, UnsupportedError, "expert_count"),
    ("llama.logit_scale", 0.5, UnsupportedError, "llama.logit_scale"),
    ("llama.block_count", 0, GgufError, "from 1 to 1024, found the int 0"),
    ("llama.block_count", 0xFFFFFFFF, GgufError, "found the int 4294967295"),
    ("llama.block_count", 3, GgufError, "blk.2.attn_norm.weight is missing"),
    ("llama.block_count", 1, UnsupportedError, "'blk.1.attn_k.weight'"),
    ("llama.block_count", "2", GgufError, "must be an integer"),
    ("llama.embedding_length", 128, GgufError, "token_embd.weight must have 128 columns"),
    ("llama.embedding_length", 33, UnsupportedError, "multiples of 32, found 33"),
    ("llama.feed_forward_length", 65, UnsupportedError, "multiples of 32, found 65"),
    ("llama.feed_forward_length", 64, GgufError, "ffn_gate.weight must have 64 columns and 64"),
    ("llama.attention.head_count", [2, 2], GgufError, "found an array of 2 int32 values"),
    ("llama.attention.head_count", 1, GgufError, "attn_q.weight must have"),
    ("llama.attention.head_count_kv", 0, GgufError, "found the int 0"),
    ("llama.attention.head_count_kv", 3, GgufError, "from 1 to 2"),
    ("llama.attention.head_count_kv", 2, GgufError, "attn_k.weight must have 64 columns and 64"),
    ("llama.attention.key_length", 24, UnsupportedError, "dimension_count"),
    ("llama.attention.value_length", 64, UnsupportedError, "value_length equal to the 32"),
    ("llama.attention.layer_norm_rms_epsilon", 0.0, GgufError, "found the float 0.0"),
    ("llama.attention.layer_norm_rms_epsilon", float("nan"), GgufError, "found the float nan"),
    ("llama.rope.freq_base", float("inf"), GgufError, "found the float inf"),
    ("llama.rope.dimension_count", 8, UnsupportedError, "dimension_count equal to the 32"),
    ("llama.vocab_size", 300, GgufError, "266 tokens, the model 300"),
    ("llama.context_length", 0, GgufError, "context_length"),
    ("tokenizer.ggml.tokens", ["a"], GgufError, "the tokenizer has 1 tokens, the model 266"),
]


@pytest.mark.parametrize(("key", "value", "error", "fragment"), REFUSED_KEYS)
def test_a_key_that_cannot_be_served_is_named(
    tmp_path: Path, key: str, value: object, error: type[DraftheadError], fragment: str
) -> None:
    """A wrong or unsupported value ends in one sentence that names it."""
    metadata = made.llama_metadata() | {"llama.attention.key_length": 32}
    with pytest.raises(error) as caught:
        spec_of(tmp_path, metadata | {key: value}, made.llama_tensors())
    assert fragment in str(caught.value)


def test_heads_share_key_value_heads_evenly(tmp_path: Path) -> None:
    """A head count that is no multiple of the key/value head count is refused with both numbers."""
    metadata = made.llama_metadata() | {
        "llama.attention.key_length": 32,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 3,
    }
    with pytest.raises(GgufError, match="multiple of head_count_kv, found 4 and 3"):
        spec_of(tmp_path, metadata, made.llama_tensors())


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ],
)
def test_a_needed_key_that_is_missing_is_named(tmp_path: Path, key: str) -> None:
    """Without a key that has no default, the message names the key."""
    metadata = made.llama_metadata()
    del metadata[key]
    with pytest.raises(GgufError, match=f"{key} is missing"):
        spec_of(tmp_path, metadata, made.llama_tensors())


@pytest.mark.parametrize("name", made.llama_tensors())
def test_a_needed_tensor_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    """Each tensor of the plan is needed."""
    tensors = made.llama_tensors()
    del tensors[name]
    with pytest.raises(GgufError, match=f"{name} is missing"):
        spec_of(tmp_path, made.llama_metadata(), tensors)


@pytest.mark.parametrize(
    ("name", "shape", "kind", "error", "fragment"),
    [
        ("blk.0.attn_q.weight", (64, 64), made.MXFP4, UnsupportedError, "attn_q.weight is MXFP4"),
        ("blk.1.attn_norm.weight", (64,), made.Q8_0, UnsupportedError, "attn_norm.weight is Q8_0"),
        ("blk.1.ffn_down.weight", (64, 96), made.F32, GgufError, "96 columns and 64 rows, found"),
        ("blk.0.ffn_up.weight", (64, 96, 2), made.F32, GgufError, "found the shape (64, 96, 2)"),
        ("output_norm.weight", (64, 2), made.F32, GgufError, "64 columns and 1 rows"),
        ("token_embd.weight", (64,), made.F32, GgufError, "64 columns and 266 rows"),
        ("blk.0.attn_q.bias", (32,), made.F32, UnsupportedError, "'blk.0.attn_q.bias'"),
        ("blk.0.attn_output.bias", (64,), made.F32, UnsupportedError, "'blk.0.attn_output.bias'"),
        ("blk.0.attn_q_norm.weight", (32,), made.F32, UnsupportedError, "'blk.0.attn_q_norm"),
        ("blk.0.ffn_gate_inp.weight", (64, 8), made.F32, UnsupportedError, "'blk.0.ffn_gate_inp"),
        ("v.patch_embd.weight", (64, 8), made.F32, UnsupportedError, "'v.patch_embd.weight'"),
        ("rope_freqs.weight", (8,), made.F32, GgufError, "must have 16 columns and 1 rows"),
        ("blk.2.attn_q.weight", (32, 32), made.F32, UnsupportedError, "'blk.2.attn_q.weight'"),
    ],
)
def test_a_tensor_that_cannot_be_served_is_named(
    tmp_path: Path,
    name: str,
    shape: tuple[int, ...],
    kind: int,
    error: type[DraftheadError],
    fragment: str,
) -> None:
    """Wrong types and shapes, and tensors that would change the mathematics, are named."""
    tensors = made.llama_tensors() | {name: (shape, kind)}
    with pytest.raises(error) as caught:
        spec_of(tmp_path, made.llama_metadata(), tensors)
    assert fragment in str(caught.value)


@pytest.mark.parametrize("kind", MATRIX_TYPES)
def test_every_matrix_type_is_planned(tmp_path: Path, kind: int) -> None:
    """The 15 types of the engine, in a matrix whose rows are whole blocks of any of them."""
    metadata = made.llama_metadata() | {"llama.feed_forward_length": 256}
    tensors = made.llama_tensors()
    for layer in range(2):
        for name in ("ffn_gate", "ffn_up"):
            tensors[f"blk.{layer}.{name}.weight"] = ((64, 256), made.F32)
        tensors[f"blk.{layer}.ffn_down.weight"] = ((256, 64), kind)
    spec_of(tmp_path, metadata, tensors)
    assert len(MATRIX_TYPES) == 15


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (made.F32, struct.pack("<2f", 1.5, -0.0078125)),
        (made.F16, struct.pack("<2e", 1.5, -0.0078125)),
        (made.BF16, bytes.fromhex("c03f 00bc")),
    ],
)
def test_vectors_of_any_float_type_are_widened(tmp_path: Path, kind: int, payload: bytes) -> None:
    """A norm of halves counts as the float32 numbers that it stands for."""
    metadata, tensors = made.llama_metadata(), made.llama_tensors()
    tensors["output_norm.weight"] = ((64,), kind)
    spec_of(tmp_path, metadata, tensors)
    path = tmp_path / "model.gguf"
    raw = path.read_bytes()
    path.write_bytes(raw[: -32 * len(payload)] + payload * 32)
    values = vector_values(read_gguf(path), "output_norm.weight")
    assert values.dtype == np.float32
    assert values.tolist() == [1.5, -0.0078125] * 32


def test_damaged_models_raise_nothing_but_named_errors(tmp_path: Path) -> None:
    """1,000 random damages to a whole model's metadata: served, or refused by our own errors."""
    rng = random.Random(5)
    sound = made.gguf(made.llama_metadata(), made.llama_tensors())
    front = len(sound) - sum(made.nbytes(*t) for t in made.llama_tensors().values()) - 1024
    path = tmp_path / "model.gguf"
    readers: list[Callable[..., object]] = [
        model_spec,
        Tokenizer.from_gguf,
        lambda file: ChatTemplate.from_gguf(file, Tokenizer.from_gguf(file)).render(
            [{"role": "user", "content": "x"}]
        ),
    ]
    served = refused = 0
    for _ in range(1000):
        raw = bytearray(sound)
        for _ in range(rng.choice((1, 2, 4))):
            raw[rng.randrange(24, front)] = rng.randrange(256)
        path.write_bytes(raw)
        try:
            file = read_gguf(path)
            for reader in readers:
                reader(file)
            served += 1
        except DraftheadError as error:
            refused += 1
            assert "\n" not in str(error)
    assert served >= 10
    assert refused > 250


@pytest.mark.backbone
def test_the_embedded_backbone_is_described(backbone_path: Path) -> None:
    """SmolLM2-135M: 30 layers, 9 heads sharing 3, 272 tensors, tied output."""
    spec = model_spec(read_gguf(backbone_path))
    assert (spec.n_layers, spec.d_model, spec.n_heads, spec.n_kv_heads) == (30, 576, 9, 3)
    assert (spec.head_dim, spec.d_ff, spec.vocab_size) == (64, 1536, 49152)
    assert (spec.ropes, spec.context_length) == ((Rope(100_000.0, 1.0),), 8192)
    assert spec.tied_output
    assert spec.rms_eps == pytest.approx(1e-5)
    assert len(tensor_plan(spec)) == 272
