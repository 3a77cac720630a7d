"""Communicators with mpi4py's interface: programs of several ranks, over every channel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import needs
import pytest
from comm_job import DEADLINE_S, PROGRAMS, PROTOCOLS, job

from viakit.launch import mpi_library as mpi


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_basic_calls(protocol, ranks):
    done = job(ranks, str(PROGRAMS / "mpi_first.py"), protocol=protocol)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_basic_calls_over_mpi(flavour):
    needs.mpi_library(f"mpi:{flavour}")
    for ranks in (1, 3):
        done = job(ranks, str(PROGRAMS / "mpi_first.py"), protocol=f"mpi:{flavour}")
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


def test_counters_show_that_an_array_in_an_object_is_not_copied():
    done = job(2, str(PROGRAMS / "mpi_objects.py"), protocol="via")
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_errors_have_their_class_and_say_what_is_wrong(program, protocol):
    done = job(2, program("""
        def expect(code, words, function, *args, **kwargs):
            with raises(MPI.Exception, code, words):
                function(*args, **kwargs)
        one = np.zeros(1)
        expect(MPI.ERR_RANK, "rank must be 0 to 1", comm.Send, one, 2)
        expect(MPI.ERR_RANK, "rank must be 0 to 1", comm.Recv, one, 7)
        expect(MPI.ERR_TAG, "tag", comm.Send, one, 0, -1)
        expect(MPI.ERR_ROOT, "root 2", comm.Bcast, one, 2)
        expect(MPI.ERR_COUNT, "-1", comm.Send, [one, -1, MPI.DOUBLE], 0)
        with raises(ValueError):  # as it is with mpi4py
            comm.Send([one, -1, MPI.DOUBLE], 0)
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
            with raises(ValueError):
                wrong()
        for wrong in (lambda: comm.Send(np.array([{}]), 0), lambda: comm.Send([object(), MPI.INT], 0)):
            with raises((KeyError, TypeError)):
                wrong()
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
    "mismatched": "comm.Sendrecv(big[:5], 1 - rank, 5, out, 2, 70 + rank)",  # never sent, from a dead rank
    "any": "comm.Recv(big)",
    "gather": "comm.Gather(big, np.zeros(3 * 60000))",
    "objects": "comm.gather(rank), comm.scatter([1, 2, 3])",
    "all objects": "comm.allgather(rank)",
    "non-blocking": "comm.Iallreduce(big, out).Wait()",
    "non-blocking barrier": "comm.Ibarrier().Wait()",
    "two at once": "MPI.Request.Waitall([comm.Iallreduce(big[:9], out[:9]), comm.Iallgather(big[:1], out[:3])])",
    "vector": "comm.Alltoallv([big, [20000] * 3], [out, [20000] * 3])",
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
        with raises(MPI.Exception, MPI.ERR_OP):
            comm.Allreduce(mine, out, MPI.BAND)
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


# ---------------------------------------------------------------- threads


def test_other_threads_run_while_a_call_with_little_data_waits(program):
    """The other rank enters it after a message of a thread that runs only when this rank's call releases the GIL."""
    done = job(2, program("""
        import sys
        import threading

        out, into = np.full(2, float(rank)), np.zeros(2)
        calls = {
            "Barrier": lambda: comm.Barrier(),
            "Bcast": lambda: comm.Bcast(into, 1),
            "Reduce": lambda: comm.Reduce(out, into, MPI.SUM, 0),
            "Allreduce": lambda: comm.Allreduce(out, into),
            "Allgather": lambda: comm.Allgather(out[:1], into),
            "Alltoall": lambda: comm.Alltoall(out, into),
            "Recv": lambda: comm.Recv(into, 1) if rank == 0 else comm.Send(out, 0),
            "Wait": lambda: comm.Irecv(into, 1).Wait() if rank == 0 else comm.Send(out, 0),
        }
        control = comm.Dup()
        sys.setswitchinterval(60)  # the interpreter does not take the GIL from the main thread
        for name, call in calls.items():
            call()
            comm.Barrier()
            if rank == 0:
                enters = threading.Event()

                def work():
                    enters.wait()
                    control.Send(np.zeros(1), 1)

                thread = threading.Thread(target=work)
                thread.start()
                enters.set()
                call()
                thread.join()
            else:
                control.Recv(np.zeros(1), 0)
                call()
            print(name)
    """))  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert done.stdout.count("Wait") == 2


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
