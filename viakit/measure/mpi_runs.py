"""Runs of a program under the mpiexec of an MPI library: a worker starts one for each burst.

The coordinator chooses the library, and makes the folder and the agent for the runs. Only it can enter the hosts of a
testbed, and it also ends the processes of a worker that was killed. The workers are processes of this host, and the
ranks are on the hosts::

    coordinator: MpiRuns -- request --> worker A: agent -- mpiexec on host 0 -+- rank 0
                                                                              +- agent -- rank 1 on host 1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viakit.launch import LaunchError, mpi_agent
from viakit.launch import mpi_library as mpi
from viakit.measure.endpoints import MeasureError
from viakit.measure.ranks import MpiProcesses

__all__ = ["MpiRuns"]


class MpiRuns(MpiProcesses):
    """The folder, the agent and the end of runs.

    Parameters
    ----------
    protocol : str
        Name of the protocol, for errors.
    library : mpi.Library
        MPI library.
    cores : sequence of int
        Core of each rank.
    testbed : Testbed, optional
        Hosts of the ranks. Default: both are on this host.

    Attributes
    ----------
    request : dict
        What a worker needs to start a run: "library", "agent" and "addresses" (empty without hosts), "variables",
        "cores", "scratch".
    """

    def __init__(self, protocol: str, library: mpi.Library, cores: Sequence[int], testbed: Any = None) -> None:
        if testbed is not None and testbed.kind == "ssh":
            raise MeasureError(
                f"{protocol}: its program is started on this host, or on those of a testbed. Remedy: --hosts testbed",
                "usage",
            )
        super().__init__(library, testbed)
        self._protocol, self._cores = protocol, list(cores)
        self.request: dict[str, Any] = {}

    def open(self) -> None:
        """Make the folder and the agent. The caller holds this object first, for :meth:`kill`.

        Raises
        ------
        MeasureError
            If the hosts cannot be entered.
        """
        self.make_scratch()
        agent = None
        if self._testbed is not None:
            try:
                agent = self._stack.enter_context(mpi_agent(self._testbed))
            except LaunchError as error:
                raise MeasureError(f"{self._protocol}: {error}", "missing") from None
        library = self._library
        self.request = {
            "library": [library.flavour, library.libmpi, library.mpiexec],
            "agent": agent.path if agent else "",
            "addresses": agent.addresses if agent else [],
            "variables": self.variables(),
            "cores": self._cores,
            "scratch": self.scratch,
        }
