"""Calls of communicators that need other kinds of objects: intercommunicators, and requests of buffered sends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from viakit.comm.group import Group
    from viakit.comm.request import Request
    from viakit.comm.worlds import World

__all__ = ["Between", "Copies", "Flushes"]


class Flushes:
    """The part of ``MPI.Comm`` that waits for buffered sends."""

    world: World

    def Flush_buffer(self) -> None:
        """Wait until all buffered sends of the process have been transmitted."""
        attached = self.world.detach()
        if attached is not None:
            cast("Any", self).Attach_buffer(attached)

    def Iflush_buffer(self) -> Request:
        """Start to wait until all buffered sends have been transmitted; viakit waits at once."""
        from viakit.comm.grequest import Grequest  # it imports this module

        self.Flush_buffer()
        request = Grequest.Start()
        request.Complete()
        return request


class Copies:
    """The part of ``MPI.Comm`` that duplicates without waiting, as far as viakit can."""

    def Idup(self, info: Any = None) -> tuple[Any, Request]:
        """Duplicate the communicator, and return the copy and a request, which is complete. Collective.

        The call waits for the other ranks, because they agree on a number.
        """
        from viakit.comm.grequest import Grequest  # it imports this module

        made = cast("Any", self).Dup(info)
        request = Grequest.Start()
        request.Complete()
        return made, request

    def Idup_with_info(self, info: Any) -> tuple[Any, Request]:
        """Duplicate the communicator with hints: see `Idup`."""
        return self.Idup(info)


class Between:
    """The part of ``MPI.Intracomm`` that creates intercommunicators, and communicators of groups."""

    @classmethod
    def _takes(cls, comm: Any) -> bool:
        return not comm.is_inter  # an intercommunicator has no handle of this class

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
        from viakit.comm.inter import create_intercomm  # it imports this module

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
        from viakit.comm.inter import create_from_group  # it imports this module

        return create_from_group(group, stringtag, info, errhandler)

    def Spawn(
        self,
        command: Any,
        args: Any = None,
        maxprocs: int = 1,
        info: Any = None,
        root: int = 0,
        errcodes: list[int] | None = None,
    ) -> Any:
        """Start ranks of a program on the root's host, and return the intercommunicator with them. Collective.

        Parameters
        ----------
        command : str or path
            Program. A Python program is spawned as ``sys.executable`` with its file in `args`.
        args : sequence of str, optional
            Arguments of the program.
        maxprocs : int
            Number of ranks.
        info : Info, optional
            Hints. "wdir" is the working folder of the ranks.
        root : int
            Rank whose arguments count.
        errcodes : list, optional
            Filled with SUCCESS for each rank.

        Returns
        -------
        Intercomm

        Raises
        ------
        Exception
            ERR_SPAWN if the program cannot be started, or does not connect within a minute. It connects when it calls
            `Get_parent`.
        """
        from viakit.comm import dynamic, spawning  # it imports this module

        made, counts = dynamic.spawn(self, root, lambda: [spawning.program(command, args, maxprocs, info)])
        if errcodes is not None:
            errcodes[:] = [0] * counts[0]
        return made

    def Spawn_multiple(
        self,
        command: Any,
        args: Any = None,
        maxprocs: Any = 1,
        info: Any = None,
        root: int = 0,
        errcodes: list[list[int]] | None = None,
    ) -> Any:
        """Start ranks of several programs, and return the intercommunicator with them. Collective.

        Parameters
        ----------
        command : sequence of str
            Programs.
        args : sequence of sequences of str, optional
            Arguments of each program.
        maxprocs : int or sequence of int
            Number of ranks of each program.
        info : Info or sequence of Info, optional
            Hints for each program.
        root : int
            Rank whose arguments count.
        errcodes : list, optional
            Filled with one list of SUCCESS for each program.

        Returns
        -------
        Intercomm
        """
        from viakit.comm import dynamic, spawning  # it imports this module

        made, counts = dynamic.spawn(self, root, lambda: spawning.programs(command, args, maxprocs, info))
        if errcodes is not None:
            errcodes[:] = [[0] * n for n in counts]
        return made

    def Accept(self, port_name: str, info: Any = None, root: int = 0) -> Any:
        """Wait for another job that connects to a port of the root, and return the intercommunicator with it.

        Collective over this communicator.

        Parameters
        ----------
        port_name : str
            Name of a port that the root has opened; it matters on the root only.
        info : Info, optional
            Ignored.
        root : int
            Rank of the root.
        """
        from viakit.comm.ports import accept  # it imports this module

        del info
        return accept(self, port_name, root)

    def Connect(self, port_name: str, info: Any = None, root: int = 0) -> Any:
        """Connect to the job that accepts at a port, and return the intercommunicator with it.

        Collective over this communicator.

        Parameters
        ----------
        port_name : str
            Name of the port; it matters on the root only.
        info : Info, optional
            Ignored.
        root : int
            Rank of the root.

        Raises
        ------
        Exception
            ERR_PORT if no job accepts there within a minute.
        """
        from viakit.comm.ports import connect  # it imports this module

        del info
        return connect(self, port_name, root)
