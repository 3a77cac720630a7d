"""MPI's error classes, and the exception that carries them."""

from __future__ import annotations

from viakit import _core
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
    "ERR_LASTCODE": "the last error class",
}
CLASSES: dict[str, int] = {name: number for number, name in enumerate(_TEXTS)}
_NAMES = {number: name for name, number in CLASSES.items()}

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
}
_FORKED = 17  # MSG_ERR_PROCESS


class Exception(RuntimeError):
    """Error of a communicator, with its MPI error class: ``MPI.Exception``.

    Parameters
    ----------
    ierr : int
        Error class, one of ``MPI.ERR_*``.
    text : str
        What was given, what is accepted, and what to do next. Default: the text of the error class.
    """

    def __init__(self, ierr: int = 0, text: str = "") -> None:
        self.error_class = int(ierr)
        self.text = text or self.error_string
        RuntimeError.__init__(self, self.error_class, self.text)

    def __str__(self) -> str:
        return f"MPI_{_NAMES.get(self.error_class, 'ERR_UNKNOWN')}: {self.text}"

    def __repr__(self) -> str:
        return f"MPI.Exception({self.error_class}, {self.text!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Exception):
            return self.error_class == other.error_class
        return self.error_class == other

    def __hash__(self) -> int:
        return hash(self.error_class)

    def __int__(self) -> int:
        return self.error_class

    def __bool__(self) -> bool:
        return self.error_class != 0

    @property
    def is_of_lost_rank(self) -> bool:
        """Whether the error reports that another rank has failed or left; that rank failed first."""
        return self.error_class in (CLASSES["ERR_PROC_FAILED"], CLASSES["ERR_PROC_ABORTED"])

    @property
    def error_code(self) -> int:
        """Error code, which equals the error class: viakit has no finer codes."""
        return self.error_class

    @property
    def error_string(self) -> str:
        """Text of the error class."""
        return _TEXTS[_NAMES.get(self.error_class, "ERR_UNKNOWN")]

    def Get_error_class(self) -> int:
        """Return the error class, one of ``MPI.ERR_*``."""
        return self.error_class

    def Get_error_code(self) -> int:
        """Return the error code, which equals the error class."""
        return self.error_class

    def Get_error_string(self) -> str:
        """Return the text of the error class."""
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


def Get_error_class(errorcode: int) -> int:
    """Return the error class of an error code."""
    return int(errorcode)


def Get_error_string(errorcode: int) -> str:
    """Return the text of an error code."""
    return Exception(errorcode).error_string


def _setup() -> None:
    from viakit.comm.request import Request

    _core.set_message_types(from_engine, Request)
