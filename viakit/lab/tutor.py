"""Exercises of the lessons in a notebook: checks, hints step by step, solutions after an attempt, and predictions.

The exercises are in :mod:`viakit.lab.exercises`, one module for each lesson. :func:`begin` selects the lesson of a
kernel. The other functions read the student's answers from the notebook's names.
"""

from __future__ import annotations

import html
import importlib
import math
import numbers
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "Exercise",
    "Lesson",
    "Names",
    "Verdict",
    "Wrong",
    "begin",
    "check",
    "close_to",
    "exercises_of",
    "hand_in",
    "hint",
    "measured",
    "number_of",
    "predict",
    "reveal",
    "text_of",
]


class Wrong(Exception):
    """An answer is wrong; the message states what is wrong with it."""


class Names:
    """The notebook's names as attributes. A missing name raises :class:`Wrong`, which names the remedy."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.__dict__["_names"] = names

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise Wrong(f"{name} is not defined yet: run the cells above, from the top of the lesson")
        return self._names[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._names[name] = value


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lesson.

    Attributes
    ----------
    answers : tuple of str
        Names that the student defines.
    check : callable
        Takes :class:`Names` and returns the text for a right answer. Raises :class:`Wrong` for a wrong one.
    hints : tuple of str
        Steps towards the answer; the last one is still not the answer.
    solution : str
        Source that defines the answers.
    """

    answers: tuple[str, ...]
    check: Callable[[Names], str]
    hints: tuple[str, ...]
    solution: str


class Verdict:
    """Result of a check, which displays itself. It is true if the exercise is solved.

    Attributes
    ----------
    exercise : int
        Number of the exercise.
    passed : bool
        Whether the exercise is solved.
    text : str
        Explanation of the result, or what is wrong with the answer.
    """

    def __init__(self, exercise: int, passed: bool, text: str) -> None:
        self.exercise, self.passed, self.text = exercise, passed, text

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return f"exercise {self.exercise}: {'passed' if self.passed else 'not yet'}. {self.text}"

    def _repr_html_(self) -> str:
        colour, word = ("#1a7f37", "passed") if self.passed else ("#9a6700", "not yet")
        return _box(colour, f"exercise {self.exercise}: <b>{word}</b>. {html.escape(self.text)}")


class _Note:
    """Text in a notebook, with optional source code."""

    def __init__(self, text: str, code: str = "") -> None:
        self.text, self.code = text, code

    def __repr__(self) -> str:
        return f"{self.text}\n\n{self.code}" if self.code else self.text

    def _repr_html_(self) -> str:
        code = f"<pre>{html.escape(self.code)}</pre>" if self.code else ""
        return _box("#0072B2", html.escape(self.text) + code)


def _box(colour: str, inside: str) -> str:
    return f'<div style="border-left:4px solid {colour};padding:.4em .8em">{inside}</div>'


# ------------------------------------------------------------------------------------------------ state of a kernel


class Lesson:
    """State of a lesson in this kernel: attempts, displayed hints, predictions."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.exercises = exercises_of(number)
        self.attempts = dict.fromkeys(self.exercises, 0)
        self.hints = dict.fromkeys(self.exercises, 0)
        self.guesses: dict[str, float | None] = {}


_current: Lesson | None = None


def exercises_of(lesson: int) -> dict[int, Exercise]:
    """Return the exercises of a lesson by number.

    Raises
    ------
    ValueError
        If there is no lesson of this number.
    """
    try:
        module = importlib.import_module(f"viakit.lab.exercises.lesson_{lesson:02}")
    except ModuleNotFoundError:
        raise ValueError(f"there is no lesson {lesson}") from None
    return dict(enumerate(module.EXERCISES, start=1))


def begin(lesson: int) -> None:
    """Select the lesson of this kernel, for the checks, hints and predictions below.

    Parameters
    ----------
    lesson : int
        Number of the lesson.
    """
    global _current
    if _current is None or _current.number != lesson:  # running the first cell again keeps attempts and predictions
        _current = Lesson(lesson)


def _lesson() -> Lesson:
    if _current is None:
        raise RuntimeError("no lesson has begun; run the first cell of the notebook, or lessons.begin(NUMBER)")
    return _current


def _exercise(number: int) -> tuple[Lesson, Exercise]:
    lesson = _lesson()
    if number not in lesson.exercises:
        there = ", ".join(map(str, lesson.exercises))
        raise ValueError(f"lesson {lesson.number} has no exercise {number}; expected one of {there}")
    return lesson, lesson.exercises[number]


def _namespace() -> dict[str, Any]:
    """Return the notebook's names, or those of the program that was started."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython is not None else None
    return shell.user_ns if shell is not None else vars(sys.modules["__main__"])


