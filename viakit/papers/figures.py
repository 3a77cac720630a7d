"""The papers' figures as they drew them: predicted curves, with published points on top."""

from __future__ import annotations

from typing import Any

from viakit.papers import PAPERS, module_of
from viakit.papers.claims import claims

__all__ = ["axes_of", "check", "draw", "has_curves", "names", "series"]

# Kind of each paper's figures: what the axes show.
AXES = {
    "curve": ("message size, bytes", "throughput, Mbit/s"),
    "speedup": ("processors", "speed-up"),
    "barrier": ("nodes", "barrier, µs"),
    "fig2": ("message size, bytes", "time, µs"),
    "fig3": ("message size, bytes", "bandwidth, MB/s"),
    "fig4": ("message size, bytes", "time, µs"),
}
LARGE = 8 << 20
# Published points of each figure: lines of claims.csv, and their place on the x axis.
POINTS: dict[str, dict[str, list[tuple[int, float]]]] = {
    "ong-farrell": {
        "fig1": [(23, LARGE), (25, LARGE), (35, LARGE), (37, LARGE)],
        "fig2": [(48, 30 * 1024)],
        "fig3": [(55, LARGE), (58, LARGE), (61, LARGE)],
        "fig4": [(64, LARGE), (67, LARGE), (70, LARGE)],
        "fig5": [(86, 32 * 1024)],
    },
    "turner-chen": {
        "fig1": [(127, LARGE), (135, LARGE), (153, LARGE)],
        "fig2": [(128, LARGE), (148, LARGE), (155, LARGE), (158, LARGE)],
        "fig3": [(131, LARGE), (156, LARGE), (159, LARGE)],
        "fig4": [(162, LARGE)],
        "fig5": [(173, LARGE), (178, LARGE)],
    },
    "gupta": {
        "fig4a": [(323, 8), (324, 8)],
        "fig4b": [(327, 8), (328, 8), (329, 16), (330, 16)],
        "fig5": [(334, 32), (335, 32)],
    },
    "lobosco": {
        f"fig{figure}": [(line, 8) for line in range(first, first + 5)]
        for figure, first in ((6, 253), (4, 258), (5, 263), (7, 268), (8, 273), (10, 278), (9, 283))
    },
    "prylli": {"fig2": [(399, 1)], "fig3": [(364, 1 << 22), (368, 1 << 22)]},
}

Series = dict[str, list[tuple[float, float]]]
Measured = dict[str, list[tuple[float, float]]]


def series(paper: str) -> dict[str, Series]:
    """Return the predicted series of each figure of a paper: name of a curve, and its points."""
    module = module_of(paper)
    if hasattr(module, "curves"):
        return {name: {title: list(one.points()) for title, one in each} for name, each in module.curves().items()}
    if hasattr(module, "speedups"):
        return dict(module.speedups())
    return dict(module.figures())


def names(paper: str) -> list[str]:
    """Return the names of a paper's figures."""
    return list(series(paper))


def axes_of(paper: str, figure: str) -> tuple[str, str]:
    """Return what the axes of a figure show, with their units."""
    if paper in ("ong-farrell", "turner-chen"):
        return AXES["curve"]
    if paper == "prylli":
        return AXES[figure]
    return AXES["speedup" if paper == "lobosco" else "barrier"]


def check(paper: str, figure: str, found: dict[str, Series]) -> None:
    """Raise ValueError if the paper has no such figure."""
    if figure not in found:
        raise ValueError(f"{paper} has no figure {figure!r}; there are {', '.join(found)}")


def has_curves(paper: str) -> bool:
    """Return True if the paper's figures are throughputs by message size, on which a sweep can be drawn."""
    return hasattr(module_of(paper), "curves")


def draw(paper: str, figure: str | None = None, measured: Measured | None = None) -> Any:
    """Return a Matplotlib figure: predicted curves, and the published points as crosses.

    Parameters
    ----------
    paper : str
        Key of :data:`viakit.papers.PAPERS`.
    figure : str, optional
        One figure. Default: all of the paper, in one picture.
    measured : dict, optional
        Curves measured on this computer, drawn with broken lines: name, and (bytes, Mbit/s) of each point.

    Raises
    ------
    ValueError
        If the paper has no such figure.
    """
    from matplotlib.figure import Figure  # start-up time

    found = series(paper)
    if figure is not None:
        check(paper, figure, found)
    shown = [figure] if figure is not None else list(found)
    columns = min(len(shown), 2)
    rows = -(-len(shown) // columns)
    drawing = Figure(figsize=(7 * columns, 4.5 * rows), layout="constrained")
    places = list(drawing.subplots(rows, columns, squeeze=False).flat)
    for axes, name in zip(places, shown, strict=False):
        _draw_one(axes, paper, name, found[name], measured or {})
    for axes in places[len(shown) :]:
        axes.set_axis_off()
    return drawing


def _draw_one(axes: Any, paper: str, figure: str, found: Series, measured: Measured) -> None:
    for title, points in found.items():
        axes.plot([x for x, _ in points], [y for _, y in points], label=title, linewidth=1.4,
                  marker="o" if len(points) < 20 else None, markersize=3)  # fmt: skip
    for title, points in measured.items():
        axes.plot([x for x, _ in points], [y for _, y in points], "--", linewidth=1, label=f"{title}, measured here")
    published = [
        (x, number, claims()[line].system.rpartition("; ")[2])
        for line, x in POINTS.get(paper, {}).get(figure, [])
        if (number := claims()[line].number) is not None
    ]
    if published:
        axes.plot([x for x, _, _ in published], [y for _, y, _ in published], "kx", markersize=8, label="published")
    for x, y, system in published:
        axes.annotate(system, (x, y), (-5, 2), textcoords="offset points", ha="right", fontsize="xx-small", gid="claim")
    xlabel, ylabel = axes_of(paper, figure)
    if not (paper == "prylli" and figure != "fig3"):
        axes.set_xscale("log", base=2)
    if measured:  # a host of today is faster than those of the papers by orders of magnitude
        axes.set_yscale("log")
        axes.set(xlabel=xlabel, ylabel=ylabel)
    else:
        axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, None))
    axes.set_title(f"{PAPERS[paper][0]}, {figure}: predicted", fontsize="medium")
    axes.legend(fontsize="x-small")
    axes.grid(alpha=0.3)
