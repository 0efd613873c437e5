"""The tokenizer is the model's own, and no text can produce a control token."""

from __future__ import annotations

import json
from pathlib import Path

import gguf_bytes as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafthead.errors import GgufError, RequestError, UnsupportedError
from drafthead.gguf.reader import read_gguf
from drafthead.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "smollm2_tokens.json"
FIRST_BYTE = len(made.CONTROL)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def build(folder: Path, **changes: object) -> Tokenizer:
    """A tokenizer of the hand-made vocabulary; None takes a key away."""
    metadata = made.tokenizer_metadata()
    for name, value in changes.items():
        metadata[f"tokenizer.ggml.{name}"] = value
    metadata = {key: value for key, value in metadata.items() if value is not None}
    path = folder / "tokenizer.gguf"
    path.write_bytes(made.gguf(metadata, {}))
    return Tokenizer.from_gguf(read_gguf(path))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build(tmp_path_factory.mktemp("tokenizer"))


def test_merges_apply_in_their_order(tokenizer: Tokenizer) -> None:
    """ "hello" is one token, digits stay alone, and spaces and newlines join as the merges say."""
    names = made.CONTROL + made.byte_alphabet() + [m.replace(" ", "") for m in made.MERGES]
    pieces = [names[i] for i in tokenizer.encode("hello  w hell12\n\n")]
    assert pieces == ["hello", "Ġ", "Ġw", "Ġ", "hell", "1", "2", "ĊĊ"]


def test_digits_stay_alone_whatever_the_merges_say(tmp_path: Path) -> None:
    """The smollm pre-tokenizer splits "12" before a merge of its digits could apply."""
    metadata = made.tokenizer_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "12"]
    types = [*metadata["tokenizer.ggml.token_type"], 1]
    tokenizer = build(tmp_path, tokens=tokens, token_type=types, merges=[*made.MERGES, "1 2"])
    assert tokenizer.encode("12") == [FIRST_BYTE + ord("1"), FIRST_BYTE + ord("2")]


@given(TEXT)
@settings(max_examples=300, deadline=None)
def test_text_comes_back_as_it_went_in(tokenizer: Tokenizer, text: str) -> None:
    """With all bytes in the vocabulary decode(encode(text)) is text, and no id is a control."""
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not tokenizer.control_ids & set(ids)


@given(st.lists(st.sampled_from([*made.CONTROL, "<|im_", "end|>", "<", "|>", " ", "hello"])))
@settings(max_examples=200, deadline=None)
def test_names_of_control_tokens_are_ordinary_text(tokenizer: Tokenizer, words: list[str]) -> None:
    """Whatever a text makes of control tokens' names, its ids are none of theirs."""
    ids = tokenizer.encode("".join(words))
    assert not tokenizer.control_ids & set(ids)
    assert tokenizer.decode(ids) == "".join(words)


def test_a_merge_cannot_make_a_control_token(tmp_path: Path) -> None:
    """A file whose merges would build a control token out of text is refused."""
    tokens = ["<x>", "<", "x>", "x", ">"]
    with pytest.raises(GgufError, match="found '< x>'"):
        build(
            tmp_path,
            tokens=tokens,
            token_type=[3, 1, 1, 1, 1],
            merges=["x >", "< x>"],
            bos_token_id=None,
            eos_token_id=None,
        )


def test_special_ids_follow_the_file(tokenizer: Tokenizer) -> None:
    """Ends are the file's id and control tokens that end turns; BOS is named, not added."""
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.control_ids == {0, 1, 2}
    assert tokenizer.control_tokens == {name: i for i, name in enumerate(made.CONTROL)}
    assert (tokenizer.bos_id, tokenizer.add_bos, tokenizer.vocab_size) == (1, False, 266)


def test_an_end_token_is_a_control_token_whatever_its_type(tmp_path: Path) -> None:
    """<|im_end|> declared as user-defined or normal still ends a turn and never comes from text."""
    for kind in (1, 4):
        types = [3, 3, kind] + [1] * 263
        tokenizer = build(tmp_path, token_type=types, eos_token_id=0)
        assert tokenizer.eos_ids == {0, 2}
        assert 2 not in tokenizer.encode("a<|im_end|>b")


def test_more_end_ids_are_taken_from_their_keys(tmp_path: Path) -> None:
    """eot and eom ids end an answer too."""
    tokenizer = build(tmp_path, eot_token_id=40, eom_token_id=41)
    assert tokenizer.eos_ids == {0, 2, 40, 41}
    assert {40, 41} <= tokenizer.control_ids


def test_a_file_without_bos_adds_none(tmp_path: Path) -> None:
    """add_bos_token without an id cannot add anything; with one it is passed on."""
    assert not build(tmp_path, bos_token_id=None, add_bos_token=True).add_bos
    assert build(tmp_path, add_bos_token=True).add_bos


