"""`drafthead cost`: what passes, draft steps and loading take, and what the machine allows."""

from __future__ import annotations

import argparse
from typing import Any

from drafthead.cli import output

DESCRIPTION = (
    "Times passes of several sizes and a draft step in interleaved rounds (medians). Beside each "
    "pass stand its two limits on this machine: the time that reading its weights takes at the "
    "memory bandwidth measured in the same rounds, and the time that its multiply-adds with "
    "weights take at the measured peak of integer multiply-adds; the larger one binds. Loading is "
    "measured in a fresh process: what the weights make resident, in the end and at the peak, "
    "without Python and its libraries, which come before, without the tokenizer, which comes "
    "after, and without the file's metadata, which is the vocabulary above all."
)


def add_parser(subparsers: Any) -> None:
    """Register the command."""
    parser = subparsers.add_parser(
        "cost", help="time of passes and draft steps, break-even", description=DESCRIPTION
    )
    output.add_model_flags(parser)
    parser.add_argument("--rows", type=output.counts, default=[1, 2, 4, 8], help="pass sizes")
    parser.add_argument("--context", type=output.count, default=200, help="tokens in the cache")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from drafthead.evaluation.cost import cost_report
    from drafthead.session import load

    session = load(args.backbone, args.head, threads=args.threads, kv=args.kv)
    with output.console().status("measuring"):
        report: Any = cost_report(session, args.rows, args.context)
    if args.json:
        output.print_json(report)
        return 0
    print(pass_table(report))
    for line in sentences(report):
        print(line)
    print(f"{output.drafter_words(session)}.")
    return 0


def pass_table(report: dict[str, Any]) -> str:
    """A line for each size of pass: time, limits, and from where on drafting pays."""
    rows = []
    for name, pass_ms in report["rows_ms"].items():
        roof, pays = report["roofline"][name], report["break_even"].get(str(int(name) - 1), {})
        cells = [pass_ms, report["v"].get(name, 1.0), roof["memory_ms"], roof["multiply_ms"]]
        share = f"{roof['share']:.0%} of {roof['binds']}"
        needed = [output.decimal(pays.get(key)) for key in ("tau", "acceptance")]
        rows.append([name, *map(output.decimal, cells), share, *needed])
    header = (
        "rows", "ms", "v", "memory ms", "multiply ms", "limit reached", "break-even tau",
        "break-even acceptance",
    )  # fmt: skip
    return output.aligned(header, rows, left=0)


def sentences(report: dict[str, Any]) -> list[str]:
    """What does not go by the size of a pass."""
    memory, prompt = report["memory"], report["prompt"]
    megabytes = {name: f"{memory[name] / 1e6:,.0f} MB" for name in memory if "_bytes" in name}
    return [
        f"Draft step {output.decimal(report['draft_step_ms'])} ms; "
        f"{report['bytes_per_pass']:,} bytes a pass, {report['bandwidth_share']:.0%} of "
        f"{report['memory_read_gb_s']} GB/s; {report['multiply_adds_per_row']:,} multiply-adds a "
        f"row, at most {report['integer_peak_g_s']:,.0f} G/s.",
        *best_draft_lines(report),
        f"Prompt of {prompt['tokens']} tokens: {prompt['tok_s']:,.0f} tok/s, {prompt['share']:.0%} "
        f"of the {prompt['limit_tok_s']:,.0f} that the multiply-adds allow.",
        f"Loading takes {report['load_ms']:,.0f} ms. Of a file of {megabytes['file_bytes']}, "
        f"{megabytes['resident_bytes']} stay resident ({memory['resident_ratio']:.2f}; "
        f"{megabytes['mapped_bytes']} of them are pages of the file) and "
        f"{megabytes['peak_bytes']} are at the peak ({memory['peak_ratio']:.2f}); Python and its "
        f"libraries take {megabytes['python_bytes']}, the file's metadata "
        f"{megabytes['metadata_bytes']}, the tokenizer {megabytes['text_bytes']}, a token of "
        f"context {memory['kv_bytes_per_token']:,} bytes.",
    ]


def best_draft_lines(report: dict[str, Any]) -> list[str]:
    """The best draft length at each acceptance, where there is a drafter."""
    found = [
        f"{best['draft_tokens']} at {acceptance} ({best['speedup']:.2f}x)"
        for acceptance, best in report["best_draft"].items()
    ]
    return [f"Best draft length by acceptance: {', '.join(found)}."] if found else []
