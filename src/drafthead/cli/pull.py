"""`drafthead pull`: fetch a backbone into the cache, checked."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from drafthead.cli import output
from drafthead.errors import RequestError

if TYPE_CHECKING:
    from drafthead.backbone.registry import Licence


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("pull", help="fetch a backbone into the cache, checked")
    parser.add_argument("name", nargs="?", help="a known name, or hf:org/repo/file.gguf")
    parser.add_argument("--list", action="store_true", help="show the known names")
    output.add_json_flag(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fetch one backbone, or list those that are known."""
    if args.list:
        return _list(args.json)
    if args.name is None:
        raise RequestError(
            "Name the backbone to pull; `drafthead pull --list` shows the known ones."
        )
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TransferSpeedColumn,
    )

    from drafthead.backbone.fetch import fetch
    from drafthead.backbone.registry import KNOWN

    columns = (
        TextColumn("{task.description:<11}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
    )  # fmt: skip
    bar = Progress(*columns, console=output.console())
    tasks: dict[str, TaskID] = {}

    def progress(stage: str, done: int, total: int) -> None:
        if stage not in tasks:
            bar.start()  # not earlier: a wrong name draws no bar
            tasks[stage] = bar.add_task(stage, total=total)
        bar.update(tasks[stage], completed=done)

    licence = KNOWN[args.name].licence if args.name in KNOWN else None
    if licence is not None and licence.limits:
        output.warn(
            f"{args.name} comes under the {licence.name}, which limit what it may be used for: "
            f"read {licence.url} first."
        )
    try:
        with stopped_as_by_ctrl_c():
            fetched = fetch(args.name, progress)
    finally:
        if tasks:
            bar.stop()
    if args.json:
        fields = {
            "name": fetched.name,
            "file": str(fetched.path),
            "sha256": fetched.sha256,
            "bytes": fetched.nbytes,
            "already_there": fetched.already_there,
        }
        output.print_json(fields | licence_json(licence))
        return 0
    how = "was there already and is intact" if fetched.already_there else "is pulled and checked"
    print(f"{fetched.name} {how}: {fetched.path}")
    if licence is not None:
        print(f"Licence: {licence.name}, {licence.url}")
    return 0


def licence_json(licence: Licence | None) -> dict[str, str | None]:
    """The licence's two fields; None where it is not known, as for a hub name."""
    return {
        "licence": None if licence is None else licence.name,
        "licence_url": None if licence is None else licence.url,
    }


@contextmanager
def stopped_as_by_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the command as Ctrl-C does: nothing half done stays."""

    def stop(number: int, _frame: object) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # clearing up is not to be stopped again
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _list(as_json: bool) -> int:
    from drafthead.backbone.registry import KNOWN, cache_path

    in_cache = {name: cache_path(name).is_file() for name in KNOWN}
    if as_json:
        rows = [
            {
                "name": name,
                "bytes": known.nbytes,
                "download_bytes": known.download_bytes,
                "in_cache": in_cache[name],
                "description": known.description,
            }
            | licence_json(known.licence)
            for name, known in KNOWN.items()
        ]
        output.print_json({"backbones": rows})
        return 0
    table = []
    for name, known in KNOWN.items():
        there = "yes" if in_cache[name] else "no"
        size = f"{known.nbytes / 1e6:>5,.0f} MB"
        table.append((name, size, known.licence.name, there, known.description))
    header = ("name", "size", "licence", "in cache", "what it is")
    print(output.aligned(header, table, left=len(header)))
    return 0
