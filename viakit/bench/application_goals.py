"""Performance goals of the applications for ``viakit bench``: their kernels, and their speed on two cores.

Kernels are compared with plain C loops (:mod:`viakit.apps.plain`). Applications run serially, over VIA and over both
MPI libraries, in turns (:mod:`viakit.apps.speedup`). A goal with several cases is judged by the worst of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from viakit.apps import plain, speedup
from viakit.bench.judging import LEFT_OUT, MPIS, Goal, Judged
from viakit.measure import result, stats, table
from viakit.measure.sweep import Progress

__all__ = ["add"]

KERNEL = 0.6  # of the time of a plain C loop at -O3
EFFICIENCY = 0.9
RANKS = 2
EFFICIENT = {"EP": ("ep",), "SOR": ("sor-zero", "sor-nonzero"), "Water-1728": ("water-1728",)}


def _worst(goal: Goal, found: Iterable[tuple[str, stats.Ratio, str]]) -> None:
    """Return the worst of several ratios, each with its subject and the numbers it is computed from."""
    cases = [(what, ratio, numbers) for what, ratio, numbers in found if math.isfinite(ratio.value)]
    if not cases:
        return
    for what, ratio, _ in cases:
        holds = ratio.value <= goal.goal if goal.at_most else ratio.value >= goal.goal
        goal.points.append({"what": what, "ratio": ratio.value, "ci95": list(ratio.interval), "holds": holds})
    what, ratio, numbers = max(cases, key=lambda case: case[1].value if goal.at_most else -case[1].value)
    detail = f"{what}: {numbers}" if len(cases) == 1 else f"worst: {what}, {numbers}"
    goal.value, goal.interval, goal.detail = ratio.value, ratio.interval, detail


def _seconds(top: float, bottom: float) -> str:
    return f"{table.format_time(top)} against {table.format_time(bottom)}"


def _kernels(goal: Goal, name: str, rounds: int, quick: bool) -> None:
    """Compare the kernels of one application with plain loops compiled with -O3."""
    found = []
    try:
        for one in plain.compare(name, rounds=rounds, quick=quick):
            ratio = stats.ratio_of_medians(one.kernel, one.plain["-O3"], paired=True)
            numbers = [stats.summarise([times]).median for times in (one.kernel, one.plain["-O3"])]
            found.append((one.what, ratio, _seconds(*numbers)))
    except (plain.NoCompiler, ArithmeticError) as error:
        goal.reason = str(error)
        return
    _worst(goal, found)


def _ratio(top: Mapping[str, Any], bottom: Mapping[str, Any]) -> stats.Ratio:
    """Return the ratio of two series' wall times, from their common rounds."""
    walls = [{run["round"]: run["wall_s"] for run in one["runs"]} for one in (top, bottom)]
    rounds = sorted(walls[0].keys() & walls[1].keys())
    return stats.ratio_of_medians(*([one[i] for i in rounds] for one in walls), paired=True)


def _why_not(document: Mapping[str, Any]) -> str:
    said = [one["message"] for one in document["errors"]]
    said += [f"{one['protocol']}: {one['reason']}" for one in document["skipped"]]
    return "; ".join(said) or "not finished"


