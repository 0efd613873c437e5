"""How figures are drawn: matplotlib to SVG that stands inline in a page and reads without colour.

Text stays text. Series differ by hatches, by dashes and by markers, and carry their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from io import StringIO
from typing import TYPE_CHECKING, Any

from drafthead.errors import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The nth series: fill, hatch, dashes and marker, in lists of different lengths so that what starts
# again meets another partner. Fills are light enough for a dark hatch to show.
FILLS = ("#f2f2f2", "#7fb2e5", "#f4b183", "#a8d08d", "#c9a6e4", "#ffd966", "#f19c99")
HATCHES = ("", "////", "\\\\\\\\", "xxxx", "----", "||||", "++++", "//")
DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (10, 3)), (0, (3, 1)))
MARKERS = ("o", "s", "^", "D", "v", "x", "P", "*")
STYLE = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.alpha": 0.25,
    "legend.handlelength": 2.6,
    "hatch.linewidth": 0.7,
}
POINTS_PER_INCH = 72


def has_matplotlib() -> bool:
    """Whether figures can be drawn."""
    return find_spec("matplotlib") is not None


def check_matplotlib() -> None:
    """Find out before anything is measured whether figures can be drawn.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    if not has_matplotlib():
        raise UnsupportedError(
            "The report's figures need matplotlib: run `pip install 'drafthead[report]'`, or leave "
            "out --report."
        )


def draw(
    name: str,
    width: int,
    height: int,
    paint: Callable[[Any], None],
    panels: int = 1,
) -> str:
    """Draw a figure and return it as an `svg` element.

    Args:
        name: what its ids begin with; another one for each figure of a page.
        width: in points, which a browser shows as pixels.
        height: likewise.
        paint: draws on the axes; on a list of them where there are several panels.
        panels: axes, one below the other.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE | {"svg.hashsalt": name}):
        size = (width / POINTS_PER_INCH, height / POINTS_PER_INCH)
        figure = Figure(figsize=size, layout="constrained")
        axes: list[Axes] = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
        paint(axes[0] if panels == 1 else axes)
        return svg_element(figure, name)


def svg_element(figure: Figure, name: str) -> str:
    """The SVG without prolog and metadata, its ids the figure's own."""
    buffer = StringIO()
    none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=none)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r'(width|height)="([\d.]+)pt"', r'\1="\2"', text, count=2)
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", text)


def nth(choices: tuple[Any, ...], place: int) -> Any:
    """The nth of a list that starts again."""
    return choices[place % len(choices)]
