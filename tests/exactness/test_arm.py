"""The Arm instruction sets, cross-compiled and run under emulation, against this machine's bits.

native/tests/bits_driver is the core without Python. It runs on this machine with the scalar
definition and under qemu with each Arm table, on processors that have just what the table needs.
Buffers are compared word by word, except that a NaN equals any NaN: its sign and payload are the
processor's choice (native/README.md).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone, Segment
from drafthead.gguf.reader import read_gguf
from drafthead.gguf.spec import MATRIX_TYPES, model_spec, tensor_plan
from drafthead.heads.package import GGML_F32, GGML_Q8_0, HeadPackage, q8_0_blocks
from tests.random_head import write_random_head

ROOT = Path(__file__).resolve().parents[2]
TOKENS = np.random.default_rng(21).integers(0, 272, 40, dtype=np.int32)
HOST = "this machine"

# The processor that qemu plays, and the table it would choose.
TABLES = [("cortex-a57", "scalar"), ("neoverse-n1", "neon"), ("max", "neon-i8mm")]


def tool(*names: str) -> str:
    """Path of the first of some programs that is here; skips the test where none is."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    pytest.skip(f"{names[0]} is not installed (Debian: g++-aarch64-linux-gnu, qemu-user-static)")


def build(folder: Path, *options: str) -> Path:
    """Build the driver with the flags of the product."""
    cmake = tool("cmake")
    configure = [cmake, "-S", ROOT, "-B", folder, "-DDRAFTHEAD_BITS_DRIVER=ON", *options]
    compile_ = [cmake, "--build", folder, "--parallel", str(os.cpu_count() or 1)]
    for command in (configure, compile_):
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
    return folder / "bits_driver"


