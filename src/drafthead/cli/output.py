"""How results reach the user: JSON on stdout, tables and progress on stderr, marked drafts."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from drafthead.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

    from drafthead.drafting import DrafterState
    from drafthead.session import Session
    from drafthead.types import DecodeStats, TokenEvent

GREEN, PLAIN = "\x1b[32m", "\x1b[0m"
# Accepted drafted text between these where there is no colour; rare enough to stand out.
OPEN, CLOSE = "\u2039", "\u203a"
LEGEND = {
    "colour": f"{GREEN}green{PLAIN} text was drafted by the head and accepted by the backbone",
    "marks": f"text in {OPEN}marks{CLOSE} was drafted by the head and accepted by the backbone",
}


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say which backbone and head to load."""
    parser.add_argument("--backbone", default="smollm2-135m", help="known name, or path of a .gguf")
    parser.add_argument("--head", default="auto", help="auto, none, or folder of a head package")
    parser.add_argument(
        "--kv", choices=("f16", "f32"), default="f16", help="what a cell of the KV cache holds"
    )
    add_threads_flag(parser)
    add_json_flag(parser)


def add_policy_flag(parser: argparse.ArgumentParser) -> None:
    """`--policy`: changes time, never the text."""
    parser.add_argument(
        "--policy",
        choices=("auto", "threshold", "fixed"),
        default="auto",
        help="draft as much as pays here; or as the drafter is sure of; or --max-draft, if it can",
    )


def check_head(head: str, drafters: Iterable[str]) -> None:
    """Refuse a head that was named although none of the drafters reads one: RequestError."""
    from drafthead.drafting import NEED_HEAD

    wanted = list(drafters)
    if head not in ("auto", "none") and not set(wanted) & set(NEED_HEAD):
        raise RequestError(
            f"--head {head} is read by the drafters {' and '.join(NEED_HEAD)}, not by "
            f"{', '.join(wanted)}: ask for one of them, or leave out --head."
        )


def check_folder(flag: str, folder: Path) -> None:
    """Refuse a folder to write into that is something else: RequestError."""
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{flag}: {folder} is a file; name a folder.")


def add_threads_flag(parser: argparse.ArgumentParser) -> None:
    """`--threads`: results do not depend on it."""
    parser.add_argument("--threads", type=count, default=None, help="default: one a usable core")


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """`--json`: one object on stdout and nothing else there."""
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def count(text: str) -> int:
    """A flag value of at least 1; for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return value


def counts(text: str) -> list[int]:
    """A flag value such as 1,2,4; for argparse."""
    return [count(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """A flag value such as plain,mtp; for argparse."""
    return [part.strip() for part in text.split(",") if part.strip()]


def print_json(report: Mapping[str, Any]) -> None:
    """One JSON object on stdout, in ASCII: a narrow encoding there must not change its text."""
    print(json.dumps(report))


def console() -> Console:
    """Where progress and tables for people go: stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def progress(*columns: ProgressColumn | str) -> Progress:
    """Bars on a terminal, on stderr; nothing where stderr goes elsewhere."""
    from rich.progress import Progress

    where = console()
    return Progress(*columns, console=where, disable=not where.is_terminal)


def colourful(stream: TextIO) -> bool:
    """Whether a stream is a terminal that wants colour (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


class Marker:
    """Turns events into text in which runs of drafted-and-accepted pieces are marked."""

    def __init__(self, style: str) -> None:
        """style: "colour", "marks", or "none"."""
        self._open, self._close = {
            "colour": (GREEN, PLAIN),
            "marks": (OPEN, CLOSE),
            "none": ("", ""),
        }[style]
        self._inside = False

    def piece(self, event: TokenEvent) -> str:
        """The text of one event, with a mark before it where drafted and chosen text meet."""
        if not event.text or event.drafted == self._inside:
            return event.text
        self._inside = event.drafted
        return (self._open if event.drafted else self._close) + event.text

    def end(self) -> str:
        """What closes an open run."""
        closing = self._close if self._inside else ""
        self._inside = False
        return closing


def marked(events: Iterable[TokenEvent], style: str) -> str:
    """A whole answer with marks."""
    marker = Marker(style)
    return "".join(map(marker.piece, events)) + marker.end()


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A plain-text table; the first `left` columns are left-aligned, the others right-aligned."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    lines = []
    for row in table:
        cells = [
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def decimal(value: float | None, digits: int = 2) -> str:
    """A number for a table; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def duration(seconds: float) -> str:
    """A time for people: seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def drafter_words(session: Session) -> str:
    """Which drafter is active, or why none is."""
    return state_words(session.drafter)


def state_words(state: DrafterState) -> str:
    """Whether a drafter is active, or why not."""
    if state.active:
        return f"drafter {state.name} active"
    return f"drafter {state.name} not active: {state.reason}"


def stats_line(state: DrafterState, stats: DecodeStats) -> str:
    """The one line after an answer."""
    from drafthead.decoding.stats import decode_tok_s, tau

    return (
        f"{1 + stats.committed} tokens, tau {decimal(tau(stats))}, "
        f"{decimal(decode_tok_s(stats), 0)} tok/s, first token after {stats.prefill_ms:.0f} ms; "
        f"{state_words(state)}"
    )


def drafter_json(state: DrafterState) -> dict[str, Any]:
    """The `drafter` section of a report."""
    return asdict(state)


def backbone_json(session: Session) -> dict[str, Any]:
    """The `backbone` section of a report."""
    backbone = session.backbone
    return {
        "name": backbone.name,
        "architecture": backbone.spec.architecture,
        "file": str(backbone.path),
        "fingerprint": backbone.fingerprint,
    }


def warn(sentence: str) -> None:
    """One sentence on stderr."""
    sys.stderr.write(sentence + "\n")
