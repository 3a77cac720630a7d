"""Sides of ranks that send each other messages: MPI, and viakit's message engine (:mod:`viakit.measure.sides`)."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from typing import Any

from viakit.base.channel import Channel
from viakit.launch import mpi_library as mpi
from viakit.launch.policy import complete
from viakit.measure.endpoints import MeasureError
from viakit.measure.sides import Side, StreamSide, interface_facts, library_in_process

__all__ = ["MpiSide", "MsgSide", "PyMsgSide", "RankSide"]

_NEVER_SLEEP_US = 1_000_000_000  # time that a polled wait polls


class RankSide(Side):
    """Base of sides that are ranks with mpi4py's interface."""

    def endpoint_on(self, mpi: Any, comm: Any) -> Any:
        """Return the endpoint of the loop in Python on a communicator of two ranks."""
        spec = self.options.get("spec") or "list"
        return self.python_endpoint("MpiTransport", mpi, comm, 1 - self.side, spec=spec)


class MpiSide(RankSide):
    """An MPI rank. The worker initialised MPI before, to find out which side it is."""

    def open(self) -> dict[str, Any]:
        """Import mpi4py and check the rank."""
        super().open()
        # One thread calls MPI; the default, MPI_THREAD_MULTIPLE, would make the library lock around every message.
        import mpi4py  # optional package

        mpi4py.rc.thread_level = "funneled"
        mpi4py.rc.threads = True
        from mpi4py import MPI  # optional package

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
        """Find the functions of the library."""
        self.library = os.environ.get("MPI4PY_LIBMPI") or library_in_process(r"^libmpi(ch|_abi)?\.so") or ""
        if self.in_c:
            handle = self.mpi._handleof
            self.endpoint = self.core_module.BenchEndpoint.mpi(
                self.library, handle(self.comm), handle(self.mpi.BYTE), 1 - self.side
            )
        else:
            self.endpoint = self.endpoint_on(self.mpi, self.comm)

    def describe(self) -> dict[str, Any]:
        """Return the library and what it uses between two ranks."""
        name, version = self.mpi.get_vendor()
        text = ".".join(map(str, version))
        said = self.mpi.Get_library_version()
        if name == "Open MPI":
            chosen = {key: os.environ.get(f"OMPI_MCA_{key}") for key in ("pml", "btl")}
            # The segment is mapped if, and only if, the ranks communicate through it.
            shared = library_in_process(r"^sm_segment") is not None
            transport = f"pml {chosen['pml'] or 'default'}, btl {chosen['btl'] or 'default'}"
            between = "TCP" if "tcp" in (chosen["btl"] or "") else "not shared memory"
            transport += f": {'shared memory' if shared else between}"
        else:
            device = re.search(r"MPICH Device:\s*(.+)", said)
            within = "TCP (UCX_TLS tcp)" if os.environ.get("UCX_TLS") == "tcp,self" else "shared memory within the host"
            transport = f"{device[1].strip() if device else 'unknown device'}; {within}"
        return {
            "library": f"{name} {text}",
            "version": text,
            "transport": transport,
            "libmpi": self.library,
            "thread_level": "funneled",
            **(interface_facts(self.request["interface"]) if self.request["hosts"] == "ssh" else {}),
        }


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable of this process within the context; an empty value leaves it unchanged."""
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
    """Messages between two ranks over VIA, BIP or TCP, in C. The engine sets up its connection over a socket."""

    @property
    def channel(self) -> str:
        """Channel of the engine; the policy that the protocol names is in the options."""
        return self.protocol.partition(":")[0].removeprefix("msg-")

    def open(self) -> dict[str, Any]:
        """B listens."""
        super().open()
        network = str(self.options.get("network") or "eth")
        networks = {link.name: link for link in self.core_module.links() if link.leaves_host}
        if network not in networks:
            raise MeasureError(f"network {network!r}: expected {', '.join(networks)}", "usage")
        self.network = networks[network].device("", self.request["interface"], self.request["address"])
        self.policy = str(self.options.get("policy") or "")
        if self.request.get("sockbuf"):
            self.policy = f"{self.policy or self.channel},socket_buffer={self.request['sockbuf']}"
        if self.options.get("spin_us") and "spin_us=" not in self.policy:
            self.policy = f"{self.policy or self.channel},spin_us={self.options['spin_us']}"
        return self.listen()

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """A connects, B accepts; then both open their rank."""
        sock = self.meet(peer, deadline)
        try:
            with _environment("VIAKIT_FAULT", self._faults()):  # of every NIC that the engine opens
                self.open_rank(sock, max(0.1, deadline - time.monotonic()))
        except RuntimeError as error:
            text = str(error)
            raise MeasureError(
                f"{self.protocol}: {text}", "usage" if text.startswith("policy") else getattr(error, "reason", "error")
            ) from None
        finally:
            sock.close()

    def open_rank(self, sock: socket.socket, left_s: float) -> None:
        """Open this rank and create the endpoint. The ranks exchange their data over *sock*."""
        self.endpoint = self.core_module.BenchEndpoint.msg(
            self.channel,
            sock,
            self.side,
            self.polled,
            policy=self.policy,
            network_device=self.network,
            address=self.request["address"],
            timeout_s=left_s,
            secret=self.secret,
        )

    def _on_wire(self, route: str) -> bool:
        return bool(route.startswith("tcp ") or self.core_module.link_of(route).leaves_host)

    def describe(self) -> dict[str, Any]:
        """Return policy and route."""
        said = self.endpoint.msg_describe()
        route, on_wire = said["peer_route"], self._on_wire(said["peer_route"])
        facts: dict[str, Any] = {
            "library": "viakit",
            "policy": said["policy"],
            "route": route,
            "eager_limit": int(said["eager_limit" if on_wire else "eager_limit_local"]),
            "transport": f"messages, policy {said['policy']}, over {said['route'].split(':')[0].split()[0]}",
        }
        if on_wire:
            facts |= interface_facts(self.request["interface"])
        return facts


class PyMsgSide(MsgSide, RankSide):
    """Messages between two ranks through :mod:`viakit.comm`, as a Python program sends them."""

    def open_rank(self, sock: socket.socket, left_s: float) -> None:
        """Open a world of two ranks, whose interface is that of mpi4py."""
        from viakit.comm.communicator import Intracomm, World  # on use: the loop in C needs none of it
        from viakit.mpi import MPI  # start-up time

        channel = Channel(sock)

        def exchange(blob: bytes) -> list[bytes]:
            channel.send({}, blob)
            other = channel.recv(left_s)[1]
            return [other, blob] if self.side else [blob, other]

        policy = complete(self.channel, self.policy)
        if "spin_us=" not in policy:
            policy += f",spin_us={_NEVER_SLEEP_US if self.polled else -1}"
        self.world = World(
            self.side,
            2,
            exchange=exchange,
            policy=policy,
            network_device=self.network,
            address=self.request["address"],
            secret=self.secret,
            timeout_s=left_s,
        )
        self.endpoint = self.endpoint_on(MPI, Intracomm(self.world, 0))

    def describe(self) -> dict[str, Any]:
        """Return the route."""
        route = self.world.route(1 - self.side)
        facts = {"library": "viakit", "route": route, "transport": f"viakit.comm over {route.split(':')[0]}"}
        return facts | interface_facts(self.request["interface"]) if self._on_wire(route) else facts

    def close(self) -> None:
        """Close the world."""
        super().close()
        self.world.close()


MsgSide.in_python = PyMsgSide
