"""Flag values of `regen` and `train`, checked while the command line is read or soon after."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drafthead.errors import RequestError

if TYPE_CHECKING:
    from drafthead.backbone.handle import Backbone


def number(text: str, low: float, high: float) -> float:
    """A flag value within two limits; for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"expected a number of {low} to {high}, found {text!r}")
    return value


def gigabytes(text: str) -> float:
    """A flag value above 0, a kilobyte at least; for argparse."""
    return number(text, 1e-6, 1e9)


def share(text: str) -> float:
    """A flag value from 0 to 1; for argparse."""
    return number(text, 0.0, 1.0)


def temperature(text: str) -> float:
    """A flag value that logits can be divided by; for argparse."""
    return number(text, 0.05, 10.0)


def part(text: str) -> tuple[int, int]:
    """A flag value such as 2/4, both from 1; for argparse."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"expected a part such as 2/4, found {text!r}")
    return int(match[1]), int(match[2])


def layer_list(text: str) -> tuple[int, ...]:
    """Comma-separated layer numbers; for argparse."""
    try:
        layers = tuple(int(part) for part in text.split(","))
    except ValueError:
        layers = (-1,)
    if min(layers) < 0:
        raise argparse.ArgumentTypeError(f"expected layer numbers such as 17,18, found {text!r}")
    return layers


def check_layers(what: str, layers: Sequence[int], backbone: Backbone) -> None:
    """Refuse layers that a backbone has not: RequestError with what it has."""
    last = backbone.spec.n_layers - 1
    if max(layers, default=0) > last:
        raise RequestError(f"{what}: {backbone.name} has layers 0 to {last}, found {max(layers)}.")
