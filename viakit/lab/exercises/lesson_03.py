"""Exercises of lesson 3, Raw frames against TCP."""

from __future__ import annotations

from viakit.lab.exercises.common import counter
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, number_of

__all__ = ["EXERCISES"]


def _frames(names: Names) -> str:
    if number_of(names, "frames") == 16384 // 1440:
        raise Wrong("11 frames hold 11 x 1440 = 15,840 bytes; round up.")
    close_to(names, "frames", 12, 0.001, "Divide 16384 by 1440 and round up")
    seen = counter(names.result, names.VIA, "frames_sent", 16384)
    if names.wire.hosts != "testbed":
        return f"12. On this host a frame holds up to 64 KiB, so the counter has {seen:.1f}."
    if seen < 0.95 * 12:
        raise Wrong(f"the counter says {seen:.1f} frames per message: was the MTU changed?")
    return f"12; the counter says {seen:.1f}, with acknowledgements that travel alone."


def _fewer(names: Names) -> str:
    one = names.by_wait["poll"]
    expected = counter(one, "tcp", "system_calls", 64) / max(counter(one, names.VIA, "system_calls", 64), 1e-9)
    close_to(names, "fewer", expected, 0.02, "Divide TCP's calls per message by VIA's, both polled")
    return "A poll is a read of memory with VIA, and a system call with TCP."


def _gain(names: Names) -> str:
    expected = names.share["block"] / names.share["poll"]
    close_to(names, "times_more", expected, 0.02, "Divide share['block'] by share['poll']")
    if expected > 1:
        return "Lean software gains more when the receiver polls: no wake-up hides what it saves."
    return "On this machine polling gains no more than blocking. Are there fewer cores than polling processes?"


EXERCISES = (
    Exercise(
        ("frames",),
        _frames,
        (
            "A frame of MTU 1500 also holds headers. The lesson has the number of bytes that are left.",
            "Compare with the counter frames_sent: the last frame need not be full.",
        ),
        "frames = -(-16384 // 1440)",
    ),
    Exercise(
        ("fewer",),
        _fewer,
        (
            "lessons.per_message(RESULT, PROTOCOL, COUNTER, SIZE) is a counter per message.",
            "by_wait has a result for each way to wait. The name VIA stands for the protocol over VIA.",
        ),
        "fewer = (lessons.per_message(by_wait['poll'], 'tcp', 'system_calls', 64)\n"
        "         / lessons.per_message(by_wait['poll'], VIA, 'system_calls', 64))",
    ),
    Exercise(
        ("times_more",),
        _gain,
        ("`share` has VIA's part of TCP's time, by way to wait.", "Which share must be the dividend?"),
        "times_more = share['block'] / share['poll']",
    ),
)
