"""Collectives: `viakit collectives`, communicators' use of csrc/coll, ranks that die, and mismatched calls."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys

import needs
import pytest

from viakit.launch import mpi_library as mpi
from viakit.measure import collectives, result
from viakit.measure.crew import Crew
from viakit.measure.endpoints import MeasureError

VIAKIT = [sys.executable, "-m", "viakit"]
DEADLINE_S = 120


def job(n: int, path: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it as n ranks."""
    command = [*VIAKIT, "run", "-n", str(n), path]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env=os.environ | environment, check=False
    )


# ------------------------------------------------------------------------------------ what is measured


def test_each_algorithm_has_a_name_and_says_what_it_does():
    known = collectives.algorithms()
    assert set(known) == set(collectives.OPERATIONS)
    for names in known.values():
        assert next(iter(names)) == "default"
        assert "flat" in names
        twins = {name[5:] for name in names if name.startswith("rdma-")}
        assert twins == {name[8:] for name in names if name.startswith("message-")}
        assert twins


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_crew_runs_every_algorithm_that_it_can(n):
    with Crew(n) as crew:
        for operation in collectives.OPERATIONS:
            for name in crew.operations[operation]:
                times = crew.run(name, 3, warmup=1, operation=operation, nbytes=1024)
                assert times.seconds[0] > 0
                assert crew.stands_for in crew.operations[operation]
        with pytest.raises(ValueError, match="expected one of"):
            crew.run("no such", 1, operation="bcast")


def test_a_measurement_is_a_valid_result(tmp_path):
    document = collectives.measure(["bcast", "alltoall"], ranks=[2], sizes=[8, 4096], seconds=0.5, with_mpi=False)
    result.validate(document)
    for operation in ("bcast", "alltoall"):
        point = collectives.find(document, operation, "flat", 2, 4096)
        assert point is not None
        assert point["time_s"]["median"] > 0
    assert collectives.find(document, "bcast", "flat", 3, 8) is None
    default = collectives.find(document, "bcast", "default", 2, 8)
    assert default is not None
    assert default["stands_for"] == "flat"
    collectives.figure([document]).savefig(tmp_path / "c.png")
    # The same ranks on other hosts are other curves, in a field of their own.
    elsewhere = copy.deepcopy(document)
    for one in elsewhere["series"]:
        one["hosts"] = 2
    titles = [axes.get_title() for axes in collectives.figure([document, elsewhere]).axes if axes.get_visible()]
    assert titles == [
        *("bcast, 2 ranks", "alltoall, 2 ranks"),
        *("bcast, 2 ranks on 2 hosts", "alltoall, 2 ranks on 2 hosts"),
    ]


def test_a_rank_that_fails_costs_what_it_has_not_measured_and_no_more():
    killed = []

    def kill(part: float, what: str) -> None:
        if what == "2 ranks, bcast, 64 bytes" and not killed:
            with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
                killed.append(int(file.read().split()[-1]))
            os.kill(killed[0], signal.SIGKILL)

    words = {"ranks": [2], "sizes": [8, 64], "algorithms": ["flat"], "seconds": 0.2, "with_mpi": False}
    document = collectives.measure(["bcast", "reduce"], **words, on_progress=kill)
    result.validate(document)
    assert collectives.find(document, "bcast", "flat", 2, 8) is not None
    assert collectives.find(document, "reduce", "flat", 2, 8) is None
    assert document["complete"] is False
    (error,) = document["errors"]
    assert (error["protocol"], error["nbytes"]) == ("via", 64)
    assert error["message"].startswith("bcast, flat: via, 2 ranks: ")


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_mpi_is_measured_beside_them(flavour):
    needs.mpi_library(f"mpi:{flavour}")
    try:
        document = collectives.measure(ranks=[2], sizes=[64], algorithms=["default"], seconds=1.0)
    except MeasureError as error:
        pytest.fail(str(error))
    for operation in collectives.OPERATIONS:
        assert collectives.find(document, operation, f"MPI_{operation.capitalize()}", 2, 64, f"mpi:{flavour}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"operations": ["no such"]}, "unknown operation"),
        ({"algorithms": ["no such"]}, "unknown algorithm"),
        ({"sizes": [-1]}, "expected bytes"),
        ({"sizes": [12]}, "multiples of 8"),
        ({"ranks": [0]}, "numbers from 1"),
        ({"hosts": 9}, "at least one rank"),
    ],
)
def test_arguments_that_make_no_sense_are_told(arguments, says):
    with pytest.raises(ValueError, match=says):
        collectives.measure(**arguments)


