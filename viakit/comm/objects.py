"""Python objects as messages.

A short object is one message: its pickle, or, for the simplest types, what viakit/_core/compact.pxi writes. A long
object begins with a head of at most 16 KiB under the program's tag. Its parts follow in a context of their own, where
no other receive can match them: the pickle, and the large buffers that pickle protocol 5 leaves out of it. These
buffers are sent from the sender's memory into the receiver's without being pickled. So a receive does not need the
length of an object in advance.

If a connection of the job is not local to its host, all of them carry keyed tags. A tag is checked before anything is
unpickled: see :mod:`viakit.comm.seal`.
"""

from __future__ import annotations

import pickle
import struct
import threading
from collections.abc import Callable, Iterable
from typing import Any

from viakit import _core
from viakit._core import Buffer
from viakit.comm.request import Request, withdrawing
from viakit.comm.schedule import Schedule, ScheduleRequest
from viakit.comm.seal import TAG
from viakit.comm.status import Status

SHORT = 16384  # bytes of a pickle, and of a head
_HEAD = struct.Struct("<cII")  # "V", the parts' tag, the number of parts; then the length of each part, 8 bytes
_PART_BODY = 2  # the context of the parts
_V, _C = ord("V"), ord("C")
_counting = threading.Lock()

# Objects of more than one message that this process has sent, by bytes: pickled, transmitted from the object's own
# memory, and copied before (`isend`).
COUNTS = {"objects_in_parts": 0, "object_bytes_pickled": 0, "object_bytes_in_place": 0, "object_bytes_copied": 0}


