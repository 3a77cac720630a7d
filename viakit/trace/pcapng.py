"""Captures written by taps: reading them, and merging several into one.

The reader interprets the blocks that taps write (section, interface, packet, statistics) and skips others. No library
is used, for two reasons: existing readers convert each packet to generic objects and are much slower, and none merges
captures by the clock that taps record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

__all__ = ["Capture", "CaptureError", "HostClock", "Interface", "Packet", "merge", "read"]

SECTION, INTERFACE, STATISTICS, PACKET = 0x0A0D0D0A, 1, 5, 6
BYTE_ORDER = 0x1A2B3C4D
OPT_COMMENT, IF_NAME, EPB_FLAGS, EPB_DROPCOUNT, ISB_RECEIVED, ISB_DROPPED = 1, 2, 2, 4, 4, 5
ETHERNET, USER0 = 1, 147


@dataclass(frozen=True)
class HostClock:
    """Clock of another machine: the known limits of its CLOCK_MONOTONIC minus that of this machine.

    Attributes
    ----------
    host : str
        Name of the machine.
    low_ns, high_ns : int
        Limits of the offset. If low_ns is above high_ns, the clocks drifted apart by the difference during the run.
    source : str
        Source of the limits. "ssh": the connection. "frames": frames in both directions. "reference": all others are
        adjusted to the clock of this host, because the machine that reads the captures has no frames.
    problem : str
        Why captures of this machine are missing; usually empty.
    """

    host: str
    low_ns: int
    high_ns: int
    source: str = "ssh"
    problem: str = ""

    @property
    def offset_ns(self) -> int:
        """The middle of the limits, which is used."""
        return (self.low_ns + self.high_ns) // 2

    @property
    def error_ns(self) -> int:
        """Largest error of the offset."""
        return (abs(self.high_ns - self.low_ns) + 1) // 2


class CaptureError(ValueError):
    """The file is not a capture, or is damaged."""


@dataclass(eq=False)
class Interface:
    """Interface of a capture: the frames of a NIC, or its events.

    ``words`` holds the properties that the tap recorded: ``role``, ``pid``, ``link``, ``port``, ``address``,
    ``device`` and ``program``. It has ``host`` if the NIC is on another machine, and is empty for an interface of
    another tool. ``clock_offset_ns`` was added to CLOCK_MONOTONIC.
    """

    link_type: int
    name: str
    words: dict[str, str]
    clock_offset_ns: int
    block: bytes
    received: int = 0
    dropped: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """Identification of the NIC: host, process, link, address and port."""
        return tuple(self.words.get(name, "") for name in ("host", "pid", "link", "address", "port"))

    def set_host(self, name: str) -> None:
        """Note in the interface that its NIC is on the machine *name*."""
        self.words = {"host": name, **self.words}
        self.name = f"{name} {self.name}"
        options = b""
        for code, value in _options(self.block, 16, len(self.block) - 4):
            if code == OPT_COMMENT and value.startswith(b"viakit "):
                value = b"viakit host=" + name.encode() + value[6:]
            elif code == IF_NAME:
                value = self.name.encode()
            options += struct.pack("<HH", code, len(value)) + value + bytes(-len(value) % 4)
        body = self.block[8:16] + options + bytes(4)
        self.block = struct.pack("<II", INTERFACE, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


@dataclass(slots=True, eq=False)
class Packet:
    """Packet of a capture.

    ``time_ns`` is on CLOCK_MONOTONIC. ``out`` is None if the direction is not recorded. ``lost`` packets are missing
    before this one.
    """

    time_ns: int
    interface: Interface
    data: bytes
    length: int
    out: bool | None
    comment: str
    lost: int
    block: bytes


@dataclass
class Capture:
    """Contents of one or several capture files.

    ``clocks`` are those of other machines, to which :func:`viakit.trace.hosts.read` has adjusted the times.
    """

    interfaces: list[Interface] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    clocks: list[HostClock] = field(default_factory=list)


def _options(block: bytes, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    while start + 4 <= end:
        code, length = struct.unpack_from("<HH", block, start)
        if code == 0 or start + 4 + length > end:
            return
        yield code, block[start + 4 : start + 4 + length]
        start += 4 + (length + 3 & ~3)


def _words(comment: str) -> dict[str, str]:
    """Parse ``viakit a=1 b=two words``; only the last value may contain spaces."""
    if not comment.startswith("viakit "):
        return {}
    words: dict[str, str] = {}
    last = ""
    for piece in comment[7:].split(" "):
        name, equals, value = piece.partition("=")
        if equals:
            words[name] = value
            last = name
        elif last:
            words[last] += " " + piece
    return words


def number(words: dict[str, str], name: str) -> int:
    """Return the value of `name` as a number; 0 if it is missing or not a number."""
    text = words.get(name, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _blocks(data: bytes, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the bytes of each block.

    An incomplete last block, as a killed program leaves it, ends the file.
    """
    offset = 0
    while offset + 12 <= len(data):
        kind, length = struct.unpack_from("<II", data, offset)
        if kind == SECTION and struct.unpack_from("<I", data, offset + 8)[0] != BYTE_ORDER:
            raise CaptureError(f"{name}: the file has the other byte order; convert it with mergecap first")
        if length < 12 or length % 4:
            raise CaptureError(f"{name}: the file is damaged at byte {offset}")
        if offset + length > len(data):
            return
        yield kind, data[offset : offset + length]
        offset += length


