"""Partitioned communication: the parts of one message are sent one by one, as soon as the program has filled them.

Each part is a message of its own, in the context of the objects' long parts. The sender's first message for a pair of
requests, under the program's tag, announces the number and the length of its parts and the tag of the first one. The
n-th `Psend_init` with a tag matches the n-th `Precv_init` with this tag. Both sides may divide the data differently.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from viakit import _core
from viakit.base.limits import seconds
from viakit.comm.errors import error
from viakit.comm.request import Prequest, Request
from viakit.comm.spec import Simple, simple
from viakit.comm.status import PROC_NULL, empty

if TYPE_CHECKING:
    from viakit.comm.info import Info

__all__ = ["Partitioned"]

_BODY = 2  # context of the parts; objects use the tags below _HELLO
_HELLO, _DATA = 1 << 30, 3 << 29  # first tags of the announcements and of the parts
_TAGS = 1 << 29
_HEAD = struct.Struct("<IQI")  # number of parts, bytes of all parts, tag of the first


class _Parts:
    """One side of a partitioned message. A call of it begins a round and returns the round's request."""

    def __init__(self, comm: Any, place: Simple, n: int, peer: int, tag: int) -> None:
        self.comm, self.place, self.n, self.peer, self.tag = comm, place, n, peer, tag
        self.requests: list[Request | None] = []

    def __call__(self) -> Request:
        self.begin()
        return _Round(self)

    def begin(self) -> None:
        """Begin a round."""
        raise NotImplementedError

    def complete(self) -> bool:
        """Make progress and return whether all parts of the round have been transmitted."""
        return all(request is not None and _done(request) for request in self.requests)


class _SendParts(_Parts):
    _base = -1  # tag of the first part, once it is announced

    def begin(self) -> None:
        self.requests = [None] * self.n
        if self._base < 0 and self.peer != PROC_NULL:
            comm = self.comm
            self._base = _DATA + comm._next_part
            comm._next_part = (comm._next_part + self.n) % (_TAGS - self.n)
            head = _HEAD.pack(self.n, self.place.nbytes, self._base)
            comm.start_send(head, self.peer, _HELLO + self.tag, 0, _BODY).release()

    def ready(self, index: int) -> None:
        """Send a part."""
        if not 0 <= index < self.n:
            raise error("ERR_ARG", f"partition {index}: this request has partitions 0 to {self.n - 1}")
        if not self.requests or self.requests[index] is not None:
            raise error("ERR_ARG", f"partition {index} is not open: start the request, and mark each partition once")
        data = self.place.part(index, self.n).pack()
        self.requests[index] = self.comm.start_send(data, self.peer, max(self._base, 0) + index, 0, _BODY)


