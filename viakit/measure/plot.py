"""Pictures of results, as NetPIPE drew them.

The throughput graph
    Mbit/s over message size: how much of the link a message of that size can use.
The signature graph
    Throughput over the time that a message takes: "the network latency ... coincides with the time of the first data
    point" [NetPIPE]. Two protocols that differ only in latency are the same curve shifted to the left.
The time graph
    One-way time over message size.

Matplotlib draws still pictures (PNG, SVG, PDF), Plotly interactive ones (HTML that needs no network). The band around a
curve reaches from the 5th to the 90th percentile of the samples.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viakit.measure.kinds import TRANSFERS, kind_of
from viakit.measure.ladder import format_size
from viakit.measure.result import Document, ResultError, series_label, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "GRAPHS", "curves", "figure", "html", "panels", "plain_legend", "save"]

FORMATS = (".png", ".svg", ".pdf", ".html")
LABEL_WIDTH, LABEL_HEIGHT = 40, 9  # of a time in the signature graph, points
GRAPHS = ("throughput", "signature", "time")

# Okabe and Ito's colours, told apart by colour-blind eyes too. A protocol has the same one in every picture.
COLOURS = {
    "via-eth": "#D55E00",
    "tcp": "#0072B2",
    "udp": "#56B4E9",
    "zmq": "#009E73",
    "via-udp": "#B5651D",
    "via-shm": "#E69F00",
    "mpi": "#CC79A7",
    "mpi:openmpi": "#CC79A7",
    "mpi:mpich": "#7A4A8C",
    "unix": "#6B6B6B",
    "via-loop": "#A05A00",
    "bip-eth": "#882255",
    "bip-udp": "#AA4499",
    "bip-shm": "#661100",
    "msg-via": "#332288",
    "msg-bip": "#AA7700",
    "msg-tcp": "#117733",
}
SPARE = ("#000000", "#8C6D31", "#1B7837", "#762A83", "#4D4D4D")
DASHES = {("poll", "c"): "-", ("block", "c"): "--", ("poll", "python"): ":", ("block", "python"): "-."}
PLOTLY_DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}

MODE_WORDS = {"pingpong": "ping-pong", "stream": "stream", "bidir": "both directions"}


def curves(documents: Sequence[Document], names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return what is to be drawn: one dict per series with points.

    Each has ``label``, ``colour``, ``dash``, and lists over its points: ``nbytes``, ``time_s``, ``low_s``, ``high_s``
    (5th and 90th percentile) and ``mbit_s``, ``low_mbit_s``, ``high_mbit_s``.

    Parameters
    ----------
    documents : sequence of dict
        Results; several are overlaid.
    names : sequence of str, optional
        A name for each of *documents*, put behind its labels if there are several.
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
                label += ", two hosts" if one["hosts"] == "testbed" else ", one host"
            if len(documents) > 1:
                label += f" [{names[i] if names else i + 1}]"
            key = one["protocol"] if len(documents) == 1 else label
            if key not in colours:
                usual = COLOURS.get(one["protocol"])
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
    """Return the documents with only what has message sizes and one-way times."""
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
    parts.append(" and ".join({"poll": "polled", "block": "blocking"}[wait] for wait in sorted(waits, reverse=True)))
    mtus = sorted({one["mtu"] for one in series if one["hosts"] == "testbed" and one["mtu"]})
    if mtus:
        parts.append("MTU " + ", ".join(map(str, mtus)))
    machine = documents[0]["environment"]
    parts.append(f"{machine['cpu']}, Linux {str(machine['kernel']).removeprefix('Linux ')}")
    return axis, " · ".join(parts)


@contextlib.contextmanager
def _quiet_matplotlib() -> Iterator[None]:
    """Let Matplotlib work, and say nothing, for a user without a home folder: it wants one for its font cache."""
    import logging

    logger = logging.getLogger("matplotlib")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _title(drawn: Sequence[Mapping[str, Any]], documents: Sequence[Document]) -> str:
    """Return what a picture shows, in a line: the protocols, and where they ran if that is one place."""
    protocols = dict.fromkeys(one["protocol"] for each in documents for one in each["series"] if one["points"])
    names = list(protocols) if len(protocols) > 1 else [one["label"] for one in drawn[:1]]
    places = {one["hosts"] for each in documents for one in each["series"] if one["points"]}
    where = {"testbed": " between two hosts", "local": " on one host"}.get(places.pop(), "") if len(places) == 1 else ""
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1] + where


def panels(n: int) -> tuple[Figure, list[Any]]:
    """Return a figure with *n* fields of one size, at most three in a row, and the fields in order."""
    from matplotlib.figure import Figure

    columns = min(n, 3)
    lines = -(-n // columns)
    drawing = Figure(figsize=(5 * columns + 1, 4 * lines), layout="constrained")
    fields = list(drawing.subplots(lines, columns, squeeze=False).flat)
    for axes in fields[n:]:
        axes.set_visible(False)
    return drawing, fields[:n]


def plain_legend(axes: Any, **kw: Any) -> None:
    """Draw a legend whose words are names of files and protocols: a $ in them begins no formula."""
    for text in axes.legend(**kw).get_texts():
        text.set_parse_math(False)


def _plain_numbers(axis: Any) -> None:
    """Have a logarithmic axis say 0.1, 10, 1000 and no powers of ten."""
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}".replace(",", "\u202f") if value >= 1 else f"{value:g}")


def _first_times(ax: Any, drawn: Sequence[Mapping[str, Any]]) -> None:
    """In the signature graph, say the time of each curve's first message, and let no band squeeze the curves."""
    first = [one["time_s"][0] * 1e6 for one in drawn]
    every = [time * 1e6 for one in drawn for time in one["time_s"]]
    ax.set_xlim(min(every) / 2, max(every) * 2)
    ax.margins(y=0.08)
    ax.get_ylim()  # scales the axis now
    points = 72 / ax.figure.dpi
    taken: list[tuple[float, float]] = []
    # From the top: of those that begin in one place each is written below the one before.
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
    if short > 0:  # room for the lowest; the curves move a little closer together, hence the half more
        ax.set_ylim(bottom=ax.transData.inverted().transform((0, ax.bbox.y0 - 1.5 * short / points))[1])


