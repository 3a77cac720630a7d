"""Communicators: their properties, duplication and splitting."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from viakit.base.words import counted
from viakit.comm import attributes, collective, errors
from viakit.comm.attributes import HasAttributes
from viakit.comm.between import Between, Copies, Flushes
from viakit.comm.buffers import host
from viakit.comm.cart import Grid
from viakit.comm.collective_calls import Collectives
from viakit.comm.comm_handle import CommHandle
from viakit.comm.datatype import UNDEFINED
from viakit.comm.errhandler import HasErrhandler
from viakit.comm.errors import error
from viakit.comm.group import CONGRUENT, IDENT, UNEQUAL, Group
from viakit.comm.handle import Numbered, forget
from viakit.comm.info import Info
from viakit.comm.mitigation import Mitigation
from viakit.comm.neighbors import Neighbors
from viakit.comm.partitioned import Partitioned
from viakit.comm.schedule import run
from viakit.comm.seal import SealGroup
from viakit.comm.spec import BUFFER_AUTOMATIC
from viakit.comm.step import Step, SubsetCounts, SubsetStep
from viakit.comm.topology_calls import Topologies
from viakit.comm.worlds import COLOR, World

if TYPE_CHECKING:
    from typing_extensions import Self

errors._setup()
COMM_TYPE_SHARED, TAG_MOST = 0, attributes.TAG_MOST


class Comm(CommHandle, Copies, Flushes, Partitioned, Mitigation, Collectives, HasAttributes, HasErrhandler, Numbered):
    """Base class of communicators: a set of ranks whose messages are separate from all other messages.

    ``MPI.Comm`` of mpi4py. Without an argument the constructor returns ``COMM_NULL``.

    Attributes
    ----------
    rank : int
        Rank of this process in the communicator.
    size : int
        Number of ranks.
    """

    world: World  # type: ignore[assignment]
    _family = _kind_of_keys = _kind_of_handlers = "Comm"

    def __new__(cls, comm: Any = None, *args: Any, **options: Any) -> Any:
        """Return a new handle of *comm*, or a null handle without an argument.

        Handles of one communicator share its messages and its state. The class of a handle may be a subclass of
        viakit's, so ``class MyComm(MPI.Intracomm)`` gives a communicator methods of its own.
        """
        if isinstance(comm, World):  # a new communicator: (world, number, ranks, ...)
            return super().__new__(cls, comm, *args)
        if comm is None or (isinstance(comm, Comm) and comm.is_null):
            return super().__new__(cls)
        if not isinstance(comm, Comm) or not cls._takes(comm):
            raise TypeError(
                f"{cls.__name__}() takes no argument or a communicator of this kind, got {type(comm).__name__}; use "
                "Dup, Split or Create to make a new communicator"
            )
        return comm._handle(cls)

    def __init__(self, world: Any = None, number: Any = 0, ranks: Any = None, **options: Any) -> None:
        if not isinstance(world, World):
            return
        self._attributes: dict[int, Any] = {}
        self._given_up: list[int] = []  # numbers of the collectives that this rank abandoned
        self._subset_counts = SubsetCounts()
        self._seal_group: SealGroup | None = None
        self.incarnation = world.used[number]
        world.living[id(self)] = self
        self.open_scope(self.incarnation, min(self.world_ranks()))

    def _identity(self) -> Any:
        return None if self._freed else self._attributes  # one dictionary for all handles

    def seal_group(self) -> SealGroup:
        """Return the ranks of this communicator as the tags of its objects name them."""
        if self._seal_group is None:
            self._seal_group = SealGroup(self.world_ranks())
        return self._seal_group

    # ------------------------------------------------------------ properties

    def Get_rank(self) -> int:
        """Return the rank of this process in the communicator."""
        return self.rank

    def Get_size(self) -> int:
        """Return the number of ranks in the communicator."""
        return self.size

    @property
    def group(self) -> Group:
        """Group of the communicator's ranks."""
        return Group(self.world_ranks(), self.world.rank)

    def Get_group(self) -> Group:
        """Return the group of the communicator's ranks."""
        self._alive()
        return self.group

    @property
    def name(self) -> str:
        """Name of the communicator, for messages and debugging."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    def Get_name(self) -> str:
        """Return the name of the communicator."""
        return self._name

    def Set_name(self, name: str) -> None:
        """Set the name of the communicator."""
        self._name = name

    def Compare(self, comm: Comm) -> int:
        """Compare two communicators.

        Returns
        -------
        int
            IDENT for the same communicator, CONGRUENT for the same ranks in the same order, SIMILAR for the same ranks
            in another order, UNEQUAL otherwise.
        """
        self._alive()
        comm._alive()
        if self == comm:
            return IDENT
        if self.is_inter != comm.is_inter:
            return UNEQUAL
        return self._compare_groups(comm)

    def _compare_groups(self, comm: Comm) -> int:
        same = self.group.Compare(comm.group)
        return CONGRUENT if same == IDENT else same

    def Get_info(self) -> Any:
        """Return a copy of the hints set with `Set_info`."""
        self._alive()
        return Info.Create(self._info)

    def Set_info(self, info: Any) -> None:
        """Attach the hints in *info* to the communicator. viakit stores them and acts on none."""
        self._info = dict(info or {})

    info = property(Get_info, Set_info, doc="Hints attached to the communicator. viakit acts on none of them.")

    @classmethod
    def Get_parent(cls) -> Any:
        """Return the intercommunicator with the ranks that spawned this one; a null one if no rank did.

        Collective over the spawned ranks: the first call connects them to their parents.
        """
        from viakit.comm.dynamic import parent  # it imports this module

        return parent()

    @classmethod
    def Join(cls, fd: int) -> Any:
        """Connect this process and the one at the other end of a connected socket, and return the intercommunicator.

        Parameters
        ----------
        fd : int
            Descriptor of the socket, whose other end must be on this host. It stays open.
        """
        from viakit.comm.ports import join_socket  # it imports this module

        return join_socket(fd)

    is_inter, is_intra = False, True

    def Is_inter(self) -> bool:
        """Return whether the communicator connects two groups of ranks."""
        self._alive()
        return bool(self.is_inter)

    def Is_intra(self) -> bool:
        """Return whether the communicator has one group of ranks."""
        self._alive()
        return bool(self.is_intra)

    def _attribute_values(self) -> dict[int, Any]:
        if self._freed:
            raise error("ERR_COMM", "this communicator has been freed")
        return self._attributes

    def _predefined_attribute(self, keyval: int) -> Any:
        return attributes.predefined(keyval)

    @property
    def topology(self) -> int:
        """Type of the topology: CART for a Cartesian grid, otherwise UNDEFINED."""
        return UNDEFINED

    def Get_topology(self) -> int:
        """Return the type of the topology: CART for a Cartesian grid, otherwise UNDEFINED."""
        self._alive()
        return self.topology

    @property
    def is_topo(self) -> bool:
        """Whether the communicator has a topology."""
        return self.topology != UNDEFINED

    def Get_failed(self) -> Group:
        """Return the group of members that are known to have failed."""
        dead = set(self.world.failures())
        return Group((rank for rank in self.world_ranks() if rank in dead), self.world.rank)

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Acknowledge the failed members, so that receives from ANY_SOURCE are possible again.

        Parameters
        ----------
        num_to_ack : int, optional
            Ignored. All known failures are acknowledged.

        Returns
        -------
        int
            Number of failed members.
        """
        del num_to_ack
        self.world.failures_ack()
        return self.Get_failed().size

    def Abort(self, errorcode: int = 0) -> None:
        """Terminate this process at once with *errorcode*; the launcher terminates the other ranks.

        Parameters
        ----------
        errorcode : int, optional
            Exit status. Its lowest 8 bits are used.
        """
        from viakit.launch import bootstrap  # start-up time

        with contextlib.suppress(Exception):
            bootstrap().aborting()
            self.world.abort()
            bootstrap().abort(errorcode & 0xFF)
        os._exit(errorcode & 0xFF)

    def Attach_buffer(self, buf: Any) -> None:
        """Attach a buffer for buffered sends (`Bsend`, `bsend`) of the whole process.

        Parameters
        ----------
        buf : writable buffer or BUFFER_AUTOMATIC
            Memory that holds the messages until they have been sent. With BUFFER_AUTOMATIC viakit allocates memory for
            each message.
        """
        automatic = buf is BUFFER_AUTOMATIC
        self.world.attach(buf if automatic else host(buf), automatic)

    def Detach_buffer(self) -> Any:
        """Wait until all buffered sends have been transmitted, then detach and return the buffer."""
        return self.world.detach()

    # ------------------------------------------------------------ new communicators

    def _take_number(self, mine: Any = None) -> tuple[int, list[Any]]:
        """Agree with the other ranks on the number of a new communicator, and gather `mine` of each rank."""
        return self.world.take_number(self._gather_all, mine, self._allgather_block)

    def _none(self, number: int) -> Any:
        """Release the number of a communicator that this rank helped to create without being a member."""
        self.world.used.pop(number)
        return COMM_NULL

    def _new(self, kind: type[Comm], number: int, ranks: Sequence[int], *args: Any) -> Any:
        made = kind(self.world, number, list(ranks), *args)
        if self._errhandler is not None:
            made.Set_errhandler(self._errhandler)
        return made

    def Dup(self, info: Any = None) -> Self:
        """Duplicate the communicator: the same ranks, with messages separate from the original's. Collective.

        Parameters
        ----------
        info : Info, optional
            Hints of the copy. Default: those of the original.

        Returns
        -------
        Comm
            A communicator of the same class.
        """
        self._alive()
        with self._refusing():
            said = dict(self._info if info is None else info or {})
        made: Self = self._dup()
        made._info = said
        self._copy_attributes(made)
        return made if type(made) is type(self) else made._handle(type(self))

    def Dup_with_info(self, info: Any) -> Self:
        """Duplicate the communicator and attach *info* to the copy. Collective."""
        return self.Dup(info)

    def Clone(self) -> Self:
        """Duplicate the communicator: a new handle of the same class. Collective."""
        return self.Dup()

    def _dup(self) -> Any:
        return self._new(Intracomm, self._take_number()[0], self.world_ranks())

    def Split(self, color: int = 0, key: int = 0) -> Intracomm:
        """Split communicator by color and key. Collective.

        Parameters
        ----------
        color : int
            Ranks with the same color form one new communicator; 0 or more, or UNDEFINED for none.
        key : int
            Order of the ranks in the new communicator. Equal keys keep the order of this communicator.

        Returns
        -------
        Intracomm
            COMM_NULL if the color is UNDEFINED.

        Raises
        ------
        Exception
            ERR_ARG if the color is negative and not UNDEFINED.
        """
        self._alive()
        with self._refusing():
            for given in (color, key):
                if isinstance(given, (str, bytes, bytearray)):  # int() would accept the digits of a text
                    raise TypeError(f"color and key must be integers, got {type(given).__name__}")
            color, key = int(color), int(key)
            if color < 0 and color != UNDEFINED:
                raise error("ERR_ARG", f"color must be 0 or more, or UNDEFINED, got {color}")
        return self._split(color, key)

    def _split(self, color: Any, key: int) -> Intracomm:
        """Split by a color: an integer, or as many bytes as a proposal of a number has room for."""
        mark = color
        with contextlib.suppress(AttributeError, OverflowError):  # bytes, or more than 191 bits
            mark = color.to_bytes(COLOR, "little", signed=True)
        number, gathered = self._take_number((mark, key))
        if color == UNDEFINED:
            return self._none(number)
        ranks = self.world_ranks()
        mine = sorted((k, i) for i, (c, k) in enumerate(gathered) if c == mark)
        return self._new(Intracomm, number, [ranks[i] for _, i in mine])

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Intracomm:
        """Split communicator into groups of ranks that share a resource. Collective.

        Parameters
        ----------
        split_type : int
            COMM_TYPE_SHARED (ranks of one host, that is, of one kernel and network namespace), or UNDEFINED.
        key : int
            Order of the ranks in the new communicator.
        info : Info, optional
            Ignored.

        Returns
        -------
        Intracomm
            COMM_NULL if the type is UNDEFINED.
        """
        del info
        self._alive()
        with self._refusing():
            key = int(key)
        if split_type == UNDEFINED:
            return self._split(UNDEFINED, key)
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = bytes.fromhex(file.read().strip().replace("-", ""))
        return self._split(boot + os.stat("/proc/self/ns/net").st_ino.to_bytes(COLOR - len(boot), "little"), key)

    def Create(self, group: Group) -> Intracomm:
        """Create a communicator of the ranks in *group*. Collective over this communicator.

        Returns
        -------
        Intracomm
            COMM_NULL on ranks outside the group.
        """
        self._alive()
        with self._refusing():
            ranks = list(group._valid()._ranks)
            if not set(ranks) <= set(self.world_ranks()):
                raise error(
                    "ERR_GROUP",
                    "create: the group has ranks that are not in this communicator; give a subset of its group",
                )
        number, _ = self._take_number()
        if self.world.rank not in ranks:
            return self._none(number)
        return self._new(Intracomm, number, ranks)

    def Create_group(self, group: Group, tag: int = 0) -> Intracomm:
        """Create a communicator of the ranks in *group*. Collective over the group only.

        Parameters
        ----------
        group : Group
            Ranks of the new communicator, a subset of this one's.
        tag : int
            Distinguishes concurrent calls with the same group, for example from several threads.

        Returns
        -------
        Intracomm
            COMM_NULL if the calling rank is outside the group.
        """
        self.refuse_revoked("create_group")
        with self._refusing():
            members = group._valid()._ranks
        ranks = [self.group._ranks.index(rank) for rank in members]
        if self.rank not in ranks:
            return COMM_NULL
        few = SubsetStep(self, ranks, tag)
        try:
            number, _ = self.world.take_number(lambda mine: run(self, collective.allgather_object(few, mine), few))
        except BaseException:
            few.give_up()  # An interrupt may arrive between two exchanges.
            raise
        return self._new(Intracomm, number, group._ranks)

    def Free(self) -> None:
        """Free the communicator. Collective, unless it is revoked. Pending operations continue until they complete.

        Raises
        ------
        Exception
            ERR_COMM for COMM_WORLD and COMM_SELF, and for a communicator that has been freed.
        """
        self._alive()
        if self.number < 2:
            raise error("ERR_COMM", "COMM_WORLD and COMM_SELF cannot be freed")
        self._delete_attributes()
        forget(self._family, self._attributes)
        if not self._revoked:
            self._meet()
        self._close_group()
        self._freed = True
        self.close_own()
        self._let_go()

    def _meet(self) -> None:
        """Wait until all messages to this rank have arrived, or the communicator is revoked."""
        try:
            if not self._meet_at_once():
                step = Step(self, "barrier")
                run(self, collective.meet(step), step)
        except errors.Exception:
            if not self._revoked:
                raise

    def _let_go(self) -> None:
        """Release the number of a freed communicator once its last schedule, which may still send, has ended."""
        mine = self._freed and self.world.used.get(self.number) == self.incarnation  # The number may have been reused.
        if mine and not any(map(self.shares, self.world.active_comms())):
            self.forget()
            self.world.used.pop(self.number)

    Disconnect = Free


