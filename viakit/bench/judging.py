"""How goals are judged: from the result of a measurement to the value of a :class:`Goal`.

A judge is a function of a goal and of what a measurement found. Functions with arguments return such a judge.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viakit.measure import barrier, sockbuf, startup, stats, table
from viakit.measure.crew import TURN
from viakit.measure.ladder import format_size
from viakit.measure.result import Document

__all__ = ["LEFT_OUT", "LOSS", "MPIS", "Found", "Goal", "Judge", "Judged"]

HOLDS, SHORT, UNMEASURED = "holds", "falls short", "not measured"
MPIS = ("mpi:openmpi", "mpi:mpich")
TCPS = ("tcp", "tcp:default")  # with tuned socket buffers, and with those of the kernel
LEFT_OUT = "left out: "  # begin of the reason of a goal that is not for the hosts
LOSS = 0.01  # fraction of lost frames in the goals under loss


@dataclass
class Goal:
    """One goal: its subject, its limit, and the measured value.

    ``value`` and ``interval`` are in *unit* (``"ratio"``, ``"s"`` or ``"B"``). *conditions* states how it is measured,
    and *points* has every size if there are several.
    """

    what: str
    goal: float
    at_most: bool = True
    unit: str = "ratio"
    conditions: str = ""
    value: float | None = None
    interval: tuple[float, float] | None = None
    detail: str = ""
    reason: str = ""
    points: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        """``holds``, ``falls short`` or ``not measured``: the state of the goal."""
        if self.value is None:
            return UNMEASURED
        return HOLDS if (self.value <= self.goal if self.at_most else self.value >= self.goal) else SHORT

    def reached(self, ratio: stats.Ratio | None, detail: str, reason: str = "too few bursts") -> None:
        """Store a measured ratio, or the *reason* why it is missing."""
        if ratio is None or not math.isfinite(ratio.high):
            self.reason = f"{reason}: give it more --seconds, or a calmer machine"
        else:
            self.value, self.interval, self.detail = ratio.value, ratio.interval, detail


@dataclass
class Judged:
    """All goals, and the result (schema ``viakit.result/1``) on which they are based; None if nothing was measured."""

    goals: list[Goal]
    document: Document | None
    interrupted: bool = False


@dataclass
class Found:
    """The result of a measurement: its document, its error, or another value."""

    document: Document | None = None
    error: str = ""
    value: Any = None
    interrupted: bool = False

    def series(self, protocol: str, **key: Any) -> Mapping[str, Any] | None:
        """Return a series of the document, or None."""
        return table.find_series(self.document, protocol, **key) if self.document else None

    def point(self, protocol: str, nbytes: int, **key: Any) -> Mapping[str, Any] | None:
        """Return a point of the document, or None."""
        return table.point_at(self.series(protocol, **key), nbytes)

    def why_not(self, *names: str) -> str:
        """Return the reason why a series of *names* is missing."""
        for one in (self.document or {}).get("skipped", []):
            if one["protocol"] in names:
                return f"{one['protocol']}: {one['reason']}"
        for one in (self.document or {}).get("errors", []):
            return str(one["message"])
        return self.error or "not finished"


Judge = Callable[[Goal, Found], None]
Points = tuple["Mapping[str, Any] | None", "Mapping[str, Any] | None"]


def _times(*points: Mapping[str, Any]) -> str:
    key = "one_way_s" if "one_way_s" in points[0] else "time_s"
    return " against ".join(table.format_time(point[key]["median"]) for point in points)


def _rates(*points: Mapping[str, Any]) -> str:
    return " against ".join(table.format_bandwidth(point["bandwidth_Bps"]) for point in points)


def _compare(goal: Goal, found: Found, points: Points, names: Sequence[str], bandwidth: bool, more: str = "") -> None:
    """Judge the ratio of two points, or their difference if the goal is in seconds."""
    top, bottom = points
    if top is None or bottom is None:
        goal.reason = found.why_not(*names)
        return
    goal.reached(table.point_ratio(top, bottom, bandwidth=bandwidth), (_rates if bandwidth else _times)(top, bottom))
    goal.detail += more
    if goal.unit == "s" and goal.value is not None and goal.interval is not None:
        # The difference is computed from the ratio of neighbouring bursts, so that drift cancels.
        time_s = bottom["one_way_s"]["median"]
        low, high = ((limit - 1) * time_s for limit in goal.interval)
        goal.value, goal.interval = (goal.value - 1) * time_s, (low, high)


def against(name: str, peer: str, nbytes: int, bandwidth: bool = False) -> Judge:
    """Judge protocol *name* against *peer*. For a tuned TCP the detail contains its socket buffers."""

    def judge(goal: Goal, found: Found) -> None:
        more = _tuned(found) if peer == TCPS[0] else ""
        _compare(goal, found, (found.point(name, nbytes), found.point(peer, nbytes)), (name, peer), bandwidth, more)

    return judge


def _tuned(found: Found) -> str:
    """Return the socket buffers of a tuned TCP, as the end of a detail; "" if it was not tuned."""
    tuned = (found.series(TCPS[0]) or {}).get("info", {}).get("sockbuf")
    return f", socket buffers {sockbuf.name_of(tuned if isinstance(tuned, int) else None)}" if tuned else ""


def against_tcp(name: str, nbytes: int) -> Judge:
    """Judge the bandwidth of protocol *name* against the faster of tuned and default TCP. The detail has both."""

    def judge(goal: Goal, found: Found) -> None:
        tuned, default = (found.point(one, nbytes) for one in TCPS)
        if tuned is None or default is None:  # the faster one is known only if both were measured
            goal.reason = found.why_not(*TCPS)
            return
        better = max(tuned, default, key=lambda one: one["bandwidth_Bps"])
        both = f" (tuned {_rates(tuned)}{_tuned(found)}; default {_rates(default)})"
        _compare(goal, found, (found.point(name, nbytes), better), (name, *TCPS), True, both)

    return judge


def tail(name: str, peer: str, nbytes: int) -> Judge:
    """Judge the ratio of 99th percentile and median of *name* against that of *peer*."""

    def judge(goal: Goal, found: Found) -> None:
        points = found.point(name, nbytes), found.point(peer, nbytes)
        if points[0] is None or points[1] is None:
            goal.reason = found.why_not(name, peer)
            return
        whole, bursts = [], []
        for point in points:
            assert point is not None
            whole.append(point["one_way_s"]["p99"] / point["one_way_s"]["median"])
            rows = zip(point["rounds"], point["bursts_p99_s"], point["bursts_s"], strict=True)
            bursts.append({number: p99 / median for number, p99, median in rows})
        common = sorted(bursts[0].keys() & bursts[1].keys())
        detail = f"{whole[0]:.2f} against {whole[1]:.2f}"
        if len(common) < stats.MIN_BURSTS:
            goal.reached(None, detail)
            return
        # The value is that of all samples. The interval is that of the bursts, widened to contain it. A disturbance of
        # the machine is in few bursts, but may decide the percentile of all samples: the detail has the bursts, too.
        each = [[one[i] for i in common] for one in bursts]
        ratio = stats.ratio_of_medians(*each, paired=True)
        value = whole[0] / whole[1]
        typical = " against ".join(f"{statistics.median(one):.2f}" for one in each)
        detail = f"{detail} of all samples; {typical} in the median burst, ratio {ratio.value:.2f}"
        goal.reached(stats.Ratio(value, min(ratio.low, value), max(ratio.high, value), paired=True), detail)

    return judge


def floor(goal: Goal, found: Found) -> None:
    """Judge via-shm at 8 B against the floor."""
    points = found.point("via-shm", 8), (found.document or {}).get("floor")
    _compare(goal, found, points, ("via-shm", "floor"), bandwidth=False)


def under_loss(name: str) -> Judge:
    """Judge protocol *name* at 4 MiB under loss against itself without loss. Go-back-N is shown in the detail."""

    def judge(goal: Goal, found: Found) -> None:
        top, bottom, beside = (
            found.point(name, 4 << 20, loss=part, retransmission=way)
            for part, way in ((LOSS, "selective"), (0.0, "selective"), (LOSS, "go_back_n"))
        )
        _compare(goal, found, (top, bottom), (name,), True, f"; go-back-N {_rates(beside)}" if beside else "")

    return judge


def better_mpi(name: str, sizes: Sequence[int], mpis: Sequence[str] = MPIS) -> Judge:
    """Judge protocol *name* against the better one of *mpis* at every size. The worst size decides."""

    def judge(goal: Goal, found: Found) -> None:
        mine = found.series(name)
        peers = [one for peer in mpis if (one := found.series(peer))]
        if mine is None or not mine["points"] or not peers:
            goal.reason = found.why_not(name, *mpis)
            return
        worst: stats.Ratio | None = None
        for nbytes in sizes:
            point = table.point_at(mine, nbytes)
            others = [(other, one["protocol"]) for one in peers if (other := table.point_at(one, nbytes))]
            if point is None or not others:
                continue
            better, peer = min(others, key=lambda pair: pair[0]["one_way_s"]["median"])
            ratio = table.point_ratio(point, better)
            if ratio is None or not math.isfinite(ratio.high):
                continue
            row = {"nbytes": nbytes, "against": peer, "ratio": ratio.value, "ci95": list(ratio.interval)}
            goal.points.append({**row, "holds": ratio.value <= goal.goal})
            if worst is None or ratio.value > worst.value:
                worst = ratio
                goal.detail = f"worst at {format_size(nbytes)}: {_times(point, better)} of {peer}"
        missing = [peer for peer in mpis if peer not in {one["protocol"] for one in peers}]
        if missing:
            goal.reason = found.why_not(*missing)
        elif len(goal.points) < len(sizes) or worst is None:
            goal.reason = (
                f"only {len(goal.points)} of {len(sizes)} sizes were measured often enough: give it more --seconds"
            )
        else:
            goal.value, goal.interval = worst.value, worst.interval
            held = sum(row["holds"] for row in goal.points)
            goal.detail += f"; {held} of {len(sizes)} sizes hold"

    return judge


def _payload_limit(found: Found) -> float | None:
    """Return the payload that a wire of 1 Gbit/s carries in BIP's frames, in bytes per second."""
    series = found.series("bip-eth")
    payload = series["info"].get("max_payload") if series else None
    return 1e9 / 8 * payload / (1500 + 14) if payload else None  # 14: the Ethernet header, which the limit counts


