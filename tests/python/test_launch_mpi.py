"""`viakit run --protocol mpi`: an MPI's launcher starts the ranks; output and statuses are as with other protocols."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import needs
import pytest
from launch_job import DEADLINE_S, HELLO, VIAKIT, gone, running_with, viakit_run
from waiting import until

from viakit.launch import mpi_library as mpi
from viakit.launch import network
from viakit.launch.mpi_library import is_mapped


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_protocol_mpi_is_that_mpis_launcher(script, flavour):
    needs.mpi_library(f"mpi:{flavour}")
    done = viakit_run("-n", "2", "--protocol", f"mpi:{flavour}", "--label", script(HELLO))
    assert done.returncode == 0, done.stderr
    expected = [f"[{r}] {flavour}/mpi4py/{r}/2/{socket.gethostname()}/None" for r in range(2)]
    assert sorted(line for line in done.stdout.splitlines() if "/" in line) == expected


@pytest.mark.parametrize("started", [None, "2"], ids=["no launcher", "srun without PMI"])
@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_a_rank_that_mpi_did_not_start_leaves_no_file(script, flavour, started):
    """Open MPI leaves its file in /dev/shm to a launcher."""
    library = needs.mpi_library(f"mpi:{flavour}")
    text = """
        import os, sys
        import viakit
        try:
            viakit.world()
        finally:
            maps = [line.split(maxsplit=5)[5] for line in open("/proc/self/maps") if " /dev/shm/" in line]
            print(*{path.strip() for path in maps})
    """
    environment = {**os.environ, "VIAKIT_PROTOCOL": "mpi", "MPI4PY_LIBMPI": library.libmpi}
    if started:
        environment |= {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": started, "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "1"}
    command = [sys.executable, script(text)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == (1 if started else 0), done.stderr
    assert ("this MPI was not started by srun" in done.stderr) == bool(started)
    assert not [file for file in done.stdout.split() if os.path.exists(file)]
    if flavour == "openmpi":
        assert done.stdout.split(), "Open MPI has mapped no file"


@pytest.mark.parametrize("label", [False, True])
@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_protocol_mpi_keeps_lines_together(script, flavour, label):
    """Each rank writes its lines in pieces; mpiexec passes pieces on, and MPICH's puts its label before each."""
    needs.mpi_library(f"mpi:{flavour}")
    text = """
        import os, sys
        import viakit
        comm = viakit.world()
        for turn in range(20):
            for word in ("rank", comm.rank, "line", turn):
                comm.barrier()
                os.write(1, f"{word} ".encode())
            os.write(1, b"\\n")
        os.write(2, f"last {comm.rank}".encode())
    """
    words = ["--label"] if label else []
    done = viakit_run("-n", "3", "--protocol", f"mpi:{flavour}", *words, script(text))
    assert done.returncode == 0, done.stderr
    expected = [(f"[{r}] " if label else "") + f"rank {r} line {turn} " for r in range(3) for turn in range(20)]
    assert sorted(done.stdout.splitlines()) == sorted(expected)
    if label:
        assert {f"[{r}] last {r}" for r in range(3)} <= set(done.stderr.splitlines())


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_protocol_mpi_on_hosts(script, flavour):
    needs.mpi_library(f"mpi:{flavour}")
    needs.hosts().close()
    done = viakit_run("-n", "4", "--hosts", "testbed:2", "--protocol", f"mpi:{flavour}", script(HELLO))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == [f"{flavour}/mpi4py/{r}/4/h{r // 2}/eth:eth0" for r in range(4)]


def test_last_words_are_read_before_the_launcher_is_told_to_abort():
    from viakit.comm.over_mpi import _until_read

    reading, writing = os.pipe()
    took = []
    try:
        os.write(writing, b"out of cheese")
        _until_read(writing, timeout_s=0.05)  # no reader: it ends all the same
        reader = threading.Timer(0.05, lambda: took.append(os.read(reading, 100)))
        reader.start()
        _until_read(writing, timeout_s=DEADLINE_S)
        reader.join()
        assert took == [b"out of cheese"]
        with open(os.devnull, "w", encoding="utf-8") as file:
            _until_read(file.fileno(), timeout_s=DEADLINE_S)  # no pipe: nothing to wait for
    finally:
        os.close(reading)
        os.close(writing)


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_protocol_mpi_ends_with_the_first_exception(script, flavour):
    needs.mpi_library(f"mpi:{flavour}")
    word = f"word-{os.getpid()}-{flavour}"
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    text = """
        import viakit
        comm = viakit.world()
        if comm.rank == 1:
            raise ValueError("out of cheese")
        comm.recv(source=1)
    """
    done = viakit_run("-n", "3", "--protocol", f"mpi:{flavour}", script(text), word)
    assert done.returncode not in (0, 124)
    assert "out of cheese" in done.stderr
    gone(word)
    # Jobs of other tests run at the same time. Those that are killed leave segments until the end of their test.
    left = set(Path("/dev/shm").glob("mpich_shm_*")) - before
    until(lambda: not [path for path in left if path.exists() and not is_mapped(str(path))], "no segment is left")


