"""Groups of ranks, and the balanced factorisation of a number of ranks into a grid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from viakit.comm.datatype import UNDEFINED
from viakit.comm.errors import error
from viakit.comm.handle import Numbered
from viakit.comm.status import PROC_NULL

IDENT, CONGRUENT, SIMILAR, UNEQUAL = 0, 1, 2, 3


class Group(Numbered):
    """Ordered set of ranks: ``MPI.Group``. Without an argument the constructor returns the null group."""

    _family = "Group"
    _ranks: tuple[int, ...]
    _me: int
    _null: bool

    def __init__(self, ranks: Iterable[int] | Group | None = None, me: int = -1) -> None:
        if isinstance(ranks, Group):
            self._ranks, self._me, self._null = ranks._ranks, ranks._me, ranks._null
        elif ranks is not None and (isinstance(ranks, (str, Numbered)) or not isinstance(ranks, Iterable)):
            raise TypeError(f"Group() takes no argument or a Group, got {type(ranks).__name__}")
        else:
            self._ranks, self._me, self._null = tuple(ranks or ()), me, ranks is None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return self._ranks == other._ranks and self._null == other._null

    def __hash__(self) -> int:
        if self._null:
            raise TypeError("unhashable: a null Group")
        return hash(self._ranks)

    def __bool__(self) -> bool:
        return not self._null

    def __reduce__(self) -> Any:
        if self is NULL or self is EMPTY:
            return "NULL" if self is NULL else "EMPTY"
        if self._ranks:
            raise ValueError("a group with ranks cannot be pickled; pickle the list of its ranks instead")
        return (type(self), (NULL if self._null else EMPTY,))

    def _identity(self) -> Any:
        return None if self._null else self._ranks

    def _valid(self) -> Group:
        """Return this group. Raises ERR_GROUP if it is null."""
        if self._null:
            raise error("ERR_GROUP", "this group is null or has been freed")
        return self

    @classmethod
    def Create_from_session_pset(cls, session: Any, pset_name: str) -> Group:
        """Return the group of the ranks in a process set of a session."""
        return cls(session.Create_group(pset_name))

    def __repr__(self) -> str:
        return f"<viakit MPI.Group of {len(self._ranks)}>"

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        return len(self._ranks)

    @property
    def rank(self) -> int:
        """Rank of this process in the group, or UNDEFINED if it is not a member."""
        return self._ranks.index(self._me) if self._me in self._ranks else UNDEFINED

    def Get_size(self) -> int:
        """Return the number of ranks in the group."""
        return self._valid().size

    def Get_rank(self) -> int:
        """Return the rank of this process in the group, or UNDEFINED if it is not a member."""
        return self._valid().rank

    def Dup(self) -> Group:
        """Duplicate the group."""
        return Group(self._valid()._ranks, self._me)

    def Free(self) -> None:
        """Free the group. It becomes the null group."""
        if self is EMPTY:
            raise error("ERR_GROUP", "GROUP_EMPTY is predefined and cannot be freed")
        self._ranks, self._null = (), True

    def free(self) -> None:
        """Free the group if it is neither null nor GROUP_EMPTY."""
        if not self._null and self is not EMPTY:
            self.Free()

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """Translate ranks of this group to ranks of another one.

        Parameters
        ----------
        ranks : sequence of int, optional
            Ranks in this group. Default: all of them.
        group : Group, optional
            The other group. Default: the group of COMM_WORLD.

        Returns
        -------
        list of int
            UNDEFINED for ranks that the other group does not have. PROC_NULL stays PROC_NULL.
        """
        self._valid()
        chosen = range(self.size) if ranks is None else ranks
        other = self._ranks if group is None else group._valid()._ranks
        found = []
        for rank in chosen:
            if rank == PROC_NULL:
                found.append(PROC_NULL)
            else:
                number = self._at(rank)
                found.append(other.index(number) if number in other else UNDEFINED)
        return found

    def Compare(self, group: Group) -> int:
        """Compare two groups.

        Returns
        -------
        int
            IDENT for the same ranks in the same order, SIMILAR for another order, UNEQUAL otherwise.
        """
        if self._valid()._ranks == group._valid()._ranks:
            return IDENT
        return SIMILAR if sorted(self._ranks) == sorted(group._ranks) else UNEQUAL

    def _at(self, rank: int) -> int:
        if not 0 <= rank < self.size:
            raise error("ERR_RANK", f"rank must be 0 to {self.size - 1} in this group, got {rank}")
        return self._ranks[rank]

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        """Return the ranks of *group1*, followed by those of *group2* that are not in *group1*."""
        first, second = group1._valid()._ranks, group2._valid()._ranks
        return cls((*first, *(r for r in second if r not in first)), max(group1._me, group2._me))

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        """Return the ranks of *group1* that are also in *group2*."""
        first, second = group1._valid()._ranks, group2._valid()._ranks
        return cls((r for r in first if r in second), group1._me)

    Intersect = Intersection

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        """Return the ranks of *group1* that are not in *group2*."""
        first, second = group1._valid()._ranks, group2._valid()._ranks
        return cls((r for r in first if r not in second), group1._me)

    def Incl(self, ranks: Sequence[int]) -> Group:
        """Return a group of the given ranks, in the given order.

        Raises
        ------
        Exception
            ERR_RANK if a rank is not in this group or occurs twice.
        """
        self._valid()
        chosen = [self._at(rank) for rank in ranks]
        if len(set(chosen)) != len(chosen):
            raise error("ERR_RANK", f"ranks must be distinct, got {list(ranks)}")
        return Group(chosen, self._me)

    def Excl(self, ranks: Sequence[int]) -> Group:
        """Return a group of all ranks but the given ones."""
        self._valid()
        gone = {self._at(rank) for rank in ranks}
        return Group((r for r in self._ranks if r not in gone), self._me)

    @staticmethod
    def _spread(ranges: Sequence[Sequence[int]]) -> list[int]:
        ranges = [tuple(one) for one in ranges]
        if any(step == 0 for _, _, step in ranges):
            raise error("ERR_ARG", f"a range (first, last, step) has a step other than 0, got {ranges}")
        return [r for a, b, step in ranges for r in range(a, b + (1 if step > 0 else -1), step)]

    def Range_incl(self, ranks: Sequence[Sequence[int]]) -> Group:
        """Return a group of the ranks in the given ranges.

        Parameters
        ----------
        ranks : sequence of (first, last, step)
            `last` is included.
        """
        return self.Incl(self._spread(ranks))

    def Range_excl(self, ranks: Sequence[Sequence[int]]) -> Group:
        """Return a group of all ranks but those in the given ranges (first, last, step)."""
        return self.Excl(self._spread(ranks))


NULL, EMPTY = Group(), Group(())


def Compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """Factor *nnodes* into the dimensions of a grid that is as nearly cubic as possible.

    Parameters
    ----------
    nnodes : int
        Number of ranks.
    dims : int or sequence of int
        Number of dimensions, or the dimensions themselves. Zeros are replaced, other values stay.

    Returns
    -------
    list of int
        The dimensions. Those that were 0 are in decreasing order.

    Raises
    ------
    Exception
        ERR_DIMS if `nnodes` is below 1, or the fixed dimensions do not divide it.
    """
    shape = [0] * dims if isinstance(dims, int) else list(dims)
    if nnodes < 1:
        raise error("ERR_DIMS", f"a grid has one node or more, got {nnodes}")
    rest = nnodes
    for d in shape:
        if d < 0 or (d and rest % d):
            raise error("ERR_DIMS", f"{nnodes} nodes do not form a grid {shape}; fixed dimensions must divide them")
        rest //= d or 1
    free = shape.count(0)
    if free == 0:
        if rest != 1:
            raise error("ERR_DIMS", f"{nnodes} nodes do not form a grid {shape}; 0 leaves a dimension open")
        return shape
    best = iter(sorted(_balanced(rest, free), reverse=True))
    return [d or next(best) for d in shape]


def _balanced(n: int, k: int, limit: int | None = None) -> list[int]:
    """Return K factors of `n` that are at most `limit`, or [] if none exist.

    The largest factor is as small as possible, then the next one.
    """
    if k == 1:
        return [n] if limit is None or n <= limit else []
    for first in range(1, n + 1):
        if n % first == 0 and first**k >= n and (limit is None or first <= limit):
            rest = _balanced(n // first, k - 1, first)
            if rest:
                return [first, *rest]
    return []
