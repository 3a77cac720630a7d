"""A grid of a sweep as one table: protocols, MTUs and delays as rows, sizes of socket buffers as columns.

Ong and Farrell's table 1 has this form: what TCP reaches with each MTU and each size of socket buffers. A cell gives
the time of the smallest message and the bandwidth of the largest. All cells are measured in turns, in one run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viakit.base.sheet import sheet
from viakit.measure import table
from viakit.measure.ladder import format_size
from viakit.measure.result import Document

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["grids"]

_Series = Mapping[str, Any]
_MODES = ("pingpong", "stream", "bidir")  # those whose results are a time and a bandwidth


def grids(document: Document) -> list[Group]:
    """Return the tables of a sweep with several MTUs, delays or sizes of socket buffers; [] for any other result.

    A table holds the series that differ in nothing but protocol, level, MTU, delay and socket buffers.
    """
    found: dict[tuple[Any, ...], list[_Series]] = {}
    for one in document["series"]:
        if one["points"] and "mtu" in one and one.get("mode") in _MODES:
            found.setdefault((one["mode"], one["wait"], one["hosts"] == "local", one.get("buffers")), []).append(one)
    wide = [group for group in found.values() if _is_grid(group)]
    return [_table(group) for group in found.values()] if wide else []


def _is_grid(group: Sequence[_Series]) -> bool:
    """Return whether a protocol was measured on several wires, or with several sizes of socket buffers."""
    cells = {(one["protocol"], one["level"], one["mtu"], one.get("delay_s"), one.get("sockbuf")) for one in group}
    return len(cells) > len({(one["protocol"], one["level"]) for one in group})


def _table(group: list[_Series]) -> Group:
    from rich.console import Group  # start-up time

    sizes = sorted({point["nbytes"] for one in group for point in one["points"]})
    buffers = sorted({one.get("sockbuf") for one in group}, key=lambda size: size or 0)
    levels = len({one["level"] for one in group}) > 1

    def row_of(one: _Series) -> tuple[str, int | None, float | None]:
        name = one["protocol"] + (f" ({table.LEVEL_WORDS[one['level']]})" if levels else "")
        return name, one["mtu"], one.get("delay_s")

    rows = list(dict.fromkeys(map(row_of, group)))
    with_mtu = any(mtu for _, mtu, _ in rows)
    with_delay = len({delay for *_, delay in rows}) > 1
    heads = ["own buffers" if size is None else format_size(size) for size in buffers]
    axes = [">MTU"] * with_mtu + [">delay"] * with_delay
    made = sheet("protocol", *axes, *(f">{head}" for head in heads), whole=["protocol", *heads])
    for name, mtu, delay in rows:
        mine = {one.get("sockbuf"): one for one in group if row_of(one) == (name, mtu, delay)}
        best = max((_largest(one, sizes[-1]) for one in mine.values()), default=0.0)
        cells = [_cell(mine[size], sizes, best) if size in mine else "" for size in buffers]
        late = "-" if delay is None else table.format_time(delay) if delay else "0"
        made.add_row(name, *[str(mtu or "-")] * with_mtu, *[late] * with_delay, *cells)
    first, last = format_size(sizes[0]), format_size(sizes[-1])
    what = f"One-way time of {first} / bandwidth of {last}" if group[0]["mode"] == "pingpong" else "Bandwidth"
    what += "" if group[0]["mode"] == "pingpong" else f" of {first} / of {last}" if first != last else f" of {last}"
    title = f"[bold]{what}, by {_varied(group)}[/bold]\n{table.how_without_mtu(group)}"
    notes = "[dim]bold: the greatest bandwidth of a row; all cells were measured in turns, in one run"
    more = len(sizes) > 2 and "; further sizes are in the result"
    return Group(title, made, f"{notes}{more or ''}[/dim]", "")


def _varied(group: Sequence[_Series]) -> str:
    """Return what the cells of a grid differ in, in words."""
    if len({one.get("sockbuf") for one in group}) > 1:
        return "size of the socket buffers"
    several = {"mtu": "MTU", "delay_s": "delay"}
    return " and ".join(word for key, word in several.items() if len({one.get(key) for one in group}) > 1)


def _largest(one: _Series, nbytes: int) -> float:
    point = table.point_at(one, nbytes)
    return float(point["bandwidth_Bps"]) if point else 0.0


def _cell(one: _Series, sizes: Sequence[int], best: float) -> str:
    """Return the cell of a series: the quantities at the smallest and at the largest size."""
    small, bandwidth = table.point_at(one, sizes[0]), _largest(one, sizes[-1])
    last = table.format_bandwidth(bandwidth)
    last = f"[bold]{last}[/bold]" if bandwidth == best else last
    if one["mode"] == "pingpong":
        return f"{table.format_time(small['one_way_s']['median']) if small else '-'} / {last}"
    return last if len(sizes) == 1 else f"{table.format_bandwidth(small['bandwidth_Bps']) if small else '-'} / {last}"
