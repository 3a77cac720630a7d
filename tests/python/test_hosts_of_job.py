"""`--hosts job`: a command that mpirun has started on hosts of a testbed measures or runs between them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import leftovers
import needs
import pytest
from launch_job import VIAKIT
from waiting import until

from viakit.launch import mpi_agent, of_job
from viakit.launch.handshake import Reception, Refused

LIMIT_S = 100.0
pytestmark = pytest.mark.timeout(300)
PROGRAM = """
import os, socket, time
import viakit
comm = viakit.world()
names = comm.allgather(f"{socket.gethostname()}:{os.environ['VIAKIT_NETWORK']}")
left = [name for name in os.environ if name.endswith(("_RANK", "_PROCID")) and not name.startswith("VIAKIT_")]
if comm.rank == 0:
    print(*names, *left, flush=True)
if os.environ.get("WAIT"):
    time.sleep(1000)
"""
# The hosts share a kernel, so either MPI would assume shared memory between them. These settings select TCP.
OVER_TCP = {"UCX_TLS": "tcp,self", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}


@pytest.fixture(scope="module")
def job():
    """Return a function that returns the command and environment of a job on two hosts."""
    with needs.hosts() as testbed, mpi_agent(testbed) as agent:

        def command_of(flavour, ranks_per_host, words, scratch):
            library = needs.mpi_library(f"mpi:{flavour}")
            command = agent.command(library, ranks_per_host, [*VIAKIT, *map(str, words)])
            return command, {**os.environ, **library.environment(str(scratch)), **OVER_TCP}

        yield command_of


def run(job, flavour, ranks_per_host, words, scratch):
    command, environment = job(flavour, ranks_per_host, words, scratch)
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, cwd=scratch)


def test_sweep_measures_between_the_hosts_of_the_job(job, tmp_path):
    words = ["sweep", "via-udp", "tcp", "--sizes", "64,4K", "--seconds", "1", "--validate", "--json", tmp_path / "s"]
    done = run(job, "mpich", 1, words, tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "s").read_text())
    assert document["validated"]
    assert [(one["protocol"], one["hosts"], len(one["points"])) for one in document["series"]] == [
        ("via-udp", "ssh", 2),
        ("tcp", "ssh", 2),
    ]
    environment = document["environment"]
    assert environment["network"] == "ip 10.77.0.1 (eth0), 10.77.0.2 (eth0)"
    assert [one["environment"]["host"] for one in environment["hosts"]] == ["h0", "h1"]


@pytest.mark.parametrize(("outer", "inner"), [("mpich", "openmpi"), ("openmpi", "mpich")])
def test_an_mpi_is_measured_between_the_hosts_of_a_job_of_another(job, tmp_path, outer, inner):
    """The variables of the outer launcher do not reach the inner library's ranks."""
    needs.mpi_library(f"mpi:{inner}")
    words = ["sweep", "tcp", f"mpi:{inner}", "--sizes", "64", "--seconds", "1", "--validate", "--json", tmp_path / "s"]
    done = run(job, outer, 1, words, tmp_path)
    assert done.returncode == 0, done.stderr
    series = json.loads((tmp_path / "s").read_text())["series"]
    assert [(one["protocol"], one["hosts"]) for one in series] == [("tcp", "ssh"), (f"mpi:{inner}", "ssh")]
    assert all(one["points"] for one in series)


