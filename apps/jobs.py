"""Starting an application's ranks: ours by :mod:`viakit.launch`, an MPI library's by its own launcher.

Whoever calls waits until the job has ended; an interruption ends all ranks first. Nothing is left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from viakit.apps.harness import COMMAND, PROGRAM, TERMINAL

__all__ = ["PROTOCOLS", "command", "protocol_words", "run_ranks", "told"]

PROTOCOLS = ("via", "bip", "tcp", "mpi", "mpi:openmpi", "mpi:mpich")
_PR_SET_PDEATHSIG = 1


def protocol_words(protocol: str | None) -> list[str]:
    """The argument of an application for a protocol; which MPI it is, the launcher decides."""
    return [] if protocol is None else ["--protocol", protocol.partition(":")[0]]


def command(words: list[str]) -> list[str]:
    """The command for ``python WORDS``: a module of this package, wherever the current directory is.

    (``python -m`` looks there first, and in a checkout finds a folder of sources.)
    """
    import viakit

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
    hosts: int = 0,
    mtu: int = 1500,
    rate: str | None = None,
    placement: str = "block",
    timeout_s: float | None = None,
    prog: str | None = None,
    out: IO[bytes] | None = None,
    err: IO[bytes] | None = None,
) -> int:
    """Run ``python WORDS`` as the ranks of a job, and wait for its end.

    Parameters
    ----------
    words : list of str
        What follows ``python``: "-m", "viakit.apps.sor", arguments.
    ranks : int
    protocol : str or None
        One of :data:`PROTOCOLS`; "mpi" is the MPI library that is found first. None: one process, no launcher.
    hosts, mtu, rate, placement
        A testbed of so many hosts, and its wire; 0: this machine.
    timeout_s : float, optional
        Seconds after which the job is ended, with status 124.
    prog : str, optional
        What the user calls the application: "viakit app sor". Its errors name the help of that.
    out, err : binary files, optional
        Where the output goes; default: this process's own.

    Returns
    -------
    int
        Exit status.

    Raises
    ------
    LaunchError, TestbedError
        If the ranks cannot be started.
    """
    from viakit._launch import Launch, Options
    from viakit._launch_mpi import MpiLaunch, is_mpi

    if protocol is None:
        return _run_alone(command(words), timeout_s, told(prog), out, err)
    options = Options(
        ranks, hosts=hosts, mtu=mtu, rate=rate, placement=placement, protocol=protocol, timeout=timeout_s,
        environment=told(prog),
    )  # fmt: skip
    launch = MpiLaunch if is_mpi(protocol) else Launch
    return launch(command(words), options, out, err).run()


def told(prog: str | None = None) -> dict[str, str]:
    """The command, for the result; what it is called, for errors; and where rank 0 may draw its progress.

    Its own streams are pipes, so it would not know.
    """
    from viakit.measure.environment import command_line

    told = {COMMAND: command_line()}
    if prog is not None:
        told[PROGRAM] = prog
    if not sys.stdout.isatty():
        told["TERM"] = "dumb"  # Open MPI gives its ranks a terminal even so
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr.isatty():
            told[TERMINAL] = os.ttyname(sys.stderr.fileno())
    return told


def _end_with_parent() -> None:
    """In the child, before the program starts: killed when its parent dies, whatever that dies of."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _run_alone(
    words: list[str],
    timeout_s: float | None,
    environment: dict[str, str],
    out: IO[bytes] | None,
    err: IO[bytes] | None,
) -> int:
    """Run one process, which belongs to no job."""
    from viakit._launch import TIMED_OUT, ended_after

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
