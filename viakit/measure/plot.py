"""Pictures of results in the style of NetPIPE.

The throughput graph
    Mbit/s over message size: the part of the link's bandwidth that a message of that size can use.
The signature graph
    Throughput over the time of a message: "the network latency ... coincides with the time of the first data point"
    (NetPIPE). Two protocols that differ only in latency have the same curve, shifted horizontally.
The time graph
    One-way time over message size.

Matplotlib draws still pictures (PNG, SVG, PDF), Plotly interactive ones (HTML that needs no network). The band around a
curve reaches from the 5th to the 90th percentile of the samples.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viakit.measure import endpoints
from viakit.measure.kinds import TRANSFERS, kind_of
from viakit.measure.ladder import format_size
from viakit.measure.result import Document, ResultError, conditions, series_label, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "GRAPHS", "curves", "figure", "html", "panels", "plain_legend", "save"]

FORMATS = (".png", ".svg", ".pdf", ".html")
LABEL_WIDTH, LABEL_HEIGHT = 40, 9  # size of a time label in the signature graph, in points
HEADINGS = {"throughput": "Throughput graph", "signature": "Signature graph", "time": "Time"}
GRAPHS = tuple(HEADINGS)

# A protocol has the same colour in every picture.
COLOURS = {name: protocol.colour for name, protocol in endpoints.protocols().items() if protocol.colour}
SPARE = ("#000000", "#8C6D31", "#1B7837", "#762A83", "#4D4D4D")
DASHES = {("poll", "c"): "-", ("block", "c"): "--", ("poll", "python"): ":", ("block", "python"): "-."} | {
    ("hybrid", "c"): (0, (6, 1.5))
}
PLOTLY_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot", (0, (6, 1.5)): "longdash"}

WAIT_WORDS = {"poll": "polled", "block": "blocking", "hybrid": "hybrid"}
MODE_WORDS = {"pingpong": "ping-pong", "stream": "stream", "bidir": "both directions"}


def curves(documents: Sequence[Document], names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the curves to draw: one dict per series with points.

    Each has ``label``, ``colour``, ``dash``, and lists over its points: ``nbytes``, ``time_s``, ``low_s``, ``high_s``
    (5th and 90th percentile) and ``mbit_s``, ``low_mbit_s``, ``high_mbit_s``.

    Parameters
    ----------
    documents : sequence of dict
        Results; several are overlaid.
    names : sequence of str, optional
        Names of the documents, which are appended to their labels if there are several.
    """
    documents = _transfers(documents)
    every = [one for document in documents for one in document["series"]]
    drawn: list[dict[str, Any]] = []
    spare = iter(SPARE * (1 + len(every)))
    colours: dict[str, str] = {}
    places = {one["hosts"] for one in every if one["points"]}
    for i, document in enumerate(documents):
        for one in document["series"]:
            points = [point for point in one["points"] if point["one_way_s"]["median"] > 0]
            if not points:
                continue
            label = series_label(one, every)
            if len(places) > 1:
                label += ", two hosts" if one["hosts"] != "local" else ", one host"
            if len(documents) > 1:
                label += f" [{names[i] if names else i + 1}]"
            key = one["protocol"] if len(documents) == 1 else label
            if key not in colours:
                known = endpoints.known(one["protocol"])
                usual = known and known.colour
                colours[key] = usual if usual and usual not in colours.values() else next(spare)
            times = [point["one_way_s"] for point in points]
            mbit = [point["bandwidth_Bps"] * 8e-6 for point in points]
            drawn.append(
                {
                    "label": label,
                    "colour": colours[key],
                    "dash": DASHES[one["wait"], one["level"]],
                    "nbytes": [point["nbytes"] for point in points],
                    "time_s": [time["median"] for time in times],
                    "low_s": [time["p5"] for time in times],
                    "high_s": [time["p90"] for time in times],
                    "mbit_s": mbit,
                    "low_mbit_s": [m * t["median"] / t["p90"] for m, t in zip(mbit, times, strict=True)],
                    "high_mbit_s": [m * t["median"] / max(t["p5"], 1e-12) for m, t in zip(mbit, times, strict=True)],
                }
            )
    if not drawn:
        raise ResultError("nothing to draw: the result has no points")
    return drawn


def _transfers(documents: Sequence[Document]) -> list[Document]:
    """Return the documents with only the series that have message sizes and one-way times."""
    return [
        {**document, "series": [one for one in document["series"] if kind_of(one) == TRANSFERS]}
        for document in documents
    ]


