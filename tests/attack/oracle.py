"""The victim of tools/attack.py: ranks exchange numbered messages and check every byte, until a time is over.

    viakit run -n 3 oracle.py SECONDS SEED [LIMIT=VALUE...]

LIMIT is a name of the module resource without RLIMIT_, in lower case, and applies to this rank. Rank 0 prints the
number of messages. A message with other contents ends the job with status 3.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from viakit.mpi import MPI

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


def main() -> None:
    """Set the limits, exchange messages, and print their number."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    for limit in sys.argv[3:]:
        name, _, value = limit.partition("=")
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        resource.setrlimit(kind, (int(value), resource.getrlimit(kind)[1]))
    comm = MPI.COMM_WORLD
    comm.Barrier()
    print("ready", flush=True)
    n = rounds(comm, seconds, seed)
    total = comm.reduce(n, root=0)
    if comm.rank == 0:
        print(f"messages {total}", flush=True)


if __name__ == "__main__":
    main()
