"""Communicators with mpi4py's interface: programs of several ranks, over every channel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import needs
import pytest

from viakit.measure import mpi

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
DEADLINE_S = 90.0
PROTOCOLS = ("via", "bip", "tcp")


def job(ranks: int, *words: str, protocol: str = "via") -> subprocess.CompletedProcess[str]:
    """Run a program on so many ranks."""
    command = [sys.executable, "-m", "viakit", "run", "-n", str(ranks), "--protocol", protocol, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.fixture
def program(tmp_path):
    """Write a program and return its path."""

    def write(text: str) -> str:
        path = tmp_path / "prog.py"
        head = (
            "import numpy as np\nfrom viakit.mpi import MPI\ncomm = MPI.COMM_WORLD\nrank, size = comm.rank, comm.size\n"
        )
        path.write_text(head + textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_basic_calls(protocol, ranks):
    done = job(ranks, str(PROGRAMS / "mpi_first.py"), protocol=protocol)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("program", ["mpi_first.py", "names_over_mpi.py"])
@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_basic_calls_over_mpi(flavour, program):
    """By mpi4py's own names, and by ours in front of it."""
    needs.mpi_library(f"mpi:{flavour}")
    words = [str(PROGRAMS / program), *([str(PROGRAMS / "mpi_first.py")] if program == "names_over_mpi.py" else [])]
    for ranks in (1, 3):
        done = job(ranks, *words, protocol=f"mpi:{flavour}")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_one_by_one_give_what_mpi4py_gives(ranks, tmp_path):
    """Each line is a call and its result, under Open MPI and on every channel."""
    needs.mpi_library("mpi:openmpi")
    path = str(PROGRAMS / "mpi_calls.py")
    expected = job(ranks, path, protocol="mpi:openmpi")
    assert expected.returncode == 0, expected.stderr
    assert expected.stdout.count("\n") > 60 * ranks
    for protocol in PROTOCOLS:
        done = job(ranks, path, protocol=protocol)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == expected.stdout.splitlines(), protocol


# ---------------------------------------------------------------- the same program, the same results


