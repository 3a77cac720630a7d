"""Where the time of a rank goes, and how many messages it sends.

A rank is always in one state of :data:`STATES`. :class:`Phases` keeps the time spent in each, and with tracing on
every interval. :class:`Counting` is a thin communicator around any other (viakit's or mpi4py's) that moves its rank
from state to state as it sends, receives and waits, and counts the messages that the program sends; whatever is not in
one of its calls is computing. So an application says nothing of this, except where its measured part begins::

    def parallel(comm, problem, phases=None):
        phases = phases or Phases()
        ...                    # set up, a first iteration that is not to be counted
        comm.Barrier()
        phases.begin()         # clocks and counters start again from zero
        ...
        phases.end()           # what follows (gathering what is to be verified) is not measured

Invariant: the times of the states add up to the wall time of the measured part.
"""

from __future__ import annotations

import importlib
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

__all__ = ["STATES", "Counting", "Interval", "Message", "Phases", "nbytes_of"]

STATES = ("compute", "send", "receive", "wait", "barrier", "collective")
COMPUTE, SEND, RECEIVE, WAIT, BARRIER, COLLECTIVE = range(len(STATES))

_thread_clock = time.thread_time_ns
_clock = time.perf_counter_ns  # CLOCK_MONOTONIC: one for all processes of a machine, so traces of ranks fit together


class Interval(NamedTuple):
    """A time that a rank spent in one state; nanoseconds of the machine's monotonic clock."""

    state: int  # index into STATES
    begin_ns: int
    end_ns: int


class Message(NamedTuple):
    """One end of a message: that a rank sent it, or had received it."""

    peer: int
    tag: int
    nbytes: int
    time_ns: int
    number: int = 0  # how many there were before with this peer and tag: both ends agree on it


class _Mark:
    """A state to be in for the length of a ``with`` block."""

    __slots__ = ("_phases", "_state")

    def __init__(self, phases: Phases, state: int) -> None:
        self._phases, self._state = phases, state

    def __enter__(self) -> None:
        self._phases.enter(self._state)

    def __exit__(self, *_: object) -> None:
        self._phases.leave()


