"""The controls and the growing curves of ``lab.compare()``, made of ipywidgets and Plotly.

The job's thread calls :meth:`ComparePanel.update` after each batch, and measures on when it returns: so it changes what
has changed and nothing else. Buttons are answered by the kernel's main thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from viakit.measure import endpoints, plot, report, sweep, table
from viakit.measure.ladder import format_size
from viakit.measure.result import ResultError

if TYPE_CHECKING:
    from viakit.lab._compare import Compare
    from viakit.lab._job import Job

__all__ = ["ComparePanel", "Progress"]

_COUNTERS = "copies bytes_copied system_calls frames_sent frames_retransmitted acks_sent wakeups doorbells".split()
_WIDE = widgets.Layout(width="auto")


class Progress:
    """A bar, the time left, and what is being done: shared by all panels."""

    def __init__(self) -> None:
        self.bar = widgets.FloatProgress(min=0.0, max=1.0, layout=widgets.Layout(width="16em"))
        self.text = widgets.HTML()
        self.widget = widgets.HBox([self.bar, self.text])

    def update(self, job: Job) -> None:
        """Show where *job* stands."""
        progress = job.progress
        self.bar.value = progress["fraction"] if job.running else 1.0
        self.bar.bar_style = {"running": "", "done": "success", "stopped": "warning", "failed": "danger"}[job.state]
        left = progress["left_s"]
        if job.state == "failed":
            self.say(job.error or "failed", "error")
        elif job.state == "running":
            self.say((f"{left:.0f} s left: " if left == left else "") + progress["text"])
        else:
            self.say(job.state)

    def say(self, text: str, kind: str = "") -> None:
        """Show one message; *kind* "error" in red."""
        colour = "#b00020" if kind == "error" else "inherit"
        self.text.value = f'<span class="viakit-status" style="color:{colour}">{escape(text)}</span>'


class ComparePanel:
    """The panel of a :class:`viakit.lab._compare.Compare`."""

    def __init__(self, experiment: Compare) -> None:
        self.experiment = experiment
        self.progress = Progress()
        self.figure = _figure()
        self._traces: dict[str, tuple[int, int]] = {}
        self._earlier: list[dict[str, Any]] = list(experiment.against)
        self._names = [f"earlier {i + 1}" for i in range(len(self._earlier))]
        self.controls = self._settings()
        self.start = widgets.Button(description="Start", button_style="primary", icon="play")
        self.stop = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.keep = widgets.Button(
            description="Keep", icon="thumb-tack", disabled=True, tooltip="keep these curves while measuring others"
        )
        self.start.on_click(lambda _: self._on_start())
        self.stop.on_click(lambda _: self._on_stop())
        self.keep.on_click(lambda _: self._on_keep())
        self.size = widgets.Dropdown(description="counters at", options=[("-", None)])
        self.size.observe(lambda _: self._show_counters(), "value")
        self.counters = widgets.HTML()
        self.name = widgets.Text(value="compare.json", description="file", tooltip=".json .csv .png .svg .pdf .html")
        self.save = widgets.Button(description="Save", icon="save", disabled=True)
        self.save.on_click(lambda _: self._on_save())
        self.widget = widgets.VBox(
            [
                self.controls,
                widgets.HBox([self.start, self.stop, self.keep, self.progress.widget]),
                self.figure,
                widgets.HBox([self.size, self.name, self.save]),
                self.counters,
            ]
        )
        self.widget.add_class("viakit-lab")
        self._draw([])

    # ------------------------------------------------------------------------------------ controls

    def _settings(self) -> Any:
        """Make the controls; returns them laid out."""
        config = self.experiment.config
        names = [name for name in endpoints.protocols() if name not in ("floor", "null")]
        small = widgets.Layout(width="14em")

        def choice(description: str, options: Any, value: Any) -> Any:
            return widgets.Dropdown(description=description, options=options, value=value, layout=small)

        def text(description: str, value: Any, placeholder: str) -> Any:
            return widgets.Text(
                description=description,
                value="" if value is None else str(value),
                placeholder=placeholder,
                layout=small,
                continuous_update=False,
            )

        self.protocols = widgets.SelectMultiple(
            options=names, value=[one for one in config.protocols if one in names], rows=8, layout=small
        )
        self.sizes = text(
            "sizes",
            ",".join(format_size(one).replace(" ", "").replace("iB", "").removesuffix("B") for one in config.sizes),
            "1,64,4K or 1:1M",
        )
        self.mode = choice("mode", list(sweep.MODES), config.mode)
        self.wait = choice("wait", list(sweep.WAITS), config.wait)
        self.hosts = choice("hosts", ["auto", "local", "testbed"], config.hosts)
        self.level = choice("level", [("usual", None), "c", "python", "both"], config.level)
        self.seconds = widgets.BoundedFloatText(
            description="seconds", value=config.seconds, min=0.1, max=86400, layout=small
        )
        self.mtu = text("MTU", config.mtu, "1500")
        self.rate = text("rate", config.rate, "e.g. 1gbit")
        self.sockbuf = text("sockbuf", config.sockbuf, "bytes, e.g. 128K")
        self.policy = text("thresholds", config.policy, "e.g. eager_limit=64K")
        self.fault = text("faults", config.fault, "e.g. loss=1%")
        grid = [self.sizes, self.mode, self.wait, self.hosts, self.level, self.seconds]
        grid += [self.mtu, self.rate, self.sockbuf, self.policy, self.fault]
        return widgets.HBox(
            [
                self.protocols,
                widgets.GridBox(grid, layout=widgets.Layout(grid_template_columns="repeat(3, 15em)")),
            ]
        )

    def chosen(self) -> dict[str, Any]:
        """Return the settings that the controls show. Raises ValueError for text that makes no sense."""
        from viakit.measure.ladder import parse_size

        return {
            "protocols": list(self.protocols.value),
            "sizes": self.sizes.value,
            "mode": self.mode.value,
            "wait": self.wait.value,
            "hosts": self.hosts.value,
            "level": self.level.value,
            "seconds": self.seconds.value,
            "mtu": parse_size(self.mtu.value) if self.mtu.value else None,
            "rate": self.rate.value or None,
            "sockbuf": parse_size(self.sockbuf.value) if self.sockbuf.value else None,
            "policy": self.policy.value or None,
            "fault": self.fault.value or None,
        }

    def _on_start(self) -> None:
        try:
            self.experiment.configure(**self.chosen())
            self.experiment.start()
        except (ValueError, OSError, RuntimeError) as error:
            self.progress.say(str(error), "error")

    def _on_stop(self) -> None:
        if self.experiment.job is not None:
            self.experiment.job.stop(wait=False)  # the button must not keep the kernel

    def _on_keep(self) -> None:
        """Leave the curves where they are, to be measured against."""
        self._earlier.append(dict(self.experiment.result))
        self._names.append(f"kept {len(self._earlier)}")
        self._draw([])
        self.keep.disabled = True

    def _on_save(self) -> None:
        try:
            self.progress.say(f"written: {self.experiment.save(self.name.value).resolve()}")
        except (ResultError, RuntimeError, OSError) as error:
            self.progress.say(str(error), "error")

    # ------------------------------------------------------------------------------------ drawing

    def update(self, job: Job) -> None:
        """Draw what *job* has measured by now; called in the job's thread."""
        self.start.disabled, self.stop.disabled = job.running, not job.running
        self.progress.update(job)
        series = job.series()
        self.save.disabled = not series
        self.keep.disabled = job.running or not series
        if series:
            self._draw(series)
            sizes = sorted({point["nbytes"] for one in series for point in one["points"]})
            options = [("-", None), *((format_size(n), n) for n in sizes)]
            if list(self.size.options) != options:
                value = self.size.value
                self.size.options = options
                self.size.value = value if value in sizes else None
            if self.size.value is not None:
                self._show_counters()

    def _draw(self, series: list[dict[str, Any]]) -> None:
        """Bring the traces up to date: only what has changed goes to the browser."""
        documents = [*self._earlier, *([{"series": series}] if series else [])]
        names = [*self._names, *(["now"] if series else [])]
        try:
            drawn = plot.curves(documents, names)
        except ResultError:
            drawn = []  # nothing to draw yet
        with self.figure.batch_update():
            for one in drawn:
                if one["label"] not in self._traces:
                    self._traces[one["label"]] = self._add(one)
                micro = [time * 1e6 for time in one["time_s"]]
                for place, x in zip(self._traces[one["label"]], (one["nbytes"], micro), strict=True):
                    trace = self.figure.data[place]
                    if list(trace.x or ()) != list(x) or list(trace.y or ()) != one["mbit_s"]:
                        trace.x, trace.y, trace.text = x, one["mbit_s"], _hover(one)
                    trace.visible = True
            labels = {one["label"] for one in drawn}
            for label, places in self._traces.items():
                for place in places if label not in labels else ():
                    self.figure.data[place].visible = False

    def _add(self, one: Mapping[str, Any]) -> tuple[int, int]:
        """Add the two traces of a curve, without points; returns their numbers."""
        n = len(self.figure.data)
        for column in (1, 2):
            self.figure.add_trace(
                go.Scatter(
                    x=[],
                    y=[],
                    name=one["label"],
                    legendgroup=one["label"],
                    showlegend=column == 1,
                    mode="lines+markers",
                    marker={"size": 5, "color": one["colour"]},
                    line={"color": one["colour"], "dash": plot.PLOTLY_DASHES[one["dash"]], "width": 2},
                    hovertemplate="%{text}<extra></extra>",
                ),
                row=1,
                col=column,
            )
        return n, n + 1

    def _show_counters(self) -> None:
        nbytes = self.size.value
        if nbytes is None or self.experiment.job is None:
            self.counters.value = ""
            return
        self.counters.value = counters_html(self.experiment.job.series(), nbytes)


