"""Ranks of a notebook that block each other, as in lesson 5: each interrupt ends the cell, and the ranks live on.

`VIAKIT_INTERRUPTS` is the number of interrupts (20; `tools/soak` makes 10,000). `VIAKIT_SEED` chooses their times.
"""

from __future__ import annotations

import os
import random

import needs
import pytest

needs.module("ipyparallel", "lab")

from viakit.lab.ranks import Ranks  # noqa: E402

INTERRUPTS = int(os.environ.get("VIAKIT_INTERRUPTS", "20"))
LIFE = 200  # interrupts of the same ranks: each one leaves a send that no receive will ever match
LATEST_S = 0.05  # most ranks are in their send by then, and some have not begun the cell
BLOCKED = """
import numpy as np
mine, yours = np.full({n}, rank), np.empty({n}, dtype=int)
comm.Send(mine, dest=1 - rank, tag={tag})
comm.Recv(yours, source=1 - rank, tag={tag})
"""


def interrupt_often(ranks: Ranks, chance: random.Random, times: int) -> None:
    """Interrupt the planted bug of lesson 5 after random times. Both ranks must answer, and keep their variables."""
    ranks.run("kept = rank + 40")
    for tag in range(times):
        code, limit_s = BLOCKED.format(n=100_000, tag=tag), chance.uniform(0, LATEST_S)
        with pytest.raises(TimeoutError):
            ranks.run(code, timeout_s=limit_s)
        assert ranks.run("kept") == ["40", "41"], f"interrupt {tag}, after {limit_s} s"


@pytest.mark.timeout(300 + 30 * INTERRUPTS)
def test_ranks_that_block_each_other_answer_each_interrupt():
    seed = int(os.environ.get("VIAKIT_SEED", random.SystemRandom().randrange(1, 2**31)))
    print(f"VIAKIT_SEED={seed}")
    chance = random.Random(seed)
    for begin in range(0, INTERRUPTS, LIFE):
        with Ranks(2) as ranks:
            interrupt_often(ranks, chance, min(LIFE, INTERRUPTS - begin))


def test_an_interrupt_before_the_cell_begins_does_not_lose_the_reply():
    """The interrupt comes while IPython transforms the cell. A request that is broken off there gets no reply."""
    setup = """
import os, signal
def interrupted(lines):
    os.kill(os.getpid(), signal.SIGINT)
    return lines
get_ipython().input_transformers_cleanup.append(interrupted)
"""
    with Ranks(2) as ranks:
        ranks.run(setup)
        assert ranks.run("rank + 7", timeout_s=60) == ["7", "8"]
