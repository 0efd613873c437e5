"""Laws of the export: little is lost, zeros stay zeros, a package is there whole or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_head_config import CONFIG

from drafthead.errors import HeadError
from drafthead.heads.package import HeadPackage
from drafthead.training.export import dequantize, export, quantize

IDS = np.arange(32, 80)


def make_weights(seed=0):
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(size=s).astype(np.float32) for name, s in CONFIG.matrices().items()}
    return weights | {name: rng.normal(size=64).astype(np.float32) for name in CONFIG.vectors()}


@given(st.integers(0, 1000), st.floats(1e-6, 1e3))
def test_no_weight_moves_by_more_than_half_a_step_of_its_block(seed, size):
    weights = (np.random.default_rng(seed).normal(size=(3, 64)) * size).astype(np.float32)
    values, scales = quantize(weights)
    assert values.min() >= -127
    step = np.repeat(scales.astype(np.float32), 32, axis=1)
    # the scale itself is rounded to f16, at worst by a whole denormal or 2^-11 of it
    slack = 127 * (np.maximum(step * 2.0**-11, 2.0**-24))
    assert (np.abs(dequantize(values, scales) - weights) <= step / 2 + slack + 1e-12).all()


def test_a_block_of_zeros_stays_zero_and_a_tiny_one_is_not_made_infinite():
    weights = np.zeros((2, 64), np.float32)
    weights[1] = 1e-9
    values, scales = quantize(weights)
    assert (values == 0).all() and np.isfinite(scales).all()


def test_integers_times_a_power_of_two_are_exact():
    exact = np.random.default_rng(0).integers(-127, 128, (4, 32)).astype(np.float32) / 64
    exact[:, 0] = 127 / 64
    assert (dequantize(*quantize(exact)) == exact).all()


def test_an_export_reads_back_and_says_the_same_bytes_again(tmp_path):
    weights = make_weights()
    package = export(tmp_path / "h", CONFIG, weights, IDS)
    assert package.config == CONFIG
    assert (package.tensors["draft_token_ids"] == IDS).all()
    for name in CONFIG.vectors():
        assert (package.tensors[name] == weights[name]).all()
    for name in CONFIG.matrices():
        values, scales = quantize(weights[name])
        assert (package.tensors[name] == values).all()
        assert (package.tensors[name + "_scale"] == scales).all()
    first = {path.name: path.read_bytes() for path in (tmp_path / "h").iterdir()}
    export(tmp_path / "h", CONFIG, weights, IDS)
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
