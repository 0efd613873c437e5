"""The native MTP head: its maths, its bits, and what "zero-copy" promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone, Segment
from drafthead.gguf.model import Layer
from drafthead.heads.calibration import calibrated
from tests.own_head import head_sizes
from tests.reference_head import (
    DRAFT_IDS,
    FF,
    KV_LAYERS,
    SPEC,
    TOKENS,
    D,
    build,
    head_weights,
    prefilled,
    reference_steps,
)
from tests.tiny import random_weights, write_tiny_llama
from tests.windowed import build as choice_model
from tests.windowed import random_weights as random_choices
from tests.windowed import with_window


@pytest.fixture
def backbone(tiny_path) -> Backbone:
    return Backbone.open(tiny_path, threads=2)


def test_drafts_follow_the_formulas(backbone):
    """Only the int8 rounding of activations differs; it may flip a near tie, so 9 of 10 drafts."""
    weights = head_weights()
    head = build(backbone, weights)
    same = first_errors = 0
    for length in range(5, 85, 4):
        cache, hidden, token = prefilled(backbone, TOKENS[:length])
        found, confidences = head.draft(cache, token, hidden, 3, [0.0])
        expected, sure = reference_steps(backbone, weights, cache, token, hidden, 3)
        same += found.tolist() == expected
        if found[0] == expected[0]:
            first_errors = max(first_errors, abs(float(confidences[0]) - sure[0]))
    assert same >= 18, f"{same} of 20 drafts are the reference's"
    assert first_errors < 0.05


VARIANTS = {
    "no attention": {"kv_layers": [-1]},
    "attention in the second layer": {"kv_layers": [-1, 1]},
    "markov bias": {"markov_rank": 64},
    "taps": {"taps": 2},
    "four positions": {"positions": 4},
    "all of it": {"kv_layers": [1, -1], "markov_rank": 32, "taps": 1, "positions": 3},
}
TAP_LAYERS = (1, 0)  # of the tiny model


def build_variant(backbone, variant):
    shape = {name: value for name, value in variant.items() if name != "kv_layers"}
    layers = variant.get("kv_layers", KV_LAYERS)
    return build(backbone, head_weights(**variant), kv_layers=layers, **shape)


def prefilled_for(backbone, tokens, variant):
    cache = backbone.new_cache(SPEC.context)
    taps = TAP_LAYERS[: variant.get("taps", 0)]
    result = backbone.forward([Segment(cache, tokens)], rows="last", taps=taps)
    return cache, result.hidden[-1], int(result.tokens[-1])


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_drafts_of_a_variant_follow_the_formulas(backbone, variant):
    """9 of 10 first tokens; a wrong one spoils those after it.

    Each of about eight products rounds its activations by 0.6 % of their size, so logits of size 2
    err by 0.03 and a typical confidence by less than 0.02.
    """
    weights, head = head_weights(**variant), build_variant(backbone, variant)
    same, first, deaf, errors = 0, 0, 0, []
    layers, positions = variant.get("kv_layers", KV_LAYERS), variant.get("positions", 1)
    for length in range(5, 85, 4):
        cache, hidden, token = prefilled_for(backbone, TOKENS[:length], variant)
        found, confidences = head.draft(cache, token, hidden, 3, [0.0])
        args = (backbone, weights, cache, token, hidden, 3, layers, positions)
        expected, sure = reference_steps(*args)
        same += int((found == expected).sum())
        first += int(found[0] == expected[0])
        errors += [abs(float(confidences[0]) - sure[0])] if found[0] == expected[0] else []
        again, _ = head.draft(cache, (token + 16) % 256, hidden, 3, [0.0])
        deaf += again.tolist() == found.tolist()
    assert first >= 18 and same >= 48, f"{first} of 20, {same} of 60 are the reference's"
    assert np.median(errors) < 0.02
    assert deaf < 10, "the newest token counts"


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_variant_has_the_same_bits_on_every_isa_thread_count_and_draft_length(
    tiny_path, every_isa, variant
):
    seen = []
    for threads in (1, 2, 4):
        backbone = Backbone.open(tiny_path, threads=threads)
        head = build_variant(backbone, variant)
        cache, hidden, token = prefilled_for(backbone, TOKENS, variant)
        for isa in every_isa:
            _native.set_isa(isa)
            for count in (3, 2, 1):
                ids, confidences = head.draft(cache, token, hidden, count, [0.0])
                assert len(ids) == count
                seen.append((ids.tolist(), confidences.view(np.uint32).tolist()))
    assert all(ids == seen[0][0][: len(ids)] for ids, _ in seen)
    assert all(bits == seen[0][1][: len(bits)] for _, bits in seen)


def test_a_pass_of_several_positions_ends_with_them(backbone):
    variant = {"positions": 4, "markov_rank": 32}
    head = build_variant(backbone, variant)
    cache, hidden, token = prefilled(backbone, TOKENS)
    ids, confidences = head.draft(cache, token, hidden, 9, [0.0])
    assert len(ids) == 4
    short, _ = head.draft(cache, token, hidden, 9, [float(confidences[0] * confidences[1]) * 0.999])
    assert short.tolist() == ids[: len(short)].tolist() and 2 <= len(short) <= 3


def test_calibration_changes_confidences_and_nothing_else(backbone):
    """The core's numbers are those that were fitted, within the rounding of floats."""
    head = build(backbone, head_weights())
    cache, hidden, token = prefilled(backbone, TOKENS)
    pairs = [(1.7, 0.8), (0.6, -0.4)]
    ids, raw = head.draft(cache, token, hidden, 4, [0.0])
    again, sure = head.draft(cache, token, hidden, 4, [0.0], pairs)
    assert again.tolist() == ids.tolist()
    expected = [calibrated(raw[step : step + 1].astype(float), pairs, step) for step in range(4)]
    np.testing.assert_allclose(sure, np.concatenate(expected), rtol=1e-5)


