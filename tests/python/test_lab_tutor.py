"""Exercises without a notebook: what the tutor says before, during and after an attempt, and predictions."""

import math
import pkgutil
import re

import numpy as np
import pytest
from lesson_answers import REFUSED

from viakit import _core, via
from viakit.lab import exercises, lessons, tutor

MODULES = [module.name for module in pkgutil.iter_modules(exercises.__path__) if module.name.startswith("lesson_")]
ALL = [int(name[-2:]) for name in MODULES]
assert ALL


@pytest.fixture
def names(monkeypatch):
    found = {}
    monkeypatch.setattr(tutor, "_namespace", lambda: found)
    monkeypatch.setattr(tutor, "_current", None)
    lessons.begin(9)
    return found


def test_hints_come_one_by_one(names):
    first, second, third = (repr(lessons.hint(1)) for _ in range(3))
    assert "1 more" in first
    assert second.startswith(first.partition(" (")[0])
    assert third == second
    assert "no more hints" in third


def test_a_solution_is_shown_after_an_attempt(names):
    solution = tutor.exercises_of(9)[1].solution
    assert "Try first" in repr(lessons.reveal(1))
    names["at_least"] = ...
    assert "still ..." in repr(lessons.check(1))
    assert solution not in repr(lessons.reveal(1)), "an empty answer is no attempt"
    names["at_least"] = 5
    assert "2 / 32" in repr(lessons.check(1))
    assert solution in repr(lessons.reveal(1))
    exec(solution, names)
    assert lessons.check(1)


@pytest.mark.parametrize("exercise", [1, 3])
def test_the_right_answer_passes_after_each_wrong_one(names, exercise):
    """A wrong request of lesson 2 breaks its connection, or leaves a completion. The next attempt has another one."""
    lessons.begin(2)
    # Without its thread, because that could deliver the write of an answer that does not wait.
    with via.Nic("loop:attempts", no_thread=True) as nic, nic.create_region(4096, rdma_write=True) as memory:
        names.update(via=via, nic=nic, memory=memory)
        for wrong, reason in REFUSED[2][exercise]:
            exec(wrong, names)
            assert reason in repr(lessons.check(exercise))
            for _ in range(2):
                exec(tutor.exercises_of(2)[exercise].solution, names)
                assert lessons.check(exercise), wrong
        assert not nic.snapshot()["vis"], "the VIs of the checks are destroyed"


def test_a_share_of_zero_has_no_ratio(names):
    lessons.begin(8)
    names.update(again={"selective": 0.0, "go_back_n": 0.1}, times_more=1.0)
    assert "selective repeat retransmitted no frame in this run, so there is no ratio" in repr(lessons.check(3))
    exec(tutor.exercises_of(8)[3].solution, names)
    assert "so there is no ratio" in repr(lessons.check(3)), "the solution explains nothing"
    names["again"] = {"selective": 0.01, "go_back_n": 0.1}
    exec(tutor.exercises_of(8)[3].solution, names)
    assert lessons.check(3)


def test_what_is_missing_is_said(names):
    assert "evidence is not defined" in repr(lessons.check(3))

    def evidence(ratio_low, ratio_high): ...

    names["evidence"] = evidence
    assert "evidence() is still empty" in repr(lessons.check(3))
    names.update(mean_ratio=1.0, median_ratio=1.0)
    assert "disturbed is not defined yet: run the cells above" in repr(lessons.check(2))
    names["evidence"] = lambda low: low
    assert "TypeError" in repr(lessons.check(3))


@pytest.mark.parametrize("answer", ["3", True, int, [3], np.array([1, 2]), None])
def test_what_is_no_number_is_named(names, answer):
    names["times_more"] = answer
    with pytest.raises(tutor.Wrong, match="expected a number"):
        tutor.number_of(tutor.Names(names), "times_more")


