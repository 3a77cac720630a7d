"""Communicators: what they are, communicators made of others, grids."""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from viakit import _core
from viakit._comm import collective, errors
from viakit._comm.collective_calls import Collectives
from viakit._comm.datatype import UNDEFINED
from viakit._comm.errors import error
from viakit._comm.group import CONGRUENT, IDENT, Group
from viakit._comm.schedule import run
from viakit._comm.status import PROC_NULL
from viakit._words import counted

if TYPE_CHECKING:
    from typing_extensions import Self

errors._setup()
MAX_COMMUNICATORS = (
    13106  # five contexts of the engine each; beside COMM_WORLD and COMM_SELF, whose numbers are 0 and 1
)
COMM_TYPE_SHARED = 0
CART = 1
TAG_UB, TAG_MOST = 2, 2**31 - 1


class World(_core.MsgWorld):
    """One rank's end of a job, and the numbers of the communicators that live in it.

    What is left over of a communicator that has been freed (a message nobody has received, a word of who waited or gave
    up) would reach the next one of its number. So numbers go round: none comes again before all others have had their
    turn. `turn` counts how often a number was given out, and `used` has the turn at which each got its own.
    """

    def __init__(self, rank: int, size: int, **options: Any) -> None:
        self.used: dict[int, int] = {0: 0, 1: 0}
        self.turn = 0
        self._claiming = threading.Lock()
        self.by_messages = os.environ.get("VIAKIT_COLLECTIVES", "") == "messages"
        super().__init__(rank, size, **options)

    def take_number(self, exchange: Callable[[Any], list[Any]], mine: Any = None) -> tuple[int, list[Any]]:
        """A number that none of several ranks uses, and what each of them has given as `mine`.

        They all call, and `exchange` gives each what all of them have. Another thread may be about to take the same
        number, on this rank or another, out of another communicator. So where a rank has threads there is a second
        exchange: whoever finds the number taken says so, and all try the next.
        """
        while True:
            everybody = exchange((self.turn, list(self.used), threading.active_count() > 1, mine))
            taken = set().union(*(used for _, used, _, _ in everybody))
            if len(taken) > MAX_COMMUNICATORS:
                raise error("ERR_OTHER", f"more than {MAX_COMMUNICATORS} communicators: free some")
            turn = max(turn for turn, _, _, _ in everybody)
            while (number := 2 + turn % (MAX_COMMUNICATORS - 1)) in taken:
                turn += 1
            claimed, agreed = self._claim(number, turn), False
            try:
                agreed = all(exchange(claimed)) if any(others for _, _, others, _ in everybody) else claimed
            finally:
                if claimed and not agreed:
                    self.used.pop(number)
            if agreed:
                return number, [theirs for _, _, _, theirs in everybody]

    def _claim(self, number: int, turn: int) -> bool:
        with self._claiming:
            self.turn = max(self.turn, turn + 1)
            if number in self.used:
                return False
            self.used[number] = turn
            return True


