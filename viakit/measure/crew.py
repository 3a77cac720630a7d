"""A crew: ranks of a job that measure collectives together and stay open between points.

::

    with Crew(4) as crew, Crew(4, mpi_library=mpi.find("mpi:mpich")) as mpich:
        own = crew.run("default", 1000)
        peer = mpich.run("", 1000)

Ranks are processes of this host, of a testbed's hosts, or started by ``mpiexec``. Between runs all ranks sleep in
read(), so that any number of crews can be open and be measured in turns. The ranks end with the crew, and with the
process that created it, even if that is killed. :func:`main` is the main function of a rank.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import select
import signal
import socket
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import viakit
from viakit.base.channel import CONTROL_VERSION, Channel
from viakit.base.words import counted
from viakit.launch import detect
from viakit.launch import mpi_library as mpi
from viakit.launch.far_mpi import taken
from viakit.launch.policy import split
from viakit.measure import children
from viakit.measure.endpoints import MeasureError
from viakit.measure.ranks import call_back
from viakit.measure.sides import pin
from viakit.measure.turns import shielded

if TYPE_CHECKING:
    from viakit.machines import Machine

__all__ = ["NETWORKS", "OTHER_CHANNELS", "TURN", "Crew", "Times"]

NETWORKS = {"via": "eth", "udp": "udp", "tcp": "ip"}  # the link between hosts, by protocol
OTHER_CHANNELS = {"udp": "via"}  # the channel of the message engine, for a protocol with another name
TURN = "turn"  # one turn of the scheduler, as an operation with a single algorithm of the same name

_CLEANUP_S = 1.0
_PYTHON = ("barrier", "allreduce")  # operations that the loop in Python measures
_PLAN = ("n", "warmup", "skew_ns", "seed", "crowded", "operation", "nbytes")  # items of a request for a rank


@dataclass
class Times:
    """Measured times of one run.

    Attributes
    ----------
    seconds : ndarray of float64
        Without skew, shape (1,): the mean time of one barrier, over the barriers of the run and over the ranks. With
        skew, shape (n,): for each barrier the time from the arrival of the last rank until the last rank has left.
    """

    seconds: NDArray[np.float64]


class Crew(children.Team):
    """Ranks that run barriers and other collectives.

    Parameters
    ----------
    n_ranks : int
        Number of ranks.
    testbed : Testbed or viakit.remote.Remote, optional
        Its hosts get equal shares of the ranks, in blocks. Default: all ranks on this host.
    protocol : str
        "via", "udp" (VIA over UDP between hosts) or "tcp"; also with a policy of the message engine: "tcp:mpich-p4".
    mpi_library : mpi.Library or str, optional
        Run MPI_Barrier of this library on this host instead; "mpi:mpich", "mpi:openmpi": of that on the machines of
        *testbed*, each of which has its own.
    bind : str
        "core": each rank, also of MPI, is bound to one core, in blocks (as ``mpiexec --bind-to core`` does with enough
        cores). "none": the scheduler places the ranks.
    level : str
        "c": the measuring loop in C; "python": in Python, through :mod:`viakit.comm` or mpi4py, without skew.
    machine : viakit.machines.Machine, optional
        The ranks run on this machine, in virtual time, each on a host of its own.

    Attributes
    ----------
    crowded : bool
        Whether there are more ranks than cores.
    algorithms : list of str
        Algorithms that :meth:`run` accepts; for MPI only "".
    operations : dict
        Algorithms of each operation.
    default : str
        Algorithm of barriers that "default" selects.
    link : str
        Link between the ranks of viakit: "shm", "eth", "udp", "ip" (TCP) or "sim".
    stands_for : str
        Algorithm that "default" selected in the latest run.
    info : dict
        Library and route, for the result.

    Raises
    ------
    MeasureError
        If the ranks cannot be started.
    """

    module, member, start_s = "viakit.measure.crew", "rank", 60.0

    def __init__(
        self,
        n_ranks: int,
        *,
        testbed: Any = None,
        protocol: str = "via",
        mpi_library: mpi.Library | str | None = None,
        bind: str = "core",
        level: str = "c",
        machine: Machine | None = None,
    ) -> None:
        if n_ranks < 1:
            raise ValueError(f"n_ranks is {n_ranks}; expected 1 or more")
        super().__init__()
        self.n_ranks, self.protocol = n_ranks, protocol
        self._base, policy = split(protocol, OTHER_CHANNELS)
        self._policy = policy or ("tcp" if self._base == "tcp" else "")
        self._testbed, self._library = testbed, mpi_library
        self._machine = machine
        self.n_hosts = len(testbed.hosts) if testbed is not None else n_ranks if machine is not None else 1
        alone = self.n_hosts == 1 and self._base != "tcp"
        self.link = "sim" if machine is not None else "shm" if alone else NETWORKS[self._base]
        if isinstance(mpi_library, str):
            self.link = "ip"
        self._cores = sorted(os.sched_getaffinity(0))
        self.crowded = n_ranks > len(self._cores)
        self._bind, self.level = bind, level
        self.algorithms: list[str] = []
        self.operations: dict[str, list[str]] = {}
        self.stands_for = ""
        self.default = ""
        self.info: dict[str, Any] = {}
        try:
            if mpi_library is not None:
                far = isinstance(mpi_library, str)
                how = {"testbed": testbed, "host_of": self.host_of} if far else {}
                self._channels += self._start_ranks(mpi_library, n_ranks, **how)
            for rank in range(n_ranks if mpi_library is None else 0):
                self._start_process(testbed.hosts[self.host_of(rank)] if testbed is not None else None)
            self._open()
        except BaseException:
            self._kill()
            raise

    # ------------------------------------------------------------------------------------ starting

    def host_of(self, rank: int) -> int:
        """Return the number of the host that *rank* is on."""
        if self._testbed is not None and self._testbed.kind == "ssh":
            return int(self._testbed.spec.host_of(rank, self.n_ranks))
        return rank * self.n_hosts // self.n_ranks

    def _core_of(self, rank: int) -> int:
        """Return the core of a rank, in blocks: 0 0 1 1 for four ranks on two cores, as the algorithms' blocks."""
        mates, cores = [*range(self.n_ranks)], self._cores
        if self._testbed is not None and self._testbed.kind == "ssh":
            mates = [other for other in mates if self.host_of(other) == self.host_of(rank)]
            cores = self._testbed.hosts[self.host_of(rank)].cores
        return cores[mates.index(rank) * len(cores) // len(mates)]

    def _open(self) -> None:
        """Let the ranks open their world. Their exchanges pass through this process."""
        deadline = time.monotonic() + self.start_s
        ranks = [self._hello(channel, deadline)["rank"] for channel in self._channels]
        if self._library is not None:  # they have connected in any order
            self._channels = [channel for _, channel in sorted(zip(ranks, self._channels, strict=True))]
        for rank, channel in enumerate(self._channels):
            core = self._core_of(rank) if self._bind == "core" else None
            machine = {"machine": self._machine.text()} if self._machine is not None else {}
            what = machine | {"rank": rank, "n_ranks": self.n_ranks, "core": core, "level": self.level}
            self._send(channel, {"op": "open", **what, "secret": self._secret.hex(), **self._place(rank)})
        while True:
            answers = [self._receive(channel, deadline) for channel in self._channels]
            failed = next((answer["error"] for answer, _ in answers if "error" in answer), None)
            if failed is not None:
                raise self._failed(failed)
            if all("opened" in answer for answer, _ in answers):
                break
            blobs = [blob for _, blob in answers]
            for channel in self._channels:
                self._send(channel, {"lengths": [len(blob) for blob in blobs]}, b"".join(blobs))
        first = answers[0][0]
        self.operations, self.default = first["operations"], first["default"]
        self.info = {**first["info"], "bind": self._bind}
        if self._machine is not None:
            self.info |= {"machine": self._machine.name, "time": "virtual"}
        self.algorithms = self.operations["barrier"]
        if self._mpi is not None:
            for answer, _ in answers:
                self._mpi.remember(answer.get("files", ()))

    def _place(self, rank: int) -> dict[str, Any]:
        if self._library is not None:
            return {"mpi": self._library if isinstance(self._library, str) else self._library.libmpi}
        if self._testbed is None:
            return {"policy": self._policy, "network": "", "address": ""}
        host = self._testbed.hosts[self.host_of(rank)]
        if self._testbed.kind == "ssh":
            return {"policy": self._policy, "network": host.device, "address": host.address}
        from viakit import _core  # Only here, to save start-up time: the coordinator needs it for nothing else.

        network = _core.link_of("udp" if self._base == "udp" else "eth").device("", host.interface, host.address)
        return {"policy": self._policy, "network": network, "address": host.address}

    # ------------------------------------------------------------------------------------ running

    def run(
        self,
        algorithm: str,
        n: int,
        *,
        warmup: int = 0,
        skew_s: float = 0.0,
        seed: int = 1,
        timeout_s: float = 60.0,
        operation: str = "barrier",
        nbytes: int = 0,
    ) -> Times:
        """Run *n* barriers, or other collectives, on all ranks together.

        Parameters
        ----------
        algorithm : str
            One of :attr:`algorithms`, or of the operation's list in :attr:`operations`.
        n, warmup : int
            Number of measured barriers, and of unmeasured ones before them.
        skew_s : float
            Upper limit of each rank's random delay before each barrier; 0: barriers follow each other without delay.
        seed : int
            Seed of the delays.
        timeout_s : float
            Timeout of the run in seconds.
        operation : str
            "barrier", "bcast" ... With :data:`TURN` every rank yields its core and waits until it runs again, a time
            that no barrier can avoid with more ranks than cores.
        nbytes : int
            Size of the buffer; for allgather and alltoall per rank, for reductions a multiple of 8.

        Returns
        -------
        Times

        Raises
        ------
        MeasureError
            If a rank fails. The crew cannot be used any more.
        """
        possible = self.operations[operation]
        if algorithm not in possible:
            raise ValueError(f"algorithm is {algorithm!r}; expected one of {', '.join(possible)}")
        request = {
            "op": "run",
            "algorithm": algorithm,
            "n": n,
            "warmup": warmup,
            "skew_ns": round(skew_s * 1e9),
            "crowded": self.crowded,
            "operation": operation,
            "nbytes": nbytes,
        }
        deadline = time.monotonic() + timeout_s
        for rank, channel in enumerate(self._channels):
            self._send(channel, {**request, "seed": seed * 65537 + rank * 2 + 1})
        enter, leave = [], []
        for channel in self._channels:
            answer, blob = self._receive(channel, deadline)
            if "error" in answer:
                raise self._failed(answer["error"])
            times = np.frombuffer(blob, dtype=np.uint64).astype(np.int64).reshape(2, -1)
            self.stands_for = answer.get("stands_for", "")
            enter.append(times[0])
            leave.append(times[1])
        if skew_s:
            return Times((np.max(leave, axis=0) - np.max(enter, axis=0)) * 1e-9)
        # On a core with fewer ranks the turns end earlier.
        of_all = np.max if operation == TURN else np.mean
        return Times(of_all(np.subtract(leave, enter), axis=0) * (1e-9 / n))

    # ------------------------------------------------------------------------------------ ending

    def _send(self, channel: Channel, message: dict[str, Any], blob: bytes = b"") -> None:
        try:
            channel.send(message, blob)
        except OSError:  # The rank has ended.
            raise self._failed("a rank ended") from None

    def _failed(self, why: str, reason: str = "died") -> MeasureError:
        output = children.last_words(self._output)
        name = self._library if isinstance(self._library, str) else self.protocol
        name = f"mpi:{self._library.flavour}" if isinstance(self._library, mpi.Library) else name
        text = f"{name}, {counted(self.n_ranks, 'rank')}: {why}"
        return MeasureError(text + (f"\n{output}" if output else ""), reason)

    def close(self) -> None:
        """End the ranks. A second Ctrl-C waits until this is done."""
        with shielded():
            self._dismiss()
            self._kill()

    def _kill(self) -> None:
        self._end()
        self._processes, self._channels = [], []

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


# ---------------------------------------------------------------------------------------------- a rank


def _exchange(channel: Channel, blob: bytes) -> list[bytes]:
    """Give every rank the data of all ranks, by way of the crew's owner."""
    channel.send({"exchange": 1}, blob)
    reply, blobs = channel.recv()
    ends = np.cumsum([0, *reply["lengths"]])
    return [blobs[a:b] for a, b in itertools.pairwise(ends)]


class _Viakit:
    """Rank of viakit."""

    def __init__(self, request: dict[str, Any], channel: Channel) -> None:
        from viakit import _core  # start-up time

        self.numbers = {
            operation: {name: i for i, name in enumerate(names)}
            for operation, names in _core.collective_algorithms().items()
        }
        self.rank = _core.BarrierRank(
            request["rank"],
            request["n_ranks"],
            functools.partial(_exchange, channel),
            policy=request["policy"],
            network=request["network"],
            address=request["address"],
            control_fd=channel.fileno(),
        )

    def describe(self) -> dict[str, Any]:
        info = {"library": f"viakit {viakit.__version__}", "transport": self.rank.route}
        operations = {operation: self.rank.algorithms(operation) for operation in self.numbers}
        operations[TURN] = [TURN]
        return {"operations": operations, "default": self.rank.default(), "info": info}

    def run(self, request: dict[str, Any]) -> tuple[bytes, bytes]:
        plan = {key: request[key] for key in _PLAN}
        number = 0 if request["operation"] == TURN else self.numbers[request["operation"]][request["algorithm"]]
        return self.rank.run(number, **plan)

    def stands_for(self, request: dict[str, Any]) -> str:
        return "" if request["operation"] == TURN else self.rank.default(request["operation"], request["nbytes"])

    def close(self) -> None:
        self.rank.close()


class _Mpi:
    """Rank of MPI."""

    def __init__(self, request: dict[str, Any], channel: Channel) -> None:
        import mpi4py  # optional package

        mpi4py.rc.thread_level = "funneled"  # With the default, the library takes a lock in every call.
        mpi4py.rc.threads = True
        from mpi4py import MPI  # optional package

        far = mpi.is_mpi(request["mpi"])  # the name of a protocol: the launcher on this host has found the library
        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.path = os.environ["MPI4PY_LIBMPI"] if far else request["mpi"]
        self.transport = "shared memory within the host" if not far else "shared memory within a host, TCP between"
        if self.comm.size != request["n_ranks"]:
            raise MeasureError(
                f"MPI has {counted(self.comm.size, 'rank')} instead of {request['n_ranks']}; mpiexec and libmpi must "
                "belong to the same MPI"
            )

    def describe(self) -> dict[str, Any]:
        name, version = self.mpi.get_vendor()
        info = {"library": f"{name} {'.'.join(map(str, version))}", "transport": self.transport}
        from viakit import _core  # start-up time

        operations = {operation: [""] for operation in _core.collective_algorithms()}
        return {"operations": operations, "default": "", "info": info, "files": sorted(mpi.shared_files())}

    def run(self, request: dict[str, Any]) -> tuple[bytes, bytes]:
        from viakit import _core  # start-up time

        handles = [self.mpi._handleof(what) for what in (self.comm, self.mpi.BYTE, self.mpi.DOUBLE, self.mpi.SUM)]
        return _core.run_mpi(self.path, *handles, self.comm.size, **{key: request[key] for key in _PLAN})

    def stands_for(self, request: dict[str, Any]) -> str:
        return ""

    def close(self) -> None:
        pass  # mpi4py finalises at exit


class _Python:
    """Rank of viakit or of MPI that a loop in Python measures, as a Python program calls them."""

    def __init__(self, request: dict[str, Any], channel: Channel) -> None:
        self.world: Any = None
        if "mpi" in request:
            rank = _Mpi(request, channel)
            self.comm: Any = rank.comm
            self.about = rank.describe()
            return
        from viakit.comm.communicator import Intracomm, World  # on use: the loop in C needs none of it

        self.world = World(
            request["rank"],
            request["n_ranks"],
            exchange=functools.partial(_exchange, channel),
            policy=request["policy"] or "via",
            network_device=request["network"],
            address=request["address"],
            secret=bytes.fromhex(request["secret"]),
        )
        self.comm = Intracomm(self.world, 0)
        route = self.world.route((request["rank"] + 1) % request["n_ranks"])
        self.about = {"default": "", "info": {"library": f"viakit {viakit.__version__}", "transport": route}}

    def describe(self) -> dict[str, Any]:
        from viakit import _core  # start-up time

        name = "" if self.world is None else "default"
        known = {operation: [name] * (operation in _PYTHON) for operation in _core.collective_algorithms()}
        return {**self.about, "operations": known}

    def run(self, request: dict[str, Any]) -> tuple[bytes, bytes]:
        mine, total = np.zeros(request["nbytes"] // 8), np.empty(request["nbytes"] // 8)
        call = self.comm.Barrier
        if request["operation"] == "allreduce":
            call = functools.partial(self.comm.Allreduce, mine, total)
        for _ in range(request["warmup"]):
            call()
        self.comm.Barrier()
        enter = time.perf_counter_ns()
        for _ in range(request["n"]):
            call()
        leave = time.perf_counter_ns()
        return np.array([enter], np.uint64).tobytes(), np.array([leave], np.uint64).tobytes()

    def stands_for(self, request: dict[str, Any]) -> str:
        return ""

    def close(self) -> None:
        if self.world is not None:
            self.world.close()


def _watch(channel: Channel, over: threading.Event) -> None:
    """Wait until the channel is closed, and make sure that the rank then ends."""
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLRDHUP)
    poll.poll()
    if not over.wait(_CLEANUP_S):
        for path in mpi.shared_files():
            with contextlib.suppress(OSError):
                os.unlink(path)
        os._exit(3)  # The main thread is in a library call that cannot be interrupted.


def _serve(channel: Channel) -> None:
    member: _Viakit | _Mpi | _Python | None = None
    channel.send({"hello": CONTROL_VERSION, "viakit": viakit.__version__, "rank": detect().rank})
    while True:
        request, _ = channel.recv()
        try:
            if request["op"] == "close":
                if member is not None:
                    member.close()
                return
            if request["op"] == "open":
                children.use_machine(request.get("machine"))
                pin(request["core"])  # before other threads start, so that they inherit the core
                ranks = _Python if request["level"] == "python" else _Mpi if "mpi" in request else _Viakit
                member = ranks(request, channel)
                channel.send({"opened": True, **member.describe()})
            else:
                assert member is not None
                channel.send({"stands_for": member.stands_for(request)}, b"".join(member.run(request)))
        except (MeasureError, RuntimeError, ImportError) as error:
            channel.send({"error": str(error)})


def main(arguments: list[str] | None = None) -> int:
    """Run a rank until the owner of the crew closes it."""
    parser = argparse.ArgumentParser(prog="viakit.measure.crew")
    parser.add_argument("--fd", type=int)
    parser.add_argument("--connect")
    parser.add_argument("--take")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The owner handles Ctrl-C.
    if options.take:
        channel = taken(options.take)
    else:
        channel = call_back(options.connect) if options.connect else Channel(socket.socket(fileno=options.fd))
    if channel is None:
        return 3  # The owner has ended already.
    over = threading.Event()
    threading.Thread(target=_watch, args=(channel, over), name="watch", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        _serve(channel)
    over.set()
    return 0
