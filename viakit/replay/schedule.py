"""Schedules: operations of each rank, where they come from, and their replay."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from viakit import _core
from viakit.replay.model import Model

__all__ = ["KINDS", "Outcome", "Schedule", "ScheduleError", "barrier", "collective", "read", "run"]

KINDS: tuple[str, ...] = _core.SIM_KINDS
COMPUTE, SEND, RECV, ISEND, IRECV, WAITALL, WRITE, AWAIT = range(len(KINDS))
FORMAT = "viakit.schedule/1"


class ScheduleError(ValueError):
    """A schedule has an error; the message gives the rank and the operation."""


@dataclass
class Schedule:
    """Operations of each rank, in order.

    Attributes
    ----------
    ranks : list
        For each rank an array of integers, five for an operation: kind, peer, tag, bytes, nanoseconds.
    title : str
        Description.
    """

    ranks: list[array[int]]
    title: str = ""

    @classmethod
    def empty(cls, ranks: int, title: str = "") -> Schedule:
        """Return a schedule without operations."""
        return cls([array("q") for _ in range(ranks)], title)

    def compute(self, rank: int, seconds: float) -> None:
        """Append computing."""
        self.ranks[rank].extend((COMPUTE, 0, 0, 0, round(seconds * 1e9)))

    def send(self, rank: int, peer: int, nbytes: int, tag: int = 0, wait: bool = True) -> None:
        """Append a send; without *wait* it completes in :meth:`wait`."""
        self.ranks[rank].extend((SEND if wait else ISEND, peer, tag, nbytes, 0))

    def recv(self, rank: int, peer: int, tag: int = 0, wait: bool = True) -> None:
        """Append a receive; without *wait* it completes in :meth:`wait`."""
        self.ranks[rank].extend((RECV if wait else IRECV, peer, tag, 0, 0))

    def wait(self, rank: int) -> None:
        """Append a wait for everything that was begun without one."""
        self.ranks[rank].extend((WAITALL, 0, 0, 0, 0))

    def write(self, rank: int, peer: int, nbytes: int, tag: int = 0) -> None:
        """Append an RDMA write."""
        self.ranks[rank].extend((WRITE, peer, tag, nbytes, 0))

    def wait_write(self, rank: int, peer: int, tag: int = 0) -> None:
        """Append a wait for an RDMA write of the peer."""
        self.ranks[rank].extend((AWAIT, peer, tag, 0, 0))

    def __iter__(self) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield rank, kind, peer, tag, bytes and nanoseconds of each operation, rank by rank."""
        for rank, ops in enumerate(self.ranks):
            for i in range(0, len(ops), 5):
                kind, peer, tag, nbytes, ns = ops[i : i + 5]
                yield rank, kind, peer, tag, nbytes, ns

    def traffic(self) -> tuple[int, int]:
        """Return the number of messages and their bytes."""
        sent = [nbytes for _, kind, _, _, nbytes, _ in self if kind in (SEND, ISEND, WRITE)]
        return len(sent), sum(sent)

    def to_json(self) -> dict[str, Any]:
        """Return the schedule as a document of the format viakit.schedule/1."""
        ranks = [[[KINDS[ops[i]], *ops[i + 1 : i + 5]] for i in range(0, len(ops), 5)] for ops in self.ranks]
        return {"schema": FORMAT, "title": self.title, "fields": ["kind", "peer", "tag", "bytes", "ns"], "ranks": ranks}


def read(path: str | os.PathLike[str]) -> Schedule:
    """Return the schedule of a file of the format viakit.schedule/1.

    Raises
    ------
    ScheduleError
        If the file is not a schedule.
    OSError
        If it cannot be read.
    """
    with open(path, encoding="utf-8") as file:
        try:
            document = json.load(file)
            if document["schema"] != FORMAT:
                raise ScheduleError(f"{path}: schema {document['schema']!r}; expected {FORMAT}")
            ranks = []
            for ops in document["ranks"]:
                found = array("q")
                for kind, *numbers in ops:
                    peer, tag, nbytes, ns = numbers
                    found.extend((KINDS.index(kind), peer, tag, nbytes, ns))
                ranks.append(found)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, ScheduleError):
                raise
            raise ScheduleError(f"{path}: not a schedule ({error}); `viakit trace --schedule` writes one") from None
    if not ranks:
        raise ScheduleError(f"{path}: the schedule has no ranks")
    return Schedule(ranks, str(document.get("title", "")))


