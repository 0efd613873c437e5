"""The native backbone against the papers' formulas, and its promises about rows and caches."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone, Segment
from drafthead.errors import NumericsError, RequestError
from tests.bits import same_bits
from tests.reference import reference_logits
from tests.tiny import FLOAT, MIXED, TinySpec, random_weights, write_tiny_llama

TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 272, 60)]


def logits_of(backbone: Backbone, tokens: list[int]) -> np.ndarray:
    cache = backbone.new_cache(len(tokens))
    return backbone.forward([Segment(cache, tokens)], want="logits").logits


@pytest.mark.parametrize("tied", [True, False])
def test_float_weights_give_the_formulas_logits(tmp_path, tied):
    """Only float32 rounds here, and now and then a half of the cache falls the other way."""
    spec = TinySpec(tied=tied, eps=0.01)
    weights = write_tiny_llama(tmp_path / "float.gguf", spec, FLOAT)
    backbone = Backbone.open(tmp_path / "float.gguf", threads=1)
    found = logits_of(backbone, TOKENS)
    expected = reference_logits(weights, backbone.spec, TOKENS)
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()
    assert (found.argmax(1) == expected.argmax(1)).mean() > 0.95


def test_without_attention_only_float32_rounds(tmp_path):
    """No half of the cache is in play, so norms, SwiGLU and its exp are held to a few ulp."""
    weights = random_weights(TinySpec())
    for i in range(2):
        weights[f"blk.{i}.attn_output"][:] = 0
        weights[f"blk.{i}.ffn_gate"] *= 3
    weights = write_tiny_llama(tmp_path / "float.gguf", types=FLOAT, weights=weights)
    tokens = list(range(272))
    backbone = Backbone.open(tmp_path / "float.gguf", threads=1)
    found = logits_of(backbone, tokens)
    expected = reference_logits(weights, backbone.spec, tokens)
    assert np.abs(found - expected).max() < 1.5e-6 * np.abs(expected).max()


def test_quantised_weights_stay_within_the_activations_rounding(tmp_path):
    weights = write_tiny_llama(tmp_path / "mixed.gguf")
    backbone = Backbone.open(tmp_path / "mixed.gguf", threads=1)
    found = logits_of(backbone, TOKENS)
    expected = reference_logits(weights, backbone.spec, TOKENS)
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.999


def test_greedy_tokens_are_the_logits_argmax_and_hidden_is_normed(tiny_path):
    backbone = Backbone.open(tiny_path, threads=1)
    result = backbone.forward([Segment(backbone.new_cache(60), TOKENS)], want="logits")
    assert np.array_equal(result.tokens, result.logits.argmax(1))
    rows = backbone.native.output_rows(np.arange(272, dtype=np.int32))
    approximate = result.hidden @ rows.T
    assert np.corrcoef(approximate.ravel(), result.logits.ravel())[0, 1] > 0.999


def test_ties_go_to_the_lowest_id(tmp_path):
    """Every output row stands twice in the vocabulary, 136 ids apart: the first must win."""
    weights = random_weights(TinySpec())
    weights["token_embd"][136:] = weights["token_embd"][:136]
    write_tiny_llama(tmp_path / "twice.gguf", types=FLOAT, weights=weights)
    backbone = Backbone.open(tmp_path / "twice.gguf", threads=2)
    result = backbone.forward([Segment(backbone.new_cache(60), TOKENS)], want="logits")
    assert same_bits(result.logits[:, :136], result.logits[:, 136:])
    assert (result.tokens < 136).all()


def test_rows_last_gives_the_last_row_of_each_segment(tiny_path):
    backbone = Backbone.open(tiny_path, threads=2)
    both = [
        Segment(backbone.new_cache(60), TOKENS[:7]),
        Segment(backbone.new_cache(60), TOKENS[7:]),
    ]
    last = backbone.forward(both, rows="last", want="logits")
    assert same_bits(last.logits[0], logits_of(backbone, TOKENS[:7])[-1])
    assert same_bits(last.logits[1], logits_of(backbone, TOKENS[7:])[-1])


def test_a_pass_refuses_bad_rows_before_it_writes_a_cell(tiny_path):
    backbone = Backbone.open(tiny_path, threads=1)
    cache = backbone.new_cache(10)
    backbone.forward([Segment(cache, TOKENS[:4])])
    cells = cache.key_view(0).copy()
    for tokens, reason in [
        ([272], "outside the vocabulary"),
        ([-1], "outside the vocabulary"),
        (TOKENS[:7], "do not fit"),
        ([], "empty"),
    ]:
        with pytest.raises(ValueError, match=reason):
            backbone.forward([Segment(cache, tokens)])
    with pytest.raises(ValueError, match="twice"):
        backbone.forward([Segment(cache, [1]), Segment(cache, [2])])
    assert cache.length == 4
    assert np.array_equal(cells.view(np.uint16), cache.key_view(0).view(np.uint16))


@pytest.mark.parametrize(
    "tokens",
    [
        np.array([1, 2**32], np.int64),  # would wrap to 0
        np.array([1, 2**32 - 1], np.uint32),
        np.array([2**63], np.uint64),
        [1, 2**70],
        [1.5],
        np.array([True, False]),
    ],
)
def test_ids_that_are_no_int32_are_refused_not_wrapped(tiny_path, tokens):
    backbone = Backbone.open(tiny_path, threads=1)
    cache = backbone.new_cache(10)
    with pytest.raises(ValueError, match="integers inside the vocabulary"):
        backbone.forward([Segment(cache, tokens)])
    assert cache.length == 0
    for kind in (np.int64, np.uint8):
        backbone.forward([Segment(cache, np.array([1, 2], kind))])
    assert cache.length == 4


def test_a_numerics_error_leaves_every_cache_as_it_was(tmp_path):
    """One token's embedding is NaN; the segments of the pass, its own and another's, go back."""
    weights = random_weights(TinySpec())
    weights["token_embd"][7] = np.nan
    weights["output"] = random_weights(TinySpec(tied=False))["output"]
    write_tiny_llama(tmp_path / "bad.gguf", TinySpec(tied=False), FLOAT, weights)
    backbone = Backbone.open(tmp_path / "bad.gguf", threads=1)
    good = [t for t in TOKENS if t != 7]
    caches = [backbone.new_cache(60), backbone.new_cache(60)]
    backbone.forward([Segment(caches[0], good[:5]), Segment(caches[1], good[:3])])
    with pytest.raises(NumericsError, match="no finite logit"):
        backbone.forward([Segment(caches[0], good[5:9]), Segment(caches[1], [7])])
    assert [cache.length for cache in caches] == [5, 3]
    again = backbone.forward([Segment(caches[0], good[5:40])], want="logits").logits
    assert same_bits(again, logits_of(backbone, good[:40])[5:])


def test_rope_tables_grow_with_the_longest_cache_and_keep_their_bits(tiny_path):
    """A cache made while a pass may run, and one longer than all before it."""
    backbone = Backbone.open(tiny_path, threads=2)
    short = backbone.new_cache(20)
    before = backbone.forward([Segment(short, TOKENS[:10])], want="logits").logits
    long = backbone.new_cache(640)
    assert same_bits(before, logits_of(backbone, TOKENS[:10]))
    found = backbone.forward([Segment(long, TOKENS * 10)], want="logits").logits
    whole = Backbone.open(tiny_path, threads=1)
    assert same_bits(found, logits_of(whole, TOKENS * 10))


def test_loading_gives_the_files_pages_back(tmp_path):
    """The packed weights take the file's place: resident bytes grow by little more than them."""
    write_tiny_llama(tmp_path / "big.gguf", TinySpec(vocab=80_000), FLOAT)
    code = f"""
from pathlib import Path
from drafthead.backbone.handle import Backbone
def resident_bytes(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])
before = resident_bytes("VmRSS")
backbone = Backbone.open({str(tmp_path / "big.gguf")!r}, threads=1)
print((resident_bytes("VmRSS") - before) / backbone.weight_bytes, backbone.load_ms > 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    share, timed = done.stdout.split()
    assert timed == "True"
    assert float(share) < 1.3  # 2 where the mapped file stays


def test_rollback_is_absolute_and_bounded(tiny_path):
    backbone = Backbone.open(tiny_path, threads=1)
    cache = backbone.new_cache(20)
    backbone.forward([Segment(cache, TOKENS[:9])])
    cache.rollback(5)
    assert cache.length == 5
    for length in (6, -1):
        with pytest.raises(ValueError, match="rollback"):
            cache.rollback(length)


def test_stale_cells_of_any_content_are_never_read(tiny_path):
    """Rolled-back cells are filled with NaN: the next pass must not notice."""
    backbone = Backbone.open(tiny_path, threads=1)
    cache = backbone.new_cache(60)
    backbone.forward([Segment(cache, TOKENS)])
    cache.rollback(21)
    for layer in range(2):
        keys, values = cache.key_view(layer), cache.value_view(layer)
        for position in range(21, 60):
            keys[:, position // 16, :, position % 16] = np.nan
            values[:, position, :] = np.nan
    again = backbone.forward([Segment(cache, TOKENS[21:])], want="logits").logits
    assert same_bits(again, logits_of(backbone, TOKENS)[21:])


def test_rounding_of_another_library_changes_nothing(tiny_path):
    """The floating-point environment is the pass's own, on every thread, and is put back."""
    libm = ctypes.CDLL("libm.so.6")
    before = logits_of(Backbone.open(tiny_path, threads=2), TOKENS)
    environment = (ctypes.c_uint8 * 64)()
    assert libm.fegetenv(environment) == 0
    try:
        assert libm.fesetround(0x400) == 0  # downward
        downward = logits_of(Backbone.open(tiny_path, threads=2), TOKENS)
        assert libm.fegetround() == 0x400
    finally:
        libm.fesetenv(environment)
    assert same_bits(before, downward)


