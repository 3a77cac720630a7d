"""Commands for this machine: ``viakit doctor``, ``demo``, ``bench``, ``inspect`` and ``config``."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viakit.cli.base import Failure, deliver, make_console, memory_options, progress_bar
from viakit.cli.class_page import class_page
from viakit.cli.job import two_sides
from viakit.measure import result

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["bench", "config_command", "demo", "doctor", "inspect_command"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option(
    "--class", "for_class", is_flag=True, help="Print one page for a class: which lessons work here, and how."
)
@click.option(
    "--hosts",
    metavar="ssh:A,B",
    help="Examine machines that ssh reaches, and the way between them (ssh:B: this one and B).",
)
@click.option("--network", metavar="LINK", help="The wire between the hosts: eth:IF, udp:ADDRESS, udp:10.0.0.0/24.")
@click.option("--python", metavar="PATH", help="Interpreter with viakit on the hosts.")
def doctor(as_json: bool, for_class: bool, hosts: str | None, network: str | None, python: str | None) -> None:
    """Check the capabilities of this machine, and list remedies for what is missing.

    The exit status is always 0, because a missing capability is not a failure of the command.
    """
    if hosts is not None:
        _doctor_hosts(as_json, hosts, network, python)
        return
    from viakit import doctor as doctoring  # start-up time

    findings = doctoring.examine()
    if as_json:
        click.echo(json.dumps(doctoring.to_dict(findings), indent=1))
    elif for_class:
        click.echo(class_page(findings))
    else:
        doctoring.render(findings, make_console())


def _doctor_hosts(as_json: bool, hosts: str, network: str | None, python: str | None) -> None:
    """Examine several machines, and print the report."""
    from viakit import doctor_hosts  # start-up time

    report = doctor_hosts.to_dict(doctor_hosts.examine(hosts, network=network, python=python))
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        doctor_hosts.render(report, make_console())


@click.command()
@click.option(
    "--seconds",
    type=float,
    default=25.0,
    show_default=True,
    help="Time for measurements; the start and the pictures take some seconds more.",
)
@click.option(
    "--out", default="viakit-demo", show_default=True, metavar="DIR", help="Folder of the results and pictures."
)
@click.option("--seed", type=int, help="Seed for the order in which points are measured.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor table.")
@memory_options
def demo(seconds: float, out: str, seed: int | None, quiet: bool, memory: str, buffers: str) -> None:
    """Compare VIA with TCP, UDP, ZeroMQ and MPI on this machine in under a minute.

    Writes DIR/results.json, DIR/throughput.png and DIR/report.html, which also describes the results in words.
    """
    from viakit import demo as demonstration  # start-up time
    from viakit.measure import table  # start-up time

    with progress_bar("viakit demo", quiet) as on_progress:
        finished = demonstration.run(
            out, seconds=seconds, seed=seed, on_progress=on_progress, memory=memory, buffers=buffers
        )

    def show(console: Console) -> None:
        table.show(finished.document, console)
        console.print()
        for sentence in finished.words:
            console.print(f"- {sentence}", markup=False)
        for path in finished.files:
            click.echo(f"wrote {path}")

    error = None if finished.error is None else f"{finished.error} (the measurements so far are kept)"
    deliver((), show=show, quiet=quiet, interrupted=finished.interrupted, error=error)


@click.command()
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Time for measurements.")
@click.option(
    "--hosts",
    metavar="local|testbed|ssh:A,B|job",
    default="local",
    show_default=True,
    callback=two_sides,
    help="local: measure all goals, those on a wire on a testbed. Otherwise measure those on a wire alone: on a "
    "testbed, between two machines that ssh reaches (ssh:B: this one and B), or between the two hosts of the job of "
    "mpirun or srun, which is the default there.",
)
@click.option("--network", metavar="LINK", help="The wire between the hosts: eth:IF, udp:ADDRESS, udp:10.0.0.0/24.")
@click.option("--python", metavar="PATH", help="Interpreter with viakit on the hosts.")
@click.option(
    "--json", "json_file", is_flag=False, flag_value="-", metavar="[F]", help="Write JSON to F or to standard output."
)
@click.option("--seed", type=int, help="Seed for the order in which points are measured.")
@click.option(
    "--apps/--no-apps",
    "with_apps",
    default=True,
    show_default=True,
    help="Also measure the applications, which takes some minutes more.",
)
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor table.")
@click.option(
    "--programs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with path_cost and path_cost_bare (built by `make bench`), which measure the cost of disabled taps.",
)
@memory_options
def bench(
    seconds: float,
    json_file: str | None,
    seed: int | None,
    with_apps: bool,
    quiet: bool,
    programs: Path | None,
    **options: Any,
) -> None:
    """Measure viakit's performance goals, each in comparison with its peer.

    The exit status is 0 even if goals are not reached, because a busy machine is not a failure. It is 1 if nothing
    could be measured between machines.
    """
    from viakit.bench import goals, judging  # start-up time

    if json_file not in (None, "-"):
        result.check_writable(json_file)
    with progress_bar("goals", quiet) as on_progress:
        judged = goals.run(seconds=seconds, seed=seed, on_progress=on_progress, programs=programs, **options)
    if with_apps:
        from viakit.bench import application_goals  # start-up time

        left_out = "one host is enough for it; run viakit bench without --hosts" if options["hosts"] != "local" else ""
        with progress_bar("applications", quiet or bool(left_out)) as on_progress:
            application_goals.add(judged, seed=seed, left_out=left_out, on_progress=on_progress)
    deliver(
        [(json_file, lambda: (goals.to_json(judged) + "\n").encode())],
        show=lambda console: goals.render(judged, console),
        quiet=quiet,
        interrupted=judged.interrupted,
    )
    if str(options["hosts"]).startswith("ssh:") and all(goal.value is None for goal in judged.goals):
        reasons = [goal.reason for goal in judged.goals if goal.reason and not goal.reason.startswith(judging.LEFT_OUT)]
        raise Failure(f"nothing was measured: {reasons[0] if reasons else 'no goal applies to these hosts'}")


@click.command("inspect")
@click.argument("pid", type=int, required=False)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the reply (docs/inspect.md), or the list, as JSON in one line."
)
@click.option("--watch", is_flag=True, help="Repeat with rates until the process PID ends, or Ctrl-C.")
@click.option("--interval", type=float, default=1.0, show_default=True, help="Interval of --watch in seconds.")
def inspect_command(pid: int | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show the state of the NICs of a running process: VIs, queues, memory, connections, counters.

    The process needs no preparation and is not stopped. Without PID, list the processes that use viakit.
    """
    from viakit import inspect  # start-up time

    if interval <= 0:
        raise Failure(f"--interval must be more than 0 seconds, got {interval:g}", 2)
    if pid is None:
        if watch:
            raise Failure("--watch needs the PID of a process; `viakit inspect` lists the processes that use viakit", 2)
        found = inspect.processes()
        if as_json:
            click.echo(json.dumps([{"pid": number, "command": command} for number, command in found.items()]))
            return
        for number, command in found.items():
            click.echo(f"{number:8} {command[:100]}")
        return
    if as_json:
        for answer in inspect.watch(pid, interval) if watch else [inspect.inspect(pid)]:
            click.echo(json.dumps(answer))
        return
    if not watch:
        make_console().print(inspect.tables(inspect.inspect(pid)))
        return
    from rich.live import Live  # start-up time

    console, before = make_console(), None
    with Live(console=console, auto_refresh=False) if console.is_terminal else contextlib.nullcontext() as live:
        for answer in inspect.watch(pid, interval):
            shown = inspect.tables(answer, before)
            if live is None:
                console.print(shown)
            else:
                live.update(shown, refresh=True)
            before = answer
    click.echo(f"process {pid} has ended or closed its last NIC")


