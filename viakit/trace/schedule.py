"""Schedule of a traced run, for the replay on another machine.

Each process with a NIC is a rank, in the order of their first NIC. The messages are those of VIA, between the NICs of
the trace. The time from one event of a rank to its next post counts as computing. Waits take no time of their own,
because the replay computes them. An RDMA write is awaited where its data was placed.
"""

from __future__ import annotations

from viakit.replay import Schedule
from viakit.trace.timeline import Timeline

__all__ = ["to_schedule"]


def to_schedule(seen: Timeline, title: str = "") -> Schedule:
    """Return the schedule of a timeline.

    Raises
    ------
    ValueError
        If the timeline has no message whose two ends were traced.
    """
    processes = list(dict.fromkeys((nic.host, nic.pid) for nic in seen.nics))
    whole = [
        (one, one.posted, one.receiver, one.arrived)
        for one in seen.messages
        if one.posted is not None and one.receiver is not None and one.arrived is not None
        if (one.receiver.host, one.receiver.pid) != (one.nic.host, one.nic.pid)
    ]
    if not whole:
        raise ValueError("the trace has no message between two processes; a schedule needs both ends")
    # Events of each rank: time, order among equals, whether it is a send, other rank, bytes, whether it is a write.
    events: list[list[tuple[int, int, bool, int, int, bool]]] = [[] for _ in processes]
    for order, (one, posted, receiver, arrived) in enumerate(sorted(whole, key=lambda each: each[1])):
        source, to = (processes.index((nic.host, nic.pid)) for nic in (one.nic, receiver))
        landed = (one.placed if one.is_write else one.reaped) or arrived
        events[source].append((posted, order, True, to, one.length, one.is_write))
        events[to].append((max(landed, posted), order, False, source, one.length, one.is_write))
    made = Schedule.empty(len(processes), title)
    for rank, mine in enumerate(events):
        last: int | None = None
        for time_ns, _, sends, other, length, is_write in sorted(mine):
            tag = int(is_write)
            if sends:
                if last is not None and time_ns > last:
                    made.compute(rank, (time_ns - last) * 1e-9)
                (made.write if is_write else made.send)(rank, other, length, tag)
            elif is_write:
                made.wait_write(rank, other, tag)
            else:
                made.recv(rank, other, tag)
            last = time_ns
    return made
