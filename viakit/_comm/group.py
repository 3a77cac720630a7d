"""Groups of ranks, and grids of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from viakit._comm.datatype import UNDEFINED
from viakit._comm.errors import error
from viakit._comm.status import PROC_NULL

IDENT, CONGRUENT, SIMILAR, UNEQUAL = 0, 1, 2, 3


class Group:
    """``MPI.Group``: ranks of the world in an order of their own; without an argument the null group."""

    _ranks: tuple[int, ...]
    _me: int
    _null: bool

    def __init__(self, ranks: Iterable[int] | Group | None = None, me: int = -1) -> None:
        if isinstance(ranks, Group):
            self._ranks, self._me, self._null = ranks._ranks, ranks._me, ranks._null
        else:
            self._ranks, self._me, self._null = tuple(ranks or ()), me, ranks is None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self._ranks == other._ranks and self._null == other._null

    def __hash__(self) -> int:
        return hash(self._ranks)

    def __bool__(self) -> bool:
        return not self._null

    def __reduce__(self) -> Any:
        if self is NULL or self is EMPTY:
            return "NULL" if self is NULL else "EMPTY"
        if self._ranks:
            raise ValueError("of groups only those without ranks can be pickled")
        return (Group, (NULL if self._null else EMPTY,))

    def __repr__(self) -> str:
        return f"<viakit MPI.Group of {len(self._ranks)}>"

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self._ranks)

    @property
    def rank(self) -> int:
        """The rank of this process, or UNDEFINED."""
        return self._ranks.index(self._me) if self._me in self._ranks else UNDEFINED

    def Get_size(self) -> int:
        """How many ranks."""
        return self.size

    def Get_rank(self) -> int:
        """The rank of this process, or UNDEFINED."""
        return self.rank

    def Dup(self) -> Group:
        """The same ranks."""
        return Group(self._ranks, self._me)

    def Free(self) -> None:
        """Forget it."""
        self._ranks, self._null = (), True

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """The ranks that these have in another group, or UNDEFINED."""
        chosen = range(self.size) if ranks is None else ranks
        other = self._ranks if group is None else group._ranks
        found = []
        for rank in chosen:
            if rank == PROC_NULL:
                found.append(PROC_NULL)
            else:
                number = self._at(rank)
                found.append(other.index(number) if number in other else UNDEFINED)
        return found

    def Compare(self, group: Group) -> int:
        """IDENT, SIMILAR (another order) or UNEQUAL."""
        if self._ranks == group._ranks:
            return IDENT
        return SIMILAR if sorted(self._ranks) == sorted(group._ranks) else UNEQUAL

    def _at(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise error("ERR_RANK", f"rank {rank}: this group has ranks 0 to {self.size - 1}")
        return self._ranks[rank]

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        """The first's ranks, then those of the second that are new."""
        return cls((*group1._ranks, *(r for r in group2._ranks if r not in group1._ranks)), max(group1._me, group2._me))

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        """The first's ranks that are in the second, too."""
        return cls((r for r in group1._ranks if r in group2._ranks), group1._me)

    Intersect = Intersection

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        """The first's ranks that are not in the second."""
        return cls((r for r in group1._ranks if r not in group2._ranks), group1._me)

    def Incl(self, ranks: Sequence[int]) -> Group:
        """These ranks, in this order."""
        chosen = [self._at(rank) for rank in ranks]
        if len(set(chosen)) != len(chosen):
            raise error("ERR_RANK", f"ranks {list(ranks)}: one of them is there twice")
        return Group(chosen, self._me)

    def Excl(self, ranks: Sequence[int]) -> Group:
        """All but these."""
        gone = {self._at(rank) for rank in ranks}
        return Group((r for r in self._ranks if r not in gone), self._me)

    @staticmethod
    def _spread(ranges: Sequence[Sequence[int]]) -> list[int]:
        return [r for a, b, step in ranges for r in range(a, b + (1 if step > 0 else -1), step)]

    def Range_incl(self, ranks: Sequence[Sequence[int]]) -> Group:
        """The ranks of ranges (first, last, step)."""
        return self.Incl(self._spread(ranks))

    def Range_excl(self, ranks: Sequence[Sequence[int]]) -> Group:
        """All but those."""
        return self.Excl(self._spread(ranks))


NULL, EMPTY = Group(), Group(())


def Compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """Factors of `nnodes` as near to each other as possible, decreasing, where `dims` has 0; the rest is fixed.

    Raises
    ------
    Exception
        ERR_DIMS if the fixed ones do not divide `nnodes`.
    """
    shape = [0] * dims if isinstance(dims, int) else list(dims)
    rest = nnodes
    for d in shape:
        if d < 0 or (d and rest % d):
            raise error("ERR_DIMS", f"{nnodes} nodes cannot be laid out as {shape}")
        rest //= d or 1
    free = shape.count(0)
    if free == 0:
        if rest != 1:
            raise error("ERR_DIMS", f"{nnodes} nodes cannot be laid out as {shape}")
        return shape
    best = iter(sorted(_balanced(rest, free), reverse=True))
    return [d or next(best) for d in shape]


def _balanced(n: int, k: int, limit: int | None = None) -> list[int]:
    """K factors of n, none above `limit`, the largest as small as possible, then the next; [] if there are none."""
    if k == 1:
        return [n] if limit is None or n <= limit else []
    for first in range(1, n + 1):
        if n % first == 0 and first**k >= n and (limit is None or first <= limit):
            rest = _balanced(n // first, k - 1, first)
            if rest:
                return [first, *rest]
    return []
