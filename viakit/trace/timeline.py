r"""Path of each message, combined from the frames and events of all NICs that recorded it.

A message is followed from the post on one side to the reap on the other. The records of both sides share a key that
identifies the connection, and sequence numbers. All times are on CLOCK_MONOTONIC in nanoseconds, so that processes of
one host can be compared.

    posted -> doorbell -> sent -> arrived -> placed -> completed -> reaped      (the last two at the receiver)
                            \-> acknowledged -> completed -> reaped            (at the sender)
"""

from __future__ import annotations

import bisect
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from viakit.trace.pcapng import ETHERNET, USER0, Capture, HostClock, Packet, number

__all__ = ["EVENT_KINDS", "FRAME_KINDS", "LEGS", "Event", "Frame", "Message", "NicSeen", "Timeline", "build"]

FRAME_KINDS = (
    "READ", "SEND", "WRITE", "ACK", "NAK", "ERROR", "PROBE", "DISCONNECT",
    "RESET", "REQUEST", "PENDING", "ACCEPT", "CONFIRM", "REJECT", "NOMATCH", "CANCEL",
)  # fmt: skip
EVENT_KINDS = {1: "posted", 2: "doorbell", 3: "placed", 4: "acknowledged", 5: "completed", 6: "reaped"}
ETHER_LEN, HEADER_LEN = 14, 32
FIRST, LAST = 0x01, 0x02

# Legs of a message's path: name, start, end. An event that does not happen (an RDMA write is not reaped) has no time.
LEGS = (
    ("post to doorbell", "posted", "doorbell"),
    ("doorbell to first frame", "doorbell", "sent"),
    ("first frame to its arrival", "sent", "arrived"),
    ("arrival to placement of the last byte", "arrived", "placed"),
    ("placement to completion, receiver", "placed", "recv_completed"),
    ("completion to reap, receiver", "recv_completed", "recv_reaped"),
    ("last frame to acknowledgement", "last_sent", "acknowledged"),
    ("post to completion, sender", "posted", "completed"),
    ("completion to reap, sender", "completed", "reaped"),
    ("post to reap at the receiver", "posted", "recv_reaped"),
)


@dataclass(eq=False)
class NicSeen:
    """NIC with a tap."""

    pid: int
    program: str
    device: str
    link: str
    address: str
    port: int
    lost: int = 0  # records that its tap dropped
    host: str = ""  # name of another machine

    @property
    def process(self) -> str:
        """Program and number of the process, with its host if that is another machine."""
        return f"{self.program} ({self.pid})" + (f" on {self.host}" if self.host else "")


@dataclass(slots=True, eq=False)
class Frame:
    """Frame that a NIC sent or received. ``note`` gives the reason of a drop, or the injected fault."""

    time_ns: int
    nic: NicSeen
    out: bool
    kind: int
    flags: int
    length: int
    dst_port: int
    dst_vi: int
    src_port: int
    src_vi: int
    key: int
    psn: int
    ack: int
    note: str

    @property
    def name(self) -> str:
        """Kind of the frame."""
        return FRAME_KINDS[self.kind]

    @property
    def lost(self) -> bool:
        """Whether the frame was lost by an injected fault when sent, or dropped on arrival."""
        return self.note.startswith("lost") if self.out else "dropped" in self.note

    @property
    def corrupted(self) -> bool:
        """Whether an injected fault flipped bits of the sent frame, possibly of its header."""
        return self.out and self.note.startswith("corrupted")


@dataclass(slots=True, eq=False)
class Event:
    """Event of a descriptor."""

    time_ns: int
    nic: NicSeen
    kind: int
    vi: int
    queue: int
    how: int
    control: int
    index: int
    psn: int
    n_frames: int
    length: int
    status: int
    key: int
    descriptor: int

    @property
    def name(self) -> str:
        """Kind of the event."""
        return EVENT_KINDS.get(self.kind, str(self.kind))


