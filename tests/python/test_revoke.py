"""Revoked communicators: calls that wait end on all ranks, later ones are refused, and Agree and Shrink go on."""

from __future__ import annotations

import pytest
from comm_job import PROTOCOLS, job

# Each rank makes a communicator `one`. Rank 0 revokes it once the others have shown that they are about to wait.
START = """
    import os
    REVOKED = MPI.ERR_REVOKED
    one = comm.Dup()

    def others_wait():
        comm.gather(rank, root=0)
"""

WAITS = {
    "Recv": "one.Recv(np.zeros(4), (rank + 1) % size)",
    "Recv any": "one.Recv(np.zeros(4))",
    "recv": "one.recv(source=0)",
    "Irecv": "one.Irecv(np.zeros(4), 0).Wait()",
    "Ssend": "one.Ssend(np.zeros(4), 0)",
    "Probe": "one.Probe(0)",
    "Barrier": "one.Barrier()",
    "Bcast": "one.Bcast(np.zeros(4), 0)",
    "Allreduce": "one.Allreduce(np.ones(4), np.zeros(4))",
    "allgather": "one.allgather(rank)",
    "Allgatherv": "one.Allgatherv(np.zeros(4), [np.zeros(12), [4, 4, 4]])",
    "Ibarrier": "one.Ibarrier().Wait()",
    "Dup": "one.Dup()",
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_rank_that_waits_ends_when_another_revokes(program, protocol):
    """Every kind of wait, one after the other, each on a communicator of its own."""
    calls = "".join(f"""
    one = comm.Dup()
    others_wait()
    if rank == 0:
        one.Revoke()
    else:
        with raises(MPI.Exception, REVOKED, "revoked"):
            {call}
    assert one.Is_revoked()
    one.Free()
    """ for call in WAITS.values())  # fmt: skip
    done = job(3, program(START + calls + """
    assert comm.allreduce(1) == size
    print("free")
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["free"] * 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_later_calls_are_refused_and_the_members_agree(program, protocol):
    done = job(3, program(START + """
    assert not one.Is_revoked()
    comm.Barrier()
    if rank == 1:
        one.Revoke()
        one.Revoke()
    until(one.Is_revoked)
    data = np.zeros(4)
    for call in (lambda: one.Send(data, 0), lambda: one.Send(data, MPI.PROC_NULL), lambda: one.send("x", 0),
                 lambda: one.Recv(data, MPI.PROC_NULL), lambda: one.Isend(data, 0), lambda: one.Irecv(data, 0),
                 lambda: one.Iprobe(0), lambda: one.Barrier(), lambda: one.Bcast(data), lambda: one.bcast(1),
                 lambda: one.Ibarrier(), lambda: one.Dup(), lambda: one.Split(), lambda: one.Create_group(one.group),
                 lambda: one.Send_init(data, 0).Start(), lambda: MPI.Win.Allocate(8, comm=one)):
        with raises(MPI.Exception, REVOKED, "revoked"):
            call()
    assert one.Agree(0b100 | rank) == 0b100
    left = one.Shrink()
    assert (left.size, left.Is_revoked(), left.allgather(rank)) == (3, False, [0, 1, 2])
    left.Free()
    assert one.Get_failed().size == one.Ack_failed() == 0
    one.Free()
    assert comm.allreduce(rank) == 3
    print("shrunk")
    """), protocol=protocol)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["shrunk"] * 3


def test_only_the_revoked_communicator_ends(program):
    """Disjoint parts of a split have the same number. COMM_SELF has one number on all ranks."""
    done = job(3, program(START + """
    part, own = comm.Split(rank == 0), MPI.COMM_SELF.Dup()
    if rank == 0:
        part.Revoke()
        own.Revoke()
        with raises(MPI.Exception, REVOKED):
            own.allgather(1)
    one.Barrier()
    assert (part.Is_revoked(), own.Is_revoked(), one.Is_revoked()) == (rank == 0, rank == 0, False)
    if rank:
        assert part.allreduce(1) == 2
        assert own.allgather(1) == [1]
    own.Free()
    part.Free()
    print("alone")
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["alone"] * 3


def test_both_groups_of_an_intercommunicator_end(program):
    done = job(3, program(START + """
    low = comm.Split(rank == 0)
    pair = low.Create_intercomm(0, comm, 1 if rank == 0 else 0)
    others_wait()
    if rank == 0:
        pair.Revoke()
    else:
        with raises(MPI.Exception, REVOKED, "revoked"):
            pair.Recv(np.zeros(4), 0) if rank == 1 else pair.Barrier()
    with raises(MPI.Exception, REVOKED, "revoked"):
        pair.Merge()
    assert pair.Is_revoked()
    assert pair.Agree(0b1000 | rank) == 0b1000
    left = pair.Shrink()
    assert left.is_inter
    assert left.remote_size == pair.remote_size
    left.Free()
    pair.Free()
    assert low.allreduce(1) == low.size
    print("apart")
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["apart"] * 3


def test_messages_that_were_under_way_disturb_neither_rank(program):
    """Sends of all lengths that no receive matches end when the receiver discards them."""
    done = job(2, program(START + """
    sizes = [1, 1000, 100_000, 3_000_000]
    if rank == 0:
        sends = [one.Isend(np.zeros(n), 1, n) for n in sizes] + [one.Issend(np.zeros(n), 1, n) for n in sizes]
    comm.Barrier()
    if rank == 1:
        one.Revoke()
    else:
        for send in sends:
            try:
                send.Wait()
            except MPI.Exception as problem:
                assert problem.Get_error_class() == REVOKED, problem
    comm.Barrier()
    until(lambda: not comm.Iprobe() and comm.counters()["unexpected_bytes_now"] == 0)
    one.Free()
    assert comm.allreduce(1) == 2
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_revocation_that_arrives_before_its_communicator(program):
    """A rank may leave the call that makes a communicator first, and revoke it at once."""
    done = job(3, program(START + """
    for i in range(20):
        new = comm.Dup()
        if rank == i % 3:
            new.Revoke()
        with raises(MPI.Exception, REVOKED, "revoked"):
            while True:
                new.Barrier()
        new.Free()
    one.Free()
    print("ended")
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["ended"] * 3


def test_a_rank_passes_a_revocation_on(program):
    """So it reaches all members even if the rank that revoked dies while it notifies them."""
    done = job(3, program(START + """
    others_wait()
    if rank == 2:
        one.revoke([0])  # without a notice to rank 1
    with raises(MPI.Exception, REVOKED, "revoked"):
        one.Recv(np.zeros(4), 2)
    comm.Barrier()
    print("passed on")
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["passed on"] * 3
