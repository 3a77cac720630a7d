"""The figure of ``%viakit sweep`` during the measurement: curves with bands, drawn between two bursts.

The command runs with ``--live`` in a process of its own. It prints points as lines of JSON, and from time to time
``{"draw": true}``. It then waits, at most half a second, for a line on its standard input before the next burst. So the
drawing uses no core during a burst, and at most a fifth of the time.
"""

from __future__ import annotations

import contextlib
import json
from typing import IO, Any

from viakit.lab import _front
from viakit.measure import plot
from viakit.measure.analysis import Result
from viakit.measure.environment import environment
from viakit.measure.ladder import format_size
from viakit.measure.report import html_table
from viakit.measure.result import ResultError, series_label
from viakit.measure.table import format_time

__all__ = ["PACED", "LiveFigure", "ShownResult", "wanted"]

PACED = "VIAKIT_LIVE_PACED"  # environment of the command: wait for a reply after {"draw": true}
_KEY = ("protocol", "link", "hosts", "mtu", "mode", "wait", "level", "memory", "buffers")
_MORE = ("sockbuf", "wire")  # only of some series


class LiveFigure:
    """Figure below the running cell, which is replaced in place.

    Parameters
    ----------
    command : str
        Command line, for the description of the result.
    """

    def __init__(self, command: str) -> None:
        self._series: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._document = {"environment": environment(seed=0, command=command, infos=[])}
        self._handle: Any = None
        self.n_drawn = 0

    def line(self, text: str, reply: IO[str]) -> bool:
        """Handle a line of the command's output; return whether it belongs to the figure."""
        if not text.startswith("{"):
            return False
        try:
            found = json.loads(text)
        except ValueError:
            return False
        if found.get("draw"):
            self.draw()
            with contextlib.suppress(OSError, ValueError):  # the command has ended
                reply.write("drawn\n")
                reply.flush()
            return True
        if "one_way_s" not in found:
            return False
        key = tuple(found.get(name) for name in (*_KEY, *_MORE))
        fields = {name: found.get(name) for name in _KEY} | {name: found[name] for name in _MORE if name in found}
        one = self._series.setdefault(key, {**fields, "points": {}})
        one["points"][found["nbytes"]] = found
        return True

    def draw(self) -> None:
        """Draw the points so far, and replace the figure. A sweep of a single size has a table: it has no curves."""
        series = [{**one, "points": [one["points"][n] for n in sorted(one["points"])]} for one in self._series.values()]
        try:
            if series and all(len(one["points"]) == 1 for one in series):
                page = _times(series)
            else:
                drawn = plot.picture([{**self._document, "series": series}], ".svg", intervals=False)
                page = plot.inline(drawn, "sweep so far")
        except ResultError:
            return  # there is no point yet
        from IPython.display import HTML, display  # optional package

        picture = HTML(page)
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self.n_drawn += 1

    def finish(self, document: dict[str, Any]) -> None:
        """Draw the complete result, if the figure is still there: the last drawing was in the middle of the sweep."""
        if self._handle is not None:
            self._series = {
                (i,): {**one, "points": {point["nbytes"]: point for point in one["points"]}}
                for i, one in enumerate(document["series"])
                if one["points"]
            }
            self.draw()

    def remove(self) -> None:
        """Remove the figure, because the complete result is displayed in its place."""
        if self._handle is not None:
            from IPython.display import HTML  # optional package

            self._handle.update(HTML(""))
            self._handle = None


def _times(series: list[dict[str, Any]]) -> str:
    """Return a table of times for one message size, with the limits of the band that a curve would have."""
    rows = []
    for one in series:
        point = one["points"][0]
        times = [format_time(point["one_way_s"][p]) for p in ("median", "p5", "p90", "p99")]
        label = f"{series_label(one, [*series])}, {plot.WAIT_WORDS[one['wait']]}"
        rows.append([label, format_size(point["nbytes"]), *times])
    head = ["protocol", "message", "median", "5th percentile", "90th", "99th"]
    axis = plot.time_axis({one["mode"] for one in series})
    return html_table(axis[0].upper() + axis[1:], head, rows)


class ShownResult(Result):
    """Result whose display replaces the live figure in the same cell."""

    live: LiveFigure | None = None
    cell: int | None = None

    def _repr_html_(self) -> str:
        if self.live is not None and self.cell == _front.cell():
            self.live.remove()
        self.live = None
        return super()._repr_html_()


def wanted(words: list[str]) -> bool:
    """Return whether a command can be drawn while it measures: a sweep in a notebook with a viewer."""
    chosen = not {"--live", "--help", "-h"} & set(words)
    return bool(words) and words[0] == "sweep" and chosen and _front.mode() == "widgets"
