"""The numeric kernels of the applications: the compiled ones, or readable ones in NumPy.

``VIAKIT_KERNELS=numpy`` in the environment selects NumPy for the kernels that have a counterpart there. They have the
same names and arguments as in :mod:`viakit._kernels`, and the results are verified in the same way. The transforms of
3D-FFT are NumPy's in either case.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np

from viakit import _kernels
from viakit.apps import water_numpy

__all__ = ["CHOICES", "VARIABLE", "chosen", "half_sweep", "kernels"]

VARIABLE = "VIAKIT_KERNELS"
CHOICES = ("compiled", "numpy")
_MULTIPLIER, _MODULUS = 5**13, 2**46  # of the NAS generator of random numbers


def chosen() -> str:
    """Return the kernels that the environment selects.

    Raises
    ------
    ValueError
        If ``VIAKIT_KERNELS`` is not one of :data:`CHOICES`.
    """
    given = os.environ.get(VARIABLE) or CHOICES[0]
    if given not in CHOICES:
        raise ValueError(f"{VARIABLE} is {given!r}; expected one of {', '.join(CHOICES)}")
    return given


def half_sweep(out: Any, other: Any, black: bool, first: int, last: int, origin: int = 0) -> None:
    """Compute one half-sweep of SOR over rows [first, last).

    Parameters
    ----------
    out, other : numpy.ndarray, float32, shape (rows, n + 1)
        The colour to compute, and the other one.
    black : bool
        Whether `out` is black.
    origin : int
        Number of row 0 in the whole grid.
    """
    for j in range(first, last):
        left, right = other[j, :-1], other[j, 1:]
        # For black squares in odd rows and red ones in even rows, the first has its left neighbour in the same column
        # of the array. For the other squares, the one at the edge is fixed and the rest are one column on.
        k = slice(None, -1) if black == bool((origin + j) % 2) else slice(1, None)
        out[j, k] = (other[j - 1, k] + other[j + 1, k] + left + right) / np.float32(4)


def sor_sweep(
    red: Any,
    black: Any,
    n_stages: int,
    black_first: bool,
    first: int,
    last: int,
    *,
    origin: int = 0,
    first_step: int = 0,
    last_step: int = 0,
) -> None:
    """Compute half-sweeps of one colour and the other in turn. The rows move by the steps from one to the next."""
    for stage in range(n_stages):
        is_black = black_first == (stage % 2 == 0)
        out, other = (black, red) if is_black else (red, black)
        half_sweep(out, other, is_black, first + stage * first_step, last + stage * last_step, origin)


def ep_pairs(x: int, n: int, counts: Any, sums: Any) -> None:
    """Count and sum the Gaussian deviates of *n* pairs of random numbers that follow the state *x*."""
    # Each pass doubles the numbers of the sequence: the second half is the first one, advanced by its length.
    states = np.array([x * _MULTIPLIER % _MODULUS], np.uint64)
    while len(states) < 2 * n:
        jump = np.uint64(pow(_MULTIPLIER, len(states), _MODULUS))
        states = np.concatenate([states, states * jump % np.uint64(_MODULUS)])  # exact: 2^46 divides 2^64
    numbers = states[: 2 * n].astype(np.float64) * 2.0**-46
    u, v = 2 * numbers[0::2] - 1, 2 * numbers[1::2] - 1
    t = u**2 + v**2
    u, v, t = (one[t <= 1] for one in (u, v, t))
    f = np.sqrt(-2 * np.log(t) / t)
    u, v = u * f, v * f
    larger = np.maximum(np.abs(u), np.abs(v)).astype(np.int64)
    counts += np.bincount(larger, minlength=len(counts)).astype(np.uint64)
    sums += [u.sum(), v.sum(), np.abs(u).sum(), np.abs(v).sum()]


def is_count(keys: Any, counts: Any, base: int = 0, work: Any = None) -> None:
    """Add to ``counts[k - base]`` the number of keys k. NumPy needs no *work*."""
    counts += np.bincount(keys - base, minlength=len(counts)).astype(counts.dtype)


def is_prefix(counts: Any, start: int = 0) -> int:
    """Replace *counts* by *start* plus the sum up to and with each; return the last one."""
    np.cumsum(counts, out=counts)
    counts += start
    return int(counts[-1]) if len(counts) else start


def is_partition(keys: Any, shift: int, out: Any, starts: Any) -> None:
    """Group *keys* by bucket, ``k >> shift``, in their order."""
    bucket = keys >> shift
    starts[0] = 0
    np.cumsum(np.bincount(bucket, minlength=len(starts) - 1), out=starts[1:])
    out[:] = keys[np.argsort(bucket, kind="stable")]


_WATER = "predict correct place intra pair_forces pair_energies fold wrap kinetic".split()
_READABLE = {
    "sor_sweep": sor_sweep,
    "ep_pairs": ep_pairs,
    "is_count": is_count,
    "is_prefix": is_prefix,
    "is_partition": is_partition,
    **{f"water_{name}": getattr(water_numpy, name) for name in _WATER},
}

# The kernels by name, as attributes.
kernels: Any = SimpleNamespace(**{**vars(_kernels), **(_READABLE if chosen() == "numpy" else {})})
