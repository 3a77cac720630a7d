"""MPI's error classes, and the exception that carries them."""

from __future__ import annotations

from typing import Any

from viakit import _core
from viakit.comm import error_codes
from viakit.errors import ForkError

_TEXTS = {
    "SUCCESS": "no error",
    "ERR_BUFFER": "invalid buffer",
    "ERR_COUNT": "invalid count",
    "ERR_TYPE": "invalid datatype",
    "ERR_TAG": "invalid tag",
    "ERR_COMM": "invalid communicator",
    "ERR_RANK": "invalid rank",
    "ERR_ROOT": "invalid root",
    "ERR_GROUP": "invalid group",
    "ERR_OP": "invalid operation",
    "ERR_TOPOLOGY": "invalid topology",
    "ERR_DIMS": "invalid dimensions",
    "ERR_ARG": "invalid argument",
    "ERR_UNKNOWN": "unknown error",
    "ERR_TRUNCATE": "message truncated",
    "ERR_OTHER": "other error",
    "ERR_INTERN": "internal error",
    "ERR_IN_STATUS": "the error is in the statuses",
    "ERR_PENDING": "not complete yet",
    "ERR_REQUEST": "invalid request",
    "ERR_UNSUPPORTED_OPERATION": "not supported here",
    "ERR_NO_MEM": "out of memory",
    "ERR_INFO": "invalid info",
    "ERR_PROC_FAILED": "a process has failed",
    "ERR_PROC_ABORTED": "a process has left",
    "ERR_REVOKED": "the communicator was revoked",
    "ERR_PROC_FAILED_PENDING": "a process that might have been the source has failed",
    "ERR_ERRHANDLER": "invalid error handler",
    "ERR_KEYVAL": "invalid attribute key",
    "ERR_INFO_KEY": "invalid info key",
    "ERR_INFO_VALUE": "invalid info value",
    "ERR_INFO_NOKEY": "no such info key",
    "ERR_SESSION": "invalid session",
    "ERR_SPAWN": "processes could not be started",
    "ERR_PORT": "invalid port name",
    "ERR_SERVICE": "invalid service name",
    "ERR_NAME": "no such service name",
    "ERR_VALUE_TOO_LARGE": "the value is too large",
    "ERR_ABI": "invalid use of MPI's binary interface",
    "ERR_WIN": "invalid window",
    "ERR_BASE": "invalid base address",
    "ERR_SIZE": "invalid size",
    "ERR_DISP": "invalid displacement",
    "ERR_ASSERT": "invalid assertion",
    "ERR_LOCKTYPE": "invalid type of lock",
    "ERR_RMA_CONFLICT": "conflicting accesses to a window",
    "ERR_RMA_SYNC": "wrong synchronisation of a window",
    "ERR_RMA_RANGE": "the target is outside the window",
    "ERR_RMA_ATTACH": "memory cannot be attached",
    "ERR_RMA_SHARED": "memory cannot be shared",
    "ERR_RMA_FLAVOR": "wrong flavour of window",
    "ERR_FILE": "invalid file",
    "ERR_BAD_FILE": "invalid file name",
    "ERR_NO_SUCH_FILE": "no such file",
    "ERR_FILE_EXISTS": "the file exists",
    "ERR_FILE_IN_USE": "the file is in use",
    "ERR_AMODE": "invalid access mode",
    "ERR_ACCESS": "permission denied",
    "ERR_READ_ONLY": "read-only file or file system",
    "ERR_NO_SPACE": "no space left",
    "ERR_QUOTA": "quota exceeded",
    "ERR_NOT_SAME": "ranks passed different arguments",
    "ERR_IO": "input or output error",
    "ERR_UNSUPPORTED_DATAREP": "data representation not supported",
    "ERR_CONVERSION": "data conversion failed",
    "ERR_DUP_DATAREP": "data representation defined twice",
    "ERR_LASTCODE": "the last error class",
}
CLASSES: dict[str, int] = {name: number for number, name in enumerate(_TEXTS)}
_NAMES = {number: name for name, number in CLASSES.items()}
LAST = CLASSES["ERR_LASTCODE"]

