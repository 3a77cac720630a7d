"""BIP, the Basic Interface for Parallelism, on top of VIA: the message layer of Prylli and Tourancheau (1997).

    from viakit import bip

    with bip.open() as job:                         # under `viakit run -n 2`, mpirun, srun
        if job.rank == 0:
            job.send(1, b"hello", tag=7)
        else:
            room = bytearray(100)
            nbytes, source = job.recv(room, tag=7)  # from any rank

A *short* message (up to :meth:`Job.small_bytes`) goes into a queue at the receiver. Its send completes at once unless
that queue is full. A *long* message waits for its receive and is then written directly into the receive's buffer,
through a pipeline of packets. The packet size depends on the length of the message; ``viakit calibrate`` measures the
best size. One send may be outstanding, and one receive for each tag. A receive does not select a rank.

Only one thread at a time may use a job. The same interface exists in C: ``bip.h``, with ``-lbip``.
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
    """Result of a receive: the length of the message in bytes, and the rank of its sender."""

    nbytes: int  #: Length of the message, in bytes.
    source: int  #: Rank of the sender.


class SendRequest:
    """Pending send. Its buffer must not change until the send is done, and is held until then."""

    def __init__(self, core: BipCore, id: int) -> None:
        self._core, self._id, self._done = core, id, False

    def test(self) -> bool:
        """Return whether the send is done. Raises as :meth:`Job.send`."""
        if not self._done:
            self._done = self._core.stest(self._id)
        return self._done

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the send is done, at most *timeout_s* seconds (None: no limit). Raises as :meth:`Job.send`."""
        if not self._done:
            self._core.swait(self._id, timeout_s)
            self._done = True


class RecvRequest:
    """Pending receive. Its buffer is held until the receive is done."""

    def __init__(self, core: BipCore, id: int) -> None:
        self._core, self._id = core, id
        self._message: Message | None = None

    def test(self) -> Message | None:
        """Return the message if it has arrived, otherwise None. Raises as :meth:`Job.recv`."""
        if self._message is None and (found := self._core.rtest(self._id)) is not None:
            self._message = Message(*found)
        return self._message

    def wait(self, timeout_s: float | None = None) -> Message:
        """Wait for the message, at most *timeout_s* seconds (None: no limit). Raises as :meth:`Job.recv`."""
        if self._message is None:
            self._message = Message(*self._core.rwait(self._id, timeout_s))
        return self._message

    def cancel(self) -> None:
        """Cancel the receive.

        Raises
        ------
        BipArgumentError
            If data is already being written to the buffer, or the receive is done.
        """
        self._core.rcancel(self._id)


