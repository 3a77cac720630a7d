"""An MPI library's own mpiexec across machines that ssh reaches: for jobs, and for ranks that measure.

::

    this machine                 host 0                              host 1
    FarMpi ------ ssh ---- main()   mpiexec - agent                  main()
        |                    |          |       |                       |
        |                    |        rank 0    |  (a command)        rank 1
        +----- ssh -------------------------------------- proxy ---------+

A process of this module, main(), runs on each host. mpiexec runs on host 0. It starts its proxy on another host through
an agent in place of ssh. The agent hands the command to this process, which starts it on that host: hosts need no keys
of each other. From there on mpiexec, its proxies and the ranks use connections of their own, as this library always
does.

Each rank holds a named pipe of its host open, from its start to its end. main() therefore notices when the last rank of
the host has ended, and notifies :class:`FarMpi`: Open MPI's mpiexec sometimes does not end after a rank was killed.

main() inherits connected sockets through :mod:`viakit.remote`, and hands one to each rank of its host that wants one:
see :func:`taken`. Such a rank needs no port to reach this process.

All processes have a variable with a random word. At the end main() kills those that are left on its host.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ipaddress
import itertools
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from viakit.base.channel import Channel
from viakit.base.failure import MeasureError
from viakit.base.marks import marked
from viakit.base.process import command, end_with_parent
from viakit.base.secret import same_user
from viakit.launch import mpi_library as mpi

if TYPE_CHECKING:
    from viakit.remote import Remote, RemoteHost

__all__ = ["FarMpi", "Place", "main", "taken"]

_MODULE = "viakit.launch.far_mpi"
_MARK = "VIAKIT_RANKS"  # variable in the environment of all processes of the MPI, which identifies strays
_REPLY_S = 60.0  # for main() to start and find the library, on a busy machine
_GONE_S = 5.0  # for killed processes to end
_PIECE = 1 << 16
_RANKS, _STARTS = "ranks", "starts"  # names of Unix sockets in the folder of a host
_LIVES = "lives"  # name of the pipe there which the ranks hold open

_AGENT = """#!/bin/sh
# {path} [OPTION...] HOST COMMAND...: called by mpiexec like ssh
while [ $# -gt 0 ]; do case $1 in -*) shift ;; *) break ;; esac; done
exec {agent} "$@"
"""
_RANK = """#!/bin/sh
# {path} PROGRAM...: run a rank, which holds the pipe open until it ends, at a descriptor that mpiexec does not use
for fd in 9 8 7 6 5 4 3; do
    [ -e /proc/self/fd/$fd ] || {{ eval "exec $fd<> {pipe}"; echo >&$fd; break; }}
done
exec "$@"
"""


@dataclass
class Place:
    """A host: its part of the job, and the ends of the sockets that its processes inherit.

    Attributes
    ----------
    host : viakit.remote.RemoteHost
    folder : str
        Temporary folder on the host, for files of the library.
    ranks : list of Channel
        Sockets for ranks, which :func:`taken` hands out.
    """

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

    @property
    def sockets(self) -> str:
        """Path on the host of the Unix socket for :func:`taken`."""
        return f"{self.folder}/{_RANKS}"


class FarMpi:
    """The mpiexec of an MPI library whose ranks are on machines that ssh reaches.

    Parameters
    ----------
    wish : str
        "mpi", "mpi:mpich" or "mpi:openmpi"; each host must have the library.
    remote : viakit.remote.Remote
        The hosts.
    hosts_of : sequence of int
        The index of the host of each rank. Each host has a rank at least.
    output : file, optional
        File for the output of the helpers. Default: that of this process.

    Attributes
    ----------
    places : list of Place
        The hosts, in the order of *remote*.
    flavour : str
        "mpich" or "openmpi", after :meth:`open`.
    """

    def __init__(self, wish: str, remote: Remote, hosts_of: Sequence[int], output: IO[bytes] | None = None) -> None:
        self._wish, self._remote, self._hosts_of, self._output = wish, remote, list(hosts_of), output
        self.places: list[Place] = []
        self.flavour = ""
        self._threads: list[threading.Thread] = []
        self._mark = os.urandom(12).hex()
        self._without_ranks: set[int] = set()  # the hosts whose ranks have all ended

    def open(self, with_sockets: bool = False) -> None:
        """Start a helper on each host, and find the library there. After an error nothing is left.

        Parameters
        ----------
        with_sockets : bool
            Provide a socket for each rank.

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
                started = [pool.submit(self._prepare, host, with_sockets) for host in hosts]
            self.places = [one.result() for one in started if one.exception() is None]  # for kill()
            for one in started:
                one.result()
            deadline = time.monotonic() + _REPLY_S
            for place in self.places:
                self._learn(place, deadline)
            self._check_versions()
            for start in self.places[0].starts:
                thread = threading.Thread(target=self._serve_start, args=(start,), daemon=True)
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.kill()
            raise

    def _prepare(self, host: RemoteHost, with_sockets: bool) -> Place:
        """Start main() on a host."""
        folder = host.folder()
        n_ranks = self._hosts_of.count(host.index) if with_sockets else 0
        n_starts = self._n_starts if host.index == 0 else 0
        pairs = [socket.socketpair() for _ in range(1 + n_ranks + n_starts)]
        fds = [far.fileno() for _, far in pairs]
        words = [str(fd) for fd in fds]
        options = ["--control", words[0], "--ranks", ",".join(words[1 : 1 + n_ranks])]
        options += ["--starts", ",".join(words[1 + n_ranks :]), "--here", str(self._hosts_of.count(host.index))]
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
        return Place(host, folder, near[0], near[1 : 1 + n_ranks], near[1 + n_ranks :], process)

    def _learn(self, place: Place, deadline: float) -> None:
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
        self.flavour = library.flavour
        if self.flavour == "openmpi" and len(self._hosts_of) > len(self._remote.hosts):  # ranks share a host
            place.variables["OMPI_MCA_btl"] = found["variables"].get("OMPI_MCA_btl", "self,sm") + ",tcp"

    def _check_versions(self) -> None:
        """Raise MeasureError if two hosts have different libraries."""
        first = self.places[0]
        for place in self.places[1:]:
            if place.version != first.version:
                raise MeasureError(
                    f"{self._wish}: host {first.host.name} has {first.version}, host {place.host.name} has "
                    f"{place.version}; install one version of one library on all hosts",
                    "mismatch",
                )

    def environment(self) -> dict[str, str]:
        """Return the variables of mpiexec on host 0. Those of Open MPI 4 have other names than those of version 5."""
        first = self.places[0]
        agent = f"{first.folder}/agent"
        variables = {
            "PRTE_MCA_plm_ssh_agent": agent, "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
            "OMPI_MCA_plm_rsh_agent": agent, "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        }  # fmt: skip
        if network := self._network():
            variables |= {"PRTE_MCA_prte_if_include": network, "OMPI_MCA_oob_tcp_if_include": network}
        return first.variables | variables

    def _network(self) -> str:
        """Return the network that all hosts share, as ADDRESS/BITS; "" if routers join them."""
        found = set()
        for place in self.places:
            for one in place.host.facts["interfaces"]:
                if (one["address"] or "").partition("/")[0] == place.host.address:
                    found.add(str(ipaddress.ip_interface(one["address"]).network))
        return found.pop() if len(found) == 1 else ""

    def command(self, program: Callable[[Place], list[str]]) -> list[str]:
        """Return the command of mpiexec on host 0. Its parts are the neighbouring ranks of a host, in rank order.

        Parameters
        ----------
        program : callable
            Returns the command of the ranks on a host, for this machine.
        """
        first = self.places[0]
        parts = [(self.places[index], len([*ranks])) for index, ranks in itertools.groupby(self._hosts_of)]
        flags = ["-bind-to", "none"] if self.flavour == "mpich" else ["--bind-to", "none"]
        if self.flavour == "mpich":
            flags += ["-launcher", "ssh", "-launcher-exec", f"{first.folder}/agent"]
            flags += ["-localhost", first.host.address]
            # The ranks fill the hosts in this order, and then again.
            flags += ["-hosts", ",".join(f"{place.host.address}:{n}" for place, n in _cycle(parts))]
        words = [first.mpiexec, *flags]
        for i, (place, n) in enumerate(parts):
            where = ["--host", f"{place.host.address}:{n}"] if self.flavour == "openmpi" else []
            variables = [f"{name}={value}" for name, value in place.variables.items()]
            far = place.host.translated(program(place))
            words += [*([":"] if i else []), "-n", str(n), *where, "env", *variables, f"{place.folder}/rank", *far]
        return words

    def ranks_have_ended(self) -> bool:
        """Return whether every rank has started and ended, on all hosts. Does not wait."""
        for place in self.places:
            with contextlib.suppress(EOFError, TimeoutError, OSError, ValueError):
                if place.host.index not in self._without_ranks and select.select([place.control], [], [], 0)[0]:
                    place.control.recv(_GONE_S)  # main() sends nothing else before kill()
                    self._without_ranks.add(place.host.index)
        return len(self._without_ranks) == len(self.places) > 0

    @property
    def _n_starts(self) -> int:
        """Number of commands that mpiexec may start on other hosts: MPICH has a proxy for each entry of its list."""
        parts = [(index, len([*ranks])) for index, ranks in itertools.groupby(self._hosts_of)]
        return max(len(self._remote.hosts) - 1, len(_cycle(parts)))

    def _serve_start(self, start: Channel) -> None:
        """Start a command of mpiexec on a host, and pass on its output and status."""
        try:
            request, _ = start.recv()
        except (EOFError, OSError, ValueError):
            return  # no agent needed it
        with contextlib.suppress(OSError):
            place = next((one for one in self.places if one.host.address == request["host"]), None)
            if place is None:
                start.send({"status": 255}, f"viakit: no host {request['host']} in this job\n".encode())
                return
            text = request["command"].replace(f"{self.places[0].prefix}/", f"{place.prefix}/")
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

    def remember(self, files: Iterable[str]) -> None:
        """Register files in /dev/shm of the hosts, to be removed after the ranks have ended."""
        for place in self.places:
            with contextlib.suppress(OSError):
                place.control.send({"files": sorted(files)})

    def kill(self) -> None:
        """Kill all remaining processes on all hosts. Idempotent."""
        places, self.places = self.places, []
        for place in places:
            with contextlib.suppress(OSError):
                place.control.send({"end": True})
        deadline = time.monotonic() + 2 * _GONE_S
        for place in places:
            with contextlib.suppress(EOFError, TimeoutError, OSError, ValueError):
                while "ended" not in place.control.recv(max(0.0, deadline - time.monotonic()))[0]:
                    pass
            with contextlib.suppress(Exception):
                place.process.wait(timeout=max(0.1, deadline - time.monotonic()))
            for channel in (place.control, *place.starts, *place.ranks):
                with contextlib.suppress(OSError):
                    channel.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        for place in places:
            for channel in (place.control, *place.starts, *place.ranks):
                channel.close()


def _cycle(parts: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    """Return the shortest beginning of a list whose repetition gives the list; the last part may be cut short."""
    for n in range(1, len(parts) + 1):
        again = [parts[i % n] for i in range(len(parts))]
        if again[:-1] == parts[:-1] and again[-1][0] == parts[-1][0] and again[-1][1] >= parts[-1][1]:
            return parts[:n]
    return parts


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
        print("viakit: the process that started this job has ended", file=sys.stderr)
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
    while (strays := marked(_MARK, mark)) and time.monotonic() < deadline:
        for pid in strays:
            files |= mpi.shared_files(pid)
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    for path in files:
        with contextlib.suppress(OSError):
            os.unlink(path)


class _Lives:
    """The pipe that the ranks of this host hold open from their start to their end.

    Parameters
    ----------
    path : Path
        Path of the pipe, which is made.
    n_ranks : int
        Number of ranks of this host. Each writes one byte when it starts.
    """

    def __init__(self, path: Path, n_ranks: int) -> None:
        os.mkfifo(path, 0o600)
        self._path, self._to_start = path, n_ranks
        # A writer, too: without one the pipe would be at its end between two ranks.
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._fd

    def have_ended(self) -> bool:
        """Read the pipe, when it is ready. Return whether all ranks have started and ended."""
        data = os.read(self._fd, _PIECE)
        self._to_start -= len(data)
        if data and self._to_start <= 0:
            reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
            os.close(self._fd)
            self._fd = reader
        return not data


def _serve(control: Channel, gifts: dict[socket.socket, list[int]], lives: _Lives, files: set[str]) -> None:
    """Hand a socket to each process that connects, until the owner ends the job or has ended. Collect its *files*.

    Notify the owner when all ranks of this host have ended.
    """
    some_live = True
    while True:
        watched = [*gifts, lives] if some_live else [*gifts]
        ready = select.select([control, *watched], [], [])[0]
        if lives in ready and lives.have_ended():
            some_live = False
            control.send({"ranks": "ended"})
        if control in ready:
            message, _ = control.recv(_REPLY_S)
            if "files" not in message:
                return
            files.update(one for one in message["files"] if one.startswith("/dev/shm/mpich"))
            continue
        for listener in gifts.keys() & set(ready):
            fds = gifts[listener]
            with contextlib.suppress(OSError), listener.accept()[0] as sock:
                if same_user(sock) and fds:
                    socket.send_fds(sock, [b"x"], [fds[0]])
                    os.close(fds.pop(0))


def _write_script(path: Path, text: str, **values: str) -> None:
    path.write_text(text.format(path=path, **values), encoding="utf-8")
    path.chmod(0o700)


def main() -> int:
    """Serve the ranks of one host. With --agent: take the place of ssh for mpiexec."""
    if sys.argv[1:2] == ["--agent"]:
        return _agent(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("--control", type=int, required=True)
    numbers = lambda text: [int(word) for word in text.split(",") if word]  # noqa: E731
    parser.add_argument("--ranks", type=numbers, required=True)
    parser.add_argument("--starts", type=numbers, required=True)
    parser.add_argument("--here", type=int, required=True)
    parser.add_argument("folder", type=Path)
    parser.add_argument("mark")
    parser.add_argument("wish")
    given = parser.parse_args()
    control, parent = Channel(socket.socket(fileno=given.control)), os.getppid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGTERM)  # and not by SIGKILL, so that the strays and the folder of a killed agent go, too
    gifts = {_listen(given.folder / _RANKS): given.ranks, _listen(given.folder / _STARTS): given.starts}
    lives = _Lives(given.folder / _LIVES, given.here)
    words = command(_MODULE, ["--agent", str(given.folder / _STARTS)])
    _write_script(given.folder / "agent", _AGENT, agent=shlex.join(words))
    _write_script(given.folder / "rank", _RANK, pipe=shlex.quote(str(given.folder / _LIVES)))
    files: set[str] = set()  # that MPICH leaves when its ranks are killed
    before = mpi.mpich_files()
    try:
        with contextlib.suppress(EOFError, TimeoutError, OSError):
            control.send(_found(given.wish, str(given.folder)))
            _serve(control, gifts, lives, files)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # A second one would leave the rest undone.
        _end_strays(given.mark, files)
        mpi.remove_files(mpi.mpich_files() - before)
        if os.getppid() != parent:  # The agent, which removes its folders at its end, was killed.
            shutil.rmtree(given.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            control.send({"ended": True})
    return 0
