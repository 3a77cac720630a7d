"""Measurement of speed-ups: Table III and figures 4 to 10 of the paper on VIA and TCP/IP under MPI, on this machine.

::

    document = measure(["sor-zero", "ep"], protocols=["via", "tcp"], ranks=[1, 2, 4])
    for row in rows(document):
        print(row.label, row.protocol, row.ranks, row.speedup)

A round runs one job for the serial programs, and one for each protocol and number of ranks, in random order. Each job
runs all problems once. A speed-up is the ratio of the serial to the parallel median over the rounds. Its spread is that
of the ratios within the rounds, in which both times were measured shortly after each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from viakit.apps import harness, jobs, reporting
from viakit.apps.kernels import CHOICES, VARIABLE
from viakit.launch import LaunchError
from viakit.launch import mpi_library as mpi
from viakit.launch.described import check_protocol, on_machine
from viakit.measure.environment import of_machines
from viakit.measure.result import Document
from viakit.measure.turns import Turns
from viakit.remote.spec import chosen_hosts, network_of_first, parse
from viakit.testbed import TestbedError

__all__ = [
    "COPIES",
    "PROBLEMS",
    "Problem",
    "Row",
    "find",
    "labels_of",
    "measure",
    "paper",
    "rows",
    "title_of",
    "wrong",
]

MAX_RANKS = 64
JOB_S = 900.0  # time limit of a job
SMALL = ", small"  # after the title of a problem that has not the paper's size


@dataclass(frozen=True)
class Problem:
    """Row of the paper's tables, or a small problem of the same kind."""

    label: str
    application: str
    title: str
    words: tuple[str, ...]  # arguments of the application: sizes as in the paper
    quick: tuple[str, ...]  # and a small problem instead
    program: tuple[str, ...] = ()  # arguments for the paper's program, where viakit's default is another one


PROBLEMS: dict[str, Problem] = {
    one.label: one
    for one in (
        Problem("ep", "ep", "EP", ("--class", "A"), ("--class", "S"), ("--report", "counts")),
        Problem(
            "sor-zero", "sor", "SOR-Zero",
            ("--size", "4096", "--iterations", "50", "--init", "zero"),
            ("--size", "2048", "--iterations", "50", "--init", "zero"), ("--variant", "paper"),
        ),
        Problem(
            "sor-nonzero", "sor", "SOR-Nonzero",
            ("--size", "4096", "--iterations", "50", "--init", "nonzero"),
            ("--size", "2048", "--iterations", "50", "--init", "nonzero"), ("--variant", "paper"),
        ),
        Problem("water-288", "water", "Water-288", ("--molecules", "288"), ("--molecules", "216")),
        Problem("water-1728", "water", "Water-1728", ("--molecules", "1728"), ("--molecules", "512")),
        Problem("fft", "fft", "3-D FFT", ("--class", "paper"), ("--class", "S")),
        Problem("is", "is", "IS Class A", ("--class", "paper"), ("--class", "W")),
    )
}  # fmt: skip


@cache
def paper() -> dict[str, Any]:
    """Return the paper's tables by label: I (sequential times), II (messages) and III (speed-ups)."""
    return json.loads(resources.files("viakit.apps").joinpath("paper.json").read_text(encoding="utf-8"))


def labels_of(names: Sequence[str]) -> list[str]:
    """Return the problems for names: labels, or applications with all their problems; no names: all problems.

    Raises
    ------
    ValueError
        If a name is neither a label nor an application.
    """
    if not names:
        return list(PROBLEMS)
    found = []
    for name in names:
        name = "fft" if name == "ft" else name
        mine = [label for label, one in PROBLEMS.items() if name in (label, one.application)]
        if not mine:
            known = dict.fromkeys([*harness.NAMES, *PROBLEMS])
            raise ValueError(f"nothing to measure is called {name!r}; there are {', '.join(known)}")
        found += mine
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------------------------- measuring


COPIES = "copies"  # in place of a protocol: the serial program on every rank, all at once


