"""``lab.barrier()``: barrier algorithms over ranks and hosts, with and without skew."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from viakit.lab import _settings
from viakit.lab._experiment import SettingsExperiment
from viakit.measure import barrier

__all__ = ["Barrier"]


class Barrier(SettingsExperiment):
    """Barriers over numbers of ranks: the result of :func:`viakit.lab.barrier`."""

    _function = "barrier"
    _defaults: ClassVar = {
        "ranks": [2, 4, 8],
        "algorithms": None,
        "hosts": 1,
        "protocol": "via",
        "with_mpi": False,
        "skew_s": 0.0,
        "seconds": 10.0,
        "mtu": 1500,
        "bind": "core",
        "machine": None,
        "seed": None,
    }
    _rules: ClassVar = {
        "ranks": _settings.wholes(1, 64),
        "algorithms": _settings.maybe(_settings.names('["rdma", "message"]')),
        "hosts": _settings.whole(0, 64),
        "with_mpi": _settings.flag,
        "skew_s": _settings.number(0.0, 1.0, "50e-6"),
        "seconds": _settings.SECONDS,
        "mtu": _settings.MTU,
        "bind": _settings.choice("core", "none"),
        "machine": _settings.maybe(_settings.machine),
        "seed": _settings.SEED,
    }

    def __init__(self, algorithms: Sequence[str], settings: Mapping[str, Any]) -> None:
        super().__init__(dict(**({"algorithms": algorithms} if algorithms else {}), **settings))

    @property
    def title(self) -> str:
        """Description of the measurement."""
        where = f" on {self.settings['machine']}" if self.settings["machine"] else ""
        return f"barriers of {', '.join(map(str, self.settings['ranks']))} ranks{where}"

    def _request(self) -> tuple[str, dict[str, Any]]:
        needed = ("ranks", "algorithms", "hosts", "protocol", "seconds", "machine")
        barrier.check(**{key: self.settings[key] for key in needed})
        return "barrier", {"settings": self.settings, "command": self.command()}

    def command(self) -> str:
        """Return the command line of the same measurement without a notebook."""
        ours = self.settings
        words = ["viakit", "barrier", "--ranks", ",".join(map(str, ours["ranks"])), "--protocol", ours["protocol"]]
        words += ["--algorithms", ",".join(ours["algorithms"])] if ours["algorithms"] else []
        words += ["--hosts", str(ours["hosts"])] if ours["hosts"] != 1 else []
        words += ["--mtu", str(ours["mtu"])] if ours["mtu"] != 1500 else []
        words += ["--bind", ours["bind"]] if ours["bind"] != "core" else []
        words += ["--machine", ours["machine"]] if ours["machine"] else []
        words += ["--skew", f"{ours['skew_s'] * 1e6:g}us"] if ours["skew_s"] else []
        words += [] if ours["with_mpi"] else ["--no-mpi"]
        words += ["--seconds", f"{ours['seconds']:g}"]
        words += ["--seed", str(ours["seed"])] if ours["seed"] is not None else []
        return shlex.join(words)

    def _make_panel(self) -> Any:
        from viakit.lab._barrier_panel import BarrierPanel  # optional package

        return BarrierPanel(self)
