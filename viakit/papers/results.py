"""The predicted curves of a paper's figure as a document of viakit.result/1, which plot, compare and table read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from viakit.apps.speedup import paper as paper_of_applications
from viakit.measure.environment import environment
from viakit.measure.result import SCHEMA, Document
from viakit.papers import PAPERS, figures, module_of
from viakit.papers.curves import Curve

__all__ = ["document"]


def _times(seconds: float) -> dict[str, Any]:
    """Return the times of one prediction, which has no spread."""
    same = ("median", "p5", "p50", "p90", "p99", "p999", "min", "max")
    return {**dict.fromkeys(same, seconds), "ci95": [seconds, seconds]}


def _info(machine: str | None) -> dict[str, Any]:
    return {"time": "virtual", "predicted": True, **({"machine": machine} if machine else {})}


def _transfer(title: str, times: Iterable[tuple[int, float]], mtu: int | None, machine: str | None) -> dict[str, Any]:
    """Return a ping-pong series from sizes and seconds."""
    points = [
        {"nbytes": n, "one_way_s": _times(t), "bandwidth_Bps": n / t, "samples": 1, "counters": {}} for n, t in times
    ]
    return {
        "protocol": title, "link": "model", "hosts": "machine", "mtu": mtu, "mode": "pingpong", "wait": "poll",
        "level": "c", "one_way": "half the round trip", "info": _info(machine), "points": points,
    }  # fmt: skip


def _curve(title: str, one: Curve) -> dict[str, Any]:
    mtu = round(one.machine["wire.mtu"])
    return _transfer(title, zip(one.sizes, one.times_s, strict=True), mtu, one.machine.name)


def _barriers(title: str, points: Iterable[tuple[float, float]]) -> list[dict[str, Any]]:
    """Return a series for each number of nodes."""
    tasks = 2 if "2 tasks" in title else 1
    return [
        {
            "protocol": "via", "operation": "barrier", "algorithm": title, "ranks": int(nodes) * tasks,
            "hosts": int(nodes), "link": "model", "level": "c", "skew_s": 0, "info": _info(None),
            "points": [{"nbytes": 0, "time_s": _times(us * 1e-6), "samples": 1}],
        }
        for nodes, us in points
    ]  # fmt: skip


def _applications(problem: str, column: str, points: Iterable[tuple[float, float]]) -> list[dict[str, Any]]:
    """Return a series for each number of ranks, and the times that the speed-ups mean."""
    total = paper_of_applications()["problems"][problem]["sequential_ms"] * 1e-3
    return [
        {
            "label": problem, "application": problem.partition("-")[0], "scale": "paper", "protocol": column,
            "ranks": int(ranks), "hosts": int(ranks), "level": "c", "info": _info(None),
            "runs": [{"wall_s": total / gain, "ok": True, "checks": [], "ranks": []}],
            "points": [{"nbytes": 0, "time_s": _times(total / gain), "samples": 1}],
        }
        for ranks, gain in points
    ]  # fmt: skip


def _of_prylli(figure: str, title: str, points: Iterable[tuple[float, float]]) -> dict[str, Any]:
    """Return a series from microseconds, or in figure 3 from MB/s."""
    seconds = [(int(n), n / value * 1e-6 if figure == "fig3" else value * 1e-6) for n, value in points]
    return _transfer(title, seconds, None, "ppro200-myrinet-bip")


def document(paper: str, figure: str) -> Document:
    """Return the predicted curves of a figure.

    Parameters
    ----------
    paper, figure : str
        Key of :data:`viakit.papers.PAPERS`, and the name of one of its figures.

    Raises
    ------
    ValueError
        If the paper has no such figure.
    """
    found = figures.series(paper)
    figures.check(paper, figure, found)
    series: list[dict[str, Any]] = []
    if paper in ("ong-farrell", "turner-chen"):
        series = [_curve(title, one) for title, one in module_of(paper).curves()[figure]]
    elif paper == "prylli":
        series = [_of_prylli(figure, title, points) for title, points in found[figure].items()]
    elif paper == "gupta":
        series = [one for title, points in found[figure].items() for one in _barriers(title, points)]
    else:
        problem = module_of(paper).PROBLEM_OF[figure]
        series = [one for column, points in found[figure].items() for one in _applications(problem, column, points)]
    return {
        "schema": SCHEMA, "command": f"viakit papers {paper} {figure}", "complete": True,
        "environment": {**environment(seed=None), "paper": PAPERS[paper][0]}, "series": series,
    }  # fmt: skip