@dataclass(slots=True, eq=False)
class Message:
    """Message (a send or an RDMA write) and the times of its events.

    The time is None if the event did not happen or was not recorded.
    """

    nic: NicSeen
    vi: int
    index: int
    length: int
    psn: int
    n_frames: int
    how: int
    is_write: bool
    posted: int | None = None
    doorbell: int | None = None
    sent: int | None = None
    last_sent: int | None = None
    arrived: int | None = None
    placed: int | None = None
    acknowledged: int | None = None
    completed: int | None = None
    reaped: int | None = None
    status: int = 0
    receiver: NicSeen | None = None
    recv_vi: int | None = None
    recv_index: int | None = None
    recv_completed: int | None = None
    recv_reaped: int | None = None

    def leg(self, start: str, end: str) -> int | None:
        """Return the nanoseconds between two events, or None."""
        a, b = getattr(self, start), getattr(self, end)
        return None if a is None or b is None else b - a


@dataclass
class Timeline:
    """All frames and events of the taps in the order of time, and the messages found in them."""

    nics: list[NicSeen] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    clocks: list[HostClock] = field(default_factory=list)  # of other machines

    @property
    def span_ns(self) -> tuple[int, int]:
        """First and last time; (0, 0) without records."""
        times = [one[i].time_ns for one in (self.frames, self.events) if one for i in (0, -1)]
        return (min(times), max(times)) if times else (0, 0)

    def medians_ns(self) -> dict[str, tuple[int, float]]:
        """Return, for each of :data:`LEGS` that occurs, the number of messages and the median in nanoseconds."""
        result = {}
        for name, start, end in LEGS:
            values = [value for one in self.messages if (value := one.leg(start, end)) is not None]
            if values:
                result[name] = (len(values), median(values))
        return result

    def counts(self) -> dict[str, Counter[str]]:
        """Return the numbers of frames and events by kind.

        ``sent`` (of these ``again``: retransmitted data), ``received`` (of these ``dropped``), ``lost`` (by an injected
        fault, before they reached the link), and ``events``.
        """
        names = ("sent", "again", "received", "dropped", "lost", "events")
        result: dict[str, Counter[str]] = {name: Counter() for name in names}
        seen: set[tuple[int, int, int]] = set()
        for frame in self.frames:
            data = (id(frame.nic), frame.key, frame.psn)
            if not frame.out:
                result["received"][frame.name] += 1
                result["dropped"][frame.name] += frame.lost
            elif frame.lost:
                result["lost"][frame.name] += 1
            else:
                result["sent"][frame.name] += 1
                result["again"][frame.name] += frame.kind in (1, 2) and data in seen
            if frame.out and frame.kind in (1, 2):
                seen.add(data)
        for event in self.events:
            result["events"][event.name] += 1
        return result


# ---------------------------------------------------------------- decoding of packets


def _frame(packet: Packet, nic: NicSeen) -> Frame | None:
    data = packet.data
    if len(data) < ETHER_LEN + HEADER_LEN or data[ETHER_LEN] >> 4 != 1:
        return None
    h = struct.unpack_from("<BBHHHHHIII", data, ETHER_LEN)
    fields = h[1], h[2], h[3], h[4], h[5], h[6], h[7], h[8], h[9]
    return Frame(packet.time_ns, nic, bool(packet.out), h[0] & 15, *fields, packet.comment)


def _event(packet: Packet, nic: NicSeen) -> Event | None:
    if len(packet.data) < 40 or packet.data[0] != 1:
        return None
    v = struct.unpack_from("<BBHBBHIIIIIIQ", packet.data)
    return Event(packet.time_ns, nic, v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], v[12])


def _nics(capture: Capture) -> dict[int, NicSeen]:
    """Return the NIC of each interface; the two interfaces of a NIC have the same one."""
    by_key: dict[tuple[str, ...], NicSeen] = {}
    result = {}
    for one in capture.interfaces:
        words = one.words
        if not words:
            continue
        if one.key not in by_key:
            by_key[one.key] = NicSeen(
                number(words, "pid"), words.get("program", "?"), words.get("device", "?"),
                words.get("link", "?"), words.get("address", ""), number(words, "port"),
                host=words.get("host", ""),
            )  # fmt: skip
        result[id(one)] = by_key[one.key]
    return result


