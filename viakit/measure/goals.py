"""The figures that viakit has set itself, each measured beside its peer in one interleaved run.

A goal holds or falls short by its median; the 95 % interval stands beside it, so that anybody can see how close it was.
What was not measured is never counted as reached: it is named, with the reason.
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viakit.measure import loss, result, stats, sweep, table
from viakit.measure.environment import command_line
from viakit.measure.ladder import format_size
from viakit.measure.result import Document
from viakit.measure.sweep import Config, Progress

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Goal", "Judged", "render", "run", "to_json"]

OnShare = Callable[[float, float, str], None]  # of one run: the part that is done, seconds left at most, and words

HOLDS, SHORT, UNMEASURED = "holds", "falls short", "not measured"
MPIS = ("mpi:openmpi", "mpi:mpich")
SHM_SIZES = tuple(1 << i for i in range(27))
LOSS = 0.01  # the part of the frames of which the goals under loss speak
EAGER_LIMIT = 4096  # below, latency is compared; from here on, bandwidth


@dataclass
class Goal:
    """One figure: what, how good it is to be, and what was reached.

    ``value`` and ``interval`` are in *unit* (``"ratio"`` or ``"s"``); *points* has every size where there are several.
    """

    what: str
    goal: float
    at_most: bool = True
    unit: str = "ratio"
    value: float | None = None
    interval: tuple[float, float] | None = None
    detail: str = ""
    reason: str = ""
    points: list[dict[str, Any]] = field(default_factory=list)

    @property
    def status(self) -> str:
        """``holds``, ``falls short`` or ``not measured``."""
        if self.value is None:
            return UNMEASURED
        return HOLDS if (self.value <= self.goal if self.at_most else self.value >= self.goal) else SHORT

    def reached(self, ratio: stats.Ratio | None, detail: str, reason: str = "too few bursts") -> None:
        """Take a measured ratio, or the *reason* why there is none."""
        if ratio is None or not math.isfinite(ratio.high):
            self.reason = f"{reason}: give it more --seconds, or a calmer machine"
        else:
            self.value, self.interval, self.detail = ratio.value, ratio.interval, detail


@dataclass
class Judged:
    """All goals, and the result (schema ``viakit.result/1``) that they were judged by; None if nothing was measured."""

    goals: list[Goal]
    document: Document | None
    interrupted: bool = False


def _why_not(document: Document | None, names: tuple[str, ...], error: str) -> str:
    """Say why a series of *names* is missing."""
    for one in (document or {}).get("skipped", []):
        if one["protocol"] in names:
            return f"{one['protocol']}: {one['reason']}"
    for one in (document or {}).get("errors", []):
        return str(one["message"])
    return error or "not finished"


def _judge_pair(
    goal: Goal, document: Document | None, nbytes: int, *, bandwidth: bool, error: str, name: str = "via-eth"
) -> None:
    """Judge the protocol *name* against tcp; of bare frames, the least that raw sockets cost, is only told."""
    top, bottom, bare = (
        table.point_at(table.find_series(document, one) if document else None, nbytes)
        for one in (name, "tcp", "frames")
    )
    if top is None or bottom is None:
        goal.reason = _why_not(document, (name, "tcp"), error)
        return
    if bandwidth:
        numbers = [table.format_bandwidth(point["bandwidth_Bps"]) for point in (top, bottom)]
    else:
        numbers = [table.format_time(point["one_way_s"]["median"]) for point in (top, bottom)]
    detail = f"{numbers[0]} against {numbers[1]}"
    least = table.point_ratio(bare, bottom, bandwidth=bandwidth) if bare is not None else None
    if least is not None:
        detail += f" of tcp; bare frames have {least.value:.2f} of tcp's"
    goal.reached(table.point_ratio(top, bottom, bandwidth=bandwidth), detail)


def _judge_loss(goal: Goal, document: Document | None, name: str, error: str) -> None:
    """Judge the protocol *name* at 4 MiB under loss against itself without; go-back-N under loss is only told."""
    top, bottom, beside = (
        table.point_at(table.find_series(document, name, loss=part, retransmission=way) if document else None, 4 << 20)
        for part, way in ((LOSS, "selective"), (0.0, "selective"), (LOSS, "go_back_n"))
    )
    if top is None or bottom is None:
        goal.reason = _why_not(document, (name,), error)
        return
    numbers = [table.format_bandwidth(point["bandwidth_Bps"]) for point in (top, bottom)]
    if beside is not None:
        numbers[1] += f"; go-back-N {table.format_bandwidth(beside['bandwidth_Bps'])}"
    goal.reached(table.point_ratio(top, bottom, bandwidth=True), f"{numbers[0]} against {numbers[1]}")


def _judge_messages(more: Goal, share: Goal, document: Document | None, error: str) -> None:
    """Judge msg-via against via-shm: the time that messages add at 8 B, the bandwidth that they keep at 4 MiB."""
    mine, below = (table.find_series(document, one) if document else None for one in ("msg-via", "via-shm"))
    for goal, nbytes, bandwidth in ((more, 8, False), (share, 4 << 20, True)):
        top, bottom = table.point_at(mine, nbytes), table.point_at(below, nbytes)
        if top is None or bottom is None:
            goal.reason = _why_not(document, ("msg-via", "via-shm"), error)
            continue
        show = table.format_bandwidth if bandwidth else table.format_time
        numbers = [show(one["bandwidth_Bps"] if bandwidth else one["one_way_s"]["median"]) for one in (top, bottom)]
        goal.reached(table.point_ratio(top, bottom, bandwidth=bandwidth), f"{numbers[0]} against {numbers[1]}")
        if goal.unit == "s" and goal.value is not None and goal.interval is not None:
            # The difference, from the ratio of neighbouring bursts: drift falls out of it as it does of the ratio.
            time_s = bottom["one_way_s"]["median"]
            goal.value, goal.interval = (
                (goal.value - 1) * time_s,
                ((goal.interval[0] - 1) * time_s, (goal.interval[1] - 1) * time_s),
            )


def _judge_floor(goal: Goal, document: Document | None, error: str) -> None:
    """Judge via-shm at 8 B against the floor."""
    point = table.point_at(table.find_series(document, "via-shm") if document else None, 8)
    floor = document.get("floor") if document else None
    if point is None or floor is None:
        goal.reason = _why_not(document, ("via-shm", "floor"), error)
        return
    numbers = [table.format_time(one["one_way_s"]["median"]) for one in (point, floor)]
    goal.reached(table.point_ratio(point, floor), f"{numbers[0]} against {numbers[1]}")


def _judge_mpi(goal: Goal, document: Document | None, wanted: Callable[[int], bool], error: str) -> None:
    """Judge via-shm against the better MPI at every size that is *wanted*; the worst one decides."""
    mine = table.find_series(document, "via-shm") if document else None
    peers = [one for name in MPIS if document and (one := table.find_series(document, name))]
    sizes = [nbytes for nbytes in SHM_SIZES if wanted(nbytes)]
    if mine is None or not mine["points"] or not peers:
        goal.reason = _why_not(document, ("via-shm", *MPIS), error)
        return
    worst: stats.Ratio | None = None
    for nbytes in sizes:
        point = table.point_at(mine, nbytes)
        others = [(other, one["protocol"]) for one in peers if (other := table.point_at(one, nbytes))]
        if point is None or not others:
            continue
        better, name = min(others, key=lambda pair: pair[0]["one_way_s"]["median"])
        ratio = table.point_ratio(point, better)
        if ratio is None or not math.isfinite(ratio.high):
            continue
        row = {"nbytes": nbytes, "against": name, "ratio": ratio.value, "ci95": list(ratio.interval)}
        row["holds"] = ratio.value <= goal.goal
        goal.points.append(row)
        if worst is None or ratio.value > worst.value:
            worst = ratio
            numbers = [table.format_time(one["one_way_s"]["median"]) for one in (point, better)]
            goal.detail = f"worst at {format_size(nbytes)}: {numbers[0]} against {numbers[1]} of {name}"
    missing = [name for name in MPIS if name not in {one["protocol"] for one in peers}]
    if missing:
        goal.reason = _why_not(document, tuple(missing), error)
    elif len(goal.points) < len(sizes) or worst is None:
        goal.reason = (
            f"only {len(goal.points)} of {len(sizes)} sizes were measured often enough: give it more --seconds"
        )
    else:
        goal.value, goal.interval = worst.value, worst.interval
        held = sum(row["holds"] for row in goal.points)
        goal.detail += f"; {held} of {len(sizes)} sizes hold"


# Both imports in one fresh interpreter, one after the other: NumPy is the peer, viakit comes on top of it.
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


def _barrier_goals() -> list[tuple[Goal, dict[str, Any], int, str]]:
    """Return the goals for barriers: each with how it is measured, at how many ranks, and against what."""
    goals: list[tuple[Goal, dict[str, Any], int, str]] = []
    for what, algorithm, n, hosts in (
        ("RDMA barrier (default) / message barrier", "default", 8, 8),
        ("RDMA barrier (default) / message barrier", "default", 16, 16),
        ("The same exchange: pairwise by RDMA write / by message", "rdma", 8, 8),
        ("RDMA barrier (default) / message barrier", "default", 8, 4),
        ("RDMA barrier (default) / message barrier", "default", 16, 8),
    ):
        where = "each on a host of its own" if n == hosts else "two on each host"
        wanted = {"ranks": [n], "hosts": hosts, "algorithms": [algorithm, "message"], "with_mpi": False}
        goals.append((Goal(f"{what}, {n} ranks, {where}, eth", 0.5), wanted, n, "message"))
    return [
        *goals,
        (Goal("Barrier / the better MPI, 2 ranks, shm", 0.6), {"ranks": [2], "algorithms": ["default"]}, 2, ""),
        (Goal("Barrier / the better MPI, 16 ranks, shm", 0.12), {"ranks": [16], "algorithms": ["default"]}, 16, ""),
    ]


def _judge_barriers(
    goals: list[tuple[Goal, dict[str, Any], int, str]], seconds: float, seed: int | None
) -> list[Document]:
    """Measure and judge the goals for barriers, each in one interleaved run. Ctrl-C ends it."""
    from viakit import barrier
    from viakit.measure.crew import TURN
    from viakit.measure.endpoints import MeasureError

    documents = []
    for goal, arguments, n, peer in goals:
        try:
            document = barrier.measure(**arguments, seconds=seconds / len(goals), seed=seed)
        except (MeasureError, OSError, RuntimeError, ValueError) as failure:
            goal.reason = str(failure)
            continue
        documents.append(document)
        if not document["complete"]:
            goal.reason = "; ".join(one["message"] for one in document["errors"]) or "interrupted"
            if document["errors"]:
                continue
            raise KeyboardInterrupt
        mine = barrier.find(document, arguments["algorithms"][0], n)
        rivals = {name: barrier.find(document, "MPI_Barrier", n, name) for name in MPIS}
        missing = [name for name, point in rivals.items() if point is None]
        if not peer and missing:  # half the comparison is no comparison
            goal.reason = _why_not(document, tuple(missing), "")
            continue
        best = barrier.best_mpi(document, n)
        bottom = barrier.find(document, peer, n) if peer else best[1] if best else None
        if mine is None or bottom is None:
            goal.reason = _why_not(document, (peer, *MPIS), "")
            continue
        numbers = [table.format_time(point["time_s"]["median"]) for point in (mine, bottom)]
        detail = f"{numbers[0]} against {numbers[1]}"
        turn = barrier.find(document, TURN, n)
        if turn is not None:
            detail += f"; a turn of the scheduler alone takes {table.format_time(turn['time_s']['median'])}"
        goal.reached(barrier.ratio(mine, bottom), detail)
    return documents


def _judge_watched(goal: Goal, seconds: float) -> None:
    """Judge what a notebook's live plot does to the median that it shows."""
    from viakit.lab import _disturbance

    try:
        found = _disturbance.measure(seconds)
    except (RuntimeError, OSError, ImportError) as failure:
        goal.reason = str(failure)
        return
    numbers = [table.format_time(stats.summarise([found[key]]).median) for key in ("watched_s", "alone_s")]
    goal.reached(found["ratio"], f"{numbers[0]} against {numbers[1]}, {found['drawings']} drawings")


