"""`viakit barrier`: it measures correctly, writes valid results, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys

import needs
import numpy as np
import pytest

from viakit.bench import goals
from viakit.launch import mpi_library as mpi
from viakit.measure import barrier, result
from viakit.measure.crew import Crew
from viakit.measure.endpoints import MeasureError

VIAKIT = [sys.executable, "-m", "viakit"]
CORES = len(os.sched_getaffinity(0))


def test_the_algorithms_have_names_and_sections():
    known = barrier.algorithms()
    assert next(iter(known)) == "default"
    assert {"rdma", "overall", "flat", "message", "gather", "dissemination"} <= known.keys()
    assert "5.1" in known["rdma"]
    assert "5.2" in known["flat"]
    assert "5.3" in known["overall"]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_crew_runs_every_barrier_that_it_can(n):
    with Crew(n) as crew:
        assert {"rdma", "overall", "flat", "flags", "counter", "message"} <= set(crew.algorithms)
        assert crew.default in crew.algorithms
        for name in crew.algorithms:
            times = crew.run(name, 20, warmup=3)
            assert times.seconds.shape == (1,)
            assert times.seconds[0] > 0
        with pytest.raises(ValueError, match="expected one of"):
            crew.run("no such", 1)


def test_with_skew_the_last_to_come_is_what_counts():
    with Crew(3) as crew:
        times = crew.run("default", 25, skew_s=0.001, seed=7)
        assert times.seconds.shape == (25,)
        assert np.all(times.seconds > 0)  # no rank left before the last had arrived


def test_ranks_are_bound_in_blocks_or_not_at_all():
    with Crew(4) as bound, Crew(4, bind="none") as free:
        assert bound.info["bind"] == "core"
        assert free.info["bind"] == "none"
        cores = [os.sched_getaffinity(process.pid) for process in bound._processes]
        assert all(len(one) == 1 for one in cores)
        assert len(set.union(*cores)) == min(CORES, 4)
        order = [min(one) for one in cores]
        assert order == sorted(order)
        assert {frozenset(os.sched_getaffinity(process.pid)) for process in free._processes} == {
            frozenset(os.sched_getaffinity(0))
        }


def test_a_turn_of_the_scheduler_is_no_barrier_but_measured_beside_them():
    with Crew(CORES + 1) as crew:
        assert crew.crowded
        assert "turn" not in crew.algorithms
        assert crew.run("turn", 50, operation="turn").seconds[0] > 0
        # A rank that dies meanwhile belongs to the crew, and not to the measurement of turns.
        assert barrier._Turn(crew).subject() == ("via", "barrier, a turn of the scheduler", 0)
    found = barrier.measure([CORES + 1], algorithms=["default"], with_mpi=False, seconds=0.1)
    turn = barrier.find(found, "turn", CORES + 1)
    assert turn["time_s"]["median"] > 0
    (series,) = [one for one in found["series"] if one["algorithm"] == "turn"]
    assert series["protocol"] == "scheduler"
    late = barrier.measure([CORES + 1], algorithms=["default"], with_mpi=False, seconds=0.1, skew_s=1e-5)
    assert barrier.find(late, "turn", CORES + 1) is None  # it does not measure the time after the last arrival


def test_where_ranks_share_cores_the_default_gathers():
    with needs.hosts(4) as testbed, Crew(4, testbed=testbed) as crew:
        if CORES < 4:
            assert crew.default == "rdma-gather"
            assert crew.algorithms[crew.algorithms.index("rdma-gather") + 1] == "message-gather"
        else:
            assert crew.default == "rdma"


def test_over_tcp_there_is_no_rdma():
    with Crew(3, protocol="tcp") as crew:
        assert "rdma" not in crew.algorithms
        assert "message" in crew.algorithms
        assert crew.run("default", 10).seconds[0] > 0


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_mpi_barrier_is_measured_the_same_way(flavour):
    with Crew(2, mpi_library=needs.mpi_library(f"mpi:{flavour}")) as crew:
        assert crew.algorithms == [""]
        assert crew.run("", 20).seconds.shape == (1,)
        assert crew.run("", 5, skew_s=1e-4).seconds.shape == (5,)


@pytest.mark.parametrize("gone_already", [False, True])
def test_a_rank_that_is_killed_ends_the_measurement(gone_already):
    with Crew(3) as crew:
        crew.run("flat", 10)
        os.kill(crew._processes[1].pid, signal.SIGKILL)
        if gone_already:
            crew._processes[1].wait(timeout=10)
        with pytest.raises(MeasureError, match="3 ranks"):
            crew.run("flat", 1000000, timeout_s=30)


def test_on_hosts_ranks_are_in_blocks():
    with needs.hosts() as testbed, Crew(4, testbed=testbed) as crew:
        assert [crew.host_of(rank) for rank in range(4)] == [0, 0, 1, 1]
        assert crew.default == "overall"
        assert "flat" not in crew.algorithms
        for name in ("overall", "rdma", "message"):
            assert crew.run(name, 10).seconds[0] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ranks": []}, "expected numbers from 1 to"),
        ({"ranks": [0]}, "expected numbers from 1 to"),
        ({"ranks": [2], "algorithms": ["wrong"]}, "unknown barrier 'wrong'"),
        ({"ranks": [2], "hosts": 3}, "at least one rank on each host"),
        ({"ranks": [2], "protocol": "pigeon"}, "expected one of via"),
        ({"ranks": [2], "protocol": "udp"}, "several hosts"),
        ({"ranks": [1, 2], "protocol": "udp", "hosts": 0}, "ranks of 2 or more"),
        ({"ranks": [2], "seconds": 0}, "for instance 10"),
        ({"ranks": [2], "bind": "socket"}, "expected one of core, none"),
    ],
)
def test_wrong_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        barrier.measure(**arguments)


def test_udp_needs_several_hosts_and_a_host_for_each_rank_is_several():
    barrier.check([2, 3], None, 0, "udp", 1.0)


@pytest.fixture(scope="module")
def document():
    return barrier.measure([2, 3], algorithms=["default", "flat", "message"], with_mpi=False, seconds=0.2, seed=1)


def test_a_result_is_valid_and_says_who_where_and_how_long(document, tmp_path):
    result.save(document, tmp_path / "b.json")
    read = result.load(tmp_path / "b.json")
    assert barrier.is_collective(read)
    assert [(one["algorithm"], one["ranks"], one["hosts"]) for one in read["series"]] == [
        (name, n, 1) for n in (2, 3) for name in ["default", "flat", "message", *(["turn"] if n > CORES else [])]
    ]
    point = barrier.find(read, "message", 3)
    assert point["nbytes"] == 0
    assert point["time_s"]["p5"] <= point["time_s"]["median"] <= point["time_s"]["p99"]
    assert len(point["rounds"]) == len(point["bursts_s"]) >= 6
    assert read["series"][0]["info"]["stands_for"] == "flags"
    assert barrier.find(read, "rdma", 3) is None
    assert barrier.best_mpi(read, 3) is None
    ratio = barrier.ratio(barrier.find(read, "flat", 2), point)
    assert ratio.low <= ratio.value <= ratio.high or ratio.value > 0


def test_a_series_of_barriers_needs_its_own_fields(document):
    broken = json.loads(json.dumps(document))
    del broken["series"][1]["ranks"]
    with pytest.raises(result.ResultError, match=r"series/1.*ranks"):
        result.validate(broken)
    broken = json.loads(json.dumps(document))
    broken["series"][0]["points"][0]["one_way_s"] = broken["series"][0]["points"][0].pop("time_s")
    with pytest.raises(result.ResultError, match="time_s"):
        result.validate(broken)


def test_it_is_drawn(document):
    drawing = barrier.figure([document])
    (axes,) = drawing.axes
    expected = ["default", "flat", "message", *(["a turn of the scheduler"] if CORES < 3 else [])]
    assert len([line for line in axes.get_lines() if line.get_label() != "_end"]) == len(expected)
    assert [text.get_text() for text in axes.texts] == expected
    with pytest.raises(result.ResultError, match="no barriers to draw"):
        barrier.figure([{**document, "series": []}])


def _invented(without=()):
    """Return a substitute for measuring: message barriers and MPI's take 10 us, viakit's others 3 us."""

    def measure(ranks, *, algorithms, hosts=1, with_mpi=True, seconds, seed):
        def series(protocol, algorithm, time_s):
            bursts = [time_s * (1 + i / 1000) for i in range(8)]
            point = {"nbytes": 0, "time_s": {"median": time_s}, "bursts_s": bursts, "rounds": list(range(8))}
            return {"protocol": protocol, "algorithm": algorithm, "ranks": ranks[0], "hosts": hosts, "points": [point]}

        made = [series("via", name, 10e-6 if name == "message" else 3e-6) for name in algorithms]
        made += [series("scheduler", "turn", 3e-6)]
        if with_mpi:
            made += [series(f"mpi:{one}", "MPI_Barrier", 10e-6) for one in mpi.FLAVOURS if one not in without]
        skipped = [{"protocol": f"mpi:{one}", "reason": "not installed"} for one in without]
        return {"complete": True, "series": made, "skipped": skipped}

    return measure


def test_goals_are_judged_by_ratios_of_one_run(monkeypatch):
    monkeypatch.setattr(barrier, "measure", _invented())
    judged, documents, interrupted = goals.take(goals.BARRIERS, goals.Settings(), 1.0)
    assert not interrupted
    assert len(documents) == len({one.measurement for one in goals.BARRIERS}) == len(judged) - 1
    assert [one.value for one in judged] == pytest.approx([0.3] * 7 + [1.0])
    assert [one.status for one in judged] == ["holds"] * 6 + ["falls short", "holds"]


def test_half_a_comparison_with_mpi_is_none(monkeypatch):
    monkeypatch.setattr(barrier, "measure", _invented(without=["mpich"]))
    judged, _, _ = goals.take(goals.BARRIERS, goals.Settings(), 1.0)
    assert [one.status for one in judged] == ["holds"] * 5 + ["not measured"] * 2 + ["holds"]
    assert judged[5].reason == "mpi:mpich: not installed"


@pytest.mark.parametrize("flavour", [None, *mpi.FLAVOURS])
def test_the_loop_in_python_measures_barrier_and_allreduce(flavour):
    library = None if flavour is None else needs.mpi_library(f"mpi:{flavour}")
    with Crew(2, mpi_library=library, level="python") as crew:
        name = "default" if flavour is None else ""
        assert crew.run(name, 20, warmup=3).seconds[0] > 0
        assert crew.run(name, 20, operation="allreduce", nbytes=8).seconds.shape == (1,)
        with pytest.raises(ValueError, match="expected one of"):
            crew.run(name, 20, operation="bcast", nbytes=8)
    with pytest.raises(ValueError, match="skew is measured by the loop in C only"):
        barrier.measure([2], level="python", skew_s=1e-3)


def test_the_command(tmp_path):
    out, picture = tmp_path / "b.json", tmp_path / "b.png"
    words = "barrier --ranks 2 --algorithms flat,message --no-mpi --seconds 0.2 --skew 20us".split()
    done = subprocess.run(
        [*VIAKIT, *words, "--json", str(out), "--plot", str(picture)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "flat" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert result.load(out)["series"][0]["skew_s"] == pytest.approx(20e-6)
    for command in (["show", str(out)], ["plot", str(out), "-o", str(tmp_path / "c.svg")]):
        done = subprocess.run([*VIAKIT, *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--list"], "pairwise exchange with recursive doubling"),
        (["--ranks", "two"], "expected comma-separated numbers"),
        (["--skew", "1h"], "expected a time"),
        (["--algorithms", "wrong"], "unknown barrier"),
    ],
)
def test_the_command_answers(words, answer):
    done = subprocess.run([*VIAKIT, "barrier", *words], capture_output=True, text=True, timeout=60)
    assert answer in done.stdout + done.stderr
    assert done.returncode == (0 if words == ["--list"] else 2)


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def test_a_rank_that_fails_costs_what_it_has_not_measured_and_no_more():
    killed = []

    def kill(part: float, what: str) -> None:
        if what == wanted and not killed:
            killed.append(_children(os.getpid())[-1])
            os.kill(killed[0], signal.SIGKILL)

    arguments = {"algorithms": ["flat", "message"], "with_mpi": False, "seconds": 0.1, "on_progress": kill}
    wanted = "3 ranks"
    document = barrier.measure([2, 3, 4], **arguments)
    result.validate(document)
    assert {(one["ranks"], len(one["points"])) for one in document["series"]} >= {(2, 1)}
    assert document["complete"] is False
    (error,) = document["errors"]
    assert error["protocol"] == "via"
    assert "barrier, " in error["message"]
    assert "3 ranks" in error["message"]
    killed.clear()
    wanted = "2 ranks"
    with pytest.raises(MeasureError, match="2 ranks"):  # without a measurement there is no result
        barrier.measure([2, 3], **arguments)


def test_the_command_keeps_what_was_measured_before_a_rank_failed(tmp_path):
    out = tmp_path / "b.json"
    words = ["barrier", "--ranks", "2,3", "--algorithms", "flat", "--no-mpi", "--seconds", "1", "--json", str(out)]
    process = subprocess.Popen([*VIAKIT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found: list[int] = []
    while len(found) < 3 and process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
        found = _children(process.pid)
    os.kill(found[-1], signal.SIGKILL)
    said, complaint = process.communicate(timeout=30)
    assert process.returncode == 1, (said, complaint)
    assert "this run was not finished" in said
    assert f"wrote {out}" in said
    assert "viakit: " in complaint
    assert "3 ranks: a rank ended" in complaint
    assert "(the measurements so far are kept)" in complaint
    assert "Traceback" not in complaint
    document = result.load(out)
    assert [one["ranks"] for one in document["series"]] == [2]
    assert len(document["errors"]) == 1


def test_interrupted_it_keeps_what_it_has(tmp_path):
    out = tmp_path / "b.json"
    words = ["barrier", "--ranks", "2", "--algorithms", "message", "--no-mpi", "--seconds", "50", "--json", str(out)]
    process = subprocess.Popen([*VIAKIT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    n_ranks = 0
    while n_ranks < 2 and process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
        n_ranks = len(_children(process.pid))
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert result.load(out)["complete"] is False
