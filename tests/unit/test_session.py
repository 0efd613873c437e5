"""Laws of the session, on doubles."""

from __future__ import annotations

import pytest

from drafthead.backbone.handle import Backbone
from drafthead.decoding.policy import Adaptive, AsDrafted
from drafthead.drafters.base import NoDrafter
from drafthead.errors import CapacityError, RequestError
from drafthead.session import load
from drafthead.stream import finish
from tests import fakes

ANSWER = "héllo ✓ wörld"


def oracle(answer=ANSWER, prompt="user:hi;", **how):
    return fakes.OracleDrafter(
        answer=[*answer.encode(), 256], prompt_tokens=len(prompt.encode()), vocab_size=256, **how
    )


def test_result_has_text_tokens_reason_and_counts():
    """C3, C6: text is that of the tokens, without the end token, which is one of the tokens."""
    result = fakes.session(answer=ANSWER).generate("hi")
    assert result.text == ANSWER
    assert result.tokens == (*ANSWER.encode(), 256)
    assert result.finish_reason == "stop"
    assert result.prompt_tokens == len("user:hi;")
    assert len(result.tokens) == len(result.events) == 1 + result.stats.committed


@pytest.mark.parametrize("right", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7, 40])
def test_drafting_changes_no_token_and_no_character(right, max_tokens):
    """A9, F1: generate and stream, drafted or not, cut inside a character or not, give one text."""
    plain = fakes.session(answer=ANSWER).generate("hi", max_tokens=max_tokens)
    session = fakes.session(oracle(right=right), answer=ANSWER)
    drafted = session.generate("hi", max_tokens=max_tokens)
    pieces = [event.text for event in session.stream("hi", max_tokens=max_tokens)]
    assert (drafted.tokens, drafted.text) == (plain.tokens, plain.text)
    assert "".join(pieces) == plain.text
    assert "\ufffd" not in "".join(pieces[:-1])


def test_prompt_messages_and_ids_are_one_request():
    """A9: the same token prompt gives the same ids whichever way it is given."""
    session = fakes.session(answer=ANSWER)
    ids = session.encode("hi")
    ways = [
        session.generate("hi"),
        session.generate(messages=[{"role": "user", "content": "hi"}]),
        session.generate(ids),
        session.generate("user:hi;", raw=True),
    ]
    assert {way.tokens for way in ways} == {ways[0].tokens}


def test_a_raw_prompt_gets_the_begin_token_once_and_only_where_the_file_asks_for_it():
    """G3: no end token either, and nothing else around the text."""
    session = fakes.session()
    session.tokenizer.bos_id = 257
    assert session.encode("hi", raw=True) == [*b"hi"]
    session.tokenizer.add_bos = True
    assert session.encode("hi", raw=True) == [257, *b"hi"]
    assert session.encode([*b"hi"]) == [*b"hi"]


def test_only_an_answer_that_continues_a_text_keeps_the_space_before_it(monkeypatch):
    """A chat's answer starts a text; what follows a raw prompt or ids stands behind a word."""
    whole = fakes.ByteTokenizer.token_bytes

    def token_bytes(self, token, first=False):
        return b"" if first and token == ord(" ") else whole(self, token)

    monkeypatch.setattr(fakes.ByteTokenizer, "token_bytes", token_bytes)
    session = fakes.session(answer=" yes", prompt="user:hi;")
    assert session.generate("hi").text == "yes"
    assert session.generate(messages=[{"role": "user", "content": "hi"}]).text == "yes"
    assert session.generate("user:hi;", raw=True).text == " yes"
    assert session.generate(session.encode("hi")).text == " yes"


def test_system_text_comes_first():
    session = fakes.session()
    assert bytes(session.encode("hi", system="be brief")) == b"system:be brief;user:hi;"


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"prompt": "hi", "messages": [{"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi"}], "raw": True},
        {"prompt": "hi", "raw": True, "system": "x"},
        {"prompt": "", "raw": True},
        {"prompt": [3, 260]},
        {"prompt": [-1]},
        {"prompt": []},
        {"prompt": [1.5]},
        {"prompt": ["1"]},
        {"prompt": [True]},
        {"prompt": b"hi"},
        {"prompt": {1, 2}},
        {"prompt": {1: 2}},
        {"prompt": (token for token in [1])},
        {"prompt": 5},
        {"messages": 5},
        {"prompt": "hi", "max_tokens": 0},
        {"prompt": "hi", "max_tokens": 2.5},
        {"prompt": "hi", "max_tokens": "3"},
        {"prompt": "hi", "max_tokens": True},
    ],
)
def test_a_request_that_makes_no_sense_is_refused_at_once(how):
    with pytest.raises(RequestError):
        fakes.session().stream(**how)


def test_a_prompt_longer_than_the_context_is_refused_at_once():
    with pytest.raises(CapacityError, match=r"8 tokens .* 7"):
        fakes.session(context=7).stream("hi")


def test_the_context_rules_the_cache_whatever_is_asked_for():
    """E1, E4: one number; the answer ends in the last cell."""
    session = fakes.session(context=20)
    result = session.generate("hi", max_tokens=10_000, ignore_eos=True)
    assert result.finish_reason == "length"
    assert result.prompt_tokens + len(result.tokens) == 20 + 1


def test_the_cache_is_kept_between_requests_and_grows_where_needed():
    session = fakes.session(answer=ANSWER)
    session.generate("hi")
    first = session.held.cache
    session.generate("hi")
    assert session.held.cache is first
    session.generate([1] * 2000, max_tokens=1)
    assert session.held.cache.capacity > first.capacity


