"""The start of a job: time, processor time and memory of ranks that pass a barrier and an allreduce, and end."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from viakit.measure.endpoints import MeasureError

__all__ = ["Startup", "available_memory", "measure"]

_RANK = """
import json
import re
from pathlib import Path
import viakit
comm = viakit.world()
comm.Barrier()
assert comm.allreduce(comm.rank) == comm.size * (comm.size - 1) // 2
connections = comm.allreduce(comm.world.counters()["connections"])
kb = int(re.search(r"^Pss: *([0-9]+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)[1])
total = comm.reduce(kb)
if comm.rank == 0:
    print(json.dumps([total, connections]))
"""


@dataclass(frozen=True)
class Startup:
    """One job: from the call of ``viakit run`` to its end.

    Attributes
    ----------
    ranks : int
    seconds, processor_s : float
        Elapsed time, and processor time of all processes.
    memory : int
        Bytes of all ranks: the sum of the proportional set sizes, in which a page that several ranks share counts once.
    connections : float
        Connections of a rank, on average.
    """

    ranks: int
    seconds: float
    processor_s: float
    memory: int
    connections: float


def available_memory() -> int:
    """Return the bytes of memory that programs can still take, by /proc/meminfo."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return 0


def measure(
    ranks: int,
    hosts: str = "local",
    *,
    policy: str | None = None,
    preload: bool = False,
    timeout_s: float = 600.0,
) -> Startup:
    """Run one job.

    Parameters
    ----------
    ranks : int
    hosts, policy, preload : optional
        As for ``viakit run``.
    timeout_s : float
        The job is ended after this time.

    Raises
    ------
    MeasureError
        The job failed, with the last line that it printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "rank.py"
        program.write_text(_RANK)
        viakit = [sys.executable, "-m", "viakit", "run", "-n", str(ranks), "--hosts", hosts]
        given = [*(["--policy", policy] if policy else []), *(["--preload"] if preload else [])]
        words = [*viakit, *given, str(program)]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=folder)
        except subprocess.TimeoutExpired:
            raise MeasureError(f"a job of {ranks} ranks did not end within {timeout_s:g} s") from None
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise MeasureError(f"a job of {ranks} ranks failed: {(done.stderr.splitlines() or ['no message'])[-1]}")
    kib, connections = json.loads(done.stdout)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Startup(ranks, seconds, used, kib * 1024, connections / ranks)