def _wrong(goal: Goal, series: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether one of these runs has a wrong result, which is then the reason of the goal's failure."""
    said = speedup.wrong({"series": list(series)})
    if said:
        goal.reason = f"wrong result: {said[0]}" + (f", and {len(said) - 1} more" if said[1:] else "")
    return bool(said)


def _efficiency(goal: Goal, document: Mapping[str, Any], labels: Iterable[str]) -> None:
    """Judge the ratio of the serial time to ranks times the parallel time."""
    found = []
    for label in labels:
        serial, mine = speedup.find(document, label, "serial", 1), speedup.find(document, label, "via", RANKS)
        if serial is None or mine is None:
            goal.reason = _why_not(document)
            return
        if _wrong(goal, (serial, mine)):
            return
        ratio = _ratio(serial, mine)
        ratio = stats.Ratio(ratio.value / RANKS, ratio.low / RANKS, ratio.high / RANKS, ratio.paired)
        walls = [one["points"][0]["time_s"]["median"] for one in (serial, mine)]
        numbers = f"{table.format_time(walls[0])} serial, {table.format_time(walls[1])} on {RANKS} ranks"
        copies = speedup.find(document, label, speedup.COPIES, RANKS)
        if copies is not None:  # what is lost to the machine is not the program's
            numbers += f"; {RANKS} serial programs at once have {_ratio(serial, copies).value:.2f} of one alone"
        found.append((speedup.PROBLEMS[label].title, ratio, numbers))
    _worst(goal, found)


def _against_mpi(goal: Goal, document: Mapping[str, Any]) -> None:
    """Compare the time over VIA with that of the faster MPI, for every problem."""
    found = []
    for label in speedup.PROBLEMS:
        mine = speedup.find(document, label, "via", RANKS)
        peers = [one for name in MPIS if (one := speedup.find(document, label, name, RANKS)) is not None]
        if mine is None or len(peers) < len(MPIS):  # half the comparison is no comparison
            goal.reason = _why_not(document)
            return
        if _wrong(goal, (mine, *peers)):
            return
        best = min(peers, key=lambda one: one["points"][0]["time_s"]["median"])
        walls = [one["points"][0]["time_s"]["median"] for one in (mine, best)]
        found.append((speedup.PROBLEMS[label].title, _ratio(mine, best), f"{_seconds(*walls)} of {best['protocol']}"))
    _worst(goal, found)


def add(
    judged: Judged,
    *,
    rounds: int = 5,
    quick: bool = False,
    seed: int | None = None,
    left_out: str = "",
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Measure the applications' goals, and add them to the others.

    Parameters
    ----------
    judged : Judged
        Result of :func:`viakit.bench.goals.run`.
    rounds : int
        Number of turns of each kernel and of each application.
    quick : bool
        Small sizes, to test the function itself; the results are not meaningful.
    seed : int, optional
        Seed of the order of turns.
    left_out : str
        If not empty, nothing is measured, and this is the reason of each goal.
    on_progress : callable, optional
        As for :func:`viakit.bench.goals.run`.
    """

    def report(part: float, what: str) -> None:
        if on_progress is not None:
            on_progress(Progress(part, 0.0, what))

    kernels = {name: Goal(f"kernel of {name} / plain C loop at -O3", KERNEL) for name in plain.MODULES}
    efficient = {
        name: Goal(f"{name}, {RANKS} ranks over VIA, parallel efficiency", EFFICIENCY, at_most=False)
        for name in EFFICIENT
    }
    against = Goal(f"every application, {RANKS} ranks, VIA / the better MPI, time", 1.0)
    mine = [*kernels.values(), *efficient.values(), against]
    judged.goals += mine
    if left_out:
        for goal in mine:
            goal.reason = f"{LEFT_OUT}{left_out}"
        return
    try:
        if judged.interrupted:
            raise KeyboardInterrupt
        for i, (name, goal) in enumerate(kernels.items()):
            report(0.3 * i / len(kernels), f"kernel of {name}")
            _kernels(goal, name, rounds, quick)
        document = speedup.measure(
            list(speedup.PROBLEMS), protocols=("via", *MPIS, speedup.COPIES), ranks=(RANKS,), rounds=rounds,
            quick=quick, seed=seed,
            on_progress=lambda part, what: report(0.3 + 0.7 * part, what),
        )  # fmt: skip
        for name, goal in efficient.items():
            _efficiency(goal, document, EFFICIENT[name])
        _against_mpi(against, document)
        if document["series"]:
            document["seconds"] = max(document["elapsed_s"], 1e-3)
            there = [one for one in (judged.document, document) if one is not None]
            judged.document = result.merge(there, there[0]["command"])
        if not document["complete"] and not document["errors"]:
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        judged.interrupted = True
        for goal in mine:
            if goal.value is None:
                goal.reason = goal.reason or "interrupted"
