"""How long a backbone takes to load and what it then holds in memory, in a process of its own.

Resident memory is what the kernel counts for a process: pages it has written, and pages of the
mapped file that it has touched and the kernel has not dropped yet. A fresh process tells the
weights from Python with its libraries, which come before, from the tokenizer, which comes after,
and from the file's metadata, which is read once more to see what it takes; and its peak is that of
loading alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from drafthead.backbone.handle import Backbone
from drafthead.errors import DraftheadError, FileError
from drafthead.gguf.reader import read_gguf
from drafthead.text.template import ChatTemplate
from drafthead.text.tokenizer import Tokenizer

PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class Loading:
    """What loading took; the bytes of a step are the difference it made.

    file_bytes: size of the file.  resident_bytes: of the weights, once loaded.  mapped_bytes: pages
    of the file among all.  peak_bytes: the most that the weights took while they were loaded.
    python_bytes: of Python and its libraries.  metadata_bytes: of the file's metadata, above all
    the vocabulary.  text_bytes: of tokenizer and chat template.
    """

    load_ms: float
    file_bytes: int
    resident_bytes: int
    mapped_bytes: int
    peak_bytes: int
    python_bytes: int
    metadata_bytes: int
    text_bytes: int


def measure_loading(path: Path, threads: int) -> Loading:
    """Load a file in a fresh process.

    It is read from the page cache where it has been read shortly before.

    Raises:
        FileError: that process failed.
    """
    command = [sys.executable, "-m", "drafthead.evaluation.loading", str(path), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise FileError(f"A fresh process could not load {path}: {told.rstrip('.')}.")
    return Loading(**json.loads(done.stdout))


def load_here(path: Path, threads: int) -> Loading:
    """Load a file and look at this process before and after; meant for a fresh one."""
    python_bytes, mapped_before, _ = resident()
    with suppress(OSError):  # where it is not allowed, the peak of the imports stays in
        (PROCESS / "clear_refs").write_text("5")
    backbone = Backbone.open(path, threads)
    loaded, mapped, peak = resident()
    tokenizer = Tokenizer.from_gguf(backbone.gguf)
    text_side = tokenizer, ChatTemplate.from_gguf(backbone.gguf, tokenizer)
    with_text, _, _ = resident()
    again = read_gguf(path)
    metadata_bytes = resident()[0] - with_text
    del tokenizer, text_side, again
    before = python_bytes + metadata_bytes
    return Loading(
        load_ms=round(backbone.load_ms, 1),
        file_bytes=path.stat().st_size,
        resident_bytes=loaded - before,
        mapped_bytes=mapped - mapped_before,
        peak_bytes=peak - before,
        python_bytes=python_bytes,
        metadata_bytes=metadata_bytes,
        text_bytes=with_text - loaded,
    )


def resident() -> tuple[int, int, int]:
    """Bytes resident now, those of them that belong to mapped files, and the peak so far."""
    lines = (PROCESS / "status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    names = ("VmRSS", "RssFile", "VmHWM")
    now, mapped, peak = (1024 * int(fields[name].split()[0]) for name in names)
    return now, mapped, peak


def main(path: str, threads: str) -> None:
    """What the fresh process does."""
    try:
        print(json.dumps(asdict(load_here(Path(path), int(threads)))))
    except DraftheadError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
