"""Exercises of lesson 5, Eager or rendezvous."""

from __future__ import annotations

from viakit.lab.exercises.common import command, counter, known_policy
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, number_of

__all__ = ["EXERCISES"]


def _copies(names: Names) -> str:
    for answer, limit in (("eagerly", "64K"), ("by_rendezvous", "4K")):
        expected = round(names.copied(limit))
        close_to(names, answer, expected, 0.05, f"copied({limit!r}) has the measured number")
    return "Eager: into a buffer and out of it. Rendezvous: never; the handshake saves both copies."


def _trips(names: Names) -> str:
    if number_of(names, "trips_of_rendezvous") == 2:
        raise Wrong("trips_of_rendezvous = 2: request and address go first, and then the data need a trip of their own")
    close_to(names, "trips_of_rendezvous", 3, 0.01, "Count the arrows at the right of the picture")
    close_to(names, "trips_of_eager", 1, 0.01, "Count the arrows at the left of the picture")
    return "So the threshold should be higher on a wire with a long delay: a copy may cost less than two trips."


def _policy(names: Names) -> str:
    policy = known_policy(names, "policy", "via")
    if names.wire.hosts == "local" and "eager_limit_local=" not in policy:
        policy += ",eager_limit_local=-1"  # the threshold between ranks of one host becomes that of the answer
    words = f"sweep msg-via --policy {policy} --sizes 2K,16K {names.where} --seconds {names.seconds}"
    one = command(words)
    if counter(one, "msg-via", "msg_eager_sent", 2048) < 0.9:
        raise Wrong(f"with {policy} a message of 2 KiB goes by rendezvous")
    if counter(one, "msg-via", "msg_rendezvous_sent", 16384) < 0.9:
        raise Wrong(f"with {policy} a message of 16 KiB goes eagerly")
    return "Both messages take the intended way."


EXERCISES = (
    Exercise(
        ("eagerly", "by_rendezvous"),
        _copies,
        (
            "An eager message waits in a buffer. How does it get in and out?",
            "copied(LIMIT) measures 16 KiB with a threshold. Which of the two thresholds makes the message eager?",
        ),
        "eagerly, by_rendezvous = 2, 0",
    ),
    Exercise(
        ("trips_of_rendezvous", "trips_of_eager"),
        _trips,
        ("An arrow of the picture is a trip.", "Count until the data are at the receiver."),
        "trips_of_rendezvous, trips_of_eager = 3, 1",
    ),
    Exercise(
        ("policy",),
        _policy,
        (
            "A policy is a name and changes, separated by commas: see the cells above.",
            "Between which sizes is the threshold?",
        ),
        'policy = "via,eager_limit=4K,eager_limit_local=4K"',
    ),
)
