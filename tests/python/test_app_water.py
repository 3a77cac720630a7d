"""Water: its kernels against NumPy, energies against the published program's, several ranks against one; messages."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest

from viakit import _kernels
from viakit.apps import harness, water
from viakit.apps import water_numpy as slow

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
DEADLINE_S = 90.0


@pytest.fixture(autouse=True)
def no_data_by_accident(monkeypatch):
    """Hide SPLASH's files from all tests that do not request them."""
    monkeypatch.delenv(water.DATA, raising=False)


def splash() -> str:
    """The folder of SPLASH's input data, whose licence forbids copies."""
    folder = Path(os.environ.get("VIAKIT_TEST_SPLASH") or SHARED / "splash")
    if not (folder / "random.in").exists():
        pytest.skip(f"SPLASH's input data are not in {folder}; VIAKIT_TEST_SPLASH says where they are")
    return str(folder)


def shaken(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """A state of molecules out of order, their sites (those of the first half once more at the end), and the box."""
    problem = water.problem(n, seed=int(rng.integers(1, 1000)))
    state = water.start(problem)
    state[0] += rng.normal(0, 0.05, state[0].shape) + np.tile(rng.normal(0, 0.3, (3, n)), (3, 1))
    state[2:] = rng.normal(0, 0.01, state[2:].shape)
    sites = np.zeros((n + n // 2, 12))
    slow.place(state, sites)
    sites[n:] = sites[: n // 2]
    return state, sites, problem.box


# ------------------------------------------------------------------------------------------------------ kernels


@pytest.mark.parametrize(("n", "share"), [(1, 1), (2, 1), (3, 0.7), (16, 1), (33, 1), (64, 1), (64, 0.4), (65, 0.01)])
def test_pairs_as_numpy_has_them(kernel_level, seed, n, share):
    _, sites, box = shaken(n, np.random.default_rng(seed))
    cutoff = share * box / 2
    fast, plain = np.zeros_like(sites), np.zeros_like(sites)
    virial, pairs = _kernels.water_pair_forces(sites, 0, n, n, box, cutoff, fast)
    other_virial, other_pairs = slow.pair_forces(sites, 0, n, n, box, cutoff, plain)
    assert pairs == other_pairs
    assert virial == pytest.approx(other_virial, rel=1e-11, abs=1e-12)
    assert np.allclose(fast, plain, rtol=1e-11, atol=1e-13 * max(1, abs(plain).max()))
    found = _kernels.water_pair_energies(sites, 0, n, n, box, cutoff)
    assert found == pytest.approx(slow.pair_energies(sites, 0, n, n, box, cutoff), rel=1e-11, abs=1e-12)


def test_all_else_as_numpy_has_it(seed):
    rng = np.random.default_rng(seed)
    for n in [0, 1, 7, 30]:
        state, sites, box = shaken(n, rng) if n else (np.zeros((7, 9, 0)), np.zeros((0, 12)), 3.0)
        again, places, forces = state.copy(), np.zeros_like(sites), rng.normal(0, 1, sites.shape)
        pushes = forces.copy()
        _kernels.water_place(state, places)
        assert np.allclose(places[:n], sites[:n], rtol=1e-14)
        assert _kernels.water_intra(sites, n, forces) == pytest.approx(
            slow.intra(sites, n, pushes), rel=1e-10, abs=1e-13
        )
        assert _kernels.water_intra(sites, n)[0] == pytest.approx(slow.intra(sites, n)[0], rel=1e-10)
        assert np.allclose(forces, pushes, rtol=1e-10, atol=1e-12)
        _kernels.water_fold(forces)
        slow.fold(pushes)
        assert np.allclose(forces, pushes, rtol=1e-12)
        assert not forces[:, 9:].any()
        _kernels.water_predict(state)
        slow.predict(again)
        assert np.allclose(state, again, rtol=1e-12)
        _kernels.water_correct(state, forces, water.H)
        slow.correct(again, pushes, water.H)
        assert np.allclose(state, again, rtol=1e-12, atol=1e-14)
        state[0] += 0.6 * box
        again[0] += 0.6 * box
        _kernels.water_wrap(state, box)
        slow.wrap(again, box)
        assert np.allclose(state, again, rtol=1e-12, atol=1e-14)
        assert _kernels.water_kinetic(state) == pytest.approx(slow.kinetic(again), rel=1e-12)


def test_forces_are_what_energies_fall_by(kernel_level, seed):
    """Moving an atom a little changes the energy by the force on it, times how far: all of it, M's share too."""
    n, rng, step = 40, np.random.default_rng(seed), 1e-5
    state, sites, box = shaken(n, rng)
    cutoff = 0.49 * box  # the energy jumps where repulsion ends; no molecule may cross

    def energy(state: np.ndarray) -> float:
        slow.place(state, sites)
        sites[n:] = sites[: n // 2]
        inter, answer, pairs = _kernels.water_pair_energies(sites, 0, n, n, box, cutoff)
        assert pairs == whole
        return _kernels.water_intra(sites, n)[0] + inter + answer

    forces = np.zeros_like(sites)
    _, whole = _kernels.water_pair_forces(sites, 0, n, n, box, cutoff, forces)
    forces[: n // 2] += forces[n:]
    _kernels.water_intra(sites, n, forces)
    _kernels.water_fold(forces[:n])
    for molecule in [0, 7, n - 1]:
        for component in range(9):
            at = state[0, component, molecule]
            energies = []
            for way in (step, -step):
                state[0, component, molecule] = at + way
                energies.append(energy(state))
            state[0, component, molecule] = at
            assert (energies[1] - energies[0]) / (2 * step) == pytest.approx(
                forces[molecule, component], rel=1e-5, abs=1e-6
            )


def test_each_pair_belongs_to_one_molecule():
    for n in range(1, 30):
        met = set()
        for i in range(n):
            assert _kernels.water_partners(i, n) == slow.partners(i, n)
            for j in range(i + 1, i + 1 + slow.partners(i, n)):
                pair = frozenset((i, j % n))
                assert pair not in met, (n, pair)
                met.add(pair)
        assert len(met) == n * (n - 1) // 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.zeros((4, 9)), 0, 4, 4, 3.0, 1.0), r"shape \(any, 12\)"),
        ((np.zeros((5, 12)), 0, 4, 4, 3.0, 1.0), "a row for each of 6 molecules, not 5"),
        ((np.zeros((6, 12)), 1, 4, 4, 3.0, 1.0), "not all among 4"),
        ((np.zeros((6, 12)), 0, 4, 4, 3.0, 1.6), "at most half the box, 1.5 Angstrom, not 1.6"),
        ((np.zeros((6, 12)), 0, 4, 4, math.nan, 1.0), "at most half the box"),
    ],
)
def test_kernels_refuse_what_does_not_fit(arguments, words):
    with pytest.raises(ValueError, match=words):
        _kernels.water_pair_energies(*arguments)
    with pytest.raises(ValueError, match=words):
        _kernels.water_pair_forces(*arguments, np.zeros_like(arguments[0]))


# ------------------------------------------------------------------------------------------------------ energies


def test_a_start_of_our_own(seed):
    problem = water.problem(100, seed=seed % 2**32)
    state = water.start(problem)
    assert np.array_equal(state, water.start(problem))
    assert not np.array_equal(state[1], water.start(water.problem(100, seed=(seed + 1) % 2**32))[1])
    momentum = (state[1] * slow.MASSES[:, None]).reshape(3, 3, -1).sum(axis=(0, 2))
    assert np.abs(momentum).max() < 1e-12
    energy = slow.kinetic(state) * problem.per_energy * 0.5 / water.H**2
    assert energy == pytest.approx(1.5, rel=1e-12)  # half of k T per atom and direction


def test_energy_is_conserved(seed):
    problem = water.problem(216, 6, seed=seed % 2**32)
    outcome = water.serial(problem)
    checks = water.verify(problem, outcome)
    assert [one.ok for one in checks] == [True], checks
    assert len({round(step.total, 4) for step in outcome.steps}) > 1  # it is no constant
    outcome.steps[3] = outcome.steps[3]._replace(total=outcome.steps[3].total + 0.01)
    (wrong,) = water.verify(problem, outcome)
    assert not wrong.ok
    assert "largest change of the total energy" in str(wrong)
    outcome.steps[3] = outcome.steps[3]._replace(total=math.nan)
    assert not any(one.ok for one in water.verify(problem, outcome))


def test_stretches_of_molecules_find_what_all_at_once_do(seed):
    """Large problems are split, so that Ctrl-C is handled. The last stretch may be short."""
    n, first, own = 101, 40, 50
    problem = water.problem(n, seed=seed)
    state = water.start(problem)
    sites = np.zeros((n, 12))
    _kernels.water_place(np.ascontiguousarray(np.roll(state, -first, axis=2)), sites)
    found = []
    for pairs in (1, 7 * n // 2 + 1, water.STRETCH):
        forces = np.zeros_like(sites)
        found.append((*water.pair_forces(problem, first, own, sites, forces, pairs), forces))
        found[-1] += water.pair_energies(problem, first, own, sites, pairs)
    assert found[0][1] == found[0][-1] > 0
    for one in found[:2]:
        for mine, whole in zip(one, found[2], strict=True):
            np.testing.assert_allclose(mine, whole, rtol=1e-10, atol=1e-10)
    assert list(water._stretches(n, own, 7 * n // 2 + 1))[-1] == (49, 50)


@pytest.mark.parametrize(
    ("molecules", "cutoff"), [(216, None), (216, 11.0), (288, None), (1728, None), (1728, 11.0)], ids=str
)
def test_energies_of_the_published_program(kernel_level, molecules, cutoff):
    problem = water.problem(molecules, cutoff=cutoff, data=splash())
    outcome = water.serial(problem)
    checks = water.verify(problem, outcome)
    assert len(checks) == 5 + (molecules != 288)
    assert all(one.ok for one in checks), [str(one) for one in checks if not one.ok]
    reference = SHARED / "water_reference.csv"
    if not reference.exists():
        return
    names = {"TEN": 0, "POTA": 1, "POTR": 2, "POTRF": 3, "XTT": 4, "AVGT": 5, "XVIR": 6}
    rows = [
        row for row in csv.DictReader(reference.read_text(encoding="ascii").splitlines())
        if int(row["molecules"]) == molecules and (row["cutoff"] != "BOXH") == (cutoff is not None)
    ]  # fmt: skip
    assert len(rows) == 5
    for row in rows:
        for name, column in names.items():
            got, expected = outcome.steps[int(row["step"]) - 1][column], float(row[name])
            decimals = len(row[name].partition(".")[2])
            assert abs(got - expected) <= 1e-9 * abs(expected) + 0.6 * 10**-decimals, (row["step"], name, got, expected)


# --------------------------------------------------------------------------------------------------------- ranks


def test_windows_hold_all_partners():
    for n in range(31):
        for size in range(1, 9):
            for rank in range(size):
                first, end = harness.share(n, rank, size)
                rows, pieces = water.window(n, rank, size)
                row = end - first
                for piece in pieces:
                    begin, stop = harness.share(n, piece.owner, size)
                    assert piece.window_row == row
                    assert (first + row) % n == begin + piece.row
                    assert piece.n >= 1
                    assert begin + piece.row + piece.n <= stop
                    row += piece.n
                assert row == rows
                reached = [i + 1 + slow.partners(first + i, n) for i in range(end - first)]
                assert rows == max(reached, default=0)


def ranks(number: int, *words: str, protocol: str = "via", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program on so many ranks."""
    command = [sys.executable, "-m", "viakit", "run", "-n", str(number), "--protocol", protocol, *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, env={**os.environ, **environment}
    )  # fmt: skip


@pytest.mark.parametrize("number", [1, 2, 3, 4])
@pytest.mark.parametrize("protocol", ["via", "bip", "tcp"])
def test_ranks_find_what_one_process_finds(protocol, number):
    done = ranks(number, str(PROGRAMS / "water_ranks.py"), protocol=protocol)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


@pytest.mark.parametrize("library", ["mpi:mpich", "mpi:openmpi"])
@pytest.mark.parametrize("face", ["mpi4py", "viakit"])
def test_under_mpirun(library, face, tmp_path):
    found = needs.mpi_library(library)
    command = found.command([sys.executable, str(PROGRAMS / "water_ranks.py"), face])
    command[2] = "3"
    environment = {**os.environ, **found.environment(str(tmp_path)), "VIAKIT_PROTOCOL": "mpi"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


def table_ii() -> dict[tuple[str, str], float]:
    """Return the paper's counts on 8 processors, by application and quantity."""
    claims = SHARED / "claims.csv"
    if not claims.exists():
        return {("Water-288", "number of messages"): 620, ("Water-288", "total transfers"): 1483,
                ("Water-1728", "number of messages"): 620, ("Water-1728", "total transfers"): 8908}  # fmt: skip
    with claims.open(encoding="utf-8") as file:
        return {(row[2], row[4]): float(row[5]) for row in csv.reader(file) if row[1] == "Table II"}


@pytest.mark.parametrize(("molecules", "kib"), [(288, 1483.125), (1728, 8908.125)])
def test_messages_as_table_ii_counts_them(molecules, kib, tmp_path):
    done = ranks(8, "-m", "viakit.apps.water", "--molecules", str(molecules), "--json", str(tmp_path / "w.json"))
    assert done.returncode == 0, done.stderr
    (run,) = json.loads((tmp_path / "w.json").read_text())["series"][0]["runs"]
    n_messages = sum(rank["messages"] for rank in run["ranks"])
    nbytes = sum(rank["nbytes"] for rank in run["ranks"])
    paper = table_ii()
    assert n_messages == paper[f"Water-{molecules}", "number of messages"] == 620
    assert nbytes / 1024 == kib
    assert round(nbytes / 1024) == paper[f"Water-{molecules}", "total transfers"]


# ------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"molecules": 0}, "molecules is 0; expected 1 to 10000000"),
        ({"molecules": 10**9}, "molecules is 1000000000"),
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"cutoff": 0.0}, "above 0, in Angstrom, not 0.0"),
        ({"cutoff": math.nan}, "above 0"),
        ({"cutoff": math.inf}, "above 0"),
        ({"seed": -1}, r"seed is in \[0, 2\^32\), not -1"),
        ({"positions": "elsewhere"}, "auto, lattice or file, not elsewhere"),
        ({"positions": "file"}, "give its folder by --data or VIAKIT_SPLASH"),
        ({"positions": "file", "molecules": 344, "data": "here"}, "LWI12 holds 343 molecules, not 344"),
    ],
)
def test_problems_that_make_no_sense(options, words):
    with pytest.raises(ValueError, match=words):
        water.problem(**options)


def app(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the application by itself."""
    command = [sys.executable, "-m", "viakit.apps.water", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def test_data_that_will_not_do(tmp_path):
    random, positions = tmp_path / "random.in", tmp_path / "LWI12"
    for text, molecules, words in [
        (None, 64, "No such file or directory; a copy of SPLASH's Water has this file"),
        ("0.5\n" * 100, 64, "100 numbers, where 577 are needed"),
        ("0.5 " * 600 + "half", 64, "not all of it is numbers: could not convert string to float: .*half"),
        ("0.5 " * 600 + "nan", 64, "not all of its numbers are finite"),
        ("0.5 " * 5299, 288, "LWI12: No such file"),
        ("0.5 " * 5299, 64, r"random\.in: its numbers make no velocities"),
        ("1e300 -1e300 " * 3000, 64, r"random\.in: its numbers make no velocities"),
    ]:
        if text is not None:
            random.write_text(text, encoding="ascii")
        with pytest.raises(ValueError, match=words):
            water.problem(molecules, data=tmp_path)
    random.write_bytes(b"\xff\xfe0.5")
    with pytest.raises(ValueError, match=r"random\.in: not a text file"):
        water.problem(64, data=tmp_path)
    random.write_text("0.5 -0.5 " * 3000, encoding="ascii")
    positions.write_text("1.0 " * 3086, encoding="ascii")
    with pytest.raises(ValueError, match="LWI12: 3086 numbers, where 3087 are needed"):
        water.problem(288, data=tmp_path)
    done = app("--molecules", "288", "--data", str(tmp_path))
    assert done.returncode == 2
    assert "3086 numbers, where 3087 are needed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_result_is_loud(tmp_path):
    """Other velocities than SPLASH's, passed off as them: the energies are not those of the program."""
    (tmp_path / "random.in").write_text("0.5 -0.25 0.75 -1.0 " * 2000, encoding="ascii")
    done = app("--molecules", "216", "--data", str(tmp_path), "--quiet")
    assert done.returncode == 1
    assert re.search(r"WRONG RESULT: kinetic energy after step 5 is [\d.]+; expected 1\.7226671953", done.stderr)
    assert "relative error" in done.stderr


def test_from_the_command_line(tmp_path):
    done = app("--molecules", "125", "--steps", "3", "--seed", "7", "--json", str(tmp_path / "w.json"))
    assert done.returncode == 0, done.stderr
    assert "125 molecules, 3 steps, cutoff 7.766 Angstrom, from a lattice with velocities of seed 7" in " ".join(
        done.stdout.split()
    )
    summary = json.loads((tmp_path / "w.json").read_text())["series"][0]["summary"]
    assert re.fullmatch(r"3 (-?\d+\.\d{5} ){4}/( -?\d+\.\d{5}){3}", summary["as the program prints it"])
    assert summary["total energy"] == water.serial(water.problem(125, 3, seed=7)).steps[-1].total
    assert app("--molecules", "0").returncode == 2
