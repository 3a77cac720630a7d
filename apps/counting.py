"""The messages that an application sends, counted at its communicator.

:class:`Counting` is a thin communicator around another one (viakit's or mpi4py's). It changes the state of its rank
(:class:`viakit.apps.phases.Phases`) during sends, receives and waits, and counts the messages that the program sends.
The size of a message is that of its buffer argument.
"""

from __future__ import annotations

import importlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from viakit.apps.phases import BARRIER, COLLECTIVE, RECEIVE, SEND, WAIT, Message, Phases, clock_ns

__all__ = ["Counting", "names_of", "nbytes_of"]

# ------------------------------------------------------------------------------------------- sizes of messages


def _itemsize(kind: Any) -> int:
    if hasattr(kind, "Get_size"):
        return int(kind.Get_size())
    try:
        return np.dtype(kind).itemsize
    except TypeError:
        from viakit.comm.datatype import fromcode  # start-up time

        return int(fromcode(kind).size)


def _parts(spec: Any, vector: bool = True) -> tuple[int, list[int] | None]:
    """Return the bytes of a buffer argument, and for a vector with counts the bytes of each rank."""
    if spec is None:
        return 0, None
    if not isinstance(spec, (list, tuple)):
        try:
            return memoryview(spec).nbytes, None
        except TypeError:
            return 0, None  # IN_PLACE
    buffer, *rest = spec
    view = memoryview(buffer)
    item = view.itemsize
    if rest and (isinstance(rest[-1], (str, type, np.dtype)) or hasattr(rest[-1], "Get_size")):
        item = _itemsize(rest.pop())
    counts = rest[0] if rest else None
    if isinstance(counts, tuple) and len(counts) == 2 and (not vector or counts[1] is None or np.ndim(counts[1])):
        counts = counts[0]  # the other are displacements
    if counts is None:
        return view.nbytes, None
    if np.isscalar(counts):
        return int(cast(Any, counts)) * item, None
    each = [int(count) * item for count in counts]
    return sum(each), each


def nbytes_of(spec: Any) -> int:
    """Return the bytes of a buffer argument: an array, ``[array, type]``, ``[array, count, type]`` and so on."""
    return _parts(spec, vector=False)[0]


# ------------------------------------------------------------------------------------------- the communicator


def names_of(comm: Any) -> Any:
    """Return the module with the constants, types and exceptions of a communicator: viakit.comm or mpi4py.MPI."""
    return importlib.import_module("mpi4py.MPI" if type(comm).__module__.startswith("mpi4py") else "viakit.comm")


