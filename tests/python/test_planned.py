"""The short paths of collectives with a plan (viakit/_core/planned.pxi): the general path's messages and results."""

from __future__ import annotations

from collections.abc import Callable

import comm_job
import pytest
from test_comm_interrupts import INTERRUPT

# Each collective with a plan, with counts that differ, gaps and empty parts, also in place, and those of objects.
# `calls()` checks the results. In the block of `general(here)` this rank takes the general path, and in the block of
# `pending(here)` another operation is under way there.
CALLS = """
    other = comm.Dup()
    counts, places = [i % 3 for i in range(size)], [4 * i for i in range(size)]

    slow = {name: "_block_" + name.lower() for name in "Gatherv Scatterv Allgatherv Alltoallv Alltoallw Scan Exscan "
            "Reduce_scatter_block Reduce_scatter Gather Scatter".split()}  # those that csrc/coll does not have
    slow |= {name: f"_{name}_any" for name in "alltoall scan exscan gather scatter bcast allgather allreduce".split()}
    slow["reduce"] = "_reduce_objects_any"

    @contextlib.contextmanager
    def general(here):
        for name in slow if here else ():
            setattr(comm, name, getattr(comm, slow[name]))
        try:
            yield
        finally:
            for name in slow if here else ():
                delattr(comm, name)

    @contextlib.contextmanager
    def pending(here):
        request = other.irecv(source=rank, tag=1) if here else MPI.REQUEST_NULL
        assert not here or comm.world.n_active
        yield
        if here:
            other.send(None, rank, 1)
        request.wait()

    def part(i):
        return np.full(counts[i], i + 1.0)

    def spread(fill=0.0):
        room = np.full(4 * size, fill)
        for i in range(size):
            room[places[i]:places[i] + counts[i]] = i + 1.0
        return room

    def vectors(root):
        into = np.full(4 * size, -1.0)
        comm.Gatherv(part(rank), [into, counts, places, MPI.DOUBLE] if rank == root else None, root)
        assert rank != root or (into == spread(-1.0)).all(), into
        got = np.zeros(counts[rank])
        comm.Scatterv([spread(), counts, places, MPI.DOUBLE] if rank == root else None, got, root)
        assert (got == rank + 1).all(), got
        into[:] = -1.0
        comm.Allgatherv(part(rank), [into, (counts, places), MPI.DOUBLE])
        assert (into == spread(-1.0)).all(), into
        for n in (2, 10000):  # Bruck's algorithm, and a ring
            into = np.zeros(n * size)
            comm.Allgatherv(np.full(n, rank + 1.0), [into, [n] * size])
            assert (into.reshape(size, n) == np.arange(1, size + 1)[:, None]).all(), into
        into = np.full(4 * size, -1.0)
        mine, sent = [counts[rank]] * size, np.repeat(10.0 * rank + np.arange(size), counts[rank])
        comm.Alltoallv([sent, mine], [into, counts, places, MPI.DOUBLE])
        for i in range(size):
            assert (into[places[i]:places[i] + counts[i]] == 10.0 * i + rank).all(), into

    def reductions():
        lower, total = rank * (rank + 1) // 2, size * (size + 1) // 2
        operand, got = np.full(3, rank + 1), np.full(3, -7)
        comm.Scan(operand, got)
        assert (got == lower + rank + 1).all(), got
        got[:] = -7
        comm.Exscan(operand, got)
        assert (got == (lower if rank else -7)).all(), got
        comm.Reduce_scatter_block(np.repeat(np.arange(size) + rank, 3), got)
        assert (got == total - size + size * rank).all(), got
        got = np.zeros(counts[rank], int)
        comm.Reduce_scatter(np.repeat(np.arange(size) + rank, counts), got, counts)
        assert (got == total - size + size * rank).all(), got

    def at_once(name, *words):
        getattr(comm, name)(*words)

    def later(name, *words):
        getattr(comm, "I" + name.lower())(*words).Wait()

    def vectors_in_place(root, do):
        here, mine = rank == root, slice(places[rank], places[rank] + counts[rank])
        into, got = np.full(4 * size, -1.0), np.zeros(counts[rank])
        into[mine] = rank + 1.0
        do("Gatherv", MPI.IN_PLACE if here else part(rank), [into, counts, places, MPI.DOUBLE] if here else None, root)
        assert not here or (into == spread(-1.0)).all(), into
        whole = spread()
        do("Scatterv", [whole, counts, places, MPI.DOUBLE] if here else None, MPI.IN_PLACE if here else got, root)
        assert (whole == spread()).all() and (here or (got == rank + 1).all()), got
        into[:] = -1.0
        into[mine] = rank + 1.0
        do("Allgatherv", MPI.IN_PLACE, [into, counts, places, MPI.DOUBLE])
        assert (into == spread(-1.0)).all(), into
        few = [1 + (rank + i) % 2 for i in range(size)]
        into = np.full(4 * size, 10.0 * rank)
        do("Alltoallv", MPI.IN_PLACE, [into, few, [4 * i for i in range(size)], MPI.DOUBLE])
        for i in range(size):
            assert (into.reshape(size, 4)[i] == np.where(np.arange(4) < few[i], 10.0 * i, 10.0 * rank)).all(), into
        types = [(MPI.INT, MPI.DOUBLE)[n - 1] for n in few]
        room, at = np.zeros(16 * size, "u1"), [16 * i for i in range(size)]
        for i, n in enumerate(few):
            room[16 * i:].view(("i4", "f8")[n - 1])[:n] = 100 * rank + i
        sent, gaps = room.copy(), np.zeros(16 * size, "u1")
        do("Alltoallw", MPI.IN_PLACE, [room, few, at, types])
        do("Alltoallw", (sent, (few, at), types), [gaps, few, at, types])
        for i, n in enumerate(few):
            for found in (room, gaps):
                assert (found[16 * i:].view(("i4", "f8")[n - 1])[:n] == 100 * i + rank).all(), (i, found)

    def blocks_in_place(root, do, n):
        here, mine = rank == root, slice(rank * n, (rank + 1) * n)
        into, got = np.full(n * size, -1.0), np.zeros(n)
        into[mine] = rank
        do("Gather", MPI.IN_PLACE if here else into[mine].copy(), into if here else None, root)
        assert not here or (into.reshape(size, n) == np.arange(size)[:, None]).all(), into
        do("Scatter", into if here else None, MPI.IN_PLACE if here else got, root)
        assert here or (got == rank).all(), got
        into[:] = -1.0
        into[mine] = rank
        do("Allgather", MPI.IN_PLACE, into)
        assert (into.reshape(size, n) == np.arange(size)[:, None]).all(), into
        into[:] = 100.0 * rank + np.repeat(np.arange(size), n)
        do("Alltoall", MPI.IN_PLACE, into)
        assert (into.reshape(size, n) == 100.0 * np.arange(size)[:, None] + rank).all(), into

    def reductions_in_place(root, do, n):
        total = size * (size + 1) // 2
        for name, expected in (("Allreduce", total), ("Scan", (rank + 1) * (rank + 2) // 2),
                               ("Exscan", rank * (rank + 1) // 2 if rank else 1)):
            got = np.full(n, rank + 1)
            do(name, MPI.IN_PLACE, got)
            assert (got == expected).all(), (name, got)
        got = np.full(n, rank + 1)
        do("Reduce", *((MPI.IN_PLACE, got) if rank == root else (got, None)), MPI.SUM, root)
        assert (got == (total if rank == root else rank + 1)).all(), got
        for name in ("Reduce_scatter_block", "Reduce_scatter"):
            got = np.repeat(np.arange(size) + rank, n)
            do(name, MPI.IN_PLACE, got)
            assert (got[:n] == total - size + size * rank).all(), (name, got)
            assert (got[n:] == np.repeat(np.arange(size) + rank, n)[n:]).all(), (name, got)
        got = np.repeat(np.arange(size) + rank, counts)
        do("Reduce_scatter", MPI.IN_PLACE, got, counts)
        assert (got[:counts[rank]] == total - size + size * rank).all(), got
        got = np.zeros(counts[rank], int)
        do("Reduce_scatter", np.repeat(np.arange(size) + rank, counts), got)
        assert (got == total - size + size * rank).all(), got

    def of_objects(root):
        assert comm.alltoall([(rank, i, "x" * i) for i in range(size)]) == [(i, rank, "x" * rank) for i in range(size)]
        mine, all_of = [(rank, "y" * 30000 * (rank == root))], [(i, "y" * 30000 * (i == root)) for i in range(size)]
        assert comm.reduce(mine, root=root) == (all_of if rank == root else None)
        assert comm.scan(mine) == all_of[:rank + 1]
        assert comm.exscan(mine) == (all_of[:rank] if rank else None)
        assert comm.scan(rank, MPI.MAX) == rank and comm.reduce(rank, MPI.MIN, root) == (0 if rank == root else None)
        assert comm.allreduce(mine) == all_of and comm.allgather(mine[0]) == all_of
        assert comm.gather(mine[0], root) == (all_of if rank == root else None)
        assert comm.bcast(comm.scatter(all_of if rank == root else None, root), root) == all_of[root]

    def calls(root=0, *ways):
        vectors(root)
        reductions()
        of_objects(root)
        for do in ways or (at_once,):
            vectors_in_place(root, do)
            for n in (1, 3000):
                blocks_in_place(root, do, n)
                reductions_in_place(root, do, n)
"""


