"""What each architecture's files mean: the facts that readers have in code, and where they end."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf_bytes as made
import numpy as np
import pytest

from drafthead.errors import DraftheadError, GgufError, UnsupportedError
from drafthead.gguf.architectures import ARCHITECTURES
from drafthead.gguf.model import Layer, ModelSpec, Rope
from drafthead.gguf.reader import read_gguf
from drafthead.gguf.spec import model_spec, tensor_plan

BIASES = {"attn_q.bias": 64, "attn_k.bias": 32, "attn_v.bias": 32}
HEAD_NORMS = {"attn_q_norm.weight": 32, "attn_k_norm.weight": 32}
POST_NORMS = {"post_attention_norm.weight": 64, "post_ffw_norm.weight": 64}
EXTRA = {  # vectors of a layer that llama does not have
    "llama": {},
    "smollm3": {},
    "qwen2": BIASES,
    "qwen3": HEAD_NORMS,
    "gemma2": POST_NORMS,
    "gemma3": HEAD_NORMS | POST_NORMS,
}
FULL, NEAR = Layer(0, 0), Layer(512, 1)


def write(
    folder: Path,
    architecture: str,
    layers: int = 2,
    keys: dict[str, object] | None = None,
    tensors: dict[str, tuple[tuple[int, ...], int]] | None = None,
) -> Path:
    """A sound file of the architecture: the tiny llama's sizes, with these keys and tensors more.

    Keys are without the prefix.
    """
    metadata = {
        key.replace("llama.", f"{architecture}.", 1): value
        for key, value in made.llama_metadata().items()
    }
    metadata |= {"general.architecture": architecture, f"{architecture}.block_count": layers}
    metadata |= {f"{architecture}.attention.key_length": 32}
    metadata |= {f"{architecture}.{key}": value for key, value in (keys or {}).items()}
    everything = made.llama_tensors(layers)
    for layer in range(layers):
        for name, size in EXTRA[architecture].items():
            everything[f"blk.{layer}.{name}"] = ((size,), made.F32)
    path = folder / "model.gguf"
    path.write_bytes(made.gguf(metadata, everything | (tensors or {})))
    return path


def spec_of(folder: Path, architecture: str, *rest, **more) -> ModelSpec:
    return model_spec(read_gguf(write(folder, architecture, *rest, **more)))


def test_every_architecture_has_its_case() -> None:
    assert EXTRA.keys() == ARCHITECTURES.keys()


@pytest.mark.parametrize("architecture", EXTRA)
def test_each_architecture_plans_its_tensors_and_no_other(
    tmp_path: Path, architecture: str
) -> None:
    """The plan is the file's table; without any one of its own tensors the file is refused."""
    path = write(tmp_path, architecture)
    gguf = read_gguf(path)
    plan = tensor_plan(model_spec(gguf))
    assert {(p.name, p.columns * p.rows) for p in plan} == {
        (t.name, t.shape[0] * (t.shape[1] if len(t.shape) > 1 else 1))
        for t in gguf.tensors.values()
    }
    for name in EXTRA[architecture]:
        del gguf.tensors[f"blk.1.{name}"]
        with pytest.raises(GgufError, match=f"blk.1.{name} is missing"):
            model_spec(gguf)
        gguf = read_gguf(path)


@pytest.mark.parametrize("architecture", EXTRA)
def test_flags_follow_the_architecture(tmp_path: Path, architecture: str) -> None:
    spec = spec_of(tmp_path, architecture)
    gemma = architecture.startswith("gemma")
    assert spec.rope_interleaved == (architecture in ("llama", "smollm3"))
    assert spec.qkv_bias == (architecture == "qwen2")
    assert spec.qk_norm == (architecture in ("qwen3", "gemma3"))
    assert (spec.gelu, spec.post_norms) == (gemma, gemma)
    assert spec.embedding_scale == (8.0 if gemma else 1.0)
    assert spec.attention_scale == struct.unpack("<f", struct.pack("<f", 32**-0.5))[0]


def test_smollm3_turns_all_but_every_fourth_layer(tmp_path: Path) -> None:
    layers = spec_of(tmp_path, "smollm3", 9).layers
    assert [layer.rope for layer in layers] == [0, 0, 0, -1, 0, 0, 0, -1, 0]
    assert {layer.window for layer in layers} == {0}


