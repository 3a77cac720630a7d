"""``lab.app()``: an application over several protocols, with speed-up curves and a timeline for each protocol."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from typing import Any, ClassVar

import click

from viakit.apps import harness, jobs, speedup, split
from viakit.apps.kernels import CHOICES
from viakit.lab import _settings
from viakit.lab._experiment import SettingsExperiment
from viakit.measure.analysis import Result

__all__ = ["App"]


def _problem(name: str, given: Any) -> list[str]:
    """Return the options of an application, from text such as "--size 512" or from a list of words."""
    return shlex.split(given) if isinstance(given, str) else [str(word) for word in given]


class App(SettingsExperiment):
    """Speed-up of an application: the result of :func:`viakit.lab.app`.

    Attributes
    ----------
    timelines : dict of str to bytes
        For each protocol, a PNG of the activity of all ranks in a separate run on the largest number of ranks.
    """

    _function = "app"
    _defaults: ClassVar = {
        "name": "sor-zero",
        "protocols": ["via", "tcp"],
        "ranks": [1, 2],
        "rounds": 3,
        "quick": True,
        "hosts": 0,
        "mtu": 1500,
        "rate": None,
        "problem": None,
        "kernels": "compiled",
        "timeline": True,
        "machine": None,
        "computing": None,
        "seed": None,
    }
    _rules: ClassVar = {
        "protocols": _settings.names('["via", "tcp"]'),
        "ranks": _settings.wholes(1, 64),
        "rounds": _settings.whole(1, 1000),
        "quick": _settings.flag,
        "hosts": _settings.whole(0, 64),
        "mtu": _settings.MTU,
        "rate": _settings.maybe(_settings.rate),
        "problem": _settings.maybe(_problem),
        "kernels": _settings.choice(*CHOICES),
        "timeline": _settings.flag,
        "machine": _settings.maybe(_settings.machine),
        "computing": _settings.maybe(_settings.number(0.0, 1e9, "20")),
        "seed": _settings.SEED,
    }

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self.timelines: dict[str, bytes] = {}
        super().__init__({"name": name, **settings})

    @property
    def title(self) -> str:
        """Description of the measurement."""
        where = f" on {self.settings['machine']}" if self.settings["machine"] else ""
        return f"{self.settings['name']} over {', '.join(self.settings['protocols'])}{where}"

    def _request(self) -> tuple[str, dict[str, Any]]:
        ours = self.settings
        labels = speedup.labels_of([ours["name"]])
        for one in ours["protocols"]:
            jobs.with_policy(one, speedup.COPIES)
        if ours["problem"] is not None:
            if len(labels) != 1:
                raise ValueError(f"options of a problem need one problem; {ours['name']} has {', '.join(labels)}")
            application = harness.find(speedup.PROBLEMS[labels[0]].application)
            try:
                application.problem(**harness.options_of(application, ours["problem"]))
            except click.ClickException as error:
                raise ValueError(f"{labels[0]}: {error.format_message()}") from None
        if not ours["ranks"] or any(not 1 <= n <= speedup.MAX_RANKS for n in ours["ranks"]):
            raise ValueError(f"ranks are {ours['ranks']}; expected numbers from 1 to {speedup.MAX_RANKS}")
        speedup.possible_ranks(ours["protocols"], ours["ranks"], ours["hosts"], ours["machine"])
        return "app", {"labels": labels, "settings": ours, "command": self.command()}

    def command(self) -> str:
        """Return the command line of the same measurement without a notebook."""
        ours = self.settings
        words = ["viakit", "speedup", ours["name"], "--protocols", ",".join(ours["protocols"])]
        words += ["--ranks", ",".join(map(str, ours["ranks"])), "--rounds", str(ours["rounds"])]
        words += ["--quick"] if ours["quick"] else []
        words += ["--hosts", f"testbed:{ours['hosts']}"] if ours["hosts"] else []
        words += ["--mtu", str(ours["mtu"])] if ours["mtu"] != 1500 else []
        words += ["--rate", str(ours["rate"])] if ours["rate"] is not None else []
        words += ["--problem", shlex.join(ours["problem"])] if ours["problem"] is not None else []
        words += ["--kernels", ours["kernels"]] if ours["kernels"] != "compiled" else []
        words += ["--machine", ours["machine"]] if ours["machine"] else []
        words += ["--computing", f"{ours['computing']:g}"] if ours["computing"] is not None else []
        words += ["--seed", str(ours["seed"])] if ours["seed"] is not None else []
        return shlex.join(words)

    def _note(self, extra: Mapping[str, Any]) -> None:
        self.timelines = {name: base64.b64decode(text) for name, text in extra.get("timelines", {}).items()}

    def _html(self, result: Result) -> str:
        from viakit.papers import lobosco  # start-up time

        return result._repr_html_() + split.html(result, lobosco.columns) + self.timelines_html()

    def timelines_html(self) -> str:
        """Return the timelines as HTML."""
        return "".join(
            f'<p>{name}</p><img alt="timeline over {name}" style="max-width:100%" '
            f'src="data:image/png;base64,{base64.b64encode(data).decode()}">'
            for name, data in self.timelines.items()
        )

    def _make_panel(self) -> Any:
        from viakit.lab._apps_panel import AppPanel  # optional package

        return AppPanel(self)