def _figure() -> go.FigureWidget:
    """Return the empty figure: throughput graph, signature graph."""
    canvas = go.FigureWidget(make_subplots(rows=1, cols=2, subplot_titles=["Throughput graph", "Signature graph"]))
    canvas.update_xaxes(type="log", title_text="message size, bytes", exponentformat="SI", row=1, col=1)
    canvas.update_xaxes(type="log", title_text="time of a message, one way, µs", exponentformat="SI", row=1, col=2)
    canvas.update_yaxes(type="log", title_text="throughput, Mbit/s", exponentformat="SI")
    canvas.update_layout(
        template="plotly_white", height=460, margin={"t": 40, "b": 60}, legend={"orientation": "h", "y": -0.2}
    )
    return canvas


def _hover(one: Mapping[str, Any]) -> list[str]:
    return [
        f"{one['label']}<br>{format_size(n)}: {table.format_time(t)} one way<br>{m:.1f} Mbit/s"
        for n, t, m in zip(one["nbytes"], one["time_s"], one["mbit_s"], strict=True)
    ]


def counters_html(series: list[dict[str, Any]], nbytes: int) -> str:
    """Return a table of what a message of *nbytes* cost, by each protocol: time, copies, system calls, frames."""
    rows = []
    for one in series:
        point = table.point_at(one, nbytes)
        if point is None:
            continue
        each = report.per_message(point)
        cells = [table.format_time(point["one_way_s"]["median"]), table.format_time(point["one_way_s"]["p99"])]
        cells += [f"{each[key]:.2f}" if key in each else "-" for key in _COUNTERS]
        rows.append([one["protocol"], *cells])
    head = ["protocol", "median", "p99", *(key.replace("_", " ") for key in _COUNTERS)]
    return report.html_table(f"A message of {format_size(nbytes)}; counters per message, both sides", head, rows)
