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
from viakit.measure.result import ResultError

__all__ = ["PACED", "LiveFigure", "ShownResult", "wanted"]

PACED = "VIAKIT_LIVE_PACED"  # environment of the command: wait for a reply after {"draw": true}
_KEY = ("protocol", "link", "hosts", "mtu", "mode", "wait", "level", "memory", "buffers")


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
        key = tuple(found.get(name) for name in _KEY)
        one = self._series.setdefault(key, {**dict(zip(_KEY, key, strict=True)), "points": {}})
        one["points"][found["nbytes"]] = found
        return True

    def draw(self) -> None:
        """Draw the points so far, and replace the figure."""
        series = [{**one, "points": [one["points"][n] for n in sorted(one["points"])]} for one in self._series.values()]
        try:
            drawn = plot.picture([{**self._document, "series": series}], ".svg", intervals=False)
        except ResultError:
            return  # there is no point yet
        from IPython.display import HTML, display  # optional package

        picture = HTML(plot.inline(drawn, "sweep so far"))
        if self._handle is None:
            self._handle = display(picture, display_id=True)
        else:
            self._handle.update(picture)
        self.n_drawn += 1

    def remove(self) -> None:
        """Remove the figure, because the complete result is displayed in its place."""
        if self._handle is not None:
            from IPython.display import HTML  # optional package

            self._handle.update(HTML(""))
            self._handle = None


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
