import numpy as np

from viakit.mpi import MPI

comm = MPI.COMM_WORLD
win = MPI.Win.Allocate(8 * 1000, 8, comm=comm)
memory = np.frombuffer(win.tomemory(), "d")
win.Lock_all(MPI.MODE_NOCHECK)
comm.Barrier()
before = win.counters()
comm.Barrier()
if comm.rank == 0 and comm.size > 1:
    win.Put(np.arange(1000.0), 1)
    win.Flush(1)
    print("RDMA writes at the origin:", win.counters()["puts"] - before["puts"])
if comm.rank == 1:
    while memory[-1] != 999:  # no call: the data arrives while this rank computes
        pass
    print("messages handled at the target:", win.counters()["active_received"] - before["active_received"])
win.Unlock_all()
win.Free()
