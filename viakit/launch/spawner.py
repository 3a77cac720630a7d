"""Launcher of spawned ranks: a process beside the rank that called Spawn.

::

    rank that spawns --pipe--> spawner (this module) --> spawned ranks (viakit.launch.spawned, then the program)

The spawner reads a job from the pipe, starts its ranks as `viakit run` does, and ends them when the pipe ends: the rank
that spawned them has ended. The job contains the secret of the connection to the parents, which is therefore in no
command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from viakit.launch.spawned import SPAWN

__all__ = ["Spawner"]

_LEFT_S = 5.0  # for spawned ranks that still run when their parent ends


class Spawner:
    """The spawner of one group of ranks, as the rank that spawns has it.

    Parameters
    ----------
    programs : list
        (command, folder or None, number of ranks) of each program.
    environment : dict
        Variables for the ranks.
    """

    def __init__(self, programs: list[tuple[list[str], str | None, int]], environment: dict[str, str]) -> None:
        job = {"programs": programs, "environment": environment}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "viakit.launch.spawner"], stdin=subprocess.PIPE, start_new_session=False
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()

    def status(self) -> int | None:
        """Return the exit status of the ranks, or None while they run."""
        return self._process.poll()

    def leave(self, timeout_s: float = _LEFT_S) -> None:
        """Wait for the end of the ranks, at most `timeout_s` seconds, and end those that still run."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_LEFT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _watch() -> None:
    """End this process when the pipe ends."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Start the ranks of the job that standard input gives, and return their exit status."""
    from viakit.launch.options import Options  # start-up time
    from viakit.launch.runner import launch_of  # start-up time

    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return 1
        line += piece
    job: dict[str, Any] = json.loads(line)
    threading.Thread(target=_watch, daemon=True).start()
    environment = {**job["environment"], SPAWN: json.dumps(job["programs"])}
    ranks = sum(n for _, _, n in job["programs"])
    options = Options(ranks, environment=environment)
    started = time.monotonic()
    try:
        # The ranks get an empty standard input, because this process reads its own.
        with open(os.devnull, "rb") as nothing:
            sys.stdin = os.fdopen(os.dup(nothing.fileno()))
            return launch_of(["-m", "viakit.launch.spawned"], options).run()
    except KeyboardInterrupt:
        return 130 if time.monotonic() > started else 1


if __name__ == "__main__":
    sys.exit(main())