def bip_share(nbytes: int) -> Judge:
    """Judge bip-eth's bandwidth against the payload limit of a wire of 1 Gbit/s."""

    def judge(goal: Goal, found: Found) -> None:
        from viakit.testbed import Testbed  # on use: only the real measurement has a testbed

        point, limit = found.point("bip-eth", nbytes), _payload_limit(found)
        if point is None or limit is None:
            goal.reason = found.why_not("bip-eth")
            return
        # A token bucket that was idle lets its first bytes pass without limit, so these bytes do not count.
        counted = nbytes - (Testbed(rate="1gbit").burst or 0)
        low, high = point["one_way_s"].get("ci95") or (0.0, 0.0)
        if not low > 0:
            goal.reached(None, "")
            return
        value, least, most = (counted / time_s / limit for time_s in (point["one_way_s"]["median"], high, low))
        detail = f"{table.format_bandwidth(value * limit)} of {table.format_bandwidth(limit)}"
        goal.reached(stats.Ratio(value, least, most, paired=False), detail)

    return judge


def bip_half(goal: Goal, found: Found) -> None:
    """Judge the message size at which bip-eth reaches half of the payload limit of 1 Gbit/s.

    The wire has no limit, and no token bucket that short messages would pass without delay. The time of a wire of
    1 Gbit/s is added to each measured time.
    """
    series, limit = found.series("bip-eth"), _payload_limit(found)
    if series is None or limit is None or len(series["points"]) < 2:
        goal.reason = found.why_not("bip-eth")
        return
    points = sorted(series["points"], key=lambda point: point["nbytes"])

    def half(time_of: Callable[[Mapping[str, Any]], float]) -> float:
        shares = [(p["nbytes"], p["nbytes"] / (time_of(p["one_way_s"]) * limit + p["nbytes"])) for p in points]
        return next((float(nbytes) for nbytes, share in shares if share >= 0.5), math.inf)

    value = half(lambda times: times["median"])
    low, high = half(lambda times: times["ci95"][0]), half(lambda times: times["ci95"][1])
    at = [f"{format_size(p['nbytes'])} in {table.format_time(p['one_way_s']['median'])}" for p in points]
    goal.reached(stats.Ratio(value, low, high, paired=False), f"the wire's time not included: {at[0]}, {at[-1]}")


