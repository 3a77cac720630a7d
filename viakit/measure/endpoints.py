"""The protocols that can be measured, with their links and requirements.

This table contains all that a command line needs, and loads no other modules. :mod:`viakit.measure.pair` creates the
processes that measure; each protocol names the class that implements it in them (:mod:`viakit.measure.sides`).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

from viakit.base.failure import MeasureError

__all__ = [
    "BUFFERS",
    "HYBRID_US",
    "IN_C",
    "LEVELS",
    "MEMORIES",
    "MODES",
    "SPECS",
    "VIA_CHOICES",
    "WAITS",
    "MeasureError",
    "Protocol",
    "UnknownProtocol",
    "default_mpi",
    "known",
    "lookup",
    "on_machine",
    "protocols",
]

MODES = ("pingpong", "stream", "bidir", "overlap", "rate")
IN_C = ("bidir", "overlap")  # modes that the loop in Python does not have
WAITS = ("poll", "block", "hybrid")
HYBRID_US = 50  # time that a hybrid wait polls before it sleeps: about what a sleep and a wake-up cost
LEVELS = ("c", "python")
MEMORIES = ("user", "viakit")
BUFFERS = ("touched", "same", "cold")
# Arguments of the loop in Python: Send of [buffer, datatype] or of the array itself; send of an array, or of a dict
# that has the bytes.
SPECS = ("list", "plain", "array", "dict")
VIA_CHOICES = {  # options of VIA's NICs, with the numbers that they have in C; the first is the default
    "reliability": {"delivery": 2, "unreliable": 1, "reception": 4},
    "form": {"auto": 0, "plain": 1, "udp": 2},
    "retransmission": {"selective": 0, "go_back_n": 1},
    "checksum": {"auto": 0, "crc": 1},
}


class UnknownProtocol(ValueError):
    """The name of a protocol is unknown; the message lists the known ones."""


@dataclass(frozen=True)
class Protocol:
    """Description of one protocol.

    Attributes
    ----------
    name : str
        Name on the command line.
    link : str
        Link: "eth" (raw frames), "verbs" (RDMA cards), "ip", "shm", "loop", "unix", "mpi" (chosen by the MPI library),
        "cache", "null".
    levels : tuple of str
        "c": the measuring loop in C; "python": the same loop in Python, through the protocol's Python interface.
    needs : frozenset of str
        "testbed": two hosts connected by a wire; "RDMA": an RDMA card on each side; "mpi": an MPI library and mpi4py;
        "oshmem": its OpenSHMEM library;
        "NPtcp": that program; "NPmpi": NetPIPE's program for an MPI library, and the library.
        "pvm", "lam": PVM 3 and LAM/MPI, with their daemons.
    description : str
        Description in one line.
    min_bytes, max_bytes : int
        Smallest and largest message.
    modes, waits : tuple of str
        Supported modes (of :data:`MODES`) and ways to wait ("poll", "block", "hybrid").
    allocates : bool
        Whether the protocol has its own allocator (``viakit_alloc``), so that it also accepts memory "viakit".
    side : str
        Class that implements the protocol in a worker, as "module:Class" in :mod:`viakit.measure`.
    look : str
        Colour and marker in pictures, as in "vermilion o" (:mod:`viakit.measure.look`). A third word, "outline", makes
        the marker an outline.
    title : str
        Subject of a sentence in a report. Default: the name.
    counts_calls : bool
        Whether its system calls are counted. The calls of a foreign library, and those below the message engine, are
        not.
    buffers : tuple of str
        Supported uses of the buffers. A sweep with another one measures the protocol with the first of these.
    takes_sockbuf : bool
        Whether the size of its socket buffers can be set.
    options : tuple of str
        Options of a pair that are for this protocol, by their names in the configuration of a sweep.
    headers : int
        Bytes of a packet on an IP network before the payload.
    policy : str
        Policy of the message engine that the name has after a colon; "": none.
    new_ranks : bool
        Whether each burst has new processes of the MPI library, which make new connections.
    """

    name: str
    link: str
    levels: tuple[str, ...]
    needs: frozenset[str]
    description: str
    min_bytes: int = 0
    max_bytes: int = 1 << 30
    modes: tuple[str, ...] = MODES
    waits: tuple[str, ...] = WAITS
    allocates: bool = False
    side: str = ""
    look: str = ""
    title: str = ""
    counts_calls: bool = True
    buffers: tuple[str, ...] = BUFFERS
    takes_sockbuf: bool = False
    options: tuple[str, ...] = ()
    headers: int = 0
    policy: str = ""
    new_ranks: bool = False

    @property
    def raw(self) -> bool:
        """Whether the protocol sends Ethernet frames itself, so that it needs an interface of each host."""
        return "testbed" in self.needs

    @property
    def apart(self) -> bool:
        """Whether the sides must be on two hosts: each has an interface for raw frames, or a daemon."""
        return self.raw or bool(self.daemon)

    @property
    def daemon(self) -> str:
        """Name of the library that has a daemon on each host: "PVM", "LAM", or ""."""
        return next((name for name in ("PVM", "LAM") if name.lower() in self.needs), "")

    @property
    def by_interface(self) -> bool:
        """Whether each side needs an interface of its own: one for raw frames, or that of an RDMA card."""
        return self.raw or "RDMA" in self.needs

    @property
    def by_mpi(self) -> bool:
        """Whether an MPI library carries the messages, and starts the ranks."""
        return "mpi" in self.needs

    @property
    def runs_mpi(self) -> bool:
        """Whether each burst is a run of a foreign program under the mpiexec of an MPI library."""
        return "NPmpi" in self.needs

    @property
    def starts_in_bursts(self) -> bool:
        """Whether each burst starts processes of an MPI library. Their start is not the time of its messages."""
        return self.runs_mpi or self.new_ranks

    @property
    def library(self) -> str:
        """Name of the MPI library for :func:`viakit.launch.mpi_library.find`: "mpi:mpich" for "put-mpi:mpich"."""
        if self.runs_mpi:
            return f"mpi:{self.name.rpartition(':')[2]}"
        return "mpi:openmpi+oshmem" if self.name == "shmem" else self.name.rpartition("-")[2].removesuffix(":fresh")

    @property
    def takes_faults(self) -> bool:
        """Whether the protocol sends through NICs of viakit, which can inject faults."""
        return "fault" in self.options

    @property
    def in_one_process(self) -> bool:
        """Whether both sides are threads of one process."""
        return self.link == "loop"

    @property
    def in_memory(self) -> bool:
        """Whether messages cross memory that two processes share, whose limit the floor is."""
        return self.link == "shm"

    @property
    def base(self) -> str:
        """The name without its policy: "msg-tcp" for "msg-tcp:mpich-p4"."""
        return self.name.partition(":")[0] if self.policy else self.name

    def buffers_at(self, level: str) -> tuple[str, ...]:
        """Return the supported uses of the buffers at a level: the loop in Python has no cold ones."""
        return tuple(one for one in self.buffers if level == "c" or one != "cold")

    @property
    def counts_frames(self) -> bool:
        """Whether its frames, acknowledgements and retransmissions are counted: those of viakit's NICs, and of udp."""
        return self.base.startswith(("via-", "bip-")) or self.base in ("udp", "put-via", "get-via")

    @property
    def spins_in_loop(self) -> bool:
        """Whether the measuring loop makes its hybrid waits. VIA's NICs, BIP and the message engine have their own."""
        return not self.base.startswith(("via-", "bip-", "msg-"))

    @property
    def between_hosts(self) -> bool:
        """Whether the protocol can run between two hosts on request: wired ones, and the messages of an MPI."""
        return self.wired or self.runs_mpi or self.name.partition(":")[0] == "mpi"

    @property
    def wired(self) -> bool:
        """Whether the protocol can run between two hosts."""
        return self.link in ("eth", "verbs", "ip", "via")


