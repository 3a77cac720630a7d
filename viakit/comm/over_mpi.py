"""COMM_WORLD over mpi4py: each call is forwarded, and constants and types are translated in both directions."""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import functools
import os
import stat
import sys
import termios
import time
import weakref
from typing import Any

from viakit import _core
from viakit.comm import communicator, datatype, errors, op
from viakit.comm.group import Group
from viakit.comm.spec import BOTTOM, IN_PLACE
from viakit.comm.status import ANY_SOURCE, ANY_TAG, PROC_NULL, Status

GRACE_S = 1.0  # A rank with a non-zero exit status waits this long for the other ranks before it aborts the job.
_RANKS = {"dest", "source"}
_made: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # viakit's types and operations in mpi4py


def world_over_mpi() -> OverMpi:
    """Return ``mpi4py.MPI.COMM_WORLD`` behind viakit's interface.

    Raises
    ------
    Exception
        ERR_OTHER if mpi4py, or an MPI library for it, is missing.
    """
    return OverMpi(load().COMM_WORLD)


def load() -> Any:
    """Return ``mpi4py.MPI``, with the MPI library of the launcher, or with any installed one if there is no launcher.

    If a rank ends by an exception, it aborts the job, as under every other protocol; MPI alone would wait for this
    rank. A rank with a non-zero exit status does the same while other ranks continue (csrc/msg/mpi_exit.c). There are
    two exceptions: the program has imported ``mpi4py.MPI`` before, or has set ``mpi4py.rc.finalize``. In these cases
    mpi4py or the program is responsible for finalisation.

    The first call is collective.

    Raises
    ------
    Exception
        ERR_OTHER if mpi4py or an MPI library is missing, or if ``viakit run`` has started the ranks without MPI.
    """
    from viakit.launch import detect

    place = detect()
    if place.launcher == "viakit" and place.size > 1:
        raise errors.error(
            "ERR_OTHER", "MPI did not start these ranks; start them with viakit run --protocol mpi or with mpirun"
        )
    if "MPI4PY_LIBMPI" not in os.environ and "mpi4py.MPI" not in sys.modules:
        from viakit.launch import mpi_library as mpi

        found = mpi.find_all()
        library = found.get(place.launcher) or next(iter(found.values()), None)
        if library is not None:
            os.environ["MPI4PY_LIBMPI"] = library.libmpi
    try:
        import mpi4py

        mine = mpi4py.rc.finalize is None and mpi4py.rc.initialize in (None, True)
        ours = mine and "mpi4py.MPI" not in sys.modules and _core.mpi_exit_can()
        if ours:
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as problem:
        text = str(problem).partition("\n")[0]
        raise errors.error(
            "ERR_OTHER", f"protocol 'mpi' needs mpi4py and an MPI library; pip install 'viakit[mpich]' ({text})"
        ) from problem
    if ours:
        own = MPI.COMM_WORLD.Dup()
        _core.mpi_exit(MPI.__file__, MPI._handleof(MPI.COMM_WORLD), MPI._handleof(own), int(GRACE_S * 1000))
    atexit.register(_leave, MPI, os.getpid())
    return MPI


def _leave(mpi: Any, process: int) -> None:
    """At exit: if the program ends by an exception, abort the job, because the other ranks would wait for this one."""
    if os.getpid() != process or getattr(sys, "last_value", None) is None or hasattr(sys, "ps1"):
        return
    if not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
                _until_read(stream.fileno())
        mpi.COMM_WORLD.Abort(1)


def _until_read(fd: int, timeout_s: float = 1.0) -> None:
    """Wait at most `timeout_s` seconds until a pipe is empty.

    MPICH's launcher discards unread output when a job aborts.
    """
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return
    deadline = time.monotonic() + timeout_s
    unread = array.array("i", [1])
    while time.monotonic() < deadline:
        fcntl.ioctl(fd, termios.FIONREAD, unread)
        if unread[0] == 0:
            return
        time.sleep(0.001)


