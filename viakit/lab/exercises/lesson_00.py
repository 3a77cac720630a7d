"""Exercises of lesson 0, Start here."""

from __future__ import annotations

from viakit.lab import lessons
from viakit.lab.exercises.common import connected, counter
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, number_of

__all__ = ["EXERCISES"]


def _copies(names: Names) -> str:
    for answer, nbytes in (("copies_of_512", 512), ("copies_of_128k", 131072)):
        expected = counter(names.result, "via-shm", "bytes_copied", nbytes) / nbytes
        close_to(names, answer, expected, 0.1, f"Divide bytes_copied per message of {nbytes} bytes by {nbytes}")
    return (
        "A short message is copied into a ring and out of it. A long message is copied straight from the sender's "
        "memory into the receiver's; the ring carries only a reference of 16 bytes."
    )


def _furthest(names: Names) -> str:
    sizes = list(lessons.rates(names.result)["unix"])
    chosen = int(number_of(names, "furthest"))
    if chosen not in sizes:
        raise Wrong(f"furthest is {chosen}; the measured sizes are {', '.join(map(str, sizes))}")
    leads = {n: lessons.ratio(names.result, "unix", "via-shm", n) for n in sizes}
    if leads[chosen] < 0.999 * max(leads.values()):
        raise Wrong(f"at {chosen} bytes unix takes {leads[chosen]:.2f} times as long; another size has a larger ratio")
    return f"unix takes {leads[chosen]:.1f} times as long there. The copy is short, so the system call dominates."


def _send_two(names: Names) -> str:
    with connected("exercise") as (nic, memory, client, server):
        before = nic.counters
        got = names.send_two(client, server, memory)
        spent = nic.counters - before
        if spent["dropped_no_descriptor"]:
            raise Wrong("a message was dropped, because no receive was posted for it")
        if spent["messages_received"] != 2:
            raise Wrong(f"{spent['messages_received']} messages arrived at the server; expected two")
        if got != [b"one", b"two"]:
            raise Wrong(f"it returned {got!r}; expected [b'one', b'two'], read from the region")
    return "Each message has a receive, posted before the send."


EXERCISES = (
    Exercise(
        ("copies_of_512", "copies_of_128k"),
        _copies,
        (
            "The NIC counts copied bytes, not copies: the counter is bytes_copied.",
            "lessons.per_message(result, 'via-shm', COUNTER, SIZE) is a counter per message, both sides together.",
        ),
        "copies_of_512, copies_of_128k = 2, 1",
    ),
    Exercise(
        ("furthest",),
        _furthest,
        (
            "lessons.rates(result)['unix'] has the measured sizes as keys.",
            "lessons.ratio(result, 'unix', 'via-shm', n) is the ratio of times at n bytes.",
            "max(SIZES, key=FUNCTION) returns the size with the largest value of a function.",
        ),
        "furthest = max(lessons.rates(result)['unix'], key=lambda n: lessons.ratio(result, 'unix', 'via-shm', n))",
    ),
    Exercise(
        ("send_two",),
        _send_two,
        (
            "A receive must be posted for each message, before the message is sent.",
            "Give each receive its own piece: memory[:64] and memory[64:128].",
            "recv_wait returns the descriptor; its length says how many bytes of the piece are the message.",
        ),
        """
def send_two(client, server, memory):
    for i in range(2):
        server.post_recv(via.Descriptor.recv(memory[64 * i : 64 * i + 64]))
    client.send(b"one", timeout_s=10)
    client.send(b"two", timeout_s=10)
    lengths = [server.recv_wait(timeout_s=10).length for _ in range(2)]
    return [bytes(memory[64 * i :][:n]) for i, n in enumerate(lengths)]
""",
    ),
)
