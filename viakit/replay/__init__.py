"""Replay: schedules of many ranks on a machine, in virtual time.

A schedule has a list of operations for each rank: compute, send, receive, RDMA write and await. :func:`barrier` and
:func:`collective` make the schedules of the algorithms of csrc/coll, which run dry. :func:`read` reads the schedule of
a recorded run (``viakit trace --schedule``). :func:`run` replays one on a machine::

    machine = machines.load("barrier-cluster-3")
    schedule = barrier("rdma", ranks=4096)
    print(run(schedule, model(machine)).end_s)

The engine is csrc/sim. Equal schedules give times that are equal to the bit, and the load of this machine does not
matter.
"""

from __future__ import annotations

from viakit.replay.export import to_goal, write_tit
from viakit.replay.model import Library, Model, library, model
from viakit.replay.schedule import Outcome, Schedule, ScheduleError, barrier, collective, read, run

__all__ = [
    "Library",
    "Model",
    "Outcome",
    "Schedule",
    "ScheduleError",
    "barrier",
    "collective",
    "library",
    "model",
    "read",
    "run",
    "to_goal",
    "write_tit",
]
