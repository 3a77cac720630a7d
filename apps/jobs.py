"""Start of an application's ranks: by :mod:`viakit.launch`, or by the launcher of an MPI library.

The caller waits until the job has ended. An interrupt first ends all ranks. No process or file remains.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import viakit
from viakit.apps.harness import COMMAND, PROGRAM, TERMINAL
from viakit.launch.options import PROTOCOLS

__all__ = ["PROTOCOLS", "command", "launch_environment", "protocol_words", "run_ranks", "with_policy"]

_PR_SET_PDEATHSIG = 1


def with_policy(name: str, *others: str) -> tuple[str, str | None]:
    """Return the protocol that *name* stands for, and its policy or None: "mpich-p4" and "tcp:mpich-p4" are over tcp.

    Parameters
    ----------
    name : str
        One of :data:`PROTOCOLS` or of *others*, or a name with a policy (:func:`viakit.launch.policy.split`).
    *others : str
        Further names that the caller accepts.

    Raises
    ------
    ValueError
        If *name* is neither a protocol nor a policy of the message engine.
    """
    from viakit.launch.policy import split  # start-up time

    protocol, policy = split(name)
    if policy is None and protocol not in (*PROTOCOLS, *others):
        raise ValueError(
            f"unknown protocol {name!r}; expected one of {', '.join((*PROTOCOLS, *others))}, or a policy such as "
            "mpich-p4, tcp:lam-c2c, via:mvich-rput"
        )
    return protocol, policy


def protocol_words(protocol: str | None) -> list[str]:
    """Return the arguments of an application for a protocol. The launcher selects the MPI library."""
    return [] if protocol is None else ["--protocol", protocol.partition(":")[0]]


def command(words: list[str]) -> list[str]:
    """Return the command for ``python WORDS``: a module of this package, independent of the current directory.

    (``python -m`` searches the current directory first, and would find a folder of sources in a checkout.)
    """
    if words[0] != "-m":
        return [sys.executable, *words]
    code = (
        "import runpy, sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; "
        "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code, str(Path(viakit.__file__).resolve().parents[1]), *words[1:]]


def run_ranks(
    words: list[str],
    ranks: int,
    protocol: str | None,
    *,
    hosts: int | str = 0,
    python: str | None = None,
    network: str | None = None,
    mtu: int = 1500,
    rate: str | None = None,
    placement: str = "block",
    timeout_s: float | None = None,
    policy: str | None = None,
    environment: Mapping[str, str] | None = None,
    prog: str | None = None,
    out: IO[bytes] | None = None,
    err: IO[bytes] | None = None,
) -> int:
    """Run ``python WORDS`` as the ranks of a job, and wait until it ends.

    Parameters
    ----------
    words : list of str
        Arguments of ``python``: "-m", "viakit.apps.sor", and the application's arguments.
    ranks : int
        Number of ranks.
    protocol : str or None
        One of :data:`PROTOCOLS`; "mpi" is the first MPI library found. None: one process without a launcher.
    hosts, mtu, rate, placement
        Number of testbed hosts and properties of the wire; 0 hosts: this machine. Hosts ``"ssh:a,b"``: real machines.
    python, network : str, optional
        Interpreter with viakit on real machines, and the wire between hosts, as for ``viakit run --network``.
    timeout_s : float, optional
        Seconds after which the job is ended with status 124.
    policy : str, optional
        Policy of the message engine, as for ``viakit run --policy``.
    environment : mapping, optional
        Variables for the ranks, in addition to those of this process.
    prog : str, optional
        Name of the program for its error messages and help: "viakit app sor".
    out, err : binary files, optional
        Destinations of the output. Default: those of this process.

    Returns
    -------
    int
        Exit status.

    Raises
    ------
    LaunchError, TestbedError
        If the ranks cannot be started.
    """
    from viakit.launch.runner import Options, launch_of  # start-up time

    variables = {**launch_environment(prog), **(environment or {})}
    if protocol is None:
        return _run_alone(command(words), timeout_s, variables, out, err)
    options = Options(
        ranks, hosts=hosts, python=python, network=network, mtu=mtu, rate=rate, placement=placement,
        protocol=protocol, policy=policy, timeout=timeout_s, environment=variables, prog=prog or "viakit run",
    )  # fmt: skip
    return launch_of(command(words), options, out, err).run()


def launch_environment(prog: str | None = None) -> dict[str, str]:
    """Return the environment of the ranks: command line, name for errors, and the terminal for the progress bar.

    Rank 0 needs the name of the terminal because its own streams are pipes.
    """
    from viakit.measure.environment import command_line  # start-up time

    found = {COMMAND: command_line()}
    if prog is not None:
        found[PROGRAM] = prog
    if not sys.stdout.isatty():
        found["TERM"] = "dumb"  # Open MPI connects its ranks to a terminal nevertheless
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.isatty():
            found[TERMINAL] = os.ttyname(sys.stderr.fileno())
    return found


def _end_with_parent() -> None:
    """Request SIGKILL for the child when its parent dies. Runs in the child before the program starts."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run_alone(
    words: list[str],
    timeout_s: float | None,
    environment: dict[str, str],
    out: IO[bytes] | None,
    err: IO[bytes] | None,
) -> int:
    """Run one process that belongs to no job."""
    from viakit.launch.runner import TIMED_OUT, ended_after  # start-up time

    environment = {**os.environ, **environment}
    environment.pop("VIAKIT_PROTOCOL", None)
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=environment,
        preexec_fn=_end_with_parent,
    )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError, ValueError):
            said = err or sys.stderr.buffer
            said.write(f"viakit app: {ended_after(timeout_s)}\n".encode())
            said.flush()
        return TIMED_OUT
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
