"""Curves that grow in a panel, one field or several beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from viakit.lab._panel import Panel
from viakit.measure import interactive
from viakit.measure.look import Look, looks

__all__ = ["Curve", "CurvesPanel", "Field", "show_ends"]

HEIGHT = 380


@dataclass(frozen=True)
class Field:
    """One field of a picture: its title, the words on its axes, the unit of y, and whether axes are logarithmic.

    With *whole_x* the axis has a mark at each measured x, and no others: numbers of ranks, for instance.
    """

    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    unit: str = ""
    whole_x: bool = False


@dataclass
class Curve:
    """A line of points in the field with number *column*, from 0; *text* is what the pointer shows at each.

    *look* selects colour and marker; None: those of the name *label*. *low* and *high* are the limits of the band.
    """

    label: str
    column: int = 0
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    look: Look | None = None
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, x: float, y: float, text: str, band: tuple[float, float] | None = None) -> None:
        """Append a point, with the limits of its band."""
        self.x.append(x)
        self.y.append(y)
        self.text.append(text)
        if band is not None:
            self.low.append(band[0])
            self.high.append(band[1])


def show_ends(
    picture: Any,
    ends: Sequence[tuple[str, Look, float, float]],
    *,
    column: int,
    log_y: bool,
    height: int,
    around: Sequence[float],
) -> None:
    """Replace the names at the ends of the curves of a field, whose axis includes the values *around*."""
    kept = [one for one in picture.layout.annotations if one.name != "end"]
    names = interactive.end_labels(ends, column=column, log_y=log_y, height=height - 190, around=around)
    picture.layout.annotations = [*kept, *names]


class CurvesPanel(Panel):
    """A panel that draws :class:`Curve` objects; a kind of experiment gives *fields* and :meth:`_curves`."""

    fields: tuple[Field, ...] = ()

    def _curves(self, series: list[dict[str, Any]]) -> list[Curve]:
        raise NotImplementedError

    def _figure(self) -> go.Figure:
        self._places: dict[tuple[str, int], tuple[int, int]] = {}
        self._marks: dict[int, list[float]] = {}
        self._looks: dict[str, Look] = {}  # those of the traces, which never change
        titles = [one.title for one in self.fields]
        canvas = make_subplots(rows=1, cols=len(self.fields), subplot_titles=titles, horizontal_spacing=0.1)
        legend = {"orientation": "h", "y": -0.26, "yanchor": "top"}  # a long one grows downwards, not over the axes
        interactive.layout(canvas, HEIGHT, autosize=True, margin={"t": 40, "b": 60, "r": 140}, legend=legend)
        for column, one in enumerate(self.fields, start=1):
            kinds = {True: "log", False: "linear"}
            canvas.update_xaxes(type=kinds[one.log_x], title_text=one.x, row=1, col=column)
            canvas.update_yaxes(type=kinds[one.log_y], title_text=one.y, row=1, col=column)
            canvas.update_yaxes(exponentformat="SI", row=1, col=column)
            if one.log_y:
                canvas.update_yaxes(tickformat=interactive.PLAIN, row=1, col=column)
            if one.unit == "B/s":
                interactive.rate_axis(canvas, row=1, col=column)
            elif one.unit:
                canvas.update_yaxes(ticksuffix=one.unit, row=1, col=column)
        interactive.empty_fields(canvas, len(self.fields))
        return canvas

    def _draw(self, series: list[dict[str, Any]]) -> None:
        curves = self._curves(series)
        given = {one.label: one.look for one in curves if one.look is not None}
        self._looks = looks((one.label for one in curves), {**given, **self._looks})
        with self.figure.batch_update():
            for one in curves:
                key = (one.label, one.column)
                if key not in self._places:
                    self._places[key] = self._add(one, self._looks[one.label])
                band, line = (self.figure.data[place] for place in self._places[key])
                if list(line.x or ()) != one.x or list(line.y or ()) != one.y:
                    line.x, line.y, line.text = one.x, one.y, one.text
                    if one.low:
                        band.x, band.y = [*one.x, *one.x[::-1]], [*one.high, *one.low[::-1]]
                line.visible = band.visible = True
            for column, area in enumerate(self.fields):
                values = [y for one in curves if one.column == column for y in (*one.y, *one.low, *one.high)]
                interactive.few_marks(self.figure, column + 1, values)
                marks = sorted({x for one in curves if one.column == column for x in one.x})
                if area.whole_x and marks != self._marks.get(column):
                    self._marks[column] = marks
                    self.figure.update_xaxes(tickmode="array", tickvals=marks, row=1, col=column + 1)
            drawn = {(one.label, one.column) for one in curves}
            for key, places in self._places.items():
                for place in places if key not in drawn else ():
                    self.figure.data[place].visible = False
            last = len(self.fields) - 1
            of_last = [one for one in curves if one.column == last and one.y]
            ends = [(one.label, self._looks[one.label], one.y[-1], min(one.y)) for one in of_last]
            around = [y for one in of_last for y in (*one.y, *one.low, *one.high)]
            log_y = self.fields[last].log_y
            show_ends(self.figure, ends, column=last + 1, log_y=log_y, height=HEIGHT, around=around)

    def _add(self, one: Curve, look: Look) -> tuple[int, int]:
        """Add the traces of a curve's band and line, without points; returns their numbers."""
        known = [label for label, _ in self._places]
        place = {"row": 1, "col": one.column + 1}
        self.figure.add_trace(
            go.Scatter(
                x=[],
                y=[],
                **interactive.fill(look),
                legendgroup=one.label,
                showlegend=False,
            ),
            **place,
        )
        self.figure.add_trace(
            go.Scatter(
                x=[],
                y=[],
                name=one.label,
                legendgroup=one.label,
                showlegend=one.label not in known,
                mode="lines+markers",
                **look.trace(),
                hovertemplate="%{text}<extra></extra>",
            ),
            **place,
        )
        return len(self.figure.data) - 2, len(self.figure.data) - 1
