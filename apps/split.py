"""Where an application's time goes: computing and each kind of waiting, by protocol, beside the paper's speed-ups.

A rank is always in one state (:mod:`viakit.apps.phases`). The figures here are means over the ranks of the median run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from viakit.apps import speedup
from viakit.apps.phases import STATES

__all__ = ["COLOURS", "STRIPES", "WORDS", "Split", "fill", "html", "splits"]

# Okabe and Ito's colours, from dark to light, so that the bars also differ in grey.
COLOURS = {
    "compute": "#4C4C4C",
    "send": "#0072B2",
    "receive": "#D55E00",
    "wait": "#E69F00",
    "barrier": "#56B4E9",
    "collective": "#009E73",
}
# Angles of white stripes on the bars, in degrees, for readers who cannot distinguish the colours. None: no stripes.
STRIPES = {"compute": None, "send": 45, "receive": 135, "wait": None, "barrier": 90, "collective": 0}
WORDS = {
    "compute": "computing",
    "send": "in Send",
    "receive": "in Recv",
    "wait": "in Wait",
    "barrier": "in Barrier",
    "collective": "in collectives",
}


@dataclass(frozen=True)
class Split:
    """Time, messages and speed-up of one problem over one protocol.

    Attributes
    ----------
    label, protocol, ranks
        Problem, protocol (or policy) and number of ranks.
    wall_s : float
        Wall time of the median run.
    seconds : dict of str to float
        Mean time of a rank in each state of :data:`viakit.apps.phases.STATES`; the sum is about `wall_s`.
    messages, nbytes : int
        Messages and bytes that all ranks together send.
    speedup : float or None
        Relative to the serial program; None if that was not measured.
    """

    label: str
    protocol: str
    ranks: int
    wall_s: float
    seconds: dict[str, float]
    messages: int
    nbytes: int
    speedup: float | None

    @property
    def waiting(self) -> float:
        """Part of the time that is not computing."""
        total = sum(self.seconds.values())
        return 1 - self.seconds["compute"] / total if total else 0.0


def splits(document: Mapping[str, Any]) -> list[Split]:
    """Return the splits of a result of applications, for each problem and protocol on the most ranks measured.

    Parameters
    ----------
    document : mapping
        A ``viakit.result/1`` of ``viakit speedup`` or :func:`viakit.lab.app`.
    """
    chosen: dict[tuple[str, str], Mapping[str, Any]] = {}
    for one in document["series"]:
        key = (one["label"], one["protocol"])
        if one["protocol"] != "serial" and (key not in chosen or chosen[key]["ranks"] < one["ranks"]):
            chosen[key] = one
    gains = {(row.label, row.protocol, row.ranks): row.speedup for row in speedup.rows(document)}
    found = []
    for (label, protocol), one in chosen.items():
        runs = sorted(one["runs"], key=lambda run: run["wall_s"])
        run = runs[len(runs) // 2]
        seconds = {
            state: statistics.fmean(rank["seconds"].get(state, 0.0) for rank in run["ranks"]) for state in STATES
        }
        messages = sum(rank["messages"] for rank in run["ranks"])
        nbytes = sum(rank["nbytes"] for rank in run["ranks"])
        gain = gains.get((label, protocol, one["ranks"]))
        found.append(Split(label, protocol, one["ranks"], run["wall_s"], seconds, messages, nbytes, gain))
    return found


def fill(state: str) -> str:
    """Return the colour and the stripes of a state of :data:`viakit.apps.phases.STATES`, as CSS."""
    colour, angle = COLOURS[state], STRIPES[state]
    if angle is None:
        return f"background:{colour}"
    return f"background:repeating-linear-gradient({angle}deg,{colour} 0 4px,#FFFFFF 4px 5px)"


def _bar(one: Split, longest_s: float) -> str:
    """Return a bar as long as the time, divided by state."""
    parts = "".join(
        f'<span title="{WORDS[state]}: {1e3 * time:.3g} ms" style="display:inline-block;height:1.1em;'
        f'{fill(state)};width:{100 * time / longest_s:.2f}%"></span>'
        for state, time in one.seconds.items()
        if time > 0
    )
    return f'<div style="white-space:nowrap;width:22em;font-size:0.9em;text-align:left">{parts}</div>'


def html(document: Mapping[str, Any], predict: Callable[[str, int], list[float]] | None = None) -> str:
    """Return the splits as bars, with messages, bytes and speed-ups, and the paper's five columns, as HTML.

    Parameters
    ----------
    document : mapping
        As for :func:`splits`.
    predict : callable, optional
        Called with a problem and a number of processors. Returns the speed-ups that a model predicts for the paper's
        five columns; they are shown below the published ones.
    """
    found = splits(document)
    parts = []
    for label in dict.fromkeys(one.label for one in found):
        mine = [one for one in found if one.label == label]
        title = f"{speedup.title_of(document, label)}, {mine[0].ranks} ranks"
        parts += [_measured(mine, title), _published(label, predict)]
    return "".join(parts)


def _measured(mine: Sequence[Split], title: str) -> str:
    """Return the table of one problem over its protocols."""
    keys = "".join(
        f'<span style="white-space:nowrap"><span style="display:inline-block;width:1.2em;height:.9em;'
        f'{fill(state)}"></span> {WORDS[state]}&ensp;</span>'
        for state in COLOURS
    )
    longest_s = max(sum(one.seconds.values()) for one in mine) or 1.0
    rows = "".join(
        f"<tr><td>{escape(one.protocol)}</td><td>{_bar(one, longest_s)}</td><td>{1e3 * one.wall_s:.3g} ms</td>"
        f"<td>{one.waiting:.0%}</td><td>{1e3 * one.seconds['receive']:.3g} ms</td><td>{one.messages}</td>"
        f"<td>{one.nbytes / 1024:.0f}</td><td>{'' if one.speedup is None else f'{one.speedup:.2f}'}</td></tr>"
        for one in sorted(mine, key=lambda one: one.wall_s)
    )
    heads = "".join(
        f"<th>{head}</th>"
        for head in ("over", "mean time of a rank", "time", "waiting", "in Recv", "messages", "KiB", "speed-up")
    )
    return f"<table><caption>{escape(title)}: {keys}</caption><tr>{heads}</tr>{rows}</table>"


def _published(label: str, predict: Callable[[str, int], list[float]] | None) -> str:
    """Return the paper's speed-ups of one problem, and those that a model predicts, as a table."""
    said = speedup.paper()
    rows = {"published": said["problems"][label]["speedups"]}
    if predict is not None:
        rows["predicted by the replay"] = predict(label, said["processors"])
    heads = "".join(f"<th>{escape(name)}</th>" for name in ("", *said["columns"]))
    cells = "".join(
        f"<tr><td>{name}</td>{''.join(f'<td>{_number(value)}</td>' for value in values)}</tr>"
        for name, values in rows.items()
    )
    size = escape(said["problems"][label]["size"])
    return (
        f"<table><caption>Lobosco and others, table III: speed-up on {said['processors']} processors, {size}"
        f"</caption><tr>{heads}</tr>{cells}</table>"
    )


def _number(value: float | None) -> str:
    return "NA" if value is None else f"{value:.2f}"
