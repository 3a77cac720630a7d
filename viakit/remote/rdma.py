"""RDMA devices of this host, as Linux lists them below /sys/class/infiniband. The link ``verbs`` uses them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["RdmaPort", "interface_of", "judge", "ports"]

_CLASS = Path("/sys/class/infiniband")
_NODES = Path("/dev/infiniband")


class RdmaPort(NamedTuple):
    """One port of an RDMA device.

    Attributes
    ----------
    device : str
        Name of the device, as "mlx5_0".
    port : int
        Number of the port, from 1 on.
    interface : str
        Network interface with the port's addresses; empty if the port has none.
    active : bool
        Whether the port has a link.
    """

    device: str
    port: int
    interface: str
    active: bool


def _text(path: Path) -> str:
    """Return the text of a file of sysfs. It is empty for an unused entry, whose file cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def ports(folder: Path = _CLASS) -> list[RdmaPort]:
    """Return all ports of all RDMA devices, sorted by device and port; none where the kernel has no such device."""
    found = []
    for device in sorted(folder.glob("*")):
        for port in sorted(device.glob("ports/*"), key=lambda path: int(path.name)):
            owners = (_text(entry) for entry in sorted((port / "gid_attrs/ndevs").glob("*")))
            interface = next((owner for owner in owners if owner), "")
            active = _text(port / "state").partition(":")[0] == "4"
            found.append(RdmaPort(device.name, int(port.name), interface, active))
    return found


def interface_of(word: str, known: list[RdmaPort]) -> str | None:
    """Return the interface of the device or interface named *word*, or None if no port has it."""
    for one in known:
        if word in (one.device, f"{one.device}:{one.port}", one.interface):
            return one.interface
    return None


def judge(known: list[RdmaPort] | None = None) -> tuple[bool | None, str, str, str]:
    """Return whether the link ``verbs`` can be used here, what was found, the consequence, and a remedy."""
    known = ports() if known is None else known
    if not known:
        return None, "none", "the link verbs needs an RDMA card; all other links work without one", ""
    value = ", ".join(f"{one.device} ({one.interface or 'no interface'})" for one in known)
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        remedy = "sudo apt-get install libibverbs1 ibverbs-providers"
        return None, value, "the link verbs needs the library libibverbs", remedy
    usable = [one for one in known if one.active and one.interface]
    if not usable:
        remedy = f"sudo ip link set {known[0].interface or 'INTERFACE'} up, and give the interface an IP address"
        return None, value, "no port is active with an IP address, which the link verbs needs", remedy
    nodes = sorted(_NODES.glob("uverbs*"))
    if not any(os.access(node, os.R_OK | os.W_OK) for node in nodes):
        return None, value, "this user may not open the devices", "sudo chmod 666 /dev/infiniband/uverbs*"
    return True, value, f"the link verbs works: verbs:{usable[0].device}", ""
