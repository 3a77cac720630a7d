"""Pages with curves that show their numbers under the pointer, drawn by Plotly without network.

Paper and fields are transparent, and text has the colour of the page: the picture follows light and dark themes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from viakit.measure import plot
from viakit.measure.ladder import format_size
from viakit.measure.look import Look, spread
from viakit.measure.result import Document
from viakit.measure.table import format_bandwidth

__all__ = [
    "CSS", "PLAIN", "STYLE", "all_values", "axes", "band", "empty_fields", "end_labels", "few_marks", "figure", "fill",
    "html", "layout", "mark_sizes",
]  # fmt: skip

# Plotly writes the colour of text into each element. These rules replace it by the page's.
STYLE = (
    ".js-plotly-plot [class$=tick] text, .js-plotly-plot text:is([class$=title], .legendtext, .annotation-text) "
    "{ fill: var(--jp-ui-font-color1, var(--vscode-editor-foreground, currentColor)) !important; }"
)
CSS = f"<style>{STYLE}</style>"
_GREY = "rgba(128, 128, 128, 0.3)"
PLAIN = ",~f"  # of d3: 0.1, 10, 200 000. Plotly's prefixes would label 200 ms as 200k on an axis of µs
# Number of marks on a logarithmic axis that has fewer decades than the limit. With 3 and 4, Plotly marks 1, 2 and 5 of
# each decade if there are one or two. With more marks it would label all nine, which overlap.
_MARKS = ((0.85, 5), (2.5, 3), (3.5, 4), (math.inf, 5))
_TITLE = 24  # characters of an axis title that fit below one of three fields
_TEXT = "#777777"  # where the style does not apply: readable on white and on black


def layout(canvas: Any, height: int, **more: Any) -> None:
    """Set a transparent background, grey grids and the margins of a Plotly figure."""
    canvas.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": _TEXT},
        height=height,
        hovermode="closest",
        separators=".\u202f",  # 10 000 has a narrow space, as in figures of Matplotlib
        modebar={"orientation": "v", "bgcolor": "rgba(0,0,0,0)"},  # at the right edge; a horizontal one covers titles
        uirevision="viakit",  # a reader's zoom and choice of curves stay when the figure is drawn again
        **more,
    )
    for update in (canvas.update_xaxes, canvas.update_yaxes):
        update(gridcolor=_GREY, linecolor=_GREY, zeroline=False, showline=True, ticks="outside", tickcolor=_GREY)


def end_labels(
    ends: Sequence[tuple[str, Look, float, float]],
    *,
    column: int,
    log_y: bool,
    height: int = 330,
    around: Sequence[float] = (),
) -> list[dict[str, Any]]:
    """Return the names of curves as annotations at the right edge of a field, moved apart where curves end together.

    Parameters
    ----------
    ends : sequence of (str, Look, float, float)
        Label, look, and the last point's y. The fourth number is not used for a single point.
    column : int
        Number of the field, from 1.
    log_y : bool
        Whether the axis is logarithmic.
    height : int
        Height of the field in pixels.
    around : sequence of float
        Further values that the axis includes, such as the ends of bands.
    """
    usable = [one for one in ends if one[2] == one[2] and (one[2] > 0 or not log_y)]
    if not usable:
        return []
    drawn = [*around, *(y for _, _, last, least in usable for y in (last, least))]
    every = [y for y in drawn if math.isfinite(y) and (y > 0 or not log_y)]
    scale = [math.log10(y) if log_y else y for y in every]
    low, high = min(scale), max(scale)
    span = (high - low) or 1.0
    heights = [((math.log10(y) if log_y else y) - low) / span for _, _, y, _ in usable]
    found = []
    for (label, look, y, _), at, to in zip(usable, heights, spread(heights, 16 / height, -0.2, 1.2), strict=True):
        found.append(
            {
                "x": 1.0,
                "xref": f"x{'' if column == 1 else column} domain",
                "xanchor": "left",
                "showarrow": False,
                "y": math.log10(y) if log_y else y,
                "yref": f"y{'' if column == 1 else column}",
                "yshift": (to - at) * height,
                "text": f'<span style="color:{look.on_page}">{look.sign}</span> {escape(label)}',
                "font": {"size": 12},
                "name": "end",
            }
        )
    return found


def _hover(one: Mapping[str, Any]) -> list[str]:
    micro, least, most = ([time * 1e6 for time in one[key]] for key in ("time_s", "low_s", "high_s"))
    return [
        f"{one['label']}<br>{format_size(n)}: {t:.3f} µs one way [{a:.3f} ... {b:.3f}]<br>{format_bandwidth(rate)}"
        for n, t, a, b, rate in zip(one["nbytes"], micro, least, most, one["Bps"], strict=True)
    ]


def empty_fields(canvas: Any, n: int) -> None:
    """Show the axes of *n* fields that have no curves yet. Plotly leaves out a field without any trace."""
    for update in (canvas.update_xaxes, canvas.update_yaxes):  # until there are points; the default begins at -1
        update(range=[0, 1], autorange=True, rangemode="nonnegative")
    for column in range(1, n + 1):
        point = {"x": [None], "y": [None], "mode": "markers", "hoverinfo": "skip", "showlegend": False}
        canvas.add_scatter(**point, row=1, col=column)


def fill(look: Look) -> dict[str, Any]:
    """Return the arguments of Plotly's ``Scatter`` for the band of a curve."""
    style = {"fill": "toself", "fillcolor": look.on_page, "opacity": 0.15, "line": {"width": 0}}
    return {**style, "mode": "lines", "hoverinfo": "skip"}


