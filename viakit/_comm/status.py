"""Statuses under MPI's names: what is known of a message, and how a program's list of them is filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from viakit import _core
from viakit._comm.datatype import UNDEFINED, Datatype

ANY_SOURCE, ANY_TAG, PROC_NULL = -2, -1, -3


class Status(_core.MsgStatus):
    """``MPI.Status``: source, tag, error and length of a message; made of another, it begins as its copy."""

    def __init__(self, status: Status | None = None) -> None:
        if status is not None:
            if not isinstance(status, Status):
                raise TypeError(f"a Status is made of nothing or of a Status, not of {type(status).__name__}")
            self._copy(status)

    def _copy(self, other: Status) -> None:
        self.source, self.tag, self.error = other.source, other.tag, other.error
        self.nbytes, self.was_cancelled = other.nbytes, other.was_cancelled

    def __reduce__(self) -> tuple[Any, ...]:
        return (_status_of, (self.source, self.tag, self.error, self.nbytes, self.was_cancelled))

    def __repr__(self) -> str:
        return f"<viakit MPI.Status source={self.source} tag={self.tag} bytes={self.nbytes}>"

    def Get_source(self) -> int:
        """The sender's rank."""
        return self.source

    def Set_source(self, source: int) -> None:
        """Set the sender's rank."""
        self.source = source

    def Get_tag(self) -> int:
        """The tag."""
        return self.tag

    def Set_tag(self, tag: int) -> None:
        """Set the tag."""
        self.tag = tag

    def Get_error(self) -> int:
        """The error class."""
        return self.error

    def Set_error(self, error: int) -> None:
        """Set the error class."""
        self.error = error

    def Get_count(self, datatype: Datatype | None = None) -> int:
        """How many elements of `datatype` (None: bytes) arrived, or UNDEFINED if it is no whole number of them."""
        size = 1 if datatype is None else datatype.size
        if size == 0:
            return 0 if self.nbytes == 0 else UNDEFINED
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        """How many basic elements arrived."""
        if datatype.dtype is None or datatype.dtype.names is not None:
            return self.Get_count(datatype)
        return self.nbytes // datatype.dtype.itemsize

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Set the length to `count` elements."""
        self.nbytes = datatype.size * count

    @property
    def count(self) -> int:
        """Bytes that arrived."""
        return self.nbytes

    @count.setter
    def count(self, count: int) -> None:
        self.nbytes = count

    def Is_cancelled(self) -> bool:
        """Whether the operation was cancelled."""
        return self.was_cancelled

    def Set_cancelled(self, flag: bool) -> None:
        """Set whether it was cancelled."""
        self.was_cancelled = flag

    @property
    def cancelled(self) -> bool:
        """Whether the operation was cancelled."""
        return self.was_cancelled

    @cancelled.setter
    def cancelled(self, flag: bool) -> None:
        self.was_cancelled = flag


def _status_of(source: int, tag: int, error: int, nbytes: int, cancelled: bool) -> Status:
    status = Status()
    status.source, status.tag, status.error = source, tag, error
    status.nbytes, status.was_cancelled = nbytes, cancelled
    return status


def empty(status: _core.MsgStatus | None) -> None:
    """What a wait for nothing says."""
    if status is not None:
        status.source, status.tag, status.error = ANY_SOURCE, ANY_TAG, 0
        status.nbytes, status.was_cancelled = 0, False


def status_at(statuses: Sequence[Status] | None, index: int) -> Status | None:
    """The status at `index`: a list grows for it as mpi4py's does, of another sequence what is there is filled."""
    if isinstance(statuses, list):
        while len(statuses) <= index:
            statuses.append(Status())
    return statuses[index] if statuses is not None and index < len(statuses) else None


def put(statuses: Sequence[Status] | None, index: int, fill: Callable[[Status], Any]) -> None:
    """Have the status at `index` filled, if there is room for one."""
    status = status_at(statuses, index)
    if status is not None:
        fill(status)
