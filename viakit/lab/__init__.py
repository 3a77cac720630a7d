"""The laboratory: experiments in a notebook, measured while you watch.

::

    from viakit import lab

    run = lab.compare("via-eth", "tcp", sizes="1:64K", seconds=20)   # returns at once; curves grow below the cell
    result = run.wait()                                              # or: result = await run
    result.save("today.json")

What is measured runs in processes of its own, never in the kernel's; stopping it ends them all. Without widgets (plain
Python, nbconvert) the same calls return when they are done and show a picture and a table. docs/lab.md has it all.
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

__all__ = ["Busy", "LabError", "app", "barrier", "compare", "faults", "running", "stop", "via"]


def compare(
    *protocols: str,
    sizes: str | int | Iterable[int] | None = None,
    against: Sequence[Mapping[str, Any] | str | os.PathLike[str]] = (),
    start: bool | None = None,
    **settings: Any,
) -> Compare:
    """Compare protocols, by throughput and signature graph.

    Parameters
    ----------
    *protocols : str
        As ``viakit protocols`` lists them. None: "via-eth" and "tcp", to be changed in the panel.
    sizes : str, int or iterable of int, optional
        Message sizes in bytes: ``"1,64,4K"``, ``"1:1M"``, or numbers. By default ten, from 1 byte to 1 MiB.
    against : sequence, optional
        Earlier results, or names of their files, to be drawn beside; one may stand alone.
    start : bool, optional
        False: only show the controls. By default it starts if protocols are named, or if there are no controls.
    **settings
        Any other field of :class:`viakit.measure.Config`: ``hosts``, ``mtu``, ``rate``, ``sockbuf``, ``policy`` (the
        thresholds of the message engine), ``mode``, ``wait``, ``level``, ``seconds`` (15), ``seed``, ...

    Returns
    -------
    Compare
        With ``wait()``, ``stop()``, ``result``, ``save()``; ``await`` it to wait with working buttons.

    Raises
    ------
    Busy
        If something is being measured already.
    LabError
        If the measurement failed, and the call waits for it (without widgets).
    ValueError
        If the settings make no sense; the message says which would.
    """
    from viakit.lab import _compare

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
        As ``viakit barrier --list`` lists them. None: the usual ones, to be changed in the panel.
    start : bool, optional
        As for :func:`compare`: if not given, it starts if something is named or set.
    **settings
        Of :func:`viakit.barrier.measure`: ``ranks`` ([2, 4, 8]), ``hosts`` (1), ``protocol``, ``skew_s`` (0),
        ``with_mpi`` (False), ``seconds`` (10), ``mtu``, ``bind`` ("core"), ``seed``.

    Returns
    -------
    Barrier
        As of :func:`compare`; so are the exceptions.
    """
    from viakit.lab._barrier import Barrier

    made = Barrier(algorithms, settings)
    made._begin(bool(algorithms or settings) or made._mode != "widgets" if start is None else start)
    return made


def app(name: str = "sor-zero", *, start: bool | None = None, **settings: Any) -> App:
    """Run an application on several protocols: its speed-up against the serial program, and a timeline over each.

    Parameters
    ----------
    name : str
        An application ("sor", "is", "fft", "water", "ep"), or one of its problems ("water-1728").
    start : bool, optional
        As for :func:`compare`: if not given, it starts if something is set.
    **settings
        ``protocols`` (["via", "tcp"]), ``ranks`` ([1, 2]), ``rounds`` (3), ``quick`` (True: small problems), ``hosts``
        (0: this machine), ``mtu``, ``rate``, ``timeline`` (True), ``seed``: of :func:`viakit.apps.speedup.measure`.

    Returns
    -------
    App
        As of :func:`compare`, and ``timelines``; so are the exceptions.
    """
    from viakit.lab._apps import App

    made = App(name, settings)
    made._begin(bool(settings) or made._mode != "widgets" if start is None else start)
    return made


def faults(*, start: bool | None = None, **settings: Any) -> Faults:
    """Turn loss up, and watch acknowledgements, retransmissions and goodput.

    In a panel the slider turns it, while it is measured; otherwise *losses* are measured in turns.

    Parameters
    ----------
    start : bool, optional
        As for :func:`compare`: if not given, it starts if something is set.
    **settings
        Of :func:`viakit.measure.loss.measure`: ``protocol`` ("via-udp"), ``losses``, ``nbytes`` (64 KiB),
        ``retransmissions``, ``seconds`` (10), ``hosts``, ``mtu``, ``seed``, ``follow`` (True: ``run.loss = 0.02`` turns
        it meanwhile).

    Returns
    -------
    Faults
        As of :func:`compare`; so are the exceptions.
    """
    from viakit.lab._faults import Faults

    made = Faults(settings)
    made._begin(bool(settings) or made._mode != "widgets" if start is None else start)
    return made


def via(message: bytes = b"hello", operation: str = "send") -> Stepper:
    """Follow a descriptor by hand: post, doorbell, frame, placement, completion; with tables of VIs, queues, regions.

    In a panel a button goes on; elsewhere all stages are shown at once. It is no measurement, and runs in this process.

    Parameters
    ----------
    message : bytes
        At most 64.
    operation : {"send", "rdma_write"}

    Returns
    -------
    Stepper
        With ``step()``, ``stages``, ``restart()``, ``close()``.
    """
    from viakit.lab._via import Stepper

    made = Stepper(message, operation)
    made._begin()
    return made


def running() -> str | None:
    """Return what this process is measuring, in words, or None."""
    job = current()
    return job.title if job is not None else None


def stop() -> None:
    """End what this process is measuring, whatever it is, with all its ranks and hosts."""
    job = current()
    if job is not None:
        job.stop()
