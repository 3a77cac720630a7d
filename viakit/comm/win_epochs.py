"""Synchronisation of windows: epochs, fences, locks, and post, start, complete, wait."""

from __future__ import annotations

from typing import Any

from viakit import _core
from viakit.comm.errors import error
from viakit.comm.group import Group
from viakit.comm.status import PROC_NULL

MODE_NOCHECK, MODE_NOSTORE, MODE_NOPUT, MODE_NOPRECEDE, MODE_NOSUCCEED = 1024, 2048, 4096, 8192, 16384
LOCK_EXCLUSIVE, LOCK_SHARED = 234, 235
_FENCE_MODES = MODE_NOSTORE | MODE_NOPUT | MODE_NOPRECEDE | MODE_NOSUCCEED
_WAYS = "Win.Fence, Win.Lock, Win.Lock_all or Win.Start"


class Epochs(_core.RmaEpochs):
    """The epochs of one rank in one window: what it may access, and who may access it."""

    def check_access(self, rank: int) -> None:
        """Raise ERR_RMA_SYNC unless this rank may access the rank now."""
        if self.fence or rank in self.locked or self.all_locked is not None:
            return
        if self.started is not None and rank in self.started:
            return
        if self.started is not None:
            raise error("ERR_RMA_SYNC", f"rank {rank} is not in the group of Win.Start, which has {self.started}")
        raise error("ERR_RMA_SYNC", f"an operation on rank {rank} outside of an epoch; begin one with {_WAYS}")

    def check_passive(self, rank: int | None) -> None:
        """Raise ERR_RMA_SYNC unless this rank holds a lock of the rank; None: of any."""
        if self.all_locked is None and not (self.locked if rank is None else rank in self.locked):
            raise error("ERR_RMA_SYNC", "a flush needs a lock; call Win.Lock or Win.Lock_all before")

    def check_none(self) -> None:
        """Raise ERR_RMA_SYNC if an epoch must be ended before the window can be freed."""
        if self.locked or self.all_locked is not None:
            raise error("ERR_RMA_SYNC", "the window is locked; call Win.Unlock or Win.Unlock_all before Win.Free")
        if self.started is not None or self.posted is not None:
            raise error(
                "ERR_RMA_SYNC", "an epoch of Win.Start or Win.Post is open; call Win.Complete or Win.Wait before"
            )


def _members(window: Any, group: Group) -> list[int]:
    """Return the ranks in the window of a group's members."""
    if not isinstance(group, Group):
        raise TypeError(f"expecting a Group, got {type(group).__name__}")
    mine = window.comm.world_ranks()
    if not set(group._ranks) <= set(mine):
        raise error("ERR_GROUP", "the group has ranks that are not in the window; give a subset of Win.Get_group()")
    return [mine.index(rank) for rank in group._ranks]


