"""What the machine allows: a pass cannot be faster than its bytes, nor than its multiply-adds.

The roofline model (Williams, Waterman and Patterson, doi 10.1145/1498765.1498785) with two roofs,
both measured in the same run: reading weights from memory, and multiplying integers. Keys, values
and everything between the products are left out, so the limits are below what can be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from drafthead.gguf.spec import ModelSpec, tensor_plan


@dataclass(frozen=True)
class Work:
    """Multiply-adds with weights: of a row through all layers, and of a row's logits."""

    layers: int
    output: int

    @classmethod
    def of(cls, spec: ModelSpec) -> Work:
        """Count them in a model's tensors."""
        matrices = {t.name: t.rows * t.columns for t in tensor_plan(spec) if t.kind == "matrix"}
        output = matrices["token_embd.weight"]  # its shape, be it the same matrix or another
        layers = sum(size for name, size in matrices.items() if name.startswith("blk."))
        return cls(layers, output)

    def of_pass(self, rows: int, output_rows: int) -> int:
        """Count those of a pass of `rows` rows, of which `output_rows` are asked for tokens."""
        return rows * self.layers + output_rows * self.output


@dataclass(frozen=True)
class Limit:
    """The least time of a pass by each roof, and the time it took (ms)."""

    memory_ms: float
    multiply_ms: float
    measured_ms: float

    @property
    def binds(self) -> Literal["memory", "multiply"]:
        """The roof that allows less."""
        return "memory" if self.memory_ms >= self.multiply_ms else "multiply"

    @property
    def share(self) -> float:
        """How much of what the machine allows was reached, 0 to 1."""
        return max(self.memory_ms, self.multiply_ms) / self.measured_ms

    @property
    def multiply_share(self) -> float:
        """The share of the measured peak of multiply-adds, whichever roof binds."""
        return self.multiply_ms / self.measured_ms


def limits(
    rows_ms: Mapping[str, float], work: Work, pass_bytes: int, read_gb_s: float, peak_g_s: float
) -> dict[str, Limit]:
    """The roofs over passes whose every row is asked for its token.

    Args:
        rows_ms: measured time of a pass by its number of rows.
        work: multiply-adds of the model.
        pass_bytes: weight bytes that any pass streams.
        read_gb_s: memory bandwidth, 10^9 bytes a second.
        peak_g_s: integer multiply-adds, 10^9 a second.
    """
    memory_ms = pass_bytes / (1e6 * read_gb_s)
    return {
        rows: Limit(memory_ms, work.of_pass(int(rows), int(rows)) / (1e6 * peak_g_s), measured_ms)
        for rows, measured_ms in rows_ms.items()
    }
