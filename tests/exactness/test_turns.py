"""Turn after turn of a chat, whoever drafts: each answer is that of a cold session that does not.

The same tokens, text, reason and log-probabilities, to the bit, wherever the answer before ended:
at a stop inside a draft, at a limit inside one, or where its reader left; and through files.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pytest

from tests import every_drafter
from tests.every_drafter import DOUBLES, REAL, make
from tests.exactness.test_matrix import everything_said

PROMPT = [(7 * n) % 200 for n in range(12)]
LATER = [[5, 6], [(3 * n) % 150 for n in range(280)], [9], [8, 8, 8]]  # the window wraps at 272
K = 4


@lru_cache
def cold(kv, prompt, options):
    """A plain answer of a session of its own."""
    return every_drafter.session(None, kv).generate(prompt, **dict(options))


def endings(kv, prompt, seed):
    """Options with which the answer ends in every way, somewhere inside a draft of 4."""
    free = {"logprobs": 2, "seed": seed, "temperature": 0.5 * (seed % 2)}
    answer = cold(kv, prompt, tuple({**free, "max_tokens": 24}.items()))
    at = 7 + seed
    text = "".join(event.text for event in answer.events[at : at + 2])
    return answer, [
        {**free, "max_tokens": 24, "stop_ids": (answer.tokens[at],)},
        {**free, "max_tokens": 24, "stop": text or "none"},
        {**free, "max_tokens": at},
        {**free, "max_tokens": 24},
    ]


def answers(talk, name, kv, tmp_path):
    """Five turns, saved and restored before the third; yields both answers of each."""
    prompt = PROMPT
    for turn, more in enumerate([*LATER, []]):
        free, ends = endings(kv, tuple(prompt), turn)
        if name in DOUBLES:
            talk.drafting = make(name, kv, free.tokens, len(prompt), K)
        if turn == 2:
            talk.save(tmp_path / "talk")
            talk = every_drafter.session(talk.drafting, kv)
            talk.restore(tmp_path / "talk")
        asked = ends[turn % 4]
        found, expected = (
            talk.generate(prompt, **asked),
            cold(kv, tuple(prompt), tuple(asked.items())),
        )
        yield found, expected
        held = len(prompt) + len(found.tokens) - 1
        assert talk.held.cache.length == held
        prompt = [*prompt, *found.tokens, *more]


@pytest.mark.parametrize("kv", ["f16", "f32"])
@pytest.mark.parametrize("name", [*REAL, *DOUBLES])
def test_a_talk_is_what_cold_sessions_say_turn_by_turn(name, kv, tmp_path):
    """B8, B9, B10, B13, C1, C7, D5: greedy and drawn turns take turns."""
    held, accepted, cut = 0, 0, set()
    for found, expected in answers(every_drafter.session(make(name, kv), kv), name, kv, tmp_path):
        assert everything_said(found) == everything_said(expected)
        assert found.stats.cached_tokens == held
        held = found.prompt_tokens + len(found.tokens) - 1
        accepted += found.stats.accepted
        cut.add(found.stats.cut)
    if name in ("ORACLE", "ORACLE-2", "mtp", "standalone"):
        assert accepted > 5
    if name == "ORACLE":
        assert cut == {0, 1}


def test_answers_given_at_the_same_time_are_those_given_alone():
    """D5, F5: sessions in threads of their own, on one backbone, greedy and drawn."""
    asked = [
        (tuple(PROMPT[seed:]), {"max_tokens": 60, "logprobs": 1, "temperature": t, "seed": seed})
        for seed, t in enumerate([0, 0.3, 0.8, 2])
    ]
    alone = [cold("f16", prompt, tuple(options.items())) for prompt, options in asked]

    def answer(name, prompt, options):
        talk = every_drafter.session(make(name))
        return [talk.generate(prompt, **options) for _ in range(2)]

    with ThreadPoolExecutor(len(REAL) * len(asked)) as threads:
        jobs = [
            (expected, threads.submit(answer, name, *one))
            for one, expected in zip(asked, alone, strict=True)
            for name in REAL
        ]
    for expected, job in jobs:
        for found in job.result():
            assert everything_said(found) == everything_said(expected)
