"""What each protocol does in a worker: it makes a connection, and an endpoint on it for the measuring loop.

A worker has one *side*, A or B, of one protocol. The coordinator leads both through the same steps::

    offer   = side.open()             what the other side needs to know: addresses
    side.connect(offer_of_the_peer)   both at once
    side.endpoint                     prepared and run, again and again
    side.close()

The endpoint is one of :class:`viakit._core.BenchEndpoint` (level "c"), or of :mod:`viakit.measure.pyloop` (level
"python"); both are driven in the same way.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import fcntl
import os
import re
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from viakit.measure import mpi
from viakit.measure.endpoints import MeasureError

__all__ = ["Side", "make_side", "pin"]

_RELIABILITY = {"unreliable": 1, "delivery": 2, "reception": 4}
_CHECKSUM = {"auto": 0, "crc": 1}
_RETRANSMISSION = {"selective": 0, "go_back_n": 1}
_FORMS = {"auto": 0, "plain": 1, "udp": 2}
_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946
_ETHTOOL = {"rx-checksum": 0x14, "tx-checksum": 0x16, "sg": 0x18, "tso": 0x1E, "gso": 0x23, "gro": 0x2B}
_WANTED_BUFFER = 4 << 20  # datagram sockets: what is asked for unless the user says; the kernel gives what it allows


def pin(core: int | None) -> None:
    """Pin the calling thread, and those it will start, to *core*."""
    if core is not None:
        # A core may have been taken away meanwhile; measuring goes on wherever the kernel lets us.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core})


def interface_facts(interface: str) -> dict[str, Any]:
    """Return MTU and offloads of an interface, as far as the kernel tells."""
    facts: dict[str, Any] = {"interface": interface}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        name = interface.encode()[:15]
        try:
            answer = fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("16s24x", name))
            facts["mtu"] = struct.unpack("16si20x", answer)[1]
        except OSError:
            return facts
        offloads = {}
        for text, command in _ETHTOOL.items():
            value = array.array("I", [command, 0])
            request = struct.pack("16sP16x", name, value.buffer_info()[0])
            with contextlib.suppress(OSError):
                fcntl.ioctl(sock, _SIOCETHTOOL, request)
                offloads[text] = bool(value[1])
        if offloads:
            facts["offloads"] = offloads
    return facts


def _library_in_process(pattern: str) -> str | None:
    """Return the path of a shared library that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = "".join(line.rstrip("\n").partition("/")[1:])
            if re.search(pattern, os.path.basename(path)):
                return path
    return None


class Side:
    """Base of all sides.

    Parameters
    ----------
    request : dict
        From the coordinator: "protocol", "side" (0: A, 1: B), "level", "wait", "core", "token" (hex), "address" and
        "interface" of this host, "sockbuf", "options".
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.protocol: str = request["protocol"]
        self.side: int = request["side"]
        self.polled: bool = request["wait"] == "poll"
        self.in_c: bool = request["level"] == "c"
        self.token = bytes.fromhex(request["token"])
        self.options: dict[str, Any] = request.get("options") or {}
        self.endpoint: Any = None
        self.files: set[str] = set()  # what would be left in /dev/shm if this process were killed

    def open(self) -> dict[str, Any]:
        """Make what can be made alone; return what the peer must know."""
        pin(self.request.get("core"))
        return {}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Meet the peer, and make the endpoint. Raises MeasureError or OSError; TimeoutError at *deadline*."""

    def describe(self) -> dict[str, Any]:
        """Return what a result should say about this side: library, transport, interface."""
        return {}

    def close(self) -> None:
        """Release everything."""
        if self.endpoint is not None:
            self.endpoint.close()

    def _faults(self) -> str:
        """The faults asked for, as text. B's seed is A's plus one, so that the two do not lose the same frames."""
        if not self.options.get("fault"):
            return ""
        from viakit import via

        faults = via.Faults.parse(str(self.options["fault"]))
        return str(dataclasses.replace(faults, seed=(faults.seed + self.side) % 2**64))

    @property
    def core_module(self) -> Any:
        """The extension; imported late, because only level "c" needs all of it."""
        from viakit import _core

        return _core


