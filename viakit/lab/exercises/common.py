"""Means of several lessons' checks: measured results, commands, connected VIs, and text of functions that ranks run."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

from viakit import _core, via
from viakit.lab import lessons
from viakit.lab.tutor import Names, Wrong, text_of

__all__ = ["COUNTED", "command", "connected", "counter", "joined", "known_policy", "on_ranks"]

#: Source for :func:`on_ranks`: `comm` counts what the answer sends, refuses collectives; `_comm` is the whole one.
COUNTED = """
class _Counted:
    def __init__(self, comm):
        self.comm, self.sent = comm, 0

    def __getattr__(self, name):
        found, kind = getattr(self.comm, name), name.lower()
        if kind in ("rank", "size", "get_rank", "get_size", "recv", "irecv", "probe", "iprobe"):
            return found
        if kind not in ("send", "isend", "ssend", "issend", "sendrecv", "sendrecv_replace"):
            raise RuntimeError(f"your text uses comm.{name}; expected only comm.send, comm.recv and comm.sendrecv, "
                               "or their forms for arrays")

        def counted(*args, **kw):
            self.sent += 1
            return found(*args, **kw)

        return counted


_comm, comm = comm, _Counted(comm)
"""


def counter(result: Any, protocol: str, name: str, nbytes: int | None = None) -> float:
    """Return a counter per message of the student's result. Raises Wrong if the result does not have the point."""
    try:
        return lessons.per_message(result, protocol, name, nbytes)
    except LookupError as error:
        raise Wrong(f"{error}. Run the cell that measures with its original settings") from None


def command(words: str) -> Any:
    """Run a command of viakit as ``%viakit`` does, and return its result."""
    from IPython import get_ipython  # optional package

    shell = get_ipython()
    if shell is None:
        raise Wrong("this exercise measures, which needs a notebook")
    return shell.run_line_magic("viakit", words)


def known_policy(names: Names, answer: str, channel: str) -> str:
    """Return an answer that must be a policy of a channel, "via" or "tcp". Raises Wrong, with the reason.

    The policy of the channel's own name is the base of an answer that has changes only.
    """
    given = text_of(names, answer)
    if not re.fullmatch(r"[\w.,=+-]+", given):
        raise Wrong(f"{answer} is {given!r}; expected a name and changes such as 'NAME,FIELD=VALUE', without spaces")
    policy = f"{channel},{given}" if "=" in given.partition(",")[0] else given
    try:
        found = _core.policy_fields(policy)
    except ValueError as error:
        raise Wrong(f"{answer} is {given!r}: {error}") from None
    if found["channel"] != channel:
        raise Wrong(f"{answer} is {given!r}, a policy over {found['channel']}; expected one over {channel}")
    return policy


@contextlib.contextmanager
def joined(nic: via.Nic, **options: Any) -> Iterator[tuple[via.Vi, via.Vi]]:
    """Yield two new VIs of a NIC in memory, connected to each other: client and server."""
    with nic.create_vi(**options) as client, nic.create_vi(**options) as server:
        joining = threading.Thread(target=lambda: client.connect(nic.address / "check", timeout_s=10, retry=True))
        joining.start()
        nic.connect_wait("check", timeout_s=10).accept(server)
        joining.join()
        yield client, server


@contextlib.contextmanager
def connected(name: str, **options: Any) -> Iterator[tuple[via.Nic, Any, via.Vi, via.Vi]]:
    """Yield a NIC in memory, a region of 256 bytes, and two connected VIs: client and server."""
    with (
        via.Nic(f"loop:{name}") as nic,
        nic.create_region(256) as memory,
        joined(nic, **options) as (client, server),
    ):
        yield nic, memory, client, server


def on_ranks(n: int, names: Names, answer: str, source: str) -> list[str]:
    """Run text on *n* ranks and return their last values. After an error the ranks are ended."""
    from IPython import get_ipython  # optional package

    text = getattr(names, answer)
    if not isinstance(text, str):
        raise Wrong(f"{answer} is {text!r}; expected the text of a function, in quotes")
    shell = get_ipython()
    if shell is None:
        raise Wrong("this exercise starts ranks, which needs a notebook")
    ranks = shell.run_line_magic("ranks", f"-n {n}")  # the running ranks, or new ones
    try:
        return list(ranks.run(source.replace("ANSWER", text), timeout_s=20))
    except Exception as error:
        shell.run_line_magic("ranks", "--stop")  # messages may be under way, so the next attempt gets new ranks
        raise Wrong(f"on {n} ranks your text raised {error}") from None
