"""Figures below the running cell that grow while the cell computes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeVar

from viakit.lab import _front
from viakit.measure import plot
from viakit.measure.look import ON_DARK, ON_LIGHT, PALETTE, Look, looks

__all__ = ["Bars", "Curves"]

_PERIOD_S = 0.2  # least time between two drawings
_FIXED = {"computing": "#4C4C4C"}  # as in the bars of viakit.apps.split; INK would become the page's colour
_HATCHES = ("", "///", "...", "xxx", "---", "+++", "ooo")  # so that parts differ in grey, too
_NARROW = 0.06  # a part below this share of the axis has no number


_Drawing = TypeVar("_Drawing", bound="_Growing")


class _Growing:
    """A figure that is drawn again as it grows, and a last time at the end of the context."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._handle: Any = None
        self._drawn_s = 0.0

    def __enter__(self: _Drawing) -> _Drawing:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._draw()

    def _grown(self) -> None:
        """Draw if the last drawing is old enough."""
        if time.monotonic() - self._drawn_s > _PERIOD_S:
            self._draw()

    def _is_empty(self) -> bool:
        raise NotImplementedError

    def figure(self) -> Any:
        """Return the figure of Matplotlib with all data so far."""
        raise NotImplementedError

    def _draw(self) -> None:
        if self._is_empty() or _front.mode() == "text":
            return
        from IPython.display import HTML, display  # optional package

        page = HTML(plot.inline_figure(self.figure(), self._title or type(self).__name__.lower()))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)
        self._drawn_s = time.monotonic()


class Bars(_Growing):
    """Horizontal bars, each divided into parts, that appear one after the other.

    ::

        with live.Bars("time, %") as drawing:
            drawing.add("IS", {"computing": 12, "communicating": 88})

    Without a notebook nothing is drawn; :meth:`figure` returns the figure of Matplotlib.

    Parameters
    ----------
    x : str
        Words on the axis.
    title : str
        Title of the figure.
    """

    def __init__(self, x: str, title: str = "") -> None:
        super().__init__(title)
        self._words = x
        self._bars: dict[str, dict[str, float]] = {}

    def add(self, label: str, parts: Mapping[str, float]) -> None:
        """Append the bar *label* with the lengths of its parts, or replace it, and draw."""
        self._bars[label] = dict(parts)
        self._grown()

    def figure(self) -> Any:
        """Return the figure of Matplotlib with all bars so far."""
        from matplotlib.figure import Figure  # start-up time

        drawing = Figure(figsize=(8, 1.4 + 0.45 * len(self._bars)), layout="constrained")
        axes = drawing.subplots()
        names = list(dict.fromkeys(name for parts in self._bars.values() for name in parts))
        labels = list(self._bars)
        longest = max((sum(parts.values()) for parts in self._bars.values()), default=1.0) or 1.0
        box = {"boxstyle": "round,pad=0.15", "facecolor": ON_DARK, "edgecolor": "none"}
        left = [0.0] * len(labels)
        for i, name in enumerate(names):
            lengths = [self._bars[label].get(name, 0.0) for label in labels]
            colour, hatch = _FIXED.get(name, PALETTE[(i + 1) % len(PALETTE)]), _HATCHES[i % len(_HATCHES)]
            bars = axes.barh(labels, lengths, left=left, label=name, edgecolor=ON_DARK, color=colour, hatch=hatch)
            for bar, length in zip(bars, lengths, strict=True):
                if length >= _NARROW * longest:
                    centre = bar.get_x() + length / 2, bar.get_y() + bar.get_height() / 2
                    axes.text(*centre, f"{length:.3g}", ha="center", va="center", color=ON_LIGHT, bbox=box)
            left = [before + length for before, length in zip(left, lengths, strict=True)]
        axes.invert_yaxis()  # the first bar is the uppermost one
        axes.set_xlabel(self._words)
        axes.set_title(self._title)
        drawing.legend(loc="outside lower center", ncols=min(4, max(1, len(names))), frameon=False)
        return drawing

    def _is_empty(self) -> bool:
        return not self._bars


class Curves(_Growing):
    """Curves that grow point by point, with both axes logarithmic.

    ::

        with live.Curves("ranks", "time, µs") as drawing:
            drawing.add("rdma", 8, 36.2)

    Without a notebook nothing is drawn; :meth:`figure` returns the figure of Matplotlib.

    Parameters
    ----------
    x, y : str
        Words on the axes.
    title : str
        Title of the figure.
    """

    def __init__(self, x: str, y: str, title: str = "") -> None:
        super().__init__(title)
        self._words = (x, y)
        self._points: dict[str, list[tuple[float, float]]] = {}
        self._looks: dict[str, Look] = {}

    def add(self, label: str, x: float, y: float) -> None:
        """Append a point to the curve *label*, and draw if the last drawing is old enough."""
        self._points.setdefault(label, []).append((x, y))
        self._grown()

    def figure(self) -> Any:
        """Return the figure of Matplotlib with all points so far."""
        from matplotlib.figure import Figure  # start-up time

        drawing = Figure(figsize=(8, 4), layout="constrained")
        axes = drawing.subplots()
        chosen = self._looks = looks(self._points, self._looks)
        for label, points in self._points.items():
            axes.plot(*zip(*sorted(points), strict=True), label=label, **chosen[label].line())
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel(self._words[0])
        axes.set_ylabel(self._words[1])
        ticks = sorted({x for points in self._points.values() for x, _ in points})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.yaxis.set_major_formatter(lambda y, _place: f"{y:g}")
        axes.minorticks_off()
        axes.grid(True, which="major", alpha=0.3)
        plot.names_at_lines(axes)
        axes.set_title(self._title)
        return drawing

    def _is_empty(self) -> bool:
        return not self._points
