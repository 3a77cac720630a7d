"""Jobs of several ranks: how they are started (``viakit run``), and how the ranks connect.

A rank of a program calls :func:`bootstrap`, directly or through :mod:`viakit.comm`. It works under ``viakit run``,
under ``mpirun`` and ``mpiexec`` of MPICH and Open MPI, under ``srun``, and in a single process::

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
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from viakit.base import secret as _secret
from viakit.base.limits import seconds
from viakit.launch import network
from viakit.launch.leaving import Notifier
from viakit.launch.rendezvous import (
    MAX_BLOB,
    RendezvousError,
    Sealed,
    connect,
    is_unix,
    listen_for,
    open_inherited,
    unix_name,
)

if TYPE_CHECKING:
    from viakit.launch.agent import Agent
    from viakit.testbed import Testbed

__all__ = ["Job", "LaunchError", "RendezvousError", "bootstrap", "detect", "mpi_agent", "run"]

EXCHANGE_TIMEOUT_S = 60.0
_WAYS = ("mpi4py", "pmi", "rendezvous")


class LaunchError(RuntimeError):
    """A job cannot be started, or this rank cannot determine its job."""


@dataclass(frozen=True)
class Place:
    """Launcher, rank and number of ranks of this process: see :func:`detect`."""

    launcher: str  #: ``"viakit"``, ``"mpich"``, ``"openmpi"``, ``"srun"`` or ``"alone"``.
    rank: int  #: Rank of this process.
    size: int  #: Number of ranks.


@dataclass
class Job:
    """Membership of a process in its job, and data exchange between the ranks before a communicator exists.

    Attributes
    ----------
    launcher : str
        "viakit", "mpich", "openmpi", "srun" or "alone".
    rank, size : int
        Rank of this process, and number of ranks.
    network_device : str or None
        NIC for ranks on other hosts, "eth:eth0", "udp:10.0.0.1": that of ``VIAKIT_NETWORK``, or UDP on the first
        network that all hosts of the job have in common (:mod:`viakit.launch.network`).
    address : str or None
        IP address of this host that the other ranks can reach: that of ``VIAKIT_ADDRESS``, or the one in that network.
    protocol, policy : str or None
        Values of ``VIAKIT_PROTOCOL`` and ``VIAKIT_POLICY``.
    way : str
        Transport of the exchange: "rendezvous", "mpi4py", "pmi" or "" (one rank).
    """

    launcher: str
    rank: int
    size: int
    network_device: str | None
    address: str | None
    protocol: str | None
    policy: str | None
    way: str = ""
    _secret: bytes | None = field(default=None, repr=False)
    _draw: Callable[[float], bytes] | None = field(default=None, repr=False)  # makes the secret known to all ranks
    _exchange: Callable[[bytes, float], list[bytes]] | None = field(default=None, repr=False)
    _closers: list[Callable[[], None]] = field(default_factory=list, repr=False)
    _notifier: Notifier | None = field(default=None, repr=False)

    def exchange(self, blob: bytes, timeout: float | None = EXCHANGE_TIMEOUT_S) -> list[bytes]:
        """Exchange data between all ranks, and return the data of all ranks in order. Collective; Ctrl-C ends it.

        Parameters
        ----------
        blob : bytes
            Data of this rank.
        timeout : float or None
            Timeout in seconds; None: no limit.

        Returns
        -------
        list of bytes

        Raises
        ------
        RendezvousError
            If a rank does not take part in time, or has ended.
        ValueError
            If `timeout` is negative or not a number.
        """
        limit = seconds("timeout", timeout)
        if self._exchange is None:
            if self.size == 1:
                return [bytes(blob)]
            raise RendezvousError("this job was closed: its ranks cannot exchange any more")
        self._obtain_secret(limit)
        return self._exchange(bytes(blob), limit)

    @property
    def secret(self) -> bytes:
        """The job's secret, 32 bytes, which its ranks know and other processes must not; never print it.

        Under an MPI launcher the first use of it, or the first exchange, is collective: rank 0 sends it to the others.
        """
        return self._obtain_secret(EXCHANGE_TIMEOUT_S)

    def _obtain_secret(self, timeout: float) -> bytes:
        """Return the secret; the first call may be collective."""
        if self._secret is None:
            self._secret = _secret.new() if self._draw is None else self._draw(timeout)
        return self._secret

    def close(self) -> None:
        """Close the connection to the launcher. Exchanges are not possible any more. Closing twice does nothing."""
        self._exchange = None
        while self._closers:
            self._closers.pop()()

    def leaving(self) -> None:
        """Notify the launcher, once, that this rank's program is ending, before the other ranks can notice it."""
        if self._notifier is not None:
            self._notifier.notify()

    def aborting(self) -> None:
        """Notify the launcher, once, that this rank aborts, before the other ranks can notice it."""
        if self._notifier is not None:
            self._notifier.notify_abort()

    def abort(self, status: int = 1) -> None:
        """End this process at once with exit status `status`; the launcher ends the other ranks."""
        self.aborting()
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
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def detect(environment: Mapping[str, str] | None = None) -> Place:
    """Determine the launcher, the rank and the number of ranks of this process from the environment.

    Returns
    -------
    Place

    Raises
    ------
    LaunchError
        If the launcher's variables are inconsistent.
    """
    environment = os.environ if environment is None else environment
    for launcher, rank_name, size_name in _LAUNCHERS:
        if rank_name not in environment:
            continue
        if launcher == "srun" and size_name not in environment:
            continue  # a batch script, which is a process of the job but not a rank of a step
        rank, size = _number(environment, rank_name), _number(environment, size_name)
        if rank is None or not size or rank >= size:
            raise LaunchError(
                f"{rank_name}={environment[rank_name]!r} and {size_name}={environment.get(size_name)!r} in the "
                f"environment make no sense; expected a rank below the number of ranks. Unset them to run alone"
            )
        return Place(launcher, rank, size)
    return Place("alone", 0, 1)