@dataclass(frozen=True)
class _Job:
    """Job that is started once in each round."""

    protocol: str | None  # None: the serial programs; else the name in the result, which may have a policy
    ranks: int

    @property
    def launched(self) -> str | None:
        """Protocol that starts the ranks. Copies need one to start together and to report their results."""
        if self.protocol in (None, COPIES):
            return self.protocol and "via"
        return jobs.with_policy(self.protocol)[0]

    @property
    def policy(self) -> str | None:
        """Policy of the message engine."""
        return None if self.protocol in (None, COPIES) else jobs.with_policy(self.protocol)[1]

    @property
    def words(self) -> list[str]:
        """Arguments of the job in addition to its problems."""
        return jobs.protocol_words(self.launched) + ["--copies"] * (self.protocol == COPIES)

    def wire(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Link of the job, if the communicating jobs run on this testbed."""
        if self.protocol in (None, COPIES) or not wire:
            return {}
        hosts = wire["hosts"]
        if not isinstance(hosts, str):
            return {**wire, "hosts": min(hosts, self.ranks)}
        fewer = parse(hosts).first(self.ranks)
        return {**wire, "hosts": str(fewer), "network": network_of_first(wire["network"], len(fewer))}

    def __str__(self) -> str:
        if self.protocol == COPIES:
            return f"{self.ranks} copies of the serial programs at once"
        return "serial" if self.protocol is None else f"{self.protocol}, {self.ranks} ranks"


def _jobs(protocols: Sequence[str], ranks: Sequence[int], skipped: dict[str, str]) -> list[_Job]:
    """Return all jobs of a round. Jobs that are not possible on this machine are added to *skipped*."""
    names: list[str] = []
    for protocol in protocols:
        if jobs.with_policy(protocol, COPIES)[0].partition(":")[0] != "mpi":
            names.append(protocol)
        else:
            found = [f"mpi:{flavour}" for flavour in mpi.find_all()]
            wanted = found if protocol == "mpi" else [one for one in found if one == protocol]
            if not wanted:
                extra = protocol.partition(":")[2] or "mpich"
                skipped[protocol] = f"not installed. Remedy: pip install 'viakit[{extra}]'"
            names += wanted
    return [_Job(None, 1), *(_Job(name, n) for name in dict.fromkeys(names) for n in ranks)]


@dataclass(frozen=True)
class _Described:
    """Described machine of the parallel programs, and its time for one second of computing here."""

    name: str
    factor: float
    variables: Mapping[str, str]

    def slow_down(self, run: dict[str, Any]) -> None:
        """Set the wall time of a serial run to that on the machine: its computing here, times the factor."""
        (rank,) = run["ranks"]
        seconds = rank["work_s"] * self.factor
        run["wall_s"] = rank["wall_s"] = seconds
        rank["seconds"] = {**dict.fromkeys(rank["seconds"], 0.0), "compute": seconds}


def possible_ranks(
    protocols: Sequence[str], ranks: list[int], hosts: int | str = 0, machine: str | None = None
) -> list[int]:
    """Return the numbers of ranks that are possible, on a described machine from 2 on.

    Raises
    ------
    ValueError
        If a described machine cannot have these protocols, ranks or hosts.
    """
    if machine is None:
        return ranks
    if hosts:
        raise ValueError("on a described machine all ranks run on this host; leave out hosts")
    for protocol in protocols:
        if protocol == COPIES or jobs.with_policy(protocol, COPIES)[0] not in ("via", "bip", "tcp"):
            raise ValueError(
                f"protocol {protocol!r} on a described machine; expected via, bip or tcp, or a policy of them"
            )
        check_protocol(machine, jobs.with_policy(protocol, COPIES)[0])
    if max(ranks) < 2:
        raise ValueError("ranks are 1; a job on a described machine has at least 2, expected numbers from 2 on")
    return [n for n in ranks if n > 1]


@contextlib.contextmanager
def _on(machine: str | None, computing: float | None) -> Iterator[_Described | None]:
    """Provide the machine of a measurement, or None."""
    if machine is None:
        yield None
        return
    with on_machine(machine, computing) as variables:
        factor = float(variables["VIAKIT_COMPUTING"])
        if factor <= 0:
            raise ValueError(
                f"the description of {machine} has no compute.factor: give its seconds of computing for one second "
                "here, such as --computing 20"
            )
        yield _Described(machine, factor, variables)


def _machines_of(hosts: int | str, network: str | None, python: str | None) -> dict[str, Any]:
    """Return network and environments of real machines for the result; an unusable machine or network is an error."""
    if not isinstance(hosts, str):
        return {}
    from viakit.remote import Remote  # start-up time

    with Remote(hosts, network=network, python=python) as remote:
        return of_machines(remote)


class _Rounds:
    """Measurements and errors of all rounds."""

    def __init__(
        self,
        problems: Sequence[tuple[str, str, list[str]]],
        wire: dict[str, Any],
        quick: bool,
        errors: list[dict[str, Any]] | None = None,
        kernels: str = "compiled",
        described: _Described | None = None,
        profile: bool = False,
    ) -> None:
        self.described = described
        self.more = ["--profile"] if profile else []
        self.problems, self.wire, self.scale = problems, wire, "small" if quick else "paper"
        self.environment = {VARIABLE: kernels}
        self.series: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.errors = [] if errors is None else errors
        self.failed: set[_Job] = set()

    def take(self, job: _Job, number: int, on_series: Callable[[list[dict[str, Any]]], None] | None = None) -> None:
        """Run a job, store its results, and call *on_series* with all series."""
        self._run(job, number)
        if on_series is not None:
            on_series(self.finished())

    def _run(self, job: _Job, number: int) -> None:
        """Run a job and store its results."""
        with tempfile.TemporaryDirectory(prefix="viakit-speedup-") as scratch:
            path = os.path.join(scratch, "made.json")
            words = ["-m", "viakit.apps.turns", json.dumps(self.problems), "--json", path, *job.words, *self.more]
            wire = job.wire(self.wire)
            with open(os.path.join(scratch, "out"), "w+b") as out, open(os.path.join(scratch, "err"), "w+b") as err:
                try:
                    status = jobs.run_ranks(
                        words, job.ranks, job.launched, timeout_s=JOB_S, policy=job.policy,
                        environment=self._environment(job), prog="viakit speedup", out=out, err=err, **wire,
                    )  # fmt: skip
                except (LaunchError, TestbedError, OSError) as error:
                    if not self.series:  # there is nothing that would be lost
                        raise
                    self._fail(job, str(error))
                    return
                err.seek(0)
                said = err.read().decode(errors="replace").strip()
            if status:
                self._fail(job, f"status {status}: {said.splitlines()[-1] if said else 'it said nothing'}")
                return
            with open(path, encoding="utf-8") as file:
                made = json.load(file)
        for one in made:
            hosts = wire.get("hosts", 0)
            self._keep(job, one, number, len(parse(hosts)) if isinstance(hosts, str) else hosts)

    def _environment(self, job: _Job) -> dict[str, str]:
        """Return the variables of a job; a parallel one may be on a described machine."""
        return {**self.environment, **(self.described.variables if self.described and job.protocol else {})}

    def _fail(self, job: _Job, why: str) -> None:
        """Record the failure of a job, which is not run again."""
        self.failed.add(job)
        self.errors.append({"protocol": job.protocol, "message": f"{job}: {why}"})

    def _keep(self, job: _Job, one: dict[str, Any], number: int, hosts: int) -> None:
        if "error" in one:
            message = {"protocol": job.protocol, "message": f"{one['label']}, {job}: {one['error']}"}
            if message not in self.errors:
                self.errors.append(message)
            return
        key = (one["label"], job.protocol or "serial", job.ranks)
        one["protocol"], one["hosts"], one["scale"] = key[1], max(1, hosts), self.scale
        one["runs"][0]["round"] = number
        if self.described is not None:
            one["info"] = {"machine": self.described.name, "time": "virtual"}
            if job.protocol is None:  # the serial program ran here
                self.described.slow_down(one["runs"][0])
        if key in self.series:
            self.series[key]["runs"] += one["runs"]
        else:
            self.series[key] = one

    def finished(self) -> list[dict[str, Any]]:
        """All series with their points."""
        for one in self.series.values():
            one["points"] = [reporting.point([run["wall_s"] for run in one["runs"]])]
            one["points"][0]["rounds"] = [run["round"] for run in one["runs"]]
        order = {name: i for i, name in enumerate((*PROBLEMS, "serial", COPIES, *jobs.PROTOCOLS))}
        last = len(order)  # policies
        return sorted(
            self.series.values(),
            key=lambda one: (order[one["label"]], order.get(one["protocol"], last), one["protocol"], one["ranks"]),
        )


def _checked(
    labels: Sequence[str], ranks: Sequence[int], rounds: int, problem: Sequence[str] | None, kernels: str
) -> list[int]:
    """Check the arguments of :func:`measure`, and return the numbers of ranks in order, each once."""
    unknown = [label for label in labels if label not in PROBLEMS]
    if unknown or not labels:
        raise ValueError(f"no problem is called {', '.join(unknown) or 'nothing'}; there are {', '.join(PROBLEMS)}")
    ordered = sorted(set(ranks))
    if not ordered or ordered[0] < 1 or ordered[-1] > MAX_RANKS:
        raise ValueError(f"ranks are {ordered}; expected numbers from 1 to {MAX_RANKS}")
    if rounds < 1:
        raise ValueError(f"{rounds} rounds; expected 1 or more")
    if kernels not in CHOICES:
        raise ValueError(f"kernels are {kernels!r}; expected one of {', '.join(CHOICES)}")
    if problem is not None and len(labels) != 1:
        raise ValueError(f"options {' '.join(problem)!r} are for one problem; {len(labels)} were given")
    return ordered


def _turns_of(turns: Turns, entries: Sequence[_Job], rounds: int, taken: _Rounds) -> Iterator[tuple[_Job, int]]:
    """Yield the jobs of all rounds, with the number of the round; a job that has failed is left out from then on."""
    each = [[one] for one in entries]
    for number, order in turns.rounds(each, most=rounds, finished=lambda one, _: one[0] in taken.failed):
        for job in order:
            yield job, number


def _problems(
    labels: Sequence[str], problem: Sequence[str] | None, quick: bool, paper_programs: bool
) -> list[tuple[str, str, list[str]]]:
    """Return label, application and arguments of each problem; *problem* replaces the arguments for its size."""
    found = []
    for label in labels:
        one = PROBLEMS[label]
        words = problem or (one.quick if quick else one.words)
        found.append((label, one.application, [*words, *(one.program if paper_programs else ())]))
    return found


def measure(
    labels: Sequence[str],
    *,
    protocols: Sequence[str] = ("via", "tcp", "mpi"),
    ranks: Sequence[int] = (1, 2, 4, 8),
    rounds: int = 5,
    quick: bool = False,
    hosts: int | str = 0,
    python: str | None = None,
    network: str | None = None,
    mtu: int = 1500,
    rate: str | None = None,
    problem: Sequence[str] | None = None,
    kernels: str = "compiled",
    machine: str | None = None,
    computing: float | None = None,
    paper_programs: bool = False,
    profile: bool = False,
    seed: int | None = None,
    command: str | None = None,
    on_progress: Callable[[float, str], None] | None = None,
    on_series: Callable[[list[dict[str, Any]]], None] | None = None,
) -> Document:
    """Measure serial and parallel programs in turns.

    Parameters
    ----------
    labels : sequence of str
        Labels of :data:`PROBLEMS`.
    protocols : sequence of str
        "via", "bip", "tcp", "mpi" (every installed MPI library), "mpi:openmpi", "mpi:mpich", "copies". The last one
        runs a serial program on each rank at once, which shows the cost of sharing the machine. Also policies of
        the message engine, "mpich-p4", "tcp:mpich-p4" or "via,eager_limit=64K", over the channel that they are for.
    ranks, rounds
        Numbers of ranks, and number of runs of each job.
    quick : bool
        Small problems instead of the paper's.
    hosts, python, network, mtu, rate
        Testbed hosts and their wire; 0: this machine; ``"ssh:a,b"``: real machines. Serial programs run here.
    problem : sequence of str, optional
        Options of the application, ``["--size", "512"]``, in place of those of its problem; only with one label.
    kernels : {"compiled", "numpy"}
        Kernels of all programs (:mod:`viakit.apps.kernels`).
    machine, computing
        Described machine of the parallel programs, and its seconds for one second of computing here (default: its
        ``compute.factor``). The serial programs run here, and their CPU time is multiplied.
    paper_programs, profile : bool
        The paper's programs: SOR waits for its rows, EP sends counts only. Record all calls (viakit.apps.profile).
    seed, command
        Seed of the order within the rounds, and command line for the result (default: that of this process).
    on_progress : callable, optional
        Called with the completed fraction (0 to 1) and the current subject. A KeyboardInterrupt from it ends the run.
    on_series : callable, optional
        Called after each job with the present state of all series, for live plots.

    Returns
    -------
    dict
        A ``viakit.result/1`` of applications; each series has a ``label``. After an interrupt it has the measurements
        so far and ``complete`` false. A job that fails is not run again; ``errors`` gives the reason.

    Raises
    ------
    ValueError, LaunchError, TestbedError
        If an argument is invalid, or the first job cannot be started.
    """
    hosts = chosen_hosts(hosts)
    ranks = possible_ranks(protocols, _checked(labels, ranks, rounds, problem, kernels), hosts, machine)
    turns = Turns(seed=seed, command=command)
    entries = _jobs(protocols, ranks, turns.skipped)
    problems = _problems(labels, problem, quick, paper_programs)
    wire = {"hosts": hosts, "python": python, "network": network, "mtu": mtu, "rate": rate} if hosts else {}
    with _on(machine, computing) as described, turns:
        turns.machines = _machines_of(hosts, network, python)
        taken = _Rounds(problems, wire, quick or bool(problem), turns.errors, kernels, described, profile)
        for done, (job, number) in enumerate(_turns_of(turns, entries, rounds, taken)):
            if on_progress is not None:
                on_progress(done / (rounds * len(entries)), f"round {number + 1} of {rounds}: {job}")
            taken.take(job, number, on_series)
    return turns.document(taken.finished())


# --------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Row:
    """Protocol at a number of ranks, in comparison with the serial program.

    Attributes
    ----------
    label, protocol, ranks
        Problem, protocol and number of ranks.
    serial_s, wall_s : float
        Medians over the rounds.
    speedup, low, high : float
        serial_s / wall_s, and the smallest and largest ratio within a round. For "copies", which do the work of each
        rank completely, the ratio is multiplied by the number of ranks: the speed-up of a parallel program whose only
        loss is the sharing of the machine.
    efficiency : float
        speedup / ranks.
    karp_flatt : float or None
        Serial fraction of the work that explains the speed-up: (1/S - 1/P) / (1 - 1/P) (Karp and Flatt, Communications
        of the ACM 33, 1990). It is negative if the speed-up is more than linear, and None for one rank.
    communication : float
        Fraction of the wall time that the ranks spend in communication, on average.
    work : float
        CPU time of the busiest rank for computation, relative to 1/ranks of the serial program's. 1 is an even division
        without additional work. The value is meaningful also with more ranks than cores.
    messages, nbytes : int
        Messages and bytes that all ranks together send in one run.
    crowded : bool
        Whether there are more ranks than cores; the speed-up is then at most the number of cores.
    mops : float or None
        Million operations per second of all ranks, as the benchmarks EP, IS and FT count them.
    """

    label: str
    protocol: str
    ranks: int
    serial_s: float
    wall_s: float
    speedup: float
    low: float
    high: float
    efficiency: float
    karp_flatt: float | None
    communication: float
    work: float
    messages: int
    nbytes: int
    crowded: bool
    mops: float | None = None

    @property
    def per_cpu(self) -> float:
        """Bytes per second that each rank sends, on average: the last column of the paper's Table II."""
        return self.nbytes / self.wall_s / self.ranks if self.wall_s else 0.0


def find(document: Mapping[str, Any], label: str, protocol: str, ranks: int) -> dict[str, Any] | None:
    """Return a series, or None. The serial program has the protocol "serial" and one rank."""
    for one in document["series"]:
        if (one.get("label"), one["protocol"], one.get("ranks")) == (label, protocol, ranks):
            return one
    return None


def title_of(document: Mapping[str, Any], label: str) -> str:
    """Return the problem's name in the paper, and whether it was a small problem."""
    small = any(one.get("label") == label and one.get("scale") == "small" for one in document["series"])
    return PROBLEMS[label].title + (SMALL if small else "")


def _median(runs: Sequence[Mapping[str, Any]], figure: Callable[[Mapping[str, Any]], float]) -> float:
    return statistics.median(figure(run) for run in runs)


def _most_work(run: Mapping[str, Any]) -> float:
    return max(rank["work_s"] for rank in run["ranks"])


def _communication(run: Mapping[str, Any]) -> float:
    return statistics.fmean(
        1 - rank["seconds"]["compute"] / rank["wall_s"] if rank["wall_s"] else 0.0 for rank in run["ranks"]
    )


def row(serial: Mapping[str, Any], parallel: Mapping[str, Any]) -> Row:
    """Return the comparison of two series of one result."""
    n = parallel["ranks"]
    before = {run["round"]: run["wall_s"] for run in serial["runs"]}
    after = {run["round"]: run["wall_s"] for run in parallel["runs"]}
    serial_s, wall_s = statistics.median(before.values()), statistics.median(after.values())
    done = n if parallel["protocol"] == COPIES else 1  # of the problem, by all ranks
    ratios = [done * before[i] / after[i] for i in sorted(before.keys() & after.keys())] or [done * serial_s / wall_s]
    speedup = done * serial_s / wall_s
    last = parallel["runs"][-1]["ranks"]
    alone = _median(serial["runs"], _most_work)
    return Row(
        parallel["label"], parallel["protocol"], n, serial_s, wall_s,
        speedup, min(*ratios, speedup), max(*ratios, speedup),
        speedup / n, (1 / speedup - 1 / n) / (1 - 1 / n) if n > 1 else None,
        _median(parallel["runs"], _communication),
        _median(parallel["runs"], _most_work) * n / done / alone if alone else 0.0,
        sum(rank["messages"] for rank in last), sum(rank["nbytes"] for rank in last),
        n > parallel.get("cores", n),
        parallel["operations"] * done / wall_s / 1e6 if parallel.get("operations") and wall_s else None,
    )  # fmt: skip


def rows(document: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for every parallel series whose serial program was measured."""
    for one in document["series"]:
        serial = find(document, one["label"], "serial", 1)
        if one["protocol"] != "serial" and serial is not None:
            yield row(serial, one)


def wrong(document: Mapping[str, Any]) -> list[str]:
    """Return the message of each run whose verification failed."""
    found = []
    for one in document["series"]:
        for run in one["runs"]:
            for check in run["checks"]:
                if not check["ok"]:
                    figure = harness.Check(
                        **{**check, "error": float("inf") if check["error"] is None else check["error"]}
                    )
                    found.append(f"{one['label']} over {one['protocol']}, {one['ranks']} ranks: {figure}")
    return list(dict.fromkeys(found))
