"""The folder of answers that `regen` writes and `train` reads.

    manifest.json            who answered, with which settings, how many rows of each end
    answers-00000.jsonl ...  finished shards, rows in prompt order
    answers.part.jsonl       rows of a run that has not finished, in order of completion

Rows are appended in whole lines and synced in batches; a line that a crash cut short is dropped
when the folder is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from drafthead.errors import TrainingError

MANIFEST = "manifest.json"
PART = "answers.part.jsonl"
ROWS_PER_SHARD = 4096
ROWS_PER_SYNC = 32


@dataclass(frozen=True)
class Answer:
    """One answer. `answer` ends with the end token where finish is "stop".

    temperature: 0 for a greedy answer, else what it was sampled at.  lang: of the prompt's row.
    """

    id: str
    task: str
    prompt_tokens: tuple[int, ...]
    answer: tuple[int, ...]
    finish: str  # "stop" | "length" (truncated at max_tokens) | "looped" (cut where it repeats)
    temperature: float = 0.0
    lang: str | None = None

    def line(self) -> str:
        """The row as one line of JSON, newline included; what is not set is left out."""
        row = {name: value for name, value in asdict(self).items() if value not in (0.0, None)}
        return json.dumps(row, separators=(",", ":")) + "\n"


def _parse(line: str, where: str) -> Answer:
    try:
        row = json.loads(line)
        return Answer(
            row["id"], row["task"], tuple(row["prompt_tokens"]), tuple(row["answer"]),
            row["finish"], row.get("temperature", 0.0), row.get("lang"),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainingError(
            f"{where}: damaged answer row ({error}); delete the file and run "
            "`drafthead regen` again."
        ) from error


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file so that a reader sees the old or the new content, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as out:
        out.write(content.encode() if isinstance(content, str) else content)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(path)


class AnswerStore:
    """Read, append and finish a folder of answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pending: list[str] = []

    def manifest(self) -> dict[str, object] | None:
        """The manifest, or None in a new folder."""
        path = self.folder / MANIFEST
        if not path.is_file():
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise TrainingError(f"{path} is not JSON ({error}).") from error
        if not isinstance(content, dict):
            raise TrainingError(f"{path}: expected a JSON object.")
        return content

    def write_manifest(self, content: Mapping[str, object]) -> None:
        """Replace the manifest atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self.folder / MANIFEST, json.dumps(content, indent=2) + "\n")

    def rows(self) -> Iterator[Answer]:
        """Every answer, each id once, a half-written last line left out."""
        seen: set[str] = set()
        shards = sorted(self.folder.glob("answers-*.jsonl"))
        for path in [*shards, self.folder / PART]:
            if not path.is_file():
                continue
            with path.open(encoding="utf-8", newline="\n") as lines:
                for number, line in enumerate(lines, 1):
                    if not line.endswith("\n"):
                        break
                    answer = _parse(line, f"{path.name}, line {number}")
                    if answer.id not in seen:
                        seen.add(answer.id)
                        yield answer

    def repair(self) -> None:
        """Cut a half-written last line from the part file, before appending to it."""
        path = self.folder / PART
        if not path.is_file():
            return
        whole = path.read_bytes()
        kept = whole.rfind(b"\n") + 1
        if kept != len(whole):
            os.truncate(path, kept)

    def append(self, answer: Answer) -> None:
        """Add a row; rows reach the disk in batches of whole lines."""
        self._pending.append(answer.line())
        if len(self._pending) >= ROWS_PER_SYNC:
            self.flush()

    def flush(self) -> None:
        """Write and sync what is pending."""
        if not self._pending:
            return
        with (self.folder / PART).open("a", encoding="utf-8", newline="\n") as out:
            out.write("".join(self._pending))
            out.flush()
            os.fsync(out.fileno())
        self._pending.clear()

    def finish(self, order: Sequence[str]) -> None:
        """Turn everything into shards in the order of prompt ids: the same bytes however it ran.

        Rows of prompts outside `order` (an earlier, other selection) follow, by id.
        """
        self.flush()
        place = {prompt_id: index for index, prompt_id in enumerate(order)}
        rows = sorted(self.rows(), key=lambda row: (place.get(row.id, len(place)), row.id))
        old = set(self.folder.glob("answers-*.jsonl"))
        for shard, start in enumerate(range(0, len(rows), ROWS_PER_SHARD)):
            path = self.folder / f"answers-{shard:05d}.jsonl"
            write_atomic(path, "".join(r.line() for r in rows[start : start + ROWS_PER_SHARD]))
            old.discard(path)
        for path in old:
            path.unlink()
        (self.folder / PART).unlink(missing_ok=True)
