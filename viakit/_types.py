"""The words of the Virtual Interface Architecture: enumerations, addresses, and records that calls return.

Values are those of ``vipl.h``; a test compares them with the C library. Import them from :mod:`viakit.via`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from viakit._words import counted

if TYPE_CHECKING:
    from viakit._core import CompletionQueue, Descriptor, Nic, Vi
    from viakit.errors import CompletionError


class Return(enum.IntEnum):
    """What a VIPL call answers (``VIP_RETURN``); in Python every code but the first two becomes an exception."""

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
    """Reliability levels of a connection; both of its VIs must have the same.

    UNRELIABLE delivers at most once, and a send is complete when it has left. RELIABLE_DELIVERY delivers exactly once,
    in order, and a send is complete when the other NIC has it. RELIABLE_RECEPTION is the same, complete when the data
    is in the other side's memory, so that errors there come back in the sender's descriptor.
    """

    UNRELIABLE = 1
    RELIABLE_DELIVERY = 2
    RELIABLE_RECEPTION = 4


class ViState(enum.IntEnum):
    """The state of a VI (``VIP_VI_STATE``)."""

    IDLE = 0
    CONNECTED = 1
    CONNECT_PENDING = 2
    ERROR = 3


class Status(enum.IntFlag):
    """The status word of a descriptor, without its operation; no error bit beside DONE means success."""

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
    """What a descriptor asked for, or, once a receive is complete, what arrived."""

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
    """What an asynchronous error was (``VIP_ERROR_CODE``): one that belongs to no descriptor of this side."""

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
    """The kind of object that an asynchronous error is about (``VIP_RESOURCE_CODE``)."""

    NIC = 0
    VI = 1
    CQ = 2
    DESCRIPTOR = 3


class Form(enum.IntEnum):
    """How ``eth`` dresses its frames: the option ``form=`` of a NIC, by member or by its name in lower case."""

    AUTO = 0
    PLAIN = 1
    UDP = 2


class Checksum(enum.IntEnum):
    """What proves that a NIC's frames arrive undamaged on ``eth`` and ``udp``: the option ``checksum=``.

    By member or by its name in lower case. Each side decides for what it sends; receivers take either.
    """

    AUTO = 0  #: CRC32C; of super-frames only their headers, for UDP's checksum is there, which the interface computes
    CRC = 1  #: CRC32C over every byte: stronger, and each side reads all data once more


class Retransmission(enum.IntEnum):
    """What a receiver does with frames that come before a lost one: the option ``retransmission=`` of a NIC.

    By member or by its name in lower case. Each side decides for what it receives.
    """

    SELECTIVE = 0  #: keeps them and names the gaps: only what was lost is sent again
    GO_BACK_N = 1  #: drops them: everything from the lost frame on is sent again


class _Record(Mapping[str, Any]):
    """A frozen dataclass that is a mapping as well: ``info.mtu`` and ``info["mtu"]`` are the same."""

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
    """What a NIC promises (``VIP_NIC_ATTRIBUTES``). Sizes are bytes."""

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
class NicInfo(_Record):
    """What a NIC really is, beyond :class:`NicAttributes`. Sizes are bytes.

    ``cma`` is True when copying straight into another process (process_vm_writev) worked with the last peer, False when
    it was refused, None when it was not tried. ``regions`` includes those that hold descriptors.
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


@dataclass(frozen=True, eq=False)
class ViInfo(_Record):
    """How a VI's connection is doing at this moment.

    Times are seconds. ``srtt_s`` and ``rttvar_s`` are the measured round trip, smoothed, and its variation (RFC 6298);
    0 where nothing was measured yet, or nothing needs to be because the link loses nothing. ``window`` and
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
    """What a tap has recorded. ``lost`` counts frames and events that found its ring full."""

    file: str
    frames_sent: int
    frames_received: int
    events: int
    lost: int


@dataclass(frozen=True, eq=False)
class ViAttributes(_Record):
    """The attributes of a VI. A remote VI's protection tag means nothing here and is left out."""

    reliability: Reliability
    max_transfer_size: int
    rdma_write: bool
    rdma_read: bool


class Counters(dict[str, int]):
    """Free-running counters by name, as :data:`viakit.via.counters_help` explains them.

    ``after - before`` is what happened in between; :meth:`nonzero` leaves out what never did.
    """

    def __sub__(self, earlier: Mapping[str, int]) -> Counters:
        return Counters({name: value - earlier.get(name, 0) for name, value in self.items()})

    def __add__(self, other: Mapping[str, int]) -> Counters:
        return Counters({name: value + other.get(name, 0) for name, value in self.items()})

    def nonzero(self) -> Counters:
        """The counters that are not zero."""
        return Counters({name: value for name, value in self.items() if value})


def _as_bytes(name: str, value: object, example: str) -> bytes:
    """The bytes of a buffer. ``bytes(3)`` would be three zeros, which nobody means."""
    try:
        return bytes(memoryview(value))  # type: ignore[arg-type]  # whatever has no buffer is refused
    except TypeError:
        kind = "bytes or str" if name == "discriminator" else "bytes"
        raise TypeError(f"{name}={value!r}: expected {kind}, such as {example}") from None


@dataclass(frozen=True, order=True)
class Address:
    """Where a VI can be reached: the address of a host's NIC, and a discriminator that tells its users apart.

    Parameters
    ----------
    host
        The bytes of the NIC's address: the MAC address on Ethernet.
    discriminator
        Any bytes; a string stands for its UTF-8. ``address / "name"`` is the same host with another discriminator.
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
            raise ValueError(f"a host address has 1 to 64 bytes (6 on every link so far), not {len(self.host)}")
        if len(self.discriminator) > 255:
            raise ValueError(
                f"a discriminator of {counted(len(self.discriminator), 'byte')} is too long: a NIC takes "
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
        """The address that ``str(address)`` wrote: ``"02:00:00:00:00:01/name"``.

        Raises
        ------
        ValueError
            If the part before the slash is not hexadecimal bytes with colons between.
        """
        host, _, discriminator = text.partition("/")
        try:
            return cls(bytes.fromhex(host.replace(":", " ")), discriminator.encode())
        except ValueError as error:
            raise ValueError(f"{text!r} is not an address such as '02:00:00:00:00:01/name'") from error


class Completion(NamedTuple):
    """One entry of a completion queue, with the descriptor already taken from its work queue."""

    vi: Vi
    queue: Queue
    descriptor: Descriptor

    @property
    def error(self) -> CompletionError | None:
        """The error that the descriptor completed with, ready to be raised, or None."""
        return self.descriptor.error


@dataclass(frozen=True)
class AsyncError:
    """An error that belongs to no descriptor of this side: what it was, and the objects it is about, if they exist."""

    code: ErrorCode
    resource: Resource
    text: str
    nic: Nic
    vi: Vi | None = None
    cq: CompletionQueue | None = None

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"
