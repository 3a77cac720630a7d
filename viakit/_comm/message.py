"""Messages under MPI's names: what a matching probe has taken out of the queue, to be received later."""

from __future__ import annotations

from typing import Any

from viakit import _core
from viakit._comm.request import Request
from viakit._comm.status import ANY_SOURCE, ANY_TAG, PROC_NULL, Status, empty


class Message(_core.MsgMessage):
    """``MPI.Message``: a message taken out of the queue, to be received by Recv or recv."""

    none = False  # of PROC_NULL: nothing is in it, and it is received at once

    def __new__(cls, message: Message | None = None) -> Any:
        if message is not None and not isinstance(message, Message):
            raise TypeError(f"a Message is made of nothing or of a Message, not of {type(message).__name__}")
        if message is not None and message._kind() == "a message":
            return message
        made = super().__new__(cls)
        made.none = message is not None and message.none
        return made

    def __init__(self, message: Message | None = None) -> None:
        pass

    def _kind(self) -> str:
        return "of nobody" if self.none else "a message" if super().__bool__() else "none"

    def __bool__(self) -> bool:
        return self._kind() != "none"

    def __reduce__(self) -> Any:
        if self is MESSAGE_NULL:
            return "MESSAGE_NULL"
        if self is MESSAGE_NO_PROC:
            return "MESSAGE_NO_PROC"
        if self._kind() == "a message":
            raise ValueError("a message that has not been received cannot be pickled")
        return (Message, (MESSAGE_NO_PROC if self.none else MESSAGE_NULL,))

    @classmethod
    def Probe(cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """As Mprobe of the communicator."""
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        """As Improbe of the communicator."""
        return comm.Improbe(source, tag, status)

    probe, iprobe = Probe, Iprobe

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self is other or self._kind() == other._kind() != "a message"

    def __hash__(self) -> int:
        return id(self)

    def Irecv(self, buf: Any) -> Request:
        """Start to receive it into a buffer."""
        return _receive(self, buf)

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        """Receive it into a buffer."""
        self.Irecv(buf).Wait(status)

    def recv(self, status: Status | None = None) -> Any:
        """Receive it as an object."""
        return self.irecv().wait(status)

    def irecv(self) -> Request:
        """Start to receive it as an object."""
        from viakit._comm import objects

        return _of_nobody(self) if self.none else objects.receive_message(self)


MESSAGE_NULL, MESSAGE_NO_PROC = Message(), Message()
MESSAGE_NO_PROC.none = True


class _NobodysRequest(Request):
    """A receive from PROC_NULL that a matching probe has found: complete from the beginning."""

    def __new__(cls) -> Any:
        return super().__new__(cls)

    def __init__(self) -> None:
        self._taken = False

    @property
    def ended(self) -> bool:
        """Whether it has been waited for."""
        return self._taken

    def test_once(self) -> bool:
        """True: nothing has to happen."""
        self._taken = True
        return True

    def wait_for(self, timeout_s: float | None = None) -> bool:
        """True."""
        return self.test_once()

    def peek(self, status: _core.MsgStatus | None = None) -> bool:
        """True."""
        if status is not None:
            self.fill(status)
        return True

    def progress(self) -> None:
        """Nothing to do."""

    def fill(self, status: _core.MsgStatus) -> None:
        """A message of nobody."""
        empty(status)
        status.source = PROC_NULL

    def withdraw(self) -> None:
        """Too late."""

    def release(self) -> None:
        """Forget it."""
        self._taken = True


def _of_nobody(message: Message) -> Request:
    if message is not MESSAGE_NO_PROC:
        message.none = False
    return _NobodysRequest()


def _receive(message: Message, buf: Any) -> Request:
    from viakit._comm.spec import simple

    if message.none:
        return _of_nobody(message)
    place = simple(buf, True)
    if place.direct:
        return message.receive(place.pack())
    import numpy as np

    data = np.empty(place.nbytes, np.uint8)
    request = message.receive(data)
    request.after = lambda done: place.unpack(data[: done.nbytes])
    return request