def under_mpi(ranks: int, scratch: Path) -> str:
    """What the program prints under mpi4py and Open MPI."""
    library = needs.mpi_library("mpi:openmpi")
    command = library.command([sys.executable, str(PROGRAMS / "mpi_program.py")])
    command[2] = str(ranks)
    environment = {**os.environ, **library.environment(str(scratch)), "MPI_MODULE": "mpi4py"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_same_results_as_mpi4py(ranks, tmp_path):
    expected = under_mpi(ranks, tmp_path)
    assert expected.startswith("hash ")
    for protocol in PROTOCOLS:
        done = job(ranks, str(PROGRAMS / "mpi_program.py"), protocol=protocol)
        assert done.returncode == 0, done.stderr
        assert done.stdout == expected, protocol
    program = str(PROGRAMS / "mpi_program.py")
    done = job(ranks, str(PROGRAMS / "names_over_mpi.py"), program, protocol="mpi:mpich")
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_errors_have_their_class_and_say_what_is_wrong(program, protocol):
    done = job(2, program("""
        def expect(code, words, function, *args, **kwargs):
            try:
                function(*args, **kwargs)
            except MPI.Exception as error:
                assert error.Get_error_class() == code, error
                assert words in str(error), error
            else:
                raise AssertionError(f"no error where {words} was expected")
        one = np.zeros(1)
        expect(MPI.ERR_RANK, "ranks 0 to 1", comm.Send, one, 2)
        expect(MPI.ERR_RANK, "ranks 0 to 1", comm.Recv, one, 7)
        expect(MPI.ERR_TAG, "tag", comm.Send, one, 0, -1)
        expect(MPI.ERR_ROOT, "root 2", comm.Bcast, one, 2)
        expect(MPI.ERR_COUNT, "-1", comm.Send, [one, -1, MPI.DOUBLE], 0)
        try:
            comm.Send([one, -1, MPI.DOUBLE], 0)
        except ValueError:  # as it is with mpi4py
            pass
        expect(MPI.ERR_TRUNCATE, "do not fit", comm.Send, [one, 2, MPI.DOUBLE], 0)
        request = comm.Isend(np.zeros(9), 1 - rank)
        expect(MPI.ERR_TRUNCATE, "", comm.Recv, one, 1 - rank)
        request.Wait()
        expect(MPI.ERR_OP, "MAXLOC", comm.Allreduce, one, one.copy(), MPI.MAXLOC)
        expect(MPI.ERR_COMM, "COMM_WORLD", comm.Free)
        again = comm.Dup()
        again.Free()
        expect(MPI.ERR_COMM, "", again.Send, one, 0)
        for wrong in (lambda: comm.Send(np.zeros((4, 4))[:, 1], 0), lambda: comm.Send([one] * 5, 0)):
            try:
                wrong()
            except ValueError:
                continue
            raise AssertionError("no ValueError")
        for wrong in (lambda: comm.Send(np.array([{}]), 0), lambda: comm.Send([object(), MPI.INT], 0)):
            try:
                wrong()
            except (KeyError, TypeError):
                continue
            raise AssertionError("no error")
        comm.Barrier()
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_mismatched_collectives_are_told(program):
    done = job(2, program("""
        try:
            comm.Bcast(np.zeros(3)) if rank == 0 else comm.Allreduce(np.zeros(3), np.zeros(3))
            comm.Barrier()
        except MPI.Exception as error:
            print(rank, error, flush=True)
    """))  # fmt: skip
    assert "mismatched collectives" in done.stdout, (done.stdout, done.stderr)


def test_counts_that_differ_are_told(program):
    done = job(2, program("""
        try:
            comm.Bcast(np.zeros(3 + rank))
        except MPI.Exception as error:
            print(error, flush=True)
    """))  # fmt: skip
    assert "counts or datatypes differ" in done.stdout, (done.stdout, done.stderr)


CALLS = {
    "barrier": "comm.Barrier()",
    "bcast": "comm.Bcast(big, 2)",
    "allreduce": "comm.Allreduce(big, out)",
    "allgather": "comm.Allgather(big[:1000], np.zeros((3, 1000)))",
    "alltoall": "comm.Alltoall(big[:3000], out[:3000])",
    "reduce": "comm.Reduce(big, out)",
    "object": "comm.allgather({})",
    "recv": "comm.Recv(big, 2)",
    "mismatched": "comm.Sendrecv(big[:5], 1 - rank, 5, out, 2, 70 + rank)",  # what nobody sends, from one that died
    "any": "comm.Recv(big)",
    "non-blocking": "comm.Iallreduce(big, out).Wait()",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_rank_that_dies_is_told_to_the_others(program, tmp_path, call):
    done = job(3, program(f"""
        import os, signal, sys, time
        big, out = np.zeros(60000), np.zeros(60000)
        comm.Barrier()
        if rank == 2:
            comm.world.abort()  # the process lives on, so that the launcher does not end the others
            deadline = time.monotonic() + 30
            while not all(os.path.exists(f"{tmp_path}/{{r}}") for r in (0, 1)) and time.monotonic() < deadline:
                time.sleep(0.02)
            os._exit(0)
        try:
            for _ in range(1000):
                {CALLS[call]}
        except MPI.Exception as error:
            code = error.Get_error_class()
            assert code in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_ABORTED), error
            print(rank, "told", flush=True)
        open(f"{tmp_path}/{{rank}}", "w").close()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["0", "1", "told", "told"], (done.stdout, done.stderr)


def test_ctrl_c_ends_a_wait(program):
    command = [sys.executable, "-m", "viakit", "run", "-n", "2", program("""
        import os
        if rank == 0:
            try:
                print("pid", os.getpid(), flush=True)
                comm.Recv(np.zeros(1), 1, 99)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        comm.Barrier()
    """)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline().split()[1])
        os.kill(pid, signal.SIGINT)
        rest = running.communicate(timeout=DEADLINE_S)[0]
    assert running.returncode == 0
    assert "interrupted" in rest


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_of_two_bytes_are_reduced_as_such(program, protocol):
    done = job(3, program("""
        mine, out = np.array([1.5, -2.0, 1e4], np.float16), np.zeros(3, np.float16)
        for code in ("e", "f2", "<f2"):
            assert MPI.Datatype.fromcode(code) == MPI.FLOAT16_T, code
        comm.Allreduce(mine, out)
        assert (out == np.array([4.5, -6.0, 3e4], np.float16)).all(), out
        comm.Allreduce([mine, MPI.FLOAT16_T], [out, MPI.FLOAT16_T], MPI.MIN)
        assert (out == mine).all(), out
        comm.Reduce(mine + np.float16(rank), out, MPI.MAX, 1)
        assert rank != 1 or (out == mine + np.float16(2)).all(), out
        comm.Scan(mine, out)
        assert (out == mine * np.float16(rank + 1)).all(), out
        request = comm.Iallreduce(mine, out, MPI.PROD)
        request.Wait()
        assert out[0] == 1.5**3, out
        comm.Allgather(mine[:1], out)
        assert (out == 1.5).all(), out
        try:
            comm.Allreduce(mine, out, MPI.BAND)
        except MPI.Exception as problem:
            assert problem.Get_error_class() == MPI.ERR_OP, problem
        else:
            raise AssertionError("no error")
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["isend", "issend", "ibsend"])
def test_an_object_is_sent_as_it_was(program, call):
    """Also what is too large to be pickled."""
    done = job(2, program(f"""
        if rank == 0:
            MPI.Attach_buffer(bytearray(1 << 21))
            large, small = np.ones(100000), np.ones(3)
            request = comm.{call}([large, small], 1)
            large[:] = small[:] = -1
            comm.Barrier()
            request.wait()
            MPI.Detach_buffer()
        else:
            comm.Barrier()
            large, small = comm.recv(source=0)
            assert (large == 1).all() and (small == 1).all(), (large, small)
            large[:] = 2  # an array of its own
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- calls that end before their time

# `interrupt` sends a SIGINT when the main thread has been at the same place of viakit's for a while: it waits.
INTERRUPT = """
    import os, signal, sys, threading, time

    def until(condition):
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)

    def interrupt(waits_in="_comm"):
        def look():
            places = []

            def waits():
                frame = sys._current_frames()[threading.main_thread().ident]
                places.append((frame.f_code, frame.f_lineno))
                return len(places) > 5 and len(set(places[-5:])) == 1 and waits_in in frame.f_code.co_filename

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
        interrupt("prog.py" if {call!r} == "comm.Recv(got, 1, 7)" and not {beside!r} else "_comm")
        try:
            {call}
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("no interrupt")
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
        try:
            {call}
        except KeyboardInterrupt:
            request.Wait()
        else:
            raise AssertionError("no interrupt")
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
            try:
                end(request)
            except KeyboardInterrupt:
                end(request)
            else:
                raise AssertionError("no interrupt")
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
        try:
            {call}
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("no interrupt")
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
    from viakit._comm.request import ScheduleRequest
    go, got = comm.Dup(), np.zeros(1)

    def schedule():
        yield [comm.Irecv(got, 1, 5)]
        signal.raise_signal(signal.SIGINT)
        yield []

    comm.Barrier()
    if rank == 0:
        request, other = ScheduleRequest(comm, schedule()), comm.Irecv(got.copy(), 1, 98)
        go.Send(got, 1)
        try:
            {call}
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("no interrupt")
        try:
            request.Wait()
        except MPI.Exception as problem:
            assert "ended by KeyboardInterrupt" in str(problem), problem
        else:
            raise AssertionError("it has ended well")
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
            interrupt()
            try:
                comm.allgather(rank)
            except KeyboardInterrupt:
                go.Send(got, 1)
                go.Send(got, 2)
            else:
                raise AssertionError("no interrupt")
        else:
            if rank == 1:
                go.Recv(got, 0)
            try:
                comm.allgather(rank)
            except MPI.Exception as problem:
                assert problem.Get_error_class() == MPI.ERR_PROC_ABORTED, problem
                assert "has given up this collective" in str(problem), problem
            else:
                raise AssertionError("no error")
            if rank == 2:
                go.Recv(got, 0)
        for i in range(5):
            assert comm.allgather(rank + i) == [i, 1 + i, 2 + i]
    comm.Barrier()
    assert comm.world.counters()["posted_now"] <= before, (before, comm.world.counters())
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
        try:
            bcast(1.0)
        except KeyboardInterrupt:
            go.Send(got, 1)
        else:
            raise AssertionError("no interrupt")

    first = comm._n_collectives + 1
    if rank == 0:
        interrupted()
        interrupted()
    else:
        go.Recv(got, 0)
        try:
            comm._run(comm._make(type(comm)._bcast, [got, 99], 1))  # refused: nothing is sent
        except ValueError:
            pass
        go.Recv(got, 0)
        bcast(1.0)  # sent, when nobody receives it
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
            try:
                comm.bcast(1, 0)
                comm.Scatterv([np.zeros(2), [1, 1]] if rank == 0 else None, np.zeros(1))  # two counts for three ranks
            except ValueError:
                assert rank == 0
            except MPI.Exception as problem:
                assert rank > 0 and problem.Get_error_class() == MPI.ERR_PROC_ABORTED, problem
            else:
                raise AssertionError("no error")
            if _ == 2:
                break
        assert comm.allgather(rank) == [0, 1, 2]
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_receive_whose_send_fails_does_not_get_the_next_message(program):
    done = job(2, program("""
        def fail(function, *args, **kwargs):
            try:
                function(*args, **kwargs)
            except MPI.Exception:
                return
            raise AssertionError("no error")
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


# ---------------------------------------------------------------- communicators one after the other

# `succeed` frees a communicator and makes another, of another number or, when numbers have come round, of the same.
LEFT_OVER = """
    import time

    def succeed(old, again):
        old.Free()
        if again:
            comm.world.turn = old.birth + 13105
        new = comm.Dup()
        assert new.number == old.number or not again
        return new

    def until(condition):
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)
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
        until(lambda: old.look(0, NOTE, None, 0, 4))  # rank 0 waits, says so, and nobody reads it
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
    from viakit._comm.collective import Step
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
    try:
        old.Bcast(x, 1) if rank == 0 else old.Allreduce(x, x.copy())
    except MPI.Exception:
        pass
    else:
        raise AssertionError("no error")
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
            try:
                one_of.Send(one, 0)
            except MPI.Exception as problem:
                assert problem.Get_error_class() == MPI.ERR_COMM, problem
            else:
                raise AssertionError("no error")
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_messages_nobody_received_do_not_reach_the_next_communicator_of_the_number(program, protocol):
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
    comm.world.turn = old.birth + 13105
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


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_threads_wait_for_objects(program, protocol):
    """One that waits while the other lets schedules go on: both must not notice the end of the same receive."""
    done = job(2, program("""
        import threading
        failed, big = [], np.zeros(10000)

        def work(tag):
            try:
                for i in range(400):
                    if rank == 0:
                        assert comm.irecv(source=1, tag=tag).wait()[:2] == (tag, i)
                    else:
                        comm.isend((tag, i, big if i % 2 else None), 0, tag).wait()
                    if i % 50 == 49:
                        comm.sendrecv(0, 1 - rank, tag + 10, source=1 - rank, recvtag=tag + 10)
            except BaseException as problem:
                failed.append(problem)
                raise

        threads = [threading.Thread(target=work, args=(tag,)) for tag in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed
    """), protocol=protocol)  # fmt: skip
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


def test_a_request_that_is_garbage_keeps_its_buffer_until_the_message_has_come():
    text = """
import gc, sys
from viakit.mpi import MPI
comm, buf = MPI.COMM_WORLD, bytearray(8)
def leave():
    request = comm.Irecv(buf, 0, 1)
    try:
        request["no index"]
    except TypeError as error:
        kept = error  # its traceback has this frame: only the collector finds it
before = sys.getrefcount(buf)
leave()
gc.collect()
assert sys.getrefcount(buf) == before + 1, "the world has it now"
comm.Send(b"12345678", 0, 1)
assert buf == b"12345678"
gc.collect()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
