"""The short paths of Gather, Scatter and of collectives of objects (viakit/_core/rooted.pxi and direct.pxi)."""

from __future__ import annotations

from collections.abc import Callable

import comm_job
import pytest

RANKS = (1, 2, 3, 5)  # 5: gather and scatter use a tree


def run(path: str, ranks: int, protocol: str = "via") -> None:
    done = comm_job.job(ranks, path, protocol=protocol)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("protocol", comm_job.PROTOCOLS)
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_may_take_different_paths_in_one_gather(program: Callable[[str], str], ranks: int, protocol: str) -> None:
    """IN_PLACE and derived datatypes take the general path, and plain arrays the short one."""
    run(
        program("""
        general = MPI.DOUBLE.Create_contiguous(3).Commit()
        for root in range(size):
            for odd in range(3):
                mine = np.full(3, rank + 1.0)
                out = [mine, 1, general] if rank % 3 == odd else mine
                into = np.zeros((size, 3)) if rank == root else None
                if rank == root and odd == 2:
                    into[root] = mine
                    out = MPI.IN_PLACE
                comm.Gather(out, into, root)
                if rank == root:
                    assert (into == np.arange(1, size + 1)[:, None]).all(), into
                data = np.arange(3.0 * size).reshape(size, 3) if rank == root else None
                got = np.zeros(3)
                comm.Scatter(data, [got, 1, general] if rank % 3 == odd else got, root)
                assert (got == np.arange(3.0) + 3 * rank).all(), got
        comm.Barrier()
        """),
        ranks,
        protocol,
    )


@pytest.mark.parametrize("protocol", comm_job.PROTOCOLS)
@pytest.mark.parametrize("ranks", RANKS)
def test_objects_of_every_length_arrive(program: Callable[[str], str], ranks: int, protocol: str) -> None:
    """The first collectives are messages, later ones use csrc/coll. Objects fit into a slot, or go on behind it."""
    run(
        program("""
        import pickle
        overhead = len(pickle.dumps(bytes(200), 5)) - 200
        lengths = (0, 1, 247 - overhead, 248 - overhead, 249 - overhead, 5000, 300_000)
        for turn in range(4):
            for n in lengths:
                for root in range(size):
                    assert comm.bcast(bytes(n) if rank == root else "ignored", root) == bytes(n)
                mine = (rank, bytes(n if rank % 2 else 3))
                expected = [(i, bytes(n if i % 2 else 3)) for i in range(size)]
                assert comm.allgather(mine) == expected
                assert comm.gather(mine, size - 1) == (expected if rank == size - 1 else None)
                assert comm.scatter(expected if rank == size - 1 else None, size - 1) == mine
                assert comm.allreduce([mine]) == expected  # lists are joined in the order of ranks
        assert comm.bcast(None) is None and comm.allreduce(rank, MPI.MAX) == size - 1
        """),
        ranks,
        protocol,
    )


@pytest.mark.parametrize("protocol", comm_job.PROTOCOLS)
def test_an_object_that_cannot_be_pickled_ends_the_collective_on_all_ranks(
    program: Callable[[str], str], protocol: str
) -> None:
    run(
        program("""
        class Never:
            def __reduce__(self):
                raise ValueError("never pickled")
        for turn in range(30):  # by messages, and later by csrc/coll
            for call in (comm.bcast, comm.allgather, comm.allreduce):
                if rank == 0:
                    with raises(ValueError, words="never pickled"):
                        call(Never())
                else:
                    with raises(MPI.Exception, MPI.ERR_PROC_ABORTED, "rank 0"):
                        call(1)
        assert comm.allgather(rank) == list(range(size))
        assert comm.bcast(rank, size - 1) == size - 1
        """),
        3,
        protocol,
    )


def test_a_part_of_another_length_is_an_error(program: Callable[[str], str]) -> None:
    run(
        program("""
        if rank == 0:
            with raises(MPI.Exception, MPI.ERR_TRUNCATE, "gather: rank 1 sent 8 bytes where 16 were expected"):
                comm.Gather(np.zeros(2), np.zeros(4))
        else:
            comm.Gather(np.zeros(1), None)
        """),
        2,
    )


@pytest.mark.parametrize("call", ["comm.Gather(np.zeros(1), np.zeros(size))", "comm.gather(1)"])
def test_a_root_whose_peer_is_in_another_collective_gets_an_error(program: Callable[[str], str], call: str) -> None:
    run(
        program(f"""
        other = comm.Dup()
        with raises(MPI.Exception, words="mismatched collectives"):
            if rank == 0:
                {call}
            else:
                comm.Scatter(None, np.zeros(1))
        other.Barrier()  # neither rank leaves before the other has its error
        """),
        2,
    )


def test_collectives_of_one_rank_send_nothing(program: Callable[[str], str]) -> None:
    run(
        program("""
        a, b = np.arange(3.0), np.zeros(3)
        comm.Barrier()
        comm.Bcast(a)
        for call in (comm.Allreduce, comm.Reduce, comm.Allgather, comm.Alltoall, comm.Gather, comm.Scatter):
            b[:] = 0
            call(a, b)
            assert (b == a).all(), call
        for call in (comm.Allreduce, comm.Allgather, comm.Alltoall):
            call(MPI.IN_PLACE, b)
            assert (b == a).all(), call
        other = comm.Dup()
        other.Free()
        with raises(MPI.Exception, MPI.ERR_COMM):
            other.Barrier()
        """),
        1,
    )
