"""Every option refuses what makes no sense, in one sentence with its name."""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from drafthead.cli.decode_flags import add_decode_flags
from drafthead.decoding.options import DecodeOptions
from drafthead.errors import RequestError
from tests import fakes

REFUSED = [
    ("temperature", [-1, 1e-9, 101, math.nan, math.inf, "warm", None, True, False]),
    ("top_k", [-1, 1.5, None, True, "5", 2**31]),
    ("top_p", [0, -0.1, 1.1, math.nan, None, True]),
    ("min_p", [-0.1, 1.1, math.nan, None]),
    ("typical_p", [0, 1.5, math.nan]),
    ("seed", [-1, 2**64, 1.0, "x", True]),
    ("accept", ["always", None, ""]),
    ("repetition_penalty", [0, -1, math.inf, math.nan, None, 1000]),
    ("frequency_penalty", [-3, 2.5, math.nan]),
    ("presence_penalty", [-3, 2.5, math.nan]),
    ("logit_bias", [[5], {-1: 1}, {1.5: 1}, {"a": 1}, {3: math.nan}, {3: 101}, {3: None}]),
    ("stop", [[""], "", [3], ["a", ""], 5, None, b"a", (text for text in ["a"])]),
    ("stop_ids", [[-1], ["a"], [1.5], 5, None, (token for token in [3])]),
    ("logprobs", [-1, 1.5, 1001, True]),
]


@pytest.mark.parametrize(("name", "values"), REFUSED)
def test_nonsense_is_refused_by_name(name, values):
    """D4, D5."""
    for value in values:
        with pytest.raises(RequestError, match=name) as caught:
            fakes.session().stream("hi", **{name: value})
        message = str(caught.value)
        assert message.endswith(".")
        assert "\n" not in message


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "typical_p": 1},
        {"temperature": np.float32(0.7), "seed": np.int64(3), "top_k": np.int32(4)},
        {"temperature": 1e-6, "seed": 2**64 - 1},
        {"stop": ("one", "two"), "stop_ids": {256}},
        {"stop": "one", "stop_ids": np.array([256]), "logit_bias": {3: -100, 4: 100}},
        {"logprobs": 0, "prompt_logprobs": True},
    ],
)
def test_what_makes_sense_is_taken(options):
    fakes.session(answer="ab").generate("hi", max_tokens=3, **options)


def test_every_option_has_a_flag_and_a_line_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "decoding.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    add_decode_flags(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    for field in dataclasses.fields(DecodeOptions):
        name = field.name.removesuffix("s") if field.name == "stop_ids" else field.name
        assert "--" + name.replace("_", "-") in flags
        assert f"| `{field.name}` |" in page


def test_an_unknown_option_is_refused_with_the_known_ones():
    with pytest.raises(RequestError, match="no option 'temprature'; choose from temperature, "):
        fakes.session().stream("hi", temprature=1)


@pytest.mark.parametrize("options", [{"stop_ids": [260]}, {"logit_bias": {260: 1}}])
def test_a_token_outside_the_vocabulary_is_refused(options):
    with pytest.raises(RequestError, match="260 is outside the vocabulary of 260"):
        fakes.session().stream("hi", **options)


def test_a_seed_is_chosen_and_told_where_tokens_are_drawn():
    """D5: a drawn text can always be had again."""
    session = fakes.session()
    drawn = session.generate("hi", max_tokens=30, temperature=1)
    again = session.generate("hi", max_tokens=30, temperature=1, seed=drawn.seed)
    other = session.generate("hi", max_tokens=30, temperature=1)
    assert again.tokens == drawn.tokens != other.tokens
    assert session.generate("hi", max_tokens=3, seed=5).seed is None
