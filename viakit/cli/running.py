"""The command ``viakit run``."""

from __future__ import annotations

import re
from typing import Any

import click

__all__ = ["Hosts", "placement_option", "run", "testbed_options"]


class Hosts(click.ParamType):
    """Hosts as ``local`` or ``testbed:N``; converted to the number of hosts, 0 for local."""

    name = "hosts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse ``testbed:N`` or a number of hosts."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"testbed:([0-9]{1,3})", value)
        if value != "local" and (match is None or not 1 <= int(match[1]) <= 64):
            self.fail(f"{value!r}; expected local, or testbed:N with 1 to 64 hosts", param, ctx)
        return int(match[1]) if match else 0


def testbed_options(command: Any) -> Any:
    """Add the options for the hosts of the ranks to a command: --hosts, --mtu, --rate."""
    command = click.option("--rate", help="Limit of the testbed's wire, bit/s: 1gbit, 100mbit, 1e9.")(command)
    command = click.option(
        "--mtu", type=int, default=1500, show_default=True, help="MTU of the testbed's wire, bytes."
    )(command)
    return click.option(
        "--hosts",
        type=Hosts(),
        default="local",
        show_default=True,
        metavar="local|testbed:N",
        help="Run on this machine, or on N testbed hosts in network namespaces (no root needed).",
    )(command)


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


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--ranks", type=click.IntRange(1, 1024), default=1, show_default=True, help="Number of ranks.")
@testbed_options
@placement_option
@click.option(
    "--protocol",
    help="Protocol of viakit.world(): via, bip, tcp; mpi, mpi:mpich, mpi:openmpi start the ranks by MPI's launcher.",
)
@click.option("--policy", help="Policy of the message engine; it must belong to the protocol.")
@click.option("--network", metavar="DEVICE", help="NIC for ranks on other hosts: eth:IFNAME, udp:ADDRESS.")
@click.option("--label", "-l", is_flag=True, help="Begin each line of output with the number of its rank.")
@click.option("--timeout", type=float, metavar="S", help="End the job after S seconds, with status 124.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Set a variable for the ranks; repeatable.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENT...]")
@click.pass_context
def run(ctx: click.Context, command: tuple[str, ...], env: tuple[str, ...], **options: Any) -> None:
    """Run a program as the ranks of a job: a Python file, -m and a module, or any program.

    \b
    viakit run -n 4 prog.py arguments
    viakit run -n 4 -m viakit.apps.sor --size 1024
    viakit run -n 8 --hosts testbed:4 --label prog.py
    viakit run -n 2 -- ./a.out

    Exit status: that of the first rank that failed. The other ranks are terminated.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit.launch.runner import Options, launch_of  # start-up time

    words = [*command[1:]] if command[0] == "--" else [*command]
    ctx.exit(launch_of(words, Options(environment=_environment(env), **options)).run())
