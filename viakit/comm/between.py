"""Calls of communicators that need other kinds of objects: intercommunicators, and requests of buffered sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from viakit.comm.group import Group
    from viakit.comm.request import Request
    from viakit.comm.worlds import World

__all__ = ["Between", "Flushes"]


class Flushes:
    """The part of ``MPI.Comm`` that waits for buffered sends."""

    world: World

    def Flush_buffer(self) -> None:
        """Wait until all buffered sends of the process have been transmitted."""
        self.world.attach(self.world.detach())

    def Iflush_buffer(self) -> Request:
        """Start to wait until all buffered sends have been transmitted; viakit waits at once."""
        from viakit.comm.grequest import Grequest

        self.Flush_buffer()
        request = Grequest.Start()
        request.Complete()
        return request


class Between:
    """The part of ``MPI.Intracomm`` that creates intercommunicators, and communicators of groups."""

    def Create_intercomm(self, local_leader: int, peer_comm: Any, remote_leader: int, tag: int = 0) -> Any:
        """Create an intercommunicator of the ranks of this communicator and those of another one.

        Collective over both communicators, which have no rank in common.

        Parameters
        ----------
        local_leader : int
            Rank in this communicator that speaks for it.
        peer_comm : Comm
            Communicator in which both leaders are; it matters on the leaders only.
        remote_leader : int
            Rank of the other leader in `peer_comm`.
        tag : int
            Tag of the leaders' messages in `peer_comm`.

        Returns
        -------
        Intercomm
        """
        from viakit.comm.inter import create_intercomm

        return create_intercomm(cast(Any, self), local_leader, peer_comm, remote_leader, tag)

    @classmethod
    def Create_from_group(
        cls, group: Group, stringtag: str = "org.mpi4py", info: Any = None, errhandler: Any = None
    ) -> Any:
        """Create a communicator of the ranks in *group*, without a communicator to begin with.

        Collective over the group only.

        Parameters
        ----------
        group : Group
            Ranks of the new communicator.
        stringtag : str
            Distinguishes concurrent calls.
        info : Info, optional
            Hints.
        errhandler : Errhandler, optional
            Error handler of the new communicator.
        """
        from viakit.comm.inter import create_from_group

        return create_from_group(group, stringtag, info, errhandler)
