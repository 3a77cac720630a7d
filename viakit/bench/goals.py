"""The performance goals of viakit, each measured in comparison with its peer in one interleaved run.

Both sides of a comparison have the same conditions: ordinary memory and touched buffers, unless a goal names another
kind. In the goals from Python buffers are untouched, because the loop in Python touches them in more time than most
calls take. TCP is measured twice: with the socket buffers that are best in this run (:mod:`viakit.measure.sockbuf`),
and with those of the kernel. Goals of bandwidth are against the faster of the two.

Between two machines, only the goals on a wire are measured. The others are listed with the reason.

A goal is one entry of :data:`GOALS`: its text, its limit, its measurement and its judge (:mod:`.judging`). Goals that
share a measurement are judged from one run. A goal is judged by its median; the 95 % interval shows how close the
decision is. A goal that was not measured never counts as reached. It is listed with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viakit.base.sheet import sheet
from viakit.bench import judging
from viakit.bench.judging import HOLDS, LOSS, MPIS, SHORT, UNMEASURED, Found, Goal, Judge, Judged
from viakit.measure import barrier, collectives, loss, result, sockbuf, startup, sweep, table
from viakit.measure.crew import TURN
from viakit.measure.endpoints import MeasureError
from viakit.measure.environment import command_line
from viakit.measure.ladder import format_size
from viakit.measure.plan import ONE_WAY, is_remote
from viakit.measure.result import WORDS
from viakit.measure.sweep import Config, Progress

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["GOALS", "Goal", "Judged", "Settings", "render", "run", "take", "to_json"]

OnShare = Callable[[float, float, str], None]  # progress of one run: fraction done, seconds left at most, text

EAGER_LIMIT = 4096  # below, latency is compared; from here on, bandwidth
ALL_SIZES = tuple(1 << i for i in range(27))
MAPPED_SIZES = tuple(1 << i for i in range(12, 27, 2))  # sizes for memory that the peer can map
HALF_SIZES = tuple(1 << i for i in range(8, 17))
LONG, MEDIUM = 4 << 20, 64 << 10  # bytes of a message of a stream


@dataclass(frozen=True)
class Settings:
    """Arguments of :func:`run` that all measurements share."""

    seed: int | None = None
    memory: str = "user"
    buffers: str = "touched"
    programs: Path | None = None
    pair_class: Any = None
    testbed_class: Any = None
    hosts: str | None = None
    network: str | None = None
    python: str | None = None
    wire_only: bool = False  # leave out the goals for which one host is enough, and between machines those of a testbed

    @property
    def machines(self) -> dict[str, Any]:
        """The options that let a measurement run between two machines, in place of those of a testbed's wire."""
        return {"hosts": self.hosts, "network": self.network, "python": self.python, "mtu": None}

    def leaves_out(self, one: Measurement) -> bool:
        """Return whether a measurement is not taken on these hosts."""
        return self.wire_only and (one.left_out == _ONE_HOST if self.hosts is None else bool(one.left_out))


_ONE_HOST = "one host is enough for it; run viakit bench without --hosts"


@dataclass(frozen=True, eq=False)
class Measurement:
    """One interleaved run: its share of the time, how it is taken, and its conditions as a text.

    A measurement that is not *synthetic* needs real processes: the tests' substitutes for pairs cannot stand for it.
    *left_out* is the reason why it is not taken between two machines, or empty if it can be.
    """

    share: float
    take: Callable[[Settings, float, OnShare], Found]
    conditions: Callable[[Settings], str] = lambda settings: ""
    synthetic: bool = True
    left_out: str = _ONE_HOST


# ---------------------------------------------------------------------------------------------- measurements


def _sweep(
    share: float, protocols: Sequence[str], sizes: Sequence[int], left_out: str = "", **options: Any
) -> Measurement:
    """Return a sweep as a measurement; *options* are fields of its configuration."""

    def config(how: Settings, seconds: float = 1.0) -> Config:
        common = {"level": "c", "memory": how.memory, "buffers": how.buffers, "skip_unavailable": True}
        between = how.machines if how.hosts is not None else {}
        return Config(protocols, sizes, seconds=seconds, seed=how.seed, **{**common, **options, **between})

    def take(how: Settings, seconds: float, on_share: OnShare) -> Found:
        outcome = sweep.run(
            config(how, seconds),
            on_progress=lambda one: on_share(one.fraction, one.left_s, one.text),
            pair_class=how.pair_class,
            testbed_class=how.testbed_class,
        )
        return Found(outcome.document, str(outcome.error or ""), interrupted=outcome.interrupted)

    def conditions(how: Settings) -> str:
        one = config(how)
        words = [WORDS[key, getattr(one, key)] for key in ("wait", "level", "memory", "buffers")]
        return ", ".join([ONE_WAY[one.mode], *words])

    left_out = left_out if options["hosts"] == "testbed" else _ONE_HOST
    return Measurement(share, take, conditions, left_out=left_out)