def run(path: str, ranks: int, protocol: str = "via") -> None:
    done = comm_job.job(ranks, path, protocol=protocol)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("ranks", "protocol"), [(1, "via"), (2, "via"), (3, "via"), (5, "via"), (3, "bip"), (3, "tcp")]
)
def test_ranks_may_take_different_paths_in_one_call(program: Callable[[str], str], ranks: int, protocol: str) -> None:
    path = program(CALLS + """
    for root in sorted({0, size - 1}):
        calls(root, at_once, later)
        for k in range(3):
            with general(rank % 3 == k):
                calls(root, later)
            with general(rank % 3 != k), pending(rank % 2):
                calls(root, at_once)
            with pending(rank % 3 == k):
                calls(root, at_once, later)
    numbers = comm._n_collectives
    calls()
    each = comm._n_collectives - numbers
    with general(rank == 0):
        calls()
    with general(True), pending(True):
        calls()
    with pending(True):
        calls()
    assert comm.allgather(comm._n_collectives - numbers) == [4 * each] * size
    """)  # fmt: skip
    run(path, ranks, protocol)


def test_plain_arguments_take_the_short_path(program: Callable[[str], str]) -> None:
    path = program(CALLS + """
    from viakit.comm import collective_calls
    began = []
    run = collective_calls.run
    collective_calls.run = lambda comm, schedule, step: began.append(step.kind) or run(comm, schedule, step)
    calls(0, at_once, later)
    with pending(True):
        calls(0, at_once, later)
    assert began == [], began
    with general(True):
        calls()
    assert len(set(began)) == len(slow), began
    """)  # fmt: skip
    run(path, 2)


