"""One-sided communication, run by every rank of a job: ``win_job.py CASE``. Rank 0 prints END CASE."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from viakit.mpi import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
LIMIT_S = 120.0


def raises(kind: str, call, *args) -> str:
    """Return the text of the error that the call raises, which must be of this class."""
    found = None
    try:
        call(*args)
    except MPI.Exception as problem:
        found = problem
    assert found is not None, f"{call} raised no {kind}"
    assert found.Get_error_class() == getattr(MPI, kind), (kind, found)
    return str(found)


def until(condition) -> None:
    """Wait for a condition of this process's memory without a call of MPI."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition has not become true"


def windows(count: int, dtype="d"):
    """Yield a window of each kind with `count` numbers on each rank, and its memory as an array."""
    nbytes = count * np.dtype(dtype).itemsize
    mine = np.zeros(count, dtype)
    win = MPI.Win.Create(mine, mine.itemsize, comm=comm)
    yield win, mine
    win.Free()
    for make in (MPI.Win.Allocate, MPI.Win.Allocate_shared):
        part = comm if make is MPI.Win.Allocate else comm.Split_type(MPI.COMM_TYPE_SHARED)
        if part.size == size:  # all ranks are on one host, or the window needs no common memory
            win = make(nbytes, np.dtype(dtype).itemsize, comm=part)
            yield win, np.frombuffer(win.tomemory(), dtype)
            win.Free()