# ---------------------------------------------------------------------------------------------- ranks


def ranks(operation: str, algorithm: str, n: int, peer: str, nbytes: int = 0) -> Judge:
    """Judge an algorithm of an operation against *peer*: another algorithm, a turn of the scheduler, or "mpi"."""

    def judge(goal: Goal, found: Found) -> None:
        if found.document is None or not found.document["complete"]:
            goal.reason = found.error or "not finished"
            return

        def point(name: str, protocol: str | None = None) -> dict[str, Any] | None:
            for one in found.document["series"] if found.document else ():
                fits = (one.get("algorithm"), one.get("ranks")) == (name, n) and protocol in (None, one["protocol"])
                if fits and one.get("operation", operation) == operation:
                    return next((each for each in one["points"] if each["nbytes"] == nbytes), None)
            return None

        mine, bottom = point(algorithm), point(peer)
        if peer == "mpi":
            times = {name: point(f"MPI_{operation.capitalize()}", name) for name in MPIS}
            missing = [name for name, one in times.items() if one is None]
            if missing:  # the better MPI is known only if both were measured
                goal.reason = found.why_not(*missing)
                return
            bottom = min(filter(None, times.values()), key=lambda one: one["time_s"]["median"])
        if mine is None or bottom is None:
            crowd = "the ranks share no cores here, so that there are no turns"
            goal.reason = crowd if peer == TURN and mine is not None else found.why_not(peer, *MPIS)
            return
        turn = point(TURN) if peer != TURN else None
        alone = f"; a turn of the scheduler alone takes {_times(turn)}" if turn is not None else ""
        goal.reached(barrier.ratio(mine, bottom), _times(mine, bottom) + alone)

    return judge