def _judge_bip(goal: Goal, document: Document | None, nbytes: int, error: str) -> None:
    """Judge bip-eth's bandwidth against what a wire of 1 Gbit/s carries of payload: its frames' share of data."""
    from viakit.testbed import Testbed

    series = table.find_series(document, "bip-eth") if document else None
    point = table.point_at(series, nbytes)
    payload = series["info"].get("max_payload") if series else None
    if series is None or point is None or not payload:
        goal.reason = _why_not(document, ("bip-eth",), error)
        return
    limit = 1e9 / 8 * payload / (1500 + 14)  # bytes per second; 14: the Ethernet header, which the limit counts
    # A token bucket that has rested lets its first bytes pass as if there were no limit: they do not count, and a
    # message that is no longer than they are has the wire's time added to what was measured.
    bucket = Testbed(rate="1gbit").burst or 0

    def share(time_s: float) -> float:
        if nbytes > bucket:
            return (nbytes - bucket) / time_s / limit
        return nbytes / (time_s + nbytes / limit) / limit

    low, high = point["one_way_s"].get("ci95") or (0.0, 0.0)
    if not low > 0:
        goal.reason = "too few bursts: give it more --seconds, or a calmer machine"
        return
    goal.value = share(point["one_way_s"]["median"])
    goal.interval = (share(high), share(low))
    goal.detail = f"{table.format_bandwidth(goal.value * limit)} of {table.format_bandwidth(limit)}"


