"""``viakit demo``: the main comparison of viakit, in less than a minute.

All protocols use ordinary memory and touched buffers. TCP is measured twice: with the socket buffers that are best on
this machine (``tcp``), and with those of the kernel (``tcp:default``).

The demo makes three sweeps:

- ping-pong over a wire between two hosts (VIA on raw Ethernet frames, TCP, UDP, ZeroMQ),
- a stream of long messages over the same wire,
- ping-pong between two processes of one host (VIA over shared memory, MPI).

If one of them cannot be measured on this machine, the result states the reason and contains the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from viakit.measure import plot, report, result, sockbuf, sweep
from viakit.measure.endpoints import MeasureError, default_mpi
from viakit.measure.environment import command_line
from viakit.measure.result import Document
from viakit.measure.sweep import Config, Progress, UsageError
from viakit.measure.turns import shielded

__all__ = ["Demo", "run"]

WIRE = ("via-eth", "tcp", "tcp:default", "udp", "zmq")
STREAM = ("via-eth", "tcp", "tcp:default", "zmq")
LOCAL = ("via-shm", "mpi", "mpi:openmpi", "mpi:mpich")
SIZES = (1, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
LOCAL_SIZES = tuple(sorted({8, *SIZES}))
STREAM_SIZES = (64 << 10, 1 << 20, 4 << 20)
SHARES = (0.45, 0.2, 0.35)  # shares of the time: wire, stream, local


@dataclass
class Demo:
    """Outcome of the demo: the merged result, its summary in words, and the files that were written."""

    document: Document
    words: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    interrupted: bool = False
    error: Exception | None = None


def _folder(out: str | os.PathLike[str]) -> Path:
    """Create the folder for the results. Raise an error at once if it cannot be written."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise result.ResultError(f"{folder}: cannot be made ({error.strerror}); choose another with --out") from error
    result.check_writable(folder / "results.json")
    return folder


def _distinct_mpi(names: tuple[str, ...]) -> list[str]:
    """Leave out the library that plain ``mpi`` selects, so that no library is measured twice."""
    return [name for name in names if name != f"mpi:{default_mpi()}"]


def run(
    out: str | os.PathLike[str] = "viakit-demo",
    *,
    seconds: float = 25.0,
    seed: int | None = None,
    memory: str = "user",
    buffers: str = "touched",
    on_progress: Callable[[Progress], None] | None = None,
    pair_class: Any = None,
    testbed_class: Any = None,
) -> Demo:
    """Measure, and write ``results.json``, ``throughput.png`` and ``report.html`` into *out*.

    Parameters
    ----------
    out : path
        Folder; created if it does not exist.
    seconds : float
        Time for the measurement. Starting processes and drawing take a few seconds more.
    seed : int, optional
        Seed of the order in which points are measured.
    memory, buffers : str
        As for :class:`viakit.measure.sweep.Config`.
    on_progress : callable, optional
        Called between bursts with a :class:`viakit.measure.sweep.Progress` over the whole demo.
    pair_class, testbed_class : optional
        As for :func:`viakit.measure.sweep.run`.

    Raises
    ------
    ResultError
        If *out* cannot be written.
    MeasureError
        If nothing could be measured; the message contains the reasons.
    KeyboardInterrupt
        If interrupted before the first measurement.
    """
    if not seconds > 0:
        raise UsageError(f"--seconds is {seconds:g}: give the time that measuring may take, for instance 30")
    folder = _folder(out)
    common: dict[str, Any] = {"seed": seed, "skip_unavailable": True, "memory": memory, "buffers": buffers}
    wire = common | {"hosts": "testbed", "mtu": 1500, "sockbuf": sockbuf.AUTO}
    parts = (
        Config(WIRE, SIZES, seconds=seconds * SHARES[0], **wire),
        Config(STREAM, STREAM_SIZES, mode="stream", seconds=seconds * SHARES[1], **wire),
        Config(_distinct_mpi(LOCAL), LOCAL_SIZES, hosts="local", seconds=seconds * SHARES[2], **common),
    )
    documents: list[Document] = []
    demo = Demo({})
    done = 0.0
    for config, share in zip(parts, SHARES, strict=True):

        def scaled(progress: Progress, done: float = done, share: float = share) -> None:
            if on_progress is not None:
                left = max(1.0 - done - share, 0.0) * seconds + progress.left_s
                on_progress(Progress(done + share * progress.fraction, left, progress.text))

        try:
            outcome = sweep.run(config, on_progress=scaled, pair_class=pair_class, testbed_class=testbed_class)
        except KeyboardInterrupt:
            if not documents:
                raise
            demo.interrupted = True
            break
        documents.append(outcome.document)
        demo.error = demo.error or outcome.error
        if outcome.interrupted:
            demo.interrupted = True
            break
        done += share
    demo.document = result.merge(documents, command_line())
    if demo.interrupted:
        demo.document["complete"] = False
    _write(demo, folder)
    return demo


def _write(demo: Demo, folder: Path) -> None:
    """Write the files. After an interruption write only the result, because the others can be created from it."""
    document = demo.document
    if not any(one["points"] for one in document["series"]):
        reasons = dict.fromkeys(one["reason"] for one in document.get("skipped", []))
        if not demo.interrupted:
            why = "; ".join(reasons) or str(demo.error)
            raise MeasureError(f"nothing could be measured on this machine: {why}. Run `viakit doctor` for details")
        return
    with shielded():
        result.save(document, folder / "results.json")
    demo.files.append(folder / "results.json")
    if demo.interrupted:
        return
    demo.words = report.words(document)
    still = {**document, "series": [one for one in document["series"] if one["mode"] == "pingpong"]}
    if any(one["points"] for one in still["series"]):
        plot.save([still], folder / "throughput.png", title="viakit demo")
        demo.files.append(folder / "throughput.png")
    result.write_file(folder / "report.html", report.html(document, title="viakit demo").encode())
    demo.files.append(folder / "report.html")
