"""Common part of the applications: their interface, how they are run and measured, and the output of results.

An application is a module with four functions and an :data:`APPLICATION`::

    @dataclass(frozen=True)
    class Problem:                       # the problem: its class or sizes, never the number of ranks
        size: int = 4096

    def problem(size=4096) -> Problem:   # from options; raises ValueError for invalid ones
    def serial(problem, phases=None) -> Outcome:            # the program for one process
    def parallel(comm, problem, phases=None) -> Outcome:    # called by all ranks; rank 0's outcome is verified
    def verify(problem, outcome) -> list[Check]:            # comparison with the expected result

    APPLICATION = Application("sor", "Red-black SOR", problem, serial, parallel, verify, options=[...], memory=...)

    def main(arguments=None):
        return harness.main(APPLICATION, arguments)

:func:`main` is the command line, which is in :mod:`viakit.apps.command`. It connects the ranks, checks the memory, runs
and verifies. It writes a table, a result file and a trace. Other programs call :func:`run`, which performs the
measurement.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from viakit.apps import profile as profiles
from viakit.apps.counting import Counting
from viakit.apps.phases import STATES, Phases
from viakit.base.words import counted

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
    "need_memory_for",
    "options_of",
    "run",
    "share",
]

MODULES = {"is": "is_", "ft": "fft"}  # applications whose module has another name
COMMAND = "VIAKIT_COMMAND"  # set by launchers: the command line
PROGRAM = "VIAKIT_PROGRAM"  # set by launchers: the name of the application for its user
TERMINAL = "VIAKIT_TERMINAL"  # set by launchers: the terminal for the progress bar of rank 0
NAMES = ("sor", "is", "fft", "water", "ep")


class MemoryShort(MemoryError):
    """A problem needs more memory than is available; the message gives both sizes and a remedy."""


# ------------------------------------------------------------------------------------------------------ checks


@dataclass(frozen=True)
class Check:
    """Comparison of one figure of a result with its expected value.

    Attributes
    ----------
    name : str
        Name of the figure: "sum of x", "checksum 3".
    got, expected : int, float or str
        Computed and expected value. A complex number is checked as two figures, or by its distance.
    error : float
        Relative error ``|got - expected| / |expected|``; for exact comparisons 0 or infinity.
    tolerance : float
        Largest acceptable error; 0: the values must be equal.
    ok : bool
        Whether the figure is correct.
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
            return f"{self.name} is {self.got}; expected exactly {self.expected}"
        return (
            f"{self.name} is {self.got}; expected {self.expected}: "
            f"a relative error of {self.error:.3g}, above {self.tolerance:.3g}"
        )