def _judge_import(goal: Goal, times: int = 11) -> None:
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
    # The first interpreter reads from disk what the others find in memory.
    numpy, package, via = (stats.summarise([[row[i]] for row in rows[1:]]) for i in range(3))
    goal.value, goal.interval = package.median, package.ci95
    goal.detail = f"NumPy itself {table.format_time(numpy.median)}; viakit.via on top {table.format_time(via.median)}"


PATH_COST = ("path_cost", "path_cost_bare")


def _judge_taps(goal: Goal, programs: Path | None, rounds: int = 15, turns: int = 6) -> None:
    """Judge what taps cost that are there and off: the two programs (tests/c/path_cost.c), *turns* times a round each.

    The path waits for nothing, so whatever makes a batch longer is the machine: of each round the fastest one counts.
    """
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


def _measure_sweep(config: Config, seconds: float, on_share: OnShare, **classes: Any) -> tuple[Document, bool, str]:
    """Sweep; return the result, whether Ctrl-C ended it, and what went wrong."""
    config.seconds = seconds
    outcome = sweep.run(config, on_progress=lambda one: on_share(one.fraction, one.left_s, one.text), **classes)
    return outcome.document, outcome.interrupted, str(outcome.error or "")


def _measure_loss(
    name: str, seconds: float, on_share: OnShare, seed: int | None, **classes: Any
) -> tuple[Document, bool, str]:
    """Measure 4 MiB without loss and with it, in turns; returns as :func:`_measure_sweep` does."""

    def on_progress(fraction: float, left_s: float, text: str) -> None:
        on_share(fraction, left_s, f"{name}, {text}")

    document = loss.measure(
        name, nbytes=4 << 20, losses=(0.0, LOSS), seconds=seconds, hosts="testbed", mtu=1500, seed=seed,
        on_progress=on_progress, **classes,
    )  # fmt: skip
    error = "; ".join(one["message"] for one in document["errors"])
    return document, not document["complete"] and not error, error


