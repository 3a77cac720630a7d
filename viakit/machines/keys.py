"""The keys of machine files: units, defaults and meanings."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KEYS", "WORDS", "Key", "Word"]


class Key(NamedTuple):
    """Number of a machine file.

    Attributes
    ----------
    unit, text : str
        Unit, and meaning.
    default : float, str or None
        Value of a missing key, or the name of another key whose value it takes. None: the key is required.
    times : float
        Factor of the default.
    least : float
        Smallest value that is accepted.
    """

    unit: str
    text: str
    default: float | str | None = None
    times: float = 1.0
    least: float = 0.0


class Word(NamedTuple):
    """Word of a machine file: its choices, the default first, and its meaning."""

    choices: tuple[str, ...]
    text: str


WORDS = {
    "switch.topology": Word(("none", "star", "fat-tree"), "how hosts are connected; none: back to back"),
    "switch.forwarding": Word(("cut", "store"), "whether a frame leaves a switch before it has arrived whole"),
    "card.duplex": Word(("full", "half"), "whether both directions of a host share the bus"),
    "via.kind": Word(("hardware", "software"), "where VIA is: in the card, or in the kernel"),
    "via.local": Word(("memory", "card"), "how messages between ranks of one host go"),
    "tcp.account": Word(("slabs", "bytes"), "how a socket buffer is counted: by the power of two that holds a segment"),
}

# A default that names another key must stand after it.
KEYS = {
    "machine.hosts": Key("count", "hosts", 2.0, least=1),
    "machine.cpus": Key("count", "CPUs of a host", 1.0, least=1),
    "host.cpu_mhz": Key("MHz", "clock of a CPU", 0.0),
    "host.bus_mb_s": Key("MB/s", "peak of the memory bus", 0.0),
    "host.copy_mb_s": Key("MB/s", "a copy of data out of cache by the CPU", least=1e-3),
    "host.copy_us": Key("µs", "start of a copy", 0.0),
    "host.flag_us": Key("µs", "a flag in shared memory, until another process of the host has seen it", 0.3),
    "host.wakeup_us": Key("µs", "an interrupt, until a blocked process runs again", 20.0),
    "host.convert_mb_s": Key("MB/s", "conversion of data to another byte order", "host.copy_mb_s", least=1e-3),
    "wire.rate_mbit_s": Key("Mbit/s", "rate of the wire", least=1e-3),
    "wire.mtu": Key("bytes", "payload of the largest frame", 1500.0, least=1),
    "wire.frame_bytes": Key("bytes", "bytes on the wire for each frame beside its payload", 38.0),
    "wire.delay_us": Key("µs", "fixed delay, in which nothing is occupied", 0.0),
    "switch.ports": Key("count", "ports of a switch; 0: enough", 0.0),
    "switch.latency_us": Key("µs", "each switch on the path", 0.0),
    "card.start_us": Key("µs", "each card, once for a message; occupies nothing", 0.0),
    "card.frame_us": Key("µs", "each card, for a frame", 0.0),
    "card.bus_mb_s": Key("MB/s", "transfer between memory and card", least=1e-3),
    "via.send_us": Key("µs", "sender's CPU for a message: descriptor and doorbell, or trap"),
    "via.receive_us": Key("µs", "receiver's CPU for a message: completion, and posting the descriptor again"),
    "via.write_us": Key("µs", "sender's CPU for an RDMA write", "via.send_us"),
    "via.notice_us": Key("µs", "receiver's CPU, until polling has found the data of an RDMA write", 0.2),
    "via.post_us": Key("µs", "posting a receive, outside the path of a message", 0.3),
    "via.frame_us": Key("µs", "CPU of each side for a frame, if VIA is software", 0.0),
    "via.copies": Key("count", "copies by the receiver's kernel", 0.0),
    "via.register_us": Key("µs", "registering memory, for a call", 5.0),
    "via.register_page_us": Key("µs", "registering memory, for a page of 4096 bytes", 0.5),
    "via.max_transfer": Key("bytes", "largest transfer", 65536.0, least=1),
    "via.interrupt_us": Key("µs", "what a blocking wait adds to the latency", "host.wakeup_us"),
    "tcp.send_us": Key("µs", "sender's CPU for a call of send"),
    "tcp.receive_us": Key("µs", "receiver's CPU for a message: interrupt, wake-up, call of recv"),
    "tcp.coalesce_us": Key("µs", "delay of the interrupt; occupies nothing", 0.0),
    "tcp.segment_us": Key("µs", "CPU of each side for a segment"),
    "tcp.byte_ns": Key("ns", "CPU of each side for a byte: checksum, and the socket's copy"),
    "tcp.ack_us": Key("µs", "delay of an acknowledgement in each processor; occupies neither", "tcp.segment_us"),
    "tcp.ack_every": Key("count", "segments for an acknowledgement", 2.0, least=1),
    "tcp.sockbuf": Key("bytes", "socket buffers as the system comes", 65536.0, least=1),
    "tcp.sockbuf_max": Key("bytes", "largest socket buffer that a library can set", 524288.0, least=1),
    "tcp.grant": Key("ratio", "socket buffer that the kernel grants, over the requested one", 1.0, least=0.01),
    "tcp.slab": Key(
        "bytes", "memory that the driver takes for a received segment; 0: the power of two that holds it", 0.0
    ),
    "tcp.delayed_ack_us": Key("µs", "delay of an acknowledgement for fewer segments than tcp.ack_every", 0.0),
    "message.overhead_us": Key("µs", "message layer, on each side: matching and envelopes", 0.0),
    "bip.send_us": Key("µs", "sender's CPU for a message: the request to the card"),
    "bip.receive_us": Key("µs", "receiver's CPU for a message"),
    "bip.packet_us": Key("µs", "card's processor, for a packet", 0.0),
    "bip.small_bytes": Key("bytes", "longest message that the CPU writes into the card itself", 256.0),
    "bip.small_mb_s": Key("MB/s", "that writing (programmed input and output)", "host.copy_mb_s", least=1e-3),
    "bip.rendezvous_us": Key("µs", "what a long message costs before its first packet", 0.0),
    "bip.pin_us": Key("µs", "locking and translating a page of 4096 bytes", 0.0),
    "compute.factor": Key("ratio", "computing time there over that here; 0: unknown", 0.0),
}