def test_user_defined_tokens_are_found_in_text(tmp_path: Path) -> None:
    """A token of type 4 is one id wherever its text stands."""
    metadata = made.tokenizer_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "<think>"]
    types = [*metadata["tokenizer.ggml.token_type"], 4]
    tokenizer = build(tmp_path, tokens=tokens, token_type=types)
    ids = tokenizer.encode("a<think>b")
    assert ids == [FIRST_BYTE + ord("a"), len(tokens) - 1, FIRST_BYTE + ord("b")]
    assert tokenizer.decode(ids) == "a<think>b"


def test_token_bytes_are_the_bytes(tokenizer: Tokenizer) -> None:
    """Byte tokens give their byte, merged tokens their text, control tokens nothing."""
    for byte in range(256):
        assert tokenizer.token_bytes(FIRST_BYTE + byte) == bytes([byte])
    assert tokenizer.token_bytes(265) == b"\n\n"
    assert [tokenizer.token_bytes(i) for i in range(3)] == [b"", b"", b""]
    for wrong in (-1, 266):
        with pytest.raises(RequestError, match=f"{wrong} is not in 0..265"):
            tokenizer.token_bytes(wrong)


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    """A string that is no valid Unicode gets a sentence, not a traceback."""
    with pytest.raises(RequestError, match="half of a surrogate pair"):
        tokenizer.encode("a\ud83d")


def test_the_fingerprint_follows_vocabulary_and_merges(tmp_path: Path) -> None:
    """One merge, one token, one type or one special id changes it; the chat template does not."""
    first = build(tmp_path).fingerprint
    assert build(tmp_path).fingerprint == first
    tokens = made.tokenizer_metadata()["tokenizer.ggml.tokens"]
    changes = {
        "merges": made.MERGES[:-1],
        "tokens": [*tokens[:-1], "other"],
        "token_type": [3] * 4 + [1] * 262,
        "eos_token_id": 0,
    }
    for name, value in changes.items():
        if name == "tokens":
            other = build(tmp_path, tokens=value, merges=made.MERGES[:-1]).fingerprint
        else:
            other = build(tmp_path, **{name: value}).fingerprint
        assert other != first, name
    path = tmp_path / "other.gguf"
    path.write_bytes(made.gguf(made.tokenizer_metadata() | {"tokenizer.chat_template": "x"}, {}))
    assert Tokenizer.from_gguf(read_gguf(path)).fingerprint == first


@pytest.mark.parametrize(
    ("changes", "error", "fragment"),
    [
        ({"model": "llama"}, UnsupportedError, "tokenizer.ggml.model is 'llama'"),
        ({"pre": "tekken"}, UnsupportedError, "tokenizer.ggml.pre is 'tekken'"),
        ({"pre": None}, GgufError, "tokenizer.ggml.pre is missing"),
        ({"add_space_prefix": True}, UnsupportedError, "add_space_prefix"),
        ({"tokens": None}, GgufError, "tokenizer.ggml.tokens is missing"),
        ({"tokens": [1, 2]}, GgufError, "must be an array of strings"),
        ({"tokens": ["a", "b", "a"], "token_type": [1] * 3}, GgufError, "'a' is in the vocabulary"),
        ({"tokens": ["a", ""], "token_type": [1] * 2}, GgufError, "token 1 of the vocabulary"),
        ({"token_type": [1] * 9}, GgufError, "9 elements for 266 tokens"),
        ({"token_type": [0] + [1] * 265}, GgufError, "token 0 of the vocabulary has an unknown"),
        ({"token_type": ["1"] * 266}, GgufError, "must be an array of integers"),
        ({"merges": ["he"]}, GgufError, "found 'he'"),
        ({"merges": ["h e l"]}, GgufError, "found 'h e l'"),
        ({"merges": ["a b"]}, GgufError, "its result a text token; found 'a b'"),
        ({"merges": ["a "]}, GgufError, "found 'a '"),
        ({"merges": ["<|im_ end|>"]}, GgufError, "two text tokens"),
        ({"eos_token_id": 266}, GgufError, "eos_token_id must be an integer from 0 to 265"),
        ({"bos_token_id": "1"}, GgufError, "bos_token_id must be an integer"),
    ],
)
def test_an_unusable_tokenizer_is_named(
    tmp_path: Path, changes: dict[str, object], error: type[Exception], fragment: str
) -> None:
    """Each missing, wrong or unsupported key ends in a sentence that names it."""
    with pytest.raises(error) as caught:
        build(tmp_path, **changes)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.backbone
def test_ids_are_those_of_the_models_own_tokenizer(backbone_path: Path) -> None:
    """Golden ids of many scripts, code, digits, white space and emoji, as llama.cpp gives them."""
    tokenizer = Tokenizer.from_gguf(read_gguf(backbone_path))
    for text, ids in json.loads(GOLDEN.read_text("utf-8")):
        assert tokenizer.encode(text) == ids, text
    assert tokenizer.eos_ids == {0, 2}
    assert not tokenizer.add_bos