class Job:
    """One rank of a BIP job. Created by :func:`open`, or directly and then connected with :meth:`connect`.

    Parameters
    ----------
    rank, size : int
        Rank of this process, and number of ranks.
    name : str
        Name that the ranks of the job share. It is part of the name of a socket, so other processes can see it.
    host : str
        Identifies the machine; equal on ranks of one machine.
    local_device : str, optional
        Device that connects ranks of one machine. Default: a link ``shm`` for this job only.
    network_device : str, optional
        Device that connects ranks on different machines: ``"eth:eth0"``, ``"udp:ADDRESS"``.
    slots : int
        Capacity of the queue at the receiver for each sender, in messages; 0: 32, or ``VIAKIT_BIP_SLOTS``.
    small_bytes : int
        Length of the longest short message in bytes; 0: from the calibration.
    packet_bytes : int
        Size of the pipeline's packets in bytes; 0: from the calibration, by the length of the message.
    strict : bool
        Treat a long message that arrives before its receive is posted as an error of the sender, as BIP's manual does.
    checksum : bool
        Protect every message by an end-to-end CRC32C.
    reliability : {"delivery", "unreliable"}
        Level of the VIs. "unreliable": a lost or damaged message is detected and not repaired. It raises
        :exc:`BipError`, also in waits of the other rank. Implies *checksum*. ``VIAKIT_BIP_UNRELIABLE=1`` selects it,
        too.
    poll : bool
        Poll during waits and never sleep.
    faults : str
        Faults that the NICs apply to the frames they send (:class:`viakit.via.Faults` as text).
    secret : bytes
        32 bytes that the ranks of the job share and no other process has. A rank connects only with ranks that prove
        that they have the secret. It is required for two ranks or more.
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
        reliability: str = "delivery",
        poll: bool = False,
        faults: str = "",
        secret: bytes | None = None,
    ) -> None:
        if reliability not in ("delivery", "unreliable"):
            raise ValueError(f"reliability is {reliability!r}; expected delivery or unreliable")
        word = hashlib.blake2s(name.encode()).hexdigest()[:14]  # as libbip hashes it (csrc/bip/exchange.c)
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
            unreliable=reliability == "unreliable",
            blocking=not poll,
            faults=faults,
            secret=secret,
        )

    def card(self) -> bytes:
        """Return the contact data that the other ranks need to connect to this one."""
        return self._core.card()

    def connect(self, cards: list[bytes], timeout_s: float | None = CONNECT_TIMEOUT_S) -> None:
        """Connect to all ranks. Collective.

        Parameters
        ----------
        cards : list of bytes
            Contact data of all ranks (:meth:`card`), in the order of ranks.
        timeout_s : float or None
            Timeout in seconds; None: no limit.
        """
        self._core.connect(cards, timeout_s)

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        return self._core.rank

    @property
    def size(self) -> int:
        """Number of ranks in the job."""
        return self._core.size

    # ---------------------------------------------------------------- messages

    def isend(self, dest: int, buf: Buffer | None, tag: int = 0) -> SendRequest:
        """Start to send a message; the arguments and errors are those of :meth:`send`."""
        return SendRequest(self._core, self._core.isend(dest, tag, buf))

    def send(self, dest: int, buf: Buffer | None, tag: int = 0, timeout_s: float | None = None) -> None:
        """Send a message.

        The call returns when the buffer may be modified. For a short message this is at once, unless the queue at
        *dest* is full. For a long message it is when the message has been received.

        Parameters
        ----------
        dest : int
            Destination rank.
        buf : buffer or None
            Data to send: any contiguous buffer; None is an empty message.
        tag : int
            Message tag.
        timeout_s : float or None
            Timeout in seconds; None: no limit.

        Raises
        ------
        BipArgumentError
            If there is no such rank, *dest* is this rank, or another send is outstanding.
        BipTooLongError
            If the receive's buffer is too small (long messages only).
        BipPeerError
            If *dest* has failed or has left.
        BipTimeoutError
            After *timeout_s* seconds. The send continues, and no other send can start before it is done.
        """
        self.isend(dest, buf, tag).wait(timeout_s)

    def irecv(self, buf: Buffer | None, tag: int = 0) -> RecvRequest:
        """Start to receive a message; the arguments and errors are those of :meth:`recv`."""
        return RecvRequest(self._core, self._core.irecv(tag, buf))

    def recv(self, buf: Buffer | None, tag: int = 0, timeout_s: float | None = None) -> Message:
        """Receive the next message with *tag*, from any rank.

        Parameters
        ----------
        buf : buffer or None
            Memory to receive into: any contiguous writable buffer; None receives an empty message.
        tag : int
            Message tag.
        timeout_s : float or None
            Timeout in seconds; None: no limit.

        Returns
        -------
        Message
            Length of the message, and rank of its sender.

        Raises
        ------
        BipArgumentError
            If a receive with this tag is outstanding.
        BipTooLongError
            If the message is longer than *buf*. The message is lost.
        BipPeerError
            If a rank has failed, or all other ranks have left, so that no message can arrive.
        BipTimeoutError
            After *timeout_s* seconds. No message is lost, and *buf* is no longer in use.
        """
        request = self.irecv(buf, tag)
        try:
            return request.wait(timeout_s)
        except BaseException as error:
            if isinstance(error, (BipTimeoutError, KeyboardInterrupt)):
                try:
                    request.cancel()
                except BipError:  # Data is being written to buf, which cannot be cancelled and ends soon.
                    return request.wait(CLOSE_TIMEOUT_S)
            raise

    def get(self, tag: int = 0, timeout_s: float | None = None) -> tuple[bytes, int] | None:
        """Return the next short message with *tag*, and its sender, without a buffer of the caller.

        Returns None if there is no message and *timeout_s* is 0. Raises as :meth:`recv`, and BipArgumentError if the
        next message is a long one.
        """
        found: tuple[bytes, int] | None = self._core.get(tag, timeout_s)
        return found

    def tag_queue(self, tag: int, slots: int, nbytes: int) -> None:
        """Create a separate queue for *tag*, with *slots* messages of up to *nbytes*.

        Messages with this tag no longer use the common queue.
        """
        self._core.taginit(tag, slots, nbytes)

    # ---------------------------------------------------------------- properties

    def small_bytes(self, dest: int) -> int:
        """Return the length of the longest short message to *dest*, in bytes."""
        return self._core.small(dest)

    def packet_bytes(self, dest: int, nbytes: int) -> int:
        """Return the size of the packets that carry a message of *nbytes* to *dest*, in bytes."""
        return self._core.packet(dest, nbytes)

    @property
    def memory_bytes(self) -> int:
        """Size of all queues and buffers in bytes; it does not grow with messages."""
        return self._core.memory()

    @property
    def counters(self) -> dict[str, int]:
        """Counters of this job: ``short_sent``, ``queue_full``, ``packets_sent`` and so on."""
        return self._core.counters()

    # ---------------------------------------------------------------- closing

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Leave the job, after pending messages have been delivered. Closing twice does nothing.

        A send that the program has not waited for is abandoned if the receiver has no free slot or no receive for it.
        This, and data that has not been delivered after *timeout_s* seconds, causes a RuntimeWarning.
        """
        if not self._core.close(timeout_s):
            warnings.warn("the job was closed before all messages had been delivered", RuntimeWarning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error, peers may wait for a message that will not be sent. Leaving at once notifies them.
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
    reliability: str = "delivery",
    poll: bool = False,
    faults: str = "",
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> Job:
    """Open BIP on the ranks of the job that this process belongs to; a single process is rank 0 of 1. Collective.

    Parameters are those of :class:`Job`. The default of *network_device* is ``VIAKIT_NETWORK``.

    Raises
    ------
    viakit.launch.LaunchError
        If the other ranks cannot be found.
    BipError
        If a NIC cannot be opened, or a rank cannot be connected.
    """
    from viakit.launch import bootstrap  # start-up time

    place = bootstrap()
    try:
        word = place.exchange(secrets.token_hex(16).encode(), timeout_s)[0].decode()
        network = network_device or place.network_device
        job = Job(
            place.rank,
            place.size,
            word,
            (place.address or _host()) if network else "",
            network_device=network,
            faults=faults,
            slots=slots,
            small_bytes=small_bytes,
            packet_bytes=packet_bytes,
            strict=strict,
            checksum=checksum,
            reliability=reliability,
            poll=poll,
            secret=place.secret if place.size > 1 else None,
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
    """Return a text that is equal in all processes of one machine, or of one host of a testbed."""
    try:
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        network = 0
    return f"{os.uname().nodename} {network}"
