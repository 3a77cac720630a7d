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

    SUCCESS = 0
    NOT_DONE = 1
    INVALID_PARAMETER = 2
    ERROR_RESOURCE = 3
    TIMEOUT = 4
    REJECT = 5
    INVALID_RELIABILITY_LEVEL = 6
    INVALID_MTU = 7
    INVALID_QOS = 8
    INVALID_PTAG = 9
    INVALID_RDMAREAD = 10
    DESCRIPTOR_ERROR = 11
    INVALID_STATE = 12
    ERROR_NAMESERVICE = 13
    NO_MATCH = 14
    NOT_REACHABLE = 15
    ERROR_NOT_SUPPORTED = 16


class Reliability(enum.IntFlag):
    """Reliability levels of a connection. Both VIs of a connection must have the same level.

    UNRELIABLE delivers each message at most once; a send completes when it has been transmitted. RELIABLE_DELIVERY
    delivers exactly once and in order; a send completes when the remote NIC has received it. RELIABLE_RECEPTION also
    delivers exactly once and in order; a send completes when the data is in the remote memory, so that remote errors
    are reported in the sender's descriptor.
    """

    UNRELIABLE = 1
    RELIABLE_DELIVERY = 2
    RELIABLE_RECEPTION = 4


class ViState(enum.IntEnum):
    """State of a VI (``VIP_VI_STATE``)."""

    IDLE = 0
    CONNECTED = 1
    CONNECT_PENDING = 2
    ERROR = 3


class Status(enum.IntFlag):
    """Status word of a descriptor, without its operation. DONE without an error bit means success."""

    DONE = 0x1
    FORMAT_ERROR = 0x2
    PROTECTION_ERROR = 0x4
    LENGTH_ERROR = 0x8
    PARTIAL_ERROR = 0x10
    DESC_FLUSHED = 0x20
    TRANSPORT_ERROR = 0x40
    RDMA_PROT_ERROR = 0x80
    REMOTE_DESC_ERROR = 0x100
    IMMEDIATE = 0x80000


class Operation(enum.IntEnum):
    """Operation of a descriptor; for a completed receive, the operation that consumed it."""

    SEND = 0
    RECEIVE = 1
    RDMA_WRITE = 2
    REMOTE_RDMA_WRITE = 3
    RDMA_READ = 4


class Queue(enum.IntEnum):
    """One of the two work queues of a VI."""

    SEND = 0
    RECV = 1


class ErrorCode(enum.IntEnum):
    """Code of an asynchronous error (``VIP_ERROR_CODE``), which belongs to no local descriptor."""

    POST_DESC = 0
    CONN_LOST = 1
    RECVQ_EMPTY = 2
    VI_OVERRUN = 3
    RDMAW_PROT = 4
    RDMAW_DATA = 5
    RDMAW_ABORT = 6
    RDMAR_PROT = 7
    COMP_PROT = 8
    RDMA_TRANSPORT = 9
    CATASTROPHIC = 10


class Resource(enum.IntEnum):
    """Kind of object that an asynchronous error concerns (``VIP_RESOURCE_CODE``)."""

    NIC = 0
    VI = 1
    CQ = 2
    DESCRIPTOR = 3


class Form(enum.IntEnum):
    """Encapsulation of frames on ``eth``: the option ``form=`` of a NIC.

    Give a member, or its name in lower case.
    """

    AUTO = 0
    PLAIN = 1
    UDP = 2


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

    name: str
    hardware_version: int
    provider_version: int
    address: bytes
    thread_safe: bool
    max_discriminator_nbytes: int
    max_register_nbytes: int
    max_register_regions: int
    max_register_block_nbytes: int
    max_vis: int
    max_descriptors_per_queue: int
    max_segments_per_descriptor: int
    max_cqs: int
    max_cq_entries: int
    max_transfer_size: int
    native_mtu: int
    max_tags: int
    reliability_support: Reliability
    rdma_read_support: Reliability


@dataclass(frozen=True, eq=False)
class LinkInfo(_Record):
    """Properties of a link, which hold for every NIC on it. Programs query these instead of comparing names.

    ``devices`` shows how its devices are written, and ``transport`` names the carrier of its frames. A peer may be
    another process (``leaves_process``) or on another host (``leaves_host``). A ``lossless`` link never loses,
    duplicates or reorders frames. With ``maps_memory`` a peer can map the memory of :meth:`Nic.allocate`. ``named_by``
    is the kind of text behind the colon of a device: ``"name"``, ``"interface"`` or ``"address"``.
    """

    name: str
    devices: str
    transport: str
    leaves_process: bool
    leaves_host: bool
    lossless: bool
    maps_memory: bool
    named_by: str

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

    link: str
    device: str
    interface: str
    form: str
    address: bytes
    port: int
    mtu: int
    max_payload: int
    super_payload: int
    ring_slots: int
    window: int
    bytes_registered: int
    bytes_pinned: int
    lossless: bool
    cma: bool | None
    thread: bool
    vis: int
    regions: int
    tags: int
    cqs: int
    trouble: str


@dataclass(frozen=True, eq=False)
class ViInfo(_Record):
    """Current state of a VI's connection.

    Times are in seconds. ``srtt_s`` and ``rttvar_s`` are the smoothed round-trip time and its variation (RFC 6298).
    They are 0 if nothing has been measured, or if the link is lossless and needs no measurement. ``window`` and
    ``sends_in_flight`` count frames or super-frames.
    """

    lossless: bool
    retransmission: Retransmission
    srtt_s: float
    rttvar_s: float
    rto_s: float
    tail_probe_s: float
    window: int
    sends_in_flight: int
    frames_in_flight: int
    frames_missing: int
    reads_open: int
    retries: int


@dataclass(frozen=True, eq=False)
class TapInfo(_Record):
    """Number of records of a tap. ``lost`` counts frames and events that found the ring full."""

    file: str
    frames_sent: int
    frames_received: int
    events: int
    lost: int


@dataclass(frozen=True, eq=False)
class ViAttributes(_Record):
    """Attributes of a VI. The protection tag is left out, because a remote VI's tag has no meaning locally."""

    reliability: Reliability
    max_transfer_size: int
    rdma_write: bool
    rdma_read: bool


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

    host: bytes
    discriminator: bytes = b""

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

    vi: Vi
    queue: Queue
    descriptor: Descriptor

    @property
    def error(self) -> CompletionError | None:
        """The exception for the descriptor's error status, ready to be raised; None after success."""
        return self.descriptor.error


@dataclass(frozen=True)
class AsyncError:
    """Error that belongs to no local descriptor: its code and text, and the objects it concerns if they still exist."""

    code: ErrorCode
    resource: Resource
    text: str
    nic: Nic
    vi: Vi | None = None
    cq: CompletionQueue | None = None

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"
