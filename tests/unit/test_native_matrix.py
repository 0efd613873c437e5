"""A packed matrix: equal to the file's values, exact for every number of rows, on every ISA."""

from __future__ import annotations

import ctypes

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from drafthead import _native
from tests.bits import same_bits

FLOATS = [Type.F32, Type.F16, Type.BF16]
# Where a block of each integer type keeps its half-precision scales, in bytes.
HALVES = {
    Type.Q4_0: (0,),
    Type.Q4_1: (0, 2),
    Type.Q5_0: (0,),
    Type.Q5_1: (0, 2),
    Type.Q8_0: (0,),
    Type.Q2_K: (80, 82),
    Type.Q3_K: (108,),
    Type.Q4_K: (0, 2),
    Type.Q5_K: (0, 2),
    Type.Q6_K: (208,),
    Type.IQ4_NL: (0,),
    Type.IQ4_XS: (0,),
}
TYPES = [*FLOATS, *HALVES]
ROWS, COLUMNS = 72, 768  # the last tile is half empty


def file_bytes(kind: Type, rows: int = ROWS, columns: int = COLUMNS, seed: int = 0) -> np.ndarray:
    """A tensor as a file holds it: every bit of an integer type is random but for the scales."""
    rng = np.random.default_rng(seed)
    if kind in FLOATS:
        return gguf.quantize(rng.normal(size=(rows, columns)).astype(np.float32), kind)
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // weights, size), dtype=np.uint8)
    for at in HALVES[kind]:
        scales = rng.normal(0, 0.01, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def packed(kind: Type, seed: int = 0) -> tuple[_native.Matrix, np.ndarray]:
    data = file_bytes(kind, seed=seed)
    matrix = _native.Matrix(int(kind), ROWS, COLUMNS, data.view(np.uint8).reshape(-1))
    return matrix, gguf.dequantize(data, kind).reshape(ROWS, COLUMNS)


def activations(rows: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, COLUMNS)).astype(np.float32)


def int8_blocks(x: np.ndarray) -> np.ndarray:
    """Activations as the contract quantises them: d = max / 127 in blocks of 32."""
    blocks = x.reshape(x.shape[0], -1, 32).astype(np.float64)
    d = np.abs(blocks).max(-1, keepdims=True) / 127
    return (np.rint(blocks / d) * d).reshape(x.shape)


@pytest.mark.parametrize("kind", TYPES)
def test_dequantize_equals_the_reference_reader(kind):
    matrix, reference = packed(kind)
    assert same_bits(matrix.dequantize(), reference.astype(np.float32))


def test_the_callers_rounding_changes_no_value():
    matrix, reference = packed(Type.Q4_1)
    libm = ctypes.CDLL("libm.so.6")
    assert libm.fesetround(0x400) == 0  # downward
    try:
        values = matrix.dequantize()
    finally:
        libm.fesetround(0)
    assert same_bits(values, reference.astype(np.float32))


@pytest.mark.parametrize("kind", TYPES)
def test_a_pass_streams_hardly_more_than_the_files_bytes(kind):
    data = file_bytes(kind, 64, 768)
    matrix = _native.Matrix(int(kind), 64, 768, data.view(np.uint8).reshape(-1))
    assert data.nbytes <= matrix.nbytes <= 1.04 * data.nbytes


@pytest.mark.parametrize("kind", TYPES)
def test_multiply_equals_the_float_product_within_rounding(kind, every_isa):
    """The tolerance is what float32 accumulation may lose: eps times terms times their magnitude.

    A term is d q x or m x, of which |w x| may be the small difference: with random codes each of
    the two stays below twice the largest |w| of its 16.
    """
    matrix, weights = packed(kind)
    x = activations(5)
    seen = x.astype(np.float64) if kind in FLOATS else int8_blocks(x)
    exact = seen @ weights.astype(np.float64).T
    largest = np.abs(weights).reshape(ROWS, -1, 16).max(-1, keepdims=True)
    magnitude = 4 * np.broadcast_to(largest, (ROWS, COLUMNS // 16, 16)).reshape(ROWS, COLUMNS)
    terms = COLUMNS if kind in FLOATS else 2 * COLUMNS // 32
    room = terms * np.finfo(np.float32).eps * (np.abs(seen) @ magnitude.T)
    for isa in every_isa:
        _native.set_isa(isa)
        worst = np.max(np.abs(matrix.multiply(x) - exact) / room)
        assert worst <= 1, f"{isa}: off by {worst} times the rounding bound"


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_has_the_same_bits_alone_and_in_any_company(kind, every_isa):
    """A1: M in 1..17, every row against the one-row product, every ISA against the first."""
    matrix, _ = packed(kind)
    x = activations(17)
    alone = np.concatenate([matrix.multiply(x[i : i + 1]) for i in range(17)])
    for isa in every_isa:
        _native.set_isa(isa)
        for m in range(1, 18):
            assert same_bits(matrix.multiply(x[:m]), alone[:m]), f"{isa}, {m} rows"


@pytest.mark.parametrize("value", [-128, -127, 127])
def test_extreme_int8_weights_do_not_saturate(value, every_isa):
    """32 products of 127 and -128 stay exact on the 16-bit step of AVX2 too."""
    block = np.zeros(16, np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    block["d"], block["q"] = 1, value
    matrix = _native.Matrix(int(Type.Q8_0), 16, 32, block.view(np.uint8).reshape(-1))
    for sign in (1, -1):
        x = np.full((1, 32), sign * 127, np.float32)
        for isa in every_isa:
            _native.set_isa(isa)
            assert (matrix.multiply(x) == 32.0 * value * sign * 127).all(), isa


def test_zero_and_non_finite_activations_are_defined(every_isa):
    matrix, _ = packed(Type.Q4_1)
    x = activations(3)
    x[0] = 0
    x[1, 7] = np.nan
    x[2, 40] = np.inf
    results = []
    for isa in every_isa:
        _native.set_isa(isa)
        results.append(np.nan_to_num(matrix.multiply(x), nan=1e9))
        assert (results[-1][0] == 0).all()
        assert not (np.abs(results[-1][1:]) < 1e9).any(), "a NaN or an infinity became a number"
        assert np.array_equal(results[-1], results[0])


@pytest.mark.parametrize(
    ("kind", "rows", "columns", "reason"),
    [
        (16, 16, 256, "not supported"),
        (8, 16, 33, "rows x columns"),
        (8, 0, 32, "rows x columns"),
    ],
)
def test_bad_matrices_are_refused(kind, rows, columns, reason):
    with pytest.raises(ValueError, match=reason):
        _native.Matrix(kind, rows, columns, np.zeros(10, np.uint8))