class _Request:
    """Request whose wait is counted as waiting, and whose message is recorded when it completes."""

    __slots__ = ("_arrive", "_depart", "_phases", "_real", "_source", "_status")

    def __init__(
        self,
        real: Any,
        phases: Phases,
        arrive: Callable[[int, int], None] | None = None,
        depart: Callable[[], int] | None = None,
        status: Callable[[], Any] | None = None,
    ) -> None:
        self._real, self._phases, self._arrive, self._depart = real, phases, arrive, depart
        self._status = status if phases.trace and arrive is not None else None

    def Wait(self, status: Any = None) -> bool:  # noqa: N802 (MPI's name)
        """Wait until the request completes."""
        if self._status is not None and status is None:
            status = self._status()
        self._phases.enter(WAIT)
        try:
            done = self._real.Wait(status) if status is not None else self._real.Wait()
        finally:
            self._phases.leave()
            self._phases.call_made("Wait, receive" if self._arrive is not None else "Wait, send")
        self._completed(status)
        return bool(done)

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        """Return whether the request is complete."""
        if self._status is not None and status is None:
            status = self._status()
        done = self._real.Test(status) if status is not None else self._real.Test()
        if done:
            self._completed(status)
        return bool(done)

    def Start(self) -> None:  # noqa: N802
        """Start a persistent request."""
        nbytes = 0
        self._phases.enter(SEND if self._depart is not None else RECEIVE)
        try:
            if self._depart is not None:
                nbytes = self._depart()
            self._real.Start()
        finally:
            self._phases.leave()
            self._phases.call_made("Start, receive" if self._depart is None else "Start, send", nbytes)

    def _completed(self, status: Any) -> None:
        if self._arrive is not None and self._phases.trace and status is not None:
            self._arrive(status.Get_source(), status.Get_tag())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Counting:
    """Communicator that counts the program's messages and records its states, and forwards every call.

    It counts messages of the program as the paper's Table II does. A collective operation counts as the messages of its
    plain form. A broadcast or a scatter counts size-1 at the root, a reduction or a gather one at each other rank, and
    an all-reduce both. An all-to-all or an all-gather counts size-1 at each rank, without empty parts, and a scan one
    at each rank but the last. Barriers, objects (``send``, ``bcast``, ...) and communicators derived from this one
    count nothing.

    Parameters
    ----------
    comm : communicator
        Communicator of viakit or mpi4py.
    phases : Phases
        States of this rank.
    """

    def __init__(self, comm: Any, phases: Phases) -> None:
        self.real, self.phases = comm, phases
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._numbers: defaultdict[tuple[bool, int, int], Iterator[int]] = defaultdict(itertools.count)
        names = names_of(comm)
        self._any_source, self._any_tag, self._new_status = names.ANY_SOURCE, names.ANY_TAG, names.Status
        self.Get_rank: Callable[[], int] = comm.Get_rank
        self.Get_size: Callable[[], int] = comm.Get_size

    def __getattr__(self, name: str) -> Any:
        if name in _COLLECTIVES:
            return self._collective(name)
        return getattr(self.real, name)

    # ------------------------------------------------------------ counting

    def _sent(self, spec: Any, dest: int, tag: int) -> int:
        if dest < 0:  # PROC_NULL
            return 0
        phases, nbytes = self.phases, nbytes_of(spec)
        phases.count(1, nbytes)
        if phases.trace:
            number = next(self._numbers[True, dest, tag])  # also of those that are not kept: both ends count alike
            if phases.tracing:
                phases.sent.append(Message(dest, tag, nbytes, clock_ns(), number))
        return nbytes

    def _arrived(self, source: int, tag: int) -> None:
        if source >= 0:
            number = next(self._numbers[False, source, tag])
            if self.phases.tracing:
                self.phases.received.append(Message(source, tag, 0, clock_ns(), number))
                if self.phases.made is not None:
                    self.phases.made.arrived(source, tag, number)

    def _call(self, state: int, call: Callable[..., Any], *args: Any, nbytes: int = 0) -> Any:
        phases = self.phases
        phases.enter(state)
        try:
            return call(*args)
        finally:
            phases.leave()
            phases.call_made(call.__name__, nbytes)

    # ------------------------------------------------------------ between two ranks

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:  # noqa: N802
        """Send a buffer; return when it may be modified."""
        self._call(SEND, self.real.Send, buf, dest, tag, nbytes=self._sent(buf, dest, tag))

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:  # noqa: N802
        """Send a buffer; return after the matching receive has started."""
        self._call(SEND, self.real.Ssend, buf, dest, tag, nbytes=self._sent(buf, dest, tag))

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> _Request:  # noqa: N802
        """Start to send a buffer."""
        nbytes = self._sent(buf, dest, tag)
        return _Request(self._call(SEND, self.real.Isend, buf, dest, tag, nbytes=nbytes), self.phases)

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> _Request:  # noqa: N802
        """Create a persistent request for a send."""
        return _Request(
            self.real.Send_init(buf, dest, tag), self.phases, depart=lambda: self._sent(buf, dest, tag)
        )  # fmt: skip

    def Recv(self, buf: Any, source: int | None = None, tag: int | None = None, status: Any = None) -> None:  # noqa: N802
        """Receive a message into a buffer."""
        source = self._any_source if source is None else source
        tag = self._any_tag if tag is None else tag
        if status is None and self.phases.trace:
            status = self._new_status()
        self._call(RECEIVE, self.real.Recv, buf, source, tag, status)
        if self.phases.trace:
            self._arrived(status.Get_source(), status.Get_tag())

    def Irecv(self, buf: Any, source: int | None = None, tag: int | None = None) -> _Request:  # noqa: N802
        """Start to receive a message."""
        return self._receiving(self.real.Irecv, buf, source, tag)

    def Recv_init(self, buf: Any, source: int | None = None, tag: int | None = None) -> _Request:  # noqa: N802
        """Create a persistent request for a receive."""
        return self._receiving(self.real.Recv_init, buf, source, tag)

    def _receiving(self, call: Callable[..., Any], buf: Any, source: int | None, tag: int | None) -> _Request:
        source = self._any_source if source is None else source
        tag = self._any_tag if tag is None else tag
        real = self._call(RECEIVE, call, buf, source, tag)
        return _Request(real, self.phases, arrive=self._arrived, status=self._new_status)

    def Sendrecv(  # noqa: N802
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int | None = None,
        recvtag: int | None = None,
        status: Any = None,
    ) -> None:
        """Send a message and receive another one concurrently. The time counts as receiving."""
        source = self._any_source if source is None else source
        recvtag = self._any_tag if recvtag is None else recvtag
        if status is None and self.phases.trace:
            status = self._new_status()
        nbytes = self._sent(sendbuf, dest, sendtag)
        self._call(RECEIVE, self.real.Sendrecv, sendbuf, dest, sendtag, recvbuf, source, recvtag, status, nbytes=nbytes)
        if self.phases.trace:
            self._arrived(status.Get_source(), status.Get_tag())

    # ------------------------------------------------------------ among all

    def Barrier(self) -> None:  # noqa: N802
        """Wait until all ranks have called the barrier."""
        self._call(BARRIER, self.real.Barrier)

    def _collective(self, name: str) -> Callable[..., Any]:
        call, count = getattr(self.real, name), _COLLECTIVES[name]

        def counted(*args: Any, **kwargs: Any) -> Any:
            messages, nbytes = count(self, *args, **kwargs)
            self.phases.count(messages, nbytes)
            self.phases.enter(COLLECTIVE)
            try:
                return call(*args, **kwargs)
            finally:
                self.phases.leave()
                self.phases.call_made(name, nbytes)

        counted.__name__, counted.__doc__ = name, call.__doc__
        self.__dict__[name] = counted  # so that the next call finds it at once
        return counted