def _empty() -> None: ...


def _missing(name: str, names: Mapping[str, Any], solution: str) -> str | None:
    """Return what is missing about an answer, or None. *solution* shows whether a function is expected."""
    if name not in names:
        return f"{name} is not defined: run the cell of the exercise first"
    value = names[name]
    if value is ...:
        return f"{name} is still ...: replace the dots by your answer, and run that cell"
    code = getattr(value, "__code__", None)
    if code is not None and code.co_code == _empty.__code__.co_code:
        return f"{name}() is still empty: write its body, and run that cell"
    wanted = re.search(rf"^def ({name}\(.*\)):", solution, re.MULTILINE)
    if wanted and not callable(value):
        return f"{name} is {value!r}; expected a function: write def {wanted[1]}, and run that cell"
    return None


# ------------------------------------------------------------------------------------------------ checks


def check(exercise: int) -> Verdict:
    """Check the answer to an exercise of this lesson.

    Parameters
    ----------
    exercise : int
        Number of the exercise.

    Returns
    -------
    Verdict
        States what is wrong, or explains the answer.

    Raises
    ------
    ValueError
        If the lesson has no such exercise.
    RuntimeError
        If no lesson has begun.
    """
    lesson, asked = _exercise(exercise)
    names = _namespace()
    missing = [text for name in asked.answers if (text := _missing(name, names, asked.solution)) is not None]
    if missing:
        return Verdict(exercise, False, f"{missing[0]}. lessons.hint({exercise}) shows a first step")
    lesson.attempts[exercise] += 1
    more = f" (lessons.hint({exercise}) shows a step, lessons.reveal({exercise}) the solution)"
    try:
        return Verdict(exercise, True, asked.check(Names(names)))
    except Wrong as error:
        return Verdict(exercise, False, f"{error}{more}")
    except Exception as error:
        return Verdict(exercise, False, f"the check of your answer raised {type(error).__name__}: {error}{more}")


def hint(exercise: int) -> Any:
    """Show the next hint of an exercise together with the previous ones.

    Parameters
    ----------
    exercise : int
        Number of the exercise.

    Returns
    -------
    object
        Text that displays itself.
    """
    lesson, asked = _exercise(exercise)
    shown = lesson.hints[exercise] = min(lesson.hints[exercise] + 1, len(asked.hints))
    lines = [f"{i}. {text}" for i, text in enumerate(asked.hints[:shown], start=1)]
    rest = len(asked.hints) - shown
    tail = f"({rest} more: run this cell again)" if rest else "(no more hints)"
    return _Note(" ".join([*lines, tail]))


def reveal(exercise: int) -> Any:
    """Show the solution of an exercise, after an attempt.

    Parameters
    ----------
    exercise : int
        Number of the exercise.

    Returns
    -------
    object
        The solution, which displays itself; before the first attempt, a request to try.
    """
    lesson, asked = _exercise(exercise)
    if not lesson.attempts[exercise]:
        return _Note(f"Try first: write an answer and run lessons.check({exercise}). lessons.hint({exercise}) helps.")
    return _Note(f"A solution of exercise {exercise}:", asked.solution.strip())


