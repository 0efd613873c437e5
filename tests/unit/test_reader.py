"""The GGUF reader trusts nothing: damage costs one sentence, soundness loses nothing."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from drafthead.errors import GgufError
from drafthead.gguf.reader import read_gguf
from drafthead.gguf.types import GGML_TYPES
from tests.fuzz.corpus import array
from tests.unit import gguf_bytes as made

METADATA: dict[str, object] = {
    "general.architecture": "llama",
    "an.integer": 7,
    "a.float": 0.5,
    "a.boolean": True,
    "words": ["one", "zwei", "三", ""],
    "numbers": [1, -2, 3],
}
TENSORS = {"a": ((32, 2), made.Q8_0), "b": ((3,), made.F32), "c": ((4, 2), made.F16)}
SOUND = made.gguf(METADATA, TENSORS)


def write(folder: Path, raw: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(raw)
    return path


def test_a_sound_file_gives_back_what_was_written(tmp_path: Path) -> None:
    """Metadata, tensor table and tensor bytes come back as they were written."""
    file = read_gguf(write(tmp_path, SOUND))
    assert file.version == 3
    assert list(file.metadata) == list(METADATA)
    for key, expected in METADATA.items():
        found = file.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected
    assert {n: (t.shape, t.ggml_type) for n, t in file.tensors.items()} == TENSORS
    for number, (name, (shape, kind)) in enumerate(TENSORS.items(), 1):
        data = file.data(name)
        assert data.tobytes() == bytes([number]) * made.nbytes(shape, kind)
        assert file.tensors[name].offset % 32 == 0
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 1


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_the_files_own_alignment_counts(tmp_path: Path, alignment: int) -> None:
    """Data starts at the next multiple of general.alignment."""
    raw = made.gguf({"general.alignment": alignment}, TENSORS, alignment)
    file = read_gguf(write(tmp_path, raw))
    assert file.data("b").tobytes() == b"\x02" * 12
    assert all(t.offset % alignment == 0 for t in file.tensors.values())


def test_every_scalar_type_is_read(tmp_path: Path) -> None:
    """The twelve scalar value types of the format keep their value and sign."""
    numbers = {0: b"\xff", 1: b"\xff", 2: b"\xff\xff", 3: b"\xff\xff", 4: b"\xff" * 4}
    numbers |= {5: b"\xff" * 4, 6: b"\0\0\x80\xbf", 10: b"\xff" * 8, 11: b"\xff" * 8}
    numbers |= {12: b"\0" * 6 + b"\xf0\xbf", 7: b"\1"}
    raw = made.header(0, len(numbers))
    raw += b"".join(made.entry(f"k{kind}", kind, payload) for kind, payload in numbers.items())
    found = read_gguf(write(tmp_path, raw)).metadata
    expected = [255, -1, 65535, -1, 2**32 - 1, -1, -1.0, 2**64 - 1, -1, -1.0, True]
    assert list(found.values()) == expected
    booleans = read_gguf(write(tmp_path, array(made.BOOL, 2, b"\0\1"))).metadata["key"]
    assert booleans.dtype == np.bool_
    assert booleans.tolist() == [False, True]


def test_a_file_cut_at_any_byte_is_told_to_be_truncated(tmp_path: Path) -> None:
    """G7: every proper prefix fails with a sentence that says where it ends and what is missing."""
    path = tmp_path / "model.gguf"
    sections = set()
    for length in range(1, len(SOUND)):
        path.write_bytes(SOUND[:length])
        with pytest.raises(GgufError, match="truncated") as caught:
            read_gguf(path)
        message = str(caught.value)
        assert message.startswith(f"{path}: ")
        assert str(length) in message or " found" in message
        sections.add(message.removeprefix(f"{path}: ").split(":")[0].split(" entry")[0])
    assert sections == {"header", "metadata", "tensor table", "tensor data"}


def test_a_header_that_never_ends_stops_at_its_cap(tmp_path: Path) -> None:
    """A huge sparse file of zeros in an array of strings costs no more than the caps allow."""
    path = write(tmp_path, array(made.STRING, 1 << 20))
    os.truncate(path, 1 << 33)
    tracemalloc.start()
    try:
        read_gguf(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 50 << 20


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder, a missing path and a pipe each get their own sentence, at once."""
    with pytest.raises(GgufError, match="is a folder"):
        read_gguf(tmp_path)
    with pytest.raises(GgufError, match="does not exist"):
        read_gguf(tmp_path / "none.gguf")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GgufError, match="no regular file"):
        read_gguf(tmp_path / "pipe")


def test_a_file_cut_while_it_is_open_is_refused(tmp_path: Path) -> None:
    """Reading past the new end of a mapped file would kill the process: it is told instead."""
    path = write(tmp_path, SOUND)
    file = read_gguf(path)
    numbers = file.metadata["numbers"]
    os.truncate(path, 100)
    with pytest.raises(GgufError, match=f"shrank from {len(SOUND)} to 100 bytes while it was open"):
        file.data("a")
    with pytest.raises(GgufError, match="shrank"):
        file.fingerprint()
    assert numbers.tolist() == METADATA["numbers"]