def values() -> None:
    """Data of all lengths arrives, in all kinds of windows, by all kinds of synchronisation."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (1, 33, 1000, 200_000):
        for win, mine in windows(count):
            data, back = np.arange(count) + 1000.0 * rank, np.zeros(count)
            win.Fence()
            win.Put(data, right)
            win.Fence()
            assert np.array_equal(mine, np.arange(count) + 1000.0 * left)
            win.Get(back, left)
            win.Fence(MPI.MODE_NOSUCCEED)
            assert np.array_equal(back, np.arange(count) + 1000.0 * ((left - 1) % size))
            win.Lock_all()
            win.Accumulate(np.ones(count), right, op=MPI.SUM)
            win.Rget(back, rank).Wait()
            win.Unlock_all()
            comm.Barrier()
            assert np.array_equal(mine, np.arange(count) + 1000.0 * left + 1)
            comm.Barrier()
            pair = sorted({left, right} - {rank})
            group = win.Get_group().Incl(pair)
            win.Post(group)
            win.Start(group)
            if right != rank:
                win.Rput(data * 2, right).Wait()
            win.Complete()
            win.Wait()
            if right != rank:
                assert np.array_equal(mine, 2 * (np.arange(count) + 1000.0 * left))
            comm.Barrier()


def datatypes() -> None:
    """Layouts at both ends: every second number, reversed by displacements, and pairs."""
    right = (rank + 1) % size
    every_second = MPI.DOUBLE.Create_vector(8, 1, 2).Create_resized(0, 16 * 8).Commit()
    for win, mine in windows(40):
        mine[:] = -1
        win.Fence()
        win.Put([np.arange(16.0), 1, every_second], right, (4, 8, MPI.DOUBLE))
        win.Put([np.arange(8.0) + 50, 8, MPI.DOUBLE], right, (16, 1, every_second))
        win.Fence()
        assert mine[4:12].tolist() == [0, 2, 4, 6, 8, 10, 12, 14], mine
        assert mine[16:32:2].tolist() == [50 + i for i in range(8)]
        assert mine[17:31:2].tolist() == [-1] * 7
        back = np.full(16, -5.0)
        win.Get([back, 1, every_second], right, (16, 1, every_second))
        win.Fence()
        assert back[::2].tolist() == [50 + i for i in range(8)]
        assert back[1::2].tolist() == [-5] * 8
        win.Accumulate([np.ones(8), 8, MPI.DOUBLE], right, (16, 1, every_second))
        win.Fence()
        assert mine[16:32:2].tolist() == [51 + i for i in range(8)]
        assert mine[17:31:2].tolist() == [-1] * 7
    pairs = np.zeros(4, np.dtype([("value", "d"), ("index", "i4")], align=True))
    win = MPI.Win.Create(pairs.view(np.uint8), pairs.itemsize, comm=comm)
    mine = np.array([(rank, rank)] * 4, pairs.dtype)
    win.Fence()
    win.Accumulate([mine.view(np.uint8), 4, MPI.DOUBLE_INT], 0, op=MPI.MAXLOC)
    win.Fence()
    if rank == 0:
        assert pairs["value"].tolist() == [size - 1] * 4
        assert pairs["index"].tolist() == [size - 1] * 4
    win.Free()


def atomics() -> None:
    """Updates by all ranks at once lose nothing; compare and swap makes a lock."""
    rounds = 200
    counter = np.zeros(3, "q")
    win = MPI.Win.Create(counter, 8, comm=comm)
    win.Lock_all()
    one, old = np.ones(1, "q"), np.zeros(1, "q")
    seen = set()
    for _ in range(rounds):
        win.Fetch_and_op(one, old, 0)
        win.Flush(0)
        seen.add(int(old[0]))
        now = np.zeros(1, "q")
        win.Get(now, 0)
        win.Flush(0)
        assert now[0] > old[0]  # also where the read is by RDMA
    assert len(seen) == rounds
    every = comm.allgather(seen)
    assert len(set().union(*every)) == rounds * size  # each value was fetched once
    mine, nothing = np.full(1, rank + 1, "q"), np.zeros(1, "q")
    for _ in range(10):
        while True:
            win.Compare_and_swap(mine, nothing, old, 0, 1)
            win.Flush(0)
            if old[0] == 0:
                break
            time.sleep(0)
        win.Get(old, 0, 2)
        win.Flush(0)
        win.Put(old + 1, 0, 2)
        win.Flush(0)
        win.Compare_and_swap(nothing, mine, old, 0, 1)
        win.Flush(0)
        assert old[0] == rank + 1
    win.Unlock_all()
    comm.Barrier()
    if rank == 0:
        assert counter.tolist() == [rounds * size, 0, 10 * size], counter
    comm.Barrier()
    for _ in range(10):  # an exclusive lock protects a read and a write
        win.Lock(0)
        win.Get(old, 0, 2)
        win.Flush(0)
        win.Put(old + 1, 0, 2)
        win.Unlock(0)
    comm.Barrier()
    if rank == 0:
        assert counter[2] == 20 * size, counter
    win.Free()


def computing() -> None:
    """Everything progresses while the target computes and calls nothing."""
    for win, mine in windows(4, "q"):
        comm.Barrier()
        if rank == size - 1:
            until(lambda: mine[0] == 100 and mine[1] == 7 and mine[2] == 5)  # noqa: B023
        elif rank == 0:
            one, old = np.ones(1, "q"), np.zeros(1, "q")
            for _ in range(100):
                win.Lock(size - 1)
                win.Fetch_and_op(one, old, size - 1)
                win.Unlock(size - 1)
            win.Lock(size - 1, MPI.LOCK_SHARED)
            win.Put(np.full(1, 7, "q"), size - 1, 1)
            win.Flush(size - 1)
            win.Get(old, size - 1, 1)
            win.Flush(size - 1)
            assert old[0] == 7
            win.Put(np.full(1, 5, "q"), size - 1, 2)
            win.Unlock(size - 1)
        comm.Barrier()


def counters() -> None:
    """A put is one RDMA write, a get one RDMA read, and the target's engine handles nothing."""
    win = MPI.Win.Allocate(1 << 20, 1, comm=comm)
    mine = np.frombuffer(win.tomemory(), np.uint8)
    win.Lock_all(MPI.MODE_NOCHECK)
    comm.Barrier()
    before = win.counters()
    comm.Barrier()
    if rank == 0:
        for n in (8, 4096, 1 << 20):
            win.Put(np.full(n, 3, np.uint8), 1)
            win.Flush(1)
        back = np.zeros(1000, np.uint8)
        win.Get(back, 1)
        win.Flush(1)
        assert (back == 3).all()
        after = win.counters()
        assert after["puts"] - before["puts"] == 3
        assert after["gets"] - before["gets"] == 1
        assert after["active_sent"] == before["active_sent"]
        assert after["sent"] == before["sent"]
        win.Put(np.full(1, 9, np.uint8), 1, (1 << 20) - 1)
        win.Flush(1)
    elif rank == 1:
        until(lambda: mine[-1] == 9)
        after = win.counters()
        assert mine[0] == 3
        for name in ("active_received", "received", "bytes_received", "copies", "sent", "active_sent"):
            assert after[name] == before[name], name
    comm.Barrier()
    win.Unlock_all()
    win.Free()