def _document(document: dict[str, Any]) -> Found:
    """Return what a function found that returns a document also after an interruption."""
    error = "; ".join(one["message"] for one in document.get("errors", []))
    return Found(document, error, interrupted=not document["complete"] and not error)


def _lossy(name: str) -> Measurement:
    """Return the measurement of a stream of 4 MiB without loss and with it, in turns."""

    def take(how: Settings, seconds: float, on_share: OnShare) -> Found:
        return _document(
            loss.measure(
                name, nbytes=LONG, losses=(0.0, LOSS), seconds=seconds, seed=how.seed,
                **({"hosts": "testbed", "mtu": 1500} if how.hosts is None else how.machines),
                on_progress=lambda part, left_s, text: on_share(part, left_s, f"{name}, {text}"),
                pair_class=how.pair_class, testbed_class=how.testbed_class,
            )
        )  # fmt: skip

    conditions = f"{ONE_WAY['stream']}, polled, C, ordinary memory, buffers touched"
    return Measurement(0.05, take, lambda how: conditions, left_out="")


def _on_ranks(
    share: float, measure: Callable[..., dict[str, Any]], what: str, left_out: str = _ONE_HOST, **arguments: Any
) -> Measurement:
    """Return the measurement of a collective among ranks."""

    def take(how: Settings, seconds: float, on_share: OnShare) -> Found:
        on_share(0.0, seconds, what)
        return _document(measure(**arguments, seconds=seconds, seed=how.seed))

    level = WORDS["level", arguments.get("level", "c")]
    conditions = f"one after the other, polled, {level}"
    return Measurement(share, take, lambda how: conditions, synthetic=False, left_out=left_out)


def _barriers(n: int, hosts: int, algorithms: Sequence[str]) -> Measurement:
    def measure(**others: Any) -> dict[str, Any]:  # found on use, so that a test can replace it
        return barrier.measure([n], algorithms=list(algorithms), **others)

    placed = {"hosts": hosts, "with_mpi": False} if hosts > 1 else {}
    left_out = f"it needs {hosts} hosts of a testbed" if hosts > 1 else _ONE_HOST
    return _on_ranks(0.2 / 7, measure, f"barrier, {n} ranks", left_out, **placed)


def _watched(how: Settings, seconds: float, on_share: OnShare) -> Found:
    """Measure the effect of a notebook's live plot on the median that it shows."""
    from viakit.lab import _disturbance  # on use: it needs packages that are optional

    on_share(0.0, seconds, "via-shm with a live plot")
    found = _disturbance.measure(seconds)
    times = [table.format_time(float(judging.stats.summarise([found[key]]).median)) for key in ("watched_s", "alone_s")]
    return Found(value=(found["ratio"], f"{times[0]} against {times[1]}, {found['drawings']} drawings"))


def _startup(ranks: int, hosts: str, least: int, preload: bool = False) -> Measurement:
    """Return the start and end of a job as a measurement, for machines with *least* bytes of memory to spare."""

    def take(how: Settings, seconds: float, on_share: OnShare) -> Found:
        on_share(0.0, _START_S, f"a job of {ranks} ranks")
        there = startup.available_memory()
        if there < least:
            need = f"a job of {ranks} ranks needs {format_size(least)} of memory"
            return Found(error=f"{need}, and {there >> 20} MiB are available")
        return Found(value=startup.measure(ranks, hosts, preload=preload))

    conditions = (
        f"viakit run -n {ranks} {'--preload' if preload else f'--hosts {hosts}'}: start, barrier, allreduce, end"
    )
    left_out = _ONE_HOST if hosts == "local" else "it needs more hosts than two, of a testbed"
    return Measurement(0.01, take, lambda how: conditions, synthetic=False, left_out=left_out)


