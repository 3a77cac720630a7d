"""What the applications share: what each hands in, how it is run and measured, and what is said of it.

An application is a module with four functions and an :data:`APPLICATION`::

    @dataclass(frozen=True)
    class Problem:                       # what is to be computed: a class, or sizes; never how many ranks
        size: int = 4096

    def problem(size=4096) -> Problem:   # from options; ValueError for what makes no sense
    def serial(problem, phases=None) -> Outcome:            # the program of one process
    def parallel(comm, problem, phases=None) -> Outcome:    # of many: its ranks all call this, rank 0's outcome counts
    def verify(problem, outcome) -> list[Check]:            # against what the result must be

    APPLICATION = Application("sor", "Red-black SOR", problem, serial, parallel, verify, options=[...], memory=...)

    def main(arguments=None):
        return harness.main(APPLICATION, arguments)

:func:`main` reads the arguments, finds the ranks (alone, ``viakit run``, ``mpirun`` of either MPI), checks the memory,
runs, verifies, and tells: a table, a result file, a trace. :func:`run` is the measuring inside it, for other programs.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from viakit.apps.phases import STATES, Counting, Phases

__all__ = [
    "Application",
    "Check",
    "Counting",
    "MemoryShort",
    "Phases",
    "RankReport",
    "Run",
    "agreed",
    "check",
    "find",
    "free_memory",
    "main",
    "module_of",
    "need_memory",
    "options_of",
    "run",
    "share",
]

INTERRUPTED = 130
MODULES = {"is": "is_", "ft": "fft"}  # names of applications that are not those of their modules
_MEET_S = 5.0
_KEEP_S = 1.0  # so often, at most, results are written between the runs: ranks may be killed by their launcher
_NOT_MPI = "for protocol mpi start it with the mpirun of that MPI library, or by `viakit app`, which does"
COMMAND = "VIAKIT_COMMAND"  # set by launchers: the command that was given
PROGRAM = "VIAKIT_PROGRAM"  # set by launchers: what the user calls the application
TERMINAL = "VIAKIT_TERMINAL"  # set by launchers: where rank 0 may draw its progress
NAMES = ("sor", "is", "fft", "water", "ep")


class MemoryShort(MemoryError):
    """A problem needs more memory than there is; the message says how much of each, and what to do."""


# ------------------------------------------------------------------------------------------------------ checks


@dataclass(frozen=True)
class Check:
    """One figure of a result against what it must be.

    Attributes
    ----------
    name : str
        Which figure: "sum of x", "checksum 3".
    got, expected : int, float or str
        What came out, and what is right. A complex number is checked as two figures, or by its distance.
    error : float
        Relative error: ``|got - expected| / |expected|``; where only equality counts, 0 or infinity.
    tolerance : float
        The largest error that is right; 0: exactly equal.
    ok : bool
        Whether it is right.
    """

    name: str
    got: Any
    expected: Any
    error: float
    tolerance: float
    ok: bool

    def __str__(self) -> str:
        if self.ok:
            return f"{self.name}: {self.got} is right"
        if self.tolerance == 0:
            return f"{self.name} is {self.got}; right would be exactly {self.expected}"
        return (
            f"{self.name} is {self.got}; right would be {self.expected}: "
            f"a relative error of {self.error:.3g}, above {self.tolerance:.3g}"
        )


def check(name: str, got: Any, expected: Any, tolerance: float = 0.0) -> Check:
    """Compare a figure with what it must be.

    Parameters
    ----------
    name : str
        Which figure.
    got, expected : number or str
        Complex numbers are compared by the distance between them.
    tolerance : float
        The largest relative error that is right (absolute where 0 is expected); 0: exactly equal.
    """
    if hasattr(got, "item"):
        got = got.item()  # a NumPy number: as Python's, so that it can be written to a file
    if got == expected:
        error = 0.0
    elif isinstance(got, str) or isinstance(expected, str):
        error = math.inf
    else:
        error = abs(got - expected)
        error = float(error / abs(expected)) if expected else float(error)
        if math.isnan(error) or (tolerance == 0 and error == 0):
            error = math.inf
    return Check(name, got, expected, error, tolerance, error <= tolerance)


# ---------------------------------------------------------------------------------------------- applications


@dataclass(frozen=True)
class Application:
    """What an application hands in.

    Attributes
    ----------
    name : str
        As in ``viakit app NAME``.
    title : str
        In a few words, for tables and help.
    problem : callable
        ``problem(**options)``: the values of `options` by name; returns a dataclass, raises ValueError.
    serial : callable
        ``serial(problem, phases)``: returns an outcome.
    parallel : callable
        ``parallel(comm, problem, phases)``: the same on several ranks; the outcome of rank 0 is verified.
    verify : callable
        ``verify(problem, outcome)``: returns a list of :class:`Check`; an empty one says that there is nothing to hold
        the outcome against.
    options : sequence of click.Option
        The application's own.
    memory : callable, optional
        ``memory(problem, ranks)``: bytes that all ranks together will need, about.
    describe : callable, optional
        ``describe(problem)``: one line; default: the problem's repr.
    summary : callable, optional
        ``summary(problem, outcome)``: figures worth printing and keeping, name to value.
    """

    name: str
    title: str
    problem: Callable[..., Any]
    serial: Callable[..., Any]
    parallel: Callable[..., Any]
    verify: Callable[[Any, Any], list[Check]]
    options: Sequence[click.Parameter] = ()
    memory: Callable[[Any, int], int] | None = None
    describe: Callable[[Any], str] = repr
    summary: Callable[[Any, Any], dict[str, Any]] | None = None


def module_of(name: str) -> str:
    """The module of an application, as ``python -m`` takes it.

    Raises
    ------
    ValueError
        If there is no such application.
    """
    module = MODULES.get(name, name)
    if module not in {MODULES.get(one, one) for one in NAMES}:
        raise ValueError(f"no application is called {name!r}; there are {', '.join(NAMES)}")
    return f"viakit.apps.{module}"


def find(name: str) -> Application:
    """Return an application by name: "sor", "is", "fft" (or "ft"), "water", "ep".

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    import importlib

    return importlib.import_module(module_of(name)).APPLICATION