def check(name: str, got: Any, expected: Any, tolerance: float = 0.0) -> Check:
    """Compare a figure with its expected value.

    Parameters
    ----------
    name : str
        Name of the figure.
    got, expected : number or str
        Complex numbers are compared by their distance.
    tolerance : float
        Largest acceptable relative error (absolute if 0 is expected); 0: the values must be equal.
    """
    if hasattr(got, "item"):
        got = got.item()  # converts a NumPy number to Python's, which can be written to a file
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
    """Description of an application.

    Attributes
    ----------
    name : str
        Name for ``viakit app NAME``.
    title : str
        Short title for tables and help.
    problem : callable
        ``problem(**options)``: takes the values of `options` by name; returns a dataclass, raises ValueError.
    serial : callable
        ``serial(problem, phases)``: the serial program; returns an outcome.
    parallel : callable
        ``parallel(comm, problem, phases)``: the parallel program; the outcome of rank 0 is verified.
    verify : callable
        ``verify(problem, outcome)``: returns a list of :class:`Check`; an empty list if there is no reference.
    options : sequence of click.Option
        Options of the application.
    memory : callable, optional
        ``memory(problem, ranks)``: approximate memory of all ranks together, in bytes.
    describe : callable, optional
        ``describe(problem)``: one line. Default: the problem's repr.
    summary : callable, optional
        ``summary(problem, outcome)``: figures to print and store, by name.
    operations : callable, optional
        ``operations(problem)``: number of the benchmark's own operations in the measured part, for Mop/s.
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
    operations: Callable[[Any], float] | None = None


def module_of(name: str) -> str:
    """Return the module of an application for ``python -m``.

    Raises
    ------
    ValueError
        If there is no such application.
    """
    module = MODULES.get(name, name)
    if module not in {MODULES.get(one, one) for one in NAMES}:
        raise ValueError(f"unknown application {name!r}; expected one of {', '.join(NAMES)}")
    return f"viakit.apps.{module}"


def find(name: str) -> Application:
    """Return an application by a name of :data:`NAMES`, or "ft" for "fft".

    Raises
    ------
    ValueError
        If there is no such application.
    """
    return importlib.import_module(module_of(name)).APPLICATION


def share(n: int, rank: int, size: int) -> tuple[int, int]:
    """Return the share [first, end) of a rank in `n` items: contiguous, in the order of ranks, sizes at most one apart.

    The share is empty (first == end) for ranks beyond the n-th.
    """
    return n * rank // size, n * (rank + 1) // size


# ---------------------------------------------------------------------------------------------------- memory


# Files of a control group: its memory limits, its usage, and the part of the usage that is reclaimable file cache.
_Names = tuple[tuple[str, ...], str, tuple[str, ...]]
_GROUP_2: _Names = (
    ("memory.max", "memory.high"),
    "memory.current",
    ("inactive_file", "active_file", "slab_reclaimable"),
)
_GROUP_1: _Names = (("memory.limit_in_bytes",), "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def _cgroup_free(groups: str = "/proc/self/cgroup", mounted: str = "/sys/fs/cgroup") -> int | None:
    """Return the bytes left by the memory limits of this process's control group and its parents, or None."""
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
            # A container sees its own group as the root, and the path may exist only on its host.
            inner = top / path.lstrip("/")
            found += [_group_free(folder, *names) for folder in (inner, *inner.parents) if folder.is_relative_to(top)]
    return min((n for n in found if n is not None), default=None)


def _group_free(folder: Path, limits: Sequence[str], used: str, cache: Sequence[str]) -> int | None:
    """Return the bytes left by the limit of one control group; None without a limit."""
    least = None
    for name in limits:
        with contextlib.suppress(OSError, ValueError):  # "max" means no limit
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
    """Return the bytes that this process can allocate without swapping, or None if this is unknown."""
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
    """Raise :class:`MemoryShort` if memory is not sufficient. Call it before the allocation.

    Parameters
    ----------
    nbytes : int
        Memory in bytes of all ranks of this machine together.
    what : str
        Subject for the error message: "SOR 65536 x 65536".
    """
    free = free_memory()
    if free is not None and nbytes > free:
        raise MemoryShort(
            f"{what} needs about {_gigabytes(nbytes)} of memory, and {_gigabytes(free)} are free; "
            "choose a smaller problem, or a machine with more"
        )


def need_memory_for(application: Application, problem: Any, ranks: int, copies: bool = False) -> None:
    """Raise :class:`MemoryShort` unless the ranks, or as many *copies* of the serial program, have enough memory."""
    if application.memory is not None:
        whole = ranks * application.memory(problem, 1) if copies else application.memory(problem, ranks)
        need_memory(whole, f"{application.name} on {counted(ranks, 'rank')}")


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"


