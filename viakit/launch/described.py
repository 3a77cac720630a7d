"""Jobs on a described machine: its numbers in a file, which the ranks read."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from viakit import machines

__all__ = ["check_protocol", "on_machine", "protocol_on"]


def protocol_on(name: str | None) -> str:
    """Return the protocol of jobs on a machine (None: this one), if the user names none.

    It is that of ``VIAKIT_PROTOCOL``, else "via", or "tcp" on a described machine whose cards have sockets only.
    """
    return os.environ.get("VIAKIT_PROTOCOL") or ("via" if name is None else machines.load(name).protocol())


def check_protocol(name: str, protocol: str) -> None:
    """Raise :class:`viakit.machines.MachineError` if jobs on a machine cannot use a protocol, such as "tcp:pvm"."""
    machine = machines.load(name)
    if protocol.partition(":")[0] == "tcp":
        if not machine.has("tcp"):
            raise machines.MachineError(
                f"{protocol}: machine {machine.name} has no section [tcp], so it has no sockets"
            )
    elif machine.protocol() == "tcp":
        raise machines.MachineError(
            f"{protocol}: machine {machine.name} has no section [via] and no [bip], so it has no NICs; use tcp"
        )


@contextlib.contextmanager
def on_machine(name: str | None, computing: float | None = None) -> Iterator[dict[str, str]]:
    """Provide the environment of ranks that run on a machine, in virtual time.

    Parameters
    ----------
    name : str or None
        Name of a machine, or its file; None: no machine, and no variable.
    computing : float, optional
        The machine's time for the computing of one second of this processor, for applications. Default: that of the
        machine's description.

    Yields
    ------
    dict
        The variables VIAKIT_MACHINE, whose file exists until the end of the context, and VIAKIT_COMPUTING.

    Raises
    ------
    MachineError
        If the machine does not exist, or its file has an error; a ValueError.
    """
    if name is None:
        yield {}
        return
    machine = machines.load(name)
    text = machine.text()
    factor = machine.numbers.get("compute.factor", 0.0) if computing is None else computing
    with tempfile.NamedTemporaryFile("w", prefix="viakit-machine-", suffix=".txt") as file:
        file.write(text)
        file.flush()
        yield {"VIAKIT_MACHINE": file.name, "VIAKIT_COMPUTING": repr(factor)}
