"""Render the measured numbers: docs/results.md, and the RESULTS and TRANSCRIPT blocks of README.md.

    python scripts/make_results.py           write them
    python scripts/make_results.py --check   exit 1 with a sentence where one is stale

Sources: docs/results.json, which `make bench` writes (the JSON of `drafthead bench`), and
docs/results/*.json, the same for other backbones, each with a part of the page; and
docs/transcript.txt, the output of `drafthead demo`. Nothing here computes a ratio: the counts were
pooled and divided where they were measured. Reports of before lack fields, which stay empty.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from drafthead.evaluation.report.table import (
    all_arms,
    choice_lines,
    energy_words,
    interval_cell,
    peer_line,
)

ROOT = Path(__file__).resolve().parent.parent
NOT_MEASURED = "_Not measured yet: `make bench` measures, `make results` puts the numbers here._"
NOT_RECORDED = (
    "_Not recorded yet: `drafthead demo > docs/transcript.txt` records, "
    "`make results` puts the text here._"
)
NOTHING = "-"
ON_DEVICE_TASKS = 3


def number(value: float | None, digits: int = 0) -> str:
    """Format a number, or a dash where there is none: nothing drafted, no counter here."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def spread(value: dict[str, float] | None, digits: int = 2) -> str:
    """Format a median with its 10th and 90th percentile."""
    if value is None or value["median"] is None:
        return NOTHING
    low, high = number(value["p10"], digits), number(value["p90"], digits)
    return f"{number(value['median'], digits)} ({low}-{high})"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table: first column text, the others right-aligned."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine_line(results: dict[str, Any]) -> str:
    """Say in one sentence what was measured, and on what."""
    machine = results["machine"]
    return (
        f"Measured with drafthead {results['drafthead']} and {results['backbone']['name']} on "
        f"{machine['cpu']}: {machine['cores']} cores, {machine['threads']} threads, "
        f"{machine['isa']}, {number(machine['memory_read_gb_s'], 1)} GB/s memory read."
    )


def identical(arm: dict[str, Any]) -> str:
    """Say whether the arm's tokens were those of plain decoding."""
    return {True: "yes", False: "NO", None: NOTHING}[arm["identical"]]


def speed_table(results: dict[str, Any], short: bool = False) -> str:
    """Lay out the drafting arms, each beside plain decoding of the same task in the same run.

    A short table has the tasks of the head alone, and of the other arms all tasks together.
    """
    plain = {arm["task"]: arm for arm in results["arms"] if arm["drafter"] == "plain"}
    header = [
        "Task", "Drafter", "Prompts", "τ", "tok/s plain", "tok/s", "Speed-up (p10-p90)", "95 %",
        "Same tokens",
    ]  # fmt: skip
    rows = [
        [
            arm["task"],
            arm["drafter"],
            number(arm["prompts"]),
            number(arm.get("tau"), 2),
            number(plain[arm["task"]]["tok_s"]["median"]),
            number(arm["tok_s"]["median"]),
            spread(arm["speedup_vs_plain"]),
            interval_cell(arm["speedup_vs_plain"].get("ci95")),
            identical(arm),
        ]
        for arm in all_arms(results)
        if arm["drafter"] != "plain"
        and not (short and arm["drafter"] != "mtp" and arm["task"] != "all")
    ]
    return table(header, rows)


def readme_results(results: list[dict[str, Any]]) -> str:
    """Return the README's RESULTS block: the first backbone's numbers."""
    if not results:
        return NOT_MEASURED
    first = results[0]
    return (
        f"{speed_table(first, short=True)}\n\n{machine_line(first)} All arms ran interleaved in "
        "one run; `make bench` measures again, [docs/results.md](docs/results.md) has every count."
    )


def means_table(results: dict[str, Any]) -> str:
    """Lay out the mean over the tasks of each drafter's pooled speed over each other's."""
    rows = [
        [drafter, other, number(ratio["mean"], 2), interval_cell(ratio["ci95"])]
        for drafter, others in results["task_means"].items()
        for other, ratio in others.items()
    ]
    return table(["Drafter", "Over", "Ratio", "95 %"], rows)


def counts_table(results: dict[str, Any]) -> str:
    """Lay out every arm with its pooled counts."""
    header = [
        "Task", "Drafter", "Prompts", "Tokens", "Looped", "Passes", "Drafted", "Accepted", "τ",
        "Accepted", "Accepted @1, @2, …", "tok/s (p10-p90)", "tok/s pooled", "First token ms",
        "CPU s a token", "J a token",
    ]  # fmt: skip
    rows = [
        [
            arm["task"],
            arm["drafter"],
            *[number(arm[key]) for key in ("prompts", "tokens", "looped", "passes")],
            *[number(arm.get(key)) for key in ("drafted", "accepted")],
            *[number(arm.get(key), 2) for key in ("tau", "acceptance")],
            " ".join(number(rate, 2) for rate in arm.get("accept_at") or []) or NOTHING,
            spread(arm["tok_s"], 0),
            number(arm["tok_s"].get("pooled"), 1),
            number(arm["ttft_ms"], 1),
            number(arm["cpu_s_per_token"], 4),
            number(arm["joules_per_token"], 3),
        ]
        for arm in all_arms(results)
    ]
    return table(header, rows)


