"""Code shared by the applications: checks, memory, states, counting, arguments, tables, results, traces."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest

from viakit.apps import harness, profile, tracing
from viakit.apps.counting import nbytes_of
from viakit.apps.harness import RankReport, check
from viakit.apps.phases import STATES, Interval, Message, Phases
from viakit.measure import result

RING = str(Path(__file__).resolve().parents[1] / "programs" / "app_ring.py")
DEADLINE_S = 90.0


def python(*words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program."""
    environment = {**os.environ, **extra}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False
    )


def ring(ranks: int, *words: str, protocol: str = "via") -> subprocess.CompletedProcess[str]:
    """Run the ring on so many ranks."""
    return python("-m", "viakit", "run", "-n", str(ranks), RING, "--protocol", protocol, *words)


# ---------------------------------------------------------------------------------------------------- checks


def test_a_check_says_which_figure_and_by_how_much():
    assert check("sum", 1.0, 1.0 + 1e-12, 1e-9).ok
    wrong = check("sum", 1.1, 1.0, 1e-9)
    assert not wrong.ok
    assert str(wrong) == "sum is 1.1; expected 1.0: a relative error of 0.1, above 1e-09"
    assert str(check("count", 5, 4)) == "count is 5; expected exactly 4"
    assert check("count", np.int64(4), 4).ok
    assert check("text", "abc", "abc").ok
    assert not check("text", "abc", "xyz").ok


@pytest.mark.parametrize("got", [math.nan, math.inf, complex(math.nan, 0)])
def test_what_is_no_number_is_never_right(got):
    assert not check("sum", got, 1.0, 1e-6).ok
    assert not check("sum", got, 0.0, 1e-6).ok
    result_of = harness.as_dict(check("sum", got, 1.0, 1e-6))
    json.dumps(result_of, allow_nan=not isinstance(got, float))


def test_complex_numbers_are_compared_by_their_distance():
    assert check("c", 3 + 4j + 1e-13, 3 + 4j, 1e-12).ok
    assert check("c", 3 + 4j + 5e-12, 3 + 4j, 1e-12).error == pytest.approx(1e-12, rel=1e-3)


def test_every_item_is_in_exactly_one_share():
    for n in (0, 1, 2, 7, 64):
        for size in (1, 2, 3, 8):
            parts = [harness.share(n, rank, size) for rank in range(size)]
            assert [i for first, end in parts for i in range(first, end)] == list(range(n))
            lengths = [end - first for first, end in parts]
            assert max(lengths) - min(lengths) <= 1


def test_memory_is_asked_for_before_it_is_taken():
    free = harness.free_memory()
    assert free is not None
    assert free > 0
    harness.need_memory(1 << 20, "a little")
    with pytest.raises(harness.MemoryShort, match=r"all there is needs about .* GB of memory, and .* are free"):
        harness.need_memory(1 << 60, "all there is")