def _words(documents: Sequence[Document]) -> tuple[str, str]:
    """Return the words for the time axis, and the line under the title."""
    series = [one for document in documents for one in document["series"] if one["points"]]
    modes = {one["mode"] for one in series}
    axis = "one-way time, half the round trip" if modes == {"pingpong"} else "time per message"
    parts = [" and ".join(sorted(MODE_WORDS[mode] for mode in modes))]
    waits = {one["wait"] for one in series}
    parts.append(" and ".join(WAIT_WORDS[wait] for wait in sorted(waits, reverse=True)))
    parts.append(conditions(series))
    mtus = sorted({one["mtu"] for one in series if one["hosts"] != "local" and one["mtu"]})
    if mtus:
        parts.append("MTU " + ", ".join(map(str, mtus)))
    machine = documents[0]["environment"]
    parts.append(f"{machine['cpu']}, Linux {str(machine['kernel']).removeprefix('Linux ')}")
    return axis, " · ".join(parts)


@contextlib.contextmanager
def _quiet_matplotlib() -> Iterator[None]:
    """Silence Matplotlib's warning for a user without a home folder, where its font cache would be."""
    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _title(drawn: Sequence[Mapping[str, Any]], documents: Sequence[Document]) -> str:
    """Return a title in one line: the protocols, and the place if all ran in one place."""
    protocols = dict.fromkeys(one["protocol"] for each in documents for one in each["series"] if one["points"])
    names = list(protocols) if len(protocols) > 1 else [one["label"] for one in drawn[:1]]
    places = {one["hosts"] for each in documents for one in each["series"] if one["points"]}
    where = (
        {"testbed": " between two hosts", "ssh": " between two machines", "local": " on one host"}.get(places.pop(), "")
        if len(places) == 1
        else ""
    )
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] + where


