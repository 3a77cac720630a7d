"""Non-blocking collectives on the short path (viakit/_core/plan_request.pxi), alone and beside the general path."""

from __future__ import annotations

from collections.abc import Callable

import comm_job
import pytest
from test_comm_interrupts import INTERRUPT

# `begin(kind, here, ...)` starts a collective with operands that all ranks can compute, and returns its request and a
# function that compares the result with NumPy's. `general`: this rank passes derived datatypes, with gaps.
CALLS = """
    import random
    from viakit.comm.collective_calls import CollectiveRequest
    from viakit.comm.schedule import ScheduleRequest

    KINDS = ("barrier bcast allreduce reduce allgather gather scatter alltoall scan exscan reduce_scatter_block "
             "reduce_scatter allgatherv gatherv scatterv alltoallv").split()
    OPS = {MPI.SUM: np.add, MPI.MAX: np.maximum, MPI.PROD: np.multiply, MPI.MIN: np.minimum}
    kinds_of = {"i": MPI.INT, "l": MPI.LONG, "d": MPI.DOUBLE, "H": MPI.UINT16_T}

    class Call:
        def __init__(self, kind, seed, n, code, root, op, general):
            self.kind, self.seed, self.n, self.code, self.root, self.op = kind, seed, n, code, root, op
            self.general, self.type = general, kinds_of[code]
            self.counts = [(n + 3 * i) % (n + 2) for i in range(size)]
            self.places = [sum(self.counts[:i]) for i in range(size)]
            self.want = self.got = np.zeros(0)
            many, mine = n * size, slice(rank * n, (rank + 1) * n)
            call = getattr(comm, "I" + kind)
            begin = getattr(self, "_" + kind, None)
            if kind in ("allreduce", "scan", "exscan"):
                last = size if kind == "allreduce" else rank + (kind == "scan")
                self.request = call(self.out(n), self.into(n), op)
                self.want = self.fold(n, last) if last else self.got
            elif kind == "reduce_scatter_block":
                self.request = call(self.out(many, n), self.into(n), op)
                self.want = self.fold(many, size)[mine]
            elif kind in ("allgather", "alltoall"):
                self.request = call(self.out(n if kind == "allgather" else many, n), self.into(many, n))
                self.want = self.all(n) if kind == "allgather" else self.all(many, mine)
            else:
                self.request = begin(call, n, many, mine)

        def data(self, who, n):
            return np.random.default_rng([self.seed, who]).integers(1, 5, n).astype(self.code)

        def all(self, n, part=slice(None)):
            return np.concatenate([self.data(i, n)[part] for i in range(size)])

        def fold(self, n, last):
            have = self.data(0, n)
            for i in range(1, last):
                have = OPS[self.op](have, self.data(i, n))
            return have

        def gaps(self, n):
            raw = np.zeros(2 * n + 1, self.code)
            return raw, raw[:2 * n:2], self.type.Create_resized(0, 2 * raw.itemsize).Commit()

        def out(self, n, each=None, who=rank):
            if not self.general:
                return self.data(who, n)
            raw, places, kind = self.gaps(n)
            places[:] = self.data(who, n)
            return [raw, each or n, kind]

        def into(self, n, each=None):
            if not self.general:
                self.got = np.zeros(n, self.code)
                return self.got
            raw, self.got, kind = self.gaps(n)
            return [raw, n if each is None else each, kind]

        def check(self):
            assert (self.got == self.want).all(), (rank, vars(self))

        def _barrier(self, call, n, many, mine):
            return call()

        def _bcast(self, call, n, many, mine):
            if rank == self.root:
                return call(self.out(n), self.root)
            self.want = self.data(self.root, n)
            return call(self.into(n), self.root)

        def _reduce(self, call, n, many, mine):
            request = call(self.out(n), self.into(n) if rank == self.root else None, self.op, self.root)
            self.want = self.fold(n, size) if rank == self.root else self.got
            return request

        def _gather(self, call, n, many, mine):
            request = call(self.out(n), self.into(many, n) if rank == self.root else None, self.root)
            self.want = self.all(n) if rank == self.root else self.got
            return request

        def _scatter(self, call, n, many, mine):
            out = self.out(many, n) if rank == self.root else None
            self.want = self.data(self.root, many)[mine]
            return call(out, self.into(n), self.root)

        def _reduce_scatter(self, call, n, many, mine):
            whole, at = sum(self.counts), self.places[rank]
            self.want = self.fold(whole, size)[at:at + self.counts[rank]]
            return call(self.out(whole), self.into(self.counts[rank]), self.counts, self.op)

        def parts(self):
            self.got = np.zeros(sum(self.counts), self.code)
            self.want = np.concatenate([self.data(i, self.counts[i]) for i in range(size)])
            return [self.got, self.counts, self.places, self.type]

        def _allgatherv(self, call, n, many, mine):
            return call(self.out(self.counts[rank]), self.parts())

        def _gatherv(self, call, n, many, mine):
            return call(self.out(self.counts[rank]), self.parts() if rank == self.root else None, self.root)

        def _scatterv(self, call, n, many, mine):
            whole, at = self.data(self.root, sum(self.counts)), self.places[rank]
            self.want = whole[at:at + self.counts[rank]]
            out = [whole, self.counts, self.places, self.type] if rank == self.root else None
            return call(out, self.into(self.counts[rank]), self.root)

        def _alltoallv(self, call, n, many, mine):
            self.got, self.want = np.zeros(many, self.code), self.all(many, mine)
            out = self.out(many)
            out = [out[0], [n] * size, [n * i for i in range(size)], out[2]] if self.general else [out, [n] * size]
            return call(out, [self.got, [n] * size])
"""

