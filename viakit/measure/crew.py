"""A crew: the ranks of a job that measure collectives together, kept open from point to point.

::

    with Crew(4) as crew, Crew(4, mpi_library=mpi.find("mpi:mpich")) as mpich:
        ours = crew.run("default", 1000)
        theirs = mpich.run("", 1000)

Ranks are processes of this host, of a testbed's hosts, or started by ``mpiexec``. Between runs all of them sleep in
read(), so any number of crews may be open at once and be measured in turns. They end with the crew, and with the
process that made it, however that dies. :func:`main` is a rank.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import select
import signal
import socket
import tempfile
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import viakit
from viakit._words import counted
from viakit.measure import children, mpi
from viakit.measure.channel import CONTROL_VERSION, Channel
from viakit.measure.endpoints import MeasureError
from viakit.measure.ranks import Ranks
from viakit.measure.sides import pin
from viakit.measure.sweep import shielded

if TYPE_CHECKING:
    from viakit.testbed import Testbed

__all__ = ["TURN", "Crew", "Times"]

TURN = "turn"  # of the scheduler: an operation, and its only algorithm

_START_S = 60.0  # until all ranks have said hello, and until they are connected
_LAST_WORDS_S = 1.0
_PLAN = ("n", "warmup", "skew_ns", "seed", "crowded", "operation", "nbytes")  # of a request, what a rank is told to do


@dataclass
class Times:
    """What one run of a barrier measured.

    Attributes
    ----------
    seconds : ndarray of float64
        Of one barrier. Shape (1,), the mean over the run's barriers and over the ranks, if they followed one another;
        with skew shape (n,): from the arrival of the last rank until the last rank left, of each.
    """

    seconds: NDArray[np.float64]


class Crew:
    """Ranks that run barriers.

    Parameters
    ----------
    n_ranks : int
        How many.
    testbed : Testbed, optional
        Its hosts get equal shares of the ranks, in blocks. None: all on this host.
    protocol : str
        "via", "udp" (VIA over UDP between hosts) or "tcp".
    mpi_library : mpi.Library, optional
        Run MPI_Barrier of this library, on this host, instead.
    bind : str
        "core": each rank is bound to one core, in blocks (as ``mpiexec --bind-to core`` does where there are enough of
        them), those of MPI too. "none": the scheduler places them.

    Attributes
    ----------
    crowded : bool
        There are more ranks than cores.
    algorithms : list of str
        What :meth:`run` takes here; of MPI only "".
    operations : dict
        The same for each operation.
    default : str
        What "default" stands for, of barriers.
    stands_for : str
        The same of the latest run.
    info : dict
        For the result: library, route.

    Raises
    ------
    MeasureError
        If the ranks cannot be started.
    """

    def __init__(
        self,
        n_ranks: int,
        *,
        testbed: Testbed | None = None,
        protocol: str = "via",
        mpi_library: mpi.Library | None = None,
        bind: str = "core",
    ) -> None:
        if n_ranks < 1:
            raise ValueError(f"n_ranks is {n_ranks}; right would be 1 or more")
        self.n_ranks, self.protocol = n_ranks, protocol
        self._testbed, self._library = testbed, mpi_library
        self._channels: list[Channel] = []
        self._processes: list[Any] = []
        self._mpi: Ranks | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.n_hosts = len(testbed.hosts) if testbed is not None else 1
        self._cores = sorted(os.sched_getaffinity(0))
        self.crowded = n_ranks > len(self._cores)
        self._bind = bind
        self.algorithms: list[str] = []
        self.operations: dict[str, list[str]] = {}
        self.stands_for = ""
        self.default = ""
        self.info: dict[str, Any] = {}
        try:
            if mpi_library is not None:
                self._start_mpi(mpi_library)
            else:
                for rank in range(n_ranks):
                    self._start_rank(rank)
            self._open()
        except BaseException:
            self._kill()
            raise

    # ------------------------------------------------------------------------------------ starting

    def host_of(self, rank: int) -> int:
        """Return the number of the host that *rank* is on."""
        return rank * self.n_hosts // self.n_ranks

    def _start_rank(self, rank: int) -> None:
        mine, theirs = socket.socketpair()
        self._channels.append(Channel(mine))
        host = self._testbed.hosts[self.host_of(rank)] if self._testbed is not None else None
        try:
            command = _command(["--fd", str(theirs.fileno())])
            self._processes.append(children.start(command, [theirs.fileno()], self._output, host))
        finally:
            theirs.close()

    def _start_mpi(self, library: mpi.Library) -> None:
        self._mpi = Ranks(library, lambda name: _command(["--connect", name]), self.n_ranks, self._output)
        self._processes.append(self._mpi.process)
        deadline = time.monotonic() + _START_S
        while len(self._channels) < self.n_ranks:
            try:
                channel = self._mpi.accept(deadline)
            except TimeoutError:
                raise self._failed(f"the ranks did not start in {_START_S:g} s") from None
            if channel is None:
                raise self._failed("mpiexec ended")
            self._channels.append(channel)

    def _open(self) -> None:
        """Have the ranks open their world; their exchanges go through here."""
        deadline = time.monotonic() + _START_S
        for channel in self._channels:
            hello = self._recv(channel, deadline)[0]
            if hello.get("hello") != CONTROL_VERSION or hello.get("viakit") != viakit.__version__:
                raise MeasureError(f"a rank is of viakit {hello.get('viakit')}. Remedy: install one version", "version")
        for rank, channel in enumerate(self._channels):
            # In blocks: 0 0 1 1 for four ranks on two cores. The algorithms' blocks of ranks are then those of a core.
            core = self._cores[rank * len(self._cores) // self.n_ranks] if self._bind == "core" else None
            where = self._place(rank)
            self._send(channel, {"op": "open", "rank": rank, "n_ranks": self.n_ranks, "core": core, **where})
        while True:
            answers = [self._recv(channel, deadline) for channel in self._channels]
            failed = next((answer["error"] for answer, _ in answers if "error" in answer), None)
            if failed is not None:
                raise self._failed(failed)
            if all("opened" in answer for answer, _ in answers):
                break
            everybody = [blob for _, blob in answers]
            for channel in self._channels:
                self._send(channel, {"lengths": [len(blob) for blob in everybody]}, b"".join(everybody))
        first = answers[0][0]
        self.operations, self.default = first["operations"], first["default"]
        self.info = {**first["info"], "bind": self._bind}
        self.algorithms = self.operations["barrier"]
        if self._mpi is not None:
            for answer, _ in answers:
                self._mpi.remember(answer.get("files", ()))

    def _place(self, rank: int) -> dict[str, Any]:
        if self._library is not None:
            return {"mpi": self._library.libmpi}
        if self._testbed is None:
            return {"policy": "tcp" if self.protocol == "tcp" else "", "network": "", "address": ""}
        host = self._testbed.hosts[self.host_of(rank)]
        network = f"udp:{host.address}" if self.protocol == "udp" else f"eth:{host.interface}"
        return {"policy": "tcp" if self.protocol == "tcp" else "", "network": network, "address": host.address}

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
            One of :attr:`algorithms`, or of what :attr:`operations` has for the operation.
        n, warmup : int
            Barriers that are measured, and before them not.
        skew_s : float
            Each rank is late by a random time below it, before each barrier; 0: they follow one another.
        seed : int
            Of these times.
        operation : str
            "barrier", "bcast" ... :data:`TURN`: every rank gives its core away and waits until it has it back, which
            with more ranks than cores no barrier can do without.
        nbytes : int
            Of its buffer; of allgather and alltoall for each rank; of reductions a multiple of 8.

        Raises
        ------
        MeasureError
            If a rank fails; the crew is then of no use any more.
        """
        possible = self.operations[operation]
        if algorithm not in possible:
            raise ValueError(f"algorithm is {algorithm!r}; right here would be one of {', '.join(possible)}")
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
            answer, blob = self._recv(channel, deadline)
            if "error" in answer:
                raise self._failed(answer["error"])
            times = np.frombuffer(blob, dtype=np.uint64).astype(np.int64).reshape(2, -1)
            self.stands_for = answer.get("stands_for", "")
            enter.append(times[0])
            leave.append(times[1])
        if skew_s:
            return Times((np.max(leave, axis=0) - np.max(enter, axis=0)) * 1e-9)
        # Where a core has fewer ranks than another its turns are over sooner.
        of_all = np.max if operation == TURN else np.mean
        return Times(of_all(np.subtract(leave, enter), axis=0) * (1e-9 / n))

    # ------------------------------------------------------------------------------------ ending

    def _send(self, channel: Channel, message: dict[str, Any], blob: bytes = b"") -> None:
        try:
            channel.send(message, blob)
        except OSError:  # it has ended already
            raise self._failed("a rank ended") from None

    def _recv(self, channel: Channel, deadline: float) -> tuple[dict[str, Any], bytes]:
        try:
            return channel.recv(max(0.0, deadline - time.monotonic()))
        except EOFError:
            raise self._failed("a rank ended") from None
        except TimeoutError:
            raise self._failed("a rank did not answer in time") from None

    def _failed(self, why: str) -> MeasureError:
        said = children.last_words(self._output)
        name = f"mpi:{self._library.flavour}" if self._library else self.protocol
        return MeasureError(f"{name}, {counted(self.n_ranks, 'rank')}: {why}" + (f"\n{said}" if said else ""), "died")

    def close(self) -> None:
        """End the ranks. A second Ctrl-C waits until that is done."""
        with shielded():
            children.dismiss(self._channels, self._processes)
            self._kill()

    def _kill(self) -> None:
        children.end(self._channels, self._processes, self._mpi)
        self._processes, self._channels = [], []
        self._output.close()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _command(arguments: list[str]) -> list[str]:
    """Return the command of a rank."""
    return children.command("viakit.measure.crew", arguments)


