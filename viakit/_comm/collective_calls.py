"""Collectives under MPI's names; the blocking form of what csrc/coll has is in viakit._core."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

from viakit import _core
from viakit._comm import collective
from viakit._comm.errors import error
from viakit._comm.op import NAMED as OPS
from viakit._comm.op import Op
from viakit._comm.point import PointToPoint
from viakit._comm.request import Prequest, Request
from viakit._comm.schedule import Schedule, ScheduleRequest, run
from viakit._comm.spec import IN_PLACE, Simple, in_place, same_blocks, simple, vector, w_vector
from viakit._words import counted

SUM = OPS["SUM"]
_core.set_collective_types(simple, same_blocks, IN_PLACE, SUM)

Made = tuple[collective.Step, Schedule]
P = ParamSpec("P")


def _forms(
    make: Callable[Concatenate[Any, P], Made], text: str
) -> tuple[
    Callable[Concatenate[Any, P], None], Callable[Concatenate[Any, P], Request], Callable[Concatenate[Any, P], Prequest]
]:
    """Return the blocking, the non-blocking and the persistent form of what ``_name`` prepares, for Collectives.

    The blocking form of what csrc/coll has is in the core (group.pxi), and calls this one where messages are needed.
    """
    name = make.__name__[1:]
    upper = name[0].upper() + name[1:]

    def block(self: Collectives, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._run(self._make(make, *args, **kwargs))

    def begin(self: Collectives, /, *args: P.args, **kwargs: P.kwargs) -> Request:
        return self._begin(self._make(make, *args, **kwargs))

    def keep(self: Collectives, /, *args: P.args, **kwargs: P.kwargs) -> Prequest:
        kwargs.pop("info", None)
        return self._kept(lambda: self._make(make, *args, **kwargs))

    blocking = f"_block_{name}" if hasattr(_core.CollectiveComm, upper) else upper
    named: tuple[tuple[str, Any, str], ...] = (
        (blocking, block, text),
        (f"I{name}", begin, f"Start: {text}"),
        (f"{upper}_init", keep, f"Keep: {text}"),
    )
    for form, function, says in named:
        function.__name__, function.__qualname__, function.__doc__ = form, f"Collectives.{form}", says
        function.__signature__ = inspect.signature(make)
    return block, begin, keep


class Collectives(PointToPoint):
    """The collective part of ``MPI.Comm``: each is prepared once, and run, started, or kept to be started again."""

    def _run(self, made: Made) -> Any:
        step, schedule = made
        return run(self, schedule, step)

    def _begin(self, made: Made) -> ScheduleRequest:
        step, schedule = made
        return ScheduleRequest(self, schedule, step)

    def _kept(self, make: Callable[[], Made]) -> Prequest:
        return Prequest(lambda: self._begin(make()))

    def _make(self, make: Callable[..., Made], *args: Any, **kwargs: Any) -> Made:
        """Prepare a collective; the others are told if its arguments are refused here."""
        before = self._n_collectives
        try:
            return make(self, *args, **kwargs)
        except BaseException:
            if self._n_collectives == before + 1:
                collective.give_up(self, before + 1)
            raise

    # ------------------------------------------------------------ what each of them does

    def _barrier(self) -> Made:
        step = collective.Step(self, "barrier")
        return step, collective.barrier(step)

    def _bcast(self, buf: Any, root: int = 0) -> Made:
        step = collective.Step(self, "bcast", root)
        return step, collective.bcast(step, simple(buf, self.rank != root))

    def _gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = collective.Step(self, "gather", root)
        into = same_blocks(simple(recvbuf, True, self.size), self.size) if self.rank == root else None
        mine = self._send_side(sendbuf, self.rank == root)
        each = mine.nbytes if mine is not None else into[0].nbytes if into else 0
        if mine is not None and into is not None and mine.nbytes != into[0].nbytes:
            raise error(
                "ERR_TRUNCATE", f"gather: {mine.nbytes} bytes are sent where {into[0].nbytes} are to be received"
            )
        return step, collective.gather(step, mine, into, each)

    def _gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = collective.Step(self, "gatherv", root)
        into = vector(recvbuf, True, self.size).parts if self.rank == root else None
        return step, collective.gather(step, self._send_side(sendbuf, self.rank == root), into)

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = collective.Step(self, "scatter", root)
        out = same_blocks(simple(sendbuf, False, self.size), self.size) if self.rank == root else None
        mine = self._recv_side(recvbuf, self.rank == root)
        each = mine.nbytes if mine is not None else out[0].nbytes if out else 0
        if mine is not None and out is not None and mine.nbytes != out[0].nbytes:
            raise error(
                "ERR_TRUNCATE", f"scatter: {out[0].nbytes} bytes are sent where {mine.nbytes} are to be received"
            )
        return step, collective.scatter(step, out, mine, each)

    def _scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = collective.Step(self, "scatterv", root)
        out = vector(sendbuf, False, self.size).parts if self.rank == root else None
        return step, collective.scatter(step, out, self._recv_side(recvbuf, self.rank == root))

    def _allgather(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = collective.Step(self, "allgather")
        into = same_blocks(simple(recvbuf, True, self.size), self.size)
        return step, collective.allgather(step, self._send_side(sendbuf, True), into)

    def _allgatherv(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = collective.Step(self, "allgatherv")
        into = vector(recvbuf, True, self.size).parts
        return step, collective.allgather(step, self._send_side(sendbuf, True), into)

    def _alltoall(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = collective.Step(self, "alltoall")
        into = same_blocks(simple(recvbuf, True, self.size), self.size)
        out = None if in_place(sendbuf) else same_blocks(simple(sendbuf, False, self.size), self.size)
        return step, collective.alltoall(step, out, into, equal=True)

    def _alltoallv(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = collective.Step(self, "alltoallv")
        into = vector(recvbuf, True, self.size).parts
        out = None if in_place(sendbuf) else vector(sendbuf, False, self.size).parts
        return step, collective.alltoall(step, out, into)

    def _alltoallw(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = collective.Step(self, "alltoallw")
        into = w_vector(recvbuf, True, self.size).parts
        out = None if in_place(sendbuf) else w_vector(sendbuf, False, self.size).parts
        return step, collective.alltoall(step, out, into)

    def _reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Made:
        step = collective.Step(self, "reduce", root)
        into = simple(recvbuf, True) if self.rank == root else None
        mine = into if in_place(sendbuf) and into is not None else simple(sendbuf, False)
        return step, collective.reduce(step, mine, self._fitting(into, mine), op)

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        step = collective.Step(self, "allreduce")
        into = simple(recvbuf, True)
        mine = into if in_place(sendbuf) else simple(sendbuf, False)
        self._fitting(into, mine)
        return step, collective.allreduce(step, mine, into, op)

    def _reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        step = collective.Step(self, "reduce_scatter_block")
        if in_place(sendbuf):
            mine = same_blocks(simple(recvbuf, True, self.size), self.size)
            into = mine[0]
        else:
            mine = same_blocks(simple(sendbuf, False, self.size), self.size)
            into = simple(recvbuf, True)
        return step, collective.reduce_scatter(step, mine, self._fitting(into, mine[0]) or into, op)

    def _reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> Made:
        step = collective.Step(self, "reduce_scatter")
        into = simple(recvbuf, True)
        whole = into if in_place(sendbuf) else simple(sendbuf, False)
        if recvcounts is None:
            counts = [whole.count // self.size] * self.size if in_place(sendbuf) else list(self.allgather(into.count))
        else:
            counts = [int(count) for count in recvcounts]
        if len(counts) != self.size:
            raise ValueError(f"expecting {self.size} counts, got {len(counts)}")
        if sum(counts) != whole.count:
            raise ValueError(f"the counts add up to {sum(counts)}, but what is sent has {counted(whole.count, 'item')}")
        if not in_place(sendbuf) and counts[self.rank] != into.count:
            raise ValueError(f"room for {counted(into.count, 'item')} where {counts[self.rank]} are to be received")
        extent = whole.datatype.extent
        parts = [
            Simple(whole.memory, whole.datatype, n, whole.start + sum(counts[:i]) * extent)
            for i, n in enumerate(counts)
        ]
        target = Simple(into.memory, into.datatype, counts[self.rank], into.start)
        return step, collective.reduce_scatter(step, parts, target, op)

    def _scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        return self._prefix("scan", sendbuf, recvbuf, op)

    def _exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        return self._prefix("exscan", sendbuf, recvbuf, op)

    def _prefix(self, kind: str, sendbuf: Any, recvbuf: Any, op: Op) -> Made:
        step = collective.Step(self, kind)
        into = simple(recvbuf, True)
        mine = into if in_place(sendbuf) else simple(sendbuf, False)
        self._fitting(into, mine)
        return step, collective.scan(step, mine, into, op, kind == "exscan")

    def _send_side(self, sendbuf: Any, may_be_in_place: bool) -> Simple | None:
        return None if in_place(sendbuf) and may_be_in_place else simple(sendbuf, False)

    def _recv_side(self, recvbuf: Any, may_be_in_place: bool) -> Simple | None:
        return None if in_place(recvbuf) and may_be_in_place else simple(recvbuf, True)

    @staticmethod
    def _fitting(into: Simple | None, mine: Simple) -> Simple | None:
        if into is not None:
            into.check_twin(mine)
        return into

    # ------------------------------------------------------------ the three forms of each

    _block_barrier, Ibarrier, Barrier_init = _forms(_barrier, "wait until all ranks are here.")
    _block_bcast, Ibcast, Bcast_init = _forms(_bcast, "the root's buffer, into all ranks' buffers.")
    Gather, Igather, Gather_init = _forms(_gather, "all ranks' buffers, one after the other, on the root.")
    Gatherv, Igatherv, Gatherv_init = _forms(_gatherv, "the same with a count and a place for each rank.")
    Scatter, Iscatter, Scatter_init = _forms(_scatter, "this rank's part of the root's buffer.")
    Scatterv, Iscatterv, Scatterv_init = _forms(_scatterv, "the same with a count and a place for each rank.")
    _block_allgather, Iallgather, Allgather_init = _forms(_allgather, "all ranks' buffers, one after the other.")
    Allgatherv, Iallgatherv, Allgatherv_init = _forms(_allgatherv, "the same with a count and a place for each rank.")
    _block_alltoall, Ialltoall, Alltoall_init = _forms(_alltoall, "from each rank the part that it has for this one.")
    Alltoallv, Ialltoallv, Alltoallv_init = _forms(_alltoallv, "the same with a count and a place for each rank.")
    Alltoallw, Ialltoallw, Alltoallw_init = _forms(
        _alltoallw, "the same with a datatype for each rank, too, and places in bytes."
    )
    _block_reduce, Ireduce, Reduce_init = _forms(_reduce, "all ranks' buffers combined, on the root.")
    _block_allreduce, Iallreduce, Allreduce_init = _forms(_allreduce, "all ranks' buffers combined, on all.")
    Reduce_scatter_block, Ireduce_scatter_block, Reduce_scatter_block_init = _forms(
        _reduce_scatter_block, "this rank's part of all ranks' buffers combined, in equal parts."
    )
    Reduce_scatter, Ireduce_scatter, Reduce_scatter_init = _forms(
        _reduce_scatter, "the same with a count for each rank."
    )
    Scan, Iscan, Scan_init = _forms(_scan, "the buffers of ranks 0 to this one combined.")
    Exscan, Iexscan, Exscan_init = _forms(_exscan, "the buffers of the ranks before this one combined.")

    # ------------------------------------------------------------ objects

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The root's object, on all ranks."""
        step = collective.Step(self, "bcast(object)", root)
        return run(self, collective.bcast_object(step, obj), step)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """All ranks' objects in a list on the root; None elsewhere."""
        step = collective.Step(self, "gather(object)", root)
        return run(self, collective.gather_object(step, sendobj), step)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Of this rank's item of the root's sequence."""
        step = collective.Step(self, "scatter(object)", root)
        return run(self, collective.scatter_object(step, sendobj), step)

    def allgather(self, sendobj: Any) -> list[Any]:
        """All ranks' objects in a list."""
        step = collective.Step(self, "allgather(object)")
        return run(self, collective.allgather_object(step, sendobj), step)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """What each rank has for this one, in a list."""
        step = collective.Step(self, "alltoall(object)")
        return run(self, collective.alltoall_object(step, sendobj), step)

    def reduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM, root: int = 0) -> Any:
        """All ranks' objects combined, on the root; None elsewhere."""
        step = collective.Step(self, "reduce(object)", root)
        return run(self, collective.reduce_object(step, sendobj, op), step)

    def allreduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """All ranks' objects combined, on all."""
        step = collective.Step(self, "allreduce(object)")
        return run(self, collective.allreduce_object(step, sendobj, op), step)

    def scan(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """The objects of ranks 0 to this one combined."""
        step = collective.Step(self, "scan(object)")
        return run(self, collective.scan_object(step, sendobj, op, False), step)

    def exscan(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """The objects of the ranks before this one combined; None on rank 0."""
        step = collective.Step(self, "exscan(object)")
        return run(self, collective.scan_object(step, sendobj, op, True), step)
