"""The commands about this machine: ``viakit doctor``, ``demo``, ``bench``, ``inspect`` and ``config``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from viakit._cli_base import Failure, deliver, make_console, progress_bar

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["bench", "config_command", "demo", "doctor", "inspect_command"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(as_json: bool) -> None:
    """Say what this machine can and cannot do, and how to remedy it.

    The exit status is 0 whatever is found: a machine without something is no failure.
    """
    from viakit import doctor as doctoring

    findings = doctoring.examine()
    if as_json:
        import json

        click.echo(json.dumps(doctoring.to_dict(findings), indent=1))
    else:
        doctoring.render(findings, make_console())


@click.command()
@click.option(
    "--seconds",
    type=float,
    default=25.0,
    show_default=True,
    help="Time for measuring; starting and drawing take some more.",
)
@click.option(
    "--out", default="viakit-demo", show_default=True, metavar="DIR", help="Where the results and pictures go."
)
@click.option("--seed", type=int, help="Of the order in which points are measured.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no table.")
def demo(seconds: float, out: str, seed: int | None, quiet: bool) -> None:
    """VIA beside TCP, UDP, ZeroMQ and MPI on this machine, in under a minute.

    Leaves DIR/results.json, DIR/throughput.png and DIR/report.html, which says in words what is to be seen.
    """
    from viakit import demo as demonstration
    from viakit.measure import table

    with progress_bar("viakit demo", quiet) as on_progress:
        finished = demonstration.run(out, seconds=seconds, seed=seed, on_progress=on_progress)

    def show(console: Console) -> None:
        table.show(finished.document, console)
        console.print()
        for sentence in finished.words:
            console.print(f"- {sentence}", markup=False)
        for path in finished.files:
            click.echo(f"wrote {path}")

    error = None if finished.error is None else f"{finished.error} (what had been measured by then is kept)"
    deliver((), show=show, quiet=quiet, interrupted=finished.interrupted, error=error)


@click.command()
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Time for measuring.")
@click.option(
    "--json", "json_file", is_flag=False, flag_value="-", metavar="[F]", help="JSON, to F or to standard output."
)
@click.option("--seed", type=int, help="Of the order in which points are measured.")
@click.option(
    "--apps/--no-apps", "with_apps", default=True, show_default=True, help="The applications, too: minutes more."
)
@click.option("--quiet", "-q", is_flag=True, help="No progress and no table.")
@click.option(
    "--programs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with path_cost and path_cost_bare, which `make bench` builds: what taps cost that are off.",
)
def bench(
    seconds: float, json_file: str | None, seed: int | None, with_apps: bool, quiet: bool, programs: Path | None
) -> None:
    """Measure the figures that viakit has set itself as goals, each beside its peer.

    The exit status is 0 whether they are reached or not: a busy machine is no failure.
    """
    from viakit.measure import goals, result

    if json_file not in (None, "-"):
        result.check_writable(json_file)
    with progress_bar("goals", quiet) as on_progress:
        judged = goals.run(seconds=seconds, seed=seed, on_progress=on_progress, programs=programs)
    if with_apps:
        from viakit.apps import goals as application_goals

        with progress_bar("applications", quiet) as on_progress:
            application_goals.add(judged, seed=seed, on_progress=on_progress)
    deliver(
        [(json_file, lambda: (goals.to_json(judged) + "\n").encode())],
        show=lambda console: goals.render(judged, console),
        quiet=quiet,
        interrupted=judged.interrupted,
    )


@click.command("inspect")
@click.argument("pid", type=int, required=False)
@click.option(
    "--json", "as_json", is_flag=True, help="The answer as it came (docs/inspect.md), or the list, in one line."
)
@click.option("--watch", is_flag=True, help="Again and again, with rates, until the process PID ends or Ctrl-C.")
@click.option("--interval", type=float, default=1.0, show_default=True, help="Seconds between two looks of --watch.")
def inspect_command(pid: int | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show what the NICs of a running process are doing: VIs, queues, memory, connections, counters.

    The process need not be prepared for it and is not stopped. Without PID, the processes that use viakit are listed.
    """
    import json

    from viakit import inspect

    if interval <= 0:
        raise Failure(f"--interval {interval:g}: give a time of more than 0 seconds", 2)
    if pid is None:
        if watch:
            raise Failure("--watch: give the PID of a process; `viakit inspect` lists those that use viakit", 2)
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
    from rich.live import Live

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
@click.option("--cflags", "wanted", flag_value="cflags", multiple=True, help="Arguments for the compiler.")
@click.option("--libs", "wanted", flag_value="libs", multiple=True, help="Arguments for the linker.")
@click.option("--static", is_flag=True, help="With --libs: put the library into the program.")
@click.option("--prefix", "wanted", flag_value="prefix", multiple=True, help="The folder that holds include and lib.")
@click.option("--library", "wanted", flag_value="library", multiple=True, help="The shared library, for ctypes.")
@click.option("--pkg-config-dir", "wanted", flag_value="pkg_config_dir", multiple=True, help="The folder of vipl.pc.")
@click.option("--examples", "wanted", flag_value="example_dir", multiple=True, help="The folder of the C examples.")
@click.option("--version", "wanted", flag_value="version", multiple=True, help="The library's version.")
def config_command(wanted: tuple[str, ...], static: bool) -> None:
    """Say what a compiler needs for C programs that use VIPL.

    \b
    cc pingpong.c $(viakit config --cflags --libs) -o pingpong
    cc pingpong.c $(viakit config --cflags --libs --static) -o pingpong
    PKG_CONFIG_PATH=$(viakit config --pkg-config-dir) pkg-config --cflags --libs vipl
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit import config

    if not wanted:
        raise Failure("say what is wanted: viakit config --cflags --libs (viakit config --help has the rest)", 2)
    if static and "libs" not in wanted:
        raise Failure("--static goes with --libs", 2)
    flags: list[str] = []
    for name in wanted:
        if name == "libs":
            flags += config.libs(static=static)
        elif name == "cflags":
            flags += config.cflags()
        else:
            click.echo(str(getattr(config, name)()))
    if flags:
        click.echo(config.quote(flags))
