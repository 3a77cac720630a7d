"""The option ``--hosts job``: a command that ``mpirun`` or ``srun`` has started as several ranks."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from viakit.cli.base import Failure

__all__ = ["JOB", "default_ranks", "hosts_of_job", "two_sides", "within_job"]

JOB = "job"
_BY_DEFAULT = ("sweep", "run", "speedup", "barrier", "collectives", "calibrate", "bench")
_RANKS = "viakit.job_ranks"  # in the context: the number of ranks of the job


def hosts_of_job(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Replace ``job``, the default within a job, by the hosts of the job; on ranks other than 0 serve, and end.

    A job on one host has the value that is the default without a job.
    """
    from viakit.launch.of_job import hosts, is_job  # start-up time

    by_default = ctx.get_parameter_source(str(param.name)) == ParameterSource.DEFAULT
    # The ranks of a job that run an application or record a program are its ranks, as those of any other program.
    if ctx.resilient_parsing or not (value == JOB or (by_default and ctx.command.name in _BY_DEFAULT)):
        return value
    if not is_job():
        if by_default:
            return value
        raise Failure(
            "--hosts job: mpirun or srun has not started this command as several ranks; expected "
            "srun -N2 -n2 viakit ..., or mpirun -n 2 --host A,B viakit ...",
            2,
        )
    found = hosts()
    if found is None:
        ctx.exit(0)
    ctx.meta[_RANKS] = found.ranks
    return found.text or param.type_cast_value(ctx, param.get_default(ctx))


def _ranks() -> int | None:
    ctx = click.get_current_context(silent=True)
    return None if ctx is None else ctx.meta.get(_RANKS)


def two_sides(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Do as :func:`hosts_of_job`, and refuse a job of more than two ranks."""
    found = hosts_of_job(ctx, param, value)
    ranks = _ranks()
    if ranks not in (None, 2):
        raise Failure(
            f"{ctx.command.name} has two sides, this job has {ranks} ranks; start it as two: srun -N2 -n2 viakit "
            f"{ctx.command.name} ..., or mpirun -n 2 --host A,B viakit {ctx.command.name} ...",
            2,
        )
    return found


def default_ranks(ranks: int | None) -> int | None:
    """Return the number of ranks to start: within a job at most its number, which is the default."""
    of_job = _ranks()
    if of_job is None:
        return ranks
    if ranks is not None and ranks > of_job:
        raise Failure(f"-n {ranks}: this job has {of_job} ranks; expected at most as many, or a job of more ranks", 2)
    return ranks or of_job


def within_job(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of ranks to measure: within a job none above its number, and only this by default."""
    of_job = _ranks()
    if of_job is None or all(number <= of_job for number in ranks):
        return ranks
    ctx = click.get_current_context()
    if ctx.get_parameter_source("ranks") == ParameterSource.DEFAULT:
        return (*(number for number in ranks if number < of_job), of_job)
    raise Failure(f"--ranks {max(ranks)}: this job has {of_job} ranks; expected at most as many", 2)
