"""Which policy of the message engine a world gets, and whether it goes with the protocol that was asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from viakit import _core

__all__ = ["PROTOCOLS", "chosen", "complete", "wish"]

PROTOCOLS = ("via", "bip", "tcp", "mpi")


def wish(environment: Mapping[str, str] = os.environ) -> tuple[str | None, str]:
    """The policy that the environment names, if it does, and by what variable."""
    for name in ("VIAKIT_POLICY", "VIAKIT_MSG"):
        if environment.get(name):
            return environment[name], name
    return None, ""


def chosen(protocol: str | None, policy: str | None) -> str:
    """The protocol: what was asked for, else the one that the policy is for, else "via".

    Raises
    ------
    ValueError
        If the policy makes no sense.
    """
    return protocol or (policy and _core.policy_channel(policy)) or "via"


def complete(protocol: str, policy: str | None, source: str = "policy") -> str:
    """The policy's full text for a protocol: its own if none was given, with the changes if there are only those.

    Parameters
    ----------
    protocol : str
        "via", "bip", "tcp" or "mpi", also "mpi:mpich", "mpi:openmpi".
    policy : str or None
        "mvich-rput", "via,credits=16", or only changes, "credits=16".
    source : str
        Who said it, for the text of an error.

    Raises
    ------
    ValueError
        If the policy makes no sense, or is for another protocol.
    """
    if not policy:
        return protocol
    channel = _core.policy_channel(policy)
    if protocol.partition(":")[0] == "mpi":
        raise ValueError(
            f"{source} is {policy!r}, and the protocol is {protocol!r}, which has none of viakit's policies; right "
            f"would be no policy, or protocol {channel or 'via'!r}"
        )
    if channel not in (None, protocol):
        others = [name for name in _core.policies() if _core.policy_channel(name) == protocol]
        raise ValueError(
            f"{source} is {policy!r}, which is for protocol {channel!r}, and the protocol is {protocol!r}; right "
            f"would be protocol {channel!r}, or one of the policies for {protocol!r}: {', '.join(others)}"
        )
    return f"{protocol},{policy}" if "=" in policy.partition(",")[0] else policy
