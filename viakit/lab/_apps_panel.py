"""Controls, speed-up curves and timelines of ``lab.app()``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from viakit import _core
from viakit.apps import jobs, speedup, split
from viakit.apps.kernels import CHOICES
from viakit.base.words import counted
from viakit.lab._curves import Curve, CurvesPanel, Field
from viakit.lab._panel import SMALL, choice, grid, numbers, text
from viakit.measure.look import look as look_of
from viakit.papers import lobosco

if TYPE_CHECKING:
    from viakit.lab._apps import App
    from viakit.lab._job import Job

__all__ = ["AppPanel"]


class AppPanel(CurvesPanel):
    """Panel of a :class:`viakit.lab._apps.App`."""

    file = "speedup.json"
    fields = (
        Field("Speed-up", "ranks", "serial time / parallel time", log_x=True, whole_x=True),
        Field("Communication", "ranks", "part of the time, %", log_x=True, whole_x=True),
    )

    def __init__(self, experiment: App) -> None:
        super().__init__(experiment)
        self.split = widgets.HTML()
        self.timelines = widgets.HTML()
        # Above the controls, so that both the curves and the split are in view.
        above, below = self.widget.children[:2], self.widget.children[2:]
        self.widget.children = [*above, self.split, *below, self.timelines]

    def _controls(self) -> Any:
        ours = self.experiment.settings
        self.application = widgets.Dropdown(
            description="application",
            options=list(dict.fromkeys([ours["name"], *speedup.PROBLEMS])),
            value=ours["name"],
            layout=SMALL,
        )
        self.protocols = widgets.SelectMultiple(
            options=list(dict.fromkeys([*jobs.PROTOCOLS, *_core.policies(), *ours["protocols"]])),
            value=ours["protocols"],
            rows=8,
            layout=SMALL,
        )
        self.problem = text("problem", shlex.join(ours["problem"] or []), "as listed, or --size 512")
        self.kernels = choice("kernels", list(CHOICES), ours["kernels"])
        self.mtu = text("MTU", ours["mtu"], "1500")
        self.rate = text("rate", ours["rate"], "e.g. 1gbit, with hosts")
        self.machine = text("machine", ours["machine"], "e.g. pentium3-650-giganet")
        self.computing = ours["computing"]
        self.ranks = text("ranks", ",".join(map(str, ours["ranks"])), "1,2,4")
        self.rounds = widgets.BoundedIntText(description="rounds", value=ours["rounds"], min=1, max=99, layout=SMALL)
        self.hosts = widgets.BoundedIntText(description="hosts", value=ours["hosts"], min=0, max=64, layout=SMALL)
        self.quick = widgets.Checkbox(description="small problem", value=ours["quick"], indent=False, layout=SMALL)
        self.timeline = widgets.Checkbox(description="timeline", value=ours["timeline"], indent=False, layout=SMALL)
        fields = [self.application, self.problem, self.kernels, self.ranks, self.rounds]
        fields += [self.machine, self.hosts, self.mtu, self.rate, self.quick, self.timeline]
        return widgets.HBox([self.protocols, grid(fields)])

    def chosen(self) -> dict[str, Any]:
        """Return the settings of the controls. Raises ValueError for invalid text."""
        return {
            "name": self.application.value,
            "protocols": list(self.protocols.value),
            "ranks": numbers(self.ranks),
            "rounds": self.rounds.value,
            "hosts": self.hosts.value,
            "problem": self.problem.value or None,
            "kernels": self.kernels.value,
            "mtu": self.mtu.value or 1500,
            "rate": self.rate.value or None,
            "quick": self.quick.value,
            "timeline": self.timeline.value,
            "machine": self.machine.value or None,
            "computing": self.computing,
        }

    def update(self, job: Job) -> None:
        """Draw the measurements of *job* so far. Called in the job's thread."""
        super().update(job)
        self.timelines.value = self.experiment.timelines_html()
        series = job.series()
        self.split.value = split.html({"series": series}, lobosco.columns) if series else ""

    def _curves(self, series: list[dict[str, Any]]) -> list[Curve]:
        curves: dict[tuple[str, int], Curve] = {}
        rows = sorted(speedup.rows({"series": series}), key=lambda one: one.ranks)
        several = len({row.label for row in rows}) > 1
        for row in rows:
            label = f"{row.label}, {row.protocol}" if several else row.protocol
            words = f"{label}, {counted(row.ranks, 'rank')}: {row.speedup:.2f} ({row.low:.2f} to {row.high:.2f})"
            look = look_of(row.protocol)
            curves.setdefault((label, 0), Curve(label, 0, look=look)).add(
                row.ranks, row.speedup, words, (row.low, row.high)
            )
            part = 100 * row.communication
            curves.setdefault((label, 1), Curve(label, 1, look=look)).add(row.ranks, part, f"{label}: {part:.1f} %")
        return list(curves.values())