# ---------------------------------------------------------------- following messages


def _before(a: int, b: int) -> bool:
    """Return whether sequence number `a` precedes `b`; sequence numbers wrap."""
    return 0 < (b - a) & 0xFFFFFFFF < 0x80000000


class _Index:
    """Times by a key, in order. A key has several times if sequence numbers are reused after a reconnection."""

    def __init__(self) -> None:
        self._times: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
        self._things: defaultdict[tuple[object, ...], list[object]] = defaultdict(list)

    def add(self, key: tuple[object, ...], time_ns: int, thing: object) -> None:
        self._times[key].append(time_ns)
        self._things[key].append(thing)

    def first_from(self, key: tuple[object, ...], time_ns: int) -> object | None:
        times = self._times.get(key)
        at = bisect.bisect_left(times, time_ns) if times else 0
        return self._things[key][at] if times and at < len(times) else None

    def last_until(self, key: tuple[object, ...], time_ns: int) -> object | None:
        times = self._times.get(key)
        at = bisect.bisect_right(times, time_ns) if times else 0
        return self._things[key][at - 1] if at else None

    def count(self, key: tuple[object, ...]) -> int:
        return len(self._times.get(key, ()))


@dataclass
class _Indices:
    sent: _Index = field(default_factory=_Index)  # (NIC, VI, psn)
    whole: _Index = field(default_factory=_Index)  # as `sent`, without damaged frames, whose headers may be wrong
    arrived: _Index = field(default_factory=_Index)  # (key, psn)
    placed: _Index = field(default_factory=_Index)  # (key, psn)
    life: _Index = field(default_factory=_Index)  # (NIC, VI, queue, index, kind)


def _index(timeline: Timeline) -> _Indices:
    i = _Indices()
    for frame in timeline.frames:
        if frame.kind not in (1, 2):
            continue
        if frame.out:
            if not frame.lost:
                i.sent.add((id(frame.nic), frame.src_vi, frame.psn), frame.time_ns, frame)
                if not frame.corrupted:
                    i.whole.add((id(frame.nic), frame.src_vi, frame.psn), frame.time_ns, frame)
        elif not frame.lost:
            i.arrived.add((frame.key, frame.psn), frame.time_ns, frame)
    for event in timeline.events:
        if event.name == "placed":
            i.placed.add((event.key, event.psn), event.time_ns, event)
        elif event.name in ("posted", "completed", "reaped"):
            i.life.add((id(event.nic), event.vi, event.queue, event.index, event.name), event.time_ns, event)
    return i


def _follow_frames(message: Message, i: _Indices, start_ns: int) -> None:
    """Find the frames of a message on the wire and its placement at the receiver."""
    last_psn = (message.psn + message.n_frames - 1) & 0xFFFFFFFF
    first = i.sent.first_from((id(message.nic), message.vi, message.psn), start_ns)
    last = i.sent.first_from((id(message.nic), message.vi, last_psn), start_ns)
    if not isinstance(first, Frame):
        return
    message.sent = first.time_ns
    if isinstance(last, Frame):
        message.last_sent = last.time_ns
    whole = i.whole.first_from((id(message.nic), message.vi, message.psn), start_ns)
    if not isinstance(whole, Frame):
        return  # The kind and the key in a damaged header may be wrong.
    message.is_write = whole.kind == 2
    arrival = i.arrived.first_from((whole.key, message.psn), first.time_ns)
    if isinstance(arrival, Frame):
        message.arrived, message.receiver, message.recv_vi = arrival.time_ns, arrival.nic, arrival.dst_vi
    placed = i.placed.first_from((whole.key, last_psn), first.time_ns)
    if isinstance(placed, Event):
        message.placed, message.receiver, message.recv_vi = placed.time_ns, placed.nic, placed.vi
        if placed.queue == 1:
            message.recv_index = placed.index


