"""Each of the basic calls once, with results that every rank can check for itself."""

import numpy as np

from viakit.mpi import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
right, left = (rank + 1) % size, (rank - 1) % size
every = np.arange(size)
total = size * (size - 1) // 2

# ---- buffers and objects from rank to rank
status = MPI.Status()
got = np.zeros(4)
send = comm.Isend(np.full(4, float(rank)), right, 5)
comm.Recv(got, left, 5, status)
send.Wait()
assert (got == left).all()
assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (left, 5, 4)
over_mpi = MPI.get_vendor()[0] != "viakit"  # where irecv has 32 KiB for an object
for obj in ({"rank": rank}, np.arange(100000) + rank, b"x" * 100000, list(range(30000))):
    request = comm.isend(obj, right, 3)
    one = comm.recv(source=left, tag=3)
    request.wait()
    request = comm.irecv(bytearray(1 << 20) if over_mpi else None, source=left)
    comm.isend(obj, right).wait() if size == 1 else comm.send(obj, right)
    other = request.wait()
    assert repr(one) == repr(other)
assert one == list(range(30000))

# ---- collectives, short and long
for k in (1, 5, 100, 40000, 300000):
    count = np.arange(k, dtype="i8")
    for root in {0, size - 1}:
        x = count * (rank == root)
        comm.Bcast(x, root)
        assert (x == count).all()
    table = np.zeros((size, k), "i8")
    comm.Allgather(np.full(k, rank, "i8"), table)
    assert (table == every[:, None]).all()
    one = np.zeros(k, "i8")
    comm.Allreduce(count + rank, one)
    assert (one == count * size + total).all()
    comm.Reduce(count - rank, one, root=size - 1)
    assert rank != size - 1 or (one == count * size - total).all()
    table[:] = -1
    comm.Gather(np.full(k, rank, "i8"), table if rank == 0 else None)
    assert rank or (table == every[:, None]).all()
    comm.Scatter(np.repeat(every, k).astype("i8") if rank == 0 else None, one)
    assert (one == rank).all()
    comm.Alltoall(np.repeat(every, k) * 10 + rank, table)
    assert (table == (rank * 10 + every)[:, None]).all()
    comm.Scan(np.full(k, rank, "i8"), one)
    assert (one == rank * (rank + 1) // 2).all()
    one[:] = -1
    comm.Exscan(np.full(k, rank, "i8"), one)
    assert (one == (rank * (rank - 1) // 2 if rank else -1)).all()
    comm.Reduce_scatter_block(np.repeat(every, k).astype("i8") + rank, one)
    assert (one == size * rank + total).all()
    mine = np.full(k, rank, "i8")
    requests = [comm.Iallreduce(mine, one), comm.Ibarrier()]
    MPI.Request.Waitall(requests)
    assert (one == total).all()

assert comm.allgather(rank) == list(range(size))
assert comm.bcast("hello" if rank == 0 else None) == "hello"
assert comm.allreduce(rank) == total
assert comm.alltoall([(rank, i) for i in range(size)]) == [(i, rank) for i in range(size)]
assert comm.scan(1) == rank + 1

# ---- communicators made of it
part = comm.Split(rank % 2, -rank)
assert part.allgather(rank) == [i for i in range(size - 1, -1, -1) if i % 2 == rank % 2]
part.Free()
grid = comm.Create_cart(MPI.Compute_dims(size, 2), [True, False])
assert grid.Get_cart_rank(grid.coords) == grid.rank
comm.Barrier()
