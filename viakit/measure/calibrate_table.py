"""The table of ``viakit calibrate``: the model of BIP's pipeline, and the thresholds of the message engine, by link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from viakit.base.sheet import sheet
from viakit.measure.ladder import format_size
from viakit.measure.table import format_bandwidth, format_time

if TYPE_CHECKING:
    from rich.table import Table

    from viakit.measure.calibrate import Calibration
    from viakit.measure.calibrate_messages import Thresholds

__all__ = ["table"]

_HEADS = (
    "link",
    "start",
    "packet",
    "wire",
    "fill",
    "short",
    "packet of 1 MiB",
    "model off",
    "eager",
    "long",
    "credits",
)


def _pipeline(found: Calibration | None) -> list[str]:
    """Return the cells of BIP's pipeline."""
    if found is None:
        return [""] * 7
    of_mib = next((packet for upto, packet in found.rows if upto >= 1 << 20), found.rows[-1][1])
    rates = [format_bandwidth(1 / each) if each > 0 else "-" for each in (found.byte, found.fill)]
    times = [format_time(found.start), format_time(found.packet)]
    return [*times, *rates, format_size(found.small_bytes), format_size(min(of_mib, 1 << 20)), f"{found.error:.0%}"]


def _thresholds(found: Thresholds | None) -> list[str]:
    """Return the cells of the message engine."""
    if found is None:
        return [""] * 3
    choice = found.choice
    return [format_size(int(choice["eager_limit"])), choice["rendezvous"], choice.get("credits", "-")]


def table(found: Sequence[tuple[str, Calibration | None, Thresholds | None]]) -> Table:
    """Return the calibrations of links as one table of at most 80 columns.

    Parameters
    ----------
    found : sequence of (str, Calibration or None, Thresholds or None)
        Link, pipeline and thresholds.
    """
    heads = [head if head in ("link", "long") else f">{head}" for head in _HEADS]
    made = sheet(
        *heads, title="[bold]BIP's pipeline, and the thresholds of messages[/bold]",
        caption="start, packet: time of a message and of each packet; wire, fill: bandwidth of the slowest stage, and "
        "of the others together; short: longest queued message; eager: longest message sent at once; long: rendezvous",
    )  # fmt: skip
    for link, pipeline, thresholds in found:
        made.add_row(link, *_pipeline(pipeline), *_thresholds(thresholds))
    return made