def test_a_number_in_place_of_a_function_is_named(names):
    for lesson in ALL:
        lessons.begin(lesson)
        for number, one in tutor.exercises_of(lesson).items():
            function = re.match(r"def (\w+)\(", one.solution.strip())
            if function:
                name = function[1]
                names[name] = 1500
                assert f"{name} is 1500; expected a function: write def {name}(" in repr(lessons.check(number))


def test_a_counter_that_a_protocol_does_not_count_is_no_zero():
    def series(protocol, **counters):
        points = [{"nbytes": 64, "counters": {**counters, "messages": 10}}]
        return {"protocol": protocol, "points": points}

    result = {"series": [series("via-shm", copies=20, system_calls=0), series("unix", system_calls=30)]}
    assert lessons.per_message(result, "via-shm", "copies") == 2
    assert lessons.per_message(result, "via-shm", "system_calls") == 0
    assert math.isnan(lessons.per_message(result, "unix", "copies"))
    assert "not counted" in repr(lessons.table([{"copies": lessons.per_message(result, "unix", "copies")}]))
    with pytest.raises(LookupError, match="no counter is called 'sleeps'; unix counts messages, system_calls"):
        lessons.per_message(result, "unix", "sleeps")


def test_what_was_not_measured_is_named():
    points = [{"nbytes": 64}, {"nbytes": 4096}]
    result = {"series": [{"protocol": "tcp", "points": points}, {"protocol": "mine.py:Careless", "points": []}]}
    assert lessons.point(result, "tcp")["nbytes"] == 4096
    with pytest.raises(LookupError, match=r"tcp was not measured at 65 bytes; measured sizes: \[64, 4096\]"):
        lessons.point(result, "tcp", 65)
    with pytest.raises(LookupError, match=r"mine\.py:Careless has no measured point: its run stopped early"):
        lessons.point(result, "mine.py:Careless", 64)
    with pytest.raises(LookupError, match=r"'udp' was not measured; measured protocols: tcp, mine\.py:Careless"):
        lessons.point(result, "udp")


def test_no_hint_is_the_answer():
    for lesson in ALL:
        for one in tutor.exercises_of(lesson).values():
            last = one.solution.strip().splitlines()[0]
            assert not any(last.partition("= ")[2] and last.partition("= ")[2] == hint for hint in one.hints)
            assert one.hints
            assert one.answers
            calls = re.findall(r"= (.+)$", one.solution, re.MULTILINE)
            pieces = {piece for call in calls for piece in re.split(r" [/+] |, ", call) if re.search(r"[(=]", piece)}
            fields = set(re.findall(r"[,\"](\w+)=", one.solution)) & set(_core.policy_fields("via"))
            for hint in one.hints:
                assert not any(piece in hint for piece in pieces), f"lesson {lesson}: {hint}"
                assert not any(field in hint for field in fields), f"lesson {lesson}: {hint}"


def test_predictions(names):
    assert "How many? Write your guess" in repr(lessons.predict("ratio", ..., "How many?"))
    assert "no guess was recorded" in repr(lessons.measured("ratio", 3.0))
    assert "Your guess is 2" in repr(lessons.predict("ratio", np.int64(2), "How many?"))
    assert "your guess was 2: 1.5 times more than that" in repr(lessons.measured("ratio", 3.0))
    assert "your guess was 2: 2 times less than that" in repr(lessons.measured("ratio", 1.0))
    assert "as predicted" in repr(lessons.measured("ratio", 2.1))
    lessons.begin(9)  # the first cell is run again
    assert "your guess was 2" in repr(lessons.measured("ratio", 3.0))
    with pytest.raises(ValueError, match="expected a number"):
        lessons.predict("ratio", "two")


def test_misuse(names, monkeypatch):
    with pytest.raises(ValueError, match="no exercise 9; expected one of 1, 2, 3"):
        lessons.check(9)
    with pytest.raises(ValueError, match="no lesson 99"):
        lessons.begin(99)
    monkeypatch.setattr(tutor, "_current", None)
    with pytest.raises(RuntimeError, match="first cell"):
        lessons.check(1)
