"""Laws of `drafthead regen`: what each flag does to the folder, what is refused in a sentence."""

from __future__ import annotations

import json

import pytest
import trainee
from test_invent import TurnTemplate

from drafthead import session as sessions
from drafthead.cli import main
from drafthead.training.alone import alone_in
from drafthead.training.answers import AnswerStore
from drafthead.training.features import FeatureStore, kept_rows
from tests import fakes


@pytest.fixture(autouse=True)
def tiny_session(monkeypatch):
    """Every backbone that is loaded is a tiny one."""

    def load(*_args, **_options):
        made = fakes.session()
        made.backbone, made.template = trainee.TinyBackbone(), TurnTemplate()
        made.tokenizer = fakes.ByteTokenizer(eos_ids=(trainee.EOS,), vocab_size=trainee.V)
        return made

    monkeypatch.setattr(sessions, "load", load)


@pytest.fixture
def regen(tmp_path, capsys):
    """Run the command on twenty prompts of two tasks; its JSON object, or its error."""
    rows = [
        {"id": f"p{n}", "task": ("chat", "math")[n % 2], "prompt": f"question {n}",
         **({"lang": "de"} if n < 4 else {})}
        for n in range(20)
    ]  # fmt: skip
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*words, prompts=True):
        begin = ["regen", "--json", "--max-tokens", "16", "--capacity", "64"]
        begin += ["--prompts", str(path)] if prompts else []
        code = main.main([*begin, *map(str, words)])
        out, err = capsys.readouterr()
        return json.loads(out) if code == 0 else err

    return run


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("held", ["a", "f"])
def test_a_folder_that_something_else_writes_in_is_refused(regen, tmp_path, held):
    words = ("--out", tmp_path / "a", "--features", tmp_path / "f", "--kv-layers", "1")
    with alone_in(tmp_path / held):
        assert f"Another process is writing in {tmp_path / held}" in regen(*words)
        assert not list((tmp_path / held).iterdir())
    assert regen(*words)["answers"] == 20


def test_parts_merge_to_the_folder_of_the_undivided_run(regen, tmp_path):
    share = ("--sampled", "0.5", "--temperature", "0.7")
    whole = regen("--out", tmp_path / "whole", *share)
    folders = [tmp_path / f"part{index}" for index in (1, 2, 3)]
    for index, folder in enumerate(folders, 1):
        regen("--out", folder, "--shard", f"{index}/3", "--sequences", index, *share)
    merged = regen("--merge", *folders, "--out", tmp_path / "merged", prompts=False)
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")
    assert merged.items() <= whole.items()
    assert 0 < whole["sampled"] < 20
    assert whole["languages"]["de"]["answers"] == 4


