"""Laws of head packages: everything is checked before it is used, and a wrong pair is refused."""

from __future__ import annotations

import dataclasses
import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from test_head_config import CONFIG

from drafthead.errors import HeadError
from drafthead.heads import package as package_module
from drafthead.heads.blocks import KINDS
from drafthead.heads.package import HeadPackage, expected_tensors
from drafthead.heads.store import embedded_heads, find_head

IDS = np.array([*range(16, 32), *range(64, 80), *range(304, 320)])


def make_tensors(config=CONFIG):
    rng = np.random.default_rng(0)
    tensors = {}
    for name, (dtype, shape) in expected_tensors(config).items():
        if dtype == "I8":
            tensors[name] = rng.integers(-127, 128, shape, dtype=np.int8)
        elif dtype == "U8":
            tensors[name] = rng.integers(0, 256, shape, dtype=np.uint8)
        elif dtype == "I32":
            tensors[name] = IDS.astype(np.int32)
        else:
            tensors[name] = rng.normal(size=shape).astype({"F16": "f2", "F32": "f4"}[dtype])
    return tensors


def write(folder, tensors=None, config=CONFIG):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_json()))
    save_file(tensors or make_tensors(), folder / "model.safetensors")
    return folder


def backbone(**changes):
    spec = {"architecture": "llama", "d_model": 64, "vocab_size": 320, "n_heads": 4,
            "n_kv_heads": 2, "head_dim": 16, "n_layers": 6}  # fmt: skip
    spec |= {key: changes.pop(key) for key in list(changes) if key in spec}
    names = {"name": "tiny", "fingerprint": "f" * 64, "tokenizer_fingerprint": "t" * 64}
    return SimpleNamespace(**names | changes, spec=SimpleNamespace(**spec), native=object())


def test_a_package_gives_back_the_bytes_that_were_written(tmp_path):
    package = HeadPackage.load(write(tmp_path / "h"))
    written = make_tensors()
    assert package.config == CONFIG
    assert package.tensors.keys() == written.keys()
    for name, values in written.items():
        assert package.tensors[name].dtype == values.dtype
        assert (package.tensors[name] == values).all()


NAME = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NAME), NAME),
        (lambda t: t.pop("draft_token_ids"), "draft_token_ids"),
        (lambda t: t.update(k_proj=np.zeros(3)), "k_proj"),
        (lambda t: t.update({NAME: t[NAME][:-1].copy()}), NAME),
        (lambda t: t.update({NAME: t[NAME].T.copy().reshape(-1)}), NAME),
        (lambda t: t.update({NAME: t[NAME].astype(np.float16)}), NAME),
        (lambda t: t.update({"hidden_norm.weight": np.full(64, np.nan, "f4")}), "hidden_norm"),
        (lambda t: t[NAME + "_scale"].fill(np.inf), "_scale"),
        (lambda t: t.update(draft_token_ids=(IDS + 1).astype(np.int32)), "draft_token_ids"),
        (lambda t: t.update(draft_token_ids=IDS[::-1].astype(np.int32).copy()), "draft_token_ids"),
        (lambda t: t.update(draft_token_ids=np.roll(IDS, 16).astype(np.int32)), "draft_token_ids"),
        (lambda t: t.update(draft_token_ids=(IDS - 32).astype(np.int32)), "draft_token_ids"),
        (lambda t: t.update(draft_token_ids=(IDS + 16).astype(np.int32)), "draft_token_ids"),
        (lambda t: t.update(draft_token_ids=np.repeat(IDS[:24], 2).astype(np.int32)),
         "draft_token_ids"),
    ],
)  # fmt: skip
def test_a_wrong_tensor_is_named(tmp_path, change, message):
    tensors = make_tensors()
    change(tensors)
    with pytest.raises(HeadError, match=message):
        HeadPackage.load(write(tmp_path / "h", tensors))


def test_a_pickle_named_safetensors_is_refused_and_never_run(tmp_path):
    """G8: nor is anything else that is no safetensors file."""

    class Bomb:
        def __reduce__(self):
            return (pytest.fail, ("the pickle ran",))

    folder = write(tmp_path / "h")
    for content in (pickle.dumps(Bomb()), b"PK\x03\x04" + bytes(60), b"<html>no</html>", b""):
        (folder / "model.safetensors").write_bytes(content)
        with pytest.raises(HeadError, match="not a safetensors file"):
            HeadPackage.load(folder)


