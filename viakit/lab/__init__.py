"""The laboratory: experiments in a notebook that are measured while you watch.

::

    from viakit import lab

    run = lab.compare("via-eth", "tcp", sizes="1:64K", seconds=20)   # returns at once; curves grow below the cell
    result = run.wait()                                              # or: result = await run
    result.save("today.json")

Measurements run in separate processes, never in the notebook's kernel; stopping an experiment ends all of them. Without
widgets (plain Python, nbconvert) the same calls return when the measurement is complete, and show a picture and a
table. docs/lab.md is the manual.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viakit.lab._job import Busy, LabError, current

if TYPE_CHECKING:
    from viakit.lab._apps import App
    from viakit.lab._barrier import Barrier
    from viakit.lab._compare import Compare
    from viakit.lab._faults import Faults
    from viakit.lab._via import Stepper
    from viakit.measure.breakdown import Breakdown

__all__ = ["Busy", "LabError", "app", "barrier", "breakdown", "compare", "faults", "running", "stop", "via"]


def compare(
    *protocols: str,
    sizes: str | int | Iterable[int] | None = None,
    against: Sequence[Mapping[str, Any] | str | os.PathLike[str]] = (),
    start: bool | None = None,
    **settings: Any,
) -> Compare:
    """Compare protocols, with throughput and signature graphs.

    Parameters
    ----------
    *protocols : str
        Names as ``viakit protocols`` lists them. Default: "via-eth" and "tcp", which the panel can change.
    sizes : str, int or iterable of int, optional
        Message sizes in bytes: ``"1,64,4K"``, ``"1:1M"``, or numbers. Default: ten sizes from 1 byte to 1 MiB.
    against : sequence, optional
        Earlier results, or names of their files, to be drawn together with the new one. A single item needs no list.
    start : bool, optional
        False: only show the controls. Default: start if protocols are given, or if there are no controls.
    **settings
        Any other field of :class:`viakit.measure.Config`: ``hosts``, ``mtu``, ``rate``, ``delay``, ``sockbuf``,
        ``memory`` ("user"), ``buffers`` ("touched"), ``policy`` (the thresholds of the message engine), ``mode``,
        ``wait``, ``level``, ``seconds`` (15), ``seed``, ...

    Returns
    -------
    Compare
        Has ``wait()``, ``stop()``, ``result`` and ``save()``. With ``await`` the buttons keep working during the wait.

    Raises
    ------
    Busy
        If another measurement is running.
    LabError
        If the measurement fails, and the call waits for it (without widgets).
    ValueError
        If a setting is invalid; the message states what is accepted.
    """
    from viakit.lab import _compare  # start-up time

    made = _compare.Compare(
        protocols or _compare.PROTOCOLS, _compare.SIZES if sizes is None else sizes, against, settings
    )
    made._begin(bool(protocols) or made._mode != "widgets" if start is None else start)
    return made


def barrier(*algorithms: str, start: bool | None = None, **settings: Any) -> Barrier:
    """Measure barriers over numbers of ranks.

    Parameters
    ----------
    *algorithms : str
        Names as ``viakit barrier --list`` lists them. Default: the usual ones, which the panel can change.
    start : bool, optional
        As for :func:`compare`. Default: start if an algorithm or a setting is given.
    **settings
        Arguments of :func:`viakit.measure.barrier.measure`: ``ranks`` ([2, 4, 8]), ``hosts`` (1), ``protocol``,
        ``skew_s`` (0), ``with_mpi`` (False), ``seconds`` (10), ``mtu``, ``bind`` ("core"), ``machine`` (None; a
        name such as "barrier-cluster-1": virtual time), ``seed``.

    Returns
    -------
    Barrier
        Has the interface of the result of :func:`compare`, and raises the same exceptions.
    """
    from viakit.lab._barrier import Barrier  # start-up time

    made = Barrier(algorithms, settings)
    made._begin(bool(algorithms or settings) or made._mode != "widgets" if start is None else start)
    return made


def app(name: str = "sor-zero", *, start: bool | None = None, **settings: Any) -> App:
    """Run an application over several protocols: its speed-up relative to the serial program, and a timeline for each.

    Parameters
    ----------
    name : str
        An application that `viakit app` lists, or one of its problems ("water-1728").
    start : bool, optional
        As for :func:`compare`. Default: start if a setting is given.
    **settings
        Arguments of :func:`viakit.apps.speedup.measure`: ``protocols`` (["via", "tcp"], also policies
        such as "mpich-p4"), ``ranks`` ([1, 2]), ``rounds`` (3), ``quick`` (True: small problems), ``problem`` ("--size
        512": options in their place), ``kernels`` ("compiled" or "numpy"), ``hosts`` (0: this machine), ``mtu``,
        ``rate``, ``timeline`` (True), ``machine`` (None; a described one by name or file, in virtual time),
        ``computing`` (its seconds of computing for one second here), ``seed``.

    Returns
    -------
    App
        Has ``timelines`` and the interface of the result of :func:`compare`, and raises the same exceptions.
    """
    from viakit.lab._apps import App  # start-up time

    made = App(name, settings)
    made._begin(bool(settings) or made._mode != "widgets" if start is None else start)
    return made


def faults(*, start: bool | None = None, **settings: Any) -> Faults:
    """Vary the loss of a wire, and watch acknowledgements, retransmissions and goodput.

    The slider of the panel changes the loss during the measurement. Without a panel the values in *losses* are measured
    in turns.

    Parameters
    ----------
    start : bool, optional
        As for :func:`compare`. Default: start if a setting is given.
    **settings
        Arguments of :func:`viakit.measure.loss.measure`: ``protocol`` ("via-udp"), ``losses``, ``nbytes`` (64 KiB),
        ``retransmissions``, ``seconds`` (10), ``hosts``, ``mtu``, ``seed``, ``follow`` (True: ``run.loss = 0.02``
        changes the loss during the measurement).

    Returns
    -------
    Faults
        Has the interface of the result of :func:`compare`, and raises the same exceptions.
    """
    from viakit.lab._faults import Faults  # start-up time

    made = Faults(settings)
    made._begin(bool(settings) or made._mode != "widgets" if start is None else start)
    return made


def breakdown(*protocols: str, nbytes: int = 8, seconds: float = 9.0, seed: int | None = None) -> Breakdown:
    """Divide the time of one message into its parts, as stacked bars that grow step by step.

    The parts are system calls, copies, protocol, interrupt, wake-up, and a remainder
    (:mod:`viakit.measure.breakdown` describes how each is obtained). The call returns when all are measured.

    Parameters
    ----------
    *protocols : str
        Some of "tcp", "udp" and "via-eth". Default: all three.
    nbytes : int
        Bytes of the message, 1 to 1400.
    seconds : float
        Time for measurements.
    seed : int, optional
        Seed of the order of turns.

    Returns
    -------
    viakit.measure.breakdown.Breakdown

    Raises
    ------
    LabError
        If the measurement fails; the message gives the reason.
    ValueError
        If an argument is invalid.
    """
    from viakit.lab import _breakdown  # start-up time

    return _breakdown.run(protocols, nbytes, seconds, seed)


def via(message: bytes = b"hello", operation: str = "send") -> Stepper:
    """Follow a descriptor step by step: post, doorbell, frame, placement, completion.

    Tables show the VIs, queues and regions after each step.

    In a panel a button performs the next step; without widgets all stages are shown at once. This is not a measurement,
    and runs in the calling process.

    Parameters
    ----------
    message : bytes
        The message, at most 64 bytes.
    operation : {"send", "rdma_write"}
        Operation of the descriptor.

    Returns
    -------
    Stepper
        Has ``step()``, ``stages``, ``restart()`` and ``close()``.
    """
    from viakit.lab._via import Stepper  # start-up time

    made = Stepper(message, operation)
    made._begin()
    return made


def running() -> str | None:
    """Return the title of the measurement that this process runs, or None."""
    job = current()
    return job.title if job is not None else None


def stop() -> None:
    """Stop the measurement of this process, with all its ranks and hosts."""
    job = current()
    if job is not None:
        job.stop()
