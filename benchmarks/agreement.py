"""Next-token agreement and perplexity beside llama.cpp on the same file, and why they differ.

    python benchmarks/agreement.py [--backbone NAME|FILE ...] [--windows 5] [--alone 1] [--exact]
        [--threads N] [--json FILE]

Needs llama-cpp-python in the same environment (see vs_llama_cpp.py). Both engines read the same
tokens: windows of 512, evenly spaced through natural text (Python's language reference) and code
(sources of Python's standard library), each with the beginning-of-text token where the file asks
for one. What follows is always the text's own token. Compared are, at each position, the token that
each finds most likely, and the loss of the one that comes.

The engines differ by design: each rounds activations to 8 bits and adds up in an order of its own,
so their choices part where two tokens are almost equally likely. The table shows it three ways:

- the margin between the two likeliest tokens (nats, by llama.cpp), everywhere and where the choices
  differ;
- llama.cpp beside itself: the first --alone windows are read once more in passes of one row, and so
  is every position at which the engines differ;
- with --exact, both beside the same model with its weights as 32-bit floats, in which no activation
  is rounded (takes four bytes a weight of memory, and minutes).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data.topics import topics
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tables import markdown

from drafthead import _native
from drafthead.backbone.handle import Backbone, Segment, default_threads
from drafthead.backbone.registry import backbone_name, resolve
from drafthead.evaluation.peers import LlamaCpp
from drafthead.gguf.spec import tensor_plan
from drafthead.gguf.types import F32
from drafthead.text.tokenizer import Tokenizer

WINDOW = 512
CHUNK = 64  # rows of logits held at a time: a vocabulary can have 262,144 tokens
MODULES = ("argparse", "heapq", "textwrap", "statistics", "dataclasses", "shutil", "fractions")
OURS, THEIRS, EXACT = "drafthead", "llama.cpp", "exact"


class Reader(Protocol):
    """An engine with one sequence."""

    def rollback(self, length: int) -> None: ...

    def feed(self, tokens: Sequence[int], every_row: bool = False) -> NDArray[np.float32]: ...


class Drafthead:
    """drafthead, or its exact form, as a reader."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.cache = backbone.new_cache(WINDOW)

    def rollback(self, length: int) -> None:
        self.cache.rollback(length)

    def feed(self, tokens: Sequence[int], every_row: bool = False) -> NDArray[np.float32]:
        segment = Segment(self.cache, tokens)
        rows = "all" if every_row else "last"
        return self.backbone.forward([segment], rows=rows, want="logits").logits


def exact_form(backbone: Backbone) -> Backbone:
    """The same model with its matrices as 32-bit floats, whose products round no activation."""
    native = _native.Backbone(backbone.spec.native(), backbone.threads)
    for tensor in tensor_plan(backbone.spec):
        kind = backbone.gguf.tensors[tensor.name].ggml_type
        data = backbone.gguf.data(tensor.name)
        if tensor.kind == "matrix":
            packed = _native.Matrix(kind, tensor.rows, tensor.columns, data)
            kind, data = F32, packed.dequantize().ravel().view(np.uint8)
        native.set_tensor(tensor.name, kind, tensor.rows, tensor.columns, data)
    native.finish()
    return Backbone(backbone.gguf, backbone.spec, native)


@dataclass
class Seen:
    """What was seen of the windows of one kind of text, by engine: one value a position."""

    choices: dict[str, list[NDArray]] = field(default_factory=dict)
    losses: dict[str, list[NDArray]] = field(default_factory=dict)
    margins: list[NDArray] = field(default_factory=list)
    asked_again: int = 0
    changed: int = 0
    found_ours: int = 0
    alone: int = 0
    alone_differs: int = 0

    def __add__(self, other: Seen) -> Seen:
        """Both together."""
        total = Seen()
        for one in (self, other):
            for mine, values in ((total.choices, one.choices), (total.losses, one.losses)):
                for name, arrays in values.items():
                    mine.setdefault(name, []).extend(arrays)
            total.margins += one.margins
            for name in ("asked_again", "changed", "found_ours", "alone", "alone_differs"):
                setattr(total, name, getattr(total, name) + getattr(one, name))
        return total


