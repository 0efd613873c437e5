"""A head as a folder: config.json and model.safetensors, checked before anything is trusted.

Matrices are int8 or two 4-bit integers a byte, with one f16 scale for each block of 32 along K
(`NAME_scale`, [N, K/32]; blocks.py), norms f32, `draft_token_ids` int32 ascending in whole groups
of 16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead.errors import HeadError
from drafthead.gguf.spec import ModelSpec
from drafthead.heads.blocks import BLOCK, ggml_blocks
from drafthead.heads.config import GROUP, HeadConfig

if TYPE_CHECKING:
    from drafthead._native import Backbone as NativeBackbone
    from drafthead._native import MtpHead

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 20
GGML_F32 = 0
DTYPE_BYTES = {"I8": 1, "U8": 1, "F16": 2, "F32": 4, "I32": 4}


class Target(Protocol):
    """What a head needs to know of a backbone."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of its tensors."""

    @property
    def tokenizer_fingerprint(self) -> str:
        """SHA-256 of its vocabulary."""

    @property
    def spec(self) -> ModelSpec:
        """Its numbers."""

    @property
    def native(self) -> NativeBackbone:
        """The handle of the core."""

    def give_taps(self, layers: Sequence[int]) -> None:
        """Give the outputs of these layers in every pass."""


