"""A program of several ranks: one refuses a collective, or does another one, and no rank waits for ever.

Run by test_comm_refusals.py as ``refusals_job.py refused|mismatched [CASE...]``. Each case has a communicator of its
own and a deadline; what a rank finds wrong it prints in a line that begins with "WRONG", and the job goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from viakit.mpi import MPI

DEADLINE_S = float(os.environ.get("VIAKIT_CASE_S", "20"))
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
odd = size - 1  # the rank that refuses, or does another collective
here = rank == odd


class Hung(BaseException):
    """The deadline of a case has passed."""


def ring(*_: Any) -> None:
    """End the call in hand."""
    raise Hung


def ones(n: int = 4) -> np.ndarray:
    """Operands."""
    return np.ones(n)


def frozen(n: int = 4) -> np.ndarray:
    """A buffer that nothing can be received into."""
    array = np.zeros(n)
    array.flags.writeable = False
    return array


class Fickle:
    """An object that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")


COUNTS = [1] * size
Call = Callable[[Any], Any]
# name: the call of all other ranks, that of the one that refuses, and who surely waits for it: all, or the root, 0
REFUSED: dict[str, tuple[Call, Call, str]] = {
    "Bcast, bad buffer on the root": (lambda c: c.Bcast(ones(), odd), lambda c: c.Bcast(object(), odd), "all"),
    "Bcast, bad root": (lambda c: c.Bcast(ones(), odd), lambda c: c.Bcast(ones(), 99), "all"),
    "Bcast, root of a bad type": (lambda c: c.Bcast(ones(), odd), lambda c: c.Bcast(ones(), "0"), "all"),
    "Bcast, read-only": (lambda c: c.Bcast(ones(), 0), lambda c: c.Bcast(frozen(), 0), "none"),
    "Bcast, None": (lambda c: c.Bcast(ones(), odd), lambda c: c.Bcast(None, odd), "all"),
    "Reduce, bad buffer": (lambda c: c.Reduce(ones(), ones()), lambda c: c.Reduce(object(), ones()), "root"),
    "Reduce, bad root": (lambda c: c.Reduce(ones(), ones()), lambda c: c.Reduce(ones(), ones(), MPI.SUM, -1), "root"),
    "Reduce, bad op": (lambda c: c.Reduce(ones(), ones()), lambda c: c.Reduce(ones(), ones(), "sum"), "root"),
    "Allreduce, bad buffer": (lambda c: c.Allreduce(ones(), ones()), lambda c: c.Allreduce(object(), ones()), "all"),
    "Allreduce, read-only": (lambda c: c.Allreduce(ones(), ones()), lambda c: c.Allreduce(ones(), frozen()), "all"),
    "Allreduce, too short": (lambda c: c.Allreduce(ones(), ones()), lambda c: c.Allreduce(ones(), ones(3)), "all"),
    "Allreduce, bad op": (lambda c: c.Allreduce(ones(), ones()), lambda c: c.Allreduce(ones(), ones(), 7), "all"),
    "Allgather, bad buffer": (
        lambda c: c.Allgather(ones(1), ones(size)),
        lambda c: c.Allgather(ones(1), object()),
        "all",
    ),
    "Allgather, too short": (
        lambda c: c.Allgather(ones(2), ones(2 * size)),
        lambda c: c.Allgather(ones(2), ones(size)),
        "all",
    ),
    "Alltoall, bad buffer": (
        lambda c: c.Alltoall(ones(size), ones(size)),
        lambda c: c.Alltoall(object(), ones(size)),
        "all",
    ),
    "Alltoall, read-only": (
        lambda c: c.Alltoall(ones(size), ones(size)),
        lambda c: c.Alltoall(ones(size), frozen(size)),
        "all",
    ),
    "Gather, bad buffer": (lambda c: c.Gather(ones(1), ones(size)), lambda c: c.Gather(object(), None), "root"),
    "Gather, bad root": (lambda c: c.Gather(ones(1), ones(size)), lambda c: c.Gather(ones(1), None, 99), "root"),
    "Gatherv, bad counts": (
        lambda c: c.Gatherv(ones(1), None, odd),
        lambda c: c.Gatherv(ones(1), [ones(size), [1]], odd),
        "none",
    ),
    "Scatter, bad buffer": (
        lambda c: c.Scatter(None, ones(1), odd),
        lambda c: c.Scatter(object(), ones(1), odd),
        "all",
    ),
    "Scatterv, bad counts": (
        lambda c: c.Scatterv(None, ones(1), odd),
        lambda c: c.Scatterv([ones(size), [1]], ones(1), odd),
        "all",
    ),
    "Allgatherv, bad counts": (
        lambda c: c.Allgatherv(ones(1), [ones(size), COUNTS]),
        lambda c: c.Allgatherv(ones(1), [ones(size), [1]]),
        "all",
    ),
    "Alltoallv, bad counts": (
        lambda c: c.Alltoallv([ones(size), COUNTS], [ones(size), COUNTS]),
        lambda c: c.Alltoallv([ones(size), [1]], [ones(size), COUNTS]),
        "all",
    ),
    "Reduce_scatter_block, bad buffer": (
        lambda c: c.Reduce_scatter_block(ones(size), ones(1)),
        lambda c: c.Reduce_scatter_block(object(), ones(1)),
        "all",
    ),
    "Reduce_scatter, bad counts": (
        lambda c: c.Reduce_scatter(ones(size), ones(1), COUNTS),
        lambda c: c.Reduce_scatter(ones(size), ones(1), [1]),
        "all",
    ),
    "Scan, bad buffer": (lambda c: c.Scan(ones(), ones()), lambda c: c.Scan(object(), ones()), "none"),
    "Exscan, bad op": (lambda c: c.Exscan(ones(), ones()), lambda c: c.Exscan(ones(), ones(), 3), "none"),
    "Ibcast, bad root": (lambda c: c.Ibcast(ones(), odd).Wait(), lambda c: c.Ibcast(ones(), 99).Wait(), "all"),
    "Iallreduce, bad buffer": (
        lambda c: c.Iallreduce(ones(), ones()).Wait(),
        lambda c: c.Iallreduce(object(), ones()).Wait(),
        "all",
    ),
    "Iallgather, read-only": (
        lambda c: c.Iallgather(ones(1), ones(size)).Wait(),
        lambda c: c.Iallgather(ones(1), frozen(size)).Wait(),
        "all",
    ),
    "Allreduce_init, bad buffer": (
        lambda c: started(c.Allreduce_init(ones(), ones())),
        lambda c: started(c.Allreduce_init(ones(), object())),
        "all",
    ),
    "Bcast_init, bad root": (
        lambda c: started(c.Bcast_init(ones(), odd)),
        lambda c: started(c.Bcast_init(ones(), 99)),
        "all",
    ),
    "bcast, bad object": (lambda c: c.bcast(None, odd), lambda c: c.bcast(Fickle(), odd), "all"),
    "bcast, bad root": (lambda c: c.bcast(None, odd), lambda c: c.bcast(1, 99), "all"),
    "gather, bad object": (lambda c: c.gather(1), lambda c: c.gather(Fickle()), "root"),
    "scatter, too few": (lambda c: c.scatter(None, odd), lambda c: c.scatter([1] * (size + 1), odd), "all"),
    "allgather, bad object": (lambda c: c.allgather(1), lambda c: c.allgather(Fickle()), "all"),
    "alltoall, too few": (lambda c: c.alltoall([1] * size), lambda c: c.alltoall([]), "all"),
    "allreduce, bad object": (lambda c: c.allreduce(1), lambda c: c.allreduce(Fickle()), "all"),
    "Split, bad color": (lambda c: c.Split(0), lambda c: c.Split(-7), "all"),
    "Create, bad group": (lambda c: c.Create(c.group), lambda c: c.Create(None), "all"),
    "Create_cart, bad shape": (lambda c: c.Create_cart([size]), lambda c: c.Create_cart([size + 1]), "all"),
    "Dup, bad info": (lambda c: c.Dup(), lambda c: c.Dup(3), "all"),
}
# name: the collective of all other ranks, and that of one. Some are done by that rank before the others begin.
MISMATCHED: dict[str, tuple[Call, Call]] = {
    "Bcast against Barrier": (lambda c: c.Bcast(ones(), 0), lambda c: c.Barrier()),
    "Bcast of the odd one against Barrier": (lambda c: c.Barrier(), lambda c: c.Bcast(ones(), odd)),
    "Reduce to another against Barrier": (lambda c: c.Barrier(), lambda c: c.Reduce(ones(), ones(), MPI.SUM, 0)),
    "Allreduce against Barrier": (lambda c: c.Allreduce(ones(), ones()), lambda c: c.Barrier()),
    "Allreduce against Bcast": (lambda c: c.Allreduce(ones(), ones()), lambda c: c.Bcast(ones(), 0)),
    "Allreduce against Allgather": (
        lambda c: c.Allreduce(ones(), ones()), lambda c: c.Allgather(ones(1), ones(size))),
    "Alltoall against Allgather": (
        lambda c: c.Alltoall(ones(size), ones(size)), lambda c: c.Allgather(ones(1), ones(size))),
    "other lengths": (lambda c: c.Allreduce(ones(), ones()), lambda c: c.Allreduce(ones(5), ones(5))),
    "other roots": (lambda c: c.Bcast(ones(), odd), lambda c: c.Bcast(ones(), 0)),
    # no rank waits for the second root, so none can detect it before the next collective
    "two roots, unnoticed": (lambda c: c.Bcast(ones(), 0), lambda c: c.Bcast(ones(), odd)),
    "other operators": (
        lambda c: c.Allreduce(ones(), ones()), lambda c: c.Allreduce(ones(), ones(), MPI.MAX)),
    "other lengths of Bcast": (lambda c: c.Bcast(ones(), odd), lambda c: c.Bcast(ones(9), odd)),
    "Gatherv against Allreduce": (
        lambda c: c.Gatherv(ones(1), [ones(size), COUNTS] if rank == 0 else None),
        lambda c: c.Allreduce(ones(), ones())),
    "objects against Barrier": (lambda c: c.allgather(1), lambda c: c.Barrier()),
    "Ibarrier against Iallreduce": (
        lambda c: c.Ibarrier().Wait(), lambda c: c.Iallreduce(ones(), ones()).Wait()),
    "Dup against Barrier": (lambda c: c.Dup(), lambda c: c.Barrier()),
}  # fmt: skip


