"""The world over mpi4py: every call is handed on, with this package's words translated into mpi4py's and back."""

from __future__ import annotations

from typing import Any

from viakit._comm import communicator, datatype, errors, op
from viakit._comm.group import Group
from viakit._comm.request import ANY_SOURCE, ANY_TAG, PROC_NULL, Status
from viakit._comm.spec import BOTTOM, IN_PLACE

_RANKS = {"dest", "source"}


def world_over_mpi() -> OverMpi:
    """``mpi4py.MPI.COMM_WORLD`` behind this package's words.

    Raises
    ------
    Exception
        ERR_OTHER if mpi4py, or an MPI library for it, is missing.
    """
    from viakit.launch import bootstrap

    bootstrap()  # chooses the library that belongs to the launcher
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as problem:
        raise errors.error("ERR_OTHER", f"the protocol 'mpi' needs mpi4py and an MPI library: {problem}") from problem
    return OverMpi(MPI.COMM_WORLD)


def _out(value: Any) -> Any:
    """Into mpi4py's words."""
    from mpi4py import MPI

    if isinstance(value, (OverMpi, _Over)):
        return value._real
    if isinstance(value, datatype.Datatype):
        name = value.name.removeprefix("MPI_")
        if value.is_predefined and hasattr(MPI, name):
            return getattr(MPI, name)
        return MPI.BYTE.Create_hindexed([n for _, n in value._blocks], [at for at, _ in value._blocks]).Create_resized(
            value.lb, value.extent
        ).Commit()  # fmt: skip
    if isinstance(value, op.Op):
        if value._user is not None:
            user = value._user
            return MPI.Op.Create(lambda a, b, _: user(a, b, datatype.BYTE), value._commutative)
        return getattr(MPI, value.name.removeprefix("MPI_"))
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
    """Out of mpi4py's words."""
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

    # Statuses are filled in by mpi4py's own, then copied; wildcards have numbers of each library's own.
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
    try:
        result = function(*plain, **keys)
    except MPI.Exception as problem:
        raise errors.Exception(_class_of(problem.Get_error_class()), problem.Get_error_string()) from problem
    for ours, theirs in statuses:
        ours.source, ours.tag = _rank_back(theirs.source), theirs.tag
        ours.nbytes, ours.error, ours.was_cancelled = theirs.Get_count(MPI.BYTE), theirs.error, theirs.cancelled
    return tuple(map(_rank_back, result)) if name == "Shift" else _back(result)


def _tag_or_rank(key: str, value: Any) -> Any:
    from mpi4py import MPI

    if key in _RANKS:
        return _rank_out(value)
    return MPI.ANY_TAG if key in ("tag", "recvtag") and value == ANY_TAG and type(value) is int else value


# Where ranks stand among the arguments.
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


class _Over:
    """Something of mpi4py's behind this package's words."""

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
        return lambda *args, **kwargs: _call(found, name, args, kwargs)


class OverMpi(_Over):
    """``MPI.Comm`` over mpi4py."""

    @property
    def COMM_SELF(self) -> OverMpi:
        """A rank alone."""
        from mpi4py import MPI

        return OverMpi(MPI.COMM_SELF)

    def Compare(self, comm: OverMpi) -> int:
        """IDENT, CONGRUENT, SIMILAR or UNEQUAL."""
        from mpi4py import MPI

        names = (MPI.IDENT, MPI.CONGRUENT, MPI.SIMILAR, MPI.UNEQUAL)
        return names.index(self._real.Compare(comm._real))
