"""Speed-ups measured: Table III and figures 4 to 10 of the paper on VIA and TCP/IP beneath MPI, on this machine.

::

    document = measure(["sor-zero", "ep"], protocols=["via", "tcp"], ranks=[1, 2, 4])
    for row in rows(document):
        print(row.label, row.protocol, row.ranks, row.speedup)

A round runs one job for the serial programs and one for each protocol and number of ranks, in random order, and each
job runs all problems once. A speed-up is the ratio of the medians over the rounds, serial to parallel; its spread is
that of the ratios within the rounds, where both were measured within a minute of each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from viakit.apps import harness, jobs, reporting
from viakit.measure.result import Document

__all__ = ["COPIES", "PROBLEMS", "Problem", "Row", "find", "labels_of", "measure", "paper", "rows", "title_of", "wrong"]

MAX_RANKS = 64
JOB_S = 900.0  # a job that takes longer is ended: something is wrong with it


@dataclass(frozen=True)
class Problem:
    """One row of the paper's tables, or a small one like it."""

    label: str
    application: str
    title: str
    words: tuple[str, ...]  # arguments of the application: as in the paper
    quick: tuple[str, ...]  # and a small problem instead


PROBLEMS: dict[str, Problem] = {
    one.label: one
    for one in (
        Problem("ep", "ep", "EP", ("--class", "A"), ("--class", "S")),
        Problem(
            "sor-zero", "sor", "SOR-Zero",
            ("--size", "4096", "--iterations", "50", "--init", "zero"),
            ("--size", "2048", "--iterations", "50", "--init", "zero"),
        ),
        Problem(
            "sor-nonzero", "sor", "SOR-Nonzero",
            ("--size", "4096", "--iterations", "50", "--init", "nonzero"),
            ("--size", "2048", "--iterations", "50", "--init", "nonzero"),
        ),
        Problem("water-288", "water", "Water-288", ("--molecules", "288"), ("--molecules", "216")),
        Problem("water-1728", "water", "Water-1728", ("--molecules", "1728"), ("--molecules", "512")),
        Problem("fft", "fft", "3-D FFT", ("--class", "paper"), ("--class", "S")),
        Problem("is", "is", "IS Class A", ("--class", "paper"), ("--class", "W")),
    )
}  # fmt: skip


@cache
def paper() -> dict[str, Any]:
    """Return what the paper says: tables I (sequential times), II (messages) and III (speed-ups) by label."""
    return json.loads(resources.files("viakit.apps").joinpath("paper.json").read_text(encoding="utf-8"))