@pytest.mark.parametrize("after", [1, 3])
def test_an_abandoned_stream_leaves_the_session_as_new(after):
    session = fakes.session(oracle(right=2), answer=ANSWER)
    stream = session.stream("hi")
    for _ in range(after):
        next(stream)
    del stream
    assert session.generate("hi").text == ANSWER


def test_a_stream_counts_as_it_goes():
    session = fakes.session(answer=ANSWER)
    stream = session.stream("hi")
    next(stream)
    assert stream.finish_reason is None
    next(stream)
    assert stream.stats.passes == 1
    list(stream)
    assert stream.finish_reason == "stop"


def test_another_drafter_shares_backbone_and_cache():
    session = fakes.session(oracle(), answer=ANSWER)
    plain = session.using(NoDrafter())
    assert session.generate("hi").stats.accepted > 0
    assert plain.generate("hi").stats.drafted == 0
    assert plain.held is session.held
    assert (plain.drafter.active, session.drafter.active) == (False, True)
    assert plain.drafter.reason
    assert session.drafter.reason is None


def test_a_prompt_that_is_scored_starts_cold_and_answers_the_same():
    """B8, D3: what a cache holds has no logits any more, and the counts say so."""
    session = fakes.session(oracle(), answer=ANSWER)
    first = session.generate("hi")
    again = session.generate("hi", prompt_logprobs=True)
    assert (first.stats.cached_tokens, again.stats.cached_tokens) == (0, 0)
    assert again.tokens == first.tokens
    assert [scored.token for scored in again.prompt_logprobs] == session.encode("hi")
    assert session.generate("hi").stats.cached_tokens == len("user:hi;") - 1


def test_stops_can_be_ignored():
    session = fakes.session(answer="ab")
    result = session.generate("hi", max_tokens=10, ignore_eos=True)
    assert len(result.tokens) == 10
    assert result.tokens[2] == 256


@pytest.mark.parametrize("name", ["threads", "max_draft", "context"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_load_refuses_what_is_no_whole_number_from_one(name, value):
    with pytest.raises(RequestError, match=f"^{name} must be a whole number of at least 1, got "):
        load("x.gguf", **{name: value})


@pytest.mark.parametrize("name", ["backbone", "head", "draft_model"])
@pytest.mark.parametrize("value", [5, b"x", ["x"]])
def test_load_refuses_what_is_neither_a_name_nor_a_path(name, value):
    with pytest.raises(RequestError, match=f"^{name} must be a name or a path, got "):
        load(**{name: value})


def test_load_refuses_an_unknown_drafter():
    """J9: a name that means nothing is an error, never silence."""
    with pytest.raises(RequestError, match=r"choose from mtp, .*none"):
        load("x.gguf", drafter="medusa")


def test_load_refuses_an_unknown_type_of_cells(backbone_path):
    with pytest.raises(RequestError, match="no cache of type 'q8'; choose f16 or f32"):
        load(backbone_path, kv="q8")


def test_cells_of_either_type_decode_and_tell_their_size(tiny_path):
    """B13: the type is the session's choice, and drafting changes nothing within it."""
    half, whole = (Backbone.open(tiny_path, threads=1, kv=kv) for kv in ("f16", "f32"))
    assert whole.kv_bytes_per_token == 2 * half.kv_bytes_per_token
    assert whole.new_cache(64).nbytes == 2 * half.new_cache(64).nbytes
    assert half.new_cache(64, "f32").nbytes == whole.new_cache(64).nbytes


def test_an_answer_says_when_drafting_rests_and_warns_of_a_head_that_is_never_right():
    """Why: result and stream tell what drafted, and what a user should know."""
    drafter = fakes.RandomDrafter(k=4, vocab_size=256, check_hidden=False)
    session = fakes.session(answer="a long answer, token by token. " * 40).using(
        drafter, Adaptive()
    )
    for turn in range(40):
        stream = session.stream("hi", max_tokens=600)
        first = stream.drafter
        result = finish(stream)
        assert (first.active, first.reason) == (True, None) or turn
    assert result.stats.rested > 0
    assert not result.drafter.active and "rests" in result.drafter.reason
    assert "another backbone" in result.drafter.warning


def test_a_text_that_follows_its_drafts_is_drafted_alike_on_any_machine():
    """Rejection sampling leaves the length of drafts to the drafter, never to a clock."""
    drafter = fakes.RandomDrafter(k=4, vocab_size=256, check_hidden=False)
    session = fakes.session(answer="an answer " * 30).using(drafter, Adaptive())
    result = session.generate("hi", max_tokens=40, temperature=0.01, seed=1, accept="rejection")
    assert drafter.asked[0] == 38 and result.stats.rested == 0
    assert session.policy.drafts == 0


def test_an_unknown_policy_is_refused():
    with pytest.raises(RequestError, match="no policy 'eager'; choose from auto, threshold, fixed"):
        load("x.gguf", policy="eager")


def test_a_fixed_policy_drafts_a_fixed_length(backbone_path):
    session = load(backbone_path, threads=1, policy="fixed", max_draft=3)
    stats = session.generate("Write a poem about rain.", max_tokens=40).stats
    assert stats.drafted >= 3 * (stats.passes - 2)  # the last passes have less room
    assert isinstance(session.policy, AsDrafted)
    assert isinstance(load(backbone_path, threads=1).policy, Adaptive)
