"""Types of the Virtual Interface Architecture: enumerations, addresses, and the records that calls return.

The values are those of ``vipl.h``; a test compares them with the C library. Import the types from :mod:`viakit.via`.
"""

from __future__ import annotations

import enum
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from viakit.base.words import counted

if TYPE_CHECKING:
    from viakit._core import CompletionQueue, Descriptor, Nic, Vi
    from viakit.errors import CompletionError


class Return(enum.IntEnum):
    """Return code of a VIPL call (``VIP_RETURN``). In Python every code but the first two is raised as an exception."""

    SUCCESS = 0  #: The call succeeded.
    NOT_DONE = 1  #: Nothing has completed yet.
    INVALID_PARAMETER = 2  #: A handle or an argument is invalid.
    ERROR_RESOURCE = 3  #: A resource is exhausted or still in use.
    TIMEOUT = 4  #: The timeout expired.
    REJECT = 5  #: The peer rejected the connection request.
    INVALID_RELIABILITY_LEVEL = 6  #: The reliability level is unknown, or differs from the peer's.
    INVALID_MTU = 7  #: The maximum transfer size is impossible, or differs from the peer's.
    INVALID_QOS = 8  #: The quality of service differs from the peer's.
    INVALID_PTAG = 9  #: The protection tag does not belong to this NIC.
    INVALID_RDMAREAD = 10  #: RDMA reads are not possible at this reliability level.
    DESCRIPTOR_ERROR = 11  #: The descriptor completed with an error, or the queue is empty.
    INVALID_STATE = 12  #: The object's state does not allow the call.
    ERROR_NAMESERVICE = 13  #: The name service found no such name or address.
    NO_MATCH = 14  #: The host is reachable, but no server waits for the discriminator.
    NOT_REACHABLE = 15  #: There is no way to the address.
    ERROR_NOT_SUPPORTED = 16  #: The provider lacks the function. viakit never returns it.


class Reliability(enum.IntFlag):
    """Reliability levels of a connection. Both VIs of a connection must have the same level.

    UNRELIABLE delivers each message at most once; a send completes when it has been transmitted. RELIABLE_DELIVERY
    delivers exactly once and in order; a send completes when the remote NIC has received it. RELIABLE_RECEPTION also
    delivers exactly once and in order; a send completes when the data is in the remote memory, so that remote errors
    are reported in the sender's descriptor.
    """

    UNRELIABLE = 1  #: At most once. A send completes when it has been transmitted.
    RELIABLE_DELIVERY = 2  #: Exactly once, in order. A send completes when the remote NIC has received it.
    RELIABLE_RECEPTION = 4  #: Exactly once, in order. A send completes when its data is in the remote memory.


class ViState(enum.IntEnum):
    """State of a VI (``VIP_VI_STATE``)."""

    IDLE = 0  #: Not connected. Receives can be posted; sends are flushed.
    CONNECTED = 1  #: Connected. Both queues are processed.
    CONNECT_PENDING = 2  #: A connection request waits for the peer's reply.
    ERROR = 3  #: The connection has been lost. Posted descriptors are flushed until the VI is disconnected.


class Status(enum.IntFlag):
    """Status word of a descriptor, without its operation. DONE without an error bit means success."""

    DONE = 0x1  #: The operation has ended, with or without an error.
    FORMAT_ERROR = 0x2  #: The descriptor is inconsistent, for example its length is not the sum of its segments.
    PROTECTION_ERROR = 0x4  #: A segment is not in registered memory, or the memory has another protection tag.
    LENGTH_ERROR = 0x8  #: The message is longer than the receive, or than the maximum transfer size.
    PARTIAL_ERROR = 0x10  #: Only a part of the message arrived.
    DESC_FLUSHED = 0x20  #: The connection ended before the operation.
    TRANSPORT_ERROR = 0x40  #: The peer did not reply, or a frame was lost at the unreliable level.
    RDMA_PROT_ERROR = 0x80  #: The target did not grant the RDMA access.
    REMOTE_DESC_ERROR = 0x100  #: The remote receive failed: none was posted, or it was too short or invalid.
    IMMEDIATE = 0x80000  #: The message contains immediate data. It is not an error.


