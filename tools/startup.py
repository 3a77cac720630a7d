#!/usr/bin/env python3
"""Measure the start of jobs over the number of ranks.

Usage: tools/startup.py [--hosts testbed:N] [RANKS...]

Each job passes a barrier and an allreduce, and ends. The table has the time from the call of `viakit run` to its end,
the processor time of all its processes, and the memory of all ranks. Memory is the sum of the proportional set sizes,
in which a page that several ranks share counts once.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANK = """
import json
import re
from pathlib import Path
import viakit
comm = viakit.world()
comm.Barrier()
assert comm.allreduce(comm.rank) == comm.size * (comm.size - 1) // 2
kb = int(re.search(r"^Pss: *([0-9]+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)[1])
total = comm.reduce(kb)
if comm.rank == 0:
    print(json.dumps(total))
"""


def measure(ranks: int, hosts: str) -> tuple[float, float, float]:
    """Run one job. Returns seconds, processor seconds, and MiB of all ranks."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "rank.py"
        program.write_text(RANK)
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        viakit = Path(sys.executable).with_name("viakit")
        words = [viakit, "run", "-n", str(ranks), "--hosts", hosts, program]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
        seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, used, json.loads(done.stdout) / 1024


def main() -> None:
    """Print a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="local", help="as for viakit run")
    parser.add_argument("ranks", nargs="*", type=int, default=[2, 16, 32, 64, 128], help="numbers of ranks")
    options = parser.parse_args()
    print("| ranks | time (s) | processor (s) | memory (MiB) | for each rank (MiB) |")
    print("|---|---|---|---|---|")
    for ranks in options.ranks:
        seconds, used, mib = measure(ranks, options.hosts)
        print(f"| {ranks} | {seconds:.1f} | {used:.1f} | {mib:.0f} | {mib / ranks:.1f} |", flush=True)


if __name__ == "__main__":
    main()
