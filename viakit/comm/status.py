"""Statuses under MPI's names: the properties of a message, and how the program's list of statuses is filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from viakit import _core
from viakit.comm.datatype import UNDEFINED, Datatype

ANY_SOURCE, ANY_TAG, PROC_NULL = -2, -1, -3


class Status(_core.MsgStatus):
    """Properties of a received or probed message: ``MPI.Status``. *status* is copied if it is given.

    Attributes
    ----------
    source : int
        Rank of the sender.
    tag : int
        Tag of the message.
    error : int
        Error class.
    nbytes : int
        Length of the data in bytes.
    """

    def __init__(self, status: Status | None = None) -> None:
        if status is not None:
            if not isinstance(status, Status):
                raise TypeError(f"Status() takes no argument or a Status, got {type(status).__name__}")
            self._copy(status)

    def _copy(self, other: Status) -> None:
        self.source, self.tag, self.error = other.source, other.tag, other.error
        self.nbytes, self.was_cancelled = other.nbytes, other.was_cancelled

    def __reduce__(self) -> tuple[Any, ...]:
        return (_status_of, (self.source, self.tag, self.error, self.nbytes, self.was_cancelled))

    def __repr__(self) -> str:
        return f"<viakit MPI.Status source={self.source} tag={self.tag} bytes={self.nbytes}>"

    def Get_source(self) -> int:
        """Return the rank of the sender."""
        return self.source

    def Set_source(self, source: int) -> None:
        """Set the rank of the sender."""
        self.source = source

    def Get_tag(self) -> int:
        """Return the tag of the message."""
        return self.tag

    def Set_tag(self, tag: int) -> None:
        """Set the tag of the message."""
        self.tag = tag

    def Get_error(self) -> int:
        """Return the error class."""
        return self.error

    def Set_error(self, error: int) -> None:
        """Set the error class."""
        self.error = error

    def Get_count(self, datatype: Datatype | None = None) -> int:
        """Return the number of elements received.

        Parameters
        ----------
        datatype : Datatype, optional
            Datatype of the elements. Default: bytes.

        Returns
        -------
        int
            UNDEFINED if the length is not a multiple of the datatype's size.
        """
        size = 1 if datatype is None else datatype.size
        if size == 0:
            return 0 if self.nbytes == 0 else UNDEFINED
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        """Return the number of basic elements received."""
        if datatype.dtype is None or datatype.dtype.names is not None:
            return self.Get_count(datatype)
        return self.nbytes // datatype.dtype.itemsize

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Set the length to *count* elements of *datatype*."""
        self.nbytes = datatype.size * count

    @property
    def count(self) -> int:
        """Length of the received data in bytes."""
        return self.nbytes

    @count.setter
    def count(self, count: int) -> None:
        self.nbytes = count

    def Is_cancelled(self) -> bool:
        """Return whether the operation was cancelled."""
        return self.was_cancelled

    def Set_cancelled(self, flag: bool) -> None:
        """Set whether the operation was cancelled."""
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
    """Fill *status* with the values that MPI defines for an inactive request."""
    if status is not None:
        status.source, status.tag, status.error = ANY_SOURCE, ANY_TAG, 0
        status.nbytes, status.was_cancelled = 0, False


def status_at(statuses: Sequence[Status] | None, index: int) -> Status | None:
    """Return the status at *index*, or None.

    As in mpi4py, a list that is too short is extended; another sequence is used as far as it goes.
    """
    if isinstance(statuses, list):
        while len(statuses) <= index:
            statuses.append(Status())
    return statuses[index] if statuses is not None and index < len(statuses) else None


def put(statuses: Sequence[Status] | None, index: int, fill: Callable[[Status], Any]) -> None:
    """Fill the status at *index*, if the program provided one."""
    status = status_at(statuses, index)
    if status is not None:
        fill(status)
