"""Implementation of each protocol in a worker: a connection, and an endpoint on it for the measuring loop.

A worker has one *side*, A or B, of one protocol. The coordinator leads both through the same steps::

    offer   = side.open()             the addresses that the other side needs
    side.connect(offer_of_the_peer)   both at once
    side.endpoint                     prepared and run, again and again
    side.close()

The endpoint is a :class:`viakit._core.BenchEndpoint` (level "c") or one of :mod:`viakit.measure.pyloop` (level
"python"). Both have the same interface. The table in :mod:`viakit.measure.endpoints` names the class of each protocol:
here are those of sockets and frames, in ``sides_via`` those of VIA and BIP, in ``sides_msg`` those of ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import socket
import time
from typing import Any, ClassVar

from viakit.base.hardware import card
from viakit.base.secret import derive
from viakit.launch.handshake import Reception, introduce
from viakit.measure import endpoints
from viakit.measure.endpoints import MeasureError

__all__ = [
    "FreshSocketSide",
    "MachineSocketSide",
    "Side",
    "SocketSide",
    "StreamSide",
    "interface_facts",
    "library_in_process",
    "make_side",
    "pin",
]

BACKLOG = 64  # connections that may wait to be accepted besides that of the other side
_WANTED_BUFFER = 4 << 20  # bytes requested for datagram sockets by default; the kernel may grant less


def pin(core: int | None) -> None:
    """Pin the calling thread, and those that it will start, to *core*."""
    if core is not None:
        # The process may have lost the core meanwhile. The measurement then runs on the cores that remain.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core})


def interface_facts(interface: str) -> dict[str, Any]:
    """Return MTU and offloads of an interface, as far as the kernel reports them."""
    return {name: value for name, value in card(interface).items() if name in ("interface", "mtu", "offloads")}


def library_in_process(pattern: str) -> str | None:
    """Return the path of a shared library that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = "".join(line.rstrip("\n").partition("/")[1:])
            if re.search(pattern, os.path.basename(path)):
                return path
    return None


def socket_facts(sock: socket.socket, transport: str) -> dict[str, Any]:
    """Return the properties of a socket of the kernel."""
    return {
        "library": f"Linux {os.uname().release}",
        "transport": transport,
        "sndbuf": sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
        "rcvbuf": sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
    }


def size_buffers(sock: socket.socket, nbytes: int | None) -> None:
    """Set the size of both buffers of a socket; None leaves it to the kernel."""
    if nbytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, nbytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, nbytes)


class Side:
    """Base of all sides, and the side of a protocol in C that needs no peer to open.

    Parameters
    ----------
    request : dict
        From the coordinator: "protocol", "side" (0: A, 1: B), "level", "wait", "core", "secret" (hex), "address" and
        "interface" of this host, "sockbuf", "options".
    """

    in_python: ClassVar[type[Side] | None] = None  # class for level "python", if it is another one

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.protocol: str = request["protocol"]
        self.side: int = request["side"]
        self.polled: bool = request["wait"] == "poll"
        self.in_c: bool = request["level"] == "c"
        self.secret = bytes.fromhex(request["secret"])
        # The discriminator can be read on the wire, and the word, part of the names of sockets and NICs, by every
        # process of the machine. Neither reveals the secret or the other.
        self.token = derive(self.secret, "viakit bench token")[:16]
        self.word = derive(self.secret, "viakit bench name")[:7].hex()
        self.options: dict[str, Any] = request.get("options") or {}
        self.endpoint: Any = None
        self.files: set[str] = set()  # files that would remain in /dev/shm if this process were killed

    def open(self) -> dict[str, Any]:
        """Prepare this side without the peer. Return the data that the peer needs."""
        pin(self.request.get("core"))
        return {}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Connect to the peer and create the endpoint. Raises MeasureError or OSError; TimeoutError at *deadline*."""
        self.endpoint = self.c_endpoint(self.protocol)

    def describe(self) -> dict[str, Any]:
        """Return properties of this side for the result: library, transport, interface."""
        return {}

    def close(self) -> None:
        """Release everything."""
        if self.endpoint is not None:
            self.endpoint.close()

    def _faults(self) -> str:
        """Return the faults as text. The seed of B is that of A plus one, so the sides do not lose the same frames."""
        if not self.options.get("fault"):
            return ""
        from viakit import via  # start-up time

        faults = via.Faults.parse(str(self.options["fault"]))
        return str(dataclasses.replace(faults, seed=(faults.seed + self.side) % 2**64))

    @property
    def core_module(self) -> Any:
        """The extension, imported on first use because only level "c" needs all of it."""
        from viakit import _core  # start-up time

        return _core

    def c_endpoint(self, name: str, **options: Any) -> Any:
        """Return the endpoint *name* of csrc/bench/ep_NAME.c for the loop in C."""
        return self.core_module.BenchEndpoint.open(name, side=self.side, polled=self.polled, **options)

    def python_endpoint(self, transport: str, *arguments: Any, **options: Any) -> Any:
        """Return the endpoint for the loop in Python, on a class of :mod:`viakit.measure.transports`."""
        from viakit.measure import pyloop, transports  # on use: only level "python" needs NumPy here

        return pyloop.PythonEndpoint(getattr(transports, transport)(*arguments, **options))


class FloorSide(Side):
    """Side that passes a cache line. Its worker inherits the descriptor of the shared memory."""

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Map the shared page."""
        fd = self.request["floor_fd"]
        self.endpoint = self.c_endpoint("floor", fd=fd)
        os.close(fd)