def started(request: Any) -> None:
    """Run a persistent collective once."""
    request.Start()
    request.Wait()


def wrong(case: str, text: str) -> None:
    """Report what a rank finds wrong."""
    print(f"WRONG rank {rank} of {size}, {case}: {text}", flush=True)


def result_of(call: Call, c: Any) -> BaseException | None:
    """Make the call within the deadline: what it raised, or None."""
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        call(c)
    except BaseException as problem:
        return problem
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def is_usable(case: str, c: Any) -> None:
    """After all that, all ranks are in the same collective of this communicator again."""

    def use(c: Any) -> None:
        if "unnoticed" in case:
            with contextlib.suppress(MPI.Exception):
                c.Allreduce(np.zeros(1), np.zeros(1))
            return
        for i in range(3):
            total, word = np.zeros(1), np.full(1, float(i if rank == i % size else -1))
            c.Allreduce(np.full(1, float(rank)), total)
            assert total[0] == size * (size - 1) / 2, total
            c.Bcast(word, i % size)
            assert word[0] == i, word
            assert c.allgather(rank) == list(range(size))
            c.Barrier()

    problem = result_of(use, c)
    if problem is not None:
        wrong(case, f"afterwards: {problem!r}")


def refused(case: str, warm: int, control: Any) -> None:
    """One rank refuses."""
    good, bad, who = REFUSED[case]
    c = comm.Dup()
    for _ in range(warm):
        c.Barrier()
        c.Allreduce(ones(), ones())
        if who != "none" or "Gatherv" not in case:
            c.Bcast(ones(), odd)
    problem = result_of(bad if here else good, c)
    case = f"{case}{' (warm)' if warm else ''}"
    lost = isinstance(problem, MPI.Exception) and problem.Get_error_class() == MPI.ERR_PROC_ABORTED
    if isinstance(problem, Hung):
        wrong(case, "hung")
    elif here and (problem is None or lost):
        wrong(case, f"was not refused: {problem!r}")
    elif not here and problem is None and (who == "all" or (who == "root" and rank == 0)):
        wrong(case, "ended without an error")
    elif not here and problem is not None and (not lost or f"rank {odd}" not in str(problem)):
        wrong(case, f"another error: {problem!r}")
    control.Barrier()
    is_usable(case, c)
    control.Barrier()


