"""Jobs on a described machine: its numbers in a file, which the ranks read."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from viakit import machines
from viakit.launch.options import CHANNELS

__all__ = ["check_protocol", "on_machine", "protocol_on"]


def protocol_on(name: str, requested: str | None, policy: str | None = None) -> str:
    """Return the protocol of a job on a machine.

    Parameters
    ----------
    name : str
        Name of a machine, or its file.
    requested : str or None
        Protocol that the user names, such as "tcp:pvm".
    policy : str or None
        Policy that the user names. Its channel is the protocol, if none is requested.

    Returns
    -------
    str
        The requested protocol, else that of the policy, else "via", or "tcp" on a machine whose cards have only
        sockets.

    Raises
    ------
    MachineError, ValueError
        If the machine cannot have the protocol, or the policy is invalid.
    """
    from viakit import _core  # start-up time of --help

    protocol = requested or (policy and _core.policy_channel(policy)) or machines.load(name).protocol()
    check_protocol(name, protocol)
    return protocol


def check_protocol(name: str, protocol: str) -> None:
    """Raise :class:`viakit.machines.MachineError` if jobs on a machine cannot use a protocol, such as "tcp:pvm"."""
    from viakit.launch.policy import split  # start-up time of --help: it loads the library

    machine = machines.load(name)
    channel = split(protocol)[0]
    if channel not in CHANNELS:
        raise machines.MachineError(
            f"--machine: all ranks run on this host, by protocol {', '.join(CHANNELS)}; {protocol} cannot"
        )
    if channel == "tcp":
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
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="viakit-machine-", suffix=".txt") as file:
        file.write(text)
        file.flush()
        yield {"VIAKIT_MACHINE": file.name, "VIAKIT_COMPUTING": repr(factor)}
