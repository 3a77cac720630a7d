"""Choice of the message engine's policy, and the check that it belongs to the requested protocol."""

from __future__ import annotations

import os
from collections.abc import Mapping

from viakit import _core
from viakit.launch import mpi_library as mpi
from viakit.launch.options import CHANNELS

__all__ = ["PROTOCOLS", "chosen", "complete", "of_channel", "split", "wish"]

PROTOCOLS = (*CHANNELS, "mpi")


def wish(environment: Mapping[str, str] = os.environ) -> tuple[str | None, str]:
    """Return the policy that the environment names, or None, and the name of the variable."""
    for name in ("VIAKIT_POLICY", "VIAKIT_MSG"):
        if environment.get(name):
            return environment[name], name
    return None, ""


def chosen(protocol: str | None, policy: str | None) -> str:
    """Return the protocol: the requested one, else the one that the policy is for, else "via".

    Raises
    ------
    ValueError
        If the policy is invalid.
    """
    return protocol or (policy and _core.policy_channel(policy)) or "via"


def complete(protocol: str, policy: str | None, source: str = "policy") -> str:
    """Return the full text of a policy for a protocol.

    Parameters
    ----------
    protocol : str
        "via", "bip", "tcp" or "mpi", also "mpi:mpich", "mpi:openmpi".
    policy : str or None
        "mvich-rput", "via,credits=16", or changes only, "credits=16". Changes apply to the policy named as the
        protocol, which is also the default.
    source : str
        Where the policy was given, for the error message.

    Raises
    ------
    ValueError
        If the policy is invalid or is for another protocol.
    """
    if not policy:
        return protocol
    channel = _core.policy_channel(policy)
    if mpi.is_mpi(protocol):
        raise ValueError(
            f"{source} is {policy!r}, but protocol {protocol!r} has no policies of viakit; leave the policy out, or "
            f"use protocol {channel or 'via'!r}"
        )
    if channel not in (None, protocol):
        raise ValueError(
            f"{source} is {policy!r}, which is for protocol {channel!r}, but the protocol is {protocol!r}; use "
            f"protocol {channel!r}, or one of the policies for {protocol!r}: {', '.join(of_channel(protocol))}"
        )
    return f"{protocol},{policy}" if "=" in policy.partition(",")[0] else policy


def of_channel(channel: str) -> list[str]:
    """Return the names of the policies for a channel."""
    return [name for name in _core.policies() if _core.policy_channel(name) == channel]


def split(name: str, others: Mapping[str, str] | None = None) -> tuple[str, str | None]:
    """Return the protocol of a name, and the policy that the name adds to it, or None.

    Parameters
    ----------
    name : str
        ``"tcp:mpich-p4"``, or with changes, ``"tcp:mpich-p4,eager_limit=64K"``. In sweeps: ``"msg-tcp:mpich-p4"``. A
        policy alone, ``"mpich-p4"``, determines its protocol. Other names, such as ``"mpi:mpich"``, are returned
        unchanged.
    others : mapping, optional
        Protocols that take policies beside the channels, each with the channel that its policies are for.

    Raises
    ------
    ValueError
        If the policy is invalid or is for another protocol; the message lists those of the protocol.
    """
    others = others or {}
    protocol, colon, policy = name.removeprefix("msg-").partition(":")
    takes_policies = protocol in CHANNELS or protocol in others
    if takes_policies and not colon:
        return protocol, None
    if not takes_policies:
        first = name.partition(",")[0]
        channel = _core.policy_channel(name) if first in _core.policies() else None
        return (name, None) if channel is None else (channel, name)
    channel = others.get(protocol, protocol)
    first = policy.partition(",")[0]
    if "=" not in first and first not in of_channel(channel):
        raise ValueError(
            f"{name!r} names policy {first!r}; expected one of the policies for {protocol}: "
            f"{', '.join(of_channel(channel))}"
        )
    return protocol, complete(channel, policy, name)