class _RecvParts(_Parts):
    _cut: tuple[int, int, int] | None = None  # the sender's announcement

    def begin(self) -> None:
        self._data = self.place.pack() if self.place.direct else np.empty(self.place.nbytes, np.uint8)
        self.requests, self._unpacked = [], False
        if self.peer == PROC_NULL:
            self._cut = (0, 0, 0)
        elif self._cut is None:
            self._head = bytearray(_HEAD.size)
            self._hello = self.comm.start_recv(self._head, self.peer, _HELLO + self.tag, _BODY)
        else:
            self._post()

    def _post(self) -> None:
        assert self._cut is not None
        n, nbytes, base = self._cut
        if nbytes > self._data.size:
            raise error("ERR_TRUNCATE", f"{nbytes} bytes are sent in parts, but {self._data.size} can be received")
        each = nbytes // n if n else 0
        self.requests = [
            self.comm.start_recv(self._data[i * each : (i + 1) * each], self.peer, base + i, _BODY) for i in range(n)
        ]

    def _known(self) -> bool:
        """Return whether the sender has announced its parts, and post the receives when it has."""
        if self._cut is None and self._hello.test_once():
            self._cut = _HEAD.unpack(self._head)
            self._post()
        return self._cut is not None

    def complete(self) -> bool:
        if not self._known() or not super().complete():
            return False
        if not self._unpacked and not self.place.direct:
            self.place.unpack(self._data)
        self._unpacked = True
        return True

    def arrived(self, index: int) -> bool:
        """Return whether all data of a part has arrived."""
        if not 0 <= index < self.n:
            raise error("ERR_ARG", f"partition {index}: this request has partitions 0 to {self.n - 1}")
        if not self._known():
            return False
        assert self._cut is not None
        n, nbytes, _ = self._cut
        each, mine = (nbytes // n if n else 0), self.place.nbytes // self.n
        first, last = (index * mine // each, ((index + 1) * mine - 1) // each) if each and mine else (index, index)
        wanted = self.requests[first : min(last, n - 1) + 1]
        if not all(request is not None and _done(request) for request in wanted):
            return False
        if not self.place.direct:
            part = self.place.part(index, self.n)
            part.unpack(self._data[index * mine : (index + 1) * mine])
        return True


def _done(request: Request) -> bool:
    return request.ended or request.test_once()


class _Round(Request):
    """Request of one round of a partitioned message."""

    def __new__(cls, parts: Any) -> Any:
        """Make a request without arguments of its base class."""
        return super().__new__(cls)

    def __init__(self, parts: _Parts) -> None:
        self._parts, self._taken = parts, False
        self.world = parts.comm.world

    @property
    def ended(self) -> bool:
        """Whether the program has waited for the round."""
        return self._taken

    def test_once(self) -> bool:
        """Make progress and return whether the round is complete."""
        self._taken = self._taken or self._parts.complete()
        return self._taken

    def wait_for(self, timeout_s: float | None = None) -> bool:
        """Wait at most `timeout_s` seconds (None: no limit); return whether the round is complete."""
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        while not self.test_once():
            if time.monotonic() > deadline:
                return False
            self.world.step()
            self.world.idle(0.001)
        return True

    def peek(self, status: _core.MsgStatus | None = None) -> bool:
        """Return whether the round is complete."""
        if self._parts.complete() and status is not None:
            self.fill(status)
        return self._parts.complete()

    def progress(self) -> None:
        """Make progress without waiting."""
        self.world.progress()

    def fill(self, status: _core.MsgStatus) -> None:
        """Write the properties of the message to *status*."""
        empty(status)
        if isinstance(self._parts, _RecvParts):
            status.source, status.tag, status.nbytes = self._parts.peer, self._parts.tag, self._parts.place.nbytes

    def withdraw(self) -> None:
        """Do nothing: partitioned messages cannot be cancelled."""

    def release(self) -> None:
        """Release the request."""
        self._taken = True


class Partitioned:
    """The part of ``MPI.Comm`` that begins partitioned messages."""

    _next_part = 0

    def _partitioned(self, kind: type[_Parts], buf: Any, partitions: int, peer: int, tag: int, room: bool) -> Prequest:
        if partitions < 1:
            raise error("ERR_ARG", f"partitions must be 1 or more, got {partitions}")
        if not 0 <= tag < _TAGS:
            raise error("ERR_TAG", f"the tag of a partitioned message is 0 to {_TAGS - 1}, got {tag}")
        return Prequest(kind(self, simple(buf, room, partitions), partitions, peer, tag))

    def Psend_init(self, buf: Any, partitions: int, dest: int, tag: int = 0, info: Info | None = None) -> Prequest:
        """Create a persistent request for a message that is sent in partitions.

        Parameters
        ----------
        buf : buffer or list
            Data to send. A count is that of one partition.
        partitions : int
            Number of partitions. After `Start` each is sent by `Prequest.Pready`.
        dest, tag : int
            Destination rank and message tag.
        info : Info, optional
            Ignored.
        """
        del info
        return self._partitioned(_SendParts, buf, partitions, dest, tag, False)

    def Precv_init(self, buf: Any, partitions: int, source: int, tag: int = 0, info: Info | None = None) -> Prequest:
        """Create a persistent request to receive a message that is sent in partitions.

        Parameters
        ----------
        buf : buffer or list
            Memory to receive into. A count is that of one partition.
        partitions : int
            Number of partitions, for `Prequest.Parrived`; the sender may have another number.
        source, tag : int
            Source rank and message tag. Wildcards are not possible.
        info : Info, optional
            Ignored.
        """
        del info
        return self._partitioned(_RecvParts, buf, partitions, source, tag, True)


def ready(begin: Any, indices: Sequence[int]) -> None:
    """Send partitions of the message that a persistent request begins."""
    if not isinstance(begin, _SendParts):
        raise error("ERR_REQUEST", "this request sends no partitions; Psend_init makes one that does")
    for index in indices:
        begin.ready(index)


def arrived(begin: Any, index: int) -> bool:
    """Return whether a partition of the message that a persistent request begins has arrived."""
    if not isinstance(begin, _RecvParts):
        raise error("ERR_REQUEST", "this request receives no partitions; Precv_init makes one that does")
    begin.comm.world.progress()
    return begin.arrived(index)
