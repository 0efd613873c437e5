"""Laws of the standalone drafter: its cache after rejections, its limits, its vocabulary."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from drafthead.decoding.loop import Request, decode
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.standalone import StandaloneDrafter, check_vocabulary
from drafthead.errors import NumericsError, RequestError
from tests.fakes import FakeCache, Letters, ScriptedBackbone, hashed_next

V, K = 64, 3
HIDDEN = np.zeros(3, np.float32)
PROMPT = [3, 1, 4, 1, 5]


def model(seed=1, context=1 << 20, vocab_size=V):
    made = ScriptedBackbone(hashed_next(vocab_size, seed), vocab_size)
    made.spec.context_length = context
    return made


def drafter_of(made, max_draft=K):
    return StandaloneDrafter(made, max_draft, min_confidence=0.0)


def refed(made, tokens, count):
    """The greedy continuation by a model that reads everything from scratch for each token."""
    text = list(tokens)
    for _ in range(count):
        text.append(made.next_token(text))
    return tuple(text[len(tokens) :])


@pytest.mark.parametrize("pattern", product(range(K + 1), repeat=4))
def test_after_any_pattern_of_acceptance_it_drafts_as_one_that_reads_everything_again(pattern):
    made = model()
    drafter, tokens = drafter_of(made), [*PROMPT, 9]
    drafter.begin(tokens, HIDDEN, FakeCache(100))
    for accepted in pattern:
        draft = drafter.propose(K).tokens
        assert draft == refed(made, tokens, K)
        right = draft[accepted] if accepted < K else made.next_token([*tokens, *draft])
        committed = [*draft[:accepted], (right + 1) % V]
        drafter.observe(committed, HIDDEN)
        tokens += committed


@pytest.mark.parametrize("pattern", product(range(K + 1), repeat=3))
def test_no_token_is_read_twice_and_what_is_unseen_goes_with_the_first_draft_step(pattern):
    """J: after a rejection one row, the next token; after full acceptance two, the last draft's."""
    made = model()
    drafter = drafter_of(made)
    drafter.begin([*PROMPT, 9], HIDDEN, FakeCache(100))
    assert made.rows_fed == [len(PROMPT)]
    first = 1
    for accepted in pattern:
        made.rows_fed.clear()
        draft = drafter.propose(K).tokens
        assert made.rows_fed == [first, 1, 1]
        drafter.observe([*draft[:accepted], V - 1], HIDDEN)
        first = 2 if accepted == K else 1


def test_a_next_token_that_was_drafted_is_fed_all_the_same():
    """The loop may cut a draft: its next token can then be the one that was drafted there."""
    made = model()
    drafter = drafter_of(made)
    drafter.begin([*PROMPT, 9], HIDDEN, FakeCache(100))
    draft = drafter.propose(K).tokens
    drafter.observe(draft[:1], HIDDEN)
    made.rows_fed.clear()
    assert drafter.propose(K).tokens == refed(made, [*PROMPT, 9, draft[0]], K)
    assert made.rows_fed == [1, 1, 1]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("max_draft", [1, 2, 5])
def test_answers_are_those_of_plain_decoding(seed, max_draft):
    """A model that agrees with the target always (seed 0), and one that hardly ever does."""
    answers = []
    for drafter in (NoDrafter(), drafter_of(model(seed), max_draft)):
        request = Request(PROMPT, 40, Letters())
        list(decode(request, model(0), FakeCache(100), drafter))
        answers.append(request.tokens)
    assert answers[0] == answers[1]
    stats = request.stats
    assert stats.drafted > 0 and (stats.accepted == stats.drafted) == (seed == 0)


def test_a_draft_ends_before_the_token_with_which_the_product_of_probabilities_falls_below():
    """Logits are one-hot there, so every token has the probability p = e / (e + V - 1)."""
    p = np.e / (np.e + V - 1)
    for tokens in range(4):
        made = model()
        drafter = StandaloneDrafter(made, 3, min_confidence=0.99 * p**tokens)
        drafter.begin([*PROMPT, 9], HIDDEN, FakeCache(100))
        draft = drafter.propose(8)
        assert len(draft.tokens) == tokens
        assert draft.confidences == pytest.approx([p] * tokens, rel=1e-6)
        assert len(made.rows_fed) == 1 + min(tokens + 1, 3), "the doubted step is the last one"


