"""Regenerated answers of a backbone with sliding windows are those of a cold cache."""

from __future__ import annotations

from drafthead.backbone.handle import Segment
from drafthead.evaluation.prompts import PromptRow
from drafthead.training.regen import Regenerator, RegenSettings
from tests import windowed

SETTINGS = RegenSettings(max_tokens=40, capacity=640, keep_loops=True)


def prompt(number):
    task = "chat" if number % 2 else "math"
    return PromptRow(f"p{number}", task, ({"role": "user", "content": ""},))


def encode(asked):
    """The prompts of a task begin alike; together they are longer than a window and its slack."""
    number = int(asked.id[1:])
    own = [(7 * place + number) % 272 for place in range(20 + 30 * number)]
    return [*range(100 + number % 2, 130), *own]


def greedy(backbone, tokens):
    cache, answer = backbone.new_cache(SETTINGS.capacity), []
    feed = tokens
    while len(answer) < SETTINGS.max_tokens:
        answer.append(int(backbone.forward([Segment(cache, feed)], rows="last").tokens[0]))
        feed = answer[-1:]
    return tuple(answer)


def test_a_slot_whose_window_has_overwritten_the_common_beginning_reads_it_again():
    backbone = windowed.build(windowed.SPEC, windowed.random_weights(windowed.SPEC))
    floors = []
    worker = Regenerator(backbone, encode, frozenset(), SETTINGS, sequences=2)
    answers = {}
    for answer in worker.answers(map(prompt, range(12))):
        answers[answer.id] = answer.answer
        floors += [slot.cache.rollback_floor for slot in worker._free]
    assert answers == {f"p{n}": greedy(backbone, encode(prompt(n))) for n in range(12)}
    assert max(floors) > 30  # where all that two prompts share lies below it
    assert min(floors) == 0
