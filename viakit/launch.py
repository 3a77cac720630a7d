"""Jobs of several ranks: starting them (``viakit run``), and finding out within one who the others are.

:func:`bootstrap` is what a program's rank calls, directly or through :mod:`viakit.comm`. It works under ``viakit run``,
under ``mpirun`` and ``mpiexec`` of MPICH and Open MPI, under ``srun``, and alone::

    from viakit.launch import bootstrap

    job = bootstrap()
    names = job.exchange(f"rank {job.rank} of {job.size}".encode())

:func:`run` starts ranks on this machine, or on hosts of a testbed.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from viakit._leaving import Teller
from viakit._limits import seconds
from viakit._rendezvous import RendezvousError, connect, listen_for, unix_name

if TYPE_CHECKING:
    from viakit._launch_agent import Agent
    from viakit.testbed import Testbed

__all__ = ["Job", "LaunchError", "RendezvousError", "bootstrap", "detect", "mpi_agent", "run"]

EXCHANGE_TIMEOUT_S = 60.0
_WAYS = ("mpi4py", "pmi", "rendezvous")


class LaunchError(RuntimeError):
    """A job cannot be started, or this rank cannot find out what job it belongs to."""


@dataclass(frozen=True)
class Place:
    """What the environment says of this process: see :func:`detect`."""

    launcher: str
    rank: int
    size: int


@dataclass
class Job:
    """A process's place in its job, and the way to the other ranks before there is any communicator.

    Attributes
    ----------
    launcher : str
        "viakit", "mpich", "openmpi", "srun" or "alone".
    rank, size : int
        Who this is, of how many.
    network_device : str or None
        What ``VIAKIT_NETWORK`` says: the NIC for ranks on other hosts, "eth:eth0", "udp:10.0.0.1"; None: not said.
    address : str or None
        What ``VIAKIT_ADDRESS`` says: an IP address of this host that the others can reach.
    protocol, policy : str or None
        What ``VIAKIT_PROTOCOL`` and ``VIAKIT_POLICY`` say.
    way : str
        How blobs travel: "rendezvous", "mpi4py", "pmi" or "" (one rank).
    """

    launcher: str
    rank: int
    size: int
    network_device: str | None
    address: str | None
    protocol: str | None
    policy: str | None
    way: str = ""
    _exchange: Callable[[bytes, float], list[bytes]] | None = field(default=None, repr=False)
    _closers: list[Callable[[], None]] = field(default_factory=list, repr=False)
    _teller: Teller | None = field(default=None, repr=False)

    def exchange(self, blob: bytes, timeout: float | None = EXCHANGE_TIMEOUT_S) -> list[bytes]:
        """Give `blob` and return the blobs of all ranks, in their order. Collective; Ctrl-C ends it.

        Raises
        ------
        RendezvousError
            If a rank does not come within `timeout` seconds (None: as long as it takes), or has ended.
        ValueError
            If `timeout` is negative, or not a number.
        """
        limit = seconds("timeout", timeout)
        if self._exchange is None:
            if self.size == 1:
                return [bytes(blob)]
            raise RendezvousError("this job was closed: its ranks cannot exchange any more")
        return self._exchange(bytes(blob), limit)

    def close(self) -> None:
        """Let go of the launcher; the ranks cannot exchange any more. To close twice does no harm."""
        self._exchange = None
        while self._closers:
            self._closers.pop()()

    def leaving(self) -> None:
        """Tell the launcher that this rank's program is over, before the other ranks can see it. Once is enough."""
        if self._teller is not None:
            self._teller.tell()

    def abort(self, status: int = 1) -> None:
        """End this process at once with `status`; the launcher ends the others."""
        self.leaving()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


_LAUNCHERS = (
    ("viakit", "VIAKIT_RANK", "VIAKIT_SIZE"),
    ("openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpich", "PMI_RANK", "PMI_SIZE"),
    ("srun", "SLURM_PROCID", "SLURM_NTASKS"),
)