_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))  # a child lacks its holder
_job: tuple[int, Job] | None = None


def bootstrap(timeout: float | None = EXCHANGE_TIMEOUT_S) -> Job:
    """Determine rank and size, and connect to the other ranks; returns the same object on every call.

    Parameters
    ----------
    timeout : float or None
        Timeout in seconds for the connection to the rendezvous; None and infinity mean no limit.

    Returns
    -------
    Job

    Raises
    ------
    LaunchError
        If the environment is inconsistent, or the ranks cannot be connected; the message names the variable to set.
    RendezvousError
        If the other ranks do not connect.
    ValueError
        If `timeout` is negative or not a number.

    Notes
    -----
    The first possible transport is used. ``viakit run`` provides a connection (``VIAKIT_RENDEZVOUS``). Under an MPI
    launcher, mpi4py is used if it is installed, and stays initialised until the program ends. Otherwise Hydra's PMI-1
    is used. Otherwise rank 0 listens at an address that all ranks derive from the job's name (on one host), or at
    ``VIAKIT_RENDEZVOUS`` (``tcp:HOST:PORT``). ``VIAKIT_BOOTSTRAP`` (mpi4py, pmi, rendezvous) selects a transport.

    The job's secret (:attr:`Job.secret`) is the one of ``VIAKIT_SECRET``, else of ``VIAKIT_SECRET_FILE``, which must be
    the same on all ranks. ``viakit run`` sets the first. If neither is set, rank 0 draws the secret: it reaches the
    others by mpi4py, by PMI, or on one host by a Unix socket to processes of the same user. Over TCP it must be given;
    a job without it is refused. A given secret also authenticates the exchange over TCP, mpi4py and PMI.
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
            network.take_given(job)
            _find_way(job, limit)
            network.settle(job, limit)
        _job = (os.getpid(), job)
        return job


def _find_way(job: Job, timeout: float) -> None:
    """Choose the transport of the job's exchange, and connect it."""
    wish = os.environ.get("VIAKIT_BOOTSTRAP", "")
    if wish and wish not in _WAYS:
        raise LaunchError(f"VIAKIT_BOOTSTRAP is {wish!r}; expected one of {', '.join(_WAYS)}")
    given = os.environ.get("VIAKIT_RENDEZVOUS", "")
    if job.launcher == "viakit" or (given and not wish):
        _by_rendezvous(job, given, timeout)
    elif wish == "pmi" or (not wish and "PMI_FD" in os.environ and importlib.util.find_spec("mpi4py") is None):
        _by_pmi(job)
    elif wish == "mpi4py" or (not wish and _has_mpi4py(job) and _by_mpi4py(job)):
        if job.way != "mpi4py" and not _by_mpi4py(job):
            raise LaunchError(
                f"mpi4py finds another number of ranks than the launcher's {job.size}: it has loaded another MPI; set "
                "MPI4PY_LIBMPI to the library that belongs to this mpirun"
            )
    elif not wish and "PMI_FD" in os.environ:
        _by_pmi(job)
    else:
        _by_rendezvous(job, given or _derived_address(job), timeout)


