"""The text that names hosts: ``ssh:a,b*4`` or ``ssh:@FILE``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HERE", "Spec", "chosen_hosts", "network_of_first", "parse"]

HERE = "."  # the name of this machine, which is reached without ssh
_MOST_HOSTS, _MOST_SLOTS = 256, 1024
_MOST_EMULATED = 64  # hosts of a testbed
_FORM = "ssh:HOST[*SLOTS],..., or ssh:@FILE with a HOST [SLOTS] on each line"
_CONTENT = 'The file must contain a host on each line, or a host and its number of ranks, such as "beta 4"'


@dataclass(frozen=True)
class Spec:
    """Hosts that ssh reaches.

    Attributes
    ----------
    names : tuple of str
        Names as ssh takes them (``user@host``, or an alias of its configuration); "." is this machine.
    slots : tuple of int
        Number of ranks that each host takes before the next one gets some; 0: an equal share.
    """

    names: tuple[str, ...]
    slots: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        return "ssh:" + ",".join(
            name + (f"*{slots}" if slots else "") for name, slots in zip(self.names, self.slots, strict=True)
        )

    def first(self, n: int) -> Spec:
        """Return the first *n* hosts, or all if there are fewer."""
        return Spec(self.names[:n], self.slots[:n])

    def host_of(self, rank: int, n_ranks: int, placement: str = "block") -> int:
        """Return the index of the host of a rank."""
        n = len(self)
        if not any(self.slots):
            return rank % n if placement == "cyclic" else rank * n // n_ranks
        if placement == "cyclic":
            order = [host for turn in range(max(self.slots)) for host in range(n) if turn < self.slots[host]]
        else:
            order = [host for host in range(n) for _ in range(self.slots[host])]
        return order[rank % len(order)]


def _words_of(name: str) -> list[str]:
    """Return the words HOST*SLOTS of a file of hosts."""
    if not name:
        raise ValueError(f"ssh:@ names no file; expected ssh:@FILE. {_CONTENT}")
    try:
        text = Path(name).expanduser().read_text(encoding="utf-8-sig")  # editors of Windows write a mark first
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ValueError(f"ssh:@{name}: the file of hosts cannot be read: {why}. {_CONTENT}") from None
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    if not any(lines):
        raise ValueError(f"ssh:@{name}: the file names no host. {_CONTENT}")
    return ["*".join(line) for line in lines if line]


def chosen_hosts(hosts: int | str) -> int | str:
    """Return what an option for hosts means: a number of testbed hosts, or text for :func:`parse`.

    Parameters
    ----------
    hosts : int or str
        A number, which is returned as it is; ``"local"``: 0; ``"testbed"``: 2; ``"testbed:N"``: N; or ``"ssh:a,b"``.

    Raises
    ------
    ValueError
        If the text names no hosts.
    """
    if not isinstance(hosts, str):
        return hosts
    if hosts.startswith("ssh:"):
        return str(parse(hosts))
    match = re.fullmatch(r"testbed(?::(\d{1,3}))?", hosts)
    number = 0 if hosts == "local" else int(match[1] or 2) if match else -1
    if not 0 <= number <= _MOST_EMULATED or (match and not number):
        raise ValueError(
            f"hosts {hosts!r}; expected local, testbed:N with 1 to {_MOST_EMULATED} hosts, or ssh:HOST[*RANKS],..."
        )
    return number


def network_of_first(network: str | None, n: int) -> str | None:
    """Return a network that may name one interface or address for each host, for the first *n* hosts."""
    kind, colon, words = (network or "").partition(":")
    return f"{kind}:{','.join(words.split(',')[:n])}" if colon else network


def parse(text: str) -> Spec:
    """Return the hosts that *text* names.

    Raises
    ------
    ValueError
        If the text names no hosts, or one of them twice, or if the file cannot be read.
    """
    kind, colon, rest = text.partition(":")
    if kind != "ssh" or not colon:
        raise ValueError(f"hosts {text!r}; expected {_FORM}")
    if rest.startswith("@"):
        words = _words_of(rest[1:])
    else:
        words = [word.strip() for word in rest.split(",")]
    names: list[str] = []
    slots: list[int] = []
    for word in words:
        match = re.fullmatch(r"([^\s*,-][^\s*,]*)(?:\*(?:slots=)?(\d{1,4}))?", word)
        if match is None or (match[2] and not 1 <= int(match[2]) <= _MOST_SLOTS):
            raise ValueError(f"host {word!r} in {text!r}; expected {_FORM}, SLOTS from 1 to {_MOST_SLOTS}")
        names.append(match[1])
        slots.append(int(match[2] or 0))
    if not 1 <= len(names) <= _MOST_HOSTS:
        raise ValueError(f"{text!r} names {len(names)} hosts; expected 1 to {_MOST_HOSTS}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{text!r} names {', '.join(twice)} more than once; give its number of ranks as {twice[0]}*2")
    if any(slots):
        slots = [number or 1 for number in slots]
    return Spec(tuple(names), tuple(slots))
