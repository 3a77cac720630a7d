"""Forks in ranks whose other threads are in calls: the child uses nothing of its parent and waits for no lock of it.

`VIAKIT_FORKS` is the number of forks of each rank in the test under traffic (60; ``tools/soak`` makes 10,000 in all).
"""

from __future__ import annotations

import os

import pytest
from comm_job import DEADLINE_S, PROTOCOLS, job

FORKS = int(os.environ.get("VIAKIT_FORKS", "60"))

TRAFFIC = """
    import gc, multiprocessing, os, signal, subprocess, sys, threading
    from viakit import errors
    stop = False
    one, two, three = comm.Dup(), comm.Dup(), comm.Dup()

    def stopped(c):
        every = np.zeros(1)
        c.Allreduce(np.full(1, float(stop)), every, MPI.MIN)
        return every[0]

    def messages():
        while not stopped(one):
            got = np.zeros(3000)
            request = one.Irecv(got, (rank - 1) % size, 1)
            one.Send(np.ones(3000), (rank + 1) % size, 1)
            request.Wait()

    def probes():
        while not stop:
            two.Iprobe(MPI.ANY_SOURCE, 7)

    def collectives():
        while not stopped(three):
            three.bcast("object" if rank == 0 else None)

    def waits():
        two.Recv(np.zeros(1), rank, 9)

    threads = [threading.Thread(target=target) for target in (messages, probes, collectives, waits)]
    pending = two.Irecv(np.zeros(1), rank, 99)

    def refuses(call):
        try:
            call()
        except errors.ForkError as problem:
            assert isinstance(problem, MPI.Exception) and "before a fork" in str(problem), problem
        else:
            raise AssertionError("a call of the child was not refused")

    def in_child():
        refuses(lambda: two.Iprobe(MPI.ANY_SOURCE, 7))
        refuses(lambda: comm.Send(np.zeros(1), rank, 5))
        refuses(lambda: comm.Irecv(np.zeros(1), rank, 5))
        refuses(pending.Test)
        refuses(comm.Barrier)
        refuses(lambda: three.Allreduce(np.ones(1), np.zeros(1)))
        refuses(lambda: comm.bcast(1))
        refuses(comm.Ibarrier)
        refuses(comm.Dup)
        assert comm.world.closed
        comm.world.close()
        gc.collect()

    def wait_for(pid):
        deadline = time.monotonic() + 60
        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return "hung"
            time.sleep(0.0005)

    def fork(leave):
        pid = os.fork()
        if pid:
            return wait_for(pid)
        try:
            in_child()
        except BaseException as problem:
            print("in the child:", repr(problem), flush=True)
            os._exit(1)
        leave()
"""


@pytest.mark.timeout(2 * DEADLINE_S + FORKS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_children_forked_under_traffic_are_refused_and_end(program, protocol):
    done = job(2, program(TRAFFIC + f"""
    for thread in threads:
        thread.start()
    bad = []
    for i in range({FORKS}):
        # sys.exit finalizes the interpreter: atexit handlers, destructors of all that the parent had
        status = fork((lambda: sys.exit(0)) if i % 25 == 0 else (lambda: os._exit(0)))
        if status:
            bad.append(status)
            break
    if not bad:
        other = multiprocessing.get_context("fork").Process(target=in_child)
        other.start()
        other.join(60)
        bad += [other.exitcode] if other.exitcode != 0 else []
        bad += [code for code in [subprocess.run([sys.executable, "-c", "pass"]).returncode] if code]
        ended = []
        thread = threading.Thread(target=lambda: ended.append(fork(lambda: os._exit(0))))
        thread.start()
        thread.join()
        bad += [status for status in ended if status]
    stop = True
    two.Send(np.zeros(1), rank, 9)
    for thread in threads:
        thread.join()
    two.Send(np.zeros(1), rank, 99)
    pending.Wait()
    assert not bad, bad
    """), protocol=protocol, timeout_s=DEADLINE_S + FORKS)  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)


@pytest.mark.parametrize(
    "call",
    [
        "comm.Recv(np.zeros(1), 1 - rank, 3)",
        "comm.Irecv(np.zeros(1), 1 - rank, 3).Wait()",
        "comm.recv(source=1 - rank, tag=3)",
        "comm.Probe(1 - rank, 3)",
        "comm.Ssend(np.zeros(1), 1 - rank, 3)",
        "comm.Barrier()",
        "comm.Allreduce(np.ones(1), np.zeros(1))",
        "comm.gather(1)",
    ],
)
@pytest.mark.parametrize("protocol", ["via", "tcp"])
def test_a_signal_handler_that_forks_amidst_a_call(program, call, protocol):
    """The parent's call goes on; in the child it ends by an error."""
    done = job(2, program(TRAFFIC + f"""
    comm.Barrier()
    comm.Allreduce(np.ones(1), np.zeros(1))
    go = one
    if rank == 0:
        parent, status = os.getpid(), []

        def handler(*_):
            pid = os.fork()
            if pid:
                status.append(wait_for(pid))
                go.Send(np.zeros(1), 1)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            {call}
        except errors.ForkError:
            os._exit(0 if os.getpid() != parent else 1)
        if os.getpid() != parent:
            os._exit(2)
        assert status == [0], status
    else:
        go.Recv(np.zeros(1), 0)
        if "Barrier" in {call!r} or "Allreduce" in {call!r} or "gather" in {call!r}:
            {call}
        elif "Ssend" in {call!r}:
            comm.Recv(np.zeros(1), 0, 3)
        elif "recv(" in {call!r}:
            comm.send(1, 0, 3)
        else:
            comm.Send(np.zeros(1), 0, 3)
            if "Probe" in {call!r}:
                pass
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