class Comm(Collectives):
    """``MPI.Comm``: ranks that can send messages to each other and to nobody else."""

    world: World

    def __new__(cls, world: Any = None, *args: Any) -> Any:
        """One of no world is null; one of a communicator is that communicator."""
        if world is None or isinstance(world, _NullComm):
            return _NullComm()
        if isinstance(world, cls):
            return world
        if not isinstance(world, World):
            raise TypeError(f"{cls.__name__}: made of nothing or of a {cls.__name__}, not of {type(world).__name__}")
        return super().__new__(cls, world, *args)

    def __init__(self, world: Any, number: int = 0, ranks: Sequence[int] | None = None) -> None:
        if world is self:
            return
        self._info: dict[str, str] = {}
        self._spare = []
        self._name = ""
        self._freed = False
        self._attributes: dict[int, Any] = {}
        self._given_up: list[int] = []  # collectives by messages that this rank has given up, and ...
        self._others_gave_up: dict[int, list[tuple[int, int]]] = {}  # ... who else has: its rank, and the tag
        self._fews = collective.Fews()
        self.birth = world.used[number]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return NotImplemented
        return other.world is self.world and other.number == self.number

    def __hash__(self) -> int:
        return hash((id(self.world), self.number))

    def __bool__(self) -> bool:
        return not self._freed

    def __repr__(self) -> str:
        return f"<viakit MPI.{type(self).__name__} {self._name!r}: rank {self.rank} of {self.size}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self.number > 1:
            raise ValueError("of communicators only COMM_WORLD and COMM_SELF can be pickled")
        from viakit import comm

        return (comm.again, (self.number == 1,))

    # ------------------------------------------------------------ what it is

    def Get_rank(self) -> int:
        """The rank of this process."""
        return self.rank

    def Get_size(self) -> int:
        """How many ranks."""
        return self.size

    @property
    def group(self) -> Group:
        """The ranks."""
        return Group(self.world_ranks(), self.world.rank)

    def Get_group(self) -> Group:
        """The ranks."""
        return self.group

    @property
    def name(self) -> str:
        """The name that it was given."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    def Get_name(self) -> str:
        """The name that it was given."""
        return self._name

    def Set_name(self, name: str) -> None:
        """Give it a name."""
        self._name = name

    def Compare(self, comm: Comm) -> int:
        """IDENT, CONGRUENT (the same ranks), SIMILAR (in another order) or UNEQUAL."""
        if self == comm:
            return IDENT
        same = self.group.Compare(comm.group)
        return CONGRUENT if same == IDENT else same

    def Get_info(self) -> Any:
        """What has been said of it; nothing follows from it."""
        from viakit.mpi import Info

        return Info(self._info)

    def Set_info(self, info: Any) -> None:
        """Say something of it."""
        self._info = dict(info)

    info = property(Get_info, Set_info, doc="What has been said of it; nothing follows from it.")

    @classmethod
    def Get_parent(cls) -> Any:
        """COMM_NULL: nobody has spawned this program."""
        return COMM_NULL

    is_inter, is_intra = False, True

    def Is_inter(self) -> bool:
        """False: there are no intercommunicators."""
        return False

    def Is_intra(self) -> bool:
        """True."""
        return True

    def Get_attr(self, keyval: int) -> int | None:
        """The value of an attribute: of TAG_UB the largest tag; None for others."""
        return TAG_MOST if keyval == TAG_UB else None

    @property
    def topology(self) -> int:
        """CART for a grid, else UNDEFINED."""
        return UNDEFINED

    def Get_topology(self) -> int:
        """CART for a grid, else UNDEFINED."""
        return self.topology

    @property
    def is_topo(self) -> bool:
        """Whether it is a grid."""
        return self.topology != UNDEFINED

    def Get_failed(self) -> Group:
        """The members that are known to have died."""
        dead = set(self.world.failures())
        return Group((rank for rank in self.world_ranks() if rank in dead), self.world.rank)

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Allow receives from any source again although members have died; how many have."""
        del num_to_ack
        self.world.failures_ack()
        return self.Get_failed().size

    def Abort(self, errorcode: int = 0) -> None:
        """End this process at once; the launcher ends the others."""
        from viakit.launch import bootstrap

        with contextlib.suppress(Exception):
            bootstrap().leaving()
            self.world.abort()
            bootstrap().abort(errorcode & 0xFF)
        os._exit(errorcode & 0xFF)

    def Get_errhandler(self) -> Any:
        """ERRORS_RETURN: errors are exceptions."""
        from viakit.mpi import MPI

        return MPI.ERRORS_RETURN

    def Set_errhandler(self, errhandler: Any) -> None:
        """Errors stay exceptions, whatever is asked for."""

    def Attach_buffer(self, buf: Any) -> None:
        """The buffer for buffered sends (of the whole process)."""
        self.world.attach(buf)

    def Detach_buffer(self) -> Any:
        """Wait until buffered sends have left; the buffer."""
        return self.world.detach()

    # ------------------------------------------------------------ others made of it

    def _none(self, number: int) -> Any:
        """Of a communicator that this rank has helped to make but is not in."""
        self.world.used.pop(number)
        return COMM_NULL

    def _new(self, kind: type[Comm], number: int, ranks: Sequence[int], *args: Any) -> Any:
        return kind(self.world, number, list(ranks), *args)

    def Dup(self, info: Any = None) -> Self:
        """The same ranks, and messages of their own."""
        made: Self = self._dup()
        made.Set_info(self._info if info is None else info)
        return made

    def Dup_with_info(self, info: Any) -> Self:
        """The same, of which something else is said."""
        return self.Dup(info)

    def _dup(self) -> Any:
        return self._new(Intracomm, self.world.take_number(self.allgather)[0], self.world_ranks())

    Clone = Dup

    def Split(self, color: int = 0, key: int = 0) -> Intracomm:
        """One communicator for each color, its ranks in the order of `key`; COMM_NULL for UNDEFINED."""
        color = int(color)
        if color < 0 and color != UNDEFINED:
            raise error("ERR_ARG", f"color {color}: colors are 0 or more, or UNDEFINED")
        return self._split(color, key)

    def _split(self, color: Any, key: int) -> Intracomm:
        """The same by whatever can be compared."""
        number, everybody = self.world.take_number(self.allgather, (color, int(key)))
        if color == UNDEFINED:
            return self._none(number)
        ranks = self.world_ranks()
        mine = sorted((k, i) for i, (c, k) in enumerate(everybody) if c == color)
        return self._new(Intracomm, number, [ranks[i] for _, i in mine])

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Intracomm:
        """COMM_TYPE_SHARED: the ranks of each host together."""
        del info
        if split_type == UNDEFINED:
            return self._split(UNDEFINED, key)
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return self._split((file.read().strip(), os.stat("/proc/self/ns/net").st_ino), key)

    def Create(self, group: Group) -> Intracomm:
        """The ranks of a group; COMM_NULL for the others. All ranks call."""
        number, _ = self.world.take_number(self.allgather)
        if self.world.rank not in group._ranks:
            return self._none(number)
        return self._new(Intracomm, number, group._ranks)

    def Create_group(self, group: Group, tag: int = 0) -> Intracomm:
        """The ranks of a group; only they call."""
        ranks = [self.group._ranks.index(rank) for rank in group._ranks]
        if self.rank not in ranks:
            return COMM_NULL
        few = collective.Few(self, ranks, tag)
        try:
            number, _ = self.world.take_number(lambda mine: run(self, collective.allgather_object(few, mine), few))
        except BaseException:
            few.give_up()  # an interrupt may come between two exchanges
            raise
        return self._new(Intracomm, number, group._ranks)

    def Free(self) -> None:
        """Give it up. Collective. Operations under way go on to their end."""
        if self.number < 2:
            raise error("ERR_COMM", "COMM_WORLD and COMM_SELF cannot be freed")
        if self._freed:
            raise error("ERR_COMM", "this communicator has been freed already")
        step = collective.Step(self, "barrier")
        run(self, collective.meet(step), step)
        self._close_group()
        self._freed = True
        self.close_own()
        self._let_go()

    def _let_go(self) -> None:
        """Of one that has been freed, when its last schedule, which still sends and receives, has ended."""
        mine = self._freed and self.world.used.get(self.number) == self.birth  # not another's by now
        if mine and self not in list(self.world.schedules.values()):
            self.forget()
            self.world.used.pop(self.number)

    Disconnect = Free

    free = Free