def _row(name: str, link: str, side: str, look: str, description: str, title: str = "", **more: Any) -> Protocol:
    """Return a protocol of the table: by default it has only the loop in C, and needs nothing."""
    levels, needs = more.pop("levels", LEVELS[:1]), frozenset(more.pop("needs", ()))
    return Protocol(name, link, levels, needs, description, side=side, look=look, title=title, **more)


_BOTH: dict[str, Any] = {"levels": LEVELS}
_ALLOCATES: dict[str, Any] = {"allocates": True}
_NIC: dict[str, Any] = {"options": (*VIA_CHOICES, "interface", "fault")}
_VIA: dict[str, Any] = {"max_bytes": 64 << 20, "allocates": True, **_NIC}
_WIRE: dict[str, Any] = {"needs": ("testbed",)}
_UNCOUNTED: dict[str, Any] = {"counts_calls": False}
_MPI: dict[str, Any] = {"levels": LEVELS, "needs": ("mpi",), "waits": ("poll",), "options": ("spec",), **_UNCOUNTED}
_ENGINE: dict[str, Any] = {"options": ("policy", "network", "spec"), "levels": LEVELS, **_UNCOUNTED}
_ENGINE_ON_NICS: dict[str, Any] = {**_ENGINE, "options": (*_ENGINE["options"], "fault")}
_ONE_SIDED: dict[str, Any] = {"levels": LEVELS[1:], "waits": ("poll",), "buffers": BUFFERS[:2], **_UNCOUNTED}
_PUT: dict[str, Any] = {**_ONE_SIDED, "modes": MODES[:2]}
_GET: dict[str, Any] = {**_ONE_SIDED, "modes": MODES[:1]}
_IN_WINDOW: dict[str, Any] = {"options": ("policy", "network")}
_SIZED: dict[str, Any] = {"takes_sockbuf": True}
_TWO_WAITS: dict[str, Any] = {"waits": WAITS[:2]}
_STREAM: dict[str, Any] = {"levels": LEVELS, "min_bytes": 1}
_TCP: dict[str, Any] = {"headers": 52}  # IP, and TCP with timestamps
_LINE: dict[str, Any] = {"min_bytes": 8, "max_bytes": 8, "modes": ("pingpong",), "waits": ("poll",)}

