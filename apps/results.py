"""Display of result files of applications, for ``viakit show`` and ``viakit plot``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viakit.apps import speedup_report
from viakit.apps.harness import Check, RankReport, Run
from viakit.apps.phases import STATES
from viakit.apps.profile import Summary
from viakit.apps.reporting import show_runs
from viakit.apps.speedup import PROBLEMS, rows
from viakit.base.words import counted
from viakit.measure import plot
from viakit.measure.crews import show_missing
from viakit.measure.look import looks
from viakit.measure.result import Document, ResultError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = ["figure", "run_of", "show"]


def run_of(said: Mapping[str, Any]) -> Run:
    """Return a run from a file. Files do not contain the outcome."""
    checks = []
    for one in said["checks"]:
        error = float("inf") if one["error"] is None else one["error"]
        checks.append(Check(one["name"], one["got"], one["expected"], error, one["tolerance"], one["ok"]))
    reports = []
    for one in said["ranks"]:
        seconds = dict.fromkeys(STATES, 0.0) | one["seconds"]
        took = one["wall_s"], one["cpu_s"], seconds
        work_s = one.get("work_s", 0.0)
        reports.append(RankReport(one["rank"], *took, one["messages"], one["nbytes"], work_s=work_s))
    calls = [{name: Summary(**each) for name, each in one.get("calls", {}).items()} for one in said["ranks"]]
    return Run(reports, checks, None, calls)


def _of_speedup(document: Mapping[str, Any]) -> bool:
    """Return whether `viakit speedup` wrote the result, whose series are problems of the paper."""
    return all(one.get("label") in PROBLEMS for one in document["series"])


def _problem(one: Mapping[str, Any]) -> str:
    problem = one.get("problem")
    if not isinstance(problem, Mapping):
        return str(problem or "")
    return ", ".join(f"{key} {value}" for key, value in problem.items())


def _name(one: Mapping[str, Any]) -> str:
    """Return the name of the problem; `viakit speedup` has several problems of one application."""
    name = one.get("label") or one.get("title") or one["application"]
    return f"{name}: {_problem(one)}"


def _title(one: Mapping[str, Any]) -> str:
    how = "serial" if one["protocol"] == "serial" else f"{counted(one['ranks'], 'rank')} over {one['protocol']}"
    hosts = one["hosts"]
    return f"{_name(one)}; {how}" + (f" on {hosts} hosts" if hosts > 1 else "")


def show(document: Document, console: Console) -> None:
    """Print a result: tables for `viakit speedup`, otherwise the run with the median time of each series."""
    if _of_speedup(document):
        speedup_report.show(document, console)
        return
    _show_series(document, console)
    show_missing(document, console)


def _show_series(document: Document, console: Console) -> None:
    for one in document["series"]:
        console.print(_title(one), markup=False, style="bold")
        runs = [run_of(each) for each in one["runs"]]
        if not runs:
            console.print("the result has no finished run")
            continue
        show_runs(runs, one.get("summary", {}), console, one.get("operations"))


def _panels(
    documents: Sequence[Document], names: Sequence[str]
) -> dict[str, dict[str, list[tuple[int, Mapping[str, float]]]]]:
    """Return the curves of each problem: points (ranks, times) by protocol.

    Points of one protocol form one curve even if they come from several files, because a file of `viakit app` has one
    number of ranks. If two files have the same point, each file has its own curve.
    """
    every = [
        (i, _name(one), one["protocol"] + (f", {one['hosts']} hosts" if one["hosts"] > 1 else ""), one)
        for i, document in enumerate(documents)
        for one in document["series"]
        if one["points"]
    ]
    owners: dict[tuple[Any, ...], set[int]] = {}
    for i, problem, protocol, one in every:
        owners.setdefault((problem, protocol, one["ranks"]), set()).add(i)
    several = any(len(files) > 1 for files in owners.values())
    panels: dict[str, dict[str, list[tuple[int, Mapping[str, float]]]]] = {}
    for i, problem, protocol, one in every:
        curve = f"{protocol} [{names[i]}]" if several else protocol
        found = panels.setdefault(problem, {}).setdefault(curve, [])
        found.append((one["ranks"], one["points"][0]["time_s"]))
    return panels


def figure(
    documents: Sequence[Document],
    *,
    names: Sequence[str] | None = None,
    times: bool = False,
    title: str | None = None,
) -> Figure:
    """Draw one result of `viakit speedup` as speed-ups, and other results as wall times over ranks.

    Parameters
    ----------
    documents : sequence of dict
        ``viakit.result/1`` with series of applications.
    names : sequence of str, optional
        Names of the documents, for curves that must be distinguished.
    times : bool
        Draw times for a result of `viakit speedup` as well.
    title : str, optional
        Title of the figure.

    Raises
    ------
    ResultError
        If the results have no finished run.
    """
    if len(documents) == 1 and not times and _of_speedup(documents[0]) and any(rows(documents[0])):
        return speedup_report.figure(documents[0], title)
    panels = _panels(documents, names or [str(i + 1) for i in range(len(documents))])
    if not panels:
        raise ResultError("nothing to draw: the results have no finished run")
    drawing, fields = plot.panels(len(panels))
    for axes, (problem, curves) in zip(fields, panels.items(), strict=True):
        protocols = looks(label.partition(",")[0] for label in curves)
        files = list(dict.fromkeys(label.rpartition("[")[2] for label in curves))
        chosen = {
            label: protocols[label.partition(",")[0]].of_file(files.index(label.rpartition("[")[2])) for label in curves
        }
        for label, points in curves.items():
            points.sort(key=lambda one: one[0])
            n, medians = [one[0] for one in points], [one[1]["median"] for one in points]
            spread = [
                [median - one[1]["min"] for median, one in zip(medians, points, strict=True)],
                [one[1]["max"] - median for median, one in zip(medians, points, strict=True)],
            ]
            axes.errorbar(n, medians, yerr=spread, capsize=2, label=label, **chosen[label].line())
        ticks = sorted({one[0] for points in curves.values() for one in points})
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("ranks")
        axes.set_ylabel("wall time, s")
        axes.grid(True, which="both", alpha=0.25)
        axes.set_title(textwrap.fill(problem, 64), fontsize="small", parse_math=False)
        plot.names_at_lines(axes)
    drawing.suptitle(title or "Wall times: medians of the runs, bars from the least to the greatest", parse_math=False)
    return drawing
