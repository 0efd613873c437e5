"""K2: what counts in the loss, by the chat templates: the answer and its end token alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_template import FOLDED, Pair, build, made

from drafthead.backbone.registry import cache_folder
from drafthead.gguf.reader import read_gguf
from drafthead.text.template import ChatTemplate, encode_chat
from drafthead.text.tokenizer import Tokenizer
from drafthead.training.data import IGNORED, anchor_table

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "two words"}
SAID = {"role": "assistant", "content": "an old answer"}
CHATS = {
    "one turn": [USER],
    "system": [SYSTEM, USER],
    "two turns": [USER, SAID, {"role": "user", "content": "and more"}],
    "two turns, all the same text": [USER, USER | {"role": "assistant"}, USER],
}
ENDS = {"chatml": "<|im_end|>", "folded": "<end_of_turn>"}


def real(name: str) -> Pair:
    path = cache_folder() / name
    if not path.exists():
        pytest.skip(f"{name} is not in the cache")
    file = read_gguf(path)
    tokenizer = Tokenizer.from_gguf(file)
    return tokenizer, ChatTemplate.from_gguf(file, tokenizer)


def made_pair(kind: str, folder: Path) -> Pair:
    if kind == "chatml":
        return build(folder)
    metadata = made.piece_metadata()
    metadata["tokenizer.ggml.tokens"] += ["<start_of_turn>", "<end_of_turn>"]
    metadata["tokenizer.ggml.token_type"] += [3, 3]
    metadata["tokenizer.ggml.scores"] += [0.0, 0.0]
    metadata |= {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.eot_token_id": len(metadata["tokenizer.ggml.tokens"]) - 1,
        "tokenizer.chat_template": FOLDED,
    }
    path = folder / "chat.gguf"
    path.write_bytes(made.gguf(metadata, {}))
    tokenizer = Tokenizer.from_gguf(read_gguf(path))
    return tokenizer, ChatTemplate.from_gguf(read_gguf(path), tokenizer)


@pytest.fixture(
    scope="module",
    params=[
        "chatml",
        "folded",
        pytest.param("SmolLM2-135M-Instruct.Q4_1.gguf", marks=pytest.mark.backbone),
        pytest.param("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", marks=pytest.mark.backbone),
    ],
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Tokenizer, template, and the token that ends a turn of it."""
    kind = request.param
    pair = made_pair(kind, tmp_path_factory.mktemp(kind)) if kind in ENDS else real(kind)
    return (*pair, pair[0].control_tokens[ENDS.get(kind, "<|im_end|>")])


def answer_ids(tokenizer: Tokenizer, text: str, end: int) -> list[int]:
    return [*(tokenizer.encode(text) if text else []), end]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("text", ["two words", ""], ids=["text", "empty answer"])
def test_prompt_and_answer_are_the_templates_whole_chat(case, chat, text):
    """The text that counts stands where the template puts the assistant's turn."""
    tokenizer, template, end = case
    assert end in tokenizer.eos_ids
    messages = CHATS[chat]
    prompt = encode_chat(tokenizer, template, messages)
    whole = encode_chat(tokenizer, template, [*messages, {"role": "assistant", "content": text}])
    sequence = [*prompt, *answer_ids(tokenizer, text, end)]
    assert whole[: len(sequence)] == sequence
    after = [i for i in whole[len(sequence) :] if i in tokenizer.control_ids]
    assert len(after) == 1  # only the opening of the next turn


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("steps", [1, 3])
def test_labels_are_the_last_answer_and_its_end_token_by_place_and_not_by_text(case, chat, steps):
    """Earlier turns, the system text and equal text of the user never count."""
    tokenizer, template, end = case
    prompt = encode_chat(tokenizer, template, CHATS[chat])
    answer = answer_ids(tokenizer, "two words", end)
    table = anchor_table(prompt, answer, steps)
    places = table.positions_A[None, :] + np.arange(1, steps + 1)[:, None] + 1
    labelled = table.labels_KA != IGNORED
    # the answer's first token comes with the prefill and is never drafted
    expected = range(len(prompt) + 1, len(prompt) + len(answer))
    assert sorted({*places[labelled].tolist()}) == list(expected)
    sequence = np.array([*prompt, *answer])
    assert (table.labels_KA[labelled] == sequence[places[labelled]]).all()
    assert [answer[0], *table.labels_KA[0].tolist()] == answer
    fed = table.positions_A[None, :] + np.arange(1, steps + 1)[:, None]
    assert fed.min() == len(prompt)


def test_an_empty_answer_counts_nothing(case):
    """Its end token comes with the prefill."""
    tokenizer, template, end = case
    prompt = encode_chat(tokenizer, template, [USER])
    assert anchor_table(prompt, answer_ids(tokenizer, "", end), 3).labels_KA.size == 0
