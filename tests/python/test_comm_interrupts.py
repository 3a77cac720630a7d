"""Calls that end early, by Ctrl-C or because a rank gave up: they do not affect any later call."""

from __future__ import annotations

import pytest
from comm_job import job

# `interrupt` sends a SIGINT when the main thread has been at the same place of viakit's for a while: it waits.
INTERRUPT = """
    import os, signal, sys, threading

    def interrupt(waits_in="viakit/comm", begun=lambda: True):
        def look():
            places = []

            def waits():
                frame = sys._current_frames()[threading.main_thread().ident]
                places.append((frame.f_code, frame.f_lineno))
                still = len(places) > 5 and len(set(places[-5:])) == 1
                return still and waits_in in frame.f_code.co_filename and begun()

            until(waits)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=look).start()
"""


@pytest.mark.parametrize("beside", ["", "beside = comm.Ibarrier()"])
@pytest.mark.parametrize(
    "call",
    [
        "comm.Recv([got, MPI.DOUBLE], 1, 7)",
        "comm.Recv(got, 1, 7)",
        "comm.Sendrecv(got, 1, 6, got.copy(), 1, 7)",
        "comm.recv(source=1, tag=7)",
        "comm.sendrecv(1, 1, 6, source=1, recvtag=7)",
    ],
)
def test_an_interrupted_receive_does_not_get_the_next_message(program, call, beside):
    done = job(2, program(INTERRUPT + f"""
    go = comm.Dup()
    if rank == 0:
        got = np.zeros(1)
        {beside}
        # Without anything beside, these two wait inside the extension, so the innermost frame is the program's.
        interrupt("prog.py" if {call!r}[:10].lower() == "comm.recv(" and not {beside!r} else "viakit/comm")
        with raises(KeyboardInterrupt):
            {call}
        go.Send(got, 1)
        until(lambda: comm.Iprobe(1, 7))
        if "recv(" in {call!r}:
            assert comm.recv(source=1, tag=7) == 42.0
        else:
            comm.Recv(got, 1, 7)
            assert got[0] == 42.0
    else:
        go.Recv(np.zeros(1), 0)
        comm.send(42.0, 0, 7) if "recv(" in {call!r} else comm.Send(np.full(1, 42.0), 0, 7)
        {beside}
    if {beside!r}:
        beside.Wait()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["comm.Recv(got, 1, 7)", "request.Wait()"])
def test_ctrl_c_as_a_message_comes_is_a_keyboard_interrupt(program, call):
    """The signal's handler raises when it has seen to it that the message is there."""
    done = job(2, program(INTERRUPT + f"""
    go, got = comm.Dup(), np.zeros(1)

    def handler(*_):
        go.Send(got, 1)
        go.Recv(np.zeros(1), 1)  # sent after the message
        raise KeyboardInterrupt

    if rank == 0:
        signal.signal(signal.SIGINT, handler)
        request = comm.Irecv(got, 1, 7) if "request" in {call!r} else MPI.REQUEST_NULL
        interrupt("prog.py")
        with raises(KeyboardInterrupt):
            {call}
        request.Wait()
        assert got[0] == 42.0, got
    else:
        go.Recv(got, 0)
        comm.Send(np.full(1, 42.0), 0, 7)
        go.Send(got, 0)
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_ctrl_c_as_a_message_is_unpacked_does_not_lose_it(program):
    done = job(1, program("""
        import signal
        for end in (MPI.Request.Wait, MPI.Request.Test):
            got = np.zeros(4)
            request = comm.Irecv([got, 1, MPI.DOUBLE.Create_vector(2, 1, 2)], 0)
            unpack, signals = request.after, [signal.SIGINT]
            request.after = lambda done: (signals and signal.raise_signal(signals.pop()), unpack(done))
            comm.Send(np.full(2, 42.0), 0)
            with raises(KeyboardInterrupt):
                end(request)
            end(request)
            assert got.tolist() == [42.0, 0.0, 42.0, 0.0], got
            assert not request
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["comm.Barrier()", "comm.Allreduce(np.ones(4), np.zeros(4))", "comm.Bcast(got, 1)"])
def test_ctrl_c_ends_a_collective_beside_an_operation_under_way(program, call):
    """The collective waits in C, and the signal's handler runs in the steps that it makes meanwhile."""
    done = job(2, program(INTERRUPT + f"""
    go, got = comm.Dup(), np.zeros(4)
    comm.Barrier()
    beside = go.Ibarrier() if rank == 0 else None
    if rank == 0:
        interrupt("prog.py")
        with raises(KeyboardInterrupt):
            {call}
        assert not beside.Test()
        go.Send(got, 1)
    else:
        until(lambda: go.Iprobe(0))  # and not for ever
        go.Recv(got, 0)
        beside = go.Ibarrier()
    beside.Wait()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["comm.Barrier()", "comm.Recv(got, 1, 99)", "other.Wait()", "request.Wait()"])
def test_an_operation_that_ctrl_c_has_ended_has_not_ended_well(program, call):
    done = job(2, program(INTERRUPT + f"""
    from viakit.comm.schedule import ScheduleRequest
    go, got = comm.Dup(), np.zeros(1)

    def schedule():
        yield [comm.Irecv(got, 1, 5)]
        signal.raise_signal(signal.SIGINT)
        yield []

    comm.Barrier()
    if rank == 0:
        request, other = ScheduleRequest(comm, schedule()), comm.Irecv(got.copy(), 1, 98)
        go.Send(got, 1)
        with raises(KeyboardInterrupt):
            {call}
        with raises(MPI.Exception, words="ended by KeyboardInterrupt"):
            request.Wait()
        go.Send(got, 1)
        other.Wait()
    else:
        go.Recv(got, 0)
        comm.Send(got, 0, 5)
        go.Recv(got, 0)
        comm.Send(got, 0, 98)
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("beside", ["", "beside = go.Ibarrier()"])
def test_a_collective_by_messages_that_is_interrupted_is_given_up_by_all(program, beside):
    """... wherever they are in it; then the communicator goes on."""
    done = job(3, program(INTERRUPT + f"""
    go, got = comm.Dup(), np.zeros(4)
    {beside}
    before = comm.world.counters()["posted_now"]
    for _ in range(2):
        if rank == 0:
            number = comm._n_collectives  # the call waits in a frame of viakit/comm, or on the short path in this one
            interrupt("", lambda: comm._n_collectives > number)
            with raises(KeyboardInterrupt):
                comm.allgather(rank)
            go.Send(got, 1)
            go.Send(got, 2)
        else:
            if rank == 1:
                go.Recv(got, 0)
            with raises(MPI.Exception, MPI.ERR_PROC_ABORTED, "has given up this collective"):
                comm.allgather(rank)
            if rank == 2:
                go.Recv(got, 0)
        for i in range(5):
            assert comm.allgather(rank + i) == [i, 1 + i, 2 + i]
    comm.Barrier()
    assert comm.world.counters()["posted_now"] <= before, (before, comm.world.counters())
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_create_group_that_is_interrupted_is_given_up_by_its_members(program):
    """... whatever else goes on; what they had sent does not reach the next of the same tag, nor one of another tag."""
    done = job(4, program(INTERRUPT + """
    go, got, group = comm.Dup(), np.zeros(4), comm.group.Incl([3, 0, 1])
    for turn in range(3):
        beside = go.Ibarrier() if turn == 2 else None
        if rank == 0:
            interrupt()
            with raises(KeyboardInterrupt):
                comm.Create_group(group, 7)
            go.Send(got, 1)
            go.Send(got, 3)
        elif rank != 2:
            if rank == 1:
                go.Recv(got, 0)
            with raises(MPI.Exception, MPI.ERR_PROC_ABORTED, "has given up this collective"):
                comm.Create_group(group, 7)
            if rank == 3:
                go.Recv(got, 0)
        for tag in (7, 8, 7):
            few = comm.Create_group(group, tag)
            assert rank == 2 or few.allgather(rank) == [3, 0, 1]
        if beside is not None:
            beside.Wait()
    whole = comm.Create_group(comm.group, 7)
    assert whole.allgather(rank) == [0, 1, 2, 3]
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_what_is_left_of_an_interrupted_collective_does_not_reach_a_later_one(program):
    """Their messages look alike when the numbers of collectives have come round."""
    done = job(2, program(INTERRUPT + """
    go, got = comm.Dup(), np.zeros(4)

    def bcast(data):
        into = np.zeros(4) if rank == 0 else np.full(4, data)
        comm._run(comm._make(type(comm)._bcast, into, 1))
        assert (into == data).all(), into

    def interrupted():
        interrupt()
        with raises(KeyboardInterrupt):
            bcast(1.0)
        go.Send(got, 1)

    first = comm._n_collectives + 1
    if rank == 0:
        interrupted()
        interrupted()
    else:
        go.Recv(got, 0)
        with raises(ValueError):
            comm._run(comm._make(type(comm)._bcast, [got, 99], 1))  # refused: nothing is sent
        go.Recv(got, 0)
        bcast(1.0)  # sent, when no rank receives it
    comm.Barrier()
    for later in (2**11, 2**12, 2**16):
        comm._n_collectives = first + later - 1
        bcast(2.0)
        bcast(2.0)
        comm.Barrier()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_collective_that_one_rank_refuses_is_given_up_by_the_others(program):
    done = job(3, program("""
        for _ in range(100):
            with raises(ValueError) if rank == 0 else raises(MPI.Exception, MPI.ERR_PROC_ABORTED):
                comm.bcast(1, 0)
                comm.Scatterv([np.zeros(2), [1, 1]] if rank == 0 else None, np.zeros(1))  # two counts for three ranks
            if _ == 2:
                break
        assert comm.allgather(rank) == [0, 1, 2]
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_receive_whose_send_fails_does_not_get_the_next_message(program):
    done = job(2, program("""
        def fail(function, *args, **kwargs):
            with raises(MPI.Exception):
                function(*args, **kwargs)
        one = np.full(1, 42.0)
        if rank == 0:
            fail(comm.Sendrecv, one, 99, 0, one.copy(), 1, 7)
            fail(comm.Isendrecv, one, 99, 0, one.copy(), 1, 7)
            fail(comm.Sendrecv_replace, one, 99, 0, 1, 7)
            fail(comm.sendrecv, 0, 99, 0, source=1, recvtag=7)
            comm.Barrier()
            one[:] = 0
            receive = comm.Irecv(one, 1, 7)
            comm.recv(source=1, tag=8)  # which was sent later
            assert receive.Test() and one[0] == 42.0, one
        else:
            comm.Barrier()
            comm.Send(one, 0, 7)
            comm.send(None, 0, 8)
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_long_messages_are_copied_by_both_ranks_unless_one_does_not_wait(program):
    done = job(2, program(INTERRUPT + """
    sizes = [32 << 10, (32 << 10) + 1, 100_001, 1 << 20, 4 << 20]
    both = len(sizes) + 1 if len(os.sched_getaffinity(0)) > 1 else 0  # more ranks than cores: the sender copies
    shared = lambda: comm.world.counters()["shared"]
    for nbytes in sizes:
        data, into = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        for sender in range(2):
            if rank == sender:
                comm.Send(data, 1 - sender)
            else:
                comm.Recv(into, sender)
                assert np.array_equal(into, data), nbytes
    # The buffer of a send that was interrupted is the program's again; its message is still delivered, and shared.
    ready, sent = np.zeros(1), data.copy()
    if rank == 0:
        interrupt("prog.py")
        with raises(KeyboardInterrupt):
            comm.Send(data, 1, 7)
        data[:] = 0
        comm.Send(ready, 1, 8)
        comm.Recv(ready, 1, 8)
        assert shared() == both
    else:
        into[:] = 0
        comm.Recv(ready, 0, 8)
        comm.Recv(into, 0, 7)
        assert np.array_equal(into, sent)
        comm.Send(ready, 0, 8)
        assert shared() == max(both - 1, 0)
    # A rank that computes after Irecv reads nothing: the sender writes all.
    before = shared()
    if rank == 0:
        comm.Recv(ready, 1)
        comm.Send(sent, 1, 9)
    else:
        into[:] = 0
        request = comm.Irecv(into, 0, 9)
        comm.Send(ready, 0)
        request.Wait()
        assert np.array_equal(into, sent)
    assert shared() == before
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
