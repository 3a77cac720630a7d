"""The command ``viakit trace``: seeing messages."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import click

from viakit._cli_base import Failure, Size, make_console

__all__ = ["trace"]


class _TracedCommand(click.Command):
    """Options up to the command that is to be traced; the rest is its own."""

    allow_interspersed_args = False


@click.command(cls=_TracedCommand, context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
@click.option("--out", metavar="F", help="Write the timeline as JSON, for https://ui.perfetto.dev.")
@click.option("--capture", metavar="F", help="Write the frames and events as pcapng, for Wireshark.")
@click.option("--picture", metavar="F", help="Draw the last messages: .png, .svg or .pdf.")
@click.option("--from", "sources", metavar="F", multiple=True, help="Read captures instead of running a command.")
@click.option("--snap", type=Size(), default="176", show_default=True, help="Bytes of each frame to keep; 0: all.")
@click.option("--limit", type=Size(), default="8M", show_default=True, help="Most that each process may write.")
@click.option("--dissector", is_flag=True, help="Only print where the dissector for Wireshark is.")
@click.option("--install-dissector", is_flag=True, help="Only put it into Wireshark's folder for plugins.")
@click.option("--quiet", "-q", is_flag=True, help="No table.")
def trace(
    command: tuple[str, ...],
    out: str | None,
    capture: str | None,
    picture: str | None,
    sources: tuple[str, ...],
    snap: int,
    limit: int,
    dissector: bool,
    install_dissector: bool,
    quiet: bool,
) -> None:
    """Run a command and show what its NICs did: each message from the post to the peer's reap.

    \b
    viakit trace --out trace.json viakit sweep via-shm --sizes 8 --seconds 1
    viakit trace --capture both.pcapng ./my-program
    viakit trace --from both.pcapng --picture both.png

    The exit status is the command's.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit import trace as tracing
    from viakit.measure import result

    if dissector or install_dissector:
        click.echo(tracing.install_dissector() if install_dissector else tracing.dissector())
        return
    if bool(command) == bool(sources):
        raise Failure("give a command to run, or --from with captures that are there", 2)
    result.check_writable(*(name for name in (out, capture, picture) if name is not None))
    status = 0
    if sources:
        taken = tracing.read(sources)
    else:
        with tracing.recording(snap_bytes=snap or None, file_bytes=limit or None) as recording:
            status = _run(command)
        taken = recording.capture()
    seen = tracing.build(taken)
    if not quiet:
        tracing.render(seen, make_console(stderr=bool(command)))
    if not seen.nics:
        click.echo("viakit: no NIC was opened by the command: is it linked to this libvipl.so?", err=True)
    for name, write in (
        (out, lambda name: tracing.chrome.save(seen, name)),
        (capture, lambda name: tracing.merge(taken, name)),
        (picture, lambda name: tracing.picture.save(seen, name)),
    ):
        if name is not None:
            write(name)
            if not quiet:
                click.echo(f"wrote {name}", err=bool(command))
    raise click.exceptions.Exit(status)


def _run(command: Sequence[str]) -> int:
    """Run a command to its end; its exit status. What interrupts us interrupts it, too: it ends, and is waited for."""
    import os
    import subprocess

    from viakit._launch import LaunchError, find_program

    try:
        child = subprocess.Popen(command, executable=find_program(command[0]))
    except LaunchError as error:  # as a shell has it: 126 is there, but cannot be run
        there = os.path.dirname(command[0]) != "" and os.path.exists(command[0])
        raise Failure(str(error), 126 if there else 127) from error
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}", 126) from error
    with child:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            status = child.wait()
    return status if status >= 0 else 128 - status