@pytest.mark.parametrize("end", ["sys.exit(7)", "raise SystemExit(7)"])
@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_protocol_mpi_ends_with_the_first_status(script, flavour, end):
    """The others wait in a collective for a rank that has gone: MPI alone would wait for ever."""
    needs.mpi_library(f"mpi:{flavour}")
    word = f"word-{os.getpid()}-{flavour}"
    text = f"""
        import sys
        from viakit.mpi import MPI
        if MPI.COMM_WORLD.rank == 1:
            print("so be it")
            print("no more cheese", file=sys.stderr)
            {end}
        MPI.COMM_WORLD.allreduce(1)
        print("it went on")
    """
    done = viakit_run("-n", "3", "--protocol", f"mpi:{flavour}", script(text), word)
    assert (done.returncode, done.stdout) == (7, "so be it\n"), done.stderr
    assert "no more cheese" in done.stderr
    assert "Traceback" not in done.stderr
    gone(word)


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_protocol_mpi_lets_ranks_end_that_are_about_to(script, flavour):
    """All end with a status of their own; the last has something to say, and a child of it ends as it likes."""
    needs.mpi_library(f"mpi:{flavour}")
    text = """
        import os, sys
        import viakit
        comm = viakit.world()
        comm.barrier()
        if comm.rank == 0:
            child = os.fork()
            if child == 0:
                sys.exit(5)  # which is no rank's end
            print("its status:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            comm.send(None, 1)
        elif comm.rank == 1:
            comm.recv(source=0)
            print("the sum is wrong", flush=True)
        sys.exit(0 if comm.rank == 0 else 3)
    """
    done = viakit_run("-n", "3", "--protocol", f"mpi:{flavour}", script(text))
    assert done.returncode == 3, done.stderr
    assert sorted(done.stdout.splitlines()) == ["its status: 5", "the sum is wrong"]
    assert "bort" not in done.stderr.replace("aborted", ""), done.stderr


@pytest.mark.parametrize(
    ("flavour", "number"),
    [
        ("mpich", signal.SIGINT),
        ("openmpi", signal.SIGINT),
        ("mpich", signal.SIGKILL),
        ("openmpi", signal.SIGKILL),
    ],
)
def test_protocol_mpi_is_interrupted(script, tmp_path, flavour, number):
    needs.mpi_library(f"mpi:{flavour}")
    word = f"word-{os.getpid()}-mpi"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    text = """
        import viakit
        comm = viakit.world()
        comm.barrier()
        if comm.rank == 0:  # mpiexec keeps no lines together
            print("here", flush=True)
        comm.recv()
    """
    command = [*VIAKIT, "run", "-n", "2", "--protocol", f"mpi:{flavour}", script(text), word]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(scratch)}, **pipes) as running:
        assert running.stdout is not None
        assert running.stdout.readline().strip() == "here"
        files = {Path(path) for pid in running_with(word) for path in mpi.shared_files(pid)}  # MPICH's, in memory
        running.send_signal(number)
        if number == signal.SIGINT and flavour == "openmpi":
            running.send_signal(signal.SIGTERM)  # the second kills mpiexec, which these ranks outlive
        running.communicate(timeout=DEADLINE_S)
        if number == signal.SIGINT:
            assert not running_with(word), "it has returned, and nothing may be left"
    assert files or flavour != "mpich"
    assert running.returncode == (130 if number == signal.SIGINT else -number)
    gone(word)
    deadline = time.monotonic() + DEADLINE_S
    while left := [path for path in {*scratch.glob("viakit-*"), *files} if path.exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("--protocol", "mpi:lam"), "mpi, mpi:mpich or mpi:openmpi"),
        (("--protocol", "mpi", "--hosts", "testbed:2"), "equally many"),
    ],
)
def test_protocol_mpi_says_what_would_be_right(script, words, remedy):
    needs.mpi_library("mpi")
    done = viakit_run("-n", "3", *words, script(HELLO))
    assert done.returncode != 0
    assert remedy in done.stderr


def test_protocol_mpi_without_mpi_says_what_to_start(script):
    needs.mpi_library("mpi")
    done = viakit_run("-n", "2", script("import viakit; viakit.world('mpi')"))
    assert done.returncode != 0
    assert "viakit run --protocol mpi" in done.stderr


SECRET_RANK = """
import pickle
from viakit.launch import bootstrap
job = bootstrap()
assert job.way == "mpi4py", job.way
from mpi4py import MPI
def refuse(data):
    raise AssertionError("a blob was unpickled")
MPI.pickle.__init__(pickle.dumps, refuse)
blobs = job.exchange(bytes([job.rank]) * 1000 * job.rank)
assert blobs == [bytes([rank]) * 1000 * rank for rank in range(job.size)]
print(job.secret.hex() + "\\n", end="", flush=True)
"""


@pytest.mark.parametrize("given", ["5a" * 32, ""])
def test_the_exchange_over_mpi4py_is_bytes_and_the_users_secret_is_used(script, tmp_path, given):
    library = needs.mpi_library("mpi:mpich")
    environment = {**os.environ, **library.environment(str(tmp_path)), "VIAKIT_BOOTSTRAP": "mpi4py"}
    environment |= {"VIAKIT_SECRET": given} if given else {}
    command = library.command([sys.executable, script(SECRET_RANK)], 3)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr
    secrets = done.stdout.split()
    assert len(secrets) == 3
    assert len(set(secrets)) == 1
    assert not given or secrets[0] == given


# ---- ranks on several hosts


@pytest.mark.parametrize(
    ("launcher", "environment", "several"),
    [
        ("openmpi", {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ("openmpi", {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "SLURM_STEP_NUM_NODES": "2"}, False),
        ("mpich", {"MPI_LOCALNRANKS": "2"}, True),
        ("mpich", {"MPI_LOCALNRANKS": "4", "SLURM_STEP_NUM_NODES": "2"}, False),  # mpiexec within a step
        ("mpich", {"SLURM_STEP_NUM_NODES": "2"}, True),  # srun --mpi=pmi2
        ("srun", {"SLURM_STEP_NUM_NODES": "2"}, True),
        ("srun", {"SLURM_STEP_NUM_NODES": "1"}, False),
        ("viakit", {"SLURM_STEP_NUM_NODES": "2"}, False),
    ],
)
def test_launchers_that_span_hosts(launcher, environment, several):
    assert network.spans_hosts(launcher, 4, environment) is several
