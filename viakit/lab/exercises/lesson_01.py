"""Exercises of lesson 1, "Why is TCP slow?"."""

from __future__ import annotations

from collections.abc import Callable

from viakit.lab import lessons
from viakit.lab.exercises.common import command, counter
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, number_of, text_of
from viakit.measure.ladder import SizeError, parse_size

__all__ = ["EXERCISES"]

_TURNS = 3  # largest number of ratios, of which the median counts, because machines vary
_RATIO_S = 2  # a shorter sweep has too few bursts for a ratio if the machine is busy
_CLEAR = 1.5  # an accepted ratio that is so many times away from the limit decides alone


def _segments(names: Names) -> str:
    found = number_of(names, "segments")
    if found != int(found):
        raise Wrong(f"segments is {found:g}; the last segment is a whole one, too: round up")
    if found == -(-65536 // 1500):
        raise Wrong("44 forgets all headers: 20 bytes of IP, 20 of TCP, and TCP's options in each segment")
    if found == -(-65536 // 1460):
        raise Wrong(
            "45 results without the 12 bytes of time stamps, or if you round down; "
            "each segment has 52 bytes of headers."
        )
    close_to(names, "segments", -(-65536 // (1500 - 20 - 20 - 12)), 0.001, "Divide by the bytes of data in a segment")
    return (
        "46 segments, each with headers and checksums of its own. With segmentation offload the kernel hands 64 KiB "
        "over as one segment; a card cuts it, and the virtual cable leaves it whole."
    )


def _calls(names: Names) -> str:
    polled, blocked = (counter(getattr(names, one), "tcp", "system_calls") for one in ("polled", "blocked"))
    close_to(names, "calls_ratio", polled / blocked, 0.02, "Divide the calls per message, polled by blocked")
    return "Each poll is a system call, even if it finds nothing. So more calls do not mean a longer time."


def _slower(names: Names, sockbuf: str, clear: Callable[[float], bool]) -> float:
    """Return how many times as long 1 MiB takes as with the kernel's choice of buffers.

    Both are measured in turns, so other work of the machine slows both. A ratio for which *clear* returns True is
    enough to accept an answer. To refuse one, the median of several counts.
    """
    ratios: list[float] = []
    while len(ratios) < _TURNS:
        words = f"sweep tcp tcp:default --mode stream --sizes 1M {names.where} --seconds {_RATIO_S}"
        both = command(f"{words} --sockbuf {sockbuf}")
        ratios.append(lessons.median_us(both, "tcp") / lessons.median_us(both, "tcp:default"))
        if clear(ratios[-1]):
            return ratios[-1]
    return sorted(ratios)[_TURNS // 2]


def _buffers(names: Names) -> str:
    words = [text_of(names, one) for one in ("too_small", "enough")]
    try:
        small, large = map(parse_size, words)
    except SizeError as error:
        raise Wrong(str(error)) from None
    if small >= large:
        raise Wrong(f"too_small ({words[0]}) is not smaller than enough ({words[1]})")
    factor = _slower(names, str(small), lambda ratio: ratio > 1.5 * _CLEAR)
    if factor < 1.5:
        raise Wrong(f"with {words[0]} a message takes {factor:.2f} times as long; expected 1.5 or more: take less")
    factor = _slower(names, str(large), lambda ratio: ratio < 2.0 / _CLEAR)
    if factor > 2:
        raise Wrong(f"with {words[1]} a message still takes {factor:.2f} times as long; expected at most 2: take more")
    return "The buffer must hold the bytes in flight: rate times round trip, and what waits for the receiver to run."


EXERCISES = (
    Exercise(
        ("segments",),
        _segments,
        (
            "A packet of 1500 bytes begins with the header of IP and that of TCP, and both count.",
            "TCP's header also has an option. How many bytes are left for data?",
            "The last segment of the message need not be full.",
        ),
        "segments = -(-65536 // (1500 - 52))",
    ),
    Exercise(
        ("calls_ratio",),
        _calls,
        (
            "lessons.per_message(RESULT, PROTOCOL, COUNTER) is a counter per message. Which counter counts calls?",
            "The question has two results, `polled` and `blocked`. Which one is the dividend?",
        ),
        "calls_ratio = (lessons.per_message(polled, 'tcp', 'system_calls')\n"
        "               / lessons.per_message(blocked, 'tcp', 'system_calls'))",
    ),
    Exercise(
        ("too_small", "enough"),
        _buffers,
        (
            "Change sockbuf in the cell above and read how many times as long the message takes.",
            "Halve the buffer until the time is 1.5 times as long; then double the other one until it is near 1.",
            "The kernel reserves twice the requested size, so the effect begins at smaller numbers than expected.",
        ),
        'too_small, enough = "2K", "1M"',
    ),
)
