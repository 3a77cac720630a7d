"""Timelines as pictures: one line for each NIC and role, and messages as slanted lines between them."""

from __future__ import annotations

from os import PathLike

from viakit.base.words import counted
from viakit.trace.timeline import Message, NicSeen, Timeline, names_of

__all__ = ["save"]

COLOURS = {
    "posted": "#1b7837", "doorbell": "#5aae61", "sent": "#2166ac", "arrived": "#92c5de", "placed": "#4393c3",
    "acknowledged": "#b2182b", "completed": "#762a83", "reaped": "#9970ab",
}  # fmt: skip
MOST_MESSAGES = 24


def _stations(message: Message, row: dict[int, int]) -> list[tuple[str, float, float]]:
    """Return the events of a message with their times and lines: the wire between two NICs, the programs outside."""

    def line(nic: NicSeen, depth: float) -> float:
        return row[id(nic)] + (depth if row[id(nic)] % 2 == 0 else -depth)

    nic, other = message.nic, message.receiver
    found = [
        ("posted", message.posted, line(nic, 0)), ("doorbell", message.doorbell, line(nic, 0.15)),
        ("sent", message.sent, line(nic, 0.3)), ("acknowledged", message.acknowledged, line(nic, 0.3)),
        ("completed", message.completed, line(nic, 0.15)), ("reaped", message.reaped, line(nic, 0)),
    ]  # fmt: skip
    if other is not None:
        found += [
            ("arrived", message.arrived, line(other, 0.3)), ("placed", message.placed, line(other, 0.25)),
            ("completed", message.recv_completed, line(other, 0.15)), ("reaped", message.recv_reaped, line(other, 0)),
        ]  # fmt: skip
    return [(name, time, y) for name, time, y in found if time is not None]


def save(timeline: Timeline, path: str | PathLike[str], *, messages: int = MOST_MESSAGES) -> int:
    """Draw the last *messages* complete messages, and return the number drawn.

    Parameters
    ----------
    timeline : Timeline
        The timeline to draw.
    path : path-like
        Name of the file: .png, .svg or .pdf.
    messages : int
        Maximum number of messages.
    """
    import matplotlib  # start-up time

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt  # start-up time

    whole = [one for one in timeline.messages if one.posted is not None and one.arrived is not None]
    shown = whole[-messages:]
    nics: list[NicSeen] = list({id(n): n for m in shown for n in (m.nic, m.receiver) if n is not None}.values())
    names, row = names_of(timeline.nics), {id(nic): i for i, nic in enumerate(nics)}
    begin = min((one.posted for one in shown if one.posted is not None), default=0)
    figure, axes = plt.subplots(figsize=(11, 1.5 + 1.2 * max(len(nics), 1)), layout="constrained")
    for message in shown:
        stations = sorted(_stations(message, row), key=lambda one: one[1])
        path_of = [one for one in stations if one[0] != "acknowledged"]
        times, heights = [(t - begin) / 1e3 for _, t, _ in path_of], [y for *_, y in path_of]
        axes.plot(times, heights, color="0.8", linewidth=0.8, zorder=1)
        for name, time, y in stations:
            axes.plot((time - begin) / 1e3, y, "o", markersize=4, color=COLOURS[name], zorder=2)
    for name, colour in COLOURS.items():
        axes.plot([], [], "o", color=colour, label=name)
    axes.set_yticks(range(len(nics)), [f"{names[id(n)]}\n{n.process}" for n in nics])
    axes.invert_yaxis()
    axes.set_xlabel("time / µs")
    axes.set_title(f"{counted(len(shown), 'message')}, from the post to the reap", loc="left")
    axes.legend(ncols=4, fontsize="small", loc="upper left", bbox_to_anchor=(0, -0.25), frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return len(shown)