# The one place that names a protocol: command line, workers, reports, pictures and tests read it.
_TABLE = {
    protocol.name: protocol
    for protocol in (
        _row("via-eth", "eth", "sides_via:ViaSide", "vermilion o", "VIA over raw Ethernet frames",
             "VIA on raw Ethernet frames", **_VIA, **_WIRE, **_BOTH),
        _row("via-udp", "ip", "sides_via:ViaSide", "vermilion >", "VIA over UDP sockets: no privilege, any network",
             "VIA on UDP sockets", **_VIA, **_BOTH),
        _row("via-verbs", "verbs", "sides_via:ViaSide", "vermilion s", "VIA over datagrams of an RDMA card (RoCE v2)",
             "VIA on an RDMA card", needs=("RDMA",), **_VIA, **_BOTH),
        _row("via-verbs-write", "verbs", "sides_via:ViaSide", "vermilion D",
             "VIA's RDMA writes with immediate data, by an RDMA card", "VIA's writes on an RDMA card", needs=("RDMA",),
             **_VIA, **_BOTH),
        _row("via-shm", "shm", "sides_via:ViaSide", "vermilion ^", "VIA between two processes of one host",
             "VIA on shared memory", **_VIA, **_BOTH),
        _row("via-loop", "loop", "sides_via:ViaSide", "vermilion v", "VIA between two threads of one process",
             "VIA inside one process", **_VIA),
        _row("bip-eth", "eth", "sides_via:BipSide", "orange o", "BIP over raw Ethernet frames",
             "BIP on raw Ethernet frames", **_WIRE, **_NIC),
        _row("bip-udp", "ip", "sides_via:BipSide", "orange >", "BIP over UDP sockets", "BIP on UDP sockets", **_NIC),
        _row("bip-shm", "shm", "sides_via:BipSide", "orange ^", "BIP between two processes of one host",
             "BIP on shared memory", **_NIC),
        _row("msg-via", "via", "sides_msg:MsgSide", "vermilion P",
             "the message engine over VIA: shm on one host, eth or udp between two",
             "messages over VIA", **_ALLOCATES, **_ENGINE_ON_NICS),
        _row("msg-bip", "via", "sides_msg:MsgSide", "orange P", "the message engine over BIP, which is over VIA",
             "messages over BIP", **_ENGINE_ON_NICS),
        _row("msg-tcp", "ip", "sides_msg:MsgSide", "blue P", "the message engine over TCP sockets",
             "messages over TCP", **_ENGINE, **_SIZED, **_TCP),
        _row("tcp", "ip", "sides:SocketSide", "blue D", "TCP sockets with TCP_NODELAY", "TCP",
             **_STREAM, **_SIZED, **_TCP),
        _row("tcp:default", "ip", "sides:SocketSide", "blue v", "the same, always with the kernel's own socket buffers",
             "TCP as it comes", **_STREAM, **_TCP),
        _row("tcp:fresh", "ip", "sides:FreshSocketSide", "blue *",
             "the same with a new connection for each burst, as netpipe:tcp makes it",
             "TCP on new connections", min_bytes=1, **_SIZED, **_TCP),
        _row("verbs", "verbs", "sides:VerbsSide", "sky D",
             "an RDMA card by libibverbs alone: sends, reliable connected", "an RDMA card, sends", needs=("RDMA",)),
        _row("verbs-write", "verbs", "sides:VerbsSide", "sky *",
             "the same by RDMA writes with immediate data", "an RDMA card, writes", needs=("RDMA",)),
        _row("udp", "ip", "sides:UdpSide", "sky s", "UDP sockets; lost datagrams are retransmitted and counted",
             "UDP", headers=28, **_SIZED),
        _row("unix", "unix", "sides:SocketSide", "ink <", "Unix stream sockets",
             "a Unix-domain socket", **_STREAM, **_SIZED),
        _row("zmq", "ip", "sides:ZmqSide", "green *", "ZeroMQ PAIR sockets over TCP: pyzmq's libzmq",
             "ZeroMQ", **_BOTH, **_UNCOUNTED, **_SIZED, **_TCP),
        _row("mpi", "mpi", "sides_msg:MpiSide", "purple h", "the MPI that mpi4py finds", "MPI", **_MPI),
        _row("mpi:mpich", "mpi", "sides_msg:MpiSide", "purple <", "MPICH", "MPICH", **_MPI),
        _row("mpi:openmpi", "mpi", "sides_msg:MpiSide", "purple >", "Open MPI", "Open MPI", **_MPI),
        *(_row(f"mpi:{name}:fresh", "mpi", "sides_msg:MpiSide", f"purple {marker} outline",
               f"{title} with new processes for each burst, as netpipe:{name} starts them",
               f"{title} in new processes", new_ranks=True, **_MPI)
          for name, title, marker in (("mpich", "MPICH", "<"), ("openmpi", "Open MPI", ">"))),
        _row("put-via", "via", "sides_win:PutSide", "green o",
             "Put into a window over VIA, then a Put of a counter",
             "Put over VIA", **_PUT, **_IN_WINDOW),
        _row("get-via", "via", "sides_win:GetSide", "sky p",
             "Put of a counter over VIA, then Get from the peer's window",
             "Get over VIA", **_GET, **_IN_WINDOW),
        *(_row(f"{call}-mpi:{name}", "mpi", f"sides_win:Mpi{call.capitalize()}Side", f"purple {marker}",
               f"the same by {title}", f"{call.capitalize()} by {title}", needs=("mpi",), **more)
          for call, more, markers in (("put", _PUT, "DP"), ("get", _GET, "v^"))
          for (name, title), marker in zip((("mpich", "MPICH"), ("openmpi", "Open MPI")), markers, strict=True)),
        _row("shmem", "mpi", "sides_win:ShmemSide", "green D",
             "Open MPI's OpenSHMEM: a put into symmetric memory, then a put of a counter", "OpenSHMEM",
             needs=("mpi", "oshmem"), max_bytes=16 << 20, **_PUT),
        _row("netpipe:tcp", "ip", "sides_netpipe:NetpipeSide", "blue X", "NetPIPE's own program over TCP: NPtcp",
             "NetPIPE over TCP", waits=("block",), modes=("pingpong",), buffers=("same", "cold"),
             min_bytes=1, needs=("NPtcp",), **_UNCOUNTED, **_SIZED),
        *(_row(f"netpipe:{name}", "mpi", "sides_netpipe_mpi:NetpipeMpiSide", f"purple {marker}",
               f"NetPIPE's own program over {title}: {program}", f"NetPIPE over {title}", waits=("poll",),
               modes=("pingpong",), buffers=("same", "cold"), min_bytes=1, needs=("NPmpi",), **_UNCOUNTED)
          for name, title, program, marker in (("openmpi", "Open MPI", "NPopenmpi", "X"),
                                               ("mpich", "MPICH", "NPmpich2", "*"))),
        *(_row(f"pvm3{way}", "ip", "sides_pvm:PvmSide", f"green {marker}", f"PVM 3 itself, from C: {how}",
               f"PVM{title}", needs=("pvm",), modes=("pingpong",), **_TWO_WAITS, **_UNCOUNTED)
          for way, marker, how, title in (
              ("", "s", "through its daemons", " through its daemons"),
              (":direct", "<", "by TCP between the tasks (PvmRouteDirect)", " on its direct route"),
              (":inplace", ">", "the same, from the user's memory (PvmDataInPlace)", ", direct and in place"))),
        _row("lam", "ip", "sides_lam:LamSide", "purple s",
             "LAM/MPI itself, from C: client to client, by TCP", "LAM", needs=("lam",),
             **_TWO_WAITS, **_UNCOUNTED, **_TCP),
        _row("lam:lamd", "ip", "sides_lam:LamSide", "purple o", "LAM/MPI through its daemons (rpi lamd)",
             "LAM through its daemons", needs=("lam",), modes=("pingpong",), **_TWO_WAITS, **_UNCOUNTED),
        _row("frames", "eth", "sides:FramesSide", "ink >",
             "bare Ethernet frames, no protocol: the least that raw sockets can cost on a wire",
             min_bytes=1, max_bytes=8 << 20, **_WIRE, **_TWO_WAITS),
        _row("floor", "cache", "sides:FloorSide", "ink v",
             "a cache line from core to core: the least that shared memory can cost",
             **_LINE),
        _row("null", "null", "sides:Side", "ink X", "nothing at all: the measuring loop's own cost", waits=("poll",)),
    )
}  # fmt: skip