# The error class of each error of the engine, by its number in msg.h.
_FROM_ENGINE = {
    1: "ERR_PENDING",
    2: "ERR_PENDING",
    4: "ERR_ARG",
    5: "ERR_RANK",
    6: "ERR_TAG",
    7: "ERR_COMM",
    8: "ERR_REQUEST",
    9: "ERR_TRUNCATE",
    10: "ERR_BUFFER",
    11: "ERR_PROC_FAILED",
    12: "ERR_PROC_ABORTED",
    13: "ERR_NO_MEM",
    14: "ERR_OTHER",
    15: "ERR_OTHER",
    16: "ERR_OTHER",
    17: "ERR_COMM",
    18: "ERR_UNSUPPORTED_OPERATION",
    19: "ERR_COMM",
    20: "ERR_OTHER",
    21: "ERR_INTERN",
    22: "ERR_OTHER",
    23: "ERR_REVOKED",
}
_FORKED = 17  # MSG_ERR_PROCESS


class Exception(RuntimeError):
    """Error of a communicator, with its MPI error class: ``MPI.Exception``.

    Exceptions can be compared with error codes and with one another.

    Parameters
    ----------
    ierr : int
        Error code: one of ``MPI.ERR_*``, or one that the program has added.
    text : str
        What was given, what is accepted, and what to do next. Default: the text of the error code.
    """

    def __init__(self, ierr: int = 0, text: str = "") -> None:
        self.error_code = CLASSES["ERR_UNKNOWN"] if int(ierr) < 0 else int(ierr)
        self._own_text = bool(text)
        self.text = text or self.error_string
        RuntimeError.__init__(self, self.error_code, self.text)

    def __str__(self) -> str:
        return f"MPI_{_NAMES.get(self.error_class, 'ERR_UNKNOWN')}: {self.text}" if self._own_text else self.text

    def __repr__(self) -> str:
        return f"MPI.Exception({self.error_code}, {self.text!r})" if self._own_text else f"MPI.Exception({self:d})"

    def __format__(self, spec: str) -> str:
        return format(self.error_code if spec == "d" else str(self), spec)

    def __eq__(self, other: object) -> bool:
        return self.error_code == (other.error_code if isinstance(other, Exception) else other)

    def __hash__(self) -> int:
        return hash(self.error_code)

    def __lt__(self, other: Any) -> bool:
        return self.error_code < int(other)

    def __le__(self, other: Any) -> bool:
        return self.error_code <= int(other)

    def __gt__(self, other: Any) -> bool:
        return self.error_code > int(other)

    def __ge__(self, other: Any) -> bool:
        return self.error_code >= int(other)

    def __int__(self) -> int:
        return self.error_code

    def __bool__(self) -> bool:
        return self.error_code != 0

    @property
    def is_of_lost_rank(self) -> bool:
        """Whether the error reports that another rank has failed or left; that rank failed first."""
        return self.error_class in (CLASSES["ERR_PROC_FAILED"], CLASSES["ERR_PROC_ABORTED"])

    @property
    def error_class(self) -> int:
        """Error class, one of ``MPI.ERR_*`` or one that the program has added."""
        return error_codes.class_of(self.error_code)

    @property
    def error_string(self) -> str:
        """Text of the error code."""
        return error_codes.text_of(self.error_code)

    def Get_error_class(self) -> int:
        """Return the error class, one of ``MPI.ERR_*`` or one that the program has added."""
        return self.error_class

    def Get_error_code(self) -> int:
        """Return the error code."""
        return self.error_code

    def Get_error_string(self) -> str:
        """Return the text of the error code."""
        return self.error_string


class ArgumentException(Exception, ValueError):
    """Error of an argument that mpi4py refuses before it calls MPI; also a ValueError."""


class ForkException(Exception, ForkError):
    """Error: a communicator of the parent process was used in a child of fork."""

    code, operation = None, ""


_ARGUMENTS = {"ERR_COUNT", "ERR_TYPE", "ERR_BUFFER"}


def error(name: str, text: str = "") -> Exception:
    """Return the exception for the error class called *name*."""
    return (ArgumentException if name in _ARGUMENTS else Exception)(CLASSES[name], text)


def from_engine(code: int, text: str) -> Exception:
    """Return the exception for an error of the engine."""
    kind = ForkException if code == _FORKED else Exception
    return kind(CLASSES[_FROM_ENGINE.get(code, "ERR_UNKNOWN")], text)


error_codes.set_predefined({number: (name, _TEXTS[name]) for number, name in _NAMES.items()}, error)


def _setup() -> None:
    from viakit.comm.request import Request  # it imports this module

    _core.set_message_types(from_engine, Request)
