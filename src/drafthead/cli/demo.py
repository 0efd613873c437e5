"""`drafthead demo`: three on-device tasks, with and without the head."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from drafthead.cli import output
from drafthead.errors import RequestError

if TYPE_CHECKING:
    from drafthead.session import Session
    from drafthead.stream import Result

HEADER = ("task", "tokens a pass", "tok/s with head", "tok/s without", "speed-up", "identical")
# Prompts of the built-in sets whose answers are of some length and to the point.
SEEDS = {"notif_summary": 4, "proofread": 2, "smart_reply": 9}


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("demo", help="three on-device tasks, with and without the head")
    output.add_model_flags(parser)
    parser.add_argument("--max-tokens", type=output.count, default=96, help="longest answer")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answer each task both ways; exit code 1 where the two outputs differ."""
    from drafthead.drafters.base import NoDrafter
    from drafthead.session import load
    from drafthead.tasks import TASKS, prompt_set

    session = load(args.backbone, args.head, threads=args.threads, kv=args.kv)
    if not session.template.exists:
        raise RequestError(
            f"{session.backbone.name} is a base model without a chat template, and the demo asks "
            "as a chat does: take another backbone, or `drafthead bench`, which shows it examples."
        )
    plain = session.using(NoDrafter())
    style = "colour" if output.colourful(sys.stdout) else "marks"
    if not args.json:
        print(f"{session.backbone.name}, {session.backbone.threads} threads, ", end="")
        print(output.drafter_words(session) + ".")
        print(f"Legend: {output.LEGEND[style]}.")
    session.generate("Hello", max_tokens=8)  # the first passes warm the caches up
    lines = []
    for task in TASKS.values():
        prompt = prompt_set(task.name, 1, SEEDS[task.name])[0]["prompt"]
        without = plain.generate(prompt, max_tokens=args.max_tokens, cut_loops=True)
        with_head = session.generate(prompt, max_tokens=args.max_tokens, cut_loops=True)
        lines.append(compare(task.title, with_head, without))
        if not args.json:
            print(f"\n--- {task.title} ---\n{prompt}\n\n--- answer ---")
            print(output.marked(with_head.events, style))
    identical = all(line["identical"] for line in lines)
    if args.json:
        output.print_json({"drafter": output.drafter_json(session.drafter), "tasks": lines})
    else:
        print("\n" + table(lines))
        print(verdict(session, identical))
    return 0 if identical else 1


def compare(title: str, with_head: Result, without: Result) -> dict[str, Any]:
    """One line of the table."""
    from drafthead.decoding.stats import decode_tok_s, tau

    fast, slow = decode_tok_s(with_head.stats), decode_tok_s(without.stats)
    return {
        "task": title,
        "tau": tau(with_head.stats),
        "tok_s": fast,
        "plain_tok_s": slow,
        "speedup": fast / slow if fast and slow else None,
        "identical": with_head.tokens == without.tokens,
    }


def table(lines: list[dict[str, Any]]) -> str:
    """The lines as an aligned table."""
    rows = [
        (
            line["task"],
            output.decimal(line["tau"]),
            output.decimal(line["tok_s"], 0),
            output.decimal(line["plain_tok_s"], 0),
            output.decimal(line["speedup"]),
            "yes" if line["identical"] else "NO",
        )
        for line in lines
    ]
    return output.aligned(HEADER, rows)


def verdict(session: Session, identical: bool) -> str:
    """The last sentence."""
    if not identical:
        return "The outputs with and without the head DIFFER; please report this."
    if not session.drafter.active:
        return f"Both arms decoded plainly: {session.drafter.reason}."
    return "With and without the head, every token is the same."
