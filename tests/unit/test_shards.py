"""Laws of divided runs: the parts hold each prompt once, and merged they are the undivided run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import trainee
from test_regen import PROMPTS, answer_all, contents

from drafthead.errors import TrainingError
from drafthead.training.answers import AnswerStore
from drafthead.training.regen import RegenSettings
from drafthead.training.shards import SHARD, Shard, cut, merge

# Ten tokens of room: some prompts are too long and leave gaps in the order.
SETTINGS = RegenSettings(max_tokens=24, capacity=24 + 10, temperature=0.8, sampled=0.3)


def divided(folder, count, prompts=PROMPTS, settings=SETTINGS):
    folders = [folder / f"part{index}" for index in range(1, count + 1)]
    for index, part in enumerate(folders, 1):
        answer_all(part, prompts=cut(prompts, Shard(index, count), part), settings=settings)
    return folders


@pytest.mark.parametrize("count", [1, 2, 5])
def test_merged_parts_have_the_bytes_of_the_undivided_run(tmp_path, count):
    folders = divided(tmp_path, count)
    merge(folders[::-1], tmp_path / "merged")
    whole, _ = answer_all(tmp_path / "whole", settings=SETTINGS)
    assert whole["skipped"] > 0
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")


def test_every_prompt_is_in_one_part_and_the_parts_are_alike_in_size(tmp_path):
    parts = [cut(PROMPTS, Shard(index, 3), tmp_path / str(index)) for index in (1, 2, 3)]
    assert sorted(asked.id for part in parts for asked in part) == sorted(a.id for a in PROMPTS)
    assert min(map(len, parts)) > 10
    again = cut(PROMPTS[::-1], Shard(2, 3), tmp_path / "reversed")
    assert {asked.id for asked in again} == {asked.id for asked in parts[1]}


def test_a_part_can_grow_and_another_part_is_refused_in_its_folder(tmp_path):
    folders = divided(tmp_path, 2, PROMPTS[:30])
    divided(tmp_path, 2)
    merge(folders, tmp_path / "merged")
    answer_all(tmp_path / "whole", settings=SETTINGS)
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")
    with pytest.raises(TrainingError, match="holds part 1/2, not 2/2"):
        cut(PROMPTS, Shard(2, 2), folders[0])
    with pytest.raises(TrainingError, match="without --shard"):
        cut(PROMPTS, Shard(1, 2), tmp_path / "whole")


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
    folders, out = divided(tmp_path, 2), tmp_path / "merged"
    for wrong, named in (
        (folders[:1], "each of the parts 1 to 2 once, found 1"),
        ([folders[0], folders[0]], "found 1, 1"),
    ):
        with pytest.raises(TrainingError, match=named):
            merge(wrong, out)
    other = divided(tmp_path / "other", 2, PROMPTS[:50])
    with pytest.raises(TrainingError, match="prompts_digest"):
        merge([folders[0], other[1]], out)
    other = divided(tmp_path / "settings", 2, settings=replace(SETTINGS, seed=1))
    with pytest.raises(TrainingError, match="settings"):
        merge([folders[0], other[1]], out)
    manifest = AnswerStore(folders[1]).manifest()
    for change, named in (
        ({"fingerprint": "0" * 64}, "fingerprint"), ({"complete": False}, "not finished")
    ):  # fmt: skip
        AnswerStore(folders[1]).write_manifest(manifest | change)
        with pytest.raises(TrainingError, match=named):
            merge(folders, out)
    AnswerStore(folders[1]).write_manifest(manifest)
    answer_all(tmp_path / "whole", settings=SETTINGS)
    with pytest.raises(TrainingError, match="no part of a divided run"):
        merge([folders[0], tmp_path / "whole"], out)
    with pytest.raises(TrainingError, match="new folder"):
        merge(folders, tmp_path / "whole")
    assert not out.exists()
    (folders[0] / SHARD).write_text(json.dumps({"index": 1, "count": 2, "places": {"a": "b"}}))
    with pytest.raises(TrainingError, match="no part"):
        merge(folders, out)


def test_a_part_is_answered_by_the_backbone_alone(tmp_path):
    folder = divided(tmp_path, 2)[0]
    greedy = [row for row in AnswerStore(folder).rows() if not row.temperature]
    assert greedy
    for row in greedy:
        own = trainee.greedy(trainee.TinyBackbone(), row.prompt_tokens, 24)
        assert list(row.answer) == own[: len(row.answer)]
