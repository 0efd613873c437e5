"""Every error a user can meet, as one tree.

DraftheadError
├── FileError             a file that is missing, damaged or of another kind
│   ├── GgufError         a GGUF file: magic, version, truncation, a bad key or tensor
│   └── HeadError         a head package: damaged, incomplete, or for another backbone
├── UnsupportedError      a sound file that asks for what this version does not have
├── BackboneMissingError  a known backbone that has not been pulled yet
├── DownloadError         a download that failed or whose checksum is wrong
├── RequestError          a prompt, message, flag or number that cannot be served
│   └── CapacityError     it does not fit: both numbers are in the message
├── NumericsError         the backbone produced no finite logit
└── TrainingError         a recipe, data set or step that cannot be trained on

A message says what is wrong, where, what was expected and found, and what to do.
"""

from __future__ import annotations


class DraftheadError(Exception):
    """Base of all errors that drafthead raises on purpose."""


class FileError(DraftheadError):
    """A file is missing, damaged or of another kind."""


class GgufError(FileError):
    """A GGUF file cannot be trusted."""


class HeadError(FileError):
    """A head package is damaged, incomplete or belongs to another backbone."""


class UnsupportedError(DraftheadError):
    """A sound file asks for something that this version does not have."""


class BackboneMissingError(DraftheadError):
    """A known backbone is not in the cache."""


class DownloadError(DraftheadError):
    """A download failed, or its checksum is wrong."""


class RequestError(DraftheadError):
    """A prompt, message, flag or number cannot be served."""


class CapacityError(RequestError):
    """A request does not fit the context."""


class CancelledError(DraftheadError):
    """Nobody wants the answer any more; a stream ends with it, and its user never sees it."""


class NumericsError(DraftheadError):
    """The backbone produced no finite logit for a row."""


class TrainingError(DraftheadError):
    """A recipe, data set or training step is unusable."""