@pytest.mark.parametrize(
    ("name", "types", "factor"),
    [
        ("output_norm", FLOAT, np.nan),
        ("blk.0.ffn_gate", MIXED, np.nan),  # one NaN in a block that becomes int8
        ("blk.0.attn_v", MIXED, np.nan),
        ("blk.0.attn_k", FLOAT, 1e6),  # keys beyond half precision
        ("blk.0.attn_v", FLOAT, 1e6),
        ("blk.0.ffn_up", FLOAT, 1e25),  # a sum of squares beyond float
    ],
)
def test_non_finite_values_are_an_error_not_a_token(tmp_path, every_isa, name, types, factor):
    """Wherever they arise, a clamp, a maximum or a cast must not turn them into numbers."""
    weights = random_weights(TinySpec())
    weights[name][3] *= np.float32(factor)
    write_tiny_llama(tmp_path / "bad.gguf", types=types, weights=weights)
    backbone = Backbone.open(tmp_path / "bad.gguf", threads=1)
    for isa in every_isa:
        _native.set_isa(isa)
        with pytest.raises(NumericsError, match="no finite logit"):
            backbone.forward([Segment(backbone.new_cache(4), [1, 2])])


def test_a_model_without_all_its_tensors_computes_nothing(tiny_path):
    spec = Backbone.open(tiny_path, threads=1).spec.native()
    native = _native.Backbone(spec, 1)
    one = np.zeros(1, np.int32)
    for call in (
        lambda: native.forward([_native.KvCache(native, 4)], [1], one, one, 1),
        lambda: native.embed(one),
        lambda: native.output_rows(one),
    ):
        with pytest.raises(ValueError, match="not complete"):
            call()


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 2**31 - 1},
        {"context_length": 2**31 - 1},
        {"n_heads": 2**30, "n_kv_heads": 2**30},
        {"n_heads": 3},
        {"d_model": 0},
    ],
)
def test_impossible_sizes_are_refused(tiny_path, change):
    spec = Backbone.open(tiny_path, threads=1).spec.native()
    with pytest.raises(ValueError, match="sizes are not supported"):
        _native.Backbone({**spec, **change}, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"rms_eps": float("nan")},
        {"ropes": [{"base": float("inf"), "scale": 1.0}]},
        {"ropes": [{"base": 0.5, "scale": 1.0}]},
        {"ropes": [{"base": 1e4, "scale": 0.0}]},
        {"ropes": []},
        {"ropes": [], "layers": [(0, -1), (0, -1)], "rope_factors": 1},
        {"layers": [(0, 0)]},
        {"layers": [(0, 0), (0, 1)]},
        {"layers": [(-1, 0), (0, 0)]},
        {"embedding_scale": float("nan")},
        {"attention_scale": 0.0},
        {"attention_softcap": -1.0},
        {"final_softcap": float("inf")},
    ],
)
def test_impossible_choices_are_refused(tiny_path, change):
    spec = Backbone.open(tiny_path, threads=1).spec.native()
    with pytest.raises(ValueError, match="scales, windows or ropes are not supported"):
        _native.Backbone({**spec, **change}, 1)