class Phases:
    """The states of one rank, its time in each, and its messages; two clock readings at each change of state.

    Parameters
    ----------
    trace : bool
        Keep every interval and both ends of every message, too.
    on_progress : callable, optional
        Called by :meth:`progress` with how much is done, and of how much.

    Attributes
    ----------
    messages, nbytes : int
        What the program sent in the measured part, as :class:`Counting` counts it.
    wall_s, cpu_s : float
        Of the measured part, once :meth:`end` was called. CPU time is that of all threads of the process.
    work_s : float
        CPU time that the calling thread spent computing: a rank's work, however many ranks share its core.
    intervals, sent, received : list
        With `trace`: :class:`Interval` in order; :class:`Message`, in the order of sending and of receiving.
    """

    def __init__(self, trace: bool = False, on_progress: Callable[[int, int], None] | None = None) -> None:
        self.trace = trace
        self._on_progress = on_progress
        self._stack = [COMPUTE]
        self._marks = [_Mark(self, state) for state in range(len(STATES))]
        self._open = True
        self.begin()

    def begin(self) -> None:
        """Start the measured part, from zero; called again, it starts once more."""
        self._ns = [0] * len(STATES)
        self.messages = self.nbytes = 0
        self.intervals: list[Interval] = []
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.wall_s = self.cpu_s = 0.0
        self._work_ns = 0
        self._open = True
        self._cpu_ns = time.process_time_ns()
        self._worked = _thread_clock()
        self._began = self._since = _clock()

    def end(self) -> None:
        """End the measured part; to end it again changes nothing."""
        if not self._open:
            return
        self._switch()
        self._open = False
        self.wall_s = (self._since - self._began) * 1e-9
        self.cpu_s = (time.process_time_ns() - self._cpu_ns) * 1e-9

    # Explicit marks, for what Counting cannot see. They may be nested: the innermost counts.

    def compute(self) -> _Mark:
        """Mark computing, within another mark."""
        return self._marks[COMPUTE]

    def send(self) -> _Mark:
        """Mark sending."""
        return self._marks[SEND]

    def receive(self) -> _Mark:
        """Mark receiving."""
        return self._marks[RECEIVE]

    def wait(self) -> _Mark:
        """Mark waiting for what was started before."""
        return self._marks[WAIT]

    def barrier(self) -> _Mark:
        """Mark being in a barrier."""
        return self._marks[BARRIER]

    def collective(self) -> _Mark:
        """Mark any other collective operation."""
        return self._marks[COLLECTIVE]

    def enter(self, state: int) -> None:
        """Be in a state (an index into :data:`STATES`) until :meth:`leave`."""
        self._switch()
        self._stack.append(state)

    def leave(self) -> None:
        """Be in the state again that there was before :meth:`enter`."""
        self._switch()
        self._stack.pop()

    def _switch(self) -> None:
        now, worked = _clock(), _thread_clock()
        if self._open:
            state = self._stack[-1]
            self._ns[state] += now - self._since
            if state == COMPUTE:
                self._work_ns += worked - self._worked
            if self.trace and now > self._since:
                self.intervals.append(Interval(state, self._since, now))
        self._since, self._worked = now, worked

    @property
    def tracing(self) -> bool:
        """Whether messages are kept: with `trace`, in the measured part."""
        return self.trace and self._open

    def count(self, messages: int, nbytes: int) -> None:
        """Count messages that were sent, and their bytes altogether."""
        if self._open:
            self.messages += messages
            self.nbytes += nbytes

    def progress(self, done: int, total: int) -> None:
        """Tell how much is done: cheap, and nothing happens unless somebody looks."""
        if self._on_progress is not None:
            self._on_progress(done, total)

    @property
    def began_ns(self) -> int:
        """When the measured part began, nanoseconds of the machine's monotonic clock."""
        return self._began

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent in each state, by name."""
        return {name: ns * 1e-9 for name, ns in zip(STATES, self._ns, strict=True)}

    @property
    def work_s(self) -> float:
        """CPU time that this thread spent computing."""
        return self._work_ns * 1e-9

    @property
    def communication_s(self) -> float:
        """Time spent in all states but computing."""
        return sum(self._ns[1:]) * 1e-9


# ------------------------------------------------------------------------------------------- sizes of messages


def _itemsize(kind: Any) -> int:
    if hasattr(kind, "Get_size"):
        return int(kind.Get_size())
    try:
        return np.dtype(kind).itemsize
    except TypeError:
        from viakit._comm.datatype import fromcode

        return int(fromcode(kind).size)


def _parts(spec: Any, vector: bool = True) -> tuple[int, list[int] | None]:
    """Bytes of a buffer argument as mpi4py takes it, and, if it is a vector with counts, those of each rank."""
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
    """Bytes of data that a buffer argument names: an array, ``[array, type]``, ``[array, count, type]`` and so on."""
    return _parts(spec, vector=False)[0]


# ------------------------------------------------------------------------------------------- the communicator


class _Request:
    """A request whose waiting is counted as waiting, and whose message arrives when it is complete."""

    __slots__ = ("_arrive", "_depart", "_phases", "_real", "_source", "_status")

    def __init__(
        self,
        real: Any,
        phases: Phases,
        arrive: Callable[[int, int], None] | None = None,
        depart: Callable[[], None] | None = None,
        status: Callable[[], Any] | None = None,
    ) -> None:
        self._real, self._phases, self._arrive, self._depart = real, phases, arrive, depart
        self._status = status if phases.trace and arrive is not None else None

    def Wait(self, status: Any = None) -> bool:  # noqa: N802 (MPI's name)
        """Wait until it is complete."""
        if self._status is not None and status is None:
            status = self._status()
        self._phases.enter(WAIT)
        try:
            done = self._real.Wait(status) if status is not None else self._real.Wait()
        finally:
            self._phases.leave()
        self._completed(status)
        return bool(done)

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        """Tell whether it is complete."""
        if self._status is not None and status is None:
            status = self._status()
        done = self._real.Test(status) if status is not None else self._real.Test()
        if done:
            self._completed(status)
        return bool(done)

    def Start(self) -> None:  # noqa: N802
        """Start a persistent request."""
        self._phases.enter(SEND if self._depart is not None else RECEIVE)
        try:
            if self._depart is not None:
                self._depart()
            self._real.Start()
        finally:
            self._phases.leave()

    def _completed(self, status: Any) -> None:
        if self._arrive is not None and self._phases.trace and status is not None:
            self._arrive(status.Get_source(), status.Get_tag())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Counting:
    """A communicator that counts what its program sends and marks what it does, and passes every call on.

    What it counts are the messages of the program, as the paper's Table II does. A collective operation counts as the
    messages of its plain form: a broadcast or a scatter size-1 by the root, a reduction or a gather one by each other
    rank, an all-reduce both, an all-to-all or an all-gather size-1 by each rank (parts of no bytes are none), a scan
    one by each but the last. Barriers count nothing; nor do objects (``send``, ``bcast``, ...), nor communicators made
    of this one.

    Parameters
    ----------
    comm : communicator
        viakit's or mpi4py's.
    phases : Phases
        Of this rank.
    """

    def __init__(self, comm: Any, phases: Phases) -> None:
        self.real, self.phases = comm, phases
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._numbers: defaultdict[tuple[bool, int, int], Iterator[int]] = defaultdict(itertools.count)
        names = importlib.import_module("mpi4py.MPI" if type(comm).__module__.startswith("mpi4py") else "viakit.comm")
        self._any_source, self._any_tag, self._new_status = names.ANY_SOURCE, names.ANY_TAG, names.Status
        self.Get_rank: Callable[[], int] = comm.Get_rank
        self.Get_size: Callable[[], int] = comm.Get_size

    def __getattr__(self, name: str) -> Any:
        if name in _COLLECTIVES:
            return self._collective(name)
        return getattr(self.real, name)

    # ------------------------------------------------------------ counting

    def _sent(self, spec: Any, dest: int, tag: int) -> None:
        if dest < 0:  # PROC_NULL
            return
        phases, nbytes = self.phases, nbytes_of(spec)
        phases.count(1, nbytes)
        if phases.trace:
            number = next(self._numbers[True, dest, tag])  # also of those that are not kept: both ends count alike
            if phases.tracing:
                phases.sent.append(Message(dest, tag, nbytes, _clock(), number))

    def _arrived(self, source: int, tag: int) -> None:
        if source >= 0:
            number = next(self._numbers[False, source, tag])
            if self.phases.tracing:
                self.phases.received.append(Message(source, tag, 0, _clock(), number))

    def _call(self, state: int, call: Callable[..., Any], *args: Any) -> Any:
        phases = self.phases
        phases.enter(state)
        try:
            return call(*args)
        finally:
            phases.leave()

    # ------------------------------------------------------------ between two ranks

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:  # noqa: N802
        """Send, and return when the buffer may be changed."""
        self._sent(buf, dest, tag)
        self._call(SEND, self.real.Send, buf, dest, tag)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:  # noqa: N802
        """Send, and return when it is being received."""
        self._sent(buf, dest, tag)
        self._call(SEND, self.real.Ssend, buf, dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> _Request:  # noqa: N802
        """Start sending."""
        self._sent(buf, dest, tag)
        return _Request(self._call(SEND, self.real.Isend, buf, dest, tag), self.phases)

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> _Request:  # noqa: N802
        """Prepare a request that sends each time it is started."""
        return _Request(
            self.real.Send_init(buf, dest, tag), self.phases, depart=lambda: self._sent(buf, dest, tag)
        )  # fmt: skip

    def Recv(self, buf: Any, source: int | None = None, tag: int | None = None, status: Any = None) -> None:  # noqa: N802
        """Receive."""
        source = self._any_source if source is None else source
        tag = self._any_tag if tag is None else tag
        if status is None and self.phases.trace:
            status = self._new_status()
        self._call(RECEIVE, self.real.Recv, buf, source, tag, status)
        if self.phases.trace:
            self._arrived(status.Get_source(), status.Get_tag())

    def Irecv(self, buf: Any, source: int | None = None, tag: int | None = None) -> _Request:  # noqa: N802
        """Start receiving."""
        return self._receiving(self.real.Irecv, buf, source, tag)

    def Recv_init(self, buf: Any, source: int | None = None, tag: int | None = None) -> _Request:  # noqa: N802
        """Prepare a request that receives each time it is started."""
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
        """Send one message and receive another at the same time; counted as receiving, which it mostly is."""
        source = self._any_source if source is None else source
        recvtag = self._any_tag if recvtag is None else recvtag
        if status is None and self.phases.trace:
            status = self._new_status()
        self._sent(sendbuf, dest, sendtag)
        self._call(RECEIVE, self.real.Sendrecv, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        if self.phases.trace:
            self._arrived(status.Get_source(), status.Get_tag())

    # ------------------------------------------------------------ among all

    def Barrier(self) -> None:  # noqa: N802
        """Wait until all ranks are here."""
        self._call(BARRIER, self.real.Barrier)

    def _collective(self, name: str) -> Callable[..., Any]:
        call, count = getattr(self.real, name), _COLLECTIVES[name]

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.phases.count(*count(self, *args, **kwargs))
            self.phases.enter(COLLECTIVE)
            try:
                return call(*args, **kwargs)
            finally:
                self.phases.leave()

        counted.__name__, counted.__doc__ = name, call.__doc__
        self.__dict__[name] = counted  # so that the next call finds it at once
        return counted


def _others(comm: Counting, parts: Sequence[int]) -> tuple[int, int]:
    """Messages and bytes of one part for each rank but this one."""
    theirs = [n for rank, n in enumerate(parts) if rank != comm.rank and n]
    return len(theirs), sum(theirs)


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
