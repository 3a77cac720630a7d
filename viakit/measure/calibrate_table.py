"""The tables of ``viakit calibrate``: the model of BIP's pipeline, and the thresholds of messages, by link."""

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

__all__ = ["tables"]

_PIPELINE = ("link", ">start", ">packet", ">wire", ">fill", ">short", ">packet of 1 MiB", ">model off")
_THRESHOLDS = ("link", ">eager", "long", ">credits")


def _pipeline(found: Calibration) -> list[str]:
    """Return the cells of BIP's pipeline."""
    of_mib = next((packet for upto, packet in found.rows if upto >= 1 << 20), found.rows[-1][1])
    rates = [format_bandwidth(1 / each) if each > 0 else "-" for each in (found.byte, found.fill)]
    times = [format_time(found.start), format_time(found.packet)]
    return [*times, *rates, format_size(found.small_bytes), format_size(min(of_mib, 1 << 20)), f"{found.error:.0%}"]


def _thresholds(found: Thresholds) -> list[str]:
    """Return the cells of the message engine."""
    choice = found.choice
    return [format_size(int(choice["eager_limit"])), choice["rendezvous"], choice.get("credits", "-")]


def tables(found: Sequence[tuple[str, Calibration | None, Thresholds | None]]) -> list[Table]:
    """Return the calibrations of links as tables of at most 80 columns, without those that are empty.

    Parameters
    ----------
    found : sequence of (str, Calibration or None, Thresholds or None)
        Link, pipeline and thresholds.
    """
    pipelines = sheet(
        *_PIPELINE, title="[bold]BIP's pipeline[/bold]",
        caption="start, packet: time of a message and of each packet; wire, fill: bandwidth of the slowest stage, and "
        "of the others together; short: longest queued message",
    )  # fmt: skip
    limits = sheet(
        *_THRESHOLDS, title="[bold]Thresholds of messages[/bold]",
        caption="eager: longest message sent at once; long: rendezvous of longer ones",
    )  # fmt: skip
    for link, pipeline, thresholds in found:
        if pipeline is not None:
            pipelines.add_row(link, *_pipeline(pipeline))
        if thresholds is not None:
            limits.add_row(link, *_thresholds(thresholds))
    return [one for one in (pipelines, limits) if one.row_count]
