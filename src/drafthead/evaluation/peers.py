"""Other engines beside drafthead: the same file, the same tokens in, the same threads.

llama.cpp is reached through the low-level functions of its Python binding. Logits are read where it
keeps them and not copied, so that what is timed is the engine. Shapes: R output rows, V vocabulary.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from time import perf_counter, process_time, sleep
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drafthead.decoding.constraints import EndRule, FinishReason, token_limit
from drafthead.errors import CapacityError, FileError, UnsupportedError
from drafthead.evaluation.machine import EnergyMeter
from drafthead.evaluation.metrics import PLAIN, Answer
from drafthead.evaluation.prompts import PromptRow, end_ids, prompt_ids
from drafthead.session import Session
from drafthead.types import DecodeStats

PEERS = ("llama.cpp",)
BATCH_ROWS = 512
# Threads of either engine spin for a while after their last pass, on cores that the other needs.
SETTLE_S = 0.02
# Of an arm's line, what says something of an engine that decodes plainly.
PEER_FIELDS = (
    "task", "prompts", "tokens", "looped", "passes", "tok_s", "speedup_vs_plain", "ttft_ms",
    "identical", "cpu_s_per_token", "joules_per_token",
)  # fmt: skip


class Peer(Protocol):
    """An engine with one sequence of at most `context` tokens."""

    name: str
    context: int

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the sequence."""

    def choose(self, tokens: Sequence[int]) -> int:
        """Append tokens and return the greedy choice after the last."""


class LlamaCpp:
    """One model and one context of llama.cpp."""

    name = "llama.cpp"

    def __init__(self, path: str | Path, threads: int, context: int) -> None:
        """Load a GGUF file.

        Args:
            path: the file.
            threads: of prompts and of decoding.
            context: tokens that the sequence can hold.

        Raises:
            UnsupportedError: llama-cpp-python is not installed or does not load.
            FileError: llama.cpp does not take the file.
        """
        self._api = api = silenced()[0]
        self.version = f"llama-cpp-python {api.__version__}"
        model = api.llama_model_load_from_file(os.fsencode(path), api.llama_model_default_params())
        if not model:
            raise FileError(f"{self.version} cannot load {path}.")
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = context, BATCH_ROWS, BATCH_ROWS
        options.n_threads = options.n_threads_batch = threads
        self._model, self._context = model, api.llama_init_from_model(model, options)
        if not self._context:
            api.llama_model_free(model)
            raise FileError(f"{self.version} cannot make {context} cells for {path}.")
        self.build = " ".join(api.llama_print_system_info().decode().strip(" |").split())
        self.context, self.length, self.threads = context, 0, threads
        self.vocab_size = int(api.llama_vocab_n_tokens(api.llama_model_get_vocab(model)))
        self._memory = api.llama_get_memory(self._context)
        self._batch = batch = api.llama_batch_init(BATCH_ROWS, 0, 1)
        fields = {name: getattr(batch, name) for name in ("token", "pos", "logits", "n_seq_id")}
        self._rows = {
            name: np.ctypeslib.as_array(pointer, (BATCH_ROWS,)) for name, pointer in fields.items()
        }
        self._rows["n_seq_id"][:] = 1
        for row in range(BATCH_ROWS):
            batch.seq_id[row][0] = 0

    def close(self) -> None:
        """Give its memory back; the object is of no use afterwards."""
        self._api.llama_batch_free(self._batch)
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)

    def rollback(self, length: int) -> None:
        """Keep the first `length` tokens of the sequence.

        Raises:
            CapacityError: a sliding window has dropped what that would need.
        """
        if not self._api.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise CapacityError(f"llama.cpp cannot roll back from {self.length} to {length}.")
        self.length = length

    def feed(self, tokens: Sequence[int], every_row: bool = False) -> NDArray[np.float32]:
        """Append tokens and return logits (R, V), which the next call overwrites.

        Args:
            tokens: any number for the last row's logits, at most BATCH_ROWS for every row's.
            every_row: logits of all of them, not of the last alone.

        Raises:
            CapacityError: they do not fit.
        """
        for start in range(0, len(tokens), BATCH_ROWS):
            chunk = tokens[start : start + BATCH_ROWS]
            count = self._batch.n_tokens = len(chunk)
            self._rows["token"][:count] = chunk
            self._rows["pos"][:count] = range(self.length, self.length + count)
            self._rows["logits"][:count] = every_row
            self._rows["logits"][count - 1] = start + count == len(tokens)
            if self._api.llama_decode(self._context, self._batch):
                raise CapacityError(
                    f"llama.cpp cannot add {count} tokens to {self.length} of {self.context}."
                )
            self.length += count
        logits = self._api.llama_get_logits(self._context)
        shape = (len(tokens) if every_row else 1, self.vocab_size)
        return np.ctypeslib.as_array(logits, shape)

    def choose(self, tokens: Sequence[int]) -> int:
        """Append tokens and return the greedy choice after the last."""
        return int(self.feed(tokens)[0].argmax())