def group(folder: Path, version: int, limit: str, used: int, cache: int) -> None:
    """Write what a control group says of its memory; a quarter of the cache is active."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "") if version == 2 else (
        "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")  # fmt: skip
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    stat = f"anon 5\n{names[2]}inactive_file {cache - cache // 4}\n{names[2]}active_file {cache // 4}\n"
    (folder / "memory.stat").write_text(stat)


def test_the_limits_of_control_groups(tmp_path):
    """The cache is not taken for used, and a group further out may be the one that has the limit."""
    said = tmp_path / "said"
    said.write_text("1:name=systemd:/\n0::/slice/job\n")
    top = tmp_path / "v2"
    (top / "slice" / "job").mkdir(parents=True)
    assert harness._cgroup_free(str(said), str(top)) is None
    group(top / "slice" / "job", 2, "max", 700, 600)
    assert harness._cgroup_free(str(said), str(top)) is None
    group(top / "slice", 2, "1000", 900, 600)
    assert harness._cgroup_free(str(said), str(top)) == 700
    group(top / "slice" / "job", 2, "800", 700, 400)
    assert harness._cgroup_free(str(said), str(top)) == 500
    (top / "slice" / "memory.high").write_text("600\n")
    assert harness._cgroup_free(str(said), str(top)) == 300
    group(top / "slice" / "job", 2, "100", 700, 0)
    assert harness._cgroup_free(str(said), str(top)) == 0
    # version 1; in a container, where the path is the host's and the group is the top one
    said.write_text("4:cpu,memory:/docker/123\n0::/\n")
    group(tmp_path / "v1" / "memory", 1, "1000", 900, 400)
    assert harness._cgroup_free(str(said), str(tmp_path / "v1")) == 500
    assert harness._cgroup_free(str(tmp_path / "missing"), str(top)) is None


# ---------------------------------------------------------------------------------------------------- states


def test_the_times_of_the_states_add_up():
    phases = Phases(trace=True)
    for _ in range(50):
        with phases.send():
            pass
        with phases.wait(), phases.compute():  # the innermost counts
            sum(range(1000))
    phases.end()
    seconds = phases.seconds
    assert set(seconds) == set(STATES)
    assert sum(seconds.values()) == pytest.approx(phases.wall_s, rel=1e-9)
    assert phases.communication_s == pytest.approx(phases.wall_s - seconds["compute"])
    assert seconds["receive"] == seconds["barrier"] == 0.0
    assert 0 < phases.work_s <= phases.wall_s + 1e-3
    for before, after in zip(phases.intervals, phases.intervals[1:], strict=False):
        assert before.end_ns <= after.begin_ns
    assert {STATES[one.state] for one in phases.intervals} <= {"compute", "send", "wait"}


def test_what_is_before_begin_and_after_end_does_not_count():
    phases = Phases(trace=True)
    phases.count(3, 300)
    with phases.send():
        phases.begin()  # even within a state
    phases.count(1, 10)
    phases.end()
    phases.count(1, 10)
    with phases.barrier():
        pass
    assert (phases.messages, phases.nbytes) == (1, 10)
    assert phases.seconds["barrier"] == 0.0
    wall = phases.wall_s
    phases.end()
    assert phases.wall_s == wall


def test_the_bytes_of_a_buffer_argument():
    array = np.zeros(10, dtype=np.float32)
    assert nbytes_of(array) == 40
    assert nbytes_of([array, "f"]) == 40
    assert nbytes_of([array, 3, "f"]) == 12
    assert nbytes_of([array, [1, 2, 3], "f"]) == 24
    assert nbytes_of([array, ([1, 2, 3], [0, 1, 3]), "f"]) == 24
    assert nbytes_of([array, (4, 2), "f"]) == 16  # count and displacement
    assert nbytes_of([array, 4]) == 16
    assert nbytes_of(None) == 0


COUNTED = """
import sys
import numpy as np
import viakit
from viakit.apps.counting import Counting
from viakit.apps.phases import Phases

if sys.argv[1] == "mpi4py":
    from mpi4py import MPI
    real = MPI.COMM_WORLD
else:
    real = viakit.world(sys.argv[1])
phases = Phases(trace=True)
comm = Counting(real, phases)
rank, size = comm.Get_rank(), comm.Get_size()
assert (comm.rank, comm.size, size) == (rank, size, 3)
eight = np.zeros(1)
table = []

def counted(what):
    table.append((what, *map(int, real.allgather(phases.messages)), int(sum(real.allgather(phases.nbytes)))))
    phases.begin()

comm.Bcast(eight, root=1); counted("bcast")
comm.Reduce(eight, np.zeros(1), root=2); counted("reduce")
comm.Allreduce(eight, np.zeros(1)); counted("allreduce")
comm.Gather(eight, np.zeros(3) if rank == 0 else None, root=0); counted("gather")
comm.Scatter(np.zeros(3) if rank == 0 else None, eight, root=0); counted("scatter")
comm.Allgather(eight, np.zeros(3)); counted("allgather")
comm.Alltoall(np.zeros(3), np.zeros(3)); counted("alltoall")
counts = [0, 1, 2]
comm.Alltoallv([np.zeros(3), counts], [np.zeros(6), [rank] * 3]); counted("alltoallv")
comm.Scan(eight, np.zeros(1)); counted("scan")
comm.Barrier(); counted("barrier")
left, right = (rank - 1) % 3, (rank + 1) % 3
comm.Sendrecv(eight, right, 1, np.zeros(1), left, 1); counted("sendrecv")
sending, receiving = comm.Send_init(eight, right, 2), comm.Recv_init(np.zeros(1), left, 2)
for _ in range(4):
    receiving.Start(); sending.Start(); sending.Wait(); receiving.Wait()
counted("persistent")
request = comm.Irecv(np.zeros(1))
comm.Send(eight, right, 7)
while not request.Test():
    pass
