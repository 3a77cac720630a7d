"""Collectives that overlap: correct programs whose ranks are in collectives of different numbers get no error."""

from __future__ import annotations

import pytest
from comm_job import PROTOCOLS, job

# `looks` counts how often this rank has looked for reasons why a collective might never end.
WATCH = """
    from viakit.comm.step import Step
    looks, check, due = [0], Step.check, -1

    def counted(step):
        check(step)
        looks[0] += 1
        if looks[0] == due:
            control.Isend(np.zeros(1), 0, 7)

    Step.check = counted
    control, c = comm.Dup(), comm.Dup()
    for _ in range(2):
        c.Barrier()
"""


@pytest.mark.parametrize("start", ["c.Iallreduce(out, into)", "c.Ibcast(out, 0)", "c.Ibarrier()"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_barrier_before_an_earlier_collective_has_been_waited_for(program, protocol, start):
    """Rank 0 begins the collective late; one rank meanwhile waits in the barrier behind it, and another in it."""
    done = job(4, program(WATCH + f"""
    out, into, due = np.full(4, float(rank)), np.zeros(4), -1
    for early in range(1, 4):
        waits = 3 if early != 3 else 2
        looks[0], due = 0, 20 if rank == waits else -1
        if rank == 0:
            control.Recv(np.zeros(1), waits, 7)
        request = {start}
        if rank == early:
            c.Barrier()
            request.Wait()
        else:
            request.Wait()
            c.Barrier()
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_data_of_a_broken_group_is_not_taken_for_that_of_a_much_later_collective(program):
    """A refused broadcast leaves the root's data in shared memory, with a number that has 8 bits."""
    done = job(3, program(WATCH + """
    due = -1
    c.Bcast(np.ones(4), 0)
    room = np.ones(4)
    room.flags.writeable = rank != 1
    with contextlib.suppress(MPI.Exception, ValueError):
        c.Bcast(room, 0)
    for i in range(300):
        looks[0], due = 0, 2 if rank == 1 and i % 40 == 39 else -1
        if rank == 0 and i % 40 == 39:
            control.Recv(np.zeros(1), 1, 7)
        c.Barrier()
    """))  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)


def test_a_mismatch_is_detected_beside_a_pending_collective_of_another_communicator(program):
    """Rank 0 has given its broadcast and waits in the barrier behind it; rank 1 waits in an allreduce by messages."""
    done = job(2, program("""
    c, d = comm.Dup(), comm.Dup()
    c.Barrier()
    pending = d.Ibarrier() if rank == 0 else None
    with raises(MPI.Exception):
        if rank == 0:
            c.Bcast(np.ones(4), 0)
            c.Barrier()
        else:
            c.Iallreduce(np.ones(4), np.zeros(4)).Wait()
    if rank == 1:
        pending = d.Ibarrier()
    pending.Wait()
    """))  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
