"""A recipe: everything needed to train a head again, as one TOML file.

Unknown tables and keys are refused, and so is a value of another type or outside its range.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from drafthead.errors import TrainingError
from drafthead.heads.config import (
    MAX_LAYERS,
    MAX_MARKOV_RANK,
    MAX_POSITIONS,
    NO_ATTENTION,
    read_layers,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# In an installed package, and in its source tree.
SHIPPED = (
    Path(__file__).resolve().parents[1] / "recipes",
    Path(__file__).resolve().parents[3] / "recipes",
)


@dataclass(frozen=True)
class Range:
    """Allowed values of a number, both ends included."""

    low: float
    high: float


def _number(low: float, high: float, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"range": Range(low, high)})


def _layers(lowest: int, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"lowest": lowest})


def _choice(*names: str, default: str) -> Any:
    return field(default=default, metadata={"names": names})


@dataclass(frozen=True)
class HeadRecipe:
    """The shape of the head; the fields of heads.config.HeadConfig say more.

    kv_layers: one head layer each, reading K and V of that layer; -1: a layer without attention.
    quantization: of the exported matrices; "auto" takes what decodes faster on held-out answers.
    """

    name: str
    backbone: str
    kv_layers: tuple[int, ...] = _layers(NO_ATTENTION)
    d_ff: int = _number(32, 1 << 16)
    draft_vocab: int = _number(16, 1 << 20)
    prompt_tokens: bool = True
    vocabulary: str = _choice("frequency", "prefix", default="frequency")
    markov_rank: int = _number(0, MAX_MARKOV_RANK, 0)
    taps: tuple[int, ...] = _layers(0, ())
    positions: int = _number(1, MAX_POSITIONS, 1)
    quantization: str = _choice("auto", "int8", "int4", default="auto")

    @property
    def read_layers(self) -> tuple[int, ...]:
        """Backbone layers whose K and V are read."""
        return read_layers(self.kv_layers)


@dataclass(frozen=True)
class DataRecipe:
    """Which answers count. heldout: share of answers kept for measuring."""

    heldout: float = _number(0.0, 0.5, 0.02)
    max_answers: int = _number(0, 1 << 30, 0)  # 0: all


@dataclass(frozen=True)
class AnswersRecipe:
    """What is answered where no answers are given. prompts: built-in ones, of all tasks."""

    prompts: int = _number(1, 1 << 20, 500)
    max_tokens: int = _number(2, 768, 160)


@dataclass(frozen=True)
class TrainRecipe:
    """How to train; exactly one of `steps` and `minutes` is above zero."""

    steps: int = _number(0, 1 << 30, 0)
    minutes: float = _number(0.0, 1e5, 0.0)
    unroll: int = _number(1, 16, 3)
    step_decay: float = _number(0.1, 1.0, 0.8)
    loss: str = _choice("ce", "kl", "tv", "lk", default="ce")
    batch_anchors: int = _number(16, 1 << 16, 1536)
    optimizer: str = _choice("adamw", "muon", default="adamw")
    lr: float = _number(1e-7, 1.0, 1e-3)
    muon_lr: float = _number(1e-7, 1.0, 1e-2)
    average: float = _number(0.0, 1.0, 0.0)
    warmup: float = _number(0.0, 0.5, 0.02)
    schedule: str = _choice("cosine", "linear", default="cosine")
    weight_decay: float = _number(0.0, 1.0, 0.01)
    grad_clip: float = _number(1e-3, 1e3, 1.0)
    precision: str = _choice("bf16", "f32", default="bf16")
    start: str = _choice("backbone", "random", default="backbone")
    seed: int = _number(0, 1 << 31, 0)
    evaluate_every: int = _number(1, 1 << 30, 200)
    checkpoint_every: int = _number(1, 1 << 30, 200)


@dataclass(frozen=True)
class StandaloneRecipe:
    """`train --drafter standalone`: a small model instead of a head, else by the same recipe.

    size: as many parameters as the head's body, or as many bytes as its package.  width, layers: 0
    chooses.  The other fields stand for those of [train] with the same name.
    """

    size: str = _choice("body", "bytes", default="body")
    width: int = _number(0, 1 << 14, 0)
    layers: int = _number(0, 64, 0)
    start: str = _choice("backbone", "random", default="backbone")
    lr: float = _number(1e-7, 1.0, 2e-3)
    batch_anchors: int = _number(16, 1 << 16, 1024)
    evaluate_every: int = _number(1, 1 << 30, 100)
    checkpoint_every: int = _number(1, 1 << 30, 100)


@dataclass(frozen=True)
class MeasureRecipe:
    """The last word: decoding prompts in the runtime with the exported head."""

    per_task: int = _number(1, 10000, 4)
    max_tokens: int = _number(2, 4096, 128)
    max_draft: int = _number(1, 16, 3)


@dataclass(frozen=True)
class Recipe:
    """The whole file. digest: SHA-256 of its bytes."""

    head: HeadRecipe
    answers: AnswersRecipe
    data: DataRecipe
    train: TrainRecipe
    measure: MeasureRecipe
    standalone: StandaloneRecipe
    digest: str


def _check_number(value: Any, limits: Range, kind: str, where: str) -> None:
    number = isinstance(value, int) or (kind == "float" and isinstance(value, float))
    if isinstance(value, bool) or not number or not limits.low <= value <= limits.high:
        raise TrainingError(
            f"{where}: expected a {'whole ' if kind == 'int' else ''}number of {limits.low} .. "
            f"{limits.high}, found {value!r}."
        )


def _value(spec: Any, value: Any, where: str) -> Any:
    kind = str(spec.type)
    if "range" in spec.metadata:
        _check_number(value, spec.metadata["range"], kind, where)
        return float(value) if kind == "float" else value
    if "names" in spec.metadata:
        if value not in spec.metadata["names"]:
            names = ", ".join(spec.metadata["names"])
            raise TrainingError(f"{where}: expected one of {names}, found {value!r}.")
        return value
    if kind == "bool":
        if not isinstance(value, bool):
            raise TrainingError(f"{where}: expected true or false, found {value!r}.")
        return value
    if kind == "str":
        if not isinstance(value, str) or not value:
            raise TrainingError(f"{where}: expected a text, found {value!r}.")
        return value
    fewest = 1 if spec.default is MISSING else 0
    layers = isinstance(value, list) and fewest <= len(value) <= MAX_LAYERS
    lowest = spec.metadata["lowest"]
    if not layers or any(type(item) is not int or item < lowest for item in value):
        raise TrainingError(f"{where}: expected a list of layer numbers, found {value!r}.")
    return tuple(value)


def _table(kind: Any, content: Mapping[str, Any], name: str) -> Any:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise TrainingError(f"[{name}] must be a table of the recipe.")
    specs = {spec.name: spec for spec in fields(kind)}
    for key in table:
        if key not in specs:
            raise TrainingError(f"[{name}] {key}: unknown key; known ones are {', '.join(specs)}.")
    values = {}
    for key, spec in specs.items():
        if key in table:
            values[key] = _value(spec, table[key], f"[{name}] {key}")
        elif spec.default is MISSING:
            raise TrainingError(f"[{name}] {key}: missing in the recipe.")
    return kind(**values)


def parse_recipe(text: str) -> Recipe:
    """Read and check a recipe.

    Raises:
        TrainingError: not TOML, or a table, key, type or range is wrong; it is named.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TrainingError(f"The recipe is not TOML: {error}.") from error
    known = {
        "head": HeadRecipe, "answers": AnswersRecipe, "data": DataRecipe, "train": TrainRecipe,
        "measure": MeasureRecipe, "standalone": StandaloneRecipe,
    }  # fmt: skip
    for name in content:
        if name not in known:
            raise TrainingError(f"[{name}]: unknown table; known ones are {', '.join(known)}.")
    tables = {name: _table(kind, content, name) for name, kind in known.items()}
    recipe = Recipe(**tables, digest=hashlib.sha256(text.encode()).hexdigest())
    if recipe.head.positions > 1 and recipe.train.unroll != recipe.head.positions:
        raise TrainingError(
            f"[train] unroll: a head that drafts {recipe.head.positions} positions in one pass is "
            f"trained on all of them and no more, found {recipe.train.unroll}."
        )
    if len({*recipe.head.taps}) < len(recipe.head.taps):
        raise TrainingError(f"[head] taps: name each layer once, found {[*recipe.head.taps]}.")
    if (recipe.train.steps > 0) == (recipe.train.minutes > 0):
        raise TrainingError("[train]: give exactly one of `steps` and `minutes` above zero.")
    return recipe


def find_recipe(name: str) -> Path:
    """The file of a recipe: a path, or the name of a recipe that comes with the package.

    Raises:
        TrainingError: there is neither; the known names are told.
    """
    if Path(name).is_file():
        return Path(name)
    known = {path.stem: path for folder in SHIPPED for path in sorted(folder.glob("*.toml"))}
    if name not in known:
        raise TrainingError(
            f"There is no recipe {name}: give the path of a TOML file, or one of "
            f"{', '.join(known) or 'none that came with this installation'}."
        )
    return known[name]


def load_recipe(path: Path) -> Recipe:
    """Read a recipe file; TrainingError names what is wrong with it."""
    if not path.is_file():
        raise TrainingError(f"Recipe {path} does not exist.")
    try:
        return parse_recipe(path.read_text(encoding="utf-8"))
    except (TrainingError, UnicodeDecodeError) as error:
        raise TrainingError(f"{path.name}: {error}") from error