_START_S = 30.0
_WIRE: dict[str, Any] = {"hosts": "testbed", "mtu": 1500, "sockbuf": sockbuf.AUTO}
_ON_WIRE = ("via-eth", "via-udp", "tcp", "tcp:default", "frames")
_LOCAL: dict[str, Any] = {"hosts": "local"}
_BIP: dict[str, Any] = {"hosts": "testbed", "mtu": 1500, "memory": "user"}
_BIP["left_out"] = "its limit is that of a wire of 1 Gbit/s, which only a testbed makes"
_PYTHON: dict[str, Any] = {"hosts": "local", "level": "python", "memory": "user", "buffers": "same"}
_RANKS = ("msg-via", *MPIS)
_WINDOWS = ("put-via", "put-mpi:openmpi", "put-mpi:mpich")
_IN_PYTHON: dict[str, Any] = {"ranks": [2], "algorithms": ["default"], "level": "python"}

wire_64 = _sweep(0.10, _ON_WIRE, (64,), **_WIRE)
wire_medium = _sweep(0.09, _ON_WIRE, (MEDIUM,), mode="stream", **_WIRE)
wire_long = _sweep(0.09, _ON_WIRE, (LONG,), mode="stream", **_WIRE)
shm = _sweep(0.41, ("via-shm", *MPIS), ALL_SIZES, **_LOCAL)
mapped = _sweep(0.10, ("via-shm", *MPIS), MAPPED_SIZES, **_LOCAL, memory="viakit")
bip = _sweep(0.05, ("bip-eth",), (LONG,), rate="1gbit", **_BIP)
bip_free = _sweep(0.03, ("bip-eth",), HALF_SIZES, **_BIP)
messages = _sweep(0.06, ("via-shm", "msg-via"), (8, LONG), **_LOCAL)
python_plain = _sweep(0.03, _RANKS, (8,), spec="plain", **_PYTHON)
python_list = _sweep(0.03, _RANKS, (8,), spec="list", **_PYTHON)
python_sizes = _sweep(0.06, _RANKS, (1 << 10, MEDIUM, LONG), spec="plain", **_PYTHON)
python_rate = _sweep(0.03, _RANKS, (8,), spec="list", mode="stream", **_PYTHON)
python_dict = _sweep(0.03, _RANKS, (64,), spec="dict", **_PYTHON)
python_array = _sweep(0.03, _RANKS, (1 << 20,), spec="array", **_PYTHON)
python_put = _sweep(0.03, _WINDOWS, (8,), **_PYTHON)
barriers_2, barriers_16 = _barriers(2, 1, ["default"]), _barriers(16, 1, ["default"])
python_barrier = _on_ranks(0.03, barrier.measure, "barrier from Python", **_IN_PYTHON)
python_allreduce = _on_ranks(
    0.05, collectives.measure, "allreduce from Python", operations=["allreduce"], sizes=[8, MEDIUM, 1 << 20],
    **_IN_PYTHON,
)  # fmt: skip
watched = Measurement(0.05, _watched, lambda how: "half the round trip, polled, ordinary memory", synthetic=False)
start_256, start_128 = _startup(256, "local", 8 << 30, preload=True), _startup(128, "testbed:16", 6 << 30)
nothing = Measurement(0.0, lambda how, seconds, on_share: Found(value=how.programs))  # the judge itself measures


# ---------------------------------------------------------------------------------------------- the goals


@dataclass(frozen=True)
class Entry:
    """A goal: its text, limit, measurement and judge. The text may contain {memory} and {buffers}."""

    what: str
    limit: float
    measurement: Measurement
    judge: Judge
    at_most: bool = True
    unit: str = "ratio"


_least = partial(Entry, at_most=False)
_TUNED = "the better of tuned and default TCP"
_POLLED = "polled, {wire}"
_PIPE = f"bandwidth, {_POLLED}"
_FASTER = "mpi4py on the faster MPI"
_BARE = f"{_FASTER}, buffers untouched"  # touching is work of the measuring loop, and slow in Python