def test_a_window_of_a_llama_file_is_every_layers(tmp_path: Path) -> None:
    """Mistral: no layer sees further back, and all turn alike."""
    spec = spec_of(tmp_path, "llama", keys={"attention.sliding_window": 512})
    assert (spec.layers, spec.ropes) == ((Layer(512, 0),) * 2, (Rope(10_000.0, 1.0),))


def test_every_sixth_gemma3_layer_is_full_and_turns_by_the_files_base(tmp_path: Path) -> None:
    """The base of windowed layers is 10,000; linear scaling is the full layers' alone."""
    keys = {"attention.sliding_window": 512, "rope.freq_base": 1e6, "rope.scaling.factor": 8.0}
    spec = spec_of(tmp_path, "gemma3", 8, keys)
    assert spec.ropes == (Rope(1e6, 0.125), Rope(10_000.0, 1.0))
    assert spec.layers == (*[NEAR] * 5, FULL, NEAR, NEAR)
    near_base = spec_of(tmp_path, "gemma3", 8, keys | {"rope.freq_base_swa": 5e4}).ropes[1]
    assert near_base == Rope(5e4, 1.0)


def test_gemma3_without_a_window_has_full_layers_only(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "gemma3", keys={"rope.freq_base": 1e6})
    assert (spec.layers, spec.ropes) == ((FULL, FULL), (Rope(1e6, 1.0),))


def test_gemma2_alternates_from_a_windowed_layer_on(tmp_path: Path) -> None:
    """The window of files that name none is 4,096; both kinds turn alike, scaling included."""
    spec = spec_of(tmp_path, "gemma2", 3, {"rope.scaling.factor": 2.0})
    assert spec.layers == (Layer(4096, 0), FULL, Layer(4096, 0))
    assert spec.ropes == (Rope(10_000.0, 0.5),)


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (3, [512, 512, 0, 512]),
        (1, [0, 0, 0, 0]),
        (0, [512, 512, 512, 512]),
    ],
)
def test_a_period_of_the_file_overrules_the_architectures(
    tmp_path: Path, pattern: int, windows: list[int]
) -> None:
    keys = {"attention.sliding_window": 512, "attention.sliding_window_pattern": pattern}
    spec = spec_of(tmp_path, "gemma3", 4, keys)
    assert [layer.window for layer in spec.layers] == windows


def test_a_list_of_layers_overrules_it_too(tmp_path: Path) -> None:
    """Newer files say for each layer whether it is windowed."""
    path = write(tmp_path, "gemma3", 3, {"attention.sliding_window": 512, "rope.freq_base": 1e6})
    gguf = read_gguf(path)
    key = "gemma3.attention.sliding_window_pattern"
    gguf.metadata[key] = np.array([False, True, False])
    assert model_spec(gguf).layers == (FULL, NEAR, FULL)
    for wrong in (np.array([True, False]), np.array([1, 0, 1], np.int32)):
        gguf.metadata[key] = wrong
        with pytest.raises(GgufError, match="must be a period or 3 booleans, found an array"):
            model_spec(gguf)


@pytest.mark.parametrize(
    ("keys", "scale"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 0.25),
        ({"rope.scaling.factor": 4.0}, 0.25),
        ({"rope.scale_linear": 4.0}, 0.25),
        ({"rope.scale_linear": 4.0, "rope.scaling.factor": 2.0}, 0.5),
        ({"rope.scaling.type": "linear"}, 1.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
    ],
)
def test_linear_scaling_divides_positions(
    tmp_path: Path, keys: dict[str, object], scale: float
) -> None:
    """A factor counts unless the type is none; the newer of its two keys comes first."""
    assert spec_of(tmp_path, "qwen2", keys=keys).ropes == (Rope(10_000.0, scale),)


