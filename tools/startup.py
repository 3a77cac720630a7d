#!/usr/bin/env python3
"""Measure the start of jobs over the number of ranks.

Usage: tools/startup.py [--hosts testbed:N] [--policy via,connect=all] [--preload] [RANKS...]

Each job passes a barrier and an allreduce, and ends. The time is that from the call of `viakit run` to its end. The
table also has the processor time of all processes, the memory of all ranks, and the connections of a rank. Memory is
the sum of the proportional set sizes, in which a page that several ranks share counts once.
"""

from __future__ import annotations

import argparse

from viakit.measure import startup


def main() -> None:
    """Print a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default="local", help="as for viakit run")
    parser.add_argument("--policy", help="as for viakit run, such as via,connect=all")
    parser.add_argument("--preload", action="store_true", help="as for viakit run")
    parser.add_argument("ranks", nargs="*", type=int, default=[2, 16, 32, 64, 128], help="numbers of ranks")
    options = parser.parse_args()
    print("| ranks | time (s) | processor (s) | memory (MiB) | for each rank (MiB) | connections of a rank |")
    print("|---|---|---|---|---|---|")
    for ranks in options.ranks:
        one = startup.measure(ranks, options.hosts, policy=options.policy, preload=options.preload)
        mib = one.memory / (1 << 20)
        figures = f"{one.seconds:.1f} | {one.processor_s:.1f} | {mib:.0f} | {mib / ranks:.1f} | {one.connections:.1f}"
        print(f"| {ranks} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