def test_a_draft_ends_by_the_floor_of_its_step(backbone):
    head = build(backbone, head_weights())
    cache, hidden, token = prefilled(backbone, TOKENS)
    _, sure = head.draft(cache, token, hidden, 5, [0.0])
    products = np.cumprod(sure)
    above, below = float(products[2]) * 1.001, float(products[4]) * 0.999
    assert len(head.draft(cache, token, hidden, 5, [0.0, 0.0, above])[0]) == 3
    assert len(head.draft(cache, token, hidden, 5, [0.0, 0.0, 0.0, below])[0]) == 5
    with pytest.raises(ValueError, match="floor"):
        head.draft(cache, token, hidden, 5, [])


def test_a_token_outside_the_draft_vocabulary_has_no_markov_bias(backbone):
    """Then the drafts are those of a head whose bias is zero throughout."""
    weights = head_weights(markov_rank=32)
    silent = weights | {"markov.next.weight": 0 * weights["markov.next.weight"]}
    heads = [build(backbone, w, markov_rank=32) for w in (weights, silent)]
    heads.append(build(backbone, head_weights()))
    cache, hidden, _ = prefilled(backbone, TOKENS)
    for token in (16, 31, 64, 255):  # beside groups that are in it
        drafts = [
            [x.tolist() for x in head.draft(cache, token, hidden, 1, [0.0])] for head in heads
        ]
        assert drafts[0] == drafts[1] == drafts[2]
    inside = [head.draft(cache, 33, hidden, 1, [0.0])[1] for head in heads]
    assert inside[0] != inside[1] == inside[2]


@pytest.mark.parametrize(
    ("variant", "reason"),
    [({"markov_rank": 40}, "multiple of 32"), ({"markov_rank": -32}, "multiple of 32"),
     ({"taps": -1}, "taps"), ({"taps": 3}, "taps"), ({"positions": 0}, "positions"),
     ({"positions": 65}, "positions")],
)  # fmt: skip
def test_an_impossible_shape_is_refused(backbone, variant, reason):
    ids = DRAFT_IDS.astype(np.int32)
    with pytest.raises(ValueError, match=reason):
        _native.MtpHead(backbone.native, head_sizes(FF, **variant), KV_LAYERS, ids)
    with pytest.raises(ValueError, match="layer -2"):
        _native.MtpHead(backbone.native, head_sizes(FF), [-2], ids)


