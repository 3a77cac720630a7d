"""Ranks of an MPI library on machines that ssh reaches, which connect back to this process."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from viakit.base.channel import Channel
from viakit.launch.far_mpi import FarMpi

if TYPE_CHECKING:
    from viakit.remote import Remote

__all__ = ["FarRanks"]


class FarRanks:
    """A running mpiexec whose ranks are on machines that ssh reaches; the interface of :class:`.ranks.Ranks`.

    Parameters
    ----------
    wish : str
        "mpi", "mpi:mpich" or "mpi:openmpi"; each host must have the library.
    program : callable
        Returns the command of a rank, on this machine, for the name of a Unix socket: see
        :func:`viakit.launch.far_mpi.taken`.
    hosts_of : sequence of int
        The index of the host of each rank.
    output : file
        File for the output of mpiexec and of the ranks.
    remote : viakit.remote.Remote
        The hosts.

    Attributes
    ----------
    process : viakit.testbed.HostProcess or None
        The mpiexec on host 0; None before :meth:`start`.
    scratch : None
        The library's files are in a temporary folder of each host.
    """

    scratch = None

    def __init__(
        self, wish: str, program: Callable[[str], list[str]], hosts_of: Sequence[int], output: IO[bytes], remote: Remote
    ) -> None:
        self._mpi = FarMpi(wish, remote, hosts_of, output)
        self._program, self._output = program, output
        self._waiting: list[Channel] = []  # those of ranks that have not connected yet
        self.process: Any = None

    @property
    def flavour(self) -> str:
        """Family of the library, "mpich" or "openmpi"; "" before :meth:`start`."""
        return self._mpi.flavour

    def start(self) -> None:
        """Start mpiexec. The caller holds this object first, so that :meth:`kill` finds all after an interrupt.

        Raises
        ------
        MeasureError
            If a host lacks the library, or has another version of it.
        viakit.remote.RemoteError
            If a host is lost.
        """
        self._mpi.open(with_sockets=True)
        self._waiting = [place.ranks.pop() for place in self._mpi.places for _ in [*place.ranks]]
        try:
            self.process = self._mpi.places[0].host.popen(
                self._mpi.command(lambda place: self._program(place.sockets)),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=self._mpi.environment(),
            )
        except BaseException:
            self.kill()
            raise

    def accept(self, deadline: float) -> Channel | None:
        """Wait for the connection of a rank; as :meth:`.ranks.Ranks.accept`."""
        while True:
            ready = select.select(self._waiting, [], [], 0.1)[0]
            if ready:
                self._waiting.remove(ready[0])
                return ready[0]
            if self.process is None or self.process.poll() is not None:
                return None
            if time.monotonic() > deadline:
                raise TimeoutError

    def remember(self, files: Iterable[str]) -> None:
        """Register files in /dev/shm of the hosts, to be removed after the ranks have ended."""
        self._mpi.remember(files)

    def kill(self) -> None:
        """Kill all remaining processes on all hosts. Idempotent."""
        self._mpi.kill()
        while self._waiting:
            self._waiting.pop().close()
