"""Machines in words and pictures: a list of them, and where the time of a message goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viakit.base.sheet import sheet
from viakit.machines import KEYS, Machine
from viakit.machines.cost import KINDS, path_of, stages

__all__ = ["figure", "kinds_of", "show", "show_all"]

TITLES = {"tcp": "TCP", "via": "VIA, send and receive", "write": "VIA, RDMA write", "bip": "BIP"}
WIDTH = 48
MARKS = "#=~+-*%"


def kinds_of(machine: Machine) -> list[str]:
    """Return the kinds of messages that a machine has."""
    return [kind for kind in KINDS if machine.has("via" if kind == "write" else kind)]


def show_all(machines: Sequence[Machine], console: Any) -> None:
    """Print a table of machines: latency of one byte, and throughput of 1 MiB."""
    table = sheet("machine", "description", "paper", ">1 B, µs", ">1 MiB, Mbit/s", whole=["machine"])
    for machine in machines:
        path = path_of(machine, kinds_of(machine)[0])
        rate = 8e-6 * (1 << 20) / path.time_s(1 << 20)
        table.add_row(machine.name, machine.title, machine.paper, f"{path.time_s(1) * 1e6:.3g}", f"{rate:.0f}")
    console.print(table)


def show(machine: Machine, nbytes: int, console: Any) -> None:
    """Print one machine: its numbers with their sources, and for each kind of message where its time goes."""
    from rich.text import Text  # start-up time

    console.print(Text(f"{machine.name}: {machine.title}"))
    if machine.paper:
        console.print(Text(f"paper: {machine.paper}"))
    for kind in kinds_of(machine):
        path = path_of(machine, kind)
        parts = [(name, us) for name, us in stages(path, nbytes) if us > 0]
        first = sum(us for _, us in parts)
        console.print(Text(f"\n{TITLES[kind]}: {path.time_s(nbytes) * 1e6:.4g} µs for {nbytes} B; its first frame:"))
        at = 0.0
        for i, (name, us) in enumerate(parts):
            begin, end = round(WIDTH * at / first), round(WIDTH * (at + us) / first)
            bar = " " * begin + MARKS[i % len(MARKS)] * max(end - begin, 1)
            console.print(Text(f"  {name:28} {us:9.3f} µs |{bar:<{WIDTH + 1}}|"))
            at += us
    table = sheet("number", "value", "unit", "source")
    for key, source in machine.sources.items():
        table.add_row(key, f"{machine.numbers[key]:g}", KEYS[key].unit, Text(source))
    console.print(table)


def figure(machine: Machine, nbytes: int) -> Any:
    """Return a Matplotlib figure: for each kind of message a bar of host, card, wire, card and host."""
    from matplotlib.figure import Figure  # start-up time

    kinds = kinds_of(machine)
    drawing = Figure(figsize=(8, 1.4 + 0.7 * len(kinds)), layout="constrained")
    axes = drawing.subplots()
    colours = ("#009e73", "#56b4e9", "#e69f00", "#999999", "#d55e00", "#0072b2", "#cc79a7")
    labelled: set[str] = set()
    for row, kind in enumerate(kinds):
        at = 0.0
        for colour, (name, us) in zip(colours, stages(path_of(machine, kind), nbytes), strict=True):
            if us > 0:
                axes.barh(row, us, left=at, color=colour, label=None if name in labelled else name)
                labelled.add(name)
            at += us
    axes.set_yticks(range(len(kinds)), [TITLES[kind] for kind in kinds])
    axes.invert_yaxis()
    axes.set_xlabel(f"us, first frame of a message of {nbytes} B")
    axes.set_title(machine.title, fontsize="medium")
    drawing.legend(loc="outside lower center", ncols=4, fontsize="x-small")
    return drawing
