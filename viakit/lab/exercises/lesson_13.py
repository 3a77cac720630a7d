"""Exercises of lesson 13, Write into another rank."""

from __future__ import annotations

import ast

from viakit.lab.exercises.common import on_ranks
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, text_of

__all__ = ["EXERCISES"]

_CALLS = ("Put", "Get", "Accumulate", "Compare_and_swap")

_SOLUTION = """
def shift(win, value):
    win.Fence()
    win.Put(value, (rank + 1) % size)
    win.Fence()
"""

_SHIFT = """
import numpy as np
from viakit.mpi import MPI
ANSWER
found = MPI.Win.Allocate(8, 8, comm=comm)
place = np.frombuffer(found.tomemory(), np.int64)
place[0] = -1
comm.Barrier()
began = found.counters()["puts"]
shift(found, np.array([100 + rank], np.int64))
seen = (int(place[0]), found.counters()["puts"] - began)
comm.Barrier()
found.Free()
seen
"""


def _writes(names: Names) -> str:
    origin, target, *_ = names.counted["Put"]
    close_to(names, "writes", origin["puts"], 0.001, "The table of the measurement has the number")
    close_to(names, "handled", target["active_received"], 0.001, "Print counted['Put'][1]: these are rank 1's counters")
    return "One RDMA write for each put. The target's NIC stores the data; its engine has nothing to handle."


def _by_target(names: Names) -> str:
    given = names.by_target
    if not isinstance(given, (set, frozenset)) or not all(isinstance(one, str) for one in given):
        raise Wrong(f"by_target is {given!r}; expected a set of names, such as {{'Get'}}")
    for name in sorted(given - set(_CALLS)):
        raise Wrong(f"{name!r} is none of {', '.join(_CALLS)}")
    for name in _CALLS:
        try:
            found = names.ranks.run(f"count({name!r}, 3, 8)", timeout_s=60)
        except Exception as error:
            raise Wrong(
                f"count() does not run on the ranks ({error}). Run the cells from the smallest program on"
            ) from None
        handled = ast.literal_eval(found[1])["active_received"]
        if handled and name not in given:
            raise Wrong(f"{name} is missing: for 3 calls the engine of rank 1 handled {handled} packets")
        if not handled and name in given:
            raise Wrong(f"for 3 calls of {name} the engine of rank 1 handled no packet")
    return "Reads and writes are RDMA. Updates are computed by the target, because VIA has no atomic operations."


def _shift(names: Names) -> str:
    text = text_of(names, "answer")
    if "def shift" not in text:
        raise Wrong("the text does not define shift(win, value)")
    seen = [ast.literal_eval(one) for one in on_ranks(3, names, "answer", _SHIFT)]
    for rank, (value, puts) in enumerate(seen):
        if puts == 0:
            raise Wrong(f"rank {rank} began no RDMA write; use win.Put")
        if value != 100 + (rank - 1) % 3:
            raise Wrong(f"the window of rank {rank} has {value}, and 100 + {(rank - 1) % 3} was expected")
    return "Two fences: the first opens the epoch on all ranks, the second waits until all data has arrived."


EXERCISES = (
    Exercise(
        ("writes", "handled"),
        _writes,
        ("The table of the measurement counts what rank 0 began.", "`counted` also has the counters of rank 1."),
        "writes, handled = 10, 0",
    ),
    Exercise(
        ("by_target",),
        _by_target,
        (
            "RDMA can write and read. Find the calls that also compute at the target.",
            "ranks.run(\"count('Accumulate', 3, 8)\") returns the counters of each rank.",
        ),
        'by_target = {"Accumulate", "Compare_and_swap"}',
    ),
    Exercise(
        ("answer",),
        _shift,
        (
            "The cell of the planted bug computes the number of the next rank.",
            "A Put needs an epoch. Which call opens one on all ranks?",
            "When may a rank return? Its own window must have the data of another rank.",
        ),
        f"answer = {_SOLUTION!r}",
    ),
)
