"""Laws of a training on an accelerator: all of it is there, and it is the same training."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import pytest
import torch
import trainee
from test_trainer import CONFIG, RECIPE, answers

from drafthead.errors import TrainingError
from drafthead.training import checkpoint
from drafthead.training.batching import BatchMaker
from drafthead.training.data import DraftVocabulary, anchor_count
from drafthead.training.device import CPU, device_here
from drafthead.training.features import FeatureStore
from drafthead.training.modules import FrozenMtpHead
from drafthead.training.parallel import Workers, joined
from drafthead.training.replay import replay
from drafthead.training.selection import Costs, Trial, numpy_weights
from drafthead.training.trainer import CHECKPOINT, Trainer
from tests.elsewhere import pretended

pytestmark = pytest.mark.usefixtures("one_thread")
VARIANTS = {
    "ce": ({}, {}),
    "bf16": ({}, {"precision": "bf16"}),
    "kl, two layers, query bias and norm": (
        {"kv_layers": (2, 1), "attention_bias": True, "qk_norm": True}, {"loss": "kl"},
    ),
    "lk, muon, averages, markov bias": (
        {"markov_rank": 8}, {"loss": "lk", "optimizer": "muon", "average": 0.2},
    ),
    "tv, taps, two positions, tokens of the text": (
        {"taps": (0,), "positions": 2, "kv_layers": (-1, 2), "prompt_tokens": True},
        {"loss": "tv"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = tmp_path_factory.mktemp("f")
    FeatureStore(store, trainee.TinyBackbone(), answers(), (1, 2), (0,)).build()
    return store


def train(store, folder, device, config, recipe, stop_at=None):
    """Train a head on a device, with evaluations; its weights and its checkpoint."""
    rows, backbone = answers(), trainee.TinyBackbone()
    reads = [layer for layer in config.kv_layers if layer >= 0]
    features = FeatureStore(store, backbone, rows, reads, config.taps)
    features.build()
    words = DraftVocabulary(torch.arange(0, trainee.V - 16).numpy(), trainee.V)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[recipe.precision]
    maker = BatchMaker(
        backbone, features, rows, words, 2, dtype, prompt_tokens=config.prompt_tokens
    ).to(device)
    torch.manual_seed(0)
    head = FrozenMtpHead(dataclasses.replace(config, draft_vocab_size=trainee.V - 16)).to(device)
    counts = [anchor_count(len(row.prompt_tokens), len(row.answer)) for row in rows]
    trained = Trainer(head, recipe, maker, counts, folder, Workers(device=device))

    def evaluate(head):
        stats = replay(head, maker, [list(range(24))], autocast=recipe.precision == "bf16")
        return Trial(stats, stats.drafted, Costs([10.0, 11.0, 12.0], 1.0))

    trained.run(evaluate, stop_at=stop_at)
    trained.keep_best()
    return numpy_weights(head), checkpoint.load(folder / CHECKPOINT)


@pytest.mark.parametrize(("shape", "how"), VARIANTS.values(), ids=VARIANTS)
def test_a_training_on_an_accelerator_never_touches_the_processor(
    store, tmp_path, monkeypatch, shape, how
):
    """And is stopped and resumed there. The pretended one has the processor's bits."""
    config, recipe = dataclasses.replace(CONFIG, **shape), dataclasses.replace(RECIPE, **how)
    here, (tensors, state) = train(store, tmp_path / "here", CPU, config, recipe)
    with pretended(monkeypatch) as device:
        train(store, tmp_path / "there", device, config, recipe, stop_at=9)
        there, (moved, told) = train(store, tmp_path / "there", device, config, recipe)
    assert here.keys() == there.keys() and tensors.keys() == moved.keys()
    assert all((here[name] == there[name]).all() for name in here)
    assert all(torch.equal(tensors[name], moved[name]) for name in tensors)
    assert state | {"seconds": 0} == told | {"seconds": 0}


@pytest.mark.parametrize("asked", ["cuda", "nonsense"])
def test_a_device_that_is_not_here_is_refused_in_one_sentence(asked, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "99")  # beyond what any machine has
    with pytest.raises(TrainingError) as refused:
        device_here(asked)
    assert str(refused.value).startswith(f"There is no device '{asked}")
    assert str(refused.value).endswith("use --device cpu, or cuda with a torch that has it.")


def test_each_process_of_a_machine_has_an_accelerator_of_its_own(monkeypatch):
    monkeypatch.setattr("drafthead.training.device.usable_device", lambda name: name)
    assert device_here("cuda") == "cuda:0"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert [device_here(name) for name in ("cuda", "cuda:1", "cpu")] == ["cuda:3", "cuda:1", "cpu"]


@pytest.mark.parametrize(("device", "backend"), [("cuda:1", "nccl"), ("cpu", "gloo")])
def test_processes_join_by_the_means_of_their_device(monkeypatch, device, backend):
    told = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    dist = torch.distributed
    monkeypatch.setattr(dist, "init_process_group", lambda kind, **_how: told.append(kind))
    for name, value in {"get_rank": 1, "get_world_size": 2}.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    for name in ("barrier", "destroy_process_group"):
        monkeypatch.setattr(dist, name, nullcontext)
    with joined(torch.device(device)) as workers:
        assert (workers.rank, workers.size, str(workers.device)) == (1, 2, device)
    assert [str(word) for word in told] == ([device] if backend == "nccl" else []) + [backend]


def test_the_pretended_accelerator_refuses_what_a_real_one_does(monkeypatch):
    """Or the law above would hold of anything."""
    here = torch.ones(3)
    with pretended(monkeypatch) as device:
        there = here.to(device) * 2
        assert there.device == device and there.sum().item() == 6
        assert (there.cpu() + here).numpy().tolist() == [3, 3, 3]
        for mixed in (lambda: there + here, lambda: here[there > 0], there.numpy):
            with pytest.raises((RuntimeError, TypeError)):
                mixed()