class NullSide(Side):
    """The loop itself."""

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Connect to nobody."""
        self.endpoint = self.core_module.BenchEndpoint.null()


class FloorSide(Side):
    """A cache line each way: the memory's descriptor was inherited."""

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Map the shared page."""
        fd = self.request["floor_fd"]
        self.endpoint = self.core_module.BenchEndpoint.floor(fd, self.side)
        os.close(fd)


class StreamSide(Side):
    """What has a stream to the other side, for which one of the two listens."""

    sock: socket.socket | None = None
    listener: socket.socket | None = None

    def close(self) -> None:
        """Close endpoint and sockets."""
        super().close()
        for sock in (self.sock, self.listener):
            if sock is not None:
                sock.close()


class SocketSide(StreamSide):
    """TCP and Unix streams."""

    def open(self) -> dict[str, Any]:
        """B listens."""
        super().open()
        if self.side == 0:
            return {}
        if self.protocol == "unix":
            # The abstract name space leaves no file behind, whatever happens.
            address: Any = "\0viakit-bench-" + self.token.hex()
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        else:
            address = (self.request["address"], 0)
            self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._size_buffers(self.listener)
        self.listener.bind(address)
        self.listener.listen(1)
        return {"address": self.listener.getsockname() if self.protocol == "tcp" else address}

    def _size_buffers(self, sock: socket.socket) -> None:
        # Before connecting: TCP chooses its window scale from the receive buffer when it says hello.
        if self.request.get("sockbuf"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.request["sockbuf"])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.request["sockbuf"])

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """A connects, B accepts."""
        left = max(0.1, deadline - time.monotonic())
        if self.side == 0:
            unix = self.protocol == "unix"
            self.sock = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_STREAM)
            self._size_buffers(self.sock)
            self.sock.settimeout(left)
            self.sock.connect(peer["address"] if unix else tuple(peer["address"]))
        else:
            assert self.listener is not None
            self.listener.settimeout(left)
            self.sock, _ = self.listener.accept()
            self.listener.close()
        self.sock.settimeout(None)
        if self.protocol == "tcp":
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.in_c:
            self.endpoint = self.core_module.BenchEndpoint.socket(self.sock, self.protocol, self.polled)
        else:
            from viakit.measure.pyloop import PythonEndpoint, SocketTransport

            self.endpoint = PythonEndpoint(SocketTransport(self.sock, self.polled))

    def describe(self) -> dict[str, Any]:
        """Return socket buffers and interface."""
        assert self.sock is not None
        facts: dict[str, Any] = {
            "library": f"Linux {os.uname().release}",
            "transport": "TCP, TCP_NODELAY" if self.protocol == "tcp" else "Unix stream socket",
            "sndbuf": self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            "rcvbuf": self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
        }
        if self.protocol == "tcp":
            facts["sockbuf"] = self.request.get("sockbuf") or "automatic"
            facts |= interface_facts(self.request["interface"])
        return facts


class UdpSide(Side):
    """Datagrams: both sides bind and connect to each other."""

    def open(self) -> dict[str, Any]:
        """Bind."""
        super().open()
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        size = self.request.get("sockbuf") or _WANTED_BUFFER
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        self.sock.bind((self.request["address"], 0))
        return {"address": self.sock.getsockname()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Fix the peer's address."""
        self.sock.connect(tuple(peer["address"]))
        self.endpoint = self.core_module.BenchEndpoint.udp(self.sock, self.polled)

    def describe(self) -> dict[str, Any]:
        """Return socket buffers and interface."""
        return {
            "library": f"Linux {os.uname().release}",
            "transport": "UDP; go-back-N and a header of 16 bytes in every datagram of at most 65507",
            "sndbuf": self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
            "rcvbuf": self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
            **interface_facts(self.request["interface"]),
        }

    def close(self) -> None:
        """Close endpoint and socket."""
        super().close()
        self.sock.close()