def band(lines: Sequence[list[float]], graph: str) -> tuple[list[float], list[float]]:
    """Return x and y of the outline of a curve's band; *lines* is from :func:`viakit.measure.plot.lines_of`."""
    x, y, low, high = lines
    around, along = low + high[::-1], (y if graph == "signature" else x)
    along = [*along, *along[::-1]]
    return (around, along) if graph == "signature" else (along, around)


def axes(canvas: Any, graph: str, column: int, words: tuple[str, str], log_y: bool) -> None:
    """Set the scales, units and titles of one field."""
    logarithmic = (log_y and graph != "overlap") or graph in plot.LOGARITHMIC
    place = {"row": 1, "col": column}
    in_lines = words[0] if len(words[0]) <= _TITLE else words[0].replace(", ", ",<br>", 1)
    canvas.update_xaxes(type="log", title_text=in_lines, tickformat=PLAIN, **place)
    title = "" if graph == "signature" and column > 1 else words[1]  # the field at the left has it
    canvas.update_yaxes(type="log" if logarithmic else "linear", title_text=title, exponentformat="SI", **place)
    if graph in ("throughput", "signature"):
        rate_axis(canvas, **place)
    else:
        canvas.update_yaxes(tickformat="~s" if graph == "rate" else PLAIN, ticksuffix="", labelalias={}, **place)


def few_marks(canvas: Any, column: int, y: Sequence[float], x: Sequence[float] = ()) -> None:
    """Choose the number of marks on the logarithmic axes of a field so that their labels do not overlap.

    Parameters
    ----------
    canvas : plotly.graph_objects.Figure
    column : int
        Number of the field, from 1.
    y : sequence of float
        All values, with those of bands.
    x : sequence of float, optional
        The same of the x axis, which is left as it is without values.
    """
    chosen = [(next(canvas.select_yaxes(row=1, col=column)), y)]
    chosen += [(next(canvas.select_xaxes(row=1, col=column)), x)] if x else []
    for axis, values in chosen:
        usable = [one for one in values if math.isfinite(one) and one > 0]
        decades = math.log10(max(usable) / min(usable)) if usable else 0.0
        axis.nticks = next(marks for limit, marks in _MARKS if decades < limit)


