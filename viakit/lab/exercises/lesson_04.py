"""Exercises of lesson 4, Zero copy and the pipeline."""

from __future__ import annotations

from numbers import Real

from viakit.lab.exercises.common import counter
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, number_of

__all__ = ["EXERCISES"]

_CASES = ((1.0, 0.008, 0.024), (16.0, 0.008, 0.024), (1.0, 0.02, 0.024))  # packet, byte, fill
_LENGTHS = (1 << 16, 1 << 18, 1 << 20)
_HEADER = 24  # bytes before the data of a short message of BIP
_TOLERANCE = 1.1  # the last packet is shorter, which the formula neglects


def _time(p: float, n: int, packet: float, byte: float, fill: float) -> float:
    return (-(-n // int(p)) - 1) * (packet + p * byte) + p * fill


def _best(names: Names) -> str:
    kept = names.packet, names.byte, names.fill
    try:
        for case in _CASES:
            names.packet, names.byte, names.fill = case
            for n in _LENGTHS:
                p = names.best(n)
                if not isinstance(p, Real) or isinstance(p, bool) or not 1 <= float(p) <= n:
                    raise Wrong(f"best({n}) is {p!r}; expected a packet size from 1 to {n}")
                found = _time(float(p), n, *case)
                least = min(_time(-(-n // k), n, *case) for k in range(1, 4097))
                if found > _TOLERANCE * least:
                    raise Wrong(
                        f"with packet = {case[0]:g}, byte = {case[1]:g} and fill = {case[2]:g}, {n} bytes in packets "
                        f"of {float(p):.0f} take {found / least:.2f} times the least time"
                    )
    finally:
        names.packet, names.byte, names.fill = kept
    return "About the square root of n·packet / (fill - byte): longer messages need larger packets."


def _copies(names: Names) -> str:
    for answer, nbytes in (("copies_short", 64), ("copies_long", 1 << 20)):
        expected = counter(names.result, "bip-shm", "bytes_copied", nbytes) / nbytes
        if number_of(names, answer) == round(expected * nbytes / (nbytes + _HEADER * (nbytes == 64))):
            continue  # copies of the data alone
        advice = f"The last column above, {nbytes} bytes; it includes copies of BIP's header of {_HEADER} bytes"
        close_to(names, answer, expected, 0.05, advice)  # 3 is no rounded 2.75
    return (
        "A short message is copied twice, into a ring and out of it. The counter shows 2.75, because BIP's header of "
        "24 bytes is copied with the data: 2 · (64 + 24) / 64. Both numbers are accepted. "
        "A long message is copied once: two processes have separate memories, so the bytes must be copied from one to "
        "the other. No zero copy exists there."
    )


def _packets(names: Names) -> str:
    close_to(names, "times_larger", 2, 0.02, "The fixed cost stands below a root in the answer to exercise 1")
    return "The square root of four."


EXERCISES = (
    Exercise(
        ("best",),
        _best,
        (
            "For long messages, k is about n / p. Write the time as a function of p alone.",
            "One part of the time falls with p, and one part rises with it. Where is the derivative 0?",
            "A packet is never longer than the message. Use the names packet, byte and fill: the check changes them.",
        ),
        """
def best(n):
    return min(n, round((n * packet / (fill - byte)) ** 0.5))
""",
    ),
    Exercise(
        ("copies_short", "copies_long"),
        _copies,
        (
            "The table above has the copies of each byte.",
            "Which way does a short message take from one process to the other, and which way a long one?",
            "The counter is not a whole number at 64 bytes, because headers are copied, too.",
        ),
        "copies_short, copies_long = (\n"
        "    lessons.per_message(result, 'bip-shm', 'bytes_copied', n) / n for n in (64, 1 << 20))",
    ),
    Exercise(
        ("times_larger",),
        _packets,
        ("Where is `packet` in the formula of exercise 1?", "Change packet above, and compare the values of best(n)."),
        "times_larger = 4 ** 0.5",
    ),
)