def detect(environment: Mapping[str, str] | None = None) -> Place:
    """Tell from the environment who started this process, and as which rank of how many.

    Raises
    ------
    LaunchError
        If what a launcher left there contradicts itself.
    """
    environment = os.environ if environment is None else environment
    for launcher, rank_name, size_name in _LAUNCHERS:
        if rank_name not in environment:
            continue
        rank, size = _number(environment, rank_name), _number(environment, size_name)
        if rank is None or not size or rank >= size:
            raise LaunchError(
                f"{rank_name}={environment[rank_name]!r} and {size_name}={environment.get(size_name)!r} in the "
                f"environment make no sense; right would be a rank below the number of ranks. Unset them to run alone"
            )
        return Place(launcher, rank, size)
    return Place("alone", 0, 1)


_lock = threading.Lock()
_job: tuple[int, Job] | None = None


def bootstrap(timeout: float | None = EXCHANGE_TIMEOUT_S) -> Job:
    """Find out rank, size and the way to the other ranks; the same object on every call.

    Parameters
    ----------
    timeout : float or None
        Seconds to wait for the meeting point, where there is one; None, as infinity: as long as it takes.

    Returns
    -------
    Job

    Raises
    ------
    LaunchError
        If the environment makes no sense, or no way to the other ranks exists; the message says what to set.
    RendezvousError
        If the others do not come.
    ValueError
        If `timeout` is negative, or not a number.

    Notes
    -----
    The ways, first that fits: ``viakit run`` gives a connection (``VIAKIT_RENDEZVOUS``). Under an MPI launcher mpi4py
    is used if it is installed (it then stays initialised until the program ends); else Hydra's PMI-1; else rank 0
    holds a meeting at an address that all ranks derive from the job's name, on one host, or at ``VIAKIT_RENDEZVOUS``
    (tcp:HOST:PORT). ``VIAKIT_BOOTSTRAP`` (mpi4py, pmi, rendezvous) chooses another one.
    """
    global _job
    limit = seconds("timeout", timeout)
    with _lock:
        if _job is not None and _job[0] == os.getpid():
            return _job[1]
        place = detect()
        environment = os.environ
        job = Job(
            place.launcher,
            place.rank,
            place.size,
            environment.get("VIAKIT_NETWORK") or None,
            environment.get("VIAKIT_ADDRESS") or None,
            environment.get("VIAKIT_PROTOCOL") or None,
            environment.get("VIAKIT_POLICY") or None,
        )
        if place.size > 1:
            if _job is not None and environment.get("VIAKIT_RENDEZVOUS", "").startswith("fd:"):
                raise LaunchError("a forked child is no rank of its parent's job: bootstrap() in the ranks themselves")
            _find_way(job, limit)
        _job = (os.getpid(), job)
        return job


def _find_way(job: Job, timeout: float) -> None:
    """Give the job its exchange."""
    wish = os.environ.get("VIAKIT_BOOTSTRAP", "")
    if wish and wish not in _WAYS:
        raise LaunchError(f"VIAKIT_BOOTSTRAP is {wish!r}; right would be one of {', '.join(_WAYS)}")
    given = os.environ.get("VIAKIT_RENDEZVOUS", "")
    if job.launcher == "viakit" or (given and not wish):
        _by_rendezvous(job, given, timeout)
    elif wish == "pmi" or (not wish and "PMI_FD" in os.environ and importlib.util.find_spec("mpi4py") is None):
        _by_pmi(job)
    elif wish == "mpi4py" or (not wish and importlib.util.find_spec("mpi4py") is not None and _by_mpi4py(job)):
        if job.way != "mpi4py" and not _by_mpi4py(job):
            raise LaunchError(
                f"mpi4py finds another number of ranks than the launcher's {job.size}: it has loaded another MPI; set "
                "MPI4PY_LIBMPI to the library that belongs to this mpirun"
            )
    elif not wish and "PMI_FD" in os.environ:
        _by_pmi(job)
    else:
        _by_rendezvous(job, given or _derived_address(job), timeout)


