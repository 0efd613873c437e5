"""A request that starts from what the last one left gives what a cold one gives, to the bit.

The model has two layers with a window of 16 among three, or none with a window.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import drafthead
from drafthead.backbone.cells import read_cells
from drafthead.backbone.handle import Backbone, Segment
from drafthead.backbone.snapshot import read_snapshot, write_snapshot
from drafthead.drafters.base import NoDrafter
from drafthead.drafters.mtp import MtpDrafter
from drafthead.drafting import DrafterState
from drafthead.errors import CapacityError, FileError, RequestError
from drafthead.heads.package import HeadPackage
from drafthead.session import Session
from tests import fakes
from tests.random_head import write_random_head
from tests.windowed import build, random_weights, with_window

WINDOWS = [0, 16]
SOME = [int(t) for t in np.random.default_rng(3).integers(0, 256, 1500)]


def open_model(window: int, seed: int = 0) -> Backbone:
    spec = with_window(window)
    backbone = build(spec, random_weights(spec, seed), threads=1)
    backbone.__dict__["fingerprint"] = f"{window}-{seed}".ljust(64, "f")
    backbone.__dict__["tokenizer_fingerprint"] = "t" * 64
    return backbone


MODELS = {window: open_model(window) for window in WINDOWS}


def session(backbone: Backbone, drafter=None, context: int | None = None) -> Session:
    drafter = drafter or NoDrafter()
    state = DrafterState(drafter.name, True)
    tokenizer = fakes.ByteTokenizer(vocab_size=272)
    return Session(backbone, tokenizer, fakes.PlainTemplate(), drafter, state, context=context)


def cold(window: int, prompt, max_tokens: int, drafter=None):
    return session(MODELS[window], drafter).generate(prompt, max_tokens=max_tokens)


@pytest.fixture(scope="module", params=WINDOWS)
def window(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def head(window, tmp_path_factory):
    """A head of random weights that drafts in spite of its doubts."""
    backbone = MODELS[window]
    folder = write_random_head(tmp_path_factory.mktemp("heads") / "random", backbone)
    return HeadPackage.load(folder).build(backbone)


def drafters(head, answer, prompt):
    at = {"answer": answer, "prompt_tokens": len(prompt), "vocab_size": 272, "check_hidden": False}
    yield NoDrafter
    yield lambda: MtpDrafter(head, 4, min_confidence=0.0)
    for right in (None, 0, 2):
        yield lambda right=right: fakes.OracleDrafter(right=right, **at)


def cells_seen(held: Session) -> list[np.ndarray]:
    """Keys and values that the next row sees, of every layer."""
    cells = []
    for index, layer in enumerate(held.backbone.spec.layers):
        _, keys, values = read_cells(held.held.cache, index, layer.window)
        last = layer.window - 1 if layer.window else len(keys)
        cells += [keys[-last:].view(np.uint16), values[-last:].view(np.uint16)]
    return cells


@pytest.mark.parametrize("first", [1, 5, 300, 1100])
def test_turns_are_those_of_cold_sessions(window, head, first):
    """B8, B9: ids, acceptance and cells are a cold session's, and every drafter reuses the same."""
    prompt = SOME[:first]
    answer = cold(window, prompt, 40).tokens
    second = [*prompt, *answer, *b" and more"]
    for drafter in drafters(head, answer, prompt):
        talk = session(MODELS[window], drafter())
        one = talk.generate(prompt, max_tokens=40)
        assert (one.tokens, one.stats.cached_tokens) == (answer, 0)
        two = talk.generate(second, max_tokens=30)
        assert two.stats.cached_tokens == len(prompt) + len(answer) - 1
        fresh = session(MODELS[window], drafter())
        assert two.tokens == fresh.generate(second, max_tokens=30).tokens
        assert talk.tokens == fresh.tokens == [*second, *two.tokens]
        assert all((a == b).all() for a, b in zip(cells_seen(talk), cells_seen(fresh), strict=True))


def test_the_same_prompt_again_feeds_its_last_token_only(window, head):
    """The head starts from that token's hidden state, so it drafts as after a cold start."""
    drafter = MtpDrafter(head, 4, min_confidence=0.0)
    talk = session(MODELS[window], drafter)
    runs = [talk.generate(SOME[:200], max_tokens=30) for _ in range(3)]
    assert [run.stats.cached_tokens for run in runs] == [0, 199, 199]
    assert len({run.tokens for run in runs}) == 1
    for run in runs[1:]:
        assert run.stats.accepted_at == runs[0].stats.accepted_at
        assert run.stats.drafted_at == runs[0].stats.drafted_at


