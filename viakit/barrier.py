"""Barriers measured: the figures 4 and 5 of the paper on the RDMA barrier, on this machine, beside MPI_Barrier.

::

    document = measure(ranks=[2, 4, 8], algorithms=["rdma", "message"], hosts=2)

The algorithms (csrc/coll) are those of Gupta, Tipparaju, Nieplocha and Panda, "Efficient Barrier using Remote Memory
Operations on VIA-Based Clusters", under the paper's names; :func:`algorithms` lists them. All that are compared at one
number of ranks are kept open together and take turns in random order, so that a noisy machine is noisy for all.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from viakit._words import counted
from viakit.measure import mpi, stats
from viakit.measure.crew import TURN, Crew
from viakit.measure.ending import Ending
from viakit.measure.endpoints import MeasureError
from viakit.measure.environment import command_line, environment
from viakit.measure.result import SCHEMA, Document, ResultError
from viakit.measure.sweep import shielded

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = [
    "BINDINGS",
    "PROTOCOLS",
    "algorithms",
    "best_mpi",
    "check",
    "figure",
    "find",
    "is_collective",
    "measure",
    "ratio",
    "show",
]

PROTOCOLS = ("via", "udp", "tcp")
BINDINGS = ("core", "none")
USUAL_LOCAL = ("default", "flat", "flags", "counter", "rdma", "message", "dissemination", "gather")
USUAL_HOSTS = (
    "default",
    "overall",
    "overall-gather",
    "rdma",
    "rdma-dissemination",
    "rdma-gather",
    "message",
    "message-gather",
    "dissemination",
    "gather",
)
MAX_RANKS = 64
_LEAST_ROUNDS, _MOST_ROUNDS = stats.MIN_BURSTS, 400
_BURST_S = 0.004  # consecutive barriers: how long one run lasts, about
_SKEW_BURST_S = 0.02
_MPIS = ("openmpi", "mpich")


def algorithms() -> dict[str, str]:
    """Return the barriers that there are: name to what it does, with the section of the paper."""
    from viakit import _core

    return _core.barrier_algorithms()


def is_collective(document: Mapping[str, Any]) -> bool:
    """Tell whether a result holds collectives (series with an ``algorithm``) and not transfers."""
    return any("algorithm" in one for one in document["series"])


class _Entry:
    """One series in the making: an algorithm on a crew."""

    operation, nbytes = "barrier", 0

    def __init__(self, crew: Crew, protocol: str, algorithm: str) -> None:
        self.crew, self.protocol, self.algorithm = crew, protocol, algorithm
        self.n = 3
        self.bursts: list[np.ndarray] = []
        self.rounds: list[int] = []

    def calibrate(self, skew_s: float) -> None:
        """Find how many barriers make a run of a few milliseconds."""
        for _ in range(2):
            took = float(np.median(self._run(skew_s, 1).seconds)) + skew_s
            wanted, most = (_SKEW_BURST_S, 500) if skew_s else (_BURST_S, 2000)
            self.n = int(min(max(wanted / max(took, 1e-9), 3), most))

    def _run(self, skew_s: float, seed: int) -> Any:
        name, warmup = "" if self.protocol.startswith("mpi") else self.algorithm, min(self.n // 10 + 1, 50)
        what: dict[str, Any] = {"operation": self.operation, "nbytes": self.nbytes}
        return self.crew.run(name, self.n, warmup=warmup, skew_s=skew_s, seed=seed, **what)

    def take(self, number: int, skew_s: float, seed: int) -> None:
        """Add the run of one round."""
        self.bursts.append(self._run(skew_s, seed).seconds)
        self.rounds.append(number)

    def doing(self) -> tuple[str, str, int]:
        """Return what an error while it is measured is said to be about: protocol, what, and bytes."""
        return self.protocol, f"{self.operation}, {self.algorithm}", self.nbytes

    def _point(self) -> dict[str, Any]:
        summary = stats.summarise(self.bursts)
        return {
            "nbytes": 0,
            "time_s": summary.as_dict(),
            "samples": summary.n,
            "bursts_s": [float(np.median(burst)) for burst in self.bursts],
            "rounds": self.rounds,
        }

    def series(self, skew_s: float, link: str) -> dict[str, Any]:
        """Return what the result holds of it."""
        info = {**self.crew.info, "barriers_per_run": self.n}
        if self.algorithm == "default" and self.crew.default:
            info["stands_for"] = self.crew.default
        return {
            "protocol": self.protocol,
            "operation": "barrier",
            "algorithm": self.algorithm,
            "ranks": self.crew.n_ranks,
            "hosts": self.crew.n_hosts,
            "link": link,
            "level": "c",
            "skew_s": skew_s,
            "info": info,
            "points": [self._point()],
        }


class _Turn(_Entry):
    """A turn of the scheduler: where ranks share cores, what no barrier can be quicker than."""

    operation = TURN

    def __init__(self, crew: Crew) -> None:
        super().__init__(crew, "scheduler", TURN)

    def doing(self) -> tuple[str, str, int]:
        """It is the crew that would fail."""
        return self.crew.protocol, "barrier, a turn of the scheduler", 0


def check(
    ranks: Sequence[int],
    algorithms: Sequence[str] | None,
    hosts: int,
    protocol: str,
    seconds: float,
    bind: str = "core",
) -> None:
    """Raise the ValueError that :func:`measure` would for arguments that make no sense, without starting anything."""
    from viakit import _core

    known = _core.barrier_algorithms()
    for name in algorithms or ():
        if name not in known:
            raise ValueError(f"no barrier is called {name!r}; there are {', '.join(known)}")
    if not ranks or any(not 1 <= n <= MAX_RANKS for n in ranks):
        raise ValueError(f"ranks are {list(ranks)}; right would be numbers from 1 to {MAX_RANKS}")
    if hosts < 0 or hosts > min(ranks):
        raise ValueError(
            f"{counted(hosts, 'host')} for {counted(min(ranks), 'rank')}; right would be at least one rank on each host"
        )
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol is {protocol!r}; right would be one of {', '.join(PROTOCOLS)}")
    if protocol == "udp" and (hosts or min(ranks)) < 2:
        right = "give --hosts 2 or more, or 0 for a host for each rank" if hosts else "give --ranks of 2 or more"
        raise ValueError(f"protocol udp is for ranks on several hosts; {right}")
    if bind not in BINDINGS:
        raise ValueError(f"bind is {bind!r}; right would be one of {', '.join(BINDINGS)}")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; right would be the time that measuring may take, for instance 10")


def measure(
    ranks: Sequence[int] = (2, 4, 8, 16),
    *,
    algorithms: Sequence[str] | None = None,
    hosts: int = 1,
    protocol: str = "via",
    with_mpi: bool = True,
    skew_s: float = 0.0,
    seconds: float = 20.0,
    seed: int | None = None,
    mtu: int = 1500,
    bind: str = "core",
    command: str | None = None,
    on_progress: Callable[[float, str], None] | None = None,
    on_series: Callable[[list[dict[str, Any]]], None] | None = None,
) -> Document:
    """Measure barriers, and MPI_Barrier of each MPI that is here.

    Parameters
    ----------
    ranks : sequence of int
        Numbers of ranks.
    algorithms : sequence of str, optional
        Names from :func:`algorithms`; those that a group cannot do are passed over and listed in ``skipped``. Default:
        what is usual for one host, or for several.
    hosts : int
        1: this host. More: so many hosts of a testbed, each with an equal share of the ranks. 0: a host for each rank.
    protocol : str
        "via" (shared memory, and Ethernet between hosts), "udp" (VIA over UDP between hosts) or "tcp".
    with_mpi : bool
        Compare with the MPI libraries that are here; on one host only.
    skew_s : float
        0: barriers follow one another, and a sample is the mean of a run of them. Else every rank is late by a random
        time below it, and a sample is the time from the last rank's coming until the last has left.
    seconds : float
        Time for measuring, for all numbers of ranks together.
    seed : int, optional
        Of the order of turns and the times of skew.
    bind : str
        "core": ranks are bound to cores in blocks, MPI's alike. "none": the scheduler places them.
    on_progress : callable, optional
        Called with the part that is done (0 to 1) and what is being measured; KeyboardInterrupt from it ends the run.
    on_series : callable, optional
        Called after each round with the series of the number of ranks that is being measured: for live plots.

    Returns
    -------
    dict
        A ``viakit.result/1`` whose series carry ``algorithm``, ``ranks`` and ``hosts``. With more ranks than cores, and
        without skew, one of them is the floor, protocol ``scheduler``: a turn of ``sched_yield()`` by all ranks.
        Interrupted (Ctrl-C), or when a rank fails in the middle, what had been measured, with ``complete`` false;
        ``errors`` says what failed.

    Raises
    ------
    ValueError
        For arguments that make no sense.
    MeasureError, TestbedError
        If ranks or hosts cannot be started, or fail, and nothing has been measured yet.
    """
    ranks = list(dict.fromkeys(ranks))
    check(ranks, algorithms, hosts, protocol, seconds, bind)
    seed = secrets.randbits(31) if seed is None else seed
    chance = random.Random(seed)
    skipped: dict[str, str] = {}
    finished: list[dict[str, Any]] = []
    began = time.monotonic()
    with Ending(lambda: finished) as ending:
        for i, n in enumerate(ranks):
            ending.doing(what=f"{counted(n, 'rank')}")
            with contextlib.ExitStack() as stack:
                n_hosts = n if hosts == 0 else hosts
                entries, link = _open(stack, n, algorithms, n_hosts, protocol, with_mpi, mtu, bind, skew_s, skipped)

                def tell(part: float, i: int = i, n: int = n, link: str = link, entries: Any = entries) -> None:
                    if on_series is not None:
                        on_series([one.series(skew_s, link) for one in entries if one.bursts])
                    if on_progress is not None:
                        on_progress((i + part) / len(ranks), f"{counted(n, 'rank')}")

                try:
                    _take_turns(entries, seconds / len(ranks), skew_s, chance, tell, ending)
                finally:
                    finished += [one.series(skew_s, link) for one in entries if one.bursts]
    return _document(finished, ending, skipped, seed=seed, seconds=seconds, began=began, command=command)


def _document(
    series: list[dict[str, Any]],
    ending: Ending,
    skipped: Mapping[str, str],
    *,
    seed: int,
    seconds: float,
    began: float,
    command: str | None,
) -> Document:
    """Return a result of collectives; `began` is by time.monotonic()."""
    infos = [{"protocol": one["protocol"], **one["info"]} for one in series]
    with shielded():
        machine = environment(seed=seed, command=command, infos=infos)
    return {
        "schema": SCHEMA,
        "command": command or command_line(),
        "complete": ending.complete,
        "errors": ending.errors,
        "skipped": [{"protocol": name, "reason": why} for name, why in skipped.items()],
        "seed": seed,
        "seconds": float(seconds),
        "elapsed_s": round(time.monotonic() - began, 3),
        "environment": machine,
        "floor": None,
        "series": series,
    }


def _open_crews(
    stack: contextlib.ExitStack,
    n: int,
    hosts: int,
    protocol: str,
    with_mpi: bool,
    mtu: int,
    bind: str,
    skipped: dict[str, str],
) -> tuple[Crew, dict[str, Crew], str]:
    """Start all crews of one number of ranks; returns ours, those of MPI by name, and the name of the link."""
    testbed = None
    if hosts > 1:
        from viakit.testbed import Testbed

        testbed = stack.enter_context(Testbed(hosts=hosts, mtu=mtu))
    crew = stack.enter_context(Crew(n, testbed=testbed, protocol=protocol, bind=bind))
    mpis: dict[str, Crew] = {}
    found = mpi.find_all() if with_mpi else {}
    for flavour in _MPIS if with_mpi else ():
        name = f"mpi:{flavour}"
        if hosts > 1:
            skipped[name] = "MPI is compared with on one host only"
        elif flavour not in found:
            skipped[name] = f"not installed. Remedy: pip install 'viakit[{flavour}]'"
        else:
            try:
                mpis[name] = stack.enter_context(Crew(n, mpi_library=found[flavour], bind=bind))
            except MeasureError as error:
                skipped[name] = str(error).splitlines()[0]
    link = {"via": "eth" if hosts > 1 else "shm", "udp": "udp", "tcp": "ip"}[protocol]
    return crew, mpis, link


def _open(
    stack: contextlib.ExitStack,
    n: int,
    chosen: Sequence[str] | None,
    hosts: int,
    protocol: str,
    with_mpi: bool,
    mtu: int,
    bind: str,
    skew_s: float,
    skipped: dict[str, str],
) -> tuple[list[_Entry], str]:
    """Start all crews of one number of ranks; returns what is to be measured, and the name of the link."""
    crew, mpis, link = _open_crews(stack, n, hosts, protocol, with_mpi, mtu, bind, skipped)
    entries = []
    for name in dict.fromkeys(chosen or (USUAL_HOSTS if hosts > 1 else USUAL_LOCAL)):
        if name in crew.algorithms:
            entries.append(_Entry(crew, protocol, name))
        elif chosen:
            skipped[f"{protocol} {name}"] = (
                f"{counted(n, 'rank')} on {counted(hosts, 'host')} by {protocol} cannot do it"
            )
    entries += [_Entry(theirs, name, "MPI_Barrier") for name, theirs in mpis.items()]
    if crew.crowded and entries and not skew_s:
        entries.append(_Turn(crew))
    return entries, link


def _take_turns(
    entries: Sequence[_Entry],
    seconds: float,
    skew_s: float,
    chance: random.Random,
    tell: Callable[[float], None],
    ending: Ending,
) -> None:
    for one in entries:
        ending.doing(*one.doing())
        one.calibrate(skew_s)
    began = time.monotonic()
    for number in range(_MOST_ROUNDS):
        used = (time.monotonic() - began) / seconds
        if used >= 1 and number >= _LEAST_ROUNDS:
            break
        tell(min(used, 1.0))
        order, seed = list(entries), chance.randrange(1, 1 << 30)
        chance.shuffle(order)
        for one in order:
            ending.doing(*one.doing())
            one.take(number, skew_s, seed)


# ---------------------------------------------------------------------------------------------- reading


def find(document: Mapping[str, Any], algorithm: str, ranks: int, protocol: str | None = None) -> dict[str, Any] | None:
    """Return the point of a barrier at a number of ranks, or None. Of MPI the algorithm is "MPI_Barrier"."""
    for one in document["series"]:
        if (one.get("algorithm"), one.get("ranks")) == (algorithm, ranks) and protocol in (None, one["protocol"]):
            return one["points"][0] if one["points"] else None
    return None


def best_mpi(document: Mapping[str, Any], ranks: int) -> tuple[str, dict[str, Any]] | None:
    """Return the MPI with the quicker barrier, and its point."""
    points = [(f"mpi:{flavour}", find(document, "MPI_Barrier", ranks, f"mpi:{flavour}")) for flavour in _MPIS]
    there = [(name, point) for name, point in points if point is not None]
    return min(there, key=lambda one: one[1]["time_s"]["median"]) if there else None


def ratio(top: Mapping[str, Any], bottom: Mapping[str, Any]) -> stats.Ratio:
    """Return time of *top* / time of *bottom*, two points of one run, with its 95 % interval.

    The rounds that both have are paired; the value is the ratio of the medians of these.
    """
    both = [dict(zip(point["rounds"], point["bursts_s"], strict=True)) for point in (top, bottom)]
    common = sorted(both[0].keys() & both[1].keys())
    return stats.ratio_of_medians([both[0][i] for i in common], [both[1][i] for i in common], paired=True)


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print a result as a table: a line per number of ranks and algorithm."""
    from rich import box
    from rich.table import Table

    from viakit.measure.table import format_ratio, format_time

    sheet = Table(title="[bold]Barrier[/bold]", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("ranks", "hosts", "by", "algorithm", "median", "p5", "p90", "p99", "against message", "against MPI"):
        sheet.add_column(head, justify="left" if head in ("by", "algorithm") else "right")
    last = None
    for one in document["series"]:
        if one.get("operation") != "barrier" or not one["points"]:
            continue
        point, n = one["points"][0], one["ranks"]
        message, rival = find(document, "message", n), best_mpi(document, n)
        against = [
            format_ratio(ratio(point, peer).value) if peer is not None and peer is not point else ""
            for peer in (message, rival[1] if rival else None)
        ]
        name = one["algorithm"]
        if "stands_for" in one["info"]:
            name += f" ({one['info']['stands_for']})"
        times = [format_time(point["time_s"][key]) for key in ("median", "p5", "p90", "p99")]
        if last not in (None, n):
            sheet.add_section()
        last = n
        sheet.add_row(str(n), str(one["hosts"]), one["protocol"], name, *times, *against)
    console.print(sheet)
    _tell_missing(document, console)


def _tell_missing(document: Mapping[str, Any], console: Console) -> None:
    for one in document.get("skipped", []):
        console.print(f"not measured: {one['protocol']}: {one['reason']}", style="yellow", markup=False)
    for one in document.get("errors", []):
        console.print(f"failed: {one['message']}", style="yellow", markup=False)
    if not document.get("complete", True):
        console.print("this run was not finished: what had been measured by then is shown", style="yellow")


def _draw_curve(axes: Any, x: Sequence[int], times: Sequence[Mapping[str, float]], label: str, by: str) -> None:
    """Draw medians in microseconds and a band from the 5th to the 90th percentile; dashed if *by* an MPI."""
    style = "--" if by.startswith("mpi") else ":" if by == "scheduler" else "-"
    medians = [one["median"] * 1e6 for one in times]
    (line,) = axes.plot(x, medians, style, marker="o", markersize=3.5, label=label)
    low, high = ([one[key] * 1e6 for one in times] for key in ("p5", "p90"))
    axes.fill_between(x, low, high, alpha=0.12, color=line.get_color(), linewidth=0)


def figure(documents: Iterable[Document], *, title: str | None = None) -> Figure:
    """Draw barrier time against the number of ranks, as figures 4 and 5 of the paper: a curve per algorithm.

    The bands are the 5th to the 90th percentile.

    Raises
    ------
    ResultError
        If there is nothing to draw.
    """
    from matplotlib.figure import Figure

    curves: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = {}
    per_host: set[bool] = set()
    for document in documents:
        for one in document["series"]:
            if one.get("operation") == "barrier" and one["points"]:
                key = (one["protocol"], one["algorithm"], one["link"], one.get("skew_s", 0.0))
                curves.setdefault(key, []).append((one["ranks"], one["points"][0]["time_s"]))
                per_host.add(one["hosts"] > 1)
    if not curves:
        raise ResultError("nothing to draw: the result has no barriers")
    drawing = Figure(figsize=(8, 5), layout="constrained")
    axes = drawing.subplots()
    several = len({key[2] for key in curves}) > 1
    for (protocol, algorithm, link, skew_s), points in curves.items():
        points.sort(key=lambda one: one[0])
        n = [one[0] for one in points]
        label = protocol if protocol.startswith("mpi") else f"{algorithm} ({link})" if several else algorithm
        label = "a turn of the scheduler" if algorithm == TURN else label
        if skew_s:
            label += f", skew {skew_s * 1e6:g} µs"
        _draw_curve(axes, n, [one[1] for one in points], label, protocol)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({n for points in curves.values() for n, _ in points})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.set_ylabel("time of a barrier, µs")
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize="small")
    axes.set_title(title or ("Barrier, ranks on several hosts" if per_host == {True} else "Barrier"), parse_math=False)
    return drawing
