"""Ranks that are forked from one process: `viakit run --preload`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launch_job import DEADLINE_S, VIAKIT, gone, viakit_run

from viakit.launch import LaunchError, template
from viakit.launch.runner import Launch, Options

PR_GET_CHILD_SUBREAPER = 37


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("n", [1, 5])
def test_each_rank_is_a_program_of_its_own(script, tmp_path, n):
    (tmp_path / "beside.py").write_text("import sys\nname = sys.argv[1]\n")
    done = viakit_run(
        "-n", str(n), "--preload", "--env", "GIVEN=a b", script("""
        import os, pickle, random, resource, sys
        import beside, numpy, viakit

        class Own:
            pass

        comm = viakit.world()
        assert __name__ == "__main__" and sys.argv[1:] == ["x", "y z"] and beside.name == "x"
        assert os.path.isabs(__file__) and sys.modules["__main__"].__file__ == __file__
        assert type(pickle.loads(pickle.dumps(Own()))) is Own
        assert os.environ["GIVEN"] == "a b" and "VIAKIT_RENDEZVOUS" in os.environ
        assert os.getpgid(0) == os.getpid() and resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 1024
        ours = os.getpid(), random.random(), numpy.random.random(), numpy.random.default_rng().random()
        drawn = comm.allgather(ours)
        assert all(len(set(column)) == comm.size for column in zip(*drawn))
        print("rank", comm.rank, sys.stdin.read() if comm.rank == 0 else "")
        """), "x", "y z", input="typed", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(
        ["rank", "0", "typed"] + [w for r in range(1, n) for w in ("rank", str(r))]
    )


def test_a_module(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import sys, viakit\nassert __name__ == '__main__' and sys.argv[0] == __file__, sys.argv\n"
        "print(viakit.world().allreduce(1), *sys.argv[1:])\n"
    )
    done = viakit_run("-n", "2", "--preload", "-m", "mine", "a", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2 a\n2 a\n"), done.stderr


def test_a_failure_is_that_of_the_program(script):
    path = script("""
        import sys, viakit
        comm = viakit.world()
        if comm.rank == 1:
            raise ValueError("the planted one")
        comm.recv(source=1)
        """)
    done = viakit_run("-n", "3", "--preload", path)
    assert done.returncode == 1
    trace = done.stderr.splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert f'File "{path}", line' in trace[1]
    assert done.stderr.count("ValueError: the planted one") == 1
    assert "template" not in done.stderr
    assert "viakit run: rank 1 ended with exit status 1" in done.stderr


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("x = = 1", 1), ("pass", 0)]
)
def test_exit_status(script, end, status):
    done = viakit_run("-n", "2", "--preload", script(f"import os, sys\n{end}"))
    assert done.returncode == status, done.stderr
    assert "template" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_launcher_ends_the_ranks(script, number):
    path = script("""
        import signal
        import viakit
        comm = viakit.world()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)   # a stubborn one
        comm.Barrier()
        if comm.rank == 0:
            print("ready", flush=True)
        signal.pause()
        """)
    launcher = subprocess.Popen(
        [*VIAKIT, "run", "-n", "3", "--preload", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"ready\n"
    ranks = children(launcher.pid)
    assert len(ranks) >= 3
    launcher.send_signal(number)
    _, err = launcher.communicate(timeout=DEADLINE_S)
    assert launcher.returncode == (-9 if number == signal.SIGKILL else 130), err
    deadline = time.monotonic() + DEADLINE_S
    while any(alive(pid) for pid in ranks):
        assert time.monotonic() < deadline, ranks
        os.sched_yield()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_template_ends_when_the_ranks_are_started(script):
    path = script("import sys\nprint('up', flush=True)\nsys.stdin.read()")
    command = [*VIAKIT, "run", "-n", "2", "--preload", path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdin is not None
        assert launcher.stdout.readline() == b"up\n"
        deadline = time.monotonic() + DEADLINE_S
        # The guard and rank 0 remain. The other rank has an empty standard input.
        while len([pid for pid in children(launcher.pid) if alive(pid)]) > 2:
            assert time.monotonic() < deadline, children(launcher.pid)
            os.sched_yield()
        launcher.stdin.close()
        assert launcher.wait(DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--", "echo", "it ran"], "echo: --preload is for Python programs: a file that ends in .py, or -m MODULE"),
        (["--hosts", "testbed:2", "-m", "this"], "preload is for ranks that viakit starts on this machine"),
        (["--protocol", "mpi", "-m", "this"], "preload is for ranks that viakit starts on this machine"),
    ],
)
def test_what_cannot_be_forked_is_refused(words, text):
    done = viakit_run("-n", "2", "--preload", *words)
    assert done.returncode != 0
    assert done.stdout == ""
    assert text in done.stderr


def test_a_template_that_cannot_start_is_an_error_that_leaves_nothing(script, monkeypatch):
    word = f"word-{os.getpid()}"
    monkeypatch.setattr(template, "_LOOP", "raise SystemExit(3)")
    with pytest.raises(LaunchError, match="forked from has ended"):
        Launch([script("pass"), word], Options(2, preload=True)).run()
    gone(word)


def test_a_template_whose_process_is_not_started_leaves_nothing():
    def open_files() -> set[str]:
        return {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}

    def adopts_orphans() -> bool:
        answer = ctypes.c_int()
        assert ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) == 0
        return bool(answer.value)

    files, adopted = open_files(), adopts_orphans()
    with pytest.raises(ValueError, match="null byte"):
        template.Template({**os.environ, "NAME": "a\0b"})
    assert open_files() <= files
    assert adopts_orphans() == adopted
