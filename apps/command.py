"""The command line of the applications: their options, the connection of the ranks, progress, and the exit status.

:func:`main` parses the arguments, connects the ranks (alone, ``viakit run``, ``mpirun`` of either MPI), checks the
memory, and runs and verifies the application by :mod:`viakit.apps.harness`. :mod:`viakit.apps.reporting` writes the
results. A failure on one rank ends the job, and the runs before it are kept.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

import viakit
from viakit.apps import harness
from viakit.apps.counting import names_of
from viakit.apps.harness import Application, Run
from viakit.base.words import counted
from viakit.launch import LaunchError, bootstrap, detect
from viakit.launch import mpi_library as mpi
from viakit.launch.options import CHANNELS

if TYPE_CHECKING:
    from viakit.launch import Place

__all__ = ["INTERRUPTED", "command", "main", "options_of"]

INTERRUPTED = 130
_MEET_S = 5.0
_KEEP_S = 1.0  # smallest interval at which results are written between runs, because a launcher may kill the ranks
_NOT_MPI = "for protocol mpi start it with the mpirun of that MPI library, or by `viakit app`, which does"

_COMMON: tuple[click.Option, ...] = (
    click.Option(
        ["--protocol"],
        type=click.Choice([*CHANNELS, "mpi"]),
        help="Protocol of the messages between ranks.  [default: VIAKIT_PROTOCOL, else via; one rank: none]",
    ),
    click.Option(["--repeat"], type=click.IntRange(1, 1000), default=1, show_default=True, help="Run so many times."),
    click.Option(
        ["--json", "json_file"], metavar="F", help="Write the result (viakit.result/1); - for standard output."
    ),
    click.Option(
        ["--trace", "trace_file"],
        metavar="F",
        help="Write the activity of each rank over time: .json for Perfetto, or a picture (.png, .svg, .pdf).",
    ),
    click.Option(
        ["--profile"],
        is_flag=True,
        help="Show the calls of the message library: how many, their time, how much of it they waited, their bytes.",
    ),
    click.Option(["--quiet", "-q"], is_flag=True, help="No progress, no table."),
)


def command(application: Application) -> click.Command:
    """Return the command-line interface of an application."""
    return click.Command(
        application.name,
        params=[*application.options, *_COMMON],
        context_settings={"max_content_width": 110},
        callback=lambda **options: _main(application, **options),
        help=f"{application.title}, alone or as one of the ranks of a job. Fails (status 1) if the result is wrong.",
    )


def main(application: Application, arguments: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Run an application from the command line, and return the exit status. `prog` is its name in the help text.

    0: success; 1: wrong result or failure; 2: invalid arguments; 130: interrupted.
    """
    own = f"python -m {harness.module_of(application.name)}" if application.name in harness.NAMES else application.name
    name = prog or os.environ.get(harness.PROGRAM) or own
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
    try:
        return detect().rank == 0
    except LaunchError:
        return True


def _meet() -> None:
    """Wait for the other ranks with the same error.

    Without this wait, the launcher would end rank 0 before it has printed its message.
    """
    with contextlib.suppress(RuntimeError, OSError):
        if detect().size > 1:
            bootstrap(_MEET_S).exchange(b"", _MEET_S)


