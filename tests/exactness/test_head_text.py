"""A head may draft tokens of the text besides its vocabulary, by groups given to each draft."""

from __future__ import annotations

import numpy as np
import pytest

from drafthead import _native
from drafthead.backbone.handle import Backbone
from tests.reference_head import SPEC, TOKENS, build, head_weights, prefilled
from tests.tiny import write_tiny_llama


@pytest.fixture
def backbone(tiny_path) -> Backbone:
    return Backbone.open(tiny_path, threads=2)


KNOWN = (0, 2, 3, 7)  # groups in the vocabulary of heads that may draft those of the text
OTHERS = tuple(sorted({*range(17)} - {*KNOWN}))


def text_head(
    backbone: Backbone, groups=KNOWN, prompt_tokens: int = 1, markov_rank: int = 0
) -> _native.MtpHead:
    """One head in vocabularies of several sizes; no Markov bias to or from all but KNOWN."""
    weights = head_weights(markov_rank=markov_rank, words=272)
    ids = np.concatenate([np.arange(16 * g, 16 * g + 16) for g in groups])
    silent = ~np.isin(np.arange(272) // 16, KNOWN)
    for name in [name for name in weights if name.startswith("markov.")]:
        weights[name][silent] = 0
        weights[name] = weights[name][ids]
    shape = {"prompt_tokens": prompt_tokens, "markov_rank": markov_rank}
    return build(backbone, weights, ids, **shape)


def bits(draft) -> tuple[list[int], list[int]]:
    return draft[0].tolist(), draft[1].view(np.uint32).tolist()


@pytest.mark.parametrize("markov_rank", [0, 32])
@pytest.mark.parametrize("more", [(4, 12), (1,), (16,), OTHERS], ids=str)
def test_a_group_of_the_text_is_drafted_as_if_the_vocabulary_held_it(backbone, more, markov_rank):
    """Tokens are the same; confidences add up to 272 terms in another order, each exp of a number
    of at most 20 in size that is rounded once: 2^-24 (2 x 272 + 2 x 20). In the same order, behind
    the vocabulary, the bits are the same."""
    head = text_head(backbone, markov_rank=markov_rank)
    whole = text_head(backbone, sorted({*KNOWN, *more}), 0, markov_rank)
    outside = 0
    for length in range(5, 85, 4):
        cache, hidden, token = prefilled(backbone, TOKENS[:length])
        found = head.draft(cache, token, hidden, 4, [0.0], (), list(more))
        expected = whole.draft(cache, token, hidden, 4, [0.0])
        assert found[0].tolist() == expected[0].tolist()
        np.testing.assert_allclose(found[1], expected[1], rtol=2**-24 * 584)
        if more == (16,):
            assert bits(found) == bits(expected)
        outside += int(np.isin(found[0] // 16, more).sum())
    assert outside > 0


@pytest.mark.parametrize("markov_rank", [0, 32])
def test_a_head_drafts_outside_its_vocabulary_by_the_groups_of_this_draft_alone(
    backbone, markov_rank
):
    head = text_head(backbone, markov_rank=markov_rank)
    plain = text_head(backbone, prompt_tokens=0, markov_rank=markov_rank)
    assert head.prompt_tokens and not plain.prompt_tokens
    outside = 0
    for length in range(5, 85, 8):
        cache, hidden, token = prefilled(backbone, TOKENS[:length])
        with_groups = head.draft(cache, token, hidden, 4, [0.0], (), list(OTHERS))[0]
        outside += int((~np.isin(with_groups // 16, KNOWN)).sum())
        drafts = [x.draft(cache, token, hidden, 4, [0.0]) for x in (head, plain)]
        drafts.append(plain.draft(cache, token, hidden, 4, [0.0], (), list(OTHERS)))
        assert bits(drafts[0]) == bits(drafts[1]) == bits(drafts[2])
        assert np.isin(drafts[0][0] // 16, KNOWN).all()
    assert outside > 10


@pytest.mark.parametrize("more", [KNOWN, (2, 17), (17, 18, 2**31 - 1)], ids=str)
def test_groups_that_are_known_or_not_whole_change_nothing(tmp_path, more):
    """280 ids: the last 8 fill no group, and cannot be drafted."""
    write_tiny_llama(tmp_path / "odd.gguf", SPEC.with_(vocab=280))
    backbone = Backbone.open(tmp_path / "odd.gguf", threads=1)
    head = text_head(backbone)
    cache, hidden, token = prefilled(backbone, TOKENS)
    plain = head.draft(cache, token, hidden, 4, [0.0])
    assert bits(head.draft(cache, token, hidden, 4, [0.0], (), list(more))) == bits(plain)
    added = head.draft(cache, token, hidden, 4, [0.0], (), [*OTHERS])
    assert bits(head.draft(cache, token, hidden, 4, [0.0], (), [*range(18)])) == bits(added)


@pytest.mark.parametrize("more", [[5, 4], [4, 4], [-1, 4]], ids=str)
def test_groups_that_do_not_ascend_are_refused(backbone, more):
    """And the next draft is none the worse for it."""
    head = text_head(backbone)
    cache, hidden, token = prefilled(backbone, TOKENS)
    plain = bits(head.draft(cache, token, hidden, 4, [0.0]))
    with pytest.raises(ValueError, match="ascend"):
        head.draft(cache, token, hidden, 4, [0.0], (), more)
    assert bits(head.draft(cache, token, hidden, 4, [0.0])) == plain


@pytest.mark.parametrize("markov_rank", [0, 32])
def test_drafts_with_groups_have_the_same_bits_on_every_isa_and_thread_count(
    tiny_path, every_isa, markov_rank
):
    texts, seen = (list(OTHERS), [4, 12]), []
    for threads in (1, 2, 4):
        backbone = Backbone.open(tiny_path, threads=threads)
        head = text_head(backbone, markov_rank=markov_rank)
        cache, hidden, token = prefilled(backbone, TOKENS)
        for isa in every_isa:
            _native.set_isa(isa)
            seen.append(
                [bits(head.draft(cache, token, hidden, 6, [0.0], (), more)) for more in texts]
            )
    assert all(drafts == seen[0] for drafts in seen)
    assert seen[0][0] != seen[0][1]
