"""Fault injection: the faults that a NIC applies to the frames it sends. docs/faults.md describes them in full."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["FaultRule", "Faults"]

_VERDICTS = ("drop", "double", "hold", "spoil")  # in the order of viakit_verdict, which starts at 1


_compiled: Any = None  # viakit._core, which sets itself here when it is loaded: it stands above this module


@dataclass(frozen=True)
class FaultRule:
    """Fault for individual frames, selected by their numbers.

    Parameters
    ----------
    what : str
        ``"drop"``, ``"double"`` (send twice), ``"hold"`` (later frames overtake it) or ``"spoil"`` (flip bits).
    first, last : int
        Numbers of the first and the last frame, from 0. None for ``last`` selects all frames from ``first`` on.
    kind : str, optional
        A kind of frame such as ``"send"``; the numbers then count frames of this kind. None counts all frames.
    """

    what: str  #: Fault: ``"drop"``, ``"double"``, ``"hold"`` or ``"spoil"``.
    first: int = 0  #: Number of the first frame, from 0.
    last: int | None = None  #: Number of the last frame; None for all frames from the first on.
    kind: str | None = None  #: Kind of the frames that are counted, such as ``"send"``; None for all.

    def __post_init__(self) -> None:
        if self.what not in _VERDICTS:
            raise ValueError(f"what={self.what!r}: expected one of {', '.join(_VERDICTS)}")
        if self.first < 0 or (self.last is not None and self.last < self.first):
            raise ValueError(f"frames {self.first} to {self.last}: expected 0 <= first <= last")


@dataclass(frozen=True)
class Faults:
    """Faults that a NIC applies to the frames it sends: ``nic.faults = Faults(loss=0.05, seed=7)``.

    The same seed gives the same faults. The fate of a frame depends on the seed, on its kind, and on its number among
    the frames of that kind sent since the faults were set. Times are relative to the moment at which the faults were
    set.

    Parameters
    ----------
    loss, duplicate, reorder, corrupt : float
        Independent probabilities, 0 to 1.
    reorder_distance, corrupt_bits : int
        A reordered frame is overtaken by 1 to `reorder_distance` others (at most 64). A corrupted frame has
        `corrupt_bits` flipped bits.
    kinds : tuple of str
        Kinds of frames that the probabilities apply to (``("send", "ack")``); empty for all.
    delay_s, jitter_s : float
        Every frame is delayed by `delay_s` and a random part of `jitter_s`. The order of frames is kept.
    stall_s, stall_every_s : float
        No frame passes during the last `stall_s` of each period of `stall_every_s`.
    partition_s, partition_after_s : float
        The NIC is disconnected in both directions for `partition_s` (``math.inf``: for ever), after
        `partition_after_s`.
    partition_frames, partition_after_frames : int
        The same, in numbers of frames sent.
    rules : tuple of FaultRule
        Faults of individual frames; at most 8.
    seed : int
        Any number below 2**64.

    Raises
    ------
    ValueError
        If a rule names an unknown fault. Numbers are checked when the faults are set.
    """

    loss: float = 0.0  #: Probability that a frame is dropped, 0 to 1.
    duplicate: float = 0.0  #: Probability that a frame is sent twice, 0 to 1.
    reorder: float = 0.0  #: Probability that later frames overtake a frame, 0 to 1.
    corrupt: float = 0.0  #: Probability that bits of a frame are flipped, 0 to 1.
    reorder_distance: int = 3  #: Largest number of frames that overtake a reordered one; at most 64.
    corrupt_bits: int = 1  #: Number of flipped bits in a corrupted frame.
    kinds: tuple[str, ...] = ()  #: Kinds of frames that the probabilities apply to; empty for all.
    delay_s: float = 0.0  #: Delay of every frame, in seconds.
    jitter_s: float = 0.0  #: Largest random addition to the delay, in seconds.
    stall_s: float = 0.0  #: Time at the end of each period in which no frame passes, in seconds.
    stall_every_s: float = 0.0  #: Period of the stalls, in seconds.
    partition_s: float = 0.0  #: Time without a connection in either direction, in seconds; ``math.inf`` for ever.
    partition_after_s: float = 0.0  #: Time before the partition begins, in seconds.
    partition_frames: int = 0  #: Length of a partition in frames sent; 0 for none.
    partition_after_frames: int = 0  #: Frames sent before that partition begins.
    rules: tuple[FaultRule, ...] = ()  #: Faults of individual frames; at most 8.
    seed: int = 0  #: Seed of all random choices, below 2**64.

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Return the faults for a line of text such as ``"loss=5%,delay=200us,stall=10ms/100ms,seed=7"``.

        Raises
        ------
        ValueError
            If the text has an invalid item; the message names it and what is accepted.
        """
        return _compiled.parse_faults(text)

    def __str__(self) -> str:
        """Return a line of text that parses to the same faults; empty without faults."""
        return _compiled.format_faults(self)

    def fate(self, index: int, kind: str = "send", index_of_kind: int | None = None) -> frozenset[str]:
        """Return what will happen to a frame, by the function that the NIC itself uses.

        Parameters
        ----------
        index : int
            Number of the frame among all frames sent since the faults were set, from 0. Partitions in frames, and rules
            without a kind, use this number.
        kind : str
            Kind of the frame, as in ``viakit.via.frame_kinds``.
        index_of_kind : int, optional
            Number of the frame among those of its kind. Probabilities, and rules with a kind, use this number. Default:
            ``index``, as if there were no frames of other kinds.

        Returns
        -------
        frozenset of str
            Of ``"drop"``, ``"double"``, ``"hold"`` and ``"spoil"``; empty if the frame passes. Faults in time (delay,
            stall, partition) do not appear; a partition counted in frames appears as ``"drop"``.
        """
        bits = _compiled.fault_of(self, index, kind, index if index_of_kind is None else index_of_kind)
        return frozenset(what for number, what in enumerate(_VERDICTS, 1) if bits >> number & 1)

    @property
    def loses(self) -> bool:
        """Whether the faults can cause the loss of frames. Damage and reordering have the same effect."""
        cut = self.partition_s > 0 or self.partition_frames > 0
        return self.loss > 0 or self.corrupt > 0 or self.reorder > 0 or cut or bool(self.rules)

    @property
    def for_ever(self) -> bool:
        """Whether the partition never ends."""
        return self.partition_s == math.inf
