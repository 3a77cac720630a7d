"""A program of several ranks, for test_comm_crossed.py: ``crossed_job.py stuck|late|legal``.

"stuck": ranks wait for each other in collectives of different communicators, and must get an error. "legal": a rank is
in another communicator than the rank that waits for it, which is no error. A rank that finds something wrong prints a
line that begins with "WRONG". Rank 0 prints "END".
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from viakit.comm import crossed
from viakit.comm.status import Status
from viakit.mpi import MPI

DEADLINE_S = 180
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


def stay_away(seconds: float) -> None:
    """Be late for a collective. The time decides only how often the others check."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        comm.world.progress()
        time.sleep(0.01)


def until_a_rank_waits() -> None:
    """Return a while after another rank has sent this one the message that it waits."""
    deadline = time.monotonic() + DEADLINE_S
    every = crossed.CROSSED_TAG | 1 << 20  # another tag that has the same bits
    while not comm.probe_other_tag(crossed._GROUP_PART, crossed.CROSSED_TAG, every, Status()):
        assert time.monotonic() < deadline, "no rank has sent that it waits"
        comm.world.progress()
        time.sleep(0.01)
    stay_away(0.6)  # several checks of that rank; a longer time would be as good


# ---------------------------------------------------------------- stuck: the call of rank 0, and that of the others

STUCK: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "barriers": (lambda c: c.Barrier(), lambda c: c.Barrier()),
    "broadcasts of objects": (lambda c: c.bcast(None, 1), lambda c: c.bcast(None, 0)),
    "barrier and broadcast": (lambda c: c.Barrier(), lambda c: c.Bcast(bytearray(8), 0)),
}


def stuck() -> None:
    """Run each case. All ranks end it: the two that wait for each other, and those that wait for one of the two."""
    found = []
    # In a broadcast of many ranks they wait for each other in longer circles, which are not found.
    for name, (first, second) in STUCK.items() if size <= 3 else [("barriers", STUCK["barriers"])]:
        one, other = comm.Dup(), comm.Dup()
        one.name, other.name = "one", "other"
        text = ""
        try:
            first(one) if rank == 0 else second(other)
        except MPI.Exception as problem:
            text = str(problem)
        end = comm.Ibarrier()  # a rank that waits here for one of the case is not in a blocking call
        while not end.Test():
            time.sleep(0.01)
        found.append((name, comm.gather(text)))
    for name, texts in found if rank == 0 else ():
        if not all(texts[:2]):
            print("WRONG", name, "a rank got no error:", texts)
        if not any("mismatched collectives" in text and " of one" in text and " of other" in text for text in texts):
            print("WRONG", name, "no error names both communicators:", texts)


# ---------------------------------------------------------------- late: a barrier for which the ranks wait long


def late() -> None:
    """Wait in a barrier until messages about the wait are sent. They make no new connections."""
    comm.Barrier()
    before = comm.world.counters()["connections"]
    if rank == 0:
        until_a_rank_waits()
    comm.Barrier()
    more = comm.allgather(comm.world.counters()["connections"] - before)
    if rank == 0 and any(more):
        print("WRONG connections were made:", more)


# ---------------------------------------------------------------- legal


def thread(one: Any, other: Any) -> None:
    """A thread of rank 0 calls what the others wait for."""
    if rank:
        other.Barrier()
        one.Barrier()
        return

    def call() -> None:
        until_a_rank_waits()
        other.Barrier()

    beside = threading.Thread(target=call)
    beside.start()
    one.Barrier()
    beside.join()


def handler(one: Any, other: Any) -> None:
    """A signal handler ends the collective of rank 0, which then calls what the others wait for."""
    if rank:
        other.Barrier()
        return

    class Ended(Exception):
        pass

    def end(*_: Any) -> None:
        raise Ended

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, 3)
    try:
        one.Barrier()
        print("WRONG: a barrier ended without the other ranks")
    except Ended:
        other.Barrier()
    finally:
        signal.signal(signal.SIGALRM, before)


def begun(one: Any, other: Any) -> None:
    """Rank 0 has begun without blocking what rank 1 waits for. The last rank is late for both."""
    if rank == size - 1:
        stay_away(2.8)
    request = other.Ibarrier()
    if rank:
        request.Wait()
    one.Barrier()
    request.Wait()


def chain(one: Any, other: Any) -> None:
    """Rank 0 waits for rank 1, which waits in another communicator for the last rank, which is late."""
    few = one.Split(0 if rank < 2 else MPI.UNDEFINED)
    rest = other.Split(0 if rank else MPI.UNDEFINED)
    if rank == size - 1:
        until_a_rank_waits()
    if rank:
        rest.Barrier()
    if rank < 2:
        few.Barrier()


def inter(one: Any, other: Any) -> None:
    """The same with an intercommunicator."""
    mine = one.Split(int(rank > 0))
    both = mine.Create_intercomm(0, other, 0 if rank else 1)
    if rank == size - 1:
        until_a_rank_waits()
    if rank:
        mine.Barrier()
    both.Barrier()


LEGAL = (thread, begun, chain, inter, handler)


def legal() -> None:
    """Run each case."""
    for case in LEGAL:
        one, other = comm.Dup(), comm.Dup()
        while comm.take_notice(crossed.CROSSED_TAG):
            pass  # of the case before
        try:
            case(one, other)
        except MPI.Exception as problem:
            print("WRONG", case.__name__, problem)
        comm.Barrier()


faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
{"stuck": stuck, "late": late, "legal": legal}[sys.argv[1]]()
if rank == 0:
    print("END", flush=True)