def cost_section(results: dict[str, Any]) -> str:
    """Lay out the time of a pass by its rows, and of a draft step."""
    cost = results["cost"]
    one_row_ms = cost["rows_ms"]["1"]
    passes = [
        [f"pass of {rows} rows", number(ms, 3), number(ms / one_row_ms, 2)]
        for rows, ms in cost["rows_ms"].items()
    ]
    steps = [
        [
            f"draft step of {drafter}",
            number(ms, 3),
            number(None if ms is None else ms / one_row_ms, 2),
        ]
        for drafter, ms in cost["draft_step_ms"].items()
    ]
    streamed = f"Bytes streamed a token by plain decoding: {number(cost['bytes_per_token'])}."
    return f"{table(['What', 'ms', 'against one row'], passes + steps)}\n\n{streamed}"


def memory_section(results: dict[str, Any]) -> str:
    """Lay out what the backbone and each drafter hold in memory."""
    memory = results["memory"]
    keys = ("weights_bytes", "embedding_bytes", "kv_bytes_per_token", "peak_bytes")
    backbone = {
        "weights_bytes": memory["backbone_bytes"],
        "embedding_bytes": memory.get("embedding_bytes"),
        "kv_bytes_per_token": memory["kv_bytes_per_token"],
    }
    rows = [
        [name, *[number(use.get(key)) for key in keys]]
        for name, use in {"backbone": backbone, **memory["drafters"]}.items()
    ]
    header = ["Part", "Weights bytes", "of it embeddings", "KV bytes a token", "Peak bytes"]
    saves = memory.get("head_saves")
    if saves is None:
        return table(header, rows)
    words = (
        f"At {number(saves['context_tokens'])} tokens of context, a drafter of the head's width "
        f"and layers that stood alone would add {number(saves['standalone_bytes'])} bytes of "
        f"embedding table ({number(saves['embedding_bytes'])}) and of keys and values "
        f"({number(saves['cache_bytes'])}); a second cache of the backbone would take "
        f"{number(saves['second_cache_bytes'])}."
    )
    return f"{table(header, rows)}\n\n{words}"


def backbone_part(results: dict[str, Any], level: str) -> list[str]:
    """Return the sections of one report, under headings of this level."""
    parts = [
        machine_line(results),
        f"{level} Against plain decoding",
        speed_table(results),
        f"{level} Every arm",
        counts_table(results),
        energy_words(results.get("energy")),
        *choice_lines(results),
        *map(peer_line, results.get("peers", [])),
        f"{level} Cost",
        cost_section(results),
        f"{level} Memory",
        memory_section(results),
    ]
    if results.get("task_means"):
        parts[3:3] = [f"{level} One over another, mean over the tasks", means_table(results)]
    return parts


def part_title(results: dict[str, Any]) -> str:
    """Name the backbone, and what a report of many tasks or of several drafters adds."""
    name = str(results["backbone"]["name"])
    if {arm["drafter"] for arm in results["arms"]} <= {"plain", "mtp"}:
        kinds = len({arm["task"] for arm in results["arms"]} - {"all"})
        return name if kinds <= ON_DEVICE_TASKS else f"{name}: {kinds} kinds of text"
    policy = results.get("settings", {}).get("policy", "threshold")
    return f"{name}: head and other drafters, policy {policy}"


def results_page(results: list[dict[str, Any]]) -> str:
    """Return docs/results.md."""
    parts = [
        "<!-- Generated by scripts/make_results.py (`make results`) from the benches' JSON. -->",
        "# Results",
        "What each column means and how it is measured: [measuring.md](measuring.md). The words "
        "are those of the [glossary](glossary.md): τ is committed tokens a verify pass, prefill "
        "excluded, and plain decoding is 1.00.",
    ]
    if len(results) == 1:
        parts += backbone_part(results[0], "##")
    else:
        for one in results:
            parts += [f"## {part_title(one)}", *backbone_part(one, "###")]
    return "\n\n".join(parts) + "\n"


def fill(text: str, block: str, content: str) -> str:
    """Replace what stands between `<!-- BLOCK -->` and `<!-- /BLOCK -->`."""
    start, end = f"<!-- {block} -->", f"<!-- /{block} -->"
    filled, count = re.subn(
        f"{re.escape(start)}.*?{re.escape(end)}",
        lambda _: f"{start}\n{content}\n{end}",
        text,
        flags=re.DOTALL,
    )
    if count != 1:
        sys.exit(f"README.md must have one {start} … {end} block, found {count}.")
    return filled


def render(root: Path) -> dict[Path, str]:
    """Return what each generated file of the project at `root` should hold."""
    docs = root / "docs"
    transcript = docs / "transcript.txt"
    sources = [docs / "results.json", *sorted((docs / "results").glob("*.json"))]
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sources if path.exists()]
    recorded = NOT_RECORDED
    if transcript.exists():
        recorded = f"```text\n{transcript.read_text(encoding='utf-8').strip()}\n```"
    readme = fill((root / "README.md").read_text(encoding="utf-8"), "TRANSCRIPT", recorded)
    pages = {root / "README.md": fill(readme, "RESULTS", readme_results(results))}
    if results:
        pages[docs / "results.md"] = results_page(results)
    return pages


def main() -> int:
    """Write or check the files and return the exit status."""
    pages = render(ROOT)
    if "--check" not in sys.argv[1:]:
        for path, text in pages.items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [
        str(path.relative_to(ROOT))
        for path, text in pages.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if stale:
        print(f"{', '.join(stale)} not up to date with docs/: run 'make results'.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