def _has_mpi4py(job: Job) -> bool:
    """Return whether mpi4py is installed, and the launcher has started the ranks of an MPI."""
    started = job.launcher != "srun" or "PMIX_RANK" in os.environ
    return started and importlib.util.find_spec("mpi4py") is not None


def _given_secret() -> bytes | None:
    """Return the secret that the environment gives; None if it gives none."""
    try:
        return _secret.of_environment()
    except _secret.SecretError as error:
        raise LaunchError(str(error)) from error


def _use_secret(
    job: Job,
    exchange: Callable[[bytes, float], list[bytes]],
    given: bytes | None,
    draw: Callable[[float], bytes],
) -> None:
    """Give the job an MPI launcher's exchange, and the secret of the environment or else the one that rank 0 draws."""

    def agree(timeout: float) -> bytes:
        have = exchange(b"given" if given else b"drawn", timeout)
        without = [str(rank) for rank, word in enumerate(have) if word != b"given"]
        if given is None and len(without) == job.size:
            return draw(timeout)
        if given is None or without:
            raise RendezvousError(
                f"{_secret.VARIABLE} or {_secret.FILE} is set on some ranks only, not on "
                f"{'rank' if len(without) == 1 else 'ranks'} {', '.join(without) or job.rank}: set it on all ranks "
                "(mpirun -x NAME of Open MPI, mpiexec -genv NAME VALUE of MPICH), or on none"
            )
        job._exchange = Sealed(exchange, job.rank, job.size, given).exchange
        return given

    job._exchange, job._draw = exchange, agree


def _by_rendezvous(job: Job, address: str, timeout: float) -> None:
    secret = _given_secret()
    if address.startswith("fd:"):
        if secret is None:
            raise LaunchError(
                f"{_secret.VARIABLE} is not set, but VIAKIT_RENDEZVOUS is: a program between `viakit run` and this one "
                "has removed it from the environment; it has to pass on all VIAKIT_ variables"
            )
        client = open_inherited(address, job.size)
        job.way, job._exchange, job._secret, job._closers = "rendezvous", client.exchange, secret, [client.close]
        atexit.register(job.close)
        job._notifier = Notifier(open_inherited(address, job.size))  # It remains after job.close().
        return
    handed_out = secret is None and is_unix(address)
    if secret is None:
        if not handed_out:
            raise LaunchError(_no_secret(job, address))
        secret = _secret.new() if job.rank == 0 else None
    stop = None
    if job.rank == 0:
        assert secret is not None
        stop = listen_for(address, job.size, secret, gives=handed_out)
    try:
        client, secret = connect(address, job.rank, job.size, secret, timeout, takes=handed_out)
    except BaseException:
        if stop:
            stop()
        raise
    job.way, job._exchange, job._secret = "rendezvous", client.exchange, secret
    if not is_unix(address):
        job._exchange = Sealed(client.exchange, job.rank, job.size, secret).exchange
    job._closers = [stop, client.close] if stop else [client.close]
    atexit.register(job.close)  # so that rank 0 ends the meeting in order


def _no_secret(job: Job, address: str) -> str:
    """Return the message of a job over TCP that has no secret."""
    by = f"started by {job.launcher}" if job.launcher != "viakit" else "started by hand"
    other = {"srun": ", or use srun --mpi=pmi2, or install mpi4py", "openmpi": ", or install mpi4py"}
    return (
        f"this job ({job.size} ranks, {by}) meets at {address}, which any process of the network can reach, and its "
        f"ranks have no secret by which they recognise each other. Set\n{_secret.HOW_TO_SET}"
        f"{other.get(job.launcher, '')}"
    )


def _by_pmi(job: Job) -> None:
    from viakit.launch.pmi import Pmi  # it imports this module

    fd = _number(os.environ, "PMI_FD")
    if fd is None:
        raise LaunchError("PMI was requested, but this launcher left no PMI_FD in the environment")
    given = _given_secret()
    pmi = Pmi(fd, job.size)
    job.way = "pmi"

    def draw(timeout: float) -> bytes:
        mine = _secret.new() if job.rank == 0 else b""
        return _drawn(pmi.exchange(mine, timeout)[0])  # in the launcher's key space

    _use_secret(job, pmi.exchange, given, draw)
    job._closers = [pmi.close]
    atexit.register(job.close)  # otherwise Hydra takes the rank for a failed one


