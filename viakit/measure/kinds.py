"""Kinds of measurements in a result file: series of different kinds have different fields.

``viakit sweep`` measures transfers between two sides, ``viakit barrier`` and ``viakit collectives`` collectives among
ranks, ``viakit app`` and ``viakit speedup`` whole programs, and ``lab.faults()`` streams over a wire that loses frames.
:func:`show` and :func:`figure` display a result of any kind.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viakit.measure.result import Document, ResultError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = [
    "APPLICATIONS",
    "BARRIERS",
    "COLLECTIVES",
    "FAULTS",
    "TRANSFERS",
    "common_kind",
    "figure",
    "kind_of",
    "show",
    "split",
]

TRANSFERS, BARRIERS, COLLECTIVES = "transfers", "barriers", "collectives"
APPLICATIONS, FAULTS = "applications", "faults"

# The modules with a kind's show() and figure(). They are loaded on use: Matplotlib and rich take time to
# import, and the applications stand above this room.
_MODULES = {
    TRANSFERS: ("viakit.measure.table", "viakit.measure.plot"),
    BARRIERS: ("viakit.measure.barrier", "viakit.measure.barrier"),
    COLLECTIVES: ("viakit.measure.collectives", "viakit.measure.collectives"),
    APPLICATIONS: ("viakit.apps.results", "viakit.apps.results"),
    FAULTS: ("viakit.measure.loss", "viakit.measure.loss"),
}


def kind_of(series: Mapping[str, Any]) -> str:
    """Return the kind of a series, by the field that distinguishes it in the schema."""
    if "application" in series:
        return APPLICATIONS
    if "algorithm" in series:
        return BARRIERS if series.get("operation") == "barrier" else COLLECTIVES
    return FAULTS if "loss" in series else TRANSFERS


def split(document: Document) -> dict[str, Document]:
    """Return for each kind, in order of appearance, the document with only its series. Without series: transfers."""
    kinds = dict.fromkeys(map(kind_of, document["series"])) or {TRANSFERS: None}
    return {kind: {**document, "series": [one for one in document["series"] if kind_of(one) == kind]} for kind in kinds}


def common_kind(documents: Sequence[Document], names: Sequence[str]) -> str:
    """Return the kind of results that are to be drawn in one picture.

    Parameters
    ----------
    documents : sequence of dict
    names : sequence of str
        Name of each document, for the error.

    Raises
    ------
    ResultError
        If they are of several kinds. The message names the kinds of each document.
    """
    found = [list(split(document)) for document in documents]
    every = dict.fromkeys(kind for kinds in found for kind in kinds)
    if len(every) > 1:
        held = "; ".join(f"{name} holds {' and '.join(kinds)}" for name, kinds in zip(names, found, strict=True))
        raise ResultError(f"{held}: these do not go together into one picture; draw each kind by itself")
    return next(iter(every))


def show(document: Document, console: Console, against: str | None = None) -> None:
    """Print the tables of a result, kind by kind. *against* is the reference protocol of a sweep's ratios."""
    for kind, part in split(document).items():
        words = (against,) if kind == TRANSFERS else ()
        importlib.import_module(_MODULES[kind][0]).show(part, console, *words)


def figure(documents: Sequence[Document], names: Sequence[str] | None = None, **kw: Any) -> Figure:
    """Draw results of one kind in one picture with Matplotlib.

    Parameters
    ----------
    documents : sequence of dict
    names : sequence of str, optional
        Name of each document.
    **kw
        Arguments of that kind's function, for transfers :func:`viakit.measure.plot.figure`. All kinds accept *title*.

    Raises
    ------
    ResultError
        If they are of several kinds, if there is nothing to draw, or if results of this kind cannot be overlaid.
    """
    kind = common_kind(documents, names or [f"result {i + 1}" for i in range(len(documents))])
    draw = importlib.import_module(_MODULES[kind][1]).figure
    if kind == FAULTS:
        if len(documents) > 1:
            raise ResultError("results of faults cannot be overlaid; give one")
        return draw(documents[0], **kw)
    if kind in (TRANSFERS, APPLICATIONS):
        kw["names"] = names
    return draw(documents, **kw)
