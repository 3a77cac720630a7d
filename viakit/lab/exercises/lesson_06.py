"""Exercises of lesson 6, The RDMA barrier."""

from __future__ import annotations

import ast
import re

from viakit.lab.exercises.common import COUNTED, on_ranks
from viakit.lab.tutor import Exercise, Names, Wrong, close_to, number_of, text_of

__all__ = ["EXERCISES"]

_TRY = f"""
import time
{COUNTED}
ANSWER
holds = []
for last in range(size):
    if rank == last:
        time.sleep(0.2)  # longer than a busy machine delays the ranks that do not wait
    came = time.monotonic()
    barrier()
    left = time.monotonic()
    holds.append(min(_comm.allgather(left)) >= max(_comm.allgather(came)))
comm, _sent = _comm, comm.sent
all(holds), _sent
"""
_RANKS = 3  # the number that fails without partners for all
_MESSAGES = 4  # of the paper's barrier with 3 ranks; no barrier needs fewer: 2 (n - 1)


def _count(names: Names) -> str:
    if number_of(names, "messages_of_8") == 12:
        raise Wrong("messages_of_8 = 12 counts pairs; in an exchange both ranks send")
    close_to(names, "messages_of_8", 24, 0.001, "Every rank sends one message per step, in log2(8) steps")
    close_to(names, "steps_of_6", 4, 0.001, "Of 6 ranks, 4 do recursive doubling; two steps more are for the others")
    return "8 ranks send one message in each of 3 steps; 6 ranks need log2(4) + 2 steps."


def _barrier(names: Names) -> str:
    text = text_of(names, "answer")
    if called := re.search(r"\b(i?[bB]arrier)\(\)", text.replace("def barrier()", "")):
        raise Wrong(f"it calls {called[0]}: write it with comm.sendrecv, comm.send and comm.recv")
    if "def barrier" not in text:
        raise Wrong("the text does not define barrier()")
    found = [ast.literal_eval(one) for one in on_ranks(_RANKS, names, "answer", _TRY)]
    sent = sum(n for _, n in found) / _RANKS  # as many barriers as ranks: each rank comes last once
    if sent < _MESSAGES:
        raise Wrong(f"its ranks send {sent:g} messages; a signal from each of 3 ranks to each other needs 4")
    if not all(holds for holds, _ in found):
        raise Wrong("it does not hold: a rank left before the last had arrived")
    if sent > _MESSAGES:
        raise Wrong(f"its ranks send {sent:g} messages, as dissemination does with 6; the paper's barrier sends 4")
    return "It holds, whichever rank comes last, with 4 messages."


def _factor(names: Names) -> str:
    expected = names.time_of["message", 2] / names.time_of["rdma", 2]
    close_to(names, "times_as_long", expected, 0.02, "Divide the time of `message` by that of `rdma`, both for 2 ranks")
    return "RDMA sends the same signals without receive descriptors and without matching."


EXERCISES = (
    Exercise(
        ("messages_of_8", "steps_of_6"),
        _count,
        (
            "In an exchange both ranks send. How many steps does recursive doubling have for 8 ranks?",
            "With 6 ranks, the largest power of two of them do recursive doubling. What must the other two do?",
        ),
        "messages_of_8, steps_of_6 = 8 * 3, 2 + 2",
    ),
    Exercise(
        ("answer",),
        _barrier,
        (
            "main = 2 ** (size.bit_length() - 1) is the largest power of two up to size.",
            "Ranks from main on signal rank - main first, and wait for its signal at the end.",
            "Ranks below main that have such a partner receive before the steps, and send after them.",
        ),
        '''
answer = """
def barrier():
    main = 2 ** (size.bit_length() - 1)      # the largest power of two up to size
    if rank >= main:
        comm.send(None, dest=rank - main)    # this rank has arrived
        comm.recv(source=rank - main)        # all ranks have arrived
        return
    if rank + main < size:
        comm.recv(source=rank + main)
    step = 1
    while step < main:
        comm.sendrecv(None, dest=rank ^ step, source=rank ^ step)
        step *= 2
    if rank + main < size:
        comm.send(None, dest=rank + main)
"""
''',
    ),
    Exercise(
        ("times_as_long",),
        _factor,
        ("time_of[ALGORITHM, RANKS] is the time of a barrier.", "Which of the two algorithms is the dividend?"),
        "times_as_long = time_of['message', 2] / time_of['rdma', 2]",
    ),
)
