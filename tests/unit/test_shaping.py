"""Penalties and biases as they are defined, seeing exactly what they should."""

from __future__ import annotations

import numpy as np
import pytest

from drafthead.decoding.options import DecodeOptions
from drafthead.decoding.shaping import make_rules

V = 12


def shaped(logits, pushed=(), prompt=(), **options):
    row = np.array(logits, np.float32)
    for rule in (rules := make_rules(DecodeOptions(**options), prompt, V)):
        for token in pushed:
            rule.push(token)
    for rule in rules:
        rule.apply(row)
    return row


ROW = [2.0, -2.0, 0.0, 1.0, *[0.5] * 8]


def test_repetition_makes_what_was_seen_less_likely_whatever_its_sign():
    """D4: a prompt token, a pushed one, a negative one, and one at 0."""
    row = shaped(ROW, [1, 2], [0], repetition_penalty=2.0)
    assert row.tolist()[:4] == [1.0, -4.0, 0.0, 1.0]
    assert shaped(ROW, [0, 0, 0], repetition_penalty=2.0)[0] == 1.0


def test_frequency_counts_and_presence_does_not_and_neither_sees_the_prompt():
    """D4."""
    row = shaped(ROW, [0, 0, 3], [1, 1], frequency_penalty=0.5, presence_penalty=0.25)
    assert row.tolist()[:4] == [2 - 1.25, -2.0, 0.0, 1 - 0.75]


def test_biases_are_added_last():
    row = shaped(ROW, [0], repetition_penalty=2.0, logit_bias={0: 100, 3: -100})
    assert (row[0], row[3]) == (101, -99)


def test_defaults_shape_nothing():
    assert make_rules(DecodeOptions(), [1, 2], V) == []


@pytest.mark.parametrize("name", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_what_cannot_come_stays_so(name):
    assert shaped([-np.inf] * V, [0], **{name: 1.5})[0] == -np.inf
