"""Laws of the export: little is lost, zeros stay zeros, a package is there whole or not at all."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st
from test_head_config import CONFIG

from drafthead.errors import HeadError
from drafthead.heads.blocks import INT4, INT8, ggml_blocks
from drafthead.heads.package import HeadPackage
from drafthead.training.export import export
from drafthead.training.quantize import dequantize, quantize

IDS = np.arange(32, 80)
KINDS, Q4_0 = (INT8, INT4), GGMLQuantizationType.Q4_0


def make_weights(seed=0):
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(size=s).astype(np.float32) for name, s in CONFIG.matrices().items()}
    return weights | {name: rng.normal(size=64).astype(np.float32) for name in CONFIG.vectors()}


@given(st.integers(0, 1000), st.floats(1e-6, 1e3))
def test_no_weight_moves_by_more_than_half_a_step_of_its_block(seed, size):
    weights = (np.random.default_rng(seed).normal(size=(3, 64)) * size).astype(np.float32)
    values, scales = quantize(weights, INT8)
    assert values.min() >= -127
    step = np.repeat(scales.astype(np.float32), 32, axis=1)
    # the scale itself is rounded to f16, at worst by a whole denormal or 2^-11 of it
    slack = 127 * (np.maximum(step * 2.0**-11, 2.0**-24))
    assert (np.abs(dequantize(values, scales) - weights) <= step / 2 + slack + 1e-12).all()


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_four_bits_fit_a_block_at_least_as_well_as_the_plain_rule(seed, size):
    """d = max / -8, as GGML writes Q4_0; and better where the weights are many (normal ones)."""
    weights = (np.random.default_rng(seed).normal(size=(64, 32)) * size).astype(np.float32)
    found = dequantize(*quantize(weights, INT4))
    plain = gguf.dequantize(gguf.quantize(weights, Q4_0), Q4_0)
    errors = [np.square(values - weights).sum(axis=1) for values in (found, plain)]
    rounding = 1e-3 * np.square(weights).sum(axis=1) * 2.0**-10  # of a scale to f16
    assert (errors[0] <= errors[1] + rounding).all()
    assert errors[0].sum() < 0.95 * errors[1].sum()


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_mean_the_same_to_ggml(kind):
    weights = np.random.default_rng(3).normal(size=(5, 96)).astype(np.float32)
    values, scales = quantize(weights, kind)
    rows = ggml_blocks(values, scales).reshape(5, -1)
    assert (gguf.dequantize(rows, kind.ggml_type) == dequantize(values, scales)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e9])
def test_what_no_scale_can_hold_is_not_made_a_number(kind, bad):
    weights = np.ones((2, 64), np.float32)
    weights[1, 40] = bad
    assert np.isfinite(quantize(weights, kind)[1]).tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_zeros_stays_zero_and_a_tiny_one_is_not_made_infinite(kind):
    weights = np.zeros((2, 64), np.float32)
    weights[1] = 1e-9
    values, scales = quantize(weights, kind)
    assert (dequantize(values, scales) == 0).all() and np.isfinite(scales).all()


def test_integers_times_a_power_of_two_are_exact():
    exact = np.random.default_rng(0).integers(-127, 128, (4, 32)).astype(np.float32) / 64
    exact[:, 0] = 127 / 64
    assert (dequantize(*quantize(exact, INT8)) == exact).all()
    exact = np.random.default_rng(0).integers(-8, 8, (4, 32)).astype(np.float32) / 64
    exact[:, 0] = -8 / 64
    assert (dequantize(*quantize(exact, INT4)) == exact).all()


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_reads_back_and_says_the_same_bytes_again(tmp_path, kind):
    weights, config = make_weights(), replace(CONFIG, quantization=kind.name)
    package = export(tmp_path / "h", config, weights, IDS)
    assert package.config == config
    assert (package.tensors["draft_token_ids"] == IDS).all()
    for name in CONFIG.vectors():
        assert (package.tensors[name] == weights[name]).all()
    for name in CONFIG.matrices():
        values, scales = quantize(weights[name], kind)
        assert (package.tensors[name] == values).all()
        assert (package.tensors[name + "_scale"] == scales).all()
    first = {path.name: path.read_bytes() for path in (tmp_path / "h").iterdir()}
    export(tmp_path / "h", config, weights, IDS)
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "h").iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["h"]


def test_weights_that_are_not_finite_leave_the_old_package_alone(tmp_path):
    export(tmp_path / "h", CONFIG, make_weights(), IDS)
    bad = make_weights(1)
    bad["model.norm.weight"][3] = np.nan
    with pytest.raises(HeadError, match=r"model\.norm\.weight"):
        export(tmp_path / "h", CONFIG, bad, IDS)
    kept = HeadPackage.load(tmp_path / "h").tensors["model.norm.weight"]
    assert (kept == make_weights()["model.norm.weight"]).all()
    assert [path.name for path in tmp_path.iterdir()] == ["h"]


def test_a_folder_that_is_no_head_package_is_never_replaced(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"x")
    with pytest.raises(HeadError, match="not a head package"):
        export(tmp_path / "photos", CONFIG, make_weights(), IDS)
    assert (tmp_path / "photos" / "cat.png").exists()
