"""Machines: hosts, cards, wires and switches as numbers, each with its source.

A machine is a TOML file, of this package or of the user::

    [machine]
    title = "8 nodes with 700 MHz Pentium III on a Giganet switch"
    [via]
    send_us = { is = 1.4, from = "Gupta et al., 7.1" }

:func:`load` reads one, checks every key, and fills in defaults. The link `sim` and :mod:`viakit.replay` compute times
from its numbers. :data:`KEYS` lists the keys with their units.
"""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from viakit.machines.keys import KEYS, WORDS, Key

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["KEYS", "WORDS", "Key", "Machine", "MachineError", "load", "names", "read"]

SOURCES = ("fitted: ", "derived: ", "assumed: ")  # all other sources are citations


class MachineError(ValueError):
    """A machine file is missing or has an error; the message gives the place and a remedy."""


@dataclass(frozen=True)
class Machine:
    """Machine with all of its numbers.

    Attributes
    ----------
    name : str
        Name of the file without its suffix.
    title, paper : str
        Description, and the publication that it describes a machine of.
    numbers : dict
        Value of each key of :data:`KEYS`, such as ``"via.send_us"``. Keys of an absent section are missing.
    words : dict
        Value of each key of :data:`WORDS`.
    sources : dict
        Source of each number that the file gives.
    """

    name: str
    title: str
    paper: str
    numbers: dict[str, float]
    words: dict[str, str]
    sources: dict[str, str] = field(repr=False)

    def has(self, section: str) -> bool:
        """Return True if the machine has the section, such as "via" or "tcp"."""
        return any(key.startswith(section + ".") for key in self.numbers)

    def protocol(self) -> str:
        """Return the protocol that jobs use by default: "via", or "tcp" on a machine whose cards have sockets only."""
        return "via" if self.has("via") or self.has("bip") else "tcp"

    def __getitem__(self, key: str) -> float:
        """Return a number.

        Raises
        ------
        MachineError
            If the machine has no such number.
        """
        try:
            return self.numbers[key]
        except KeyError:
            section = key.partition(".")[0]
            raise MachineError(
                f"machine {self.name} has no number {key!r}: "
                + (f"its file has no section [{section}]" if section else "it is not a key")
            ) from None

    def replace(self, **numbers: float) -> Machine:
        """Return the machine with other numbers; ``__`` stands for the dot: ``wire__mtu=9000``.

        Raises
        ------
        MachineError
            If a key is unknown.
        """
        changed = {key.replace("__", "."): float(value) for key, value in numbers.items()}
        for key in changed:
            self[key]
        return Machine(self.name, self.title, self.paper, {**self.numbers, **changed}, self.words, self.sources)

    def text(self) -> str:
        """Return one line for each number and word, sorted: the form in which C reads a machine.

        Its name is one of the words, in ASCII and at most 63 bytes long.
        """
        name = {"machine.name": " ".join(self.name.encode("ascii", "replace").decode().split())[:63]}
        return "".join(f"{key} {value}\n" for key, value in sorted({**self.numbers, **self.words, **name}.items()))


def names() -> list[str]:
    """Return the names of the machines of this package, sorted."""
    found = (one.name for one in resources.files("viakit.machines").iterdir())
    return sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def load(name: str | os.PathLike[str]) -> Machine:
    """Return a machine by the name of one of this package, or by the path of a file.

    Raises
    ------
    MachineError
        If there is no such machine, or its file has an error.
    """
    given = os.fspath(name)
    if os.sep in given or given.endswith(".toml"):
        try:
            with open(given, encoding="utf-8") as file:
                text = file.read()
        except OSError as error:
            raise MachineError(f"machine file {given}: {error.strerror}") from None
        return read(text, os.path.basename(given).removesuffix(".toml"), given)
    if given not in names():
        near = difflib.get_close_matches(given, names(), 1)
        raise MachineError(
            f"no machine is called {given!r}"
            + (f"; is it {near[0]}?" if near else ";")
            + " `viakit machines` lists them; a file of your own is named by its path, such as ./mine.toml"
        )
    resource = resources.files("viakit.machines").joinpath(given + ".toml")
    return read(resource.read_text(encoding="utf-8"), given, given + ".toml")