# Ends requests in an order of this rank's own, by one of four kinds of calls.
ENDS = """
    def end(requests, own):
        how = own.randrange(4)
        own.shuffle(requests)
        if how == 0:
            for request in requests:
                request.Wait()
        elif how == 1:
            MPI.Request.Waitall(requests)
        elif how == 2:
            until(lambda: MPI.Request.Testall(requests))
        else:
            while MPI.Request.Waitany(requests) != MPI.UNDEFINED:
                pass
"""


def run(path: str, ranks: int, protocol: str = "via") -> None:
    done = comm_job.job(ranks, path, protocol=protocol)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("ranks", "protocol"), [(1, "via"), (2, "via"), (3, "via"), (5, "via"), (3, "bip"), (3, "tcp")]
)
def test_collectives_overlap_on_either_path(program: Callable[[str], str], ranks: int, protocol: str) -> None:
    """Up to six are under way at once, some ranks take the general path, and each rank ends them in its own order."""
    run(program(CALLS + ENDS + """
    alike, own = random.Random(5), random.Random(100 + rank)
    paths = set()
    for turn in range(40):
        calls = []
        for _ in range(alike.randint(1, 6)):
            words = (alike.choice(KINDS), alike.randrange(10**6), alike.choice([1, 2, 7, 100, 3000, 40000]),
                     alike.choice("ildH"), alike.randrange(size), alike.choice(list(OPS)))
            calls.append(Call(*words, own.random() < 0.35))
            paths.add(type(calls[-1].request))
            if alike.random() < 0.15:
                comm.Barrier()
            if alike.random() < 0.1:
                assert comm.allreduce(1) == size
        end([call.request for call in calls], own)
        for call in calls:
            call.check()
    assert paths == {CollectiveRequest, ScheduleRequest}, paths
    assert comm.world.n_active == 0 and comm.world.active_comms() == []
    """), ranks, protocol)  # fmt: skip


def test_plain_arguments_take_the_short_path(program: Callable[[str], str]) -> None:
    run(program(CALLS + """
    for general in (False, True):
        for kind in KINDS:
            call = Call(kind, 3, 4, "d", 0, MPI.SUM, general)
            short = not general or kind == "barrier"
            # One side of Gatherv and Scatterv is plain here in any case, and a plan does not need the other one.
            if kind not in ("gatherv", "scatterv") or not general:
                assert type(call.request) is (CollectiveRequest if short else ScheduleRequest), kind
            assert isinstance(call.request, MPI.Request)
            call.request.Wait()
            assert call.request == MPI.REQUEST_NULL and not call.request
            call.check()
    """), 2)  # fmt: skip


def test_a_pending_request_holds_its_buffers(program: Callable[[str], str]) -> None:
    run(program("""
    kept, into = bytearray(8), bytearray(8)
    if rank == 0:
        requests = [comm.Iallreduce(np.ones(1), [into, MPI.DOUBLE]), comm.Ibcast([kept, MPI.DOUBLE], 1)]
        for held in (kept, into):
            with raises(BufferError):
                held.append(1)
        comm.Send(np.zeros(1), 1)
        MPI.Request.Waitall(requests)
    else:
        comm.Recv(np.zeros(1), 0)
        MPI.Request.Waitall([comm.Iallreduce(np.ones(1), [into, MPI.DOUBLE]), comm.Ibcast([kept, MPI.DOUBLE], 1)])
    for free in (kept, into):
        free.append(1)
    """), 2)  # fmt: skip


