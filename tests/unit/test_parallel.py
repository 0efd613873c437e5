"""Laws of training in several processes and of being killed: neither shows in the weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import trainee
from test_trainer import answers, make_trainer
from train_worker import EVERY_STEP, material

from drafthead.training import checkpoint
from drafthead.training.features import FeatureStore
from drafthead.training.parallel import Workers
from drafthead.training.trainer import CHECKPOINT

HERE = Path(__file__).parent


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    FeatureStore(folder, trainee.TinyBackbone(), answers(), [2]).build()
    return folder


@pytest.fixture(scope="module")
def two(features, tmp_path_factory):
    """What two processes have trained, without and with a stop."""
    out = tmp_path_factory.mktemp("two")
    assert train_apart(features, out, "stopped", processes=2) == 0
    return out


def train_apart(features, out, how, processes=1):
    """Run the worker; its exit status."""
    worker = [str(HERE / "train_worker.py"), str(features), str(out), how]
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(several if processes > 1 else []), *worker]
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")]), str(HERE.parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, check=False).returncode


def train_here(features, out, turned=False):
    """The same training in this process: its losses. turned: sums in another order."""
    trainer = make_trainer(material(features), out, EVERY_STEP)
    if turned:
        maker = trainer._maker

        def backwards(indices):
            return maker(indices[::-1])

        backwards.rows_VD, backwards.softcap = maker.rows_VD, maker.softcap
        trainer._maker = backwards
    losses = []
    trainer.run(on_report=lambda report: losses.append(report.loss))
    return losses


def saved(folder):
    tensors, state = checkpoint.load(folder / CHECKPOINT)
    del state["seconds"]
    return {name: value.numpy().tobytes() for name, value in tensors.items()}, state


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_every_sequence_of_a_batch_belongs_to_one_process_and_all_have_about_as_much(size):
    anchors = [5, 80, 1, 40, 40, 7, 300, 12, 3, 9]
    batch = [9, 3, 1, 0, 6, 8, 4]
    parts = [Workers(rank, size).share(batch, anchors) for rank in range(size)]
    assert sorted(index for part in parts for index in part) == sorted(batch)
    assert all(part == [index for index in batch if index in part] for part in parts)
    loads = [sum(anchors[index] for index in part) for part in parts]
    assert max(loads) - min(loads) <= max(anchors[index] for index in batch)


def test_two_processes_train_like_one_with_the_same_batch_up_to_rounding(features, two, tmp_path):
    """The measure of rounding: one process that adds up the same sequences in another order."""
    one = train_here(features, tmp_path / "one")
    turned = train_here(features, tmp_path / "turned", turned=True)
    apart = json.loads((two / "whole" / "losses.json").read_text())
    assert len(apart) == len(one) == 20
    rounding = max(abs(a - b) for a, b in zip(one, turned, strict=True))
    assert max(abs(a - b) for a, b in zip(one, apart, strict=True)) <= 8 * rounding < 1e-3
    assert saved(two / "whole")[1] == saved(tmp_path / "one")[1]


def test_two_processes_that_were_stopped_have_the_bits_of_two_that_were_not(two):
    assert saved(two / "whole") == saved(two / "parts")


def test_what_is_not_finite_in_one_process_is_skipped_in_both(two):
    tensors, state = checkpoint.load(two / "poisoned" / CHECKPOINT)
    assert (state["step"], state["skipped"], state["bad_in_row"]) == (20, 2, 0)
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_a_training_that_was_killed_has_the_bits_of_one_that_was_not(features, tmp_path):
    """K7: moments, learning rate and the order of the data go on, too."""
    train_here(features, tmp_path / "whole")
    assert train_apart(features, tmp_path / "killed", "killed") == -signal.SIGKILL
    assert saved(tmp_path / "killed")[1]["step"] == 10
    (tmp_path / "killed" / (CHECKPOINT + ".tmp")).write_bytes(b"half a checkpoint")
    train_here(features, tmp_path / "killed")
    assert saved(tmp_path / "whole") == saved(tmp_path / "killed")
    curves = [(tmp_path / name / "curves.jsonl").read_text() for name in ("whole", "killed")]
    assert curves[0] == curves[1]
