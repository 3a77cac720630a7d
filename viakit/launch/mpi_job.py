"""Ranks started by an MPI's own launcher: ``viakit run --protocol mpi``, ``mpi:mpich``, ``mpi:openmpi``.

To :class:`viakit.launch.runner.Launch` such a job is one process, ``mpiexec``. It numbers its ranks, and ends all of
them when one fails. On this machine each rank writes its output to two named pipes, which the launcher reads.
``mpiexec`` itself passes on pieces as they arrive, so that one line can mix several ranks. MPICH's also puts a label
before each piece. On a testbed ``mpiexec`` starts ranks on other hosts through an agent in place of ssh, and
passes on their output itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from viakit.base.failure import MeasureError
from viakit.base.marks import marked
from viakit.base.words import counted
from viakit.launch import LaunchError, mpi_agent
from viakit.launch import mpi_library as mpi
from viakit.launch.guard import Guard
from viakit.launch.output import Stream
from viakit.launch.runner import Launch, Options, how_ended

if TYPE_CHECKING:
    from viakit.launch.runner import _Rank
    from viakit.testbed import Host

__all__ = ["OURS", "MpiLaunch", "library_wanted", "rank_variables"]

_MARK = "VIAKIT_MPI_JOB"  # in the environment of all processes below mpiexec: identifies strays
_GONE_S = 5.0  # for the killed processes to end
# Variables of viakit's own ranks. The secret is removed because mpiexec may send its environment over a network in the
# clear. Rank 0 draws another secret (viakit.launch).
OURS = re.compile(r"VIAKIT_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|RENDEZVOUS|JOB|PROTOCOL|SECRET)$")
# A rank's command. mpiexec sets the rank's number. The launcher has opened the pipes for reading before.
_TO_PIPES = f'rank=${{PMI_RANK-$OMPI_COMM_WORLD_RANK}}; exec "$@" >"${_MARK}/$rank.out" 2>"${_MARK}/$rank.err"'


def library_wanted(options: Options) -> str:
    """Return the MPI that starts a job: "mpi", "mpi:mpich" or "mpi:openmpi"."""
    wish = options.protocol if mpi.is_mpi(options.protocol) else options.launcher
    assert wish is not None
    return wish


def rank_variables(options: Options, threads: int) -> dict[str, str]:
    """Return the variables of all ranks that an MPI starts; *threads* is the number of cores for one."""
    count = str(max(1, threads))
    by_mpi = options.launcher is None or mpi.is_mpi(options.protocol)
    protocol = "mpi" if by_mpi else options.protocol
    return {
        **({"VIAKIT_PROTOCOL": protocol} if protocol else {}),
        **({"VIAKIT_POLICY": options.policy} if options.policy else {}),
        "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
        **{name: os.environ.get(name, count) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")},
        **options.environment,
    }


class MpiLaunch(Launch):
    """One job under ``mpiexec``; arguments as for :class:`viakit.launch.runner.Launch`.

    Raises
    ------
    LaunchError
        If mpi4py or the MPI library is missing, or the ranks cannot be distributed equally. The message names the
        remedy.
    """

    def __init__(
        self, command: list[str], options: Options, out: IO[bytes] | None = None, err: IO[bytes] | None = None
    ) -> None:
        wish = library_wanted(options)
        try:
            self._library = mpi.find(wish)
        except MeasureError as error:
            raise LaunchError(str(error)) from error
        except KeyError as error:
            raise LaunchError(f"protocol {wish!r}: expected mpi, mpi:mpich or mpi:openmpi") from error
        if options.n_hosts and (options.ranks % options.n_hosts or options.placement != "block"):
            raise LaunchError(
                f"{counted(options.ranks, 'rank')} on {counted(options.n_hosts, 'host')}: under mpiexec "
                "every host has equally many, neighbours together (--placement block)"
            )
        super().__init__(command, replace(options, label=False), out, err)
        self._label, self._alone = options.label, bool(options.hosts) or options.ranks == 1
        self._held_open: list[int] = []  # the launcher's writing ends of the pipes, until the ranks open theirs
        self._before = mpi.mpich_files()
        self._scratch = tempfile.TemporaryDirectory(prefix="viakit-mpi-")

    def run(self) -> int:
        """Start mpiexec and wait for its end; see :meth:`viakit.launch.runner.Launch.run`."""
        with self._scratch, contextlib.ExitStack() as stack:
            self._stack = stack
            return super().run()

    def _start(self) -> None:
        options, library = self._options, self._library
        self._guard = Guard()
        self._guard.report(os.path.abspath(self._scratch.name))
        if library.flavour == "mpich":
            self._guard.report("*" + mpi.MPICH_FILES)
        if options.hosts:
            from viakit.testbed import Testbed  # start-up time

            # The launcher closes the testbed at the end of the job. The agent's files are removed last.
            self._testbed = Testbed(options.n_hosts, options.mtu, options.rate).open()
            agent = self._stack.enter_context(mpi_agent(self._testbed))
            words = [f"{name}={value}" for name, value in self._rank_variables().items()]
            self._command = agent.command(library, options.ranks // options.n_hosts, ["env", *words, *self._command])
            if self._label:
                raise LaunchError("--label under mpiexec is for ranks of this machine")
        else:
            command = self._command
            if self._label or not self._alone:
                command = ["sh", "-c", _TO_PIPES, "sh", *command]
                self._open_pipes()
            self._command = library.command(command, options.ranks)
        self._start_rank(0, None, 0)

    def _open_pipes(self) -> None:
        """Make two pipes for each rank, and read them like the output of a rank that viakit started."""
        for rank in range(self._options.ranks):
            for name, sink in (("out", self._out), ("err", self._err)):
                path = os.path.join(self._scratch.name, f"{rank}.{name}")
                os.mkfifo(path, 0o600)
                source = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
                self._streams[source.fileno()] = Stream(rank, source, sink, self._label, False)
                self._held_open.append(os.open(path, os.O_WRONLY))

    def _close_pipes(self) -> None:
        """Close the launcher's writing ends, so that the pipes end with the ranks."""
        while self._held_open:
            os.close(self._held_open.pop())

    def _rank_variables(self) -> dict[str, str]:
        """Return the variables that the ranks get in addition to those of ``mpiexec``."""
        n_cores = (os.cpu_count() or 1) * max(1, self._options.n_hosts)
        common = rank_variables(self._options, n_cores // self._options.ranks)
        return {"MPI4PY_LIBMPI": self._library.libmpi, _MARK: self._scratch.name, **common}

    def _environment(self, number: int, host: Host | None, local_rank: int, fd: int) -> dict[str, str]:
        inherited = super()._environment(number, host, local_rank, fd)
        environment = {name: value for name, value in inherited.items() if not OURS.match(name)}
        environment |= self._library.environment(self._scratch.name) | self._rank_variables()
        if self._options.hosts and self._library.flavour == "openmpi":
            environment["OMPI_MCA_btl"] = inherited.get("OMPI_MCA_btl", "self,sm,tcp")
        return environment

    def _ended(self, rank: _Rank) -> None:
        if rank.status != 0:
            self._end_strays()  # strays would hold their pipes open
        self._close_pipes()
        if rank.status == 0 or self._ending_at is not None:
            super()._ended(rank)
            return
        assert self._guard is not None
        self._guard.report(f"-{rank.process.pid}")
        self._failed = rank
        self._report(f"{os.path.basename(self._library.mpiexec)} ({self._library.flavour}) ended {how_ended(rank)}")

    def _clear_away(self) -> None:
        super()._clear_away()
        self._close_pipes()
        if self._interrupted is None and all(rank.status == 0 for rank in self._ranks):
            return
        self._end_strays()
        if self._library.flavour != "mpich":
            return
        mpi.remove_files(mpi.mpich_files() - self._before)  # MPICH leaves files if a rank was aborted or killed

    def _end_strays(self) -> None:
        """Kill the processes that mpiexec left.

        Open MPI's ranks have their own process groups, and outlive it by a second.
        """
        deadline = time.monotonic() + _GONE_S
        while (strays := marked(_MARK, self._scratch.name)) and time.monotonic() < deadline:
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
