"""Operations on windows: put, get, accumulate, and their forms with requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from viakit.base.words import counted
from viakit.comm import windows
from viakit.comm.datatype import Datatype
from viakit.comm.errors import CLASSES, Exception, error
from viakit.comm.op import NAMED as _OPS
from viakit.comm.op import Op
from viakit.comm.request import Request
from viakit.comm.spec import Simple, datatype_of, simple
from viakit.comm.status import PROC_NULL

SUM, NO_OP = _OPS["SUM"], _OPS["NO_OP"]
_PLAIN = (np.ndarray, bytes, bytearray, memoryview)


class AccessRequest(Request):
    """Request of an operation on a window (`Win.Rput`, `Win.Rget`, ...)."""

    def __init__(self, ops: list[Any]) -> None:
        super().__init__()
        self._ops = [op for op in ops if not op.ended]
        self._over = not self._ops

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """Whether the operation is complete and the program has been notified."""
        return self._over

    def __bool__(self) -> bool:
        return not self._over

    def _is_null(self) -> bool:
        return self._over

    def peek(self, status: Any = None) -> bool:
        """Return whether the operation is complete."""
        if all(op.test() for op in self._ops):
            if status is not None:
                self.fill(status)
            return True
        return False

    def progress(self) -> None:
        """Make progress without waiting."""
        for op in self._ops:
            op.test()

    def test_once(self) -> bool:
        """Return whether the operation is complete. If it is, the request has ended."""
        self._over = self._over or self.peek()
        return self._over

    def wait_for(self, timeout_s: float | None = None) -> bool:
        """Wait until the operation is complete; with a limit of 0, test."""
        if timeout_s is not None and timeout_s <= 0:
            return self.test_once()
        for op in self._ops:
            op.wait()
        self._over = True
        return True

    def fill(self, status: Any) -> None:
        """Write the properties of an empty message to *status*."""
        status.source, status.tag, status.error, status.nbytes = PROC_NULL, -1, 0, 0

    def withdraw(self) -> None:
        """Do nothing: such operations cannot be cancelled."""

    def release(self) -> None:
        """Release the handle. The operation continues; a flush completes it."""
        self._over = True


class _Target:
    """Where an operation goes: byte ranges in the target's part of the window."""

    def __init__(self, ref: Any, rank: int, target: Any, origin: Simple) -> None:
        displacement, count, kind = _target(target)
        self.datatype: Datatype = origin.datatype if kind is None else datatype_of(kind, None)
        self.count = origin.count if count is None else int(count)
        if self.count < 0:
            raise error("ERR_COUNT", f"the count of target elements must be 0 or more, got {self.count}")
        if displacement < 0:
            raise error("ERR_DISP", f"the displacement in the window must be 0 or more, got {displacement}")
        self.start = displacement * ref.units[rank]

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.count * self.datatype.size

    def check(self, origin: Simple) -> None:
        """Raise ERR_TRUNCATE unless origin and target have the same length."""
        if self.nbytes != origin.nbytes:
            raise error(
                "ERR_TRUNCATE",
                f"the origin has {counted(origin.nbytes, 'byte')} and the target {counted(self.nbytes, 'byte')}; "
                "give both the same number and type of elements",
            )


def _target(target: Any) -> tuple[int, Any, Any]:
    if target is None:
        return 0, None, None
    if isinstance(target, (list, tuple)):
        if not 1 <= len(target) <= 3:
            raise ValueError("target: expecting 1 to 3 items: displacement, count, datatype")
        displacement, count, kind = tuple(target) + (None,) * (3 - len(target))
        return int(displacement), count, kind
    if hasattr(target, "__index__"):
        return int(target), None, None
    raise ValueError(f"target: expecting a displacement or a sequence, got {type(target).__name__}")


def _one(spec: Simple, name: str, like: Simple | None = None) -> Simple:
    """Check an argument of Fetch_and_op or Compare_and_swap: one element, of the type of the others."""
    if spec.count != 1:
        raise ValueError(f"{name}: expecting a single element, got {counted(spec.count, 'element')}")
    if like is not None and (spec.datatype.dtype, spec.datatype.size) != (like.datatype.dtype, like.datatype.size):
        raise ValueError(f"mismatch in origin and {name} datatypes")
    return spec


