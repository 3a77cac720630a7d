"""Programs and connections for the tests of a job's secret."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import time

from launch_job import DEADLINE_S

SECRET = bytes(range(32))
NOBODY = 65534


# The beginning of a program that goes on as another user, if the test's account may choose one: Python itself, and what
# it imports, may lie where only the test's account can read.
AS_ANOTHER_USER = f"""
import os, socket, viakit.comm, viakit.launch, viakit._core, numpy.random
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
"""


def start(code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """A Python program, with nothing of a launcher in its environment but what is given."""
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("VIAKIT_", "SLURM_", "PMI_"))}
    clean |= {name: text for name, text in os.environ.items() if name.startswith("VIAKIT_TEST")}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=clean | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def srun(rank: int, job: int, nodes: int = 2) -> dict[str, str]:
    """Return the environment that srun gives one of two tasks."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "127.0.0.1,node2",
        "VIAKIT_BOOTSTRAP": "rendezvous",  # as without mpi4py
    }


def free_job() -> int:
    """A job's number whose port, which is made of it, is free."""
    for number in range(os.getpid() % 10000, 12000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 20000 + number)):
            return number
    raise AssertionError("no port is free")


def connected(address: tuple[str, int] | str) -> socket.socket:
    """Connect as soon as a process listens."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        connection = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        try:
            connection.connect(address)
            connection.settimeout(DEADLINE_S)
            return connection
        except OSError:
            connection.close()
            assert time.monotonic() < deadline
            os.sched_yield()


def closed_by_the_other_end(connection: socket.socket) -> bool:
    """Read all that comes, to the end."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def in_thread(function, *arguments):
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments)
    pool.shutdown(wait=False)
    return future