def test_a_cache_belongs_to_its_backbone(tiny_path):
    """Another one has other keys in it, and may have fewer positions."""
    one, other = (Backbone.open(tiny_path, threads=1) for _ in range(2))
    with pytest.raises(ValueError, match="another backbone"):
        one.forward([Segment(other.new_cache(4), [1])])
    with pytest.raises(ValueError, match="no cache"):
        one.forward([Segment(None, [1])])


def test_the_native_pass_checks_counts_types_and_outputs(tiny_path):
    backbone = Backbone.open(tiny_path, threads=1)
    caches = [backbone.new_cache(4), backbone.new_cache(4)]
    two, none = np.array([0, 1], np.int32), np.zeros(0, np.int32)
    forward = backbone.native.forward
    assert forward([], [], none, none, 2)[0].shape == (0, 64)
    for counts, tokens, outputs in [
        ([-(2**31), -(2**31)], none, none),
        ([2, -1], two, none),
        ([1, 1], two, two + 1),
        ([1, 1], two, two - 1),
    ]:
        with pytest.raises(ValueError, match=r"segment|output row"):
            forward(caches, counts, tokens, outputs, 0)
    with pytest.raises(TypeError):  # 2**32 would become token 0
        forward(caches, [1, 1], np.array([1, 2**32]), none, 0)
    assert [cache.length for cache in caches] == [0, 0]
    assert forward(caches, [1, 1], two, none, 2)[0].shape == (0, 64)
    assert [cache.length for cache in caches] == [1, 1]


