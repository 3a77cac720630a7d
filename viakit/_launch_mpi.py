"""Ranks started by an MPI's own launcher: ``viakit run --protocol mpi``, ``mpi:mpich``, ``mpi:openmpi``.

To :class:`viakit._launch.Launch` such a job is one process, ``mpiexec``, whose ranks are its own affair: who they are,
and that all of them end when one fails. What they write on this machine comes to us by named pipes, two for each rank:
``mpiexec`` passes on what it reads as it comes, so that lines have several ranks in them, and MPICH's puts a label
before each piece. On hosts of a testbed ``mpiexec`` reaches them by the agent that stands in for ssh there, and their
output is left to it.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import signal
import tempfile
import time
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from viakit._launch import Launch, Options, _Guard, _how
from viakit._launch_output import Stream
from viakit._words import counted
from viakit.launch import LaunchError

if TYPE_CHECKING:
    from viakit._launch import _Rank
    from viakit.testbed import Host

__all__ = ["MpiLaunch", "is_mpi"]

_MARK = "VIAKIT_MPI_JOB"  # in the environment of all that mpiexec starts: how strays are known
_GONE_S = 5.0  # until the last of what has been killed is gone
_MPICH_FILES = "/dev/shm/mpich_shm_*"
_OURS = re.compile(r"VIAKIT_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|RENDEZVOUS|JOB|PROTOCOL)$")
# A rank's command, of which mpiexec says which rank it is. The pipes are open for reading before.
_TO_PIPES = f'rank=${{PMI_RANK-$OMPI_COMM_WORLD_RANK}}; exec "$@" >"${_MARK}/$rank.out" 2>"${_MARK}/$rank.err"'


def is_mpi(protocol: str | None) -> bool:
    """Whether the protocol is an MPI library's: "mpi", "mpi:mpich", "mpi:openmpi"."""
    return protocol is not None and protocol.partition(":")[0] == "mpi"