def labels_of(names: Sequence[str]) -> list[str]:
    """Return the problems that names stand for: labels, or applications with all their problems; nothing: all.

    Raises
    ------
    ValueError
        For a name of neither.
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
    """What is started once in each round."""

    protocol: str | None  # None: the serial programs
    ranks: int

    @property
    def launched(self) -> str | None:
        """The protocol that its ranks are started with; copies need one to begin together and to report."""
        return "via" if self.protocol == COPIES else self.protocol

    @property
    def words(self) -> list[str]:
        """What it is told beside its problems."""
        return jobs.protocol_words(self.launched) + ["--copies"] * (self.protocol == COPIES)

    def wire(self, wire: Mapping[str, Any]) -> dict[str, Any]:
        """Where it runs, if those that communicate run on this testbed."""
        if self.protocol in (None, COPIES) or not wire:
            return {}
        return {**wire, "hosts": min(wire["hosts"], self.ranks)}

    def __str__(self) -> str:
        if self.protocol == COPIES:
            return f"{self.ranks} copies of the serial programs at once"
        return "serial" if self.protocol is None else f"{self.protocol}, {self.ranks} ranks"


def _jobs(protocols: Sequence[str], ranks: Sequence[int], skipped: dict[str, str]) -> list[_Job]:
    """Every job of a round; what cannot be here is entered in *skipped*."""
    from viakit.measure import mpi

    names: list[str] = []
    for protocol in protocols:
        if protocol not in (*jobs.PROTOCOLS, COPIES):
            raise ValueError(f"protocol {protocol!r}; right would be some of {', '.join((*jobs.PROTOCOLS, COPIES))}")
        if not protocol.startswith("mpi"):
            names.append(protocol)
        else:
            found = [f"mpi:{flavour}" for flavour in mpi.find_all()]
            wanted = found if protocol == "mpi" else [one for one in found if one == protocol]
            if not wanted:
                extra = protocol.partition(":")[2] or "mpich"
                skipped[protocol] = f"not installed. Remedy: pip install 'viakit[{extra}]'"
            names += wanted
    return [_Job(None, 1), *(_Job(name, n) for name in dict.fromkeys(names) for n in ranks)]


class _Rounds:
    """All that was measured, and what went wrong."""

    def __init__(self, problems: Sequence[tuple[str, str, list[str]]], wire: dict[str, Any], quick: bool) -> None:
        self.problems, self.wire, self.scale = problems, wire, "small" if quick else "paper"
        self.series: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.errors: list[dict[str, Any]] = []
        self.failed: set[_Job] = set()

    def take(self, job: _Job, number: int) -> None:
        """Run a job, and keep what it says."""
        from viakit.launch import LaunchError
        from viakit.testbed import TestbedError

        with tempfile.TemporaryDirectory(prefix="viakit-speedup-") as scratch:
            path = os.path.join(scratch, "made.json")
            words = ["-m", "viakit.apps.turns", json.dumps(self.problems), "--json", path, *job.words]
            wire = job.wire(self.wire)
            with open(os.path.join(scratch, "out"), "w+b") as out, open(os.path.join(scratch, "err"), "w+b") as err:
                try:
                    status = jobs.run_ranks(words, job.ranks, job.launched, timeout_s=JOB_S, out=out, err=err, **wire)
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
            self._keep(job, one, number, wire.get("hosts", 0))

    def _fail(self, job: _Job, why: str) -> None:
        """Note that a job failed, which then is not run again."""
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
        if key in self.series:
            self.series[key]["runs"] += one["runs"]
        else:
            self.series[key] = one

    def finished(self) -> list[dict[str, Any]]:
        """All series, with their points."""
        for one in self.series.values():
            one["points"] = [reporting.point([run["wall_s"] for run in one["runs"]])]
            one["points"][0]["rounds"] = [run["round"] for run in one["runs"]]
        order = {name: i for i, name in enumerate((*PROBLEMS, "serial", COPIES, *jobs.PROTOCOLS))}
        return sorted(self.series.values(), key=lambda one: (order[one["label"]], order[one["protocol"]], one["ranks"]))


def measure(
    labels: Sequence[str],
    *,
    protocols: Sequence[str] = ("via", "tcp", "mpi"),
    ranks: Sequence[int] = (1, 2, 4, 8),
    rounds: int = 5,
    quick: bool = False,
    hosts: int = 0,
    mtu: int = 1500,
    rate: str | None = None,
    seed: int | None = None,
    command: str | None = None,
    on_progress: Callable[[float, str], None] | None = None,
    on_series: Callable[[list[dict[str, Any]]], None] | None = None,
) -> Document:
    """Measure serial and parallel programs, taking turns.

    Parameters
    ----------
    labels : sequence of str
        Of :data:`PROBLEMS`.
    protocols : sequence of str
        Of "via", "bip", "tcp", "mpi" (every MPI library that is here), "mpi:openmpi", "mpi:mpich", "copies" (the serial
        programs, as many at once as there are ranks: what sharing the machine costs by itself).
    ranks : sequence of int
    rounds : int
        How often each is run.
    quick : bool
        Small problems in place of the paper's.
    hosts, mtu, rate
        0: this machine. Else a testbed of so many hosts and its wire; the serial programs run on this machine.
    seed : int, optional
        Of the order within the rounds.
    on_progress : callable, optional
        Called with the part that is done (0 to 1) and what is being measured; KeyboardInterrupt from it ends the run.
    on_series : callable, optional
        Called after each job with all series as they now stand: for live plots.

    Returns
    -------
    dict
        A ``viakit.result/1`` of applications; each series has a ``label``. Interrupted (Ctrl-C), what had been
        measured, with ``complete`` false. A job that fails is not run again; ``errors`` says why it did.

    Raises
    ------
    ValueError
        For arguments that make no sense.
    LaunchError, TestbedError
        If the very first job cannot be started.
    """
    from viakit.measure.environment import command_line

    unknown = [label for label in labels if label not in PROBLEMS]
    if unknown or not labels:
        raise ValueError(f"no problem is called {', '.join(unknown) or 'nothing'}; there are {', '.join(PROBLEMS)}")
    ranks = sorted(set(ranks))
    if not ranks or ranks[0] < 1 or ranks[-1] > MAX_RANKS:
        raise ValueError(f"ranks are {ranks}; right would be numbers from 1 to {MAX_RANKS}")
    if rounds < 1:
        raise ValueError(f"{rounds} rounds; right would be 1 or more")
    skipped: dict[str, str] = {}
    entries = _jobs(protocols, ranks, skipped)
    chosen = [PROBLEMS[label] for label in labels]
    problems = [(one.label, one.application, list(one.quick if quick else one.words)) for one in chosen]
    seed = secrets.randbits(31) if seed is None else seed
    chance = random.Random(seed)
    wire = {"hosts": hosts, "mtu": mtu, "rate": rate} if hosts else {}
    taken, began, complete = _Rounds(problems, wire, quick), time.monotonic(), True
    done = 0
    with contextlib.suppress(KeyboardInterrupt):
        complete = False
        for number in range(rounds):
            order = [one for one in entries if one not in taken.failed]
            chance.shuffle(order)
            for job in order:
                if on_progress is not None:
                    on_progress(done / (rounds * len(entries)), f"round {number + 1} of {rounds}: {job}")
                taken.take(job, number)
                done += 1
                if on_series is not None:
                    on_series(taken.finished())
        complete = True
    document = reporting.document(
        taken.finished(), elapsed_s=time.monotonic() - began, command=command or command_line()
    )
    document |= {
        "complete": complete and not taken.errors,
        "errors": taken.errors,
        "skipped": [{"protocol": name, "reason": why} for name, why in skipped.items()],
        "seed": seed,
    }
    document["environment"]["seed"] = seed
    return document


# --------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Row:
    """A protocol at a number of ranks, beside the serial program.

    Attributes
    ----------
    label, protocol, ranks
        What.
    serial_s, wall_s : float
        Medians over the rounds.
    speedup, low, high : float
        serial_s / wall_s, and the least and the greatest ratio within a round. Of "copies", which do the work as often
        as there are ranks, so many times that: what a parallel program would reach that loses nothing but to the
        machine.
    efficiency : float
        speedup / ranks.
    karp_flatt : float or None
        The part of the work that would have to be serial to explain the speed-up: (1/S - 1/P) / (1 - 1/P) (Karp and
        Flatt, Communications of the ACM 33, 1990); negative where the speed-up is more than linear; None for one rank.
    communication : float
        Part of the wall time that the ranks spend in communication, on average.
    work : float
        CPU time spent computing by the rank that has most, to that of the serial program times 1/ranks: 1 is an even
        share and no work more than the serial program's. It says how the work divides, also with more ranks than cores.
    messages, nbytes : int
        That all ranks together send in one run.
    crowded : bool
        Whether there are more ranks than cores: then the speed-up cannot be more than the number of cores.
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


