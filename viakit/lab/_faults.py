"""``lab.faults()``: variable loss, with acknowledgements, retransmissions and goodput."""

from __future__ import annotations

from typing import Any, ClassVar

from viakit.lab import _settings
from viakit.lab._experiment import SettingsExperiment
from viakit.measure import loss

__all__ = ["Faults"]


class Faults(SettingsExperiment):
    """Stream over a wire that loses frames: the result of :func:`viakit.lab.faults`."""

    _function = "faults"
    _defaults: ClassVar = {
        "protocol": "via-udp",
        "nbytes": 65536,
        "losses": list(loss.LOSSES),
        "retransmissions": list(loss.RETRANSMISSIONS),
        "seconds": 10.0,
        "hosts": "auto",
        "mtu": None,
        "seed": None,
        "follow": False,
    }
    _rules: ClassVar = {
        "nbytes": _settings.size(0, 1 << 40),
        "losses": _settings.numbers(0.0, loss.MOST, "0.01"),
        "retransmissions": _settings.names('["selective", "go_back_n"]'),
        "seconds": _settings.SECONDS,
        "hosts": _settings.choice("auto", "local", "testbed"),
        "mtu": _settings.maybe(_settings.MTU),
        "seed": _settings.SEED,
        "follow": _settings.flag,
    }

    @property
    def title(self) -> str:
        """Description of the measurement."""
        return f"{self.settings['protocol']} over a wire that loses frames"

    @property
    def loss(self) -> float:
        """Fraction of lost frames. With ``follow=True`` it can be changed during the measurement."""
        return float(self._loss if self._loss is not None else self.settings["losses"][0])

    @loss.setter
    def loss(self, part: float) -> None:
        part = _settings.number(0.0, loss.MOST, "0.01")("loss", part)
        self._loss = part
        if self.job is not None and self.job.running:
            self.job.change(loss=part)

    _loss: float | None = None

    def _request(self) -> tuple[str, dict[str, Any]]:
        ours = self.settings
        loss.check(**{key: ours[key] for key in ("protocol", "nbytes", "losses", "retransmissions", "seconds")})
        self._loss = None
        words = ", ".join(f"{key}={value!r}" for key, value in ours.items() if value is not None)
        return "faults", {"settings": ours, "command": f"lab.faults({words})"}

    def _make_panel(self) -> Any:
        from viakit.lab._faults_panel import FaultsPanel  # optional package

        return FaultsPanel(self)
