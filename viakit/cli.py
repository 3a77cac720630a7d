"""The command ``viakit``: sweeps, pictures, the demo, the doctor.

Exit status: 0 done; 1 it failed, and the message says why and what to do; 2 the command makes no sense; 130 it was
interrupted (Ctrl-C, SIGTERM, or the terminal closed), with what had been measured by then kept.
``VIAKIT_DEBUG=1`` shows tracebacks.

Whatever is heavy (NumPy, Matplotlib, the compiled part) is imported by the commands that use it: ``viakit --help`` is
quick.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import click

from viakit import __version__
from viakit._cli_app import app, speedup
from viakit._cli_barrier import barrier
from viakit._cli_base import INTERRUPTED, Failure
from viakit._cli_collectives import collectives
from viakit._cli_lab import lab
from viakit._cli_machine import bench, config_command, demo, doctor, inspect_command
from viakit._cli_results import plot, protocols, show
from viakit._cli_run import run
from viakit._cli_sweep import calibrate, sweep
from viakit._cli_trace import trace

__all__ = ["cli", "main"]


def _known(error: Exception) -> Failure | None:
    """Return how an exception is told to the user, or None if it is a fault of viakit's own."""
    from viakit.measure.ladder import SizeError
    from viakit.measure.result import ResultError

    if isinstance(error, (SizeError, ResultError)):
        return Failure(str(error), 2 if isinstance(error, SizeError) else 1)
    # The modules of these are only there to compare with if something has used them.
    for module, name, status in (
        ("viakit.measure.sweep", "UsageError", 2),
        ("viakit.measure.endpoints", "MeasureError", 1),
        ("viakit.measure.endpoints", "UnknownProtocol", 2),
        ("viakit.launch", "LaunchError", 1),
        ("viakit._comm.errors", "Exception", 1),
        ("viakit.testbed", "TestbedError", 1),
        ("viakit.inspect", "InspectError", 1),
        ("viakit.trace.pcapng", "CaptureError", 1),
    ):
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return Failure(str(error), 2 if getattr(error, "reason", "") == "usage" else status)
    if isinstance(error, ValueError):
        return Failure(str(error), 2)
    if isinstance(error, OSError):
        return Failure(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    if isinstance(error, ImportError):
        return Failure(f"{error}; `viakit doctor` says what is missing")
    return None


class _Group(click.Group):
    """The command group: turns exceptions into messages and exit statuses."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("viakit: interrupted; nothing is left running", err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("VIAKIT_DEBUG") == "1":
                raise
            known = _known(error)
            if known is None:
                text = f"internal error: {type(error).__name__}: {error} (VIAKIT_DEBUG=1 shows where)"
                known = Failure(text)
            raise known from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="viakit")
def cli() -> None:
    """The Virtual Interface Architecture in software, and the instruments to measure it.

    Start with `viakit demo`; if something does not work on this machine, `viakit doctor` says why.
    """


# One line per command, in the order of a first session.
for _command in (
    demo,
    sweep,
    barrier,
    collectives,
    plot,
    show,
    protocols,
    bench,
    calibrate,
    run,
    app,
    speedup,
    trace,
    lab,
    inspect_command,
    config_command,
    doctor,
):
    cli.add_command(_command)


def _interrupt(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command: the entry point ``viakit``, and ``python -m viakit``."""
    # Asked to end politely, or left by its terminal: put everything away as after Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)
    # A shell that started us in the background has SIGINT ignored; then it stays so.
    try:
        cli.main(prog_name="viakit")
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
