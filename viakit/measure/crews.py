"""Crews that run collectives in turns, viakit's and those of each installed MPI, on one or several numbers of ranks.

:mod:`.barrier` and :mod:`.collectives` use it. All crews for one number of ranks are open together, and their
algorithms are measured in turns, in random order, so that noise of the machine affects all of them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from viakit import machines
from viakit import testbed as testbeds
from viakit.base.words import counted
from viakit.launch import mpi_library as mpi
from viakit.launch.policy import split
from viakit.measure import stats
from viakit.measure.crew import OTHER_CHANNELS, Crew
from viakit.measure.endpoints import LEVELS, MeasureError
from viakit.measure.environment import of_machines
from viakit.measure.look import Look
from viakit.measure.turns import Bursts, Clock, Turns, count_for
from viakit.remote import Remote
from viakit.remote.spec import chosen_hosts, parse

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["BINDINGS", "MPIS", "PROTOCOLS", "Crews", "Entry", "Placement", "check", "draw_curve", "show_missing"]

PROTOCOLS = ("via", "udp", "tcp")
BINDINGS = ("core", "none")
MPIS = ("openmpi", "mpich")
MAX_RANKS = 64
_LEAST_ROUNDS, _MOST_ROUNDS = stats.MIN_BURSTS, 400
_BURST_S = 0.004  # approximate duration of one run of consecutive operations
_SKEW_BURST_S = 0.02
_VIRTUAL_COUNT = 20  # operations in virtual time, where repetitions are equal


@dataclass(frozen=True)
class Placement:
    """Where and how ranks run.

    Attributes
    ----------
    hosts : int or str
        1 or "local": this host. More, or "testbed:N": number of testbed hosts, each with an equal share of the ranks.
        0: one host per rank. ``"ssh:a,b*4"``: machines that ssh reaches, see :mod:`viakit.remote`.
    network, python : str or None
        For real machines: the wire between them, and the interpreter.
    protocol : str
        "via" (shared memory, and Ethernet between hosts), "udp" (VIA over UDP between hosts) or "tcp"; also with a
        policy of the message engine, "tcp:mpich-p4". Several, separated by commas, are measured in turns.
    with_mpi : bool
        Compare with the installed MPI libraries, on this host or on machines that ssh reaches.
    mtu : int
        MTU of the testbed's wire.
    bind : str
        "core": ranks, also those of MPI, are bound to cores in blocks. "none": the scheduler places them.
    level : {"c", "python"}
        Language of the measuring loop. "python" measures :mod:`viakit.comm` and mpi4py: their barrier and allreduce.
    skew_s : float
        0: operations follow each other, and a sample is the mean of a run of them. Otherwise every rank is delayed by a
        random time below this limit. A sample is then the time from the arrival of the last rank until the last rank
        has left. Only for barriers.
    machine : str, optional
        Name or file of a machine (:mod:`viakit.machines`). The ranks run on it in virtual time, each on its own host.
        Every algorithm is then measured once.
    """

    hosts: int | str = 1
    protocol: str = "via"
    with_mpi: bool = True
    mtu: int = 1500
    bind: str = "core"
    level: str = "c"
    skew_s: float = 0.0
    network: str | None = None
    python: str | None = None
    machine: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", 1 if self.hosts == "local" else chosen_hosts(self.hosts))

    @property
    def protocols(self) -> list[str]:
        """The protocols, one by one. A comma within a policy separates its changes."""
        return re.split(rf",(?=(?:{'|'.join(PROTOCOLS)})(?:[:,]|$))", self.protocol)

    @property
    def n_hosts(self) -> int:
        """Number of hosts; 0: one for each rank."""
        return self.hosts if isinstance(self.hosts, int) else len(parse(self.hosts))


def check(ranks: Sequence[int], where: Placement, seconds: float) -> None:
    """Raise ValueError for ranks that cannot run, without starting anything."""
    hosts = where.n_hosts
    if not isinstance(where.hosts, str) and (where.network, where.python) != (None, None):
        raise ValueError("network and python are for machines that ssh reaches; add --hosts ssh:A,B")
    if not ranks or any(not 1 <= n <= MAX_RANKS for n in ranks):
        raise ValueError(f"ranks are {list(ranks)}; expected numbers from 1 to {MAX_RANKS}")
    if hosts < 0 or hosts > min(ranks):
        raise ValueError(
            f"{counted(hosts, 'host')} for {counted(min(ranks), 'rank')}; expected at least one rank on each host"
        )
    if where.machine is not None:
        if (hosts, where.protocol, where.level) != (1, "via", "c"):
            raise ValueError(
                "on a machine each rank has a host, and runs VIA in C; leave out hosts, protocol and level"
            )
        machines.load(where.machine)
    protocols = [split(name, OTHER_CHANNELS)[0] for name in where.protocols]
    for name, protocol in zip(where.protocols, protocols, strict=True):
        if protocol not in PROTOCOLS or where.protocols.count(name) > 1:
            raise ValueError(
                f"protocol is {where.protocol!r}; expected one of {', '.join(PROTOCOLS)}, also with a policy "
                "(tcp:mpich-p4), or several, each at most once"
            )
    known = (("bind", BINDINGS), ("level", LEVELS))
    for name, choices in known:
        if getattr(where, name) not in choices:
            raise ValueError(f"{name} is {getattr(where, name)!r}; expected one of {', '.join(choices)}")
    if where.level == "python" and where.skew_s:
        raise ValueError("skew is measured by the loop in C only; leave out skew or level python")
    if "udp" in protocols and (hosts or min(ranks)) < 2:
        remedy = "give --hosts 2 or more, or 0 for one host per rank" if hosts else "give --ranks of 2 or more"
        raise ValueError(f"protocol udp needs ranks on several hosts; {remedy}")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; expected the time for measurements, for instance 10")


class Entry(Bursts):
    """An algorithm on a crew at one size, under measurement."""

    def __init__(self, crew: Crew, protocol: str, algorithm: str, operation: str, nbytes: int = 0) -> None:
        super().__init__()
        self.crew, self.protocol, self.algorithm = crew, protocol, algorithm
        self.operation, self.nbytes = operation, nbytes
        self.n = 3

    def calibrate(self, skew_s: float) -> None:
        """Determine the number of operations for a run of a few milliseconds."""
        for _ in range(2):
            took = float(np.median(self._run(skew_s, 1))) + skew_s
            wanted, most = (_SKEW_BURST_S, 500) if skew_s else (_BURST_S, 2000)
            self.n = count_for(wanted, took, 3, most)

    def _run(self, skew_s: float, seed: int) -> Any:
        name, warmup = "" if mpi.is_mpi(self.protocol) else self.algorithm, min(self.n // 10 + 1, 50)
        what: dict[str, Any] = {"operation": self.operation, "nbytes": self.nbytes}
        return self.crew.run(name, self.n, warmup=warmup, skew_s=skew_s, seed=seed, **what).seconds

    def take(self, number: int, skew_s: float, seed: int) -> None:
        """Add the run of one round."""
        self.add(self._run(skew_s, seed), number)

    def subject(self) -> tuple[str, str, int]:
        """Return the protocol, the operation and the bytes to which an error during the measurement is attributed."""
        return self.protocol, f"{self.operation}, {self.algorithm}", self.nbytes

    def info(self) -> dict[str, Any]:
        """Return the properties of the series."""
        return dict(self.crew.info)

    def point(self) -> dict[str, Any]:
        """Return the point for the result."""
        return {"nbytes": self.nbytes, **self.times("time_s")}

    def series(self, skew_s: float) -> dict[str, Any]:
        """Return the series for the result, without points."""
        return {
            "protocol": self.protocol,
            "operation": self.operation,
            "algorithm": self.algorithm,
            "ranks": self.crew.n_ranks,
            "hosts": self.crew.n_hosts,
            "link": self.crew.link,
            "level": self.crew.level,
            "skew_s": skew_s,
            "info": self.info(),
            "points": [],
        }


@dataclass
class Crews:
    """Measurement of several numbers of ranks.

    ``series`` has the finished ones. *on_progress* and *on_series* are as for :func:`viakit.measure.barrier.measure`.
    """

    where: Placement
    turns: Turns
    on_progress: Callable[[float, str], None] | None = None
    on_series: Callable[[list[dict[str, Any]]], None] | None = None
    series: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)

    def measure(
        self,
        ranks: Sequence[int],
        parts_of: Callable[[list[Crew], dict[str, Crew]], Sequence[tuple[str, list[Entry]]]],
        n_parts: int = 1,
    ) -> list[dict[str, Any]]:
        """Measure all numbers of ranks, and return the series.

        Parameters
        ----------
        ranks : sequence of int
        parts_of : callable
            Is given viakit's crews, one for each protocol, and those of MPI by name. Returns the parts of the
            measurement: for each a text, and the entries that are measured in turns.
        n_parts : int
            Number of these parts.
        """
        total, done = len(ranks) * n_parts, 0
        self.turns.kept = lambda: self.series
        with self.turns:
            for n in ranks:
                self.turns.doing(what=counted(n, "rank"))
                with contextlib.ExitStack() as stack:
                    for text, entries in parts_of(*self._open(stack, n)):
                        what = ", ".join(filter(None, (counted(n, "rank"), text)))
                        try:
                            self._take_turns(entries, done, total, what)
                        finally:
                            self._keep(entries, self.series)
                        done += 1
        return list(self.series.values())

    def _keep(self, entries: Sequence[Entry], series: dict[tuple[Any, ...], dict[str, Any]]) -> None:
        for one in entries:
            if one.bursts:
                key = (one.crew.n_ranks, one.operation, one.protocol, one.algorithm)
                made = series.setdefault(key, one.series(self.where.skew_s))
                made["points"].append(one.point())

    def _open(self, stack: contextlib.ExitStack, n: int) -> tuple[list[Crew], dict[str, Crew]]:
        """Start all crews for one number of ranks; return viakit's, and those of MPI by name."""
        where, skipped = self.where, self.turns.skipped
        hosts = where.n_hosts or n
        if where.machine is not None:
            machine = machines.load(where.machine)
            return [stack.enter_context(Crew(n, bind=where.bind, machine=machine))], {}
        testbed: Any = None
        if isinstance(where.hosts, str):
            testbed = stack.enter_context(Remote(where.hosts, network=where.network, python=where.python))
            self.turns.machines = of_machines(testbed)
        elif hosts > 1:
            testbed = stack.enter_context(testbeds.Testbed(hosts=hosts, mtu=where.mtu))
        how: dict[str, Any] = {"bind": where.bind, "level": where.level}
        own = [stack.enter_context(Crew(n, testbed=testbed, protocol=name, **how)) for name in where.protocols]
        mpis: dict[str, Crew] = {}
        found = mpi.find_all() if where.with_mpi else {}
        for flavour in MPIS if where.with_mpi else ():
            name = f"mpi:{flavour}"
            far = isinstance(where.hosts, str)
            if hosts > 1 and not far:
                skipped[name] = "MPI can be compared on this host, and on machines that ssh reaches"
            elif flavour not in found and not far:
                skipped[name] = f"not installed; pip install 'viakit[{flavour}]'"
            else:
                try:
                    mpis[name] = stack.enter_context(
                        Crew(n, testbed=testbed, mpi_library=name if far else found[flavour], **how)
                    )
                except MeasureError as error:
                    skipped[name] = str(error).splitlines()[0]
        return own, mpis

    def _take_turns(self, entries: Sequence[Entry], done: int, total: int, what: str) -> None:
        skew_s, turns = self.where.skew_s, self.turns
        if self.where.machine is not None:
            for i, one in enumerate(entries):
                turns.doing(*one.subject())
                one.n = _VIRTUAL_COUNT
                one.take(0, skew_s, 1)
                if self.on_progress is not None:
                    self.on_progress((done + (i + 1) / len(entries)) / total, what)
            return
        for one in entries:
            turns.doing(*one.subject())
            one.calibrate(skew_s)
        clock = Clock(turns.clock.seconds / total)
        for number, order in turns.rounds([entries], clock, least=_LEAST_ROUNDS, most=_MOST_ROUNDS):
            if self.on_series is not None:
                so_far: dict[tuple[Any, ...], dict[str, Any]] = {}
                self._keep(entries, so_far)
                self.on_series(list(so_far.values()))
            if self.on_progress is not None:
                self.on_progress((done + clock.fraction) / total, what)
            seed = turns.chance.randrange(1, 1 << 30)
            for one in order:
                turns.doing(*one.subject())
                one.take(number, skew_s, seed)


# ---------------------------------------------------------------------------------------------- display


def show_missing(document: Mapping[str, Any], console: Console) -> None:
    """Print what was not measured, and why."""
    for one in document.get("skipped", []):
        console.print(f"not measured: {one['protocol']}: {one['reason']}", style="yellow", markup=False)
    for one in document.get("errors", []):
        console.print(f"failed: {one['message']}", style="yellow", markup=False)
    if not document.get("complete", True):
        console.print("this run was not finished; the measurements so far are shown", style="yellow")


def draw_curve(axes: Any, x: Sequence[int], times: Sequence[Mapping[str, float]], label: str, look: Look) -> None:
    """Draw medians in microseconds and a band from the 5th to the 90th percentile, with the name at the line's end."""
    medians = [one["median"] * 1e6 for one in times]
    axes.plot(x, medians, label=label, **look.line())
    low, high = ([one[key] * 1e6 for one in times] for key in ("p5", "p90"))
    axes.fill_between(x, low, high, alpha=0.12, color=look.colour, linewidth=0)
