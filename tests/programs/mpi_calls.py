"""Calls of mpi4py's one by one, each with what it gave: the same lines with any library that has them.

MPI_MODULE=mpi4py mpirun -n 3 python mpi_calls.py
MPI_MODULE=viakit.mpi viakit run -n 3 mpi_calls.py
"""

import importlib
import json
import marshal
import os
import pickle

import numpy as np

MPI = importlib.import_module(os.environ.get("MPI_MODULE", "viakit.mpi") + ".MPI")
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
lines = []


def say(what, *values):
    lines.append(f"{rank} {what}: {' '.join(str(value) for value in values)}")


def refused(what, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except (TypeError, ValueError, KeyError) as error:
        say(what, next(kind.__name__ for kind in (TypeError, KeyError, ValueError) if isinstance(error, kind)))
    except MPI.Exception as error:
        names = ("ERR_RANK", "ERR_TAG", "ERR_ROOT", "ERR_COUNT", "ERR_TRUNCATE", "ERR_REQUEST", "ERR_DIMS", "ERR_OTHER")
        named = [name for name in names if getattr(MPI, name) == error.Get_error_class()]
        say(what, "refused", *named)
    else:
        say(what, "taken")


def status_of(status):
    return (status.source, status.tag, status.Get_count(MPI.BYTE), status.Is_cancelled(), status.error == MPI.SUCCESS)


def requests():
    status = MPI.Status()
    null = MPI.REQUEST_NULL
    say("null request", bool(null), null.Wait(), null.Test())
    say("waitall of nothing", MPI.Request.Waitall([]), MPI.Request.Testall([]))
    index = MPI.Request.Waitany([null, null], status)
    say("waitany of null", index == MPI.UNDEFINED, status_of(status)[2:])
    say("waitsome of null", MPI.Request.Waitsome([null]), MPI.Request.Testsome([null]))
    say("testany of null", MPI.Request.Testany([null])[1])

    into = np.zeros((4, 3), "i")
    receives = [comm.Irecv(into[i], left, 20 + i) for i in range(4)]
    say("not yet", MPI.Request.Testall(receives), receives[0].Test(), receives[0].Get_status())
    comm.Barrier()
    sends = [comm.Isend(np.full(3, 10 * rank + i, "i"), right, 20 + i) for i in range(4)]
    statuses = []
    say("waitall", MPI.Request.Waitall(receives, statuses), [status_of(s) for s in statuses], into.tolist())
    MPI.Request.Waitall(sends)
    say("ended", [bool(r) for r in receives], receives[0].Test(status), status_of(status)[2:])

    receives = [comm.Irecv(into[i], left, 30 + i) for i in range(3)]
    sends = [comm.Issend(into[3], right, 30 + i) for i in (1, 0, 2)]
    done = []
    while len(done) < 3:
        done += MPI.Request.Waitsome(receives)
    say("waitsome", sorted(done), MPI.Request.Waitsome(receives), MPI.Request.Testsome(receives))
    found = set()
    for _ in range(3):
        found.add(MPI.Request.Waitany(sends, status))
    say("waitany", sorted(found), MPI.Request.Waitany(sends) == MPI.UNDEFINED)

    receive, send = comm.Irecv(into[0], left, 40), comm.Isend(into[1], right, 40)
    while not MPI.Request.Testall([receive, send]):
        pass
    say("testall", bool(receive), bool(send))
    receive, send = comm.Irecv(into[0], left, 41), comm.Isend(into[1], right, 41)
    while not receive.Get_status(status):
        pass
    say("get_status", bool(receive), status_of(status)[:3])
    MPI.Request.Waitall([receive, send])

    receive = comm.Irecv(into[0], left, 42)
    receive.Cancel()
    receive.Wait(status)
    say("cancel", status.Is_cancelled(), bool(receive))
    send = comm.isend({"of": rank}, right, 43)
    say("objects", comm.irecv(source=left, tag=43).wait(status), status.source, status.tag, send.wait())
    one, two = comm.irecv(source=left, tag=44), comm.irecv(source=left, tag=45)
    comm.send("first", right, 44)
    comm.send("second", right, 45)
    say("waitall of objects", MPI.Request.waitall([one, two]))
    one = comm.irecv(source=left, tag=46)
    say("test of an object", one.test())
    comm.Barrier()
    comm.send(None, right, 46)
    say("waitany of objects", MPI.Request.waitany([one]))
    say("testall of objects", MPI.Request.testall([one])[0])


def persistent():
    status = MPI.Status()
    out, into = np.zeros(2, "d"), np.zeros(2, "d")
    pair = [comm.Recv_init(into, left, 1), comm.Send_init(out, right, 1)]
    say("not started", pair[0].Test(status), status_of(status)[2:], MPI.Request.Waitall(pair))
    for i in range(3):
        out[:] = rank, i
        MPI.Prequest.Startall(pair)
        MPI.Request.Waitall(pair)
        say("persistent", into.tolist(), [bool(request) for request in pair])
    synchronous = comm.Ssend_init(out, right, 2)
    pair[0].Start()
    out[0] += 100
    pair[1].Start()
    MPI.Request.Waitall(pair)
    receive = comm.Irecv(into, left, 2)
    synchronous.Start()
    MPI.Request.Waitall([receive, synchronous])
    say("Ssend_init", into.tolist())
    MPI.Attach_buffer(bytearray(10000))
    buffered = comm.Bsend_init(out, right, 3)
    buffered.Start()
    comm.Recv(into, left, 3)
    buffered.Wait()
    MPI.Detach_buffer()
    ready = comm.Rsend_init(out, right, 4)
    receive = comm.Irecv(into, left, 4)
    comm.Barrier()
    ready.Start()
    MPI.Request.Waitall([receive, ready])
    say("Bsend_init, Rsend_init", into.tolist())
    for request in (*pair, synchronous, buffered, ready):
        request.Free()
        say("freed", bool(request))


def probes():
    status = MPI.Status()
    send = comm.Isend(np.arange(rank + 5, dtype="i"), right, 7)
    message = comm.Mprobe(left, MPI.ANY_TAG, status)
    say("Mprobe", status.source, status.tag, status.Get_count(MPI.INT), bool(message))
    say("not probed twice", comm.Improbe(left, 7) is None, comm.Iprobe(left, 7))
    into = np.zeros(status.Get_count(MPI.INT), "i")
    request = message.Irecv(into)
    request.Wait(status)
    send.Wait()
    say("Message.Irecv", into.tolist(), status_of(status)[:3], message == MPI.MESSAGE_NULL)
    send = comm.isend([1, "two"], right, 8)
    message = comm.mprobe(left, 8)
    say("mprobe of an object", message.recv())
    send.wait()
    say("no process", comm.Probe(MPI.PROC_NULL, 0, status), status.source == MPI.PROC_NULL, status.Get_count(MPI.INT))
    null = comm.Mprobe(MPI.PROC_NULL)
    say("Mprobe of PROC_NULL", null == MPI.MESSAGE_NO_PROC)
    null.Recv(into, status)
    say("and received", status.source == MPI.PROC_NULL, status.Get_count(MPI.INT))


def statuses():
    status = MPI.Status()
    say("new status", status.Get_source() == MPI.ANY_SOURCE, status.Get_tag() == MPI.ANY_TAG, status.Get_error())
    status.Set_source(3)
    status.Set_tag(4)
    status.Set_elements(MPI.INT, 5)
    status.Set_cancelled(True)
    say("set", status.source, status.tag, status.Get_elements(MPI.INT), status.Get_count(MPI.INT), status.count)
    say("odd", status.Get_count(MPI.DOUBLE) == MPI.UNDEFINED, status.cancelled)


def communicators():
    world = comm.Get_group()
    group = world.Incl([0, size - 1] if size > 1 else [0])
    say("group", group.Get_size(), group.Get_rank() == MPI.UNDEFINED, group.size)
    say("translate", group.Translate_ranks(None, world), MPI.Group.Compare(group, world) == MPI.UNEQUAL)
    if group.Get_rank() != MPI.UNDEFINED:
        part = comm.Create_group(group, 5)
        say("Create_group", part.rank, part.size, part.allgather(rank))
        part.Free()
    else:
        say("Create_group", comm.Create_group(group, 5) == MPI.COMM_NULL)
    part = comm.Create(group)
    say("Create", part == MPI.COMM_NULL or part.allgather(rank))
    copy = comm.Dup()
    say("Dup", MPI.Comm.Compare(comm, copy) == MPI.CONGRUENT, MPI.Comm.Compare(comm, comm) == MPI.IDENT)
    copy.Set_name("a copy")
    say("name", copy.Get_name(), copy.name)
    copy.Free()
    say("freed", copy == MPI.COMM_NULL, bool(copy))
    part = comm.Split(0 if rank % 2 else MPI.UNDEFINED, -rank)
    say("Split", part == MPI.COMM_NULL or part.allgather(rank))
    refused("root out of range", comm.bcast, None, size)
    refused("rank out of range", comm.send, None, size)
    refused("negative tag", comm.send, None, 0, -7)
    for name in ("Send", "Ssend", "Isend", "Recv", "Irecv", "Bcast", "Send_init", "Recv_init"):
        refused(f"{name} of no buffer", getattr(comm, name), None, rank)
    comm.Send(None, MPI.PROC_NULL)
    say("to and from PROC_NULL", comm.Recv(None, MPI.PROC_NULL))


def grids():
    dims = MPI.Compute_dims(size, [0, 0])
    grid = comm.Create_cart(dims, [True, False])
    say("grid", grid.dims, grid.periods, grid.coords, grid.ndim, grid.Get_topo())
    say("topology", grid.Get_topology() == MPI.CART, comm.Get_topology() == MPI.UNDEFINED, grid.is_topo, comm.is_topo)
    say("ranks", [grid.Get_cart_rank(grid.Get_coords(r)) for r in range(grid.size)])
    say("around", grid.Get_cart_rank([-1, 0]), grid.Get_cart_rank([dims[0], 0]))
    source, target = grid.Shift(0, 1)
    below, above = grid.Shift(1, 1)
    say("Shift", source, target, below == MPI.PROC_NULL or below, above == MPI.PROC_NULL or above)
    got = np.full(1, -1, "i")
    grid.Sendrecv(np.full(1, grid.rank, "i"), above, 0, got, below, 0)
    say("along", got.tolist())
    row = grid.Sub([False, True])
    say("Sub", row.size, row.dims, row.periods, row.coords, row.allgather(rank))
    copy = grid.Dup()
    say("Dup of a grid", copy.Get_topo())
    for one in (row, copy, grid):
        one.Free()


def others():
    say("attributes", comm.Get_attr(MPI.TAG_UB) >= 32767, MPI.Is_initialized(), MPI.Is_finalized())
    say("self", MPI.COMM_SELF.size, MPI.COMM_SELF.rank, MPI.COMM_SELF.allgather(7))
    say("sizes", MPI.DOUBLE.Get_size(), MPI.INT.size, MPI.DOUBLE.Get_extent(), MPI.COMPLEX.size)
    pair = MPI.DOUBLE.Create_vector(2, 1, 3).Commit()
    say("vector", pair.Get_size(), pair.Get_extent(), pair.is_predefined)
    column, got = np.arange(9, dtype="d").reshape(3, 3) + rank, np.zeros(2)
    comm.Sendrecv([column, 1, pair], right, 0, got, left, 0)
    say("column", got.tolist())
    pair.Free()
    # absolute addresses: two numbers that lie apart
    one, other = np.full(1, rank, "i"), np.full(1, 100 + rank, "i")
    places = [MPI.Get_address(one), MPI.Get_address(other)]
    apart = MPI.INT.Create_hindexed([1, 1], places).Commit()
    both = np.zeros(2, "i")
    comm.Sendrecv([MPI.BOTTOM, 1, apart], right, 0, both, left, 0)
    say("BOTTOM, sent", both.tolist())
    comm.Barrier()
    comm.Sendrecv(both, right, 1, [MPI.BOTTOM, 1, apart], left, 1)
    say("BOTTOM, received", one.tolist(), other.tolist())
    apart.Free()
    double = MPI.Op.Create(
        lambda a, b, _: np.copyto(np.frombuffer(b, "i"), np.frombuffer(a, "i") + np.frombuffer(b, "i"))
    )
    total = np.zeros(2, "i")
    comm.Allreduce(np.full(2, rank + 1, "i"), total, double)
    say("Op.Create", total.tolist(), double.Is_commutative(), MPI.SUM.is_predefined)
    double.Free()


def counts():
    """A count is what one rank sends or gets, not all of them; None says that the operand is in place."""
    mine, everything = np.full(2, rank, "i"), np.full(2 * size, -1, "i")
    comm.Allgather([mine, 2, MPI.INT], [everything, 2, MPI.INT])
    say("Allgather, counted", everything.tolist())
    into = np.full(2 * size, -1, "i")
    comm.Gather([mine, 1, MPI.INT], [into, 1, MPI.INT], root=0)
    say("Gather, counted", into.tolist())
    comm.Alltoall([everything * 10 + rank, 2, MPI.INT], [into, 2, MPI.INT])
    say("Alltoall, counted", into.tolist())
    comm.Scatter([np.arange(2 * size, dtype="i"), 1, MPI.INT] if rank == 0 else None, [mine, 1, MPI.INT], root=0)
    say("Scatter, counted", mine.tolist())
    comm.Ialltoall([np.arange(2 * size, dtype="i") + rank, 1, MPI.INT], [into, 1, MPI.INT]).Wait()
    say("Ialltoall, counted", into.tolist())
    comm.Reduce_scatter_block([np.arange(2 * size, dtype="i"), 1, MPI.INT], [mine, 1, MPI.INT])
    say("Reduce_scatter_block, counted", mine.tolist())
    each = np.full(size, -1, "i")
    comm.Allgatherv([mine, 1, MPI.INT], [each, (1, 1), MPI.INT])
    say("Allgatherv, one count and one stride", each.tolist())
    total = np.full(2, rank + 1.0)
    comm.Allreduce(None, total)
    say("Allreduce, None", total.tolist())
    comm.Iallreduce(None, total).Wait()
    say("Iallreduce, None", total.tolist())
    into[rank] = rank
    comm.Allgather(None, [into, 1, MPI.INT])
    say("Allgather, None", into.tolist())
    comm.Gather(None if rank == 0 else [mine, 1, MPI.INT], [into, 1, MPI.INT] if rank == 0 else None)
    say("Gather, None", into.tolist())
    comm.Reduce(None if rank == 0 else total, total if rank == 0 else None)
    say("Reduce, None", total.tolist())
    for what, wrong in (
        ("a count below 0", lambda: comm.Send([mine, -1, MPI.INT], right)),
        ("None, but a count", lambda: comm.Send([None, 1, MPI.INT], right)),
        ("a null datatype", lambda: comm.Send([mine, None, MPI.DATATYPE_NULL], right)),
        ("a result of another length", lambda: comm.Allreduce(np.zeros(2), np.zeros(3))),
        ("a result of other numbers", lambda: comm.Allreduce(np.zeros(2), np.zeros(2, "i"))),
        ("a class", lambda: comm.Send(object, right)),
    ):
        refused(what, wrong)


def handles():
    """Check null objects, equality, copies and pickles."""
    sent = comm.Isend(np.zeros(1), right, 9)
    say("under way", sent != MPI.REQUEST_NULL, bool(sent))
    got = np.zeros(1)
    comm.Recv(got, left, 9)
    sent.Wait()
    say("ended", sent == MPI.REQUEST_NULL, MPI.Request() == MPI.REQUEST_NULL)
    kept = comm.Send_init(got, MPI.PROC_NULL)
    say("kept", kept != MPI.REQUEST_NULL)
    kept.Free()
    say("freed", kept == MPI.REQUEST_NULL)
    null = comm.Mprobe(MPI.PROC_NULL)
    say("of PROC_NULL", bool(null), null == MPI.MESSAGE_NO_PROC, null == MPI.MESSAGE_NULL)
    null.Recv(None)
    say("received", bool(null), null == MPI.MESSAGE_NULL, bool(MPI.MESSAGE_NO_PROC))
    request = comm.isend([rank], right, 5)
    say("Message.probe", MPI.Message.probe(comm, left, 5).recv(), MPI.Message.Iprobe(comm, left, 5))
    request.wait()
    status = MPI.Status()
    status.source, status.tag, status.count, status.cancelled = 3, 4, 8, True
    for again in (MPI.Status(status), pickle.loads(pickle.dumps(status))):
        say("Status", again.source, again.tag)
    say("copied", MPI.Status(status).count, MPI.Status(status).cancelled)
    refused("Status of a number", MPI.Status, 7)
    requests, found = [comm.irecv(source=left, tag=i) for i in range(3)], []
    say("testsome", MPI.Request.testsome(requests, found), found)
    comm.Barrier()
    sends = [comm.isend(i * 10, right, i) for i in range(3)]
    say("waitall", MPI.Request.waitall(requests), MPI.Request.waitall(sends))
    least, mine = MPI.Op.Create(lambda a, b, kind: min(a, b) if kind is None else None, True), MPI.Op(MPI.MAX)
    say("operations", comm.allreduce(rank + 5, least), mine(2, 3), mine == MPI.MAX, MPI.REPLACE(2, 3), MPI.NO_OP(2, 3))
    least.Free()
    say("null", least == MPI.OP_NULL, bool(MPI.Op()), pickle.loads(pickle.dumps(MPI.SUM)) is MPI.SUM)
    refused("MAX into a longer one", MPI.MAX.Reduce_local, np.zeros(1), np.zeros(2))
    group = comm.Get_group()
    say("groups", bool(MPI.GROUP_EMPTY), bool(MPI.GROUP_NULL), group.Incl([]) == MPI.GROUP_EMPTY, bool(MPI.Group()))
    group.Free()
    say("freed", group == MPI.GROUP_NULL, MPI.Comm() == MPI.COMM_NULL, MPI.COMM_NULL.Get_name())
    say("pickled", pickle.loads(pickle.dumps(comm)) is comm)
    again = comm.Dup()
    refused("a pickle of another", pickle.dumps, again)
    again.Free()
    grid = comm.Create_cart([size], [True])
    grid.dims.append(7)
    say("grid", grid.dims, grid.inedges, grid.outdegree, grid.inoutedges)
    grid.Free()


def serializers():
    """Other ways to make bytes of objects."""
    MPI.pickle.__init__(marshal.dumps, marshal.loads)
    say("marshal", comm.allgather([rank, "V"]), comm.sendrecv("V" * 3, right, 0, None, left, 0))
    MPI.pickle.__init__(lambda obj: b"V" + json.dumps(obj).encode(), lambda data: json.loads(bytes(data)[1:]))
    say("json", comm.allreduce(rank), comm.sendrecv({"a": [rank]}, right, 0, None, left, 0))
    MPI.pickle.__init__()
    request = comm.Isend(b"", right, 3)
    say("nothing", comm.recv(source=left, tag=3))
    request.Wait()


for part in (requests, persistent, probes, statuses, communicators, grids, others, counts, handles, serializers):
    part()
for of_one in comm.gather(lines) or []:
    print("\n".join(of_one))
