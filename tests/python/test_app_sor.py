"""SOR: its kernel against NumPy, equal bits on any number of ranks over every channel, and message counts."""

from __future__ import annotations

import apps_job
import numpy as np
import pytest
from apps_job import CHANNELS

from viakit import _kernels
from viakit.apps import arrays, harness, sor


def grids(rng: np.random.Generator, rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a red and a black array with numbers of all magnitudes, including subnormal ones."""
    return tuple(
        (rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-44, 30, (rows, width))).astype(np.float32)
        for _ in range(2)
    )


# ---------------------------------------------------------------------------------------------------- the kernel


@pytest.mark.parametrize("width", [2, 3, 8, 9, 15, 16, 17, 33, 64, 70])
def test_the_kernel_is_numpys_to_the_last_bit(kernel_level, width, seed):
    rng = np.random.default_rng(seed)
    for origin in (0, 7):
        red, black = grids(rng, 12, width)
        mine = red.copy(), black.copy()
        for stage in range(5):
            target, other = ((red, black), (black, red))[stage % 2 == 0]
            sor.half_sweep(target, other, stage % 2 == 0, 1, 11, origin)
        _kernels.sor_sweep(*mine, 5, True, 1, 11, origin=origin)
        assert mine[0].tobytes() == red.tobytes()
        assert mine[1].tobytes() == black.tobytes()


def test_stairs_of_half_sweeps_are_half_sweeps(seed):
    # First what lies above the stairs and below the others, half-sweep by half-sweep; then the middle, in one passage.
    red, black = grids(np.random.default_rng(seed), 30, 20)
    mine = red.copy(), black.copy()
    n, m = 6, 28
    for stage in range(n):
        _kernels.sor_sweep(red, black, 1, stage % 2 == 0, 1, m + 1)
    for stage in range(n):
        _kernels.sor_sweep(*mine, 1, stage % 2 == 0, 1, 1 + n - stage)
        _kernels.sor_sweep(*mine, 1, stage % 2 == 0, m + 1 - (n - stage), m + 1)
    _kernels.sor_sweep(*mine, n, True, 1 + n, m + 1 - n, first_step=-1, last_step=1)
    assert mine[0].tobytes() == red.tobytes()
    assert mine[1].tobytes() == black.tobytes()


def test_both_colours_begin_with_a_cache_line_whatever_was_allocated_before():
    problem, kept = sor.problem(64), []
    for rows in range(3, 40):
        kept.append(bytearray(8 * rows))  # changes the address of the next allocation
        for array in sor.squares(problem, 0, rows):
            assert array.ctypes.data % arrays.LINE_BYTES == 0
            assert array.shape == (rows, 32)
            kept.append(array)


def test_what_the_kernel_refuses():
    red, black = np.zeros((6, 4), np.float32), np.zeros((6, 4), np.float32)
    for arguments, steps, text in [
        ((red, black, 1, True, 0, 5), {}, r"rows \[0, 5\) are not within \[1, 5\)"),
        ((red, black, 1, True, 1, 6), {}, r"rows \[1, 6\)"),
        ((red, black, 3, True, 2, 4), {"first_step": -1}, r"rows \[0, 4\)"),
        ((red, black, 3, True, 2, 4), {"last_step": 1}, r"rows \[2, 6\)"),
        ((red, black, 3, True, 2, 4), {"last_step": 2}, "move by -1, 0 or 1"),
        ((red, black, -1, True, 2, 4), {}, "-1 half-sweeps"),
        ((red, black[:5], 1, True, 2, 4), {}, r"black is to be of shape \(6, 4\)"),
        ((red[:1], black[:1], 1, True, 2, 4), {}, "2 rows and 2 columns"),
        ((red[:, ::2], black[:, ::2], 1, True, 2, 4), {}, "contiguous"),
    ]:
        with pytest.raises(ValueError, match=text):
            _kernels.sor_sweep(*arguments, **steps)
    _kernels.sor_sweep(red, black, 2, True, 4, 2)  # no rows: no effect


# ------------------------------------------------------------------------------------------------- the application


@pytest.mark.parametrize("init", sor.INITS)
def test_serial_is_right(kernel_level, init):
    for size, iterations in (("64", 10), ("4096", 50)) if kernel_level == _kernels.levels()[-1] else (("64", 10),):
        problem = sor.problem(size, iterations, init)
        checks = sor.verify(problem, sor.serial(problem))
        assert len(checks) == 3
        assert [str(one) for one in checks if not one.ok] == []


PROBLEMS = [
    {"size": size, "iterations": iterations, "init": init, "variant": variant}
    for size, iterations, init in (
        ("64", 10, "zero"),
        ("64", 10, "nonzero"),
        ("37x50", 9, "nonzero"),
        ("5x4", 3, "zero"),
    )
    for variant in sor.VARIANTS
] + [{"size": "3x1000", "iterations": 4}, {"size": "300x40", "iterations": 60}, {"size": "64", "iterations": 1}]


@pytest.mark.parametrize("channel", CHANNELS)
def test_any_number_of_ranks_has_the_same_bits(channel, tmp_path):
    alone = {}
    for options in PROBLEMS:
        problem = sor.problem(**options)
        alone[str(options)] = sor.serial(problem)
        assert all(one.ok for one in sor.verify(problem, alone[str(options)]))
    for line in apps_job.run("sor", PROBLEMS, [1, 2, 3, 4], channel, tmp_path):
        assert line["outcome"] == repr(alone[str(line["options"])]), line
        assert line["wrong"] == []
        assert line["checks"] == 3
        problem = sor.problem(**line["options"])
        bands = min(line["ranks"], problem.inner)
        messages = 4 * (bands - 1) * (problem.iterations - 1)
        assert (line["messages"], line["nbytes"]) == (messages, messages * (4 + 4 * problem.width)), line


@pytest.mark.timeout(200)
def test_table_2_of_the_paper(tmp_path):
    problems = [{"size": "4096", "iterations": 50, "init": init} for init in sor.INITS]
    for name, line in zip(("SOR-Zero", "SOR-NZ"), apps_job.run("sor", problems, [8], "via", tmp_path), strict=True):
        assert line["wrong"] == []
        assert line["messages"] == apps_job.paper(name, "number of messages")
        assert int(line["nbytes"] / 1024) == apps_job.paper(name, "total transfers")


def test_wrong_bits_are_noticed():
    problem = sor.problem("64", 10)
    right = sor.serial(problem)
    wrong = [one for one in sor.verify(problem, sor.Outcome("0" * 16, right.red * 1.001, right.black)) if not one.ok]
    assert [one.name for one in wrong] == ["hash of all squares", "sum of red squares"]
    assert "expected exactly 285c98a1826e9c0e" in str(wrong[0])
    large = sor.problem("100000")
    assert sor.verify(large, right) == []  # no published values for comparison


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"size": "many"}, "ROWSxCOLUMNS"),
        ({"size": "1x2x3"}, "ROWSxCOLUMNS"),
        ({"size": "2x8"}, "3 rows and 4 columns"),
        ({"size": -4096}, "3 rows and 4 columns"),
        ({"size": "99x101"}, "must be even, got 101"),
        ({"iterations": 0}, "iterations is 0; expected 1 or more"),
        ({"init": "warm"}, "zero, nonzero"),
        ({"variant": "fast"}, "overlap, paper"),
    ],
)
def test_problems_that_make_no_sense(options, text):
    with pytest.raises(ValueError, match=text):
        sor.problem(**options)


def test_memory_is_asked_for_before_it_is_taken(capsys):
    problem = sor.problem("4096")
    assert sum(one.nbytes for one in sor.squares(problem, 0, 4096)) <= sor.memory(problem, 1) <= 1.5 * 4096 * 4096 * 4
    assert sor.main(["--size", "90000000"]) != 0
    assert "GB" in capsys.readouterr().err


def test_the_command(capsys):
    assert sor.main(["--size", "64", "--iterations", "10", "--init", "nonzero"]) == 0
    assert "08d1fcd3ff049395" in capsys.readouterr().out
    assert sor.main(["--size", "63"]) == 2
    assert "even" in capsys.readouterr().err
    assert harness.run(sor.APPLICATION, sor.problem("64", 10)).ok