CHOICES = replace(
    with_window(20),
    rope_factors=False,
    final_softcap=1.0,
    layers=(Layer(20, 1), Layer(0, 0), Layer(30, -1)),
)


@pytest.mark.parametrize("kv_layers", [[1, 0], [2, 0]])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_a_head_takes_window_rope_scale_and_caps_of_the_layers_it_reads(kv_layers, dtype):
    """B4, B13: inside the first window, at its edge, and after the ring of 276 has wrapped."""
    backbone = choice_model(CHOICES, random_choices(CHOICES))
    weights, same = head_weights(), 0
    head = build(backbone, weights, kv_layers=kv_layers)
    lengths = [5, 12, 19, 20, 21, 29, 30, 31, 64, 270, 288, 289, 300, 410, 600, 601, 602, 603]
    cache = backbone.new_cache(700, dtype)
    for length in lengths:
        more = TOKENS[:90] * 7
        rows = Segment(cache, more[cache.length : length])
        result = backbone.forward([rows], rows="last")
        state, token = result.hidden[-1], int(result.tokens[-1])
        found, confidences = head.draft(cache, token, state, 2, [0.0])
        args = (backbone, weights, cache, token, state, 2)
        expected, sure = reference_steps(*args, kv_layers=kv_layers)
        same += found.tolist() == expected
        assert sure[0] < 0.09  # e^2 / (79 + e^2): logits from -1 to 1, as they are capped
        assert abs(float(confidences[0]) - sure[0]) < 0.01
    assert same >= 16, f"{same} of 18 drafts are the reference's"


