"""Ctrl-C and a prompt that does not fit, as a user of the command line meets them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.byte_tokens import byte_tokenizer
from tests.tiny import TinySpec, write_tiny_llama

# As `drafthead` does; where the tests run in the background, a shell has Ctrl-C ignored.
MAIN = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from drafthead.cli.main import main
raise SystemExit(main())
"""
WORDS = ["--head", "none", "--threads", "1", "--raw", "--ignore-eos"]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """`drafthead generate` with a tiny model of a long context, and the words of a long answer."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    spec = TinySpec(context=1 << 16)
    write_tiny_llama(path, spec, tokenizer=byte_tokenizer(spec.vocab))
    start = [sys.executable, "-c", MAIN, "generate", "--backbone", str(path), *WORDS]
    return [*start, "--max-tokens", "60000"]


@pytest.mark.parametrize("drafter", ["none", "ngram", "jacobi"])
def test_ctrl_c_leaves_what_was_shown_and_one_sentence(command, drafter):
    with subprocess.Popen(
        [*command, "hello", "--drafter", drafter],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        shown = running.stdout.read(40)
        running.send_signal(signal.SIGINT)
        rest, said = running.communicate(timeout=120)
    assert running.returncode == 130
    assert said == b"drafthead generate: stopped.\n"
    assert len(shown) == 40
    assert rest.endswith(b"\n")


def test_a_prompt_past_the_context_is_one_sentence_with_both_numbers(command, tmp_path):
    short = tmp_path / "short.gguf"
    write_tiny_llama(short, TinySpec(context=64), tokenizer=byte_tokenizer(TinySpec.vocab))
    words = [short if Path(word).suffix == ".gguf" else word for word in command]
    done = subprocess.run(
        [*map(str, words), "x" * 65], capture_output=True, text=True, check=False, timeout=300
    )
    sentence = "The prompt has 65 tokens but the context holds 64: shorten it."
    assert done.stderr == f"drafthead generate: {sentence}\n"
    assert (done.returncode, done.stdout) == (1, "")
