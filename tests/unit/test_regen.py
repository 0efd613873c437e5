"""Laws of regen: answers are the backbone's own, whatever ran beside them or stopped them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trainee

from drafthead.decoding.options import DecodeOptions
from drafthead.decoding.sampling import Sampler
from drafthead.errors import RequestError, TrainingError
from drafthead.evaluation.prompts import PromptRow
from drafthead.training.answers import PART, Answer, AnswerStore
from drafthead.training.prompts import choose, digest
from drafthead.training.regen import Regenerator, RegenSettings, regenerate
from drafthead.training.sampling import answer_seed, is_sampled
from drafthead.training.tally import COUNTS


def prompt(number, task="chat"):
    return PromptRow(f"p{number}", task, ({"role": "user", "content": f"question {number}"},))


PROMPTS = [prompt(number, ("chat", "math")[number % 2]) for number in range(60)]


def encode(asked):
    number = int(asked.id[1:])
    return [2 + number, *range(10, 10 + number % 23)]


def answer_all(out, prompts=PROMPTS, settings=None, sequences=5, on_answer=None):
    settings = settings or RegenSettings(max_tokens=24, capacity=64)
    worker = Regenerator(
        trainee.TinyBackbone(), encode, frozenset({trainee.EOS}), settings, sequences
    )
    if on_answer is None:
        return regenerate(worker, prompts, out, settings), worker
    return regenerate(worker, prompts, out, settings, on_answer), worker


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("sequences", [1, 5, 100])
def test_every_answer_is_the_backbones_own_greedy_one(tmp_path, sequences):
    settings = RegenSettings(max_tokens=24, capacity=64, keep_loops=True)
    answer_all(tmp_path, settings=settings, sequences=sequences)
    rows = list(AnswerStore(tmp_path).rows())
    assert [row.id for row in rows] == [asked.id for asked in PROMPTS]
    for row, asked in zip(rows, PROMPTS, strict=True):
        assert list(row.prompt_tokens) == encode(asked)
        assert list(row.answer) == trainee.greedy(trainee.TinyBackbone(), encode(asked), 24)
        assert row.finish == ("stop" if row.answer[-1] == trainee.EOS else "length")


def test_many_answers_share_one_pass(tmp_path):
    _, worker = answer_all(tmp_path, sequences=5)
    assert worker.counts.rows / worker.counts.passes > 4


def test_the_bytes_do_not_depend_on_sequences_or_on_being_killed(tmp_path):
    answer_all(tmp_path / "one", sequences=3)

    class KilledError(Exception):
        pass

    def kill(_answer, counts):
        if counts.answers == 21:
            raise KilledError

    for _ in range(2):
        with pytest.raises(KilledError):
            answer_all(tmp_path / "two", sequences=7, on_answer=kill)
        with (tmp_path / "two" / PART).open("a") as part:
            part.write('{"id":"p59","task":"ch')  # the machine stopped inside a line
    held = len(list(AnswerStore(tmp_path / "two").rows()))
    manifest, worker = answer_all(tmp_path / "two", sequences=7)
    assert worker.counts.resumed == held > 20
    assert worker.counts.answers == 60 - held
    assert manifest["answers"] == 60
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_loop_is_cut_where_the_last_8_tokens_occurred_before(tmp_path):
    settings = RegenSettings(max_tokens=60, capacity=256)
    worker = Regenerator(
        trainee.TinyBackbone(ends=False), encode, frozenset({trainee.EOS}), settings, 4
    )  # fmt: skip
    worker.backbone.next_token = lambda before, last: (last + 1) % 12 + 20
    manifest = regenerate(worker, PROMPTS[:3], tmp_path, settings)
    assert manifest["looped"] == 3
    for row in AnswerStore(tmp_path).rows():
        assert row.finish == "looped"
        windows = [row.answer[i : i + 8] for i in range(len(row.answer) - 7)]
        assert windows.index(windows[-1]) < len(windows) - 1
        assert len(set(windows)) == len(windows) - 1


def test_a_prompt_without_room_for_its_answer_is_skipped_and_counted(tmp_path):
    settings = RegenSettings(max_tokens=24, capacity=24 + 10)
    manifest, _ = answer_all(tmp_path, settings=settings)
    fitting = [asked for asked in PROMPTS if len(encode(asked)) <= 10]
    assert manifest["answers"] == len(fitting)
    assert manifest["skipped"] == len(PROMPTS) - len(fitting)


def test_truncated_answers_are_marked(tmp_path):
    manifest, _ = answer_all(tmp_path, settings=RegenSettings(max_tokens=3, capacity=64))
    rows = list(AnswerStore(tmp_path).rows())
    assert manifest["truncated"] == sum(row.finish == "length" for row in rows) > 0
    assert all(len(row.answer) == 3 for row in rows if row.finish == "length")


SAMPLED = RegenSettings(max_tokens=24, capacity=64, keep_loops=True, temperature=0.9, sampled=0.4)


def test_a_share_of_the_prompts_is_sampled_and_marked(tmp_path):
    manifest, _ = answer_all(tmp_path, settings=SAMPLED)
    backbone, rows = trainee.TinyBackbone(), list(AnswerStore(tmp_path).rows())
    assert manifest["sampled"] == sum(row.temperature == 0.9 for row in rows)
    assert 0.25 * 60 < manifest["sampled"] < 0.55 * 60
    drawn = 0
    for row, asked in zip(rows, PROMPTS, strict=True):
        assert row.temperature == (0.9 if is_sampled(0, digest(asked), 0.4) else 0)
        tokens = [*row.prompt_tokens, *row.answer]
        for place, token in enumerate(row.answer):
            at = len(row.prompt_tokens) + place
            before, last = (tokens[at - 2] if at > 1 else 0), tokens[at - 1]
            greedy = backbone.next_token(before, last)
            if row.temperature:
                options = DecodeOptions(temperature=0.9, seed=answer_seed(0, digest(asked)))
                assert token == Sampler(options).token(backbone.logits(before, last), at)
                drawn += token != greedy
            else:
                assert token == greedy
    assert drawn > 10


def test_sampled_bytes_do_not_depend_on_sequences_or_on_resuming_and_follow_the_seed(tmp_path):
    answer_all(tmp_path / "one", settings=SAMPLED, sequences=1)
    answer_all(tmp_path / "two", settings=SAMPLED, sequences=9, prompts=PROMPTS[:25])
    answer_all(tmp_path / "two", settings=SAMPLED, sequences=4)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    answer_all(tmp_path / "other", settings=replace(SAMPLED, seed=1))
    one, other = (list(AnswerStore(tmp_path / name).rows()) for name in ("one", "other"))
    assert [row.temperature for row in one] != [row.temperature for row in other]
    both = [pair for pair in zip(one, other, strict=True) if min(row.temperature for row in pair)]
    assert any(left.answer != right.answer for left, right in both)


def test_greedy_rows_keep_the_bytes_of_folders_written_before_there_was_sampling(tmp_path):
    line = '{"id":"a","task":"chat","prompt_tokens":[1],"answer":[2],"finish":"stop"}\n'
    assert Answer("a", "chat", (1,), (2,), "stop").line() == line
    answer_all(tmp_path)
    manifest = AnswerStore(tmp_path).manifest()
    old = {
        key: manifest["settings"][key] for key in ("max_tokens", "capacity", "keep_loops", "seed")
    }
    AnswerStore(tmp_path).write_manifest(manifest | {"settings": old})
    _, worker = answer_all(tmp_path)
    assert worker.counts.resumed == len(PROMPTS)


def test_the_manifest_counts_by_task_and_by_language(tmp_path):
    prompts = [replace(asked, lang="de") if n < 7 else asked for n, asked in enumerate(PROMPTS)]
    manifest, _ = answer_all(tmp_path, prompts=prompts, settings=SAMPLED)
    assert manifest["languages"]["de"]["answers"] == 7
    assert list(manifest["tasks"]) == ["chat", "math"]
    for name in COUNTS:
        assert sum(counts[name] for counts in manifest["tasks"].values()) == manifest[name]
    rows = list(AnswerStore(tmp_path).rows())
    german = [row for row in rows if row.lang == "de"]
    assert manifest["languages"]["de"]["answer_tokens"] == sum(len(row.answer) for row in german)


def test_a_folder_of_other_settings_or_another_backbone_is_refused(tmp_path):
    answer_all(tmp_path)
    with pytest.raises(TrainingError, match="settings"):
        answer_all(tmp_path, settings=RegenSettings(max_tokens=25, capacity=64))
    manifest = AnswerStore(tmp_path).manifest()
    AnswerStore(tmp_path).write_manifest(manifest | {"fingerprint": "0" * 64})
    with pytest.raises(TrainingError, match="fingerprint"):
        answer_all(tmp_path)


def test_more_prompts_extend_a_finished_folder(tmp_path):
    answer_all(tmp_path / "grown", prompts=PROMPTS[:20])
    _, worker = answer_all(tmp_path / "grown")
    assert worker.counts.answers == 40
    answer_all(tmp_path / "whole")
    assert contents(tmp_path / "grown") == contents(tmp_path / "whole")


def test_a_damaged_row_is_named(tmp_path):
    store = AnswerStore(tmp_path)
    store.append(Answer("a", "chat", (1,), (2,), "stop"))
    store.flush()
    with (tmp_path / PART).open("a") as part:
        part.write('{"id": 3}\n')
    with pytest.raises(TrainingError, match="line 2"):
        list(store.rows())


def test_selection_drops_duplicates_alternates_tasks_and_grows_with_the_limit():
    doubled = [*PROMPTS, *(PromptRow("x" + p.id, p.task, p.messages) for p in PROMPTS)]
    few, dropped = choose(doubled, [], 3, seed=1)
    more, _ = choose(doubled, [], 9, seed=1)
    assert dropped == 60
    assert [asked.task for asked in few] == ["chat", "math"] * 3
    assert few == more[:6]
    assert choose(doubled, ["math"], None, 1)[0] == [p for p in choose(PROMPTS, [], None, 1)[0]
                                                    if p.task == "math"]  # fmt: skip
    assert {asked.id for asked in choose(doubled, [], 3, seed=2)[0]} != {a.id for a in few}
    with pytest.raises(RequestError, match="cooking"):
        choose(PROMPTS, ["cooking"], None, 0)
    with pytest.raises(RequestError, match="p0"):
        choose([*PROMPTS, PromptRow("p0", "chat", ({"role": "user", "content": "?"},))], [], 1, 0)


def test_a_slot_goes_on_with_prompts_that_begin_like_its_last_one(tmp_path):
    def begin_alike(asked):
        start = range(40, 70) if asked.task == "chat" else range(30, 60)
        return [*start, 2 + int(asked.id[1:])]

    settings = RegenSettings(max_tokens=8, capacity=64)
    worker = Regenerator(trainee.TinyBackbone(), begin_alike, frozenset({trainee.EOS}), settings, 2)
    chosen = [row for row in PROMPTS if int(row.id[1:]) % 4 in (0, 3)]  # chat, math, chat ...
    manifest = regenerate(worker, chosen, tmp_path, settings)
    fed = worker.counts.rows - (manifest["answer_tokens"] - manifest["answers"])
    # Each of the two slots reads both beginnings at most once; all else is one token a prompt.
    assert len(chosen) + 2 * 30 <= fed <= len(chosen) + 4 * 30
