"""``lab.faults()``: turn loss up, and watch acknowledgements, retransmissions and goodput."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from viakit.lab import _settings
from viakit.lab._experiment import Experiment
from viakit.measure import loss

__all__ = ["Faults"]

_RULES = {
    "nbytes": _settings.size(0, 1 << 40),
    "losses": _settings.numbers(0.0, loss.MOST, "0.01"),
    "retransmissions": _settings.names('["selective", "go_back_n"]'),
    "seconds": _settings.SECONDS,
    "hosts": _settings.choice("auto", "local", "testbed"),
    "mtu": _settings.maybe(_settings.MTU),
    "seed": _settings.SEED,
    "follow": _settings.flag,
}


class Faults(Experiment):
    """A stream over a wire that loses: what :func:`viakit.lab.faults` returns."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
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
        self.configure(**settings)

    @property
    def title(self) -> str:
        """What is measured, for people."""
        return f"{self.settings['protocol']} over a wire that loses"

    def configure(self, **settings: Any) -> None:
        """Change settings for the next start: any of those of :func:`viakit.lab.faults`."""
        unknown = sorted(set(settings) - set(self.settings))
        if unknown:
            raise TypeError(f"faults() has no setting {unknown[0]!r}; there are {', '.join(sorted(self.settings))}")
        self.settings |= _settings.checked(settings, _RULES)

    @property
    def loss(self) -> float:
        """The part of frames that is lost: set it while it runs with ``follow=True``, and watch."""
        return float(self._loss if self._loss is not None else self.settings["losses"][0])

    @loss.setter
    def loss(self, part: float) -> None:
        part = _settings.number(0.0, loss.MOST, "0.01")("loss", part)
        self._loss = part
        if self.job is not None and self.job.running:
            self.job.wish(loss=part)

    _loss: float | None = None

    def _request(self) -> tuple[str, dict[str, Any]]:
        ours = self.settings
        loss.check(**{key: ours[key] for key in ("protocol", "nbytes", "losses", "retransmissions", "seconds")})
        self._loss = None
        words = ", ".join(f"{key}={value!r}" for key, value in ours.items() if value is not None)
        return "faults", {"settings": ours, "command": f"lab.faults({words})"}

    def _make_panel(self) -> Any:
        from viakit.lab._faults_panel import FaultsPanel

        return FaultsPanel(self)
