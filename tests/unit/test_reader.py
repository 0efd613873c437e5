"""The GGUF reader trusts nothing: damage costs one sentence, soundness loses nothing."""

from __future__ import annotations

import os
import random
import tracemalloc
from pathlib import Path

import gguf_bytes as made
import numpy as np
import pytest

from drafthead.errors import GgufError, UnsupportedError
from drafthead.gguf.reader import read_gguf
from drafthead.gguf.types import GGML_TYPES

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


def one_tensor(shape: tuple[int, ...], kind: int = made.F32, offset: int = 0) -> bytes:
    return made.padded(made.header(1, 0) + made.tensor("t", shape, kind, offset)) + bytes(512)


def one_entry(kind: int, payload: bytes, key: str | bytes = "key") -> bytes:
    return made.header(0, 1) + made.entry(key, kind, payload) + bytes(64)


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return one_entry(made.ARRAY, made.u32(kind) + made.u64(count) + payload)


def two_tensors(second: bytes) -> bytes:
    table = made.tensor("t", (8,), made.F32, 0) + second
    return made.padded(made.header(2, 0) + table) + bytes(256)


def aligned(value: object) -> bytes:
    return made.header(0, 1) + made.entry("general.alignment", *made.value(value))


HUGE = (1 << 64) - 1
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty (0 bytes)"),
    "web page": (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
    "web page without doctype": (b"<HTML><head>", "web page"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    "zip": (b"PK\x03\x04" + bytes(99), "convert the model to GGUF"),
    "old ggml": (b"tjgg" + bytes(99), "convert the model to GGUF"),
    "noise": (bytes(range(99)), "b'GGUF' is expected"),
    "magic alone": (b"GGUF", "header: truncated"),
    "half the magic": (b"GG", "header: truncated"),
    "version 1": (made.header(0, 0, version=1), "version 1"),
    "version 99": (made.header(0, 0, version=99), "version 99"),
    "big-endian": (b"GGUF\x00\x00\x00\x03" + bytes(16), "big-endian"),
    "too many tensors": (made.header(HUGE, 0), f"{HUGE} tensors exceed the cap"),
    "too many entries": (made.header(0, HUGE), f"{HUGE} metadata entries exceed the cap"),
    "tensors that cannot fit": (made.header(60_000, 0), "header: truncated"),
    "entries that cannot fit": (made.header(0, 60_000), "header: truncated"),
    "key of 2^64 bytes": (made.header(0, 1) + made.u64(HUGE) + bytes(99), "cap of 65535"),
    "key longer than the file": (made.header(0, 1) + made.u64(999) + bytes(99), "truncated"),
    "key not UTF-8": (one_entry(made.UINT8, b"\0", b"\xff\xfe"), "not valid UTF-8"),
    "empty key": (one_entry(made.UINT8, b"\0", b""), "key is empty"),
    "key twice": (
        made.header(0, 2) + 2 * made.entry("key", made.UINT8, b"\0") + bytes(9),
        "'key'): the key is there twice",
    ),
    "value of type 13": (one_entry(13, bytes(8)), "value type 13 is unknown"),
    "boolean 2": (one_entry(made.BOOL, b"\x02"), "a boolean is 0 or 1"),
    "string of 1 GiB": (one_entry(made.STRING, made.u64(1 << 30)), "exceeds the cap"),
    "string of 2^64 bytes": (one_entry(made.STRING, made.u64(HUGE)), "exceeds the cap"),
    "string longer than the file": (one_entry(made.STRING, made.u64(1 << 20)), "truncated"),
    "string not UTF-8": (one_entry(made.STRING, made.text(b"\xc3")), "not valid UTF-8"),
    "array of arrays": (array(made.ARRAY, 1), "arrays of arrays"),
    "array of type 77": (array(77, 1), "array element type 77 is unknown"),
    "array of 2^64 numbers": (array(made.UINT32, HUGE), "exceed the cap"),
    "array longer than the file": (array(made.UINT32, 1 << 20), "truncated"),
    "array of 2^64 strings": (array(made.STRING, HUGE), "exceed the cap"),
    "strings longer than the file": (array(made.STRING, 1 << 20), "truncated"),
    "second string runs out": (array(made.STRING, 2, made.text("a") + made.u64(99)), "truncated"),
    "second string of 2^64": (array(made.STRING, 2, made.text("a") + made.u64(HUGE)), "the cap"),
    "second string not UTF-8": (
        array(made.STRING, 2, made.text("a") + made.text(b"\xff")),
        "string 1 of the array is not valid UTF-8",
    ),
    "booleans of 3": (array(made.BOOL, 2, b"\x01\x03"), "a boolean is 0 or 1"),
    "alignment 0": (aligned(0), "general.alignment must be a power of two"),
    "alignment 24": (aligned(24), "found 24"),
    "alignment 2^30": (aligned(1 << 30), "found 1073741824"),
    "alignment text": (aligned("32"), "found '32'"),
    "no dimensions": (one_tensor(()), "1 to 4 dimensions, found 0"),
    "five dimensions": (one_tensor((1,) * 5), "1 to 4 dimensions, found 5"),
    "2^32 dimensions": (
        made.header(1, 0) + made.text("t") + made.u32(0xFFFFFFFF) + bytes(99),
        "found 4294967295",
    ),
    "zero dimension": (one_tensor((8, 0)), "a dimension is zero"),
    "shape overflows 64 bits": (one_tensor((1 << 33, 1 << 33)), "the whole file has"),
    "shape beyond the file": (one_tensor((1 << 20,)), "the whole file has"),
    "rows not whole blocks": (one_tensor((40,), made.Q8_0), "multiples of 32, found 40"),
    "unknown tensor type": (one_tensor((8,), 999), "'t' has ggml type 999"),
    "removed tensor type": (one_tensor((8,), 4), "'t' has ggml type 4"),
    "offset unaligned": (one_tensor((8,), offset=4), "not a multiple of the alignment 32"),
    "offset beyond the file": (one_tensor((8,), offset=1 << 40), "tensor data: truncated"),
    "offset overflows": (one_tensor((8,), offset=HUGE - 31), "tensor data: truncated"),
    "tensors overlap": (two_tensors(made.tensor("u", (8,), made.F32, 0)), "'t' and 'u' overlap"),
    "tensor twice": (two_tensors(made.tensor("t", (8,), made.F32, 32)), "name is there twice"),
    "empty tensor name": (two_tensors(made.tensor("", (8,), made.F32, 32)), "name is empty"),
    "tensor name of 300 bytes": (
        two_tensors(made.tensor("n" * 300, (8,), made.F32, 32)),
        "exceeds the cap of 256",
    ),
    "split file": (
        made.gguf({"split.no": 0, "split.count": 3}, {}),
        "part 1 of a model split in 3 parts",
    ),
}


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
    """Every proper prefix fails with a sentence that says where it ends and what is missing."""
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


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_costs_one_sentence(tmp_path: Path, name: str) -> None:
    """Each crafted file is refused by a sentence naming the fault, within 2 MB of memory."""
    raw, fragment = HOSTILE[name]
    path = write(tmp_path, raw)
    tracemalloc.start()
    try:
        with pytest.raises((GgufError, UnsupportedError)) as caught:
            read_gguf(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert fragment in message
    assert message.startswith(str(path))
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 300 + len(str(path))
    assert peak_bytes < 2 << 20


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


@pytest.mark.parametrize("seed", range(4))
def test_mutations_raise_nothing_but_named_errors(tmp_path: Path, seed: int) -> None:
    """10,000 random damages: each file is read, or refused by GgufError or UnsupportedError."""
    rng = random.Random(seed)
    path = tmp_path / "model.gguf"
    front = SOUND.index(b"\x01" * 68)  # damage in the tensor data is not ours to see
    refused = 0
    for _ in range(2500):
        raw = bytearray(SOUND)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(4, front)
            if rng.random() < 0.3:
                raw[at : at + 8] = made.u64(rng.choice((0, 1, 1 << 31, 1 << 63, HUGE)))
            elif rng.random() < 0.2:
                del raw[at : at + rng.randrange(1, 32)]
            else:
                raw[at] = rng.randrange(256)
        path.write_bytes(raw)
        try:
            read_gguf(path)
        except (GgufError, UnsupportedError) as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 1000


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """A folder, a missing path and a pipe each get their own sentence, at once."""
    with pytest.raises(GgufError, match="is a folder"):
        read_gguf(tmp_path)
    with pytest.raises(GgufError, match="does not exist"):
        read_gguf(tmp_path / "none.gguf")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GgufError, match="no regular file"):
        read_gguf(tmp_path / "pipe")


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