GOALS: tuple[Entry, ...] = (
    Entry(f"VIA on eth / bare frames, 64 B, one-way time, {_POLLED}", 1.08, wire_64,
          judging.against("via-eth", "frames", 64)),
    Entry(f"VIA on eth / TCP, 64 B, one-way time, {_POLLED}", 0.40, wire_64, judging.against("via-eth", "tcp", 64)),
    Entry(f"VIA on eth / TCP, 64 B, 99th percentile over median of the one-way time, {_POLLED}", 1.0, wire_64,
          judging.tail("via-eth", "tcp", 64)),
    _least(f"VIA on eth / bare frames, stream of 4 MiB, {_PIPE}", 0.9, wire_long,
           judging.against("via-eth", "frames", LONG, bandwidth=True)),
    _least(f"VIA on eth / {_TUNED}, stream of 4 MiB, {_PIPE}", 1.9, wire_long,
           judging.against_tcp("via-eth", LONG)),
    _least(f"VIA on eth / {_TUNED}, stream of 64 KiB, {_PIPE}", 1.3, wire_medium,
           judging.against_tcp("via-eth", MEDIUM)),
    Entry(f"VIA on udp / TCP, 64 B, one-way time, {_POLLED}", 0.75, wire_64, judging.against("via-udp", "tcp", 64)),
    _least(f"VIA on udp / {_TUNED}, stream of 4 MiB, {_PIPE}", 1.5, wire_long,
           judging.against_tcp("via-udp", LONG)),
    *(_least(f"VIA on {name[4:]}, stream of 4 MiB, 1 % loss / none, bandwidth, {{wire}}", 0.8, _lossy(name),
             judging.under_loss(name)) for name in ("via-eth", "via-udp")),
    _least("BIP on eth, 4 MiB, bandwidth / payload limit of 1 Gbit/s", 0.955, bip, judging.bip_share(LONG)),
    Entry("BIP on eth, message that reaches half of the payload limit of 1 Gbit/s", 4096, bip_free, judging.bip_half,
          unit="B"),
    Entry("VIA on shm / core-to-core floor, 8 B, polled", 1.25, shm, judging.floor),
    Entry("VIA on shm / the better MPI, every size below 4 KiB, {memory}, {buffers}", 0.75, shm,
          judging.better_mpi("via-shm", [nbytes for nbytes in ALL_SIZES if nbytes < EAGER_LIMIT])),
    Entry("VIA on shm / the better MPI, every size 4 KiB to 64 MiB, {memory}, {buffers}", 0.9, shm,
          judging.better_mpi("via-shm", [nbytes for nbytes in ALL_SIZES if nbytes >= EAGER_LIMIT])),
    Entry("VIA on shm, memory that the peer can map / the better MPI, 4 KiB to 64 MiB, {buffers}", 0.5, mapped,
          judging.better_mpi("via-shm", MAPPED_SIZES)),
    Entry("messages over VIA, beyond VIA itself, 8 B on shm, one-way time, polled", 50e-9, messages,
          judging.against("msg-via", "via-shm", 8), unit="s"),
    _least("messages over VIA / VIA itself, 4 MiB on shm, bandwidth", 0.95, messages,
           judging.against("msg-via", "via-shm", LONG, bandwidth=True)),
    Entry(f"Python: Send and Recv of an array, 8 B on shm, one-way time / {_BARE}", 0.5, python_plain,
          judging.better_mpi("msg-via", (8,))),
    Entry(f"Python: Send and Recv of [array, datatype], 8 B on shm, one-way time / {_BARE}", 0.5, python_list,
          judging.better_mpi("msg-via", (8,))),
    *(Entry(f"Python: Send and Recv of an array, {format_size(nbytes)} on shm, one-way time / {_BARE}", limit,
            python_sizes, judging.better_mpi("msg-via", (nbytes,)))
      for nbytes, limit in ((1 << 10, 0.6), (MEDIUM, 0.9), (LONG, 0.95))),
    Entry(f"Python: Send of [array, datatype], 8 B on shm, 64 in flight, time per message / {_BARE}", 1.0,
          python_rate, judging.better_mpi("msg-via", (8,))),
    Entry(f"Python: send and recv of a dict with 64 B on shm, one-way time / {_BARE}", 0.7, python_dict,
          judging.better_mpi("msg-via", (64,))),
    Entry(f"Python: send and recv of an array of 1 MiB on shm, one-way time / {_BARE}", 0.6, python_array,
          judging.better_mpi("msg-via", (1 << 20,))),
    Entry(f"Python: Put and Flush of 8 B, then of a counter, on shm, until the target has both / {_BARE}", 0.5,
          python_put, judging.better_mpi("put-via", (8,), _WINDOWS[1:])),
    Entry("taps compiled in but off / left out, a message's path on loop", 1.03, nothing, judging.taps),
    Entry("import viakit, beyond NumPy", 0.1, nothing, judging.importing, unit="s"),
)  # fmt: skip

