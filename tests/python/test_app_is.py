"""IS: its kernels against NumPy, published results on one and on several ranks, and refused arguments."""

from __future__ import annotations

import apps_job
import numpy as np
import pytest

from viakit import _kernels
from viakit.apps import is_

# Small and irregular: fewer keys than buckets, shares shorter than what each iteration changes, ranges without keys.
PROBLEMS = [
    {"keys_log": keys_log, "max_log": max_log, "algorithm": algorithm, "iterations": 1}
    for keys_log, max_log in ((5, 5), (14, 18))
    for algorithm in is_.ALGORITHMS
] + [{"klass": "S", "iterations": 2}]


# ------------------------------------------------------------------------------------------------ kernels


@pytest.mark.parametrize(("first", "end"), [(0, 1), (0, 1000), (7, 70), (12345, 12345 + 33)])
@pytest.mark.parametrize("max_log", [5, 11, 19, 30])
def test_keys(kernel_level, first, end, max_log):
    what = is_.problem(keys_log=20, max_log=max_log)
    assert np.array_equal(is_.make_keys(what, first, end), is_.make_keys_numpy(what, first, end))


def test_keys_stay_within_their_array(kernel_level):
    guarded = np.full(103, -7, np.int32)
    _kernels.is_keys(is_.SEED, 11, guarded[1:102])
    assert guarded[0] == guarded[102] == -7
    assert guarded[1:5].tolist() == [1585, 825, 1060, 1343]


@pytest.mark.parametrize("max_log", [5, 11, 16, 17, 19])
def test_counts(kernel_level, max_log):
    what = is_.problem(keys_log=16, max_log=max_log)
    keys = is_.make_keys(what, 0, what.n_keys - 3)
    counts = np.zeros(what.max_key, np.int32)
    _kernels.is_count(keys, counts)
    assert np.array_equal(counts, np.bincount(keys, minlength=what.max_key))
    assert _kernels.is_prefix(counts) == len(keys)
    assert np.array_equal(counts, is_.rank_numpy(keys, what))


@pytest.mark.parametrize("repeats", [1, 255, 256, 257, 70000])
def test_counts_of_keys_that_are_all_the_same(kernel_level, repeats):
    """Counts that exceed a byte are detected, and counted again."""
    keys = np.concatenate([np.full(repeats, 99999, np.int32), np.arange(100000, dtype=np.int32)])
    counts = np.ones(100000, np.int32)
    _kernels.is_count(keys, counts)
    assert counts[99999] == repeats + 2
    assert (counts[:99999] == 2).all()


@pytest.mark.parametrize("m", [100, 128, 70000, 131072])
@pytest.mark.parametrize("bad", [-1, 0, 7])
def test_keys_without_a_count_are_refused(kernel_level, m, bad):
    keys = np.full(5000, 1000, np.int32)
    keys[4321] = 1000 + (m if bad == 7 else bad)
    if bad == 0:
        _kernels.is_count(keys, np.zeros(m, np.int32), 1000)
        return
    with pytest.raises(ValueError, match=rf"a key is not in \[1000, {1000 + m}\)"):
        _kernels.is_count(keys, np.zeros(m, np.int32), 1000)


def test_kernels_refuse_arrays_that_will_not_do():
    keys, counts = np.zeros(10, np.int32), np.zeros(70000, np.int32)
    with pytest.raises(TypeError, match="keys is to be of dtype int32, not int64"):
        _kernels.is_count(keys.astype(np.int64), counts)
    with pytest.raises(ValueError, match="contiguous"):
        _kernels.is_count(keys[::2], counts)
    with pytest.raises(ValueError, match="work has 3 bytes; 70000 counts want 131072"):
        _kernels.is_count(keys, counts, work=np.empty(3, np.uint8))
    with pytest.raises(ValueError, match="no counts"):
        _kernels.is_count(keys, counts[:0])
    with pytest.raises(ValueError, match="below 2"):
        _kernels.is_keys(1, 31, keys)
    with pytest.raises(ValueError, match="1 to 1024 buckets"):
        _kernels.is_partition(keys, 0, keys.copy(), np.zeros(2000, np.int32))
    with pytest.raises(ValueError, match=r"not in \[0, 16\)"):
        _kernels.is_partition(np.full(10, 16, np.int32), 2, keys, np.zeros(5, np.int32))


def test_kernels_refuse_arrays_that_overlap():
    whole, starts = np.zeros(100, np.int32), np.zeros(5, np.int32)
    keys, later = whole[:60], whole[30:90]
    with pytest.raises(ValueError, match="keys and out overlap"):
        _kernels.is_partition(keys, 2, keys, starts)
    with pytest.raises(ValueError, match="keys and out overlap"):
        _kernels.is_partition(keys, 2, later, starts)
    with pytest.raises(ValueError, match="out and starts overlap"):
        _kernels.is_partition(np.zeros(60, np.int32), 2, keys, whole[59:64])
    with pytest.raises(ValueError, match="keys and counts overlap"):
        _kernels.is_count(keys, later)
    with pytest.raises(ValueError, match="cumulative and out overlap"):
        _kernels.is_place(np.zeros(3, np.int32), keys, 0, later)
    _kernels.is_partition(keys, 2, np.empty(60, np.int32), starts)  # adjacent ranges are valid
    _kernels.is_count(whole[:60], whole[60:])