def prose() -> str:
    """The paragraphs of the language reference that are sentences, which every Python brings."""
    parts = re.split(r"\n\s*\n", "\n\n".join(topics[name] for name in sorted(topics)))
    sentences = (" ".join(part.split()) for part in parts if re.match(r"[A-Z][a-z]* \w", part))
    return "\n\n".join(part for part in sentences if len(part) > 120)


def code() -> str:
    """Sources that every Python brings."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "\n\n".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES)


def windows(tokenizer: Tokenizer, text: str, count: int) -> list[list[int]]:
    """`count` windows of a text as token ids, evenly spaced."""
    ids = tokenizer.encode(text)
    start = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    size, step = WINDOW - len(start), len(ids) // count
    if step < size:
        sys.exit(f"The text has {len(ids)} tokens, {count * size} are needed: take fewer windows.")
    return [start + ids[index * step : index * step + size] for index in range(count)]


def chunks(tokens: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The tokens of a window in pieces, each with those that follow; the last token has none."""
    for start in range(0, len(tokens), CHUNK):
        yield tokens[start : start + CHUNK], tokens[start + 1 : start + CHUNK + 1]


def losses(logits: NDArray, targets: Sequence[int]) -> NDArray:
    """-log p of each target under its row, in float64."""
    top = logits.max(axis=1, keepdims=True)
    normaliser = np.log(np.exp(logits - top, dtype=np.float64).sum(axis=1)) + top[:, 0]
    return normaliser - logits[np.arange(len(targets)), targets]


def read(name: str, reader: Reader, tokens: Sequence[int], seen: Seen) -> NDArray:
    """Read one window with one engine; returns its choice at each position but the last."""
    reader.rollback(0)
    choices = []
    for chunk, targets in chunks(tokens):
        logits = reader.feed(chunk, every_row=True)[: len(targets)]
        choices.append(logits.argmax(axis=1))
        seen.losses.setdefault(name, []).append(losses(logits, targets))
        if name == THEIRS:
            two = np.partition(logits, -2, axis=1)[:, -2:]
            seen.margins.append(two[:, 1] - two[:, 0])
    seen.choices.setdefault(name, []).extend(choices)
    return np.concatenate(choices)


def ask_again(peer: Reader, tokens: Sequence[int], ours: NDArray, theirs: NDArray, seen: Seen):
    """Where the choices differ, let llama.cpp choose once more, with a pass of one row."""
    for position in np.flatnonzero(ours != theirs)[::-1]:  # backwards: what precedes stays
        peer.rollback(int(position))
        again = peer.feed([tokens[position]])[0].argmax()
        seen.asked_again += 1
        seen.changed += int(again != theirs[position])
        seen.found_ours += int(again == ours[position])


def read_alone(peer: Reader, tokens: Sequence[int], theirs: NDArray, seen: Seen) -> None:
    """Read a window in passes of one row and count the choices that differ from the batch's."""
    peer.rollback(0)
    choices = [peer.feed([token])[0].argmax() for token in tokens[:-1]]
    seen.alone += len(choices)
    seen.alone_differs += int((choices != theirs).sum())


def compare(readers: Mapping[str, Reader], text: Sequence[Sequence[int]], alone: int) -> Seen:
    """Read all windows of one kind of text with every engine."""
    seen = Seen()
    for index, tokens in enumerate(text):
        choices = {name: read(name, reader, tokens, seen) for name, reader in readers.items()}
        ask_again(readers[THEIRS], tokens, choices[OURS], choices[THEIRS], seen)
        if index < alone:
            read_alone(readers[THEIRS], tokens, choices[THEIRS], seen)
    return seen