# On a described machine (--machine): VIA, BIP and TCP have one link there, so the names that users give stand for it.
_MACHINE_TABLE = {
    protocol.name: protocol
    for protocol in (
        _row("via-sim", "sim", "sides_via:ViaSide", "vermilion X", "VIA on a described machine",
             "VIA on the machine", max_bytes=64 << 20, **_NIC),
        _row("bip-sim", "sim", "sides_via:BipSide", "orange X", "BIP on a described machine",
             "BIP on the machine", **_NIC),
        _row("tcp-sim", "sim", "sides:MachineSocketSide", "blue X", "TCP sockets of a described machine",
             "TCP on the machine", min_bytes=1, **_SIZED),
    )
}  # fmt: skip
_ON_MACHINE = {
    "via": "via-sim", "bip": "bip-sim", "tcp": "tcp-sim", "msg-via": "msg-via", "msg-bip": "msg-bip",
    "msg-tcp": "msg-tcp",
}  # fmt: skip


def on_machine(name: str) -> str:
    """Return the protocol that *name* stands for on a described machine: "via" and "via-eth" are "via-sim" there.

    Raises
    ------
    UnknownProtocol
        If the link of machines cannot carry the protocol; a ValueError.
    """
    base, colon, policy = name.partition(":")
    found = _ON_MACHINE.get(base) or _ON_MACHINE.get(base.partition("-")[0])
    if found is None or (base not in _TABLE and base not in _ON_MACHINE) or (policy and not _takes_policy(base)):
        raise UnknownProtocol(f"{name} cannot run on a described machine; expected {', '.join(_ON_MACHINE)}")
    return found + colon + policy


