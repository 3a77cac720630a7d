"""Why a message takes as long as it does: its time, divided into measured steps (``viakit breakdown``).

::

    found = measure(["tcp", "udp", "via-eth"], nbytes=8)
    print(found)

Each part is obtained as follows. Every number is a median.

``system calls``
    A system call that does nothing (getppid), times the calls that a message needs: 2 for sockets (send, receive), 1
    for via-eth (send; it reads the kernel's ring without a call).
``copies``
    A copy of the message's length in memory, times the copies: 2 for sockets (into the kernel, out of it), 3 for
    via-eth (into the kernel, into the ring, into the buffer).
``interrupt``
    One thread sends a message over the wire and receives it. The part of this time that the kernel counts as softirq on
    the thread's core (/proc/stat) is the interrupt's: it processes the arriving packet. The kernel counts in ticks of
    10 ms, and other processes on this core disturb the count.
``protocol``
    The rest of that thread's time: sockets, TCP/IP or the packet socket, buffers, the device.
``wake-up``
    The one-way time with blocking waits, less that with polling: the scheduler's part.
``remainder``
    The polled one-way time, less the thread's time: what two cores add (cache lines), the work of the library in user
    space, and the time until a poll finds the message. It is negative if both cores worked at the same time.

The sum of all parts is the one-way time with blocking waits. Both hosts are on a testbed, whose wire is a veth pair.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from viakit import _core
from viakit.base.sheet import sheet
from viakit.measure import plot, sweep
from viakit.measure.endpoints import MeasureError
from viakit.measure.environment import environment
from viakit.measure.look import ON_DARK, ON_LIGHT
from viakit.measure.report import html_table
from viakit.measure.table import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # start-up time
    from rich.table import Table

    from viakit.testbed import Testbed

__all__ = ["PARTS", "PROTOCOLS", "Breakdown", "Message", "check", "measure"]

PARTS = ("system calls", "copies", "protocol", "interrupt", "wake-up", "remainder")
PROTOCOLS = ("tcp", "udp", "via-eth")
# From dark to light, for grey. None is INK, which pages exchange for the colour of their text.
COLOURS = ("#4C4C4C", "#0072B2", "#D55E00", "#E69F00", "#56B4E9", "#BBBBBB")
NOT_COUNTED = "not counted"  # 0 would be a claim
HATCHES = ("", "", "", "///", "...", "")  # where neighbours have one tone in grey
MOST_BYTES = 1400  # one frame; longer messages overlap their own steps
_CALLS = {"tcp": 2, "udp": 2, "via-eth": 1}
_COPIES = {"tcp": 2, "udp": 2, "via-eth": 3}
_BATCH = 16
_ETHERTYPE = 0x88B6  # local experiments, IEEE 802
_SOL_PACKET, _PACKET_QDISC_BYPASS = 263, 20


@dataclass(frozen=True)
class Message:
    """Times of one message over a protocol, in seconds.

    Attributes
    ----------
    protocol : str
    blocking_s, polled_s : float
        One-way times: half the round trip, with blocking waits and with polling.
    send_s, receive_s : float
        One thread's times to send and to receive. The second is 0 for via-eth.
    softirq : float or None
        Part of the thread's time that the kernel counts as softirq; None if it counts none here.
    call_s, copy_s : float
        A system call that does nothing, and one copy of the message.
    """

    protocol: str
    blocking_s: float
    polled_s: float
    send_s: float
    receive_s: float
    softirq: float | None
    call_s: float
    copy_s: float

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by part (:data:`PARTS`). Without a count of softirq, the interrupt's part is in the protocol's."""
        thread_s = self.send_s + self.receive_s
        calls, copies = _CALLS[self.protocol] * self.call_s, _COPIES[self.protocol] * self.copy_s
        interrupt = thread_s * (self.softirq or 0.0)
        protocol = thread_s - calls - copies - interrupt
        values = (calls, copies, protocol, interrupt, self.blocking_s - self.polled_s, self.polled_s - thread_s)
        return dict(zip(PARTS, values, strict=True))

    def counts(self, part: str) -> bool:
        """Return whether a part was counted. Without a count of softirq, the interrupt's was not."""
        return part != "interrupt" or self.softirq is not None


