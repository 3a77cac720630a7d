"""BIP, the Basic Interface for Parallelism, on top of VIA: the messages of Prylli and Tourancheau, 1997.

    from viakit import bip

    with bip.open() as job:                         # under `viakit run -n 2`, mpirun, srun
        if job.rank == 0:
            job.send(1, b"hello", tag=7)
        else:
            room = bytearray(100)
            nbytes, source = job.recv(room, tag=7)  # from anybody

A *short* message (up to :meth:`Job.small_bytes`) goes into a queue at the receiver, and its send is done at once unless
that queue is full. A *long* one waits for its receive and then goes straight into that receive's buffer, through a
pipeline of packets whose size depends on the message's length; ``viakit calibrate`` measures which size is best. One
send may be outstanding, and one receive for each tag. A receive names no rank.

A job is used by one thread at a time. In C the same is ``bip.h``, with ``-lbip``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import Self

from viakit._core import BipArgumentError, BipCore, BipError, BipPeerError, BipTimeoutError, BipTooLongError

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "BipArgumentError",
    "BipError",
    "BipPeerError",
    "BipTimeoutError",
    "BipTooLongError",
    "Job",
    "Message",
    "RecvRequest",
    "SendRequest",
    "open",
]

CONNECT_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 5.0


class Message(NamedTuple):
    """What a receive got: its length in bytes, and the rank that sent it."""

    nbytes: int
    source: int


class SendRequest:
    """A send under way. Its buffer must not change until it is done; it is held that long."""

    def __init__(self, core: BipCore, id: int) -> None:
        self._core, self._id, self._done = core, id, False

    def test(self) -> bool:
        """Return whether it is done. Raises what :meth:`Job.send` does."""
        if not self._done:
            self._done = self._core.stest(self._id)
        return self._done

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is done. Raises what :meth:`Job.send` does."""
        if not self._done:
            self._core.swait(self._id, timeout_s)
            self._done = True


class RecvRequest:
    """A receive under way. Its buffer is held until it is done."""

    def __init__(self, core: BipCore, id: int) -> None:
        self._core, self._id = core, id
        self._message: Message | None = None

    def test(self) -> Message | None:
        """Return the message if it is here, None if not yet. Raises what :meth:`Job.recv` does."""
        if self._message is None and (found := self._core.rtest(self._id)) is not None:
            self._message = Message(*found)
        return self._message

    def wait(self, timeout_s: float | None = None) -> Message:
        """Wait for the message. Raises what :meth:`Job.recv` does."""
        if self._message is None:
            self._message = Message(*self._core.rwait(self._id, timeout_s))
        return self._message

    def cancel(self) -> None:
        """Take the receive back. Raises BipArgumentError if data is on its way into the buffer, or it is done."""
        self._core.rcancel(self._id)