def test_run_starts_as_many_ranks_as_the_job_has(job, tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    done = run(job, "openmpi", 2, ["run", "prog.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["h0:udp:10.77.0.1"] * 2 + ["h1:udp:10.77.0.2"] * 2


@pytest.mark.parametrize(
    "words",
    [
        ["barrier", "--algorithms", "rdma"],
        ["speedup", "ep", "--quick", "--rounds", "1", "--protocols", "via", "--ranks", "2"],
    ],
    ids=lambda words: words[0],
)
def test_other_measurements_run_between_the_hosts(job, tmp_path, words):
    more = [] if words[0] == "speedup" else ["--no-mpi", "--seconds", "1"]
    done = run(job, "mpich", 1, [*words, *more, "--json", tmp_path / "r", "-q"], tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "r").read_text())
    assert {one["ranks"] for one in document["series"] if one["ranks"] > 1} == {2}
    assert {one["hosts"] for one in document["series"] if one["ranks"] > 1} == {2}


def test_an_application_is_driven_on_request(job, tmp_path):
    done = run(job, "mpich", 1, ["app", "--hosts", "job", "ep", "--pairs", "65536"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 ranks over via" in done.stdout


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"])
def test_a_program_is_traced_on_the_hosts_of_the_job(job, tmp_path, flavour):
    (tmp_path / "prog.py").write_text(PROGRAM)
    done = run(job, flavour, 1, ["trace", "--hosts", "job", "prog.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["h0:udp:10.77.0.1", "h1:udp:10.77.0.2"]
    assert "messages on 2 NICs" in done.stderr


def test_ranks_of_a_job_on_one_host_are_traced(tmp_path):
    library = needs.mpi_library("mpi:mpich")
    (tmp_path / "prog.py").write_text(
        "import viakit\ncomm = viakit.world()\ncomm.barrier()\ncomm.rank or print(comm.size)\n"
    )
    command = library.command([*VIAKIT, "trace", "--hosts", "job", str(tmp_path / "prog.py")], 3)
    environment = {**os.environ, **library.environment(str(tmp_path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    assert "messages on 3 NICs" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sweep", "tcp"], "sweep has two sides, this job has 4 ranks"),
        (["bench"], "bench has two sides, this job has 4 ranks"),
        (["calibrate", "tcp"], "calibrate has two sides, this job has 4 ranks"),
        (["barrier", "--ranks", "2,8"], "--ranks 8: this job has 4 ranks"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_number_of_ranks_is_refused(job, tmp_path, words, says):
    done = run(job, "mpich", 2, words, tmp_path)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize("words", [["sweep", "tcp"], ["bench"], ["trace", "true"]], ids=lambda words: words[0])
def test_a_command_without_a_job_is_refused(words):
    command = [*VIAKIT, words[0], "--hosts", "job", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2
    assert "mpirun -n 2 --host A,B" in done.stderr


def test_a_job_on_one_host_needs_no_other(tmp_path):
    library = needs.mpi_library("mpi:mpich")
    (tmp_path / "prog.py").write_text("import viakit\ncomm = viakit.world()\ncomm.rank or print(comm.size)\n")
    command = library.command([*VIAKIT, "run", str(tmp_path / "prog.py")], 3)
    environment = {**os.environ, **library.environment(str(tmp_path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_nothing_is_left_of_a_job_that_loses_its_first_rank(job, tmp_path, mark):
    (tmp_path / "prog.py").write_text(PROGRAM)
    command, environment = job("mpich", 1, ["run", "--env", "WAIT=1", "prog.py"], tmp_path)
    segments: set[Path] = set()  # of MPICH, which removes them only at the end of a job that nothing has killed
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout.readline().split() == ["h0:udp:10.77.0.1", "h1:udp:10.77.0.2"]
        segments = leftovers.segments(mark)
        drivers = [pid for pid, words in leftovers.marked(mark).items() if "viakit run --env" in words]
        for pid in drivers:  # one of them is rank 0, the other one serves
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
        for path in segments:
            path.unlink(missing_ok=True)
    assert process.returncode != 0
    until(lambda: not leftovers.marked(mark), "all processes have ended", LIMIT_S)


# ---- a rank that serves


@pytest.fixture
def serving():
    """A rank that serves, in a thread: its address, its key, and the thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    place, key = listener.getsockname(), os.urandom(32)
    thread = threading.Thread(target=of_job.serve, args=(Reception(listener, key),))
    thread.start()
    yield place, key, thread
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_rank_serves_those_that_know_the_key_until_rank_0_leaves(serving):
    place, key, thread = serving
    control = of_job._connected(place, key, of_job._CONTROL)
    with pytest.raises(Refused):
        of_job._connected(place, os.urandom(32), of_job._AGENT)
    with of_job._connected(place, key, of_job._AGENT) as agent:
        agent.settimeout(LIMIT_S)
        assert agent.recv(1)  # the agent's hello
    assert thread.is_alive()
    control.close()