def _size_ticks(curves_: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[str]]:
    """Return powers of two to mark on the axis of sizes, at most about ten, with their names."""
    largest = max(max(one["nbytes"]) for one in curves_)
    smallest = max(min(min(one["nbytes"]) for one in curves_), 1)
    powers = [1 << i for i in range(64) if smallest <= 1 << i <= largest] or [smallest]
    step = max(1, (len(powers) + 8) // 9)
    shown = powers[::step]
    return shown, [format_size(size).replace(" ", "\u00a0") for size in shown]


def figure(
    documents: Sequence[Document],
    *,
    names: Sequence[str] | None = None,
    graphs: Sequence[str] = ("throughput", "signature"),
    log_y: bool = True,
    title: str | None = None,
) -> Figure:
    """Draw results with Matplotlib and return the figure (nothing global is touched, no window is opened).

    Parameters
    ----------
    documents, names
        As for :func:`curves`.
    graphs : sequence of str
        Any of :data:`GRAPHS`, side by side.
    log_y : bool
        False: throughput on a linear axis, as the first papers drew it; small messages then lie on the ground.
    title : str, optional
        Above all graphs. Default: what was measured, and where.
    """
    with _quiet_matplotlib():
        from matplotlib.figure import Figure

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
                micro = [time * 1e6 for time in one["time_s"]]
                if graph == "throughput":
                    ax.plot(one["nbytes"], one["mbit_s"], label=one["label"], **style)
                    ax.fill_between(
                        one["nbytes"], one["low_mbit_s"], one["high_mbit_s"], color=one["colour"], alpha=0.15, lw=0
                    )
                elif graph == "signature":
                    ax.plot(micro, one["mbit_s"], label=one["label"], **style)
                    ax.fill_betweenx(
                        one["mbit_s"],
                        [time * 1e6 for time in one["low_s"]],
                        [time * 1e6 for time in one["high_s"]],
                        color=one["colour"],
                        alpha=0.15,
                        lw=0,
                    )
                else:
                    ax.plot(one["nbytes"], micro, label=one["label"], **style)
                    low, high = ([time * 1e6 for time in one[key]] for key in ("low_s", "high_s"))
                    ax.fill_between(one["nbytes"], low, high, color=one["colour"], alpha=0.15, lw=0)
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
            ax.set_xlabel("message size" if over_size else f"{axis}, µs")
            ax.set_ylabel(f"{axis}, µs" if graph == "time" else "throughput, Mbit/s")
            ax.set_title(
                {"throughput": "Throughput graph", "signature": "Signature graph", "time": "Time"}[graph], fontsize=11
            )
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
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    documents = _transfers(documents)
    drawn = curves(documents, names)
    axis, below = _words(documents)
    headings = {"throughput": "Throughput graph", "signature": "Signature graph", "time": "Time"}
    heading = title or _title(drawn, documents)
    canvas = make_subplots(rows=1, cols=len(graphs), subplot_titles=[headings[graph] for graph in graphs])
    for column, graph in enumerate(graphs, start=1):
        for one in drawn:
            micro = [time * 1e6 for time in one["time_s"]]
            low, high = ([time * 1e6 for time in one[key]] for key in ("low_s", "high_s"))
            x = micro if graph == "signature" else one["nbytes"]
            y = micro if graph == "time" else one["mbit_s"]
            text = [
                f"{one['label']}<br>{format_size(n)}: {t:.3f} µs one way [{a:.3f} ... {b:.3f}]<br>{m:.1f} Mbit/s"
                for n, t, a, b, m in zip(one["nbytes"], micro, low, high, one["mbit_s"], strict=True)
            ]
            common = {"legendgroup": one["label"], "row": 1, "col": column}
            if graph == "signature":
                band_x, band_y = low + high[::-1], one["mbit_s"] + one["mbit_s"][::-1]
            elif graph == "time":
                band_x, band_y = one["nbytes"] + one["nbytes"][::-1], low + high[::-1]
            else:
                band_x = one["nbytes"] + one["nbytes"][::-1]
                band_y = one["low_mbit_s"] + one["high_mbit_s"][::-1]
            _add(
                canvas,
                go.Scatter(
                    x=band_x,
                    y=band_y,
                    fill="toself",
                    fillcolor=one["colour"],
                    opacity=0.15,
                    line={"width": 0},
                    mode="lines",
                    hoverinfo="skip",
                    showlegend=False,
                ),
                **common,
            )
            _add(
                canvas,
                go.Scatter(
                    x=x,
                    y=y,
                    name=one["label"],
                    mode="lines+markers",
                    marker={"size": 4, "color": one["colour"]},
                    line={"color": one["colour"], "dash": PLOTLY_DASHES[one["dash"]], "width": 2},
                    text=text,
                    hovertemplate="%{text}<extra></extra>",
                    showlegend=column == 1,
                ),
                **common,
            )
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


def _add(canvas: Any, trace: Any, *, legendgroup: str, row: int, col: int) -> None:
    trace.legendgroup = legendgroup
    canvas.add_trace(trace, row=row, col=col)


def html(documents: Sequence[Document], *, whole: bool = True, **kw: Any) -> str:
    """Return an HTML page (or, with *whole* False, a <div> for one) that draws without network."""
    return interactive(documents, **kw).to_html(full_html=whole, include_plotlyjs=True, config={"displaylogo": False})


def check_format(path: str | os.PathLike[str], formats: Sequence[str] = FORMATS) -> str:
    """Return the suffix of *path* if a picture can be written in that format, which is one of *formats*.

    Raises
    ------
    ResultError
        If not; the message names the formats there are.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in formats:
        raise ResultError(f"{path}: no such picture format; end the name with one of {', '.join(formats)}")
    return suffix


def picture(documents: Sequence[Document], suffix: str, **kw: Any) -> bytes:
    """Return a picture as the bytes of a file; *suffix* as of :data:`FORMATS`, other arguments as of :func:`figure`."""
    if suffix == ".html":
        return html(documents, **kw).encode()
    with _quiet_matplotlib():
        buffer = io.BytesIO()
        figure(documents, **kw).savefig(buffer, format=suffix[1:])
    return buffer.getvalue()


def save(documents: Sequence[Document], path: str | os.PathLike[str], **kw: Any) -> None:
    """Draw results into a file; its suffix says how (:data:`FORMATS`). Other arguments as of :func:`figure`.

    Raises
    ------
    ResultError
        For another suffix, for results without points, or if the file cannot be written.
    """
    write_file(path, picture(documents, check_format(path), **kw))
