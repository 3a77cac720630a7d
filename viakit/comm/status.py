"""Statuses under MPI's names: the properties of a message, and how the program's list of statuses is filled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from viakit import _core
from viakit.comm.constants import F_ERROR, F_SOURCE, F_STATUS_SIZE, F_TAG
from viakit.comm.datatype import UNDEFINED, Datatype
from viakit.comm.errors import error as _error

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

    def __eq__(self, other: object) -> bool:
        return self._fields() == other._fields() if isinstance(other, Status) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # The fields change.

    def _fields(self) -> tuple[Any, ...]:
        return (self.source, self.tag, self.error, self.nbytes, self.was_cancelled)

    def py2f(self) -> list[int]:
        """Return the fields as a Fortran status: a list of F_STATUS_SIZE integers."""
        fields = [0] * F_STATUS_SIZE
        fields[F_SOURCE], fields[F_TAG], fields[F_ERROR] = self.source, self.tag, self.error
        fields[3:6] = [self.nbytes & 0x7FFFFFFF, self.nbytes >> 31, int(self.was_cancelled)]
        return fields

    @classmethod
    def f2py(cls, arg: Sequence[int], /) -> Status:
        """Return the status that `py2f` has turned into a list."""
        nbytes = arg[3] | arg[4] << 31
        return _status_of(cls, arg[F_SOURCE], arg[F_TAG], arg[F_ERROR], nbytes, bool(arg[5]))

    def tomemory(self) -> memoryview:
        """Return the fields as memory of 32-bit integers; changes of source, tag and error change this status."""
        buffer: Any = self  # 12 bytes in C
        return memoryview(buffer).cast("i")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_status_of, (type(self), self.source, self.tag, self.error, self.nbytes, self.was_cancelled))

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
        size = 1 if datatype is None else _sized(datatype).size
        if size == 0:
            return 0 if self.nbytes == 0 else UNDEFINED
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        """Return the number of basic elements received."""
        dtype = _sized(datatype).dtype
        if dtype is None or dtype.names is not None:
            return self.Get_count(datatype)
        return self.nbytes // dtype.itemsize

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Set the length to *count* elements of *datatype*."""
        self.nbytes = _sized(datatype).size * count

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


def _sized(datatype: Datatype) -> Datatype:
    if not datatype:
        raise _error("ERR_TYPE", "the datatype is DATATYPE_NULL or has been freed; use one that is valid")
    return datatype


def _status_of(kind: type[Status], source: int, tag: int, error: int, nbytes: int, cancelled: bool) -> Status:
    status = kind()
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