def _out(value: Any) -> Any:
    """Translate a value to mpi4py's types."""
    from mpi4py import MPI

    if isinstance(value, (OverMpi, _Over)):
        return value._real
    if isinstance(value, datatype.Datatype):
        name = value.name.removeprefix("MPI_")
        if value.is_predefined and hasattr(MPI, name):
            return getattr(MPI, name)
        if value not in _made:
            places, lengths = [at for at, _ in value._blocks], [n for _, n in value._blocks]
            plain = MPI.BYTE.Create_hindexed(lengths, places)
            _made[value] = plain.Create_resized(value.lb, value.extent).Commit()
            plain.Free()
        return _made[value]
    if isinstance(value, op.Op):
        if value._user is None:
            return getattr(MPI, value.name.removeprefix("MPI_"))
        if value not in _made:
            user = value._user
            _made[value] = MPI.Op.Create(lambda a, b, kind: user(a, b, datatype.BYTE), value._commutative)
        return _made[value]
    if value is IN_PLACE:
        return MPI.IN_PLACE
    if value is BOTTOM:
        return MPI.BOTTOM
    if isinstance(value, list):
        return [_out(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_out(item) for item in value)
    return value


def _rank_out(value: Any) -> Any:
    from mpi4py import MPI

    return {ANY_SOURCE: MPI.ANY_SOURCE, PROC_NULL: MPI.PROC_NULL}.get(value, value) if type(value) is int else value


def _rank_back(value: int) -> int:
    from mpi4py import MPI

    return {MPI.ANY_SOURCE: ANY_SOURCE, MPI.PROC_NULL: PROC_NULL}.get(value, value)


def _back(value: Any) -> Any:
    """Translate a value of mpi4py to viakit's types."""
    from mpi4py import MPI

    if isinstance(value, MPI.Comm):
        return OverMpi(value) if value != MPI.COMM_NULL else communicator.COMM_NULL
    if isinstance(value, (MPI.Request, MPI.Message)):
        return _Over(value)
    if isinstance(value, MPI.Group):
        return Group(value.Translate_ranks(None, MPI.COMM_WORLD.Get_group()), MPI.COMM_WORLD.rank)
    return value


def _call(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    from mpi4py import MPI

    # mpi4py fills statuses of its own type, which are then copied. The numbers of wildcards depend on the library.
    statuses: list[tuple[Status, Any]] = []

    def one(value: Any) -> Any:
        if isinstance(value, Status):
            statuses.append((value, MPI.Status()))
            return statuses[-1][1]
        if isinstance(value, Group):
            return MPI.COMM_WORLD.Get_group().Incl(value._ranks)
        return _out(value)

    keys = {key: _tag_or_rank(key, one(value)) for key, value in kwargs.items()}
    plain = [one(value) for value in args]
    for i in _RANK_AT.get(name.lower(), ()):
        if i < len(plain):
            plain[i] = _rank_out(plain[i])
    if name in _CONSTANTS:
        if plain:
            plain[0] = _constant(name, plain[0])
        keys = {key: _constant(name, value) if key in ("color", "split_type") else value for key, value in keys.items()}
    try:
        result = function(*plain, **keys)
    except MPI.Exception as problem:
        raise errors.Exception(_class_of(problem.Get_error_class()), problem.Get_error_string()) from problem
    for ours, theirs in statuses:
        _fill(ours, theirs)
    return tuple(map(_rank_back, result)) if name == "Shift" else _back(result)


def _tag_or_rank(key: str, value: Any) -> Any:
    from mpi4py import MPI

    if key in _RANKS:
        return _rank_out(value)
    return MPI.ANY_TAG if key in ("tag", "recvtag") and value == ANY_TAG and type(value) is int else value


# Calls whose first argument may be a constant that has another number in mpi4py.
_CONSTANTS = {
    "Split": {datatype.UNDEFINED: "UNDEFINED"},
    "Split_type": {datatype.UNDEFINED: "UNDEFINED", communicator.COMM_TYPE_SHARED: "COMM_TYPE_SHARED"},
}


def _constant(name: str, value: Any) -> Any:
    from mpi4py import MPI

    return getattr(MPI, _CONSTANTS[name][value]) if value in _CONSTANTS[name] else value


# Positions of the arguments that are ranks.
_RANK_AT = {
    **{mode + kind: (1,) for mode in ("", "i") for kind in ("send", "ssend", "bsend", "rsend", "recv")},
    **{f"{kind}_init": (1,) for kind in ("send", "ssend", "bsend", "rsend", "recv")},
    **dict.fromkeys(("probe", "iprobe", "mprobe", "improbe"), (0,)),
    "sendrecv": (1, 4),
    "isendrecv": (1, 4),
    "sendrecv_replace": (1, 3),
}


def _class_of(number: int) -> int:
    from mpi4py import MPI

    for name, ours in errors.CLASSES.items():
        if getattr(MPI, name, None) == number:
            return ours
    return errors.CLASSES["ERR_UNKNOWN"]


def of_requests(name: str, requests: Any, statuses: Any) -> Any:
    """Call ``Request.Waitall`` or a similar method on mpi4py's requests.

    `statuses` is a Status, a list of them, or None.
    """
    from mpi4py import MPI

    kind = MPI.Prequest if name == "Startall" else MPI.Request
    real = [_out(request) for request in requests]
    theirs: Any = MPI.Status() if isinstance(statuses, Status) else None if statuses is None else []
    try:
        result = getattr(kind, name)(real, *([] if theirs is None else [theirs]))
    except MPI.Exception as problem:
        raise errors.Exception(_class_of(problem.Get_error_class()), problem.Get_error_string()) from problem
    if isinstance(theirs, list):
        statuses.extend(Status() for _ in range(len(theirs) - len(statuses)))
        for ours, their in zip(statuses, theirs, strict=False):
            _fill(ours, their)
    elif theirs is not None:
        _fill(statuses, theirs)
    return _plain(result)


def _plain(result: Any) -> Any:
    """Replace mpi4py's UNDEFINED, alone or as the first item of a tuple, by viakit's."""
    from mpi4py import MPI

    if isinstance(result, tuple):
        return (_plain(result[0]), *result[1:])
    return datatype.UNDEFINED if type(result) is int and result == MPI.UNDEFINED else result


def _fill(ours: Status, theirs: Any) -> None:
    from mpi4py import MPI

    ours.source, ours.tag = _rank_back(theirs.source), theirs.tag
    ours.nbytes, ours.error, ours.was_cancelled = theirs.Get_count(MPI.BYTE), theirs.error, theirs.cancelled


class _Over:
    """Object of mpi4py behind viakit's interface."""

    over_mpi = True

    def __init__(self, real: Any) -> None:
        self._real = real

    def __bool__(self) -> bool:
        return bool(self._real)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Over) and self._real == other._real

    def __hash__(self) -> int:
        return hash(self._real)

    def __repr__(self) -> str:
        return f"<viakit over {self._real!r}>"

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return _back(found)

        @functools.wraps(found)
        def call(*args: Any, **kwargs: Any) -> Any:
            return _call(found, name, args, kwargs)

        return call


class OverMpi(_Over):
    """Communicator of mpi4py behind viakit's interface."""

    @property
    def COMM_SELF(self) -> OverMpi:
        """Communicator of this rank alone."""
        from mpi4py import MPI

        return OverMpi(MPI.COMM_SELF)

    def Attach_buffer(self, buf: Any) -> None:
        """Attach a buffer for buffered sends of the whole process."""
        from mpi4py import MPI

        MPI.Attach_buffer(buf)

    def Detach_buffer(self) -> Any:
        """Wait until all buffered sends have been transmitted, then detach and return the buffer."""
        from mpi4py import MPI

        return MPI.Detach_buffer()

    def Compare(self, comm: OverMpi) -> int:
        """Compare two communicators: IDENT, CONGRUENT, SIMILAR or UNEQUAL."""
        from mpi4py import MPI

        names = (MPI.IDENT, MPI.CONGRUENT, MPI.SIMILAR, MPI.UNEQUAL)
        return names.index(self._real.Compare(comm._real))