def llama_cpp() -> ModuleType:
    """The binding.

    Raises:
        UnsupportedError: it is not installed or does not load.
    """
    try:
        return import_module("llama_cpp")
    except ImportError:
        raise UnsupportedError(
            "The peer llama.cpp needs llama-cpp-python, built on this machine: run `CMAKE_ARGS="
            "-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python`."
        ) from None
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UnsupportedError(
            f"llama-cpp-python is installed and does not load: {reason}."
        ) from None


@cache
def silenced() -> tuple[ModuleType, object]:
    """The binding, started and told to print nothing, and the callback that must outlive it."""
    api = llama_cpp()
    callback = api.llama_log_callback(lambda _level, _text, _data: None)
    api.llama_log_set(callback, ctypes.c_void_p(0))
    api.llama_backend_init()
    return api, callback


def answer_plainly(
    peer: Peer,
    session: Session,
    row: PromptRow,
    max_tokens: int,
    cut_loops: bool,
    meter: EnergyMeter,
) -> Answer:
    """Answer one prompt with a peer, ended by the same rules as drafthead's answers.

    Args:
        peer: the engine.
        session: turns the prompt into tokens, which is part of the time to the first token.
        row: the prompt.
        max_tokens: limit of the answer.
        cut_loops: end an answer that repeats itself.
        meter: counts the joules of decoding.
    """
    sleep(SETTLE_S)
    started = perf_counter()
    prompt = prompt_ids(session, row)
    limit = token_limit(len(prompt), max_tokens, peer.context)
    end = EndRule(limit, end_ids(session), cut_loops)
    peer.rollback(0)
    tokens = [peer.choose(prompt)]
    reason: FinishReason | None = end.push(tokens[-1])
    prefilled = perf_counter()
    meter.lap_joules()
    cpu_started = process_time()
    while reason is None:
        tokens.append(peer.choose(tokens[-1:]))
        reason = end.push(tokens[-1])
    decode_ms, cpu_s = 1000 * (perf_counter() - prefilled), process_time() - cpu_started
    joules = meter.lap_joules()
    sleep(SETTLE_S)
    prefill_ms = 1000 * (prefilled - started)
    passes = len(tokens) - 1
    stats = DecodeStats(passes=passes, committed=passes, prefill_ms=prefill_ms, decode_ms=decode_ms)
    return Answer(
        peer.name, row.task, row.id, tuple(tokens), reason, stats, prefill_ms, cpu_s, joules
    )


def peer_section(peer: LlamaCpp, lines: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    """One element of `peers` in a report, from the lines of all arms."""
    arms = [
        {"drafter": PLAIN} | {name: line[name] for name in PEER_FIELDS}
        for line in lines
        if line["drafter"] == peer.name
    ]
    return {
        "name": peer.name,
        "version": peer.version,
        "build": peer.build,
        "threads": peer.threads,
        "arms": arms,
    }
