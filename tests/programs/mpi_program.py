"""A program of some size for mpi4py: rank 0 prints a hash of all that the ranks found, the same with any library.

    MPI_MODULE=mpi4py mpirun -n 4 python mpi_program.py
    MPI_MODULE=viakit.mpi viakit run -n 4 mpi_program.py

Its numbers are small integers, also in floating point, so that no order of additions matters.
"""

import hashlib
import importlib
import os

import numpy as np

MPI = importlib.import_module(os.environ.get("MPI_MODULE", "viakit.mpi") + ".MPI")
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
found = []  # everything that this rank found out, in order


def note(what, *values):
    for value in values:
        if isinstance(value, np.ndarray):
            value = (value.dtype.str, value.shape, value.tolist())
        found.append((what, value))


def expect(error_class, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except MPI.Exception as error:
        note("error", error.Get_error_class() == error_class)
    else:
        note("error", "none")


def point_to_point():
    status = MPI.Status()
    for dtype in "i1 u1 i2 u2 i4 u4 i8 u8 f4 f8 c8 c16".split():
        for n in (0, 1, 7, 1000, 50000):
            out, into = (np.arange(n) % 97 + rank).astype(dtype), np.zeros(n, dtype)
            request = comm.Irecv(into, left, n)
            comm.Send(out, right, n) if size > 1 else comm.Isend(out, right, n).Wait()
            request.Wait(status)
            note(dtype, into.sum(), into[:3], status.Get_source(), status.Get_tag(), status.Get_count(MPI.BYTE))
    out, into = np.full(100, rank, "i"), np.zeros(100, "i")
    for start in (comm.Isend, comm.Issend, comm.Irsend):
        receive = comm.Irecv([into, MPI.INT], source=left, tag=9)
        comm.Barrier()  # a ready send's receive has to be there
        MPI.Request.Waitall([receive, start([out, MPI.INT], dest=right, tag=9)])
        note(start.__name__, into)
    MPI.Attach_buffer(bytearray(100000))
    receive = comm.Irecv(into, left, 2)
    comm.Bsend(out, right, 2)
    receive.Wait()
    comm.Ibsend(out, right, 3).Wait()
    comm.Recv(into, left, 3)
    MPI.Detach_buffer()
    note("buffered", into)
    comm.Sendrecv(out, right, 4, into, left, 4, status)
    note("sendrecv", into, status.source, status.tag)
    comm.Sendrecv_replace(out, right, 5, left, 5)
    note("replace", out)
    comm.Sendrecv([out, 10, MPI.INT], right, 0, [into, (10, 5), MPI.INT], left, 0)
    note("offsets", into)
    comm.Send(out, MPI.PROC_NULL)
    comm.Recv(into, MPI.PROC_NULL, status=status)
    note("null", status.Get_count(MPI.INT), status.source == MPI.PROC_NULL)
    sends = [comm.Send_init(out, right, 6), comm.Ssend_init(out, right, 7)]
    into2 = np.zeros((2, 100), "i")
    receives = [comm.Recv_init(into2[i], left, 6 + i) for i in range(2)]
    for i in range(3):
        out[:] = rank * 10 + i
        MPI.Prequest.Startall(receives + sends)
        MPI.Request.Waitall(receives + sends)
        note("persistent", into2)
    for request in receives + sends:
        request.Free()


def wildcards():
    if rank == 0:
        got, status = [], MPI.Status()
        for _ in range(size - 1):
            one = np.zeros(3, "d")
            comm.Recv(one, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
            got.append((status.source, status.tag, one.tolist()))
        note("any", sorted(got))
        comm.Barrier()
        requests = [comm.Irecv(np.zeros(1, "i"), source=i, tag=1) for i in range(1, size)]
        done = []
        while len(done) < len(requests):
            done += MPI.Request.Waitsome(requests) or []
        note("some", sorted(done))
        rest = [comm.irecv(source=i, tag=2) for i in range(1, size)]
        objects = {}
        for _ in rest:
            index, obj = MPI.Request.waitany(rest)
            objects[index] = obj
        note("objects", sorted(objects.items()))
    else:
        comm.Send(np.arange(3, dtype="d") + rank, 0, rank + 5)
        comm.Barrier()  # else rank 0 could take the next one for this one
        comm.Send(np.full(1, rank, "i"), 0, 1)
        comm.send({"from": rank, "data": [rank] * rank}, dest=0, tag=2)
    comm.Barrier()
    status = MPI.Status()
    request = comm.Isend(np.arange(rank + 1, dtype="i"), right, 11)
    comm.Probe(left, 11, status)
    note("probe", status.Get_count(MPI.INT), status.Get_elements(MPI.INT))
    message = comm.Mprobe(left, 11, status)
    into = np.zeros(status.Get_count(MPI.INT), "i")
    message.Recv(into, status)
    request.Wait()
    note("mprobe", into, comm.Iprobe(left, 11))
    note("improbe", comm.Improbe(left, 99) is None)
    request = comm.Irecv(into, left, 77)
    request.Cancel()
    request.Wait(status)
    note("cancelled", status.Is_cancelled())


def objects():
    for obj in (None, rank, "text" * rank, {"k": (1, 2.5, rank)}, list(range(20000)), b"y" * 100000):
        note("object", repr(comm.sendrecv(obj, right, 1, source=left, recvtag=1))[:200])
    big = comm.sendrecv({"array": np.arange(50000) + rank}, right, source=left)["array"]
    note("big", int(big.sum()), str(big.dtype))
    note("bcast", comm.bcast({"root": rank} if rank == size - 1 else None, root=size - 1))
    note("gather", comm.gather((rank, "x" * rank), root=0))
    note("scatter", comm.scatter([i * i for i in range(size)] if rank == 0 else None))
    note("allgather", comm.allgather([rank] * rank))
    note("alltoall", comm.alltoall([(rank, i) for i in range(size)]))
    note(
        "reduce",
        comm.reduce([rank], root=size - 1),
        comm.allreduce(rank + 1, op=MPI.PROD),
        comm.allreduce(rank, MPI.MAX),
    )
    note("location", comm.allreduce((rank % 2, rank), op=MPI.MAXLOC), comm.allreduce((rank % 2, rank), op=MPI.MINLOC))
    note("function", comm.allreduce(str(rank), op=lambda a, b: a + b))
    note("scan", comm.scan(str(rank), op=lambda a, b: a + b), comm.exscan(rank + 1))
    comm.barrier()


def collectives():
    for code, kind in (("i", MPI.INT), ("l", MPI.LONG), ("f", MPI.FLOAT), ("d", MPI.DOUBLE), ("D", MPI.DOUBLE_COMPLEX)):
        for n in (1, 13, 3000, 40000):
            base = (np.arange(n) % 11).astype(code)
            x = base * (rank == 0)
            comm.Bcast([x, kind], root=0)
            note("Bcast", x.sum())
            table = np.zeros((size, n), code)
            comm.Gather([base + rank, kind], [table, kind] if rank == size - 1 else None, root=size - 1)
            note("Gather", table.sum(axis=1))
            comm.Allgather(base + rank, table)
            note("Allgather", table.sum(axis=1))
            one = np.zeros(n, code)
            comm.Scatter(table if rank == 0 else None, one, root=0)
            note("Scatter", one.sum())
            back = np.zeros_like(table)
            comm.Alltoall(table + rank, back)
            note("Alltoall", back.sum(axis=1))
            for op in (MPI.SUM, MPI.PROD) if code == "D" else (MPI.SUM, MPI.PROD, MPI.MAX, MPI.MIN):
                data = (np.arange(n) % 2 + 1).astype(code)
                comm.Allreduce(data, one, op)
                note("Allreduce", one.sum())
                comm.Reduce(data, one if rank == 0 else None, op=op, root=0)
                note("Reduce", one.sum())
                comm.Scan(data, one, op=op)
                note("Scan", one.sum())
                one[:] = 0
                comm.Exscan(data, one, op=op)
                note("Exscan", one.sum() if rank else 0)
            comm.Reduce_scatter_block(table, one, op=MPI.SUM)
            note("Reduce_scatter_block", one.sum())
            counts = [i + 1 for i in range(size)]
            part = np.zeros(rank + 1, code)
            comm.Reduce_scatter(np.arange(sum(counts)).astype(code), part, counts)
            note("Reduce_scatter", part)
    for op in (MPI.LAND, MPI.LOR, MPI.LXOR, MPI.BAND, MPI.BOR, MPI.BXOR):
        one = np.zeros(8, "i")
        comm.Allreduce(np.arange(8, dtype="i") * (rank + 1) % 3, one, op)
        note("bits", one)


def collectives_in_place():
    each = np.arange(size)
    one = np.full(5, rank + 1, "i8")
    comm.Allreduce(MPI.IN_PLACE, one)
    note("in place", one)
    one[:] = rank
    comm.Reduce(MPI.IN_PLACE if rank == 0 else one, one if rank == 0 else None, root=0)
    note("in place", one)
    table = np.zeros((size, 2), "i8")
    table[rank] = rank
    comm.Allgather(MPI.IN_PLACE, table)
    note("in place", table)
    table[:] = rank * 100 + each[:, None]
    comm.Alltoall(MPI.IN_PLACE, table)
    note("in place", table)
    one[:] = rank
    comm.Scan(MPI.IN_PLACE, one)
    note("in place", one)


def collectives_of_vectors():
    each = np.arange(size)
    counts, places = each + 1, np.cumsum(each + 2) - (each + 2)
    total = int(places[-1] + counts[-1])
    spread = np.full(total, -1, "d")
    comm.Allgatherv(np.full(rank + 1, rank, "d"), [spread, (counts, places), MPI.DOUBLE])
    note("Allgatherv", spread)
    comm.Gatherv(np.full(rank + 1, rank * 2, "d"), [spread, counts, places, MPI.DOUBLE] if rank == 0 else None)
    note("Gatherv", spread)
    one = np.zeros(rank + 1, "d")
    comm.Scatterv([spread, (counts, places), MPI.DOUBLE] if rank == 0 else None, one)
    note("Scatterv", one)
    out, into = np.repeat(each, rank + 1).astype("i"), np.zeros(int(counts.sum()), "i")
    comm.Alltoallv([out, ([rank + 1] * size, None), MPI.INT], [into, (counts, None), MPI.INT])
    note("Alltoallv", into)
    comm.Alltoallw(
        [out, ([rank + 1] * size, [4 * (rank + 1) * i for i in range(size)]), [MPI.INT] * size],
        [into, (counts, [4 * int(counts[:i].sum()) for i in range(size)]), [MPI.INT] * size],
    )
    note("Alltoallw", into)


def collectives_of_other_kinds():
    # non-blocking, several at a time
    a, b, c = np.full(100, rank, "d"), np.zeros(100, "d"), np.zeros((size, 100), "d")
    d = np.arange(5, dtype="i") * (rank == 0)
    requests = [comm.Iallreduce(a, b), comm.Iallgather(a, c), comm.Ibcast(d), comm.Ibarrier()]
    MPI.Request.Waitall(requests)
    note("non-blocking", b.sum(), c.sum(), d)
    # pairs, and operations that the program defines
    for kind, code in ((MPI.DOUBLE_INT, "d"), (MPI.INT_INT, "i")):
        pair = np.zeros(3, np.dtype([("v", code), ("i", "i")], align=True))
        pair["v"], pair["i"] = (rank * 7 + np.arange(3)) % 5, rank
        best = pair.copy()
        for op in (MPI.MAXLOC, MPI.MINLOC):
            comm.Allreduce([pair, kind], [best, kind], op)
            note("pair", best["v"], best["i"])

    def larger(x, y, datatype):
        high = np.frombuffer(y, "i8")
        np.maximum(np.frombuffer(x, "i8"), high, out=high)

    own = MPI.Op.Create(larger)
    one, two = np.array([rank, -rank]), np.zeros(2, "i8")
    comm.Allreduce(one, two, own)
    note("own", two)
    own.Free()


def communicators():
    part = comm.Split(rank % 2, -rank)
    note("Split", part.rank, part.size, part.allgather(rank))
    part.Free()
    note("undefined", comm.Split(MPI.UNDEFINED if rank else 0) == MPI.COMM_NULL)
    again = comm.Dup()
    request = again.Irecv(np.zeros(1, "i"), left, 0)
    send = comm.Isend(np.zeros(1, "i"), right, 0)
    comm.Recv(np.zeros(1, "i"), left, 0)
    send.Wait()  # not before: a library may let a message to oneself wait for its receive, and MPICH does
    note("Dup", request.Test(), again.Compare(comm) == MPI.CONGRUENT)
    comm.Barrier()
    again.Send(np.zeros(1, "i"), right, 0)
    request.Wait()
    again.Free()
    world = comm.Get_group()
    evens = world.Incl(range(0, size, 2))
    sub = comm.Create(evens)
    note("Create", sub.allgather(rank) if sub != MPI.COMM_NULL else None)
    if rank % 2 == 0:
        sub = comm.Create_group(evens)
        note("Create_group", sub.allreduce(rank), evens.Translate_ranks(None, world), sub.Compare(comm) == MPI.IDENT)
        sub.Free()
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    note("node", node.size)
    note("self", MPI.COMM_SELF.size, MPI.COMM_SELF.allgather(rank))


def halo_exchange():
    """Ten steps of heat on a torus of blocks, with columns as a datatype of their own."""
    dims = MPI.Compute_dims(size, 2)
    cart = comm.Create_cart(dims, periods=[True, False])
    note("grid", dims, cart.Get_coords(cart.rank), cart.Get_topo(), cart.Shift(0, 1))
    n = 8
    field = np.zeros((n + 2, n + 2))
    field[1:-1, 1:-1] = np.arange(n * n).reshape(n, n) * 64 + cart.rank * 4096
    column = MPI.DOUBLE.Create_vector(n, 1, n + 2).Commit()
    for _ in range(5):
        for axis, edges in enumerate((((1, -1), (-2, 0)), ((1, -1), (-2, 0)))):
            low, high = cart.Shift(axis, 1)
            for (mine, halo), to, source in zip(edges, (low, high), (high, low), strict=True):
                if axis == 0:
                    cart.Sendrecv(field[mine, 1:-1], to, 0, field[halo, 1:-1], source, 0)
                else:
                    flat = field.reshape(-1)
                    at = [(n + 2) + i % (n + 2) for i in (mine, halo)]
                    out, into = ([flat[start:], 1, column] for start in at)
                    cart.Sendrecv(out, to, 0, into, source, 0)
        new = field.copy()
        new[1:-1, 1:-1] = np.floor((field[:-2, 1:-1] + field[2:, 1:-1] + field[1:-1, :-2] + field[1:-1, 2:]) / 4)
        field = new
    column.Free()
    note("heat", field[1:-1, 1:-1])
    rows = cart.Sub([False, True])
    note("Sub", rows.size, rows.rank, rows.allreduce(rank))


def errors():
    expect(MPI.ERR_RANK, comm.Send, np.zeros(1), size)
    expect(MPI.ERR_TAG, comm.Send, np.zeros(1), 0, -5)
    expect(MPI.ERR_ROOT, comm.Bcast, np.zeros(1), size + 3)
    request = comm.Isend(np.zeros(10), right, 1)
    expect(MPI.ERR_TRUNCATE, comm.Recv, np.zeros(1), left, 1)
    request.Wait()


def main():
    point_to_point()
    wildcards()
    objects()
    collectives()
    collectives_in_place()
    collectives_of_vectors()
    collectives_of_other_kinds()
    communicators()
    halo_exchange()
    errors()
    mine = hashlib.sha256(repr(found).encode()).hexdigest()
    if os.environ.get("MPI_NOTES"):
        with open(f"{os.environ['MPI_NOTES']}.{rank}", "w", encoding="utf-8") as file:
            file.write("\n".join(map(repr, found)))
    hashes = comm.gather(mine)
    if rank == 0:
        print("hash", hashlib.sha256(" ".join(hashes).encode()).hexdigest(), len(found), flush=True)


main()