def all_values(graph: str, curves: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Return all y of a graph's curves, and all x if its x axis has no marks of sizes; both with those of bands."""
    every = [plot.lines_of(one, graph) for one in curves]
    bands = [value for lines in every for part in lines[2:] for value in part]
    y = [value for lines in every for value in lines[1]]
    return (
        (y, [*bands, *(value for lines in every for value in lines[0])]) if graph == "signature" else ([*y, *bands], [])
    )


def rate_axis(canvas: Any, **place: int) -> None:
    """Label an axis of throughput with 1 MB/s, 10 GB/s, as Matplotlib's figures. *place* is its row and column.

    Plotly puts no space between number and prefix (1GB/s), so each usual label gets an alias.
    """
    numbers = [*(n / 10 for n in range(1, 10)), *(n / 20 for n in range(20, 200)), *(n / 2 for n in range(20, 200))]
    digits = [f"{one:g}" for one in (*numbers, *range(100, 1000, 5))]
    aliases = {f"{one}{prefix}B/s": f"{one} {prefix}B/s" for prefix in ("", *"kMGT") for one in digits}
    between = [
        str(n * power) for power in (1, 10, 100) for n in range(2, 10)
    ]  # of powers of ten: Plotly omits the unit
    aliases.update({f"{one}{prefix}": f"{one} {prefix}B/s" for prefix in ("", *"kMGT") for one in between})
    canvas.update_yaxes(tickformat="~s", ticksuffix="B/s", labelalias={**aliases, "0B/s": "0"}, **place)


def mark_sizes(canvas: Any, graph: str, column: int, curves: Sequence[Mapping[str, Any]]) -> None:
    """Mark powers of two on the axis of sizes of one field, as in figures of Matplotlib. The signature graph has none.

    Parameters
    ----------
    canvas : plotly.graph_objects.Figure
    graph : str
        Any of :data:`viakit.measure.plot.GRAPHS`.
    column : int
        Number of the field, from 1.
    curves : sequence of dict
        From :func:`viakit.measure.plot.curves`; may be empty.
    """
    if graph == "signature":
        canvas.update_xaxes(tickmode="auto", tickvals=None, ticktext=None, tickangle=None, row=1, col=column)
        return
    places, names = plot.size_ticks(curves, most=6)
    canvas.update_xaxes(tickmode="array", tickvals=places, ticktext=names, tickangle=-30, row=1, col=column)


def figure(
    documents: Sequence[Document],
    *,
    names: Sequence[str] | None = None,
    graphs: Sequence[str] | None = None,
    log_y: bool = True,
    title: str | None = None,
) -> Any:
    """Draw results with Plotly and return its figure; arguments as for :func:`viakit.measure.plot.figure`."""
    import plotly.graph_objects as go  # optional package
    from plotly.subplots import make_subplots  # optional package

    graphs = graphs or plot.usual_graphs(documents)
    drawn = plot.curves(documents, names, intervals="ratio" in graphs)
    plot.check_graphs(graphs, drawn)
    axis, below = plot.words(documents)
    heading = title or plot.title_of(drawn, documents)
    titles = [plot.HEADINGS[graph] for graph in graphs]
    canvas = make_subplots(rows=1, cols=len(graphs), subplot_titles=titles, horizontal_spacing=0.1)
    for column, graph in enumerate(graphs, start=1):
        for one in drawn:
            lines = plot.lines_of(one, graph)
            x, y = band(lines, graph)
            for trace in (
                go.Scatter(x=x, y=y, **fill(one["look"]), showlegend=False),
                go.Scatter(
                    x=lines[0],
                    y=lines[1],
                    name=one["label"],
                    mode="lines+markers",
                    **one["look"].trace(),
                    text=_hover(one),
                    hovertemplate="%{text}<extra></extra>",
                    showlegend=column == 1,
                ),
            ):
                trace.legendgroup = one["label"]
                canvas.add_trace(trace, row=1, col=column)
        axes(canvas, graph, column, plot.axis_words(graph, axis, drawn[0]["label"]), log_y)
        few_marks(canvas, column, *all_values(graph, drawn))
        mark_sizes(canvas, graph, column, drawn)
    longest = max(len(one["label"]) for one in drawn)
    layout(
        canvas,
        540,
        title={"text": f"{escape(heading)}<br><sup>{below}; lines: medians, bands: 5th to 90th percentile</sup>"},
        legend={"orientation": "h", "y": -0.32},  # below axis titles of two lines
        margin={"t": 90, "b": 150, "r": 40 + 7 * longest},
    )
    last = graphs[-1]
    of_last = [(one, lines) for one in drawn if (lines := plot.lines_of(one, last))]
    ends = [(one["label"], one["look"], lines[1][-1], min(lines[1])) for one, lines in of_last]
    around = all_values(last, drawn)[0]
    logarithmic = (log_y and last != "overlap") or last in plot.LOGARITHMIC
    # Plotly adds a tenth to the range of the values.
    for label in end_labels(ends, column=len(graphs), log_y=logarithmic, height=270, around=around):
        canvas.add_annotation(**label)
    return canvas


def html(documents: Sequence[Document], *, whole: bool = True, **kw: Any) -> str:
    """Return an HTML page (or, with *whole* False, a <div> for one) that draws without network."""
    page = str(figure(documents, **kw).to_html(full_html=whole, include_plotlyjs=True, config={"displaylogo": False}))
    theme = f"<style>:root {{ color-scheme: light dark; }} {STYLE}</style>"
    return page.replace("<head>", f"<head>{theme}", 1) if whole else theme + page
