"""``lab.barrier()``: algorithms of the barrier over ranks and hosts, with and without skew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viakit.lab import _settings
from viakit.lab._experiment import Experiment

__all__ = ["Barrier"]

_RULES = {
    "ranks": _settings.wholes(1, 64),
    "algorithms": _settings.maybe(_settings.names('["rdma", "message"]')),
    "hosts": _settings.whole(0, 64),
    "with_mpi": _settings.flag,
    "skew_s": _settings.number(0.0, 1.0, "50e-6"),
    "seconds": _settings.SECONDS,
    "mtu": _settings.MTU,
    "bind": _settings.choice("core", "none"),
    "seed": _settings.SEED,
}


class Barrier(Experiment):
    """Barriers over numbers of ranks: what :func:`viakit.lab.barrier` returns."""

    def __init__(self, algorithms: Sequence[str], settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings: dict[str, Any] = {
            "ranks": [2, 4, 8],
            "algorithms": None,
            "hosts": 1,
            "protocol": "via",
            "with_mpi": False,
            "skew_s": 0.0,
            "seconds": 10.0,
            "mtu": 1500,
            "bind": "core",
            "seed": None,
        }
        self.configure(**({"algorithms": algorithms} if algorithms else {}), **settings)

    @property
    def title(self) -> str:
        """What is measured, for people."""
        return f"barriers of {', '.join(map(str, self.settings['ranks']))} ranks"

    def configure(self, **settings: Any) -> None:
        """Change settings for the next start: any of those of :func:`viakit.lab.barrier`."""
        unknown = sorted(set(settings) - set(self.settings))
        if unknown:
            raise TypeError(f"barrier() has no setting {unknown[0]!r}; there are {', '.join(sorted(self.settings))}")
        self.settings |= _settings.checked(settings, _RULES)

    def _request(self) -> tuple[str, dict[str, Any]]:
        from viakit import barrier

        barrier.check(**{key: self.settings[key] for key in ("ranks", "algorithms", "hosts", "protocol", "seconds")})
        return "barrier", {"settings": self.settings, "command": self.command()}

    def command(self) -> str:
        """Return the command line that measures the same without a notebook."""
        import shlex

        ours = self.settings
        words = ["viakit", "barrier", "--ranks", ",".join(map(str, ours["ranks"])), "--protocol", ours["protocol"]]
        words += ["--algorithms", ",".join(ours["algorithms"])] if ours["algorithms"] else []
        words += ["--hosts", str(ours["hosts"])] if ours["hosts"] != 1 else []
        words += ["--mtu", str(ours["mtu"])] if ours["mtu"] != 1500 else []
        words += ["--bind", ours["bind"]] if ours["bind"] != "core" else []
        words += ["--skew", f"{ours['skew_s'] * 1e6:g}us"] if ours["skew_s"] else []
        words += [] if ours["with_mpi"] else ["--no-mpi"]
        words += ["--seconds", f"{ours['seconds']:g}"]
        words += ["--seed", str(ours["seed"])] if ours["seed"] is not None else []
        return shlex.join(words)

    def _make_panel(self) -> Any:
        from viakit.lab._barrier_panel import BarrierPanel

        return BarrierPanel(self)
