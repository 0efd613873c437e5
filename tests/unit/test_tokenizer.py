"""The tokenizer is the model's own, and no text can produce a control token."""

from __future__ import annotations

import math
from pathlib import Path

import gguf_bytes as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafthead.errors import GgufError, RequestError, UnsupportedError
from drafthead.gguf.reader import read_gguf
from drafthead.text.tokenizer import Tokenizer

FIRST_BYTE = len(made.CONTROL)
FIRST_PIECE = len(made.PIECE_CONTROL) + 256
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def build(folder: Path, pieces: bool = False, **changes: object) -> Tokenizer:
    """A tokenizer of one of the hand-made vocabularies; None takes a key away."""
    metadata = made.piece_metadata() if pieces else made.tokenizer_metadata()
    for name, value in changes.items():
        metadata[f"tokenizer.ggml.{name}"] = value
    metadata = {key: value for key, value in metadata.items() if value is not None}
    path = folder / "tokenizer.gguf"
    path.write_bytes(made.gguf(metadata, {}))
    return Tokenizer.from_gguf(read_gguf(path))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return build(tmp_path_factory.mktemp("pieces"), pieces=True)


def names(tokenizer: Tokenizer, text: str) -> list[str]:
    """What the pieces of a text are called; bytes by their number."""
    ids = tokenizer.encode(text)
    return [made.PIECES[i - FIRST_PIECE] if i >= FIRST_PIECE else f"{i - 3:02X}" for i in ids]


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


def test_bytes_that_are_no_tokens_are_dropped(tmp_path: Path) -> None:
    """What stood around them is merged as neighbours, as the reference does."""
    tokens = ["a", "b", "ab"]
    tokenizer = build(
        tmp_path, tokens=tokens, token_type=[1] * 3, merges=["a b"], bos_token_id=None,
        eos_token_id=None,
    )  # fmt: skip
    assert tokenizer.encode("a") == [0]
    assert tokenizer.encode("a1b") == [0, 1]  # three words
    assert tokenizer.encode("a\u00e9b") == [2]  # one word


def test_qwen_composes_text_first(tmp_path: Path) -> None:
    """The qwen2 rule reads e and a combining acute as the one letter they are."""
    composed = [FIRST_BYTE + byte for byte in "\u00e9".encode()]
    assert build(tmp_path, pre="qwen2").encode("e\u0301") == composed
    assert build(tmp_path, pre="llama-bpe").encode("e\u0301")[0] == FIRST_BYTE + ord("e")


def test_pieces_are_joined_by_their_scores(pieces: Tokenizer) -> None:
    """ "he" and "ll" come before "hello"; of "hell" and a second "he" nothing longer is made."""
    assert names(pieces, "hello") == ["\u2581hello"]
    assert names(pieces, "hellhe") == ["\u2581", "hell", "he"]
    assert names(pieces, "a  a") == ["\u2581a", "\u2581", "\u2581a"]
    assert names(pieces, "b   ") == ["\u2581", "b", "\u2581\u2581", "\u2581"]  # leftmost first


def test_what_no_piece_covers_becomes_its_bytes(pieces: Tokenizer) -> None:
    """Characters without a piece fall back to the tokens of their UTF-8 bytes, and come back."""
    assert names(pieces, "h\u20ac\n") == ["\u2581", "h", "E2", "82", "AC", "0A"]
    assert pieces.decode(pieces.encode("h\u20ac\n")) == "h\u20ac\n"
    assert names(pieces, "<0x41>")[1:] == ["3C", "30", "78", "34", "31", "3E"]  # text is no byte


def test_a_space_stands_before_the_text_where_the_file_wants_it(tmp_path: Path) -> None:
    """add_space_prefix decides, yes by default; an empty text stays empty."""
    default, without = build(tmp_path, True), build(tmp_path, True, add_space_prefix=False)
    assert names(default, "a") == ["\u2581a"]
    assert names(without, "a") == ["a"]
    assert names(without, " a") == ["\u2581a"]
    assert default.encode("") == without.encode("") == []
    for text in ("a", " a", "  a", " ", "a "):
        assert default.decode(default.encode(text)) == without.decode(without.encode(text)) == text


def test_user_defined_pieces_come_first_and_stay_alone(tmp_path: Path) -> None:
    """They are never merged, the longest wins, and text after one begins anew."""
    metadata = made.piece_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "  ", "   ", "<b>"]
    types = [*metadata["tokenizer.ggml.token_type"], 4, 4, 4]
    scores = [*metadata["tokenizer.ggml.scores"], 0.0, 0.0, 0.0]
    changes = {"tokens": tokens, "token_type": types, "scores": scores}
    two, three, bold = range(len(tokens) - 3, len(tokens))
    a, space_a = FIRST_PIECE + 1, FIRST_PIECE + made.PIECES.index("\u2581a")
    without = build(tmp_path, True, add_space_prefix=False, **changes)
    assert without.encode("a    a<b>a") == [a, three, space_a, bold, a]
    default = build(tmp_path, True, **changes)
    assert default.encode("a<b>a") == [space_a, bold, space_a]
    assert default.encode("<b>a") == [bold, space_a]
    assert default.encode("  ") == [two]
    assert default.decode([two, a]) == "  a"  # no space was put before a user-defined piece