class Operation(enum.IntEnum):
    """Operation of a descriptor; for a completed receive, the operation that consumed it."""

    SEND = 0  #: Send of a message.
    RECEIVE = 1  #: Receive of a message.
    RDMA_WRITE = 2  #: Write into the peer's memory.
    REMOTE_RDMA_WRITE = 3  #: Receive that was consumed by the peer's RDMA write with immediate data.
    RDMA_READ = 4  #: Read from the peer's memory.


class Queue(enum.IntEnum):
    """One of the two work queues of a VI."""

    SEND = 0  #: The send queue, which also holds RDMA operations.
    RECV = 1  #: The receive queue.


class ErrorCode(enum.IntEnum):
    """Code of an asynchronous error (``VIP_ERROR_CODE``), which belongs to no local descriptor."""

    POST_DESC = 0  #: A descriptor could not be posted: it is misaligned, or its memory is not registered.
    CONN_LOST = 1  #: The connection was lost: the peer disconnected or failed, or an error broke it.
    RECVQ_EMPTY = 2  #: A message arrived, and no receive was posted.
    VI_OVERRUN = 3  #: A descriptor could not be posted, because the queue was full.
    RDMAW_PROT = 4  #: An RDMA write of the peer reached for memory that was not granted.
    RDMAW_DATA = 5  #: A frame of an RDMA write arrived damaged (unreliable level only).
    RDMAW_ABORT = 6  #: An RDMA write of the peer ended before all of its data was in place.
    RDMAR_PROT = 7  #: An RDMA read of the peer reached for memory that was not granted.
    COMP_PROT = 8  #: A receive descriptor's own memory was deregistered before its message arrived.
    RDMA_TRANSPORT = 9  #: The peer stopped replying, and an RDMA operation was at the head of the send queue.
    CATASTROPHIC = 10  #: A completion queue was full, and an entry of it was lost.


class Resource(enum.IntEnum):
    """Kind of object that an asynchronous error concerns (``VIP_RESOURCE_CODE``)."""

    NIC = 0  #: A network interface.
    VI = 1  #: A virtual interface.
    CQ = 2  #: A completion queue.
    DESCRIPTOR = 3  #: A descriptor.


class Form(enum.IntEnum):
    """Encapsulation of frames on ``eth``: the option ``form=`` of a NIC.

    Give a member, or its name in lower case.
    """

    AUTO = 0  #: Small messages in plain frames, long ones in UDP super-frames if the interface supports them.
    PLAIN = 1  #: Plain Ethernet frames of EtherType 0x88B5 only.
    UDP = 2  #: Every frame in UDP/IPv4. Long messages are sent as super-frames (segmentation offload).


class Checksum(enum.IntEnum):
    """Protection of frames against damage on ``eth`` and ``udp``: the option ``checksum=`` of a NIC.

    Give a member, or its name in lower case. Each side chooses for the frames it sends; receivers accept both.
    """

    AUTO = 0  #: CRC32C. In super-frames it covers only the headers; UDP's checksum, in hardware, covers the data.
    CRC = 1  #: CRC32C over every byte: stronger, but each side reads all data once more.


class Retransmission(enum.IntEnum):
    """Treatment of frames that arrive before a lost one: the option ``retransmission=`` of a NIC.

    Give a member, or its name in lower case. Each side chooses for the frames it receives.
    """

    SELECTIVE = 0  #: The receiver keeps them and reports the gaps. Only lost frames are retransmitted.
    GO_BACK_N = 1  #: The receiver drops them. All frames from the lost one on are retransmitted.


class _Record(Mapping[str, Any]):
    """Frozen dataclass that is also a mapping: ``info.mtu`` and ``info["mtu"]`` are the same."""

    def __getitem__(self, key: str) -> Any:
        if key not in self.__dataclass_fields__:  # type: ignore[attr-defined]
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)  # type: ignore[attr-defined]


