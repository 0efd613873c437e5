"""The rules of the house that no tool's own configuration can hold."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drafthead.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src" / "drafthead"
SOURCES = sorted(SRC.rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    """Every absolute module name that an import statement of the file names, lazy ones included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers_of(*modules: str) -> set[str]:
    """Source files, relative to the package, that import one of the modules or a part of it."""
    return {
        path.relative_to(SRC).as_posix()
        for path in SOURCES
        for name in imported_modules(path)
        if any(name == module or name.startswith(f"{module}.") for module in modules)
    }


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )


def test_only_bindings_include_nanobind():
    """The native core knows nothing of Python outside one file."""
    include = re.compile(r"^\s*#\s*include\s*[<\"](nanobind/|Python\.h)", re.MULTILINE)
    native = [path for path in (ROOT / "native").rglob("*") if path.suffix in {".h", ".cpp"}]
    with_python = [path for path in native if include.search(path.read_text(encoding="utf-8"))]
    assert [path.relative_to(ROOT).as_posix() for path in with_python] == ["native/bindings.cpp"]


def test_nothing_unpickles():
    """G8: loading a file never runs code from it: no pickle, and none of the calls built on it."""
    assert importers_of("pickle", "dill", "joblib", "shelve", "marshal") == set()
    calls = re.compile(r"torch\.(load|save)\(|allow_pickle\s*=\s*True")
    assert [path.name for path in SOURCES if calls.search(path.read_text(encoding="utf-8"))] == []


def test_torch_is_imported_in_training_only():
    """The runtime installs and runs without torch."""
    outside = {name for name in importers_of("torch") if not name.startswith("training/")}
    assert outside == set()


def test_drafting_and_deciding_know_token_ids_only():
    """G2: no drafter and no part of the loop can go through text and tokenize it anew."""
    ids_only = re.compile(r"(drafters/|decoding/)")
    assert [name for name in importers_of("drafthead.text") if ids_only.match(name)] == []


def test_gguf_and_plain_data_do_not_import_the_native_core():
    """They stand beside or below it; import-linter cannot see a compiled module."""
    below = re.compile(r"(gguf/|types\.py|errors\.py)")
    assert [name for name in importers_of("drafthead._native") if below.match(name)] == []


def test_rooms_import_downwards_only():
    """The import order of pyproject.toml holds."""
    lint_imports = Path(sys.executable).with_name("lint-imports")
    if not lint_imports.exists():
        pytest.skip("import-linter is not installed; `make lint` installs and runs it")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(
        [lint_imports, "--no-cache"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout


def test_no_source_file_is_too_long_and_no_tracked_file_too_large():
    """At most 600 lines a source file and 20 MB a tracked file."""
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "check_sizes.py"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (0, ""), run.stderr


def test_compiler_flags_keep_the_order_of_float_operations():
    """No contraction into fused multiply-adds that the source does not spell, no fast-math."""
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    code = re.sub(r"#.*", "", text)
    assert "-ffp-contract=off" in code
    assert re.findall(r"-ffast-math|-Ofast|-funsafe-math\S*|-fassociative-math", code) == []


def test_runtime_does_not_load_torch():
    """The command line and the session start without torch, even where it is installed."""
    run = run_python(
        "import drafthead.cli.main, drafthead.session, sys; print('torch' in sys.modules)"
    )
    assert run.stdout == "False\n", run.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_where_torch_is_missing(command):
    """`--help` works on a runtime-only installation, for the training commands too."""
    run = run_python(
        "import sys; sys.modules['torch'] = None\n"
        "from drafthead.cli.main import main\n"
        f"sys.exit(main(['{command}', '--help']))"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"usage: drafthead {command}")
