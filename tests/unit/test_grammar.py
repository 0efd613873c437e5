"""Laws of structured output: what may come, where a text ends, what is forced, what is refused."""

from __future__ import annotations

import json
import sys
from functools import partial

import numpy as np
import pytest

from drafthead.backbone.handle import Pass
from drafthead.decoding.choosing import make_chooser
from drafthead.decoding.grammar import KEPT_GRAMMARS, GrammarMaker, GrammarRule
from drafthead.decoding.options import DecodeOptions, Structure
from drafthead.drafters.base import Certain
from drafthead.drafters.forced import ForcedDrafter
from drafthead.errors import NumericsError, RequestError
from drafthead.text.grammar_words import GrammarWords
from drafthead.types import Draft
from tests import fakes

END = 256
TOKENIZER = fakes.ByteTokenizer()
MAKER = GrammarMaker(partial(GrammarWords, TOKENIZER))
SIZE = TOKENIZER.vocab_size


class SpacedTokenizer(fakes.ByteTokenizer):
    """Puts a space before a text, as SentencePiece does, and composes characters."""

    def encode(self, text):
        return list(b" " + text.replace("e\u0301", "\u00e9").encode())

    def token_bytes(self, token_id, first=False):
        return b"" if first and token_id == 32 else super().token_bytes(token_id)


def made(ends=(END,), continues=False, maker=MAKER, **structure):
    return maker.make(DecodeOptions(**structure).structure, ends, continues)


def allowed(rule: GrammarRule) -> set[int]:
    logits_V = np.zeros(SIZE, np.float32)
    rule.apply(logits_V)
    return set(np.flatnonzero(np.isfinite(logits_V)).tolist())


def takes(text: str | bytes, **structure) -> bool:
    """Whether the whole text, byte by byte, may come, and may end there."""
    rule = made(**structure).rule
    for byte in text.encode() if isinstance(text, str) else text:
        if rule.finished or byte not in allowed(rule):
            return False
        rule.push(byte)
    return rule.finished or END in allowed(rule)


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "role": {"enum": ["cook", "côté"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "role", "age"],
    "additionalProperties": False,
}


def test_texts_of_a_schema_may_come_and_others_may_not():
    def person(**changes):
        values = {"name": "Zoë", "role": "cook", "age": 7} | changes
        return json.dumps(values, ensure_ascii=False)

    assert takes(person(), json_schema=PERSON)
    assert takes(person(name='a\n"é'), json_schema=PERSON)
    assert takes(person(role="côté", age=130), json_schema=json.dumps(PERSON))
    for wrong in ({"role": "boss"}, {"age": 131}, {"age": -1}, {"name": "Johnny"}, {"more": 1}):
        assert not takes(person(**wrong), json_schema=PERSON)
    assert not takes('{"name": "Zoë"}', json_schema=PERSON)
    assert not takes(person().replace(", ", ",  "), json_schema=PERSON)
    style = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}
    spaced = PERSON | {"x-guidance": style}
    assert takes(person().replace(", ", ",\n  "), json_schema=spaced)
    for anything in ("null", "-1.5e3", '[1, "é", {"a": []}]'):
        assert takes(anything, json_schema={})
        assert not takes(anything + "}", json_schema="{}")


def test_a_regex_matches_the_whole_text_and_only_whole_characters():
    assert takes("ab/ab", regex="(ab|/)+")
    assert not takes("aba", regex="(ab)+")
    for text in ("é", "€", "😀", "\0"):
        assert takes(text, regex="[^a]")
        assert not takes(text.encode()[:-1] or "a", regex="[^a]")
    assert not takes(b"\xff", regex="[^a]")
    assert not takes(b"\xed\xa0\x80", regex="[^a]")  # half of a surrogate pair


def test_a_grammar_may_name_control_tokens():
    TOKENIZER.control_tokens["<|call|>"] = 258
    grammar = made(
        maker=GrammarMaker(partial(GrammarWords, TOKENIZER)), grammar='start: "a" <|call|> /[bc]/'
    )
    TOKENIZER.control_tokens.clear()
    seen = []
    for token in (97, 258, 99):
        seen.append(allowed(grammar.rule))
        grammar.rule.push(token)
    assert seen == [{97}, {258}, {98, 99}]
    assert grammar.rule.finished


