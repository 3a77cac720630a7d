"""Intercommunicators: two groups of ranks that send to each other.

An intercommunicator has one number, as every communicator. Its messages between ranks use the contexts of this number
with the *remote* group's ranks, so that the short path of `Send` and `Recv` needs no translation. Its collectives use
the same number with the ranks of both groups, the lower group first (`_union`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from viakit.comm import collective
from viakit.comm.communicator import COMM_NULL, TAG_MOST, Comm, Intracomm
from viakit.comm.datatype import UNDEFINED
from viakit.comm.errors import error
from viakit.comm.group import CONGRUENT, IDENT, SIMILAR, UNEQUAL, Group
from viakit.comm.inter_collectives import InterCollectives
from viakit.comm.schedule import run
from viakit.comm.seal import SealGroup
from viakit.comm.step import SubsetStep
from viakit.comm.worlds import World

__all__ = ["Intercomm", "create_from_group", "create_intercomm"]


class Intercomm(InterCollectives, Comm):
    """Communicator between two groups of ranks: ``MPI.Intercomm``.

    `rank` and `size` are of the local group. Messages go to and come from ranks of the remote group.
    """

    is_inter, is_intra = True, False

    def __init__(
        self, world: Any = None, number: Any = 0, remote: Any = None, local: Any = None, **options: Any
    ) -> None:
        super().__init__(world, number, remote)
        if isinstance(world, World):
            low_first = min(local) < min(remote)
            self._local = list(local)
            self._union = Intracomm(world, number, [*local, *remote] if low_first else [*remote, *local])
            self._remote_base = len(local) if low_first else 0
            for one in (self, self._union):
                one.open_scope(self.incarnation, min(*local, *remote))
            self._at_exit: Callable[[], None] | None = None  # closes the world of groups that are separate jobs

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return isinstance(comm, Intercomm)

    # ------------------------------------------------------------ properties

    @property
    def rank(self) -> int:  # type: ignore[override]
        """Rank of this process in the local group."""
        self._require()
        return self._local.index(self.world.rank)

    @property
    def size(self) -> int:  # type: ignore[override]
        """Number of ranks in the local group."""
        self._require()
        return len(self._local)

    @property
    def remote_size(self) -> int:
        """Number of ranks in the remote group."""
        self._require()
        return len(self.world_ranks())

    @property
    def group(self) -> Group:
        """Group of the local ranks."""
        self._require()
        return Group(self._local, self.world.rank)

    @property
    def remote_group(self) -> Group:
        """Group of the remote ranks."""
        self._require()
        return Group(self.world_ranks(), self.world.rank)

    def Get_remote_group(self) -> Group:
        """Return the group of the remote ranks."""
        return self.remote_group

    def Get_remote_size(self) -> int:
        """Return the number of ranks in the remote group."""
        return self.remote_size

    def Get_group(self) -> Group:
        """Return the group of the local ranks."""
        return self.group

    def Is_inter(self) -> bool:
        """Return True."""
        self._require()
        return True

    def Is_intra(self) -> bool:
        """Return False."""
        self._require()
        return False

    def _require(self) -> None:
        if self._freed:
            raise error("ERR_COMM", "this intercommunicator is null or has been freed")

    def seal_group(self) -> SealGroup:
        """Return the ranks as the tags of objects name them: the local ones send, and the remote ones receive."""
        if self._seal_group is None:
            self._seal_group = SealGroup(self._local, self.world_ranks())
        return self._seal_group

    def _compare_groups(self, comm: Any) -> int:
        pair = [self.group.Compare(comm.group), self.remote_group.Compare(comm.remote_group)]
        return CONGRUENT if pair == [IDENT, IDENT] else UNEQUAL if UNEQUAL in pair else SIMILAR

    # ------------------------------------------------------------ new communicators

    def _between(self, number: int, local: Sequence[int], remote: Sequence[int]) -> Any:
        made = type(self)._plain()(self.world, number, list(remote), list(local))
        if self._errhandler is not None:
            made.Set_errhandler(self._errhandler)
        return made

    @classmethod
    def _plain(cls) -> Any:
        return Intercomm

    def _dup(self) -> Any:
        number, _ = self._union.world.take_number(self._union.allgather)
        return self._between(number, self._local, self.world_ranks())

    def Merge(self, high: bool = False) -> Intracomm:
        """Merge both groups into one communicator. Collective over both groups.

        Parameters
        ----------
        high : bool
            Whether the ranks of this group come after those of the other one. All ranks of a group pass the same.
        """
        self._require()
        number, flags = self.world.take_number(self._union.allgather, bool(high))
        ranks, n = self._union.world_ranks(), self._n_low()
        if flags[0] and not flags[n]:
            ranks = ranks[n:] + ranks[:n]
        made = Intracomm(self.world, number, ranks)
        if self._errhandler is not None:
            made.Set_errhandler(self._errhandler)
        return made

    def _n_low(self) -> int:
        """Return the number of ranks of the lower group."""
        return self._remote_base or len(self.world_ranks())

    def _sides(self, gathered: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the part of the local group and the part of the remote group of a list in the union's order."""
        low, high = gathered[: self._n_low()], gathered[self._n_low() :]
        return (low, high) if self._remote_base else (high, low)

    def _split(self, color: Any, key: int) -> Any:
        number, gathered = self.world.take_number(self._union.allgather, (color, int(key)))
        groups = []
        for side, ranks in zip(self._sides(gathered), (self._local, self.world_ranks()), strict=True):
            chosen = sorted((k, i) for i, (c, k) in enumerate(side) if c == color)
            groups.append([ranks[i] for _, i in chosen])
        if color == UNDEFINED or not groups[1]:
            return self._none(number)
        return self._between(number, *groups)

    def Create(self, group: Group) -> Any:
        """Create an intercommunicator of the ranks in *group* and in the group that the other side passes.

        Collective over both groups.

        Returns
        -------
        Intercomm
            COMM_NULL on ranks outside the groups.
        """
        self._require()
        with self._refusing():
            chosen = list(group._valid()._ranks)
            if not set(chosen) <= set(self._local):
                raise error("ERR_GROUP", "create: the group has ranks outside the local group; give a subset of it")
        number, gathered = self.world.take_number(self._union.allgather, chosen)
        others = list(self._sides(gathered)[1][0])
        if self.world.rank not in chosen or not others:
            return self._none(number)
        return self._between(number, chosen, others)

    def Create_group(self, group: Group, tag: int = 0) -> Any:
        """Raise ERR_COMM: it is not defined for intercommunicators."""
        raise error("ERR_COMM", "Create_group is not defined for intercommunicators; use Create")

    @classmethod
    def Create_from_groups(
        cls,
        local_group: Group,
        local_leader: int,
        remote_group: Group,
        remote_leader: int,
        stringtag: str = "org.mpi4py",
        info: Any = None,
        errhandler: Any = None,
    ) -> Any:
        """Create an intercommunicator of two groups. Collective over both groups only.

        Parameters
        ----------
        local_group, remote_group : Group
            The group of this rank, and the other one. Each group passes itself as `local_group`.
        local_leader, remote_leader : int
            Accepted as in MPI. The ranks of both groups agree directly.
        stringtag : str
            Distinguishes concurrent calls.
        info : Info, optional
            Hints.
        errhandler : Errhandler, optional
            Error handler of the new communicator.
        """
        from viakit import comm  # start-up time

        mine, others = list(local_group._valid()._ranks), list(remote_group._valid()._ranks)
        for what, leader, ranks in (("local", local_leader, mine), ("remote", remote_leader, others)):
            if not 0 <= leader < len(ranks):
                raise error("ERR_RANK", f"{what} leader {leader}: its group has ranks 0 to {len(ranks) - 1}")
        whole = comm.world()
        ranks = mine + others if min(mine) < min(others) else others + mine
        few = SubsetStep(whole, ranks, zlib.crc32(b"groups" + stringtag.encode()) & TAG_MOST)
        try:
            number, _ = whole.world.take_number(lambda blob: run(whole, collective.allgather_object(few, blob), few))
        except BaseException:
            few.give_up()
            raise
        made: Intercomm = Intercomm(whole.world, number, others, mine)
        made._info = dict(info or {})
        if errhandler:
            made.Set_errhandler(errhandler)
        return made

    # ------------------------------------------------------------ the end

    def Free(self) -> None:
        """Free the intercommunicator. Collective over both groups.

        If the groups are separate jobs (Spawn, Connect), the connection between them ends with its last communicator.
        """
        self._require()
        self._delete_attributes()
        if self._at_exit is not None:
            # After a revocation the ranks cannot agree which one is the last: the connection ends with the process.
            last = not self._revoked and not any(self._union.allgather(len(self.world.used) > 2))
            self._union._close_group()
            self._freed = True
            if last:
                self._at_exit()
            return
        self._union.Free()
        self._freed = True

    Disconnect = Free

    def _let_go(self) -> None:
        """Do nothing: the number is released with the communicator of both groups."""