def test_other_calls_make_progress_and_a_released_request_completes(program: Callable[[str], str]) -> None:
    """Rank 0 does not touch the request of several rounds. Its other calls have to continue the collective."""
    run(program("""
    out, into = np.full(3, rank + 1.0), np.zeros(3)
    for kept in (True, False):
        into[:] = 0
        request = comm.Iallreduce(out, into)
        if rank == 0:
            comm.Recv(np.zeros(1), 2, 9)  # rank 2 sends it after its own collective
            until(lambda: request.peek() or comm.Iprobe(MPI.ANY_SOURCE, 8))
        elif kept:
            request.Wait()
            assert (into == 6).all(), into
        else:
            request.Free()
            assert request == MPI.REQUEST_NULL
            until(lambda: comm.Iprobe() or (into == 6).all())
        if rank == 2:
            comm.Send(np.zeros(1), 0, 9)
        if rank == 0:
            assert request.Get_status() and request, "Get_status does not release the request"
            assert request.Test() and not request
            assert (into == 6).all(), into
        comm.Barrier()
    assert comm.world.n_active == 0
    """), 3)  # fmt: skip


def test_statuses_and_handles_are_those_of_a_collective(program: Callable[[str], str]) -> None:
    run(program("""
    status = MPI.Status()
    status.Set_source(1)
    request = comm.Ibarrier()
    again = MPI.Request(request)
    assert again == request and again.Wait(status) and not request and not again
    assert status.Get_source() == MPI.ANY_SOURCE and status.Get_tag() == MPI.ANY_TAG and status.Get_count() == 0
    request = comm.Ibarrier()
    assert not request.wait_for(0) or request == MPI.REQUEST_NULL
    request.Cancel() if request else None
    assert request.wait() is None and request.test() == (True, None)
    with raises(MPI.Exception, MPI.ERR_REQUEST):
        request.Cancel()
    kept = comm.Allreduce_init(np.ones(2), into := np.zeros(2))
    for _ in range(3):
        into[:] = 0
        kept.Start()
        kept.Wait()
        assert (into == size).all(), into
    kept.Free()
    """), 2)  # fmt: skip


@pytest.mark.parametrize(
    "waits", ["comm.Recv(got, 1, 4)", "other.Ibarrier().Wait()", "pending.Test()", "other.Barrier()"]
)
def test_the_error_of_a_collective_goes_to_its_own_request(program: Callable[[str], str], waits: str) -> None:
    """Rank 1 sends too little. Rank 0 finds that in a call that waits for something else, which ends well."""
    run(program(f"""
    other, got = comm.Dup(), np.zeros(1)
    other.Barrier()
    if rank == 0:
        pending, bad = comm.Irecv(got.copy(), 1, 5), comm.Igather(np.zeros(2), np.zeros(4))
        {waits}
        until(lambda: pending.Test())
        with raises(MPI.Exception, MPI.ERR_TRUNCATE, "gather: rank 1 sent 8 bytes where 16 were expected"):
            until(bad.Test)
        assert bad == MPI.REQUEST_NULL and bad.Wait()
    else:
        comm.Igather(np.zeros(1), None).Wait()
        comm.Send(got, 0, 4)
        other.Ibarrier().Wait() if "Ibarrier" in {waits!r} else None
        other.Barrier() if "other.Barrier" in {waits!r} else None
        comm.Send(got, 0, 5)
    assert comm.world.n_active == 0
    other.Barrier()
    """), 2)  # fmt: skip


@pytest.mark.parametrize(
    ("call", "other_call", "words"),
    [
        ("comm.Ibarrier()", "comm.Iallreduce(np.ones(1), np.zeros(1))", "mismatched"),
        ("comm.Iallreduce(np.ones(1), np.zeros(1))", "comm.Iallreduce(np.ones(1), np.zeros(1), MPI.MAX)", "mismatched"),
        ("comm.Iallgather(np.ones(1), np.zeros(2))", "comm.Iallgather(np.ones(2), np.zeros(4))", "TRUNCATE"),
    ],
)
def test_calls_that_do_not_match_get_an_error(
    program: Callable[[str], str], call: str, other_call: str, words: str
) -> None:
    run(program(f"""
    other, failed = comm.Dup(), False
    try:
        ({call} if rank == 0 else {other_call}).Wait()
    except MPI.Exception as problem:
        assert {words!r} in str(problem) or "given up" in str(problem), problem
        failed = True
    assert any(other.allgather(failed))
    assert comm.world.n_active == 0
    """), 2)  # fmt: skip


