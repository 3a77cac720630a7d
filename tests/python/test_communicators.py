"""Communicators created and freed: separation of their messages, their numbers, and operations that outlive them."""

from __future__ import annotations

import pytest
from comm_job import PROTOCOLS, job

# `succeed` frees a communicator and makes another, of another number or, when numbers have come round, of the same.
LEFT_OVER = """
    def succeed(old, again):
        old.Free()
        if again:
            comm.world.turn = old.incarnation + 13105
        new = comm.Dup()
        assert new.number == old.number or not again
        return new
"""


def test_messages_of_a_freed_communicator_do_not_reach_the_next(program):
    """A gather that one rank refused leaves the others' parts behind."""
    done = job(2, program(LEFT_OVER + """
    old = comm.Dup()
    try:
        old.Gather(np.full(2, 1.0), np.zeros(3) if rank == 0 else None)
    except ValueError:
        assert rank == 0
    new, got = succeed(old, False), np.zeros(2 * size)
    new.Gather(np.full(2, 2.0), got if rank == 0 else None)
    assert rank or (got == 2.0).all(), got
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("again", [False, True])
def test_words_of_who_waited_do_not_reach_the_next_communicator(program, again):
    done = job(2, program(LEFT_OVER + f"""
    old, NOTE, ABORT = comm.Dup(), 4, 3
    old.Barrier()
    if rank == 1:
        until(lambda: old.look(0, NOTE, None, 0, 4))  # rank 0 waits and announces it, and no rank reads the note
    old.Barrier()
    new = succeed(old, {again})
    new.Barrier()
    if rank == 0:  # the other way round, in another collective of the same number
        until(lambda: new.look(1, NOTE, None, 0, 4) or new.look(1, ABORT, None, 0, 4))
    new.Bcast(np.zeros(4))
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("again", [False, True])
def test_words_of_who_waited_are_not_taken_for_another_collective_by_messages(program, again):
    done = job(2, program(LEFT_OVER + f"""
    from viakit.comm.step import Step
    old = comm.Dup()
    old.Barrier()
    if rank == 1:
        until(lambda: old.look(0, 4, None, 0, 4))
    old.Barrier()
    new = succeed(old, {again})
    new.Barrier()
    Step(new, "gather").check()  # what a rank does while it waits
    comm.Barrier()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("again", [False, True])
def test_words_of_who_gave_up_do_not_reach_the_next_communicator(program, again):
    done = job(2, program(LEFT_OVER + f"""
    old, x = comm.Dup(), np.zeros(4)
    old.Barrier()
    with raises(MPI.Exception):
        old.Bcast(x, 1) if rank == 0 else old.Allreduce(x, x.copy())
    new = succeed(old, {again})
    for i in range(4):
        if rank == i % 2:
            until(lambda: new.look(1 - rank, 4, None, 0, 4))  # who waits looks for who gave up, and then says so
            new.start_recv(bytearray(64), 1 - rank, 4, 4).Wait()
        new.Barrier()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_operations_under_way_outlive_their_communicator(program, protocol):
    done = job(3, program("""
        one, out, big = np.ones(1 << 19), np.zeros(1 << 19), np.full(1 << 18, 7.0)
        a, b, c = comm.Dup(), comm.Dup(), comm.Dup()
        kept = [a.Iallreduce(one, out), a.Ibarrier()]
        there = b.irecv(source=(rank - 1) % size)
        last = c.Irecv(out[:1].copy(), (rank - 1) % size)
        gone = b.isend(big, (rank + 1) % size)  # a head, whose parts are asked for when b has been freed
        c.Isend(one[:1], (rank + 1) % size).Wait()
        for one_of in (a, b, c):
            one_of.Free()
            assert not one_of
        MPI.Request.Waitall(kept)
        assert (out == size).all()
        assert (there.wait() == 7.0).all()
        gone.wait()
        last.Wait()
        for one_of in (a, b, c):
            assert one_of.number not in comm.world.used
            with raises(MPI.Exception, MPI.ERR_COMM):
                one_of.Send(one, 0)
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_unreceived_messages_do_not_reach_the_next_communicator_of_the_number(program, protocol):
    """Nor does a receive that is posted yet get a message of it; who sends does not wait for ever."""
    done = job(2, program(LEFT_OVER + """
    old, one, big = comm.Dup(), np.full(1, 1.0), np.full(1 << 20, 1.0)
    if rank == 1:
        old.Send(one, 0, 5)
        old.send("old", 0, 5)
        requests = [old.Isend(big, 0, 5), old.Issend(one, 0, 6), old.isend(big, 0, 6)]
    else:
        requests = [old.Irecv(one, MPI.ANY_SOURCE, 9), old.Irecv(big, 1, MPI.ANY_TAG)]  # the second gets one of them
    old.Free()
    statuses = []
    MPI.Request.Waitall(requests, statuses)
    comm.world.turn = old.incarnation + 13105
    new, got = comm.Dup(), np.full(1, 2.0)
    assert new.number == old.number
    if rank == 1:
        new.Send(got, 0, 9)
        new.Send(got, 0, 5)
        new.Send(got, 0, 6)
    else:
        assert [one.Is_cancelled() for one in statuses] == [True, False]
        for tag in (9, MPI.ANY_TAG, MPI.ANY_TAG):
            into = np.zeros(1)
            new.Recv(into, MPI.ANY_SOURCE, tag)
            assert into[0] == 2.0, (tag, into)
        assert one[0] == 1.0 and big[0] == 1.0
    new.Barrier()
    assert comm.world.counters()["unexpected_now"] == 0
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_calls_on_a_freed_communicator_are_refused_while_its_operations_go_on(program):
    done = job(2, program("""
        a, one, many = comm.Dup(), np.ones(1), np.ones(2)
        a.Barrier()
        kept = a.irecv(source=1 - rank, tag=3)
        prepared, started = a.Send_init(one, 0), a.Barrier_init()
        a.Free()
        assert a.number in comm.world.used and not a
        for call, *args in [
            (a.Send, one, 0), (a.Recv, one, 0), (a.Isend, one, 0), (a.Irecv, one, 0), (a.send, 1, 0), (a.recv,),
            (a.isend, 1, 0), (a.irecv,), (a.Ssend, one, 0), (a.Bsend, one, 0), (a.Sendrecv, one, 0, 0, one), (a.Probe,),
            (a.Iprobe,), (a.Mprobe,), (a.Improbe,), (a.Barrier,), (a.Bcast, one), (a.Reduce, one, one),
            (a.Allreduce, one, many[:1]), (a.Allgather, one, many), (a.Alltoall, many, many.copy()), (a.Ibarrier,),
            (a.Gather, one, many), (a.bcast, 1), (a.allgather, 1), (a.barrier,), (a.Dup,), (a.Split,), (a.Free,),
            (a.Create, a.group), (a.Create_group, a.group), (a.Create_cart, [2]), (prepared.Start,), (started.Start,),
        ]:
            try:
                call(*args)
            except MPI.Exception as problem:
                assert problem.Get_error_class() == MPI.ERR_COMM and "has been freed" in str(problem), (call, problem)
            else:
                raise AssertionError(call)
        comm.Barrier()
        kept.Cancel()
        kept.wait()
        assert a.number not in comm.world.used
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_making_a_communicator_is_one_exchange(program):
    done = job(3, program("""
        import threading
        def exchanges(call, *args):
            before = comm._n_collectives
            call(*args)
            return comm._n_collectives - before
        calls = [(comm.Dup,), (comm.Split, rank % 2, -rank), (comm.Split_type, MPI.COMM_TYPE_SHARED),
                 (comm.Create, comm.group), (comm.Create_cart, [3])]
        assert [exchanges(*one) for one in calls] == [1] * 5
        if rank == 1:  # with threads numbers have to be agreed upon
            done = threading.Event()
            threading.Thread(target=done.wait).start()
        comm.Barrier()
        assert [exchanges(*one) for one in calls] == [2] * 5
        if rank == 1:
            done.set()
        assert comm.Split(rank % 2, -rank).allgather(rank) == ([2, 0] if rank % 2 == 0 else [1])
        assert comm.Split_type(MPI.COMM_TYPE_SHARED, -rank).allgather(rank) == [2, 1, 0]
        assert comm.Split_type(MPI.UNDEFINED) == MPI.COMM_NULL
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_numbers_go_round_and_skip_those_in_use(program):
    done = job(3, program("""
        kept = comm.Dup()
        comm.world.turn += rank  # ranks that have made communicators of their own meanwhile
        first = comm.Split(rank % 2)
        assert first.number == kept.number + 3, first.number
        comm.world.turn = 13104
        last, next_ = comm.Dup(), comm.Create_cart([3])
        assert last.number == 13106, last.number
        assert next_.number not in (0, 1, kept.number, first.number, last.number), next_.number
        assert comm.Create(comm.group.Incl([0])) == MPI.COMM_NULL or rank == 0
        few = comm.Create_group(comm.group.Incl([2, 0]), 5)
        if few != MPI.COMM_NULL:
            assert few.allgather(rank) == [2, 0]
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [2, 3])
def test_two_threads_make_communicators(program, ranks):
    """Out of two communicators at once, which MPI allows: none gets the number of another."""
    done = job(ranks, program("""
        import threading
        made = [[], []]
        rows = [comm.Dup(), comm.Dup()]

        def work(which):
            for i in range(20):
                row = rows[which]
                made[which].append(row.Dup() if i % 2 else row.Create_group(row.group, which))

        threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        numbers = [one.number for one in rows + made[0] + made[1]]
        assert len(set(numbers)) == 42, sorted(numbers)
        assert comm.allgather(numbers) == [numbers] * size
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- agreement


def test_members_agree_and_shrink(program):
    done = job(3, program("""
        flag = np.array([0b1100 | rank], np.intc)
        assert comm.Agree(0b100 | rank) == 0b100
        request = comm.Iagree(flag)
        request.Wait()
        assert flag[0] == 0b1100
        for bad in (bytearray(8), np.zeros(2, np.intc), b"1234"):
            with raises(ValueError, words="one int"):
                comm.Iagree(bad)
        low = comm.Split(rank == 0)
        pair = low.Create_intercomm(0, comm, 1 if rank == 0 else 0)
        assert pair.Agree(0b1000 | rank) == 0b1000
        for whole in (comm, pair):
            same = whole.Shrink()
            assert (same.rank, same.size, same.is_inter) == (whole.rank, whole.size, whole.is_inter)
            same.Free()
        print("agreed")
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["agreed"] * 3


@pytest.mark.parametrize("call", ["comm.Agree(0b110 | rank)", "comm.Shrink().allreduce(1) + 4"])
def test_members_agree_without_one_that_died(program, tmp_path, call):
    done = job(3, program(f"""
        import os
        comm.Barrier()
        if rank == 2:
            comm.world.abort()  # the process lives on, so that the launcher does not end the others
            until(lambda: all(os.path.exists(f"{tmp_path}/{{r}}") for r in (0, 1)))
            os._exit(0)
        assert {call} == 6
        assert comm.Get_failed().size == 1
        left = comm.Shrink()
        assert (left.rank, left.size, left.allgather(rank)) == (rank, 2, [0, 1])
        print("agreed", flush=True)
        open(f"{tmp_path}/{{rank}}", "w").close()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["agreed"] * 2
