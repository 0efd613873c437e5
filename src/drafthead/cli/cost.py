"""`drafthead cost`: the time of an M-row pass, of a draft step, and the break-even acceptance."""

from __future__ import annotations

import argparse
from typing import Any

from drafthead.cli import output


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser("cost", help="time of passes and draft steps, break-even")
    output.add_model_flags(parser)
    parser.add_argument("--rows", type=output.counts, default=[1, 2, 3, 4, 6, 8], help="pass sizes")
    parser.add_argument("--context", type=output.count, default=200, help="tokens in the cache")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from drafthead.evaluation.cost import cost_report
    from drafthead.session import load

    session = load(args.backbone, args.head, threads=args.threads)
    with output.console().status("measuring"):
        report: Any = cost_report(session, args.rows, args.context)
    if args.json:
        output.print_json(report)
        return 0
    rows = []
    for name, pass_ms in report["rows_ms"].items():
        pays = report["break_even"].get(str(int(name) - 1), {})
        v = report["v"].get(name, 1.0)
        needed, acceptance = output.decimal(pays.get("tau")), output.decimal(pays.get("acceptance"))
        rows.append([name, output.decimal(pass_ms), output.decimal(v), needed, acceptance])
    header = ("rows", "ms", "v", "break-even tau", "break-even acceptance")
    print(output.aligned(header, rows, left=0))
    print(
        f"Draft step {output.decimal(report['draft_step_ms'])} ms; "
        f"{report['bytes_per_pass']} bytes a pass, {report['bandwidth_share']:.0%} of "
        f"{report['memory_read_gb_s']} GB/s."
    )
    print(f"{output.drafter_words(session)}.")
    return 0