@dataclass
class Breakdown:
    """Messages of several protocols, divided into parts: the result of :func:`measure`."""

    nbytes: int
    messages: list[Message] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    complete: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return all values as a dictionary for JSON, with the schema ``viakit.breakdown/1``."""
        return {
            "schema": "viakit.breakdown/1",
            "nbytes": self.nbytes,
            "complete": self.complete,
            "environment": self.machine,
            "messages": [{**asdict(one), "parts_s": one.parts} for one in self.messages],
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Breakdown:
        """Return the breakdown that :meth:`to_dict` gave."""
        names = Message.__dataclass_fields__
        messages = [Message(**{name: one[name] for name in names}) for one in found["messages"]]
        return cls(found["nbytes"], messages, dict(found["environment"]), bool(found["complete"]))

    def table(self) -> Table:
        """Return a table with a row for each part."""
        heads = ["part", *(f">{one.protocol}" for one in self.messages)]
        title = f"[bold]One message of {self.nbytes} bytes, one way[/bold]"
        made = sheet(*heads, title=title, caption=self.note())
        for part in PARTS:
            cells = [(one.parts[part], one.counts(part)) for one in self.messages]
            words = (
                f"{'-' * (time < 0)}{format_time(abs(time))}" if counted else NOT_COUNTED for time, counted in cells
            )
            made.add_row(part, *words)
        made.add_section()
        made.add_row("blocking", *(format_time(one.blocking_s) for one in self.messages))
        made.add_row("polled", *(format_time(one.polled_s) for one in self.messages))
        return made

    def note(self) -> str:
        """Return the caveats of this result in words."""
        words = "protocol: the kernel's work beyond calls and copies; remainder: two cores, user space, polling"
        if uncounted := [one.protocol for one in self.messages if one.softirq is None]:
            names = " and ".join(uncounted)
            words += f"; this kernel counted no softirq for {names}, where protocol contains the interrupt"
        if any(one.parts["remainder"] < 0 for one in self.messages):
            words += "; a negative remainder: both cores worked at the same time"
        return words

    def __str__(self) -> str:
        from rich.console import Console  # start-up time

        console = Console(width=80, highlight=False, force_jupyter=False)
        with console.capture() as text:
            console.print(self.table())
        return text.get()

    def figure(self) -> Figure:
        """Draw the parts as stacked bars with Matplotlib: without the wake-up at the left, with it at the right.

        Negative parts are left out of the bars.
        """
        from matplotlib.figure import Figure  # start-up time

        drawing = Figure(figsize=(10, 1.4 + 0.6 * max(len(self.messages), 1)), layout="constrained")
        left, right = drawing.subplots(1, 2, sharey=True)
        self._bars(left, [part for part in PARTS if part != "wake-up"])
        self._bars(right, PARTS)
        left.invert_yaxis()
        left.set_xlabel("polled, one way, µs")
        right.set_xlabel("blocking, one way, µs")
        if self.messages:
            names = right.get_legend_handles_labels()
            drawing.legend(*names, ncols=6, fontsize=8, frameon=False, loc="outside upper center")
        return drawing

    def _bars(self, axes: Any, parts: Sequence[str]) -> None:
        """Draw a bar for each protocol, with the numbers of the wide parts."""
        names = [one.protocol for one in self.messages]
        starts = [0.0] * len(names)
        widths = {part: [max(one.parts[part] * 1e6, 0.0) for one in self.messages] for part in parts}
        longest = max((sum(each) for each in zip(*widths.values(), strict=True)), default=0.0)
        for part, each in widths.items():
            style = {"color": COLOURS[PARTS.index(part)], "hatch": HATCHES[PARTS.index(part)], "label": part}
            axes.barh(names, each, left=starts, edgecolor="#808080", linewidth=0.4, **style)
            for i, width in enumerate(each):
                if width > 0.1 * longest:
                    light = part in ("interrupt", "wake-up", "remainder")
                    axes.text(
                        starts[i] + width / 2, i, f"{width:.3g}", ha="center", va="center", fontsize=8,
                        color=ON_LIGHT if light else ON_DARK,
                        bbox={"boxstyle": "round,pad=0.15", "facecolor": style["color"], "edgecolor": "none"},
                    )  # fmt: skip
            starts = [start + width for start, width in zip(starts, each, strict=True)]
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)

    def _repr_html_(self) -> str:
        rows = [
            [part, *(f"{one.parts[part] * 1e6:.3f}" if one.counts(part) else NOT_COUNTED for one in self.messages)]
            for part in PARTS
        ]
        rows.append(["blocking", *(f"{one.blocking_s * 1e6:.3f}" for one in self.messages)])
        rows.append(["polled", *(f"{one.polled_s * 1e6:.3f}" for one in self.messages)])
        head = ["µs", *(one.protocol for one in self.messages)]
        words = f"One message of {self.nbytes} bytes, one way. {self.note()}"
        return plot.inline_figure(self.figure(), "parts of a message") + html_table(words, head, rows)


def check(protocols: Sequence[str], nbytes: int, seconds: float) -> None:
    """Raise ValueError if :func:`measure` would refuse the arguments; the message states what is accepted."""
    for name in protocols:
        if name not in PROTOCOLS:
            raise ValueError(f"{name!r} cannot be divided into parts; expected some of {', '.join(PROTOCOLS)}")
    if not protocols:
        raise ValueError(f"no protocol was given; expected some of {', '.join(PROTOCOLS)}")
    if not 1 <= nbytes <= MOST_BYTES:
        raise ValueError(f"a message has {nbytes} bytes; expected 1 to {MOST_BYTES}, which fit one frame")
    if not 0 < seconds <= 1e6:
        raise ValueError(f"seconds is {seconds:g}; expected the time for all measurements, for instance 9")


def measure(
    protocols: Sequence[str] = PROTOCOLS,
    *,
    nbytes: int = 8,
    seconds: float = 9.0,
    seed: int | None = None,
    on_part: Callable[[Breakdown, str], None] | None = None,
) -> Breakdown:
    """Measure the parts of one message.

    Parameters
    ----------
    protocols : sequence of str
        Some of :data:`PROTOCOLS`.
    nbytes : int
        Bytes of the message, 1 to 1400.
    seconds : float
        Time for all measurements.
    seed : int, optional
        Seed of the order of turns.
    on_part : callable, optional
        Called with the result so far and the next step, before each step.

    Returns
    -------
    Breakdown

    Raises
    ------
    ValueError
        If an argument is invalid.
    MeasureError
        If a protocol cannot be measured; the message gives the reason.
    """
    from viakit.testbed import Testbed  # start-up time

    check(protocols, nbytes, seconds)
    found = Breakdown(nbytes, [], environment(seed=seed, command="viakit breakdown", infos=[]), complete=False)
    tell = on_part or (lambda _found, _words: None)
    tell(found, "one-way times, polled and blocking")
    whole = {wait: _one_way(protocols, nbytes, wait, seconds / 3, seed) for wait in ("poll", "block")}
    call_s = statistics.median(_core.bench_step_call(2000) for _ in range(31))
    copy_s = statistics.median(_core.bench_step_copy(nbytes, 2000) for _ in range(31))
    with Testbed(hosts=2) as testbed:
        for name in protocols:
            tell(found, f"{name}: one thread at both ends")
            with _ends(name, testbed) as (out, into, frame):
                send_s, receive_s, softirq = _pass(out, into, frame + bytes(nbytes), seconds / 3 / len(protocols))
            receive_s = 0.0 if name == "via-eth" else receive_s  # the ring is read without a call
            found.messages.append(
                Message(name, whole["block"][name], whole["poll"][name], send_s, receive_s, softirq, call_s, copy_s)
            )
    found.complete = True
    tell(found, "")
    return found


def _one_way(protocols: Sequence[str], nbytes: int, wait: str, seconds: float, seed: int | None) -> dict[str, float]:
    """Return the median one-way times between two hosts."""
    config = sweep.Config(
        list(protocols), [nbytes], wait=wait, hosts="testbed", seconds=seconds, seed=seed, buffers="same"
    )
    document = sweep.run(config).document
    for one in document["skipped"]:
        raise MeasureError(f"{one['protocol']}: {one['reason']}")
    for one in document["errors"]:
        raise MeasureError(one["message"])
    return {one["protocol"]: one["points"][0]["one_way_s"]["median"] for one in document["series"]}


# ------------------------------------------------------------------------------------- both ends in one thread


def _pass(out: socket.socket, into: socket.socket, message: bytes, seconds: float) -> tuple[float, float, float | None]:
    """Return the median times to send and to receive, and the part of softirq."""
    buffer = bytearray(message)
    sends: list[float] = []
    receives: list[float] = []
    cores = os.sched_getaffinity(0)
    core = min(cores)
    os.sched_setaffinity(0, {core})
    try:
        _core.bench_step_pass(out.fileno(), into.fileno(), buffer, _BATCH)
        before, end = _ticks(core), time.monotonic() + seconds
        while time.monotonic() < end or not sends:
            buffer[:] = message
            send_s, receive_s = _core.bench_step_pass(out.fileno(), into.fileno(), buffer, _BATCH)
            sends.append(send_s)
            receives.append(receive_s)
        after = _ticks(core)
    finally:
        os.sched_setaffinity(0, cores)
    busy, soft = after[0] - before[0], after[1] - before[1]
    return statistics.median(sends), statistics.median(receives), soft / busy if busy and soft else None


def _ticks(core: int) -> tuple[int, int]:
    """Return the ticks that a core was busy, and those of them in softirq."""
    with open("/proc/stat", encoding="ascii") as file:
        words = next(line.split() for line in file if line.startswith(f"cpu{core} "))
    user, nice, system, _, _, irq, soft = map(int, words[1:8])
    return user + nice + system + irq + soft, soft


@contextlib.contextmanager
def _ends(name: str, testbed: Testbed) -> Iterator[tuple[socket.socket, socket.socket, bytes]]:
    """Yield the sockets of two hosts, both in this process, and the bytes that precede the message in a frame."""
    a, b = testbed.hosts[:2]
    with tempfile.TemporaryDirectory(prefix="viakit-") as folder, contextlib.ExitStack() as stack:
        path = os.path.join(folder, "ends")
        gate = stack.enter_context(socket.socket(socket.AF_UNIX))
        gate.bind(path)
        gate.listen(2)
        ends: list[socket.socket] = []
        for host, peer in ((b, a), (a, b)):
            host.call(_open_end, name, path, host.interface, host.address, peer.address)
            with gate.accept()[0] as line:
                fd = socket.recv_fds(line, 16, 1)[1][0]
            ends.append(stack.enter_context(socket.socket(fileno=fd)))
        into, out = ends
        frame = b""
        if name == "tcp":
            out.connect((b.address, into.getsockname()[1]))
            into = stack.enter_context(into.accept()[0])
        elif name == "udp":
            out.connect(into.getsockname())
            into.connect(out.getsockname())
        else:
            frame = bytes.fromhex(b.mac.replace(":", "") + a.mac.replace(":", "")) + _ETHERTYPE.to_bytes(2, "big")
        yield out, into, frame


def _open_end(name: str, path: str, device: str, address: str, peer: str) -> None:
    """Create a socket on this host and pass it through the socket at *path*. Runs on a host of the testbed."""
    kinds = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
    if name in kinds:
        end = socket.socket(socket.AF_INET, kinds[name])
        end.bind((address, 0))
        if name == "tcp":
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address > peer:
                end.listen(1)
    else:
        end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETHERTYPE))
        end.bind((device, _ETHERTYPE))
        end.setsockopt(_SOL_PACKET, _PACKET_QDISC_BYPASS, 1)
    with end, socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        socket.send_fds(line, [b"end"], [end.fileno()])


def save(found: Breakdown) -> bytes:
    """Return the result as JSON."""
    return json.dumps(found.to_dict(), indent=1).encode() + b"\n"