assert [one[:2] for one in phases.received] == [(left, 7)], phases.received
assert [one[:3] for one in phases.sent] == [(right, 7, 8)], phases.sent
counted("any")
phases.end()  # what follows is not in the trace, though its messages are numbered
comm.Sendrecv(eight, right, 7, np.zeros(1), left, 7)
assert phases.sent == phases.received == [], (phases.sent, phases.received)
phases.begin()
comm.Sendrecv(eight, right, 7, np.zeros(1), left, 7)
assert [one.number for one in phases.sent + phases.received] == [2, 2]
if rank == 0:
    for row in table:
        print(*row)
"""


EXPECTED = """\
bcast 0 2 0 16
reduce 1 1 0 16
allreduce 2 1 1 32
gather 0 1 1 16
scatter 2 0 0 16
allgather 2 2 2 48
alltoall 2 2 2 48
alltoallv 2 1 1 48
scan 1 1 0 16
barrier 0 0 0 0
sendrecv 1 1 1 24
persistent 4 4 4 96
any 1 1 1 24
"""


@pytest.mark.parametrize("protocol", ["via", "tcp", "mpi4py"])
def test_messages_are_counted_as_a_plain_program_would_send_them(protocol, tmp_path):
    program = tmp_path / "counted.py"
    program.write_text(COUNTED, encoding="utf-8")
    if protocol == "mpi4py":
        library = needs.mpi_library("mpi")
        environment = {**os.environ, **library.environment(str(tmp_path))}
        command = library.command([sys.executable, str(program), protocol], 3)
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False)
    else:
        done = python("-m", "viakit", "run", "-n", "3", str(program), protocol)
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace("\r", "") == EXPECTED


# ------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_result_that_cannot_be_written_is_told_once_and_by_a_sentence(ranks):
    """... when it turns out at the end, too: a disk that is full by then."""
    words = ("--n", "100", "--json", "/dev/full", "--quiet")
    done = ring(ranks, *words) if ranks else python(RING, *words)
    assert done.returncode == 1
    assert "no room for" in done.stderr
    assert "Traceback" not in done.stderr
    assert "has died" not in done.stderr


def test_alone_it_runs_the_serial_program(tmp_path):
    done = python(RING, "--n", "100", "--json", str(tmp_path / "r.json"))
    assert done.returncode == 0, done.stderr
    assert "serial" in done.stdout
    assert "right: 1 figure verified" in done.stdout
    (one,) = result.load(tmp_path / "r.json")["series"]
    assert (one["protocol"], one["ranks"], one["summary"]) == ("serial", 1, {"sum": 4950})
    assert one["problem"] == {"n": 100, "rounds": 3, "wrong": 0, "fail": -1}


@pytest.mark.parametrize(("protocol", "ranks"), [("via", 1), ("via", 3), ("tcp", 4)])
def test_ranks_are_timed_counted_and_verified(protocol, ranks, tmp_path):
    file = tmp_path / "r.json"
    done = ring(ranks, "--rounds", "4", "--repeat", "2", "--json", str(file), protocol=protocol)
    assert done.returncode == 0, done.stderr
    assert f"over {protocol}" in " ".join(done.stdout.split())  # however long its lines are
    document = result.load(file)
    (one,) = document["series"]
    assert (one["protocol"], one["ranks"], len(one["runs"])) == (protocol, ranks, 2)
    assert one["points"][0]["samples"] == 2
    for run in one["runs"]:
        assert run["ok"]
        messages = [rank["messages"] for rank in run["ranks"]]
        # 3 of 4 rounds, and the broadcast by rank 0; what follows end() is not counted
        assert messages == ([3 + ranks - 1] + [3] * (ranks - 1) if ranks > 1 else [0])
        assert sum(rank["nbytes"] for rank in run["ranks"]) == 8 * sum(messages)
        for rank in run["ranks"]:
            assert sum(rank["seconds"].values()) == pytest.approx(rank["wall_s"], rel=1e-6)
        assert run["wall_s"] == max(rank["wall_s"] for rank in run["ranks"])
    assert f"viakit run -n {ranks} " in document["command"] or ranks == 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_runs_that_were_finished_before_one_failed_are_kept(ranks, tmp_path, monkeypatch):
    monkeypatch.setenv("RING_FAIL_FROM", "2")
    file = tmp_path / "r.json"
    words = ["--repeat", "4", "--json", str(file), "--fail", str(ranks - 1)]
    done = ring(ranks, *words) if ranks > 1 else python(RING, *words)
    assert done.returncode == 1, done.stderr
    assert "RuntimeError: asked to fail" in done.stderr
    document = result.load(file)
    assert document["complete"] is False
    # With several ranks the launcher may end the one that writes before it knows of the second run, and why.
    assert len(document["series"][0]["runs"]) in ([2] if ranks == 1 else [1, 2])
    if ranks == 1:
        assert "this run was not finished" in done.stdout
        assert [one["message"] for one in document["errors"]] == ["RuntimeError: asked to fail"]
        shown = python("-m", "viakit", "show", str(file))
        assert "failed: RuntimeError: asked to fail" in shown.stdout, shown.stderr


def test_ctrl_c_keeps_the_runs_that_were_finished(tmp_path):
    file = tmp_path / "r.json"
    command = [sys.executable, RING, "--n", "5000000", "--repeat", "1000", "--json", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not file.exists() and process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, said
    assert "the measurements so far are kept" in said[1]
    document = result.load(file)
    assert (document["complete"], document["errors"]) == (False, [])
    assert 1 <= len(document["series"][0]["runs"]) < 1000


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_it_runs_under_mpirun_over_both(flavour, tmp_path):
    library = needs.mpi_library(f"mpi:{flavour}")
    for protocol, name in (("mpi", f"mpi:{flavour}"), ("via", "via")):
        file = tmp_path / f"{protocol}.json"
        command = library.command([sys.executable, RING, "--protocol", protocol, "--json", str(file)], 2)
        environment = {**os.environ, **library.environment(str(tmp_path))}
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        document = result.load(file)
        assert document["series"][0]["protocol"] == name
        assert document["command"].startswith("mpiexec -n 2 python")


def test_a_wrong_result_is_loud():
    for done in (python(RING, "--n", "10", "--wrong", "1"), ring(3, "--n", "10", "--wrong", "1", "--quiet")):
        assert done.returncode == 1
        assert "viakit: ring: WRONG RESULT: sum is 46; expected exactly 45" in done.stderr


def test_arguments_that_make_no_sense():
    for done in (python(RING, "--n", "0"), ring(3, "--n", "0")):
        assert done.returncode == 2
        assert done.stderr.count("--n 0; expected 1 or more") == 1
    assert python(RING, "--protocol", "carrier-pigeon").returncode == 2
    done = python(RING, "--json", "/nowhere/r.json")
    assert done.returncode == 1
    assert "folder /nowhere does not exist" in done.stderr
    done = python(RING, "--trace", "trace.txt")
    assert done.returncode == 1
    assert "a trace is written as .json" in done.stderr


def test_a_rank_that_lacks_its_data_is_reported_and_not_waited_for(tmp_path):
    done = ring(3, "--no-data", "1")
    assert done.returncode == 2
    assert done.stderr.count("ring: rank 1: data: No such file or directory") == 1
    library = needs.mpi_library("mpi")
    command = library.command([sys.executable, RING, "--protocol", "mpi", "--no-data", "1"], 2)
    environment = {**os.environ, **library.environment(str(tmp_path))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr.count("ring: rank 1: data: No such file or directory") == 1


def test_two_files_of_one_name_are_refused(tmp_path):
    file = tmp_path / "r.json"
    done = python(RING, "--json", str(file), "--trace", f"{tmp_path}/../{tmp_path.name}/r.json")
    assert done.returncode == 1
    assert "is named for two different outputs" in done.stderr
    assert not file.exists()
    assert python(RING, "--quiet", "--json", os.devnull).returncode == 0


def test_the_environment_names_the_protocol_of_viakit_app():
    for words, said in (
        (("-n", "2"), "2 ranks over tcp"),
        (("--timeout", str(DEADLINE_S)), "1 rank over tcp"),
        ((), "1 rank over tcp"),
        (("-n", "2", "--protocol", "bip"), "2 ranks over bip"),
    ):
        done = python("-m", "viakit", "app", "ep", "--pairs", "1000", *words, VIAKIT_PROTOCOL="tcp")
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
    done = python("-m", "viakit", "app", "ep", "--pairs", "1000", "-n", "2", VIAKIT_PROTOCOL="pigeon")
    assert done.returncode == 2
    assert "protocol 'pigeon'" in done.stderr


@pytest.mark.parametrize("how", [["-n", "2"], ["--timeout", "60"], []])
def test_an_error_names_the_help_of_what_was_called(how):
    said = python("-m", "viakit", "app", "sor", *how, "--bogus").stderr
    assert "No such option '--bogus'" in said
    named = re.search("Try '(.*)' for help", said)[1]
    assert named == "viakit app sor --help"
    assert "--size" in python("-m", *named.split()).stdout


def test_memory_that_does_not_suffice_is_told_by_all_ranks_at_once():
    done = ring(3, "--n", str(1 << 58))
    assert done.returncode == 1
    assert done.stderr.count("ring on 3 ranks needs about") == 1
    assert "GB are free" in done.stderr


def test_a_rank_that_fails_ends_the_job():
    done = ring(3, "--fail", "1")
    assert done.returncode != 0
    assert "rank 1 failed" in done.stderr
    assert "RuntimeError: asked to fail" in done.stderr


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_a_job_whose_time_is_over_says_so(ranks):
    words = ["app", "sor", "-n", ranks, "--timeout", "0.5", "--size", "6000", "--iterations", "2000"]
    done = subprocess.run(
        [sys.executable, "-m", "viakit", *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 124, done.stderr
    lines = done.stderr.splitlines()
    assert any(line.startswith("viakit app") and "the job was ended after 0.5 s, as asked" in line for line in lines)


def test_over_mpi_without_mpirun_is_refused():
    needs.mpi_library("mpi")
    done = ring(2, protocol="mpi")
    assert done.returncode == 1
    assert "start it with the mpirun of that MPI library" in done.stderr


# ----------------------------------------------------------------------------------------------------- traces


def reports() -> list[RankReport]:
    """Two ranks: 0 sends to 1 twice, 1 to 0 once."""
    zero = dict.fromkeys(STATES, 0.0)
    first = RankReport(
        0, 1e-3, 1e-3, zero, 2, 20, 0.0, 11, 1000,
        [Interval(0, 1000, 5000), Interval(1, 5000, 6000), Interval(3, 6000, 9000)],
        [Message(1, 4, 10, 5100, 1), Message(1, 4, 12, 5500, 2)], [Message(1, 9, 0, 8900)],
    )  # fmt: skip
    second = RankReport(
        1, 1e-3, 1e-3, zero, 1, 8, 0.0, 12, 2000,
        [Interval(0, 2000, 4000), Interval(2, 4000, 7000)],
        [Message(0, 9, 8, 8000)],
        [Message(0, 4, 0, 4100, 0), Message(0, 4, 0, 5900, 1), Message(0, 4, 0, 6900, 2), Message(0, 5, 0, 6950, 0)],
    )  # fmt: skip
    return [first, second]


def profiled() -> list[RankReport]:
    """Two ranks, times in ns: 0 sends at 5000, 1 receives from 2000 to 7000; both enter a barrier, and 1 sends back."""
    zero = dict.fromkeys(STATES, 0.0)
    first = RankReport(0, 1e-5, 1e-5, zero, 1, 10, boot="a", sent=[Message(1, 4, 10, 5000, 3)])
    first.calls.append(profile.Call("Send", 4900, 5500, 10))
    first.calls.append(profile.Call("Barrier", 5600, 9300))
    first.calls.append(profile.Call("Recv", 9400, 9900, 0, (1, 4, 0)))  # sent long before
    second = RankReport(1, 1e-5, 1e-5, zero, 0, 0, boot="a", sent=[Message(0, 4, 8, 500, 0)])
    second.calls.append(profile.Call("Recv", 2000, 7000, 0, (0, 4, 3)))
    second.calls.append(profile.Call("Recv", 7100, 7200, 0, (0, 5, 0)))  # its send is not known
    second.calls.append(profile.Call("Barrier", 9000, 9200))
    return [first, second]


def test_a_receive_waits_for_its_send_and_a_barrier_for_the_last_rank():
    assert list(profile.waiting_ns(profiled())) == [[0, 3400, 0], [3000, 0, 0]]
    every = profile.total(profile.summaries(profiled()))
    assert list(every) == ["Recv", "Barrier", "Send"]  # the most time first
    assert (every["Recv"].count, every["Recv"].nbytes, every["Send"].nbytes) == (3, 0, 10)
    assert every["Recv"].seconds == pytest.approx(5600e-9)
    assert every["Recv"].waiting_s == pytest.approx(3000e-9)
    assert every["Barrier"].waiting_s == pytest.approx(3400e-9)
    unknown = profile.total(profile.summaries(profiled(), one_clock=False))
    assert {one.waiting_s for one in unknown.values()} == {None}


@pytest.mark.parametrize("protocol", ["via", "tcp"])
def test_a_profile_has_all_calls_and_their_time(protocol, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    file = tmp_path / "r.json"
    done = ring(3, "--rounds", "4", "--profile", "--json", str(file), protocol=protocol)
    assert done.returncode == 0, done.stderr
    (one,) = result.load(file)["series"]
    (run,) = one["runs"]
    for rank in run["ranks"]:
        seconds = sum(each["seconds"] for each in rank["calls"].values())
        assert seconds == pytest.approx(sum(rank["seconds"].values()) - rank["seconds"]["compute"], rel=1e-6)
        assert all(0 <= each["waiting_s"] <= each["seconds"] for each in rank["calls"].values())
        assert sum(each["nbytes"] for each in rank["calls"].values()) == rank["nbytes"]
        assert rank["calls"]["Recv" if rank["rank"] else "Wait, receive"]["count"] == 3
    assert re.search(r"^ ?Recv +6 ", done.stdout, re.M)
    shown = python("-m", "viakit", "show", str(file))
    assert re.search(r"^ ?Recv +6 ", shown.stdout, re.M), shown.stderr


def test_arrows_join_the_ends_of_messages():
    """Also where the first was sent before the measured part began."""
    found = list(tracing.arrows(reports()))
    assert [(one.source, one.dest, one.nbytes, one.sent_ns, one.received_ns) for one in found] == [
        (1, 0, 8, 8000, 8900), (0, 1, 10, 5100, 5900), (0, 1, 12, 5500, 6900),
    ]  # fmt: skip


def test_a_trace_for_perfetto(tmp_path):
    path = tmp_path / "t.json"
    tracing.save(reports(), path, "two ranks")
    events = json.loads(path.read_text())["traceEvents"]
    slices = [one for one in events if one["ph"] == "X"]
    assert [(one["name"], one["pid"], one["ts"], one["dur"]) for one in slices] == [
        ("compute", 1, 0.0, 4.0), ("send", 1, 4.0, 1.0), ("wait", 1, 5.0, 3.0), ("compute", 2, 1.0, 2.0),
        ("receive", 2, 3.0, 3.0),
    ]  # fmt: skip
    begins = {one["id"]: one for one in events if one["ph"] == "s"}
    ends = {one["id"]: one for one in events if one["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == 3
    assert all(begins[i]["ts"] <= ends[i]["ts"] and begins[i]["pid"] != ends[i]["pid"] for i in begins)
    assert {one["args"]["name"] for one in events if one["name"] == "process_name"} == {"rank 0", "rank 1"}


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_trace_as_a_picture(suffix, tmp_path):
    path = tmp_path / f"t{suffix}"
    tracing.save(reports(), path, "two ranks")
    assert path.stat().st_size > 3000
    drawing = tracing.figure(reports(), "two ranks")
    (axes,) = drawing.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert {text.get_text() for text in drawing.legends[0].get_texts()} == {"compute", "send", "receive", "wait"}


def test_ranks_are_traced(tmp_path):
    path = tmp_path / "t.json"
    done = ring(3, "--trace", str(path), "--rounds", "5")
    assert done.returncode == 0, done.stderr
    events = json.loads(path.read_text())["traceEvents"]
    assert {one["pid"] for one in events if one["ph"] == "X"} == {1, 2, 3}
    assert len([one for one in events if one["ph"] == "s"]) == 4 * 3
    for one in events:
        assert one["ts"] >= 0


def test_ranks_are_found_wherever_one_is(tmp_path):
    """In a folder with another ``viakit``, as a checkout has it, where ``python -m`` would find that one."""
    (tmp_path / "viakit").mkdir()
    (tmp_path / "viakit" / "__init__.py").write_text("raise SystemExit('this is not the one')")
    script = Path(sys.executable).with_name("viakit")
    for words in (("-n", "2"), ("-n", "1", "--timeout", "60")):
        done = subprocess.run(
            [str(script), "app", "sor", "--size", "64", "--iterations", "10", *words],
            capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "right: 3 figures verified" in done.stdout
