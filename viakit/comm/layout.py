"""Runs: the contiguous pieces of memory that a datatype consists of.

Runs are an array of two columns, the offset and the length of each piece in bytes, in the order of the data. A datatype
of a million pieces is derived and packed by a few calls of NumPy.
"""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from viakit.base.words import counted
from viakit.comm.errors import error

NONE = np.zeros((0, 2), np.int64)
_FEW = 16  # runs up to which a loop takes less time than the calls of NumPy


def integers(values: Any) -> np.ndarray:
    """Return a sequence of integers as an array. Raises TypeError for other numbers."""
    found = np.asarray(values)
    if found.dtype.kind not in "iu":
        found = np.array([index(value) for value in values], np.int64)
    return found.astype(np.int64, copy=False)


def check_packed(position: int, n: int, room: int, which: str) -> None:
    """Raise an error unless *n* bytes from *position* on lie inside of a buffer of *room* bytes."""
    if position < 0:
        raise error("ERR_ARG", f"the position in the {which} buffer must be 0 or more, got {position}")
    if position + n > room:
        raise error(
            "ERR_TRUNCATE",
            f"{counted(n, 'byte')} at position {position} exceed the {which} buffer of {counted(room, 'byte')}",
        )


def merged(runs: Any) -> np.ndarray:
    """Return the runs without empty ones, and with neighbours that follow each other without a gap as one."""
    found = np.asarray(runs, np.int64).reshape(-1, 2)
    if len(found) <= _FEW:
        return _merged_few(found.tolist())
    found = found[found[:, 1] != 0]
    if len(found) < 2:
        return found
    begins = np.concatenate(([0], np.flatnonzero(found[1:, 0] != found[:-1].sum(axis=1)) + 1))
    return np.stack((found[begins, 0], np.add.reduceat(found[:, 1], begins)), axis=1)


def _merged_few(runs: list[list[int]]) -> np.ndarray:
    out: list[list[int]] = []
    for offset, length in runs:
        if out and out[-1][0] + out[-1][1] == offset:
            out[-1][1] += length
        elif length:
            out.append([offset, length])
    return np.array(out, np.int64).reshape(-1, 2)


def bounds(runs: np.ndarray) -> tuple[int, int, int]:
    """Return the number of bytes in the runs, the offset of their first byte, and the offset after their last one."""
    if len(runs) <= _FEW:
        few = runs.tolist()
        ends = [offset + length for offset, length in few]
        return sum(n for _, n in few), min((offset for offset, _ in few), default=0), max(ends, default=0)
    return int(runs[:, 1].sum()), int(runs[:, 0].min()), int(runs.sum(axis=1).max())


def copies(runs: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the runs as they are at each of the places, which are offsets in bytes."""
    out = np.empty((len(places), len(runs), 2), np.int64)
    out[:, :, 0] = places[:, None] + runs[None, :, 0]
    out[:, :, 1] = runs[None, :, 1]
    return out.reshape(-1, 2)


def counting(starts: np.ndarray, lengths: np.ndarray, step: int) -> np.ndarray:
    """Return for each start as many numbers as its length, each *step* more than the one before."""
    total = int(lengths.sum())
    firsts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.asarray(np.repeat(starts, lengths) + (np.arange(total) - firsts) * step)


def byte_index(runs: np.ndarray) -> np.ndarray:
    """Return the offset of each byte of the runs."""
    return counting(runs[:, 0], runs[:, 1], 1)
