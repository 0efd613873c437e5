"""One writer a folder: two processes that append to the same files would spoil both."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from drafthead.errors import TrainingError


@contextmanager
def alone_in(*folders: Path) -> Iterator[None]:
    """Hold folders, made where they are missing, against other processes that do so too.

    The system lets go of them however this process ends, and nothing is left in them. Where a file
    system knows no locks nothing is held.

    Raises:
        TrainingError: another process holds one of them; it is named.
    """
    with ExitStack() as held:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        for folder in {folder.resolve(): folder for folder in folders}.values():
            place = os.open(folder, os.O_RDONLY)
            held.callback(os.close, place)
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TrainingError(
                    f"Another process is writing in {folder}; wait until it ends, stop it, or name "
                    "another folder."
                ) from None
            except OSError:
                continue
        yield
