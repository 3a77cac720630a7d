"""How a datatype was made: combiner, envelope, contents, and the arguments of its constructor."""

from __future__ import annotations

from typing import Any

COMBINERS = (
    "NAMED DUP CONTIGUOUS VECTOR HVECTOR INDEXED HINDEXED INDEXED_BLOCK HINDEXED_BLOCK STRUCT SUBARRAY DARRAY "
    "F90_REAL F90_COMPLEX F90_INTEGER RESIZED VALUE_INDEX"
).split()
NUMBERS = {name: number for number, name in enumerate(COMBINERS, 1)}

# Arguments that are integers, and arguments that are addresses, in the order of MPI's contents. The number of
# list entries precedes those of the combiners in _COUNTED.
_INTEGERS = {
    "CONTIGUOUS": ("count",),
    "VECTOR": ("count", "blocklength", "stride"),
    "HVECTOR": ("count", "blocklength"),
    "INDEXED": ("blocklengths", "displacements"),
    "HINDEXED": ("blocklengths",),
    "INDEXED_BLOCK": ("blocklength", "displacements"),
    "HINDEXED_BLOCK": ("blocklength",),
    "STRUCT": ("blocklengths",),
    "SUBARRAY": ("sizes", "subsizes", "starts", "order"),
    "DARRAY": ("size", "rank", "gsizes", "distribs", "dargs", "psizes", "order"),
    "F90_REAL": ("p", "r"),
    "F90_COMPLEX": ("p", "r"),
    "F90_INTEGER": ("r",),
}
_ADDRESSES = {
    "HVECTOR": ("stride",),
    "HINDEXED": ("displacements",),
    "HINDEXED_BLOCK": ("displacements",),
    "STRUCT": ("displacements",),
    "RESIZED": ("lb", "extent"),
}
_COUNTED = {
    "INDEXED": "displacements",
    "HINDEXED": "displacements",
    "INDEXED_BLOCK": "displacements",
    "HINDEXED_BLOCK": "displacements",
    "STRUCT": "displacements",
    "SUBARRAY": "sizes",
    "DARRAY": "gsizes",
}


class Made:
    """The part of a datatype that records its constructor."""

    _combiner: str  # a name of COMBINERS, or "null"
    _bases: list[Any]  # the datatypes it was made of
    _arguments: dict[str, Any]  # the other arguments of the constructor

    def _made_by(self, combiner: str, bases: list[Any], arguments: dict[str, Any]) -> Any:
        # Handles of its own: the program may free its own ones.
        self._combiner, self._bases, self._arguments = combiner, [base._again() for base in bases], arguments
        return self

    def _flat(self, names: tuple[str, ...], with_count: bool) -> list[int]:
        numbers: list[int] = []
        for name in names:
            if with_count and name == ("gsizes" if self._combiner == "DARRAY" else names[0]):
                numbers.append(len(self._arguments[_COUNTED[self._combiner]]))
            value = self._arguments[name]
            numbers += value if isinstance(value, list) else [value]
        return numbers

    def _parts(self) -> tuple[list[int], list[int], list[int], list[Any]]:
        kind = self._combiner
        integers = self._flat(_INTEGERS.get(kind, ()), kind in _COUNTED)
        return integers, self._flat(_ADDRESSES.get(kind, ()), False), [], self._bases

    def Get_envelope(self) -> tuple[int, int, int, int, int]:
        """Return how many integers, addresses, large counts and datatypes made this datatype, and the combiner.

        Raises
        ------
        Exception
            ERR_TYPE for DATATYPE_NULL.
        """
        self._valid()
        integers, addresses, counts, bases = self._parts()
        return len(integers), len(addresses), len(counts), len(bases), NUMBERS[self._combiner]

    def Get_contents(self) -> tuple[list[int], list[int], list[int], list[Any]]:
        """Return the integers, addresses, large counts and datatypes that made this datatype.

        Raises
        ------
        Exception
            ERR_TYPE for DATATYPE_NULL and for predefined datatypes.
        """
        self._valid()
        if self._combiner == "NAMED":
            raise self._refusal("a predefined datatype has no contents; see Get_envelope")
        integers, addresses, counts, bases = self._parts()
        return integers, addresses, counts, [base._again() for base in bases]

    def decode(self) -> tuple[Any, str, dict[str, Any]]:
        """Return the base datatype, the name of the combiner, and the arguments of the constructor.

        ``getattr(base, "Create_" + name.lower())(**arguments)`` makes an equivalent datatype.
        """
        self._valid()
        kind = self._combiner
        if kind == "NAMED":
            return self, kind, {}
        arguments = {name: list(value) if isinstance(value, list) else value for name, value in self._arguments.items()}
        bases = [base._again() for base in self._bases]
        if kind == "STRUCT":
            arguments["datatypes"] = bases
        elif kind == "VALUE_INDEX":
            arguments["value"], arguments["index"] = bases
        one = bases[0] if kind not in ("STRUCT", "VALUE_INDEX") and bases else type(self)()
        return one, kind, arguments

    @property
    def combiner(self) -> int:
        """Number of the combiner: one of ``MPI.COMBINER_*``."""
        self._valid()
        return NUMBERS[self._combiner]

    @property
    def envelope(self) -> tuple[int, int, int, int, int]:
        """The envelope, as `Get_envelope` returns it."""
        return self.Get_envelope()

    @property
    def contents(self) -> tuple[list[int], list[int], list[int], list[Any]]:
        """The contents, as `Get_contents` returns them."""
        return self.Get_contents()

    def _valid(self) -> Any:
        """Return this datatype. Raise ERR_TYPE if it is null."""
        if self._combiner == "null":
            raise self._refusal("the datatype is DATATYPE_NULL or has been freed; use one that is valid")
        return self

    @staticmethod
    def _refusal(text: str) -> Exception:
        from viakit.comm.errors import error  # it imports this module

        return error("ERR_TYPE", text)

    def _again(self) -> Any:
        raise NotImplementedError