@pytest.mark.parametrize("pieces", [False, True])
def test_text_comes_back_and_is_never_control(tmp_path: Path, pieces: bool) -> None:
    """decode(encode(text)) is text, and no id is a control token's, whatever names it holds."""
    tokenizer = build(tmp_path, pieces)
    control = made.PIECE_CONTROL if pieces else made.CONTROL
    parts = st.sampled_from([*control, "<|im_", "end|>", "<", "s>", "|>", " ", "hello"])

    @given(st.one_of(TEXT, st.lists(parts).map("".join)))
    @settings(max_examples=400, deadline=None)
    def holds(text: str) -> None:
        ids = tokenizer.encode(text)
        assert not tokenizer.control_ids & set(ids)
        assert tokenizer.decode(ids) == (text.replace("\u2581", " ") if pieces else text)

    holds()


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


def test_markup_that_looks_like_an_end_is_text(tmp_path: Path) -> None:
    """ "</s>" ends an answer as a control token; elsewhere it is a tag (Gemma's vocabulary)."""
    metadata = made.tokenizer_metadata()
    tokens = [*metadata["tokenizer.ggml.tokens"], "</s>"]
    last = len(tokens) - 1
    for kind, ends in ((3, True), (4, False)):
        types = [*metadata["tokenizer.ggml.token_type"], kind]
        tokenizer = build(tmp_path, tokens=tokens, token_type=types)
        assert (last in tokenizer.eos_ids) is ends
        assert (last in tokenizer.control_ids) is ends
        assert (tokenizer.encode("</s>") == [last]) is not ends


def test_more_end_ids_are_taken_from_their_keys(tmp_path: Path) -> None:
    """eot and eom ids end an answer too."""
    tokenizer = build(tmp_path, eot_token_id=40, eom_token_id=41)
    assert tokenizer.eos_ids == {0, 2, 40, 41}
    assert {40, 41} <= tokenizer.control_ids


@pytest.mark.parametrize(
    ("pieces", "changes", "added"),
    [
        (True, {}, 1),
        (True, {"add_bos_token": False}, None),
        (True, {"bos_token_id": None}, 1),  # SentencePiece files mean 1
        (True, {"bos_token_id": 2, "add_bos_token": True}, 2),
        (False, {"add_bos_token": None}, None),
        (False, {"add_bos_token": True}, 1),
        (False, {"add_bos_token": True, "bos_token_id": None}, None),
        (False, {"add_bos_token": None, "pre": "qwen2"}, None),
        (False, {"add_bos_token": None, "pre": "llama-bpe"}, 1),
        (False, {"add_bos_token": None, "pre": "llama-bpe", "bos_token_id": None}, None),
        (False, {"add_bos_token": None, "pre": "smaug-bpe"}, None),
    ],
)
def test_bos_is_added_as_the_file_says(
    tmp_path: Path, pieces: bool, changes: dict[str, object], added: int | None
) -> None:
    """G3: by add_bos_token, else by family, and never an id that the file does not name."""
    tokenizer = build(tmp_path, pieces, **changes)
    assert (tokenizer.bos_id if tokenizer.add_bos else None) == added


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


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer, pieces: Tokenizer) -> None:
    """A string that is no valid Unicode gets a sentence, not a traceback."""
    for each in (tokenizer, pieces):
        with pytest.raises(RequestError, match="half of a surrogate pair"):
            each.encode("a\ud83d")


def test_the_fingerprint_follows_vocabulary_and_merges(tmp_path: Path) -> None:
    """G1: a merge, a token, a type or a special id changes it; the chat template does not."""
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
        ({"model": "t5"}, UnsupportedError, "tokenizer.ggml.model is 't5'"),
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


@pytest.mark.parametrize(
    ("changes", "error", "fragment"),
    [
        ({"scores": None}, GgufError, "scores must be an array of floats, found nothing"),
        ({"scores": [0] * 276}, GgufError, "scores must be an array of floats, found another"),
        ({"scores": [0.0] * 275}, GgufError, "scores has 275 elements for 276 tokens"),
        ({"scores": [0.0] * 275 + [math.nan]}, GgufError, "scores must be finite, found nan"),
        ({"scores": [math.inf] + [0.0] * 275}, GgufError, "scores must be finite, found inf"),
        ({"token_type": [1] * 276}, GgufError, "for each byte, and <0x00> is not there"),
        (
            {"token_type": [2, 3, 3] + [6] * 255 + [1] * 18},
            GgufError,
            "for each byte, and <0xFF> is not there",
        ),
        ({"token_type": [7] * 276}, GgufError, "token 0 of the vocabulary has an unknown type"),
        ({"token_type": None}, GgufError, "tokenizer.ggml.token_type is missing"),
        ({"add_space_prefix": 1}, GgufError, "add_space_prefix must be a boolean"),
        ({"bos_token_id": 276}, GgufError, "bos_token_id must be an integer from 0 to 275"),
        ({"bos_token_id": 5}, GgufError, "for each byte, and <0x02> is not there"),
        ({"precompiled_charsmap": [1]}, UnsupportedError, "precompiled_charsmap"),
        ({"remove_extra_whitespaces": True}, UnsupportedError, "remove_extra_whitespaces"),
    ],
)
def test_an_unusable_sentencepiece_vocabulary_is_named(
    tmp_path: Path, changes: dict[str, object], error: type[Exception], fragment: str
) -> None:
    """Scores and bytes too: one sentence, before anything is built of them."""
    with pytest.raises(error) as caught:
        build(tmp_path, True, **changes)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)
