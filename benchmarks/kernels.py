"""How fast one matrix of each weight type is read and multiplied, by the number of rows.

    python benchmarks/kernels.py [--types Q4_K,Q6_K] [--rows 1,2,4,8,16] [--shape 16384x4096]
        [--rounds 5] [--threads N]

Weights are random; the matrix is larger than the caches, so one row is bound by the memory and many
rows by the multiply-adds. The numbers of rows take turns round by round; medians. Below the table
stand the two limits of the machine, measured in the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

import numpy as np
from tables import markdown

from drafthead import _native
from drafthead.backbone.handle import default_threads
from drafthead.evaluation.machine import memory_read_gb_s
from drafthead.gguf.spec import MATRIX_TYPES
from drafthead.gguf.types import GGML_TYPES, GgmlType

PRODUCTS = 3  # of each turn; the first wakes the threads and is not counted


def random_matrix(kind: GgmlType, rows: int, columns: int) -> _native.Matrix:
    """A matrix of random bytes, none of which can be part of a scale that is huge or subnormal."""
    nbytes = rows * columns // kind.block_size * kind.block_bytes
    raw = np.random.default_rng(0).integers(0x20, 0x3C, nbytes, np.uint8)
    return _native.Matrix(kind.id, rows, columns, raw)


def product_s(
    matrix: _native.Matrix, sizes: Sequence[int], rounds: int, threads: int
) -> dict[int, float]:
    """Median seconds of a product by its number of rows."""
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            times[size] += matrix.time_products(size, PRODUCTS, threads)[1:]
    return {size: median(values) for size, values in times.items()}


def line(kind: GgmlType, matrix: _native.Matrix, weights: int, seconds: dict[int, float]) -> list:
    """One row of the table."""
    one = seconds[1]
    file_bytes = weights // kind.block_size * kind.block_bytes
    cells = [kind.name, f"{matrix.nbytes / file_bytes:.3f}", f"{matrix.nbytes / one / 1e9:.1f}"]
    cells += [f"{size * weights / taken / 1e9:.0f}" for size, taken in seconds.items()]
    return cells + [f"{taken / one:.2f}" for size, taken in seconds.items() if size > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ",".join(GGML_TYPES[kind].name for kind in MATRIX_TYPES)
    parser.add_argument("--types", default=names)
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--shape", default="16384x4096", help="output rows x columns")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=default_threads())
    args = parser.parse_args()
    by_name = {kind.name: kind for kind in GGML_TYPES.values()}
    sizes = sorted({1, *map(int, args.rows.split(","))})
    height, columns = map(int, args.shape.split("x"))
    table = []
    for name in args.types.split(","):
        matrix = random_matrix(by_name[name], height, columns)
        seconds = product_s(matrix, sizes, args.rounds, args.threads)
        table.append(line(by_name[name], matrix, height * columns, seconds))
    header = ["type", "bytes / file's", "GB/s, 1 row"]
    header += [f"G madd/s, {size}" for size in sizes]
    header += [f"v({size})" for size in sizes if size > 1]
    print(markdown(header, table))
    print(
        f"\n{args.shape} weights, {args.threads} threads, {_native.active_isa()}; memory reads "
        f"{memory_read_gb_s(args.threads):.1f} GB/s, integer multiply-adds at most "
        f"{_native.integer_peak(args.threads) / 1e9:.0f} G/s."
    )


if __name__ == "__main__":
    main()
