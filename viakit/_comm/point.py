"""Point-to-point messages under MPI's names; the shortest paths, Send and Recv of buffers, are in viakit._core."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from viakit import _core
from viakit._comm import objects
from viakit._comm.message import MESSAGE_NO_PROC, Message
from viakit._comm.request import Prequest, Request, withdrawing
from viakit._comm.schedule import ScheduleRequest
from viakit._comm.spec import simple
from viakit._comm.status import ANY_SOURCE, ANY_TAG, PROC_NULL, Status, empty

STANDARD, SYNCHRONOUS, BUFFERED, READY = 0, 1, 2, 3


class PointToPoint(_core.CollectiveComm):
    """The part of ``MPI.Comm`` that sends and receives."""

    _n_objects = 0
    _spare: list[tuple[bytearray, Status]]

    # ------------------------------------------------------------ buffers

    def _start(self, buf: Any, dest: int, tag: int, mode: int) -> Request:
        if dest == PROC_NULL:
            return self.start_send(b"", dest, tag, mode)
        return self.start_send(simple(buf, False).pack(), dest, tag, mode)

    def _await(self, buf: Any, source: int, tag: int) -> Request:
        if source == PROC_NULL:
            return self.start_recv(bytearray(0), source, tag)
        place = simple(buf, True)
        if place.direct:
            return self.start_recv(place.pack(), source, tag)
        data = np.empty(place.nbytes, np.uint8)
        request = self.start_recv(data, source, tag)
        request.after = lambda done: place.unpack(data[: done.nbytes])
        return request

    def _send_any(self, buf: Any, dest: int, tag: int, mode: int) -> None:
        self._start(buf, dest, tag, mode).Wait()

    def _recv_any(self, buf: Any, source: int, tag: int, status: Status | None) -> None:
        receive = self._await(buf, source, tag)
        with withdrawing(receive):
            receive.Wait(status)

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send by way of the attached buffer; returns at once."""
        self._send_any(buf, dest, tag, BUFFERED)

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send to a rank that has posted its receive already."""
        self._send_any(buf, dest, tag, READY)

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start to send by way of the attached buffer."""
        return self._start(buf, dest, tag, BUFFERED)

    def Irsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start to send to a rank that has posted its receive already."""
        return self._start(buf, dest, tag, READY)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send one message and receive another at the same time."""
        receive = self.Irecv(recvbuf, source, recvtag)
        with withdrawing(receive):
            self.Send(sendbuf, dest, sendtag)
            receive.Wait(status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:
        """Send a buffer and receive into it."""
        data = np.array(simple(buf, True).pack())
        self.Sendrecv(data, dest, sendtag, buf, source, recvtag, status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
    ) -> Request:
        """Start to send one message and to receive another."""
        receive = self._await(recvbuf, source, recvtag)
        with withdrawing(receive):
            send = self._start(sendbuf, dest, sendtag, STANDARD)
        return self._both(send, receive)

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        """Start to send a buffer and to receive into it."""
        data = np.array(simple(buf, True).pack())
        return self.Isendrecv(data, dest, sendtag, buf, source, recvtag)

    def _both(self, send: Request, receive: Request) -> Request:
        status = Status()

        def schedule() -> Any:
            yield [send, receive]
            receive.fill(status)

        request = ScheduleRequest(self, schedule())
        request._source = status
        return request

    # ------------------------------------------------------------ probing

    def _until(self, look: Callable[[float | None], Any]) -> Any:
        """Look until there is something, while schedules go on."""
        while True:
            found = look(0.001 if self.world.n_active else None)
            if found:
                return found
            self.world.step()

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Wait for a message; it stays where it is."""
        return bool(self._until(lambda s: self.look(source, tag, status, s)))

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Whether there is a message."""
        if self.world.n_active:
            self.world.step()
        return self.look(source, tag, status, 0)

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """Wait for a message and take it out of the queue."""
        if source == PROC_NULL:
            return self._nobodys(status)
        return self._told(self._until(lambda s: self.take(source, tag, s, Message)), status)

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        """Take a message out of the queue, if there is one."""
        if self.world.n_active:
            self.world.step()
        if source == PROC_NULL:
            return self._nobodys(status)
        message = self.take(source, tag, 0, Message)
        return None if message is None else self._told(message, status)

    @staticmethod
    def _nobodys(status: Status | None) -> Message:
        if status is not None:
            empty(status)
            status.source = PROC_NULL
        return Message(MESSAGE_NO_PROC)

    @staticmethod
    def _told(message: Message, status: Status | None) -> Message:
        if status is not None:
            status.source, status.tag, status.nbytes = message.source, message.tag, message.nbytes
            status.error, status.was_cancelled = 0, False
        return message

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    # ------------------------------------------------------------ persistent requests

    def _keep_send(self, buf: Any, dest: int, tag: int, mode: int) -> Prequest:
        if dest != PROC_NULL:
            simple(buf, False)  # what is wrong with it is said now, and not when it is started
        return Prequest(lambda: self._start(buf, dest, tag, mode))

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """A send that can be started again and again."""
        return self._keep_send(buf, dest, tag, STANDARD)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """A synchronous one."""
        return self._keep_send(buf, dest, tag, SYNCHRONOUS)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """A buffered one."""
        return self._keep_send(buf, dest, tag, BUFFERED)

    def Rsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """A ready one."""
        return self._keep_send(buf, dest, tag, READY)

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """A receive that can be started again and again."""
        if source != PROC_NULL:
            simple(buf, True)
        return Prequest(lambda: self._await(buf, source, tag))

    # ------------------------------------------------------------ objects

    def _send_object(self, obj: Any, dest: int, tag: int, mode: int) -> None:
        data, outside = objects.dump(obj)
        if mode == STANDARD and len(data) <= objects.SHORT and not outside and data[:1] != b"V":
            self.Send(data, dest, tag)
        else:
            Request.Waitall(objects.start_dumped(self, data, outside, dest, tag, mode))

    def _isend_object(self, obj: Any, dest: int, tag: int, mode: int) -> Request:
        # the engine copies what is buffered itself
        start = objects.start_send if mode == BUFFERED else objects.start_send_copy
        requests = start(self, obj, dest, tag, mode)
        return requests[0] if len(requests) == 1 else ScheduleRequest(self, objects.sending(requests))

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send any object that can be pickled."""
        self._send_object(obj, dest, tag, STANDARD)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object; returns when its receive has begun."""
        self._send_object(obj, dest, tag, SYNCHRONOUS)

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object by way of the attached buffer."""
        self._send_object(obj, dest, tag, BUFFERED)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send an object, as it is now."""
        return self._isend_object(obj, dest, tag, STANDARD)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send an object, as it is now; complete when its receive has begun."""
        return self._isend_object(obj, dest, tag, SYNCHRONOUS)

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send an object by way of the attached buffer."""
        return self._isend_object(obj, dest, tag, BUFFERED)

    def recv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Any:
        """Receive an object; `buf` is not needed, as of mpi4py 4, too."""
        if buf is not None:
            warnings.warn("the buf argument of recv is not used: objects come as long as they are", stacklevel=2)
        return objects.receive_now(self, source, tag, status)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive an object of any length; `buf` is not needed."""
        del buf
        return objects.receive(self, source, tag)

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> Any:
        """Send an object and receive another at the same time."""
        del recvbuf
        receive = objects.receive(self, source, recvtag)
        with withdrawing(receive):
            requests = objects.start_send(self, sendobj, dest, sendtag, STANDARD)
            obj = receive.wait(status)
            Request.Waitall(requests)
        return obj
