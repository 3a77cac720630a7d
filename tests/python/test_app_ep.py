"""EP: its kernel against NumPy, problem classes on any number of ranks over every channel, and message counts."""

from __future__ import annotations

import ast
import tracemalloc

import apps_job
import numpy as np
import pytest
from apps_job import CHANNELS

from viakit import _kernels
from viakit.apps import ep
from viakit.apps.phases import Phases

# ---------------------------------------------------------------------------------------------------- the kernel


@pytest.mark.parametrize("n", [0, 1, 7, 15, 16, 17, 4095, 4096, 4111, 100_000])
def test_the_kernel_is_numpys(kernel_level, n, seed):
    first = int(np.random.default_rng(seed).integers(0, 2**40))
    mine, numpys = ep.Figures(), ep.pairs_numpy(first, first + n)
    mine.add(first, first + n, Phases())
    assert mine.counts.tolist() == numpys.counts.tolist()
    np.testing.assert_allclose(mine.sums, numpys.sums, rtol=1e-12, atol=1e-11)


def test_rare_pairs_are_counted(kernel_level):
    # The 17 pairs of class S that reach 5 lie in different blocks, so each block is checked, and none is counted twice.
    figures = ep.Figures()
    for begin in range(0, 1 << 24, 1 << 22):
        figures.add(begin, begin + (1 << 22), Phases())
    assert tuple(figures.counts.tolist()) == (*ep.CLASSES["S"].counts, 0, 0, 0)


def test_what_the_kernel_refuses():
    counts, sums = np.zeros(10, np.uint64), np.zeros(4)
    for arguments, error, text in [
        ((1, -1, counts, sums), ValueError, "pairs are a number"),
        ((2**46, 1, counts, sums), ValueError, "state of the generator"),
        ((2**45, 1, counts, sums), ValueError, "is odd, not 35184372088832"),
        ((1, 1, counts[:9], sums), ValueError, r"counts is to be of shape \(10\)"),
        ((1, 1, counts.astype(np.int64), sums), TypeError, "uint64"),
        ((1, 1, counts, sums.tolist()), TypeError, "NumPy array"),
    ]:
        with pytest.raises(error, match=text):
            _kernels.ep_pairs(*arguments)


# ------------------------------------------------------------------------------------------------- the application


def test_the_comparison_takes_little_memory():
    """The work is done in pieces, of which the last is shorter."""
    n = 5 * ep.COMPARED_STEP + 321
    tracemalloc.start()
    try:
        problem = ep.problem(pairs=n)
        checks = ep.verify(problem, ep.serial(problem))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(checks) == 15
    assert all(one.ok for one in checks)
    assert peak < 160 * ep.COMPARED_STEP


def test_serial_is_right():
    for name in ("S", "W"):
        problem = ep.problem(name)
        checks = ep.verify(problem, ep.serial(problem))
        assert len(checks) == 15
        assert [str(one) for one in checks if not one.ok] == []


PROBLEMS = [
    {"class_": "S"},
    {"pairs": 100_003},
    {"pairs": 2},
    {"pairs": 100_003, "report": "counts"},
]


@pytest.mark.parametrize("channel", CHANNELS)
def test_any_number_of_ranks(channel, tmp_path):
    for line in apps_job.run("ep", PROBLEMS, [1, 2, 3, 4], channel, tmp_path):
        assert line["wrong"] == []
        problem = ep.problem(**line["options"])
        assert line["checks"] == (15 if problem.report == "sums" else 11)
        counts = ast.literal_eval(line["outcome"].partition("counts=")[2].partition(")")[0] + ")")
        assert counts == ep.serial(problem).counts
        each = 120 if problem.report == "sums" else 44
        assert (line["messages"], line["nbytes"]) == (line["ranks"] - 1, (line["ranks"] - 1) * each)


def test_table_2_of_the_paper(tmp_path):
    # The number of pairs does not change the messages.
    [line] = apps_job.run("ep", [{"class_": "S", "report": "counts"}], [8], "via", tmp_path)
    assert line["wrong"] == []
    assert line["messages"] == apps_job.paper("EP", "number of messages")
    assert round(line["nbytes"] / 1024, 1) == apps_job.paper("EP", "total transfers")


def test_wrong_figures_are_noticed():
    problem = ep.problem("S")
    right = ep.CLASSES["S"]
    counts = [*right.counts, 0, 0, 0]
    counts[6] += 1
    wrong = ep.Outcome(tuple(counts), right.x * (1 + 2e-8), right.y * (1 + 0.5e-8), right.abs_x, right.abs_y)
    assert [one.name for one in ep.verify(problem, wrong) if not one.ok] == [
        "pairs accepted",
        "pairs from 6 to 7",
        "sum of X",
    ]
    assert ep.verify(ep.problem(pairs=1 << 23), wrong) == []  # no published values for comparison


def test_classes_agree_with_themselves():
    for name, one in ep.CLASSES.items():
        if one.counts:
            assert sum(one.counts) == one.accepted, name
        assert abs(one.accepted / 2.0**one.log2 - np.pi / 4) < 2.0 ** (2 - one.log2 / 2), name


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"class_": "Z"}, "no class 'Z'; there are: S, W, A"),
        ({"pairs": 0}, "expected 1 to 2\\^44"),
        ({"pairs": 1 << 45}, "expected 1 to 2\\^44"),
        ({"class_": "S", "pairs": 5}, "not both"),
        ({"report": "all"}, "sums, counts"),
        ({"class_": "C", "report": "counts"}, "32 bits"),
    ],
)
def test_problems_that_make_no_sense(options, text):
    with pytest.raises(ValueError, match=text):
        ep.problem(**options)
