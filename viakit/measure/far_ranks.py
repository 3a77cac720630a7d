"""Ranks of an MPI library on machines that ssh reaches, started by the library's own mpiexec.

::

    this machine                 host 0                              host 1
    FarRanks ---- ssh ---- main()   mpiexec - agent                  main()
        |                    |          |       |                       |
        |                    |        rank 0    |  (a command)        rank 1
        +----- ssh -------------------------------------- proxy ---------+

A process of this module, main(), runs on each host. It inherits connected sockets through :mod:`viakit.remote`, and
hands one to each rank of its host, so ranks need no port to reach this process. mpiexec runs on host 0. It starts its
proxy on another host through an agent in place of ssh. The agent hands the command to this process, which starts it
on that host: hosts need no keys of each other. From there on mpiexec, its proxies and the ranks use connections of
their own, as this library always does.

All processes have a variable with a random word. At the end main() kills those that are left on its host.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ipaddress
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from viakit.base.failure import MeasureError
from viakit.base.secret import same_user
from viakit.launch import mpi_library as mpi
from viakit.measure.channel import Channel
from viakit.measure.children import command

if TYPE_CHECKING:
    from viakit.remote import Remote, RemoteHost

__all__ = ["FarRanks", "main", "taken"]

_MODULE = "viakit.measure.far_ranks"
_MARK = "VIAKIT_RANKS"  # variable in the environment of all processes of the MPI, which identifies strays
_REPLY_S = 60.0  # for main() to start and find the library, on a busy machine
_GONE_S = 5.0  # for killed processes to end
_PIECE = 1 << 16
_RANKS, _STARTS = "ranks", "starts"  # names of Unix sockets in the folder of a host

_AGENT = """#!/bin/sh
# {path} [OPTION...] HOST COMMAND...: called by mpiexec like ssh
while [ $# -gt 0 ]; do case $1 in -*) shift ;; *) break ;; esac; done
exec {agent} "$@"
"""


@dataclass
class _Place:
    """A host: its part of the job, and the ends of the sockets that its processes inherit."""

    host: RemoteHost
    folder: str
    control: Channel
    ranks: list[Channel]
    starts: list[Channel]
    process: Any  # main() there
    prefix: str = ""  # folder of the MPI library there
    mpiexec: str = ""
    version: str = ""
    variables: dict[str, str] = field(default_factory=dict)


class FarRanks:
    """A running mpiexec whose ranks are on machines that ssh reaches; the interface of :class:`.ranks.Ranks`.

    Parameters
    ----------
    wish : str
        "mpi", "mpi:mpich" or "mpi:openmpi"; each host must have the library.
    program : callable
        Returns the command of a rank, on this machine, for the name of a Unix socket: see :func:`taken`.
    ranks_per_host : int
        Number of ranks on each host.
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
        self, wish: str, program: Callable[[str], list[str]], ranks_per_host: int, output: IO[bytes], remote: Remote
    ) -> None:
        self._wish, self._program, self._n, self._output, self._remote = wish, program, ranks_per_host, output, remote
        self._places: list[_Place] = []
        self._threads: list[threading.Thread] = []
        self._mark = os.urandom(12).hex()
        self._waiting: list[Channel] = []  # those of ranks that have not connected yet
        self.process: Any = None

    def start(self) -> None:
        """Start mpiexec. The caller holds this object first, so that :meth:`kill` finds all after an interrupt.

        Raises
        ------
        MeasureError
            If a host lacks the library, or has another version of it.
        viakit.remote.RemoteError
            If a host is lost.
        """
        try:
            hosts = self._remote.hosts
            with concurrent.futures.ThreadPoolExecutor(min(32, len(hosts))) as pool:
                started = [pool.submit(self._prepare, host) for host in hosts]
            self._places = [one.result() for one in started if one.exception() is None]  # for kill()
            self._waiting = [channel for place in self._places for channel in place.ranks]
            for one in started:
                one.result()
            deadline = time.monotonic() + _REPLY_S
            for place in self._places:
                self._learn(place, deadline)
            self._check_versions()
            first = self._places[0]
            for start in first.starts:
                thread = threading.Thread(target=self._serve_start, args=(start,), daemon=True)
                thread.start()
                self._threads.append(thread)
            self.process = first.host.popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=first.variables | self._launcher_variables(first),
            )
        except BaseException:
            self.kill()
            raise

    def _prepare(self, host: RemoteHost) -> _Place:
        """Start main() on a host."""
        folder = host.folder()
        n_starts = len(self._remote.hosts) - 1 if host.index == 0 else 0
        pairs = [socket.socketpair() for _ in range(1 + self._n + n_starts)]
        fds = [far.fileno() for _, far in pairs]
        words = [str(fd) for fd in fds]
        options = ["--control", words[0], "--ranks", ",".join(words[1 : 1 + self._n])]
        options += ["--starts", ",".join(words[1 + self._n :])]
        try:
            process = host.popen(
                command(_MODULE, [*options, folder, self._mark, self._wish]),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=fds,
            )
        except BaseException:
            for sock, _ in pairs:
                sock.close()
            raise
        finally:
            for _, far in pairs:
                far.close()
        near = [Channel(sock) for sock, _ in pairs]
        return _Place(host, folder, near[0], near[1 : 1 + self._n], near[1 + self._n :], process)

    def _learn(self, place: _Place, deadline: float) -> None:
        """Receive what main() has found on its host."""
        name = place.host.name
        try:
            found, _ = place.control.recv(max(0.0, deadline - time.monotonic()))
        except (EOFError, TimeoutError) as error:
            raise MeasureError(f"host {name}: the helper for {self._wish} did not start ({error})", "died") from None
        if "error" in found:
            raise MeasureError(f"host {name}: {found['error']}", "missing")
        library = mpi.Library(found["flavour"], found["libmpi"], found["mpiexec"])
        place.prefix, place.mpiexec, place.version = found["prefix"], library.mpiexec, found["version"]
        place.variables = found["variables"] | library.over_tcp(place.host.interface) | {_MARK: self._mark}
        self._flavour = library.flavour

    def _check_versions(self) -> None:
        """Raise MeasureError if two hosts have different libraries."""
        first = self._places[0]
        for place in self._places[1:]:
            if place.version != first.version:
                raise MeasureError(
                    f"{self._wish}: host {first.host.name} has {first.version}, host {place.host.name} has "
                    f"{place.version}; install one version of one library on all hosts",
                    "mismatch",
                )

    def _launcher_variables(self, first: _Place) -> dict[str, str]:
        """Return the variables of Open MPI's launcher; version 4 has other names than version 5."""
        agent = f"{first.folder}/agent"
        variables = {
            "PRTE_MCA_plm_ssh_agent": agent, "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
            "OMPI_MCA_plm_rsh_agent": agent, "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        }  # fmt: skip
        if network := self._network():
            variables |= {"PRTE_MCA_prte_if_include": network, "OMPI_MCA_oob_tcp_if_include": network}
        return variables

    def _network(self) -> str:
        """Return the network that all hosts share, as ADDRESS/BITS; "" if routers join them."""
        found = set()
        for place in self._places:
            for one in place.host.facts["interfaces"]:
                if (one["address"] or "").partition("/")[0] == place.host.address:
                    found.add(str(ipaddress.ip_interface(one["address"]).network))
        return found.pop() if len(found) == 1 else ""

    def _command(self) -> list[str]:
        """Return the command of mpiexec on host 0, with a part for each host."""
        first = self._places[0]
        if self._flavour == "mpich":
            flags = ["-launcher", "ssh", "-launcher-exec", f"{first.folder}/agent"]
            flags += ["-localhost", first.host.address, "-bind-to", "none"]
            # The parts of the command fill the hosts in this order.
            flags += ["-hosts", ",".join(f"{place.host.address}:{self._n}" for place in self._places)]
        else:
            flags = ["--bind-to", "none"]
        words = [first.mpiexec, *flags]
        for i, place in enumerate(self._places):
            where = ["--host", f"{place.host.address}:{self._n}"] if self._flavour == "openmpi" else []
            variables = [f"{name}={value}" for name, value in place.variables.items()]
            program = place.host.translated(self._program(f"{place.folder}/{_RANKS}"))
            words += [*([":"] if i else []), "-n", str(self._n), *where, "env", *variables, *program]
        return words

    def _serve_start(self, start: Channel) -> None:
        """Start a command of mpiexec on a host, and pass on its output and status."""
        try:
            request, _ = start.recv()
        except (EOFError, OSError, ValueError):
            return  # no agent needed it
        with contextlib.suppress(OSError):
            place = next((one for one in self._places if one.host.address == request["host"]), None)
            if place is None:
                start.send({"status": 255}, f"viakit: no host {request['host']} in this job\n".encode())
                return
            text = request["command"].replace(f"{self._places[0].prefix}/", f"{place.prefix}/")
            try:
                process = place.host.popen(
                    ["sh", "-c", text],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=place.variables,
                )
            except (OSError, RuntimeError) as error:
                start.send({"status": 255}, f"viakit: {error}\n".encode())
                return
            assert process.stdout is not None
            with process.stdout as output:
                while piece := os.read(output.fileno(), _PIECE):
                    start.send({"output": len(piece)}, piece)
            start.send({"status": process.wait()})

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
        for place in self._places:
            with contextlib.suppress(OSError):
                place.control.send({"files": sorted(files)})

    def kill(self) -> None:
        """Kill all remaining processes on all hosts. Idempotent."""
        places, self._places = self._places, []
        for place in places:
            with contextlib.suppress(OSError):
                place.control.send({"end": True})
        deadline = time.monotonic() + 2 * _GONE_S
        for place in places:
            with contextlib.suppress(EOFError, TimeoutError, OSError, ValueError):
                place.control.recv(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(Exception):
                place.process.wait(timeout=max(0.1, deadline - time.monotonic()))
            for channel in (place.control, *place.starts, *place.ranks):
                with contextlib.suppress(OSError):
                    channel.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        for place in places:
            for channel in (place.control, *place.starts, *(one for one in place.ranks if one in self._waiting)):
                channel.close()


# ---- on the hosts


def taken(path: str) -> Channel | None:
    """In a rank: take the channel to the owner of the ranks from main() of this host.

    Returns
    -------
    Channel or None
        None: main() has ended, or has no channel left.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, contextlib.suppress(OSError):
        sock.connect(path)
        if same_user(sock):
            _, fds, _, _ = socket.recv_fds(sock, 1, 1)
            return Channel(socket.socket(fileno=fds[0])) if fds else None
    return None


def _agent(path: str, host: str, *words: str) -> int:
    """Let the owner of the ranks run a command on a host, and print its output."""
    channel = taken(path)
    if channel is None:
        print("viakit: the measurement that started this job has ended", file=sys.stderr)
        return 255
    channel.send({"host": host, "command": " ".join(words)})
    while True:
        try:
            message, piece = channel.recv()
        except EOFError:
            return 255
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        if "status" in message:
            return int(message["status"]) & 255


def _found(wish: str, folder: str) -> dict[str, Any]:
    """Return the MPI library of this host, or why it has none."""
    try:
        library = mpi.find(wish)
    except MeasureError as error:
        return {"error": str(error)}
    return {
        "flavour": library.flavour,
        "version": os.path.basename(os.path.realpath(library.libmpi)),
        "libmpi": library.libmpi,
        "mpiexec": library.mpiexec,
        "prefix": str(Path(library.mpiexec).parent.parent),
        "variables": library.environment(folder),
    }


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def _end_strays(mark: str, files: set[str]) -> None:
    """Kill all processes of the job on this host, and remove the files in /dev/shm that they leave, and *files*."""
    deadline = time.monotonic() + _GONE_S
    while (strays := mpi.marked(_MARK, mark)) and time.monotonic() < deadline:
        for pid in strays:
            files |= mpi.shared_files(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for path in files:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _serve(control: Channel, gifts: dict[socket.socket, list[int]], files: set[str]) -> None:
    """Hand a socket to each process that connects, until the owner ends the job or has ended. Collect its *files*."""
    while True:
        ready = select.select([control.sock, *gifts], [], [])[0]
        if control.sock in ready:
            message, _ = control.recv(_REPLY_S)
            if "files" not in message:
                return
            files.update(one for one in message["files"] if one.startswith("/dev/shm/mpich"))
            continue
        for listener in ready:
            fds = gifts[listener]
            with contextlib.suppress(OSError), listener.accept()[0] as sock:
                if same_user(sock) and fds:
                    socket.send_fds(sock, [b"x"], [fds[0]])
                    os.close(fds.pop(0))


def main() -> int:
    """Serve the ranks of one host. With --agent: take the place of ssh for mpiexec."""
    if sys.argv[1:2] == ["--agent"]:
        return _agent(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    numbers = lambda text: [int(word) for word in text.split(",") if word]  # noqa: E731
    parser.add_argument("--ranks", type=numbers, required=True)
    parser.add_argument("--starts", type=numbers, required=True)
    parser.add_argument("folder", type=Path)
    parser.add_argument("mark")
    parser.add_argument("wish")
    given = parser.parse_args()
    control = Channel(socket.socket(fileno=given.control))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gifts = {_listen(given.folder / _RANKS): given.ranks, _listen(given.folder / _STARTS): given.starts}
    path = given.folder / "agent"
    words = command(_MODULE, ["--agent", str(given.folder / _STARTS)])
    path.write_text(_AGENT.format(path=path, agent=shlex.join(words)), encoding="utf-8")
    path.chmod(0o700)
    files: set[str] = set()  # that MPICH leaves when its ranks are killed
    try:
        with contextlib.suppress(EOFError, TimeoutError, OSError):
            control.send(_found(given.wish, str(given.folder)))
            _serve(control, gifts, files)
    finally:
        _end_strays(given.mark, files)
        with contextlib.suppress(OSError):
            control.send({"ended": True})
    return 0