def run(
    *,
    seconds: float = 60.0,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    programs: Path | None = None,
    pair_class: Any = None,
    testbed_class: Any = None,
) -> Judged:
    """Measure all goals.

    Parameters
    ----------
    seconds : float
        Time for measuring, in total.
    programs : Path, optional
        Folder with the programs path_cost and path_cost_bare, which ``make bench`` builds.
    seed, on_progress, pair_class, testbed_class
        As for :func:`viakit.demo.run`.
    """
    from viakit.measure.endpoints import MeasureError

    if not seconds > 0:
        raise sweep.UsageError(f"--seconds is {seconds:g}: give the time that measuring may take, for instance 60")
    latency = Goal("VIA on eth / TCP, 64 B, one-way time, polled, MTU 1500", 0.40)
    stream = Goal("VIA on eth / TCP, stream of 4 MiB, bandwidth, MTU 1500", 3.0, at_most=False)
    udp_latency = Goal("VIA on udp / TCP, 64 B, one-way time, polled, MTU 1500", 0.80)
    udp_stream = Goal("VIA on udp / TCP, stream of 4 MiB, bandwidth, MTU 1500", 2.5, at_most=False)
    floor = Goal("VIA on shm / core-to-core floor, 8 B, polled", 1.6)
    short = Goal("VIA on shm / the better MPI, every size below 4 KiB", 0.8)
    long = Goal("VIA on shm / the better MPI, every size 4 KiB to 64 MiB", 1.0)
    lossy = {
        name: Goal(f"VIA on {name[4:]}, stream of 4 MiB, 1 % loss / none, bandwidth, MTU 1500", 0.5, at_most=False)
        for name in ("via-eth", "via-udp")
    }
    bip = {
        4 << 20: Goal("BIP on eth, 4 MiB, bandwidth / payload limit of 1 Gbit/s", 0.955, at_most=False),
        4096: Goal("BIP on eth, 4 KiB, bandwidth / payload limit of 1 Gbit/s", 0.955 / 2, at_most=False),
    }
    added = Goal("messages over VIA, beyond VIA itself, 8 B on shm, one-way time, polled", 0.15e-6, unit="s")
    kept = Goal("messages over VIA / VIA itself, 4 MiB on shm, bandwidth", 0.95, at_most=False)
    free = Goal("taps compiled in but off / left out, a message's path on loop", 1.03)
    importing = Goal("import viakit, beyond NumPy", 0.1, unit="s")
    goals = [latency, stream, udp_latency, udp_stream, *lossy.values(), *bip.values(), floor, short, long]
    goals += [added, kept, free, importing]
    common: dict[str, Any] = {"seed": seed, "skip_unavailable": True, "level": "c"}
    parts = (
        (0.12, Config(("via-eth", "via-udp", "tcp", "frames"), (64,), hosts="testbed", mtu=1500, **common)),
        (
            0.13,
            Config(
                ("via-eth", "via-udp", "tcp", "frames"), (4 << 20,), hosts="testbed", mtu=1500, mode="stream", **common
            ),
        ),
        (0.54, Config(("via-shm", *MPIS), SHM_SIZES, hosts="local", **common)),
        (0.05, Config(("bip-eth",), tuple(bip), hosts="testbed", mtu=1500, rate="1gbit", **common)),
        (0.06, Config(("via-shm", "msg-via"), (8, 4 << 20), hosts="local", **common)),
    )
    documents: list[Document | None] = []
    errors: list[str] = []
    interrupted = False
    done = 0.0

    def take(share: float, measure: Callable[[float, OnShare], tuple[Document, bool, str]]) -> None:
        """Take a *share* of the time for one interleaved run, and note what it came to, or why to nothing."""
        nonlocal interrupted, done
        document, error = None, ""

        def on_share(fraction: float, left_s: float, text: str) -> None:
            if on_progress is not None:
                left = max(1.0 - done - share, 0.0) * seconds + left_s
                on_progress(Progress(done + share * fraction, left, text))

        if not interrupted:
            try:
                document, interrupted, error = measure(seconds * share, on_share)
            except KeyboardInterrupt:
                interrupted = True
            except (MeasureError, OSError, RuntimeError, ValueError) as failure:
                error = str(failure)
        documents.append(document)
        errors.append("interrupted" if interrupted and not error else error)
        done += share

    pairs = {"pair_class": pair_class, "testbed_class": testbed_class}
    for share, config in parts:
        take(share, functools.partial(_measure_sweep, config, **pairs))
    for name in lossy:
        take(0.05, functools.partial(_measure_loss, name, seed=seed, **pairs))
    _judge_pair(latency, documents[0], 64, bandwidth=False, error=errors[0])
    _judge_pair(stream, documents[1], 4 << 20, bandwidth=True, error=errors[1])
    _judge_pair(udp_latency, documents[0], 64, bandwidth=False, error=errors[0], name="via-udp")
    _judge_pair(udp_stream, documents[1], 4 << 20, bandwidth=True, error=errors[1], name="via-udp")
    for nbytes, goal in bip.items():
        _judge_bip(goal, documents[3], nbytes, errors[3])
    _judge_messages(added, kept, documents[4], errors[4])
    for i, (name, goal) in enumerate(lossy.items(), start=len(parts)):
        _judge_loss(goal, documents[i], name, errors[i])
    _judge_floor(floor, documents[2], errors[2])
    _judge_mpi(short, documents[2], lambda nbytes: nbytes < EAGER_LIMIT, errors[2])
    _judge_mpi(long, documents[2], lambda nbytes: nbytes >= EAGER_LIMIT, errors[2])
    measured = [one for one in documents if one is not None]
    if pair_class is None:  # barriers have no synthetic ranks
        barriers = _barrier_goals()
        goals += [one[0] for one in barriers]
        try:
            measured += [] if interrupted else _judge_barriers(barriers, seconds * 0.2, seed)
        except KeyboardInterrupt:
            interrupted = True
        watched = Goal("via-shm with a live plot / without, 8 B, one-way time, polled", 1.01)
        goals.append(watched)
        try:
            if not interrupted:
                _judge_watched(watched, seconds * 0.05)
        except KeyboardInterrupt:
            interrupted = True
        for goal in [*(one[0] for one in barriers), watched] if interrupted else ():
            goal.reason = goal.reason or "interrupted"
    if interrupted:
        importing.reason = free.reason = "interrupted"
    else:
        _judge_import(importing)
        _judge_taps(free, programs)
    return Judged(goals, result.merge(measured, command_line()) if measured else None, interrupted)