@dataclass(frozen=True, eq=False)
class NicAttributes(_Record):
    """Guaranteed limits of a NIC (``VIP_NIC_ATTRIBUTES``). Sizes are in bytes."""

    name: str  #: Name of the device, as opened.
    hardware_version: int  #: Version of the frames' format.
    provider_version: int  #: Version of the frames that this provider understands.
    address: bytes  #: Address of the NIC; on Ethernet its MAC address.
    thread_safe: bool  #: Whether several threads may use the NIC; always True.
    max_discriminator_nbytes: int  #: Longest discriminator of an address.
    max_register_nbytes: int  #: Largest sum of registered memory.
    max_register_regions: int  #: Largest number of regions.
    max_register_block_nbytes: int  #: Largest region.
    max_vis: int  #: Largest number of VIs.
    max_descriptors_per_queue: int  #: Largest number of posted descriptors in one work queue.
    max_segments_per_descriptor: int  #: Largest number of data segments of one descriptor.
    max_cqs: int  #: Largest number of completion queues.
    max_cq_entries: int  #: Largest capacity of a completion queue, in entries.
    max_transfer_size: int  #: Longest message.
    native_mtu: int  #: Bytes of a message that one frame carries.
    max_tags: int  #: Largest number of protection tags.
    reliability_support: Reliability  #: Reliability levels that VIs of this NIC can have.
    rdma_read_support: Reliability  #: Reliability levels that have RDMA reads.


@dataclass(frozen=True, eq=False)
class LinkInfo(_Record):
    """Properties of a link, which hold for every NIC on it. Programs query these instead of comparing names.

    ``devices`` shows how its devices are written, and ``transport`` names the carrier of its frames. A peer may be
    another process (``leaves_process``) or on another host (``leaves_host``). A ``lossless`` link never loses,
    duplicates or reorders frames. With ``maps_memory`` a peer can map the memory of :meth:`Nic.allocate`. ``named_by``
    is the kind of text behind the colon of a device: ``"name"``, ``"interface"`` or ``"address"``.
    """

    name: str  #: Name of the link, such as ``"shm"``.
    devices: str  #: Forms of its device names: ``"shm, shm:NAME"``.
    transport: str  #: Carrier of its frames, in a few words: ``"shared memory"``.
    leaves_process: bool  #: Whether a peer may be another process.
    leaves_host: bool  #: Whether a peer may be on another host.
    lossless: bool  #: Whether the link never loses, duplicates or reorders frames.
    maps_memory: bool  #: Whether a peer can map allocated memory. Data is then copied once, without frames.
    named_by: str  #: Text behind the colon of a device: ``"name"``, ``"interface"`` or ``"address"``.

    def device(self, name: str, interface: str, address: str) -> str:
        """Return the device of this link that belongs to *name*, *interface* or *address*, whichever names it."""
        return f"{self.name}:{ {'name': name, 'interface': interface, 'address': address}[self.named_by] }"


@dataclass(frozen=True, eq=False)
class NicInfo(_Record):
    """Actual configuration of a NIC and the number of its objects, beyond :class:`NicAttributes`. Sizes are in bytes.

    ``cma`` is True if a direct copy into another process (process_vm_writev) worked with the last peer, False if the
    kernel refused it, None if it was not tried. ``regions`` includes the regions that hold descriptors.
    ``super_payload`` is the present payload of a super-frame, which can change with the features of the interface.
    ``trouble`` describes the last permanent fault of the link; it is empty if no such fault has occurred.
    """

    link: str  #: Name of the link, such as ``"eth"``.
    device: str  #: Name of the device, as opened.
    interface: str  #: Network interface, on ``eth`` and ``udp``; empty on other links.
    form: str  #: Encapsulation on ``eth``: ``"auto"``, ``"plain"`` or ``"udp"``.
    address: bytes  #: Address that all NICs of this station share, 6 bytes.
    port: int  #: Number of this NIC among the NICs of its address.
    mtu: int  #: Largest frame of the interface or of the link.
    max_payload: int  #: Bytes of a message that one frame carries.
    super_payload: int  #: Bytes of a message that one super-frame carries now; ``max_payload`` if the link has none.
    ring_slots: int  #: Size of the receive ring, in frames or super-frames.
    window: int  #: Frames or super-frames that a reliable VI may have unacknowledged.
    bytes_registered: int  #: Registered memory now.
    bytes_pinned: int  #: Pinned memory now; less than ``bytes_registered`` if RLIMIT_MEMLOCK did not allow pinning.
    lossless: bool  #: Whether the link never loses, duplicates or reorders frames.
    cma: bool | None  #: Whether a direct copy into another process worked with the last peer; None if it was not tried.
    thread: bool  #: Whether the NIC has a progress thread.
    vis: int  #: Number of VIs.
    regions: int  #: Number of regions, including those that hold descriptors.
    tags: int  #: Number of protection tags.
    cqs: int  #: Number of completion queues.
    trouble: str  #: Last permanent fault of the link, as a sentence; empty before the first fault.