class Pickle:
    """Conversion of objects to bytes: ``MPI.Pickle``. The lower-case methods use the instance ``MPI.pickle``.

    Parameters
    ----------
    dumps, loads : callable, optional
        Functions that replace those of pickle, such as marshal's or dill's. All ranks must use the same.
    protocol : int, optional
        Second argument of `dumps`. Default: the highest protocol of pickle; no argument for other functions.
    threshold : int, optional
        Size in bytes from which `dumps_oob` leaves a buffer out of the pickle. Default: 256 KiB.
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
        """Version of the pickle protocol."""
        return self._protocol

    @PROTOCOL.setter
    def PROTOCOL(self, protocol: int | None) -> None:
        usual = self._dumps is pickle.dumps
        self._protocol = pickle.HIGHEST_PROTOCOL if protocol is None and usual else protocol
        # Buffers may be left out of messages only with pickle's own functions and its highest protocol.
        self.plain = usual and self._loads is pickle.loads and self._protocol in (-1, pickle.HIGHEST_PROTOCOL)

    @property
    def THRESHOLD(self) -> int:
        """Size in bytes from which `dumps_oob` leaves a buffer out of the pickle."""
        return self._threshold

    @THRESHOLD.setter
    def THRESHOLD(self, threshold: int | None) -> None:
        self._threshold = 1 << 18 if threshold is None else threshold

    def dumps(self, obj: Any) -> bytes:
        """Serialise an object to bytes."""
        return self._dumps(obj) if self._protocol is None else self._dumps(obj, self._protocol)

    def loads(self, data: Any) -> Any:
        """Restore an object from bytes."""
        return self._loads(data)

    def dumps_oob(self, obj: Any) -> tuple[bytes, list[Buffer]]:
        """Serialise an object to bytes and a list of its large buffers, which are left out of the bytes."""
        outside: list[Buffer] = []

        def leave_out(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < self._threshold:
                return True
            outside.append(Buffer(raw))
            return False

        protocol = max(pickle.HIGHEST_PROTOCOL if self._protocol is None else self._protocol, 5)
        return self._dumps(obj, protocol, buffer_callback=leave_out), outside

    def loads_oob(self, data: Any, buffers: Iterable[Any]) -> Any:
        """Restore an object from the bytes and buffers of `dumps_oob`."""
        return self._loads(data, buffers=buffers)


PICKLE = Pickle()
_core.set_pickling(pickle.dumps, pickle.loads, PICKLE)


def dump(obj: Any) -> tuple[bytes, list[Any]]:
    """Return the pickle of an object, and the large buffers that were left out of it."""
    if not PICKLE.plain:
        return PICKLE.dumps(obj), []
    outside = _core.OutOfBand()
    data = pickle.dumps(obj, protocol=5, buffer_callback=outside)
    return data, outside.buffers


def load(data: Any, outside: list[Any] | None = None) -> Any:
    """Restore an object. No bytes at all give None, as in mpi4py."""
    if not len(data):
        return None
    if data[0] == _C and PICKLE.plain:
        return _core.load_compact(data)
    return pickle.loads(data, buffers=outside) if outside else PICKLE.loads(data)


def start_send(comm: Any, obj: Any, dest: int, tag: int, mode: int) -> list[Request]:
    """Start to send an object. Return one request, or one for the head and one for each part."""
    return start_dumped(comm, *dump(obj), dest, tag, mode)


def start_send_copy(comm: Any, obj: Any, dest: int, tag: int, mode: int) -> list[Request]:
    """Start to send an object that the caller may change before the send completes: its buffers are copied."""
    data, outside = dump(obj)
    return start_dumped(comm, data, [bytearray(part) for part in outside], dest, tag, mode, True)


def start_dumped(
    comm: Any, data: bytes, outside: list[Any], dest: int, tag: int, mode: int, copied: bool = False
) -> list[Request]:
    """Start to send an object that `dump` has converted; `copied`: its buffers are copies."""
    seal = getattr(comm.world, "seal", None) if dest >= 0 else None
    if (is_short(seal, data) and not outside) or dest < 0:
        return [comm.start_send(data if seal is None else seal.short(comm, data, dest, tag), dest, tag, mode)]
    comm._n_objects = number = (comm._n_objects + 1) & 0x3FFFFFFF  # larger tags: partitioned.py
    parts = [data, *outside]
    with _counting:
        COUNTS["objects_in_parts"] += 1
        COUNTS["object_bytes_pickled"] += len(data)
        COUNTS["object_bytes_copied" if copied else "object_bytes_in_place"] += sum(map(len, outside))
    head = _HEAD.pack(b"V", number, len(parts)) + b"".join(struct.pack("<Q", len(part)) for part in parts)
    if seal is not None:
        head = seal.head(comm, head, parts, dest, tag)
    requests = [comm.start_send(head, dest, tag, mode)]
    later = 0 if mode == 3 else mode  # not ready mode: the receiver posts the parts' receives after it got the head
    return requests + [comm.start_send(part, dest, number, later, _PART_BODY) for part in parts]


def is_short(seal: Any, data: bytes) -> bool:
    """Return whether a pickle fits into one message. `seal` is the seal of the world, or None."""
    return len(data) <= (SHORT if seal is None else SHORT - TAG) and data[:1] != b"V"


def _parts(comm: Any, data: memoryview, source: int) -> tuple[list[Request], list[bytearray]]:
    """Start to receive the parts that a head announces."""
    _, number, n = _HEAD.unpack_from(data)
    lengths = struct.unpack_from(f"<{n}Q", data, _HEAD.size)
    parts = [bytearray(length) for length in lengths]
    return [comm.start_recv(part, source, number, _PART_BODY) for part in parts], parts


def receiving(comm: Any, request: Request, buffer: bytearray, status: Status) -> Schedule:
    """Receive an object whose first message arrives by `request` in `buffer`, as a schedule."""
    yield [request]
    request.fill(status)
    if status.source < 0 or status.was_cancelled:
        return None
    data = memoryview(buffer)[: request.nbytes]
    seal, due = comm.world.seal, b""
    if request.nbytes == 0 or data[0] != _V:
        return load(data if seal is None else seal.open_short(comm, data, status.source, status.tag))
    if seal is not None:
        data, due = seal.open_head(comm, data, status.source, status.tag)
    requests, parts = _parts(comm, data, status.source)
    yield requests
    if seal is not None:
        seal.check_parts(comm, parts, due, status.source, status.tag)
    return load(parts[0], parts[1:])


def receive(comm: Any, source: int, tag: int) -> ScheduleRequest:
    """Start to receive an object."""
    buffer = bytearray(SHORT)
    return _request(comm, comm.start_recv(buffer, source, tag), buffer)


def receive_message(message: Any) -> ScheduleRequest:
    """Start to receive the object of a message that a matching probe returned."""
    buffer = bytearray(max(message.nbytes, 1))
    return _request(message.comm, message.receive(buffer), buffer)


def _request(comm: Any, first: Request, buffer: bytearray) -> ScheduleRequest:
    status = Status()
    request = ScheduleRequest(comm, receiving(comm, first, buffer, status))
    request._source, request._first = status, first
    return request


def receive_now(comm: Any, source: int, tag: int, status: Status | None) -> Any:
    """Receive an object in the general way; viakit._core has the short one."""
    if comm.world.n_active:
        request = receive(comm, source, tag)
        with withdrawing(request):
            return request.wait(status)
    buffer, found = bytearray(SHORT), Status()
    comm.Recv(buffer, source, tag, found)
    if status is not None:
        status.source, status.tag, status.nbytes = found.source, found.tag, found.nbytes
        status.error, status.was_cancelled = found.error, False
    if found.source < 0:
        return None
    data = memoryview(buffer)[: found.nbytes]
    if comm.world.seal is not None:
        return _unsealed(comm, data, found)
    if data[:1] == b"V":
        return receive_parts(comm, data, found.source)
    return load(data.toreadonly())


def receive_parts(comm: Any, head: memoryview, source: int) -> Any:
    """Receive the parts of an object, and return it."""
    requests, parts = _parts(comm, head, source)
    Request.Waitall(requests)
    return load(parts[0], parts[1:])


def _unsealed(comm: Any, data: memoryview, found: Status) -> Any:
    """Return the object whose first message is `data`, in a world whose objects carry tags."""
    seal = comm.world.seal
    if data[:1] != b"V":
        return load(seal.open_short(comm, data, found.source, found.tag))
    head, due = seal.open_head(comm, data, found.source, found.tag)
    requests, parts = _parts(comm, head, found.source)
    Request.Waitall(requests)
    seal.check_parts(comm, parts, due, found.source, found.tag)
    return load(parts[0], parts[1:])


def sending(requests: list[Request]) -> Schedule:
    """Send an object's messages, as a schedule."""
    yield requests


# ---------------------------------------------------------------- in collectives: the length first, then the pickle


def start_plain(step: Any, data: bytes, dest: int) -> list[Request]:
    """Start to send a pickle to a rank in the same step."""
    return [step.send(struct.pack("<Q", len(data)), dest), step.send(data, dest)]


def receiving_plain(step: Any, source: int) -> Schedule:
    """Receive a pickle from a rank in the same step, as a schedule."""
    head = bytearray(8)
    yield [step.recv(head, source)]
    data = bytearray(struct.unpack("<Q", head)[0])
    yield [step.recv(data, source)]
    return data


def dump_plain(step: Any, obj: Any, dest: int = -1) -> bytes:
    """Return the complete pickle of an object that this rank sends in a step; `dest` is set if it is for one rank."""
    data = pickle.dumps(obj, protocol=5) if PICKLE.plain else PICKLE.dumps(obj)
    seal = step.comm.world.seal
    return data if seal is None else seal.collective(step, data, dest)


def load_plain(step: Any, data: Any, source: int, dest: int = -1) -> Any:
    """Return the object that rank `source` sent in the same step."""
    seal = step.comm.world.seal
    return load(data if seal is None else seal.open_collective(step, data, source, dest))
