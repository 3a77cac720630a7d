"""The comparison of applications: policies as protocols, a problem of one's own, readable kernels, time by state."""

import subprocess
import sys

import pytest

from viakit.apps import speedup, split
from viakit.apps.phases import STATES
from viakit.papers import lobosco


def test_policies_problem_and_kernels():
    document = speedup.measure(
        ["sor-zero"], protocols=["via", "mpich-p4"], ranks=[2], rounds=1, kernels="numpy",
        problem=["--size", "64", "--iterations", "4", "--variant", "paper"],
    )  # fmt: skip
    assert document["complete"], document["errors"]
    assert not speedup.wrong(document)
    found = split.splits(document)
    assert [one.protocol for one in found] == ["via", "mpich-p4"]
    for one in found:
        assert set(one.seconds) == set(STATES)
        assert sum(one.seconds.values()) == pytest.approx(one.wall_s, rel=0.5)
        assert 0 < one.waiting < 1
        assert one.speedup is not None
        assert one.messages == found[0].messages > 0, "a protocol does not change what the application sends"
    page = split.html(document)
    for text in ("mpich-p4", "in Recv", "MVICH Gig RDMA", "3.66", "2 ranks"):
        assert text in page, text
    assert "predicted" not in page
    both = split.html(document, lobosco.columns)
    published, predicted = both.index("<td>published</td>"), both.index("<td>predicted by the replay</td>")
    assert published < predicted
    assert both[predicted:].count("<td>") == 1 + len(lobosco.COLUMNS)
    looks = {split.fill(state) for state in STATES}
    assert len(looks) == len(STATES), "states differ by colour and stripes"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"protocols": ["mpich-p5"]}, "mpich-p5.*or a policy such as mpich-p4"),
        ({"kernels": "fortran"}, "kernels are 'fortran'; expected one of compiled, numpy"),
        ({"labels": ["ep", "is"], "problem": ["--class", "S"]}, "for one problem; 2 were given"),
    ],
)
def test_wrong_arguments(wrong, words):
    given = {"labels": ["sor-zero"], "ranks": [2], "rounds": 1, **wrong}
    with pytest.raises(ValueError, match=words):
        speedup.measure(given.pop("labels"), **given)


def test_the_readable_kernels_give_the_same_results():
    script = """
import numpy as np
from viakit import _kernels
from viakit.apps.kernels import kernels
assert kernels.sor_sweep is not _kernels.sor_sweep
rng = np.random.default_rng(18)
first, end = 2, 11
for steps in ({}, {"first_step": 1, "last_step": -1}):
    bands = [[one.copy() for one in pair] for pair in [rng.random((2, 14, 9), np.float32)] for _ in range(2)]
    for sweep, band in zip((kernels.sor_sweep, _kernels.sor_sweep), bands):
        sweep(*band, 3, True, first, end, origin=5, **steps)
    assert np.array_equal(bands[0], bands[1]), steps
counts, sums = np.zeros((2, 10), np.uint64), np.zeros((2, 4))
kernels.ep_pairs(271828183, 1000, counts[0], sums[0])
_kernels.ep_pairs(271828183, 1000, counts[1], sums[1])
assert np.array_equal(*counts) and np.allclose(*sums, rtol=1e-12)
keys = rng.integers(0, 64, 500).astype(np.int32)
made = []
for one in (kernels, _kernels):
    count, out, starts = np.zeros(64, np.int32), np.empty(500, np.int32), np.empty(17, np.int32)
    one.is_count(keys, count)
    total = one.is_prefix(count, 3)
    one.is_partition(keys, 2, out, starts)
    made.append((count.tolist(), total, out.tolist(), starts.tolist()))
assert made[0] == made[1]
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env={"VIAKIT_KERNELS": "numpy", "PATH": "/usr/bin:/bin"}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [sys.executable, "-c", "import viakit.apps.kernels"], env={"VIAKIT_KERNELS": "c"}, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert "VIAKIT_KERNELS is 'c'; expected one of compiled, numpy" in done.stderr
