"""What kind of measurement a result file holds: series of different kinds have different fields.

Transfers between two sides come from ``viakit sweep``, barriers and collectives among ranks from ``viakit barrier`` and
``viakit collectives``, whole programs from ``viakit app`` and ``viakit speedup``, streams over a wire that loses frames
from ``lab.faults()``. Whoever shows or draws a result without asking what it holds, does so by :func:`show` and
:func:`figure`.
"""

from __future__ import annotations

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


def kind_of(series: Mapping[str, Any]) -> str:
    """Return the kind of a series: the field that tells is the one that the schema goes by."""
    if "application" in series:
        return APPLICATIONS
    if "algorithm" in series:
        return BARRIERS if series.get("operation") == "barrier" else COLLECTIVES
    return FAULTS if "loss" in series else TRANSFERS


def split(document: Document) -> dict[str, Document]:
    """Return for each kind, in order of appearance, the document with only its series; without series: transfers."""
    kinds = dict.fromkeys(map(kind_of, document["series"])) or {TRANSFERS: None}
    return {kind: {**document, "series": [one for one in document["series"] if kind_of(one) == kind]} for kind in kinds}


def common_kind(documents: Sequence[Document], names: Sequence[str]) -> str:
    """Return the kind of what shall be drawn in one picture.

    Parameters
    ----------
    documents : sequence of dict
    names : sequence of str
        What to call each of them.

    Raises
    ------
    ResultError
        If they are of several kinds; the message says which holds what.
    """
    found = [list(split(document)) for document in documents]
    every = dict.fromkeys(kind for kinds in found for kind in kinds)
    if len(every) > 1:
        held = "; ".join(f"{name} holds {' and '.join(kinds)}" for name, kinds in zip(names, found, strict=True))
        raise ResultError(f"{held}: these do not go together into one picture; draw each kind by itself")
    return next(iter(every))


def show(document: Document, console: Console, against: str | None = None) -> None:
    """Print the tables of a result, kind by kind; *against* is the protocol that a sweep's ratios are against."""
    for kind, part in split(document).items():
        if kind == TRANSFERS:
            from viakit.measure import table

            table.show(part, console, against)
        elif kind == BARRIERS:
            from viakit import barrier

            barrier.show(part, console)
        elif kind == COLLECTIVES:
            from viakit import collectives

            collectives.show(part, console)
        elif kind == APPLICATIONS:
            from viakit.apps import results

            results.show(part, console)
        else:
            from viakit.measure import loss

            loss.show(part, console)


def figure(documents: Sequence[Document], names: Sequence[str] | None = None, **kw: Any) -> Figure:
    """Draw results of one kind, several over each other, with Matplotlib.

    Parameters
    ----------
    documents : sequence of dict
    names : sequence of str, optional
        What to call each of them.
    **kw
        Of that kind's own function: :func:`viakit.measure.plot.figure` for transfers; *title* for all.

    Raises
    ------
    ResultError
        If they are of several kinds, if there is nothing to draw, or if results of this kind cannot be overlaid.
    """
    kind = common_kind(documents, names or [f"result {i + 1}" for i in range(len(documents))])
    if kind == TRANSFERS:
        from viakit.measure import plot

        return plot.figure(documents, names=names, **kw)
    if kind == APPLICATIONS:
        from viakit.apps import results

        return results.figure(documents, names=names, **kw)
    if kind == COLLECTIVES:
        from viakit import collectives

        return collectives.figure(documents, **kw)
    if kind == BARRIERS:
        from viakit import barrier

        return barrier.figure(documents, **kw)
    if len(documents) > 1:
        raise ResultError("of faults one result is drawn at a time: give one")
    from viakit.measure import loss

    return loss.figure(documents[0], **kw)
