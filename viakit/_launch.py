"""Starting ranks and seeing them through: the work behind ``viakit run``.

::

    launcher (this process): one loop over the ranks' ends, their output and the meeting point
      |-- guard: has a pipe from the launcher and the ranks' numbers; kills them if the pipe breaks (kill -9 of us)
      |-- rank 0, in a process group of its own, stdin from us
      |-- rank 1 ...                                        on a testbed's hosts instead: the testbed is the guard

Everything happens in the thread that calls :meth:`Launch.run`; nothing waits without a deadline or a signal that ends
it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import secrets
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from viakit._launch_output import Sink, Stream, wait_for
from viakit._leaving import CAUSED, LEAVES, Ended, Note, first_of, in_doubt
from viakit._rendezvous import Meeting
from viakit._words import counted
from viakit.launch import LaunchError

if TYPE_CHECKING:
    from viakit.testbed import Host, HostProcess, Testbed

__all__ = ["TIMED_OUT", "Launch", "Options", "launch_of"]

MAX_RANKS = 1024
TIMED_OUT = 124
_GRACE_S = 1.2  # between SIGTERM and SIGKILL, so that the rest is gone within two seconds
_GOING_S = 10.0  # that a rank which has said that it goes may take to end, on a busy machine
_DOUBT_S = 0.6  # that a rank which others went before is waited for; with the grace still within two seconds
_SLICE_MS = 200
_OPEN_FILES = 65536
_PR_SET_PDEATHSIG = 1


@dataclass
class Options:
    """How a job is run.

    Attributes
    ----------
    ranks : int
        How many, 1 to 1024; more than there are cores is normal.
    hosts : int
        0: this machine; else so many hosts of a testbed.
    mtu, rate : int, str or None
        Of the testbed's wire; see :class:`viakit.testbed.Testbed`.
    placement : str
        "block" (ranks 0, 1 on the first host) or "cyclic" (ranks 0, H, ... on the first of H).
    protocol, policy, network : str or None
        Passed on as VIAKIT_PROTOCOL, VIAKIT_POLICY and VIAKIT_NETWORK. The policy has to be one for the protocol, and
        says by itself what that is. Protocol "mpi" (or "mpi:mpich", "mpi:openmpi")
        has the ranks started by that MPI's launcher: see :func:`launch_of`.
    launcher : str or None
        Who starts the ranks, if the protocol does not say: None: viakit; "mpi", "mpi:mpich", "mpi:openmpi": that MPI's
        ``mpiexec``, whatever connects the ranks then.
    label : bool
        Begin each line of output with its rank.
    timeout : float or None
        Seconds after which the job is ended, with status 124.
    environment : dict
        To be added to the ranks' environment.
    """

    ranks: int
    hosts: int = 0
    mtu: int = 1500
    rate: str | float | None = None
    placement: str = "block"
    protocol: str | None = None
    policy: str | None = None
    network: str | None = None
    launcher: str | None = None
    label: bool = False
    timeout: float | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ValueError for what makes no sense, before anything is started."""
        if not 1 <= self.ranks <= MAX_RANKS:
            raise ValueError(f"{counted(self.ranks, 'rank')}; right would be 1 to {MAX_RANKS}")
        if self.hosts > self.ranks:
            raise ValueError(
                f"{counted(self.hosts, 'host')} for {counted(self.ranks, 'rank')}; right would be "
                "a rank for each host at least"
            )
        if self.launcher not in (None, "viakit", "mpi", "mpi:mpich", "mpi:openmpi"):
            raise ValueError(f"launcher is {self.launcher!r}; right would be viakit, mpi, mpi:mpich or mpi:openmpi")
        if self.placement not in ("block", "cyclic"):
            raise ValueError(f"placement is {self.placement!r}; right would be block or cyclic")
        if self.protocol and self.protocol.partition(":")[0] not in ("via", "bip", "tcp", "mpi"):
            raise ValueError(f"protocol is {self.protocol!r}; right would be via, bip, tcp, mpi[:mpich], mpi:openmpi")
        if self.policy:
            from viakit import _policy

            protocol = self.protocol or self.environment.get("VIAKIT_PROTOCOL") or os.environ.get("VIAKIT_PROTOCOL")
            _policy.complete(_policy.chosen(protocol, self.policy), self.policy)
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g} s; right would be more than 0")

    def host_of(self, rank: int) -> int:
        """On which host of the testbed a rank goes."""
        return rank % self.hosts if self.placement == "cyclic" else rank * self.hosts // self.ranks