def test_results_are_those_of_the_general_path(program: Callable[[str], str]) -> None:
    path = program(CALLS + """
    whole = "SUM PROD MAX MIN LAND LOR LXOR BAND BOR BXOR".split()
    rng = np.random.default_rng(7 + rank)
    for code in "bBhHiIlLfdFD?":
        mine = (300 * rng.standard_normal(2 * size)).astype(code)
        if code in "fd":
            mine[rank], mine[-1] = np.nan, -0.0
            mine[-2] = 0.0 if rank else -0.0
            mine[2] = -0.0 if rank else 0.0
        for name in whole[:10 if code in "bBhHiIlL" else 4 if code in "fd" else 2 if code in "FD" else 0]:
            op, found = getattr(MPI, name), []
            for here in (False, True):
                with general(here):
                    part, scan = np.zeros(2, code), np.zeros(2 * size, code)
                    few, below = np.zeros(counts[rank], code), np.zeros(2 * size, code)
                    comm.Reduce_scatter_block(mine, part, op)
                    comm.Scan(mine, scan, op)
                    comm.Exscan(mine, below, op)
                    comm.Reduce_scatter(mine[:sum(counts)], few, counts, op)
                    found.append([part, scan, below, few])
            for short, long in zip(*found, strict=True):
                assert np.array_equal(short, long, equal_nan=code in "fdFD"), (code, name, short, long)
                same = np.isnan(long) | (np.signbit(short) == np.signbit(long)) if code in "fd" else True
                assert np.all(same), (code, name, short, long)  # zeros have a sign
    """)  # fmt: skip
    run(path, 3)


def test_derived_datatypes_of_several_elements_take_the_general_path(program: Callable[[str], str]) -> None:
    run(
        program("""
        pair = MPI.DOUBLE.Create_contiguous(2).Commit()
        got = np.zeros(2)
        comm.Reduce_scatter([np.arange(4.0), pair], [got, pair], [1, 1])
        assert got.tolist() == [4.0 * rank, 4.0 * rank + 2], got
        try:
            comm.Reduce_scatter([np.arange(4.0), pair], got, [2, 2])
        except ValueError as error:
            assert "counts add up to 4" in str(error), error
        else:
            raise AssertionError("counts of doubles were taken for counts of pairs")
        """),
        2,
    )


