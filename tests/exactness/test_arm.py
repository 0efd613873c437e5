"""The Arm instruction sets, cross-compiled and run under emulation, against this machine's bits.

native/tests/bits_driver is the core without Python. It runs on this machine with the scalar
definition and under qemu with each Arm table, on processors that have just what the table needs.
Buffers are compared word by word, except that a NaN equals any NaN: its sign and payload are the
processor's choice (native/README.md).
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from drafthead import _native
from drafthead.gguf.model import Layer, ModelSpec, Rope, TensorPlan, tensor_plan
from drafthead.gguf.spec import MATRIX_TYPES
from drafthead.heads.config import HeadConfig, TargetId
from tests.own_head import head_sizes

ROOT = Path(__file__).resolve().parents[2]
HOST = "this machine"
TOKENS = np.random.default_rng(21).integers(0, 272, 300, dtype=np.int32)
WRITABLE = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]
HEAD_FF, DRAFT_STEPS = 64, 6
DRAFT_TOKENS = np.arange(128, dtype=np.int32)
GROUPS = np.array([3, 9, 12, 16], np.int32)  # of the text: some are not in the draft vocabulary
TAPS = np.array([1, 0], np.int32)
HEADS = {
    "plain": {"kv_layers": (1,)},
    "no-attention": {"kv_layers": (-1,)},
    "query-bias-and-norm": {"kv_layers": (0, 1), "attention_bias": True, "qk_norm": True},
    "markov-bias": {"kv_layers": (1,), "markov_rank": 64},
    "taps": {"kv_layers": (1,), "taps": (1, 0)},
    "positions": {"kv_layers": (1,), "positions": 4},
    "tokens-of-the-text": {"kv_layers": (1,), "prompt_tokens": True},
    "all-of-it": {
        "kv_layers": (1, -1, 0), "attention_bias": True, "qk_norm": True, "markov_rank": 32,
        "taps": (1,), "positions": 3, "prompt_tokens": True,
    },
}  # fmt: skip
EVERYTHING = ModelSpec(
    architecture="", n_layers=3, d_model=64, n_heads=4, n_kv_heads=2, head_dim=32, d_ff=96,
    vocab_size=272, context_length=320, rms_eps=1e-5, tied_output=True, rope_interleaved=True,
    embedding_scale=8.0, gelu=True, qkv_bias=True, qk_norm=True, post_norms=True,
    attention_scale=0.2, attention_softcap=5.0, final_softcap=3.0, rope_factors=True,
    ropes=(Rope(10000.0, 1.0), Rope(500.0, 0.25)),
    layers=(Layer(16, 0), Layer(0, 1), Layer(16, -1)),
)  # fmt: skip

SIZES = ("d_ff", "attention_bias", "qk_norm", "markov_rank", "taps", "positions", "prompt_tokens")
LISTS = {"draft_tokens": DRAFT_TOKENS, "groups": GROUPS, "taps": TAPS}

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


@dataclass(frozen=True)
class Model:
    """What is given to the core: here through the module, there through the driver's file."""

    spec: ModelSpec
    tensors: dict[str, tuple[Type, np.ndarray]]
    tokens: np.ndarray
    chunks: tuple[int, ...]  # rows a pass
    heads: tuple[str, ...]  # of HEADS

    def build(self) -> _native.Backbone:
        native = _native.Backbone(self.spec.native(), 1)
        for t in tensor_plan(self.spec):
            kind, data = self.tensors[t.name]
            native.set_tensor(t.name, int(kind), t.rows, t.columns, data)
        native.finish()
        return native

    def write(self, path: Path) -> None:
        native = self.spec.native()
        parts = [f"rope {rope['base']!r} {rope['scale']!r}\n" for rope in native.pop("ropes")]
        parts += [f"layer {window} {rope}\n" for window, rope in native.pop("layers")]
        parts += [f"number {key} {value!r}\n" for key, value in native.items()]
        with path.open("wb") as file:

            def entry(line: str, data: np.ndarray) -> None:
                file.write(f"{line} {data.nbytes}\n".encode() + data.tobytes())

            file.write("".join(parts).encode())
            for t in tensor_plan(self.spec):
                kind, data = self.tensors[t.name]
                entry(f"tensor {t.name} {int(kind)} {t.rows} {t.columns}", data)
            for head in self.made_heads():
                sizes = " ".join(str(head.sizes[name]) for name in SIZES)
                reads = "".join(f"reads {layer}\n" for layer in head.config.kv_layers)
                file.write(f"head {head.name} {sizes}\n{reads}".encode())
                for name, (kind, rows, columns, data) in head.tensors.items():
                    entry(f"head_tensor {name} {kind} {rows} {columns}", data)
            for name, ids in LISTS.items():
                entry(name, ids)
            entry("tokens", self.tokens)

    def made_heads(self) -> list[MadeHead]:
        return [made_head(name, self.spec) for name in self.heads]

    def expected(self) -> dict[str, np.ndarray]:
        """All rows in one pass of the module, then a draft of each head."""
        native, count = self.build(), len(self.tokens)
        cache = _native.KvCache(native, count)
        rows = np.arange(count, dtype=np.int32)
        hidden, tokens, logits = native.forward([cache], [count], self.tokens, rows, 2, TAPS)
        found = {"hidden": hidden.reshape(-1), "tokens": tokens, "logits": logits.reshape(-1)}
        for made in self.made_heads():
            head = _native.MtpHead(native, made.sizes, list(made.config.kv_layers), DRAFT_TOKENS)
            for name, tensor in made.tensors.items():
                head.set_tensor(name, *tensor)
            head.finish()
            first, groups = int(self.tokens[0]), GROUPS.tolist()
            draft, sure = head.draft(cache, first, hidden[-1], DRAFT_STEPS, [0.0], (), groups)
            found |= {f"{made.name}.draft": draft, f"{made.name}.confidences": sure}
        return found


