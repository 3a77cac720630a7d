"""Slider and curves of ``lab.faults()``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from viakit.lab._curves import Curve, CurvesPanel, Field
from viakit.lab._panel import SMALL, choice, grid
from viakit.measure.ladder import parse_size
from viakit.measure.look import look as look_of
from viakit.measure.table import format_bandwidth

__all__ = ["FaultsPanel"]


class FaultsPanel(CurvesPanel):
    """Panel of a :class:`viakit.lab._faults.Faults`. It always follows the slider."""

    file = "faults.json"
    fields = (
        Field("Goodput", "seconds", "", unit="B/s"),
        Field("Retransmission", "seconds", "frames per message"),
        Field("Goodput over loss", "frames lost, %", "", unit="B/s"),
    )

    def _controls(self) -> Any:
        ours = self.experiment.settings
        self.loss = widgets.FloatSlider(
            description="loss, %", value=100 * ours["losses"][0], min=0.0, max=20.0, step=0.1,
            continuous_update=False, layout=widgets.Layout(width="32em"),
        )  # fmt: skip
        self.loss.observe(lambda _: self._on_loss(), "value")
        self.protocol = choice("protocol", ["via-udp", "via-eth", "via-shm", "bip-udp", "bip-eth"], ours["protocol"])
        self.nbytes = choice("message", ["1K", "4K", "16K", "64K", "256K", "1M"], "64K")
        self.seconds = widgets.BoundedFloatText(
            description="seconds", value=ours["seconds"], min=0.1, max=86400, layout=SMALL
        )
        return widgets.VBox([self.loss, grid([self.protocol, self.nbytes, self.seconds])])

    def chosen(self) -> dict[str, Any]:
        """Return the settings of the controls."""
        return {
            "protocol": self.protocol.value,
            "nbytes": parse_size(self.nbytes.value),
            "seconds": self.seconds.value,
            "losses": [self.loss.value / 100],
            "follow": True,
        }

    def _on_loss(self) -> None:
        self.experiment.loss = self.loss.value / 100

    def _curves(self, series: list[dict[str, Any]]) -> list[Curve]:
        curves: list[Curve] = []
        for way in dict.fromkeys(one["retransmission"] for one in series):
            label = way.replace("_", "-")
            marked = replace(look_of(label), marker="v", dash=(1.0, 1.5))
            over = Curve(label, 2)
            bursts: dict[str, list[tuple[float, ...]]] = {}  # by the label of their curves
            mine = [one for one in series if one["retransmission"] == way]
            for one in sorted(mine, key=lambda one: one["loss"]):
                point = one["points"][0]
                rate = point["bandwidth_Bps"]
                over.add(100 * one["loss"], rate, f"{label}, {one['loss']:.1%} lost: {format_bandwidth(rate)}")
                each = point["per_message"]
                # Losses that follow each other form one curve. Losses measured in turns have one curve each.
                name = label if self.experiment.settings["follow"] else f"{label}, {one['loss']:.1%} lost"
                bursts.setdefault(name, []).extend(
                    zip(
                        point["since_s"], point["bursts_s"], each["frames_retransmitted"], each["acks_sent"],
                        [one["loss"]] * len(point["since_s"]), strict=True,
                    )
                )  # fmt: skip
            for name, those in bursts.items():
                goodput, again, acks = Curve(name), Curve(name, 1), Curve(f"{name}, acks", 1, look=marked)
                for since, took, repeated, acknowledged, part in sorted(those)[-_SHOWN:]:
                    rate = loss_rate(self.experiment.settings["nbytes"], took)
                    goodput.add(since, rate, f"{label}, {part:.1%} lost: {format_bandwidth(rate)}")
                    again.add(since, repeated, f"{label}, {part:.1%} lost: {repeated:.2f} retransmitted frames")
                    acks.add(since, acknowledged, f"{label}, {part:.1%} lost: {acknowledged:.2f} acknowledgements")
                curves += [goodput, again, acks]
            curves.append(over)
        return curves


_SHOWN = 400  # largest number of displayed bursts; more would slow the browser down


def loss_rate(nbytes: int, took_s: float) -> float:
    """Return the rate in bytes per second of a message of *nbytes* that took *took_s*."""
    return nbytes / max(took_s, 1e-12)
