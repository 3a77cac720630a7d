"""The command ``viakit trace``: observation of messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from viakit.trace.timeline import Timeline

from viakit.cli.base import INTERRUPTED, Failure, Size, make_console
from viakit.cli.job import default_ranks, hosts_of_job
from viakit.cli.running import Hosts, ranks_for
from viakit.measure import result

__all__ = ["trace"]


class _TracedCommand(click.Command):
    """Command whose options end at the command to be traced, which has options of its own."""

    allow_interspersed_args = False


@click.command(cls=_TracedCommand, context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
@click.option("--out", metavar="F", help="Write the timeline as JSON, for https://ui.perfetto.dev.")
@click.option("--capture", metavar="F", help="Write the frames and events as pcapng, for Wireshark.")
@click.option("--picture", metavar="F", help="Draw the last messages: .png, .svg or .pdf.")
@click.option("--schedule", metavar="F", help="Write the ranks' operations, for the replay in virtual time.")
@click.option("--from", "sources", metavar="F", multiple=True, help="Read captures instead of running a command.")
@click.option(
    "--hosts",
    type=Hosts(),
    default="local",
    show_default=True,
    callback=hosts_of_job,
    metavar="local|testbed:N|ssh:A,B|job",
    help="Run the command as ranks on these hosts, as `viakit run` does: one on each, or ssh:A*2,B*2. job: on the "
    "hosts of the job of mpirun or srun that this command is started in. A command of viakit has --hosts itself.",
)
@click.option("--network", metavar="LINK", help="The wire between the hosts: eth:IF, udp:ADDRESS, udp:10.0.0.0/24.")
@click.option("--python", metavar="PATH", help="Interpreter with viakit on the machines of --hosts ssh:.")
@click.option("--snap", type=Size(), default="176", show_default=True, help="Bytes of each frame to keep; 0: all.")
@click.option("--limit", type=Size(), default="8M", show_default=True, help="Limit of the capture of each process.")
@click.option("--dissector", is_flag=True, help="Print the path of the dissector for Wireshark and exit.")
@click.option("--install-dissector", is_flag=True, help="Copy the dissector to Wireshark's plugins and exit.")
@click.option("--quiet", "-q", is_flag=True, help="Show no table.")
def trace(
    command: tuple[str, ...],
    out: str | None,
    capture: str | None,
    picture: str | None,
    schedule: str | None,
    sources: tuple[str, ...],
    hosts: int | str,
    network: str | None,
    python: str | None,
    snap: int,
    limit: int,
    dissector: bool,
    install_dissector: bool,
    quiet: bool,
) -> None:
    """Run a command and show the activity of its NICs: each message from the post to the peer's reap.

    \b
    viakit trace --out trace.json viakit sweep via-shm --sizes 8 --seconds 1
    viakit trace --capture both.pcapng ./my-program
    viakit trace --from both.pcapng --picture both.png
    viakit trace --schedule run.json --limit 64M viakit app sor -n 4 --size 256
    viakit trace --hosts ssh:alpha,beta prog.py
    viakit trace --out trace.json viakit sweep via-udp --sizes 8 --hosts ssh:alpha,beta

    Captures of other machines are fetched, and their times are expressed by one clock. The exit status is that of the
    command.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit import trace as tracing  # start-up time

    if dissector or install_dissector:
        click.echo(tracing.install_dissector() if install_dissector else tracing.dissector())
        return
    if bool(command) == bool(sources):
        raise Failure("give either a command to run, or --from with existing captures", 2)
    _check_hosts(command, hosts, network, python)
    result.check_writable(*(name for name in (out, capture, picture, schedule) if name is not None))
    status = 0
    if sources:
        taken = tracing.read(sources)
    else:
        with tracing.recording(snap_bytes=snap or None, file_bytes=limit or None) as recording:
            one = hosts == 0 and default_ranks(None) is None
            status = _run(command) if one else _run_ranks(command, hosts, network, python)
        taken = recording.capture()
    seen = tracing.build(taken)
    if not quiet:
        tracing.render(seen, make_console(stderr=bool(command)))
    if not seen.nics:
        click.echo("viakit: the command opened no NIC; check that it is linked to this libvipl.so", err=True)
    for name, write in (
        (out, lambda name: tracing.chrome.save(seen, name)),
        (capture, lambda name: tracing.merge(taken, name)),
        (picture, lambda name: tracing.picture.save(seen, name)),
        (schedule, lambda name: result.write_file(name, _schedule(seen))),
    ):
        if name is not None:
            write(name)
            if not quiet:
                click.echo(f"wrote {name}", err=bool(command))
    raise click.exceptions.Exit(status)


def _schedule(seen: Timeline) -> bytes:
    """Return the text of a schedule file."""
    from viakit.trace import to_schedule  # start-up time

    return (json.dumps(to_schedule(seen, "traced run").to_json(), separators=(",", ":")) + "\n").encode()


def _check_hosts(command: Sequence[str], hosts: int | str, network: str | None, python: str | None) -> None:
    """Refuse options for hosts that do not apply to the command."""
    if hosts == 0 and (network or python):
        raise Failure("--network and --python are for --hosts; a command of viakit has these options itself", 2)
    if hosts != 0 and not command:
        raise Failure("--hosts is for a command to run; captures that --from reads have their hosts in them", 2)
    if hosts != 0 and os.path.basename(command[0]) == "viakit":
        raise Failure(
            "--hosts before a command of viakit; give it to that command: viakit trace viakit sweep ... --hosts ...", 2
        )


def _run_ranks(command: Sequence[str], hosts: int | str, network: str | None, python: str | None) -> int:
    """Run a command as ranks on hosts, and return the exit status of the first one that failed, or 0."""
    from viakit.launch.options import Options  # start-up time
    from viakit.launch.runner import launch_of  # start-up time

    try:
        options = Options(ranks_for(None, hosts), hosts=hosts, network=network, python=python, prog="viakit trace")
        return launch_of([*command], options).run()
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(command: Sequence[str]) -> int:
    """Run a command to its end and return its exit status.

    SIGINT is forwarded to the command, which is then waited for.
    """
    from viakit.launch import LaunchError  # start-up time
    from viakit.launch.program import find_program  # start-up time

    try:
        child = subprocess.Popen(command, executable=find_program(command[0]))
    except LaunchError as error:  # As in a shell: 126 if the file exists but cannot be run, otherwise 127.
        exists = os.path.dirname(command[0]) != "" and os.path.exists(command[0])
        raise Failure(str(error), 126 if exists else 127) from error
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}", 126) from error
    with child:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            status = child.wait()
    return status if status >= 0 else 128 - status
