"""Message sizes: arguments of `--sizes`, and NetPIPE's ladder."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viakit.measure import ladder
from viakit.measure.ladder import SizeError, check_limits, format_size, parse_size, parse_sizes

sizes = st.integers(0, 1 << 32)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("0", 0), ("64", 64), ("4K", 4096), ("4k", 4096), ("4KiB", 4096), ("1.5M", 3 << 19), ("2G", 2 << 30), (" 8 ", 8)],
)
def test_sizes_as_people_write_them(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "x", "4T", "-1", "1.3", "0x10", "1e3", "9999G", "4 4", "K"])
def test_what_is_no_size_says_so(text):
    with pytest.raises(SizeError) as caught:
        parse_size(text)
    assert text.strip() in str(caught.value)


@pytest.mark.parametrize("text", ["", ",", "1,,2", "4M:1", "1:2:3", "-8:64", "64:", ":64", "1:x"])
def test_what_is_no_list_says_so(text):
    with pytest.raises(SizeError):
        parse_sizes(text)


def test_the_ladder_is_netpipes():
    assert parse_sizes("1:128") == [
        *(1, 2, 3, 4, 6, 8, 12, 13, 16, 19, 21, 24, 27, 29, 32, 35),
        *(45, 48, 51, 61, 64, 67, 93, 96, 99, 125, 128),
    ]
    assert parse_sizes("1:32", 0) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


def test_lists_and_ranges_mix_and_single_sizes_are_not_perturbed():
    assert parse_sizes("4096,64,64") == [64, 4096]
    assert parse_sizes("100,1:4") == [1, 2, 3, 4, 100]


@given(sizes, sizes, st.integers(0, 100))
def test_a_ladder_ascends_between_its_ends(a, b, perturbation):
    start, end = min(a, b), max(a, b)
    rungs = ladder.ladder(start, end, perturbation)
    assert rungs[0] == start
    assert rungs[-1] == end
    assert all(x < y for x, y in itertools.pairwise(rungs))
    assert len(rungs) < 250


@given(st.integers(1, 30), st.integers(1, 10))
def test_every_power_of_two_has_its_neighbours_where_there_is_room(exponent, perturbation):
    power = 1 << exponent
    rungs = set(ladder.ladder(1, power * 2, perturbation))
    assert power in rungs
    if power // 2 > perturbation + 1:
        assert {power - perturbation, power + perturbation} <= rungs


@given(sizes)
def test_a_written_size_reads_back(nbytes):
    assert parse_size(format_size(nbytes)) == nbytes


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (4 << 20, "4 MiB"), (4097, "4097 B")],
)
def test_sizes_for_people(nbytes, text):
    assert format_size(nbytes) == text


def test_limits_name_the_protocol_the_size_and_the_limit():
    check_limits([0, 64], "any")
    with pytest.raises(SizeError, match=r"via-eth.*134217728.*67108864"):
        check_limits([1, 128 << 20], "via-eth", 0, 64 << 20)
    with pytest.raises(SizeError, match=r"tcp.* 0 bytes.*smallest is 1"):
        check_limits([0, 64], "tcp", 1)


@pytest.mark.parametrize("arguments", [(-1, 5, 3), (5, 1, 3), (1, 5, -1)])
def test_ladders_that_make_no_sense(arguments):
    with pytest.raises(SizeError):
        ladder.ladder(*arguments)