class StreamSide(Side):
    """Base of sides that connect by a stream, for which B listens."""

    sock: socket.socket | None = None
    listener: socket.socket | None = None

    def listen(self) -> dict[str, Any]:
        """B: listen on a port of this side's address, and return what A's :meth:`meet` needs. A: return nothing."""
        if self.side == 0:
            return {}
        self.listener = socket.create_server((self.request["address"], 0), backlog=BACKLOG)
        return {"address": self.listener.getsockname()}

    def meet(self, peer: dict[str, Any], deadline: float) -> socket.socket:
        """Connect (A) or accept (B), prove the secret of the pair, and return the connection, which is ``sock``."""
        if self.side == 0:
            self.sock = socket.create_connection(tuple(peer["address"]), max(0.1, deadline - time.monotonic()))
            self.introduce(deadline)
        else:
            self.accept(deadline)
        assert self.sock is not None
        return self.sock

    def close(self) -> None:
        """Close endpoint and sockets."""
        super().close()
        for sock in (self.sock, self.listener):
            if sock is not None:
                sock.close()

    def introduce(self, deadline: float) -> None:
        """A: prove to B that this is the other side of its pair, and verify the same of B."""
        assert self.sock is not None
        try:
            introduce(self.sock, self.secret, 0, 2, deadline)
        except OSError as error:
            raise MeasureError(
                f"{self.protocol}: the other side is not the one of this pair: {error}", "error"
            ) from None

    def accept(self, deadline: float) -> None:
        """B: accept the connection of the pair's other side. Connections of other processes are closed."""
        assert self.listener is not None
        with contextlib.closing(Reception(self.listener, self.secret)) as reception:
            self.sock = reception.first(deadline)


