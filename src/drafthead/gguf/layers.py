"""What each layer of a model attends to, and how it turns queries and keys by their position."""

from __future__ import annotations

import numpy as np

from drafthead.errors import GgufError, UnsupportedError
from drafthead.gguf.architectures import PATTERN, WINDOW, WINDOW_ROPE_BASE, Architecture
from drafthead.gguf.file import GgufFile, quoted
from drafthead.gguf.model import Layer, Rope

DEFAULT_ROPE_BASE = 10_000.0  # what a file without the key means


def read_layers(
    gguf: GgufFile, name: str, architecture: Architecture, n_layers: int
) -> tuple[tuple[Rope, ...], tuple[Layer, ...]]:
    """Return the distinct rotary turns, that of full layers first, and what each layer attends."""

    def base(key: str, default: float) -> float:
        return gguf.number(f"{name}.{key}", 1.0, 1e12, default)

    full = Rope(base("rope.freq_base", DEFAULT_ROPE_BASE), _position_scale(gguf, name))
    near = full._replace(base=base(WINDOW_ROPE_BASE, full.base))
    if architecture.window_rope_base is not None:
        near = Rope(base(WINDOW_ROPE_BASE, architecture.window_rope_base), 1.0)
    window = gguf.integer(f"{name}.{WINDOW}", 0, 1 << 20, architecture.window)
    windowed = [False] * n_layers
    if window:
        windowed = _windowed_layers(gguf, name, architecture, n_layers)
    ropes = (full, near) if near != full and any(windowed) else (full,)
    layers = []
    for index in range(n_layers):
        rope = ropes.index(near if windowed[index] else full)
        if architecture.unturned_period and (index + 1) % architecture.unturned_period == 0:
            rope = -1
        layers.append(Layer(window if windowed[index] else 0, rope))
    return ropes, tuple(layers)


def _windowed_layers(
    gguf: GgufFile, name: str, architecture: Architecture, n_layers: int
) -> list[bool]:
    """Return for each layer whether it is windowed, from the period or the list of the file."""
    key = f"{name}.{PATTERN}"
    listed = gguf.metadata.get(key)
    if isinstance(listed, np.ndarray):
        if listed.dtype != np.bool_ or listed.size != n_layers:
            raise GgufError(
                f"{gguf.path}: {key} must be a period or {n_layers} booleans, found an array of "
                f"{listed.size} {listed.dtype.name} values."
            )
        return [bool(value) for value in listed]
    period = gguf.integer(key, 0, 1 << 10, architecture.full_period)
    return [period == 0 or (index + 1) % period != 0 for index in range(n_layers)]


def _position_scale(gguf: GgufFile, name: str) -> float:
    """Return what positions are multiplied by: 1, or less with linear scaling."""
    key = f"{name}.rope.scaling.type"
    kind = gguf.string(key, "linear")
    if kind not in ("none", "linear"):
        raise UnsupportedError(
            f"{gguf.path}: this version does not support {key} other than 'none' and 'linear', "
            f"found {quoted(kind)}."
        )
    factor = gguf.number(f"{name}.rope.scale_linear", 1.0, 1e6, 1.0)
    factor = gguf.number(f"{name}.rope.scaling.factor", 1.0, 1e6, factor)
    return 1.0 if kind == "none" else 1.0 / factor