def summary(seen: Seen) -> dict[str, object]:
    """The numbers of one kind of text, or of all."""
    choice = {name: np.concatenate(arrays) for name, arrays in seen.choices.items()}
    loss = {name: float(np.concatenate(arrays).mean()) for name, arrays in seen.losses.items()}
    margin, agree = np.concatenate(seen.margins), choice[OURS] == choice[THEIRS]
    exact = {
        name: float((choice[name] == choice[EXACT]).mean())
        for name in (OURS, THEIRS)
        if EXACT in choice
    }
    return {
        "positions": len(agree),
        "agreement": float(agree.mean()),
        "perplexity": {name: float(np.exp(value)) for name, value in loss.items()},
        "perplexity_ratio": float(np.exp(loss[OURS] - loss[THEIRS])),
        "margin_nats": quantiles(margin),
        "margin_where_different_nats": quantiles(margin[~agree]),
        "different": seen.asked_again,
        "one_row_pass_differs_from_its_own": seen.changed,
        "one_row_pass_agrees_with_drafthead": seen.found_ours,
        "llama.cpp_with_itself": {"positions": seen.alone, "differ": seen.alone_differs},
        "agreement_with_exact": exact or None,
    }


def quantiles(values: NDArray) -> dict[str, float] | None:
    """Median, 90th percentile and highest; None where there are no values."""
    if not len(values):
        return None
    median, p90 = np.percentile(values, [50, 90])
    return {"median": float(median), "p90": float(p90), "highest": float(values.max())}


def measure(path: Path, args: argparse.Namespace) -> dict[str, object]:
    """Both kinds of text with one backbone."""
    backbone = Backbone.open(path, threads=args.threads)
    tokenizer = Tokenizer.from_gguf(backbone.gguf)
    peer = LlamaCpp(path, args.threads, WINDOW)
    readers: dict[str, Reader] = {OURS: Drafthead(backbone), THEIRS: peer}
    if args.exact:
        readers[EXACT] = Drafthead(exact_form(backbone))
    seen = {
        kind: compare(readers, windows(tokenizer, text, args.windows), args.alone)
        for kind, text in (("prose", prose()), ("code", code()))
    }
    version = peer.version
    peer.close()
    seen["both"] = seen["prose"] + seen["code"]
    kinds = {kind: summary(one) for kind, one in seen.items()}
    return {"backbone": backbone_name(path), "file": path.name, "peer": version, "kinds": kinds}


def table(results: Sequence[Mapping]) -> str:
    """One row a backbone and kind of text."""
    header = (
        "backbone, text", "positions", "agreement", "perplexity", "llama.cpp's", "ratio",
        "margin", "where different (highest)", "changed by a one-row pass",
        "llama.cpp with itself", "drafthead with exact", "llama.cpp with exact",
    )  # fmt: skip
    rows = []
    for result in results:
        for name, kind in result["kinds"].items():
            own, exact = kind["llama.cpp_with_itself"], kind["agreement_with_exact"] or {}
            itself = 1 - own["differ"] / own["positions"] if own["positions"] else None
            where = kind["margin_where_different_nats"]
            rows.append([
                f"{result['backbone']}, {name}", str(kind["positions"]), share(kind["agreement"]),
                *[f"{kind['perplexity'][engine]:.3f}" for engine in (OURS, THEIRS)],
                f"{kind['perplexity_ratio']:.4f}", f"{kind['margin_nats']['median']:.2f}",
                f"{where['median']:.3f} ({where['highest']:.3f})" if where else "-",
                f"{kind['one_row_pass_differs_from_its_own']} of {kind['different']}",
                share(itself), *[share(exact.get(engine)) for engine in (OURS, THEIRS)],
            ])  # fmt: skip
    return markdown(header, rows)


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", nargs="+", default=["smollm2-135m"], metavar="NAME|FILE")
    parser.add_argument("--windows", type=int, default=5, help="windows of 512 tokens a kind")
    parser.add_argument("--alone", type=int, default=1, help="of these, read in one-row passes too")
    parser.add_argument("--exact", action="store_true", help="compare with float weights too")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--json", type=Path, default=None, help="write every number to this file")
    args = parser.parse_args()
    results = [measure(resolve(name), args) for name in args.backbone]
    print(table(results))
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
