"""Jobs on machines that ssh reaches, started by an MPI's own launcher: ``viakit run --hosts ssh:A,B --protocol mpi``.

To :class:`viakit.launch.runner.Launch` such a job is one process, the ``mpiexec`` on the first machine
(:mod:`viakit.launch.far_mpi`). It passes on the output of all ranks as it arrives, and ends them when one fails.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import IO, TYPE_CHECKING

from viakit.base.failure import MeasureError
from viakit.base.secret import FILE
from viakit.launch import LaunchError
from viakit.launch.far_mpi import FarMpi, Place
from viakit.launch.mpi_job import OURS, library_wanted, rank_variables
from viakit.launch.runner import Launch, Options, how_ended, open_hosts

if TYPE_CHECKING:
    from viakit.launch.runner import _Rank
    from viakit.remote import Remote
    from viakit.testbed import Host

__all__ = ["FarMpiLaunch"]

_DOUBT_S = 0.6  # from the end of mpiexec until a connection notices the loss of a machine, which may have caused it
_MPIEXEC_S = 5.0  # from the end of the last rank to that of mpiexec, on a busy machine


class FarMpiLaunch(Launch):
    """One job under the ``mpiexec`` of the first machine; arguments as for :class:`viakit.launch.runner.Launch`.

    Raises
    ------
    LaunchError
        If a label is wanted. :meth:`run` raises it if a machine lacks the library, or has another version of it.
    """

    def __init__(
        self, command: list[str], options: Options, out: IO[bytes] | None = None, err: IO[bytes] | None = None
    ) -> None:
        if options.label:
            raise LaunchError("--label under mpiexec is for ranks of this machine")
        super().__init__(command, options, out, err)
        self._alone = True  # output is passed on as mpiexec writes it
        self._mpi: FarMpi | None = None
        self._names = ""
        self._ranks_ended_at: float | None = None

    def _start(self) -> None:
        """Connect to the machines, find the library on each, and start mpiexec on the first."""
        options = self._options
        remote: Remote = open_hosts(options, self._is_interrupted)  # type: ignore[assignment]
        self._testbed = remote
        self._names = ", ".join(f"{host.name} is {host.address}" for host in remote.hosts)
        where = [options.host_of(rank) for rank in range(options.ranks)]
        self._mpi = FarMpi(library_wanted(options), remote, where)
        try:
            self._mpi.open()
        except MeasureError as error:
            raise LaunchError(str(error)) from error
        self._command = self._mpi.command(self._program)
        self._start_rank(0, remote.hosts[0], 0)  # type: ignore[arg-type]

    def _program(self, place: Place) -> list[str]:
        """Return the command of the ranks on a machine, with their variables."""
        options, host = self._options, place.host
        here = [options.host_of(rank) for rank in range(options.ranks)].count(host.index)
        kept = [name for name in os.environ if name.startswith("VIAKIT_") and not OURS.match(name)]
        ours = {name: os.environ[name] for name in kept if name not in ("VIAKIT_SSH", FILE)}
        ours |= {"VIAKIT_NETWORK": host.device, "VIAKIT_ADDRESS": host.address}
        ours |= rank_variables(options, len(host.cores) // here)
        return ["env", *(f"{name}={value}" for name, value in ours.items()), *host.translated(self._command)]

    def _environment(self, number: int, host: Host | None, local_rank: int, fd: int) -> dict[str, str]:
        """Return the variables of mpiexec; those of the ranks are in its command."""
        assert self._mpi is not None
        return self._mpi.environment()

    def _turn(self) -> None:
        """Wait for events. End the job if a machine is lost, because mpiexec may notice it much later.

        Also end it if mpiexec still runs _MPIEXEC_S after the last rank: that of Open MPI 5 sometimes never ends after
        a rank was killed.
        """
        super()._turn()
        if self._ending_at is not None or self._testbed is None:
            return
        lost = self._lost()
        if lost is not None and self._failed is None:
            self._failed = self._ranks[0]
            self._report(f"{lost}; the job is ended")
            self._end_all()
        elif self._failed is None and self._ranks[0].status is None and self._mpiexec_is_late():
            assert self._mpi is not None
            self._failed = self._ranks[0]
            self._report(
                f"mpiexec ({self._mpi.flavour}) has not ended {_MPIEXEC_S:g} s after all of its ranks: it is ended, "
                f"and their exit statuses are lost; {self._names}"
            )
            self._end_all()

    def _lost(self, wait_s: float = 0.0) -> str | None:
        """Return why a machine is lost, or None. `wait_s`: time for the connections to notice it."""
        assert self._testbed is not None
        deadline = time.monotonic() + wait_s
        while True:
            for host in self._testbed.hosts:
                if host.trouble is not None:
                    return host.trouble
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.02)

    def _mpiexec_is_late(self) -> bool:
        """Return whether all ranks ended more than _MPIEXEC_S ago."""
        if self._ranks_ended_at is None and self._mpi is not None and self._mpi.ranks_have_ended():
            self._ranks_ended_at = time.monotonic()
        return self._ranks_ended_at is not None and time.monotonic() > self._ranks_ended_at + _MPIEXEC_S

    def _ended(self, rank: _Rank) -> None:
        """Handle the end of mpiexec."""
        failed = rank.status != 0 and self._ending_at is None
        if failed and self._failed is None:
            assert self._mpi is not None
            self._failed = rank
            ending = f"mpiexec ({self._mpi.flavour}) ended {how_ended(rank)}; {self._names}"
            self._report(self._lost(_DOUBT_S) or ending)  # mpiexec may notice it first
        if rank.status != 0 and self._mpi is not None:
            self._mpi.kill()  # strays would hold the output open

    def _clear_away(self) -> None:
        if self._mpi is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._mpi.kill()
        super()._clear_away()
