"""The connection of a rank to its job, and the numbers of communicators."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from viakit import _core, virtual
from viakit.comm.errors import error
from viakit.comm.seal import Seal
from viakit.errors import InvalidStateError

# Each communicator uses five contexts of the engine. COMM_WORLD and COMM_SELF (numbers 0 and 1) come in addition.
MAX_COMMUNICATORS = 13106
COLOR = 24  # bytes
_PROPOSAL = struct.Struct(f"<q?{COLOR}sq")  # of a number: the turn, whether the rank has several threads; color and key
_REFUSED = _PROPOSAL.pack(-1, False, b"", 0)
_CLAIMED, _NOT_CLAIMED = b"\1", b"\0"


class World(_core.MsgWorld):
    """Connection of this rank to the job, and the table of the communicator numbers in use.

    A freed communicator may leave messages behind: data that was never received, or notices of waiting ranks and
    failures. A new communicator with the same number would receive them. Numbers are therefore assigned in rotation, so
    that a number is reused only after all others have been used. `turn` counts the assignments, and `used` maps each
    number in use to the turn at which it was assigned.
    """

    def __init__(self, rank: int, size: int, **options: Any) -> None:
        self.used: dict[int, int] = {0: 0, 1: 0}
        self.turn = 0
        self._claiming = threading.Lock()
        self.seal: Seal | None = None  # of objects, unless all connections are local
        self.secret = b""  # of the job, or of the connection between two jobs
        self.place = {name: options.get(name) for name in ("network_device", "address")}  # of this rank on the network
        self.living = weakref.WeakValueDictionary[int, Any]()  # handles of this world's communicators, by identity
        self.crossing: Any = None  # state of crossed.py
        self.services: dict[tuple[int, ...], Any] = {}  # worlds that serve windows (windows.py), by ranks
        self.by_messages = os.environ.get("VIAKIT_COLLECTIVES", "") == "messages"
        super().__init__(rank, size, **options)
        if os.environ.get("VIAKIT_MACHINE") and size > 1:
            with contextlib.suppress(InvalidStateError):  # a channel without a NIC on the machine
                virtual.begin(size, rank)  # It ends with the world.

    def close(self, timeout_s: float | None = None) -> None:
        """Close the worlds that serve windows, in the order in which all ranks opened them, and then this one."""
        if not self.forked:
            while self.services:
                self.services.pop(next(iter(self.services))).close(timeout_s)
        super().close(timeout_s)

    def abort(self) -> None:
        """Release all resources without notice to the peers, those of windows included."""
        if not self.forked:
            while self.services:
                self.services.pop(next(iter(self.services))).abort()
        super().abort()

    def take_number(
        self,
        exchange: Callable[[Any], list[Any]],
        mine: Any = None,
        exchange_blocks: Callable[[bytes], list[bytes]] | None = None,
    ) -> tuple[int, list[Any]]:
        """Agree with other ranks on a communicator number that is free on all of them.

        Collective over the ranks that `exchange` connects. Another thread, on this rank or on a peer, may be about to
        take the same number. If any rank has several threads, a second exchange therefore confirms the number. All
        ranks try the next number if it was taken in the meantime.

        Parameters
        ----------
        exchange : callable
            Gathers one object of each rank and returns the list of them, in the order of ranks.
        mine : object, optional
            Data of this rank to be gathered with the number.
        exchange_blocks : callable, optional
            Gathers a short block of each rank, of equal lengths. It replaces `exchange` if all ranks propose the same
            number. `mine` must then be None, or a pair of COLOR bytes and an integer of 64 bits.

        Returns
        -------
        number : int
            The number of the new communicator.
        gathered : list
            The argument `mine` of each rank.

        Raises
        ------
        Exception
            ERR_OTHER if all numbers are in use.
        """
        taken_at_once = exchange_blocks and self._take_at_once(exchange_blocks, mine)
        if taken_at_once:
            return taken_at_once
        while True:
            gathered = exchange((self.turn, list(self.used), threading.active_count() > 1, mine))
            taken = set().union(*(used for _, used, _, _ in gathered))
            if len(taken) > MAX_COMMUNICATORS:
                raise error(
                    "ERR_OTHER", f"all {MAX_COMMUNICATORS} communicators are in use; free those that are not needed"
                )
            turn = max(turn for turn, _, _, _ in gathered)
            while (number := self._number_at(turn)) in taken:
                turn += 1
            if self._confirm(number, turn, any(others for _, _, others, _ in gathered), exchange):
                return number, [theirs for _, _, _, theirs in gathered]

    def _take_at_once(self, exchange: Callable[[bytes], list[bytes]], mine: Any) -> tuple[int, list[Any]] | None:
        """Agree on a number by one exchange of short blocks. Return None on all ranks if that is not possible."""
        turn, number = self.turn, self._number_at(self.turn)
        color, key = (b"", 0) if mine is None else mine
        block = _REFUSED
        if number not in self.used and type(color) is bytes:
            with contextlib.suppress(struct.error):  # a key of more than 64 bits
                block = _PROPOSAL.pack(turn, threading.active_count() > 1, color, key)
        turns, threads, colors, keys = zip(*map(_PROPOSAL.unpack, exchange(block)), strict=True)
        if turns.count(turn) != len(turns):
            return None

        def exchange_flags(claimed: bool) -> list[bool]:
            return [one == _CLAIMED for one in exchange(_CLAIMED if claimed else _NOT_CLAIMED)]

        if not self._confirm(number, turn, any(threads), exchange_flags):
            return None
        return number, list(zip(colors, keys, strict=True))

    def _confirm(self, number: int, turn: int, others: bool, exchange: Callable[[bool], Iterable[bool]]) -> bool:
        """Claim a number. If any rank has several threads (`others`), all ranks have to succeed."""
        claimed, agreed = self._claim(number, turn), False
        try:
            agreed = all(exchange(claimed)) if others else claimed
        finally:
            if claimed and not agreed:
                self.used.pop(number)
        return agreed

    @staticmethod
    def _number_at(turn: int) -> int:
        return 2 + turn % (MAX_COMMUNICATORS - 1)

    def _claim(self, number: int, turn: int) -> bool:
        with self._claiming:
            self.turn = max(self.turn, turn + 1)
            if number in self.used:
                return False
            self.used[number] = turn
            return True