def test_a_file_replaced_while_it_is_open_stays_what_it_was(tmp_path: Path) -> None:
    """A download that is renamed over the file does not reach what was opened before."""
    path = write(tmp_path, SOUND)
    file = read_gguf(path)
    (tmp_path / "new").write_bytes(b"short")
    (tmp_path / "new").replace(path)
    assert file.data("b").tobytes() == b"\x02" * 12


def test_arrays_of_a_file_have_one_cap_together(tmp_path: Path) -> None:
    """Many arrays, each below a cap, cost no more than one."""
    one = made.u32(made.STRING) + made.u64(600_000) + bytes(8 * 600_000)
    entries = made.entry("a", made.ARRAY, one) + made.entry("b", made.ARRAY, one)
    with pytest.raises(GgufError, match="1200000 array strings exceed the cap of 1048576"):
        read_gguf(write(tmp_path, made.header(0, 2) + entries))


def test_getters_tell_what_they_expected_and_found(tmp_path: Path) -> None:
    """A value of the wrong type, out of range or absent is named with its key."""
    file = read_gguf(write(tmp_path, SOUND))
    assert file.integer("an.integer", 0, 9) == 7
    assert file.number("a.float", 0, 1) == 0.5
    assert file.boolean("a.boolean")
    assert file.strings("words") == METADATA["words"]
    assert file.integers("numbers") == [1, -2, 3]
    assert file.string("absent", "default") == "default"
    for call, message in (
        (lambda: file.string("an.integer"), "an.integer must be a string, found the int 7"),
        (lambda: file.integer("a.boolean", 0, 1), "an integer from 0 to 1, found the bool True"),
        (lambda: file.integer("an.integer", 8, 9), "an integer from 8 to 9, found the int 7"),
        (lambda: file.number("an.integer", 0, 9), "a float from 0 to 9, found the int 7"),
        (lambda: file.number("a.float", 1, 2), "a float from 1 to 2, found the float 0.5"),
        (lambda: file.boolean("a.float"), "must be a boolean"),
        (lambda: file.strings("numbers"), "found an array of 3 int32 values"),
        (lambda: file.integers("words"), "found an array of 4 strings"),
        (lambda: file.string("absent"), "key absent is missing"),
    ):
        with pytest.raises(GgufError) as caught:
            call()
        assert message in str(caught.value)


def test_a_nan_is_in_no_range(tmp_path: Path) -> None:
    """A float key that holds NaN is refused, whatever the range."""
    file = read_gguf(write(tmp_path, made.gguf({"x": float("nan")}, {})))
    with pytest.raises(GgufError, match="found the float nan"):
        file.number("x", float("-inf"), float("inf"))


def test_the_fingerprint_follows_tensors_and_nothing_else(tmp_path: Path) -> None:
    """One bit of a tensor, a name or a type changes it; metadata and alignment do not."""
    first = read_gguf(write(tmp_path, SOUND)).fingerprint()
    other_metadata = made.gguf({**METADATA, "tokenizer.chat_template": "x"}, TENSORS)
    assert read_gguf(write(tmp_path, other_metadata)).fingerprint() == first
    flipped = bytearray(SOUND)
    flipped[-1] ^= 1
    assert read_gguf(write(tmp_path, bytes(flipped))).fingerprint() != first
    renamed = SOUND.replace(made.tensor("b", (3,), 0, 96)[:9], made.tensor("d", (3,), 0, 96)[:9])
    assert read_gguf(write(tmp_path, renamed)).fingerprint() != first


def test_type_sizes_agree_with_the_gguf_package() -> None:
    """Block sizes and bytes of every type are those of the format's own package."""
    constants = pytest.importorskip("gguf.constants")
    for kind, (size, block_bytes) in constants.GGML_QUANT_SIZES.items():
        if kind.value in GGML_TYPES:
            ours = GGML_TYPES[kind.value]
            assert (ours.name, ours.block_size, ours.block_bytes) == (kind.name, size, block_bytes)


@pytest.mark.backbone
def test_the_real_file_reads_as_the_gguf_package_reads_it(backbone_path: Path) -> None:
    """Every key and value, and every tensor's name, type, shape and bytes, are the same."""
    import gguf

    theirs = gguf.GGUFReader(backbone_path)
    ours = read_gguf(backbone_path)
    fields = {k: f for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert fields.keys() == ours.metadata.keys()
    for key, field in fields.items():
        found = ours.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == field.contents()
    assert [t.name for t in theirs.tensors] == list(ours.tensors)
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        expected = (int(tensor.tensor_type), tuple(map(int, tensor.shape)), tensor.data_offset)
        assert (info.ggml_type, info.shape, info.offset) == expected
        assert np.array_equal(ours.data(tensor.name), tensor.data.view(np.uint8).reshape(-1))
