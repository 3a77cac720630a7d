"""Intercommunicators: messages and collectives between two groups of ranks, and what is made of them."""

import pytest
from comm_job import job

MADE = """
    from viakit.mpi import MPI
    half = size // 2
    low = rank < half
    part = comm.Split(0 if low else 1)
    inter = part.Create_intercomm(0, comm, half if low else 0, 7)
    mine, far = list(range(size))[:half], list(range(size))[half:]
    if not low:
        mine, far = far, mine
    def refused(call, name):
        try:
            call()
        except MPI.Exception as problem:
            assert problem.error_class == getattr(MPI, name), problem
        else:
            raise AssertionError(name)
"""


@pytest.mark.parametrize(("protocol", "ranks"), [("via", 2), ("via", 3), ("tcp", 4)])
def test_between_two_groups(program, protocol, ranks):
    done = job(ranks, program(MADE + """
    assert (inter.size, inter.remote_size, inter.rank) == (len(mine), len(far), part.rank)
    assert inter.is_inter and inter.Get_remote_group().size == len(far)
    # messages go to remote ranks, and come from them
    status = MPI.Status()
    if inter.rank == 0:
        inter.Send(np.full(3, rank), inter.remote_size - 1, 1)
        sent = inter.isend({"big": np.full(100_000, rank)}, inter.remote_size - 1, 2)
    if inter.rank == inter.size - 1:
        got = np.zeros(3, int)
        inter.Recv(got, MPI.ANY_SOURCE, 1, status)
        assert (got == far[0]).all() and status.source == 0
        assert (inter.recv(source=0, tag=2)["big"] == far[0]).all()
    if inter.rank == 0:
        sent.wait()
    # rooted collectives: the root is the last rank of the low group
    root = (MPI.ROOT if rank == half - 1 else MPI.PROC_NULL) if low else half - 1
    data = np.full(2, 5.0 if root == MPI.ROOT else 0.0)
    inter.Bcast(data, root)
    assert data[0] == (5.0 if root == MPI.ROOT or not low else 0.0)
    all_of = np.zeros(len(far))
    request = inter.Igather(np.array([float(rank)]), all_of, root)
    request.Wait()
    assert root != MPI.ROOT or all_of.tolist() == far
    total = np.zeros(1)
    inter.Reduce(np.array([float(rank)]), total, MPI.SUM, root)
    assert total[0] == (sum(far) if root == MPI.ROOT else 0)
    assert inter.scatter([x * 2 for x in far] if root == MPI.ROOT else None, root) == (None if low else 2 * rank)
    assert inter.reduce(rank, MPI.MAX, root) == (max(far) if root == MPI.ROOT else None)
    # collectives of both groups
    inter.Allgather(np.array([float(rank)]), all_of)
    assert all_of.tolist() == far
    inter.Allreduce(np.array([float(rank)]), total)
    assert total[0] == sum(far)
    assert inter.alltoall([(rank, to) for to in far]) == [(source, rank) for source in far]
    assert inter.alltoall(None) == [None] * len(far) and comm.alltoall(None) == [None] * size
    kept = inter.Allgather_init(np.array([float(rank)]), all_of)
    for _ in range(2):
        all_of[:] = -1
        kept.Start()
        kept.Wait()
        assert all_of.tolist() == far
    whole = np.arange(float(len(mine) * len(far)))
    block = np.zeros(len(far))
    inter.Reduce_scatter_block(whole, block)
    assert (block == len(far) * whole.reshape(len(mine), -1)[inter.rank]).all(), block
    refused(lambda: inter.Scan(total, total), "ERR_COMM")
    refused(lambda: inter.Bcast(data, 99), "ERR_ROOT")
    refused(lambda: inter.Send(b"", 99), "ERR_RANK")
    inter.Barrier()
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_is_made_of_one(program):
    done = job(3, program(MADE + """
    with raises(TypeError):
        MPI.Intracomm(inter)
    with raises(TypeError):
        MPI.Intercomm(part)
    merged = inter.Merge(low)  # the high group comes first
    assert merged.allgather(rank) == [*range(half, size), *range(half)]
    twin = inter.Dup()
    assert MPI.Comm.Compare(inter, twin) == MPI.CONGRUENT
    assert MPI.Comm.Compare(inter, part) == MPI.UNEQUAL
    pair = inter.Split(inter.rank)
    assert (pair == MPI.COMM_NULL) == (inter.rank > 0)
    if pair:
        assert pair.allgather(rank) == [far[0]]
        pair.Free()
    first = inter.Create(inter.group.Incl([0]))
    if inter.rank == 0:
        assert first.sendrecv(rank, 0, source=0) == far[0]
        first.Free()
    group = comm.Get_group()
    between = MPI.Intercomm.Create_from_groups(group.Incl(mine), 0, group.Incl(far), 0)
    assert MPI.Comm.Compare(inter, between) == MPI.CONGRUENT
    alone = MPI.Intracomm.Create_from_group(group.Incl(mine), "tag")
    assert alone.allgather(rank) == mine
    for one in (merged, twin, between, alone, inter):
        one.Free()
    assert inter == MPI.COMM_NULL
    refused(lambda: inter.Get_remote_size(), "ERR_COMM")
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
