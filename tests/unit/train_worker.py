"""Trains the tiny head in a process of its own: one that is killed, or one of several.

    python train_worker.py FEATURES OUT stopped|killed

stopped: to the end in OUT/whole, then in OUT/parts, where it is stopped at step 9 and resumed,
then in OUT/poisoned, where the second process sees infinite states in steps 5 and 6.
killed: in OUT, by SIGKILL after step 13.
The first process writes the loss of every step to losses.json.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import torch
import trainee
from test_trainer import RECIPE, answers, make_trainer, poison

from drafthead.training.features import FeatureStore
from drafthead.training.parallel import joined

EVERY_STEP = dataclasses.replace(RECIPE, evaluate_every=1)


def material(folder):
    """The features that the test has computed."""
    rows = answers()
    store = FeatureStore(folder, trainee.TinyBackbone(), rows, [2])
    store.build()
    return rows, store


def train(features, out, workers, stop_at=None, kill_at=None, poisoned=False):
    losses = {}

    def on_report(report):
        losses[report.progress.step] = report.loss
        if report.progress.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer = make_trainer(material(features), out, EVERY_STEP)
    trainer._workers = workers
    if not workers.first:  # it gets the first one's weights
        torch.nn.init.zeros_(trainer.head.pre_projection.weight)
        if poisoned:
            poison(trainer, {4, 5})
    trainer.run(on_report=on_report, stop_at=stop_at)
    if workers.first:
        (out / "losses.json").write_text(json.dumps([losses[step] for step in sorted(losses)]))


def main(features, out, how):
    torch.set_num_threads(1)
    with joined() as workers:
        if how == "killed":
            train(features, out, workers, kill_at=13)
        train(features, out / "whole", workers)
        train(features, out / "parts", workers, stop_at=9)
        train(features, out / "parts", workers)
        train(features, out / "poisoned", workers, poisoned=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