class Access:
    """The part of a window with its operations."""

    def _access(self, rank: int) -> Any:
        raise NotImplementedError

    # ------------------------------------------------------------ what the calls share

    def _put(self, origin: Any, rank: int, target: Any) -> list[Any]:
        ref = self._access(rank)
        if target is None and isinstance(origin, _PLAIN):  # contiguous bytes to the beginning, the short path
            op = self._plain_put(ref, origin, rank)
            if op is not False:
                return [op] if op is not None else []
        source = simple(origin, False)
        where = _Target(ref, rank, target, source)
        where.check(source)
        data, at = (source.memory, source.start) if source.direct else (source.pack(), 0)
        ops = []
        for offset, length in windows.runs(where.datatype, where.count, where.start):
            ops.append(ref.core.put(data, at, length, rank, _offset(ref, rank, offset, length)))
            at += length
        return [op for op in ops if op is not None]

    @staticmethod
    def _plain_put(ref: Any, origin: Any, rank: int) -> Any:
        try:
            return ref.core.put(origin, 0, -1, rank, 0)
        except (BufferError, ValueError):
            return False  # not contiguous: the long path explains it
        except Exception as problem:
            if problem.error_class == CLASSES["ERR_ARG"]:
                return False  # outside of the window: likewise
            raise

    def _get(self, origin: Any, rank: int, target: Any) -> list[Any]:
        ref = self._access(rank)
        into = simple(origin, True)
        where = _Target(ref, rank, target, into)
        where.check(into)
        data, at = (into.memory, into.start) if into.direct else (np.empty(into.nbytes, np.uint8), 0)
        ops = []
        for offset, length in windows.runs(where.datatype, where.count, where.start):
            ops.append(ref.core.get(data, at, length, rank, _offset(ref, rank, offset, length)))
            at += length
        return _then([op for op in ops if op is not None], None if into.direct else lambda: into.unpack(data))

    def _update(self, origin: Any, result: Any, rank: int, target: Any, op: Op) -> list[Any]:
        ref = self._access(rank)
        into = simple(result, True) if result is not None else None
        source = into if op == NO_OP and into is not None and _is_nothing(origin) else simple(origin, False)
        assert source is not None
        where = _Target(ref, rank, target, source if op != NO_OP or into is None else into)
        if op != NO_OP:
            where.check(source)
        if into is not None:
            where.check(into)
        kind, combine, size = windows.numbers_of(where.datatype, op)
        if op != NO_OP and source.datatype.dtype != where.datatype.dtype:
            raise error("ERR_TYPE", "origin and target must have elements of the same predefined datatype")
        pairs = windows.is_pair(where.datatype)
        data = np.ascontiguousarray(windows.raw(source)) if op != NO_OP else None
        back = None
        if into is not None:
            back = into.memory[into.start : into.start + into.count * into.datatype.extent] if pairs else (
                into.memory[into.start : into.start + into.nbytes] if into.direct else np.empty(into.nbytes, np.uint8)
            )  # fmt: skip
        if pairs:
            places = [(where.start, where.count * where.datatype.extent)]
        else:
            places = list(windows.runs(where.datatype, where.count, where.start))
        ops, at = [], 0
        for offset, length in places:
            here = None if data is None else data[at : at + length]
            there = None if back is None else back[at : at + length]
            begin = _offset(ref, rank, offset, length)
            ops.append(ref.core.accumulate(here, there, length // size, kind, combine, rank, begin))
            at += length
        unpack = None
        if into is not None and back is not None and not pairs and not into.direct:
            packed = back
            unpack = lambda: into.unpack(packed)  # noqa: E731
        return _then([one for one in ops if one is not None], unpack)

    # ------------------------------------------------------------ mpi4py's calls (Put and Get: viakit._core)

    def _put_any(self, origin: Any, target_rank: int, target: Any) -> None:
        if target_rank != PROC_NULL:
            self._put(origin, target_rank, target)

    def _get_any(self, origin: Any, target_rank: int, target: Any) -> None:
        if target_rank != PROC_NULL:
            self._get(origin, target_rank, target)

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM) -> None:
        """Combine data with that in a rank's part of the window. Each element is updated atomically.

        Parameters
        ----------
        origin, target_rank, target
            As in `Put`.
        op : Op
            Predefined operation, or REPLACE or NO_OP.

        Raises
        ------
        Exception
            As `Put`, and ERR_OP if elements of this datatype cannot be combined so.
        """
        if target_rank != PROC_NULL:
            self._update(origin, None, target_rank, target, op)

    def Get_accumulate(self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM) -> None:
        """Combine data with that in a rank's part, and fetch the target's data as it was before.

        Parameters
        ----------
        origin : buffer or list
            The data. None, or an empty buffer, with NO_OP.
        result : buffer or list
            Memory for the target's data.
        target_rank, target, op
            As in `Accumulate`.
        """
        if target_rank != PROC_NULL:
            self._update(origin, result, target_rank, target, op)

    def Fetch_and_op(self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: Op = SUM) -> None:
        """Combine one element with one of the target's, and fetch that as it was before.

        Parameters
        ----------
        origin, result : buffer or list
            One element each, of the same datatype.
        target_rank : int
            Rank in the window.
        target_disp : int
            Displacement in the target's units.
        op : Op
            As in `Accumulate`.

        Raises
        ------
        ValueError
            If an argument is not one element, or the datatypes differ.
        """
        if target_rank == PROC_NULL:
            return
        source = _one(simple(origin, False), "origin")
        _one(simple(result, True), "result", source)
        self._update(origin, result, target_rank, [target_disp, 1, source.datatype], op)

    def Compare_and_swap(self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0) -> None:
        """Replace one element of the target if it equals *compare*, and fetch it as it was before.

        Parameters
        ----------
        origin, compare, result : buffer or list
            One element each, of the same datatype: the new value, the expected one, and memory for the old one.
        target_rank, target_disp
            As in `Fetch_and_op`.
        """
        if target_rank == PROC_NULL:
            return
        ref = self._access(target_rank)
        source = _one(simple(origin, False), "origin")
        expected = _one(simple(compare, False), "compare", source)
        into = _one(simple(result, True), "result", source)
        where = _Target(ref, target_rank, [target_disp, 1, source.datatype], source)
        offset = _offset(ref, target_rank, where.start, where.nbytes)
        back = np.empty(into.nbytes, np.uint8)
        op = ref.core.compare_and_swap(
            np.ascontiguousarray(source.pack()), np.ascontiguousarray(expected.pack()), back, target_rank, offset
        )
        _then([op] if op is not None else [], lambda: into.unpack(back))

    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        """Write data as `Put` does. The request is complete when `origin` may be changed."""
        return AccessRequest([] if target_rank == PROC_NULL else self._put(origin, target_rank, target))

    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> Request:
        """Read data as `Get` does. The request is complete when `origin` has the data."""
        return AccessRequest([] if target_rank == PROC_NULL else self._get(origin, target_rank, target))

    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: Op = SUM) -> Request:
        """Combine data as `Accumulate` does. The request is complete when `origin` may be changed."""
        return AccessRequest([] if target_rank == PROC_NULL else self._update(origin, None, target_rank, target, op))

    def Rget_accumulate(self, origin: Any, result: Any, target_rank: int, target: Any = None, op: Op = SUM) -> Request:
        """Combine and fetch data as `Get_accumulate` does. The request is complete when `result` has the data."""
        return AccessRequest([] if target_rank == PROC_NULL else self._update(origin, result, target_rank, target, op))


def _offset(ref: Any, rank: int, offset: int, length: int) -> int:
    """Check that a range lies in the rank's part of the window. Addresses in dynamic windows are checked there."""
    size = ref.sizes[rank]
    if size is not None and (offset < 0 or offset + length > size):
        raise error(
            "ERR_RMA_RANGE",
            f"{counted(length, 'byte')} at byte {offset} do not fit rank {rank}'s part of the window, which has "
            f"{counted(size, 'byte')}",
        )
    return offset


def _is_nothing(origin: Any) -> bool:
    return origin is None or (isinstance(origin, Sequence) and not isinstance(origin, _PLAIN) and origin[0] is None)


def _then(ops: list[Any], unpack: Callable[[], None] | None) -> list[Any]:
    """Call a function once all operations have ended: at once, or by the last of them."""
    if unpack is None:
        return ops
    if not ops:
        unpack()
        return ops
    left = len(ops)

    def ended() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            unpack()

    for op in ops:
        op.after = ended
    return ops