def _takes_policy(base: str) -> bool:
    return base in _TABLE and "policy" in _TABLE[base].options


def protocols() -> dict[str, Protocol]:
    """Return every known protocol by name, whether or not this machine can run it."""
    return dict(_TABLE)


def lookup(name: str) -> Protocol:
    """Return the protocol called *name*; ``FILE.py:CLASS`` is a user-defined one (:mod:`viakit.measure.own`).

    ``msg-tcp:mpich-p4`` is the message engine with that policy, also with changes: ``msg-tcp:tcp,eager_limit=64K``.

    Raises
    ------
    UnknownProtocol
        If no such protocol exists. The error is a ValueError, lists the known protocols, or the policies of the
        channel, and suggests the most similar.
    """
    if name in _TABLE:
        return _TABLE[name]
    if name in _MACHINE_TABLE:
        return _MACHINE_TABLE[name]
    if ".py:" in str(name):
        from viakit.measure import own  # it imports this module

        return own.protocol(name)
    if (found := _with_policy(str(name))) is not None:
        return found
    near = difflib.get_close_matches(str(name).lower(), _TABLE, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise UnknownProtocol(f"unknown protocol {name!r}{hint} There are: {', '.join(_TABLE)}")


def known(name: str) -> Protocol | None:
    """Return the protocol called *name*, or None. Unlike :func:`lookup` it loads no file: *name* may be of a result."""
    try:
        return _TABLE.get(name) or _MACHINE_TABLE.get(name) or _with_policy(name)
    except UnknownProtocol:
        return None


def _with_policy(name: str) -> Protocol | None:
    """Return the protocol of the message engine that *name* gives, with its policy; None for a name without policy."""
    base, colon, _ = name.partition(":")
    if not colon or not _takes_policy(base):
        return None
    from viakit.launch.policy import split  # start-up time

    try:
        _, policy = split(name)
    except ValueError as error:
        raise UnknownProtocol(str(error)) from None
    assert policy is not None
    title = f"{_TABLE[base].title} as {policy}"
    return replace(_TABLE[base], name=name, policy=policy, title=title)


def default_mpi() -> str | None:
    """Return the MPI that the protocol ``mpi`` selects on this machine: "mpich", "openmpi", or None."""
    from viakit.launch import mpi_library as mpi  # start-up time

    try:
        return mpi.find("mpi").flavour
    except MeasureError:
        return None