def test_partition(kernel_level):
    what = is_.problem(keys_log=14, max_log=17)
    keys = is_.make_keys(what, 0, 9999)
    out, starts = np.empty_like(keys), np.empty(1025, np.int32)
    _kernels.is_partition(keys, what.shift, out, starts)
    expected, where = is_.partition_numpy(keys, what)
    assert np.array_equal(out, expected)
    assert np.array_equal(starts, where)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 61, 3000])
def test_owners_have_about_as_many_keys_each(size):
    what = is_.problem(klass="W")
    begins = is_.owned(what, size)
    assert len(begins) == size + 1
    assert (np.diff(begins) >= 0).all()
    keys = np.sort(is_.make_keys(what, 0, what.n_keys))
    each = np.diff(np.searchsorted(keys, begins << what.shift))
    assert each.sum() == what.n_keys
    assert each.max() <= what.n_keys / size * 1.05 + what.n_keys / 300


# ------------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize("klass", ["S", "W", "A", "paper"])
def test_serial_program_is_right(klass):
    what = is_.problem(klass)
    checks = is_.verify(what, is_.serial(what))
    assert [str(one) for one in checks if not one.ok] == []
    assert sum(one.name.startswith("rank of test key") for one in checks) == 50


def test_a_wrong_result_is_told():
    what = is_.problem("S")
    outcome = is_.serial(what)
    outcome.test_ranks[6][2] += 1
    outcome.disorder = 3
    wrong = [str(one) for one in is_.verify(what, outcome) if not one.ok]
    assert wrong == [
        "rank of test key 3, iteration 7 is 354; expected exactly 353",
        "keys out of order is 3; expected exactly 0",
    ]


def test_ranks_that_do_not_sort_are_found():
    keys = np.array([3, 1, 2, 1], np.int32)
    right = np.array([0, 2, 3, 4], np.int32)
    assert is_._put([keys], right, 0, 0) == (4, 0)
    for wrong in ([0, 1, 3, 4], [0, 2, 2, 4], [0, 2, 4, 4], [0, 2, 3, 5], [1, 3, 4, 5], [0, 2, 4, 3]):
        assert is_._put([keys], np.array(wrong, np.int32), 0, 0) != (4, 0), wrong


@pytest.mark.parametrize("channel", apps_job.CHANNELS)
def test_any_number_of_ranks_finds_the_same(channel, tmp_path):
    alone = {}
    for options in PROBLEMS:
        what = is_.problem(**options)
        alone[str(options)] = is_.serial(what)
        assert [str(one) for one in is_.verify(what, alone[str(options)]) if not one.ok] == []
    for line in apps_job.run("is_", PROBLEMS, [1, 2, 3, 4], channel, tmp_path):
        assert line["outcome"] == repr(alone[str(line["options"])]), line
        assert line["wrong"] == []


def test_table_2_of_the_paper(tmp_path):
    """The numbers of messages and kilobytes equal the paper's."""
    (line,) = apps_job.run("is_", [{"klass": "paper"}], [8], "via", tmp_path)
    assert line["wrong"] == []
    assert line["checks"] == 53
    assert line["messages"] == apps_job.paper("IS Class A", "number of messages")
    assert int(line["nbytes"] / 1024) == apps_job.paper("IS Class A", "total transfers")


def test_the_chain_sends_tables(tmp_path):
    """Per ranking each rank sends once to the next, and the last rank sends the sum to all others."""
    (line,) = apps_job.run("is_", [{"klass": "S", "algorithm": "chain"}], [4], "via", tmp_path)
    assert (line["messages"], line["nbytes"]) == (11 * 6, 11 * 6 * 4 * 2**11)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"klass": "Q"}, "no class 'Q'; there are S, W, A, B, C, paper"),
        ({"klass": "S", "keys_log": 20, "max_log": 10}, "not both"),
        ({"keys_log": 20}, "--max-key"),
        ({"keys_log": 3, "max_log": 10}, r"2\^3 keys; expected"),
        ({"keys_log": 20, "max_log": 31}, r"below 2\^31; expected"),
        ({"iterations": 11}, "iterations are 1 to 10, not 11"),
        ({"algorithm": "bubble"}, "no algorithm 'bubble'"),
    ],
)
def test_problems_that_make_no_sense(options, words):
    with pytest.raises(ValueError, match=words):
        is_.problem(**options)