# --------------------------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class RankReport:
    """Measurements of one rank in one run.

    Attributes
    ----------
    rank : int
        Number of the rank.
    wall_s, cpu_s : float
        Wall time and CPU time of the measured part.
    work_s : float
        CPU time for computation.
    seconds : dict
        Time in each state of :data:`viakit.apps.phases.STATES`.
    messages, nbytes : int
        Messages and bytes sent, as counted by :class:`viakit.apps.counting.Counting`.
    pid : int
        Process number.
    began_ns : int
        Start of the measured part on the machine's monotonic clock.
    intervals, sent, received, calls : list
        Records of a traced or profiled run, otherwise empty.
    boot : str
        Identity of the running kernel, whose clock the times are of; only of a profiled run.
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
    calls: list[profiles.Call] = field(default_factory=list, repr=False)
    boot: str = ""

    @property
    def communication_s(self) -> float:
        """Time in all states but computation."""
        return sum(seconds for state, seconds in self.seconds.items() if state != "compute")


@dataclass
class Run:
    """One run of an application, as collected by rank 0."""

    ranks: list[RankReport]  #: Report of each rank.
    checks: list[Check]  #: Comparison of each figure with its reference.
    outcome: Any = field(repr=False)  #: Result that the application returned.
    #: Calls of the communicator by name, for each rank; empty unless the run was profiled.
    calls: list[dict[str, profiles.Summary]] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        """Longest wall time of the ranks."""
        return max(one.wall_s for one in self.ranks)

    @property
    def ok(self) -> bool:
        """Whether all figures are correct."""
        return all(one.ok for one in self.checks)

    def wrong(self) -> list[Check]:
        """Figures that are not correct."""
        return [one for one in self.checks if not one.ok]


def run(
    application: Application,
    problem: Any,
    comm: Any = None,
    *,
    copies: bool = False,
    trace: bool = False,
    profile: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Run | None:
    """Run an application once, and verify its result.

    Parameters
    ----------
    application : Application
        The application.
    problem : object
        Result of ``application.problem(...)``.
    comm : communicator, optional
        Communicator of viakit or mpi4py; all its ranks make the call. Default: the serial program.
    copies : bool
        Run the serial program on every rank at the same time, independently. The ratio of their time to that of a
        single program is the cost of sharing the machine (memory, caches, the power of a hyper-threaded core). No
        parallel program with the same number of ranks can be expected to be faster. The result of rank 0 is verified.
    trace : bool
        Record intervals and messages.
    profile : bool
        Record the calls of each rank, for :attr:`Run.calls`.
    on_progress : callable, optional
        Called with the completed and the total amount.

    Returns
    -------
    Run or None
        The run on rank 0, None on other ranks.
    """
    if comm is None:
        phases = Phases(trace, on_progress, profile=profile)
        outcome = application.serial(problem, phases)
        phases.end()
        return Run([_report(0, phases)], application.verify(problem, outcome), outcome)
    phases = Phases(trace, on_progress, profile=profile)
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
    calls = profiles.summaries(reports, len({one.boot for one in reports}) == 1) if profile else []
    return Run(reports, application.verify(problem, outcome), outcome, calls)


def _boot() -> str:
    """Return the identity of the running kernel: processes with the same one have the same monotonic clock."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname()


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
        *((phases.made.calls, _boot()) if phases.made is not None else ()),
    )


# ------------------------------------------------------------------------------------ command line, results


def agreed(comm: Any, question: Callable[[], None]) -> str | None:
    """Perform a check on rank 0, and return its result on all ranks: None, or the reason of the failure."""
    text = None
    if comm is None or comm.Get_rank() == 0:
        try:
            question()
        except (MemoryError, ValueError, RuntimeError, OSError) as error:
            text = str(error)
        except Exception as error:
            from viakit.measure.result import ResultError  # start-up time

            if not isinstance(error, ResultError):
                raise
            text = str(error)
    return text if comm is None else comm.bcast(text, root=0)


def main(application: Application, arguments: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run an application from the command line, and return the exit status. `prog` is its name in the help text.

    0: success; 1: wrong result or failure; 2: invalid arguments; 130: interrupted.
    """
    from viakit.apps import command  # late, because it imports this module

    return command.main(application, arguments, prog)


def options_of(application: Application, words: Sequence[str]) -> dict[str, Any]:
    """Return the application's options, parsed from `words` as its command line does.

    Raises
    ------
    click.ClickException
        If an option is invalid.
    """
    from viakit.apps import command  # late, because it imports this module

    return command.options_of(application, words)


def as_dict(one: Check | RankReport) -> dict[str, Any]:
    """Return a check or a report for a result file: without intervals, and without numbers that JSON lacks."""
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