class Intracomm(Comm):
    """``MPI.Intracomm``."""

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Cartcomm:
        """A grid of this shape, row by row; COMM_NULL for ranks that it does not need."""
        del reorder
        shape = [int(d) for d in ([dims] if isinstance(dims, int) else dims)]  # of no dimension: one rank
        if periods is None:
            periods = [False] * len(shape)
        elif isinstance(periods, (bool, int)):
            periods = [bool(periods)] * len(shape)
        if len(periods) != len(shape):
            raise ValueError(f"{len(shape)} dims, but {len(periods)} periods")
        n = math.prod(shape)
        if any(d < 1 for d in shape) or n > self.size:
            raise error("ERR_DIMS", f"a grid of shape {shape} on {counted(self.size, 'rank')}")
        number, _ = self.world.take_number(self.allgather)
        if self.rank >= n:
            return self._none(number)
        return Cartcomm(self.world, number, self.world_ranks()[:n], shape, [bool(p) for p in periods])


class Cartcomm(Intracomm):
    """``MPI.Cartcomm``: ranks laid out as a grid."""

    def __init__(self, world: World, number: int, ranks: Sequence[int], dims: list[int], periods: list[bool]) -> None:
        super().__init__(world, number, ranks)
        self._dims, self._periods = dims, periods

    @property
    def dims(self) -> list[int]:
        """How many places there are in each dimension."""
        return list(self._dims)

    @property
    def topology(self) -> int:
        """CART."""
        return CART

    @property
    def periods(self) -> list[int]:
        """1 for each dimension that is a ring."""
        return [int(p) for p in self._periods]

    @property
    def coords(self) -> list[int]:
        """Where this rank is."""
        return self.Get_coords(self.rank)

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return len(self._dims)

    dim = ndim

    @property
    def topo(self) -> tuple[list[int], list[int], list[int]]:
        """Shape, periods, and where this rank is."""
        return (self.dims, self.periods, self.coords)

    def Get_dim(self) -> int:
        """How many dimensions."""
        return self.ndim

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Shape, periods, and where this rank is."""
        return self.topo

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """The rank at a place; rings wrap around."""
        rank = 0
        for x, n, ring in zip(coords, self._dims, self._periods, strict=True):
            if ring:
                x %= n
            elif not 0 <= x < n:
                raise error("ERR_ARG", f"place {list(coords)} is not in a grid of shape {self._dims}")
            rank = rank * n + x
        return rank

    def Get_coords(self, rank: int) -> list[int]:
        """The place of a rank."""
        if not 0 <= rank < self.size:
            raise error("ERR_RANK", f"rank {rank}: this grid has ranks 0 to {self.size - 1}")
        place = []
        for n in reversed(self._dims):
            rank, x = divmod(rank, n)
            place.append(x)
        return place[::-1]

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Whom to receive from and whom to send to, `disp` steps along a dimension; PROC_NULL beyond the border."""
        if not 0 <= direction < self.ndim:
            raise error("ERR_DIMS", f"direction {direction}: this grid has {counted(self.ndim, 'dimension')}")

        def at(step: int) -> int:
            place = self.coords
            place[direction] += step
            inside = self._periods[direction] or 0 <= place[direction] < self._dims[direction]
            return self.Get_cart_rank(place) if inside else PROC_NULL

        return at(-disp), at(disp)

    @property
    def inedges(self) -> list[int]:
        """The neighbours, in each dimension the one before and the one behind; PROC_NULL beyond the border."""
        return [rank for dimension in range(self.ndim) for rank in self.Shift(dimension, 1)]

    outedges = inedges

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        """Whom messages come from and go to: the same neighbours."""
        return (self.inedges, self.outedges)

    @property
    def indegree(self) -> int:
        """How many neighbours, those beyond the border among them."""
        return 2 * self.ndim

    outdegree = indegree

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """The grids of the dimensions that remain, one for each place in the others."""
        keep = [bool(k) for k in remain_dims]
        place = self.coords
        color = key = 0
        for x, n, k in zip(place, self._dims, keep, strict=True):
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


class _NullComm:
    """``MPI.COMM_NULL``: no communicator."""

    name = "MPI_COMM_NULL"

    def Get_name(self) -> str:
        """MPI_COMM_NULL."""
        return self.name

    def __reduce__(self) -> Any:
        return "COMM_NULL" if self is COMM_NULL else (_NullComm, ())

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NullComm) or (isinstance(other, Comm) and other._freed)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "MPI.COMM_NULL"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise error("ERR_COMM", f"COMM_NULL has no {name}")


COMM_NULL: Any = _NullComm()