def test_the_command_writes_and_shows_results(tmp_path):
    file = str(tmp_path / "c.json")
    words = (
        "--operations allreduce --ranks 2 --sizes 8,1K --seconds 0.5 --no-mpi --algorithms default,flat,rdma-doubling"
    )
    done = subprocess.run(
        [*VIAKIT, "collectives", *words.split(), "--json", file],
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rdma-doubling" in done.stdout
    with open(file, encoding="utf-8") as opened:
        assert {one["algorithm"] for one in json.load(opened)["series"]} == {"default", "flat", "rdma-doubling"}
    shown = subprocess.run([*VIAKIT, "show", file], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert "allreduce" in shown.stdout, shown.stderr
    listed = subprocess.run(
        [*VIAKIT, "collectives", "--list"], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert "message-scatter-ring" in listed.stdout


# ------------------------------------------------------------------------------------ in communicators

EVERYTHING = """
    def check(comm):
        rank, size = comm.rank, comm.size
        for n in (0, 1, 5, 1000, 40000, 200000):
            for dtype in "bBhHiIlLfdFD":
                if n > 1000 and dtype not in "id":
                    continue
                mine, total = (np.arange(n) % 7 + rank).astype(dtype), np.zeros(n, dtype)
                wanted = sum((np.arange(n) % 7 + r).astype(dtype) for r in range(size)).astype(dtype)
                comm.Allreduce(mine, total)
                assert (total == wanted).all(), (dtype, n)
                got = np.zeros(n, dtype)
                comm.Reduce(mine, got if rank == size - 1 else None, MPI.SUM, size - 1)
                assert rank != size - 1 or (got == wanted).all()
                comm.Allreduce(MPI.IN_PLACE, mine)
                assert (mine == wanted).all()
                if dtype not in "FD":
                    comm.Allreduce(np.full(n, rank, dtype), got, op=MPI.MAX)
                    assert (got == size - 1).all()
            data = np.arange(n) if rank == 0 else np.zeros(n, int)
            comm.Bcast(data)
            assert (data == np.arange(n)).all()
            parts, all = np.full(n, rank), np.zeros((size, n), int)
            comm.Allgather(parts, all)
            assert (all == np.arange(size)[:, None]).all()
            out = np.repeat(np.arange(size) + 10 * rank, n).reshape(size, n)
            comm.Alltoall(out, all)
            assert (all == (rank + 10 * np.arange(size))[:, None]).all()
            comm.Alltoall(MPI.IN_PLACE, out)
            assert (out == all).all()
        grid = np.arange(12.0).reshape(4, 3) if rank == 0 else np.zeros((4, 3))
        column = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
        comm.Bcast([grid, 1, column])
        assert (grid[:, 0] == [0, 3, 6, 9]).all() and (rank == 0 or (grid[:, 1:] == 0).all())
        strided = np.zeros((4, 3))
        comm.Allreduce([np.ones(4), MPI.DOUBLE], [strided, 1, column])
        assert (strided[:, 0] == size).all() and (strided[:, 1:] == 0).all()
        flags = np.array([rank == 0, True])
        comm.Allreduce(MPI.IN_PLACE, flags, MPI.LAND)
        assert flags.tolist() == [size == 1, True]
        for _ in range(50):
            request = comm.Ibarrier()
            comm.Barrier()
            request.Wait()
    check(comm)
    dup = comm.Dup()
    check(dup)
    half = comm.Split(rank % 2, -rank)
    half.Barrier()
    comm.Barrier()
    one = np.ones(1)
    half.Allreduce(MPI.IN_PLACE, one)
    assert one[0] == half.size
    half.Free()
    dup.Free()
    # A non-blocking one continues while its rank waits in a barrier.
    request = comm.Iallreduce(np.ones(1000), np.zeros(1000))
    if rank == 0:
        comm.Barrier()
        request.Wait()
    else:
        request.Wait()
        comm.Barrier()
    print("fine", flush=True)
"""


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_results_are_right_whatever_carries_them(program, n):
    done = job(n, program(EVERYTHING))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fine"] * n


def test_results_are_right_by_messages(program):
    done = job(3, program(EVERYTHING), VIAKIT_COLLECTIVES="messages")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fine"] * 3


@pytest.mark.parametrize("n", [2, 3])
def test_a_rank_may_be_late_for_the_first_collective(program, n):
    done = job(n, program("""
        import time
        if rank == 1:
            time.sleep(1)  # the others say meanwhile what they wait for
        total = np.empty(1 << 20)
        comm.Allreduce(np.ones(1 << 20), total)
        assert (total == size).all()
        print("fine", flush=True)
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fine"] * n


MISMATCHES = {
    "barrier and gather": ("comm.Barrier()", "comm.Gather(np.ones(1), np.ones(3), 1)"),
    "barrier and object": ("comm.Barrier()", "comm.allgather({})"),
    "barrier and allreduce": ("comm.Barrier()", "comm.Allreduce(np.ones(3), np.ones(3))"),
    "lengths": ("comm.Allreduce(np.ones(3), np.ones(3))", "comm.Allreduce(np.ones(4), np.ones(4))"),
    "long and short": ("comm.Allgather(np.ones(3), np.ones(9))", "comm.Allgather(np.ones(90000), np.ones(270000))"),
    "roots": ("comm.Reduce(np.ones(3), np.ones(3), MPI.SUM, 0)", "comm.Reduce(np.ones(3), np.ones(3), MPI.SUM, 1)"),
}


@pytest.mark.parametrize("which", MISMATCHES)
def test_ranks_in_different_collectives_are_told(program, which):
    usual, other = MISMATCHES[which]
    done = job(3, program(f"""
        comm.Barrier()
        try:
            for _ in range(3):
                {other} if rank == 1 else {usual}
            print("unnoticed", flush=True)
        except MPI.Exception as error:
            print(error, flush=True)
    """))  # fmt: skip
    assert "mismatched collectives" in done.stdout, (done.stdout, done.stderr)


def test_ctrl_c_ends_a_barrier_and_all_go_on(program):
    done = job(3, program("""
        import os, signal, threading
        comm.Barrier()
        try:
            if rank == 1:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            if rank == 0:
                comm.recv(source=1)
            comm.Barrier()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            comm.send(None, 0)
        except MPI.Exception as error:  # unless the barrier came to its end all the same
            assert error.Get_error_class() == MPI.ERR_PROC_ABORTED, error
        comm.Barrier()  # by messages from here on
        total = np.zeros(1)
        comm.Allreduce(np.ones(1), total)
        assert total[0] == size
        print("on", flush=True)
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["interrupted", "on", "on", "on"]


@pytest.mark.parametrize("call", ["Barrier()", "Bcast(big, 2)", "Reduce(big, out)", "Allreduce(big, out)",
                                  "Allgather(big[:20000], wide)", "Alltoall(wide, wide2)"])  # fmt: skip
def test_a_rank_that_is_killed_in_a_collective_is_told_to_the_others(program, tmp_path, call):
    done = job(3, program(f"""
        import os, time
        big, out, wide, wide2 = np.zeros(60000), np.zeros(60000), np.zeros(60000), np.zeros(60000)
        for _ in range(3):
            comm.{call}
        if rank == 2:
            comm.world.abort()  # the process lives on, so that the launcher does not end the others
            deadline = time.monotonic() + 60
            while not all(os.path.exists(f"{tmp_path}/{{r}}") for r in (0, 1)) and time.monotonic() < deadline:
                time.sleep(0.02)
            os._exit(0)
        for attempt in range(2):
            try:
                for _ in range(1000):
                    comm.{call}
            except MPI.Exception as error:
                assert error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_ABORTED), error
                print("told", flush=True)
        open(f"{tmp_path}/{{rank}}", "w").close()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["told"] * 4, (done.stdout, done.stderr)
