"""Virtual time on a described machine, for programs whose ranks communicate over the link ``sim``.

``viakit run --machine NAME`` starts a job whose ranks are on a machine; :mod:`viakit.comm` and ``viakit.mpi`` then
begin virtual time by themselves. The work of the real processor takes no virtual time. A program declares its
computing::

    from viakit import virtual

    before = virtual.time_s()
    virtual.compute(0.25)  # a quarter of a second of computing on the machine
    comm.Barrier()
    print(virtual.time_s() - before)

Frames that arrive during :func:`compute` are placed as by a card.
"""

from __future__ import annotations

from viakit import _core

__all__ = ["begin", "compute", "end", "is_on", "time_s"]


def begin(n_ranks: int, rank: int, timeout_s: float = 60.0) -> None:
    """Start virtual time: the clocks of all ranks start together when all have called this.

    A rank whose time is virtual already waits for the others, and all go on at the latest of their clocks. Every call
    needs one of :func:`end`.

    Parameters
    ----------
    n_ranks : int
        Number of ranks of the machine, at most 128.
    rank : int
        Number of this rank. Rank i is on the machine's host i, if the machine has as many hosts.
    timeout_s : float
        Limit for the other ranks to call this, in seconds.

    Raises
    ------
    InvalidStateError
        If no NIC of this process is on a simulated machine.
    ViaTimeoutError
        If not all ranks have begun in time; a TimeoutError.
    ValueError
        If a number is invalid, or no machine is described.
    """
    _core.virtual_begin(n_ranks, rank, timeout_s)


def end() -> None:
    """End virtual time for this rank. No effect while time is real."""
    _core.virtual_end()


def compute(seconds: float) -> None:
    """Move this rank's clock by *seconds* of computing on the machine. No effect while time is real.

    Raises
    ------
    ValueError
        If *seconds* is negative or above 1e9.
    """
    _core.virtual_compute(seconds)


def time_s() -> float:
    """Return the time in seconds on the library's monotonic clock: virtual time on a machine, else real time."""
    return _core.time_ns() * 1e-9


def is_on() -> bool:
    """Return whether this process is in virtual time."""
    return _core.time_is_virtual()