class Synchronisation:
    """The part of a window that begins and ends epochs."""

    def _window(self) -> Any:
        raise NotImplementedError

    @staticmethod
    def _check_rank(ref: Any, rank: int) -> None:
        raise NotImplementedError

    def Fence(self, assertion: int = 0) -> None:
        """Complete all operations on the window, of every rank, and begin the next epoch. Collective.

        Parameters
        ----------
        assertion : int
            MODE_NOSTORE, MODE_NOPUT, MODE_NOPRECEDE and MODE_NOSUCCEED, combined by ``|``. After MODE_NOSUCCEED
            no epoch is open.

        Raises
        ------
        Exception
            ERR_RMA_SYNC within another kind of epoch. ERR_PROC_FAILED if a rank has died.
        """
        ref = self._window()
        if assertion & ~_FENCE_MODES:
            raise error("ERR_ASSERT", f"{assertion} is not a combination of the modes of a fence (0 is none)")
        if ref.epochs.locked or ref.epochs.all_locked is not None or ref.epochs.started is not None:
            raise error("ERR_RMA_SYNC", "a fence within an epoch of Win.Lock or Win.Start; end that epoch before")
        ref.flush(-1)
        ref.comm.Barrier()
        ref.epochs.fence = not assertion & MODE_NOSUCCEED

    # ------------------------------------------------------------ locks

    def Lock(self, rank: int, lock_type: int = LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Begin an epoch of access to one rank, which need not take part.

        Parameters
        ----------
        rank : int
            Target.
        lock_type : int
            LOCK_EXCLUSIVE or LOCK_SHARED.
        assertion : int
            MODE_NOCHECK: no other rank has a lock that conflicts, so none is requested.

        Raises
        ------
        Exception
            ERR_LOCKTYPE or ERR_RANK for a wrong argument. ERR_RMA_SYNC if this rank has locked it already.
            ERR_PROC_FAILED if the target has died, or another rank that held the lock.
        """
        ref = self._window()
        if lock_type not in (LOCK_EXCLUSIVE, LOCK_SHARED):
            raise error("ERR_LOCKTYPE", f"lock type {lock_type}: there are MPI.LOCK_EXCLUSIVE and MPI.LOCK_SHARED")
        if assertion & ~MODE_NOCHECK:
            raise error("ERR_ASSERT", f"{assertion} is not 0 or MPI.MODE_NOCHECK, the only mode of a lock")
        if rank == PROC_NULL:
            return
        self._check_rank(ref, rank)
        if rank in ref.epochs.locked or ref.epochs.all_locked is not None:
            raise error("ERR_RMA_SYNC", f"rank {rank} is locked by this rank already; unlock it first")
        requested = not assertion & MODE_NOCHECK
        if requested:
            ref.core.lock(rank, lock_type == LOCK_EXCLUSIVE)
        ref.epochs.locked[rank] = requested

    def Unlock(self, rank: int) -> None:
        """Complete all operations to the rank, and end the epoch of `Lock`."""
        ref = self._window()
        if rank == PROC_NULL:
            return
        self._check_rank(ref, rank)
        if rank not in ref.epochs.locked:
            raise error("ERR_RMA_SYNC", f"rank {rank} is not locked by this rank; call Win.Lock before Win.Unlock")
        requested = ref.epochs.locked.pop(rank)
        try:
            ref.flush(rank)
        finally:
            if requested:
                ref.core.unlock(rank)

    def Lock_all(self, assertion: int = 0) -> None:
        """Begin an epoch of shared access to every rank.

        Parameters
        ----------
        assertion : int
            MODE_NOCHECK: no rank has or requests an exclusive lock, so no locks are requested.
        """
        ref = self._window()
        if assertion & ~MODE_NOCHECK:
            raise error("ERR_ASSERT", f"{assertion} is not 0 or MPI.MODE_NOCHECK, the only mode of a lock")
        if ref.epochs.all_locked is not None or ref.epochs.locked:
            raise error("ERR_RMA_SYNC", "the window is locked by this rank already; unlock it first")
        requested = not assertion & MODE_NOCHECK
        # In the order of ranks, so that no two ranks wait for each other.
        held = []
        try:
            for rank in range(ref.comm.size if requested else 0):
                ref.core.lock(rank, False)
                held.append(rank)
        except BaseException:
            for rank in held:
                ref.core.unlock(rank)
            raise
        ref.epochs.all_locked = requested

    def Unlock_all(self) -> None:
        """Complete all operations, and end the epoch of `Lock_all`."""
        ref = self._window()
        requested, ref.epochs.all_locked = ref.epochs.all_locked, None
        if requested is None:
            raise error("ERR_RMA_SYNC", "no epoch of Win.Lock_all is open")
        try:
            ref.flush(-1)
        finally:
            for rank in range(ref.comm.size if requested else 0):
                ref.core.unlock(rank)

    def _flush_any(self, rank: int) -> None:
        ref = self._window()
        if rank == PROC_NULL:
            return
        self._check_rank(ref, rank)
        ref.epochs.check_passive(rank)
        ref.flush(rank)

    def Flush_all(self) -> None:
        """Wait until all operations of this rank are complete at both ends."""
        ref = self._window()
        ref.epochs.check_passive(None)
        ref.flush(-1)

    def Flush_local(self, rank: int) -> None:
        """Wait until the buffers of all operations on the target may be reused. viakit also completes them there."""
        self.Flush(rank)  # type: ignore[attr-defined]

    def Flush_local_all(self) -> None:
        """Wait until the buffers of all operations may be reused. viakit also completes them at the targets."""
        self.Flush_all()

    def Sync(self) -> None:
        """Order this rank's loads and stores with the operations of others. The memory model is unified: a fence."""
        ref = self._window()
        ref.core.is_quiet(ref.comm.rank)  # takes the window's lock, which is a memory barrier

    # ------------------------------------------------------------ post, start, complete, wait

    def Post(self, group: Group, assertion: int = 0) -> None:
        """Begin an epoch in which the ranks of *group* may access this rank. Does not wait."""
        del assertion
        ref = self._window()
        if ref.epochs.posted is not None:
            raise error("ERR_RMA_SYNC", "an epoch of Win.Post is open; call Win.Wait before the next")
        ranks = _members(ref, group)
        ref.core.post(ranks)
        ref.epochs.posted = ranks

    def Wait(self) -> bool:
        """Wait until the ranks of `Post` have called `Complete`, and end the epoch.

        Returns
        -------
        bool
            Always True.
        """
        ref = self._posted()
        ref.core.await_complete(ref.epochs.posted)
        ref.epochs.posted = None
        return True

    def Test(self) -> bool:
        """Return whether the ranks of `Post` have called `Complete`. If they have, the epoch has ended."""
        ref = self._posted()
        if not ref.core.await_complete(ref.epochs.posted, True):
            return False
        ref.epochs.posted = None
        return True

    def _posted(self) -> Any:
        ref = self._window()
        if ref.epochs.posted is None:
            raise error("ERR_RMA_SYNC", "no epoch of Win.Post is open; call Win.Post before Win.Wait or Win.Test")
        return ref

    def Start(self, group: Group, assertion: int = 0) -> None:
        """Begin an epoch of access to the ranks of *group*, and wait until each has called `Post`.

        Parameters
        ----------
        group : Group
            Targets.
        assertion : int
            MODE_NOCHECK is accepted and ignored: the posts are awaited nevertheless.
        """
        del assertion
        ref = self._window()
        if ref.epochs.started is not None or ref.epochs.locked or ref.epochs.all_locked is not None:
            raise error("ERR_RMA_SYNC", "an epoch of access is open; end it before Win.Start")
        ranks = _members(ref, group)
        ref.core.await_post(ranks)
        ref.epochs.started = ranks

    def Complete(self) -> None:
        """Complete all operations to the ranks of `Start`, notify them, and end the epoch.

        Waits until each of them has counted the notice: a `Test` there that follows this call finds it.
        """
        ref = self._window()
        ranks, ref.epochs.started = ref.epochs.started, None
        if ranks is None:
            raise error("ERR_RMA_SYNC", "no epoch of Win.Start is open; call Win.Start before Win.Complete")
        for rank in ranks:
            ref.flush(rank)
        ref.core.complete(ranks)
