"""The command ``viakit run``."""

from __future__ import annotations

import ast
import itertools
import os
import re
from typing import Any

import click

from viakit.cli.base import Failure, wire_options
from viakit.cli.job import JOB, default_ranks, hosts_of_job
from viakit.remote.spec import chosen_hosts, parse

__all__ = ["Hosts", "machine_option", "network_option", "placement_option", "ranks_for", "run", "testbed_options"]


class Hosts(click.ParamType):
    """Hosts as ``local``, ``testbed:N``, ``ssh:A,B`` or ``job``; converted to a number of hosts, or kept as text.

    ``job`` is the job of mpirun or srun that this process belongs to.
    """

    name = "hosts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Parse ``testbed:N``, a number of hosts, or names of machines."""
        if value == JOB:
            return str(value)
        try:
            return chosen_hosts(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def ranks_for(ranks: int | None, hosts: int | str) -> int:
    """Return the number of ranks; by default one for each host, or all slots of machines that ssh reaches."""
    ranks = default_ranks(ranks)
    if ranks is not None:
        return ranks
    if isinstance(hosts, str):
        spec = parse(hosts)
        return sum(spec.slots) or len(spec)
    return max(1, hosts)


def check_network(network: str | None, hosts: int | str) -> None:
    """Refuse a network for ranks that all run on this host."""
    if network is not None and not hosts:
        raise Failure("--network is the wire between hosts; add --hosts ssh:A,B or --hosts testbed:N", 2)


def testbed_options(command: Any) -> Any:
    """Add the options for the hosts of the ranks to a command: --hosts, --python, --mtu, and the wire's."""
    command = wire_options(command, alone=(0, 1))
    command = click.option("--python", metavar="PATH", help="Interpreter with viakit on the machines of --hosts ssh:.")(
        command
    )
    command = click.option(
        "--mtu", type=int, default=1500, show_default=True, help="MTU of the testbed's wire, bytes."
    )(command)
    return click.option(
        "--hosts",
        type=Hosts(),
        default="local",
        show_default=True,
        callback=hosts_of_job,
        metavar="local|testbed:N|ssh:A,B|job",
        help="Run on this machine, on N testbed hosts in network namespaces (no root needed), or on machines that ssh "
        "reaches: ssh:A,B*4 (with 4 ranks on B), ssh:@FILE (one on each line); the name . is this machine. job: on the "
        "hosts of the job of mpirun or srun that this command is started in.",
    )(command)


machine_option = click.option(
    "--machine",
    metavar="NAME|FILE",
    help="Run on a described machine, in virtual time, each rank on a host of its own: `viakit machines` lists them.",
)
network_option = click.option(
    "--network",
    metavar="DEVICE",
    help="NIC for ranks on other hosts: eth:IFNAME, udp:ADDRESS, verbs:DEVICE; between machines also udp:10.0.0.0/24.",
)
placement_option = click.option(
    "--placement",
    type=click.Choice(["block", "cyclic"]),
    default="block",
    show_default=True,
    help="Place neighbouring ranks on one host (block), or on neighbouring hosts (cyclic).",
)


def _environment(words: tuple[str, ...]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name!r}; expected NAME=VALUE", param_hint="--env")
    return {name: value for name, _, value in pairs}


def _refuse_mpi4py(words: list[str]) -> None:
    """Refuse a Python file that imports mpi4py where it would load an MPI of its own, with ranks of its own.

    The words are ``prog.py`` or ``python [-u ...] prog.py``, and its arguments.
    """
    if re.fullmatch(r"python[\d.]*", os.path.basename(words[0])):
        words = [*itertools.dropwhile(lambda word: word[:1] == "-" and word not in ("-c", "-m"), words[1:])]
    if not words or not words[0].endswith(".py"):
        return
    try:
        with open(words[0], encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return  # the ranks report it
    names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level]
    if any(name.partition(".")[0] == "mpi4py" for name in names):
        raise Failure(
            f"{words[0]} imports mpi4py, which sees none of these ranks; give --as-mpi4py, or --protocol mpi, or "
            "import viakit.mpi in its place",
            2,
        )


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-n", "--ranks", type=click.IntRange(1, 1024), help="Number of ranks.  [default: 1, or one for each host]"
)
@testbed_options
@placement_option
@click.option(
    "--protocol",
    help="Protocol of viakit.world(): via, bip, tcp, also with a policy (tcp:mpich-p4). mpi, mpi:mpich and mpi:openmpi "
    "start the ranks by MPI's launcher.",
)
@click.option("--policy", help="Policy of the message engine; it must belong to the protocol.")
@network_option
@machine_option
@click.option("--label", "-l", is_flag=True, help="Begin each line of output with the number of its rank.")
@click.option(
    "--bind",
    type=click.Choice(["core", "none"]),
    default="none",
    show_default=True,
    help="Bind each rank to a core of its own if this machine has enough (core), or leave it to the kernel (none).",
)
@click.option(
    "--preload",
    is_flag=True,
    help="Fork the ranks, of a Python program on this machine, from one process that has imported NumPy and viakit: "
    "many ranks start sooner and share memory.",
)
@click.option("--timeout", type=float, metavar="S", help="End the job after S seconds, with status 124.")
@click.option("--as-mpi4py", is_flag=True, help="Let `import mpi4py` in the ranks give viakit's communicators.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable for the ranks; repeatable.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENT...]")
@click.pass_context
def run(
    ctx: click.Context,
    command: tuple[str, ...],
    env: tuple[str, ...],
    ranks: int | None,
    as_mpi4py: bool,
    machine: str | None,
    **options: Any,
) -> None:
    """Run a program as the ranks of a job: a Python file, -m and a module, or any program.

    \b
    viakit run -n 4 prog.py arguments
    viakit run -n 4 -m viakit.apps.sor --size 1024
    viakit run -n 8 --hosts testbed:4 --label prog.py
    viakit run --hosts ssh:alpha*2,beta*2 prog.py
    viakit run -n 8 --machine barrier-cluster-1 prog.py
    viakit run -n 2 -- ./a.out
    viakit run -n 4 --as-mpi4py program_for_mpi4py.py

    Exit status: that of the first rank that failed. The other ranks are terminated.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit.launch.described import on_machine, protocol_on  # start-up time, as the next ones
    from viakit.launch.mpi_library import is_mpi  # start-up time
    from viakit.launch.options import Options  # start-up time
    from viakit.launch.policy import wish  # start-up time
    from viakit.launch.runner import launch_of  # start-up time

    words = [*command[1:]] if command[0] == "--" else [*command]
    environment = _environment(env)
    if not as_mpi4py and not is_mpi(options["protocol"] or os.environ.get("VIAKIT_PROTOCOL")):
        _refuse_mpi4py(words)
    if as_mpi4py:
        from viakit.shim import FOLDER  # start-up time

        later = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = FOLDER + (os.pathsep + later if later else "")
    n = ranks_for(ranks, options["hosts"])
    check_network(options["network"], options["hosts"])
    if machine is not None:
        if options["hosts"]:
            raise Failure("--machine: all ranks run on this host; remove --hosts", 2)
        variables = {**os.environ, **environment}  # the ranks' own; --env counts more than --protocol
        requested = environment.get("VIAKIT_PROTOCOL") or options["protocol"] or variables.get("VIAKIT_PROTOCOL")
        policy = options["policy"] or wish(variables)[0]
        options["protocol"] = protocol_on(machine, requested, policy)
    with on_machine(machine) as variable:
        given = Options(n, environment=environment | variable, **options)
        status = launch_of(words, given).run()
    ctx.exit(status)
