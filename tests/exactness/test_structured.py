"""Structured output with any drafter: the same tokens and the same bits, and always a legal text.

Plain decoding here is decoding without any draft: not even what a grammar forces is drafted.
"""

from __future__ import annotations

import codecs
import json
import re

import numpy as np
import pytest

from drafthead.backbone.registry import KNOWN, cache_path
from drafthead.decoding.grammar import GrammarMaker
from drafthead.decoding.options import Structure
from drafthead.gguf.reader import read_gguf
from drafthead.session import load
from drafthead.text.grammar_words import GrammarWords
from drafthead.text.tokenizer import Tokenizer
from tests import fakes
from tests.exactness.test_matrix import everything_said, undrafted
from tests.exactness.test_reuse import open_model, session

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "role": {"enum": ["cook", "teacher", "côté"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
    },
    "required": ["name", "role", "age", "tags"],
    "additionalProperties": False,
}
REGEX = r"(\d{3}-){2}\d{4} (é|ü|€|😀){3,5}"
GRAMMAR = 'start: "It is " ("raining" | "snowing") ", " /[a-z ]{5,40}/ "."'


def is_person(text: str) -> bool:
    person = json.loads(text)
    return (
        list(person) == list(PERSON["properties"])
        and isinstance(person["name"], str)
        and len(person["name"]) <= 12
        and person["role"] in PERSON["properties"]["role"]["enum"]
        and type(person["age"]) is int
        and 0 <= person["age"] <= 130
        and len(person["tags"]) <= 2
        and all(isinstance(tag, str) and len(tag) <= 8 for tag in person["tags"])
    )


STRUCTURES = {
    "schema": ({"json_schema": PERSON}, is_person),
    "regex": ({"regex": REGEX}, lambda text: re.fullmatch(REGEX, text)),
    "grammar": (
        {"grammar": GRAMMAR},
        lambda text: re.fullmatch("It is (raining|snowing), [a-z ]{5,40}[.]", text),
    ),
}
SAMPLED = {"temperature": 0.9, "seed": 11, "top_p": 0.95}
SHAPED = {
    "repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": -0.2,
    "logit_bias": {34: -20, 198: 100}, "logprobs": 3,
}  # fmt: skip


class Crossing(fakes.OracleDrafter):
    """D7: right up to the last token before the answer's structure bends, then illegal."""

    name = "crossing"

    def draft(self, max_tokens):
        draft = super().draft(max_tokens)
        return [*draft[:2], *[7] * (len(draft) - 2)]


def doubles(answer, prompt_tokens, size):
    at = {
        "answer": answer, "prompt_tokens": prompt_tokens, "k": 5, "vocab_size": size,
        "check_hidden": False,
    }  # fmt: skip
    return [
        fakes.OracleDrafter(**at),
        fakes.OracleDrafter(right=1, **at),
        fakes.SkippingDrafter(**at),
        fakes.NanDrafter(**at),
        fakes.RandomDrafter(vocab_size=size, check_hidden=False),
        Crossing(**at),
    ]


@pytest.fixture(scope="module")
def loaded(backbone_path):
    return load(backbone_path, threads=1)


@pytest.mark.backbone
@pytest.mark.parametrize("options", [{}, SAMPLED, SHAPED, SHAPED | SAMPLED])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_every_drafter_gives_the_bits_of_no_drafts_and_a_legal_text(loaded, kind, options):
    structure, legal = STRUCTURES[kind]
    asked = {"prompt": "Describe a teacher.", "max_tokens": 100, **structure, **options}
    expected = undrafted(loaded, **asked)
    assert expected.finish_reason == "stop"
    assert legal(expected.text), expected.text
    for name in ("none", "mtp", "ngram", "ngram+mtp", "jacobi"):
        found = loaded.with_drafter(name).generate(**asked)
        assert everything_said(found) == everything_said(expected), name
        assert found.stats.committed == found.stats.passes + found.stats.accepted - found.stats.cut
        assert found.stats.accepted == sum(event.drafted for event in found.events), name
        forced = found.stats.sources["grammar"]
        assert forced.accepted == forced.drafted > 0
    size = loaded.backbone.spec.vocab_size
    for double in doubles(expected.tokens, expected.prompt_tokens, size):
        found = loaded.using(double).generate(**asked)
        assert everything_said(found) == everything_said(expected), double.name


