"""Pictures of results in the style of NetPIPE.

The throughput graph
    Throughput over message size: the part of the link's bandwidth that a message of that size can use.
The signature graph
    Throughput over the time of a message: "the network latency ... coincides with the time of the first data point"
    (NetPIPE). Two protocols that differ only in latency have the same curve, shifted horizontally.
The ratio graph
    Time of each protocol over that of the first one. The band is the 95 % interval of the ratio.
The p99 graph
    99th percentile of the one-way time over message size.
The time graph
    One-way time over message size.
The overlap graph
    Of a sweep with mode overlap: the share of the one-way time that computing could use, over message size.
The rate graph
    Messages per second over message size.

Matplotlib draws still pictures (PNG, SVG, PDF), and :mod:`viakit.measure.interactive` draws pages with Plotly (HTML
that needs no network). The band around a curve reaches from the 5th to the 90th percentile of the samples. Colours and
markers are those of :mod:`viakit.measure.look`. Names of curves stand at the ends of their lines.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viakit.base.words import counted
from viakit.measure import table
from viakit.measure.kinds import TRANSFERS, kind_of
from viakit.measure.ladder import format_size
from viakit.measure.look import INK, ON_DARK, ON_LIGHT, spread
from viakit.measure.look import look as look_of
from viakit.measure.result import Document, ResultError, conditions, series_label, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FORMATS", "GRAPHS", "curves", "figure", "graphs_of", "html", "inline", "inline_figure", "names_at_lines", "panels",
    "plain_legend", "rates", "save", "size_ticks", "time_axis", "times", "usual_graphs",
]  # fmt: skip

FORMATS = (".png", ".svg", ".pdf", ".html")
_TITLE = 90  # characters of a title that fit above three fields
LABEL_WIDTH, LABEL_HEIGHT = 42, 10  # size of a time label in the signature graph, in points
HEADINGS = {
    "throughput": "Throughput graph", "signature": "Signature graph", "ratio": "Ratio of times",
    "p99": "99th percentile", "time": "Time", "overlap": "Overlap", "rate": "Message rate",
}  # fmt: skip
GRAPHS = tuple(HEADINGS)
LOGARITHMIC = ("time", "p99", "ratio", "rate")  # graphs that are logarithmic even if throughput is not

WAIT_WORDS = {"poll": "polled", "block": "blocking", "hybrid": "hybrid"}
MODE_WORDS = {
    "pingpong": "ping-pong", "stream": "stream", "bidir": "both directions", "overlap": "ping-pong beside computing",
    "rate": "stream",
}  # fmt: skip
_USUAL = {"overlap": ("overlap", "time"), "rate": ("rate", "throughput")}  # of other modes: throughput, signature


def curves(
    documents: Sequence[Document], names: Sequence[str] | None = None, *, intervals: bool = False
) -> list[dict[str, Any]]:
    """Return the curves to draw: one dict per series with points.

    Each has ``label``, ``look`` (:class:`viakit.measure.look.Look`), and lists over its points: ``nbytes``, ``time_s``,
    ``low_s``, ``high_s`` (5th and 90th percentile), ``p99_s``, ``Bps``, ``low_Bps``, ``high_Bps``, and ``ratio``,
    ``low_ratio``, ``high_ratio`` against the first curve (NaN at a size that it lacks). A last triple is ``overlap``,
    ``low_overlap``, ``high_overlap``: percent, with the 95 % interval (NaN in other modes than overlap).

    Parameters
    ----------
    documents : sequence of dict
        Results; several are overlaid.
    names : sequence of str, optional
        Names of the documents, which are appended to their labels if there are several.
    intervals : bool
        Compute the intervals of the ratios, which takes some milliseconds for each point.
    """
    documents = _transfers(documents)
    every = [one for document in documents for one in document["series"]]
    places = {one["hosts"] for one in every if one["points"]}
    protocols = [one["protocol"] for one in every if one["points"]]
    drawn: list[dict[str, Any]] = []
    first: Mapping[str, Any] | None = None
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
            look = look_of(one["protocol"], wait=one["wait"], level=one["level"], file=i, among=protocols)
            first = first or one
            drawn.append({"label": label, "look": look, **_columns(points), **_ratios(points, first, intervals)})
    if not drawn:
        raise ResultError("nothing to draw: the result has no points")
    return drawn


def _columns(points: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return times and throughput of points as lists."""
    times, rates = [point["one_way_s"] for point in points], [point["bandwidth_Bps"] for point in points]
    return {
        "nbytes": [point["nbytes"] for point in points],
        "time_s": [time["median"] for time in times],
        "low_s": [time["p5"] for time in times],
        "high_s": [time["p90"] for time in times],
        "p99_s": [time["p99"] for time in times],
        "Bps": rates,
        "low_Bps": [rate * time["median"] / time["p90"] for rate, time in zip(rates, times, strict=True)],
        "high_Bps": [rate * time["median"] / max(time["p5"], 1e-12) for rate, time in zip(rates, times, strict=True)],
        **_overlaps(points),
    }


