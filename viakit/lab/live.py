"""A figure below the running cell that grows while the cell computes."""

from __future__ import annotations

import io
import time
from types import TracebackType
from typing import Any

from viakit.lab import _front
from viakit.measure import plot
from viakit.measure.look import looks

__all__ = ["Curves"]

_PERIOD_S = 0.2  # least time between two drawings


class Curves:
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
        self._words, self._title = (x, y), title
        self._points: dict[str, list[tuple[float, float]]] = {}
        self._handle: Any = None
        self._drawn_s = 0.0

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._draw()

    def add(self, label: str, x: float, y: float) -> None:
        """Append a point to the curve *label*, and draw if the last drawing is old enough."""
        self._points.setdefault(label, []).append((x, y))
        if time.monotonic() - self._drawn_s > _PERIOD_S:
            self._draw()

    def figure(self) -> Any:
        """Return the figure of Matplotlib with all points so far."""
        from matplotlib.figure import Figure  # start-up time

        drawing = Figure(figsize=(8, 4), layout="constrained")
        axes = drawing.subplots()
        chosen = looks(self._points)
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

    def _draw(self) -> None:
        if not self._points or _front.mode() == "text":
            return
        from IPython.display import HTML, display  # optional package

        buffer = io.BytesIO()
        self.figure().savefig(buffer, format="svg")
        page = HTML(plot.inline(buffer.getvalue(), self._title or "curves"))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)
        self._drawn_s = time.monotonic()