def test_soft_caps_come_from_the_file_or_the_architecture(tmp_path: Path) -> None:
    def caps(architecture: str, **keys: float) -> tuple[float, float]:
        spec = spec_of(tmp_path, architecture, keys=keys)
        return spec.attention_softcap, spec.final_softcap

    assert caps("gemma2") == (50.0, 30.0)
    own = {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 0.0}
    assert caps("gemma2", **own) == (20.0, 0.0)
    assert caps("gemma3") == (0.0, 0.0)
    assert caps("gemma3", final_logit_softcapping=30.0) == (0.0, 30.0)


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_27b_scales_queries_by_width_per_head(
    tmp_path: Path, architecture: str, layers: int
) -> None:
    """Known by its layers: d_model / n_heads is 32 with 2 heads, 16 with 4 heads of 32."""
    keys = {"attention.head_count": 4, "attention.head_count_kv": 1}
    wide = {
        f"blk.{layer}.{name}.weight": (shape, made.F32)
        for layer in range(layers)
        for name, shape in (("attn_q", (64, 128)), ("attn_output", (128, 64)))
    }
    assert spec_of(tmp_path, architecture, layers, keys, wide).attention_scale == 0.25


def test_llama3_factors_are_a_tensor_of_llama_files_alone(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": ((16,), made.F32)}
    path = write(tmp_path, "llama", tensors=factors)
    path.write_bytes(path.read_bytes()[:-64] + struct.pack("<16f", *[1.0] * 8, *[8.0] * 8))
    spec = model_spec(read_gguf(path))
    assert spec.rope_factors
    assert ("rope_freqs.weight", 16, 1, "vector") in tensor_plan(spec)
    for bad in (0.5, float("nan"), -1.0, float("inf")):
        path.write_bytes(path.read_bytes()[:-4] + struct.pack("<f", bad))
        with pytest.raises(GgufError, match=r"rope_freqs.weight must hold factors"):
            model_spec(read_gguf(path))
    with pytest.raises(UnsupportedError, match=r"'rope_freqs.weight'"):
        spec_of(tmp_path, "qwen2", tensors=factors)


OUTPUT = {"output.weight": ((64, 266), made.Q8_0)}


@pytest.mark.parametrize("architecture", EXTRA)
def test_an_output_matrix_is_used_or_refused(tmp_path: Path, architecture: str) -> None:
    """Gemma 2 has none: its readers take the embedding whatever the file holds."""
    assert spec_of(tmp_path, architecture).tied_output
    if architecture == "gemma2":
        with pytest.raises(UnsupportedError, match=r"'output.weight'"):
            spec_of(tmp_path, architecture, tensors=OUTPUT)
    else:
        assert not spec_of(tmp_path, architecture, tensors=OUTPUT).tied_output


@pytest.mark.parametrize(
    ("architecture", "keys", "error", "fragment"),
    [
        ("qwen2", {"attention.sliding_window": 4096}, UnsupportedError, "sliding_window"),
        ("smollm3", {"attention.sliding_window": 4096}, UnsupportedError, "sliding_window"),
        ("qwen3", {"pooling_type": 3}, UnsupportedError, "'qwen3.pooling_type', found 3"),
        ("qwen2", {"rope.scaling.type": "yarn"}, UnsupportedError, "found 'yarn'"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, UnsupportedError, "attn_logit_softcapping"),
        ("gemma3", {"vision.block_count": 27}, UnsupportedError, "gemma3.vision.block_count"),
        ("gemma3", {"attention.sliding_window": 1 << 21}, GgufError, "from 0 to 1048576"),
        ("gemma2", {"final_logit_softcapping": -1.0}, GgufError, "a float from 0 to 1e+06"),
        ("gemma2", {"attn_logit_softcapping": float("nan")}, GgufError, "found the float nan"),
        ("gemma3", {"rope.freq_base_swa": 0.0, "attention.sliding_window": 8}, GgufError, "base_"),
        ("gemma3", {"attention.sliding_window_pattern": 1.5, "attention.sliding_window": 8},
         GgufError, "sliding_window_pattern must be an integer"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_served_is_named(
    tmp_path: Path,
    architecture: str,
    keys: dict[str, object],
    error: type[DraftheadError],
    fragment: str,
) -> None:
    with pytest.raises(error) as caught:
        spec_of(tmp_path, architecture, keys=keys)
    assert fragment in str(caught.value)