def test_a_prompt_longer_than_its_context_stops_the_drafter_with_a_reason():
    made = model(context=5)
    drafter = drafter_of(made)
    drafter.begin([*PROMPT, 9], HIDDEN, FakeCache(100))
    assert "6 tokens of the text do not fit the context of 5" in drafter.reason
    assert drafter.propose(4).tokens == () and made.rows_fed == []
    drafter.observe([7], HIDDEN)
    drafter.begin(PROMPT, HIDDEN, FakeCache(100))
    assert drafter.reason is None
    assert drafter.propose(4).tokens == refed(made, PROMPT, 1), "only one more fits"


@pytest.mark.parametrize("context", range(5, 18))
def test_an_answer_that_outgrows_its_context_goes_on_without_drafts(context):
    request, made = Request(PROMPT, 12, Letters()), model(0, context=context)
    drafter = drafter_of(made, 4)
    list(decode(request, model(0), FakeCache(100), drafter))
    assert tuple(request.tokens) == (*PROMPT, *refed(made, PROMPT, 12))
    assert (drafter.reason is None) or context < len(request.tokens)
    assert request.stats.accepted == request.stats.drafted
    assert (request.stats.drafted > 0) == (context > 5)


def test_a_token_outside_its_vocabulary_stops_it_with_a_reason():
    drafter = drafter_of(model(vocab_size=32))
    drafter.begin([*PROMPT, 9], HIDDEN, FakeCache(100))
    drafter.observe([40], HIDDEN)
    assert "does not know the token 40" in drafter.reason
    assert drafter.propose(4).tokens == ()


def test_the_next_answer_begins_with_its_own_prompt_and_a_larger_cache_where_it_must():
    made = model()
    drafter = drafter_of(made)
    for capacity, prompt in ((10, PROMPT), (30, [8, 8, *PROMPT])):
        drafter.begin([*prompt, 9], HIDDEN, FakeCache(capacity))
        assert drafter.propose(K).tokens == refed(made, [*prompt, 9], K)


class Failing(ScriptedBackbone):
    """Gives no finite logit in the `at`-th pass, and takes the rows of that pass back."""

    at = 0

    def forward(self, segments, **how):
        self.at -= 1
        if self.at == 0:
            raise NumericsError("no finite logit")
        return super().forward(segments, **how)


@pytest.mark.parametrize("at", [2, 3, 4])
def test_numerics_trouble_in_the_middle_of_a_draft_leaves_a_sound_cache(at):
    made = Failing(hashed_next(V, 1), V)
    made.at = at
    drafter, tokens = drafter_of(made), [*PROMPT, 9]
    drafter.begin(tokens, HIDDEN, FakeCache(100))
    with pytest.raises(NumericsError):
        drafter.propose(K)
    drafter.observe([7], HIDDEN)
    assert drafter.propose(K).tokens == refed(made, [*tokens, 7], K)


def with_tokens(name, tokens):
    return SimpleNamespace(name=name, gguf=SimpleNamespace(strings=lambda _key: tokens))


def test_models_of_one_tokenizer_padded_to_different_sizes_share_a_vocabulary():
    ours, theirs = ["a", "b", "c"], ["a", "b", "c", "[PAD3]"]
    check_vocabulary(with_tokens("big", ours), with_tokens("small", theirs))
    check_vocabulary(with_tokens("big", theirs), with_tokens("small", ours))


def test_another_vocabulary_is_refused_by_the_names_of_both_models_and_the_first_other_token():
    big, small = with_tokens("big", ["a", "b", "c"]), with_tokens("small", ["a", "x", "y"])
    with pytest.raises(RequestError, match=r"small cannot draft for big.*token 1 is 'x'.*'b'"):
        check_vocabulary(big, small)
