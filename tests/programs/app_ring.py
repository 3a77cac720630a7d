"""A small application, to test the harness with: each rank adds its share of numbers, the sum goes round the ring."""

from __future__ import annotations

import itertools
import os
import sys
from dataclasses import dataclass

import click
import numpy as np

from viakit.apps import harness
from viakit.apps.harness import Application, Check, Phases, check, share
from viakit.launch import detect


@dataclass(frozen=True)
class Problem:
    """The numbers 0 to n-1; `wrong` is added to the sum, to see that this is noticed."""

    n: int = 1000
    rounds: int = 3
    wrong: int = 0
    fail: int = -1


def problem(n: int = 1000, rounds: int = 3, wrong: int = 0, fail: int = -1, no_data: int = -1) -> Problem:
    """Make a problem; ValueError for an invalid size, and on the rank that is configured to lack its data."""
    if n < 1:
        raise ValueError(f"--n {n}; expected 1 or more")
    if no_data == detect().rank:
        raise ValueError("data: No such file or directory")
    return Problem(n, rounds, wrong, fail)


RUNS = itertools.count()


def fail(problem: Problem, rank: int) -> None:
    """Fail, if this rank is configured to, from run number RING_FAIL_FROM on."""
    if next(RUNS) >= int(os.environ.get("RING_FAIL_FROM", "0")) and rank == problem.fail:
        raise RuntimeError("asked to fail")


def serial(problem: Problem, phases: Phases | None = None) -> int:
    """Add all numbers."""
    phases = phases or Phases()
    fail(problem, 0)
    phases.begin()
    for i in range(problem.rounds):
        total = int(np.arange(problem.n).sum())
        phases.progress(i + 1, problem.rounds)
    return total + problem.wrong


def parallel(comm, problem: Problem, phases: Phases | None = None) -> int:
    """Send the sum so far to the next rank, `rounds` times; the first round does not count."""
    phases = phases or Phases()
    rank, size = comm.Get_rank(), comm.Get_size()
    first, end = share(problem.n, rank, size)
    fail(problem, rank)
    for i in range(problem.rounds):
        if i == 1:
            comm.Barrier()
            phases.begin()
        total = np.array([np.arange(first, end).sum()])
        if size > 1:
            before = np.zeros(1, dtype=total.dtype)
            if rank > 0:
                comm.Recv(before, source=rank - 1, tag=5)
                total += before
            request = comm.Isend(total, (rank + 1) % size, 5)
            if rank == 0:
                arriving = comm.Irecv(before)
                arriving.Wait()
                total = before
            request.Wait()
        phases.progress(i + 1, problem.rounds)
    comm.Bcast(total, root=0)
    phases.end()
    comm.Bcast(total, root=0)  # not counted
    return int(total[0]) + problem.wrong


def verify(problem: Problem, outcome: int) -> list[Check]:
    """The sum is known."""
    return [check("sum", outcome, problem.n * (problem.n - 1) // 2)]


OPTIONS = [
    click.Option(["--n"], type=int, default=1000),
    click.Option(["--rounds"], type=int, default=3),
    click.Option(["--wrong"], type=int, default=0),
    click.Option(["--fail"], type=int, default=-1),
    click.Option(["--no-data"], type=int, default=-1),
]
APPLICATION = Application(
    "ring", "A sum round the ring", problem, serial, parallel, verify, OPTIONS,
    memory=lambda problem, ranks: 8 * problem.n, summary=lambda problem, outcome: {"sum": outcome},
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(harness.main(APPLICATION))
