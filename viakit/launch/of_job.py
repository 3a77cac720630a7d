"""The hosts of a job of ``mpirun`` or ``srun`` as the hosts of a command: ``--hosts job``.

Every rank of the job starts the same command. Rank 0 drives it. The other ranks serve: the first rank of each host
starts an agent (:mod:`viakit.remote.agent`) for each connection of rank 0, as sshd does::

    rank 0: viakit sweep ...      the client, called like ssh      rank 1: serve()
        viakit.remote.Link  -----  stdin, stdout = TCP  ------------  stdin, stdout of an agent

Therefore a command has one way to other machines, and the client takes the place of ssh in it (``VIAKIT_SSH``). Both
ends of a connection prove that they know a key, which is made of the job's secret (:mod:`viakit.launch.handshake`). The
data are not protected afterwards, as those of ``srun`` and ``mpirun`` are not.

Rank 0 holds one more connection to every other rank. A rank that serves ends when this connection ends, and its agents
end with it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import NoReturn

import viakit
from viakit.base.process import end_with_parent
from viakit.launch import EXCHANGE_TIMEOUT_S, LaunchError, bootstrap, detect
from viakit.launch.handshake import Reception, introduce
from viakit.launch.network import JobHost, meet

__all__ = ["JobHosts", "hosts", "is_job"]

HERE = "."  # the name of rank 0's host for viakit.remote
_CONTROL, _AGENT = 0, 1  # what a connection is for, in the place of a rank
_CONNECT_S = 30.0
# Variables of the job's launcher. Programs that rank 0 and the agents start are not ranks of that job.
_LAUNCHERS = ("PMI_", "PMIX_", "PRTE_", "HYDI_", "HYDRA_", "MPI_LOCAL", "OMPI_", "SLURM_")
_KEPT = ("OMPI_MCA_", "SLURM_CONF")  # settings of the user
_AGENT_PROGRAM = "from viakit.remote.agent import main; main()"


@dataclass(frozen=True)
class JobHosts:
    """Hosts of the job: their text for :func:`viakit.remote.parse`, or None if there is only one; number of ranks."""

    text: str | None
    ranks: int


def is_job() -> bool:
    """Return whether ``mpirun`` or ``srun`` has started this process as one of several ranks."""
    place = detect()
    return place.launcher in ("openmpi", "mpich", "srun") and place.size > 1


def hosts() -> JobHosts | None:
    """Return the hosts of the job on rank 0. On the other ranks serve until rank 0 has ended, and return None.

    Collective.

    Raises
    ------
    LaunchError
        If the ranks cannot connect, have several versions of viakit, or have no network in common.
    """
    job = bootstrap()
    found = meet(job, _about(), EXCHANGE_TIMEOUT_S)
    own = next(host for host in found if job.rank in host.ranks)
    problem = _problem(found)
    if problem is not None:
        raise LaunchError(problem)
    cores = {core for about in own.about for core in about["cores"]}
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cores)  # an agent has the cores of all ranks of its host
    key = hashlib.blake2s(b"viakit hosts of a job", key=job.secret).digest()
    listener = socket.create_server((own.address, 0), backlog=128) if job.rank else None
    port = listener.getsockname()[1] if listener else 0
    ports = [int(blob) for blob in job.exchange(str(port).encode(), EXCHANGE_TIMEOUT_S)]
    _leave_launcher()
    if listener is not None:
        serve(Reception(listener, key))
        return None
    _drive(found, ports, key)
    if len(found) == 1:
        return JobHosts(None, job.size)
    slots = [f"*{len(host.ranks)}" for host in found] if job.size > len(found) else [""] * len(found)
    return JobHosts("ssh:" + ",".join(map("".join, zip(_names(found), slots, strict=True))), job.size)


def _about() -> dict[str, object]:
    return {
        "version": viakit.__version__,
        "name": socket.gethostname(),
        "cores": sorted(os.sched_getaffinity(0)),
    }


def _problem(found: list[JobHost]) -> str | None:
    """Return what keeps the ranks from working together; the same on all of them."""
    versions = {about["version"]: rank for host in found for rank, about in zip(host.ranks, host.about, strict=True)}
    if len(versions) > 1:
        listed = ", ".join(f"{version} (rank {rank})" for version, rank in versions.items())
        return f"the ranks have several versions of viakit: {listed}. Install one version on all hosts"
    if any(host.address is None for host in found):
        names = ", ".join(str(host.about[0]["name"]) for host in found)
        return f"the hosts of this job ({names}) have no network in common; use --hosts ssh:A,B with --network"
    return None


def _names(found: list[JobHost]) -> list[str]:
    """Return a name for each host: "." for rank 0's, the host name for others, with a number if it occurs twice."""
    names = [HERE]
    for host in found[1:]:
        name = str(host.about[0]["name"])
        names.append(f"{name}#{host.ranks[0]}" if name in names else name)
    return names