def share(n: int, rank: int, size: int) -> tuple[int, int]:
    """Items that a rank has of `n`, [first, end): contiguous, in the order of ranks, at most one apart.

    A rank beyond the n-th has none: first == end.
    """
    return n * rank // size, n * (rank + 1) // size


# ---------------------------------------------------------------------------------------------------- memory


# Of a control group's memory: its limits, what it uses, and what of that is cache of files, which makes room if asked.
_Names = tuple[tuple[str, ...], str, tuple[str, ...]]
_GROUP_2: _Names = (
    ("memory.max", "memory.high"),
    "memory.current",
    ("inactive_file", "active_file", "slab_reclaimable"),
)
_GROUP_1: _Names = (("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def _cgroup_free(groups: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup") -> int | None:
    """Bytes that the memory limits of this process's control group leave, and of all groups around it, or None."""
    found = []
    with contextlib.suppress(OSError), open(groups, encoding="utf-8") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controllers == "":
                top, names = Path(mounted), _GROUP_2
            elif "memory" in controllers.split(","):
                top, names = Path(mounted, "memory"), _GROUP_1
            else:
                continue
            # A container sees its own group as the top one, and may be told a path that only its host has.
            inner = top / path.lstrip("/")
            found += [_group_free(folder, *names) for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
    return min((n for n in found if n is not None), default=None)


def _group_free(folder: Path, limits: Sequence[str], used: str, cache: Sequence[str]) -> int | None:
    """Bytes that one control group has left; None: it has no limit, or is none."""
    least = None
    for name in limits:
        with contextlib.suppress(OSError, ValueError):  # a limit that is "max" is none
            most = int((folder / name).read_text(encoding="ascii"))
            least = most if least is None else min(least, most)
    if least is None:
        return None
    try:
        taken = int((folder / used).read_text(encoding="ascii"))
        with open(folder / "memory.stat", encoding="ascii") as file:
            of_what = {key: int(n) for key, n in (line.split() for line in file)}
    except (OSError, ValueError):
        return None
    return max(least - max(taken - sum(of_what.get(name, 0) for name in cache), 0), 0)


def free_memory() -> int | None:
    """Bytes that this process can still take without swapping, or None where that cannot be found out."""
    import resource

    found = [_cgroup_free()]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, ValueError), open("/proc/self/statm", encoding="ascii") as file:
            found.append(max(limit - int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE"), 0))
    known = [n for n in found if n is not None]
    return min(known) if known else None


def need_memory(nbytes: int, what: str) -> None:
    """Raise :class:`MemoryShort` unless so many bytes can be had: asked before they are taken.

    Parameters
    ----------
    nbytes : int
        What is needed, by all ranks of this machine together.
    what : str
        For what: "SOR 65536 x 65536".
    """
    free = free_memory()
    if free is not None and nbytes > free:
        raise MemoryShort(
            f"{what} needs about {_gigabytes(nbytes)} of memory, and {_gigabytes(free)} are free; "
            "choose a smaller problem, or a machine with more"
        )


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"


# --------------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class RankReport:
    """What one rank says of one run.

    Attributes
    ----------
    rank : int
    wall_s, cpu_s : float
        Of the measured part.
    work_s : float
        CPU time spent computing.
    seconds : dict
        Time in each state of :data:`viakit.apps.phases.STATES`.
    messages, nbytes : int
        Sent by it, as :class:`viakit.apps.phases.Counting` counts.
    pid : int
        Its process.
    began_ns : int
        When the measured part began, on the machine's monotonic clock.
    intervals, sent, received : list
        Of a traced run, else empty.
    """

    rank: int
    wall_s: float
    cpu_s: float
    seconds: dict[str, float]
    messages: int
    nbytes: int
    work_s: float = 0.0
    pid: int = 0
    began_ns: int = 0
    intervals: list[Any] = field(default_factory=list, repr=False)
    sent: list[Any] = field(default_factory=list, repr=False)
    received: list[Any] = field(default_factory=list, repr=False)

    @property
    def communication_s(self) -> float:
        """Time in all states but computing."""
        return sum(seconds for state, seconds in self.seconds.items() if state != "compute")


@dataclass
class Run:
    """One run of an application, as rank 0 knows it."""

    ranks: list[RankReport]
    checks: list[Check]
    outcome: Any = field(repr=False)

    @property
    def wall_s(self) -> float:
        """The longest of the ranks' wall times."""
        return max(one.wall_s for one in self.ranks)

    @property
    def ok(self) -> bool:
        """Whether all figures are right."""
        return all(one.ok for one in self.checks)

    def wrong(self) -> list[Check]:
        """The figures that are not."""
        return [one for one in self.checks if not one.ok]


def run(
    application: Application,
    problem: Any,
    comm: Any = None,
    *,
    copies: bool = False,
    trace: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run | None:
    """Run an application once, and verify what comes out.

    Parameters
    ----------
    application : Application
    problem : object
        As ``application.problem(...)`` returns it.
    comm : communicator, optional
        viakit's or mpi4py's; all its ranks call this. Default: the serial program, without any.
    copies : bool
        The serial program on every rank at once, none knowing of the others. The time that they take, over that of one
        alone, is what sharing the machine costs (memory, caches, the power of a core that is half of a hyper-threaded
        one): no parallel program of as many ranks can be expected to do better. Verified is what rank 0 computed.
    trace : bool
        Keep intervals and messages.
    on_progress : callable, optional
        Called with how much is done, and of how much.

    Returns
    -------
    Run or None
        On rank 0; None on the others.
    """
    if comm is None:
        phases = Phases(trace, on_progress)
        outcome = application.serial(problem, phases)
        phases.end()
        return Run([_report(0, phases)], application.verify(problem, outcome), outcome)
    phases = Phases(trace, on_progress)
    comm.Barrier()
    phases.begin()
    if copies:
        outcome = application.serial(problem, phases)
    else:
        outcome = application.parallel(Counting(comm, phases), problem, phases)
    phases.end()
    reports = comm.gather(_report(comm.Get_rank(), phases), root=0)
    if reports is None:
        return None
    return Run(reports, application.verify(problem, outcome), outcome)


def _report(rank: int, phases: Phases) -> RankReport:
    return RankReport(
        rank,
        phases.wall_s,
        phases.cpu_s,
        phases.seconds,
        phases.messages,
        phases.nbytes,
        phases.work_s,
        os.getpid(),
        phases.began_ns,
        phases.intervals,
        phases.sent,
        phases.received,
    )


# ------------------------------------------------------------------------------------------------- arguments


_COMMON: tuple[click.Option, ...] = (
    click.Option(
        ["--protocol"],
        type=click.Choice(["via", "bip", "tcp", "mpi"]),
        help="What carries the messages of several ranks.  [default: VIAKIT_PROTOCOL, else via; one rank: none]",
    ),
    click.Option(["--repeat"], type=click.IntRange(1, 1000), default=1, show_default=True, help="Run so many times."),
    click.Option(
        ["--json", "json_file"], metavar="F", help="Write the result (viakit.result/1); - for standard output."
    ),
    click.Option(
        ["--trace", "trace_file"],
        metavar="F",
        help="Write what each rank did when: .json for Perfetto, or a picture (.png, .svg, .pdf).",
    ),
    click.Option(["--quiet", "-q"], is_flag=True, help="No progress, no table."),
)


def command(application: Application) -> click.Command:
    """Return the application's command line."""
    return click.Command(
        application.name,
        params=[*application.options, *_COMMON],
        context_settings={"max_content_width": 110},
        callback=lambda **options: _main(application, **options),
        help=f"{application.title}, alone or as one of the ranks of a job. Fails (status 1) if the result is wrong.",
    )


def main(application: Application, arguments: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run an application from the command line; returns the exit status. `prog` is what its help calls it.

    0: done and right; 1: wrong, or failed; 2: the arguments make no sense; 130: interrupted.
    """
    name = (
        prog
        or os.environ.get(PROGRAM)
        or (f"python -m {module_of(application.name)}" if application.name in NAMES else application.name)
    )
    try:
        return int(command(application).main(arguments, prog_name=name, standalone_mode=False) or 0)
    except click.ClickException as error:
        if _is_first():
            error.show()
        _meet()
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        if _is_first():
            click.echo(f"viakit: {application.name}: interrupted", err=True)
        return INTERRUPTED


def _is_first() -> bool:
    from viakit.launch import LaunchError, detect

    try:
        return detect().rank == 0
    except LaunchError:
        return True


def _meet() -> None:
    """Wait for the other ranks, which have the same to say: the launcher would end rank 0 before it has said it."""
    from viakit.launch import bootstrap, detect

    with contextlib.suppress(RuntimeError, OSError):
        if detect().size > 1:
            bootstrap(_MEET_S).exchange(b"", _MEET_S)


def _nonsense_of_any(comm: Any, mine: str | None) -> str | None:
    """What the ranks found wrong with the options, as the first of them says it; None if nothing.

    Files and environments may differ between ranks: one that ended by itself would leave the others waiting for it.
    """
    said = comm.allgather(mine)
    wrong = [(rank, text) for rank, text in enumerate(said) if text is not None]
    if not wrong:
        return None
    rank, text = wrong[0]
    return text if len(wrong) == len(said) else f"rank {rank}: {text}"


class _Failure(click.ClickException):
    def show(self, file: Any = None) -> None:
        click.echo(f"viakit: {self.format_message()}", file=file, err=True)


def agreed(comm: Any, question: Callable[[], None]) -> str | None:
    """Ask on rank 0 what must not fail; all ranks learn what it said: None, or why not."""
    text = None
    if comm is None or comm.Get_rank() == 0:
        try:
            question()
        except (MemoryError, ValueError, RuntimeError, OSError) as error:
            text = str(error)
        except Exception as error:
            from viakit.measure.result import ResultError

            if not isinstance(error, ResultError):
                raise
            text = str(error)
    return text if comm is None else comm.bcast(text, root=0)


def options_of(application: Application, words: Sequence[str]) -> dict[str, Any]:
    """The application's own options, as its command line would read them from `words`.

    Raises
    ------
    click.ClickException
        For words that make no sense.
    """
    context = command(application).make_context(application.name, list(words))
    common = {option.name for option in _COMMON}
    return {key: value for key, value in context.params.items() if key not in common}


def _main(
    application: Application,
    protocol: str | None,
    repeat: int,
    json_file: str | None,
    trace_file: str | None,
    quiet: bool,
    **options: Any,
) -> int:
    import viakit
    from viakit.comm import default_protocol
    from viakit.launch import detect

    place = detect()
    ranks = place.size
    problem, nonsense = None, None
    try:
        problem = application.problem(**options)
    except ValueError as error:
        nonsense = str(error)
        if ranks == 1:
            raise click.UsageError(f"{application.name}: {error}") from error
    comm = None
    if ranks > 1 or protocol is not None or os.environ.get("VIAKIT_PROTOCOL"):
        protocol = protocol or default_protocol()
        if protocol == "mpi" and place.launcher == "viakit" and ranks > 1:
            raise _Failure(f"{application.name}: {_NOT_MPI}")
        try:
            comm = viakit.world(protocol)
        except Exception as error:
            raise _Failure(f"{application.name}: {error}") from error
        if comm.Get_size() != ranks:
            raise _Failure(
                f"{application.name}: this job has {ranks} rank{'s' * (ranks != 1)}, but over {protocol!r} "
                f"there is {comm.Get_size()}; {_NOT_MPI}"
            )
    if comm is not None and ranks > 1:
        nonsense = _nonsense_of_any(comm, nonsense)
    if nonsense is not None:
        raise click.UsageError(f"{application.name}: {nonsense}")
    first = comm is None or comm.Get_rank() == 0

    def ready() -> None:
        from viakit.apps import reporting

        reporting.check_files(json_file, trace_file)
        if application.memory is not None:
            need_memory(application.memory(problem, ranks), f"{application.name} on {ranks} rank{'s' * (ranks > 1)}")

    refusal = agreed(comm, ready)
    if refusal is not None:
        raise _Failure(f"{application.name}: {refusal}")
    began, runs = time.monotonic(), list[Run]()

    def report(*, keep_only: bool = False, **how: Any) -> None:
        from viakit.apps import reporting

        files = {"trace_file": None, "quiet": True} if keep_only else {"trace_file": trace_file, "quiet": quiet}
        reporting.tell(
            application, problem, protocol if comm is not None else None, runs,
            json_file=json_file, elapsed_s=time.monotonic() - began, **files, **how,
        )  # fmt: skip

    try:
        with _progress(application.name, first and not quiet, repeat) as tell:
            kept = -math.inf
            for number in range(repeat):
                one = run(application, problem, comm, trace=trace_file is not None, on_progress=tell)
                runs += [] if one is None else [one]
                now = time.monotonic()
                if runs and number + 1 < repeat and json_file not in (None, "-") and now - kept >= _KEEP_S:
                    with contextlib.suppress(Exception):  # the last one tells, if it cannot be written either
                        report(keep_only=True, complete=False)
                    kept = now
    except BaseException as error:
        if runs:
            _report_what_there_is(application, error, report, json_file is not None)
        if comm is None or ranks == 1:
            if isinstance(error, MemoryError):
                raise _Failure(f"{application.name}: out of memory: {error}") from error
            raise
        _abandon(application, comm, error)
    status = 0
    if first:
        from viakit.measure.result import ResultError

        try:
            report()
        except ResultError as error:  # a full disk, for instance: all ranks end alike, and say nothing else
            click.echo(f"viakit: {application.name}: {error}", err=True)
            status = 1
        wrong = [check for each in runs for check in each.wrong()]
        for check in wrong:
            click.echo(f"viakit: {application.name}: WRONG RESULT: {check}", err=True)
        status = 1 if wrong else status
    return status if comm is None else int(comm.bcast(status, root=0))


def _report_what_there_is(
    application: Application, error: BaseException, report: Callable[..., None], keep: bool
) -> None:
    """Write and print the runs that were finished before one failed, or before Ctrl-C; what failed is told later."""
    from viakit.measure.sweep import shielded

    errors = [] if isinstance(error, KeyboardInterrupt) else [f"{type(error).__name__}: {error}"]
    with shielded():
        try:
            report(complete=False, errors=errors)
        except Exception as another:  # a full disk, for instance: no reason to say nothing of the first one
            click.echo(f"viakit: {application.name}: {another}", err=True)
        else:
            if keep:
                click.echo(f"viakit: {application.name}: what had been measured by then is kept", err=True)


def _abandon(application: Application, comm: Any, error: BaseException) -> None:
    """End the whole job: a rank that fails must not let the others wait for it."""
    import traceback

    if isinstance(error, KeyboardInterrupt):
        click.echo(f"viakit: {application.name}: interrupted", err=True)
        comm.Abort(INTERRUPTED)
    from viakit.comm import Exception as CommError

    who = f"viakit: {application.name}: rank {comm.Get_rank()} failed"
    if isinstance(error, CommError):  # mostly that another rank has gone, which tells why itself
        click.echo(f"{who}: {error}", err=True)
    else:
        click.echo(f"{who}:\n{''.join(traceback.format_exception(error))}", err=True, nl=False)
    sys.stderr.flush()
    comm.Abort(1)


@contextlib.contextmanager
def _progress(name: str, wanted: bool, repeat: int) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal, drawn by the rank itself, ten times a second at most: no thread disturbs it."""
    from rich.console import Console

    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        if wanted and not console.is_terminal and os.environ.get(TERMINAL):
            # A rank's own streams are pipes to its launcher, which said where the terminal is.
            with contextlib.suppress(OSError, ValueError):
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a job in the background may still draw there
                console = Console(file=stack.enter_context(open(os.environ[TERMINAL], "w", encoding="utf-8")))
        if not wanted or not console.is_terminal:
            yield None
            return
        yield from _bar(console, name, repeat)


def _bar(console: Any, name: str, repeat: int) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(name, total=repeat)
        finished, part, last = 0, 0.0, 0.0

        def tell(done: int, total: int) -> None:
            nonlocal finished, part, last
            now = time.monotonic()
            if done / total < part:  # the next repetition
                finished += 1
            part = done / total
            if now - last >= 0.1:
                last = now
                bar.update(task, completed=finished + part)
                bar.refresh()

        yield tell


def as_dict(one: Check | RankReport) -> dict[str, Any]:
    """A check or a report as a result file has it: no intervals, and no number that JSON lacks."""
    if isinstance(one, Check):
        plain = asdict(one)
        plain["error"] = one.error if math.isfinite(one.error) else None
        for key in ("got", "expected"):
            value = plain[key]
            if isinstance(value, complex):
                plain[key] = [value.real, value.imag]
            if isinstance(value, float) and not math.isfinite(value):
                plain[key] = str(value)
        return plain
    keys = ("rank", "wall_s", "cpu_s", "work_s", "messages", "nbytes")
    return {**{key: getattr(one, key) for key in keys}, "seconds": {state: one.seconds[state] for state in STATES}}
