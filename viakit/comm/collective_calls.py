"""Collectives under MPI's names. The fast blocking forms are in viakit._core (collective.pxi to direct.pxi)."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

from viakit import _core
from viakit.base.words import counted
from viakit.comm import collective
from viakit.comm import step as steps
from viakit.comm.errors import error
from viakit.comm.op import NAMED as OPS
from viakit.comm.op import Op
from viakit.comm.point import PointToPoint
from viakit.comm.request import Prequest, Request
from viakit.comm.schedule import Schedule, ScheduleRequest, run
from viakit.comm.spec import IN_PLACE, Simple, in_place, same_blocks, simple, vector, w_vector
from viakit.comm.step import Step

SUM = OPS["SUM"]
_core.set_collective_types(simple, same_blocks, IN_PLACE, SUM, steps)

Made = tuple[Step, Schedule]
P = ParamSpec("P")


def _forms(
    make: Callable[Concatenate[Any, P], Made], text: str
) -> tuple[
    Callable[Concatenate[Any, P], None], Callable[Concatenate[Any, P], Request], Callable[Concatenate[Any, P], Prequest]
]:
    """Return the blocking, the non-blocking and the persistent form of the collective that ``_name`` prepares.

    `text` is the docstring of the collective and begins with an infinitive: "gather data of all ranks to the root.".
    If the core has a form for plain arguments, this one bears another name, and the core calls it for all others.
    """
    name = make.__name__[1:]
    upper = name[0].upper() + name[1:]

    def block(self: Collectives, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._run(self._make(make, *args, **kwargs))

    def begin(self: Collectives, /, *args: P.args, **kwargs: P.kwargs) -> Request:
        return self._begin(self._make(make, *args, **kwargs))

    def keep(self: Collectives, /, *args: P.args, **kwargs: P.kwargs) -> Prequest:
        kwargs.pop("info", None)
        if short is None or self.is_inter:
            return Prequest(lambda: begin(self, *args, **kwargs))
        return Prequest(lambda: short(self, *args, **kwargs))

    short = getattr(_core.DirectComm, f"I{name}", None)
    blocking = f"_block_{name}" if hasattr(_core.DirectComm, upper) else upper
    named: tuple[tuple[str, Any, str], ...] = (
        (blocking, block, text[0].upper() + text[1:]),
        (f"_begin_{name}" if short else f"I{name}", begin, f"Start to {text}"),
        (f"{upper}_init", keep, f"Create a persistent request to {text}"),
    )
    for form, function, says in named:
        function.__name__, function.__qualname__, function.__doc__ = form, f"Collectives.{form}", says
        function.__signature__ = inspect.signature(make)
    return block, begin, keep


class _Refusing:
    """Context of the checks of a collective's arguments. A generator would cost three times as much."""

    __slots__ = ("_comm", "_number")

    def __init__(self, comm: Any) -> None:
        self._comm, self._number = comm, comm._n_collectives + 1

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, problem: BaseException | None, *_: object) -> None:
        comm, number = self._comm, self._number
        if problem is not None and not comm._freed and not comm.world.closed:
            comm._n_collectives = max(comm._n_collectives, number)
            steps.give_up(comm, number, problem)