def create_intercomm(comm: Intracomm, local_leader: int, peer_comm: Any, remote_leader: int, tag: int = 0) -> Any:
    """Create an intercommunicator of the ranks of *comm* and those of another communicator: see Create_intercomm."""
    leads = comm.rank == local_leader
    with comm._refusing():
        if not 0 <= local_leader < comm.size:
            raise error("ERR_RANK", f"local leader {local_leader}: this communicator has ranks 0 to {comm.size - 1}")
        if leads and peer_comm.world is not comm.world:
            raise error("ERR_COMM", "the peer communicator belongs to another connection of jobs; Merge that one first")
        if leads and not 0 <= remote_leader < getattr(peer_comm, "remote_size", peer_comm.size):
            raise error("ERR_RANK", f"remote leader {remote_leader}: the peer communicator has no such rank")

    def swap(mine: Any) -> Any:
        theirs = peer_comm.sendrecv(mine, remote_leader, tag, None, remote_leader, tag) if leads else None
        return comm.bcast(theirs, local_leader)

    mine = comm.world_ranks()
    others = swap(mine)
    if set(mine) & set(others):
        raise error("ERR_COMM", "the two groups of an intercommunicator must have no rank in common")

    def exchange(one: Any) -> list[Any]:
        local = comm.allgather(one)
        remote = swap(local)
        return list(local + remote if min(mine) < min(others) else remote + local)

    number, _ = comm.world.take_number(exchange)
    made = Intercomm(comm.world, number, others, mine)
    if comm._errhandler is not None:
        made.Set_errhandler(comm._errhandler)
    return made


def create_from_group(
    group: Group, stringtag: str = "org.mpi4py", info: Any = None, errhandler: Any = None
) -> Intracomm:
    """Create a communicator of a group, without a communicator to begin with: see Intracomm.Create_from_group."""
    from viakit import comm  # start-up time

    made = comm.world().Create_group(group, zlib.crc32(stringtag.encode()) & TAG_MOST)
    if made is not COMM_NULL and made:
        made._info = dict(info or {})
        if errhandler:
            made.Set_errhandler(errhandler)
    return made