def _unknown(where: str, key: str) -> MachineError:
    """Return the error for a key that does not exist, with the nearest one that does."""
    near = difflib.get_close_matches(key, [*KEYS, *WORDS], 1)
    hint = f"; is it {near[0]}?" if near else ""
    return MachineError(f"{where}: unknown key {key!r}{hint} docs/machines.md lists the keys")


def _number(where: str, key: str, value: Any) -> tuple[float, str]:
    """Return the value and the source of one entry."""
    form = f'{key.partition(".")[2]} = {{ is = 1.5, from = "Authors, section" }}'
    if not isinstance(value, dict) or set(value) != {"is", "from"}:
        raise MachineError(f"{where}: {key} is {value!r}; expected a number and its source: {form}")
    number, source = value["is"], value["from"]
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise MachineError(f"{where}: {key} is {number!r}; expected a number")
    about = KEYS[key]
    if not about.least <= number < float("inf"):
        raise MachineError(f"{where}: {key} is {number}; expected {about.least:g} or more ({about.unit})")
    if not isinstance(source, str) or len(source.strip()) < 5:
        raise MachineError(
            f"{where}: {key} has no source; give authors and section, or begin with {', '.join(SOURCES)}"
        )
    return float(number), source.strip()


def _entries(where: str, document: dict[str, Any]) -> tuple[dict[str, float], dict[str, str], dict[str, str]]:
    """Return the numbers, their sources, and the words of a file."""
    numbers: dict[str, float] = {}
    sources: dict[str, str] = {}
    words: dict[str, str] = {}
    for section, table in document.items():
        if not isinstance(table, dict):
            raise MachineError(
                f"{where}: {section} stands outside a section; sections are [machine], [host], [wire] ..."
            )
        for name, value in table.items():
            key = f"{section}.{name}"
            if key in ("machine.title", "machine.paper"):
                words[key] = str(value)
            elif key in WORDS:
                if value not in WORDS[key].choices:
                    raise MachineError(f"{where}: {key} is {value!r}; expected {' or '.join(WORDS[key].choices)}")
                words[key] = value
            elif key in KEYS:
                numbers[key], sources[key] = _number(where, key, value)
            else:
                raise _unknown(where, key)
    return numbers, sources, words


def read(text: str, name: str, where: str = "") -> Machine:
    """Return a machine from the text of its file.

    Parameters
    ----------
    text : str
        TOML.
    name : str
        Name of the machine.
    where : str, optional
        Name of the file in errors.

    Raises
    ------
    MachineError
        If the text has an error.
    """
    where = where or name
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MachineError(f"{where}: not TOML: {error}") from None
    numbers, sources, words = _entries(where, document)
    if "machine.title" not in words:
        raise MachineError(f'{where}: [machine] has no title; give title = "..."')
    # A machine without VIA or without sockets has no section for them, and no defaults of it.
    optional = {"via", "tcp", "bip"} - set(document)
    if {"via", "tcp", "bip"} == optional:
        raise MachineError(f"{where}: there is no section [via], [tcp] or [bip]; a machine needs one of them")
    for key, about in KEYS.items():
        if key.partition(".")[0] in optional or key in numbers:
            continue
        if about.default is None:
            raise MachineError(f"{where}: {key} is missing ({about.text}, {about.unit})")
        value = numbers[about.default] if isinstance(about.default, str) else about.default
        numbers[key] = value * about.times
    for key, word in WORDS.items():
        if key.partition(".")[0] not in optional:
            words.setdefault(key, word.choices[0])
    return Machine(name, words.pop("machine.title"), words.pop("machine.paper", ""), numbers, words, sources)
