"""How a protocol appears in every picture: its colour, its marker and its dash, as its row of ``endpoints`` says.

The colour is that of the protocol's family (VIA, BIP, TCP, ...), from the palette of Okabe and Ito, which colour-blind
readers can distinguish. The marker is that of the member, so that curves differ in grey as well. A policy of the
message engine keeps the colour of its channel, and has a dash and a marker of its own, which may be an outline: a
single point has no dash. The algorithms of barriers have rows here. Other names get pairs of colour and marker that no
other curve of the picture has.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from viakit.measure import endpoints

__all__ = ["INK", "ON_DARK", "ON_LIGHT", "PALETTE", "Look", "look", "looks", "spread"]

INK = "#4D4D4D"  # pictures in pages have the page's colour of text in its place
GREY = "#808080"  # in place of INK where a curve cannot have that: to be read on white and on black
ON_LIGHT, ON_DARK = "#111111", "#fefefe"  # text on areas of a colour, which no theme changes
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
COLOURS = {
    "orange": ORANGE, "sky": SKY, "green": GREEN, "blue": BLUE, "vermilion": VERMILION, "purple": PURPLE, "ink": INK,
}  # fmt: skip
PALETTE = (VERMILION, BLUE, ORANGE, SKY, GREEN, PURPLE, INK)

# Markers as Matplotlib names them, and the same shapes as Plotly names them.
SYMBOLS = {
    "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond", "P": "cross", "X": "x",
    "*": "star", "<": "triangle-left", ">": "triangle-right", "p": "pentagon", "h": "hexagon",
}  # fmt: skip
SIGNS = dict(zip(SYMBOLS, zip("●■▲▼◆✚✖★◀▶⬟⬢", "○□△▽◇✛✕☆◁▷⬠⬡", strict=True), strict=True))

_TABLE: dict[str, tuple[str, str]] = {
    "via": (VERMILION, "P"),  # ranks over VIA use the message engine
    "bip": (ORANGE, "h"),
    "copies": (INK, "D"),
    "scheduler": (INK, "p"),
    # Algorithms of barriers: by RDMA write, by messages, by shared memory and one of these between hosts.
    "default": (INK, "*"),
    "flat": (INK, "X"),
    "rdma": (VERMILION, "o"),
    "rdma-dissemination": (VERMILION, "X"),
    "rdma-gather": (VERMILION, "h"),
    "rdma-dynamic": (VERMILION, "<"),
    "rdma-immediate": (VERMILION, ">"),
    "rdma-interrupt": (VERMILION, "*"),
    "message": (BLUE, "s"),
    "message-gather": (BLUE, "p"),
    "overall": (ORANGE, "^"),
    "overall-gather": (ORANGE, "h"),
    "gather": (GREEN, "D"),
    "flags": (GREEN, "P"),
    "flags-packed": (GREEN, "<"),
    "counter": (SKY, "X"),
    "dissemination": (SKY, "v"),
    # Ways to retransmit lost frames.
    "selective": (BLUE, "o"),
    "go-back-n": (VERMILION, "s"),
}

# Lengths of strokes and gaps, in widths of the line.
_USUAL = {
    ("poll", "c"): (),
    ("block", "c"): (5.0, 2.0),
    ("hybrid", "c"): (6.0, 1.5),
    ("poll", "python"): (1.0, 1.5),
    ("block", "python"): (5.0, 2.0, 1.0, 2.0),
}
_OF_POLICIES = (
    (8.0, 2.0), (3.0, 1.5), (8.0, 2.0, 2.0, 2.0), (1.5, 2.5), (8.0, 2.0, 2.0, 2.0, 2.0, 2.0), (4.0, 4.0),
    (12.0, 2.0), (4.0, 1.5, 1.0, 1.5), (12.0, 2.0, 4.0, 2.0), (2.0, 1.0), (4.0, 1.5, 1.0, 1.5, 1.0, 1.5),
    (12.0, 4.0), (6.0, 2.0, 6.0, 4.0), (9.0, 3.0, 3.0, 3.0), (7.0, 1.0), (5.0, 5.0), (3.0, 3.0, 1.0, 3.0),
    (10.0, 2.0, 2.0, 2.0, 6.0, 2.0), (1.0, 4.0), (14.0, 2.0, 1.0, 2.0), (6.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
)  # fmt: skip
_OUTLINED = "via"  # channel whose policies have outlines first: MPICH on TCP and MVICH on VIA also differ in grey


@dataclass(frozen=True)
class Look:
    """Colour, marker and dash of a curve.

    Attributes
    ----------
    colour : str
        ``#RRGGBB``.
    marker : str
        Marker as Matplotlib names it.
    dash : tuple of float
        Lengths of strokes and gaps in widths of the line; empty: a solid line.
    hollow : bool
        Whether markers are drawn as outlines: the curves of a second result, some policies, and MPI libraries in new
        processes; in a second result the others.
    """

    colour: str
    marker: str
    dash: tuple[float, ...] = ()
    hollow: bool = False

    @property
    def linestyle(self) -> Any:
        """The dash for Matplotlib."""
        return (0, self.dash) if self.dash else "-"

    @property
    def sign(self) -> str:
        """The marker as a character, for text beside a curve."""
        return SIGNS[self.marker][self.hollow]

    @property
    def on_page(self) -> str:
        """The colour for Plotly, whose curves cannot take the page's colour of text."""
        return GREY if self.colour == INK else self.colour

    def of_file(self, number: int) -> Look:
        """Return the look in the result with that number, from 0: every second one has outlines for filled markers."""
        return replace(self, hollow=self.hollow != (number % 2 == 1))

    def line(self, size: float = 4.0) -> dict[str, Any]:
        """Return the arguments of Matplotlib's ``plot``, with markers of *size* points."""
        face = {"markerfacecolor": "none"} if self.hollow else {}
        style = {"color": self.colour, "linestyle": self.linestyle, "marker": self.marker, "markersize": size}
        return {**style, **face, "linewidth": 1.6}

    def trace(self) -> dict[str, Any]:
        """Return the arguments ``line`` and ``marker`` of Plotly's ``Scatter``."""
        dash = ",".join(f"{2 * length:g}px" for length in self.dash) or "solid"
        symbol = SYMBOLS[self.marker] + ("-open" if self.hollow else "")
        return {
            "line": {"color": self.on_page, "dash": dash, "width": 2},
            "marker": {"size": 7, "color": self.on_page, "symbol": symbol},
        }