class Collectives(PointToPoint):
    """The collective part of ``MPI.Comm``. All ranks must call the same collectives in the same order.

    A buffer argument is an array, or a list such as [buffer, count, datatype]. A vector form (Gatherv, ...) takes
    [buffer, counts, displacements, datatype], with counts and displacements in elements. IN_PLACE stands for data that
    already is in the other buffer.
    """

    is_inter: bool

    def _run(self, made: Made) -> Any:
        step, schedule = made
        return run(self, schedule, step)

    def _begin(self, made: Made) -> ScheduleRequest:
        step, schedule = made
        return ScheduleRequest(self, schedule, step)

    def _make(self, make: Callable[..., Made], *args: Any, **kwargs: Any) -> Made:
        """Prepare a collective. If this rank refuses its arguments, the other ranks are notified."""
        with self._refusing():
            return make(self, *args, **kwargs)

    def _refusing(self) -> _Refusing:
        """Check the arguments of a collective. After an error it is abandoned, but counted as on all ranks."""
        return _Refusing(self)

    def _of_objects(self, kind: str, root: int, schedule: Callable[..., Schedule], *args: Any) -> Any:
        step = Step(self, kind, root)
        return run(self, schedule(step, *args), step)

    # ------------------------------------------------------------ the schedule of each

    def _barrier(self) -> Made:
        step = Step(self, "barrier")
        return step, collective.barrier(step)

    def _bcast(self, buf: Any, root: int = 0) -> Made:
        step = Step(self, "bcast", root)
        return step, collective.bcast(step, simple(buf, self.rank != root))

    def _gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = Step(self, "gather", root)
        into = same_blocks(simple(recvbuf, True, self.size), self.size) if self.rank == root else None
        mine = self._send_side(sendbuf, self.rank == root)
        each = mine.nbytes if mine is not None else into[0].nbytes if into else 0
        if mine is not None and into is not None and mine.nbytes != into[0].nbytes:
            raise error(
                "ERR_TRUNCATE", f"gather: {mine.nbytes} bytes are sent where {into[0].nbytes} are to be received"
            )
        return step, collective.gather(step, mine, into, each)

    def _gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = Step(self, "gatherv", root)
        into = vector(recvbuf, True, self.size) if self.rank == root else None
        return step, collective.gather(step, self._send_side(sendbuf, self.rank == root), into)

    def _scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = Step(self, "scatter", root)
        out = same_blocks(simple(sendbuf, False, self.size), self.size) if self.rank == root else None
        mine = self._recv_side(recvbuf, self.rank == root)
        each = mine.nbytes if mine is not None else out[0].nbytes if out else 0
        if mine is not None and out is not None and mine.nbytes != out[0].nbytes:
            raise error(
                "ERR_TRUNCATE", f"scatter: {out[0].nbytes} bytes are sent where {mine.nbytes} are to be received"
            )
        return step, collective.scatter(step, out, mine, each)

    def _scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> Made:
        step = Step(self, "scatterv", root)
        out = vector(sendbuf, False, self.size) if self.rank == root else None
        return step, collective.scatter(step, out, self._recv_side(recvbuf, self.rank == root))

    def _allgather(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = Step(self, "allgather")
        into = same_blocks(simple(recvbuf, True, self.size), self.size)
        return step, collective.allgather(step, self._send_side(sendbuf, True), into)

    def _allgatherv(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = Step(self, "allgatherv")
        into = vector(recvbuf, True, self.size)
        return step, collective.allgather(step, self._send_side(sendbuf, True), into)

    def _alltoall(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = Step(self, "alltoall")
        into = same_blocks(simple(recvbuf, True, self.size), self.size)
        out = None if in_place(sendbuf) else same_blocks(simple(sendbuf, False, self.size), self.size)
        return step, collective.alltoall(step, out, into, equal=True)

    def _alltoallv(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = Step(self, "alltoallv")
        into = vector(recvbuf, True, self.size)
        out = None if in_place(sendbuf) else vector(sendbuf, False, self.size)
        return step, collective.alltoall(step, out, into)

    def _alltoallw(self, sendbuf: Any, recvbuf: Any) -> Made:
        step = Step(self, "alltoallw")
        into = w_vector(recvbuf, True, self.size)
        out = None if in_place(sendbuf) else w_vector(sendbuf, False, self.size)
        return step, collective.alltoall(step, out, into)

    def _reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> Made:
        step = Step(self, "reduce", root)
        into = simple(recvbuf, True) if self.rank == root else None
        mine = into if in_place(sendbuf) and into is not None else simple(sendbuf, False)
        return step, collective.reduce(step, mine, self._fitting(into, mine), op)

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        step = Step(self, "allreduce")
        into = simple(recvbuf, True)
        mine = into if in_place(sendbuf) else simple(sendbuf, False)
        self._fitting(into, mine)
        step.combines(op)
        return step, collective.allreduce(step, mine, into, op)

    def _reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        step = Step(self, "reduce_scatter_block")
        if in_place(sendbuf):
            mine = same_blocks(simple(recvbuf, True, self.size), self.size)
            into = mine[0]
        else:
            mine = same_blocks(simple(sendbuf, False, self.size), self.size)
            into = simple(recvbuf, True)
        step.combines(op)
        return step, collective.reduce_scatter(step, mine, self._fitting(into, mine[0]) or into, op)

    def _reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> Made:
        step = Step(self, "reduce_scatter")
        into = simple(recvbuf, True)
        whole = into if in_place(sendbuf) else simple(sendbuf, False)
        if recvcounts is None:
            counts = [whole.count // self.size] * self.size if in_place(sendbuf) else list(self._gather_all(into.count))
        else:
            counts = [operator.index(count) for count in recvcounts]
        if len(counts) != self.size:
            raise ValueError(f"expecting {self.size} counts, got {len(counts)}")
        if sum(counts) != whole.count:
            raise collective.uneven(counts, whole.count)
        if not in_place(sendbuf) and counts[self.rank] != into.count:
            raise ValueError(
                f"the receive buffer holds {counted(into.count, 'item')}, but {counts[self.rank]} are to be received"
            )
        extent = whole.datatype.extent
        parts = [
            Simple(whole.memory, whole.datatype, n, whole.start + sum(counts[:i]) * extent)
            for i, n in enumerate(counts)
        ]
        target = Simple(into.memory, into.datatype, counts[self.rank], into.start)
        if not in_place(sendbuf):
            self._fitting(target, parts[self.rank])
        step.combines(op)
        return step, collective.reduce_scatter(step, parts, target, op)

    def _scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        return self._prefix("scan", sendbuf, recvbuf, op)

    def _exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> Made:
        return self._prefix("exscan", sendbuf, recvbuf, op)

    def _prefix(self, kind: str, sendbuf: Any, recvbuf: Any, op: Op) -> Made:
        step = Step(self, kind)
        into = simple(recvbuf, True)
        mine = into if in_place(sendbuf) else simple(sendbuf, False)
        self._fitting(into, mine)
        step.combines(op)
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

    _block_barrier, _begin_barrier, Barrier_init = _forms(_barrier, "wait until all ranks have called the barrier.")
    _block_bcast, _begin_bcast, Bcast_init = _forms(_bcast, "broadcast the root's buffer to all ranks.")
    _block_gather, _begin_gather, Gather_init = _forms(
        _gather, "gather buffers of equal length to the root, in the order of ranks."
    )
    _block_gatherv, _begin_gatherv, Gatherv_init = _forms(
        _gatherv, "gather buffers to the root, with a count and a displacement for each rank."
    )
    _block_scatter, _begin_scatter, Scatter_init = _forms(
        _scatter, "scatter equal parts of the root's buffer to the ranks."
    )
    _block_scatterv, _begin_scatterv, Scatterv_init = _forms(
        _scatterv, "scatter parts of the root's buffer, with a count and a displacement for each rank."
    )
    _block_allgather, _begin_allgather, Allgather_init = _forms(
        _allgather, "gather buffers of equal length to all ranks, in the order of ranks."
    )
    _block_allgatherv, _begin_allgatherv, Allgatherv_init = _forms(
        _allgatherv, "gather buffers to all ranks, with a count and a displacement for each rank."
    )
    _block_alltoall, _begin_alltoall, Alltoall_init = _forms(
        _alltoall, "send an equal part of the buffer to each rank, and receive one from each rank."
    )
    _block_alltoallv, _begin_alltoallv, Alltoallv_init = _forms(
        _alltoallv, "exchange parts of the buffers, with a count and a displacement for each rank."
    )
    _block_alltoallw, _begin_alltoallw, Alltoallw_init = _forms(
        _alltoallw,
        "exchange parts of the buffers, with a count, a displacement in bytes and a datatype for each rank.",
    )
    _block_reduce, _begin_reduce, Reduce_init = _forms(_reduce, "combine the buffers of all ranks on the root.")
    _block_allreduce, _begin_allreduce, Allreduce_init = _forms(
        _allreduce, "combine the buffers of all ranks, with the result on all ranks."
    )
    _block_reduce_scatter_block, _begin_reduce_scatter_block, Reduce_scatter_block_init = _forms(
        _reduce_scatter_block, "combine the buffers of all ranks and scatter the result in equal parts."
    )
    _block_reduce_scatter, _begin_reduce_scatter, Reduce_scatter_init = _forms(
        _reduce_scatter, "combine the buffers of all ranks and scatter the result, with a count for each rank."
    )
    _block_scan, _begin_scan, Scan_init = _forms(_scan, "combine the buffers of ranks 0 to this one.")
    _block_exscan, _begin_exscan, Exscan_init = _forms(_exscan, "combine the buffers of all lower ranks.")

    # ------------------------------------------------------------ objects

    def barrier(self) -> None:
        """Wait until all ranks have called the barrier."""
        self.Barrier()

    def _gather_all(self, mine: Any) -> list[Any]:
        """Gather an object of each rank for viakit's own use: a subclass of the program's may replace `allgather`."""
        return _core.DirectComm.allgather(self, mine)

    def _allgather_block_any(self, block: bytes) -> list[bytes]:
        """Gather short blocks of equal length by messages, when the short path cannot."""
        found: list[bytes] = self._of_objects("allgather(object)", 0, collective.allgather_block, block)
        return found

    def _bcast_any(self, obj: Any, root: int = 0) -> Any:
        """Perform `bcast` by messages, for whatever the short path leaves."""
        return self._of_objects("bcast(object)", root, collective.bcast_object, obj)

    def _gather_any(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Perform `gather` by messages, for whatever the short path leaves."""
        return self._of_objects("gather(object)", root, collective.gather_object, sendobj)

    def _scatter_any(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Perform `scatter` by messages, for whatever the short path leaves."""
        return self._of_objects("scatter(object)", root, collective.scatter_object, sendobj)

    def _allgather_any(self, sendobj: Any) -> list[Any]:
        """Perform `allgather` by messages, for whatever the short path leaves."""
        return self._of_objects("allgather(object)", 0, collective.allgather_object, sendobj)

    def _alltoall_any(self, sendobj: Sequence[Any] | None) -> list[Any]:
        """Perform `alltoall` by messages, for whatever the short path leaves."""
        return self._of_objects("alltoall(object)", 0, collective.alltoall_object, sendobj)

    def _reduce_objects_any(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM, root: int = 0) -> Any:
        """Perform `reduce` by messages, for whatever the short path leaves."""
        return self._of_objects("reduce(object)", root, collective.reduce_object, sendobj, op)

    def _allreduce_any(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Perform `allreduce` by messages, for whatever the short path leaves."""
        return self._of_objects("allreduce(object)", 0, collective.allreduce_object, sendobj, op)

    def _scan_any(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Perform `scan` by messages, for whatever the short path leaves."""
        return self._of_objects("scan(object)", 0, collective.scan_object, sendobj, op, False)

    def _exscan_any(self, sendobj: Any, op: Callable[[Any, Any], Any] = SUM) -> Any:
        """Perform `exscan` by messages, for whatever the short path leaves."""
        return self._of_objects("exscan(object)", 0, collective.scan_object, sendobj, op, True)


class CollectiveRequest(_core.PlanRequest, Request):
    """Request of a non-blocking collective on the short path (viakit/_core/plan_request.pxi)."""


_core.set_plan_type(CollectiveRequest)
_core.set_collective_kinds(collective, list(steps.KINDS), steps.OP_NUMBERS)