def mismatched(case: str, warm: int, control: Any) -> None:
    """One rank is in another collective."""
    usual, other = MISMATCHED[case]
    c = comm.Dup()
    for _ in range(warm):
        c.Barrier()
        c.Allreduce(ones(), ones())
        c.Bcast(ones(), 0)
    problem = result_of(other if here else usual, c)
    case = f"{case}{' (warm)' if warm else ''}"
    if isinstance(problem, Hung):
        wrong(case, "hung")
    elif problem is not None and not isinstance(problem, MPI.Exception):
        wrong(case, f"another error: {problem!r}")
    said = control.allgather(str(problem) if problem is not None else "")
    words = ("mismatched collectives", "were expected", "longer than the receive buffer")
    if "unnoticed" not in case and not any(word in text for word in words for text in said):
        wrong(case, f"not noticed: {said}")
    is_usable(case, c)
    control.Barrier()


def main() -> None:
    """Run the cases."""
    kind, chosen = sys.argv[1], sys.argv[2:]
    signal.signal(signal.SIGALRM, ring)
    control = comm.Dup()
    cases = REFUSED if kind == "refused" else MISMATCHED
    for case in chosen or cases:
        for warm in (0, 2):
            (refused if kind == "refused" else mismatched)(case, warm, control)
    if rank == 0:
        print("END", flush=True)


main()
