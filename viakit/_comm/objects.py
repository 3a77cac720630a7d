"""Any Python object as a message.

A short object is one message, its pickle. A long one is announced by a head of at most 16 KiB under the program's
tag, and its parts follow in a context of their own, where nothing else can match them: the pickle, and the large
buffers that pickle protocol 5 leaves out of it, which go from the sender's memory into the receiver's without being
pickled. So a receive never has to know how long an object is.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterable
from typing import Any

from viakit._comm.request import Request, withdrawing
from viakit._comm.schedule import Schedule, ScheduleRequest
from viakit._comm.status import Status

SHORT = 16384  # bytes of a pickle, and of a head
_HEAD = struct.Struct("<cII")  # "V", the parts' tag, how many parts; then the length of each, 8 bytes
_LARGE = 16384  # buffers from here on travel outside the pickle
_PART_BODY = 2  # the context of the parts
_ATOMS = {type(None), bool, int, float, complex, str, bytes}  # which have no buffers to be left out
_V = ord("V")


class Pickle:
    """``MPI.Pickle``: how objects become bytes; ``MPI.pickle`` is the one that the lower-case methods use.

    Parameters
    ----------
    dumps, loads : callable, optional
        The functions of a module such as marshal or dill, in place of pickle's: then all ranks have to say so.
    protocol : int, optional
        What `dumps` gets as second argument. None: of pickle the highest, of others nothing.
    threshold : int, optional
        Bytes from which `dumps_oob` leaves a buffer out of the pickle; default 256 KiB.
    """

    def __init__(
        self,
        dumps: Callable[..., bytes] | None = None,
        loads: Callable[..., Any] | None = None,
        protocol: int | None = None,
        threshold: int | None = None,
    ) -> None:
        self._dumps, self._loads = dumps or pickle.dumps, loads or pickle.loads
        self.PROTOCOL, self.THRESHOLD = protocol, threshold

    @property
    def PROTOCOL(self) -> int | None:
        """The protocol's version."""
        return self._protocol

    @PROTOCOL.setter
    def PROTOCOL(self, protocol: int | None) -> None:
        usual = self._dumps is pickle.dumps
        self._protocol = pickle.HIGHEST_PROTOCOL if protocol is None and usual else protocol
        # Whether buffers may be left out of messages: nothing special was asked for.
        self.plain = usual and self._loads is pickle.loads and self._protocol in (-1, pickle.HIGHEST_PROTOCOL)

    @property
    def THRESHOLD(self) -> int:
        """Bytes from which `dumps_oob` leaves a buffer out of the pickle."""
        return self._threshold

    @THRESHOLD.setter
    def THRESHOLD(self, threshold: int | None) -> None:
        self._threshold = 1 << 18 if threshold is None else threshold

    def dumps(self, obj: Any) -> bytes:
        """The bytes of an object."""
        return self._dumps(obj) if self._protocol is None else self._dumps(obj, self._protocol)

    def loads(self, data: Any) -> Any:
        """The object again."""
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[memoryview]]:
        """The bytes of an object, and the large buffers that were left out of them."""
        outside: list[memoryview] = []

        def leave_out(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < self._threshold:
                return True
            outside.append(raw)
            return False

        protocol = max(pickle.HIGHEST_PROTOCOL if self._protocol is None else self._protocol, 5)
        return self._dumps(obj, protocol, buffer_callback=leave_out), outside

    def loads_oob(self, data: Any, buffers: Iterable[Any]) -> Any:
        """The object of such bytes and buffers."""
        return self._loads(data, buffers=buffers)


PICKLE = Pickle()


def dump(obj: Any) -> tuple[bytes, list[Any]]:
    """The pickle of an object, and the large buffers that were left out of it."""
    outside: list[Any] = []
    if not PICKLE.plain:
        return PICKLE.dumps(obj), outside
    if type(obj) in _ATOMS:
        return pickle.dumps(obj, protocol=5), outside

    def leave_out(buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:
            return True  # not contiguous: pickled as usual
        if raw.nbytes < _LARGE or raw.readonly or len(outside) >= 1000:
            return True
        outside.append(raw)
        return False

    data = pickle.dumps(obj, protocol=5, buffer_callback=leave_out)
    return data, outside


def load(data: Any, outside: list[Any] | None = None) -> Any:
    """The object again; None of no bytes at all, as in mpi4py."""
    if not len(data):
        return None
    return pickle.loads(data, buffers=outside) if outside else PICKLE.loads(data)


def start_send(comm: Any, obj: Any, dest: int, tag: int, mode: int) -> list[Request]:
    """Start to send an object: one request, or one for the head and one for each part."""
    return start_dumped(comm, *dump(obj), dest, tag, mode)


def start_send_copy(comm: Any, obj: Any, dest: int, tag: int, mode: int) -> list[Request]:
    """The same for a caller that goes on, and may change the object, before it has left."""
    data, outside = dump(obj)
    return start_dumped(comm, data, [bytearray(part) for part in outside], dest, tag, mode)


def start_dumped(comm: Any, data: bytes, outside: list[Any], dest: int, tag: int, mode: int) -> list[Request]:
    """The same for what `dump` has made of it."""
    if (len(data) <= SHORT and not outside and data[:1] != b"V") or dest < 0:
        return [comm.start_send(data, dest, tag, mode)]
    comm._n_objects = number = (comm._n_objects + 1) & 0x7FFFFFFF
    parts = [data, *outside]
    head = _HEAD.pack(b"V", number, len(parts)) + b"".join(struct.pack("<Q", len(part)) for part in parts)
    requests = [comm.start_send(head, dest, tag, mode)]
    later = 0 if mode == 3 else mode  # the parts' receives are posted when the head is known: never ready
    return requests + [comm.start_send(part, dest, number, later, _PART_BODY) for part in parts]


def _parts(comm: Any, data: memoryview, source: int) -> tuple[list[Request], list[bytearray]]:
    """Start to receive the parts that a head announces."""
    _, number, n = _HEAD.unpack_from(data)
    lengths = struct.unpack_from(f"<{n}Q", data, _HEAD.size)
    parts = [bytearray(length) for length in lengths]
    return [comm.start_recv(part, source, number, _PART_BODY) for part in parts], parts


def receiving(comm: Any, request: Request, buffer: bytearray, status: Status) -> Schedule:
    """The schedule that receives an object whose first message comes by `request` into `buffer`."""
    yield [request]
    request.fill(status)
    if status.source < 0 or status.was_cancelled:
        return None
    data = memoryview(buffer)[: request.nbytes]
    if request.nbytes == 0 or data[0] != ord("V"):
        return load(data)
    requests, parts = _parts(comm, data, status.source)
    yield requests
    return load(parts[0], parts[1:])


def receive(comm: Any, source: int, tag: int) -> ScheduleRequest:
    """Start to receive an object."""
    buffer = bytearray(SHORT)
    return _request(comm, comm.start_recv(buffer, source, tag), buffer)


def receive_message(message: Any) -> ScheduleRequest:
    """Start to receive the object of a message that a matching probe took."""
    buffer = bytearray(max(message.nbytes, 1))
    return _request(message.comm, message.receive(buffer), buffer)


def _request(comm: Any, first: Request, buffer: bytearray) -> ScheduleRequest:
    status = Status()
    request = ScheduleRequest(comm, receiving(comm, first, buffer, status))
    request._source, request._first = status, first
    return request


def receive_now(comm: Any, source: int, tag: int, status: Status | None) -> Any:
    """Receive an object."""
    world = comm.world
    if world.n_active:
        request = receive(comm, source, tag)
        with withdrawing(request):
            return request.wait(status)
    buffer, found = comm._spare.pop() if comm._spare else (bytearray(SHORT), Status())
    comm.Recv(buffer, source, tag, found)
    if status is not None:
        status.source, status.tag, status.nbytes = found.source, found.tag, found.nbytes
        status.error, status.was_cancelled = found.error, False
    if found.source < 0:
        obj = None
    elif found.nbytes and buffer[0] != _V and PICKLE.plain:
        obj = pickle.loads(buffer)  # which ends where the pickle says, whatever an earlier one has left behind it
    elif found.nbytes and buffer[0] != _V:
        obj = PICKLE.loads(memoryview(buffer)[: found.nbytes].toreadonly())
    elif found.nbytes:
        requests, parts = _parts(comm, memoryview(buffer)[: found.nbytes], found.source)
        Request.Waitall(requests)
        obj = load(parts[0], parts[1:])
    else:
        obj = load(b"")
    comm._spare.append((buffer, found))
    return obj


def sending(requests: list[Request]) -> Schedule:
    """The schedule of an object's messages."""
    yield requests


# ---------------------------------------------------------------- within collectives: the length first, then the pickle


def start_plain(step: Any, data: bytes, dest: int) -> list[Request]:
    """Start to send a pickle to a rank that takes the same step."""
    return [step.send(struct.pack("<Q", len(data)), dest), step.send(data, dest)]


def receiving_plain(step: Any, source: int) -> Schedule:
    """Receive such a pickle."""
    head = bytearray(8)
    yield [step.recv(head, source)]
    data = bytearray(struct.unpack("<Q", head)[0])
    yield [step.recv(data, source)]
    return data


def dump_plain(obj: Any) -> bytes:
    """The pickle of an object with everything in it."""
    return pickle.dumps(obj, protocol=5) if PICKLE.plain else PICKLE.dumps(obj)