def test_an_end_token_may_come_where_the_text_is_whole_and_only_there():
    rule = made((END, 257), regex="ab+").rule
    assert allowed(rule) == {97}
    rule.push(97)
    assert allowed(rule) == {98}
    rule.push(98)
    assert allowed(rule) == {98, END, 257}
    assert not rule.finished
    rule.push(257)
    assert rule.finished
    endless = made((), regex="ab+").rule
    for token in (97, 98):
        endless.push(token)
    assert allowed(endless) == {98}


def test_a_text_ends_where_nothing_may_follow():
    rule = made((), regex="(ab|abc)d").rule
    for token in b"abcd":
        assert not rule.finished
        rule.push(token)
    assert rule.finished


def test_an_end_token_that_is_text_may_come_as_text_and_ends_the_answer():
    rule = made((98,), regex="ab+c").rule
    rule.push(97)
    assert allowed(rule) == {98}
    rule.push(98)
    assert rule.finished


def test_neither_bias_nor_penalty_lets_an_illegal_token_come():
    options = DecodeOptions(regex="[ab]c", logit_bias={120: 100, 97: -100}, presence_penalty=-2)
    grammar = made(regex="[ab]c")
    chooser = make_chooser(options, [120], SIZE, grammar.rule)
    logits_MV = np.zeros((3, SIZE), np.float32)
    logits_MV[:, 120], logits_MV[:, 98] = 90, -99
    given = Pass(np.zeros((3, 3), np.float32), np.array([120] * 3, np.int32), logits_MV)
    assert chooser.choose(Draft((98, 99, 120)), given) == [98, 99]
    assert chooser.ended
    assert (logits_MV[:, 120] == 90).all()  # scores are told of what the backbone gave


def test_no_token_is_made_up_where_no_allowed_one_has_a_finite_logit():
    logits_V = np.full(SIZE, -np.inf, np.float32)
    logits_V[120] = 1
    with pytest.raises(NumericsError, match="allows"):
        made(regex="ab").rule.apply(logits_V)


def test_a_text_starts_with_tokens_that_keep_their_space():
    """Where a tokenizer drops the first space of a text, a grammar sees the text that is shown."""
    maker = GrammarMaker(partial(GrammarWords, SpacedTokenizer()))
    assert 32 not in allowed(made(maker=maker, regex=" ?a").rule)
    assert 32 in allowed(made(maker=maker, regex=" ?a", continues=True).rule)
    rule = made(maker=maker, regex="a *").rule
    rule.push(97)
    assert 32 in allowed(rule)
    with pytest.raises(RequestError, match="leave it out"):
        made(maker=maker, regex=" a")


class LackingTokenizer(fakes.ByteTokenizer):
    """Has no token of the second byte of an é."""

    def token_bytes(self, token_id, first=False):
        return b"!!" if token_id == 0xA9 else super().token_bytes(token_id)


def test_a_text_that_no_token_goes_on_with_is_an_error_and_no_end():
    maker = GrammarMaker(partial(GrammarWords, LackingTokenizer()))
    rule = made(maker=maker, regex="é").rule
    with pytest.raises(RequestError, match="no token of the vocabulary goes on"):
        rule.push(0xC3)
    assert not rule.finished


def test_a_forced_text_is_cut_into_tokens_of_exactly_its_bytes():
    words = GrammarWords(SpacedTokenizer())
    for text in ("abc", " abc", "e\u0301", "\x02", ""):
        assert words(text) == list(text.encode())


def test_what_is_forced_is_told_and_what_is_illegal_is_found():
    guide = made(json_schema=PERSON).guide
    assert bytes(guide.forced()) == b'{"name": "'
    guide.push(guide.forced())
    assert guide.forced() == []
    assert guide.legal(list(b'Jo", "role": "cook"')) == 19
    assert guide.legal(list(b'Jo", "rule')) == 7
    assert guide.legal([*b"Jo", END]) == 2
    assert guide.legal([*b"Jo", SIZE, -1]) == 2
    guide.push(list(b'Jo", "role": "cook", "age": 13'))
    assert guide.legal([*b"0}", END]) == 3
    guide.push([END])
    assert guide.forced() == []
    assert guide.legal([1, 2]) == 2


def test_masks_do_not_depend_on_what_drafters_ask():
    """Not even within one matcher; and each has its own."""
    quiet, asked = made(json_schema=PERSON), made(json_schema=PERSON)
    for token in b'{"name": "Jo", "role": "cook", "age": 13}':
        asked.guide._matcher = asked.rule._matcher
        asked.guide.forced()
        asked.guide.legal(list(b'Jo", "age'))
        assert allowed(quiet.rule) == allowed(asked.rule)
        quiet.rule.push(token)
        asked.rule.push(token)
    assert quiet.rule.finished and asked.rule.finished


