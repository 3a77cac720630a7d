"""The victim of tools/attack.py: ranks exchange numbered messages and check every byte, until a time is over.

    viakit run -n 3 oracle.py SECONDS SEED [LIMIT=VALUE...]

LIMIT is a name of the module resource without RLIMIT_, in lower case, and applies to this rank. Rank 0 prints the
number of messages. A message with other contents ends the job with status 3.

VIAKIT_ATTACK_MARK in the environment is the path of a file that an attacker makes once it has called the job's sockets.
On channel tcp the ranks listen only while they meet. So they meet once more there, and the last rank delays the
exchange of addresses until the file exists, for WAIT_S seconds at most.
"""

from __future__ import annotations

import os
import resource
import sys
import time

import numpy as np

from viakit import _core
from viakit.launch import bootstrap
from viakit.mpi import MPI

WAIT_S = 30.0
LENGTHS = (0, 1, 63, 64, 500, 1500, 9000, 40000, 200000)


def pattern(seed: int, number: int, rank: int, length: int) -> np.ndarray:
    """Return the bytes of a message. They depend on all arguments."""
    start = (seed * 1000003 + number * 7919 + rank * 104729) & 0xFFFFFFFF
    return ((np.arange(length, dtype=np.uint64) * 2654435761 + start) >> 7).astype(np.uint8)


def check(what: str, got: object, wanted: object) -> None:
    """End the job if a rank got something else."""
    if got != wanted:
        print(f"WRONG {what}", flush=True)
        MPI.COMM_WORLD.Abort(3)


def rounds(comm: MPI.Comm, seconds: float, seed: int) -> int:
    """Exchange messages around a ring, objects and sums. Returns the number of messages that this rank received."""
    rng = np.random.default_rng(seed)  # the same numbers on all ranks
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    end, n = time.monotonic() + seconds, 0
    while True:
        length = int(rng.choice(LENGTHS))
        into = np.zeros(length, np.uint8)
        comm.Sendrecv(pattern(seed, n, comm.rank, length), right, 1, into, left, 1)
        check(f"bytes of message {n}", into.tobytes(), pattern(seed, n, left, length).tobytes())
        n += 1
        if n % 16 == 0:
            given = comm.sendrecv({"from": comm.rank, "n": n}, right, 2, None, left, 2)
            check(f"object {n}", given, {"from": left, "n": n})
            total = np.zeros(3)
            comm.Allreduce(np.full(3, comm.rank + n, float), total)
            check(f"sum {n}", total.tolist(), [sum(range(comm.size)) + n * comm.size] * 3)
            if comm.bcast(time.monotonic() > end, 0):
                return n


def meet_again(comm: MPI.Comm, mark: str) -> None:
    """Open a second world, whose sockets listen until the attacker has called them."""
    job, calls, end = bootstrap(), 0, time.monotonic() + WAIT_S

    def exchange(mine: object) -> list:
        nonlocal calls
        calls += 1
        while calls == 2 and comm.rank == comm.size - 1 and not os.path.exists(mark) and time.monotonic() < end:
            time.sleep(0.01)
        return comm.allgather(mine)

    secret = comm.world.secret or job.secret
    options = {"policy": "tcp", "address": job.address, "network_device": job.network_device}
    _core.MsgWorld(comm.rank, comm.size, exchange=exchange, secret=secret, timeout_s=60.0, **options).close()


def main() -> None:
    """Set the limits, exchange messages, and print their number."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    for limit in sys.argv[3:]:
        name, _, value = limit.partition("=")
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        resource.setrlimit(kind, (int(value), resource.getrlimit(kind)[1]))
    comm = MPI.COMM_WORLD
    comm.Barrier()
    mark = os.environ.get("VIAKIT_ATTACK_MARK", "")
    if mark and comm.world.channel == "tcp":
        meet_again(comm, mark)
    print("ready", flush=True)
    n = rounds(comm, seconds, seed)
    total = comm.reduce(n, root=0)
    if comm.rank == 0:
        print(f"messages {total}", flush=True)


if __name__ == "__main__":
    main()
