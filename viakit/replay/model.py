"""Costs of messages of a library on a machine.

A :class:`Library` is a message library's choices, from the policy of that name in csrc/msg/policy.c where there is
one: limit of eager messages, rendezvous, copies, conversion, route, socket buffers. :func:`model` makes the engine's
paths of it and of a machine. :meth:`Library.message_s` is the time of one message on an idle machine, as a ping-pong
shows it.

The libraries' work:

- A copy or a conversion passes over the whole message with the CPU, before it is sent or after it has come. It overlaps
  with nothing. With the copied segments of ``r3``, only one segment's copy on each side does not overlap.
- A rendezvous costs a request and a reply, which is twice the latency of a short message (Turner and Chen, 3.1). The
  request may carry the first bytes of the message, as LAM's does (Ong and Farrell, 4.2).
- A daemon on each host adds two crossings within the hosts, each with two copies, for each packet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from viakit import _core
from viakit.machines import Machine
from viakit.machines.cost import Path, acknowledgement_ns, path_of

__all__ = ["Library", "Model", "library", "model"]

NO_LIMIT = float(1 << 40)
HEAD_BYTES = 8  # of csrc/msg/engine.h
DAEMON_WINDOW = 65536  # csrc/msg/policy.h


@dataclass(frozen=True)
class Library:
    """Choices of a message library.

    Attributes
    ----------
    name, channel : str
        Name, and "tcp", "via" or "bip".
    eager_limit : float
        Bytes of the longest message that is sent at once.
    rendezvous : str
        How longer ones go: "rput" (RDMA write into the receiver's buffer) or "r3" (copied segments).
    request_data : float
        Bytes of a longer one that its request carries.
    copies : float
        Passes of the CPUs over each message beside those of the protocol: copies and conversions, of both sides.
    eager_copies : float
        The same for messages up to the limit only.
    sockbuf : float or None
        Socket buffers; None: the system's own.
    overhead_us : float or None
        CPU time of the library on each side for a message; None: the machine's ``message.overhead_us``.
    latency_us : float
        Delay of each message that occupies nothing, such as a switch of threads.
    daemon : bool
        All messages go through a daemon on each host.
    packet, packets : float
        Bytes in one packet of the daemons, and packets under way that are not acknowledged; 0: no limit.
    """

    name: str
    channel: str
    eager_limit: float = NO_LIMIT
    rendezvous: str = "rput"
    request_data: float = 0.0
    copies: float = 0.0
    eager_copies: float = 0.0
    sockbuf: float | None = None
    overhead_us: float | None = 0.0
    latency_us: float = 0.0
    daemon: bool = False
    packet: float = 0.0
    packets: float = 0.0

    def with_(self, **changes: Any) -> Library:
        """Return the library with other choices."""
        return replace(self, **changes)

    def raw(self, machine: Machine, kind: str | None = None) -> Path:
        """Return the path of the protocol below, with the library's overhead on both CPUs."""
        extra = machine["message.overhead_us"] if self.overhead_us is None else self.overhead_us
        path = path_of(machine, kind or self.channel, self.sockbuf).with_cpu(extra, extra)
        return replace(path, delay_ns=path.delay_ns + 1e3 * self.latency_us)

    def message_s(self, machine: Machine, nbytes: float) -> float:
        """Return the seconds of one message on the idle machine, from the call of send to the end of receive."""
        copy = 1e-6 / machine["host.copy_mb_s"]
        short = nbytes <= self.eager_limit
        path = self.raw(machine)
        if self.daemon:
            return self._by_daemon(machine, path, nbytes)
        first = min(self.request_data, nbytes)  # bytes that the request of a long message carries
        passes = self.copies * nbytes + (self.eager_copies * nbytes if short else 0.0)
        if not short and self.rendezvous == "r3":
            passes += self.eager_copies * min(nbytes, self.eager_limit)
        if short:
            return path.time_s(nbytes) + passes * copy
        return path.time_s(first) + path.time_s(0) + path.time_s(nbytes - first) + passes * copy

    def _by_daemon(self, machine: Machine, path: Path, nbytes: float) -> float:
        """Return the seconds of a message through the daemons of both hosts.

        A packet is copied to the daemon and from it, through the kernel: two copies on each host, and a switch of
        processes. Daemons send datagrams, of which `packets` may be under way without an acknowledgement.
        """
        copy, switch = 1e-6 / machine["host.copy_mb_s"], machine["host.wakeup_us"] * 1e-6
        path = replace(path, window=0.0)  # that of the packets counts

        def hop_s(n: float) -> float:
            """Return the seconds between a process and the daemon of its host."""
            return 2 * copy * n + switch

        def work_s(n: float) -> float:
            """Return the seconds of one host's CPU for a packet. It does all of its work, so its times add up."""
            frames = max(1.0, -(-n // path.payload))
            ns = (path.message_ns[i] + frames * path.frame_ns[i] + n * path.byte_ns[i] for i in (0, 5))
            return max(ns) * 1e-9 + hop_s(n)

        packet = self.packet or max(nbytes, 1.0)
        before = max(0.0, -(-nbytes // packet) - 1)  # packets before the last one
        last = nbytes - before * packet
        time = path.time_s(last) + 2 * hop_s(last)
        if before:
            full = path.time_s(packet) + 2 * hop_s(packet)
            pipeline = full + (before - 1) * work_s(packet) + work_s(last)
            # A packet leaves after the acknowledgement of the packet `packets` before it.
            calls_s = (path.message_ns[0] + path.message_ns[5]) * 1e-9
            round_trip = path.time_s(packet) + hop_s(packet) + calls_s + acknowledgement_ns(machine, path) * 1e-9
            rounds = before * round_trip / self.packets if self.packets else 0.0
            # The rank gives the daemon its next packet while the daemon waits, so only the first of these hops counts.
            time = max(pipeline, rounds + time - hop_s(last) + hop_s(packet))
        if nbytes > self.eager_limit:  # a request and a reply, each a packet without data
            time += 2 * (path.time_s(0) + 2 * switch)
        return time + self.copies * nbytes * copy


@dataclass(frozen=True)
class Model:
    """Costs of all kinds of messages between ranks: ``sim_model`` of csrc/sim/replay.h."""

    eager: Path
    long: Path
    rdma: Path
    local: Path
    eager_limit: float = NO_LIMIT
    request_ns: float = 0.0
    by_memory: bool = False
    flag_ns: float = 0.0
    switch_ns: float = 0.0
    ports: float = 0.0
    half_duplex: bool = False

    def numbers(self) -> list[Any]:
        """Return all fields in the order that ``_core.sim_replay`` expects."""
        local = self.local.numbers()
        return [
            self.eager.numbers(), self.long.numbers(), self.rdma.numbers(), local, local,
            self.eager_limit, self.request_ns, float(self.by_memory), self.flag_ns, self.switch_ns, self.ports,
            float(self.half_duplex),
        ]  # fmt: skip


def library(policy: str, **changes: Any) -> Library:
    """Return the library of a policy of the message engine, such as "mpich-p4" or "mvich-rput,eager_limit=64K".

    Parameters
    ----------
    policy : str
        A policy, as ``viakit sweep --policy`` takes it.
    **changes
        Fields of :class:`Library` that differ.

    Raises
    ------
    ValueError
        If the text is not a policy.
    """
    fields = _core.policy_fields(policy)
    limit = fields["eager_limit"]
    made = Library(
        fields["name"],
        fields["channel"],
        eager_limit=NO_LIMIT if limit < 0 or limit > NO_LIMIT else float(limit),
        rendezvous="r3" if fields["rendezvous"] == 2 else "rput",
        request_data=float(fields["request_data"]),
        copies=float(fields["copy_send"] + fields["copy_recv"] + 2 * fields["convert"]),
        eager_copies=2.0 if fields["channel"] == "via" else 0.0,
        sockbuf={0: None, -1: float(1 << 30), -3: limit + 24.0}.get(
            fields["socket_buffer"], float(fields["socket_buffer"])
        ),
        overhead_us=None if fields["channel"] != "tcp" else 0.0,
        daemon=fields["route"] == 1,
        packet=float(fields["daemon_bytes"]) if fields["route"] == 1 else 0.0,
        packets=float(fields["daemon_packets"] or DAEMON_WINDOW // fields["daemon_bytes"])
        if fields["route"] == 1
        else 0.0,
    )
    return made.with_(**changes)


def model(machine: Machine, which: Library | None = None) -> Model:
    """Return the costs of messages of a library on a machine; without a library, of a thin layer over VIA or TCP."""
    if which is None:
        channel = "via" if machine.has("via") else "tcp"
        which = Library("thin", channel, overhead_us=None)
    copy = 1e3 / machine["host.copy_mb_s"]
    base = _with_head(which.raw(machine))
    copies = which.copies / 2
    eager = _with_copies(base, (copies + which.eager_copies / 2) * copy)
    long = _with_copies(base, (copies + (which.eager_copies / 2 if which.rendezvous == "r3" else 0)) * copy)
    rdma = path_of(machine, "write") if machine.has("via") else base
    switch = 1e3 * machine["switch.latency_us"] if machine.words["switch.topology"] != "none" else 0.0
    eager, long, rdma = (replace(one, delay_ns=one.delay_ns - switch) for one in (eager, long, rdma))
    local = Path(
        message_ns=base.message_ns,
        byte_ns=(copy, 0, 0, 0, 0, copy),
        delay_ns=1e3 * machine["host.flag_us"],
        payload=65536.0,
    )
    return Model(
        eager, long, rdma, local,
        eager_limit=which.eager_limit,
        request_ns=base.time_s(0) * 1e9,
        by_memory=not machine.has("via") or machine.words["via.local"] == "memory",
        flag_ns=1e3 * machine["host.flag_us"],
        switch_ns=switch,
        ports=machine["switch.ports"] if machine.words["switch.topology"] == "fat-tree" else 0.0,
        half_duplex=machine.words["card.duplex"] == "half",
    )  # fmt: skip


def _with_head(path: Path) -> Path:
    """Return the path of messages with the engine's head before their data, which every message carries."""
    per_byte = path.byte_ns[1] + path.byte_ns[2] + (0.0 if path.cut else path.byte_ns[3]) + path.byte_ns[4]
    return replace(path, delay_ns=path.delay_ns + HEAD_BYTES * per_byte)


def _with_copies(path: Path, byte_ns: float) -> Path:
    """Return the path with copies of both CPUs."""
    first, *middle, last = path.byte_ns
    return replace(path, byte_ns=(first + byte_ns, *middle, last + byte_ns))