@pytest.mark.backbone
@pytest.mark.parametrize("limit", [1, 2, 7])
def test_max_tokens_ends_a_structured_answer_in_the_middle(loaded, limit):
    asked = {"prompt": "A person.", "max_tokens": limit, "json_schema": PERSON, "logprobs": 0}
    expected = undrafted(loaded, **asked)
    assert (len(expected.tokens), expected.finish_reason) == (limit, "length")
    found = loaded.with_drafter("none").generate(**asked)
    assert everything_said(found) == everything_said(expected)


@pytest.mark.backbone
def test_stops_and_end_tokens_keep_their_meaning(loaded):
    """A stop text ends a structured answer anywhere, an end token only where it is whole."""
    asked = {"prompt": "Count.", "max_tokens": 60, "regex": "([0-9]+, )+"}
    for more in ({}, {"stop": "2,"}, {"ignore_eos": True}, {"stop_ids": [28]}, {"seed": 2}):
        options = asked | more | ({"temperature": 1.0} if "seed" in more else {})
        expected = undrafted(loaded, **options)
        found = loaded.with_drafter("mtp").generate(**options)
        assert everything_said(found) == everything_said(expected)
        if expected.finish_reason == "stop" and not {"stop", "stop_ids"} & more.keys():
            assert re.fullmatch(asked["regex"], found.text)


@pytest.mark.parametrize("options", [{}, SAMPLED, {"logprobs": 2, "presence_penalty": 1}])
def test_a_model_of_noise_gives_legal_texts_with_any_drafter(options):
    """The mask alone decides where every token is equally strange; most drafts are rejected."""
    backbone = open_model(16)
    short = {"type": "array", "items": {"enum": ["ab", 1, None]}, "minItems": 2, "maxItems": 4}
    asked = {"prompt": "Hi", "max_tokens": 60, "json_schema": short, **options}
    expected = undrafted(session(backbone), **asked)
    assert expected.finish_reason == "stop"
    assert all(value in ("ab", 1, None) for value in json.loads(expected.text))
    for double in doubles(expected.tokens, expected.prompt_tokens, 272):
        found = session(backbone, double).generate(**asked)
        assert everything_said(found) == everything_said(expected), double.name
        assert 2 <= len(json.loads(found.text)) <= 4


@pytest.mark.backbone
@pytest.mark.parametrize("name", KNOWN)
def test_a_mask_knows_every_token_of_a_vocabulary_by_its_bytes(name):
    """Where any text is allowed, all tokens may come that are the start of one, and no others."""
    if not cache_path(name).exists():
        pytest.skip(f"{name} is not in the cache")
    tokenizer = Tokenizer.from_gguf(read_gguf(cache_path(name)))
    words = GrammarWords(tokenizer)
    maker, anything = GrammarMaker(lambda: words), Structure("grammar", r"start: /(.|\n)*/")
    logits_V = np.zeros(tokenizer.vocab_size, np.float32)
    maker.make(anything, tokenizer.eos_ids, True).rule.apply(logits_V)
    starts = {token for token in range(len(logits_V)) if starts_a_text(tokenizer, token)}
    assert set(np.flatnonzero(np.isfinite(logits_V)).tolist()) == starts | tokenizer.eos_ids
    rule = maker.make(Structure("json_schema", "{}"), tokenizer.eos_ids, False).rule
    text = '{"näme": "Zoë €😀\\n", "tags": ["  x", "日本"], "n": -1.5e3}'
    ids = words(text)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
    for token in ids:
        logits_V[:] = 0
        rule.apply(logits_V)
        assert np.isfinite(logits_V[token])
        rule.push(token)
    assert rule.finished


def starts_a_text(tokenizer, token):
    raw = tokenizer.token_bytes(token)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(raw)
    except UnicodeDecodeError:
        return False
    return raw != b""