class SocketSide(StreamSide):
    """TCP and Unix streams."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__(request)
        self.is_tcp = self.protocol != "unix"

    def open(self) -> dict[str, Any]:
        """B listens."""
        super().open()
        if self.side == 0:
            return {}
        if not self.is_tcp:
            # An abstract name leaves no file behind, even if this process is killed.
            address: Any = "\0viakit-bench-" + self.word
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            address = (self.request["address"], 0)
            self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Before the connection: TCP derives its window scale, sent in the SYN, from the receive buffer.
        size_buffers(self.listener, self.request.get("sockbuf"))
        self.listener.bind(address)
        self.listener.listen(BACKLOG)
        return {"address": self.listener.getsockname() if self.is_tcp else address}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """A connects, B accepts."""
        left = max(0.1, deadline - time.monotonic())
        if self.side == 0:
            self.sock = socket.socket(socket.AF_INET if self.is_tcp else socket.AF_UNIX, socket.SOCK_STREAM)
            size_buffers(self.sock, self.request.get("sockbuf"))
            self.sock.settimeout(left)
            self.sock.connect(tuple(peer["address"]) if self.is_tcp else peer["address"])
            self.introduce(deadline)
        else:
            self.accept(deadline)
        assert self.sock is not None
        if self.is_tcp:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.in_c:
            self.endpoint = self.c_endpoint("socket", device="tcp" if self.is_tcp else "unix", keep=self.sock)
        else:
            self.endpoint = self.python_endpoint("SocketTransport", self.sock, self.polled)

    def describe(self) -> dict[str, Any]:
        """Return socket buffers and interface."""
        assert self.sock is not None
        facts = socket_facts(self.sock, "TCP, TCP_NODELAY" if self.is_tcp else "Unix stream socket")
        if self.is_tcp:
            facts["sockbuf"] = self.request.get("sockbuf") or "automatic"
            name = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            facts["congestion"] = name.rstrip(b"\0").decode("ascii", "replace")
            facts |= interface_facts(self.request["interface"])
        return facts


class MachineSocketSide(StreamSide):
    """TCP on a described machine. A socket of this host connects both sides; a stream of the machine has the data."""

    def open(self) -> dict[str, Any]:
        """B listens."""
        super().open()
        return self.listen()

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """A connects, B accepts; then both open their end of the stream."""
        sock = self.meet(peer, deadline)
        try:
            self.endpoint = self.c_endpoint(
                "socket", device=f"sim:{self.word}", keep=sock, buffer=self.request.get("sockbuf") or 0
            )
        except RuntimeError as error:
            raise MeasureError(f"{self.protocol}: {error}", getattr(error, "reason", "error")) from None

    def describe(self) -> dict[str, Any]:
        """Return the socket buffers."""
        return {
            "library": "viakit",
            "transport": "a simulated machine, TCP",
            "sockbuf": self.request.get("sockbuf") or "automatic",
        }


class FreshSocketSide(SocketSide):
    """TCP with a new connection for each burst.

    The kernel learns from a connection's past: the sizes of its buffers, its round trip, and the rate of its congestion
    control. A burst on a new connection does not depend on the bursts before it.
    """

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Make the first connection, to learn that it can be made."""
        super().connect(peer, deadline)
        self.endpoint = _FreshEndpoint(self, peer, self.endpoint)

    def accept(self, deadline: float) -> None:
        """B: accept a connection, and keep the listener for the next one."""
        assert self.listener is not None
        kept = self.listener
        self.listener = kept.dup()
        try:
            super().accept(deadline)  # closes the copy
        finally:
            self.listener = kept

    def renew(self, peer: dict[str, Any], deadline: float) -> Any:
        """Close the connection and make another one. Return its endpoint."""
        assert self.sock is not None
        self.sock.close()
        fresh = self.endpoint
        super().connect(peer, deadline)
        made, self.endpoint = self.endpoint, fresh
        return made


class _FreshEndpoint:
    """The endpoint of the present connection, with the methods of :class:`viakit._core.BenchEndpoint`."""

    def __init__(self, side: FreshSocketSide, peer: dict[str, Any], first: Any) -> None:
        self.side, self.peer, self.now = side, peer, first

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    def prepare(self, *arguments: Any, timeout_s: float, **plan: Any) -> None:
        """Make a connection and prepare its endpoint. Both sides do so at once."""
        self.now.close()
        self.now = self.side.renew(self.peer, time.monotonic() + timeout_s)
        self.now.prepare(*arguments, timeout_s=timeout_s, **plan)


