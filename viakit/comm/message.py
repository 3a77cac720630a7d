"""Messages under MPI's names: a matching probe removes a message from the queue, and the program receives it later."""

from __future__ import annotations

from typing import Any

from viakit import _core
from viakit.comm.errors import error
from viakit.comm.handle import Numbered
from viakit.comm.request import Request
from viakit.comm.status import ANY_SOURCE, ANY_TAG, PROC_NULL, Status, empty


class Message(_core.MsgMessage, Numbered):
    """Message removed from the queue by a matching probe: ``MPI.Message``. Receive it with `Recv` or `recv`.

    Attributes
    ----------
    source : int
        Rank of the sender.
    tag : int
        Tag of the message.
    nbytes : int
        Length of the data in bytes.
    """

    _family = "Message"
    none = False  # True for MESSAGE_NO_PROC: the message is empty, and its receive completes at once.

    def __new__(cls, message: Message | None = None) -> Any:
        """Return the given message, or an empty one."""
        if message is not None and not isinstance(message, Message):
            raise TypeError(f"Message() takes no argument or a Message, got {type(message).__name__}")
        if message is not None and message._kind() == "a message" and cls is Message:
            return message
        made = super().__new__(cls)
        made.none = message is not None and message.none
        return made

    def __init__(self, message: Message | None = None) -> None:
        pass

    def _kind(self) -> str:
        return "no process" if self.none else "a message" if super().__bool__() else "none"

    def __bool__(self) -> bool:
        return self._kind() != "none"

    def __reduce__(self) -> Any:
        if self is MESSAGE_NULL:
            return "MESSAGE_NULL"
        if self is MESSAGE_NO_PROC:
            return "MESSAGE_NO_PROC"
        if self._kind() == "a message":
            raise ValueError("a message that has not been received cannot be pickled; receive it first")
        return (type(self), (MESSAGE_NO_PROC if self.none else MESSAGE_NULL,))

    def _identity(self) -> Any:
        return {"none": None, "no process": MESSAGE_NO_PROC}.get(self._kind(), self)

    def free(self) -> None:
        """Drop a message that the program does not receive. MESSAGE_NO_PROC stays."""
        if self is not MESSAGE_NO_PROC:
            self.none = False

    @classmethod
    def Probe(cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """Wait for a matching message and remove it from the queue; equivalent to ``comm.Mprobe``."""
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        """Remove a matching message from the queue if one has arrived; equivalent to ``comm.Improbe``."""
        return comm.Improbe(source, tag, status)

    probe, iprobe = Probe, Iprobe

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self is other or self._kind() == other._kind() != "a message"

    def __hash__(self) -> int:
        if not self:
            raise TypeError("unhashable: a null Message")
        return id(self)

    def Irecv(self, buf: Any) -> Request:
        """Start to receive the message into a buffer."""
        return _receive(self, buf)

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        """Receive the message into a buffer.

        Parameters
        ----------
        buf : buffer or list
            Memory to receive into: an array, or [buffer, count, datatype].
        status : Status, optional
            Filled with the properties of the message.
        """
        self.Irecv(buf).Wait(status)

    def recv(self, status: Status | None = None) -> Any:
        """Receive the message as an object and return it."""
        return self.irecv().wait(status)

    def irecv(self) -> Request:
        """Start to receive the message as an object."""
        from viakit.comm import objects  # it imports this module

        return _of_no_process(self) if self.none else objects.receive_message(self)


MESSAGE_NULL, MESSAGE_NO_PROC = Message(), Message()
MESSAGE_NO_PROC.none = True


class _NoProcessRequest(Request):
    """Receive of MESSAGE_NO_PROC, which is complete from the start."""

    def __new__(cls) -> Any:
        return super().__new__(cls)

    def __init__(self) -> None:
        self._taken = False

    @property
    def ended(self) -> bool:
        """Whether the program has waited for the request."""
        return self._taken

    def test_once(self) -> bool:
        """Return True: the request is complete."""
        self._taken = True
        return True

    def wait_for(self, timeout_s: float | None = None) -> bool:
        """Return True: the request is complete."""
        return self.test_once()

    def peek(self, status: _core.MsgStatus | None = None) -> bool:
        """Return True: the request is complete."""
        if status is not None:
            self.fill(status)
        return True

    def progress(self) -> None:
        """Do nothing."""

    def fill(self, status: _core.MsgStatus) -> None:
        """Fill *status* as a receive from PROC_NULL does."""
        empty(status)
        status.source = PROC_NULL

    def withdraw(self) -> None:
        """Do nothing: a complete operation cannot be cancelled."""

    def release(self) -> None:
        """Release the request."""
        self._taken = True


def _of_no_process(message: Message) -> Request:
    if message is not MESSAGE_NO_PROC:
        message.none = False
    return _NoProcessRequest()


def _receive(message: Message, buf: Any) -> Request:
    from viakit.comm.spec import simple  # it imports this module

    if message.none:
        return _of_no_process(message)
    if not message:
        raise error("ERR_REQUEST", "this message is null, or has been received already; probe for the next one")
    place = simple(buf, True)
    if place.direct:
        return message.receive(place.pack())
    import numpy as np  # start-up time

    data = np.empty(place.nbytes, np.uint8)
    request = message.receive(data)
    request.after = lambda done: place.unpack(data[: done.nbytes])
    return request
