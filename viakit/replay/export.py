"""Schedules in the formats of other simulators: GOAL of LogGOPSim, and SimGrid's time-independent traces.

RDMA writes become sends, and waits for them receives, because neither format has them.
"""

from __future__ import annotations

import os
from pathlib import Path

from viakit.replay.schedule import AWAIT, COMPUTE, IRECV, ISEND, RECV, SEND, WAITALL, WRITE, Schedule

__all__ = ["to_goal", "write_tit"]


def to_goal(schedule: Schedule) -> str:
    """Return the schedule in GOAL (T. Hoefler, C. Siebert, A. Lumsdaine, "Group Operation Assembly Language", 2009).

    Computing is in nanoseconds. Each operation requires the one before it; operations that were begun without a wait
    are required by the next wait.
    """
    lines = [f"num_ranks {len(schedule.ranks)}"]
    for rank, ops in enumerate(schedule.ranks):
        lines += ["", f"rank {rank} {{"]
        last: list[str] = []  # what the next operation requires
        begun: list[str] = []
        for number, i in enumerate(range(0, len(ops), 5)):
            kind, peer, tag, nbytes, ns = ops[i : i + 5]
            if kind == WAITALL:
                last, begun = last + begun, []
                continue
            label = f"l{number}"
            if kind == COMPUTE:
                text = f"calc {ns}"
            elif kind in (SEND, ISEND, WRITE):
                text = f"send {max(nbytes, 1)}b to {peer} tag {tag}"
            else:
                text = f"recv {{}}b from {peer} tag {tag}"
            lines.append(f"{label}: {text}")
            lines += [f"{label} requires {one}" for one in last]
            if kind in (ISEND, IRECV):
                begun.append(label)
            else:
                last = [label]
        lines.append("}")
    return _with_lengths("\n".join(lines) + "\n", schedule)


def _sizes(schedule: Schedule) -> dict[tuple[int, int, int], list[int]]:
    """Return the lengths of the messages from one rank to another with a tag, in order."""
    found: dict[tuple[int, int, int], list[int]] = {}
    for rank, kind, peer, tag, nbytes, _ in schedule:
        if kind in (SEND, ISEND, WRITE):
            found.setdefault((rank, peer, tag), []).append(nbytes)
    return found


def _with_lengths(text: str, schedule: Schedule) -> str:
    """Fill in the lengths of receives, which a schedule has only at the sender."""
    sizes = _sizes(schedule)
    taken: dict[tuple[int, int, int], int] = {}
    lengths = []
    for rank, kind, peer, tag, _, _ in schedule:
        if kind in (RECV, IRECV, AWAIT):
            key = (peer, rank, tag)
            at = taken[key] = taken.get(key, -1) + 1
            each = sizes.get(key, [])
            lengths.append(max(each[at], 1) if at < len(each) else 1)
    pieces = text.split("{}")
    return "".join(piece + (str(lengths[i]) if i < len(lengths) else "") for i, piece in enumerate(pieces))


def write_tit(schedule: Schedule, folder: str | os.PathLike[str], flops_per_s: float = 1e9) -> Path:
    """Write the schedule as time-independent traces for ``smpirun -replay``.

    Parameters
    ----------
    schedule : Schedule
        The schedule.
    folder : path
        Folder for one file per rank, and the list of these files; created if needed.
    flops_per_s : float
        Speed of a host of the platform: computing is given in floating-point operations.

    Returns
    -------
    Path
        The list of the files, which is the argument of ``-replay``.
    """
    to = Path(folder)
    to.mkdir(parents=True, exist_ok=True)
    sizes, taken = _sizes(schedule), dict[tuple[int, int, int], int]()
    names = []
    for rank, ops in enumerate(schedule.ranks):
        lines = [f"{rank} init"]
        begun: list[tuple[int, int, int]] = []
        for i in range(0, len(ops), 5):
            kind, peer, tag, nbytes, ns = ops[i : i + 5]
            if kind == COMPUTE:
                lines.append(f"{rank} compute {ns * 1e-9 * flops_per_s:.0f}")
            elif kind in (SEND, WRITE):
                lines.append(f"{rank} send {peer} {tag} {nbytes} 6")
            elif kind == ISEND:
                lines.append(f"{rank} isend {peer} {tag} {nbytes} 6")
                begun.append((rank, peer, tag))
            elif kind in (RECV, IRECV, AWAIT):
                key = (peer, rank, tag)
                at = taken[key] = taken.get(key, -1) + 1
                each = sizes.get(key, [])
                word = "irecv" if kind == IRECV else "recv"
                lines.append(f"{rank} {word} {peer} {tag} {each[at] if at < len(each) else 0} 6")
                if kind == IRECV:
                    begun.append((peer, rank, tag))
            else:
                lines += [f"{rank} wait {a} {b} {t}" for a, b, t in begun]
                begun = []
        lines.append(f"{rank} finalize")
        name = to / f"rank-{rank}.txt"
        name.write_text("\n".join(lines) + "\n", encoding="utf-8")
        names.append(str(name.resolve()))
    index = to / "traces.txt"
    index.write_text("\n".join(names) + "\n", encoding="utf-8")
    return index