_RDMA = "RDMA barrier (default) / message barrier"
BARRIERS: tuple[Entry, ...] = (
    *(
        Entry(f"{what}, {n} ranks, {'each on a host of its own' if n == hosts else 'two on each host'}, eth", 0.5,
              _barriers(n, hosts, [algorithm, "message"]), judging.ranks("barrier", algorithm, n, "message"))
        for what, algorithm, n, hosts in (
            (_RDMA, "default", 8, 8),
            (_RDMA, "default", 16, 16),
            ("The same exchange: pairwise by RDMA write / by message", "rdma", 8, 8),
            (_RDMA, "default", 8, 4),
            (_RDMA, "default", 16, 8),
        )
    ),
    Entry("Barrier / the better MPI, 2 ranks, shm", 0.35, barriers_2, judging.ranks("barrier", "default", 2, "mpi")),
    Entry("Barrier / the better MPI, 16 ranks, shm", 0.12, barriers_16,
          judging.ranks("barrier", "default", 16, "mpi")),
    Entry("Barrier / a turn of the scheduler, 16 ranks that share cores, shm", 1.05, barriers_16,
          judging.ranks("barrier", "default", 16, TURN)),
)  # fmt: skip

OTHERS: tuple[Entry, ...] = (
    Entry(f"Python: Barrier / {_FASTER}, 2 ranks, shm", 0.4, python_barrier,
          judging.ranks("barrier", "default", 2, "mpi")),
    *(Entry(f"Python: Allreduce of {format_size(nbytes)} / {_FASTER}, 2 ranks, shm", limit, python_allreduce,
            judging.ranks("allreduce", "default", 2, "mpi", nbytes))
      for nbytes, limit in ((8, 0.4), (MEDIUM, 0.9), (1 << 20, 0.9))),
    Entry("via-shm with a live plot / without, 8 B, one-way time, polled", 1.01, watched, judging.measured),
    Entry("256 ranks over shm: start, barrier, allreduce, end", _START_S, start_256, judging.starting, unit="s"),
    Entry("The same: memory of all ranks", 12 << 30, start_256, judging.holding, unit="B"),
    Entry("128 ranks over eth on 16 hosts: the same", _START_S, start_128, judging.starting, unit="s"),
    Entry("The same: memory of all ranks over eth", 12 << 30, start_128, judging.holding, unit="B"),
)  # fmt: skip