class _Rank:
    """One rank's process, on this machine or on a host."""

    def __init__(self, number: int, process: subprocess.Popen[bytes] | HostProcess) -> None:
        self.number = number
        self.process = process
        self.local = isinstance(process, subprocess.Popen)
        self.end_fd = os.pidfd_open(process.pid) if self.local else process.fileno()  # type: ignore[union-attr]
        self.status: int | None = None

    def poll(self) -> bool:
        """True when it has ended now; never twice."""
        if self.status is not None or self.process.poll() is None:
            return False
        self.status = self.process.returncode
        if self.local:
            os.close(self.end_fd)
        return True

    def reap(self) -> None:
        """Wait a while for the end of what has been killed."""
        self.process.wait(5.0)

    def signal(self, number: int) -> None:
        """Send a signal to the rank and what it started in its process group."""
        if self.local:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number, group=True)  # type: ignore[call-arg]


# Runs without viakit, NumPy or site packages: a few milliseconds. Lines "+PID" and "-PID" come and go, "/..." names a
# folder that has to go, "*..." a pattern of files that have to go if they were not there before and no process maps
# them; the end of the pipe without "." before it means that the launcher was killed.
_GUARD = """
import glob, os, shutil, signal, sys, time
groups, folders, orderly, pattern, before = set(), [], False, "", set()
def mapped(path):
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            with open(maps, errors="replace") as file:
                if path in file.read(): return True
        except OSError: pass
    return False
for line in sys.stdin:
    if line[0] == "+": groups.add(int(line[1:]))
    elif line[0] == "-": groups.discard(int(line[1:]))
    elif line[0] == "/": folders.append(line.rstrip())
    elif line[0] == "*":
        pattern = line[1:].rstrip()
        before = set(glob.glob(pattern))
    else: orderly = True
for group in groups if not orderly else ():
    try: os.killpg(group, signal.SIGKILL)
    except OSError: pass
deadline = time.monotonic() + 5
for folder in folders if not orderly else ():
    while os.path.exists(folder) and time.monotonic() < deadline: # until nobody writes there any more
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)
for path in set(glob.glob(pattern)) - before if not orderly else ():
    while mapped(path) and time.monotonic() < deadline: time.sleep(0.05)
    try: mapped(path) or os.stat(path).st_uid != os.geteuid() or os.unlink(path)
    except OSError: pass
"""


class _Guard:
    """Ends the ranks of this machine if the launcher is killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def tell(self, text: str) -> None:
        """Say that a rank has come or gone."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """All is well: nobody is to be killed."""
        self.tell(".")
        self._process.communicate(timeout=5.0)


def _become_rank() -> None:
    """In the child, before the program starts: it dies with us, also while the guard does not know it yet.

    And it may have more open files, if it may ask for them: over shm it holds some for every rank of its host.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, 0)
    _allow_files(_OPEN_FILES)


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files to that, as far as it may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


_FILES, _FILES_OF_A_RANK = (
    512,
    6,
)  # that the launcher has open: a socket, two pipes, what tells of its end, and some to spare
_libc = ctypes.CDLL(None, use_errno=True)


def ended_after(timeout_s: float | None) -> str:
    """What is said of a job whose time was over."""
    return f"the job was ended after {timeout_s:g} s, as asked"


def program(words: list[str]) -> list[str]:
    """Return the command for what the user named: a Python file, ``-m`` and a module, or any program.

    Raises
    ------
    LaunchError
        If there is no such program.
    """
    if not words:
        raise LaunchError("no program given: viakit run -n 4 prog.py")
    if words[0] == "-m":
        if len(words) < 2:
            raise LaunchError("-m needs the name of a module: viakit run -n 4 -m viakit.apps.sor")
        return [sys.executable, *words]
    path = Path(words[0])
    if words[0].endswith(".py"):
        if path.is_dir():
            raise LaunchError(f"{words[0]}: is a folder; name a program in it")
        if not path.exists():
            raise LaunchError(f"{words[0]}: no such file; the program is looked for from {Path.cwd()}")
        return [sys.executable, *words]
    found = find_program(words[0], " (a Python file ends in .py)", " (a file that ends in .py need not be)")
    return [os.path.abspath(found) if os.path.dirname(words[0]) else found, *words[1:]]


