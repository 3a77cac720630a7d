"""What can be measured: every protocol, where it runs and what it needs.

The table here is all that a command line needs, and it loads nothing. The processes that measure are made by
:mod:`viakit.measure.pair`; what a protocol does in them is in :mod:`viakit.measure.sides`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

__all__ = [
    "LEVELS",
    "MODES",
    "WAITS",
    "MeasureError",
    "Protocol",
    "UnknownProtocol",
    "default_mpi",
    "lookup",
    "protocols",
]

MODES = ("pingpong", "stream", "bidir")
WAITS = ("poll", "block")
LEVELS = ("c", "python")

_GIB = 1 << 30
_BOTH = ("c", "python")


class MeasureError(RuntimeError):
    """A measurement could not be started or was broken off; the message ends with what to do about it.

    Attributes
    ----------
    reason : str
        ``"gone"``: a process or connection went away; ``"timeout"``; ``"mismatch"``: data arrived wrong; ``"missing"``:
        a library or program is not installed; ``"refused"``: no permission; ``"version"``: the two sides speak
        different versions; ``"usage"``; ``"error"``: anything else.
    """

    def __init__(self, message: str, reason: str = "error") -> None:
        super().__init__(message)
        self.reason = reason


class UnknownProtocol(ValueError):
    """A protocol's name that is not known; the message lists those that are."""


@dataclass(frozen=True)
class Protocol:
    """One protocol.

    Attributes
    ----------
    name : str
        As on the command line.
    link : str
        What carries it: "eth" (raw frames), "ip", "shm", "loop", "unix", "mpi" (whatever that MPI chose), "cache",
        "null".
    levels : tuple of str
        "c": the loop in C; "python": the same loop in Python, through the protocol's Python interface.
    needs : frozenset of str
        "testbed": two hosts joined by a wire; "mpi": an MPI library and mpi4py.
    description : str
        One line.
    min_bytes, max_bytes : int
        Smallest and largest message.
    modes, waits : tuple of str
        What it can be asked for: "pingpong", "stream", "bidir"; "poll", "block".
    """

    name: str
    link: str
    levels: tuple[str, ...]
    needs: frozenset[str]
    description: str
    min_bytes: int = 0
    max_bytes: int = _GIB
    modes: tuple[str, ...] = MODES
    waits: tuple[str, ...] = WAITS


_MPI = frozenset({"mpi"})
_NOTHING: frozenset[str] = frozenset()
_VIA_MAX = 64 << 20

_TABLE = {
    protocol.name: protocol
    for protocol in (
        Protocol("via-eth", "eth", _BOTH, frozenset({"testbed"}), "VIA over raw Ethernet frames", max_bytes=_VIA_MAX),
        Protocol(
            "via-udp", "ip", _BOTH, _NOTHING, "VIA over UDP sockets: no privilege, any network", max_bytes=_VIA_MAX
        ),
        Protocol("via-shm", "shm", _BOTH, _NOTHING, "VIA between two processes of one host", max_bytes=_VIA_MAX),
        Protocol("via-loop", "loop", ("c",), _NOTHING, "VIA between two threads of one process", max_bytes=_VIA_MAX),
        Protocol("bip-eth", "eth", ("c",), frozenset({"testbed"}), "BIP over raw Ethernet frames"),
        Protocol("bip-udp", "ip", ("c",), _NOTHING, "BIP over UDP sockets"),
        Protocol("bip-shm", "shm", ("c",), _NOTHING, "BIP between two processes of one host"),
        Protocol(
            "msg-via", "via", ("c",), _NOTHING, "the message engine over VIA: shm on one host, eth or udp between two"
        ),
        Protocol("msg-bip", "via", ("c",), _NOTHING, "the message engine over BIP, which is over VIA"),
        Protocol("msg-tcp", "ip", ("c",), _NOTHING, "the message engine over TCP sockets"),
        Protocol("tcp", "ip", _BOTH, _NOTHING, "TCP sockets with TCP_NODELAY", min_bytes=1),
        Protocol("udp", "ip", ("c",), _NOTHING, "UDP sockets; what is lost is sent again, and counted"),
        Protocol("unix", "unix", _BOTH, _NOTHING, "Unix stream sockets", min_bytes=1),
        Protocol("zmq", "ip", _BOTH, _NOTHING, "ZeroMQ PAIR sockets over TCP: pyzmq's libzmq"),
        Protocol("mpi", "mpi", _BOTH, _MPI, "the MPI that mpi4py finds", waits=("poll",)),
        Protocol("mpi:mpich", "mpi", _BOTH, _MPI, "MPICH", waits=("poll",)),
        Protocol("mpi:openmpi", "mpi", _BOTH, _MPI, "Open MPI", waits=("poll",)),
        Protocol(
            "frames",
            "eth",
            ("c",),
            frozenset({"testbed"}),
            "bare Ethernet frames, no protocol: the least that raw sockets can cost on a wire",
            min_bytes=1,
            max_bytes=8 << 20,
        ),
        Protocol(
            "floor",
            "cache",
            ("c",),
            _NOTHING,
            "a cache line from core to core: the least that shared memory can cost",
            min_bytes=8,
            max_bytes=8,
            modes=("pingpong",),
            waits=("poll",),
        ),
        Protocol("null", "null", ("c",), _NOTHING, "nothing at all: the measuring loop's own cost", waits=("poll",)),
    )
}


def protocols() -> dict[str, Protocol]:
    """Return every protocol that is known, by name, whether or not this machine can run it."""
    return dict(_TABLE)


def lookup(name: str) -> Protocol:
    """Return the protocol called *name*; ``FILE.py:CLASS`` is one of the user's own (:mod:`viakit.measure.own`).

    Raises
    ------
    UnknownProtocol
        If there is none; it is a ValueError, lists what there is and suggests the nearest.
    """
    if name in _TABLE:
        return _TABLE[name]
    if ".py:" in str(name):
        from viakit.measure import own

        return own.protocol(name)
    near = difflib.get_close_matches(str(name).lower(), _TABLE, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise UnknownProtocol(f"unknown protocol {name!r}{hint} There are: {', '.join(_TABLE)}")


def default_mpi() -> str | None:
    """Return which MPI the protocol ``mpi`` stands for here: "mpich", "openmpi", or None if there is none."""
    from viakit.measure import mpi

    try:
        return mpi.find("mpi").flavour
    except MeasureError:
        return None