def take(
    entries: Sequence[Entry],
    how: Settings,
    seconds: float,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[list[Goal], list[dict[str, Any]], bool]:
    """Measure and judge goals; return them, the documents, and whether Ctrl-C ended it.

    Parameters
    ----------
    entries : sequence of Entry
    how : Settings
    seconds : float
        Time that a measurement with a share of 1 takes.
    on_progress : callable, optional
        As for :func:`viakit.demo.run`.
    """
    words = {"memory": "ordinary memory" if how.memory == "user" else "mapped memory", "buffers": how.buffers}
    words["wire"] = "MTU 1500" if how.hosts is None else "between two machines"
    every = list(dict.fromkeys(one.measurement for one in entries))
    every = [one for one in every if not how.leaves_out(one)]
    total, done = sum(one.share for one in every), 0.0
    found: dict[Measurement, Found] = {}
    interrupted = False
    for one in every:

        def on_share(fraction: float, left_s: float, text: str, done: float = done, share: float = one.share) -> None:
            if on_progress is not None:
                left = max(total - done - share, 0.0) * seconds + left_s
                on_progress(Progress((done + share * fraction) / total, left, text))

        found[one] = Found(error="interrupted", interrupted=True)
        if not interrupted:
            try:
                found[one] = one.take(how, seconds * one.share, on_share)
            except KeyboardInterrupt:
                pass
            except (MeasureError, OSError, RuntimeError, ValueError, ImportError) as failure:
                found[one] = Found(error=str(failure))
            interrupted = found[one].interrupted
        done += one.share
    goals = []
    for entry in entries:
        goal = Goal(entry.what.format(**words), entry.limit, entry.at_most, entry.unit)
        goal.conditions = entry.measurement.conditions(how)
        goals.append(goal)
        if entry.measurement not in found:
            goal.reason = f"{judging.LEFT_OUT}{entry.measurement.left_out}"
            continue
        its = found[entry.measurement]
        if its.interrupted and not its.error:
            its.error = "interrupted"
        try:
            if interrupted and its.document is None:
                goal.reason = "interrupted"
            else:
                entry.judge(goal, its)
        except KeyboardInterrupt:
            interrupted, goal.reason = True, "interrupted"
    return goals, [one.document for one in found.values() if one.document is not None], interrupted


def run(
    *,
    seconds: float = 60.0,
    seed: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    programs: Path | None = None,
    memory: str = "user",
    buffers: str = "touched",
    hosts: str | None = None,
    network: str | None = None,
    python: str | None = None,
    pair_class: Any = None,
    testbed_class: Any = None,
) -> Judged:
    """Measure all goals.

    Parameters
    ----------
    seconds : float
        Time for measurements of transfers. Those of barriers and of Python take three fifths of it more.
    programs : Path, optional
        Folder with the programs path_cost and path_cost_bare, which ``make bench`` builds.
    memory, buffers : str
        As for :class:`viakit.measure.sweep.Config`. The goals were set for the defaults.
    hosts, network, python : str, optional
        "local": this machine and its testbeds, as None. "testbed", or "ssh:A,B" for two machines, as for a sweep: the
        goals on a wire are measured between these two hosts, and the others have the reason why they are left out.
    seed, on_progress, pair_class, testbed_class
        As for :func:`viakit.demo.run`.

    Returns
    -------
    Judged
    """
    if not seconds > 0:
        raise sweep.UsageError(f"--seconds is {seconds:g}: give the time that measuring may take, for instance 60")
    sweep.check(Config(("via-shm",), (8,), memory=memory, buffers=buffers))
    if hosts is not None and is_remote(hosts):
        sweep.check(Config(("tcp",), (8,), hosts=hosts, network=network))
    elif hosts not in (None, "local", "testbed", "testbed:2"):
        raise sweep.UsageError(f"--hosts is {hosts!r}: expected local, testbed, two machines as ssh:A,B, or job")
    elif network is not None or python is not None:
        raise sweep.UsageError("--network and --python are for --hosts ssh:A,B")
    machines = hosts if hosts is not None and is_remote(hosts) else None
    wire_only = hosts not in (None, "local")
    how = Settings(seed, memory, buffers, programs, pair_class, testbed_class, machines, network, python, wire_only)
    entries = [one for one in (*GOALS, *BARRIERS, *OTHERS) if pair_class is None or one.measurement.synthetic]
    goals, documents, interrupted = take(entries, how, seconds, on_progress)
    return Judged(goals, result.merge(documents, command_line()) if documents else None, interrupted)


def _show(goal: Goal, value: float) -> str:
    return {"s": table.format_time, "B": lambda n: format_size(round(n))}.get(goal.unit, "{:.2f}".format)(value)


def render(judged: Judged, console: Console) -> None:
    """Print the goals as a table, then those that are left out, and the values at each size if a goal has several."""
    from rich.markup import escape  # start-up time

    rows = sheet("what", "goal", "reached [95 % interval]", "", "numbers", title="[bold]Goals[/bold]")
    colours = {HOLDS: "green", SHORT: "red", UNMEASURED: "yellow"}
    for goal in (one for one in judged.goals if not one.reason.startswith(judging.LEFT_OUT)):
        wanted = f"{'≤' if goal.at_most else '≥'} {_show(goal, goal.goal)}"
        reached, numbers = ("-", goal.reason) if goal.value is None else (_show(goal, goal.value), goal.detail)
        if goal.value is not None and goal.interval is not None:  # one job has no interval
            reached += f" [{_show(goal, goal.interval[0])}, {_show(goal, goal.interval[1])}]"
        reached, numbers, what = escape(reached), escape(numbers), escape(goal.what)
        if goal.conditions:
            what += f"\n[dim]{escape(goal.conditions)}[/dim]"
        rows.add_row(what, wanted, reached, f"[{colours[goal.status]}]{goal.status}[/]", numbers)
    console.print(rows)
    for reason in dict.fromkeys(one.reason for one in judged.goals if one.reason.startswith(judging.LEFT_OUT)):
        console.print(f"{reason}:", markup=False)
        for goal in judged.goals:
            if goal.reason == reason:
                console.print(f"  {goal.what}", style="dim", markup=False)
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
            "conditions": goal.conditions or None,
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
