"""The commands ``viakit app`` and ``viakit speedup``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable

import click

from viakit.cli.base import Failure, deliver, failures, percentage
from viakit.cli.group import Numbers
from viakit.cli.job import within_job
from viakit.cli.running import (
    check_network,
    machine_option,
    network_option,
    placement_option,
    ranks_for,
    testbed_options,
)
from viakit.launch import mpi_library as mpi
from viakit.launch.described import on_machine, protocol_on
from viakit.measure import plot, result

__all__ = ["app", "speedup"]

computing_option = click.option(
    "--computing",
    type=click.FloatRange(min=0),
    metavar="F",
    help="With --machine: its time for the computing of one second of this processor; 0: computing takes no time.  "
    "[default: the machine's compute.factor]",
)


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    options_metavar="[-n RANKS] [OPTIONS]",
)
@click.option("-n", "--ranks", type=click.IntRange(1, 1024), help="Number of ranks.  [default: 1]")
@testbed_options
@network_option
@placement_option
@click.option(
    "--protocol",
    metavar="P",
    help="via, bip, tcp, mpi, mpi:openmpi or mpi:mpich; also with a policy of the message engine: tcp:mpich-p4.  "
    "[default: VIAKIT_PROTOCOL, else via, or tcp on a machine with sockets only; one rank: none]",
)
@machine_option
@computing_option
@click.option("--timeout", type=float, metavar="S", help="End the job after S seconds, with status 124.")
@click.option("--help", "-h", "wants_help", is_flag=True, help="Show this message, or that of the application NAME.")
@click.argument("name", required=False, metavar="[NAME]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF THE APPLICATION]")
@click.pass_context
def app(
    ctx: click.Context,
    name: str | None,
    arguments: tuple[str, ...],
    ranks: int | None,
    hosts: int | str,
    python: str | None,
    network: str | None,
    mtu: int,
    placement: str,
    protocol: str | None,
    timeout: float | None,
    machine: str | None,
    computing: float | None,
    wants_help: bool,
) -> None:
    """Run an application; without a NAME, list them.

    \b
    viakit app sor --size 1024
    viakit app sor -n 4 --size 1024 --protocol tcp
    viakit app is -n 8 --hosts testbed:4 --class A
    viakit app is -n 4 --protocol tcp:mpich-p4
    viakit app sor -n 4 --hosts ssh:alpha,beta --network udp:10.0.0.0/24
    viakit app water -n 2 --protocol mpi --trace water.json
    viakit app sor -n 4 --variant paper --profile --protocol via:mvich-r3
    viakit app sor -n 8 --machine pentium3-650-giganet
    viakit app ep --help

    Exit status: 0 if the result is correct, 1 if it is wrong or the run failed, 2 if the arguments are invalid.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    if wants_help and name is None:
        click.echo(ctx.get_help())
        return
    from viakit.apps import harness, jobs  # start-up time, as the next one
    from viakit.launch.policy import wish

    if name is None:
        for one in harness.NAMES:
            click.echo(f"{one:8} {harness.find(one).title}")
        return
    module = harness.module_of(name)
    alone = ranks in (None, 1) and not hosts
    if machine is not None and (alone or hosts) and not wants_help:
        raise Failure("--machine: at least two ranks (-n), and all on this host; remove --hosts", 2)
    protocol = protocol or os.environ.get("VIAKIT_PROTOCOL")
    if machine is not None and not wants_help:
        protocol = protocol_on(machine, protocol, wish()[0])
    elif protocol is None and not wants_help and not alone:
        protocol = "via"
    check_network(network, hosts)
    policy = None
    if protocol is not None:
        protocol, policy = jobs.with_policy(protocol)
    if policy is not None:
        os.environ["VIAKIT_POLICY"] = policy  # also for a rank that this process becomes
    words = [*arguments, *jobs.protocol_words(protocol)]
    if wants_help or (alone and not mpi.is_mpi(protocol) and timeout is None):
        ctx.exit(harness.main(harness.find(name), [*words, *["--help"] * wants_help], f"viakit app {name}"))
    with on_machine(machine, computing) as variables:
        status = jobs.run_ranks(
            ["-m", module, *words], ranks_for(ranks, hosts), protocol,
            hosts=hosts, python=python, network=network, mtu=mtu, placement=placement, timeout_s=timeout,
            policy=policy, prog=f"viakit app {name}", environment=variables,
        )  # fmt: skip
    ctx.exit(status)


