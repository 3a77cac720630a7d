"""Shared by the tests of launchers: run a job, read the output of its ranks, check that none is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

DEADLINE_S = 120.0
VIAKIT = [sys.executable, "-m", "viakit"]

HELLO = """
import socket
from viakit.launch import bootstrap
job = bootstrap()
blobs = job.exchange(f"{job.rank}@{socket.gethostname()}".encode() * 1000)
assert [b.decode().split("@")[0] for b in blobs] == [str(r) for r in range(job.size)], blobs
assert job.exchange(b"") == [b""] * job.size
assert bootstrap() is job
words = (job.launcher, job.way, job.rank, job.size, socket.gethostname(), job.network_device)
print("/".join(map(str, words)) + "\\n", end="", flush=True)
"""


def viakit_run(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*VIAKIT, "run", *words], capture_output=True, text=True, timeout=DEADLINE_S, **options)


def running_with(word: str) -> list[int]:
    """Processes with `word` among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            state = (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            continue
        if word.encode() in words and state != "Z":
            found.append(int(path.parent.name))
    return found


def gone(word: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while running_with(word):
        assert time.monotonic() < deadline, f"still running: {running_with(word)}"
        os.sched_yield()
