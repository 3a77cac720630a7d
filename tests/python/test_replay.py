"""Replay in virtual time: barriers and collectives of csrc/coll on machines, files, and refusals."""

import json
import subprocess
import sys
import time

import pytest

from viakit import machines, replay

CLUSTER = machines.load("barrier-cluster-3")


def test_a_barrier_of_4096_ranks():
    costs = replay.model(CLUSTER)
    began = time.thread_time()
    one = replay.run(replay.barrier("rdma", 4096), costs)
    used = time.thread_time() - began
    assert one.messages == 4096 * 12
    # log2 n steps of equal length; the CPU time is printed, not asserted
    assert one.end_s == pytest.approx(12 * replay.run(replay.barrier("rdma", 2), costs).end_s, rel=0.02)
    print(f"4,096 ranks: {used:.2f} s of CPU time")


def test_equal_bits():
    costs = replay.model(CLUSTER)
    schedule = replay.barrier("message", 48, per_host=2, repeats=3)
    first, second = (replay.run(schedule, costs, 2) for _ in range(2))
    assert first.ends_s == second.ends_s
    assert first.waits_s == second.waits_s


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13])
@pytest.mark.parametrize("algorithm", ["rdma", "message", "overall", "dissemination", "gather", "rdma-gather"])
def test_every_barrier_waits_for_the_last_rank(algorithm, n):
    costs = replay.model(CLUSTER)
    schedule = replay.barrier(algorithm, n, per_host=2, cores=2)
    late = replay.Schedule.empty(n)
    late.compute(n - 1, 1.0)
    for rank in range(n):
        late.ranks[rank].extend(schedule.ranks[rank])
    assert min(replay.run(late, costs, 2).ends_s) >= 1.0


def test_rdma_saves_what_a_message_costs_beyond_it():
    costs = replay.model(CLUSTER)
    rdma, message = (replay.run(replay.barrier(name, 32), costs).end_s for name in ("rdma", "message"))
    assert message - rdma == pytest.approx(5 * 2 * CLUSTER["message.overhead_us"] * 1e-6, rel=0.05)


@pytest.mark.parametrize("operation", ["bcast", "reduce", "allreduce", "allgather", "alltoall"])
@pytest.mark.parametrize("is_long", [False, True])
def test_collectives(operation, is_long):
    for nbytes in (64, 1 << 16):
        schedule = replay.collective(operation, 6, nbytes, is_long)
        done = replay.run(schedule, replay.model(CLUSTER, replay.library("mvich-rput")))
        assert schedule.traffic() == (done.messages, done.nbytes)
        assert done.end_s > 0


def test_schedules_in_files(tmp_path):
    schedule = replay.collective("allreduce", 4, 800)
    schedule.compute(2, 1e-3)
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(schedule.to_json()))
    assert replay.read(path).ranks == schedule.ranks
    goal = replay.to_goal(schedule)
    assert goal.startswith("num_ranks 4\n")
    assert goal.count("send 800b") == goal.count("recv 800b") > 0
    assert "calc 1000000" in goal
    index = replay.write_tit(schedule, tmp_path / "tit")
    assert len(index.read_text().split()) == 4
    path.write_text("{}")
    with pytest.raises(replay.ScheduleError, match="not a schedule"):
        replay.read(path)


def test_a_traced_run_is_replayed_on_another_machine(tmp_path):
    path = tmp_path / "run.json"
    words = ["sweep", "via-shm", "--sizes", "64", "--seconds", "0.2", "-q"]
    command = [sys.executable, "-m", "viakit", "trace", "--limit", "64M", "-q", "--schedule", str(path)]
    done = subprocess.run(
        [*command, sys.executable, "-m", "viakit", *words], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    schedule = replay.read(path)
    messages, nbytes = schedule.traffic()
    assert messages > 10
    assert nbytes > 0
    slow, fast = (replay.run(schedule, replay.model(machines.load(name))) for name in ("barrier-cluster-3", "veth"))
    assert slow.messages == fast.messages == messages
    assert slow.end_s > fast.end_s > 0


def test_refusals():
    costs = replay.model(CLUSTER)
    stuck = replay.Schedule.empty(2)
    stuck.recv(0, 1)
    with pytest.raises(replay.ScheduleError, match=r"rank 0: operation 0 \(recv\) never ends"):
        replay.run(stuck, costs)
    stuck.send(0, 2, 8)
    with pytest.raises(replay.ScheduleError, match=r"rank 0: operation 1 \(send\) is invalid"):
        replay.run(stuck, costs)
    with pytest.raises(ValueError, match="no barrier is called 'fast'"):
        replay.barrier("fast", 2)
    with pytest.raises(ValueError, match="barrier flags"):
        replay.barrier("flags", 2)