def _overlaps(points: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the overlap of points in percent, with its interval."""
    nan = float("nan")
    each = [point.get("overlap", {"median": nan}) for point in points]
    ends = [one.get("ci95", [one["median"]] * 2) for one in each]
    return {
        "overlap": [100 * one["median"] for one in each],
        "low_overlap": [100 * low for low, _ in ends],
        "high_overlap": [100 * high for _, high in ends],
    }


def _ratios(points: Sequence[Mapping[str, Any]], first: Mapping[str, Any], intervals: bool) -> dict[str, list[float]]:
    """Return the times of points over those of the series *first* at the same sizes, with their intervals."""
    found: dict[str, list[float]] = {"ratio": [], "low_ratio": [], "high_ratio": []}
    reference = {point["nbytes"]: point for point in first["points"] if point["one_way_s"]["median"] > 0}
    nan = float("nan")
    for point in points:
        peer = reference.get(point["nbytes"])
        value = point["one_way_s"]["median"] / peer["one_way_s"]["median"] if peer else nan
        low = high = value
        if peer and intervals and peer is not point and (ratio := table.point_ratio(point, peer)) is not None:
            low, high = (ratio.low, ratio.high) if ratio.low > 0 else (value, value)
        for key, each in zip(found, (value, low, high), strict=True):
            found[key].append(each)
    return found


def usual_graphs(documents: Sequence[Document]) -> tuple[str, ...]:
    """Return the graphs of a picture: throughput, signature, and ratios, or the tail if there is one curve only.

    For a sweep of overlap or of the message rate, that graph comes first.
    """
    drawn = [one for document in _transfers(documents) for one in document["series"] if one["points"]]
    return graphs_of({str(one["mode"]) for one in drawn}, len(drawn))


def graphs_of(modes: Collection[str], n_curves: int) -> tuple[str, ...]:
    """Return the usual graphs for the modes of all curves and the number of curves."""
    first = _USUAL.get(next(iter(modes))) if len(modes) == 1 else None
    return (*(first or ("throughput", "signature")), "ratio" if n_curves > 1 else "p99")


def _transfers(documents: Sequence[Document]) -> list[Document]:
    """Return the documents with only the series that have message sizes and one-way times."""
    return [
        {**document, "series": [one for one in document["series"] if kind_of(one) == TRANSFERS]}
        for document in documents
    ]


def time_axis(modes: Collection[str]) -> str:
    """Return the words on the time axis for the modes of all curves: the definition of the time."""
    if set(modes) == {"overlap"}:
        return "time lost to computing, one way"
    return "one-way time, half the round trip" if set(modes) == {"pingpong"} else "time per message"


def words(documents: Sequence[Document]) -> tuple[str, str]:
    """Return the words for the time axis, and the line under the title."""
    series = [one for document in documents for one in document["series"] if one["points"]]
    modes = {one["mode"] for one in series}
    parts = [" and ".join(sorted(MODE_WORDS[mode] for mode in modes))]
    waits = {one["wait"] for one in series}
    parts.append(" and ".join(WAIT_WORDS[wait] for wait in sorted(waits, reverse=True)))
    parts.append(conditions(series))
    mtus = sorted({one["mtu"] for one in series if one["hosts"] != "local" and one["mtu"]})
    if mtus:
        parts.append("MTU " + ", ".join(map(str, mtus)))
    machine = documents[0]["environment"]
    parts.append(f"{machine['cpu']}, Linux {str(machine['kernel']).removeprefix('Linux ')}")
    return time_axis(modes), " · ".join(parts)


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


def title_of(drawn: Sequence[Mapping[str, Any]], documents: Sequence[Document]) -> str:
    """Return a title in one line: the protocols, or their number if they are many, and the place if it was one."""
    protocols = dict.fromkeys(one["protocol"] for each in documents for one in each["series"] if one["points"])
    names = list(protocols) if len(protocols) > 1 else [one["label"] for one in drawn[:1]]
    places = {one["hosts"] for each in documents for one in each["series"] if one["points"]}
    where = (
        {"testbed": " between two hosts", "ssh": " between two machines", "local": " on one host"}.get(places.pop(), "")
        if len(places) == 1
        else ""
    )
    every = ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]
    return (every if len(every) <= _TITLE or len(names) == 1 else counted(len(names), "protocol")) + where


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
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", "\u202f") if value >= 10 else f"{value:.3g}")


def rates(axis: Any) -> None:
    """Label an axis of throughput with 1 MB/s, 10 GB/s."""
    axis.set_major_formatter(
        lambda value, _: table.format_bandwidth(value).replace(".00 ", " ").replace(".0 ", " ") if value > 0 else "0"
    )


def _few_decades(axis: Any) -> None:
    """Label 2 and 5 on a logarithmic axis with fewer than two powers of ten, or round numbers on a shorter one."""
    from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter  # start-up time

    low, high = sorted(axis.get_view_interval())
    if axis.get_scale() != "log" or low <= 0:
        return
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high))
    powers = last - math.ceil(math.log10(low)) + 1
    if powers < 2:
        ticks = [m * 10.0**k for k in range(first, last + 1) for m in (2, 5) if low <= m * 10.0**k <= high]
        axis.set_minor_locator(FixedLocator(ticks) if len(ticks) + powers > 1 else MaxNLocator(4))
    axis.set_minor_formatter(axis.get_major_formatter() if powers < 2 else NullFormatter())


def times(axis: Any) -> None:
    """Label a logarithmic axis of times, after its limits are known: 0.1, 10, 1000, and others between few of them."""
    _plain_numbers(axis)
    _few_decades(axis)


def names_at_lines(ax: Any, size: float = 9.0) -> None:
    """Write the name of each curve at the right edge, at the height of its last point; apart where curves end together.

    Call it after the scales are set. Curves whose name begins with an underscore get none.
    """
    ax.set_xlim(ax.get_xlim())  # The heights below hold for these limits, which the markers beside the axes would move.
    ax.set_ylim(ax.get_ylim())
    handles = [getattr(one, "lines", (one,))[0] for one in ax.get_legend_handles_labels()[0]]
    names = ax.get_legend_handles_labels()[1]
    lines = [one for one in handles if len(one.get_xdata())]
    to_axes = ax.transData + ax.transAxes.inverted()
    ends = [to_axes.transform((one.get_xdata()[-1], one.get_ydata()[-1])) for one in lines]
    heights = [float(end[1]) if math.isfinite(end[1]) else 0.0 for end in ends]
    gap = 1.35 * size / 72 / (ax.figure.get_figheight() * ax.get_position().height)
    for one, name, height in zip(lines, names, spread(heights, gap), strict=True):
        ax.plot(
            [1.03], [height], transform=ax.transAxes, clip_on=False, marker=one.get_marker(), color=one.get_color(),
            markersize=one.get_markersize() + 1, markerfacecolor=one.get_markerfacecolor(), label="_end",
        )  # fmt: skip
        ax.text(
            1.06, height, name, transform=ax.transAxes, fontsize=size, color=one.get_color(),
            va="center", parse_math=False,
        )  # fmt: skip


def _first_times(ax: Any, drawn: Sequence[Mapping[str, Any]]) -> None:
    """Label the first message of each curve of the signature graph with its time, and set limits from the curves."""
    first = [one["time_s"][0] * 1e6 for one in drawn]
    every = [time * 1e6 for one in drawn for time in one["time_s"]]
    ax.set_xlim(min(every) / 2, max(every) * 2)
    ax.margins(y=0.08)
    ax.get_ylim()  # forces the scaling of the axis
    points = 72 / ax.figure.dpi
    taken: list[tuple[float, float]] = []
    begins = [
        tuple(float(place) * points for place in ax.transData.transform((time, one["Bps"][0])))
        for one, time in zip(drawn, first, strict=True)
    ]

    def free(x: float, up: float) -> bool:
        """Return whether a label that begins at a height hides neither another one nor the first mark of a curve."""
        of_labels = any(abs(x - left) < LABEL_WIDTH and abs(up - other) < LABEL_HEIGHT for left, other in taken)
        return not of_labels and not any(
            abs(x - left) < LABEL_WIDTH / 2 + 3 and -3 < y - up < LABEL_HEIGHT for left, y in begins
        )

    # From the top: if curves begin at one place, each label is written below the one before.
    order = sorted(range(len(drawn)), key=lambda i: -drawn[i]["Bps"][0])
    for one, time, (x, y) in ((drawn[i], first[i], begins[i]) for i in order):
        below = -11.0
        while not free(x, y + below):
            below -= 1
        taken.append((x, y + below))
        ax.annotate(
            f"{time:.3g} µs" if time < 1000 else f"{time:.0f} µs",
            (time, one["Bps"][0]),
            xytext=(0, below),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=one["look"].colour,
        )
    short = ax.bbox.y0 * points + 4 - min(up for _, up in taken)
    if short > 0:  # room for the lowest label; the curves then move closer together, so half of it is added
        ax.set_ylim(bottom=ax.transData.inverted().transform((0, ax.bbox.y0 - 1.5 * short / points))[1])


def size_ticks(curves_: Sequence[Mapping[str, Any]], most: int = 9) -> tuple[list[int], list[str]]:
    """Return powers of two to mark on the axis of sizes, at most *most*, with their names. Without curves: to 1 MiB."""
    sizes = [n for one in curves_ for n in one["nbytes"]] or [1, 1 << 20]
    smallest, largest = max(min(sizes), 1), max(sizes)
    powers = [1 << i for i in range(64) if smallest <= 1 << i <= largest] or [smallest]
    step = max(1, -(-len(powers) // most))
    shown = powers[::step]
    return shown, [format_size(size).replace(" ", "\u00a0") for size in shown]


def lines_of(one: Mapping[str, Any], graph: str) -> tuple[list[float], ...]:
    """Return x and y of a curve in a graph, and its band: limits of x in the signature graph, otherwise of y."""
    micro, low, high, p99 = ([time * 1e6 for time in one[key]] for key in ("time_s", "low_s", "high_s", "p99_s"))
    if graph == "throughput":
        return one["nbytes"], one["Bps"], one["low_Bps"], one["high_Bps"]
    if graph in ("ratio", "overlap"):
        return one["nbytes"], one[graph], one[f"low_{graph}"], one[f"high_{graph}"]
    if graph == "rate":
        return one["nbytes"], *([1 / time for time in one[key]] for key in ("time_s", "high_s", "low_s"))
    if graph == "p99":
        return one["nbytes"], p99, p99, p99
    return (micro, one["Bps"], low, high) if graph == "signature" else (one["nbytes"], micro, low, high)


def axis_words(graph: str, axis: str, first: str) -> tuple[str, str]:
    """Return the words on the axes of a graph; *axis* is the definition of the time, *first* the reference's name."""
    up = {"time": f"{axis}, µs", "p99": "99th percentile, µs", "ratio": f"time / time of {first}"}
    up |= {"overlap": "overlap, % of the one-way time", "rate": "messages per second"}
    return (f"{axis}, µs" if graph == "signature" else "message size"), up.get(graph, "throughput")


def _scale(ax: Any, graph: str, drawn: Sequence[Mapping[str, Any]], log_y: bool) -> None:
    """Set the scales and ticks of a graph."""
    over_size = graph != "signature"
    zero = over_size and min(min(one["nbytes"]) for one in drawn) == 0
    ax.set_xscale("symlog" if zero else "log", **({"linthresh": 1} if zero else {}))
    if over_size:
        ticks, words = size_ticks(drawn)
        ax.set_xticks(ticks, words, fontsize=8, rotation=30, ha="right")
        ax.minorticks_off()
    else:
        _plain_numbers(ax.xaxis)
    if graph == "ratio":
        ax.axhline(1.0, color=INK, linewidth=0.6, label="_one")
    if graph == "overlap":
        ax.set_ylim(min(0.0, *(min(one["overlap"]) for one in drawn)), 105)
    elif log_y or graph in LOGARITHMIC:
        lowest = min(min(one["time_s" if graph in LOGARITHMIC else "Bps"]) for one in drawn)
        low, high = ax.dataLim.intervaly
        if low > 0 and high < 1.0001 * low:  # level curves: too close together for automatic limits
            ax.set_ylim(low / 2, 2 * high)
        ax.set_yscale("log" if lowest > 0 else "symlog")
        _plain_numbers(ax.yaxis) if graph in LOGARITHMIC else rates(ax.yaxis)
    else:
        rates(ax.yaxis)
        ax.set_ylim(bottom=0)
    if graph == "signature":
        _first_times(ax, drawn)
        _few_decades(ax.xaxis)
    _few_decades(ax.yaxis)


def figure(
    documents: Sequence[Document],
    *,
    names: Sequence[str] | None = None,
    graphs: Sequence[str] | None = None,
    log_y: bool = True,
    title: str | None = None,
    intervals: bool = True,
) -> Figure:
    """Draw results with Matplotlib and return the figure, without global state and without opening a window.

    Parameters
    ----------
    documents, names, intervals
        As for :func:`curves`.
    graphs : sequence of str, optional
        Any of :data:`GRAPHS`, drawn side by side. Default: :func:`usual_graphs`.
    log_y : bool
        False: throughput on a linear axis, as in the first papers; small messages are then close to zero.
    title : str, optional
        Title above all graphs. Default: the subject and the machine.
    """
    with _quiet_matplotlib():
        from matplotlib.figure import Figure  # start-up time

        documents = _transfers(documents)
        graphs = graphs or usual_graphs(documents)
        drawn = curves(documents, names, intervals=intervals and "ratio" in graphs)
        check_graphs(graphs, drawn)
        axis, below = words(documents)
        canvas = Figure(figsize=(2.2 * len(graphs) + 6, 4.4), layout="constrained", dpi=110)
        axes = canvas.subplots(1, len(graphs), squeeze=False)[0]
        for ax, graph in zip(axes, graphs, strict=True):
            for one in drawn:
                x, y, low, high = lines_of(one, graph)
                dense = {} if len(x) <= 24 else {"markevery": len(x) // 12}
                ax.plot(x, y, label=one["label"], **one["look"].line(6.0 if len(x) <= 8 else 4.0), **dense)
                band = (ax.fill_betweenx, y) if graph == "signature" else (ax.fill_between, x)
                band[0](band[1], low, high, color=one["look"].colour, alpha=0.15, lw=0)
            _scale(ax, graph, drawn, log_y)
            x_words, y_words = axis_words(graph, axis, drawn[0]["label"])
            ax.set_xlabel(x_words)
            ax.set_ylabel(y_words, parse_math=False)
            ax.set_title(HEADINGS[graph], fontsize=11)
            ax.grid(True, which="major", alpha=0.3, linewidth=0.6)
            for side in ("top", "right"):
                ax.spines[side].set_visible(False)
        names_at_lines(axes[-1])
        canvas.suptitle(title or title_of(drawn, documents), fontsize=13, parse_math=False)
        canvas.supxlabel(
            f"{below}\nlines: medians; bands: 5th to 90th percentile"
            + ("; of ratios: 95 % interval" if "ratio" in graphs else ""),
            fontsize=8, color=INK, parse_math=False,
        )  # fmt: skip
        return canvas


def check_graphs(graphs: Sequence[str], drawn: Sequence[Mapping[str, Any]]) -> None:
    """Raise ResultError for a graph of overlap if a curve has none."""
    lacks = [one["label"] for one in drawn if "overlap" in graphs and not all(map(math.isfinite, one["overlap"]))]
    if lacks:
        raise ResultError(f"{lacks[0]} has no overlap to draw; measure it with `viakit sweep --mode overlap`")


def inline(svg: bytes, name: str) -> str:
    """Return an SVG picture as HTML whose lines and text have the colour of the page's text, so that themes apply.

    Text in the colour of a curve is mixed with the page's colour: dark blue would be unreadable on a dark page.
    Text on coloured areas (ON_LIGHT, ON_DARK) is left as it is.
    """
    text = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index(b"<svg") :].decode(), flags=re.DOTALL)
    text = text.replace("#000000", "currentColor").replace("#ffffff", "none").replace(INK.lower(), "currentColor")
    coloured = rf'(<g style="fill: )(?!{ON_LIGHT}|{ON_DARK})(#[0-9a-f]{{6}})(?=")'
    text = re.sub(coloured, r"\1color-mix(in srgb, \2 60%, currentColor)", text)
    style = "max-width:100%;height:auto;fill:currentColor"
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(name)}" style="{style}"', 1)


def inline_figure(figure: Figure, name: str) -> str:
    """Return a figure of Matplotlib as HTML: :func:`inline` of its SVG picture."""
    buffer = io.BytesIO()
    with _quiet_matplotlib():
        figure.savefig(buffer, format="svg")
    return inline(buffer.getvalue(), name)


def html(documents: Sequence[Document], *, whole: bool = True, **kw: Any) -> str:
    """Return an HTML page (or, with *whole* False, a <div> for one) that draws without network."""
    from viakit.measure import interactive  # it imports this module

    return interactive.html(documents, whole=whole, **kw)


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