def test_views_keep_the_cache_and_the_cache_its_backbone(tiny_path):
    backbone = Backbone.open(tiny_path, threads=2)
    cache = backbone.new_cache(60)
    backbone.forward([Segment(cache, TOKENS)])
    view = cache.key_view(1)
    before = view.tobytes()
    del backbone
    assert cache.length == 60
    del cache
    assert view.tobytes() == before


def test_threads_the_system_cannot_start_are_an_error_not_an_abort(tiny_path):
    code = f"""
import resource
from pathlib import Path
from drafthead import _native
from drafthead.backbone.handle import Backbone
spec = Backbone.open({str(tiny_path)!r}, threads=1).spec.native()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), used + (1 << 26)))
try:
    _native.Backbone(spec, 1024)
except RuntimeError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "refused"), done.stderr


@pytest.mark.parametrize("threads", [0, -1, 5000])
def test_unusable_thread_counts_are_refused(tiny_path, threads):
    with pytest.raises(RequestError, match="threads"):
        Backbone.open(tiny_path, threads=threads)


def test_an_unknown_instruction_set_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="scalar"):
        _native.set_isa("mmx")


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"d_model": "x"}, "wrong type"), ({"rms_eps": None}, "wrong type"), ({}, "incomplete")],
)
def test_a_description_with_a_wrong_or_missing_value_is_a_value_error(tiny_path, change, reason):
    spec = Backbone.open(tiny_path, threads=1).spec.native() | change
    if not change:
        del spec["n_layers"]
    with pytest.raises(ValueError, match=reason):
        _native.Backbone(spec, 1)


def test_a_forked_child_is_told_to_load_for_itself(tiny_path):
    """Threads do not follow a fork: a pass would wait for them for ever."""
    backbone = Backbone.open(tiny_path, threads=2)
    cache = backbone.new_cache(16)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            backbone.forward([Segment(cache, [1])])
        except RuntimeError as error:
            code = 0 if "load it in the child" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