@pytest.mark.parametrize("common", [0, 1, 15, 16, 17, 600, 840, 900, 999])
def test_prompts_that_part_share_what_is_before(window, common):
    """A windowed layer has forgotten the cells of a short prefix: then the start is cold."""
    talk = session(MODELS[window])
    talk.generate(SOME[:1000], max_tokens=2)
    floor = talk.held.cache.rollback_floor
    assert (floor > 0) == (window > 0)
    other = [*SOME[:common], (SOME[common] + 1) % 256, *SOME[:50]]
    result = talk.generate(other, max_tokens=20)
    assert result.stats.cached_tokens == (common if common >= floor else 0)
    assert result.tokens == cold(window, other, 20).tokens


def test_the_cache_grows_with_the_talk_and_keeps_its_cells(window):
    """Turn after turn only the new tokens are fed, through several sizes of the cache."""
    talk, prompt, sizes = session(MODELS[window]), SOME[:700], set()
    expected = 0
    for turn in range(6):
        result = talk.generate(prompt, max_tokens=400)
        assert result.stats.cached_tokens == expected
        assert result.tokens == cold(window, prompt, 400).tokens
        sizes.add(talk.cache_bytes)
        expected = len(talk.tokens) - 1
        prompt = [*talk.tokens, *SOME[:turn]]
    assert len(sizes) == 3
    assert talk.held.cache.capacity <= MODELS[window].spec.context_length


@pytest.mark.parametrize("after", [1, 2, 5])
def test_an_abandoned_answer_leaves_what_can_be_reused(window, head, after):
    """After a stop anywhere, inside a draft too, the cells are those of the tokens."""
    prompt = SOME[:120]
    answer = cold(window, prompt, 40).tokens
    for drafter in drafters(head, answer, prompt):
        talk = session(MODELS[window], drafter())
        stream = talk.stream(prompt, max_tokens=40)
        for _ in range(after):
            next(stream)
        del stream
        left = len(talk.tokens) - 1
        second = [*talk.tokens, 1, 2, 3]
        result = talk.generate(second, max_tokens=20)
        assert result.stats.cached_tokens == left
        assert result.tokens == cold(window, second, 20).tokens


@pytest.mark.parametrize("end", [0, 1, 2, 3])
def test_a_turn_after_a_stop_inside_a_draft(window, end):
    """C1: what was drafted past the end of an answer is no part of the next prompt's prefix."""
    prompt = SOME[:50]
    answer = cold(window, prompt, 12).tokens
    drafter = fakes.OracleDrafter(
        answer=answer, prompt_tokens=50, k=8, vocab_size=272, check_hidden=False
    )
    talk = session(MODELS[window], drafter)
    stop = answer[1 + end]
    talk.tokenizer.eos_ids = frozenset({stop})
    one = talk.generate(prompt, max_tokens=12)
    assert one.tokens == answer[: answer.index(stop) + 1]
    talk.tokenizer.eos_ids = frozenset()
    second = [*prompt, *one.tokens, 5, 6]
    two = talk.generate(second, max_tokens=12)
    assert two.stats.cached_tokens == len(prompt) + len(one.tokens) - 1
    assert two.tokens == cold(window, second, 12).tokens


class Interrupted(NoDrafter):
    """Ctrl-C while it looks at what the third pass committed."""

    passes = 0

    def observe(self, tokens, hidden_D):
        self.passes += 1
        if self.passes == 3:
            raise KeyboardInterrupt


def test_an_interrupted_answer_leaves_what_can_be_reused(window):
    talk = session(MODELS[window], Interrupted())
    with pytest.raises(KeyboardInterrupt):
        talk.generate(SOME[:100], max_tokens=40)
    second = [*talk.tokens, 1, 2, 3]
    result = talk.using(NoDrafter()).generate(second, max_tokens=20)
    assert result.stats.cached_tokens == 103
    assert result.tokens == cold(window, second, 20).tokens


def test_a_session_can_forget(window):
    talk = session(MODELS[window])
    talk.generate(SOME[:100], max_tokens=4)
    talk.forget()
    assert talk.tokens == []
    assert talk.generate(SOME[:100], max_tokens=4).stats.cached_tokens == 0