def errors() -> None:
    """Wrong arguments and wrong order give clear errors, and nothing hangs."""
    mine = np.zeros(10 + rank, "d")
    win = MPI.Win.Create(mine, 8, comm=comm)
    one = np.ones(1)
    assert "outside of an epoch" in raises("ERR_RMA_SYNC", win.Put, one, 0)
    assert "Win.Lock" in raises("ERR_RMA_SYNC", win.Flush, 0)
    raises("ERR_RMA_SYNC", win.Unlock, 0)
    raises("ERR_RMA_SYNC", win.Complete)
    raises("ERR_RMA_SYNC", win.Wait)
    raises("ERR_LOCKTYPE", win.Lock, 0, 77)
    raises("ERR_ASSERT", win.Fence, 1)
    raises("ERR_DISP", MPI.Win.Create, mine, 0, None, MPI.COMM_SELF)
    raises("ERR_SIZE", MPI.Win.Allocate, -1)
    raises("ERR_RMA_FLAVOR", win.Attach, mine)
    win.Fence()
    assert f"{size} rank" in raises("ERR_RANK", win.Put, one, size)
    raises("ERR_RANK", win.Get, one, -7)
    assert "80 bytes" in raises("ERR_RMA_RANGE", win.Put, np.ones(11), 0)
    raises("ERR_RMA_RANGE", win.Put, one, size - 1, 10 + size - 1)
    raises("ERR_DISP", win.Put, one, 0, -1)
    raises("ERR_TRUNCATE", win.Put, one, 0, (0, 2, MPI.DOUBLE))
    raises("ERR_TYPE", win.Accumulate, one, 0, (0, 1, MPI.LONG))
    raises("ERR_OP", win.Accumulate, one, 0, None, MPI.BAND)
    win.Fence()
    assert not mine.any()
    win.Fence(MPI.MODE_NOSUCCEED)
    win.Lock(0, MPI.LOCK_SHARED)
    raises("ERR_RMA_SYNC", win.Lock, 0)
    raises("ERR_RMA_SYNC", win.Fence)
    raises("ERR_RMA_SYNC", win.Free)
    win.Unlock(0)
    other = win
    handle = MPI.Win(win)
    win.Free()
    raises("ERR_WIN", other.Fence)
    raises("ERR_WIN", handle.Put, one, 0)
    dynamic = MPI.Win.Create_dynamic(comm=comm)
    there = np.zeros(4)
    dynamic.Attach(there)
    address = comm.bcast(MPI.Get_address(there))
    dynamic.Lock(0)
    dynamic.Put(np.ones(2), 0, address)
    dynamic.Unlock(0)
    if rank == size - 1 and rank:
        dynamic.Lock(0, MPI.LOCK_SHARED)
        dynamic.Put(np.ones(2), 0, 64)  # no memory is attached there
        assert "attached" in raises("ERR_RMA_RANGE", dynamic.Unlock, 0)
    comm.Barrier()
    if rank == 0:
        assert there.tolist() == [1, 1, 0, 0]
    dynamic.Detach(there)
    raises("ERR_RMA_ATTACH", dynamic.Detach, there)
    dynamic.Free()


def memory() -> None:
    """A window has the buffer protocol for its rank's part, and attributes."""
    key = MPI.Win.Create_keyval()
    for win, mine in windows(4):
        mine[:] = rank
        assert np.frombuffer(win, "d").tolist() == [rank] * 4
        memoryview(win).cast("d")[1] = -1.0
        assert mine[1] == -1
        assert win.tomemory().address == win.attrs[0] == win.Get_attr(MPI.WIN_BASE)
        win.Set_attr(key, "kept")
        assert MPI.Win(win).Get_attr(key) == "kept"
    dynamic = MPI.Win.Create_dynamic(comm=comm)
    assert (dynamic.tomemory().address, len(memoryview(dynamic))) == (0, 0)
    dynamic.Free()
    raises("ERR_WIN", memoryview, MPI.WIN_NULL)


def death() -> None:
    """The last rank dies with a lock that others wait for."""
    win = MPI.Win.Allocate(800, 8, comm=comm)
    flag = np.frombuffer(win.tomemory(), "d")
    last = size - 1
    comm.Barrier()
    if rank == last:
        win.Lock(0)
        win.Put(np.ones(1), 0)
        win.Flush(0)
        time.sleep(0)
        os._exit(0)
    if rank == 0:
        until(lambda: flag[0] == 1)
        for other in range(1, last):
            comm.send(None, other)
    else:
        comm.recv(source=0)
    raises("ERR_PROC_FAILED", win.Lock, 0)  # each rank is notified once
    win.Lock(0)  # the dead rank's lock is released
    win.Unlock(0)
    raises("ERR_PROC_FAILED", win.Lock, last)
    raises("ERR_PROC_FAILED", win.Fence)


if __name__ == "__main__":
    case = sys.argv[1]
    globals()[case]()
    if rank == 0:
        print("END", case, flush=True)
    if case == "death":
        os._exit(0)