def _interface(block: bytes, offset_ns: int) -> Interface:
    name, words = "", {}
    for code, value in _options(block, 16, len(block) - 4):
        if code == OPT_COMMENT:
            words = _words(value.decode(errors="replace"))
        elif code == IF_NAME:
            name = value.decode(errors="replace")
    return Interface(struct.unpack_from("<H", block, 8)[0], name, words, offset_ns, block)


def _packet(block: bytes, interfaces: Sequence[Interface], name: str) -> Packet:
    index, high, low, captured, length = struct.unpack_from("<IIIII", block, 8)
    if index >= len(interfaces) or 28 + captured > len(block) - 4:
        raise CaptureError(f"{name}: the file is damaged: a packet of interface {index} is inconsistent")
    one = interfaces[index]
    out, comment, lost = None, "", 0
    for code, value in _options(block, 28 + (captured + 3 & ~3), len(block) - 4):
        if code == OPT_COMMENT:
            comment = value.decode(errors="replace")
        elif code == EPB_FLAGS:
            out = {1: False, 2: True}.get(struct.unpack("<I", value)[0] & 3)
        elif code == EPB_DROPCOUNT:
            lost = struct.unpack("<Q", value)[0]
    time_ns = (high << 32 | low) - one.clock_offset_ns
    return Packet(time_ns, one, block[28 : 28 + captured], length, out, comment, lost, block)


def _statistics(block: bytes, interfaces: Sequence[Interface]) -> None:
    index = struct.unpack_from("<I", block, 8)[0]
    for code, value in _options(block, 20, len(block) - 4):
        if index < len(interfaces) and code in (ISB_RECEIVED, ISB_DROPPED):
            name = "received" if code == ISB_RECEIVED else "dropped"
            setattr(interfaces[index], name, struct.unpack("<Q", value)[0])


def _read_one(path: Path, into: Capture) -> None:
    name = str(path)
    try:
        _read_blocks(name, path.read_bytes(), into)
    except struct.error as error:
        raise CaptureError(f"{name}: the file is damaged: {error}") from error


def _read_blocks(name: str, data: bytes, into: Capture) -> None:
    interfaces: list[Interface] = []
    offset_ns = 0
    if len(data) >= 4 and struct.unpack_from("<I", data)[0] != SECTION:
        raise CaptureError(f"{name}: this is not a pcapng file")
    for kind, block in _blocks(data, name):
        if kind == SECTION:  # A file may have several sections, each with its own interfaces.
            interfaces, offset_ns = [], 0
            for code, value in _options(block, 24, len(block) - 4):
                if code == OPT_COMMENT:
                    words = _words(value.decode(errors="replace"))
                    offset_ns = number(words, "clock_offset_ns")
        elif kind == INTERFACE:
            interfaces.append(_interface(block, offset_ns))
            into.interfaces.append(interfaces[-1])
        elif kind == PACKET:
            into.packets.append(_packet(block, interfaces, name))
        elif kind == STATISTICS:
            _statistics(block, interfaces)


def read(paths: Sequence[str | PathLike[str]]) -> Capture:
    """Read captures of one host and merge them in the order of CLOCK_MONOTONIC.

    Parameters
    ----------
    paths : sequence of path-like
        pcapng files, or folders of them.

    Raises
    ------
    CaptureError
        If a file is not a capture in this machine's byte order.
    OSError
        If a file cannot be read.
    """
    capture = Capture()
    for path in map(Path, paths):
        for one in sorted(path.glob("*.pcapng")) if path.is_dir() else [path]:
            _read_one(one, capture)
    capture.packets.sort(key=lambda packet: packet.time_ns)
    return capture


def _section(offset_ns: int) -> bytes:
    comment = f"viakit clock_offset_ns={offset_ns} program=merged".encode()
    padded = comment + bytes(-len(comment) % 4)
    body = (
        struct.pack("<IHHq", BYTE_ORDER, 1, 0, -1) + struct.pack("<HH", OPT_COMMENT, len(comment)) + padded + bytes(4)
    )
    return struct.pack("<II", SECTION, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


def _final(index: int, one: Interface, time_ns: int) -> bytes:
    body = struct.pack("<III", index, time_ns >> 32, time_ns & 0xFFFFFFFF)
    body += struct.pack("<HHQHHQ", ISB_RECEIVED, 8, one.received, ISB_DROPPED, 8, one.dropped) + bytes(4)
    return struct.pack("<II", STATISTICS, len(body) + 12) + body + struct.pack("<I", len(body) + 12)


def merge(capture: Capture, path: str | PathLike[str]) -> None:
    """Write a capture to one file, with packets in the order of time, on the clock of its first interface."""
    offset_ns = capture.interfaces[0].clock_offset_ns if capture.interfaces else 0
    number = {id(one): index for index, one in enumerate(capture.interfaces)}
    last = capture.packets[-1].time_ns + offset_ns if capture.packets else offset_ns
    with open(path, "wb") as file:
        file.write(_section(offset_ns))
        for one in capture.interfaces:
            file.write(one.block)
        for packet in capture.packets:
            time_ns = packet.time_ns + offset_ns
            head = struct.pack("<III", number[id(packet.interface)], time_ns >> 32, time_ns & 0xFFFFFFFF)
            file.write(packet.block[:8] + head + packet.block[20:])
        for index, one in enumerate(capture.interfaces):
            if one.received or one.dropped:
                file.write(_final(index, one, last))
