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
from viakit.measure.result import ResultError, conditions

if TYPE_CHECKING:
    from viakit.lab._compare import Compare
    from viakit.lab._job import Job

__all__ = ["ComparePanel"]

# A menu treats the value None as "not selected" and shows nothing for it. Therefore no option has the value None.
_NO_SIZE = ("choose a size", -1)
_USUAL_LEVEL = ("each its usual", "usual")
_GRAPHS = ("throughput", "signature", "ratio")
_HEIGHT = 400


class ComparePanel(Panel):
    """Panel of a :class:`viakit.lab._compare.Compare`."""

    file = "compare.json"

    def __init__(self, experiment: Compare) -> None:
        self._traces: dict[str, tuple[int, ...]] = {}
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
        self._draw([])

    @property
    def figure(self) -> go.FigureWidget:
        """The curves."""
        return self.picture

    # ------------------------------------------------------------------------------------ controls

    def _controls(self) -> Any:
        config = self.experiment.config
        names = [name for name in endpoints.protocols() if name not in ("floor", "null")]
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
        self.sockbuf = text("sockbuf", config.sockbuf, "bytes, e.g. 128K, or auto")
        self.memory = choice("memory", list(endpoints.MEMORIES), config.memory)
        self.buffers = choice("buffers", list(endpoints.BUFFERS), config.buffers)
        self.policy = text("thresholds", config.policy, "e.g. eager_limit=64K")
        self.fault = text("faults", config.fault, "e.g. loss=1%")
        fields = [self.sizes, self.mode, self.wait, self.hosts, self.level, self.seconds]
        fields += [self.memory, self.buffers, self.mtu, self.rate, self.sockbuf, self.policy, self.fault]
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
        self._draw([])
        self.keep.disabled = True

    # ------------------------------------------------------------------------------------ drawing

    def _picture(self) -> Any:
        return _figure()

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
        """Update the traces. Only changes are sent to the browser."""
        documents = [*self._earlier, *([{"series": series}] if series else [])]
        names = [*self._names, *(["now"] if series else [])]
        try:
            drawn = plot.curves(documents, names)
        except ResultError:
            drawn = []  # There is no point yet.
        below = conditions([one for document in documents for one in document["series"] if one["points"]])
        with self.figure.batch_update():
            if self.figure.layout.title.text != below:
                self.figure.layout.title = {"text": below, "font": {"size": 12}}
            for one in drawn:
                if one["label"] not in self._traces:
                    self._traces[one["label"]] = self._add(one)
                each = [plot.lines_of(one, graph)[:2] for graph in _GRAPHS]
                for place, (x, y) in zip(self._traces[one["label"]], each, strict=True):
                    trace = self.figure.data[place]
                    if list(trace.x or ()) != list(x) or list(trace.y or ()) != y:
                        trace.x, trace.y, trace.text = x, y, _hover(one)
                    trace.visible = True
            tail = [(one["label"], one["look"], one["ratio"][-1], min(one["ratio"])) for one in drawn]
            show_ends(self.figure, tail, column=len(_GRAPHS), log_y=True, height=_HEIGHT)
            labels = {one["label"] for one in drawn}
            for label, places in self._traces.items():
                for place in places if label not in labels else ():
                    self.figure.data[place].visible = False

    def _add(self, one: Mapping[str, Any]) -> tuple[int, ...]:
        """Add the traces of a curve, without points, and return their numbers."""
        n = len(self.figure.data)
        for column in range(1, len(_GRAPHS) + 1):
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
        return tuple(range(n, n + len(_GRAPHS)))

    def _show_counters(self) -> None:
        nbytes = self.size.value
        if nbytes == _NO_SIZE[1] or self.experiment.job is None:
            self.counters.value = ""
            return
        self.counters.value = Counters.of({"series": self.experiment.job.series()}, nbytes)._repr_html_()


def _figure() -> go.FigureWidget:
    """Return the empty figure: throughput graph, signature graph, ratios to the first protocol."""
    titles = [plot.HEADINGS[graph] for graph in _GRAPHS]
    canvas = go.FigureWidget(make_subplots(rows=1, cols=len(_GRAPHS), subplot_titles=titles, horizontal_spacing=0.09))
    interactive.layout(
        canvas, _HEIGHT, autosize=True, margin={"t": 60, "b": 60, "r": 140}, legend={"orientation": "h", "y": -0.2}
    )
    for column, graph in enumerate(_GRAPHS, start=1):
        interactive.axes(canvas, graph, column, plot.axis_words(graph, "one-way time", "the first"), log_y=True)
    return canvas


def _hover(one: Mapping[str, Any]) -> list[str]:
    return [
        f"{one['label']}<br>{format_size(n)}: {table.format_time(t)} one way<br>{table.format_bandwidth(rate)}"
        for n, t, rate in zip(one["nbytes"], one["time_s"], one["Bps"], strict=True)
    ]
