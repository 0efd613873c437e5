"""Flag values of `regen` and `train`, checked while the command line is read."""

from __future__ import annotations

import argparse
import math
import re


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