@pytest.mark.parametrize("first", [3, 100, 700, 1400])
def test_a_restored_session_goes_on_as_the_saved_one(window, head, first, tmp_path):
    """B10: ids, reuse, first-round acceptance and the reach of rollbacks are the saved one's."""
    path = tmp_path / "talk.safetensors"
    talk = session(MODELS[window], MtpDrafter(head, 4, min_confidence=0.0))
    talk.generate(SOME[:first], max_tokens=30)
    talk.save(path)
    restored = session(MODELS[window], MtpDrafter(head, 4, min_confidence=0.0))
    restored.restore(path)
    assert restored.tokens == talk.tokens
    assert restored.held.cache.rollback_floor == talk.held.cache.rollback_floor
    assert all((a == b).all() for a, b in zip(cells_seen(restored), cells_seen(talk), strict=True))
    second = [*talk.tokens, *b"go on"]
    want, got = (s.generate(second, max_tokens=30) for s in (talk, restored))
    assert got.tokens == want.tokens == cold(window, second, 30).tokens
    assert got.stats.cached_tokens == want.stats.cached_tokens == first + 29
    assert got.stats.accepted_at == want.stats.accepted_at
    assert got.stats.drafted_at == want.stats.drafted_at


def rolled_back(window: int) -> Session:
    """A session whose rings have forgotten more than its length says."""
    talk = session(MODELS[window])
    talk.generate(SOME[:1000], max_tokens=2)
    talk.generate([*SOME[:900], 1], max_tokens=2)
    assert talk.held.cache.rollback_floor == (1001 - 272 + 16 - 1 if window else 0)
    return talk


def saved_and_restored(talk: Session, path: Path) -> Session:
    talk.save(path)
    other = session(talk.backbone)
    other.restore(path)
    return other


def grown(talk: Session, path: Path) -> Session:
    before = talk.held.cache
    next(talk.stream([*SOME[:890], 1], max_tokens=300))  # room for more than it needs
    assert talk.held.cache is not before
    return talk


@pytest.mark.parametrize("copied", [saved_and_restored, grown])
@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_a_copied_ring_has_forgotten_what_its_source_had(window, copied, beside, tmp_path):
    """From the floor of the source on a prefix is reused, below it the start is cold."""
    talk = rolled_back(window)
    floor = talk.held.cache.rollback_floor
    talk = copied(talk, tmp_path / "talk.safetensors")
    common = max(0, talk.held.cache.rollback_floor + beside)
    assert talk.held.cache.rollback_floor >= floor
    other = [*talk.tokens[:common], (talk.tokens[common] + 1) % 256, 7]
    result = talk.generate(other, max_tokens=8)
    assert result.stats.cached_tokens == (common if beside >= 0 else 0)
    assert result.tokens == cold(window, other, 8).tokens


def test_a_copy_too_short_to_wrap_has_forgotten_all_the_same(tmp_path):
    """B10: rings of 16 + 256 cells that wrapped at 300 are saved at 200, where no ring wraps."""
    backbone = open_model(16)
    tokens = [token % backbone.spec.vocab_size for token in range(300)]
    cache = backbone.new_cache(400)
    backbone.forward([Segment(cache, tokens)], rows="last")
    cache.rollback(200)
    floor = cache.rollback_floor
    assert 0 < floor <= 200
    write_snapshot(tmp_path / "s", backbone, cache, tokens[:200])
    copy, _ = read_snapshot(tmp_path / "s", backbone, 400)
    assert (copy.length, copy.rollback_floor) == (200, floor)
    with pytest.raises(ValueError, match="too deep"):
        copy.rollback(floor - 1)
    copy.rollback(0)
    assert copy.rollback_floor == 0


def test_a_file_holds_what_the_rings_hold(tmp_path):
    """Of a windowed layer the window and the slack, however long the talk."""
    talk = session(MODELS[16])
    talk.generate(SOME, max_tokens=2)
    talk.save(tmp_path / "talk.safetensors")
    shapes = {n: t.shape[0] for n, t in load_file(tmp_path / "talk.safetensors").items()}
    assert shapes["1.keys"] == shapes["1.values"] == 1501
    assert shapes["0.keys"] == shapes["2.values"] == 16 + 256