# ---------------------------------------------------------------------------------------------- a rank


class _Ours:
    """A rank of viakit's."""

    def __init__(self, request: dict[str, Any], channel: Channel) -> None:
        from viakit import _core

        def exchange(blob: bytes) -> list[bytes]:
            channel.send({"exchange": 1}, blob)
            answer, everybody = channel.recv()
            ends = np.cumsum([0, *answer["lengths"]])
            return [everybody[a:b] for a, b in itertools.pairwise(ends)]

        self.numbers = {
            operation: {name: i for i, name in enumerate(names)}
            for operation, names in _core.collective_algorithms().items()
        }
        self.rank = _core.BarrierRank(
            request["rank"],
            request["n_ranks"],
            exchange,
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
    """A rank of MPI's."""

    def __init__(self, request: dict[str, Any], channel: Channel) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"  # the default would make the library lock around every call
        mpi4py.rc.threads = True
        from mpi4py import MPI

        self.mpi, self.comm, self.path = MPI, MPI.COMM_WORLD, request["mpi"]
        if self.comm.size != request["n_ranks"]:
            raise MeasureError(
                f"MPI has {counted(self.comm.size, 'rank')} instead of {request['n_ranks']}: mpiexec and libmpi differ"
            )

    def describe(self) -> dict[str, Any]:
        name, version = self.mpi.get_vendor()
        info = {"library": f"{name} {'.'.join(map(str, version))}", "transport": "shared memory within the host"}
        from viakit import _core

        operations = {operation: [""] for operation in _core.collective_algorithms()}
        return {"operations": operations, "default": "", "info": info, "files": sorted(mpi.shared_files())}

    def run(self, request: dict[str, Any]) -> tuple[bytes, bytes]:
        from viakit import _core

        handles = [self.mpi._handleof(what) for what in (self.comm, self.mpi.BYTE, self.mpi.DOUBLE, self.mpi.SUM)]
        return _core.run_mpi(self.path, *handles, self.comm.size, **{key: request[key] for key in _PLAN})

    def stands_for(self, request: dict[str, Any]) -> str:
        return ""

    def close(self) -> None:
        pass  # mpi4py finalises at exit


def _watch(channel: Channel, over: threading.Event) -> None:
    """Wait for the end of the channel, and see to it that the rank ends too."""
    poll = select.poll()
    poll.register(channel.fileno(), select.POLLRDHUP)
    poll.poll()
    if not over.wait(_LAST_WORDS_S):
        for path in mpi.shared_files():
            with contextlib.suppress(OSError):
                os.unlink(path)
        os._exit(3)  # the main thread is inside a library that cannot be interrupted


def _serve(channel: Channel) -> None:
    member: _Ours | _Mpi | None = None
    channel.send({"hello": CONTROL_VERSION, "viakit": viakit.__version__})
    while True:
        request, _ = channel.recv()
        try:
            if request["op"] == "close":
                if member is not None:
                    member.close()
                return
            if request["op"] == "open":
                pin(request["core"])  # before there are threads that would stay elsewhere
                member = _Mpi(request, channel) if "mpi" in request else _Ours(request, channel)
                channel.send({"opened": True, **member.describe()})
            else:
                assert member is not None
                channel.send({"stands_for": member.stands_for(request)}, b"".join(member.run(request)))
        except (MeasureError, RuntimeError, ImportError) as error:
            channel.send({"error": str(error)})


def main(arguments: list[str] | None = None) -> int:
    """Be a rank, until the crew's owner is done with it."""
    parser = argparse.ArgumentParser(prog="viakit.measure.crew")
    parser.add_argument("--fd", type=int)
    parser.add_argument("--connect")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to answer
    if options.connect:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect("\0" + options.connect)
        except OSError:
            return 3  # the owner has gone already
    else:
        sock = socket.socket(fileno=options.fd)
    channel, over = Channel(sock), threading.Event()
    threading.Thread(target=_watch, args=(channel, over), name="watch", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        _serve(channel)
    over.set()
    return 0
