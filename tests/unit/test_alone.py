"""Two processes that append to one folder would spoil it: the second one is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from drafthead.errors import TrainingError
from drafthead.training.alone import alone_in

HOLD = """
import sys
from pathlib import Path
from drafthead.training.alone import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path):
    """A folder that another process holds, and that process."""
    folder = tmp_path / "folder"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield folder, process
        process.kill()


def test_a_folder_of_another_process_is_refused_until_it_ends(held, tmp_path):
    folder, process = held
    with pytest.raises(TrainingError, match=f"Another process is writing in {folder}"):
        alone_in(tmp_path / "free", folder).__enter__()
    process.kill()
    process.wait()
    with alone_in(folder):
        assert not list(folder.iterdir())


def test_a_folder_may_be_named_twice_and_held_again(tmp_path):
    for _ in range(2):
        with alone_in(tmp_path / "a", tmp_path / "a", tmp_path / "b"):
            pass
