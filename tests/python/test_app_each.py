"""Checks of each application: plain loops agree with the kernels, memory is as estimated, commands print results."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import apps_job
import needs
import pytest

from viakit import _kernels
from viakit.apps import fft, harness, plain

# By name: options of a small run and its output, invalid options and their error, and a problem that needs more than
# 10 MB (EP has none).
COMMANDS = {
    "sor": (["--size", "64", "--iterations", "10"], "3 figures verified", ["--size", "63"], "even", ["--size", "4096"]),
    "is": (["--class", "S"], "52 figures verified", ["--class", "Q"], "no class 'Q'", ["--class", "C"]),
    "fft": (["--class", "S"], "6 figures verified", ["--class", "Q"], "no class 'Q'", ["--class", "B"]),
    "water": (["--molecules", "125"], "verified", ["--molecules", "0"], "molecules", ["--molecules", "1000000"]),
    "ep": (["--pairs", "1000"], "15 figures verified", ["--class", "Q"], "no class 'Q'", None),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command(name, capsys):
    application = harness.find(name)
    right, says, wrong, complaint, _ = COMMANDS[name]
    assert harness.main(application, right) == 0
    assert says in capsys.readouterr().out
    assert harness.main(application, wrong) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in COMMANDS if COMMANDS[name][-1]])
def test_memory_is_asked_for_before_it_is_taken(name, monkeypatch, capsys):
    monkeypatch.setattr(harness, "free_memory", lambda: 10_000_000)
    assert harness.main(harness.find(name), COMMANDS[name][-1]) == 1
    assert "needs about" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["fft", "water"])
def test_memory_for_what_every_iteration_leaves_is_asked_for(name, monkeypatch, capsys):
    monkeypatch.setattr(harness, "free_memory", lambda: 10**12)
    words = {"fft": ["--size", "4", "--iterations"], "water": ["--molecules", "1", "--steps"]}[name]
    assert harness.main(harness.find(name), [*words, str(10**11)]) == 1
    assert "needs about" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ep", "is", "fft"])
def test_a_class_without_a_name_is_none(name, capsys):
    assert harness.main(harness.find(name), ["--class", ""]) == 2
    assert "no class ''" in capsys.readouterr().err


@pytest.mark.parametrize("name", plain.MODULES)
def test_the_plain_loop_finds_the_same(name):
    needs.compiler()
    done = list(plain.compare(name, rounds=1, quick=True))  # raises if they do not agree
    assert done
    assert all(one.ratio() > 0 for one in done)


def test_every_level_of_vector_instructions_was_run():
    """AVX-512 is the source of AVX2 with longer vectors, which the C test "kernels, long vectors" runs anywhere."""
    needs.instructions(*(name for name in ("portable", "avx2", "avx512") if name not in _kernels.levels()))


# ------------------------------------------------------------------------------------------------ memory

SLACK = 1 << 20  # bytes per rank for data whose size does not depend on the problem

# By name: a problem, and the bytes of its data. SOR: the grid. IS: keys and table, and on several ranks the keys of
# their owners. FT: the coefficients and the results computed from them.
DATA = {
    "sor": ({"size": "1024"}, lambda what, ranks: 4 * what.rows * what.columns),
    "is": ({"klass": "W"}, lambda what, ranks: 4 * what.n_keys * min(ranks, 2) + 5 * what.max_key),
    "fft": ({"size": "64", "iterations": 1}, lambda what, ranks: 2 * 16 * what.n),
}


@pytest.mark.parametrize("name", DATA)
def test_memory_is_what_was_asked_for_and_not_much_more_than_the_data(name):
    application = harness.find(name)
    options, data = DATA[name]
    problem = application.problem(**options)
    tracemalloc.start()
    try:
        assert harness.run(application, problem).ok
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= application.memory(problem, 1) + SLACK
    assert peak <= 1.5 * data(problem, 1) + SLACK


@pytest.mark.parametrize("name", DATA)
def test_memory_on_several_ranks(name):
    application = harness.find(name)
    options, data = DATA[name]
    words = [harness.module_of(name).rpartition(".")[2], json.dumps(options)]
    command = [sys.executable, "-m", "viakit", "run", "-n", "3", str(apps_job.PROGRAM.with_name("memory.py")), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=apps_job.DEADLINE_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["peak"] <= found["asked"] + 3 * SLACK
    pieces = 3 * 2 * 16 * fft.PIECE if name == "fft" else 0  # of a fixed size, independent of the data
    assert found["peak"] <= 1.5 * data(application.problem(**options), 3) + pieces + 3 * SLACK
