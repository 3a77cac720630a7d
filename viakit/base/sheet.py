"""Tables for the terminal, in one style."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["sheet"]


def sheet(*heads: str, title: str | None = None, caption: str | None = None, whole: Collection[str] = ()) -> Table:
    """Return an empty table of rich.

    Parameters
    ----------
    *heads : str
        Heads of the columns. A ``>`` in front aligns a column to the right.
    title, caption : str, optional
        Lines above and below the table, with rich's markup.
    whole : collection of str
        Heads of the columns whose cells are never wrapped.
    """
    from rich import box  # start-up time
    from rich.table import Table  # start-up time

    made = Table(
        title=title, title_justify="left", caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        padding=(0, 1, 0, 0),
    )  # fmt: skip
    for head in heads:
        name = head.removeprefix(">")
        made.add_column(name, justify="right" if head != name else "left", no_wrap=name in whole)
    return made