@click.command("config")
@click.option("--cflags", "wanted", flag_value="cflags", multiple=True, help="Print the compiler's arguments.")
@click.option("--libs", "wanted", flag_value="libs", multiple=True, help="Print the linker's arguments.")
@click.option("--static", is_flag=True, help="With --libs: link the library statically.")
@click.option("--prefix", "wanted", flag_value="prefix", multiple=True, help="Print the folder of include and lib.")
@click.option("--library", "wanted", flag_value="library", multiple=True, help="Print the shared library, for ctypes.")
@click.option(
    "--pkg-config-dir", "wanted", flag_value="pkg_config_dir", multiple=True, help="Print the folder of vipl.pc."
)
@click.option("--examples", "wanted", flag_value="example_dir", multiple=True, help="Print the folder of C examples.")
@click.option(
    "--valgrind",
    "wanted",
    flag_value="valgrind_suppressions",
    multiple=True,
    help="Print the file for valgrind's --suppressions.",
)
@click.option(
    "--raw",
    "wanted",
    flag_value="raw_setup",
    multiple=True,
    help="Print the commands that install the helper for raw frames without root.",
)
@click.option("--version", "wanted", flag_value="version", multiple=True, help="Print the library's version.")
def config_command(wanted: tuple[str, ...], static: bool) -> None:
    """Print the compiler and linker arguments for C programs that use VIPL.

    \b
    cc pingpong.c $(viakit config --cflags --libs) -o pingpong
    cc pingpong.c $(viakit config --cflags --libs --static) -o pingpong
    PKG_CONFIG_PATH=$(viakit config --pkg-config-dir) pkg-config --cflags --libs vipl
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit import config  # start-up time

    if not wanted:
        raise Failure("name at least one item, such as viakit config --cflags --libs; --help lists all of them", 2)
    if static and "libs" not in wanted:
        raise Failure("--static applies to --libs only; add --libs or leave out --static", 2)
    flags: list[str] = []
    for name in wanted:
        if name == "libs":
            flags += config.libs(static=static)
        elif name == "cflags":
            flags += config.cflags()
        else:
            value = getattr(config, name)()
            click.echo("\n".join(value) if isinstance(value, list) else str(value))
    if flags:
        click.echo(config.quote(flags))
