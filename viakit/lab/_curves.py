"""Curves that grow in a panel, one field or several beside each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from viakit.lab._panel import Panel
from viakit.measure.plot import COLOURS, SPARE

__all__ = ["Curve", "CurvesPanel", "Field"]

# The first colours differ most.
_PALETTE = tuple(
    dict.fromkeys([*(COLOURS[name] for name in ("via-eth", "tcp", "udp", "zmq")), *COLOURS.values(), *SPARE])
)


@dataclass(frozen=True)
class Field:
    """One field of a picture: its title, the words on its axes, and whether these are logarithmic."""

    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False


@dataclass
class Curve:
    """A line of points in the field with number *column*, from 0; *text* is what the pointer shows at each."""

    label: str
    column: int = 0
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    dash: str = "solid"

    def add(self, x: float, y: float, text: str) -> None:
        """Append a point."""
        self.x.append(x)
        self.y.append(y)
        self.text.append(text)


class CurvesPanel(Panel):
    """A panel that draws :class:`Curve` objects; a kind of experiment gives *fields* and :meth:`_curves`."""

    fields: tuple[Field, ...] = ()

    def _curves(self, series: list[dict[str, Any]]) -> list[Curve]:
        raise NotImplementedError

    @property
    def figure(self) -> go.FigureWidget:
        """The curves."""
        return self.picture

    def _picture(self) -> Any:
        self._places: dict[tuple[str, int], int] = {}
        self._colours: dict[str, str] = {}
        canvas = go.FigureWidget(
            make_subplots(rows=1, cols=len(self.fields), subplot_titles=[one.title for one in self.fields])
        )
        for column, one in enumerate(self.fields, start=1):
            kinds = {True: "log", False: "linear"}
            canvas.update_xaxes(type=kinds[one.log_x], title_text=one.x, row=1, col=column)
            canvas.update_yaxes(type=kinds[one.log_y], title_text=one.y, row=1, col=column)
        canvas.update_layout(
            template="plotly_white",
            autosize=True,
            height=420,
            margin={"t": 40, "b": 60},
            legend={"orientation": "h", "y": -0.2},
        )
        return canvas

    def _draw(self, series: list[dict[str, Any]]) -> None:
        curves = self._curves(series)
        with self.picture.batch_update():
            for one in curves:
                key = (one.label, one.column)
                if key not in self._places:
                    self._places[key] = self._add(one)
                trace = self.picture.data[self._places[key]]
                if list(trace.x or ()) != one.x or list(trace.y or ()) != one.y:
                    trace.x, trace.y, trace.text = one.x, one.y, one.text
                trace.visible = True
            drawn = {(one.label, one.column) for one in curves}
            for key, place in self._places.items():
                if key not in drawn:
                    self.picture.data[place].visible = False

    def _add(self, one: Curve) -> int:
        """Add the trace of a curve, without points; returns its number."""
        colour = self._colours.setdefault(one.label, _PALETTE[len(self._colours) % len(_PALETTE)])
        known = [label for label, _ in self._places]
        self.picture.add_trace(
            go.Scatter(
                x=[],
                y=[],
                name=one.label,
                legendgroup=one.label,
                showlegend=one.label not in known,
                mode="lines+markers",
                marker={"size": 5, "color": colour},
                line={"color": colour, "dash": one.dash, "width": 2},
                hovertemplate="%{text}<extra></extra>",
            ),
            row=1,
            col=one.column + 1,
        )
        return len(self.picture.data) - 1