def _show(goal: Goal, value: float) -> str:
    return table.format_time(value) if goal.unit == "s" else f"{value:.2f}"


def render(judged: Judged, console: Console) -> None:
    """Print the goals as a table, then what was seen at each size where there are several."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    sheet = Table(title="[bold]Goals[/bold]", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("what", "goal", "reached [95 % interval]", "", "numbers"):
        sheet.add_column(head)
    colours = {HOLDS: "green", SHORT: "red", UNMEASURED: "yellow"}
    for goal in judged.goals:
        wanted = f"{'≤' if goal.at_most else '≥'} {_show(goal, goal.goal)}"
        if goal.value is None or goal.interval is None:
            reached, numbers = "-", escape(goal.reason)
        else:
            reached = f"{_show(goal, goal.value)} \\[{_show(goal, goal.interval[0])}, {_show(goal, goal.interval[1])}]"
            numbers = escape(goal.detail)
        sheet.add_row(goal.what, wanted, reached, f"[{colours[goal.status]}]{goal.status}[/]", numbers)
    console.print(sheet)
    for goal in judged.goals:
        if goal.points:
            names = [row.get("what") or format_size(row["nbytes"]) for row in goal.points]
            cells = [
                f"{name} {row['ratio']:.2f}{'' if row['holds'] else '!'}"
                for name, row in zip(names, goal.points, strict=True)
            ]
            console.print(f"{goal.what}: {', '.join(cells)}", style="dim", markup=False)


def to_json(judged: Judged) -> str:
    """Return the goals as JSON of schema ``viakit.goals/1``; ``result`` in it is a ``viakit.result/1`` or null."""
    goals: list[Mapping[str, Any]] = [
        {
            "what": goal.what,
            "goal": goal.goal,
            "at_most": goal.at_most,
            "unit": goal.unit,
            "status": goal.status,
            "value": goal.value,
            "ci95": list(goal.interval) if goal.interval else None,
            "detail": goal.detail,
            "reason": goal.reason or None,
            "points": goal.points,
        }
        for goal in judged.goals
    ]
    return json.dumps(
        {"schema": "viakit.goals/1", "goals": goals, "result": judged.document}, indent=1, allow_nan=False
    )