class Intracomm(Topologies, Between, Comm):
    """Communicator of one group of ranks: ``MPI.Intracomm``."""

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Cartcomm:
        """Create a communicator whose ranks form a Cartesian grid in row-major order. Collective.

        Parameters
        ----------
        dims : int or sequence of int
            Number of ranks along each dimension.
        periods : bool or sequence of bool, optional
            Whether each dimension is periodic. Default: none is.
        reorder : bool, optional
            Ignored. Ranks keep their order.

        Returns
        -------
        Cartcomm
            COMM_NULL on ranks beyond the grid.

        Raises
        ------
        Exception
            ERR_DIMS if a dimension is not positive or the grid has more places than there are ranks.
        ValueError
            If `periods` and `dims` have different lengths.
        """
        del reorder
        self._alive()
        with self._refusing():
            # A grid of no dimension has one rank.
            shape = [index(d) for d in ([dims] if isinstance(dims, int) else dims)]
            if periods is None:
                periods = [False] * len(shape)
            elif isinstance(periods, (bool, int)):
                periods = [bool(periods)] * len(shape)
            if len(periods) != len(shape):
                raise ValueError(
                    f"dims has {len(shape)} entries and periods {len(periods)}; give one period per dimension"
                )
            n = math.prod(shape)
            if any(d < 1 for d in shape) or n > self.size:
                raise error(
                    "ERR_DIMS",
                    f"a grid of shape {shape} does not fit on {counted(self.size, 'rank')}; dimensions must be "
                    "positive and their product at most the number of ranks",
                )
        number, _ = self._take_number()
        if self.rank >= n:
            return self._none(number)
        return Cartcomm(self.world, number, self.world_ranks()[:n], shape, [bool(p) for p in periods])


