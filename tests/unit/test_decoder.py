"""Streamed text is the whole text, and no piece ever ends inside a character."""

from __future__ import annotations

import itertools

import gguf_bytes as made
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafthead.gguf.reader import read_gguf
from drafthead.text.decoder import StreamDecoder
from drafthead.text.tokenizer import Tokenizer

FIRST_BYTE = len(made.CONTROL)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("decoder") / "tokenizer.gguf"
    path.write_bytes(made.gguf(made.tokenizer_metadata(), {}))
    return Tokenizer.from_gguf(read_gguf(path))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("decoder") / "pieces.gguf"
    path.write_bytes(made.gguf(made.piece_metadata(), {}))
    return Tokenizer.from_gguf(read_gguf(path))


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer)
    return [*map(decoder.push, ids), decoder.flush()]


def byte_ids(raw: bytes) -> list[int]:
    return [FIRST_BYTE + byte for byte in raw]


def test_all_bytes_and_pairs_of_bytes_decode(tokenizer: Tokenizer) -> None:
    """256 single bytes and 65,536 pairs never throw and stream to the text of the whole."""
    for length in (1, 2):
        for raw in itertools.product(range(256), repeat=length):
            pieces = streamed(tokenizer, byte_ids(bytes(raw)))
            assert "".join(pieces) == bytes(raw).decode("utf-8", "replace")


@given(st.binary(max_size=40))
@settings(max_examples=500, deadline=None)
def test_any_bytes_stream_to_the_text_of_the_whole(tokenizer: Tokenizer, raw: bytes) -> None:
    """Pieces joined equal decode() of all ids, whatever the bytes."""
    ids = byte_ids(raw)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
@settings(max_examples=300, deadline=None)
def test_a_character_comes_whole_with_its_last_byte(tokenizer: Tokenizer, text: str) -> None:
    """Fed byte by byte, each piece is nothing or one whole character of the text."""
    pieces = [piece for piece in streamed(tokenizer, byte_ids(text.encode())) if piece]
    assert pieces == list(text)


def test_control_tokens_inside_a_character_print_nothing(tokenizer: Tokenizer) -> None:
    """A control token has no text, and a character goes on behind it."""
    euro = byte_ids("€".encode())
    pieces = streamed(tokenizer, [euro[0], 1, *euro[1:], 2])
    assert pieces == ["", "", "", "€", "", ""]


def test_an_unfinished_character_becomes_one_mark_at_the_end(tokenizer: Tokenizer) -> None:
    """flush() gives U+FFFD for it and leaves the decoder as new."""
    decoder = StreamDecoder(tokenizer)
    assert [decoder.push(i) for i in byte_ids("👍".encode()[:3])] == ["", "", ""]
    assert decoder.flush() == "\ufffd"
    assert decoder.push(FIRST_BYTE + ord("a")) == "a"
    assert decoder.flush() == ""


def test_byte_tokens_of_a_sentencepiece_vocabulary_wait_for_their_character(
    pieces: Tokenizer,
) -> None:
    """<0xE2> <0x82> <0xAC> print the sign with the last of them; alone they become U+FFFD."""
    first = len(made.PIECE_CONTROL)
    euro = [first + byte for byte in "€".encode()]
    assert streamed(pieces, euro) == ["", "", "€", ""]
    hello = first + 256 + made.PIECES.index("hello")
    assert streamed(pieces, [*euro[:2], hello]) == ["", "", "\ufffdhello", ""]
    assert streamed(pieces, [euro[0]]) == ["", "\ufffd"]


def test_the_space_before_a_text_is_dropped_at_its_start_only(pieces: Tokenizer) -> None:
    """Once, behind any control tokens, and not where the ids continue a text."""
    ids = {name: number for number, name in enumerate(made.PIECES, len(made.PIECE_CONTROL) + 256)}
    hello, space, a = ids["\u2581hello"], ids["\u2581"], ids["\u2581a"]
    assert streamed(pieces, [1, hello, hello]) == ["", "hello", " hello", ""]
    assert streamed(pieces, [space, a]) == ["", " a", ""]
    assert streamed(pieces, [ids["a"], a]) == ["a", " a", ""]
    continued = StreamDecoder(pieces, continues=True)
    assert [continued.push(i) for i in (hello, a)] == [" hello", " a"]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=20))
@settings(max_examples=300, deadline=None)
def test_a_sentencepiece_text_streams_back(pieces: Tokenizer, text: str) -> None:
    """Pieces joined are the text that was encoded, and no piece holds half a character."""
    assert "".join(streamed(pieces, pieces.encode(text))) == text
