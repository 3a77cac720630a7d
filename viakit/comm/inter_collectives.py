"""Collectives of intercommunicators: one group of ranks sends, the other one receives, or both do both.

In the rooted operations the root passes ``MPI.ROOT`` and the other ranks of its group ``MPI.PROC_NULL``. The ranks of
the other group pass the root's rank. All operations are direct messages between the ranks that take part. They use the
numbers and the checks of a communicator of both groups (`_union`), so failures are reported as in every collective.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from viakit.base.words import counted
from viakit.comm import objects
from viakit.comm.collective_calls import SUM, Collectives, Made, _forms
from viakit.comm.constants import ROOT
from viakit.comm.errors import error
from viakit.comm.op import Op
from viakit.comm.schedule import Schedule, ScheduleRequest, run
from viakit.comm.spec import Simple, same_blocks, simple, vector, w_vector
from viakit.comm.status import PROC_NULL
from viakit.comm.step import Step

__all__ = ["InterCollectives"]


def _place(part: Simple) -> np.ndarray:
    """Return memory to receive a part into: the part itself if it has no gaps."""
    return part.pack() if part.direct else np.empty(part.nbytes, np.uint8)


class InterCollectives(Collectives):
    """The collective part of ``MPI.Intercomm``."""

    _union: Any
    _remote_base: int  # rank in the union of the remote group's rank 0

    # ------------------------------------------------------------ how they run

    def _run(self, made: Made) -> Any:
        step, schedule = made
        return run(self._union, schedule, step)

    def _begin(self, made: Made) -> ScheduleRequest:
        step, schedule = made
        return ScheduleRequest(self._union, schedule, step)

    def _refusing(self) -> Any:
        return self._union._refusing()

    def _of_objects(self, kind: str, root: int, schedule: Callable[..., Schedule], *args: Any) -> Any:
        with self._refusing():
            self._role(root)
            step = Step(self._union, kind)
        return run(self._union, schedule(step, root, *args), step)

    def _step(self, kind: str, root: int = PROC_NULL) -> Step:
        self._role(root)
        return Step(self._union, kind)

    def _role(self, root: int) -> None:
        """Raise ERR_ROOT unless *root* is ROOT, PROC_NULL, or a rank of the remote group."""
        if root not in (ROOT, PROC_NULL) and not 0 <= root < self._n_remote:
            raise error(
                "ERR_ROOT",
                f"root {root}: pass one of the remote ranks 0 to {self._n_remote - 1}; the root passes MPI.ROOT, and "
                "the other ranks of its group pass MPI.PROC_NULL",
            )

    @property
    def _n_remote(self) -> int:
        return int(self.remote_size)  # type: ignore[attr-defined]

    def _far(self) -> range:
        """Return the remote group's ranks in the union."""
        return range(self._remote_base, self._remote_base + self._n_remote)

    # ------------------------------------------------------------ the schedule of each

    def _barrier(self) -> Made:
        from viakit.comm import collective  # start-up time

        step = Step(self._union, "barrier")
        return step, collective.barrier(step)

    def _bcast(self, buf: Any, root: int = 0) -> Made:
        step = self._step("bcast", root)
        if root == PROC_NULL:
            return step, self._nothing()
        place = simple(buf, root != ROOT)
        if root == ROOT:
            data = place.pack()
            return step, self._exchange(step, [data] * self._n_remote, None)
        return step, self._from(step, root, place)

    def _gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = self._step("gather", root)
        into = same_blocks(simple(recvbuf, True, self._n_remote), self._n_remote) if root == ROOT else None
        return step, self._to_root(step, root, sendbuf, into)

    def _gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = self._step("gatherv", root)
        into = vector(recvbuf, True, self._n_remote) if root == ROOT else None
        return step, self._to_root(step, root, sendbuf, into)

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = self._step("scatter", root)
        out = same_blocks(simple(sendbuf, False, self._n_remote), self._n_remote) if root == ROOT else None
        return step, self._of_root(step, root, out, recvbuf)

    def _scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = self._step("scatterv", root)
        out = vector(sendbuf, False, self._n_remote) if root == ROOT else None
        return step, self._of_root(step, root, out, recvbuf)

    def _allgather(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, into = self._step("allgather"), same_blocks(simple(recvbuf, True, self._n_remote), self._n_remote)
        return step, self._exchange(step, [simple(sendbuf, False).pack()] * self._n_remote, into)

    def _allgatherv(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, into = self._step("allgatherv"), vector(recvbuf, True, self._n_remote)
        return step, self._exchange(step, [simple(sendbuf, False).pack()] * self._n_remote, into)

    def _alltoall(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, n = self._step("alltoall"), self._n_remote
        out, into = same_blocks(simple(sendbuf, False, n), n), same_blocks(simple(recvbuf, True, n), n)
        return step, self._exchange(step, [part.pack() for part in out], into)

    def _alltoallv(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, n = self._step("alltoallv"), self._n_remote
        out, into = vector(sendbuf, False, n), vector(recvbuf, True, n)
        return step, self._exchange(step, [part.pack() for part in out], into)

    def _alltoallw(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, n = self._step("alltoallw"), self._n_remote
        out, into = w_vector(sendbuf, False, n), w_vector(recvbuf, True, n)
        return step, self._exchange(step, [part.pack() for part in out], into)

    def _reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Made:
        step = self._step("reduce", root)
        if root == ROOT:
            return step, self._combining(step, [], simple(recvbuf, True), op)
        if root == PROC_NULL:
            return step, self._nothing()
        mine = simple(sendbuf, False)
        op.check(mine.datatype)
        return step, self._send_to(step, root, mine.pack())

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        step, into, mine = self._step("allreduce"), simple(recvbuf, True), simple(sendbuf, False)
        into.check_twin(mine)
        step.combines(op)
        return step, self._combining(step, [mine.pack()] * self._n_remote, into, op)

    def _reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        step, into = self._step("reduce_scatter_block"), simple(recvbuf, True)
        parts = same_blocks(simple(sendbuf, False, self._n_remote), self._n_remote)
        if parts and isinstance(sendbuf, (list, tuple)) and len(sendbuf) > 2:  # a count is that of one local block
            whole = simple(sendbuf, False, self.size)
            parts = same_blocks(whole, self._n_remote)
        step.combines(op)
        return step, self._combining(step, [part.pack() for part in parts], into, op)

    def _reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> Made:
        into, whole = simple(recvbuf, True), simple(sendbuf, False)
        counts = [into.count] * self.size if recvcounts is None else [int(count) for count in recvcounts]
        if recvcounts is None:
            counts = [int(count) for count in self._local_counts(into.count)]
        step = self._step("reduce_scatter")
        if len(counts) != self.size or sum(counts) != whole.count:
            raise ValueError(
                f"expecting {counted(self.size, 'count')}, one for each rank, with the sum {whole.count}; got {counts}"
            )
        # Each rank receives all remote data, because a sender does not know the counts of the remote group.
        first = sum(counts[: self.rank]) * whole.datatype.size
        part = Simple(into.memory, into.datatype, counts[self.rank], into.start)
        step.combines(op)
        out = [whole.pack()] * self._n_remote
        return step, self._combining(step, out, part, op, (first, whole.nbytes))

    def _local_counts(self, mine: int) -> list[int]:
        gathered, own = self._union.allgather(mine), 0 if self._remote_base else self._n_remote
        return list(gathered[own : own + self.size])

    # ------------------------------------------------------------ messages

    @staticmethod
    def _nothing() -> Schedule:
        yield []

    def _send_to(self, step: Step, root: int, data: Any) -> Schedule:
        yield [step.send(data, self._remote_base + root)]

    def _from(self, step: Step, root: int, place: Simple) -> Schedule:
        data = _place(place)
        yield [step.recv(data, self._remote_base + root)]
        if not place.direct:
            place.unpack(data)

    def _to_root(self, step: Step, root: int, sendbuf: Any, into: Sequence[Simple] | None) -> Schedule:
        if root == PROC_NULL:
            return self._nothing()
        if root == ROOT:
            return self._exchange(step, [], into)
        return self._send_to(step, root, simple(sendbuf, False).pack())

    def _of_root(self, step: Step, root: int, out: Sequence[Simple] | None, recvbuf: Any) -> Schedule:
        if root == PROC_NULL:
            return self._nothing()
        if root == ROOT:
            return self._exchange(step, [part.pack() for part in out or ()], None)
        return self._from(step, root, simple(recvbuf, True))

    def _exchange(self, step: Step, out: Sequence[Any], into: Sequence[Simple] | None) -> Schedule:
        """Send a piece to each remote rank, and receive a part from each."""
        data = [_place(part) for part in into or ()]
        yield [step.recv(piece, far) for piece, far in zip(data, self._far(), strict=False)] + [
            step.send(piece, far) for piece, far in zip(out, self._far(), strict=False)
        ]
        for part, piece in zip(into or (), data, strict=True):
            if not part.direct:
                part.unpack(piece)

    def _combining(
        self, step: Step, out: Sequence[Any], into: Simple, op: Op, slice_of: tuple[int, int] | None = None
    ) -> Schedule:
        """Send a piece to each remote rank, and combine what each of them sends, in the order of ranks.

        With `slice_of` (first byte, length of all) each remote rank sends more than this rank's part.
        """
        op.check(into.datatype)
        first, length = slice_of or (0, into.nbytes)
        data = [np.empty(length, np.uint8) for _ in self._far()]
        yield [step.recv(piece, far) for piece, far in zip(data, self._far(), strict=True)] + [
            step.send(piece, far) for piece, far in zip(out, self._far(), strict=False)
        ]
        parts = [piece[first : first + into.nbytes] for piece in data]
        have = parts[0]
        for other in parts[1:]:
            have = op.combine(have, other, into.datatype, into.count)
        into.unpack(have)

    # ------------------------------------------------------------ the three forms of each

    Barrier, Ibarrier, Barrier_init = _forms(_barrier, "wait until all ranks of both groups have called the barrier.")
    Bcast, Ibcast, Bcast_init = _forms(_bcast, "broadcast the root's buffer to the other group.")
    Gather, Igather, Gather_init = _forms(_gather, "gather buffers of equal length of the other group to the root.")
    Gatherv, Igatherv, Gatherv_init = _forms(_gatherv, "gather buffers of the other group to the root.")
    Scatter, Iscatter, Scatter_init = _forms(_scatter, "scatter equal parts of the root's buffer to the other group.")
    Scatterv, Iscatterv, Scatterv_init = _forms(_scatterv, "scatter parts of the root's buffer to the other group.")
    Allgather, Iallgather, Allgather_init = _forms(_allgather, "gather buffers of equal length of the other group.")
    Allgatherv, Iallgatherv, Allgatherv_init = _forms(_allgatherv, "gather the buffers of the other group.")
    Alltoall, Ialltoall, Alltoall_init = _forms(_alltoall, "exchange equal parts with each rank of the other group.")
    Alltoallv, Ialltoallv, Alltoallv_init = _forms(_alltoallv, "exchange parts with each rank of the other group.")
    Alltoallw, Ialltoallw, Alltoallw_init = _forms(
        _alltoallw, "exchange parts of any datatype with each rank of the other group."
    )
    Reduce, Ireduce, Reduce_init = _forms(_reduce, "combine the other group's buffers on the root.")  # type: ignore[assignment]
    Allreduce, Iallreduce, Allreduce_init = _forms(_allreduce, "combine the other group's buffers.")  # type: ignore[assignment]
    Reduce_scatter_block, Ireduce_scatter_block, Reduce_scatter_block_init = _forms(  # type: ignore[assignment]
        _reduce_scatter_block, "combine the buffers of the other group and scatter the result in equal parts."
    )
    Reduce_scatter, Ireduce_scatter, Reduce_scatter_init = _forms(  # type: ignore[assignment]
        _reduce_scatter, "combine the buffers of the other group and scatter the result."
    )

    # ------------------------------------------------------------ objects

    def barrier(self) -> None:
        """Wait until all ranks of both groups have called the barrier."""
        self.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Broadcast the root's object to the other group. Return it there, and None in the root's group."""
        return self._of_objects("bcast(object)", root, self._one_to_all, [obj] * self._n_remote)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Scatter the items of the root's sequence to the other group. Return this rank's item there."""
        items = [] if root != ROOT else [None] * self._n_remote if sendobj is None else list(sendobj)
        if root == ROOT and len(items) != self._n_remote:
            with self._refusing():
                raise ValueError(f"expecting {counted(self._n_remote, 'item')}, got {len(items)}")
        return self._of_objects("scatter(object)", root, self._one_to_all, items)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Gather the objects of the other group to the root. Return the list there, and None on other ranks."""
        return self._of_objects("gather(object)", root, self._all_to_one, sendobj)

    def reduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM, root: int = 0) -> Any:
        """Combine the objects of the other group on the root. Return the result there, and None on other ranks."""
        found = self._of_objects("reduce(object)", root, self._all_to_one, sendobj)
        return _combined(found, op) if root == ROOT else None

    def allgather(self, sendobj: Any) -> list[Any]:
        """Gather the objects of the other group, and return them in the order of ranks."""
        return self._of_objects("allgather(object)", PROC_NULL, self._all_to_all, [sendobj] * self._n_remote)

    def alltoall(self, sendobj: Sequence[Any] | None) -> list[Any]:
        """Send one item to each rank of the other group, and return the list of items received."""
        items = [None] * self._n_remote if sendobj is None else list(sendobj)
        if len(items) != self._n_remote:
            with self._refusing():
                raise ValueError(f"expecting {counted(self._n_remote, 'item')}, got {len(items)}")
        return self._of_objects("alltoall(object)", PROC_NULL, self._all_to_all, items)

    def allreduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Combine the objects of the other group, and return the result."""
        items = [sendobj] * self._n_remote
        return _combined(self._of_objects("allreduce(object)", PROC_NULL, self._all_to_all, items), op)

    def _one_to_all(self, step: Step, root: int, items: Sequence[Any]) -> Schedule:
        if root == ROOT:
            sends: list[Any] = []
            for item, far in zip(items, self._far(), strict=True):
                sends += objects.start_plain(step, objects.dump_plain(step, item, far), far)
            yield sends
        elif root != PROC_NULL:
            source = self._remote_base + root
            data = yield from objects.receiving_plain(step, source)
            return objects.load_plain(step, data, source, step.rank)
        return None

    def _all_to_one(self, step: Step, root: int, obj: Any) -> Schedule:
        if root == ROOT:
            found = []
            for far in self._far():
                found.append(objects.load_plain(step, (yield from objects.receiving_plain(step, far)), far))
            return found
        if root != PROC_NULL:
            yield objects.start_plain(step, objects.dump_plain(step, obj), self._remote_base + root)
        return None

    def _all_to_all(self, step: Step, root: int, items: Sequence[Any]) -> Schedule:
        del root
        far = self._far()
        data = [objects.dump_plain(step, item, to) for item, to in zip(items, far, strict=True)]
        heads = [bytearray(8) for _ in far]
        yield [step.recv(head, source) for head, source in zip(heads, far, strict=True)] + [
            step.send(struct.pack("<Q", len(piece)), to) for piece, to in zip(data, far, strict=True)
        ]
        into: list[Any] = [bytearray(struct.unpack("<Q", head)[0]) for head in heads]
        yield [step.recv(piece, source) for piece, source in zip(into, far, strict=True)] + [
            step.send(piece, to) for piece, to in zip(data, far, strict=True)
        ]
        return [objects.load_plain(step, piece, source, step.rank) for piece, source in zip(into, far, strict=True)]


def _combined(found: Sequence[Any], op: Callable[[Any, Any], Any]) -> Any:
    have = found[0]
    for other in found[1:]:
        have = op(have, other)
    return have


def _not_between_groups(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise error("ERR_COMM", f"{name} is not defined between two groups of ranks; Merge them into one communicator")

    call.__name__, call.__qualname__ = name, f"InterCollectives.{name}"
    call.__doc__ = "Raise ERR_COMM: this operation is not defined between two groups of ranks."
    return call


for _name in ("Scan", "Exscan", "Iscan", "Iexscan", "Scan_init", "Exscan_init", "scan", "exscan"):
    setattr(InterCollectives, _name, _not_between_groups(_name))