@dataclass(frozen=True)
class Outcome:
    """Result of a replay.

    Attributes
    ----------
    ends_s, waits_s : list of float
        End of each rank, and its time in waits for other ranks, in seconds of virtual time.
    messages, nbytes : int
        Messages and their bytes.
    """

    ends_s: list[float]
    waits_s: list[float]
    messages: int
    nbytes: int
    hosts: Sequence[int] = field(default=(), repr=False)

    @property
    def end_s(self) -> float:
        """End of the last rank."""
        return max(self.ends_s)


def run(schedule: Schedule, costs: Model, hosts: Sequence[int] | int = 1) -> Outcome:
    """Replay a schedule.

    Parameters
    ----------
    schedule : Schedule
        The operations.
    costs : Model
        Costs of messages: :func:`viakit.replay.model.model`.
    hosts : sequence of int, or int
        Host of each rank, or the number of successive ranks on a host.

    Raises
    ------
    ScheduleError
        If an operation is invalid, or the schedule deadlocks.
    """
    n = len(schedule.ranks)
    where = array("q", (rank // hosts for rank in range(n)) if isinstance(hosts, int) else hosts)
    first, ops = array("q", [0]), array("q")
    for one in schedule.ranks:
        ops.extend(one)
        first.append(len(ops) // 5)
    try:
        ends, waits, messages, nbytes = _core.sim_replay(costs.numbers(), where, first, ops)
    except ValueError as error:
        raise ScheduleError(str(error)) from None
    return Outcome([one * 1e-9 for one in ends], [one * 1e-9 for one in waits], messages, nbytes, where)


def barrier(algorithm: str, ranks: int, per_host: int = 1, cores: int = 1, repeats: int = 1) -> Schedule:
    """Return the schedule of barriers by an algorithm of csrc/coll, in which signals by RDMA are writes of 8 bytes.

    Parameters
    ----------
    algorithm : str
        Name of the algorithm, such as "rdma", "message" or "overall".
    ranks, per_host, cores : int
        Number of ranks, ranks on each host, and cores of each host.
    repeats : int
        Number of barriers, one after the other.

    Raises
    ------
    ValueError
        If the algorithm is unknown, or has no such schedule.
    """
    by_message = _core.barrier_by_message(algorithm) if algorithm in _core.barrier_algorithms() else False
    made = Schedule.empty(ranks, f"{repeats} x barrier {algorithm}")
    signal = (SEND, 0) if by_message else (WRITE, 8)
    for rank in range(ranks):
        ops = made.ranks[rank]
        for step, peer in _core.barrier_plan(algorithm, ranks, rank, per_host, cores):
            if step == "signal":
                ops.extend((signal[0], peer, 0, signal[1], 0))
            else:
                ops.extend((RECV if by_message else AWAIT, peer, 0, 0, 0))
        made.ranks[rank] = ops * repeats
    return made


def collective(operation: str, ranks: int, nbytes: int, is_long: bool = False, root: int = 0) -> Schedule:
    """Return the schedule of a collective operation by its algorithm for messages (csrc/coll/plan.c).

    Parameters
    ----------
    operation : str
        Such as "bcast", "allreduce", "alltoall".
    ranks, nbytes : int
        Number of ranks, and bytes of the operand (of one part in allgather and alltoall).
    is_long : bool
        Use the algorithm for long data.
    root : int
        Root of the operation, if it has one.
    """
    made = Schedule.empty(ranks, f"{operation} of {nbytes} bytes")
    for rank in range(ranks):
        add_steps(made, rank, _core.collective_plan(operation, is_long, ranks, rank, root, nbytes))
    return made


def add_steps(made: Schedule, rank: int, steps: Iterable[Sequence[int]], tag: int = 0) -> None:
    """Append the exchanges of a plan; combinations and copies cost nothing here."""
    for kind, to, source, _, out_len, _, _, _ in steps:
        if kind != 0:  # COLL_STEP_EXCHANGE
            continue
        if to >= 0 and source >= 0:
            made.recv(rank, source, tag, wait=False)
            made.send(rank, to, out_len, tag, wait=False)
            made.wait(rank)
        elif to >= 0:
            made.send(rank, to, out_len, tag)
        elif source >= 0:
            made.recv(rank, source, tag)
