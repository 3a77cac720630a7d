"""Exercises of lesson 10, Build your own."""

from __future__ import annotations

from pathlib import Path

from viakit.lab import lessons
from viakit.lab.exercises.common import command, counter
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, text_of

__all__ = ["EXERCISES"]


def _calls(names: Names) -> str:
    seen = counter(names.result, "mine.py:Checked", "system_calls", 64)
    close_to(names, "at_least", 4, 0.001, "Count the calls for header and data, on both sides")
    return f"Two calls to send, two to receive; counted: {seen:.2f}."


def _fewer(names: Names) -> str:
    if text_of(names, "fewer", ("gather", "mine")) != "gather":
        raise Wrong("mine needs two calls to send; look at the last table")
    per = {one: counter(names.better, f"{one}.py:Checked", "system_calls", 64) for one in ("mine", "gather")}
    close_to(names, "by", round(per["mine"] - per["gather"]), 0.01, "Subtract the two rows of the last table")
    return "One sendmsg replaces two sendall."


def _mended(names: Names) -> str:
    text = text_of(names, "mended")
    if "class Careless" not in text:
        raise Wrong("the text does not define the class Careless; start from Path('careless.py').read_text()")
    Path("mended.py").write_text(text, encoding="utf-8")
    words = f"sweep mended.py:Careless --level python --sizes 4K --validate --seconds {names.seconds}"
    one = command(words)
    if not one or not one["complete"]:
        raise Wrong("the sweep with --validate failed: see its message above")
    try:
        lessons.point(one, "mended.py:Careless")
    except LookupError:
        raise Wrong("the sweep with --validate measured no message: see its message above") from None
    return "Every byte of every message is right."


EXERCISES = (
    Exercise(
        ("at_least",),
        _calls,
        ("Which calls does `send` make for one message? Which does `recv` make?", "Add both sides."),
        "at_least = 4",
    ),
    Exercise(
        ("fewer", "by"),
        _fewer,
        (
            "The last table has the calls of both classes.",
            "The difference is near a whole number: round it.",
        ),
        'fewer, by = "gather", 1',
    ),
    Exercise(
        ("mended",),
        _mended,
        (
            "One recv_into may bring a part only: how does `read` in mine.py go on?",
            "The next part belongs behind the bytes that have arrived. When is the message complete?",
        ),
        """
mended = Path("careless.py").read_text().replace('''        got = 0
        while not got:
            try:
                # takes the first piece only
                got = self.sock.recv_into(self.rooms[n][: max(n // 2, 1)], 0, self.flags)
''', '''        got = 0
        while got < n:
            try:
                got += self.sock.recv_into(self.rooms[n][got:], 0, self.flags)
''')
""",
    ),
)
