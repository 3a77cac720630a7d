"""``lab.app()``: an application on several protocols: speed-up curves, and the timeline of one run."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from viakit.lab import _settings
from viakit.lab._experiment import Experiment
from viakit.measure.analysis import Result

__all__ = ["App"]

_RULES = {
    "protocols": _settings.names('["via", "tcp"]'),
    "ranks": _settings.wholes(1, 64),
    "rounds": _settings.whole(1, 1000),
    "quick": _settings.flag,
    "hosts": _settings.whole(0, 64),
    "mtu": _settings.MTU,
    "rate": _settings.maybe(_settings.rate),
    "timeline": _settings.flag,
    "seed": _settings.SEED,
}


class App(Experiment):
    """An application's speed-up: what :func:`viakit.lab.app` returns.

    Attributes
    ----------
    timelines : dict of str to bytes
        By protocol, a PNG of what each rank did when, in a run of its own on the largest number of ranks.
    """

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.timelines: dict[str, bytes] = {}
        self.settings: dict[str, Any] = {
            "name": name,
            "protocols": ["via", "tcp"],
            "ranks": [1, 2],
            "rounds": 3,
            "quick": True,
            "hosts": 0,
            "mtu": 1500,
            "rate": None,
            "timeline": True,
            "seed": None,
        }
        self.configure(**settings)

    @property
    def title(self) -> str:
        """What is measured, for people."""
        return f"{self.settings['name']} over {', '.join(self.settings['protocols'])}"

    def configure(self, **settings: Any) -> None:
        """Change settings for the next start: any of those of :func:`viakit.lab.app`."""
        unknown = sorted(set(settings) - set(self.settings))
        if unknown:
            raise TypeError(f"app() has no setting {unknown[0]!r}; there are {', '.join(sorted(self.settings))}")
        self.settings |= _settings.checked(settings, _RULES)

    def _request(self) -> tuple[str, dict[str, Any]]:
        from viakit.apps import jobs, speedup

        ours = self.settings
        labels = speedup.labels_of([ours["name"]])
        wrong = [one for one in ours["protocols"] if one not in jobs.PROTOCOLS]
        if wrong:
            raise ValueError(f"protocol {wrong[0]!r}; right would be some of {', '.join(jobs.PROTOCOLS)}")
        if not ours["ranks"] or any(not 1 <= n <= speedup.MAX_RANKS for n in ours["ranks"]):
            raise ValueError(f"ranks are {ours['ranks']}; right would be numbers from 1 to {speedup.MAX_RANKS}")
        return "app", {"labels": labels, "settings": ours, "command": self.command()}

    def command(self) -> str:
        """Return the command line that measures the same without a notebook."""
        import shlex

        ours = self.settings
        words = ["viakit", "speedup", ours["name"], "--protocols", ",".join(ours["protocols"])]
        words += ["--ranks", ",".join(map(str, ours["ranks"])), "--rounds", str(ours["rounds"])]
        words += ["--quick"] if ours["quick"] else []
        words += ["--hosts", f"testbed:{ours['hosts']}"] if ours["hosts"] else []
        words += ["--mtu", str(ours["mtu"])] if ours["mtu"] != 1500 else []
        words += ["--rate", str(ours["rate"])] if ours["rate"] is not None else []
        words += ["--seed", str(ours["seed"])] if ours["seed"] is not None else []
        return shlex.join(words)

    def _note(self, extra: Mapping[str, Any]) -> None:
        self.timelines = {name: base64.b64decode(text) for name, text in extra.get("timelines", {}).items()}

    def _html(self, result: Result) -> str:
        return result._repr_html_() + self.timelines_html()

    def timelines_html(self) -> str:
        """Return the timelines as HTML."""
        return "".join(
            f'<p>{name}</p><img alt="timeline over {name}" style="max-width:100%" '
            f'src="data:image/png;base64,{base64.b64encode(data).decode()}">'
            for name, data in self.timelines.items()
        )

    def _make_panel(self) -> Any:
        from viakit.lab._apps_panel import AppPanel

        return AppPanel(self)
