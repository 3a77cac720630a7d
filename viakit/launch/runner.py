"""Start and supervision of ranks: the implementation of ``viakit run``.

::

    launcher (this process): one loop over the ranks' ends, their output and the meeting point
      |-- guard: kills the ranks if the launcher was killed (viakit.launch.guard)
      |-- rank 0, in a process group of its own, with the launcher's standard input
      |-- rank 1 ...

On a testbed the ranks are processes of its hosts, and the testbed takes the place of the guard. All work is done in the
thread that calls :meth:`Launch.run`. Every wait has a deadline, or ends by a signal.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from viakit.base import secret as _secret
from viakit.base.words import counted
from viakit.launch import LaunchError
from viakit.launch import mpi_library as mpi
from viakit.launch.child import allow_files, become_rank
from viakit.launch.guard import Guard
from viakit.launch.leaving import CAUSED, LEAVES, Ended, Note, first_of, in_doubt
from viakit.launch.options import Options
from viakit.launch.output import Sink, Stream, bytes_of, wait_for
from viakit.launch.program import program
from viakit.launch.rendezvous import Meeting
from viakit.launch.template import Forked, Template
from viakit.launch.terminal import Feed

if TYPE_CHECKING:
    from viakit.remote import Remote
    from viakit.testbed import Host, HostProcess, Testbed

__all__ = ["TIMED_OUT", "Launch", "Options", "how_ended", "launch_of", "open_hosts"]

TIMED_OUT = 124
_GRACE_S = 1.2  # between SIGTERM and SIGKILL, so that all ranks have ended within two seconds
_GOING_S = 10.0  # from a rank's note to its end, on a busy machine
_DOUBT_S = 0.6  # wait for a rank that may have failed first; with the grace below two seconds
_SLICE_MS = 200
_OTHER_LAUNCHERS = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "SLURM_PROCID", "VIAKIT_RENDEZVOUS", _secret.FILE)


class _Rank:
    """Process of one rank, on this machine or on a host."""

    def __init__(self, number: int, process: subprocess.Popen[bytes] | Forked | HostProcess) -> None:
        self.number = number
        self.process = process
        self.local = isinstance(process, (subprocess.Popen, Forked))
        self.end_fd = os.pidfd_open(process.pid) if self.local else process.fileno()  # type: ignore[union-attr]
        self.status: int | None = None

    def poll(self) -> bool:
        """Return whether the process has ended since the last call."""
        if self.status is not None or self.process.poll() is None:
            return False
        self.status = self.process.returncode
        if self.local:
            os.close(self.end_fd)
        return True

    def reap(self) -> None:
        """Wait up to 5 s for the end of a killed process."""
        self.process.wait(5.0)

    def signal(self, number: int) -> None:
        """Send a signal to the process group of the rank."""
        if self.local:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number, group=True)  # type: ignore[call-arg, union-attr]


_FILES = 512  # of the launcher itself
_FILES_OF_A_RANK = 6  # open in the launcher: a socket, two pipes, a pidfd, and some to spare


def ended_after(timeout_s: float | None) -> str:
    """Return the message of a job that reached its time-out."""
    return f"the job was ended after {timeout_s:g} s, as asked"


class Launch:
    """A job of several ranks.

    Parameters
    ----------
    command : list of str
        The program and its arguments, as :func:`viakit.launch.program.program` takes them.
    options : Options
    out, err : binary files, optional
        Destinations of the ranks' output; default: this process's own streams.
    """

    def __init__(
        self, command: list[str], options: Options, out: IO[bytes] | None = None, err: IO[bytes] | None = None
    ) -> None:
        options.check()
        self._command = program(command)
        if options.preload and self._command[0] != sys.executable:
            raise LaunchError(f"{command[0]}: --preload is for Python programs: a file that ends in .py, or -m MODULE")
        self._options = options
        self._out, self._err = Sink(out or bytes_of(sys.stdout)), Sink(err or bytes_of(sys.stderr))
        self._ranks: list[_Rank] = []
        self._streams: dict[int, Stream] = {}
        self._meeting = Meeting(options.ranks, own_clock=options.remote is not None)
        self._guard: Guard | None = None
        self._cores: list[set[int]] = []  # of each rank, if they are bound
        self._testbed: Testbed | Remote | None = None
        self._template: Template | None = None
        self._job = secrets.token_hex(8)
        self._secret = _secret.new()
        self._failures: list[Ended] = []
        self._doubt_until: float | None = None  # deadline: a rank has failed, perhaps not as the first
        self._dismissed: set[int] = set()  # ranks that got SIGTERM meanwhile, to end their wait for peers
        self._kept: dict[int, Stream] = {}  # by rank: stderr that is held back
        self._failed: _Rank | None = None
        self._ending_at: float | None = None
        self._abandoned_at: float | None = None
        self._interrupted: int | None = None
        self._feed: Feed | None = None
        self._alone = options.ranks == 1  # whether a single process writes all output

    def run(self) -> int:
        """Start the ranks and wait for their end.

        Returns
        -------
        int
            0, or the status of the first rank that failed: its exit status, or 128 + the number of the signal that
            ended it. After a time-out: 124.

        Raises
        ------
        LaunchError, viakit.testbed.TestbedError
            If the ranks cannot be started; no process is left then.
        KeyboardInterrupt
            After SIGINT, SIGTERM or SIGHUP, when all ranks have ended.
        """
        deadline = None if self._options.timeout is None else time.monotonic() + self._options.timeout
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._signals())
            stack.callback(self._clear_away)
            allow_files(_FILES + _FILES_OF_A_RANK * self._options.ranks)
            self._start()
            while any(rank.status is None for rank in self._ranks) or self._streams:
                self._turn()
                now = time.monotonic()
                if deadline is not None and now > deadline and self._ending_at is None:
                    self._report(ended_after(self._options.timeout))
                    self._failed = None
                    self._end_all()
                    self._interrupted = -1
                if self._ending_at is not None and now > self._ending_at:
                    self._signal_all(signal.SIGKILL)
                    self._ending_at = now + _GRACE_S
                if self._streams and all(rank.status is not None for rank in self._ranks) and self._abandoned(now):
                    break
        for stream in self._kept.values():
            if stream.kept:  # no rank was declared the first failure
                stream.decide(shown=True)
        if self._interrupted is not None:
            if self._interrupted == -1:
                return TIMED_OUT
            raise KeyboardInterrupt
        problem = self._out.problem or self._err.problem
        if problem is not None:
            self._report(f"output cannot be written: {problem}")
        return int(problem is not None) if self._failed is None else _status(self._failed)

    def interrupt(self) -> None:
        """Send SIGINT to all ranks, like Ctrl-C in each of them, and continue. Any thread may call it."""
        self._signal_all(signal.SIGINT)

    # ---- starting

    def _start(self) -> None:
        """Open the testbed or start the guard, then start all ranks."""
        hosts: list[Host] = []
        if self._options.n_hosts:
            self._testbed = open_hosts(self._options, self._is_interrupted)
            hosts = [*self._testbed.hosts]
            self._prepare(hosts)
        else:
            self._guard = Guard()
        if self._options.bind == "core":
            self._cores = self._bind()
        counts = [0] * max(1, self._options.n_hosts)
        for number in range(self._options.ranks):
            where = self._options.host_of(number) if hosts else 0
            self._start_rank(number, hosts[where] if hosts else None, counts[where])
            counts[where] += 1
        if self._template is not None:
            self._template.close()

    def _is_interrupted(self) -> bool:
        return self._interrupted is not None

    def _prepare(self, hosts: list[Host]) -> None:
        """Prepare the hosts before any rank is started; for subclasses."""

    def _command_on(self, host: Host) -> list[str]:
        """Return the command of the ranks on a host."""
        del host
        return self._command

    def _bind(self) -> list[set[int]]:
        """Return the core of each rank, or nothing if there are not enough, and report it."""
        cores, ranks = sorted(os.sched_getaffinity(0)), self._options.ranks
        if len(cores) < ranks:
            self._report(f"{ranks} ranks on {counted(len(cores), 'core')}: they are not bound")
            return []
        self._report(f"ranks 0 to {ranks - 1} are bound to cores {', '.join(map(str, cores[:ranks]))}")
        return [{core} for core in cores[:ranks]]

    def _environment(self, number: int, host: Host | None, local_rank: int, fd: int) -> dict[str, str]:
        """Return the environment of a rank whose end of the socket pair is descriptor `fd`."""
        options = self._options
        per_host = options.ranks
        if options.n_hosts:
            mine = options.host_of(number)
            per_host = sum(options.host_of(other) == mine for other in range(options.ranks))
        # Another machine has an environment of its own, which the agent adds.
        names = [name for name in os.environ if name.startswith("VIAKIT_")] if options.remote else [*os.environ]
        environment = {name: os.environ[name] for name in names if name != "VIAKIT_SSH"}
        for name in list(environment):  # variables of another launcher do not apply to these ranks
            if name.startswith(_OTHER_LAUNCHERS):
                del environment[name]
        threads = str(max(1, (os.cpu_count() if host is None else len(host.cores)) or 1) // per_host or 1)
        threads = "1" if self._cores else threads
        environment |= {
            "VIAKIT_RANK": str(number),
            "VIAKIT_SIZE": str(options.ranks),
            "VIAKIT_LOCAL_RANK": str(local_rank),
            "VIAKIT_LOCAL_SIZE": str(per_host),
            "VIAKIT_RENDEZVOUS": f"fd:{fd}",
            "VIAKIT_JOB": self._job,
            _secret.VARIABLE: self._secret.hex(),  # only this user can read the environment
            "PYTHONUNBUFFERED": environment.get("PYTHONUNBUFFERED", "1"),
            "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", threads),
            "OPENBLAS_NUM_THREADS": environment.get("OPENBLAS_NUM_THREADS", threads),
        }
        given = {"PROTOCOL": options.protocol, "POLICY": options.policy, "NETWORK": options.network}
        environment |= {f"VIAKIT_{name}": value for name, value in given.items() if value}
        if host is not None:
            environment["VIAKIT_ADDRESS"] = host.address
            if options.remote is not None:
                environment["VIAKIT_NETWORK"] = host.device
            environment.setdefault("VIAKIT_NETWORK", host.device)
        return environment | options.environment

    def _start_rank(self, number: int, host: Host | None, local_rank: int) -> None:
        """Start one rank, and connect it to the guard, the meeting point and the output."""
        near, far = socket.socketpair()
        stdin = subprocess.DEVNULL
        if number == 0 and sys.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                # A rank in its own process group may not read from the terminal, so the launcher does it.
                stdin = subprocess.PIPE if os.isatty(sys.stdin.fileno()) else sys.stdin.fileno()
        try:
            environment = self._environment(number, host, local_rank, far.fileno())
            process: Any
            if self._options.preload:
                process = self._fork(environment, number, far, stdin)
            elif host is None:
                process = subprocess.Popen(
                    self._command,
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    env=environment,
                    pass_fds=[far.fileno()],
                    preexec_fn=lambda: become_rank(self._cores[number] if self._cores else set()),
                )
            else:
                process = host.popen(
                    self._command_on(host),
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    pass_fds=[far.fileno()],
                )
        except LaunchError:
            near.close()
            raise
        except OSError as error:
            near.close()
            raise LaunchError(f"rank {number} cannot be started: {self._command[0]}: {error.strerror}") from error
        finally:
            far.close()
        rank = _Rank(number, process)
        self._ranks.append(rank)
        if self._guard is not None:
            self._guard.report(f"+{process.pid}")
        self._meeting.admit(number, near)
        for source, sink in ((process.stdout, self._out), (process.stderr, self._err)):
            self._streams[source.fileno()] = Stream(number, source, sink, self._options.label, self._alone)
        if process.stdin is not None:
            self._feed = Feed(process.stdin)

    def _fork(self, environment: dict[str, str], number: int, meeting: socket.socket, stdin: int) -> Forked:
        """Start a rank by the template, which the first call starts."""
        if self._template is None:
            of_ranks = ("VIAKIT_RANK", "VIAKIT_LOCAL_RANK", "VIAKIT_RENDEZVOUS", _secret.VARIABLE)
            self._template = Template({name: environment[name] for name in environment if name not in of_ranks})
        cores = self._cores[number] if self._cores else set()
        return self._template.start(self._command, environment, cores, meeting, stdin)

    # ---- the loop

    def _turn(self) -> None:
        """Wait for events, at most _SLICE_MS, and handle them."""
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
        # A rank's note precedes the other ranks' errors about it, but may have arrived after the poll: read again.
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
        """Handle the end of a rank: notify guard and meeting point, and record a failure."""
        if self._guard is not None:
            self._guard.report(f"-{rank.process.pid}")
        how = how_ended(rank)
        self._meeting.fail(f"rank {rank.number} ended {how} before all had met")
        if not rank.status or self._ending_at is not None:
            return
        if rank.number in self._dismissed and rank.status == -signal.SIGTERM:
            return  # its program had ended, and the exit status is lost
        note = self._meeting.notes.get(rank.number) or Note(LEAVES, time.monotonic_ns())
        self._failures.append(Ended(rank.number, rank.status, note))

    def _is_going(self) -> bool:
        """Return whether a running rank has sent a note that it ends, not caused by another rank."""
        notes = [self._meeting.notes.get(rank.number) for rank in self._ranks if rank.status is None]
        now = time.monotonic_ns()
        return any(note is not None and note.why != CAUSED and now - note.when_ns < 1e9 * _GOING_S for note in notes)

    def _keep_back(self) -> None:
        """Hold back the errors of ranks whose notes report the loss of another rank.

        They are released after _DOUBT_S, unless that other rank has sent its note and has not ended yet.
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
        """After a failure: end the job, or wait for a running rank that may have failed first."""
        if not self._failures or self._ending_at is not None:
            return
        running = [rank for rank in self._ranks if rank.status is None]
        notes = [self._meeting.notes.get(rank.number) for rank in running]
        if in_doubt(self._failures, notes):
            if self._doubt_until is None:
                self._doubt_until = time.monotonic() + _DOUBT_S
                for rank, note in zip(running, notes, strict=True):
                    if note is not None and note.why == LEAVES:  # it waits until the others leave, too
                        rank.signal(signal.SIGTERM)
                        self._dismissed.add(rank.number)
            if time.monotonic() < self._doubt_until or self._is_going():
                return
        self._declare(self._ranks[first_of(self._failures).rank])

    def _declare(self, rank: _Rank) -> None:
        """Declare a rank the first that failed: show its output, and end the others."""
        self._failed = rank
        rest = [other for other in self._ranks if other.status is None]
        ended = {0: "", 1: "; the last one still running is ended"}.get(
            len(rest), f"; the {len(rest)} still running are ended"
        )
        for fd in [fd for fd, stream in self._streams.items() if stream.rank == rank.number]:
            while fd in self._streams and self._streams[fd].source.readable():  # its remaining output first
                if not self._streams[fd].read():
                    self._streams.pop(fd).source.close()
                elif not wait_for(fd, select.POLLIN, 0):
                    break
        for number, stream in self._kept.items():
            stream.decide(shown=number == rank.number)
        lost = None if rank.local else rank.process.host.trouble  # type: ignore[union-attr]
        there = "" if self._options.remote is None else f" on {rank.process.host.name}"  # type: ignore[union-attr]
        how = f"{how_ended(rank)}{there}"
        event = f"{lost}; rank {rank.number} was there" if lost else f"rank {rank.number} ended {how}"
        note = self._meeting.notes.get(rank.number)
        # The rank's own error names a peer by its number only, because ranks have no list of hosts.
        by_peer = self._options.remote is not None and not lost and note is not None and note.why == CAUSED
        self._report(f"{event}{ended}{f'; {ranks_by_host(self._options)}' if by_peer else ''}")
        for stream in self._streams.values():
            stream.mute = stream.rank != rank.number and stream.sink is self._err and not self._options.label
        self._end_all()

    def _end_all(self) -> None:
        """Send SIGTERM to all ranks. SIGKILL follows after _GRACE_S."""
        self._signal_all(signal.SIGTERM)
        self._ending_at = time.monotonic() + _GRACE_S

    def _signal_all(self, number: int) -> None:
        for rank in self._ranks:
            if rank.status is None:
                rank.signal(number)

    def _abandoned(self, now: float) -> bool:
        """Return whether to give up on output that is still open after the end of all ranks.

        A process that a rank started holds it open. It gets SIGTERM, and _GRACE_S to end.
        """
        if self._abandoned_at is None:
            self._abandoned_at = now + _GRACE_S
            for rank in self._ranks:
                rank.signal(signal.SIGTERM)
        return now > self._abandoned_at

    def _report(self, text: str) -> None:
        """Print a message of the launcher, on a line of its own."""
        begin = "\n" if self._err.unfinished is not None else ""
        self._err.unfinished = None
        self._err.put(f"{begin}{self._options.prog}: {text}\n".encode())

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """While the job runs, end the ranks before a signal ends the launcher."""

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
        except ValueError:  # not the main thread, so the caller handles signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _clear_away(self) -> None:
        """Release everything, after success and after any error. No process of the job remains."""
        steps: list[Callable[[], object]] = [lambda: self._signal_all(signal.SIGKILL)]
        if self._template is not None:
            steps.append(self._template.close)
        steps += [rank.reap for rank in self._ranks if rank.status is None]
        steps += [rank.poll for rank in self._ranks]
        for rank in self._ranks:
            if rank.local:
                steps.append(functools.partial(rank.signal, signal.SIGKILL))  # processes left in its group
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
    """Return the job for the options: with protocol or launcher "mpi" one under ``mpiexec``, otherwise a Launch."""
    if not (mpi.is_mpi(options.launcher) or mpi.is_mpi(options.protocol)):
        return Launch(command, options, out, err)
    if options.remote is not None:
        from viakit.launch.far_mpi_job import FarMpiLaunch  # it imports this module

        return FarMpiLaunch(command, options, out, err)
    from viakit.launch.mpi_job import MpiLaunch  # it imports this module

    return MpiLaunch(command, options, out, err)


