"""Jobs of an MPI library on machines that ssh reaches: on their hosts, ended as a whole, and with nothing left."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import needs
import pytest
from leftovers import marked
from ssh_hosts import ssh_hosts
from waiting import until

from viakit.launch.far_mpi import _cycle

VIAKIT = Path(sys.executable).with_name("viakit")
LIMIT_S = 200.0  # a command that needs longer is stuck, also on a busy machine
FLAVOURS = ["mpich", "openmpi"]
pytestmark = pytest.mark.timeout(600)

# Rank 0 writes the address of each rank's host, because mpiexec passes on output in pieces.
PLACES = """
import os, viakit
world = viakit.world()
found = world.gather(os.environ["VIAKIT_ADDRESS"][-1])
if world.rank == 0:
    print("places " + " ".join(found), world.allreduce(1), os.environ.get("VIAKIT_PROTOCOL"))
else:
    world.allreduce(1)
"""

# Each rank writes a file when all have met. The rank of the first argument kills itself; the others wait for it.
WAITS = """
import os, pathlib, signal, sys, viakit
world = viakit.world()
world.barrier()
(pathlib.Path(sys.argv[2]) / str(world.rank)).touch()
if world.rank == int(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
world.recv(source=(world.rank + 1) % world.size)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ssh")


@pytest.fixture(scope="module")
def hosts(folder):
    with ssh_hosts(folder) as testbed:
        yield testbed


@pytest.fixture
def nothing_left(hosts, folder):
    """At the end no process that ssh has started on the hosts may be left."""
    yield
    mark = f"XDG_CACHE_HOME={folder}/cache_".encode()
    deadline = time.monotonic() + LIMIT_S
    while left := marked(mark):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def viakit(*words):
    return subprocess.run([VIAKIT, *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S)


def file_of(folder, text):
    path = folder / "program.py"
    path.write_text(text)
    return path


@contextlib.contextmanager
def waiting_job(folder, flavour):
    """Run four ranks on two hosts until all wait for each other; at the end viakit is killed if it still runs."""
    words = ["-n", "4", "--hosts", "ssh:h0,h1", file_of(folder, WAITS), "-1", folder]
    process = subprocess.Popen(
        [VIAKIT, "run", "--protocol", f"mpi:{flavour}", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + LIMIT_S
        while not all((folder / str(rank)).exists() for rank in range(4)):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize(
    ("options", "places"),
    [
        (["--hosts", "ssh:h0,h1", "-n", "4"], "1 1 2 2"),
        (["--hosts", "ssh:h0*2,h1", "-n", "6"], "1 1 2 1 1 2"),
        (["--hosts", "ssh:h0,h1", "-n", "4", "--placement", "cyclic"], "1 2 1 2"),
        (["--hosts", "ssh:h1,h0"], "2 1"),
    ],
)
def test_ranks_are_on_their_hosts(hosts, tmp_path, nothing_left, flavour, options, places):
    needs.mpi_library(f"mpi:{flavour}")
    done = viakit("run", "--protocol", f"mpi:{flavour}", *options, file_of(tmp_path, PLACES))
    assert done.returncode == 0, done.stderr
    assert f"places {places} {places.count(' ') + 1} mpi" in done.stdout


@pytest.mark.parametrize(("flavour", "protocol"), [("mpich", "via"), ("openmpi", "tcp")])
def test_an_mpi_launches_ranks_with_protocols_of_viakit(hosts, tmp_path, nothing_left, flavour, protocol):
    needs.mpi_library(f"mpi:{flavour}")
    how = f"4, hosts='ssh:h0,h1', launcher='mpi:{flavour}', protocol={protocol!r}"
    code = f"import sys; from viakit.launch import run; sys.exit(run([sys.argv[1]], {how}))"
    done = subprocess.run(
        [sys.executable, "-c", code, file_of(tmp_path, PLACES)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert f"places 1 1 2 2 4 {protocol}" in done.stdout


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_dies_ends_the_job(hosts, tmp_path, nothing_left, flavour, rank):
    needs.mpi_library(f"mpi:{flavour}")
    words = ["-n", "4", "--hosts", "ssh:h0,h1", file_of(tmp_path, WAITS), rank, tmp_path]
    done = viakit("run", "--protocol", f"mpi:{flavour}", *words)
    assert done.returncode not in (0, 124)
    # Open MPI's mpiexec sometimes does not end by itself (docs/hosts.md).
    assert f"mpiexec ({flavour}) ended" in done.stderr or f"mpiexec ({flavour}) has not ended" in done.stderr
    assert "h1 is 10." in done.stderr


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_job_ends_although_mpiexec_does_not(hosts, tmp_path, nothing_left, flavour):
    # mpiexec waits for the end of the output, which a process that each rank leaves behind holds open.
    needs.mpi_library(f"mpi:{flavour}")
    program = file_of(tmp_path, """
from subprocess import DEVNULL, Popen
from viakit import mpi
mpi.MPI.COMM_WORLD.Barrier()
Popen(["sleep", "1000"], stdin=DEVNULL, start_new_session=True)
""")  # fmt: skip
    done = viakit("run", "--protocol", f"mpi:{flavour}", "-n", "3", "--hosts", "ssh:h0*2,h1", program)
    assert done.returncode not in (0, 124)
    assert f"mpiexec ({flavour}) has not ended 5 s after all of its ranks" in done.stderr
    assert "h1 is 10." in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_nothing_is_left_of_a_job_that_is_stopped(hosts, tmp_path, nothing_left, flavour, number):
    needs.mpi_library(f"mpi:{flavour}")
    with waiting_job(tmp_path, flavour) as process:
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_machine_that_is_lost_ends_the_job_and_is_named(hosts, folder, tmp_path, nothing_left, flavour):
    """The agent of h1 is killed, as by the end of its machine. The folder that it cannot remove does not stay."""
    needs.mpi_library(f"mpi:{flavour}")
    with waiting_job(tmp_path, flavour) as process:
        there = marked(f"XDG_CACHE_HOME={folder}/cache_h1".encode())
        agents = [pid for pid, command in there.items() if "viakit.remote.agent" in command]
        folders = set(re.findall(r"/\S+/viakit-host-\w+", " ".join(there.values())))
        for pid in agents:
            os.kill(pid, signal.SIGKILL)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0
    assert "host h1" in output
    assert folders
    until(lambda: not any(os.path.exists(folder) for folder in folders), "the folders are removed", LIMIT_S)


def test_an_application_runs_under_an_mpi(hosts, nothing_left):
    needs.mpi_library("mpi")
    done = viakit("app", "ep", "-n", 2, "--hosts", "ssh:h0,h1", "--protocol", "mpi", "--pairs", 100000)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("words", [["barrier"], ["collectives", "--operations", "allreduce", "--sizes", "8"]])
def test_collectives_of_an_mpi_are_measured(hosts, tmp_path, nothing_left, words):
    flavours = {needs.mpi_library(f"mpi:{flavour}").flavour for flavour in FLAVOURS}
    file = tmp_path / "c.json"
    done = viakit(*words, "--hosts", "ssh:h0,h1", "--ranks", "2,3", "--seconds", "2", "--json", file)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    for flavour in flavours:
        found = [one for one in document["series"] if one["protocol"] == f"mpi:{flavour}"]
        assert {one["ranks"] for one in found} == {2, 3}
        assert {(one["hosts"], one["link"]) for one in found} == {(2, "ip")}


def test_the_list_of_hosts_that_repeats():
    assert _cycle([("a", 2), ("b", 1), ("a", 2), ("b", 1)]) == [("a", 2), ("b", 1)]
    assert _cycle([("a", 2), ("b", 2), ("a", 1)]) == [("a", 2), ("b", 2)]
    assert _cycle([("a", 1), ("b", 1), ("a", 2)]) == [("a", 1), ("b", 1), ("a", 2)]
    assert _cycle([("a", 4)]) == [("a", 4)]