def _nonsense_of_any(comm: Any, mine: str | None) -> str | None:
    """Return the first error that a rank found in its options, or None.

    Files and environments may differ between ranks. A rank that ended alone would leave the others waiting.
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


def options_of(application: Application, words: Sequence[str]) -> dict[str, Any]:
    """Return the application's options, parsed from `words` as its command line does.

    Raises
    ------
    click.ClickException
        If an option is invalid.
    """
    context = command(application).make_context(application.name, list(words))
    common = {option.name for option in _COMMON}
    return {key: value for key, value in context.params.items() if key not in common}


def _connected(application: Application, protocol: str | None, place: Place) -> tuple[Any, str | None]:
    """Return the communicator and its protocol, with its policy; None and None for one rank without a protocol."""
    from viakit.comm import default_protocol  # start-up time
    from viakit.launch.policy import wish  # start-up time

    ranks = place.size
    if ranks == 1 and protocol is None and not os.environ.get("VIAKIT_PROTOCOL"):
        return None, None
    protocol = protocol or default_protocol()
    if protocol == "mpi" and place.launcher == "viakit" and ranks > 1:
        raise _Failure(f"{application.name}: {_NOT_MPI}")
    try:
        comm = viakit.world(protocol)
    except Exception as error:
        raise _Failure(f"{application.name}: {error}") from error
    if comm.Get_size() != ranks:
        raise _Failure(
            f"{application.name}: this job has {counted(ranks, 'rank')}, but over {protocol!r} "
            f"there is {comm.Get_size()}; {_NOT_MPI}"
        )
    policy = None if mpi.is_mpi(protocol) else wish()[0]
    return comm, f"{protocol}:{policy}" if policy else protocol


def _main(
    application: Application,
    protocol: str | None,
    repeat: int,
    json_file: str | None,
    trace_file: str | None,
    profile: bool,
    quiet: bool,
    **options: Any,
) -> int:
    place = detect()
    ranks = place.size
    problem, nonsense = None, None
    try:
        problem = application.problem(**options)
    except ValueError as error:
        nonsense = str(error)
        if ranks == 1:
            raise click.UsageError(f"{application.name}: {error}") from error
    comm, protocol = _connected(application, protocol, place)
    if comm is not None and ranks > 1:
        nonsense = _nonsense_of_any(comm, nonsense)
    if nonsense is not None:
        raise click.UsageError(f"{application.name}: {nonsense}")
    first = comm is None or comm.Get_rank() == 0

    def ready() -> None:
        from viakit.apps import reporting  # start-up time

        reporting.check_files(json_file, trace_file)
        harness.need_memory_for(application, problem, ranks)

    refusal = harness.agreed(comm, ready)
    if refusal is not None:
        raise _Failure(f"{application.name}: {refusal}")
    began, runs = time.monotonic(), list[Run]()

    def report(*, keep_only: bool = False, **how: Any) -> None:
        from viakit.apps import reporting  # start-up time

        files = {"trace_file": None, "quiet": True} if keep_only else {"trace_file": trace_file, "quiet": quiet}
        reporting.write_report(
            application, problem, protocol, runs,
            json_file=json_file, elapsed_s=time.monotonic() - began, **files, **how,
        )  # fmt: skip

    try:
        with _progress(application.name, first and not quiet, repeat) as on_progress:
            kept = -math.inf
            for number in range(repeat):
                one = harness.run(
                    application, problem, comm, trace=trace_file is not None, profile=profile, on_progress=on_progress
                )
                runs += [] if one is None else [one]
                now = time.monotonic()
                if runs and number + 1 < repeat and json_file not in (None, "-") and now - kept >= _KEEP_S:
                    with contextlib.suppress(Exception):  # the last attempt reports that the file cannot be written
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
    status = _report_all(application, runs, report) if first else 0
    return status if comm is None else int(comm.bcast(status, root=0))


def _report_all(application: Application, runs: Sequence[Run], report: Callable[..., None]) -> int:
    """Write and print all runs, and return the exit status of the job."""
    from viakit.measure.result import ResultError  # start-up time

    status = 0
    try:
        report()
    except ResultError as error:  # for instance a full disk; all ranks end with the same status
        click.echo(f"viakit: {application.name}: {error}", err=True)
        status = 1
    wrong = [check for each in runs for check in each.wrong()]
    for check in wrong:
        click.echo(f"viakit: {application.name}: WRONG RESULT: {check}", err=True)
    return 1 if wrong else status


def _report_what_there_is(
    application: Application, error: BaseException, report: Callable[..., None], keep: bool
) -> None:
    """Write and print the runs that ended before a failure or Ctrl-C. The failure is reported afterwards."""
    from viakit.measure.turns import shielded  # start-up time

    errors = [] if isinstance(error, KeyboardInterrupt) else [f"{type(error).__name__}: {error}"]
    with shielded():
        try:
            report(complete=False, errors=errors)
        except Exception as another:  # for instance a full disk; the first error is still reported
            click.echo(f"viakit: {application.name}: {another}", err=True)
        else:
            if keep:
                click.echo(f"viakit: {application.name}: the measurements so far are kept", err=True)


def _abandon(application: Application, comm: Any, error: BaseException) -> None:
    """Abort the job, because the other ranks would wait for a rank that failed."""
    if isinstance(error, KeyboardInterrupt):
        click.echo(f"viakit: {application.name}: interrupted", err=True)
        comm.Abort(INTERRUPTED)
    who = f"viakit: {application.name}: rank {comm.Get_rank()} failed"
    if isinstance(error, names_of(comm).Exception):  # Usually another rank has failed, which reports the reason itself.
        click.echo(f"{who}: {error}", err=True)
    else:
        click.echo(f"{who}:\n{''.join(traceback.format_exception(error))}", err=True, nl=False)
    sys.stderr.flush()
    comm.Abort(1)


@contextlib.contextmanager
def _progress(name: str, wanted: bool, repeat: int) -> Iterator[Callable[[int, int], None] | None]:
    """Show a progress bar on a terminal. The rank draws it itself, without a thread, at most ten times a second."""
    from rich.console import Console  # start-up time

    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        if wanted and not console.is_terminal and os.environ.get(harness.TERMINAL):
            # A rank's own streams are pipes to its launcher, which passes the name of the terminal.
            with contextlib.suppress(OSError, ValueError):
                signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a job in the background may still draw
                console = Console(file=stack.enter_context(open(os.environ[harness.TERMINAL], "w", encoding="utf-8")))
        if not wanted or not console.is_terminal:
            yield None
            return
        yield from _bar(console, name, repeat)


def _bar(console: Any, name: str, repeat: int) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # start-up time

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(name, total=repeat)
        finished, part, last = 0, 0.0, 0.0

        def on_progress(done: int, total: int) -> None:
            nonlocal finished, part, last
            now = time.monotonic()
            if done / total < part:  # the next repetition
                finished += 1
            part = done / total
            if now - last >= 0.1:
                last = now
                bar.update(task, completed=finished + part)
                bar.refresh()

        yield on_progress