def random_tensors(plan, seed: int) -> dict[str, tuple[Type, np.ndarray]]:
    """Matrices of one type after another, vectors of 1 and more, as bytes."""
    rng = np.random.default_rng(seed)
    kinds = itertools.cycle(WRITABLE)
    tensors = {}
    for t in plan:
        matrix = t.kind == "matrix"
        kind = next(kinds) if matrix else Type.F32
        values = rng.normal(0, t.columns**-0.5 if matrix else 0.2, (t.rows, t.columns))
        values = values if matrix else 1 + np.abs(values)
        data = gguf.quantize(values.astype(np.float32), kind)
        tensors[t.name] = kind, np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    return tensors


@dataclass(frozen=True)
class MadeHead:
    """A head as the core is given it. sizes: as of head_sizes."""

    name: str
    config: HeadConfig
    sizes: dict[str, int]
    tensors: dict[str, tuple[int, int, int, np.ndarray]]


def made_head(name: str, spec: ModelSpec) -> MadeHead:
    """A random head of one shape; its matrices are of one type after another."""
    config = HeadConfig(
        d_model=spec.d_model, d_ff=HEAD_FF, n_heads=spec.n_heads, n_kv_heads=spec.n_kv_heads,
        head_dim=spec.head_dim, vocab_size=spec.vocab_size, draft_vocab_size=len(DRAFT_TOKENS),
        rms_eps=spec.rms_eps, rope_base=1e4, trained_steps=1, target=TargetId("", "", "", ""),
        **HEADS[name],
    )  # fmt: skip
    plan = [
        TensorPlan(n, columns, rows, "matrix") for n, (rows, columns) in config.matrices().items()
    ]
    plan += [TensorPlan(n, size, 1, "vector") for n, size in config.vectors().items()]
    made = random_tensors(plan, 5 + len(plan))
    tensors = {t.name: (int(made[t.name][0]), t.rows, t.columns, made[t.name][1]) for t in plan}
    sizes = head_sizes(
        HEAD_FF, attention_bias=int(config.attention_bias), qk_norm=int(config.qk_norm),
        markov_rank=config.markov_rank, taps=len(config.taps), positions=config.positions,
        prompt_tokens=int(config.prompt_tokens),
    )  # fmt: skip
    return MadeHead(name, config, sizes, tensors)


