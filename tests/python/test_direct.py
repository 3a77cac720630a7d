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
    run(
        program("""
        for turn in range(2):
            for n in (0, 1, 5000, 300_000):  # the last is broadcast in parts
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
        for turn in range(10):
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


@pytest.mark.parametrize("ranks", [2, 4])
def test_all_ranks_have_rank_0_s_result_and_order_of_operands(program: Callable[[str], str], ranks: int) -> None:
    """The result is the same before and after the communicator has a group in csrc/coll, and with a schedule."""
    run(
        program("""
        numbers = (1e16, 1.0, 1.0, -1e16)
        def check():
            total = comm.allreduce(numbers[rank])
            assert comm.allgather(total) == [total] * size
            # Sets of strings have an order of their own in each process.
            names = comm.allreduce([f"n{rank}", "x"], lambda a, b: list(set(a + b)))
            assert comm.allgather(names) == [names] * size
            return total
        first = check()
        for _ in range(20):
            comm.Barrier()
        assert check() == first
        other = comm.Dup()
        barrier = other.Ibarrier() if rank == 0 else None  # under way: rank 0 takes the general path
        assert check() == first
        (barrier or other.Ibarrier()).Wait()
        """),
        ranks,
    )


def test_a_failure_on_one_rank_does_not_change_how_others_choose(program: Callable[[str], str]) -> None:
    """A leaf of a reduction has only sent, and succeeds. The next collectives of objects match nevertheless."""
    run(
        program("""
        def fails(a, b, kind):
            raise ValueError("on the root only")
        operation = MPI.Op.Create(fails, commute=False)
        try:
            comm.Reduce(np.zeros(1), np.zeros(1), operation, 0)
        except ValueError:
            assert rank == 0
        for _ in range(20):
            assert comm.allgather(rank) == list(range(size))
            assert comm.bcast(rank, 1) == 1
        """),
        2,
    )


def test_pickling_may_call_other_collectives(program: Callable[[str], str]) -> None:
    """They get later numbers than the collective that pickles, whichever path a rank takes."""
    run(
        program("""
        other = comm.Dup()
        class Nested:
            def __reduce__(self):
                assert comm.gather(rank, 0) == (list(range(size)) if rank == 0 else None)
                return int, (rank,)
        for turn in range(5):
            barrier = other.Ibarrier() if rank == 0 else None  # under way: rank 0 takes the general path
            assert comm.allgather(Nested()) == list(range(size))
            (barrier or other.Ibarrier()).Wait()
            assert comm.allgather(Nested()) == list(range(size))
        """),
        3,
    )


def test_pickling_functions_that_return_no_bytes_are_refused(program: Callable[[str], str]) -> None:
    run(
        program("""
        import json
        MPI.pickle.__init__(json.dumps, json.loads)
        if rank == 0:
            with raises(TypeError):
                comm.bcast([1])
        else:
            with raises(MPI.Exception, MPI.ERR_PROC_ABORTED):
                comm.bcast(None)
        MPI.pickle.__init__()
        assert comm.allgather(rank) == [0, 1]
        """),
        2,
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
