"""The calls that test_benchmark_ranks.py times. As a program it is the second rank, which plays the other part.

Both ranks get their part of a call from the same table. The first rank sends a name and a number, and both then
execute the call that number of times.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np

from viakit import bip
from viakit.base.channel import Channel
from viakit.comm.communicator import Intracomm, World
from viakit.mpi import MPI

LIMIT_S = 60.0
SECRET = bytes(range(32))
Calls = dict[str, Callable[[], object]]


def _ping(rank, send, recv):
    """Return one part of a message to the other rank and back."""

    def first():
        send()
        recv()

    def second():
        recv()
        send()

    return second if rank else first


def messages(comm, rank) -> Calls:
    """Return the point-to-point calls, with each form of a message."""
    peer, out, room = 1 - rank, np.zeros(1), np.zeros(1)
    forms = {
        "array": lambda a: a,
        "list": lambda a: [a, MPI.DOUBLE],
        "count": lambda a: [a, 1, MPI.DOUBLE],
        "displacement": lambda a: [a, (1, 0), MPI.DOUBLE],
        "letter": lambda a: [a, "d"],
    }
    calls = {
        f"Send {name}": _ping(
            rank, lambda f=form: comm.Send(f(out), peer), lambda f=form: comm.Recv(f(room), peer)
        )
        for name, form in forms.items()
    }  # fmt: skip
    raw = bytearray(8)
    long_out, long_in = np.zeros(1 << 13), np.zeros(1 << 13)
    small, array = {"step": 1, "loss": 0.5, "name": "x"}, np.zeros(1 << 17)
    kept_out, kept_in = comm.Send_init(out, peer), comm.Recv_init(room, peer)

    def wait(*requests):
        for request in requests:
            request.Wait()

    def probed():
        comm.Probe(peer)
        comm.Recv(room, peer)

    calls |= {
        "Send bytearray": _ping(rank, lambda: comm.Send(raw, peer), lambda: comm.Recv(raw, peer)),
        "Send 64 KiB": _ping(rank, lambda: comm.Send(long_out, peer), lambda: comm.Recv(long_in, peer)),
        "Ssend": _ping(rank, lambda: comm.Ssend(out, peer), lambda: comm.Recv(room, peer)),
        "Probe": _ping(rank, lambda: comm.Send(out, peer), probed),
        "Isend Irecv": lambda: wait(comm.Irecv(room, peer), comm.Isend(out, peer)),
        "Sendrecv": lambda: comm.Sendrecv(out, peer, recvbuf=room, source=peer),
        "Start": lambda: wait(kept_in.Start() or kept_in, kept_out.Start() or kept_out),
        "send dict": _ping(rank, lambda: comm.send(small, peer), lambda: comm.recv(source=peer)),
        "send array of 1 MiB": _ping(rank, lambda: comm.send(array, peer), lambda: comm.recv(source=peer)),
    }
    return calls


def collectives(comm, rank) -> Calls:
    """Return the collectives, with each form of a vector."""
    one, two, more = np.zeros(1), np.zeros(2), np.zeros(2)
    long_in, long_out = np.zeros(1 << 13), np.zeros(1 << 13)
    counts, places = [1, 1], [0, 1]
    vector = [two, counts, places, MPI.DOUBLE]
    arrays = [two, np.array(counts), np.array(places), MPI.DOUBLE]
    bytes_at, types = [0, 8], [MPI.DOUBLE, MPI.DOUBLE]

    def beside():
        request = comm.Ibarrier()
        comm.Scan(one, two[:1])
        request.Wait()

    return {
        "Barrier": comm.Barrier,
        "Bcast": lambda: comm.Bcast(one, 0),
        "Reduce": lambda: comm.Reduce(one, two[:1] if rank == 0 else None, root=0),
        "Allreduce": lambda: comm.Allreduce(one, two[:1]),
        "Allreduce list": lambda: comm.Allreduce([one, MPI.DOUBLE], [two, 1, MPI.DOUBLE]),
        "Allreduce 64 KiB": lambda: comm.Allreduce(long_in, long_out),
        "Allgather": lambda: comm.Allgather(one, two),
        "Alltoall": lambda: comm.Alltoall(two, more),
        "Gather": lambda: comm.Gather(one, two if rank == 0 else None, 0),
        "Scatter": lambda: comm.Scatter(two if rank == 0 else None, one, 0),
        "Scan": lambda: comm.Scan(one, two[:1]),
        "Allgatherv counts": lambda: comm.Allgatherv(one, [two, counts]),
        "Allgatherv lists": lambda: comm.Allgatherv(one, vector),
        "Allgatherv pair": lambda: comm.Allgatherv(one, [two, (counts, places), MPI.DOUBLE]),
        "Allgatherv arrays": lambda: comm.Allgatherv(one, arrays),
        "Alltoallv": lambda: comm.Alltoallv([more, counts, places, MPI.DOUBLE], vector),
        "Gatherv": lambda: comm.Gatherv(one, vector if rank == 0 else None, 0),
        "Scatterv": lambda: comm.Scatterv(vector if rank == 0 else None, one, 0),
        "Alltoallw": lambda: comm.Alltoallw([more, counts, bytes_at, types], [two, counts, bytes_at, types]),
        "Reduce_scatter": lambda: comm.Reduce_scatter(two, more[:1]),
        "Allreduce in place": lambda: comm.Allreduce(MPI.IN_PLACE, one),
        "Allgather in place": lambda: comm.Allgather(MPI.IN_PLACE, two),
        "Gather in place": lambda: comm.Gather(*((MPI.IN_PLACE, two) if rank == 0 else (one, None)), 0),
        "Ibarrier": lambda: comm.Ibarrier().Wait(),
        "Iallreduce": lambda: comm.Iallreduce(one, two[:1]).Wait(),
        "Ibcast": lambda: comm.Ibcast(one, 0).Wait(),
        "Iallgather": lambda: comm.Iallgather(one, two).Wait(),
        "Iallreduce in place": lambda: comm.Iallreduce(MPI.IN_PLACE, one).Wait(),
        "Scan beside Ibarrier": beside,
        "bcast": lambda: comm.bcast({"a": 1}, 0),
        "allreduce": lambda: comm.allreduce(1),
        "reduce": lambda: comm.reduce(1),
        "scan": lambda: comm.scan(1),
    }


def windows(win, rank) -> Calls:
    """Return the one-sided calls. The second rank takes no part, but for a fence."""
    one, other, number, old = np.zeros(1), np.zeros(1), np.ones(1, np.int64), np.zeros(1, np.int64)

    def flushed(call):
        return lambda: (call(), win.Flush(1)) if rank == 0 else None

    return {
        "Put": flushed(lambda: win.Put(one, 1)),
        "Put list": flushed(lambda: win.Put([one, 1, MPI.DOUBLE], 1, 0)),
        "Get": flushed(lambda: win.Get(other, 1)),
        "Accumulate": flushed(lambda: win.Accumulate(one, 1)),
        "Fetch_and_op": flushed(lambda: win.Fetch_and_op(number, old, 1)),
    }


def of_bip(job, rank) -> Calls:
    """Return the calls of BIP."""
    peer, long = 1 - rank, np.zeros(1 << 13)
    room = np.zeros_like(long)
    return {
        "short": _ping(rank, lambda: job.send(peer, b"12345678"), lambda: job.recv(room)),
        "long": _ping(rank, lambda: job.send(peer, long), lambda: job.recv(room)),
        "isend": _ping(rank, lambda: job.isend(peer, b"12345678").wait(), lambda: job.irecv(room).wait()),
    }


@contextmanager
def rank_of(rank, channel):
    """Open both layers of one rank. The ranks exchange their data over *channel*."""

    def exchange(blob):
        channel.send({}, blob)
        other = channel.recv(LIMIT_S)[1]
        return [other, blob] if rank else [blob, other]

    world = World(rank, 2, exchange=exchange, policy="via", secret=SECRET, timeout_s=LIMIT_S)
    world.secret = SECRET
    comm = Intracomm(world, 0)
    win = MPI.Win.Allocate(64, 1, comm=comm)
    win.Lock_all()
    with bip.Job(rank, 2, "benchmark", "", secret=SECRET) as job:
        job.connect(exchange(job.card()), LIMIT_S)
        tables = {
            "mpi": messages(comm, rank),
            "collective": collectives(comm, rank),
            "window": windows(win, rank),
            "bip": of_bip(job, rank),
        }
        yield {f"{kind} {name}": call for kind, table in tables.items() for name, call in table.items()}
    win.Unlock_all()
    win.Free()
    world.close()


def main() -> None:
    """Play the second rank until the first one closes the channel."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    with rank_of(1, channel) as calls:
        while (request := channel.recv()[0]) and request["n"]:
            call = calls[request["call"]]
            for _ in range(request["n"]):
                call()


if __name__ == "__main__":
    main()
