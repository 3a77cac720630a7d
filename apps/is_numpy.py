"""The kernels of IS in NumPy: a readable reference for those in C (csrc/kernels/is.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from viakit.apps.is_ import Problem

__all__ = ["MULTIPLIER", "SEED", "Keys", "make_keys_numpy", "partition_numpy", "rank_numpy"]

SEED = 314159265
MULTIPLIER = 5**13

Keys = npt.NDArray[np.int32]


def make_keys_numpy(what: Problem, first: int, end: int) -> Keys:
    """Return the keys with numbers in [first, end), as a reference: x_k = seed a^k mod 2^46, four of them per key."""
    mask = np.uint64(2**46 - 1)
    n = 4 * (end - first)
    powers = np.array([MULTIPLIER], np.uint64)
    while len(powers) < n:  # multiplies a^1 .. a^k by a^k, which gives a^(k+1) .. a^2k
        powers = np.concatenate([powers, powers * powers[-1] & mask])
    start = np.uint64(SEED * pow(MULTIPLIER, 4 * first, 2**46) % 2**46)
    numbers = (powers[:n] * start & mask) * 2.0**-46
    return (what.max_key // 4 * numbers.reshape(-1, 4).sum(axis=1)).astype(np.int32)


def rank_numpy(keys: Keys, what: Problem) -> Keys:
    """Return the number of keys up to k, for each possible k."""
    return np.cumsum(np.bincount(keys, minlength=what.max_key)).astype(np.int32)


def partition_numpy(keys: Keys, what: Problem) -> tuple[Keys, Keys]:
    """Return the keys grouped by bucket, in their order, and the start of each bucket."""
    bucket = keys >> what.shift
    starts = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=what.max_key >> what.shift))])
    return keys[np.argsort(bucket, kind="stable")], starts.astype(np.int32)
