"""Processes that measure, from their owner's side: how they are started, dismissed, and killed if they do not end."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, ClassVar

import viakit
from viakit.base import secret
from viakit.base.channel import CONTROL_VERSION, Channel
from viakit.base.failure import MeasureError
from viakit.base.process import command
from viakit.launch.mpi_library import Library, find
from viakit.measure.endpoints import Protocol
from viakit.measure.far_ranks import FarRanks
from viakit.measure.mpi_runs import MpiRuns
from viakit.measure.ranks import Ranks

if TYPE_CHECKING:
    from viakit.remote import Remote, RemoteHost
    from viakit.testbed import Host, Testbed

__all__ = ["Team", "last_words", "use_machine", "with_hosts"]

_CLOSE_S = 5.0  # time for processes to end after the request to close


def use_machine(text: str | None) -> None:
    """Give this process, a worker, the numbers of a machine, on which its link ``sim`` then runs; None: no machine."""
    if text is None or "VIAKIT_MACHINE" in os.environ:
        return
    fd = os.memfd_create("viakit-machine")
    os.write(fd, text.encode())
    os.environ["VIAKIT_MACHINE"] = f"/proc/self/fd/{fd}"


def last_words(output: IO[bytes]) -> str:
    """Return the end of the processes' output."""
    output.seek(0)
    return output.read()[-2000:].decode(errors="replace").strip()


def with_hosts(text: str, testbed: Testbed | Remote | None) -> str:
    """Return the text of a failure, with the hosts of both sides if they are real machines that it does not name."""
    if testbed is None or testbed.kind != "ssh" or any(f"host {host.name}" in text for host in testbed.hosts):
        return text
    first, line, rest = text.partition("\n")
    places = " and ".join(f"{host.name} ({host.address or host.interface})" for host in testbed.hosts)
    return f"{first.rstrip(';:')}; it was measured between {places}{line}{rest}"


class Team:
    """Processes that measure, and a control channel to each side that runs in them. Base of pairs and crews."""

    module: ClassVar[str]  # its main() runs in each process
    member: ClassVar[str]  # a process, in messages
    start_s: ClassVar[float]  # limit for the start of all processes

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """Set the state in which no process has been started."""
        self._channels: list[Channel] = []
        self._processes: list[Any] = []
        self._mpi: Ranks | FarRanks | None = None
        self._mpi_runs: MpiRuns | None = None
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _kill()
        self._secret = secret.new()  # Only these processes have it, so concurrent measurements stay apart.

    def _failed(self, why: str, reason: str = "died") -> MeasureError:
        """Return the error of this measurement."""
        raise NotImplementedError

    def _start_process(self, host: Host | RemoteHost | None, n_sides: int = 1, fds: Sequence[int] = ()) -> None:
        """Start one process with a channel for each of its sides. It also inherits *fds*."""
        ends = [socket.socketpair() for _ in range(n_sides)]
        self._channels += [Channel(mine) for mine, _ in ends]
        inherited = [sock.fileno() for _, sock in ends]
        words = command(self.module, [part for fd in inherited for part in ("--fd", str(fd))])
        how: dict[str, Any] = {"pass_fds": [*inherited, *fds], "stdin": subprocess.DEVNULL}
        how |= {"stdout": self._output, "stderr": self._output}
        try:
            self._processes.append(subprocess.Popen(words, **how) if host is None else host.popen(words, **how))
        finally:
            for _, sock in ends:
                sock.close()

    def _start_ranks(
        self, library: Library | str, n_ranks: int, testbed: Any = None, host_of: Callable[[int], int] | None = None
    ) -> Iterator[Channel]:
        """Start the processes under mpiexec, and yield the channel of each one when it connects.

        With several hosts each one gets an equal number, unless *host_of* returns the index of each rank's host.
        *library* may be the name of a protocol: each of the machines that ssh reaches has its own.
        """
        words = lambda how: lambda name: command(self.module, [how, name])  # noqa: E731
        if isinstance(library, str):
            where = host_of or (lambda rank: rank * len(testbed.hosts) // n_ranks)
            self._mpi = FarRanks(library, words("--take"), [*map(where, range(n_ranks))], self._output, testbed)
        else:
            self._mpi = Ranks(library, words("--connect"), n_ranks, self._output, testbed)
        self._mpi.start()
        self._processes.append(self._mpi.process)
        deadline = time.monotonic() + self.start_s
        for _ in range(n_ranks):
            try:
                channel = self._mpi.accept(deadline)
            except TimeoutError:
                raise self._failed(f"the ranks did not start in {self.start_s:g} s", "timeout") from None
            if channel is None:
                raise self._failed("mpiexec ended")
            yield channel

    def _open_runs(self, protocol: Protocol, cores: Sequence[int], testbed: Any) -> None:
        """Make what the workers need to run a program under the mpiexec of the protocol's library."""
        self._mpi_runs = MpiRuns(protocol.name, find(protocol.library), cores, testbed)
        self._mpi_runs.open()

    def _receive(self, channel: Channel, deadline: float) -> tuple[dict[str, Any], bytes]:
        """Receive one message. Raises MeasureError if the process has ended, or at *deadline*."""
        try:
            return channel.recv(max(0.0, deadline - time.monotonic()))
        except EOFError:
            raise self._failed(f"a {self.member} ended") from None
        except TimeoutError:
            raise self._failed(f"a {self.member} did not reply in time", "timeout") from None

    def _hello(self, channel: Channel, deadline: float) -> dict[str, Any]:
        """Receive the first message of a side. Raises MeasureError if it is of another version."""
        hello, _ = self._receive(channel, deadline)
        if hello.get("hello") != CONTROL_VERSION or hello.get("viakit") != viakit.__version__:
            raise MeasureError(
                f"the {self.member} is of viakit {hello.get('viakit')} (control version {hello.get('hello')}), this is "
                f"viakit {viakit.__version__} (control version {CONTROL_VERSION}). Remedy: install one version, once",
                "version",
            )
        return hello

    def _dismiss(self) -> None:
        """Request all processes to end, and wait for them."""
        for channel in self._channels:
            with contextlib.suppress(OSError):
                channel.send({"op": "close"})
        deadline = time.monotonic() + _CLOSE_S
        for process in self._processes:
            with contextlib.suppress(Exception):  # TimeoutExpired, or the testbed's HostTimeoutError
                process.wait(timeout=max(0.0, deadline - time.monotonic()))

    def _begin_again(self) -> None:
        """End all processes, so that the caller can start new ones."""
        self._dismiss()
        self._end()
        self._begin()

    def _end(self) -> None:
        """Kill all processes that still run, and release everything."""
        for channel in self._channels:
            channel.close()
        for started in (self._mpi, self._mpi_runs):
            if started is not None:
                started.kill()
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(Exception):
                    process.kill()
            with contextlib.suppress(Exception):
                process.wait(timeout=_CLOSE_S)
        self._output.close()