def find_program(word: str, if_missing: str = "", if_not_executable: str = "") -> str:
    """Return the file that is run for *word*: itself if it names a folder, otherwise the first that PATH has.

    Folders of PATH that may not be read are passed over. The system's own search gives their error instead, which
    says nothing about the program.

    Raises
    ------
    LaunchError
        If there is none; the message ends with what the caller has to say of that.
    """
    path, found = Path(word), shutil.which(word)
    if found is not None:
        return found
    shell = word
    if os.path.dirname(word) == "" and path.is_file():  # `which` looks in PATH only
        shell = f"./{word}"
        if os.access(path, os.X_OK):
            raise LaunchError(f"{word}: no such program in PATH; the one of this folder is {shlex.quote(shell)}")
    elif path.is_dir():
        raise LaunchError(f"{word}: is a folder; name a program in it")
    elif not path.exists():
        raise LaunchError(f"{word}: no such program, neither here nor in PATH{if_missing}")
    raise LaunchError(f"{shell}: is there, but not executable: chmod +x {shlex.quote(shell)}{if_not_executable}")


class Launch:
    """One job.

    Parameters
    ----------
    command : list of str
        The program and its arguments, as :func:`program` takes them.
    options : Options
    out, err : binary files, optional
        Where the ranks' output goes; default: this process's own.
    """

    def __init__(
        self, command: list[str], options: Options, out: IO[bytes] | None = None, err: IO[bytes] | None = None
    ) -> None:
        options.check()
        self._command = program(command)
        self._options = options
        self._out, self._err = Sink(out or sys.stdout.buffer), Sink(err or sys.stderr.buffer)
        self._ranks: list[_Rank] = []
        self._streams: dict[int, Stream] = {}
        self._meeting = Meeting(options.ranks)
        self._guard: _Guard | None = None
        self._testbed: Testbed | None = None
        self._job = secrets.token_hex(8)
        self._failures: list[Ended] = []
        self._doubt_until: float | None = None  # a rank has failed, and it may not have been the first
        self._dismissed: set[int] = set()  # ranks that were asked to end meanwhile
        self._kept: dict[int, Stream] = {}  # by rank: errors that are kept back
        self._failed: _Rank | None = None
        self._ending_at: float | None = None
        self._abandoned_at: float | None = None
        self._interrupted: int | None = None
        self._feed: _Feed | None = None
        self._alone = options.ranks == 1  # whether one process writes all the output

    def run(self) -> int:
        """Start the ranks and wait for their end.

        Returns
        -------
        int
            0; or the status of the first rank that failed (128 + the signal's number, if one ended it); 124 after the
            time-out. An interruption by SIGINT, SIGTERM or SIGHUP ends all ranks and then raises KeyboardInterrupt.

        Raises
        ------
        LaunchError, viakit.testbed.TestbedError
            If they cannot be started; nothing is left then.
        """
        deadline = None if self._options.timeout is None else time.monotonic() + self._options.timeout
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._signals())
            stack.callback(self._clear_away)
            _allow_files(_FILES + _FILES_OF_A_RANK * self._options.ranks)
            self._start()
            while any(rank.status is None for rank in self._ranks) or self._streams:
                self._turn()
                now = time.monotonic()
                if deadline is not None and now > deadline and self._ending_at is None:
                    self._say(ended_after(self._options.timeout))
                    self._failed = None
                    self._end_all()
                    self._interrupted = -1
                if self._ending_at is not None and now > self._ending_at:
                    self._signal_all(signal.SIGKILL)
                    self._ending_at = now + _GRACE_S
                if self._streams and all(rank.status is not None for rank in self._ranks) and self._abandoned(now):
                    break
        for stream in self._kept.values():
            if stream.kept:  # nobody has decided
                stream.decide(shown=True)
        if self._interrupted is not None:
            if self._interrupted == -1:
                return TIMED_OUT
            raise KeyboardInterrupt
        problem = self._out.problem or self._err.problem
        if problem is not None:
            self._say(f"output cannot be written: {problem}")
        return int(problem is not None) if self._failed is None else _status(self._failed)

    def interrupt(self) -> None:
        """Send SIGINT to all ranks, as Ctrl-C in each of them would; they run on. Any thread may call it."""
        self._signal_all(signal.SIGINT)

    # ---- starting

    def _start(self) -> None:
        hosts: list[Host] = []
        if self._options.hosts:
            from viakit.testbed import Testbed

            self._testbed = Testbed(self._options.hosts, self._options.mtu, self._options.rate).open()
            hosts = self._testbed.hosts
        else:
            self._guard = _Guard()
        counts = [0] * max(1, self._options.hosts)
        for number in range(self._options.ranks):
            where = self._options.host_of(number) if hosts else 0
            self._start_rank(number, hosts[where] if hosts else None, counts[where])
            counts[where] += 1

    def _environment(self, number: int, host: Host | None, local_rank: int, fd: int) -> dict[str, str]:
        options = self._options
        per_host = options.ranks
        if options.hosts:
            mine = options.host_of(number)
            per_host = sum(options.host_of(other) == mine for other in range(options.ranks))
        environment = dict(os.environ)
        for name in list(environment):  # what another launcher said is not for these ranks
            if name.startswith(("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "SLURM_PROCID", "VIAKIT_RENDEZVOUS")):
                del environment[name]
        threads = str(max(1, (os.cpu_count() or 1) // per_host))
        environment |= {
            "VIAKIT_RANK": str(number),
            "VIAKIT_SIZE": str(options.ranks),
            "VIAKIT_LOCAL_RANK": str(local_rank),
            "VIAKIT_LOCAL_SIZE": str(per_host),
            "VIAKIT_RENDEZVOUS": f"fd:{fd}",
            "VIAKIT_JOB": self._job,
            "PYTHONUNBUFFERED": environment.get("PYTHONUNBUFFERED", "1"),
            "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", threads),
            "OPENBLAS_NUM_THREADS": environment.get("OPENBLAS_NUM_THREADS", threads),
        }
        given = {"PROTOCOL": options.protocol, "POLICY": options.policy, "NETWORK": options.network}
        environment |= {f"VIAKIT_{name}": value for name, value in given.items() if value}
        if host is not None:
            environment["VIAKIT_ADDRESS"] = host.address
            environment.setdefault("VIAKIT_NETWORK", f"eth:{host.interface}")
        return environment | options.environment

    def _start_rank(self, number: int, host: Host | None, local_rank: int) -> None:
        near, far = socket.socketpair()
        stdin = subprocess.DEVNULL
        if number == 0 and sys.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                # A rank in a process group of its own may not read from the terminal: we do, and pass it on.
                stdin = subprocess.PIPE if os.isatty(sys.stdin.fileno()) else sys.stdin.fileno()
        try:
            environment = self._environment(number, host, local_rank, far.fileno())
            if host is None:
                process: Any = subprocess.Popen(
                    self._command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env=environment,
                    pass_fds=[far.fileno()],
                    preexec_fn=_become_rank,
                )
            else:
                process = host.popen(
                    self._command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    pass_fds=[far.fileno()],
                )
        except OSError as error:
            near.close()
            raise LaunchError(f"rank {number} cannot be started: {self._command[0]}: {error.strerror}") from error
        finally:
            far.close()
        rank = _Rank(number, process)
        self._ranks.append(rank)
        if self._guard is not None:
            self._guard.tell(f"+{process.pid}")
        self._meeting.admit(number, near)
        for source, sink in ((process.stdout, self._out), (process.stderr, self._err)):
            self._streams[source.fileno()] = Stream(number, source, sink, self._options.label, self._alone)
        if process.stdin is not None:
            self._feed = _Feed(process.stdin)

    # ---- the loop

    def _turn(self) -> None:
        """Wait for something, at most a slice, and see to it."""
        poll = select.poll()
        interest = self._meeting.interest()
        for fd, events in interest.items():
            poll.register(fd, events)
        for fd in self._streams:
            poll.register(fd, select.POLLIN)
        for rank in self._ranks:
            if rank.status is None:
                poll.register(rank.end_fd, select.POLLIN)
        typing = self._feed.interest() if self._feed is not None else {}
        for fd, events in typing.items():
            poll.register(fd, events)
        ready = {fd for fd, _ in poll.poll(_SLICE_MS)}
        if self._feed is not None and ready & set(typing) and not self._feed.pump():
            self._feed = None
        # What a rank said on its way out came before what others wrote of it, but maybe after we looked: look again.
        self._meeting.handle(set(interest) if ready & set(self._streams) else ready & set(interest))
        self._keep_back()
        for fd in ready & set(self._streams):
            if not self._streams[fd].read():
                self._streams.pop(fd).source.close()
        ended = [rank for rank in self._ranks if rank.poll()]
        if ended:
            self._meeting.handle(set(interest))
        for rank in ended:
            self._ended(rank)
        self._judge()

    def _ended(self, rank: _Rank) -> None:
        if self._guard is not None:
            self._guard.tell(f"-{rank.process.pid}")
        how = _how(rank)
        self._meeting.fail(f"rank {rank.number} ended {how} before all had met")
        if not rank.status or self._ending_at is not None:
            return
        if rank.number in self._dismissed and rank.status == -signal.SIGTERM:
            return  # it was on its way out, with which status it can no longer say
        note = self._meeting.notes.get(rank.number) or Note(LEAVES, time.monotonic_ns())
        self._failures.append(Ended(rank.number, rank.status, note))

    def _is_going(self) -> bool:
        """Whether a rank that still runs has said that it goes, and that no other one is the cause."""
        notes = [self._meeting.notes.get(rank.number) for rank in self._ranks if rank.status is None]
        now = time.monotonic_ns()
        return any(note is not None and note.why != CAUSED and now - note.when_ns < 1e9 * _GOING_S for note in notes)

    def _keep_back(self) -> None:
        """Keep back what ranks write that say that another has gone before them.

        Not for long, unless that other one has said that it goes, and has not ended yet.
        """
        if self._options.label or self._ending_at is not None:
            return
        going = self._is_going()
        for stream in self._streams.values():
            note = self._meeting.notes.get(stream.rank)
            if note is None or note.why != CAUSED or stream.sink is not self._err or stream.mute:
                continue
            fresh = time.monotonic_ns() - note.when_ns < 1e9 * _DOUBT_S
            if stream.kept is None and (fresh or going):
                stream.kept, self._kept[stream.rank] = [], stream
            elif stream.kept is not None and not fresh and not going and not self._failures:
                self._kept.pop(stream.rank).decide(shown=True)

    def _judge(self) -> None:
        """Once a rank has failed: end the job, unless one that still runs may have been first; that one comes soon."""
        if not self._failures or self._ending_at is not None:
            return
        running = [rank for rank in self._ranks if rank.status is None]
        notes = [self._meeting.notes.get(rank.number) for rank in running]
        if in_doubt(self._failures, notes):
            if self._doubt_until is None:
                self._doubt_until = time.monotonic() + _DOUBT_S
                for rank, note in zip(running, notes, strict=True):
                    if note is not None and note.why == LEAVES:  # it waits for the others to leave, too
                        rank.signal(signal.SIGTERM)
                        self._dismissed.add(rank.number)
            if time.monotonic() < self._doubt_until or self._is_going():
                return
        self._declare(self._ranks[first_of(self._failures).rank])

    def _declare(self, rank: _Rank) -> None:
        """Take a rank for the first that failed: show what it wrote, and end the others."""
        self._failed = rank
        rest = [other for other in self._ranks if other.status is None]
        ended = {0: "", 1: "; the last one still running is ended"}.get(
            len(rest), f"; the {len(rest)} still running are ended"
        )
        for fd in [fd for fd, stream in self._streams.items() if stream.rank == rank.number]:
            while fd in self._streams and self._streams[fd].source.readable():  # its last words first
                if not self._streams[fd].read():
                    self._streams.pop(fd).source.close()
                elif not wait_for(fd, select.POLLIN, 0):
                    break
        for number, stream in self._kept.items():
            stream.decide(shown=number == rank.number)
        self._say(f"rank {rank.number} ended {_how(rank)}{ended}")
        for stream in self._streams.values():
            stream.mute = stream.rank != rank.number and stream.sink is self._err and not self._options.label
        self._end_all()

    def _end_all(self) -> None:
        self._signal_all(signal.SIGTERM)
        self._ending_at = time.monotonic() + _GRACE_S

    def _signal_all(self, number: int) -> None:
        for rank in self._ranks:
            if rank.status is None:
                rank.signal(number)

    def _abandoned(self, now: float) -> bool:
        """All ranks have ended, but something that one of them started holds its output open: wait a little for it."""
        if self._abandoned_at is None:
            self._abandoned_at = now + _GRACE_S
            for rank in self._ranks:
                rank.signal(signal.SIGTERM)
        return now > self._abandoned_at

    def _say(self, text: str) -> None:
        begin = "\n" if self._err.unfinished is not None else ""
        self._err.unfinished = None
        self._err.put(f"{begin}viakit run: {text}\n".encode())

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """While the job runs, signals that would end us end the ranks first."""

        def note(number: int, frame: FrameType | None) -> None:
            del frame
            if self._interrupted is None:
                self._interrupted = number
                self._end_all()
            else:
                self._signal_all(signal.SIGKILL)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        try:
            before: dict[int, Any] = {number: signal.signal(number, note) for number in numbers}
        except ValueError:  # not the main thread: whoever calls us there sees to signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _clear_away(self) -> None:
        """However it ended: nothing is left."""
        steps: list[Callable[[], object]] = [lambda: self._signal_all(signal.SIGKILL)]
        steps += [rank.reap for rank in self._ranks if rank.status is None]
        steps += [rank.poll for rank in self._ranks]
        for rank in self._ranks:
            if rank.local:
                steps.append(functools.partial(rank.signal, signal.SIGKILL))  # what it left in its process group
        steps += [stream.source.close for stream in self._streams.values()]
        if self._feed is not None:
            steps.append(self._feed.close)
        steps.append(self._meeting.close)
        if self._guard is not None:
            steps.append(self._guard.dismiss)
        if self._testbed is not None:
            steps.append(self._testbed.close)
        for step in steps:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                step()


def launch_of(
    command: list[str], options: Options, out: IO[bytes] | None = None, err: IO[bytes] | None = None
) -> Launch:
    """The job that the options ask for: ranks of ours, or under protocol or launcher "mpi" an MPI's own launcher."""
    from viakit._launch_mpi import MpiLaunch, is_mpi

    by_mpi = is_mpi(options.launcher) or is_mpi(options.protocol)
    return MpiLaunch(command, options, out, err) if by_mpi else Launch(command, options, out, err)


class _Feed:
    """The terminal's lines, passed on to rank 0; none while we are in the background, where reading would stop us."""

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._pending = b""  # was typed, and the pipe had no room for it yet
        os.set_blocking(sink.fileno(), False)

    def interest(self) -> dict[int, int]:
        """The file to wait for, and what for; nothing while there is nothing to do."""
        if self._pending:
            return {self._sink.fileno(): select.POLLOUT}
        return {sys.stdin.fileno(): select.POLLIN} if _in_foreground(sys.stdin.fileno()) else {}

    def pump(self) -> bool:
        """Pass on what was typed. False when it is over."""
        try:
            if not self._pending:
                typed = _read_terminal(sys.stdin.fileno(), 1 << 12)
                if typed is None:
                    return True
                self._pending = typed
            while self._pending:
                self._pending = self._pending[os.write(self._sink.fileno(), self._pending) :]
                if not self._pending:
                    return True
        except BlockingIOError:
            return True
        except OSError:
            pass
        self.close()
        return False

    def close(self) -> None:
        """Rank 0 sees the end of its input."""
        self._sink.close()


def _in_foreground(terminal: int) -> bool:
    """Whether we may read from a terminal: whoever has it as controlling terminal may only in the foreground."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # it controls somebody else, or nobody
        return True


def _read_terminal(terminal: int, most: int) -> bytes | None:
    """Read what was typed; empty at the end of input, None if we have just been put into the background.

    With SIGTTIN blocked the kernel answers EIO then, and does not stop us. (Ignoring it would be inherited by ranks.)
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
    try:
        return os.read(terminal, most)
    except OSError:
        if _in_foreground(terminal):
            raise
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _status(rank: _Rank) -> int:
    assert rank.status is not None
    return rank.status if rank.status >= 0 else 128 - rank.status


def _how(rank: _Rank) -> str:
    """How a rank ended, in words."""
    assert rank.status is not None
    if rank.status >= 0:
        return f"with exit status {rank.status}"
    try:
        return f"by {signal.Signals(-rank.status).name}"
    except ValueError:
        return f"by signal {-rank.status}"
