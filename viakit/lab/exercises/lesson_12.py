"""Exercises of lesson 12, Four thousand nodes."""

from __future__ import annotations

from viakit import machines, replay
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, number_of

__all__ = ["EXERCISES"]

_MACHINE = "barrier-cluster-3"


def _time_us(algorithm: str, ranks: int) -> float:
    return 1e6 * replay.run(replay.barrier(algorithm, ranks=ranks), replay.model(machines.load(_MACHINE))).end_s


def _writes(names: Names) -> str:
    if number_of(names, "writes") == 12:
        raise Wrong("writes = 12 counts the steps, or the writes of one rank; count those of all ranks")
    if number_of(names, "writes") == 4096 * 12 / 2:
        raise Wrong("writes = 24576 counts pairs; in an exchange both ranks write")
    close_to(names, "writes", 4096 * 12, 0.0001, "Every rank writes once in each of log2(4096) steps")
    return "49,152 writes of 8 bytes, in 12 steps: the number of steps decides the time, not that of the writes."


def _formula(names: Names) -> str:
    for n in (8, 16, 256, 2048):
        expected = _time_us("rdma", n)
        try:
            got = float(names.barrier_us(n))
        except (TypeError, ValueError) as error:
            raise Wrong(f"barrier_us({n}) is no number: {error}") from None
        if abs(got / expected - 1) > 0.02:
            raise Wrong(f"barrier_us({n}) is {got:.4g}, and the replay gives {expected:.4g} µs: count the steps")
    return "Every step costs the same on this machine, so the time of 8 ranks contains that of one step three times."


def _ratios(names: Names) -> str:
    for answer, n in (("ratio_of_8", 8), ("ratio_of_4096", 4096)):
        expected = _time_us("message", n) / _time_us("rdma", n)
        close_to(names, answer, expected, 0.02, f"Divide the time of `message` by that of `rdma`, both for {n} ranks")
    return "The ratio stays the same: each of the steps has it. The difference in microseconds grows with the nodes."


EXERCISES = (
    Exercise(
        ("writes",),
        _writes,
        ("How many steps does recursive doubling have for 4,096 ranks?", "How many ranks write in each step?"),
        "writes = 4096 * 12",
    ),
    Exercise(
        ("barrier_us",),
        _formula,
        (
            "How many steps does the barrier of 8 ranks have, and how long is one?",
            "How many steps has that of n ranks?",
        ),
        "import math\n\n\ndef barrier_us(n):\n    return times_us('barrier-cluster-3', 'rdma')[8] / 3 * math.log2(n)",
    ),
    Exercise(
        ("ratio_of_8", "ratio_of_4096"),
        _ratios,
        ("times_us(machine, algorithm) has the times.", "Which of the two is the dividend?"),
        "rdma, message = (times_us('barrier-cluster-3', one) for one in ('rdma', 'message'))\n"
        "ratio_of_8, ratio_of_4096 = (message[n] / rdma[n] for n in (8, 4096))",
    ),
)