def number_of(names: Names, name: str) -> float:
    """Return an answer that must be a number. Raises :class:`Wrong`."""
    value = getattr(names, name)
    try:
        if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
            raise TypeError
        found = float(value)
    except TypeError:  # an array of several numbers, or a class such as int, has __float__, too
        raise Wrong(f"{name} is {value!r}; expected a number") from None
    if not math.isfinite(found):
        raise Wrong(f"{name} is {found}; expected a finite number")
    return found


def close_to(names: Names, name: str, expected: float, within: float, advice: str) -> None:
    """Require an answer within a relative deviation of the expected number. Raises :class:`Wrong`."""
    found = number_of(names, name)
    if abs(found - expected) > within * max(abs(expected), 1e-12):
        side = "too small" if found < expected else "too large"
        raise Wrong(f"{name} = {found:g} is {side}. {advice}")


def text_of(names: Names, name: str, accepted: tuple[str, ...] = ()) -> str:
    """Return an answer that must be a text, one of *accepted* if given. Raises :class:`Wrong`."""
    value = getattr(names, name)
    if not isinstance(value, str) or (accepted and value not in accepted):
        expected = " or ".join(map(repr, accepted)) or "a text"
        raise Wrong(f"{name} is {value!r}; expected {expected}")
    return value


# ------------------------------------------------------------------------------------------------ predictions


def predict(name: str, guess: Any, question: str = "") -> Any:
    """Record a prediction, to be displayed beside the measured value by :func:`measured`.

    Parameters
    ----------
    name : str
        Subject of the prediction, the same as for :func:`measured`.
    guess : float or ...
        The predicted number; ``...`` for none.
    question : str, optional
        Question that the number answers.

    Returns
    -------
    object
        Text that displays itself.

    Raises
    ------
    ValueError
        If the guess is neither a number nor ``...``.
    """
    lesson = _lesson()
    subject = question if question.endswith("?") else f"{question or name}:"
    if guess is ...:
        lesson.guesses.setdefault(name, None)
        return _Note(f"{subject} Write your guess in place of ... and run this cell, before you measure.")
    if isinstance(guess, bool) or not isinstance(guess, numbers.Real):  # NumPy's numbers, too
        raise ValueError(f"the guess for {name!r} is {guess!r}; expected a number, or ... for none")
    lesson.guesses[name] = float(guess)
    return _Note(f"{subject} Your guess is {guess:g}.")


def measured(name: str, value: float, unit: str = "") -> Any:
    """Show a measured value beside its prediction.

    Parameters
    ----------
    name : str
        Subject, as for :func:`predict`.
    value : float
        Measured value.
    unit : str, optional
        Unit of both.

    Returns
    -------
    object
        Text that displays itself.
    """
    guess = _lesson().guesses.get(name)
    tail = f" {unit}" if unit else ""
    text = f"{name}: measured {value:.3g}{tail}"
    if guess is None:
        return _Note(f"{text}; no guess was recorded before.")
    if guess > 0 and value > 0:
        factor = max(guess / value, value / guess)
        how = "as predicted" if factor < 1.25 else f"{factor:.2g} times {'less' if value < guess else 'more'} than that"
        return _Note(f"{text}; your guess was {guess:g}{tail}: {how}.")
    return _Note(f"{text}; your guess was {guess:g}{tail}.")


def hand_in(path: str = "hand-in.html", name: str = "") -> Path:
    """Write one page with the answers, verdicts, predictions and figures of the saved lessons in this folder.

    Parameters
    ----------
    path : str
        Name of the page.
    name : str, optional
        Name of the student.

    Returns
    -------
    pathlib.Path
        The page. Save the notebook first: what is not saved is not in the page.
    """
    from viakit.lab import folder  # start-up time

    out = Path(re.sub(r"^~", str(Path.home()), path))
    folder.hand_in(Path.cwd(), out, name)
    return out.resolve()