def _leave_launcher() -> None:
    """Remove the variables of the job's launcher from the environment."""
    for name in list(os.environ):
        if name.startswith(_LAUNCHERS) and not name.startswith(_KEPT):
            del os.environ[name]


# ---- rank 0


def _drive(found: list[JobHost], ports: list[int], key: bytes) -> None:
    """Connect to all ranks, and let :mod:`viakit.remote` reach the hosts by the client."""
    held = []
    for host in found:
        for rank in host.ranks:
            if rank:
                held.append(_connected((str(host.address), ports[rank]), key, _CONTROL))
    atexit.register(_close, held)  # before the end of MPI, which is collective
    places = {name: (host.address, ports[host.ranks[0]]) for name, host in zip(_names(found), found, strict=True)}
    # The client reads the key from this process. In its environment it would reach programs on other hosts.
    known = os.memfd_create("viakit-job")
    os.write(known, json.dumps({"key": key.hex(), "hosts": places}).encode())
    program = "from viakit.launch.of_job import client; client()"
    os.environ["VIAKIT_SSH"] = shlex.join([sys.executable, "-c", program, f"/proc/{os.getpid()}/fd/{known}"])


def _close(connections: list[socket.socket]) -> None:
    for connection in connections:
        connection.close()


def _connected(place: tuple[str, int], key: bytes, purpose: int) -> socket.socket:
    """Connect to a rank that serves."""
    connection = socket.create_connection(place, timeout=_CONNECT_S)
    try:
        introduce(connection, key, purpose, 2, time.monotonic() + _CONNECT_S)
    except BaseException:
        connection.close()
        raise
    return connection


def client() -> None:
    """Join the standard streams to an agent on a host of the job.

    Called like ssh, with ``FILE [OPTIONS] -- HOST COMMAND``.
    """
    with open(sys.argv[1], encoding="ascii") as file:
        known = json.load(file)
    name = sys.argv[sys.argv.index("--") + 1]
    place = known["hosts"].get(name)
    if place is None:
        _fail(f"{name} is no host of this job; it has {', '.join(known['hosts'])}")
    try:
        connection = _connected((place[0], place[1]), bytes.fromhex(known["key"]), _AGENT)
    except OSError as error:
        _fail(f"the rank of this job on {name} cannot be reached: {error}")
    with connection:
        _splice(connection)


def _fail(text: str) -> NoReturn:
    """Print a text, and exit with the status of ssh for a failure of its own."""
    print(text, file=sys.stderr)
    sys.exit(255)


def _splice(connection: socket.socket) -> None:
    """Copy standard input to *connection*, and *connection* to standard output, until either ends."""
    poll = select.poll()
    pairs = {0: connection.fileno(), connection.fileno(): 1}
    for fd in pairs:
        poll.register(fd, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            try:
                data = memoryview(os.read(fd, 1 << 18))
                if not data:
                    return
                while data:
                    data = data[os.write(pairs[fd], data) :]
            except OSError:
                return


# ---- the other ranks


def serve(reception: Reception) -> None:
    """Start an agent for each connection that wants one, until rank 0 closes its own."""
    control: socket.socket | None = None
    agents: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            poll = select.poll()
            events = reception.interest()
            if control is not None:
                events[control.fileno()] = select.POLLIN
            for fd, event in events.items():
                poll.register(fd, event)
            ready = {fd for fd, _ in poll.poll(reception.timeout_ms())}
            if control is not None and control.fileno() in ready:
                return
            for caller in reception.handle(ready):
                caller.socket.setblocking(True)
                if caller.rank == _CONTROL and control is None:
                    control = caller.socket
                    continue
                with caller.socket:
                    agents.append(_agent(caller.socket))
            agents = [agent for agent in agents if agent.poll() is None]
    finally:
        reception.close()
        if control is not None:
            control.close()
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait()


def _agent(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Start an agent on a connection. It ends with the connection and with this process."""
    fd = connection.fileno()
    command = [sys.executable, "-c", _AGENT_PROGRAM]
    return subprocess.Popen(command, stdin=fd, stdout=fd, preexec_fn=functools.partial(end_with_parent, signal.SIGTERM))