def test_a_refused_call_ends_on_the_other_ranks(program: Callable[[str], str]) -> None:
    run(program(CALLS + """
    frozen = np.zeros(1)
    frozen.flags.writeable = False
    for turn in range(3):
        if rank == size - 1:
            with raises(ValueError, words="read-only"):
                comm.Iallreduce(np.ones(1), frozen)
        else:
            with raises(MPI.Exception, MPI.ERR_PROC_ABORTED, f"rank {size - 1}"):
                comm.Iallreduce(np.ones(1), np.zeros(1)).Wait()
    for kind in KINDS:
        call = Call(kind, 3, 4, "d", 0, MPI.SUM, False)
        call.request.Wait()
        call.check()
    """), 3)  # fmt: skip


def test_ctrl_c_in_a_wait_leaves_the_collective_active(program: Callable[[str], str]) -> None:
    run(program(INTERRUPT + """
    go, into = comm.Dup(), np.zeros(4)
    if rank == 0:
        for beside in (False, True):
            request = comm.Iallreduce(np.ones(4), into)
            others = [go.Ibarrier()] if beside else []
            interrupt("prog.py")
            with raises(KeyboardInterrupt):
                request.Wait()
            assert request and not request.Test()
            go.Send(into, 1)
            MPI.Request.Waitall([request, *others])
            assert (into == size).all(), into
    else:
        for beside in (False, True):
            go.Recv(np.zeros(4), 0)
            others = [go.Ibarrier()] if beside else []
            MPI.Request.Waitall([comm.Iallreduce(np.ones(4), into), *others])
    assert comm.world.n_active == 0
    """), 2)  # fmt: skip


def test_threads_share_requests(program: Callable[[str], str]) -> None:
    """Two threads wait for the same requests, and a third one has its own on another communicator."""
    run(program("""
    import threading
    other, problems = comm.Dup(), []
    gate = threading.Barrier(2)

    def shared(first):
        try:
            for turn in range(60):
                if first:
                    into = [np.zeros(1 + 2000 * (turn % 2)) for _ in range(3)]
                    mine = [np.full(len(one), float(rank + turn + i)) for i, one in enumerate(into)]
                    box[:] = [comm.Iallreduce(*pair) for pair in zip(mine, into)]
                gate.wait()
                for request in box if first else reversed(box):
                    while not request.Test() if turn % 3 else not request.wait_for():
                        pass
                gate.wait()
                if first:
                    for i, one in enumerate(into):
                        assert (one == sum(r + turn + i for r in range(size))).all(), (turn, i, one)
        except BaseException as problem:
            problems.append(problem)
            gate.abort()

    def alone():
        try:
            for turn in range(100):
                into = np.zeros(size)
                other.Iallgather(np.full(1, rank * 100.0 + turn), into).Wait()
                assert (into == np.arange(size) * 100.0 + turn).all(), into
        except BaseException as problem:
            problems.append(problem)

    box = []
    threads = [threading.Thread(target=shared, args=(True,)), threading.Thread(target=shared, args=(False,)),
               threading.Thread(target=alone)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [], problems
    """), 2)  # fmt: skip


def test_a_closed_world_ends_requests(program: Callable[[str], str]) -> None:
    run(program("""
    request, more = comm.Iallreduce(np.ones(1), np.zeros(1)), None
    request.Wait()
    if rank == 0:
        more = comm.Ibarrier()
        comm.world.abort()
        with raises(MPI.Exception):
            more.Wait()
        assert more == MPI.REQUEST_NULL
    """), 2)  # fmt: skip


@pytest.mark.parametrize("way", ["testall", "status", "status of a barrier"])
def test_each_poll_of_a_request_advances_the_others(program: Callable[[str], str], way: str) -> None:
    # Rank 0 enters the reduction first, so its second round has to begin while it polls another request.
    run(program(f"""
    other = comm.Dup()
    result, word = np.zeros(4), np.zeros(1)
    first = comm.Iallreduce(np.full(4, rank + 1.0), result) if rank == 0 else None
    if rank == 0:
        comm.Send(word, 1, 1)  # after the start of the reduction
    elif rank == 1:
        comm.Recv(word, 0, 1)
    if rank:
        comm.Iallreduce(np.full(4, rank + 1.0), result).Wait()
        if {way!r} == "status of a barrier":
            other.Ibarrier().Wait()
        elif rank == 2:
            other.Send(word, 0, 7)
    else:
        polled = other.Ibarrier() if {way!r} == "status of a barrier" else other.Irecv(word, 2, 7)
        deadline = time.monotonic() + 60
        while not (MPI.Request.Testall([polled]) if {way!r} == "testall" else polled.Get_status()):
            assert time.monotonic() < deadline, "the reduction made no progress"
        polled.Wait()
        first.Wait()
    assert (result == sum(range(1, size + 1))).all()
    """), 4)  # fmt: skip