@dataclass(frozen=True, eq=False)
class ViInfo(_Record):
    """Current state of a VI's connection.

    Times are in seconds. ``srtt_s`` and ``rttvar_s`` are the smoothed round-trip time and its variation (RFC 6298).
    They are 0 if nothing has been measured, or if the link is lossless and needs no measurement. ``window`` and
    ``sends_in_flight`` count frames or super-frames.
    """

    lossless: bool  #: Whether the link is lossless: there are no acknowledgements and no retransmissions.
    retransmission: Retransmission  #: Treatment of frames that arrive before a lost one.
    srtt_s: float  #: Smoothed round-trip time; 0 if nothing has been measured.
    rttvar_s: float  #: Variation of the round-trip time; 0 if nothing has been measured.
    rto_s: float  #: Present retransmission timeout.
    tail_probe_s: float  #: Silence after which the last frame is retransmitted.
    window: int  #: Frames or super-frames that may be unacknowledged now.
    sends_in_flight: int  #: Frames or super-frames that are unacknowledged now.
    frames_in_flight: int  #: Single frames that are unacknowledged now.
    frames_missing: int  #: Frames of the peer that have not arrived, before the furthest that has.
    reads_open: int  #: RDMA reads whose data has not arrived yet.
    retries: int  #: Consecutive timeouts; 0 after a reply.


@dataclass(frozen=True, eq=False)
class TapInfo(_Record):
    """Number of records of a tap. ``lost`` counts frames and events that found the ring full."""

    file: str  #: Path of the file that the tap writes.
    frames_sent: int  #: Frames sent.
    frames_received: int  #: Frames received.
    events: int  #: Events, such as completions.
    lost: int  #: Frames and events that found the ring full.


@dataclass(frozen=True, eq=False)
class ViAttributes(_Record):
    """Attributes of a VI. The protection tag is left out, because a remote VI's tag has no meaning locally."""

    reliability: Reliability  #: Reliability level.
    max_transfer_size: int  #: Longest message, in bytes.
    rdma_write: bool  #: Whether the peer may write into this side's memory.
    rdma_read: bool  #: Whether the peer may read from this side's memory.


class Counters(dict[str, int]):
    """Free-running counters by name. :data:`viakit.via.counters_help` describes each of them.

    ``after - before`` gives the increments in between; :meth:`nonzero` leaves out counters that are zero. Two former
    names still work as keys, with a DeprecationWarning: ``dropped_stranger`` for ``dropped_unknown_peer``, and
    ``frames_kept_early`` for ``frames_kept_out_of_order``.
    """

    _FORMER_NAMES: ClassVar = {
        "dropped_stranger": "dropped_unknown_peer",
        "frames_kept_early": "frames_kept_out_of_order",
    }

    def __missing__(self, name: str) -> int:
        """Return the counter of which *name* is a former name."""
        if name not in self._FORMER_NAMES:
            raise KeyError(name)
        present = self._FORMER_NAMES[name]
        warnings.warn(f"the counter {name} is now {present}; use the new name", DeprecationWarning, stacklevel=2)
        return self[present]

    def __sub__(self, earlier: Mapping[str, int]) -> Counters:
        return Counters({name: value - earlier.get(name, 0) for name, value in self.items()})

    def __add__(self, other: Mapping[str, int]) -> Counters:
        return Counters({name: value + other.get(name, 0) for name, value in self.items()})

    def nonzero(self) -> Counters:
        """Return the counters that are not zero."""
        return Counters({name: value for name, value in self.items() if value})


