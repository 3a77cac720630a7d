"""Ranks of an MPI library under their mpiexec: nothing is left after any kind of end."""

import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import needs
import pytest
from leftovers import in_use

from viakit.base import marks
from viakit.launch.mpi_library import Library
from viakit.measure.endpoints import MeasureError
from viakit.measure.guard import Guard
from viakit.measure.ranks import Ranks

# Calls back and then refuses to end on request. Keeps writing to the folder that is to be removed.
STUBBORN = """
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.getpgid(0) != os.getpid():  # out of the launcher's reach
    os.setpgid(0, 0)
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect("\\0" + sys.argv[1])
    while True:
        try:
            open(os.path.join(os.environ["VIAKIT_RANKS"], "mine"), "a").close()
        except FileNotFoundError:
            pass
"""


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_a_killed_job_leaves_no_process_and_no_folder(flavour):
    library = needs.mpi_library(f"mpi:{flavour}")
    with tempfile.TemporaryFile() as output:
        ranks = Ranks(library, lambda name: [sys.executable, "-c", STUBBORN, name], 2, output)
        try:
            ranks.start()
            deadline = time.monotonic() + 60
            channels = [ranks.accept(deadline) for _ in range(2)]
            assert None not in channels, output.seek(0) or output.read()
            assert len(ranks._strays()) >= 3  # mpiexec and two ranks
        finally:
            ranks.kill()
        for channel in channels:
            channel.close()
        assert ranks._strays() == []
        assert not os.path.exists(ranks.scratch)


OWNER = """
import sys, time
from viakit.launch import mpi_library as mpi
from viakit.measure.crew import Crew
with Crew(2, mpi_library=mpi.find(sys.argv[1])) as crew:
    print(crew._mpi.scratch, *crew._mpi._files, flush=True)
    while True:
        crew.run("", 100)
"""


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
def test_an_owner_that_is_killed_leaves_no_process_and_no_file(flavour):
    needs.mpi_library(f"mpi:{flavour}")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, f"mpi:{flavour}"], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        files = [Path(word) for word in owner.stdout.readline().split()]
        assert files
        assert all(path.exists() for path in files)
    finally:
        owner.kill()
        owner.communicate()
    deadline = time.monotonic() + 30
    while (left := [path for path in files if path.exists()]) or in_use(files[0].name):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_the_guard_finds_a_process_that_begins(tmp_path):
    """The kernel shows an empty environment for a process that executes a program. This one does so all the time."""
    again = tmp_path / "again"
    again.write_text('#!/bin/sh\nexec "$0"\n')
    again.chmod(0o700)
    for number in range(10):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        guard = Guard("VIAKIT_RANKS", str(scratch), 0.3, 0.9)
        with guard.process, subprocess.Popen([again], env={**os.environ, "VIAKIT_RANKS": str(scratch)}) as rank:
            guard.process.communicate(timeout=60)
            try:
                rank.wait(10)  # a killed process may be dying for a while
            finally:
                rank.kill()
        assert not scratch.exists()


def test_the_guard_removes_segments_that_the_owner_did_not_know(tmp_path):
    """MPICH leaves them when it is killed. A run of a foreign program does not report its own."""
    segment, scratch = Path(f"/dev/shm/mpich_viakit_{secrets.token_hex(8)}"), tmp_path / "scratch"
    segment.write_bytes(bytes(4096))
    scratch.mkdir()
    text = "import mmap, sys, time; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 4096); print(flush=True); "
    words = [sys.executable, "-c", text + "time.sleep(100)", str(segment)]
    guard = Guard("VIAKIT_RANKS", str(scratch), 0.1, 30.0)
    environment = {**os.environ, "VIAKIT_RANKS": str(scratch)}
    try:
        with guard.process, subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as rank:
            try:
                assert rank.stdout is not None
                rank.stdout.readline()  # it has mapped the segment
                guard.process.communicate(timeout=60)
                rank.wait(10)
            finally:
                rank.kill()
        assert not scratch.exists()
        assert not segment.exists()
    finally:
        segment.unlink(missing_ok=True)


def test_a_long_environment_is_found_while_the_kernel_writes_it(tmp_path):
    """The kernel copies string by string, and may replace the memory between two reads of one file."""
    again = tmp_path / "again"
    again.write_text('#!/bin/sh\nexec "$0"\n')
    again.chmod(0o700)
    variables = {**os.environ, "VIAKIT_RANKS": str(tmp_path)} | {f"VIAKIT_{i}": "x" for i in range(5000)}
    with subprocess.Popen([again], env=variables) as process:
        try:
            mark = f"VIAKIT_RANKS={tmp_path}\0".encode()
            assert all(mark in marks.environment_of(process.pid) for _ in range(20_000))
        finally:
            process.kill()


def test_a_launcher_that_cannot_be_started_is_told_and_leaves_nothing(tmp_path):
    library = Library("mpich", "libmpi.so", str(tmp_path / "no-mpiexec"))
    with (
        tempfile.TemporaryFile() as output,
        pytest.raises(MeasureError, match=r"no-mpiexec cannot be started .*pip install"),
    ):
        Ranks(library, lambda name: [name], 2, output).start()


@pytest.mark.parametrize("flavour", ["openmpi", "mpich"])
@pytest.mark.parametrize("what", ["guard", "mpiexec"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Popen's pipe closes when it is freed
def test_an_interrupt_while_a_process_is_started_leaves_nothing(flavour, what, monkeypatch):
    """Popen waits until its child has begun: an interrupt there leaves a process that no variable holds."""
    library = needs.mpi_library(f"mpi:{flavour}")
    real, left = subprocess.Popen, {"guard": 1, "mpiexec": 2}[what]

    def interrupted(*args, **options):
        nonlocal left
        process = real(*args, **options)
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with tempfile.TemporaryFile() as output:
        ranks = Ranks(library, lambda name: [sys.executable, "-c", STUBBORN, name], 2, output)
        with pytest.raises(KeyboardInterrupt):
            ranks.start()
        monkeypatch.undo()
        assert ranks._strays() == []
        time.sleep(1)  # what still ran would write to the folder
        assert not os.path.exists(ranks.scratch)


def test_a_launcher_that_ends_at_once_is_noticed():
    library = Library("mpich", "libmpi.so", "/bin/false")
    with tempfile.TemporaryFile() as output:
        ranks = Ranks(library, lambda name: [name], 2, output)
        ranks.start()
        try:
            assert ranks.accept(time.monotonic() + 30) is None
        finally:
            ranks.kill()
        assert not os.path.exists(ranks.scratch)