def find(document: Mapping[str, Any], label: str, protocol: str, ranks: int) -> dict[str, Any] | None:
    """Return a series, or None; the serial program's protocol is "serial", and it has one rank."""
    for one in document["series"]:
        if (one.get("label"), one["protocol"], one.get("ranks")) == (label, protocol, ranks):
            return one
    return None


def title_of(document: Mapping[str, Any], label: str) -> str:
    """The problem's name, as the paper has it; and that it was a small one, if it was."""
    small = any(one.get("label") == label and one.get("scale") == "small" for one in document["series"])
    return PROBLEMS[label].title + (", small" if small else "")


def _median(runs: Sequence[Mapping[str, Any]], figure: Callable[[Mapping[str, Any]], float]) -> float:
    return statistics.median(figure(run) for run in runs)


def _most_work(run: Mapping[str, Any]) -> float:
    return max(rank["work_s"] for rank in run["ranks"])


def _communication(run: Mapping[str, Any]) -> float:
    return statistics.fmean(
        1 - rank["seconds"]["compute"] / rank["wall_s"] if rank["wall_s"] else 0.0 for rank in run["ranks"]
    )


def row(serial: Mapping[str, Any], parallel: Mapping[str, Any]) -> Row:
    """Return what two series of one result say of each other."""
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
    )  # fmt: skip


def rows(document: Mapping[str, Any]) -> Iterator[Row]:
    """Yield a row for every parallel series whose serial program was measured, too."""
    for one in document["series"]:
        serial = find(document, one["label"], "serial", 1)
        if one["protocol"] != "serial" and serial is not None:
            yield row(serial, one)


def wrong(document: Mapping[str, Any]) -> list[str]:
    """Return what each run whose verification failed says of it."""
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
