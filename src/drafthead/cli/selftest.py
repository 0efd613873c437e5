"""`drafthead selftest`: does this machine give the same bits whatever shares a pass?"""

from __future__ import annotations

import argparse
from typing import Any

from drafthead.cli import output


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("selftest", help="same bits on this machine? exit 0 yes, 1 no")
    output.add_model_flags(parser)
    parser.add_argument("--quick", action="store_true", help="fewer rows, some seconds")
    parser.add_argument(
        "--tokens",
        type=output.count,
        metavar="N",
        help="length of the answer whose drafts are rejected on purpose (480; --quick 32)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the checks; exit code 1 where a bit differs."""
    from drafthead.evaluation.selftest import run_selftest
    from drafthead.session import load

    session = load(args.backbone, args.head, threads=args.threads, kv=args.kv)
    console = output.console()
    with console.status("loading") as status:
        report: Any = run_selftest(
            session, args.quick, args.tokens, lambda name: status.update(f"{name} ...")
        )
    if args.json:
        output.print_json(report)
    else:
        rows = [
            [check["name"], str(check["cases"]), str(check["mismatches"])]
            for check in report["checks"]
        ]
        print(output.aligned(("check", "buffers compared", "different"), rows))
        print(f"{report['isa']}, {report['threads']} threads; {output.drafter_words(session)}.")
        print("Same bits in every case." if report["exact"] else "NOT exact on this machine.")
    return 0 if report["exact"] else 1