class Repeating(fakes.Double):
    """Drafts the same tokens again and again, and notes what it was shown."""

    name = "repeating"
    check_hidden = False

    def __init__(self, tokens, proposals=()):
        self.draft_tokens, self.proposals, self.shown = tuple(tokens), proposals, []

    def propose(self, max_tokens):
        return Draft(self.draft_tokens[:max_tokens], (0.5,) * 3, proposals=self.proposals)

    def watch(self, choices_M):
        self.shown.append(choices_M.tolist())


def begun(inner, **structure):
    drafter = ForcedDrafter(inner, made(**structure).guide)
    drafter.begin([1, 2, 97], np.zeros(3, np.float32), fakes.FakeCache(8))
    return drafter


def test_what_is_forced_is_drafted_for_free_and_the_rest_by_the_drafter():
    drafter = begun(Repeating(b"bxx"), regex="abcd[bx]{2}e?")
    assert drafter.propose(9) == Draft(tuple(b"bcd"), source="grammar")
    assert drafter.propose(2) == Draft(tuple(b"bc"), source="grammar")
    drafter.watch(np.array([5, 6, 7, 8], np.int32))
    drafter.observe(list(b"bcd"), np.zeros(3, np.float32))
    assert drafter.propose(9) == Draft(tuple(b"bx"), (0.5, 0.5), "repeating", steps=3)
    drafter.watch(np.array([5, 6, 7], np.int32))
    assert drafter.inner.shown == [[5], [5, 6, 7]]
    assert drafter.name == "repeating"


def test_what_is_certain_is_what_is_forced():
    drafter = begun(Repeating(b"bxx"), regex="abcd[bx]{2}e?")
    assert isinstance(drafter, Certain)
    assert drafter.certain(2) == Draft(tuple(b"bc"), source="grammar")
    drafter.observe(list(b"bcd"), np.zeros(3, np.float32))
    assert drafter.certain(9).tokens == ()


def test_a_guide_is_asked_once_a_pass_for_what_it_forces(monkeypatch):
    drafter, asked = begun(Repeating(b"bxx"), regex="abcd[bx]{2}e?"), []
    forced = drafter._guide.forced
    monkeypatch.setattr(drafter._guide, "forced", lambda: asked.append(1) or forced())
    for committed in (b"bcd", b"b", b"x"):
        drafter.certain(9)
        drafter.propose(9)
        drafter.observe(list(committed), np.zeros(3, np.float32))
    assert len(asked) == 3


def test_a_drafter_with_floors_is_steered_through_and_another_is_not():
    inner = Repeating(b"b")
    assert not hasattr(begun(inner, regex="ab+"), "floors")
    inner.floors = "of an earlier answer"
    drafter = begun(inner, regex="ab+")
    for floors in (None, "of this answer"):
        drafter.floors = floors
        drafter.propose(1)  # "b" is forced
        drafter.observe([98], np.zeros(3, np.float32))
        drafter.propose(1)
        assert inner.floors == floors


def test_a_draft_that_was_drawn_is_not_cut():
    shares = (np.full(SIZE, 1 / SIZE),) * 3
    drafter = begun(Repeating(b"bzz", shares), regex="a[bx]+")
    assert drafter.propose(3).tokens == tuple(b"bzz")
    assert begun(Repeating(b"bzz"), regex="a[bx]+").propose(3).tokens == tuple(b"b")