def _by_mpi4py(job: Job) -> bool:
    """Use mpi4py, if it belongs to the launcher: then its world has the launcher's size."""
    if "MPI4PY_LIBMPI" not in os.environ and "mpi4py.MPI" not in sys.modules:
        from viakit.launch import mpi_library as mpi  # start-up time

        library = mpi.find_all().get(mpi.family(job.launcher))
        if library is not None:
            os.environ["MPI4PY_LIBMPI"] = library.libmpi
    try:
        from mpi4py import MPI  # optional package
    except (ImportError, RuntimeError):
        return False
    world = MPI.COMM_WORLD
    if world.size != job.size or world.rank != job.rank:
        return False

    def exchange(blob: bytes, timeout: float) -> list[bytes]:
        # As bytes: an object would be unpickled before its tag is checked. MPI has no time-out, its launcher ends all
        # ranks if one dies.
        del timeout
        lengths = array("q", bytes(8 * job.size))
        world.Allgather([array("q", [len(blob)]), MPI.INT64_T], [lengths, MPI.INT64_T])
        if not all(0 <= length <= MAX_BLOB for length in lengths):
            raise RendezvousError(
                f"the lengths in an exchange over mpi4py must be 0 to {MAX_BLOB}, got {list(lengths)}"
            )
        whole = bytearray(sum(lengths))
        world.Allgatherv([blob, MPI.BYTE], [whole, (list(lengths), None), MPI.BYTE])
        ends = list(accumulate(lengths))
        return [bytes(whole[end - length : end]) for end, length in zip(ends, lengths, strict=True)]

    def draw(timeout: float) -> bytes:
        del timeout
        secret = bytearray(_secret.new() if job.rank == 0 else _secret.NBYTES)
        world.Bcast([secret, MPI.BYTE], 0)
        return bytes(secret)

    _use_secret(job, exchange, _given_secret(), draw)
    job.way = "mpi4py"
    return True


def _drawn(secret: bytes) -> bytes:
    if len(secret) != _secret.NBYTES:
        raise RendezvousError(
            f"rank 0 gave {len(secret)} bytes for the job's secret: is its viakit of another version?"
        )
    return secret


def _job_name(job: Job) -> str:
    """Return a name that only the ranks of this job share."""
    environment = os.environ
    parts = {
        "openmpi": [environment.get("PMIX_NAMESPACE", ""), environment.get("PMIX_SERVER_URI41", "")],
        "mpich": [environment.get("PMI_ID_JOB", ""), environment.get("HYDI_CONTROL_FD", ""), str(os.getppid())],
        "srun": [environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")],
    }.get(job.launcher, [])
    if not any(parts):
        raise LaunchError(
            f"nothing in the environment names this job of {job.launcher}: set VIAKIT_RENDEZVOUS=tcp:HOST:PORT of rank "
            "0 and VIAKIT_SECRET on all ranks, or install mpi4py"
        )
    return "/".join([job.launcher, *parts])


def _derived_address(job: Job) -> str:
    """Return the default address of the meeting: on this host, or under srun on the first node."""
    if job.launcher == "srun" and network.spans_hosts(job.launcher, job.size, os.environ):
        job_number, step = (_number(os.environ, name) or 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        # Steps of one job may run at the same time. The ports stay below those that Linux gives to clients.
        return f"tcp:{_first_node()}:{20000 + (job_number + 611 * step) % 12000}"
    return unix_name(_job_name(job))


def _first_node() -> str:
    """Return the first host of a Slurm node list such as ``node[03-07,11],gpu1``."""
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
    """Provide the remote-start agent of an MPI launcher on a testbed: see :func:`viakit.launch.agent.mpi_agent`."""
    from viakit.launch.agent import mpi_agent  # it imports this module

    return mpi_agent(testbed)


def run(command: list[str], ranks: int, **options: object) -> int:
    """Start a command as `ranks` ranks, wait for them, and return the exit status of the first that failed, or 0.

    :class:`viakit.launch.runner.Options` describes the options, and so does ``viakit run --help``.
    """
    from viakit.launch.runner import Options, launch_of  # it imports this module

    return launch_of(command, Options(ranks=ranks, **options)).run()  # type: ignore[arg-type]
