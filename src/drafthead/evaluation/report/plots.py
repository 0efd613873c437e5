"""The figures of a report, each drawn from its JSON alone and narrow enough for a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from drafthead.evaluation.metrics import ALL_TASKS, PLAIN
from drafthead.evaluation.report.drawing import DASHES, FILLS, HATCHES, MARKERS, draw, nth
from drafthead.evaluation.report.table import all_arms

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Arm = Mapping[str, Any]
WIDTH, BAR_HEIGHT, FRAME_HEIGHT, CURVE_HEIGHT = 350, 44, 56, 280
LEGEND_LINE_HEIGHT = 19
# Letters of a name where two stand in a line, of one that stands alone, and of its kept end.
LEGEND_COLUMN, LONGEST_NAME, LAST_LETTERS = 15, 27, 8
MEGABYTE = 1e6
PARTS = ("weights", "embedding table", "keys and values of a full context")


class Figure(NamedTuple):
    """A drawing, and what it says in words."""

    svg: str
    caption: str


def drafting_arms(report: Mapping[str, Any], task: str) -> list[Arm]:
    """The arms of a task but plain decoding; the peers' among them."""
    return [arm for arm in all_arms(report) if arm["task"] == task and arm["drafter"] != PLAIN]


def places(report: Mapping[str, Any]) -> dict[str, int]:
    """A place for each drafter, which gives it the same look in every figure."""
    names = dict.fromkeys(arm["drafter"] for arm in all_arms(report) if arm["drafter"] != PLAIN)
    return {name: place for place, name in enumerate(names, 1)}


def speedups(report: Mapping[str, Any], task: str) -> Figure | None:
    """Bars of the speed-up over plain decoding with their 95 % intervals, and a line at 1."""
    arms = [a for a in drafting_arms(report, task) if a["speedup_vs_plain"]["median"] is not None]
    if not arms:
        return None
    place = places(report)
    words = [speedup_words(arm) for arm in arms]

    def paint(axes: Axes) -> None:
        for row, (arm, text) in enumerate(zip(arms, words, strict=True)):
            value = arm["speedup_vs_plain"]["median"]
            low, high = arm["speedup_vs_plain"].get("ci95") or (value, value)
            axes.barh(
                row, value, 0.42, color=nth(FILLS, place[arm["drafter"]]),
                hatch=nth(HATCHES, place[arm["drafter"]]), edgecolor="black",
            )  # fmt: skip
            axes.plot([low, high], [row, row], color="black", linewidth=1.6, marker="|")
            axes.text(0, row - 0.27, text, va="bottom")
            # In pieces between the words, which it would cross.
            axes.vlines(1, row - 0.21, row + 0.3, color="black", linestyle=(0, (3, 1.5)))
        frame_bars(axes, len(arms))
        axes.set_xlim(0, longest_bar(report))
        axes.set_title(title_of(task))

    height = FRAME_HEIGHT + BAR_HEIGHT * len(arms)
    return Figure(draw(f"speed-{slug(task)}", WIDTH, height, paint), "; ".join(words))


def longest_bar(report: Mapping[str, Any]) -> float:
    """Where the axis of speed-ups ends: one place for all tasks, so that bars can be compared."""
    ratios = [arm["speedup_vs_plain"] for arm in all_arms(report)]
    ends: list[float] = [ratio["median"] for ratio in ratios if ratio["median"] is not None]
    ends += [ratio["ci95"][1] for ratio in ratios if ratio.get("ci95")]
    return 1.05 * max([1.0, *ends])


def short(name: str) -> str:
    """A name that fits a figure: of an arm called by its file, the file; the middle left out."""
    if len(name) > LONGEST_NAME:
        name = name.rpartition(":")[2]
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - LAST_LETTERS - 1]}…{name[-LAST_LETTERS:]}"


def speedup_words(arm: Arm) -> str:
    """A drafter, its speed-up and the interval."""
    ratio = arm["speedup_vs_plain"]
    ends = ratio.get("ci95")
    interval = "" if ends is None else f" ({ends[0]:.2f}-{ends[1]:.2f})"
    return f"{short(arm['drafter'])}: {ratio['median']:.2f}{interval}"


