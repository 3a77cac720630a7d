"""Exercises of lesson 7, Five applications."""

from __future__ import annotations

import ast

from viakit.lab.exercises.common import COUNTED, on_ranks
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, number_of, text_of

__all__ = ["EXERCISES"]

_STEPS = 30
_TRY = f"""
import numpy as np
{COUNTED}
def alone(n, steps):
    bar = np.zeros(n + 2)
    bar[0] = 100.0
    for _ in range(steps):
        bar[1:-1] = (bar[:-2] + bar[2:]) / 2
    return bar
ANSWER
_right = bool(np.allclose(together(16, {_STEPS}), alone(16, {_STEPS})[1 + rank * 8 :][:8]))
comm, _sent = _comm, comm.sent
_right, _sent
"""


def _largest(names: Names) -> str:
    means = {name: one["mean"] for name, one in names.counted.items()}
    chosen = text_of(names, "largest", tuple(means))
    if means[chosen] < max(means.values()):
        raise Wrong(f"{chosen} sends {means[chosen] / 1024:.3g} KiB per message; another application sends more")
    return (
        f"{chosen}, {means[chosen] / 1024:.3g} KiB per message here. In the paper, with other sizes and 8 processors, "
        "IS has the largest (178 KiB) and 3D-FFT the second (57 KiB)."
    )


def _factors(names: Names) -> str:
    for name in ("messages_factor", "bytes_factor"):
        number_of(names, name)  # before the seconds of two runs
    small, large = names.app("sor --size 128 --iterations 5"), names.app("sor --size 256 --iterations 5")
    messages, nbytes = large["messages"] / small["messages"], large["bytes"] / small["bytes"]
    close_to(names, "messages_factor", messages, 0.1, "Each rank still sends one row to each neighbour per half-sweep")
    close_to(names, "bytes_factor", nbytes, 0.1, "A row has as many numbers as the grid is wide")
    return "The boundary grows more slowly than the area, so large problems communicate less, relative to their work."


def _bar(names: Names) -> str:
    if "def together" not in text_of(names, "mended"):
        raise Wrong("the text does not define together(n, steps)")
    if "alone(" in text_of(names, "mended"):
        raise Wrong("together() must compute with the ranks, not call alone()")
    found = [ast.literal_eval(one) for one in on_ranks(2, names, "mended", _TRY)]
    if not all(right for right, _ in found):
        raise Wrong("the parallel result differs from the serial one")
    sent = min(n for _, n in found)
    if sent < _STEPS:
        raise Wrong(f"a rank sent {sent} messages in {_STEPS} steps; expected its outermost cell in each step")
    return "Parallel equals serial."


EXERCISES = (
    Exercise(
        ("largest",),
        _largest,
        ("`counted` has a dictionary for each application; `mean` is its mean message.", "max() takes a key."),
        'largest = max(counted, key=lambda name: counted[name]["mean"])',
    ),
    Exercise(
        ("messages_factor", "bytes_factor"),
        _factors,
        ("Which part of the grid is sent? How does it grow?", "What does the number of half-sweeps depend on?"),
        "messages_factor, bytes_factor = 1, 2",
    ),
    Exercise(
        ("mended",),
        _bar,
        (
            "bar[0] and bar[-1] are the neighbours' cells. Which cells are the outermost ones of the rank itself?",
            "Send pieces of one cell, such as bar[1:2], and receive into bar itself, not into a copy.",
        ),
        '''
mended = """
def together(n, steps):
    mine = n // size
    bar = np.zeros(mine + 2)
    if rank == 0:
        bar[0] = 100.0
    for _ in range(steps):
        if rank > 0:
            comm.Sendrecv(bar[1:2], dest=rank - 1, recvbuf=bar[0:1], source=rank - 1)
        if rank < size - 1:
            comm.Sendrecv(bar[-2:-1], dest=rank + 1, recvbuf=bar[-1:], source=rank + 1)
        bar[1:-1] = (bar[:-2] + bar[2:]) / 2
    return bar[1:-1]
"""
''',
    ),
)