REFUSED = [
    ({"regex": "a(b"}, "The regex cannot be used: unclosed group."),
    ({"regex": r"(a)\1"}, "The regex cannot be used: backreferences are not supported."),
    ({"regex": "(?=a)b"}, "The regex cannot be used: look-around"),
    ({"regex": ""}, "The grammar allows no text but the empty one."),
    ({"regex": "[^\\s\\S]"}, "The grammar cannot be followed: "),
    ({"regex": 5}, "regex must be a text, not 5."),
    ({"regex": "\ud800"}, "regex holds half of a surrogate pair"),
    (
        {"grammar": "start: foo"},
        'The grammar cannot be used: line 1, column 8: unknown name: "foo".',
    ),
    (
        {"grammar": "start: <|nope|>"},
        "The grammar cannot be used: line 1, column 8: unknown special",
    ),
    ({"grammar": ""}, "The grammar cannot be used: Empty grammar."),
    ({"grammar": 'start: start "a"'}, "The grammar cannot be followed: "),
    ({"json_schema": {"type": "objekt"}}, "The json_schema cannot be used: Invalid type: objekt."),
    ({"json_schema": {"uniqueItems": True}}, "The json_schema cannot be used: Unimplemented keys"),
    ({"json_schema": {"enum": []}}, "The json_schema cannot be used: Unsatisfiable"),
    ({"json_schema": "{"}, "json_schema must be JSON: Expecting"),
    ({"json_schema": {"a": {1}}}, "json_schema must be JSON: Object of type set"),
    ({"json_schema": {"minimum": float("nan")}}, "json_schema must be JSON: Out of range"),
    ({"json_schema": '{"items":' * 5000 + "{}" + "}" * 5000}, "json_schema is nested too deeply."),
    ({"json_schema": [1]}, "json_schema must be a JSON object, not [1]."),
    ({"json_schema": "true"}, "json_schema must be a JSON object, not true."),
    ({"json_schema": {}, "regex": "a"}, "Give one of json_schema and regex, not both."),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_what_cannot_be_followed_is_refused_in_one_sentence(asked, said):
    with pytest.raises(RequestError) as caught:
        made(**asked)
    message = str(caught.value)
    assert message.startswith(said)
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 300


def test_a_refused_request_computes_nothing():
    session = fakes.session()
    with pytest.raises(RequestError, match="unclosed"):
        session.generate("hi", regex="a(b")
    assert session.backbone.rows_fed == []


def test_without_the_library_one_sentence_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    session = fakes.session(answer="hello")
    assert session.generate("hi").text == "hello"
    with pytest.raises(RequestError, match=r"pip install 'drafthead\[structured\]'"):
        session.generate("hi", regex="a")


def test_nothing_is_loaded_for_requests_without_structure(monkeypatch):
    monkeypatch.delitem(sys.modules, "llguidance", raising=False)
    fakes.session(answer="hello").generate("hi")
    assert "llguidance" not in sys.modules


def test_a_grammar_is_compiled_once_and_the_last_ones_are_kept():
    maker = GrammarMaker(partial(GrammarWords, TOKENIZER))
    first = maker._matcher(Structure("regex", "a"))
    assert maker._matcher(Structure("regex", "a")) is first
    for size in range(KEPT_GRAMMARS):
        maker._matcher(Structure("regex", "b" * (size + 1)))
    assert maker._matcher(Structure("regex", "a")) is not first
    assert len(maker._compiled) == KEPT_GRAMMARS
    session = fakes.session()
    assert session.using(Repeating(b"a")).grammars is session.grammars


def test_drafters_change_nothing_in_a_rule_that_limits_what_is_chosen():
    """D8: the matcher takes each token once and in order, and every mask is asked for once."""

    class Recorder:
        def __init__(self, matcher):
            self.matcher, self.calls = matcher, []

        def consume_token(self, token):
            self.calls.append(token)
            return self.matcher.consume_token(token)

        def compute_bitmask(self):
            self.calls.append("mask")
            return self.matcher.compute_bitmask()

        def is_error(self):
            return self.matcher.is_error()

    def calls(drafter, monkeypatch):
        session = fakes.session(drafter, answer='{"a": 12}')
        seen = []
        start = GrammarRule.__init__

        def recorded(self, matcher, *more):
            seen.append(Recorder(matcher))
            start(self, seen[0], *more)

        with monkeypatch.context() as patch:
            patch.setattr(GrammarRule, "__init__", recorded)
            tokens = session.generate("hi", json_schema={}, temperature=1, seed=3).tokens
        return tokens, seen[0].calls

    with pytest.MonkeyPatch.context() as monkeypatch:
        expected, alone = calls(None, monkeypatch)
        at = {"answer": expected, "prompt_tokens": 8, "vocab_size": SIZE, "check_hidden": False}
        assert alone == ["mask", *[call for t in expected if t != END for call in (t, "mask")]]
        for drafter in (
            fakes.OracleDrafter(**at),
            fakes.OracleDrafter(right=1, **at),
            fakes.RandomDrafter(vocab_size=SIZE, check_hidden=False),
            fakes.NanDrafter(**at),
        ):
            assert calls(drafter, monkeypatch) == (expected, alone)
