"""Controls and curves of ``lab.compare()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from viakit import _core
from viakit.lab._compare import Counters
from viakit.lab._curves import show_ends
from viakit.lab._panel import SMALL, Panel, choice, grid, text
from viakit.measure import endpoints, interactive, plot, table
from viakit.measure.ladder import format_size
from viakit.measure.look import Look
from viakit.measure.result import ResultError, conditions
from viakit.remote import rdma

if TYPE_CHECKING:
    from viakit.lab._compare import Compare
    from viakit.lab._job import Job

__all__ = ["ComparePanel"]

# A menu treats the value None as "not selected" and shows nothing for it. Therefore no option has the value None.
_NO_SIZE = ("choose a size", -1)
_USUAL_LEVEL = ("each its usual", "usual")
_N_GRAPHS = 3
_HEIGHT = 400


class ComparePanel(Panel):
    """Panel of a :class:`viakit.lab._compare.Compare`."""

    file = "compare.json"

    def __init__(self, experiment: Compare) -> None:
        self._traces: dict[str, tuple[int, ...]] = {}
        self._looks: dict[str, Look] = {}  # those of the traces, which never change
        self._graphs: tuple[str, ...] = ()
        self._words: list[tuple[str, str]] = []
        self._sizes: list[int] = []
        self._earlier: list[dict[str, Any]] = list(experiment.against)
        self._names = [f"earlier {i + 1}" for i in range(len(self._earlier))]
        super().__init__(experiment)
        self.keep = widgets.Button(
            description="Keep", icon="thumb-tack", disabled=True, tooltip="keep these curves while measuring others"
        )
        self.keep.on_click(lambda _: self._on_keep())
        self.top.children = [self.start, self.stop, self.keep, self.progress.widget]
        self.size = widgets.Dropdown(description="counters at", options=[_NO_SIZE])
        self.size.observe(lambda _: self._show_counters(), "value")
        self.counters = widgets.HTML()
        self.bottom.children = [self.size, self.name, self.save]
        self.widget.children = [*self.widget.children, self.counters]
        self._redraw([])

    # ------------------------------------------------------------------------------------ controls

    def _controls(self) -> Any:
        config = self.experiment.config
        left_out = {"floor", "null"}
        if not rdma.ports():
            left_out |= {name for name, one in endpoints.protocols().items() if "RDMA" in one.needs}
        names = [name for name in endpoints.protocols() if name not in left_out]
        names += [f"msg-{_core.policy_channel(name)}:{name}" for name in _core.policies()]
        self.protocols = widgets.SelectMultiple(
            options=names, value=[one for one in config.protocols if one in names], rows=8, layout=SMALL
        )
        self.sizes = text(
            "sizes",
            ",".join(format_size(one).replace(" ", "").replace("iB", "").removesuffix("B") for one in config.sizes),
            "1,64,4K or 1:1M",
        )
        self.mode = choice("mode", list(endpoints.MODES), config.mode)
        self.wait = choice("wait", list(endpoints.WAITS), config.wait)
        self.hosts = choice("hosts", ["auto", "local", "testbed"], config.hosts)
        self.level = choice(
            "level", [_USUAL_LEVEL, *((one, one) for one in ("c", "python", "both"))], config.level or _USUAL_LEVEL[1]
        )
        self.seconds = widgets.BoundedFloatText(
            description="seconds", value=config.seconds, min=0.1, max=86400, layout=SMALL
        )
        self.mtu = text("MTU", config.mtu, "1500")
        self.rate = text("rate", config.rate, "e.g. 1gbit")
        self.delay = text("delay", config.delay, "e.g. 1ms")
        self.sockbuf = text("sockbuf", config.sockbuf, "bytes, e.g. 128K, or auto")
        self.memory = choice("memory", list(endpoints.MEMORIES), config.memory)
        self.buffers = choice("buffers", list(endpoints.BUFFERS), config.buffers)
        self.policy = text("thresholds", config.policy, "e.g. eager_limit=64K")
        self.fault = text("faults", config.fault, "e.g. loss=1%")
        fields = [self.sizes, self.mode, self.wait, self.hosts, self.level, self.seconds]
        fields += [self.memory, self.buffers, self.mtu, self.rate, self.delay]
        fields += [self.sockbuf, self.policy, self.fault]
        return widgets.HBox([self.protocols, grid(fields)])

    def chosen(self) -> dict[str, Any]:
        """Return the settings of the controls. Raises ValueError for invalid text."""
        return {
            "protocols": list(self.protocols.value),
            "sizes": self.sizes.value,
            "mode": self.mode.value,
            "wait": self.wait.value,
            "hosts": self.hosts.value,
            "level": None if self.level.value == _USUAL_LEVEL[1] else self.level.value,
            "seconds": self.seconds.value,
            "mtu": self.mtu.value or None,
            "rate": self.rate.value or None,
            "delay": self.delay.value or None,
            "sockbuf": self.sockbuf.value or None,
            "memory": self.memory.value,
            "buffers": self.buffers.value,
            "policy": self.policy.value or None,
            "fault": self.fault.value or None,
        }

    def _on_keep(self) -> None:
        """Keep the present curves for comparison with later measurements."""
        self._earlier.append(dict(self.experiment.result))
        self._names.append(f"kept {len(self._earlier)}")
        self._redraw([])
        self.keep.disabled = True

    # ------------------------------------------------------------------------------------ drawing

    def _figure(self) -> go.Figure:
        """Return the empty figure with three fields, whose titles and axes are set when it is drawn."""
        titles = [" "] * _N_GRAPHS
        canvas = make_subplots(rows=1, cols=_N_GRAPHS, subplot_titles=titles, horizontal_spacing=0.12)
        legend = {"orientation": "h", "y": -0.3, "yanchor": "top"}
        interactive.layout(canvas, _HEIGHT, autosize=True, margin={"t": 60, "b": 75, "r": 140}, legend=legend)
        interactive.empty_fields(canvas, _N_GRAPHS)
        return canvas

    def update(self, job: Job) -> None:
        """Draw the measurements of *job* so far. Called in the job's thread."""
        super().update(job)
        series = job.series()
        self.keep.disabled = job.running or not series
        if series:
            sizes = sorted({point["nbytes"] for one in series for point in one["points"]})
            options = [_NO_SIZE, *((format_size(n), n) for n in sizes)]
            if list(self.size.options) != options:
                value = self.size.value
                self.size.options = options
                self.size.value = value if value in sizes else _NO_SIZE[1]
            if self.size.value != _NO_SIZE[1]:
                self._show_counters()

    def _draw(self, series: list[dict[str, Any]]) -> None:
        """Update the traces."""
        documents = [*self._earlier, *([{"series": series}] if series else [])]
        names = [*self._names, *(["now"] if series else [])]
        try:
            drawn = plot.curves(documents, names)
        except ResultError:
            drawn = []  # There is no point yet.
        measured = [one for document in documents for one in document["series"] if one["points"]]
        below = conditions(measured)
        self._choose_graphs({str(one["mode"]) for one in measured}, drawn)
        with self.figure.batch_update():
            if self.figure.layout.title.text != below:
                self.figure.layout.title = {"text": below, "font": {"size": 12}}
            for one in drawn:
                if one["label"] not in self._traces:
                    self._traces[one["label"]] = self._add(one)
                    self._looks[one["label"]] = one["look"]
                self._update(one, self._traces[one["label"]])
            for column, graph in enumerate(self._graphs, start=1):
                interactive.few_marks(self.figure, column, *interactive.all_values(graph, drawn))
            last = [(one, plot.lines_of(one, self._graphs[-1])[1]) for one in drawn]
            tail = [(one["label"], self._looks[one["label"]], y[-1], min(y)) for one, y in last]
            around = [value for _, y in last for value in y]
            show_ends(self.figure, tail, column=_N_GRAPHS, log_y=True, height=_HEIGHT, around=around)
            labels = {one["label"] for one in drawn}
            for label, places in self._traces.items():
                for place in places if label not in labels else ():
                    self.figure.data[place].visible = False

    def _choose_graphs(self, modes: set[str], drawn: list[dict[str, Any]]) -> None:
        """Set titles and axes of the fields for the curves: those of overlap and of the message rate have their own."""
        config = self.experiment.config
        modes = modes or {config.mode}
        several = max(len(drawn), len(config.protocols) + len(self._earlier))
        graphs = plot.graphs_of(modes, several)
        first = drawn[0]["label"] if drawn else "the first"
        words = [plot.axis_words(graph, plot.time_axis(modes), first) for graph in graphs]
        sizes = plot.size_ticks(drawn)[0]
        if (graphs, sizes) != (self._graphs, self._sizes):
            for column, graph in enumerate(graphs, start=1):
                interactive.mark_sizes(self.figure, graph, column, drawn)
        self._sizes = sizes
        if (graphs, words) == (self._graphs, self._words):
            return
        self._graphs, self._words = graphs, words
        titles = [one for one in self.figure.layout.annotations if one.name != "end"]
        for column, (graph, title) in enumerate(zip(graphs, titles, strict=True), start=1):
            title.text = plot.HEADINGS[graph]
            interactive.axes(self.figure, graph, column, words[column - 1], log_y=True)

    def _update(self, one: Mapping[str, Any], places: tuple[int, ...]) -> None:
        """Set the points of a curve and of its bands, if they have changed."""
        for graph, at in zip(self._graphs, range(0, len(places), 2), strict=True):
            lines = plot.lines_of(one, graph)
            band, line = (self.figure.data[place] for place in places[at : at + 2])
            if list(line.x or ()) != list(lines[0]) or list(line.y or ()) != lines[1]:
                line.x, line.y, line.text = *lines[:2], _hover(one)
                band.x, band.y = ([], []) if graph in ("ratio", "p99") else interactive.band(lines, graph)
            band.visible = line.visible = True

    def _add(self, one: Mapping[str, Any]) -> tuple[int, ...]:
        """Add the traces of a curve, without points: band and line in each field. Return their numbers."""
        n = len(self.figure.data)
        for column in range(1, _N_GRAPHS + 1):
            band = go.Scatter(
                x=[], y=[], **interactive.fill(one["look"]), legendgroup=one["label"], showlegend=False
            )  # fmt: skip
            self.figure.add_trace(band, row=1, col=column)
            self.figure.add_trace(
                go.Scatter(
                    x=[],
                    y=[],
                    name=one["label"],
                    legendgroup=one["label"],
                    showlegend=column == 1,
                    mode="lines+markers",
                    **one["look"].trace(),
                    hovertemplate="%{text}<extra></extra>",
                ),
                row=1,
                col=column,
            )
        return tuple(range(n, n + 2 * _N_GRAPHS))

    def _show_counters(self) -> None:
        nbytes = self.size.value
        if nbytes == _NO_SIZE[1] or self.experiment.job is None:
            self.counters.value = ""
            return
        self.counters.value = Counters.of({"series": self.experiment.job.series()}, nbytes)._repr_html_()


def _hover(one: Mapping[str, Any]) -> list[str]:
    return [
        f"{one['label']}<br>{format_size(n)}: {table.format_time(t)} one way<br>{table.format_bandwidth(rate)}"
        for n, t, rate in zip(one["nbytes"], one["time_s"], one["Bps"], strict=True)
    ]