def acceptance(report: Mapping[str, Any]) -> Figure | None:
    """Lines of the share accepted at each draft step, all tasks together."""
    arms = [arm for arm in drafting_arms(report, ALL_TASKS) if arm.get("accept_at")]
    if not arms:
        return None
    place = places(report)
    words = [
        f"{arm['drafter']}: "
        + ", ".join("-" if rate is None else f"{rate:.2f}" for rate in arm["accept_at"])
        for arm in arms
    ]

    def paint(axes: Axes) -> None:
        for arm in arms:
            rates = [float("nan") if rate is None else rate for rate in arm["accept_at"]]
            axes.plot(
                range(1, len(rates) + 1), rates, color="black", linewidth=1.2, markersize=6,
                markerfacecolor=nth(FILLS, place[arm["drafter"]]),
                linestyle=nth(DASHES, place[arm["drafter"]] - 1),
                marker=nth(MARKERS, place[arm["drafter"]] - 1), label=short(arm["drafter"]),
            )  # fmt: skip
        axes.set_ylim(0, 1.05)
        whole_steps(axes, max(len(arm["accept_at"]) for arm in arms))
        axes.set_xlabel("draft step")
        axes.set_title("accepted, where the steps before were")
        axes.grid(axis="y")
        legend(axes, columns)

    columns = legend_columns([arm["drafter"] for arm in arms])
    height = CURVE_HEIGHT + LEGEND_LINE_HEIGHT * -(-len(arms) // columns)
    return Figure(draw("acceptance", WIDTH, height, paint), "; ".join(words))


def cost(report: Mapping[str, Any]) -> Figure:
    """Time of an M-row pass, and the tokens a pass that pay for it and for the draft."""
    rows_ms = {int(rows): ms for rows, ms in report["cost"]["rows_ms"].items()}
    sizes = sorted(rows_ms)
    v = [rows_ms[size] / rows_ms[1] for size in sizes]
    steps = {k: ms for k, ms in report["cost"]["draft_step_ms"].items() if ms is not None}
    arms = [arm for arm in drafting_arms({**report, "peers": []}, ALL_TASKS) if arm["passes"]]
    place = places(report)
    words = [f"{size} rows: {ratio:.2f}" for size, ratio in zip(sizes, v, strict=True)]
    points = {arm["drafter"]: (1 + arm["drafted"] / arm["passes"], arm["tau"]) for arm in arms}

    def paint(axes: Axes) -> None:
        axes.plot(sizes, v, color="black", marker="o", markersize=4, label="v(M): M rows")
        for name, ms in steps.items():
            paid = [
                ratio + (size - 1) * ms / rows_ms[1] for size, ratio in zip(sizes, v, strict=True)
            ]
            look = nth(DASHES[1:], place[name] - 1)
            axes.plot(
                sizes, paid, color="black", linestyle=look, label=f"break-even of {short(name)}"
            )
        axes.plot(
            sizes, sizes, color="black", linestyle=(0, (1, 3)), linewidth=0.9,
            label="every draft accepted",
        )  # fmt: skip
        for name, point in points.items():
            axes.plot(
                *point, marker=nth(MARKERS, place[name] - 1), markersize=9, color="black",
                markerfacecolor=nth(FILLS, place[name]), linestyle="none", label=short(name),
            )  # fmt: skip
        last = max([sizes[-1], *(rows for rows, _ in points.values())])
        whole_steps(axes, round(last))
        axes.set_xlabel("M, rows of a pass")
        # What loses by far would flatten the rest: no pass commits more tokens than it has rows.
        axes.set_ylim(0, 1.08 * last)
        axes.set_title("one-row passes; tokens a pass")
        axes.grid(axis="y")
        legend(axes)

    height = CURVE_HEIGHT + LEGEND_LINE_HEIGHT * (2 + len(steps) + len(points))
    return Figure(draw("cost", WIDTH, height, paint), "v(M): " + ", ".join(words))


def memory(report: Mapping[str, Any]) -> Figure | None:
    """Bars of the bytes of each drafter, and of what a head saves."""
    bars = memory_bars(report["memory"])
    if not bars:
        return None
    words = [f"{short(name)}: {sum(parts) / MEGABYTE:.1f} MB" for name, parts in bars.items()]

    def paint(axes: Axes) -> None:
        for row, (parts, text) in enumerate(zip(bars.values(), words, strict=True)):
            left = 0.0
            for look, nbytes in enumerate(parts):
                label = PARTS[look] if row == 0 else None
                axes.barh(
                    row, nbytes / MEGABYTE, 0.42, left=left, color=nth(FILLS, look),
                    hatch=nth(HATCHES, look), edgecolor="black", label=label,
                )  # fmt: skip
                left += nbytes / MEGABYTE
            axes.text(0, row - 0.27, text, va="bottom")
        frame_bars(axes, len(bars))
        axes.set_title("megabytes beside the backbone")
        legend(axes)

    height = FRAME_HEIGHT + BAR_HEIGHT * len(bars) + LEGEND_LINE_HEIGHT * len(PARTS)
    return Figure(draw("memory", WIDTH, height, paint), "; ".join(words))


def memory_bars(section: Mapping[str, Any]) -> dict[str, tuple[int, int, int]]:
    """Weights without the table, embedding table, and keys and values, of what has any."""
    context = section.get("context_tokens", 0)
    bars = {}
    for name, use in section["drafters"].items():
        table = use.get("embedding_bytes", 0)
        parts = (use["weights_bytes"] - table, table, use["kv_bytes_per_token"] * context)
        if any(parts):
            bars[name] = parts
    saves = section.get("head_saves")
    if saves is not None:
        alone = (0, saves["embedding_bytes"], saves["cache_bytes"])
        bars["added by a head on its own"] = alone
        bars["added by a second cache"] = (0, 0, saves["second_cache_bytes"])
    return bars


def legend(axes: Axes, columns: int = 1) -> None:
    """The names of the series, below everything else."""
    figure = axes.get_figure()
    assert figure is not None, "drawn on a figure"
    figure.legend(loc="outside lower left", ncols=columns, frameon=False, labelspacing=0.35)


def legend_columns(names: Sequence[str]) -> int:
    """How many names stand in one line of a legend."""
    return 2 if max(map(len, names)) <= LEGEND_COLUMN else 1


def frame_bars(axes: Axes, bars: int) -> None:
    """Room for bars with their words above them, the first on top; no axis on the left."""
    axes.set_ylim(bars - 0.6, -0.8)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])


def whole_steps(axes: Axes, last: int) -> None:
    """Ticks at 1, 2, … last: at every second where there are many."""
    axes.set_xlim(0.7, last + 0.3)
    axes.set_xticks(range(1, last + 1, 1 if last <= 10 else 2))


def title_of(task: str) -> str:
    """A task's name for people."""
    return "all tasks" if task == ALL_TASKS else task.replace("_", " ")


def slug(name: str) -> str:
    """A name that can be part of an id."""
    return "".join(char if char.isalnum() else "-" for char in name)


def tasks_of(report: Mapping[str, Any]) -> Sequence[str]:
    """All tasks together, then each."""
    return (ALL_TASKS, *dict.fromkeys(a["task"] for a in report["arms"] if a["task"] != ALL_TASKS))