def _others(comm: Counting, parts: Sequence[int]) -> tuple[int, int]:
    """Return messages and bytes of one part for each rank but this one."""
    others = [n for rank, n in enumerate(parts) if rank != comm.rank and n]
    return len(others), sum(others)


def _of_root(comm: Counting, sendbuf: Any, root: int) -> tuple[int, int]:
    total, parts = _parts(sendbuf)
    return _others(comm, parts or [total // comm.size] * comm.size) if comm.rank == root else (0, 0)


def _to_root(comm: Counting, sendbuf: Any, root: int) -> tuple[int, int]:
    return (0, 0) if comm.rank == root else (1, nbytes_of(sendbuf))


def _all_gather(comm: Counting, sendbuf: Any, recvbuf: Any) -> tuple[int, int]:
    mine = nbytes_of(sendbuf)
    if not mine:  # in place
        total, parts = _parts(recvbuf)
        mine = parts[comm.rank] if parts else total // comm.size
    return _others(comm, [mine] * comm.size)


def _all_to_all(comm: Counting, sendbuf: Any, recvbuf: Any) -> tuple[int, int]:
    total, parts = _parts(sendbuf)
    if not total and parts is None:
        total, parts = _parts(recvbuf)
    return _others(comm, parts or [total // comm.size] * comm.size)


def _all_reduce(comm: Counting, recvbuf: Any) -> tuple[int, int]:
    n = nbytes_of(recvbuf)
    return (comm.size - 1, (comm.size - 1) * n) if comm.rank == 0 else (1, n)


def _scan(comm: Counting, recvbuf: Any) -> tuple[int, int]:
    return (1, nbytes_of(recvbuf)) if comm.rank < comm.size - 1 else (0, 0)


_COLLECTIVES: dict[str, Callable[..., tuple[int, int]]] = {
    "Bcast": lambda comm, buf, root=0: (
        (comm.size - 1, (comm.size - 1) * nbytes_of(buf)) if comm.rank == root else (0, 0)
    ),
    "Scatter": lambda comm, sendbuf, recvbuf, root=0: _of_root(comm, sendbuf, root),
    "Scatterv": lambda comm, sendbuf, recvbuf, root=0: _of_root(comm, sendbuf, root),
    "Gather": lambda comm, sendbuf, recvbuf, root=0: _to_root(comm, sendbuf, root),
    "Gatherv": lambda comm, sendbuf, recvbuf, root=0: _to_root(comm, sendbuf, root),
    "Reduce": lambda comm, sendbuf, recvbuf, op=None, root=0: _to_root(comm, sendbuf, root),
    "Allgather": _all_gather,
    "Allgatherv": _all_gather,
    "Alltoall": _all_to_all,
    "Alltoallv": _all_to_all,
    "Allreduce": lambda comm, sendbuf, recvbuf, op=None: _all_reduce(comm, recvbuf),
    "Scan": lambda comm, sendbuf, recvbuf, op=None: _scan(comm, recvbuf),
    "Exscan": lambda comm, sendbuf, recvbuf, op=None: _scan(comm, recvbuf),
}