def test_no_cut_and_no_flipped_header_byte_gets_past_the_checks(tmp_path):
    folder = write(tmp_path / "h")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for size in (4, 8, 9, header, 8 + header, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(HeadError):
            HeadPackage.load(folder)
    rng = np.random.default_rng(1)
    for place in rng.integers(0, 8 + header, 150):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(0, 7))
        path.write_bytes(damaged)
        try:  # a flip of blank padding or of metadata changes nothing; all else is refused
            HeadPackage.load(folder)
        except HeadError:
            continue
        assert load_file(path).keys() == make_tensors().keys()
    path.write_bytes(whole + bytes(1 << 21))
    with pytest.raises(HeadError, match="more than its config allows"):
        HeadPackage.load(folder)


def test_a_folder_without_its_files_is_no_package(tmp_path):
    with pytest.raises(HeadError, match=r"config\.json"):
        HeadPackage.load(tmp_path)
    folder = write(tmp_path / "h")
    (folder / "model.safetensors").unlink()
    with pytest.raises(HeadError, match=r"model\.safetensors"):
        HeadPackage.load(folder)
    for text in ("{", "[" * 100_000, "\xff"):
        (folder / "config.json").write_text(text, encoding="latin-1")
        with pytest.raises(HeadError, match=r"config\.json"):
            HeadPackage.load(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [("fingerprint", "0" * 64), ("tokenizer_fingerprint", "0" * 64), ("vocab_size", 321),
     ("architecture", "gemma"), ("d_model", 32), ("n_heads", 8), ("n_kv_heads", 1),
     ("head_dim", 32), ("n_layers", 5)],
)  # fmt: skip
def test_a_wrong_pair_is_refused_with_the_field_named(tmp_path, field, value):
    """G1: each of the fields that say what a head was trained for."""
    package = HeadPackage.load(write(tmp_path / "h"))
    package.check_target(backbone())
    names = {"d_model": "hidden_size", "n_heads": "num_attention_heads",
             "n_kv_heads": "num_key_value_heads", "n_layers": "kv_layers"}  # fmt: skip
    with pytest.raises(HeadError, match=names.get(field, field)):
        package.check_target(backbone(**{field: value}))


def test_another_name_of_the_same_backbone_is_fine(tmp_path):
    HeadPackage.load(write(tmp_path / "h")).check_target(backbone(name="my-copy.gguf"))


class NativeHead:
    """Takes the tensors as the core does."""

    def __init__(self, native, spec, kv_layers, draft_token_ids):
        self.made_of = (native, dict(spec), list(kv_layers), draft_token_ids)
        self.given = {}
        self.finished = False

    def set_tensor(self, name, ggml_type, rows, columns, data):
        assert data.dtype == np.uint8 and data.ndim == 1 and data.flags.c_contiguous
        block_bytes = {0: 4 * 32, 2: 2 + 16, 8: 2 + 32}[ggml_type]
        assert len(data) == rows * columns // 32 * block_bytes
        self.given[name] = (ggml_type, rows, columns)

    def finish(self):
        self.finished = True


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_tensor_reaches_the_core_under_its_name(tmp_path, monkeypatch, kind):
    import drafthead._native

    monkeypatch.setattr(drafthead._native, "MtpHead", NativeHead)
    target, config = backbone(), dataclasses.replace(CONFIG, quantization=kind.name)
    head = HeadPackage.load(write(tmp_path / "h", make_tensors(config), config)).build(target)
    native, spec, layers, ids = head.made_of
    assert native is target.native and layers == [5, 2] and (ids == IDS).all()
    assert spec == {
        "n_layers": 2, "d_ff": 96, "n_heads": 4, "head_dim": 16, "attention_bias": 0, "qk_norm": 0,
        "markov_rank": 0, "taps": 0, "positions": 1, "prompt_tokens": 0,
    }  # fmt: skip
    assert head.finished
    matrices = {name: (kind.ggml_type, *shape) for name, shape in CONFIG.matrices().items()}
    assert head.given == matrices | dict.fromkeys(CONFIG.vectors(), (0, 1, 64))


def test_a_head_is_found_by_fingerprint_and_not_by_name(tmp_path):
    other = dataclasses.replace(
        CONFIG, target=dataclasses.replace(CONFIG.target, fingerprint="0" * 64)
    )
    write(tmp_path / "tiny", config=other)
    assert find_head(backbone(), tmp_path) is None
    write(tmp_path / "zzz")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert find_head(backbone(), tmp_path) == tmp_path / "zzz"
    assert [path.name for path in embedded_heads(tmp_path)] == ["broken", "tiny", "zzz"]
    assert find_head(backbone(), tmp_path / "none") is None


def test_finding_a_head_reads_no_weights(tmp_path, monkeypatch):
    folder = write(tmp_path / "h")
    (folder / package_module.WEIGHTS).unlink()
    assert find_head(backbone(), tmp_path) == folder