# ---------------------------------------------------------------------------------------------- others


def measured(goal: Goal, found: Found) -> None:
    """Take a ratio and its detail as they were measured."""
    if found.value is None:
        goal.reason = found.error or "not finished"
    else:
        goal.reached(*found.value)


def of_job(figure: Callable[[startup.Startup], tuple[float, str]]) -> Judge:
    """Return the judge of one job by a figure of it; *figure* returns its value and a detail."""

    def judge(goal: Goal, found: Found) -> None:
        if found.value is None:
            goal.reason = found.error or "not finished"
        else:
            goal.value, goal.detail = figure(found.value)

    return judge


def _time(one: startup.Startup) -> tuple[float, str]:
    return one.seconds, f"{one.processor_s:.0f} s of processor time, {one.connections:.0f} connections of each rank"


def _memory(one: startup.Startup) -> tuple[float, str]:
    return one.memory >> 20 << 20, f"{one.memory / one.ranks / (1 << 20):.0f} MiB of each rank"


starting, holding = of_job(_time), of_job(_memory)


# Both imports run in one fresh interpreter. NumPy is imported first, because its time does not count.
_IMPORT = """
import time
a = time.perf_counter()
import numpy
b = time.perf_counter()
import viakit
c = time.perf_counter()
import viakit.via
d = time.perf_counter()
print(b - a, c - b, d - c)
"""


def importing(goal: Goal, found: Found, times: int = 11) -> None:
    """Judge the time of ``import viakit`` beyond NumPy, in fresh interpreters."""
    rows = []
    try:
        for _ in range(times):
            done = subprocess.run(
                [sys.executable, "-c", _IMPORT], capture_output=True, text=True, timeout=60, check=False, cwd="/"
            )
            if done.returncode:
                goal.reason = f"the import failed: {(done.stderr.splitlines() or ['no message'])[-1]}"
                return
            rows.append([float(word) for word in done.stdout.split()])
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        goal.reason = f"the import failed: {error}"
        return
    # The first interpreter reads from disk, the others from the page cache.
    numpy, package, via = (stats.summarise([[row[i]] for row in rows[1:]]) for i in range(3))
    goal.value, goal.interval = package.median, package.ci95
    goal.detail = f"NumPy itself {table.format_time(numpy.median)}; viakit.via on top {table.format_time(via.median)}"


PATH_COST = ("path_cost", "path_cost_bare")


def taps(goal: Goal, found: Found, rounds: int = 15, turns: int = 6) -> None:
    """Judge the cost of taps that are compiled in but off, with the two programs of tests/c/path_cost.c.

    Each round runs both programs *turns* times in turns. The path waits for nothing, so only disturbances of the
    machine make a batch longer: the fastest batch of each round counts.
    """
    programs: Path | None = found.value
    if programs is None:
        goal.reason = "`make bench` in a checkout builds the two programs that this compares (--programs)"
        return
    times: tuple[list[float], list[float]] = ([], [])
    try:
        for _ in range(rounds):
            batches: tuple[list[float], list[float]] = ([], [])
            for turn in range(turns):
                for which in (0, 1) if turn % 2 else (1, 0):
                    command = [str(programs / PATH_COST[which]), "31"]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
                    if done.returncode:
                        goal.reason = f"{PATH_COST[which]} failed: {(done.stderr.splitlines() or ['no message'])[-1]}"
                        return
                    batches[which].extend(float(word) * 1e-9 for word in done.stdout.split())
            for kept, one in zip(times, batches, strict=True):
                kept.append(min(one))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        goal.reason = f"{PATH_COST[0]}: {error}"
        return
    numbers = [table.format_time(stats.summarise([one]).median) for one in times]
    goal.reached(stats.ratio_of_medians(*times), f"{numbers[0]} against {numbers[1]}, 8 B, both ends in one thread")
