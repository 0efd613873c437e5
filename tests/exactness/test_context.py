"""Up to the last cell of the context, whoever drafts, and not one further."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

from drafthead.drafters.standalone import StandaloneDrafter
from drafthead.errors import CapacityError
from tests import every_drafter
from tests.every_drafter import DOUBLES, REAL, make
from tests.exactness.test_matrix import everything_said

CONTEXT = 64
TEXT = [(7 * n) % 200 for n in range(CONTEXT + 1)]
ASKED = {"max_tokens": 9999, "logprobs": 1}
SIZES = (1, 40, 57, 62, 63, 64)


@lru_cache
def plain(size: int):
    return every_drafter.session(context=CONTEXT).generate(TEXT[:size], **ASKED)


def check(talk, size: int):
    """The answer that fills the context, token by token that of plain decoding."""
    found = talk.generate(TEXT[:size], **ASKED)
    assert everything_said(found) == everything_said(plain(size))
    assert (found.finish_reason, len(found.tokens)) == ("length", CONTEXT + 1 - size)
    assert talk.held.cache.length == CONTEXT
    assert found.stats.committed == found.stats.passes + found.stats.accepted
    return found.stats


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("name", [*REAL, *DOUBLES])
def test_the_last_cell_is_reached_and_no_draft_reaches_past_it(name, k):
    """E1, E4, E5: cold, and again from what is left, with 8 rows a pass."""
    talk = every_drafter.session(context=CONTEXT)
    for size in SIZES:
        talk.drafting = make(name, answer=plain(size).tokens, prompt=size, k=k)
        talk.forget()
        cold = check(talk, size)
        again = check(talk, size)
        assert (cold.cached_tokens, again.cached_tokens) == (0, size - 1)
        if size == 1 and name in ("mtp", "standalone", "ORACLE", "ngram"):
            assert cold.accepted > 0


@pytest.mark.parametrize("own", [8, 50, CONTEXT, 1000])
def test_one_context_rules_backbone_and_draft_model(own):
    """E2, E4: a draft model with a shorter one stops drafting there and says so; the rest is plain.

    One with a longer one takes no more cells than the backbone has.
    """
    model = every_drafter.draft_model()
    short = replace(model.spec, context_length=own)
    model = type(model)(model.gguf, short, model.native)
    drafter = StandaloneDrafter(model, 8, 0.0)
    talk = every_drafter.session(drafter, context=CONTEXT)
    for size in SIZES[:-1]:  # behind the last nothing can be drafted
        check(talk, size)
        assert (drafter.reason is not None) == (own < CONTEXT)
        assert drafter.cache_bytes == model.new_cache(min(own, CONTEXT)).nbytes


@pytest.mark.parametrize("name", ["none", *REAL])
def test_a_prompt_past_the_context_is_refused_and_changes_nothing(name):
    """Both numbers are told, nothing is computed, and what the session holds stays."""
    talk = every_drafter.session(make(name), context=CONTEXT)
    talk.generate(TEXT[:40], max_tokens=5)
    before = talk.tokens
    with pytest.raises(CapacityError, match=r"^The prompt has 65 tokens but .* 64: shorten it\.$"):
        talk.generate(TEXT, max_tokens=5)
    assert talk.tokens == before
    assert check(talk, 40).cached_tokens == 39