class FramesSide(Side):
    """Bare Ethernet frames: each side tells the other its address."""

    def open(self) -> dict[str, Any]:
        """Open the packet sockets."""
        super().open()
        try:
            self.endpoint = self.core_module.BenchEndpoint.frames(self.request["interface"], self.polled)
        except RuntimeError as error:
            reason = "refused" if "CAP_NET_RAW" in str(error) else "error"
            raise MeasureError(f"frames: {error}. Remedy: --hosts testbed", reason) from None
        return {"address": self.endpoint.frames_address().hex()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Fix the peer's address."""
        self.endpoint.frames_connect(bytes.fromhex(peer["address"]))

    def describe(self) -> dict[str, Any]:
        """Return what carries the frames."""
        return {
            "library": f"Linux {os.uname().release}",
            "transport": "packet sockets: EtherType 0x88B6 up to the MTU, above it super-frames of UDP segments",
            **interface_facts(self.request["interface"]),
        }


class ZmqSide(Side):
    """ZeroMQ PAIR over TCP."""

    def open(self) -> dict[str, Any]:
        """B binds. The I/O thread of libzmq starts here, before this thread is pinned, so that it may run anywhere."""
        try:
            import zmq
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
        port = self.sock.bind_to_random_port(f"tcp://{self.request['address']}") if self.side == 1 else 0
        pin(self.request.get("core"))
        return {"address": [self.request["address"], port]}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """A connects; ZeroMQ does the rest behind our backs."""
        if self.side == 0:
            host, port = peer["address"]
            self.sock.connect(f"tcp://{host}:{port}")
        self.library = _library_in_process(r"libzmq.*\.so") or _library_in_process(r"_zmq.*\.so") or ""
        if self.in_c:
            try:
                self.endpoint = self.core_module.BenchEndpoint.zmq(self.sock, self.library, self.polled)
            except RuntimeError as error:
                raise MeasureError(f"zmq: {error}. Remedy: measure it with level python", "missing") from None
        else:
            from viakit.measure.pyloop import PythonEndpoint, ZmqTransport

            self.endpoint = PythonEndpoint(ZmqTransport(self.sock, self.polled))

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
        self.context.term()


class MpiSide(Side):
    """An MPI rank. MPI is in the process already when this side opens: it says which side it is."""

    def open(self) -> dict[str, Any]:
        """Start MPI."""
        super().open()
        # One thread calls MPI; the default, MPI_THREAD_MULTIPLE, would make the library lock around every message.
        import mpi4py

        mpi4py.rc.thread_level = "funneled"
        mpi4py.rc.threads = True
        from mpi4py import MPI

        self.mpi = MPI
        self.comm = MPI.COMM_WORLD
        if self.comm.size != 2 or self.comm.rank != self.side:
            raise MeasureError(
                f"{self.protocol}: rank {self.comm.rank} of {self.comm.size} where rank {self.side} of 2 was expected: "
                "mpiexec and libmpi are of different families. Remedy: set MPI4PY_LIBMPI to the libmpi of that mpiexec"
            )
        self.files = mpi.shared_files()
        return {"files": sorted(self.files)}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Look the library's functions up."""
        self.library = os.environ.get("MPI4PY_LIBMPI") or _library_in_process(r"^libmpi(ch|_abi)?\.so") or ""
        if self.in_c:
            handle = self.mpi._handleof
            self.endpoint = self.core_module.BenchEndpoint.mpi(
                self.library, handle(self.comm), handle(self.mpi.BYTE), 1 - self.side
            )
        else:
            from viakit.measure.pyloop import MpiTransport, PythonEndpoint

            self.endpoint = PythonEndpoint(MpiTransport(self.mpi, self.comm, 1 - self.side))

    def describe(self) -> dict[str, Any]:
        """Return the library and what it uses between two ranks."""
        name, version = self.mpi.get_vendor()
        text = ".".join(map(str, version))
        said = self.mpi.Get_library_version()
        if name == "Open MPI":
            chosen = {key: os.environ.get(f"OMPI_MCA_{key}") for key in ("pml", "btl")}
            # The segment is mapped if, and only if, the ranks talk through it.
            shared = _library_in_process(r"^sm_segment") is not None
            transport = f"pml {chosen['pml'] or 'default'}, btl {chosen['btl'] or 'default'}"
            transport += ": shared memory" if shared else ": not shared memory"
        else:
            device = re.search(r"MPICH Device:\s*(.+)", said)
            transport = f"{device[1].strip() if device else 'unknown device'}; shared memory within the host"
        return {
            "library": f"{name} {text}",
            "version": text,
            "transport": transport,
            "libmpi": self.library,
            "thread_level": "funneled",
        }


class ViaSide(Side):
    """VIA on any link, in C."""

    link_prefix = "via-"

    def device(self) -> str:
        """Return the NIC's name. shm and loop get one of their own, so that pairs at the same time do not meet."""
        link = self.protocol.removeprefix(self.link_prefix)
        if link == "udp":
            return f"udp:{self.request['address']}"
        return f"eth:{self.request['interface']}" if link == "eth" else f"{link}:b{self.token.hex()[:16]}"

    def _choices(self) -> dict[str, int]:
        reliability = str(self.options.get("reliability") or "delivery")
        reliability = reliability.removeprefix("reliable").lstrip("-_ ") or "delivery"
        form = str(self.options.get("form") or "auto")
        if reliability not in _RELIABILITY:
            raise MeasureError(f"reliability {reliability!r}: expected {', '.join(_RELIABILITY)}", "usage")
        if form not in _FORMS:
            raise MeasureError(f"form {form!r}: expected {', '.join(_FORMS)}", "usage")
        retransmission = str(self.options.get("retransmission") or "selective")
        if retransmission not in _RETRANSMISSION:
            raise MeasureError(f"retransmission {retransmission!r}: expected {', '.join(_RETRANSMISSION)}", "usage")
        checksum = str(self.options.get("checksum") or "auto")
        if checksum not in _CHECKSUM:
            raise MeasureError(f"checksum {checksum!r}: expected {', '.join(_CHECKSUM)}", "usage")
        choices = {"reliability": _RELIABILITY[reliability], "form": _FORMS[form]}
        choices |= {"retransmission": _RETRANSMISSION[retransmission], "checksum": _CHECKSUM[checksum]}
        return choices | {"mtu": int(self.options.get("mtu") or 0), "spin_us": int(self.options.get("spin_us") or 0)}

    def _explain(self, error: Exception) -> MeasureError:
        """Add the next step to what the provider said."""
        text, link = str(error), self.protocol.removeprefix(self.link_prefix)
        if link == "eth":
            known = {name for _, name in socket.if_nameindex()}
            interface = self.request["interface"]
            if interface not in known:
                here = ", ".join(sorted(known))
                return MeasureError(f"{self.protocol}: there is no interface {interface} here, only {here}", "error")
            if "ermission" in text or "ermitted" in text or "CAP_NET_RAW" in text:
                return MeasureError(f"{text}. Remedy: --hosts testbed needs no root", "refused")
        return MeasureError(f"{self.protocol}: {text}", getattr(error, "reason", "error"))

    def open(self) -> dict[str, Any]:
        """Open the NIC."""
        super().open()
        choices = self._choices()
        try:
            faults = self._faults()
            self.endpoint = self.core_module.BenchEndpoint.via(self.device(), self.polled, faults=faults, **choices)
            return {"address": self.endpoint.via_address().hex()}
        except RuntimeError as error:
            raise self._explain(error) from None

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """A asks for the discriminator that B waits for: a random one, so that runs at the same time do not meet."""
        try:
            while True:
                if self.side == 0:
                    done = self.endpoint.via_connect(bytes.fromhex(peer["address"]), self.token)
                else:
                    done = self.endpoint.via_accept(self.token)
                if done:
                    return
                if time.monotonic() > deadline:
                    raise MeasureError(
                        f"{self.protocol}: the peer did not answer the connection request. Remedy: see that both hosts "
                        "are on one wire and run the same version of viakit",
                        "timeout",
                    )
                if self.side == 0:
                    time.sleep(0.001)  # refused at once, because the peer is not waiting yet: do not hammer it
        except RuntimeError as error:
            if isinstance(error, MeasureError):
                raise
            raise self._explain(error) from None

    def describe(self) -> dict[str, Any]:
        """Return what the NIC says of itself."""
        return self._facts(self.endpoint.via_describe())

    def _facts(self, said: dict[str, Any]) -> dict[str, Any]:
        whole = ("max_payload", "super_payload", "ring_slots", "nic_window", "bytes_registered", "bytes_pinned")
        facts: dict[str, Any] = {key: int(said[key]) for key in whole if key in said}
        facts |= {"device": str(said["device"]), "cma": {"1": True, "0": False}.get(str(int(said["cma"])))}
        reliability = next(name for name, value in _RELIABILITY.items() if value == self._choices()["reliability"])
        facts |= {"library": "viakit", "reliability": reliability}
        facts["mtu"] = int(said["mtu"])
        if not self.polled:
            facts["spin_us"] = self._choices()["spin_us"]
        if said["link"] == "eth":
            facts["form"] = str(said["form"])
            facts["transport"] = f"raw Ethernet frames, form {said['form']}"
            facts |= {key: value for key, value in interface_facts(str(said["interface"])).items() if key != "mtu"}
        elif said["link"] == "udp":
            super_frames = int(said["super_payload"]) > int(said["max_payload"])
            facts["transport"] = "UDP sockets, " + ("segmentation offload" if super_frames else "a datagram per frame")
            facts |= {key: value for key, value in interface_facts(str(said["interface"])).items() if key != "mtu"}
        else:
            facts["transport"] = {"shm": "shared memory", "loop": "one process"}[said["link"]]
            del facts["mtu"]
        return facts


class BipSide(ViaSide):
    """BIP on any link, in C: options of VIA, and ``packet`` and ``small``, bytes, in place of what is calibrated."""

    link_prefix = "bip-"

    def _choices(self) -> dict[str, int]:
        return super()._choices() | {"reliability": _RELIABILITY["delivery"]}

    def open(self) -> dict[str, Any]:
        """Open the job."""
        Side.open(self)
        choices = self._choices()
        del choices["reliability"]
        try:
            sizes = {key: int(self.options.get(key) or 0) for key in ("packet", "small")}
            faults, word = self._faults(), self.token.hex()[:15]
            bip = self.core_module.BenchEndpoint.bip
            self.endpoint = bip(self.device(), word, self.side, self.polled, faults=faults, **sizes, **choices)
            self.card: bytes = self.endpoint.bip_card()
            return {"address": self.card.hex()}
        except RuntimeError as error:
            raise self._explain(error) from None

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Both ask for each other."""
        cards = [self.card, bytes.fromhex(peer["address"])]
        left = max(0.1, deadline - time.monotonic())
        try:
            if not self.endpoint.bip_connect(b"".join(cards if self.side == 0 else cards[::-1]), int(left * 1000)):
                raise MeasureError(f"{self.protocol}: the peer did not answer in time", "timeout")
        except RuntimeError as error:
            if isinstance(error, MeasureError):
                raise
            raise self._explain(error) from None

    def describe(self) -> dict[str, Any]:
        """Return what NIC and job say of themselves."""
        said = self.endpoint.bip_describe()
        return self._facts(said) | {"small_bytes": int(said["small"])}


class PyViaSide(ViaSide):
    """VIA on any link, through viakit.via."""

    def open(self) -> dict[str, Any]:
        """Open the NIC."""
        pin(self.request.get("core"))
        from viakit import via

        self.via = via
        choices = self._choices()
        try:
            spin_us = None if self.polled else choices["spin_us"] or -1
            self.nic = via.Nic(
                self.device(),
                form=via.Form(choices["form"]),
                mtu=choices["mtu"] or None,
                spin_us=spin_us,
                retransmission=via.Retransmission(choices["retransmission"]),
                checksum=via.Checksum(choices["checksum"]),
            )
            self.nic.faults = self._faults() or None
        except (OSError, RuntimeError, ValueError) as error:
            raise self._explain(error) from None
        self.vi = self.nic.create_vi(reliability=choices["reliability"])
        return {"address": self.nic.address.host.hex()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Meet the peer as in C."""
        from viakit.measure.pyloop import PythonEndpoint, ViaTransport

        left = max(0.1, deadline - time.monotonic())
        if self.side == 0:
            self.vi.connect(self.via.Address(bytes.fromhex(peer["address"]), self.token), timeout_s=left, retry=True)
        else:
            self.nic.connect_wait(self.token, timeout_s=left).accept(self.vi)
        self.endpoint = PythonEndpoint(ViaTransport(self.via, self.nic, self.vi, self.polled))

    def describe(self) -> dict[str, Any]:
        """Return what the NIC says of itself."""
        info = self.nic.info
        said = {key: getattr(info, key) for key in ("max_payload", "super_payload", "ring_slots", "bytes_registered")}
        said |= {key: getattr(info, key) for key in ("bytes_pinned", "device", "link", "mtu", "form", "interface")}
        return self._facts(said | {"nic_window": info.window, "cma": -1 if info.cma is None else int(info.cma)})

    def close(self) -> None:
        """Close everything."""
        super().close()
        self.vi.disconnect()
        self.vi.drain()
        self.vi.close()
        self.nic.close()


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Have a variable in the environment of this process for a while; an empty value leaves it as it is."""
    before = os.environ.get(name)
    if value:
        os.environ[name] = value
    try:
        yield
    finally:
        if value:
            del os.environ[name]
            if before is not None:
                os.environ[name] = before


class MsgSide(StreamSide):
    """Messages between two ranks, on VIA, BIP or TCP, in C. The engine connects by itself, led by a socket of ours."""

    def open(self) -> dict[str, Any]:
        """B listens."""
        super().open()
        network = str(self.options.get("network") or "eth")
        if network not in ("eth", "udp"):
            raise MeasureError(f"network {network!r}: expected eth, udp", "usage")
        self.network = f"eth:{self.request['interface']}" if network == "eth" else f"udp:{self.request['address']}"
        if self.side == 0:
            return {}
        self.listener = socket.create_server((self.request["address"], 0), backlog=1)
        return {"address": self.listener.getsockname()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """A connects, B accepts; then both open their rank."""
        if self.side == 0:
            self.sock = socket.create_connection(tuple(peer["address"]), max(0.1, deadline - time.monotonic()))
            self.sock.sendall(self.token)
        else:
            assert self.listener is not None
            self.sock = self._accept(self.listener, deadline)
            self.listener.close()
        self.sock.settimeout(None)
        try:
            with _environment("VIAKIT_FAULT", self._faults()):  # of every NIC that the engine opens
                self.endpoint = self.core_module.BenchEndpoint.msg(
                    self.protocol.removeprefix("msg-"),
                    self.sock,
                    self.side,
                    self.polled,
                    policy=str(self.options.get("policy") or ""),
                    network_device=self.network,
                    address=self.request["address"],
                    timeout_s=max(0.1, deadline - time.monotonic()),
                )
        except RuntimeError as error:
            text = str(error)
            raise MeasureError(
                f"{self.protocol}: {text}", "usage" if text.startswith("policy") else getattr(error, "reason", "error")
            ) from None
        finally:
            self.sock.close()

    def _accept(self, listener: socket.socket, deadline: float) -> socket.socket:
        """Take the connection that begins with our token; others on this host may try the port."""
        while True:
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            sock, _ = listener.accept()
            said = b""
            try:
                while len(said) < len(self.token):
                    sock.settimeout(max(0.1, deadline - time.monotonic()))
                    more = sock.recv(len(self.token) - len(said))
                    if not more:
                        break
                    said += more
            except OSError:
                said = b""
            if said == self.token:
                return sock
            sock.close()

    def describe(self) -> dict[str, Any]:
        """Return policy and route."""
        said = self.endpoint.msg_describe()
        facts: dict[str, Any] = {
            "library": "viakit",
            "policy": said["policy"],
            "route": said["peer_route"],
            "eager_limit": int(said["eager_limit_local" if said["peer_route"].startswith("shm:") else "eager_limit"]),
            "transport": f"messages, policy {said['policy']}, over {said['route'].split(':')[0].split()[0]}",
        }
        if not said["peer_route"].startswith("shm:"):
            facts |= interface_facts(self.request["interface"])
        return facts


def make_side(request: dict[str, Any]) -> Side:
    """Return the side that *request* asks for, not yet open."""
    name = request["protocol"]
    if ".py:" in name:
        from viakit.measure.own import OwnSide

        return OwnSide(request)
    if name.startswith("via-"):
        return ViaSide(request) if request["level"] == "c" else PyViaSide(request)
    if name.startswith("bip-"):
        return BipSide(request)
    if name.startswith("mpi"):
        return MpiSide(request)
    if name in ("msg-via", "msg-bip", "msg-tcp"):
        return MsgSide(request)
    kinds: dict[str, type[Side]] = {"tcp": SocketSide, "unix": SocketSide, "udp": UdpSide, "zmq": ZmqSide}
    kinds |= {"frames": FramesSide, "floor": FloorSide, "null": NullSide}
    if name not in kinds:
        raise MeasureError(f"this worker knows no protocol {name!r}: it is of another version of viakit", "version")
    return kinds[name](request)
