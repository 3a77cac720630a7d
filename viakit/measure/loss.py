"""What loss costs: goodput, retransmissions and acknowledgements of a stream over a wire that loses frames.

::

    document = measure("via-udp", losses=[0, 0.01, 0.05])
    figure(document)

Two ways to mend are measured side by side: selective retransmission, which sends again what is missing, and go-back-N,
which sends again all that came after it. Both do so at every loss, in rounds: in each, every way takes one burst at
every loss, in random order. So "of lossless" is a ratio of bursts that are neighbours in time, and drift falls out of
it. The faults are those of :class:`viakit.via.Faults`, made where frames are sent: nothing has to be configured on the
machine.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from viakit.measure import endpoints, stats
from viakit.measure.ending import Ending
from viakit.measure.environment import command_line, environment
from viakit.measure.result import SCHEMA, Document, ResultError
from viakit.measure.sweep import ONE_WAY, RETRANSMISSIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

    from viakit.measure.pair import Pair

__all__ = ["LOSSES", "check", "figure", "measure", "show"]

LOSSES = (0.0, 0.001, 0.01, 0.02, 0.05)
MOST = 0.5  # beyond, a stream hardly moves at all
BURST_S = 0.03
MAX_COUNT = 2000
COUNTED = ("frames_sent", "frames_retransmitted", "acks_sent")

OnPoint = Callable[[Mapping[str, Any], dict[str, Any]], None]


class _Stream:
    """One way to mend at one loss: the pair while it is open, and all its bursts."""

    def __init__(self, protocol: str, retransmission: str, loss: float, nbytes: int) -> None:
        self.protocol, self.retransmission, self.loss, self.nbytes = protocol, retransmission, loss, nbytes
        self.info: dict[str, Any] = {}
        self.hosts = "local"
        self.bursts: list[Any] = []
        self.since_s: list[float] = []
        self.rounds: list[int] = []
        self.per_message: dict[str, list[float]] = {key: [] for key in COUNTED}
        self.counters: Counter[str] = Counter()
        self.messages, self.count = 0, 4

    @property
    def words(self) -> str:
        """What is measured, for people."""
        return f"{self.retransmission}, {self.loss:.2%} of frames lost"

    def take(self, pair: Pair, number: int, began: float) -> None:
        """Run one burst."""
        done = pair.run(self.nbytes, mode="stream", count=self.count, warmup=1)
        counters = dict(done.counters)
        messages = int(counters.pop("messages"))
        self.bursts.append(np.asarray(done.one_way_s))
        self.since_s.append(round(time.monotonic() - began, 3))
        self.rounds.append(number)
        for key in COUNTED:
            self.per_message[key].append(counters.get(key, 0) / max(messages, 1))
        self.counters.update(counters)
        self.messages += messages
        each = float(np.median(done.one_way_s))
        self.count = int(min(max(BURST_S / max(each, 1e-9), 4), MAX_COUNT))

    def series(self) -> dict[str, Any]:
        """Return the series of a result, without its point."""
        mtu = self.info.get("mtu")
        return {
            "protocol": self.protocol,
            "link": endpoints.lookup(self.protocol).link,
            "hosts": self.hosts,
            "mtu": int(mtu) if mtu else None,
            "mode": "stream",
            "wait": "poll",
            "level": "c",
            "one_way": ONE_WAY["stream"],
            "loop_overhead_s": self.info.get("loop_overhead_s"),
            "loss": self.loss,
            "retransmission": self.retransmission,
            "info": self.info,
        }

    def point(self) -> dict[str, Any]:
        """Return the point as it now stands."""
        summary = stats.summarise(self.bursts)
        return {
            "nbytes": self.nbytes,
            "one_way_s": summary.as_dict(),
            "bandwidth_Bps": self.nbytes / max(summary.median, 1e-12),
            "samples": summary.n,
            "bursts_s": [float(np.median(one)) for one in self.bursts],
            "rounds": list(self.rounds),
            "since_s": list(self.since_s),
            "per_message": {key: list(values) for key, values in self.per_message.items()},
            "counters": {**{key: int(value) for key, value in self.counters.items()}, "messages": self.messages},
        }


def check(protocol: str, nbytes: int, losses: Sequence[float], retransmissions: Sequence[str], seconds: float) -> None:
    """Raise the ValueError that :func:`measure` would for arguments that make no sense, without starting anything."""
    known = endpoints.lookup(protocol)
    if not protocol.startswith(("via-", "bip-")) or protocol == "via-loop":
        raise ValueError(f"{protocol} takes no faults; right would be via-udp, via-eth, via-shm, or bip-*")
    if not 1 <= nbytes <= known.max_bytes:
        raise ValueError(f"nbytes is {nbytes}; right would be a size from 1 to {known.max_bytes}")
    if not losses or any(not 0.0 <= one <= MOST for one in losses):
        raise ValueError(f"losses are {list(losses)}; right would be parts from 0 to {MOST}, for instance 0.01")
    wrong = [one for one in retransmissions if one not in RETRANSMISSIONS]
    if wrong or not retransmissions:
        raise ValueError(f"retransmissions are {list(retransmissions)}; right would be some of {RETRANSMISSIONS}")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; give the time that measuring may take, for instance 10")


def measure(
    protocol: str = "via-udp",
    *,
    nbytes: int = 65536,
    losses: Sequence[float] = LOSSES,
    retransmissions: Sequence[str] = RETRANSMISSIONS,
    seconds: float = 10.0,
    hosts: str = "auto",
    mtu: int | None = None,
    seed: int | None = None,
    follow: bool = False,
    command: str | None = None,
    on_progress: Callable[[float, float, str], float | None] | None = None,
    on_point: OnPoint | None = None,
    pair_class: Any = None,
    testbed_class: Any = None,
) -> Document:
    """Measure streams over a wire that loses.

    Parameters
    ----------
    protocol : str
        One of via-* and bip-*.
    nbytes : int
        Size of each message.
    losses : sequence of float
        Parts of frames that are lost, in turns; both directions lose. 0 in it is what the others are compared with.
    retransmissions : sequence of {"selective", "go_back_n"}
    seconds : float
        Time for measuring, starting and stopping not included. The first round is finished whatever it takes.
    hosts : {"auto", "local", "testbed"}
        As for a sweep.
    mtu : int, optional
        Of the testbed's wire.
    seed : int, optional
        Of the losses and of the turns.
    follow : bool
        True: one loss at a time. Begin with the first, and go on with whatever *on_progress* returns, until the time
        is out.
    on_progress : callable, optional
        Called between rounds with the part that is done, the seconds left and words. With *follow* it returns the loss
        that is wanted now, or None. KeyboardInterrupt from it ends the run.
    on_point : callable, optional
        Called after each burst with its series (without points) and its point as it now stands.
    pair_class, testbed_class
        What to open instead of :class:`viakit.measure.pair.Pair` and :class:`viakit.testbed.Testbed`.

    Returns
    -------
    dict
        A ``viakit.result/1``. Its series carry ``loss`` and ``retransmission``; points also have, per burst,
        ``since_s`` (when it ended, from the start) and ``per_message``: frames sent, retransmitted, acknowledgements.
        Interrupted (Ctrl-C), or when a side fails in the middle, what had been measured, with ``complete`` false;
        ``errors`` says what failed.

    Raises
    ------
    ValueError
        For arguments that make no sense.
    MeasureError, OSError, RuntimeError
        If the pair or the testbed could not be started, or failed, and nothing has been measured yet.
    """  # fmt: skip
    check(protocol, nbytes, losses, retransmissions, seconds)
    where = hosts
    if hosts == "auto":
        wire = mtu is not None or "testbed" in endpoints.lookup(protocol).needs
        where = "testbed" if wire else "local"
    seed = random.SystemRandom().getrandbits(31) if seed is None else seed
    chance = random.Random(seed)
    if pair_class is None:
        from viakit.measure.pair import Pair

        pair_class = Pair
    streams: dict[tuple[float, str], _Stream] = {}
    began: float | None = None
    number = 0
    with (
        Ending(lambda: [one for one in streams.values() if one.bursts]) as ending,
        contextlib.ExitStack() as around,
    ):
        testbed = None
        if where == "testbed":
            if testbed_class is None:
                from viakit.testbed import Testbed

                testbed_class = Testbed
            testbed = around.enter_context(testbed_class(hosts=2, mtu=mtu or 1500))
        # What is measured in turns, and then what follows it.
        wanted = [list(dict.fromkeys(losses[:1] if follow else losses))]
        while wanted:
            together = wanted.pop(0)
            with contextlib.ExitStack() as stack:
                pairs = []
                for loss in together:
                    for way in dict.fromkeys(retransmissions):
                        one = streams.setdefault((loss, way), _Stream(protocol, way, loss, nbytes))
                        options = {"retransmission": way}
                        if loss:
                            options["fault"] = f"loss={loss:g},seed={seed}"
                        ending.doing(protocol, one.words, nbytes)
                        pair = stack.enter_context(pair_class(protocol, testbed=testbed, options=options))
                        one.info, one.hosts = dict(pair.info), where
                        pairs.append((one, pair))
                began, first = time.monotonic() if began is None else began, True
                while first or time.monotonic() - began < seconds:
                    chance.shuffle(pairs)
                    for one, pair in pairs:
                        ending.doing(protocol, one.words, nbytes)
                        one.take(pair, number, began)
                        if on_point is not None:
                            on_point(one.series(), one.point())
                    number, first = number + 1, False
                    passed = time.monotonic() - began
                    wish = None
                    if on_progress is not None:
                        alone = len(together) == 1
                        words = f"{together[0]:.2%} of frames lost" if alone else f"{len(together)} losses in turns"
                        left_s = max(0.0, seconds - passed)
                        wish = on_progress(min(1.0, passed / seconds), left_s, f"{words}, round {number}")
                    if follow and wish is not None and wish != together[0] and 0.0 <= wish <= MOST:
                        wanted.append([float(wish)])
                        break
    found = [{**one.series(), "points": [one.point()]} for one in streams.values() if one.bursts]
    command = command or command_line()
    return {
        "schema": SCHEMA,
        "command": command,
        "complete": ending.complete,
        "errors": ending.errors,
        "skipped": [],
        "seed": seed,
        "seconds": float(seconds),
        "elapsed_s": round(time.monotonic() - began, 3) if began is not None else 0.0,
        "environment": environment(seed=seed, command=command, infos=[one["info"] for one in found]),
        "floor": None,
        "series": sorted(found, key=lambda one: (one["retransmission"], one["loss"])),
    }


# ------------------------------------------------------------------------------------------------ reading


def per_message(point: Mapping[str, Any], key: str) -> float:
    """Return a counter of a point per message."""
    return point["counters"].get(key, 0) / max(point["counters"]["messages"], 1)


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print a result as a table: a line per way to mend and loss."""
    from rich import box
    from rich.table import Table

    from viakit.measure.table import format_bandwidth

    sheet = Table(title="[bold]Loss[/bold]", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    heads = ("over", "mended by", "loss", "goodput", "of lossless", "frames", "sent again", "acknowledgements")
    for head in heads:
        sheet.add_column(head, justify="left" if head in heads[:2] else "right")
    last = None
    for one in document["series"]:
        point = one["points"][0]
        clean = next(
            (
                other["points"][0]["bandwidth_Bps"]
                for other in document["series"]
                if other["loss"] == 0 and other["retransmission"] == one["retransmission"]
            ),
            None,
        )
        if last not in (None, one["retransmission"]):
            sheet.add_section()
        last = one["retransmission"]
        part = f"{point['bandwidth_Bps'] / clean:.2f}" if clean else "-"
        counts = [f"{per_message(point, key):.2f}" for key in COUNTED]
        sheet.add_row(
            one["protocol"], last.replace("_", "-"), f"{one['loss']:.2%}", format_bandwidth(point["bandwidth_Bps"]),
            part, *counts,
        )  # fmt: skip
    console.print(sheet)
    console.print("frames, sent again, acknowledgements: per message, both sides together")


def figure(document: Mapping[str, Any], *, title: str | None = None) -> Figure:
    """Draw goodput, retransmissions and acknowledgements over loss.

    Raises
    ------
    ResultError
        If there is nothing to draw.
    """
    from matplotlib.figure import Figure

    if not any(one["points"] for one in document["series"]):
        raise ResultError("nothing to draw: the result has no points")
    drawing = Figure(figsize=(12, 4), layout="constrained", dpi=110)
    left, middle, right = drawing.subplots(1, 3)
    for way in dict.fromkeys(one["retransmission"] for one in document["series"]):
        mine = sorted((one for one in document["series"] if one["retransmission"] == way), key=lambda one: one["loss"])
        percent = [100 * one["loss"] for one in mine]
        points = [one["points"][0] for one in mine]
        style = {"marker": "o", "markersize": 4, "label": way.replace("_", "-")}
        left.plot(percent, [point["bandwidth_Bps"] * 8e-6 for point in points], **style)
        middle.plot(percent, [per_message(point, "frames_retransmitted") for point in points], **style)
        right.plot(percent, [per_message(point, "acks_sent") for point in points], **style)
    for axes, words in ((left, "goodput, Mbit/s"), (middle, "frames sent again per message"),
                        (right, "acknowledgements per message")):  # fmt: skip
        axes.set_xlabel("frames lost, %")
        axes.set_ylabel(words)
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
    left.legend(frameon=False)
    drawing.suptitle(title or f"{document['series'][0]['protocol']}: what loss costs", parse_math=False)
    return drawing
