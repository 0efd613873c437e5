"""Tables that read well as text and are Markdown too."""

from __future__ import annotations

from collections.abc import Sequence


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out a table: the first column left-aligned, the others right-aligned, all padded."""
    table = [list(header), *map(list, rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    rule = ["-" * widths[0], *["-" * (width - 1) + ":" for width in widths[1:]]]
    lines = [
        [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
        for row in (table[0], rule, *table[1:])
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
