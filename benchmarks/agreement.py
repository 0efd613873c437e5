"""Next-token agreement and perplexity beside llama.cpp on the same file, and where they differ.

    python benchmarks/agreement.py [--backbone NAME|FILE ...] [--windows 5] [--threads N]
        [--json FILE]

Needs llama-cpp-python in the same environment (see vs_llama_cpp.py). Both engines read the same
tokens: windows of 512 of natural text (this project's documentation) and of code (sources of
Python's standard library), each with the beginning-of-text token where the file asks for one. The
token that follows is the text's own, whatever an engine would have chosen. Compared are, at each
position, the token that each finds most likely, and the loss of the one that comes.

The engines differ by design: each rounds activations to 8 bits in blocks of its own, and sums in
another order. So a choice differs where two tokens are almost equally likely. To show that, the
table has the margin between the two most likely tokens (nats, by llama.cpp) everywhere and where
the choices differ; at those positions llama.cpp is asked again with a pass of one row, and in the
first window of each kind at every position, which gives the disagreement of llama.cpp with itself.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tables import markdown

from drafthead.backbone.handle import Backbone, Segment, default_threads
from drafthead.backbone.registry import backbone_name, resolve
from drafthead.evaluation.peers import LlamaCpp
from drafthead.text.tokenizer import Tokenizer

WINDOW = 512
CHUNK = 64  # rows of logits held at a time: a vocabulary can have 262,144 tokens
ROOT = Path(__file__).resolve().parents[1]
MODULES = ("argparse", "heapq", "textwrap", "statistics", "dataclasses", "shutil", "fractions")


@dataclass
class Compared:
    """What was seen over the windows of one kind of text; arrays have one value a position."""

    kind: str
    agree: list[NDArray] = field(default_factory=list)
    our_loss: list[NDArray] = field(default_factory=list)
    their_loss: list[NDArray] = field(default_factory=list)
    margin: list[NDArray] = field(default_factory=list)
    asked_again: int = 0
    changed_its_mind: int = 0
    found_ours: int = 0
    alone: int = 0
    alone_differs: int = 0


def prose() -> str:
    """Paragraphs of the documentation, without tables, code and headings."""
    pages = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    text = "\n\n".join(page.read_text(encoding="utf-8") for page in pages)
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text)]
    return "\n\n".join(part for part in paragraphs if re.match(r"[\w*`-].{80}", part))


def code() -> str:
    """Sources that every Python brings along."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return "\n\n".join((folder / f"{name}.py").read_text(encoding="utf-8") for name in MODULES)


def windows(tokenizer: Tokenizer, text: str, count: int) -> list[list[int]]:
    """The first `count` windows of a text, as token ids."""
    ids = tokenizer.encode(text)
    start = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    size = WINDOW - len(start)
    if len(ids) < count * size:
        sys.exit(f"The text has {len(ids)} tokens, {count * size} are needed: take fewer windows.")
    return [start + ids[index * size : (index + 1) * size] for index in range(count)]


def logits_of(
    backbone: Backbone, peer: LlamaCpp, tokens: Sequence[int]
) -> Iterator[tuple[int, NDArray, NDArray]]:
    """First position, drafthead's logits and llama.cpp's (M, V), chunk by chunk."""
    cache = backbone.new_cache(WINDOW)
    peer.rollback(0)
    for start in range(0, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK]
        ours = backbone.forward([Segment(cache, chunk)], rows="all", want="logits").logits
        yield start, ours, peer.feed(chunk, every_row=True)


def log_normaliser(logits: NDArray) -> NDArray:
    """Logarithm of the sum of exp over each row, in float64."""
    top = logits.max(axis=1, keepdims=True)
    return np.log(np.exp(logits - top, dtype=np.float64).sum(axis=1)) + top[:, 0]


def losses(logits: NDArray, targets: Sequence[int]) -> NDArray:
    """-log p of each target under its row."""
    return log_normaliser(logits) - logits[np.arange(len(targets)), targets]