def expected_tensors(config: HeadConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name to safetensors dtype and shape of everything that a package holds, and nothing else."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    tensors |= {name: ("F32", (size,)) for name, size in config.vectors().items()}
    for name, (rows, columns) in config.matrices().items():
        if columns % BLOCK:
            raise HeadError(
                f"config.json: {name} has {columns} columns, not a multiple of {BLOCK}."
            )
        tensors[name] = (config.blocks.dtype, (rows, config.blocks.row_bytes(columns)))
        tensors[name + "_scale"] = ("F16", (rows, columns // BLOCK))
    tensors["draft_token_ids"] = ("I32", (config.draft_vocab_size,))
    return tensors


def read_config(folder: Path) -> HeadConfig:
    """Read and check config.json alone, which is enough to see whether a head fits."""
    path = folder / CONFIG
    if not folder.is_dir():
        found = "it is a file, not a folder" if folder.exists() else "there is no such folder"
        raise HeadError(f"{folder} is not a head package: {found}.")
    if not path.is_file():
        raise HeadError(f"{folder} is not a head package: it has no {CONFIG}.")
    if path.stat().st_size > MAX_CONFIG_BYTES:
        raise HeadError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes; it is no head config.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise HeadError(f"{path} is not JSON: {error}.") from error
    try:
        return HeadConfig.from_json(content)
    except HeadError as error:
        raise HeadError(f"{folder.name}/{error}") from error


def _read_header(raw: bytes, size: int, name: str) -> tuple[dict[str, Any], int]:
    """The JSON header of a safetensors file and where its data begin."""
    length = int.from_bytes(raw[:8], "little") if len(raw) >= 8 else 0
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8) or raw[8:9] != b"{":
        raise HeadError(f"{name} is not a safetensors file; get the head package again.")
    try:
        header = json.loads(raw[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise HeadError(f"{name}: its header is damaged ({error}).") from error
    if not isinstance(header, dict):
        raise HeadError(f"{name}: its header is not a JSON object.")
    header.pop("__metadata__", None)
    return header, 8 + length


def _tensor(
    raw: bytes, begin: int, entry: object, expected: tuple[str, tuple[int, ...]], name: str
) -> NDArray[Any]:
    dtype, shape = expected
    fields: Mapping[str, Any] = entry if isinstance(entry, dict) else {}
    if fields.get("dtype") != dtype or fields.get("shape") != list(shape):
        raise HeadError(
            f"{WEIGHTS}, {name}: expected {dtype} {list(shape)}, found {fields.get('dtype')} "
            f"{fields.get('shape')}."
        )
    nbytes = DTYPE_BYTES[dtype] * int(np.prod(shape))
    span = fields.get("data_offsets")
    offsets = span if isinstance(span, list) and len(span) == 2 else [-1, -1]
    inside = all(type(value) is int and 0 <= value <= len(raw) - begin for value in offsets)
    if not inside or offsets[1] - offsets[0] != nbytes:
        raise HeadError(f"{WEIGHTS}, {name}: its data lie outside the file or have a wrong size.")
    kinds: dict[str, type[Any]] = {
        "I8": np.int8,
        "U8": np.uint8,
        "F16": np.float16,
        "F32": np.float32,
    }
    kind = np.dtype(kinds.get(dtype, np.int32))
    flat: NDArray[Any] = np.frombuffer(raw, kind, int(np.prod(shape)), begin + offsets[0])
    return flat.reshape(shape)


def _check_values(config: HeadConfig, tensors: Mapping[str, NDArray[Any]]) -> None:
    for name, values in tensors.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise HeadError(f"{WEIGHTS}, {name}: holds values that are not finite.")
    ids = tensors["draft_token_ids"].astype(np.int64)
    groups = ids.reshape(-1, GROUP)
    aligned = (groups == groups[:, :1] + np.arange(GROUP)).all() and not (
        ids[::GROUP] % GROUP
    ).any()
    if not aligned or (np.diff(ids) <= 0).any() or ids[0] < 0 or ids[-1] >= config.vocab_size:
        raise HeadError(
            f"{WEIGHTS}, draft_token_ids: expected ascending whole groups of {GROUP} ids below "
            f"{config.vocab_size}."
        )


@dataclass(frozen=True)
class HeadPackage:
    """A head whose every field and tensor has been checked."""

    path: Path
    config: HeadConfig
    tensors: Mapping[str, NDArray[Any]]

    @classmethod
    def load(cls, path: Path) -> HeadPackage:
        """Read a head package.

        Raises:
            HeadError: something is missing, extra, damaged or of another shape or type; named.
        """
        config = read_config(path)
        file = path / WEIGHTS
        if not file.is_file():
            raise HeadError(f"{path} has no {WEIGHTS}; get the head package again.")
        expected = expected_tensors(config)
        limit = (
            MAX_HEADER_BYTES
            + 8
            + sum(DTYPE_BYTES[dtype] * int(np.prod(shape)) for dtype, shape in expected.values())
        )
        size = file.stat().st_size
        if size > limit:
            raise HeadError(f"{file} has {size} bytes, more than its config allows ({limit}).")
        raw = file.read_bytes()
        header, begin = _read_header(raw, size, WEIGHTS)
        for name in expected:
            if name not in header:
                raise HeadError(f"{WEIGHTS}: tensor {name} is missing.")
        for name in header:
            if name not in expected:
                raise HeadError(f"{WEIGHTS}: tensor {str(name)[:80]!r} does not belong to a head.")
        tensors = {
            name: _tensor(raw, begin, header[name], what, name) for name, what in expected.items()
        }
        _check_values(config, tensors)
        return cls(path, config, tensors)

    def check_target(self, backbone: Target) -> None:
        """Refuse any backbone but the one it was trained for: HeadError names the field."""
        mismatch = target_mismatch(self.config, backbone)
        if mismatch is not None:
            raise HeadError(f"Head {self.path.name}: {mismatch}")

    def build(self, backbone: Target) -> MtpHead:
        """Give the weights to the native core: a `_native.MtpHead` beside the backbone."""
        from drafthead._native import MtpHead  # importing a head's config needs no core

        self.check_target(backbone)
        config = self.config
        if config.taps:
            backbone.give_taps(config.taps)
        spec = {
            "n_layers": config.n_layers,
            "d_ff": config.d_ff,
            "n_heads": config.n_heads,
            "head_dim": config.head_dim,
            "attention_bias": int(config.attention_bias),
            "qk_norm": int(config.qk_norm),
            "markov_rank": config.markov_rank,
            "taps": len(config.taps),
            "positions": config.positions,
            "prompt_tokens": int(config.prompt_tokens),
        }
        ids = np.array(self.tensors["draft_token_ids"])
        head = MtpHead(backbone.native, spec, list(config.kv_layers), ids)
        for name, size in config.vectors().items():
            data = self.tensors[name].view(np.uint8).copy()
            head.set_tensor(name, GGML_F32, 1, size, data)
        for name, (rows, columns) in config.matrices().items():
            data = ggml_blocks(self.tensors[name], self.tensors[name + "_scale"])
            head.set_tensor(name, config.blocks.ggml_type, rows, columns, data)
        head.finish()
        return head


def target_mismatch(config: HeadConfig, backbone: Target) -> str | None:
    """Why a head does not belong to a backbone, naming the field; None where it does."""
    target, spec = config.target, backbone.spec
    pairs: list[tuple[str, object, object]] = [
        ("fingerprint", target.fingerprint, backbone.fingerprint),
        ("tokenizer_fingerprint", target.tokenizer_fingerprint, backbone.tokenizer_fingerprint),
        ("architecture", target.architecture, spec.architecture),
        ("hidden_size", config.d_model, spec.d_model),
        ("vocab_size", config.vocab_size, spec.vocab_size),
        ("head_dim", config.head_dim, spec.head_dim),
        ("num_attention_heads", config.n_heads, spec.n_heads),
        ("num_key_value_heads", config.n_kv_heads, spec.n_kv_heads),
    ]
    for name, mine, theirs in pairs:
        if mine != theirs:
            return (
                f"{name} is that of {target.name} ({str(mine)[:16]}), the backbone "
                f"{backbone.name} has {str(theirs)[:16]}; choose a head trained for it."
            )
    for name, layers in (("kv_layers", config.kv_layers), ("taps", config.taps)):
        if max(layers, default=0) >= spec.n_layers:
            return f"{name} {list(layers)} do not exist in {spec.n_layers} layers."
    return None