class MpiLaunch(Launch):
    """One job under ``mpiexec``; arguments as for :class:`viakit._launch.Launch`.

    Raises
    ------
    LaunchError
        If mpi4py or the MPI library is missing, or the hosts cannot have equally many ranks; the text says what to do.
    """

    def __init__(
        self, command: list[str], options: Options, out: IO[bytes] | None = None, err: IO[bytes] | None = None
    ) -> None:
        from viakit.measure import mpi
        from viakit.measure.endpoints import MeasureError

        wish = options.protocol if is_mpi(options.protocol) else options.launcher
        assert wish is not None
        try:
            self._library = mpi.find(wish)
        except MeasureError as error:
            raise LaunchError(str(error)) from error
        except KeyError as error:
            raise LaunchError(f"protocol {wish!r}: right would be mpi, mpi:mpich or mpi:openmpi") from error
        if options.hosts and (options.ranks % options.hosts or options.placement != "block"):
            raise LaunchError(
                f"{counted(options.ranks, 'rank')} on {counted(options.hosts, 'host')}: under mpiexec "
                "every host has equally many, neighbours together (--placement block)"
            )
        super().__init__(command, replace(options, label=False), out, err)
        self._label, self._alone = options.label, bool(options.hosts) or options.ranks == 1
        self._held_open: list[int] = []  # our own writing ends of the ranks' pipes: no rank may have opened its yet
        self._before = _mpich_files()
        self._scratch = tempfile.TemporaryDirectory(prefix="viakit-mpi-")

    def run(self) -> int:
        """Start mpiexec and wait for its end; see :meth:`viakit._launch.Launch.run`."""
        with self._scratch, contextlib.ExitStack() as stack:
            self._stack = stack
            return super().run()

    def _start(self) -> None:
        options, library = self._options, self._library
        self._guard = _Guard()
        self._guard.tell(os.path.abspath(self._scratch.name))
        if library.flavour == "mpich":
            self._guard.tell("*" + _MPICH_FILES)
        if options.hosts:
            from viakit.launch import mpi_agent
            from viakit.testbed import Testbed

            # The launcher closes the testbed when all is over, and the agent's files go last.
            self._testbed = Testbed(options.hosts, options.mtu, options.rate).open()
            agent = self._stack.enter_context(mpi_agent(self._testbed))
            words = [f"{name}={value}" for name, value in self._for_ranks().items()]
            self._command = agent.command(library, options.ranks // options.hosts, ["env", *words, *self._command])
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
        """Make two pipes for each rank, and read them as if the rank were a process of ours."""
        for rank in range(self._options.ranks):
            for name, sink in (("out", self._out), ("err", self._err)):
                path = os.path.join(self._scratch.name, f"{rank}.{name}")
                os.mkfifo(path, 0o600)
                source = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0)
                self._streams[source.fileno()] = Stream(rank, source, sink, self._label, False)
                self._held_open.append(os.open(path, os.O_WRONLY))

    def _let_pipes_end(self) -> None:
        while self._held_open:
            os.close(self._held_open.pop())

    def _for_ranks(self) -> dict[str, str]:
        """What is said to the ranks beyond what the launcher says."""
        threads = str(max(1, (os.cpu_count() or 1) * max(1, self._options.hosts) // self._options.ranks))
        wanted = {name: os.environ.get(name, threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        protocol = "mpi" if self._options.launcher is None or is_mpi(self._options.protocol) else self._options.protocol
        return {
            **({"VIAKIT_PROTOCOL": protocol} if protocol else {}),
            **({"VIAKIT_POLICY": self._options.policy} if self._options.policy else {}),
            "MPI4PY_LIBMPI": self._library.libmpi,
            _MARK: self._scratch.name,
            "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
            **wanted,
            **self._options.environment,
        }

    def _environment(self, number: int, host: Host | None, local_rank: int, fd: int) -> dict[str, str]:
        inherited = super()._environment(number, host, local_rank, fd)
        environment = {name: value for name, value in inherited.items() if not _OURS.match(name)}
        environment |= self._library.environment(self._scratch.name) | self._for_ranks()
        if self._options.hosts and self._library.flavour == "openmpi":
            environment["OMPI_MCA_btl"] = inherited.get("OMPI_MCA_btl", "self,sm,tcp")
        return environment

    def _ended(self, rank: _Rank) -> None:
        if rank.status != 0:
            self._end_strays()  # they would hold their pipes open
        self._let_pipes_end()
        if rank.status == 0 or self._ending_at is not None:
            super()._ended(rank)
            return
        assert self._guard is not None
        self._guard.tell(f"-{rank.process.pid}")
        self._failed = rank
        self._say(f"{os.path.basename(self._library.mpiexec)} ({self._library.flavour}) ended {_how(rank)}")

    def _clear_away(self) -> None:
        super()._clear_away()
        self._let_pipes_end()
        if self._interrupted is None and all(rank.status == 0 for rank in self._ranks):
            return
        self._end_strays()
        if self._library.flavour != "mpich":
            return
        for path in _mpich_files() - self._before:  # MPICH leaves them where a rank was aborted or killed
            if not _is_mapped(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _end_strays(self) -> None:
        """End what mpiexec left: Open MPI's ranks have process groups of their own, and outlive it by a second."""
        from viakit.measure import mpi

        deadline = time.monotonic() + _GONE_S
        while (strays := mpi.marked(_MARK, self._scratch.name)) and time.monotonic() < deadline:
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)


def _mpich_files() -> set[str]:
    """MPICH's shared files that belong to this user."""
    found = set()
    for path in glob.glob(_MPICH_FILES):
        with contextlib.suppress(OSError):
            if os.stat(path).st_uid == os.geteuid():
                found.add(path)
    return found


def _is_mapped(path: str) -> bool:
    """Whether a process, of this job or of another, has a file in its memory."""
    for maps in glob.glob("/proc/[0-9]*/maps"):
        with contextlib.suppress(OSError), open(maps, encoding="utf-8", errors="replace") as file:
            if path in file.read():
                return True
    return False