@click.command()
@click.argument("names", nargs=-1, metavar="[APPLICATION...]")
@click.option(
    "--protocols",
    default="via,tcp,mpi",
    show_default=True,
    metavar="LIST",
    help="Protocols: via, bip, tcp, mpi (every installed MPI), mpi:openmpi, mpi:mpich, copies (concurrent serial "
    "programs); also policies of the message engine: tcp:mpich-p4, via:mvich-rput.",
)
@click.option("--ranks", type=Numbers(), default="1,2,4,8", show_default=True, metavar="LIST", help="Numbers of ranks.")
@click.option("--paper", is_flag=True, help="Tables I to III and figures 4 to 10: every application, 1 to 8 ranks.")
@click.option(
    "--programs",
    type=click.Choice(["viakit", "paper"]),
    help="The paper's SOR exchanges rows without computing meanwhile, and its EP sends counts only.  "
    "[default: viakit; --paper: paper]",
)
@click.option(
    "--profile", is_flag=True, help="Show each call of the message library over each protocol: its time, its waiting."
)
@click.option("--quick", is_flag=True, help="Small problems instead of the paper's, and fewer rounds.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="Number of runs of each.  [default: 5; --quick: 3]")
@click.option("--problem", metavar="OPTIONS", help="Options of the application in place of its sizes: '--size 512'.")
@click.option(
    "--kernels",
    type=click.Choice(["compiled", "numpy"]),
    default="compiled",
    show_default=True,
    help="Numeric kernels: in C, or readable ones in NumPy.",
)
@testbed_options
@network_option
@machine_option
@computing_option
@click.option("--seed", type=int, help="Seed for the order within the rounds.")
@click.option("--json", "json_file", metavar="F", help="Write the result (viakit.result/1); - for standard output.")
@click.option("--png", "--plot", "pictures", metavar="F", multiple=True, help="Draw: .png, .svg, .pdf; repeatable.")
@click.option("--html", "html_file", metavar="F", help="Write a report as one self-contained page.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor table.")
def speedup(
    names: tuple[str, ...],
    protocols: str,
    ranks: tuple[int, ...],
    paper: bool,
    programs: str | None,
    profile: bool,
    quick: bool,
    rounds: int | None,
    problem: str | None,
    kernels: str,
    hosts: int | str,
    python: str | None,
    network: str | None,
    mtu: int,
    machine: str | None,
    computing: float | None,
    seed: int | None,
    json_file: str | None,
    pictures: tuple[str, ...],
    html_file: str | None,
    quiet: bool,
) -> None:
    """Measure the applications' speed-ups over several protocols, and compare them with the paper's.

    \b
    viakit speedup sor ep --protocols via,tcp,mpi --ranks 1,2,4,8
    viakit speedup --paper --json paper.json --html paper.html
    viakit speedup --quick --hosts testbed:4 --protocols via,tcp
    viakit speedup sor --programs paper --profile --protocols via,tcp,tcp:mpich-p4,via:mvich-r3 --ranks 4
    viakit speedup ep --protocols via:mvich-r3 --machine pentium3-650-giganet --computing 20

    APPLICATION: one that `viakit app` lists, or one of its problems, such as water-1728; none: all.
    Exit status: 1 if a result is wrong or a job failed.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit.apps import speedup as measuring  # start-up time
    from viakit.apps import speedup_report as report  # start-up time

    if paper and (names or quick):
        raise ValueError("--paper runs every application at the paper's sizes; leave out the names and --quick")
    check_network(network, hosts)
    labels = measuring.labels_of(names)
    for path in pictures:
        if plot.check_format(path) == ".html":
            raise ValueError(f"{path}: a picture must be .png, .svg or .pdf; use --html to write a page")
    result.check_writable(*pictures, *(one for one in (html_file, json_file) if one not in (None, "-")))
    if paper:
        ranks = tuple(sorted({1, 2, 4, 8, *ranks}))
    with percentage(quiet) as on_progress:
        document = measuring.measure(
            labels,
            protocols=tuple(protocols.split(",")),
            ranks=within_job(ranks),
            rounds=rounds or (3 if quick else 5),
            quick=quick,
            problem=None if problem is None else shlex.split(problem),
            paper_programs=(programs or ("paper" if paper else "viakit")) == "paper",
            hosts=hosts, python=python, network=network, mtu=mtu, kernels=kernels, machine=machine,
            computing=computing, profile=profile, seed=seed, on_progress=on_progress,
        )  # fmt: skip
    result.validate(document)

    def save(drawing: Callable[[str], bytes]) -> Callable[[str], None]:
        return lambda path: result.write_file(path, drawing(path))

    drawn = [(path, lambda path: report.picture(document, plot.check_format(path))) for path in pictures]
    drawn += [(html_file, lambda path: report.html(document).encode())] if html_file else []
    wrong = [f"WRONG RESULT: {text}" for text in measuring.wrong(document)]
    error = "\nviakit: ".join([*wrong, *filter(None, [failures(document)])]) or None
    deliver(
        [(json_file, lambda: result.to_bytes(document))],
        [(path, save(drawing)) for path, drawing in (drawn if any(measuring.rows(document)) else ())],
        show=lambda console: report.show(document, console),
        quiet=quiet,
        interrupted=not document["complete"] and not document["errors"],
        error=error,
    )