def _as_bytes(name: str, value: object, example: str) -> bytes:
    """Return the bytes of a buffer. An integer is refused, because ``bytes(3)`` would be three zero bytes."""
    try:
        return bytes(memoryview(value))  # type: ignore[arg-type]  # objects without a buffer raise TypeError
    except TypeError:
        kind = "bytes or str" if name == "discriminator" else "bytes"
        raise TypeError(f"{name}={value!r}: expected {kind}, such as {example}") from None


@dataclass(frozen=True, order=True)
class Address:
    """Address of a VI: the address of its host's NIC, and a discriminator that distinguishes the endpoints on that NIC.

    Parameters
    ----------
    host : bytes
        The NIC's address; on Ethernet its MAC address.
    discriminator : bytes or str
        Any bytes; a string is encoded as UTF-8. ``address / "name"`` is the same host with another discriminator.
    """

    host: bytes  #: Address of the NIC, 1 to 64 bytes; on Ethernet its MAC address.
    discriminator: bytes = b""  #: Bytes that distinguish the endpoints of that NIC; at most 255.

    def __post_init__(self) -> None:
        discriminator = self.discriminator
        if isinstance(discriminator, str):
            discriminator = discriminator.encode()
        object.__setattr__(self, "host", _as_bytes("host", self.host, r"b'\x02\0\0\0\0\x01'"))
        object.__setattr__(self, "discriminator", _as_bytes("discriminator", discriminator, "nic.address / 'name'"))
        if not 0 < len(self.host) <= 64:
            raise ValueError(f"a host address has 1 to 64 bytes (6 on all present links), got {len(self.host)}")
        if len(self.discriminator) > 255:
            raise ValueError(
                f"a discriminator of {counted(len(self.discriminator), 'byte')} is too long; a NIC accepts "
                "attributes.max_discriminator_nbytes"
            )

    def __truediv__(self, discriminator: bytes | str) -> Address:
        return Address(self.host, discriminator)  # type: ignore[arg-type]  # a string becomes bytes

    def __str__(self) -> str:
        host = self.host.hex(":")
        if not self.discriminator:
            return host
        try:
            text = self.discriminator.decode()
        except UnicodeDecodeError:
            return f"{host}/{self.discriminator.hex()}"
        return f"{host}/{text}" if text.isprintable() else f"{host}/{self.discriminator.hex()}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Return the address for a text such as ``"02:00:00:00:00:01/name"``, the format of ``str(address)``.

        Raises
        ------
        ValueError
            If the part before the slash is not a sequence of hexadecimal bytes separated by colons.
        """
        host, _, discriminator = text.partition("/")
        try:
            return cls(bytes.fromhex(host.replace(":", " ")), discriminator.encode())
        except ValueError as error:
            raise ValueError(f"{text!r} is not an address such as '02:00:00:00:00:01/name'") from error


class Completion(NamedTuple):
    """One entry of a completion queue. Its descriptor has already been taken from its work queue."""

    vi: Vi  #: VI that the descriptor was posted to.
    queue: Queue  #: Work queue of that VI.
    descriptor: Descriptor  #: The completed descriptor.

    @property
    def error(self) -> CompletionError | None:
        """The exception for the descriptor's error status, ready to be raised; None after success."""
        return self.descriptor.error


@dataclass(frozen=True)
class AsyncError:
    """Error that belongs to no local descriptor: its code and text, and the objects it concerns if they still exist."""

    code: ErrorCode  #: Kind of the error.
    resource: Resource  #: Kind of the object that it concerns.
    text: str  #: Description of the error.
    nic: Nic  #: NIC that reported it.
    vi: Vi | None = None  #: VI that it concerns, if it still exists.
    cq: CompletionQueue | None = None  #: Completion queue that it concerns, if it still exists.

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"
