"""Costs of a message on a machine: the stages of :mod:`csrc/sim`, from the numbers of its file.

:func:`path_of` returns the path of one kind of message, :func:`message_s` its time on an idle machine, and
:func:`stages` where that time goes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from viakit import _core
from viakit.machines import Machine, MachineError

__all__ = ["KINDS", "Path", "message_s", "path_of", "segments", "stages", "window_of"]

KINDS = ("tcp", "via", "write", "bip")
STAGES = ("send_cpu", "send_bus", "up", "down", "recv_bus", "recv_cpu")
HEADERS = 40  # of TCP and IP, in each segment


@dataclass(frozen=True)
class Path:
    """Costs of a message by stage, in nanoseconds: ``sim_path`` of csrc/sim/replay.h."""

    message_ns: tuple[float, ...] = (0.0,) * 6
    frame_ns: tuple[float, ...] = (0.0,) * 6
    byte_ns: tuple[float, ...] = (0.0,) * 6
    delay_ns: float = 0.0
    payload: float = 1500.0
    cut: float = 0.0
    window: float = 0.0
    ack_every: float = 1.0
    ack_ns: float = 0.0
    match_ns: float = 0.0

    def numbers(self) -> tuple[float, ...]:
        """Return all fields in the order of C."""
        return (
            *self.message_ns, *self.frame_ns, *self.byte_ns,
            self.delay_ns, self.payload, self.cut, self.window, self.ack_every, self.ack_ns, self.match_ns,
        )  # fmt: skip

    def time_s(self, nbytes: float) -> float:
        """Return the seconds from the call of send to the end of the receive, on an idle machine."""
        return float(_core.sim_message_ns(self.numbers(), nbytes)) * 1e-9

    def with_cpu(self, send_us: float = 0.0, receive_us: float = 0.0) -> Path:
        """Return the path with more time of the CPUs for each message; the receiver spends its part in the receive."""
        first, *middle, last = self.message_ns
        spent = (first + send_us * 1e3, *middle, last + receive_us * 1e3)
        return replace(self, message_ns=spent, match_ns=self.match_ns + receive_us * 1e3)


def segments(machine: Machine, sockbuf: float) -> int:
    """Return how many TCP segments a socket buffer holds.

    Linux charges a segment with the memory that holds it, a power of two; the key ``tcp.account`` can say otherwise.
    """
    mtu = machine["wire.mtu"]
    if machine.words["tcp.account"] == "bytes":
        return max(1, int(sockbuf // (mtu - HEADERS)))
    slab = machine["tcp.slab"] or 2.0 ** math.ceil(math.log2(mtu + 100))
    return max(1, int(sockbuf // max(slab, 2.0 ** math.ceil(math.log2(mtu + 100)))))


def window_of(machine: Machine, sockbuf: float | None) -> int:
    """Return the segments under way with a socket buffer; None is the system's own."""
    given = (
        machine["tcp.sockbuf"] if sockbuf is None else min(sockbuf * machine["tcp.grant"], machine["tcp.sockbuf_max"])
    )
    return segments(machine, given)


def path_of(machine: Machine, kind: str, sockbuf: float | None = None) -> Path:
    """Return the path of a kind of message: "tcp", "via" (send and receive), "write" (RDMA write) or "bip".

    Parameters
    ----------
    machine : Machine
        The machine.
    kind : str
        One of :data:`KINDS`.
    sockbuf : float, optional
        Size of the socket buffers in bytes, for "tcp".

    Raises
    ------
    MachineError
        If the machine has no such protocol.
    """
    if kind not in KINDS:
        raise MachineError(f"no messages are called {kind!r}; expected {', '.join(KINDS)}")
    section = "via" if kind == "write" else kind
    if not machine.has(section):
        raise MachineError(f"machine {machine.name} has no section [{section}], so it has no {kind}")
    m = machine.numbers
    wire, bus = 8e3 / m["wire.rate_mbit_s"], 1e3 / m["card.bus_mb_s"]
    frame_bytes = m["wire.frame_bytes"] + (HEADERS if kind == "tcp" else 0)
    card = 1e3 * m["card.frame_us"]
    star = machine.words["switch.topology"] != "none"
    if kind == "tcp":
        cpu, byte, payload = 1e3 * m["tcp.segment_us"], m["tcp.byte_ns"], m["wire.mtu"] - HEADERS
        send, receive, delay = m["tcp.send_us"], m["tcp.receive_us"], m["tcp.coalesce_us"]
        byte_in = byte
    elif kind == "bip":
        cpu, byte, byte_in, payload, delay = 0.0, 0.0, 0.0, m["wire.mtu"], 0.0
        send, receive = m["bip.send_us"], m["bip.receive_us"]
        card += 1e3 * m["bip.packet_us"]
    else:
        cpu, byte, payload, delay = 1e3 * m["via.frame_us"], 0.0, m["wire.mtu"], 0.0
        byte_in = m["via.copies"] * 1e3 / m["host.copy_mb_s"]
        send, receive = m["via.send_us"], m["via.receive_us"]
        if kind == "write":
            send, receive = m["via.write_us"], m["via.notice_us"]
    path = Path(
        message_ns=(1e3 * send, 0, 0, 0, 0, 1e3 * receive),
        frame_ns=(cpu, card, frame_bytes * wire, frame_bytes * wire if star else 0, card, cpu),
        byte_ns=(byte, bus, wire, wire if star else 0, bus, byte_in),
        delay_ns=1e3 * (m["wire.delay_us"] + delay + 2 * m["card.start_us"] + (m["switch.latency_us"] if star else 0)),
        payload=payload,
        cut=float(star and machine.words["switch.forwarding"] == "cut"),
    )
    if kind != "tcp":
        return path
    ack_ns = acknowledgement_ns(machine, path)
    window = window_of(machine, sockbuf)
    if window < m["tcp.ack_every"]:  # the sender waits for the receiver's timer each time
        ack_ns += 1e3 * m["tcp.delayed_ack_us"]
    if sockbuf is not None:  # a segment is not longer than the buffer
        path = replace(path, payload=min(path.payload, sockbuf))
    return replace(path, window=float(window), ack_every=m["tcp.ack_every"], ack_ns=ack_ns)


def acknowledgement_ns(machine: Machine, path: Path) -> float:
    """Return the nanoseconds of an acknowledgement, which passes all stages of a path but the system calls."""
    cpu = 1e3 * machine["tcp.ack_us"]
    ack = replace(path, message_ns=(0.0,) * 6, frame_ns=(cpu, *path.frame_ns[1:5], cpu), window=0.0)
    return ack.time_s(0) * 1e9


def message_s(machine: Machine, kind: str, nbytes: float, sockbuf: float | None = None) -> float:
    """Return the seconds of one message on the idle machine."""
    return path_of(machine, kind, sockbuf).time_s(nbytes)


def stages(path: Path, nbytes: float) -> list[tuple[str, float]]:
    """Return where the time of one frame of *nbytes* goes: names of the stages, and microseconds."""
    nbytes = min(nbytes, path.payload)
    names = ("sender's CPU", "sender's bus", "wire", "wire behind the switch", "receiver's bus", "receiver's CPU")
    found = []
    for i, name in enumerate(names):
        if i == 3:
            found.append(("cards, switch, propagation", path.delay_ns / 1e3))
        first = path.message_ns[i] + path.frame_ns[i] + nbytes * path.byte_ns[i]
        found.append((name, 0.0 if i == 3 and path.cut else first / 1e3))
    return found