def saved(path: Path, window: int) -> Path:
    talk = session(MODELS[window])
    talk.generate(SOME[:300], max_tokens=5)
    talk.save(path)
    return path


def with_header(path: Path, **changes: str) -> None:
    """Change metadata in the header of a safetensors file."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header["__metadata__"] |= changes
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + raw[8 + size :])


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(bytes(raw))


REFUSED = {
    "backbone": (lambda p: with_header(p, backbone="x" * 64), "another backbone"),
    "tokenizer": (lambda p: with_header(p, tokenizer="x" * 64), "another tokenizer"),
    "version": (lambda p: with_header(p, version="2"), "another file version"),
    "drafthead": (lambda p: with_header(p, drafthead="9.9"), "another version of drafthead"),
    "format": (lambda p: with_header(p, format="x"), "no saved session"),
    "no number": (lambda p: with_header(p, length="many"), "no saved session"),
    "length": (lambda p: with_header(p, length="299"), "should be"),
    "no length": (lambda p: with_header(p, length="0", floor="0"), "damaged"),
    "negative": (lambda p: with_header(p, floor="-1"), "damaged"),
    "floor": (lambda p: with_header(p, floor="999"), "damaged"),
    "last byte": (lambda p: flip(p, -1), "checksum"),
    "middle byte": (lambda p: flip(p, p.stat().st_size // 2), "checksum"),
    "header byte": (lambda p: flip(p, 0), "no saved session"),
    "truncated": (lambda p: p.write_bytes(p.read_bytes()[:-7]), "no saved session"),
    "empty": (lambda p: p.write_bytes(b""), "no saved session"),
    "pickle": (lambda p: p.write_bytes(pickle.dumps({"tokens": [1]})), "no saved session"),
    "missing": (lambda p: p.unlink(), "cannot be read"),
}


@pytest.mark.parametrize("damage", REFUSED)
def test_a_file_that_does_not_fit_is_refused_and_changes_nothing(window, tmp_path, damage):
    """G8, B15: one sentence, and the session answers on as before."""
    path = saved(tmp_path / "talk.safetensors", window)
    change, reason = REFUSED[damage]
    change(path)
    talk = session(MODELS[window])
    talk.generate(SOME[:60], max_tokens=5)
    before, cache = talk.tokens, talk.held.cache
    with pytest.raises(FileError, match=reason) as caught:
        talk.restore(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert message.endswith(".")
    assert "\n" not in message
    assert (talk.tokens, talk.held.cache) == (before, cache)
    assert talk.generate(SOME[:60], max_tokens=5).stats.cached_tokens == 59


def test_a_file_of_other_weights_or_cells_is_refused(window, tmp_path):
    path = saved(tmp_path / "talk.safetensors", window)
    with pytest.raises(FileError, match="another backbone"):
        session(open_model(window, seed=1)).restore(path)
    talk = session(MODELS[window])
    talk.held.take(MODELS[window].new_cache(1024, "f32"), [1, 2])
    talk.generate([1, 2, 3], max_tokens=2)
    talk.save(path)
    with pytest.raises(FileError, match="float32"):
        session(MODELS[window]).restore(path)


def test_a_file_longer_than_the_context_is_refused(window, tmp_path):
    path = saved(tmp_path / "talk.safetensors", window)
    with pytest.raises(CapacityError, match="304 tokens, more than the context of 200"):
        session(MODELS[window], context=200).restore(path)


def test_saving_replaces_a_file_whole_or_not_at_all(tmp_path, monkeypatch):
    path = saved(tmp_path / "talk.safetensors", 0)
    before = path.read_bytes()
    talk = session(MODELS[0])
    with pytest.raises(RequestError, match="nothing to save"):
        talk.save(path)
    talk.generate([1], max_tokens=2)

    def full(*_: object) -> None:
        Path(_[1]).write_bytes(b"half")  # type: ignore[arg-type]
        raise OSError("disk full")

    monkeypatch.setattr("drafthead.backbone.snapshot.save_file", full)
    with pytest.raises(FileError, match="disk full"):
        talk.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileError, match="cannot be written"):
        talk.save(tmp_path / "nowhere" / "talk.safetensors")


def test_the_version_that_wrote_a_file_is_in_it(tmp_path):
    raw = saved(tmp_path / "talk.safetensors", 16).read_bytes()
    metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    assert metadata["drafthead"] == drafthead.__version__