class UdpSide(Side):
    """Side of datagram sockets: both bind, then connect to each other."""

    def open(self) -> dict[str, Any]:
        """Bind the socket."""
        super().open()
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        size_buffers(self.sock, self.request.get("sockbuf") or _WANTED_BUFFER)
        self.sock.bind((self.request["address"], 0))
        return {"address": self.sock.getsockname()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Set the peer's address."""
        self.sock.connect(tuple(peer["address"]))
        self.endpoint = self.c_endpoint("udp", keep=self.sock)

    def describe(self) -> dict[str, Any]:
        """Return socket buffers and interface."""
        transport = "UDP; go-back-N and a header of 16 bytes in every datagram of at most 65507"
        return socket_facts(self.sock, transport) | interface_facts(self.request["interface"])

    def close(self) -> None:
        """Close endpoint and socket."""
        super().close()
        self.sock.close()


class FramesSide(Side):
    """Side of bare Ethernet frames. The sides exchange their addresses."""

    def open(self) -> dict[str, Any]:
        """Open the packet sockets."""
        super().open()
        try:
            self.endpoint = self.c_endpoint("frames", device=self.request["interface"])
        except RuntimeError as error:
            reason = "refused" if "CAP_NET_RAW" in str(error) else "error"
            raise MeasureError(f"frames: {error}. Remedy: --hosts testbed", reason) from None
        return {"address": self.endpoint.address().hex()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Set the peer's address."""
        self.endpoint.join(bytes.fromhex(peer["address"]))

    def describe(self) -> dict[str, Any]:
        """Return the transport of the frames, and the interface."""
        return {
            "library": f"Linux {os.uname().release}",
            "transport": "packet sockets: EtherType 0x88B6 up to the MTU, above it super-frames of UDP segments",
            **interface_facts(self.request["interface"]),
        }


class VerbsSide(Side):
    """Side of an RDMA card by libibverbs alone. The sides exchange the addresses of their queue pairs."""

    def open(self) -> dict[str, Any]:
        """Make the queue pair."""
        super().open()
        write = self.protocol == "verbs-write"
        try:
            self.endpoint = self.c_endpoint("verbs", device=self.request["interface"], rdma_write=write)
        except RuntimeError as error:
            raise MeasureError(f"{self.protocol}: {error}", "missing") from None
        return {"address": self.endpoint.address().hex()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Connect both queue pairs."""
        self.endpoint.join(bytes.fromhex(peer["address"]))

    def describe(self) -> dict[str, Any]:
        """Return the library, the service, and the interface."""
        what = "RDMA writes with immediate data" if self.protocol == "verbs-write" else "sends"
        return {
            "library": os.path.basename(library_in_process(r"^libibverbs\.so") or "libibverbs"),
            "transport": f"RoCE v2, reliable connected queue pair: {what}",
            **interface_facts(self.request["interface"]),
        }


class ZmqSide(Side):
    """ZeroMQ PAIR over TCP."""

    authenticator: Any = None

    def open(self) -> dict[str, Any]:
        """B binds. The I/O thread of libzmq starts here, before this thread is pinned, so that it may use any core."""
        try:
            import zmq  # start-up time
        except ImportError as error:
            raise MeasureError(f"zmq: pyzmq is not installed ({error}). Remedy: pip install pyzmq", "missing") from None
        self.zmq = zmq
        self.context = zmq.Context()
        self.sock = self.context.socket(zmq.PAIR)
        self.sock.linger = 0
        self.sock.set_hwm(0)
        if self.request.get("sockbuf"):
            self.sock.sndbuf = self.sock.rcvbuf = self.request["sockbuf"]
        self.sock.sndtimeo = self.sock.rcvtimeo = 50
        password = derive(self.secret, "viakit bench zmq").hex()
        if self.side == 1:
            from zmq.auth.thread import ThreadAuthenticator  # start-up time

            # ZeroMQ checks the password when a connection begins, and never afterwards: messages cost no more.
            self.authenticator = ThreadAuthenticator(self.context)
            self.authenticator.start()
            self.authenticator.configure_plain(domain="*", passwords={"viakit": password})
            self.sock.plain_server = True
        else:
            self.sock.plain_username, self.sock.plain_password = b"viakit", password.encode()
        port = self.sock.bind_to_random_port(f"tcp://{self.request['address']}") if self.side == 1 else 0
        pin(self.request.get("core"))
        return {"address": [self.request["address"], port]}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """A connects. ZeroMQ establishes the connection in its own thread."""
        if self.side == 0:
            host, port = peer["address"]
            self.sock.connect(f"tcp://{host}:{port}")
        self.library = library_in_process(r"libzmq.*\.so") or library_in_process(r"_zmq.*\.so") or ""
        if self.in_c:
            try:
                self.endpoint = self.core_module.BenchEndpoint.zmq(self.sock, self.library, self.polled)
            except RuntimeError as error:
                raise MeasureError(f"zmq: {error}. Remedy: measure it with level python", "missing") from None
        else:
            self.endpoint = self.python_endpoint("ZmqTransport", self.sock, self.polled)

    def describe(self) -> dict[str, Any]:
        """Return versions and interface."""
        return {
            "library": f"libzmq {self.zmq.zmq_version()}",
            "version": self.zmq.zmq_version(),
            "pyzmq": self.zmq.pyzmq_version(),
            "transport": "PAIR over tcp; one I/O thread, not pinned",
            **interface_facts(self.request["interface"]),
        }

    def close(self) -> None:
        """Close endpoint, socket and context."""
        super().close()
        self.sock.close(0)
        if self.authenticator is not None:
            self.authenticator.stop()
        self.context.term()


def make_side(request: dict[str, Any]) -> Side:
    """Return the side for *request*, not yet open."""
    try:
        module, _, name = endpoints.lookup(request["protocol"]).side.partition(":")
    except endpoints.UnknownProtocol:
        raise MeasureError(
            f"protocol {request['protocol']!r} is unknown to this worker, which is of another version of viakit",
            "version",
        ) from None
    kind: type[Side] = getattr(importlib.import_module(f"viakit.measure.{module}"), name)
    return ((request["level"] == "python" and kind.in_python) or kind)(request)
