"""Exercises of lesson 11, One library, one policy."""

from __future__ import annotations

from viakit.lab.exercises.common import command, counter, known_policy
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, text_of

__all__ = ["EXERCISES"]

_LONG, _PROGRAM = 262144, 100_000
_ASKED = ("mpich-p4", "lam-c2c", "mpi-pro-tuned")


def _copies(names: Names) -> str:
    for answer, policy in (("copies_of_p4", "mpich-p4"), ("copies_of_pvm", "pvm-direct")):
        expected = counter(names.by_policy, f"msg-tcp:{policy}", "msg_bytes_copied", _LONG) / _LONG
        close_to(names, answer, round(expected), 0.05, f"per_byte({policy!r}) has the measured number")
    return "MPICH receives into a buffer and copies out of it. PVM also packs the message before it sends it."


def _without(names: Names) -> str:
    if not text_of(names, "without_copy").startswith("mpich-p4,"):
        given = names.without_copy
        raise Wrong(f"{given!r} is not mpich-p4 with a change; write mpich-p4, a comma, and FIELD=VALUE")
    policy = known_policy(names, "without_copy", "tcp")
    if policy.count("=") != 1:
        raise Wrong(f"{policy!r} changes more than one field")
    found = command(f"sweep msg-tcp --policy {policy} --sizes 4K {names.where} --seconds {names.seconds}")
    copied = counter(found, "msg-tcp", "msg_bytes_copied", 4096) / 4096
    if copied > 0.05:
        raise Wrong(f"with {policy} each byte is still copied {copied:.2g} times")
    return "One field is the whole difference: data go straight into the receiver's array."


def _waits(names: Names) -> str:
    given = names.never_waits
    if not isinstance(given, (set, frozenset, list, tuple)) or not all(isinstance(one, str) for one in given):
        raise Wrong(f"never_waits is {given!r}; expected a set of names, such as {{'tcp'}}")
    for name in sorted(given):
        if name not in _ASKED:
            raise Wrong(f"{name!r} is none of {', '.join(_ASKED)}")
    for name in _ASKED:
        found = command(f"sweep msg-tcp --policy {name} --sizes {_PROGRAM} {names.where} --seconds {names.seconds}")
        waits = counter(found, "msg-tcp", "msg_rendezvous_sent", _PROGRAM) > 0.5
        if waits and name in given:
            raise Wrong(f"{name} sends {_PROGRAM} bytes by rendezvous, so its sender waits for the receiver")
        if not waits and name not in given:
            raise Wrong(f"{name} is missing: it sends {_PROGRAM} bytes eagerly")
    return "The thresholds are 128,000 bytes (MPICH), 64 KiB (LAM) and 128 KiB (MPI/Pro, tuned)."


EXERCISES = (
    Exercise(
        ("copies_of_p4", "copies_of_pvm"),
        _copies,
        ("The table has a column for it.", "At which sides does each of the two libraries copy?"),
        "copies_of_p4, copies_of_pvm = 1, 2",
    ),
    Exercise(
        ("without_copy",),
        _without,
        (
            "A policy is a name and changes, separated by commas.",
            "The cell of the measurement has a policy with a copy at the receiver. Which value switches it off?",
        ),
        'without_copy = "mpich-p4,copy_recv=0"',
    ),
    Exercise(
        ("never_waits",),
        _waits,
        (
            "A sender waits for its receiver if the message goes by rendezvous.",
            "Compare 100,000 bytes with each policy's threshold; the table at the top has two of them.",
            "In the name mpi-pro-tuned, tuned means that its threshold tcp_long was raised.",
        ),
        'never_waits = {"mpich-p4", "mpi-pro-tuned"}',
    ),
)
