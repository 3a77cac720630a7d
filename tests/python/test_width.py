"""Tables fit a terminal of 80 columns, with nothing cut off."""

import os
import subprocess
import sys

import pytest
from rich.cells import cell_len

COMMANDS = [
    ["barrier", "--ranks", "2,4", "--seconds", "0.5"],
    ["speedup", "ep", "is", "--quick", "--ranks", "1,2", "--protocols", "via,tcp,bip", "--rounds", "1"],
    ["app", "is", "-n", "2", "--class", "S"],
    ["app", "sor", "--size", "64"],
    ["sweep", "via-shm", "unix", "tcp", "--sizes", "8,64K", "--seconds", "0.5"],
]


def run(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "viakit", *words], env={**os.environ, "COLUMNS": "80"} | more, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_table_fits_80_columns(words):
    done = run(*words)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(cell_len, lines)) <= 80, max(lines, key=cell_len)
    assert "…" not in done.stdout
    rules = [line for line in lines if set(line.strip()) == {"─"} and len(line) > 30]
    assert rules, "no table"


def test_a_comparison_fits_80_columns(tmp_path):
    names = [str(tmp_path / name) for name in ("before.json", "after.json")]
    for name in names:
        done = run("sweep", "via-shm", "msg-via", "--sizes", "8,64K", "--seconds", "0.5", "--json", name)
        assert done.returncode == 0, done.stderr
    done = run("compare", *names)
    assert done.returncode in (0, 3, 4), done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if " -> " in line]) == 4, done.stdout
    assert max(map(cell_len, lines)) <= 80, max(lines, key=cell_len)


@pytest.mark.timeout(400)
def test_calibrate_keeps_its_time_and_prints_a_table(tmp_path):
    done = run("calibrate", "shm", "--dry-run", "--seconds", "3", XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    pipeline, row = [line.split() for line in done.stdout.splitlines() if line.split()[:1] == ["shm"]]
    assert pipeline[-1].endswith("%"), pipeline
    assert row[-2] in ("rput", "rget", "r3"), row
    assert max(map(cell_len, done.stdout.splitlines())) <= 80
    assert "…" not in done.stdout
    assert "wrote" not in done.stdout
    assert list(tmp_path.rglob("*")) == []


def test_a_calibration_names_the_links_that_had_no_time():
    done = run("calibrate", "shm", "udp", "--dry-run", "--what", "bip", "--seconds", "0.1")
    assert done.returncode == 0, done.stderr
    assert "not calibrated: udp" in done.stdout
    assert "…" not in done.stdout
    assert max(map(cell_len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "interpreter"),
    [
        ("from mpi4py import MPI", []),
        ("import mpi4py.MPI as MPI", ["python"]),
        ("import sys, mpi4py", ["/usr/bin/python3.11", "-u", "-B"]),
    ],
)
def test_a_program_for_mpi4py_gets_one_line(tmp_path, line, interpreter):
    program = tmp_path / "theirs.py"
    program.write_text(f"{line}\nprint(MPI.COMM_WORLD.Get_size())\n")
    done = run("run", "-n", "4", *interpreter, str(program))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for word in ("--as-mpi4py", "viakit.mpi", "--protocol mpi"):
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_a_program_that_can_do_without_mpi4py_runs(tmp_path):
    program = tmp_path / "either.py"
    program.write_text("try:\n    from mpi4py import MPI\nexcept Exception:\n    pass\nprint('ran')\n")
    done = run("run", "-n", "2", str(program))
    assert done.stdout.split() == ["ran", "ran"], done.stderr