def open_hosts(options: Options, is_cancelled: Callable[[], bool] = lambda: False) -> Testbed | Remote:
    """Open a testbed, or connect to real machines. *is_cancelled* is as for :meth:`viakit.remote.Remote.open`."""
    if options.remote is not None:
        from viakit.remote import Remote  # on use, as the next one: most jobs stay on this machine

        return Remote(options.remote, network=options.network, python=options.python).open(is_cancelled)
    from viakit.testbed import Testbed  # start-up time

    return Testbed(options.n_hosts, options.mtu, options.rate).open()


def _status(rank: _Rank) -> int:
    """Return the exit status of a rank as a shell reports it."""
    assert rank.status is not None
    return rank.status if rank.status >= 0 else 128 - rank.status


def ranks_by_host(options: Options) -> str:
    """Return which ranks run on which machine: "alpha has ranks 0, 1, beta has rank 2"."""
    assert options.remote is not None
    ranks: dict[str, list[str]] = {}
    for rank in range(options.ranks):
        ranks.setdefault(options.remote.names[options.host_of(rank)], []).append(str(rank))
    return ", ".join(f"{name} has rank{'s' * (len(own) > 1)} {', '.join(own)}" for name, own in ranks.items())


def how_ended(rank: _Rank) -> str:
    """Describe how a rank ended."""
    assert rank.status is not None
    if rank.status >= 0:
        return f"with exit status {rank.status}"
    try:
        return f"by {signal.Signals(-rank.status).name}"
    except ValueError:
        return f"by signal {-rank.status}"