def compare(backbone: Backbone, peer: LlamaCpp, tokens: Sequence[int], seen: Compared) -> None:
    """Read one window with both engines and add what they say of each position but the last."""
    our_choices, their_choices = [], []
    for start, ours, theirs in logits_of(backbone, peer, tokens):
        targets = tokens[start + 1 : start + 1 + len(ours)]
        rows = len(targets)  # the last token of the window predicts none of it
        seen.our_loss.append(losses(ours[:rows], targets))
        seen.their_loss.append(losses(theirs[:rows], targets))
        two = np.partition(theirs[:rows], -2, axis=1)[:, -2:]
        seen.margin.append(two[:, 1] - two[:, 0])
        our_choices.append(ours[:rows].argmax(axis=1))
        their_choices.append(theirs[:rows].argmax(axis=1))
    our_choice, their_choice = np.concatenate(our_choices), np.concatenate(their_choices)
    agree = our_choice == their_choice
    seen.agree.append(agree)
    for position in np.flatnonzero(~agree)[::-1]:  # from the end: what precedes stays in its cache
        peer.rollback(int(position))
        again = peer.choose([tokens[position]])
        seen.asked_again += 1
        seen.changed_its_mind += again != int(their_choice[position])
        seen.found_ours += again == int(our_choice[position])
    if seen.alone == 0:
        peer.rollback(0)
        alone = [peer.choose([token]) for token in tokens[:-1]]
        seen.alone = len(alone)
        seen.alone_differs = int((alone != their_choice).sum())


def summary(seen: Compared) -> dict[str, object]:
    """The numbers of one kind of text."""
    agree, margin = np.concatenate(seen.agree), np.concatenate(seen.margin)
    ours, theirs = (float(np.concatenate(x).mean()) for x in (seen.our_loss, seen.their_loss))
    where = margin[~agree]
    return {
        "kind": seen.kind,
        "positions": len(agree),
        "agreement": float(agree.mean()),
        "perplexity": {"drafthead": float(np.exp(ours)), "llama.cpp": float(np.exp(theirs))},
        "perplexity_ratio": float(np.exp(ours - theirs)),
        "margin_nats": quantiles(margin),
        "margin_where_different_nats": quantiles(where) if len(where) else None,
        "asked_again": seen.asked_again,
        "one_row_pass_differs_from_its_own": seen.changed_its_mind,
        "one_row_pass_agrees_with_drafthead": seen.found_ours,
        "llama.cpp_with_itself": {"positions": seen.alone, "differ": seen.alone_differs},
    }


def quantiles(values: NDArray) -> dict[str, float]:
    """Median, 90th percentile and highest."""
    median, p90 = np.percentile(values, [50, 90])
    return {"median": float(median), "p90": float(p90), "highest": float(values.max())}


def measure(path: Path, threads: int, count: int) -> dict[str, object]:
    """Both kinds of text with one backbone."""
    backbone = Backbone.open(path, threads=threads)
    tokenizer = Tokenizer.from_gguf(backbone.gguf)
    peer = LlamaCpp(path, threads, WINDOW)
    kinds = []
    for kind, text in (("prose", prose()), ("code", code())):
        seen = Compared(kind)
        for window in windows(tokenizer, text, count):
            compare(backbone, peer, window, seen)
        kinds.append(summary(seen))
    version = peer.version
    peer.close()
    return {"backbone": backbone_name(path), "file": path.name, "peer": version, "kinds": kinds}


def table(results: Sequence[dict]) -> str:
    """One row a backbone and kind of text."""
    header = (
        "backbone", "text", "positions", "agreement", "perplexity", "theirs", "ratio",
        "margin", "where different (highest)", "one-row pass changes", "llama.cpp with itself",
    )  # fmt: skip
    rows = []
    for result in results:
        for kind in result["kinds"]:
            both, where = kind["perplexity"], kind["margin_where_different_nats"]
            own = kind["llama.cpp_with_itself"]
            different = f"{where['median']:.3f} ({where['highest']:.3f})" if where else "-"
            rows.append([
                result["backbone"], kind["kind"], str(kind["positions"]),
                f"{kind['agreement']:.2%}", f"{both['drafthead']:.3f}", f"{both['llama.cpp']:.3f}",
                f"{kind['perplexity_ratio']:.4f}", f"{kind['margin_nats']['median']:.2f}",
                different, f"{kind['one_row_pass_differs_from_its_own']} of {kind['asked_again']}",
                f"{1 - own['differ'] / own['positions']:.2%} of {own['positions']}",
            ])  # fmt: skip
    return markdown(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backbone", nargs="+", default=["smollm2-135m"], metavar="NAME|FILE")
    parser.add_argument("--windows", type=int, default=5, help="windows of 512 tokens a kind")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--json", type=Path, default=None, help="write every number to this file")
    args = parser.parse_args()
    results = [measure(resolve(name), args.threads, args.windows) for name in args.backbone]
    print(table(results))
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