def test_without_a_sampled_share_the_temperature_decides_nothing(regen, tmp_path):
    regen("--out", tmp_path / "a", "--temperature", "0.7")
    regen("--out", tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_plan_writes_nothing_and_speaks_of_the_part_alone(regen, tmp_path):
    options = ("--out", tmp_path / "out", "--features", tmp_path / "f", "--kv-layers", "1")
    before = sorted(tmp_path.iterdir())
    whole = regen("--plan", *options)
    parts = [regen("--plan", *options, "--shard", f"{index}/2") for index in (1, 2)]
    assert sorted(tmp_path.iterdir()) == before
    assert whole["prompts"] == 20 == sum(part["prompts"] for part in parts)
    assert whole["prompt_tokens"] == sum(part["prompt_tokens"] for part in parts)
    assert whole["feature_bytes"] > 0


def test_the_features_kept_while_answering_are_those_that_training_would_compute(regen, tmp_path):
    """States, taps, keys and values, in the order and the size that was asked for."""
    flags = ("--features", tmp_path / "f", "--kv-layers", "1,2", "--taps", "2,0")
    regen("--out", tmp_path / "out", *flags)
    backbone, answers = trainee.TinyBackbone(), list(AnswerStore(tmp_path / "out").rows())
    for taps in ((2, 0), (0,), ()):
        kept = FeatureStore(tmp_path / "f", backbone, answers, (2,), taps)
        assert kept.plan.missing_rows == 0
        kept.build()
        computed = FeatureStore(tmp_path / f"{len(taps)}", backbone, answers, (2,), taps)
        computed.build()
        for place in range(len(answers)):
            assert kept.hidden(place).shape[1] == (1 + len(taps)) * trainee.D
            assert (kept.hidden(place) == computed.hidden(place)).all()
            assert (kept.kv(place) == computed.kv(place)).all()


def answer_in_parts(regen, tmp_path, count=3, layers="1,2"):
    """Folders of answers, and of features, of all parts."""
    answers = [tmp_path / f"part{index}" for index in range(1, count + 1)]
    features = [tmp_path / f"features{index}" for index in range(1, count + 1)]
    for index, (out, kept) in enumerate(zip(answers, features, strict=True), 1):
        regen("--out", out, "--shard", f"{index}/{count}", "--sequences", index,
              "--features", kept, "--kv-layers", layers, "--taps", "0")  # fmt: skip
    return answers, features


def test_features_of_parts_merge_in_the_order_of_the_answers(regen, tmp_path):
    """Nothing is left to compute, and the bytes do not depend on the order of the parts."""
    answers, features = answer_in_parts(regen, tmp_path)
    for name, folders in (("a", features), ("b", features[::-1])):
        out = ("--out", tmp_path / name, "--features", tmp_path / f"f{name}")
        told = regen("--merge", *answers, "--merge-features", *folders, *out, prompts=False)
        assert (told["answers"], told["without_features"]) == (20, 0)
    assert contents(tmp_path / "fa") == contents(tmp_path / "fb")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    backbone, rows = trainee.TinyBackbone(), list(AnswerStore(tmp_path / "a").rows())
    kept = FeatureStore(tmp_path / "fa", backbone, rows, (1,), (0,))
    assert kept.plan.missing_rows == 0
    computed = FeatureStore(tmp_path / "computed", backbone, rows, (1, 2), (0,))
    for store in (kept, computed):
        store.build()
    for place in range(len(rows)):
        assert (kept.hidden(place) == computed.hidden(place)).all()
        assert (kept.kv(place) == computed.kv(place)[:, :1]).all()
    names = ("features.json", "index.jsonl", "hidden.f16", "kv.f16")
    assert all(
        (tmp_path / "fa" / name).read_bytes() == (tmp_path / "computed" / name).read_bytes()
        for name in names
    )


def test_a_part_without_features_leaves_them_to_train(regen, tmp_path):
    answers, features = answer_in_parts(regen, tmp_path)
    out = ("--out", tmp_path / "a", "--features", tmp_path / "f")
    told = regen("--merge", *answers, "--merge-features", *features[1:], *out, prompts=False)
    alone = list(AnswerStore(answers[0]).rows())
    assert told["without_features"] == len(alone) > 0
    rows = list(AnswerStore(tmp_path / "a").rows())
    store = FeatureStore(tmp_path / "f", trainee.TinyBackbone(), rows, (1,))
    assert store.plan.missing_rows == sum(map(kept_rows, alone))


def test_features_that_do_not_fit_are_refused_before_anything_is_merged(regen, tmp_path):
    answers, features = answer_in_parts(regen, tmp_path, 2)
    answer_in_parts(regen, tmp_path / "other", 2, "2")
    out = ("--out", tmp_path / "a", "--features", tmp_path / "f")

    def refused(*folders, words=out):
        return regen(
            "--merge", *answers, "--merge-features", *folders, *words, prompts=False
        )  # fmt: skip

    other = tmp_path / "other" / "features2"
    assert "have kv_layers [2], expected [1, 2]" in refused(features[0], other)
    assert f"{answers[0]} holds no features" in refused(features[0], answers[0])
    assert "holds features already" in refused(*features, words=(*out[:3], features[0]))
    assert "--merge-features says what --features keeps" in refused(*features, words=out[:2])
    assert "the limit is 0.00 GB" in refused(*features, words=(*out, "--max-disk", "1e-6"))
    header = json.loads((features[1] / "features.json").read_text())
    (features[1] / "features.json").write_text(json.dumps(header | {"fingerprint": "0"}))
    assert "have fingerprint '0', expected 'ffff" in refused(*features)
    assert "belongs to --merge" in regen("--merge-features", features[0], *out)
    assert not (tmp_path / "a").exists() and not (tmp_path / "f").exists()


@pytest.mark.parametrize("flag", ["--taps", "--kv-layers"])
def test_what_features_keep_needs_a_folder_and_a_layer_that_is_there(regen, tmp_path, flag):
    assert f"{flag} says what --features keeps" in regen("--out", tmp_path / "a", flag, "1")
    words = ("--out", tmp_path / "a", "--features", tmp_path / "f", flag, "1,3")
    assert f"{flag}: tiny has layers 0 to 2, found 3" in regen(*words)
    assert not (tmp_path / "a").exists()


def test_features_over_the_limit_are_refused_before_and_stopped_while_they_grow(regen, tmp_path):
    """K5: never terabytes by surprise."""
    options = ("--out", tmp_path / "out", "--features", tmp_path / "f", "--kv-layers", "1")
    assert "the limit is 0.00 GB" in regen("--plan", *options, "--max-disk", "1e-6")
    assert "raise --max-disk" in regen(*options, "--max-disk", "1e-6")
    held = regen("--plan", *options)["held"]
    assert held > 0
    assert regen(*options)["answers"] == 20


def test_invented_prompts_are_answered_beside_the_others_or_alone(regen, tmp_path):
    room = ("--invent", "40", "--capacity", "256")
    both = regen("--out", tmp_path / "both", *room)
    assert set(both["tasks"]) == {"chat", "math", "invented"}
    chat = regen("--out", tmp_path / "chat", *room, "--tasks", "chat")
    assert set(chat["tasks"]) == {"chat", "invented"}
    alone = regen("--out", tmp_path / "alone", *room, prompts=False)
    assert set(alone["tasks"]) == {"invented"}
    # The prompt file of the folder gives the same answers.
    listed = ("--prompts", tmp_path / "alone" / "invented.jsonl", *room[2:])
    regen("--out", tmp_path / "again", *listed, prompts=False)
    one, other = (tmp_path / name / "answers-00000.jsonl" for name in ("again", "alone"))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("flags", [("--shard", "1/2"), ("--plan",)])
def test_inventing_comes_before_dividing_and_planning(regen, tmp_path, flags):
    assert "invent first" in regen("--out", tmp_path / "x", "--invent", "5", *flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--shard", "3/2"), ("--shard", "0/2"), ("--shard", "half"), ("--sampled", "2"),
        ("--temperature", "0"), ("--invent", "0"), ("--kv-layers", "x"), ("--taps", "-1"),
    ],
)  # fmt: skip
def test_wrong_values_are_named(regen, tmp_path, flags):
    error = regen("--out", tmp_path / "x", *flags)
    assert flags[0] in error
    assert flags[1] in error
    assert error.count("\n") == 1


def test_a_capacity_that_the_backbone_has_not_is_refused(regen, tmp_path):
    said = regen("--out", tmp_path / "o", "--capacity", "999999")
    assert "--capacity 999999 is more than" in said and "tokens." in said
    assert not (tmp_path / "o").exists()


def test_no_prompts_at_all_are_told_so(regen, tmp_path):
    (tmp_path / "none.jsonl").write_text("\n")
    said = regen("--out", tmp_path / "o", "--prompts", tmp_path / "none.jsonl", prompts=False)
    assert said == "drafthead regen: The prompt files hold no prompt.\n"


def test_prompts_without_room_are_told(tmp_path, capsys):
    (tmp_path / "long.jsonl").write_text(
        json.dumps({"id": "a", "task": "t", "prompt": "word " * 100}) + "\n"
    )
    words = ["--prompts", tmp_path / "long.jsonl", "--out", tmp_path / "o", "--capacity", "64"]
    assert main.main(["regen", "--max-tokens", "16", *map(str, words)]) == 0
    assert "1 prompts were passed over" in capsys.readouterr().out