def _follow_lives(message: Message, i: _Indices, start_ns: int) -> None:
    """Find completion and reap of a message on both sides."""
    own = (id(message.nic), message.vi, 0, message.index)
    posted = i.life.last_until((*own, "posted"), start_ns)
    completed = i.life.first_from((*own, "completed"), start_ns)
    reaped = i.life.first_from((*own, "reaped"), start_ns)
    message.posted = posted.time_ns if isinstance(posted, Event) else None
    if isinstance(completed, Event):
        message.completed, message.status = completed.time_ns, completed.status
    message.reaped = reaped.time_ns if isinstance(reaped, Event) else None
    if message.recv_index is not None and message.placed is not None:
        other = (id(message.receiver), message.recv_vi, 1, message.recv_index)
        completed = i.life.first_from((*other, "completed"), message.placed)
        reaped = i.life.first_from((*other, "reaped"), message.placed)
        message.recv_completed = completed.time_ns if isinstance(completed, Event) else None
        message.recv_reaped = reaped.time_ns if isinstance(reaped, Event) else None


def _find_acknowledgements(messages: Iterable[Message], events: Iterable[Event]) -> None:
    """Find the first acknowledgement that covers a message's last frame. For each VI both are in order."""
    of_vi: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event.name == "acknowledged":
            of_vi[id(event.nic), event.vi].append(event)
    at: defaultdict[tuple[int, int], int] = defaultdict(int)
    for message in messages:
        vi = (id(message.nic), message.vi)
        acks, end = of_vi.get(vi, []), (message.psn + message.n_frames) & 0xFFFFFFFF
        while at[vi] < len(acks):
            ack = acks[at[vi]]
            if ack.time_ns >= (message.doorbell or 0) and not _before(ack.psn, end):
                break
            at[vi] += 1
        if message.n_frames and at[vi] < len(acks):
            ack = acks[at[vi]]
            if message.completed is None or ack.time_ns <= message.completed:
                message.acknowledged = ack.time_ns


def build(capture: Capture) -> Timeline:
    """Build the timeline of a capture with events.

    Parameters
    ----------
    capture : Capture
        All files of one run, from :func:`viakit.trace.pcapng.read`.
    """
    nics = _nics(capture)
    timeline = Timeline(nics=list({id(nic): nic for nic in nics.values()}.values()), clocks=capture.clocks)
    for packet in capture.packets:
        nic = nics.get(id(packet.interface))
        if nic is None:
            continue
        if packet.interface.link_type == ETHERNET:
            frame = _frame(packet, nic)
            if frame:
                timeline.frames.append(frame)
        elif packet.interface.link_type == USER0:
            event = _event(packet, nic)
            if event:
                timeline.events.append(event)
    for one in capture.interfaces:
        if id(one) in nics:
            nics[id(one)].lost += one.dropped
    i = _index(timeline)
    for event in timeline.events:
        if event.name == "doorbell":
            message = Message(
                event.nic, event.vi, event.index, event.length, event.psn, event.n_frames, event.how,
                event.control & 3 == 1, doorbell=event.time_ns,
            )  # fmt: skip
            if message.n_frames:
                _follow_frames(message, i, event.time_ns)
            _follow_lives(message, i, event.time_ns)
            timeline.messages.append(message)
    _find_acknowledgements(timeline.messages, timeline.events)
    return timeline


def names_of(nics: Iterable[NicSeen]) -> Mapping[int, str]:
    """Return a name for each NIC (by ``id``); it includes the port if the process has several NICs on the device."""
    nics = list(nics)
    alike = Counter((nic.host, nic.pid, nic.device) for nic in nics)
    return {id(n): n.device if alike[n.host, n.pid, n.device] == 1 else f"{n.device} port {n.port}" for n in nics}
