"""Code shared by all kernels: levels of vector instructions, random numbers, errors for unsuitable arrays."""

import numpy as np
import pytest

from viakit import _kernels


def chain(x: int, n: int) -> tuple[list[float], int]:
    """Return the *n* numbers after the state *x*, one multiplication after the other, and the state after them."""
    out = []
    for _ in range(n):
        x = x * 5**13 % 2**46
        out.append(x * 2.0**-46)
    return out, x


def test_the_best_level_is_in_use():
    assert _kernels.level() == _kernels.levels()[-1]
    with pytest.raises(ValueError, match="cannot run kernels at level 'sse9'"):
        _kernels.set_level("sse9")


@pytest.mark.parametrize("n", [0, 1, 7, 31, 32, 33, 1000])
def test_random_numbers(kernel_level, n):
    guarded = np.full(n + 2, -1.0)
    expected, state = chain(314159265, n)
    assert _kernels.random_fill(314159265, guarded[1 : n + 1]) == state
    assert guarded[0] == guarded[n + 1] == -1.0
    assert guarded[1 : n + 1].tolist() == expected


def test_skipping_is_multiplying_often(seed):
    rng = np.random.default_rng(seed)
    for n in [0, 1, 2, int(rng.integers(3, 500))]:
        x = int(rng.integers(1, 2**46))
        assert _kernels.random_skip(x, n) == chain(x, n)[1]
    assert _kernels.random_skip(1, 2**44) == 1  # the period of an odd multiplier modulo 2^46
    with pytest.raises(ValueError, match="in \\[0, 2\\^46\\)"):
        _kernels.random_skip(2**46, 1)


def test_arrays_that_will_not_do():
    for array, error, text in [
        ([0.0], TypeError, "NumPy array of float64, not list"),
        (np.zeros(4, np.float32), TypeError, "dtype float64, not float32"),
        (np.zeros((2, 2)), ValueError, r"shape \(any\), not \(2, 2\)"),
        (np.zeros(8)[::2], ValueError, "contiguous"),
    ]:
        with pytest.raises(error, match=text):
            _kernels.random_fill(1, array)
    array = np.zeros(4)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        _kernels.random_fill(1, array)