class Job:
    """One rank of a BIP job. Made by :func:`open`; or with a card exchange of one's own, then :meth:`connect`.

    Parameters
    ----------
    rank, size : int
        Which of how many.
    name : str
        A word that only the job's ranks share.
    host : str
        The same on ranks of one machine.
    local_device : str, optional
        How ranks of one machine meet; default: a link ``shm`` of the job's own.
    network_device : str, optional
        How ranks on several machines do: ``"eth:eth0"``, ``"udp:ADDRESS"``.
    slots : int
        Places of the queue at the receiver, for each sender; 0: 32, or ``VIAKIT_BIP_SLOTS``.
    small_bytes : int
        Bytes of the longest short message; 0: as calibrated.
    packet_bytes : int
        Bytes of every packet of the pipeline; 0: as calibrated, by the length of the message.
    strict : bool
        A long message that comes before its receive is an error at the sender, as BIP's manual has it.
    checksum : bool
        Every message carries a CRC32C from end to end.
    poll : bool
        Waits never sleep.
    faults : str
        What the NICs do to the frames that they send (:class:`viakit.via.Faults` as text).
    """

    def __init__(
        self,
        rank: int,
        size: int,
        name: str,
        host: str = "",
        *,
        local_device: str | None = None,
        network_device: str | None = None,
        slots: int = 0,
        small_bytes: int = 0,
        packet_bytes: int = 0,
        strict: bool = False,
        checksum: bool = False,
        poll: bool = False,
        faults: str = "",
    ) -> None:
        word = hashlib.blake2b(name.encode(), digest_size=7).hexdigest()
        self._core = BipCore(
            rank,
            size,
            word,
            host,
            local_device,
            network_device,
            slots=slots,
            small=small_bytes,
            packet=packet_bytes,
            strict=strict,
            checksum=checksum,
            blocking=not poll,
            faults=faults,
        )

    def card(self) -> bytes:
        """Return what the other ranks must know of this one."""
        return self._core.card()

    def connect(self, cards: list[bytes], timeout_s: float | None = CONNECT_TIMEOUT_S) -> None:
        """Connect to all ranks, given all their cards in order of rank; they must do the same."""
        self._core.connect(cards, timeout_s)

    @property
    def rank(self) -> int:
        """Which rank this is, from 0."""
        return self._core.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._core.size

    # ---------------------------------------------------------------- messages

    def isend(self, dest: int, buf: Buffer | None, tag: int = 0) -> SendRequest:
        """Begin to send; raises as :meth:`send`."""
        return SendRequest(self._core, self._core.isend(dest, tag, buf))

    def send(self, dest: int, buf: Buffer | None, tag: int = 0, timeout_s: float | None = None) -> None:
        """Send *buf* (any contiguous buffer; None: an empty message) to rank *dest*.

        Returns when the buffer may be used again: of a short message at once, unless the queue at *dest* is full; of a
        long one when it has been received.

        Raises
        ------
        BipArgumentError
            A rank that is not there, or oneself; a send that is still outstanding.
        BipTooLongError
            The receive has less room (long messages only).
        BipPeerError
            *dest* died, or has left.
        BipTimeoutError
            After *timeout_s* seconds; the send goes on, and no other can begin before it is done.
        """
        self.isend(dest, buf, tag).wait(timeout_s)

    def irecv(self, buf: Buffer | None, tag: int = 0) -> RecvRequest:
        """Begin to receive; raises as :meth:`recv`."""
        return RecvRequest(self._core, self._core.irecv(tag, buf))

    def recv(self, buf: Buffer | None, tag: int = 0, timeout_s: float | None = None) -> Message:
        """Receive the next message with *tag*, from anybody, into *buf* (any contiguous writable buffer).

        Raises
        ------
        BipArgumentError
            A receive with this tag is outstanding.
        BipTooLongError
            The message is longer than *buf*; it is lost.
        BipPeerError
            A rank died, or all others have left: nothing can come.
        BipTimeoutError
            After *timeout_s* seconds; nothing is lost, and *buf* is the caller's again.
        """
        request = self.irecv(buf, tag)
        try:
            return request.wait(timeout_s)
        except BaseException as error:
            if isinstance(error, (BipTimeoutError, KeyboardInterrupt)):
                try:
                    request.cancel()
                except BipError:  # on its way into buf: that cannot be called back, and takes no longer than the wire
                    return request.wait(CLOSE_TIMEOUT_S)
            raise

    def get(self, tag: int = 0, timeout_s: float | None = None) -> tuple[bytes, int] | None:
        """Return the next short message with *tag* and its sender, without having made room for it.

        None if there is none and *timeout_s* is 0. Raises as :meth:`recv`, and BipArgumentError if the next message is
        a long one.
        """
        found: tuple[bytes, int] | None = self._core.get(tag, timeout_s)
        return found

    def tag_queue(self, tag: int, slots: int, nbytes: int) -> None:
        """Give *tag* a queue of its own, *slots* messages of up to *nbytes*: they no longer fill the common one."""
        self._core.taginit(tag, slots, nbytes)

    # ---------------------------------------------------------------- what can be known

    def small_bytes(self, dest: int) -> int:
        """Return the length of the longest short message to *dest*, in bytes."""
        return self._core.small(dest)

    def packet_bytes(self, dest: int, nbytes: int) -> int:
        """Return the size of the packets in which a message of *nbytes* goes to *dest*."""
        return self._core.packet(dest, nbytes)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all queues and buffers; this does not grow with messages."""
        return self._core.memory()

    @property
    def counters(self) -> dict[str, int]:
        """What has happened so far: ``short_sent``, ``queue_full``, ``packets_sent`` and so on."""
        return self._core.counters()

    # ---------------------------------------------------------------- the end

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the job; what was sent arrives. Idempotent.

        A send that nobody has waited for is given up if there is no room for it at its receiver, or no receive. That,
        and what has not arrived after *timeout_s* seconds, is a RuntimeWarning.
        """
        if not self._core.close(timeout_s):
            warnings.warn("the job was closed before all that was sent had arrived", RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error others may wait for what will not come: our leaving tells them, and we do not wait.
        self.close(CLOSE_TIMEOUT_S if kind is None else 0.5)

    def __repr__(self) -> str:
        state = ", closed" if self._core.closed else ""
        return f"<viakit.bip.Job rank {self.rank} of {self.size}{state}>"


def open(
    *,
    network_device: str | None = None,
    slots: int = 0,
    small_bytes: int = 0,
    packet_bytes: int = 0,
    strict: bool = False,
    checksum: bool = False,
    poll: bool = False,
    faults: str = "",
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Job:
    """Open BIP among the ranks of the job that this process belongs to; alone, it is rank 0 of 1.

    All ranks must call it. Arguments are those of :class:`Job`; *network_device* is ``VIAKIT_NETWORK`` by default.

    Raises
    ------
    viakit.launch.LaunchError
        The other ranks cannot be found.
    BipError
        A NIC could not be opened, or a rank not be connected.
    """
    from viakit.launch import bootstrap

    place = bootstrap()
    try:
        word = place.exchange(secrets.token_hex(16).encode(), timeout_s)[0].decode()
        network = network_device or place.network_device
        job = Job(
            place.rank,
            place.size,
            word,
            _host() if network else "",
            network_device=network,
            faults=faults,
            slots=slots,
            small_bytes=small_bytes,
            packet_bytes=packet_bytes,
            strict=strict,
            checksum=checksum,
            poll=poll,
        )
        try:
            job.connect(place.exchange(job.card(), timeout_s), timeout_s)
        except BaseException:
            job.close(0)
            raise
    finally:
        place.close()
    return job


def _host() -> str:
    """Return what processes of one machine, or of one host of a testbed, have in common."""
    try:
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        network = 0
    return f"{os.uname().nodename} {network}"