def plain_model() -> Model:
    """A llama without windows, and heads of every shape."""
    spec = replace(EVERYTHING, n_layers=2, gelu=False, qkv_bias=False, qk_norm=False,
                   post_norms=False, rope_factors=False, tied_output=False, embedding_scale=1.0,
                   attention_softcap=0.0, final_softcap=0.0, ropes=(Rope(10000.0, 1.0),),
                   layers=(Layer(0, 0),) * 2)  # fmt: skip
    return Model(
        spec, random_tensors(tensor_plan(spec), 6), TOKENS[:40], (1, 3, 9, 40), tuple(HEADS)
    )


def everything_model() -> Model:
    """All that an architecture may ask for, and more positions than the ring of a window has."""
    tensors = random_tensors(tensor_plan(EVERYTHING), 7)
    return Model(EVERYTHING, tensors, TOKENS, (7, len(TOKENS)), ("plain", "all-of-it"))


@pytest.fixture(scope="module", params=[plain_model, everything_model])
def model(request, tmp_path_factory):
    """A model, its file for the driver, and what the module computes with it."""
    made = request.param()
    path = tmp_path_factory.mktemp("model") / "model"
    made.write(path)
    return made, path, made.expected()


@pytest.mark.parametrize(("cpu", "isa"), [(HOST, "scalar"), *TABLES])
def test_a_model_gives_the_bits_of_the_module(driver, model, tmp_path, cpu, isa):
    """Several chunkings; 1 thread, and 2 in a spoilt float environment; a draft of each head."""
    made, path, expected = model
    found = driver.record(cpu, tmp_path / "bits", "model", isa, path, *made.chunks)
    runs = [f"threads{threads}.chunk{chunk}" for threads in (1, 2) for chunk in made.chunks]
    assert_same(found, {f"{run}.{name}": expected[name] for run in runs for name in expected})


def test_what_a_head_has_changes_its_draft(model):
    """Or the comparison would not show it; tokens of the text are drafted where they may be."""
    made, _, expected = model
    sure = {expected[f"{name}.confidences"].tobytes() for name in made.heads}
    assert len(sure) == len(made.heads)
    outside = {
        name for name in made.heads if (expected[f"{name}.draft"] >= len(DRAFT_TOKENS)).any()
    }
    assert outside <= {"tokens-of-the-text", "all-of-it"}
    assert ("tokens-of-the-text" in outside) == ("tokens-of-the-text" in made.heads)


def test_the_models_are_finite(model):
    assert all(np.isfinite(values).all() for values in model[2].values())


def binary(tool_name: str, *words: object) -> str:
    """What a program of the cross compiler's binutils prints; they read x86 objects too."""
    command = [tool(f"aarch64-linux-gnu-{tool_name}"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_arm_tables_use_their_instructions(driver):
    """A table that fell back to plain code would have the same bits."""
    for isa, instructions in (("neon", {"sdot"}), ("neon_i8mm", {"sdot", "usdot", "usmmla"})):
        (object_,) = driver.arm.parent.rglob(f"{isa}.cpp.o")
        listing = binary("objdump", "-d", "--no-show-raw-insn", object_)
        assert instructions <= set(listing.split()), isa


def test_instruction_sets_share_no_function(driver):
    """Of an inline function compiled twice the linker keeps one, perhaps with the wrong flags."""
    objects = [o for o in (ROOT / "build").rglob("*.cpp.o") if o.parent.name == "isa"]
    assert set(driver.arm.parent.rglob("neon*.cpp.o")) < set(objects)
    owners: dict[tuple[Path, str], str] = {}
    for object_ in objects:
        names = {line[19:] for line in binary("nm", object_).splitlines() if line[17] in "VWu"}
        assert names, object_
        for name in names:
            owner = owners.setdefault((object_.parent, name), object_.name)
            assert owner == object_.name, f"{name} is in {owner} and in {object_.name}"
