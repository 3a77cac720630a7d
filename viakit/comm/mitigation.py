"""After the failure of members: Revoke ends the calls of all, Agree and Shrink continue with those that live.

MPI calls this user-level failure mitigation. The members that a rank knows to have died take no part. If a member dies
during a call, the ranks repeat it without that member as soon as they have noticed its end.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from viakit.comm import collective
from viakit.comm.attributes import TAG_MOST
from viakit.comm.errors import Exception
from viakit.comm.schedule import Schedule, ScheduleRequest, run
from viakit.comm.step import SubsetStep

if TYPE_CHECKING:
    from viakit.comm.request import Request
    from viakit.comm.worlds import World

__all__ = ["Mitigation"]

_AGREE, _SHRINK = TAG_MOST - 1, TAG_MOST - 2  # tags of SubsetStep, beside those of Create_group
_INT = 4  # bytes of C's int
_NOTICE_S = 10.0  # until a rank has noticed what another one reports


class Mitigation:
    """The part of ``MPI.Comm`` that agrees after failures."""

    world: World

    def _members(self) -> tuple[Any, list[int]]:
        """Return the communicator of all members, in both groups if there are two, and its ranks that live."""
        own = cast("Any", self)
        own._alive()
        whole = own._union if own.is_inter else own
        dead = set(self.world.failures())
        return whole, [i for i, rank in enumerate(whole.world_ranks()) if rank not in dead]

    def _among_living(self, call: Callable[[Any, SubsetStep], Any], tag: int) -> Any:
        """Return the result of `call` for the members that live. Repeat it if it fails because another one died."""
        while True:
            whole, living = self._members()
            step = SubsetStep(whole, living, tag)
            try:
                return call(whole, step)
            except BaseException as problem:
                step.give_up(problem)
                lost = isinstance(problem, Exception) and problem.is_of_lost_rank
                if not lost or not self._has_lost_one_of(living):
                    raise

    def _has_lost_one_of(self, living: list[int]) -> bool:
        """Wait until one of these ranks is known to have died: another rank may have noticed it first."""
        deadline = time.monotonic() + _NOTICE_S
        while self._members()[1] == living:
            if time.monotonic() > deadline:
                return False
            self.world.idle(0.01)
        return True

    def Agree(self, flag: int) -> int:
        """Combine the flags of all members that live by bitwise and. Collective, in spite of members that have died.

        Parameters
        ----------
        flag : int
            This rank's flag.

        Returns
        -------
        int
            The combination, the same on all ranks. On an intercommunicator both groups take part.
        """
        mine = operator.index(flag)

        def call(whole: Any, step: SubsetStep) -> int:
            flags = run(whole, collective.allgather_object(step, mine), step)
            return functools.reduce(operator.and_, flags)

        return int(self._among_living(call, _AGREE))

    def Iagree(self, flag: Any) -> Request:
        """Start to combine the flags of all members that live: see `Agree`.

        Parameters
        ----------
        flag : buffer
            One C int, which is replaced by the combination. Do not access it before the request completes.

        Returns
        -------
        Request
            It fails if a member dies before it completes.

        Raises
        ------
        ValueError
            If the buffer is read-only, or not one int.
        """
        place = memoryview(flag).cast("B")
        if place.readonly or place.nbytes != _INT:
            raise ValueError(f"flag: expecting a writable buffer of one int, {_INT} bytes, got {place.nbytes} bytes")
        number = place.cast("i")
        whole, living = self._members()
        step = SubsetStep(whole, living, _AGREE)

        def schedule() -> Schedule:
            flags = yield from collective.allgather_object(step, number[0])
            number[0] = functools.reduce(operator.and_, flags)

        return ScheduleRequest(whole, schedule(), step)

    def Shrink(self) -> Any:
        """Create a communicator of the members that live. Collective over them.

        Returns
        -------
        Comm
            The ranks keep their order. COMM_NULL if no rank of the other group of an intercommunicator lives.
        """
        from viakit.comm.communicator import Intracomm  # it imports this module

        own = cast("Any", self)

        def call(whole: Any, step: SubsetStep) -> Any:
            number, _ = self.world.take_number(lambda mine: run(whole, collective.allgather_object(step, mine), step))
            ranks = whole.world_ranks()
            living = {ranks[i] for i in step.members}
            if not own.is_inter:
                return own._new(Intracomm, number, [rank for rank in ranks if rank in living])
            groups = [[rank for rank in group if rank in living] for group in (own._local, own.world_ranks())]
            return own._between(number, *groups) if groups[1] else own._none(number)

        return self._among_living(call, _SHRINK)

    def Ishrink(self) -> tuple[Any, Request]:
        """Create a communicator of the members that live, and a request, which is complete: see `Shrink`.

        The call waits for the other ranks, because they agree on a number.
        """
        from viakit.comm.grequest import Grequest  # it imports this module

        made = self.Shrink()
        request = Grequest.Start()
        request.Complete()
        return made, request

    def Is_revoked(self) -> bool:
        """Return whether this rank has noticed that the communicator is revoked."""
        own = cast("Any", self)
        own._alive()
        if not own._revoked:
            self.world.progress()
        return bool(own._revoked)

    def Revoke(self) -> None:
        """Revoke the communicator: calls that wait on any of its ranks end, and later calls are refused.

        Not collective, and does not wait. On all ranks, communication on the communicator raises ERR_REVOKED from then
        on, or from the arrival of the notice. `Agree`, `Shrink`, `Free` and the calls about failures remain possible.
        A rank notices it in its next call, or in the one that waits. A long message that both ranks have begun to
        transfer still arrives.
        """
        own = cast("Any", self)
        own._alive()
        own.revoke((own._union if own.is_inter else own).world_ranks())
