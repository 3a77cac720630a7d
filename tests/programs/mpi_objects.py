"""Two ranks: an array of 1 MiB as an object. Counters of both show that no byte of it is copied, unless isend does."""

import numpy as np

from viakit.mpi import MPI

SIZE = 1 << 20
KEYS = ("bytes_copied", "object_bytes_pickled", "object_bytes_in_place", "object_bytes_copied")
comm = MPI.COMM_WORLD
mine = np.arange(SIZE).astype(np.uint8)


def counted(send):
    """Return what both ranks count while rank 0 sends the array, added up."""
    comm.Barrier()
    before = comm.counters()
    if comm.rank == 0:
        send(mine)
    else:
        assert (comm.recv() == mine).all()
    after = comm.counters()
    return [comm.allreduce(after[key] - before[key]) for key in KEYS]


by_engine, pickled, in_place, before = counted(lambda array: comm.send(array, 1))
assert by_engine < 4096, by_engine  # the head and the pickle
assert 0 < pickled < 1024, pickled
assert (in_place, before) == (SIZE, 0), (in_place, before)

by_engine, pickled, in_place, before = counted(lambda array: comm.isend(array, 1).wait())
assert by_engine < 4096, by_engine
assert (in_place, before) == (0, SIZE), (in_place, before)
