"""Several applications, one after the other, in one job.

``python -m viakit.apps.turns PROBLEMS --json FILE --protocol P``, where PROBLEMS is JSON: a list of [label,
application, [arguments]]. Each runs once, in this order. Rank 0 writes a list of series of a result file, each with its
``label``, or with an ``error`` if the problem could not be run. :mod:`viakit.apps.speedup` starts this program, because
starting a job costs as much as some of the applications.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import click

import viakit
from viakit.apps import harness, reporting

__all__ = ["main", "turns"]


def turns(
    problems: list[tuple[str, str, list[str]]],
    comm: Any,
    protocol: str | None,
    copies: bool = False,
    profile: bool = False,
) -> list[dict[str, Any]]:
    """Run each problem once.

    Parameters
    ----------
    problems : list of (label, application, arguments)
        Problems to run.
    comm : communicator or None
        None runs the serial programs.
    protocol : str or None
        Name of the protocol.
    copies, profile : bool
        As for :func:`viakit.apps.harness.run`.

    Returns
    -------
    list of dict
        The series on rank 0, an empty list on other ranks.
    """
    ranks = 1 if comm is None else comm.Get_size()
    made = []
    for label, name, words in problems:
        application = harness.find(name)
        problem = application.problem(**harness.options_of(application, words))

        refusal = harness.agreed(comm, partial(harness.need_memory_for, application, problem, ranks, copies))
        if refusal is not None:
            made.append({"label": label, "error": refusal})
            continue
        done = harness.run(application, problem, comm, copies=copies, profile=profile)
        if done is not None:
            made.append({"label": label, **reporting.series(application, problem, protocol, [done])})
    return made


@click.command()
@click.argument("problems")
@click.option("--json", "json_file", required=True)
@click.option("--protocol")
@click.option("--copies", is_flag=True)
@click.option("--profile", is_flag=True)
def _command(problems: str, json_file: str, protocol: str | None, copies: bool, profile: bool) -> None:
    comm = None if protocol is None else viakit.world(protocol)
    each = [(label, name, list(words)) for label, name, words in json.loads(problems)]
    made = turns(each, comm, protocol, copies, profile)
    if comm is None or comm.Get_rank() == 0:
        with open(json_file, "w", encoding="utf-8") as file:
            json.dump(made, file)


def main() -> int:
    """Run as a rank of a job."""
    _command.main(standalone_mode=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