def panels(n: int) -> tuple[Figure, list[Any]]:
    """Return a figure with *n* fields of equal size, at most three in a row, and the fields in order."""
    from matplotlib.figure import Figure  # start-up time

    columns = min(n, 3)
    lines = -(-n // columns)
    drawing = Figure(figsize=(5 * columns + 1, 4 * lines), layout="constrained")
    fields = list(drawing.subplots(lines, columns, squeeze=False).flat)
    for axes in fields[n:]:
        axes.set_visible(False)
    return drawing, fields[:n]


def plain_legend(axes: Any, **kw: Any) -> None:
    """Draw a legend in which a $ in the name of a file or protocol does not start a formula."""
    for text in axes.legend(**kw).get_texts():
        text.set_parse_math(False)


def _plain_numbers(axis: Any) -> None:
    """Label a logarithmic axis with 0.1, 10, 1000 instead of powers of ten."""
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", "\u202f") if value >= 1 else f"{value:g}")


def _first_times(ax: Any, drawn: Sequence[Mapping[str, Any]]) -> None:
    """Label the first message of each curve of the signature graph with its time, and set limits from the curves."""
    first = [one["time_s"][0] * 1e6 for one in drawn]
    every = [time * 1e6 for one in drawn for time in one["time_s"]]
    ax.set_xlim(min(every) / 2, max(every) * 2)
    ax.margins(y=0.08)
    ax.get_ylim()  # forces the scaling of the axis
    points = 72 / ax.figure.dpi
    taken: list[tuple[float, float]] = []
    # From the top: if curves begin at one place, each label is written below the one before.
    for one, time in sorted(zip(drawn, first, strict=True), key=lambda each: -each[0]["mbit_s"][0]):
        x, y = (float(place) * points for place in ax.transData.transform((time, one["mbit_s"][0])))
        below = -11.0
        while any(abs(x - left) < LABEL_WIDTH and abs(y + below - up) < LABEL_HEIGHT for left, up in taken):
            below -= 1
        taken.append((x, y + below))
        ax.annotate(
            f"{time:.3g} µs" if time < 1000 else f"{time:.0f} µs",
            (time, one["mbit_s"][0]),
            xytext=(0, below),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=one["colour"],
        )
    short = ax.bbox.y0 * points + 4 - min(up for _, up in taken)
    if short > 0:  # room for the lowest label; the curves then move closer together, so half of it is added
        ax.set_ylim(bottom=ax.transData.inverted().transform((0, ax.bbox.y0 - 1.5 * short / points))[1])


def _size_ticks(curves_: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[str]]:
    """Return powers of two to mark on the axis of sizes, at most about ten, with their names."""
    largest = max(max(one["nbytes"]) for one in curves_)
    smallest = max(min(min(one["nbytes"]) for one in curves_), 1)
    powers = [1 << i for i in range(64) if smallest <= 1 << i <= largest] or [smallest]
    step = max(1, (len(powers) + 8) // 9)
    shown = powers[::step]
    return shown, [format_size(size).replace(" ", "\u00a0") for size in shown]


def _lines(one: Mapping[str, Any], graph: str) -> tuple[list[float], ...]:
    """Return x and y of a curve in a graph, and its band: limits of x in the signature graph, otherwise of y."""
    micro, low, high = ([time * 1e6 for time in one[key]] for key in ("time_s", "low_s", "high_s"))
    if graph == "throughput":
        return one["nbytes"], one["mbit_s"], one["low_mbit_s"], one["high_mbit_s"]
    return (micro, one["mbit_s"], low, high) if graph == "signature" else (one["nbytes"], micro, low, high)


def _scale(ax: Any, graph: str, drawn: Sequence[Mapping[str, Any]], log_y: bool) -> None:
    """Set the scales and ticks of a graph."""
    over_size = graph != "signature"
    zero = over_size and min(min(one["nbytes"]) for one in drawn) == 0
    ax.set_xscale("symlog" if zero else "log", **({"linthresh": 1} if zero else {}))
    if over_size:
        ticks, words = _size_ticks(drawn)
        ax.set_xticks(ticks, words, fontsize=8, rotation=30, ha="right")
        ax.minorticks_off()
    else:
        _plain_numbers(ax.xaxis)
    if log_y or graph == "time":
        lowest = min(min(one["mbit_s" if graph != "time" else "time_s"]) for one in drawn)
        ax.set_yscale("log" if lowest > 0 else "symlog")
        _plain_numbers(ax.yaxis)
    else:
        ax.set_ylim(bottom=0)
    if graph == "signature":
        _first_times(ax, drawn)


def figure(
    documents: Sequence[Document],
    *,
    names: Sequence[str] | None = None,
    graphs: Sequence[str] = ("throughput", "signature"),
    log_y: bool = True,
    title: str | None = None,
) -> Figure:
    """Draw results with Matplotlib and return the figure, without global state and without opening a window.

    Parameters
    ----------
    documents, names
        As for :func:`curves`.
    graphs : sequence of str
        Any of :data:`GRAPHS`, drawn side by side.
    log_y : bool
        False: throughput on a linear axis, as in the first papers; small messages are then close to zero.
    title : str, optional
        Title above all graphs. Default: the subject and the machine.
    """
    with _quiet_matplotlib():
        from matplotlib.figure import Figure  # start-up time

        documents = _transfers(documents)
        drawn = curves(documents, names)
        axis, below = _words(documents)
        canvas = Figure(figsize=(6.2 * len(graphs), 5.0), layout="constrained", dpi=120)
        axes = canvas.subplots(1, len(graphs), squeeze=False)[0]
        for ax, graph in zip(axes, graphs, strict=True):
            for one in drawn:
                style = {"color": one["colour"], "linestyle": one["dash"], "linewidth": 1.6}
                if len(one["nbytes"]) <= 24:
                    style.update(marker="o", markersize=3.5)
                x, y, low, high = _lines(one, graph)
                ax.plot(x, y, label=one["label"], **style)
                band = (ax.fill_betweenx, y) if graph == "signature" else (ax.fill_between, x)
                band[0](band[1], low, high, color=one["colour"], alpha=0.15, lw=0)
            _scale(ax, graph, drawn, log_y)
            ax.set_xlabel("message size" if graph != "signature" else f"{axis}, µs")
            ax.set_ylabel(f"{axis}, µs" if graph == "time" else "throughput, Mbit/s")
            ax.set_title(HEADINGS[graph], fontsize=11)
            ax.grid(True, which="major", alpha=0.3, linewidth=0.6)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
        plain_legend(axes[0], frameon=False, fontsize=9)
        canvas.suptitle(title or _title(drawn, documents), fontsize=13, parse_math=False)
        canvas.supxlabel(
            f"{below}\nlines: medians; bands: 5th to 90th percentile", fontsize=8, color="#555555", parse_math=False
        )
        return canvas


def interactive(
    documents: Sequence[Document],
    *,
    names: Sequence[str] | None = None,
    graphs: Sequence[str] = ("throughput", "signature"),
    log_y: bool = True,
    title: str | None = None,
) -> Any:
    """Draw results with Plotly and return its figure; arguments as for :func:`figure`."""
    import plotly.graph_objects as go  # optional package
    from plotly.subplots import make_subplots  # optional package

    documents = _transfers(documents)
    drawn = curves(documents, names)
    axis, below = _words(documents)
    heading = title or _title(drawn, documents)
    canvas = make_subplots(rows=1, cols=len(graphs), subplot_titles=[HEADINGS[graph] for graph in graphs])
    for column, graph in enumerate(graphs, start=1):
        for one in drawn:
            x, y, low, high = _lines(one, graph)
            micro, least, most = ([time * 1e6 for time in one[key]] for key in ("time_s", "low_s", "high_s"))
            text = [
                f"{one['label']}<br>{format_size(n)}: {t:.3f} µs one way [{a:.3f} ... {b:.3f}]<br>{m:.1f} Mbit/s"
                for n, t, a, b, m in zip(one["nbytes"], micro, least, most, one["mbit_s"], strict=True)
            ]
            around, along = low + high[::-1], (y if graph == "signature" else x)
            band = {"x": [*along, *along[::-1]], "y": around}
            if graph == "signature":
                band = {"x": around, "y": band["x"]}
            fill = {"fill": "toself", "fillcolor": one["colour"], "opacity": 0.15, "line": {"width": 0}}
            line = {"color": one["colour"], "dash": PLOTLY_DASHES[one["dash"]], "width": 2}
            for trace in (
                go.Scatter(**band, **fill, mode="lines", hoverinfo="skip", showlegend=False),
                go.Scatter(
                    x=x,
                    y=y,
                    name=one["label"],
                    mode="lines+markers",
                    marker={"size": 4, "color": one["colour"]},
                    line=line,
                    text=text,
                    hovertemplate="%{text}<extra></extra>",
                    showlegend=column == 1,
                ),
            ):
                trace.legendgroup = one["label"]
                canvas.add_trace(trace, row=1, col=column)
        over_size = graph != "signature"
        canvas.update_xaxes(
            type="log",
            title_text="message size, bytes" if over_size else f"{axis}, µs",
            row=1,
            col=column,
            exponentformat="SI",
        )
        logarithmic = log_y or graph == "time"
        canvas.update_yaxes(
            type="log" if logarithmic else "linear",
            title_text=f"{axis}, µs" if graph == "time" else "throughput, Mbit/s",
            row=1,
            col=column,
        )
    canvas.update_layout(
        template="plotly_white",
        title={"text": f"{escape(heading)}<br><sup>{below}; lines: medians, bands: 5th to 90th percentile</sup>"},
        legend={"orientation": "h", "y": -0.2},
        height=560,
        margin={"t": 110},
    )
    return canvas


def html(documents: Sequence[Document], *, whole: bool = True, **kw: Any) -> str:
    """Return an HTML page (or, with *whole* False, a <div> for one) that draws without network."""
    return interactive(documents, **kw).to_html(full_html=whole, include_plotlyjs=True, config={"displaylogo": False})


def check_format(path: str | os.PathLike[str], formats: Sequence[str] = FORMATS) -> str:
    """Return the suffix of *path* if a picture can be written in that format, which is one of *formats*.

    Raises
    ------
    ResultError
        If the format is not supported; the message lists the supported ones.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in formats:
        raise ResultError(f"{path}: no such picture format; end the name with one of {', '.join(formats)}")
    return suffix


def picture(documents: Sequence[Document], suffix: str, **kw: Any) -> bytes:
    """Return a picture as the bytes of a file in the format *suffix* (:data:`FORMATS`).

    Other arguments as for :func:`figure`.
    """
    if suffix == ".html":
        return html(documents, **kw).encode()
    with _quiet_matplotlib():
        buffer = io.BytesIO()
        figure(documents, **kw).savefig(buffer, format=suffix[1:])
    return buffer.getvalue()


def save(documents: Sequence[Document], path: str | os.PathLike[str], **kw: Any) -> None:
    """Draw results into a file in the format of its suffix (:data:`FORMATS`). Other arguments as for :func:`figure`.

    Raises
    ------
    ResultError
        If the format is not supported, the results have no points, or the file cannot be written.
    """
    write_file(path, picture(documents, check_format(path), **kw))
