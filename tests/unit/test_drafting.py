"""Laws of the factory: one place turns a name into a drafter, or says why it cannot."""

from __future__ import annotations

import argparse

import pytest

from drafthead.backbone.handle import Backbone
from drafthead.cli import bench, main
from drafthead.drafters.base import NoDrafter
from drafthead.drafting import DRAFTERS, NEED_HEAD, PLAIN_WANTED, Asked, DrafterMaker
from drafthead.errors import HeadError, RequestError
from tests import fakes
from tests.byte_tokens import byte_tokenizer
from tests.random_head import write_random_head
from tests.tiny import TinySpec, write_tiny_llama


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """Its file can be a draft model too: it has a vocabulary."""
    path = tmp_path_factory.mktemp("b") / "tiny.gguf"
    write_tiny_llama(path, tokenizer=byte_tokenizer(TinySpec().vocab))
    return Backbone.open(path, threads=1)


@pytest.fixture(scope="module")
def folder(backbone, tmp_path_factory):
    return write_random_head(tmp_path_factory.mktemp("heads") / "random", backbone)


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_name_makes_a_drafter_of_that_name(backbone, folder, name):
    made = DrafterMaker(backbone, Asked(folder, draft_model=backbone.path)).make(name)
    assert made.drafting.name == made.state.name == name
    assert made.state.active is (name != "none")
    assert made.state.reason == (PLAIN_WANTED if name == "none" else None)
    assert (made.head is not None) is (name in NEED_HEAD)


@pytest.mark.parametrize("name", DRAFTERS)
def test_without_a_head_only_those_that_need_one_are_idle_and_say_so(backbone, name):
    """J11: what cannot draft decodes plainly and tells why."""
    made = DrafterMaker(backbone, Asked("none", draft_model=backbone.path)).make(name)
    assert made.state.active is (name != "none" and name not in NEED_HEAD)
    if name in NEED_HEAD:
        assert made.state.reason == "no head was asked for"
        assert isinstance(made.drafting, NoDrafter)


def test_a_head_is_read_once_whoever_drafts_with_it(backbone, folder):
    maker = DrafterMaker(backbone, Asked(folder))
    first, second = maker.make("mtp"), maker.make("mtp")
    assert first.drafting.head is second.drafting.head
    assert first.drafting is not second.drafting


def test_a_head_that_is_not_wanted_is_not_read(backbone, tmp_path):
    maker = DrafterMaker(backbone, Asked(tmp_path / "missing"))
    assert maker.make("none").state.reason == PLAIN_WANTED
    with pytest.raises(HeadError):
        maker.make("mtp")


def test_the_longest_draft_is_the_one_asked_for(backbone, folder):
    maker = DrafterMaker(backbone, Asked(folder, max_draft=3))
    assert maker.make("mtp").drafting.max_draft_tokens == 3


def test_an_unknown_name_is_refused_with_those_there_are(backbone):
    with pytest.raises(RequestError, match="no drafter 'eagle'; choose from mtp, standalone"):
        DrafterMaker(backbone).make("eagle")


def test_a_session_hands_out_its_drafters_by_name():
    """They share backbone and cache, and remember what was asked for."""
    session = fakes.session(answer="abc")
    plain = session.with_drafter("none")
    assert plain.held is session.held
    assert plain.maker is session.maker
    assert plain.generate("hi").text == session.generate("hi").text == "abc"


def test_help_names_every_drafter(capsys):
    for command, names in {"generate": DRAFTERS, "bench": {*DRAFTERS, "plain"} - {"none"}}.items():
        main.main([command, "--help"])
        text = capsys.readouterr().out
        assert all(name in text for name in names)


@pytest.mark.parametrize(("names", "said"), [(["plain", "eagle"], "no arm eagle"), ([], "No arm")])
def test_bench_refuses_unknown_arms_by_name(names, said):
    with pytest.raises(RequestError, match=f"{said}.*the arms are plain, mtp"):
        bench.check(parsed(f"--drafters={','.join(names)}"))


def test_bench_says_which_arm_wants_a_head(monkeypatch):
    """By name it is an error; by default plain is measured alone, and that is said."""
    monkeypatch.setattr("drafthead.session.load", lambda *a, **k: fakes.session())
    monkeypatch.setattr("drafthead.drafting.find_head", lambda backbone: None)
    args = parsed("--drafters", "plain,mtp")
    with pytest.raises(RequestError, match="arm mtp needs a head: no head for scripted"):
        bench.open_arms(args)
    args = parsed()
    assert list(bench.open_arms(args)) == ["plain"]


def test_bench_has_an_arm_for_each_draft_model_by_its_name():
    assert bench.named_models([]) == {"standalone": None}
    assert bench.named_models(["a/b.gguf"]) == {"standalone": "a/b.gguf"}
    assert bench.named_models(["body=b.gguf", "qwen", "/x/c.gguf"]) == {
        "body": "b.gguf", "standalone:qwen": "qwen", "standalone:c": "/x/c.gguf",
    }  # fmt: skip
    for twice in (["a=1", "a=2"], ["mtp=1"], ["x/a.gguf", "y/a.gguf"]):
        with pytest.raises(RequestError, match="Two arms are called"):
            bench.named_models(twice)


def test_bench_measures_several_draft_models_beside_plain(backbone, monkeypatch):
    monkeypatch.setattr("drafthead.session.load", lambda *a, **k: session_of(backbone))
    flags = (
        "--drafters",
        "plain,standalone",
        "--draft-model",
        f"body={backbone.path},x={backbone.path}",
    )
    arms = bench.open_arms(parsed(*flags))
    assert list(arms) == ["plain", "body", "x"]
    assert arms["body"].drafting.model is not arms["x"].drafting.model
    assert arms["body"].held is arms["plain"].held


def session_of(backbone):
    made = fakes.session()
    made.maker = DrafterMaker(backbone)
    return made


def parsed(*words):
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    return parser.parse_args(["bench", *words])