def _of_policy(name: str) -> Look | None:
    """Return the look of "mpich-p4", "tcp:mpich-p4" or "msg-tcp:mpich-p4", also with changed fields after a comma."""
    from viakit import _core  # start-up time: only names of policies need it

    base, colon, policy = name.partition(":")
    first = (policy if colon else base).partition(",")[0]
    names = list(_core.policies())
    if first not in names:
        return None
    channel = str(_core.policy_channel(first))
    if colon and base.removeprefix("msg-") != channel:
        return None
    base_look = _known(f"msg-{channel}")
    assert base_look is not None  # each channel has an endpoint
    number = [each for each in names if _core.policy_channel(each) == channel].index(first)
    if first != channel:
        markers = [one for one in SYMBOLS if one != base_look.marker]
        turn, place = divmod(number - 1, len(markers))  # the channel's own policy is the first
        hollow = (turn % 2 == 1) != (channel == _OUTLINED)
        base_look = replace(base_look, marker=markers[place], hollow=hollow)
    return replace(base_look, dash=_OF_POLICIES[number % len(_OF_POLICIES)])


def _known(name: str) -> Look | None:
    """Return the look of a name of a table, or of what stands before a comma and a space: "rdma, infiniband-ndr"."""
    if name in _TABLE:
        return Look(*_TABLE[name])
    row = endpoints.known(name)
    if row is None or row.policy or not row.look:
        first, comma, _ = name.partition(", ")
        return _of_policy(name) or (_known(first) if comma else None)
    colour, marker, *outline = row.look.split()
    return Look(COLOURS[colour], marker, hollow=bool(outline))


def looks(names: Iterable[str], kept: Mapping[str, Look] | None = None) -> dict[str, Look]:
    """Return the looks of all curves of a picture by name; no two share colour, marker and dash.

    A name that the table lacks keeps its look from picture to picture, unless another one of the picture has taken it.
    In a picture that grows, *kept* has the looks of the curves that are drawn already, which they keep.
    """
    names = list(dict.fromkeys([*(kept or ()), *names]))
    found: dict[str, Look] = dict(kept or {})
    for name in names:
        known = None if name in found else _known(name)
        if known is None:
            continue
        taken = {one.marker for one in found.values()}
        if ", " in name and known.marker in taken:  # the same algorithm on another machine
            known = replace(known, marker=next((one for one in SYMBOLS if one not in taken), known.marker))
        if known in found.values() and (known.dash or kept or ", " in name):  # a policy with changed fields, or kept
            known = next(
                (one for dash in _OF_POLICIES if (one := replace(known, dash=dash)) not in found.values()), known
            )
        found[name] = known
    markers = list(SYMBOLS)
    pairs = [(PALETTE[i % len(PALETTE)], markers[i % len(markers)]) for i in range(len(PALETTE) * len(markers))]
    for name in names:
        if name in found:
            continue
        pairs_taken = {(one.colour, one.marker) for one in found.values()}
        colours = {one.colour for one in found.values()} if len(names) <= len(PALETTE) else set()
        signs = {one.marker for one in found.values()} if len(names) <= len(markers) else set()
        start = zlib.crc32(name.encode()) % len(pairs)
        order = pairs[start:] + pairs[:start]
        free = [pair for pair in order if pair not in pairs_taken] or order
        found[name] = Look(*min(free, key=lambda pair: (pair[0] in colours) + (pair[1] in signs)))
    return {name: found[name] for name in names}


def look(name: str, *, wait: str = "poll", level: str = "c", file: int = 0, among: Sequence[str] = ()) -> Look:
    """Return the look of the curve of a protocol, policy or algorithm.

    Parameters
    ----------
    name : str
        "via-eth", "tcp", "msg-tcp:mpich-p4", "mpich-p4", "rdma", ...
    wait : {"poll", "block", "hybrid"}
        Way to wait.
    level : {"c", "python"}
        Language of the loop. Way and language select the dash, unless a policy does.
    file : int
        Number of the result, from 0, if a picture has several. Every second one has outlines in place of
        filled markers, and the reverse.
    among : sequence of str
        All names of the picture.
    """
    found = looks(among or (name,))[name]
    return replace(found, dash=found.dash or _USUAL.get((wait, level), ())).of_file(file)


def spread(places: Sequence[float], gap: float, low: float = 0.0, high: float = 1.0) -> list[float]:
    """Move labels apart: return places that keep the order of the given ones and differ by at least *gap*.

    The result stays between *low* and *high* if there is room for all.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = list(places)
    for before, i in itertools.pairwise(order):
        moved[i] = max(moved[i], moved[before] + gap)
    limit = high
    for i in reversed(order):
        moved[i] = min(moved[i], limit)
        limit = moved[i] - gap
    excess = low - min(moved, default=low)
    return [one + excess if excess > 0 else one for one in moved]