def test_items_are_taken_before_the_first_is_pickled(program: Callable[[str], str]) -> None:
    run(
        program("""
        class Shrinks:
            def __reduce__(self):
                del items[1:]
                return int, (5,)
        items = [Shrinks(), 3]
        assert comm.alltoall(items) == ([5, 5] if rank == 0 else [3, 3])
        items = [Shrinks(), 3]
        assert comm.scatter(items if rank == 0 else None) == (5 if rank == 0 else 3)
        """),
        2,
    )


def test_every_form_of_a_vector_is_taken(program: Callable[[str], str]) -> None:
    run(
        program("""
        mine, into = np.full(3 - 2 * rank, rank + 1.0), np.zeros(6)
        forms = [[into, (3, 1), (0, 4), MPI.DOUBLE], [into, [3, 1], [0, 4], MPI.DOUBLE], [into, ((3, 1), (0, 4))],
                 [into, ([3, 1], [0, 4]), MPI.DOUBLE], [into, np.array([3, 1]), np.array([0, 4]), MPI.DOUBLE],
                 [into, (np.array([3, 1]), np.array([0, 4])), "d"], (into, [3, 1], [0, 4], MPI.DOUBLE)]
        for call in (comm.Allgatherv, lambda *words: comm.Iallgatherv(*words).Wait()):
            for form in forms:
                into[:] = 0
                call(mine, form)
                assert into.tolist() == [1, 1, 1, 0, 2, 0], (form[1:], into)
        into[:] = 0
        comm.Allgatherv(mine, [into, [3, 1]])
        assert into.tolist() == [1, 1, 1, 2, 0, 0], into
        comm.Allgatherv([None, 0, MPI.DOUBLE], [None, [0, 0], [9, 9], MPI.DOUBLE])
        comm.Allgatherv([mine, 0], [into, [0, 0], [99, 99], MPI.DOUBLE])
        comm.Gatherv([mine, 1], into[:2])  # without counts the parts are as equal as possible
        assert rank or into[:2].tolist() == [1, 2], into
        """),
        2,
    )


@pytest.mark.parametrize(
    ("call", "kind", "code", "words"),
    [
        ("comm.Allgatherv(np.zeros(1), [np.zeros(2), [1, 2]])", "MPI.Exception", "MPI.ERR_TRUNCATE", ""),
        ("comm.Scan(np.zeros(2), np.zeros(1))", "ValueError", None, "send count"),
        ("comm.Scan(np.zeros(1), np.zeros(1), print)", "TypeError", None, "op must be an Op"),
        ("comm.Alltoallv([np.zeros(2), [1, 1]], [np.zeros(2), [1, -1]])", "MPI.Exception", "MPI.ERR_COUNT", ""),
        ("comm.Exscan(np.zeros(1), b'12345678')", "BufferError", None, ""),
        ("comm.Reduce_scatter(np.zeros(2), np.zeros(1), [2, 1])", "ValueError", None, "the counts add up to 3"),
        ("comm.alltoall([1, threading.Lock()])", "TypeError", None, "pickle"),
        ("comm.alltoall([1])", "ValueError", None, "expecting 2 items, got 1"),
        ("comm.Reduce_scatter(np.zeros(3), np.zeros(1))", "ValueError", None, "the counts add up to 2"),
        (
            "comm.Alltoallw(None, [np.zeros(2), [1, 1], [0, 12], [MPI.DOUBLE] * 2])",
            "MPI.Exception",
            "MPI.ERR_TRUNCATE",
            "",
        ),
        ("comm.Allgatherv(MPI.IN_PLACE, [b'1' * 16, [1, 1], MPI.DOUBLE])", "BufferError", None, ""),
        ("comm.reduce(threading.Lock())", "TypeError", None, "pickle"),
        ("comm.scan(threading.Lock())", "TypeError", None, "pickle"),
    ],
)
def test_a_call_that_one_rank_refuses_ends_on_all(
    program: Callable[[str], str], call: str, kind: str, code: str | None, words: str
) -> None:
    name = call[5 : call.index("(")]
    refuses = 0 if name in ("Scan", "Exscan", "scan") else 1  # rank 0 does not wait for rank 1 in a prefix
    right = {
        "Allgatherv": "np.zeros(1), [np.zeros(2), [1, 1]]",
        "Alltoallv": "[np.zeros(2), [1, 1]], [np.zeros(2), [1, 1]]",
        "Alltoallw": "None, [np.zeros(2), [1, 1], [0, 8], [MPI.DOUBLE] * 2]",
        "Reduce_scatter": "np.zeros(2), np.zeros(1)" + ", [1, 1]" * ("[2, 1]" in call),
        "alltoall": "[1, 2]",
        "reduce": "1",
        "scan": "1",
    }
    path = program(CALLS + f"""
    import threading
    for turn in range(3):
        if rank == {refuses}:
            with raises({kind}, {code}, {words!r}):
                {call}
        else:
            with raises(MPI.Exception, MPI.ERR_PROC_ABORTED, "rank {refuses}"):
                comm.{name}({right.get(name, "np.zeros(1), np.zeros(1)")})
    calls()
    """)  # fmt: skip
    run(path, 2)