class Topocomm(Neighbors, Intracomm):
    """Base class of communicators with a topology: ``MPI.Topocomm``."""

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return isinstance(comm, Topocomm)


class Cartcomm(Grid, Topocomm):
    """Communicator whose ranks form a Cartesian grid: ``MPI.Cartcomm``."""

    def __init__(
        self,
        world: Any = None,
        number: Any = 0,
        ranks: Any = None,
        dims: Any = None,
        periods: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(world, number, ranks)
        if isinstance(world, World):
            self._dims, self._periods = dims, periods

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return isinstance(comm, Cartcomm)

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Split the grid into subgrids that keep some of the dimensions. Collective.

        Parameters
        ----------
        remain_dims : sequence of bool
            Whether each dimension is kept.

        Returns
        -------
        Cartcomm
            The subgrid of this rank. There is one subgrid for each place in the dimensions that are dropped.
        """
        color = key = 0
        with self._refusing():
            keep = [bool(k) for k in remain_dims]
            for x, n, k in zip(self.coords, self._dims, keep, strict=True):
                if k:
                    key = key * n + x
                else:
                    color = color * n + x
        part = self.Split(color, key)
        dims = [n for n, k in zip(self._dims, keep, strict=True) if k]
        periods = [p for p, k in zip(self._periods, keep, strict=True) if k]
        return Cartcomm(part.world, part.number, part.world_ranks(), dims, periods)

    def _dup(self) -> Any:
        plain = super()._dup()
        return Cartcomm(plain.world, plain.number, plain.world_ranks(), list(self._dims), list(self._periods))


COMM_NULL: Any = Comm()
