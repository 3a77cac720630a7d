"""The published figures: claims.csv, one line for each."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["PAPERS", "Claim", "claims", "find_paper"]

# Key, authors and year, title, words by which a reader may name it.
PAPERS: dict[str, tuple[str, str]] = {
    "ong-farrell": (
        "Ong and Farrell 2000",
        "Performance Comparison of LAM/MPI, MPICH, and MVICH on a Linux Cluster connected by a Gigabit Ethernet "
        "Network",
    ),
    "turner-chen": ("Turner and Chen 2002", "Protocol-Dependent Message-Passing Performance on Linux Clusters"),
    "lobosco": ("Lobosco et al.", "TCP/IP versus VIA on Network of Workstations"),
    "gupta": ("Gupta et al. 2002", "Efficient Barrier using Remote Memory Operations on VIA-Based Clusters"),
    "prylli": (
        "Prylli and Tourancheau 1997",
        "BIP: a new protocol designed for high performance networking on Myrinet",
    ),
}


@dataclass(frozen=True)
class Claim:
    """One published figure.

    Attributes
    ----------
    line : int
        Line of claims.csv; its header is line 1.
    paper, where, system, platform, quantity, value, unit, conditions : str
        Key of the paper, section or table, and the figure as published.
    """

    line: int
    paper: str
    where: str
    system: str
    platform: str
    quantity: str
    value: str
    unit: str
    conditions: str

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The published number as an interval: of one point, or of the range "25-30"; None: it is not a number."""
        found = re.fullmatch(r"([+-]?[\d.]+)(?:-([\d.]+))?", self.value)
        if found is None:
            return None
        low = float(found[1])
        return low, float(found[2]) if found[2] else low

    @property
    def number(self) -> float | None:
        """The published number, or the middle of its range."""
        return sum(self.bounds) / 2 if self.bounds else None


@cache
def claims() -> dict[int, Claim]:
    """Return the published figures by their lines."""
    text = resources.files("viakit.papers").joinpath("claims.csv").read_text(encoding="utf-8")
    return {line: Claim(line, **row) for line, row in enumerate(csv.DictReader(text.splitlines()), 2)}


def find_paper(name: str) -> str:
    """Return the key of a paper for a part of its key or of its authors.

    Raises
    ------
    ValueError
        If no paper, or more than one, has this name.
    """
    wanted = name.lower()
    found = [key for key, (authors, _) in PAPERS.items() if wanted in key or wanted in authors.lower()]
    if len(found) != 1:
        raise ValueError(f"no paper is called {name!r}; there are {', '.join(PAPERS)}")
    return found[0]