@pytest.mark.parametrize("n", [3, 19, 20, 21, 256, 287, 288, 289, 290, 310, 600])
def test_a_head_sees_the_cells_of_its_window_and_no_other(every_isa, n):
    """B4: at most window - 1 of them, its own position having none: a NaN there ends the draft, and
    a NaN anywhere else in the ring goes unnoticed."""
    backbone = choice_model(CHOICES, random_choices(CHOICES))
    head = build(backbone, head_weights(), kv_layers=[0, 0])
    cache = backbone.new_cache(640)
    result = backbone.forward([Segment(cache, (TOKENS * 7)[:n])], rows="last")
    state, token = result.hidden[-1], int(result.tokens[-1])
    ring, values = cache.cells(0), cache.value_view(0)
    seen = np.arange(max(0, n + 1 - 20), n) % ring
    assert len(seen) <= 19
    unseen = np.setdiff1d(np.arange(ring), seen)
    draft = [x.tolist() for x in head.draft(cache, token, state, 3, [0.0])]
    values[:, unseen] = np.nan
    cache.key_view(0)[:, unseen // 16, :, unseen % 16] = np.nan
    for isa in every_isa:
        _native.set_isa(isa)
        assert [x.tolist() for x in head.draft(cache, token, state, 3, [0.0])] == draft
    for cell in (seen[0], seen[-1]):
        kept = values[:, cell].copy()
        values[:, cell] = np.nan
        assert len(head.draft(cache, token, state, 3, [0.0])[0]) == 0
        values[:, cell] = kept


@pytest.mark.parametrize("threads", [1, 2])
def test_confidence_and_choice_span_the_chunks_of_256(tmp_path, threads):
    """512 ids that repeat the output rows of the first 16: each choice is the first of equals, and
    is 32 times less sure than among the 16."""
    spec = SPEC.with_(vocab=512)
    weights = random_weights(spec)
    weights["token_embd"][:] = np.tile(weights["token_embd"][:16], (32, 1))
    write_tiny_llama(tmp_path / "same.gguf", spec, weights=weights)
    backbone = Backbone.open(tmp_path / "same.gguf", threads=threads)
    cache, hidden, token = prefilled(backbone, TOKENS)
    few, sure = build(backbone, head_weights(), np.arange(16)).draft(cache, token, hidden, 6, [0.0])
    all_, less = build(backbone, head_weights(), np.arange(512)).draft(
        cache, token, hidden, 6, [0.0]
    )
    assert all_.tolist() == few.tolist()
    np.testing.assert_allclose(less * 32, sure, rtol=1e-5)


def test_drafts_have_the_same_bits_on_every_isa_and_thread_count(tiny_path, every_isa):
    weights, seen = head_weights(), []
    for threads in (1, 2, 4):
        backbone = Backbone.open(tiny_path, threads=threads)
        head = build(backbone, weights)
        cache, hidden, token = prefilled(backbone, TOKENS)
        for isa in every_isa:
            _native.set_isa(isa)
            ids, confidences = head.draft(cache, token, hidden, 6, [0.0])
            seen.append((ids.tolist(), confidences.view(np.uint32).tolist()))
    assert all(draft == seen[0] for draft in seen)
    assert len(seen[0][0]) == 6


def test_the_head_reads_the_very_buffers_the_backbone_wrote(backbone):
    """The addresses are the cache's own; change a value there and the draft's confidence moves."""
    head = build(backbone, head_weights())
    cache, hidden, token = prefilled(backbone, TOKENS)
    views = [(cache.key_view(i), cache.value_view(i)) for i in KV_LAYERS]
    assert head.attended_addresses(cache) == [(k.ctypes.data, v.ctypes.data) for k, v in views]
    _, before = head.draft(cache, token, hidden, 1, [0.0])
    views[0][1][:, :90, :] *= -1
    _, after = head.draft(cache, token, hidden, 1, [0.0])
    assert before[0] != after[0]


def test_drafting_writes_no_cell_and_sees_no_stale_one(backbone):
    """B5: the head has no cells of its own, and reads none past the cache's length."""
    head = build(backbone, head_weights())
    cache, hidden, token = prefilled(backbone, TOKENS)
    cache.rollback(60)
    draft = [x.tolist() for x in head.draft(cache, token, hidden, 3, [0.0])]
    for layer in range(SPEC.layers):
        keys, values = cache.key_view(layer), cache.value_view(layer)
        for position in range(60, SPEC.context):
            keys[:, position // 16, :, position % 16] = np.nan
            values[:, position, :] = np.nan
    before = [cache.key_view(i).tobytes() + cache.value_view(i).tobytes() for i in range(2)]
    assert [x.tolist() for x in head.draft(cache, token, hidden, 3, [0.0])] == draft
    assert [cache.key_view(i).tobytes() + cache.value_view(i).tobytes() for i in range(2)] == before
    assert cache.length == 60


def test_memory_does_not_grow_with_the_context(backbone):
    head = build(backbone, head_weights())
    sizes = []
    for repeat in (1, 3, 7):
        cache, hidden, token = prefilled(backbone, TOKENS * repeat)
        head.draft(cache, token, hidden, 4, [0.0])
        sizes.append(head.nbytes)
    assert sizes[0] == sizes[1] == sizes[2]


def test_the_head_holds_no_copy_of_embedding_or_output_rows(tmp_path):
    """Its bytes are the same for a backbone with four times the vocabulary."""
    sizes = []
    for vocab in (272, 1088):
        path = tmp_path / f"{vocab}.gguf"
        write_tiny_llama(path, SPEC.with_(vocab=vocab))
        sizes.append(build(Backbone.open(path, threads=1), head_weights()).nbytes)
    assert sizes[0] == sizes[1]


def test_a_draft_stops_at_low_confidence_and_before_non_finite_scores(backbone):
    cache, hidden, token = prefilled(backbone, TOKENS)
    head = build(backbone, head_weights())
    ids, confidences = head.draft(cache, token, hidden, 6, [0.0])
    products = np.cumprod(confidences)
    for stop in range(5):
        threshold = float(products[stop] + products[stop + 1]) / 2
        short, _ = head.draft(cache, token, hidden, 6, [threshold])
        assert short.tolist() == ids[: stop + 2].tolist()
    weights = head_weights()
    weights["model.norm.weight"][:] = np.nan
    assert len(build(backbone, weights).draft(cache, token, hidden, 6, [0.0])[0]) == 0
    assert len(head.draft(cache, token, hidden, 0, [0.0])[0]) == 0
    assert len(head.draft(cache, token, hidden, 6, [float(confidences[0])])[0]) > 1, "sure enough"


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_a_state_that_is_not_finite_drafts_nothing(backbone, every_isa, value):
    """A10: nothing of it reaches the backbone."""
    cache, hidden, token = prefilled(backbone, TOKENS)
    head = build(backbone, head_weights())
    hidden[3] = value
    for isa in every_isa:
        _native.set_isa(isa)
        assert len(head.draft(cache, token, hidden, 3, [0.0])[0]) == 0


def test_a_draft_ends_with_the_context_and_the_cache(backbone):
    """E1: neither the last cell nor the last position is passed."""
    head = build(backbone, head_weights())
    cache, hidden, token = prefilled(backbone, TOKENS)
    assert len(head.draft(cache, token, hidden, 2**31 - 1, [0.0])[0]) <= cache.capacity
    assert len(head.draft(cache, token, hidden, -1, [0.0])[0]) == 0
    backbone.forward([Segment(cache, [1] * (SPEC.context - len(TOKENS) - 1))])
    assert len(head.draft(cache, token, hidden, 2, [0.0])[0]) == 2  # the last cell is still free
    backbone.forward([Segment(cache, [1])])
    assert len(head.draft(cache, token, hidden, 2, [0.0])[0]) == 0


def test_a_head_needs_its_tensors_and_its_backbones_cache(tiny_path, backbone):
    cache, hidden, token = prefilled(backbone, TOKENS)
    ids = DRAFT_IDS.astype(np.int32)
    with pytest.raises(ValueError, match="not complete"):
        _native.MtpHead(backbone.native, head_sizes(FF), KV_LAYERS, ids).draft(
            cache, token, hidden, 1, [0.0]
        )
    head = build(backbone, head_weights())
    stranger = Backbone.open(tiny_path, threads=1).new_cache(4)
    with pytest.raises(ValueError, match="another backbone"):
        head.draft(stranger, token, hidden, 1, [0.0])
    with pytest.raises(ValueError, match="another backbone"):
        head.attended_addresses(stranger)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (np.arange(1, 17), "aligned"),
        (np.arange(16)[::-1], "aligned"),
        (np.concatenate([np.arange(16, 32), np.arange(16)]), "ascending"),
        (np.concatenate([np.arange(8), np.arange(9, 17)]), "breaks its group"),
        (np.arange(272, 288), "aligned"),
        (np.arange(8), "whole groups"),
        (np.zeros(0), "whole groups"),
    ],
)
def test_a_draft_vocabulary_must_be_whole_tiles(backbone, ids, reason):
    with pytest.raises(ValueError, match=reason):
        _native.MtpHead(
            backbone.native,
            head_sizes(FF),
            KV_LAYERS,
            ids.astype(np.int32),
        )


def test_missing_and_misshapen_tensors_are_named(backbone):
    head = _native.MtpHead(
        backbone.native,
        head_sizes(FF),
        KV_LAYERS,
        DRAFT_IDS.astype(np.int32),
    )
    with pytest.raises(ValueError, match="missing"):
        head.finish()
    norm = np.ones(D, np.float32).view(np.uint8)
    with pytest.raises(ValueError, match="no place"):
        head.set_tensor("lm_head.weight", 0, 1, D, norm)
    with pytest.raises(ValueError, match="expected 1 x 64"):
        head.set_tensor("model.norm.weight", 0, 1, 32, norm[:128])
    head.set_tensor("model.norm.weight", 0, 1, D, norm)
    with pytest.raises(ValueError, match="twice"):
        head.set_tensor("model.norm.weight", 0, 1, D, norm)
    with pytest.raises(ValueError, match="layer 2"):
        _native.MtpHead(
            backbone.native,
            head_sizes(FF),
            [2],
            DRAFT_IDS.astype(np.int32),
        )
