"""Controls and curves of ``lab.barrier()``."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from viakit.base.words import counted
from viakit.lab._curves import Curve, CurvesPanel, Field
from viakit.lab._panel import SMALL, choice, grid, numbers, text
from viakit.measure import barrier
from viakit.measure.table import format_time

__all__ = ["BarrierPanel"]


class BarrierPanel(CurvesPanel):
    """Panel of a :class:`viakit.lab._barrier.Barrier`."""

    file = "barrier.json"
    fields = (Field("Barrier", "ranks", "time of a barrier, µs", log_x=True, log_y=True, whole_x=True),)

    def _controls(self) -> Any:
        ours = self.experiment.settings
        names = list(barrier.algorithms())
        self.algorithms = widgets.SelectMultiple(
            options=names, value=[one for one in ours["algorithms"] or () if one in names], rows=6, layout=SMALL
        )
        self.ranks = text("ranks", ",".join(map(str, ours["ranks"])), "2,4,8")
        self.hosts = widgets.BoundedIntText(description="hosts", value=ours["hosts"], min=0, max=64, layout=SMALL)
        self.protocol = choice(
            "protocol", list(dict.fromkeys([*barrier.PROTOCOLS, ours["protocol"]])), ours["protocol"]
        )
        self.skew = widgets.BoundedFloatText(
            description="skew, µs", value=ours["skew_s"] * 1e6, min=0, max=1e6, layout=SMALL
        )
        self.seconds = widgets.BoundedFloatText(
            description="seconds", value=ours["seconds"], min=0.1, max=86400, layout=SMALL
        )
        self.with_mpi = widgets.Checkbox(
            description="compare MPI", value=ours["with_mpi"], indent=False, layout=SMALL
        )  # fmt: skip
        fields = [self.ranks, self.hosts, self.protocol, self.skew, self.seconds, self.with_mpi]
        return widgets.HBox([self.algorithms, grid(fields)])

    def chosen(self) -> dict[str, Any]:
        """Return the settings of the controls. Raises ValueError for invalid text."""
        return {
            "algorithms": list(self.algorithms.value) or None,
            "ranks": numbers(self.ranks),
            "hosts": self.hosts.value,
            "protocol": self.protocol.value,
            "skew_s": self.skew.value * 1e-6,
            "seconds": self.seconds.value,
            "with_mpi": self.with_mpi.value,
        }

    def _curves(self, series: list[dict[str, Any]]) -> list[Curve]:
        curves: dict[str, Curve] = {}
        for one in sorted(series, key=lambda one: one["ranks"]):
            label = barrier.drawn_as(one["protocol"], one["algorithm"])
            times = one["points"][0]["time_s"]
            words = f"{label}, {counted(one['ranks'], 'rank')}: {format_time(times['median'])}"
            curve, band = curves.setdefault(label, Curve(label)), (times["p5"] * 1e6, times["p90"] * 1e6)
            curve.add(one["ranks"], times["median"] * 1e6, words, band)
        return list(curves.values())