def _by_rendezvous(job: Job, address: str, timeout: float) -> None:
    token = (os.environ.get("VIAKIT_JOB", "") or _job_name(job)).encode()[:64]
    stop = None
    if not address.startswith("fd:") and job.rank == 0:
        stop = listen_for(address, job.size, token)
    client = connect(address, job.rank, job.size, token, timeout)
    job.way, job._exchange = "rendezvous", client.exchange
    job._closers = [stop, client.close] if stop else [client.close]
    atexit.register(job.close)  # rank 0 ends the meeting in order
    if address.startswith("fd:"):
        job._teller = Teller(connect(address, job.rank, job.size, token, timeout))  # outlives job.close()


def _by_pmi(job: Job) -> None:
    from viakit._pmi import Pmi

    fd = _number(os.environ, "PMI_FD")
    if fd is None:
        raise LaunchError("PMI was asked for, but this launcher left no PMI_FD in the environment")
    pmi = Pmi(fd, job.size)
    job.way, job._exchange = "pmi", pmi.exchange
    job._closers = [pmi.close]
    atexit.register(job.close)  # Hydra takes a rank that goes without a word for a failed one


def _by_mpi4py(job: Job) -> bool:
    """Use mpi4py, if it belongs to the launcher: then its world has the launcher's size."""
    if "MPI4PY_LIBMPI" not in os.environ and "mpi4py.MPI" not in sys.modules:
        from viakit.measure import mpi

        library = mpi.find_all().get(job.launcher)
        if library is not None:
            os.environ["MPI4PY_LIBMPI"] = library.libmpi
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return False
    world = MPI.COMM_WORLD
    if world.size != job.size or world.rank != job.rank:
        return False

    def exchange(blob: bytes, timeout: float) -> list[bytes]:
        del timeout  # MPI has none: its launcher ends all ranks when one dies
        return list(world.allgather(blob))

    job.way, job._exchange = "mpi4py", exchange
    return True


def _job_name(job: Job) -> str:
    """A name that the ranks of this job, and no other, share."""
    environment = os.environ
    parts = {
        "openmpi": [environment.get("PMIX_NAMESPACE", ""), environment.get("PMIX_SERVER_URI41", "")],
        "mpich": [environment.get("PMI_ID_JOB", ""), environment.get("HYDI_CONTROL_FD", ""), str(os.getppid())],
        "srun": [environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")],
    }.get(job.launcher, [])
    if not any(parts):
        raise LaunchError(
            f"nothing in the environment names this job of {job.launcher}: set VIAKIT_JOB to the same new word on all "
            "ranks, or install mpi4py"
        )
    return "/".join([job.launcher, *parts])


def _derived_address(job: Job) -> str:
    """Where rank 0 holds the meeting if nobody says: on this host, or under srun on its first node."""
    if job.launcher == "srun" and (_number(os.environ, "SLURM_NNODES") or 1) > 1:
        return f"tcp:{_first_node()}:{20000 + (_number(os.environ, 'SLURM_JOB_ID') or 0) % 30000}"
    return unix_name(_job_name(job))


def _first_node() -> str:
    """The first host of a Slurm node list such as ``node[03-07,11],gpu1``."""
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    if "[" in nodes and (scontrol := shutil.which("scontrol")):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            out = subprocess.run([scontrol, "show", "hostnames", nodes], capture_output=True, text=True, timeout=10)
            if out.returncode == 0 and out.stdout.split():
                return out.stdout.split()[0]
    match = re.match(r"([^,\[]+)(?:\[([^\],-]+))?", nodes)
    if not match:
        raise LaunchError("Slurm left no node list in the environment: set VIAKIT_RENDEZVOUS=tcp:HOST:PORT of rank 0")
    return match[1] + (match[2] or "")


def mpi_agent(testbed: Testbed) -> contextlib.AbstractContextManager[Agent]:
    """Make for an MPI launcher what ssh is on a cluster: see :func:`viakit._launch_agent.mpi_agent`."""
    from viakit._launch_agent import mpi_agent

    return mpi_agent(testbed)


def run(command: list[str], ranks: int, **options: object) -> int:
    """Start `ranks` ranks of a command, wait for them, and return the exit status of the first that failed, or 0.

    See :class:`viakit._launch.Options` for what else can be said; ``viakit run --help`` says the same in other words.
    """
    from viakit._launch import Options, launch_of

    return launch_of(command, Options(ranks=ranks, **options)).run()  # type: ignore[arg-type]