def test_ranks_whose_calls_do_not_match_get_an_error(program: Callable[[str], str]) -> None:
    """Rank 0 waits for rank 1, which is in another collective, has another operation, or sends another length."""
    path = program(CALLS + """
    here = {(0, "gatherv"): lambda: comm.Gatherv(np.zeros(1), [np.zeros(2), [1, 1]]),
            (1, "gatherv"): lambda: comm.Scatterv(None, np.zeros(1)),
            (0, "scan"): lambda: comm.Reduce_scatter_block(np.zeros(2), np.zeros(1), MPI.SUM),
            (1, "scan"): lambda: comm.Reduce_scatter_block(np.zeros(2), np.zeros(1), MPI.MAX)}
    for name in ("gatherv", "scan"):
        with raises(MPI.Exception, words="mismatched collectives"):
            here[rank, name]()
        other.Barrier()  # neither rank leaves before the other has its error
    if rank == 0:
        with raises(MPI.Exception, MPI.ERR_TRUNCATE, "gatherv: rank 1 sent 8 bytes where 16 were expected"):
            comm.Gatherv(np.zeros(1), [np.zeros(3), [1, 2]])
    else:
        comm.Gatherv(np.zeros(1), None)
    other.Barrier()
    calls()
    """)  # fmt: skip
    run(path, 2)


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        "comm.Scan(np.ones(8), got)",
        "comm.Allgatherv(np.ones(4), [got, [4, 4]])",
        "comm.Reduce_scatter_block(np.ones(16), got)",
        "comm.alltoall([1, 2])",
    ],
)
def test_ctrl_c_withdraws_the_receives(program: Callable[[str], str], call: str, beside: bool) -> None:
    """Later messages of the other rank do not reach the buffers, and later collectives match.

    The interrupted rank has sent its first message before, so the call of the other rank may end well.
    """
    path = program(INTERRUPT + CALLS + f"""
    go, got = comm.Dup(), np.full(8, 3.0)
    if rank == 1:
        number = comm._n_collectives
        interrupt("prog.py", lambda: comm._n_collectives > number)
        with pending({beside}):
            with raises(KeyboardInterrupt):
                {call}
        go.Send(np.zeros(4), 0)
        go.Recv(np.zeros(4), 0)
        assert (got[:4] == 3.0).all(), got
    else:
        go.Recv(np.zeros(4), 1)
        with contextlib.suppress(MPI.Exception) if "got" in {call!r} else raises(MPI.Exception, words="Keyboard"):
            {call}
        go.Send(np.zeros(4), 1)
    calls()
    """)  # fmt: skip
    run(path, 2)


def test_threads_on_two_communicators_do_not_meet(program: Callable[[str], str]) -> None:
    run(
        program("""
        import threading
        problems = []
        def work(own, factor):
            try:
                for turn in range(50):
                    got, into = np.zeros(2), np.zeros(2 * size)
                    own.Scan(np.full(2, factor + turn), got)
                    assert (got == (rank + 1) * (factor + turn)).all(), got
                    own.Allgatherv(got, [into, [2] * size])
                    assert (into.reshape(size, 2)[:, 0] == np.arange(1, size + 1) * (factor + turn)).all(), into
                    assert own.alltoall([turn] * size) == [turn] * size
            except BaseException as problem:
                problems.append(problem)
        threads = [threading.Thread(target=work, args=(comm.Dup(), 100.0 * i)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == [], problems
        """),
        2,
    )
