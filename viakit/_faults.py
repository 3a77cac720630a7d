"""Faults as values: what a NIC shall do to the frames that it sends. docs/faults.md has the whole story."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["FaultRule", "Faults"]

_VERDICTS = ("drop", "double", "hold", "spoil")  # as viakit_verdict numbers them, from 1


@dataclass(frozen=True)
class FaultRule:
    """Frames chosen one by one.

    Parameters
    ----------
    what
        ``"drop"``, ``"double"``, ``"hold"`` (others overtake it) or ``"spoil"`` (bits are flipped).
    first, last
        Numbers of frames, from 0, last included. None for ``last`` is "all that follow".
    kind
        A kind of frame such as ``"send"``; the numbers then count frames of this kind. None: of any.
    """

    what: str
    first: int = 0
    last: int | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        if self.what not in _VERDICTS:
            raise ValueError(f"what={self.what!r}: expected one of {', '.join(_VERDICTS)}")
        if self.first < 0 or (self.last is not None and self.last < self.first):
            raise ValueError(f"frames {self.first} to {self.last}: expected 0 <= first <= last")


@dataclass(frozen=True)
class Faults:
    """What happens to the frames that a NIC sends: ``nic.faults = Faults(loss=0.05, seed=7)``.

    The same seed gives the same faults: what happens to a frame depends on the seed, on its kind, and on its number
    among the frames of that kind sent since the faults were set. Times run from the moment they were set.

    Parameters
    ----------
    loss, duplicate, reorder, corrupt
        Chances, 0 to 1, each drawn for itself.
    reorder_distance, corrupt_bits
        A late frame is overtaken by 1 to so many others (at most 64); so many bits of a corrupted one are flipped.
    kinds
        The chances are for frames of these kinds only (``("send", "ack")``); empty: for all.
    delay_s, jitter_s
        Every frame comes later, by delay and a random part of jitter. Their order stays.
    stall_s, stall_every_s
        At the end of every period no frame passes for so long.
    partition_s, partition_after_s
        The NIC is cut off, both ways, for so long (``math.inf``: for ever), from then on.
    partition_frames, partition_after_frames
        The same, counted in frames sent.
    rules
        Frames chosen one by one; at most 8.
    seed
        Any number below 2**64.

    Raises
    ------
    ValueError
        On a wrong word of a rule. Numbers are looked at when the faults are set.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    reorder_distance: int = 3
    corrupt_bits: int = 1
    kinds: tuple[str, ...] = ()
    delay_s: float = 0.0
    jitter_s: float = 0.0
    stall_s: float = 0.0
    stall_every_s: float = 0.0
    partition_s: float = 0.0
    partition_after_s: float = 0.0
    partition_frames: int = 0
    partition_after_frames: int = 0
    rules: tuple[FaultRule, ...] = ()
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Faults:
        """The faults that a line of text names: ``"loss=5%,delay=200us,stall=10ms/100ms,seed=7"``.

        Raises
        ------
        ValueError
            With the word that is wrong and what would be right.
        """
        from viakit import _core

        return _core.parse_faults(text)

    def __str__(self) -> str:
        """A line of text, which parses to the same; empty where there are no faults."""
        from viakit import _core

        return _core.format_faults(self)

    def fate(self, index: int, kind: str = "send", index_of_kind: int | None = None) -> frozenset[str]:
        """What will happen to a frame: the very function that decides.

        Parameters
        ----------
        index
            Its number among the frames sent since the faults were set, from 0: what partitions in frames and rules
            without a kind go by.
        kind
            Its kind, as in ``viakit.via.frame_kinds``.
        index_of_kind
            Its number among those of its kind, which chances and rules with a kind go by; None: ``index``, as if
            there were no others.

        Returns
        -------
        frozenset of str
            Of ``"drop"``, ``"double"``, ``"hold"``, ``"spoil"``; empty: it passes. Times (delay, stall, partition)
            do not show; a partition counted in frames shows as ``"drop"``.
        """
        from viakit import _core

        bits = _core.fault_of(self, index, kind, index if index_of_kind is None else index_of_kind)
        return frozenset(what for number, what in enumerate(_VERDICTS, 1) if bits >> number & 1)

    @property
    def loses(self) -> bool:
        """Whether frames may be lost by them, or be as good as lost."""
        cut = self.partition_s > 0 or self.partition_frames > 0
        return self.loss > 0 or self.corrupt > 0 or self.reorder > 0 or cut or bool(self.rules)

    @property
    def for_ever(self) -> bool:
        """Whether the partition never ends."""
        return self.partition_s == math.inf