class Driver:
    """Runs the driver on this machine or on an emulated processor."""

    def __init__(self) -> None:
        compiler, self.qemu = tool("aarch64-linux-gnu-g++"), tool("qemu-aarch64-static")
        self.host = build(ROOT / "build" / "bits-host")
        self.arm = build(
            ROOT / "build" / "bits-aarch64",
            "-DCMAKE_SYSTEM_NAME=Linux",
            "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
            f"-DCMAKE_CXX_COMPILER={compiler}",
            "-DCMAKE_EXE_LINKER_FLAGS=-static",
            "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON",
        )

    def run(self, cpu: str, *words: object) -> str:
        command = [self.host] if cpu == HOST else [self.qemu, "-cpu", cpu, self.arm]
        run = subprocess.run(
            [*command, *map(str, words)], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, f"{cpu}: exit {run.returncode}, {run.stderr}"
        return run.stdout

    def record(self, cpu: str, out: Path, command: str, isa: str, *words: object):
        """The named arrays that a run writes."""
        self.run(cpu, command, isa, out, *words)
        return read_record(out)


def read_record(path: Path) -> dict[str, np.ndarray]:
    arrays = {}
    with path.open("rb") as file:
        while line := file.readline():
            name, kind, count = line.decode().split()
            dtype = np.dtype(f"<{kind}")
            arrays[name] = np.frombuffer(file.read(int(count) * dtype.itemsize), dtype)
    return arrays


def differing(a: np.ndarray, b: np.ndarray) -> int:
    """How many values differ in any bit; a NaN equals any NaN."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    words = f"u{a.dtype.itemsize}"
    unlike = a.view(words) != b.view(words)
    if a.dtype.kind == "f":
        unlike &= ~(np.isnan(a) & np.isnan(b))
    return int(unlike.sum())


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    wrong = {name: differing(found[name], expected[name]) for name in found}
    assert not any(wrong.values()), {name: count for name, count in wrong.items() if count}


@pytest.fixture(scope="module")
def driver() -> Driver:
    return Driver()


@pytest.fixture(scope="module")
def definition(driver, tmp_path_factory) -> dict[str, np.ndarray]:
    """Every kernel of the scalar table on this machine."""
    out = tmp_path_factory.mktemp("bits") / "scalar"
    return driver.record(HOST, out, "kernels", "scalar", *MATRIX_TYPES)


@pytest.mark.parametrize("index", range(3))
def test_a_processor_gets_the_tables_that_it_can_run(driver, index):
    cpu, _ = TABLES[index]
    best_first = [isa for _, isa in TABLES[index::-1]]
    assert driver.run(cpu, "isas").split() == best_first


@pytest.mark.parametrize(("cpu", "isa"), TABLES)
def test_every_kernel_equals_the_definition(driver, definition, tmp_path, cpu, isa):
    """All weight types, 1 to 9 rows; norms, quantisation, rotation, halves, attention, scores."""
    found = driver.record(cpu, tmp_path / "bits", "kernels", isa, *MATRIX_TYPES)
    assert_same(found, definition)


def test_the_cases_are_mostly_finite(definition):
    """A comparison of NaNs shows nothing."""
    for name, values in definition.items():
        assert np.isfinite(values.astype(np.float64)).mean() > 0.4, name


def write_model(path: Path, gguf_path: Path, head: HeadPackage) -> None:
    """The file that the driver's model command reads: the calls that would build it here."""
    gguf = read_gguf(gguf_path)
    spec = model_spec(gguf)
    lines = [f"number {key} {value!r}\n".encode() for key, value in spec.native().items()]

    def entry(line: str, data: np.ndarray) -> None:
        raw = np.ascontiguousarray(data).tobytes()
        lines.append(f"{line} {len(raw)}\n".encode() + raw)

    for t in tensor_plan(spec):
        entry(f"tensor {t.name} {gguf.tensors[t.name].ggml_type} {t.rows} {t.columns}",
              gguf.data(t.name))  # fmt: skip
    for name in head.config.norms():
        entry(f"head_tensor {name} {GGML_F32} 1 {spec.d_model}", head.tensors[name])
    for name, (rows, columns) in head.config.matrices().items():
        data = q8_0_blocks(head.tensors[name], head.tensors[name + "_scale"])
        entry(f"head_tensor {name} {GGML_Q8_0} {rows} {columns}", data)
    lines.append(f"head {head.config.d_ff} {head.config.kv_layers[0]}\n".encode())
    entry("draft_tokens", head.tensors["draft_token_ids"])
    entry("tokens", TOKENS)
    path.write_bytes(b"".join(lines))


@pytest.fixture(scope="module")
def model(tiny_path, tmp_path_factory):
    """The driver's file of the tiny model with a random head, and what the module computes."""
    folder = tmp_path_factory.mktemp("model")
    backbone = Backbone.open(tiny_path, threads=1)
    head = HeadPackage.load(write_random_head(folder / "head", backbone))
    write_model(folder / "model", tiny_path, head)
    cache = backbone.new_cache(len(TOKENS))
    found = backbone.forward([Segment(cache, TOKENS)], want="logits")
    tokens, confidences = head.build(backbone).draft(
        cache, int(TOKENS[0]), found.hidden[-1], 6, 0.0
    )
    return folder / "model", {
        "logits": found.logits.reshape(-1), "hidden": found.hidden.reshape(-1),
        "tokens": found.tokens, "draft": tokens, "confidences": confidences,
    }  # fmt: skip


@pytest.mark.parametrize(("cpu", "isa"), [(HOST, _native.active_isa()), *TABLES])
def test_a_model_gives_the_bits_of_the_module(driver, model, tmp_path, cpu, isa):
    """Chunks of 1, 3, 9 and all rows, 1 and 2 threads, a spoilt float environment, a draft."""
    path, expected = model
    found = driver.record(cpu, tmp_path / "bits", "model", isa, path)
    runs = {name.rpartition(".")[0] for name in found}
    assert len(runs) == 8
    assert_same(found, {f"{run}.{name}": expected[name] for run in runs for name in expected})


def test_the_arm_tables_use_their_instructions(driver):
    """A table that fell back to plain code would have the same bits."""
    objdump = tool("aarch64-linux-gnu-objdump")
    folder = ROOT / "build" / "bits-aarch64"
    for isa, instructions in (("neon", {"sdot"}), ("neon_i8mm", {"sdot", "usdot"})):
        (object_,) = folder.rglob(f"{isa}.cpp.o")
        listing = subprocess.run(
            [objdump, "-d", "--no-show-raw-insn", object_],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert instructions <= set(listing.split()), isa
