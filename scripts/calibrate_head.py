"""Calibrate the confidences of a head package that is there: rewrites its config.json.

    python scripts/calibrate_head.py FOLDER --prompts FILE.jsonl... [--limit N] [--max-tokens N]

Decodes the prompts, fits a temperature and a shift for each draft step, chooses the threshold, and
prints the expected calibration error before and after. `drafthead train` does the same on held-out
answers.
"""

from __future__ import annotations

import argparse
import json
from itertools import chain
from pathlib import Path

import drafthead
from drafthead.drafters.mtp import MtpDrafter
from drafthead.evaluation.calibration import calibrate, verified_drafts
from drafthead.evaluation.cost import measure_cost
from drafthead.evaluation.prompts import prompt_ids, read_prompts, select
from drafthead.heads.package import CONFIG, HeadPackage

LONGEST = 8


def main() -> None:
    """Decode, fit, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--limit", type=int, default=8, help="prompts a task")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    package = HeadPackage.load(args.folder)
    session = drafthead.load(package.config.target.name, head="none", threads=args.threads)
    package.check_target(session.backbone)
    head = package.build(session.backbone)
    rows = select(chain.from_iterable(map(read_prompts, args.prompts)), [], args.limit)
    prompts = [prompt_ids(session, row) for row in rows]
    drafts = verified_drafts(session, head, prompts, args.max_tokens, LONGEST)
    cost = measure_cost(session.using(MtpDrafter(head)), range(1, LONGEST + 2))
    rows_ms = [cost["rows_ms"][str(size)] for size in range(1, LONGEST + 2)]
    found = calibrate(drafts, rows_ms, cost["draft_step_ms"])
    path = args.folder / CONFIG
    part = path.with_suffix(".part")
    text = json.dumps(found.applied(package.config).to_json(), indent=2) + "\n"
    part.write_text(text, encoding="utf-8")
    part.replace(path)
    print(found)


if __name__ == "__main__":
    main()
