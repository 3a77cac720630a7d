"""The command ``viakit``: measurements, jobs, applications, plots, and information about this machine.

Exit status:

- 0: success
- 1: failure; the message gives the reason and a remedy
- 2: invalid usage
- 3, 4: `viakit compare`: a point became slower; no verdict
- 130: interrupted (Ctrl-C, SIGTERM, or the terminal closed); the measurements so far are kept

``VIAKIT_DEBUG=1`` shows tracebacks. Modules that load NumPy, Matplotlib, rich or the compiled extension are imported by
the commands that use them, so that ``viakit --help`` starts fast.
"""

from __future__ import annotations

import _thread
import codecs
import io
import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

import click

from viakit import __version__
from viakit.cli.application import app, speedup
from viakit.cli.barriers import barrier
from viakit.cli.base import INTERRUPTED, Failure
from viakit.cli.breakdown import breakdown
from viakit.cli.calibrating import calibrate
from viakit.cli.collective import collectives
from viakit.cli.machine import bench, config_command, demo, doctor, inspect_command
from viakit.cli.notebook import lab
from viakit.cli.papers import machines_command, papers
from viakit.cli.results import compare, import_results, plot, protocols, show
from viakit.cli.running import run
from viakit.cli.sweeping import sweep
from viakit.cli.tracing import trace
from viakit.measure.ladder import SizeError
from viakit.measure.result import ResultError

__all__ = ["cli", "interrupt", "main"]

_IGNORES = ("<frozen importlib._bootstrap>", "cb")  # file and name of importlib's callback
_AGAIN_S = 0.01


def _known(error: Exception) -> Failure | None:
    """Return the failure to display for an exception, or None if the exception is a defect of viakit."""
    if isinstance(error, (SizeError, ResultError)):
        return Failure(str(error), 2 if isinstance(error, SizeError) else 1)
    # Compare with these classes only if their modules have been imported.
    for module, name, status in (
        ("viakit.measure.sweep", "UsageError", 2),
        ("viakit.measure.endpoints", "MeasureError", 1),
        ("viakit.measure.endpoints", "UnknownProtocol", 2),
        ("viakit.launch", "LaunchError", 1),
        ("viakit.comm.errors", "Exception", 1),
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
        return Failure(f"{error}; `viakit doctor` lists missing parts")
    return None


def _report_interrupt(ctx: click.Context) -> NoReturn:
    click.echo("viakit: interrupted; all started processes have ended", err=True)
    ctx.exit(INTERRUPTED)


class _Group(click.Group):
    """Command group that converts exceptions to messages and exit statuses."""

    def invoke(self, ctx: click.Context) -> None:
        try:
            super().invoke(ctx)
        except KeyboardInterrupt:
            _report_interrupt(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("VIAKIT_DEBUG") == "1":
                raise
            if _is_interrupt(error):
                _report_interrupt(ctx)
            known = _known(error)
            if known is None:
                text = f"internal error: {type(error).__name__}: {error} (VIAKIT_DEBUG=1 shows the traceback)"
                known = Failure(text)
            raise known from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="viakit")
def cli() -> None:
    """The Virtual Interface Architecture in software, and the instruments to measure it.

    Start with `viakit demo`. If something does not work on this machine, `viakit doctor` gives the reason.
    """


# The commands in the order in which a new user needs them.
for _command in (
    demo,
    sweep,
    breakdown,
    barrier,
    collectives,
    plot,
    show,
    compare,
    import_results,
    protocols,
    bench,
    calibrate,
    run,
    app,
    speedup,
    papers,
    machines_command,
    trace,
    lab,
    inspect_command,
    config_command,
    doctor,
):
    cli.add_command(_command)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handle a signal like Ctrl-C: raise KeyboardInterrupt, where Python does not ignore it.

    importlib's callback at the end of an import is such a place. The signal is then sent again a moment later. It may
    arrive while this function still runs in the callback, so all callers are examined. No class of ``threading`` is
    used: their locks may be held at this moment.
    """
    while frame is not None:
        if (frame.f_code.co_filename, frame.f_code.co_name) == _IGNORES:
            _thread.start_new_thread(_send_again, (number,))
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _send_again(number: int) -> None:
    time.sleep(_AGAIN_S)
    os.kill(os.getpid(), number)


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an interrupt is the cause: a descriptor's ``__set_name__`` makes a RuntimeError of one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def _open_streams() -> None:
    """Open /dev/null at each of the descriptors 0 to 2 that the shell has closed (``>&-``).

    Otherwise the next file or socket would have this number, and output of a rank would go there.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it has the lowest free number, which is fd


_ASCII = str.maketrans("µ×─━│┃–—█", "ux--||--#") | {ord("±"): "+-", ord("…"): "...", ord("→"): "->"}


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream cannot encode: µ by u, ± by +-, others by a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_ASCII)
    return "".join(one if ord(one) < 128 else "?" for one in text), error.end


def _write_anything() -> None:
    """Let the output streams replace what their encoding lacks, where the locale is not UTF-8."""
    codecs.register_error("viakit", _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="viakit")


def main() -> None:
    """Run the command: see :mod:`viakit.__main__`."""
    try:
        _open_streams()
        _write_anything()
        # Clean up after SIGTERM, and after the terminal has closed, as after Ctrl-C.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, interrupt)
        # A shell ignores SIGINT for background processes. This is left unchanged.
        # In its standalone mode click ends with status 1 if it is interrupted outside of _Group.invoke.
        status = cli.main(prog_name="viakit", standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        status = INTERRUPTED
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    raise SystemExit(status)
