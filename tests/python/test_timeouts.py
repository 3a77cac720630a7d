"""Time limits given by programs: zero, infinite, too short to represent, and invalid."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap

import pytest

import viakit
from viakit import launch
from viakit.comm.message import Message
from viakit.comm.status import Status
from viakit.lab._job import Job

NONSENSE = (math.nan, -0.5, -math.inf)


@pytest.fixture
def comm():
    """A world of one rank, with a message that waits for its receive."""
    comm = viakit.world()
    send = comm.isend("here", 0, tag=3)
    yield comm
    assert comm.recv(source=0, tag=3) == "here"
    send.wait()


@pytest.mark.parametrize("limit", NONSENSE)
def test_a_limit_that_makes_no_sense_is_refused_before_anything_happens(comm, limit):
    waiting, room = comm.irecv(source=0, tag=4), bytearray(1)
    filled = comm.Irecv(room, 0, 5)
    calls = [
        lambda: viakit.world(timeout_s=limit),
        lambda: launch.bootstrap(limit),
        lambda: launch.bootstrap().exchange(b"", limit),
        lambda: comm.world.idle(limit),
        lambda: comm.world.close(limit),
        lambda: comm.look(0, 3, Status(), limit),
        lambda: comm.take(0, 3, limit, Message),
        lambda: waiting.wait_for(limit),
        lambda: filled.wait_for(limit),
        lambda: Job.wait(None, limit),
    ]
    for call in calls:
        with pytest.raises(
            ValueError, match=r"must be a number of seconds, 0 or more, or None for no limit; got (nan|-)"
        ):
            call()
    assert not comm.world.closed
    comm.send("there", 0, tag=4)
    assert waiting.wait() == "there"
    comm.Send(b"x", 0, 5)
    assert filled.wait_for()
    assert room == b"x"


@pytest.mark.parametrize("limit", [None, math.inf, 1e300])
def test_what_is_there_is_found_with_no_limit(comm, limit):
    assert comm.look(0, 3, Status(), limit)
    waiting = comm.irecv(source=0, tag=4)
    assert not waiting.wait_for(0)
    assert not waiting.wait_for(1e-6)
    comm.send("there", 0, tag=4)
    assert waiting.wait_for(limit)
    assert launch.bootstrap(limit).exchange(b"alone", limit) == [b"alone"]


@pytest.mark.parametrize("protocol", ["via", "bip", "tcp"])
@pytest.mark.parametrize("limit", ["None", "float('inf')", "1e12"])
def test_ranks_meet_and_part_with_no_limit(tmp_path, protocol, limit):
    path = tmp_path / "prog.py"
    path.write_text(
        textwrap.dedent(f"""
        import viakit
        comm = viakit.world(timeout_s={limit})
        assert comm.allgather(comm.rank) == [0, 1]
        comm.world.close({limit})
        """),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "viakit", "run", "-n", "2", "--protocol", protocol, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
