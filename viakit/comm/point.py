"""Point-to-point messages under MPI's names. The shortest paths (Send and Recv of buffers) are in viakit._core."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from viakit import _core
from viakit.comm import objects
from viakit.comm.message import MESSAGE_NO_PROC, Message
from viakit.comm.request import Prequest, Request, withdrawing
from viakit.comm.schedule import ScheduleRequest
from viakit.comm.spec import simple
from viakit.comm.status import ANY_SOURCE, ANY_TAG, PROC_NULL, Status, empty

STANDARD, SYNCHRONOUS, BUFFERED, READY = 0, 1, 2, 3


class PointToPoint(_core.DirectComm):
    """The point-to-point part of ``MPI.Comm``: sends, receives and probes."""

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
        """Send a buffer in buffered mode: copy it to the attached buffer and return at once.

        Parameters
        ----------
        buf : buffer or list
            Data to send: an array, or [buffer, count, datatype].
        dest : int
            Destination rank.
        tag : int
            Message tag.

        Raises
        ------
        Exception
            ERR_BUFFER if the attached buffer has no room; see `Attach_buffer`.
        """
        self._send_any(buf, dest, tag, BUFFERED)

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer in ready mode, when the destination has already posted the receive."""
        self._send_any(buf, dest, tag, READY)

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start a send in buffered mode."""
        return self._start(buf, dest, tag, BUFFERED)

    def Irsend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start a send in ready mode, when the destination has already posted the receive."""
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
        """Send a message and receive another one concurrently.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Data to send, and memory to receive into. They must not overlap.
        dest, source : int
            Destination rank, and source rank or ANY_SOURCE.
        sendtag, recvtag : int
            Tag to send with, and tag to receive or ANY_TAG.
        status : Status, optional
            Filled with the properties of the received message.
        """
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
        """Send the contents of a buffer and receive another message into the same buffer."""
        data = b"" if dest == PROC_NULL else np.array(simple(buf, True).pack())
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
        """Start to send a message and to receive another one; the request covers both."""
        receive = self._await(recvbuf, source, recvtag)
        with withdrawing(receive):
            send = self._start(sendbuf, dest, sendtag, STANDARD)
        return self._both(send, receive)

    def Isendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG
    ) -> Request:
        """Start to send the contents of a buffer and to receive another message into it."""
        data = b"" if dest == PROC_NULL else np.array(simple(buf, True).pack())
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
        """Repeat `look` until it finds a message, and let schedules make progress in between."""
        while True:
            found = look(0.001 if self.world.n_active else None)
            if found:
                return found
            self.world.step()

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Wait until a matching message has arrived, without receiving it.

        Parameters
        ----------
        source, tag : int
            Source rank or ANY_SOURCE, and tag or ANY_TAG.
        status : Status, optional
            Filled with the source, tag and length of the message.

        Returns
        -------
        bool
            Always True.
        """
        return bool(self._until(lambda s: self.look(source, tag, status, s)))

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Test whether a matching message has arrived, without receiving it."""
        if self.world.n_active:
            self.world.step()
        return self.look(source, tag, status, 0)

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """Wait for a matching message and remove it from the queue, so that only the returned handle can receive it."""
        if source == PROC_NULL:
            return self._null_message(status)
        return self._with_status(self._until(lambda s: self.take(source, tag, s, Message)), status)

    def Improbe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message | None:
        """Remove a matching message from the queue if one has arrived.

        Returns
        -------
        Message or None
            None if no message matches.
        """
        if self.world.n_active:
            self.world.step()
        if source == PROC_NULL:
            return self._null_message(status)
        message = self.take(source, tag, 0, Message)
        return None if message is None else self._with_status(message, status)

    @staticmethod
    def _null_message(status: Status | None) -> Message:
        if status is not None:
            empty(status)
            status.source = PROC_NULL
        return Message(MESSAGE_NO_PROC)

    @staticmethod
    def _with_status(message: Message, status: Status | None) -> Message:
        if status is not None:
            status.source, status.tag, status.nbytes = message.source, message.tag, message.nbytes
            status.error, status.was_cancelled = 0, False
        return message

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    # ------------------------------------------------------------ persistent requests

    def _keep_send(self, buf: Any, dest: int, tag: int, mode: int) -> Prequest:
        if dest != PROC_NULL:
            simple(buf, False)  # Report an invalid buffer now and not when the request is started.
        return Prequest(lambda: self._start(buf, dest, tag, mode))

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Create a persistent request for a standard send.

        Parameters
        ----------
        buf : buffer or list
            Data to send. Its contents at each `Start` are sent.
        dest, tag : int
            Destination rank and message tag.

        Returns
        -------
        Prequest
            An inactive request; start it with `Prequest.Start`.
        """
        return self._keep_send(buf, dest, tag, STANDARD)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Create a persistent request for a send in synchronous mode."""
        return self._keep_send(buf, dest, tag, SYNCHRONOUS)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Create a persistent request for a send in buffered mode."""
        return self._keep_send(buf, dest, tag, BUFFERED)

    def Rsend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Create a persistent request for a send in ready mode."""
        return self._keep_send(buf, dest, tag, READY)

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Create a persistent request for a receive."""
        if source != PROC_NULL:
            simple(buf, True)
        return Prequest(lambda: self._await(buf, source, tag))

    # ------------------------------------------------------------ objects (send and recv: viakit._core)

    def _send_object(self, obj: Any, dest: int, tag: int, mode: int) -> None:
        self._send_dumped(*objects.dump(obj), dest, tag, mode)

    def _send_dumped(self, data: bytes, outside: list[Any], dest: int, tag: int, mode: int) -> None:
        seal = getattr(self.world, "seal", None)  # None for COMM_NULL, whose calls are refused below
        if mode == STANDARD and objects.is_short(seal, data) and not outside:
            self.Send(data if seal is None or dest < 0 else seal.short(self, data, dest, tag), dest, tag)
        else:
            Request.Waitall(objects.start_dumped(self, data, outside, dest, tag, mode))

    def _isend_object(self, obj: Any, dest: int, tag: int, mode: int) -> Request:
        # In buffered mode the engine copies the data itself.
        start = objects.start_send if mode == BUFFERED else objects.start_send_copy
        requests = start(self, obj, dest, tag, mode)
        return requests[0] if len(requests) == 1 else ScheduleRequest(self, objects.sending(requests))

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object in synchronous mode: return after the matching receive has started."""
        self._send_object(obj, dest, tag, SYNCHRONOUS)

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object in buffered mode, through the attached buffer."""
        self._send_object(obj, dest, tag, BUFFERED)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send an object. Later changes to the object do not affect the message."""
        return self._isend_object(obj, dest, tag, STANDARD)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send an object in synchronous mode. Later changes to the object do not affect the message.

        The request completes after the matching receive has started.
        """
        return self._isend_object(obj, dest, tag, SYNCHRONOUS)

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send an object in buffered mode, through the attached buffer."""
        return self._isend_object(obj, dest, tag, BUFFERED)

    def _recv_object(self, buf: Any, source: int, tag: int, status: Status | None) -> Any:
        if buf is not None:
            warnings.warn("recv ignores the argument buf: the message carries its own length", stacklevel=2)
        return objects.receive_now(self, source, tag, status)

    def _recv_parts(self, head: memoryview, source: int) -> Any:
        return objects.receive_parts(self, head, source)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive an object of any length.

        Parameters
        ----------
        buf : object, optional
            Ignored.
        source, tag : int
            Source rank or ANY_SOURCE, and tag or ANY_TAG.

        Returns
        -------
        Request
            Its `wait` returns the object.
        """
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
        """Send an object and receive another one concurrently.

        Returns
        -------
        object
            The object received.
        """
        del recvbuf
        receive = objects.receive(self, source, recvtag)
        with withdrawing(receive):
            requests = objects.start_send(self, sendobj, dest, sendtag, STANDARD)
            obj = receive.wait(status)
            Request.Waitall(requests)
        return obj
