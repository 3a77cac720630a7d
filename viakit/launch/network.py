"""The network of a job whose ranks ``srun`` or ``mpirun`` started on several hosts.

``viakit run`` gives each rank its NIC and its address. Other launchers give one environment to all ranks, in which no
address of a host can stand. Therefore the ranks choose the network themselves:

* ``VIAKIT_NETWORK=udp:10.0.0.0/24``: each rank takes the address of its host in this network.
* Without ``VIAKIT_NETWORK``: the ranks exchange the addresses of their hosts. They use UDP on the first network of rank
  0's host that all other hosts have, too.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from viakit.launch.rendezvous import RendezvousError

if TYPE_CHECKING:
    from viakit.launch import Job

__all__ = ["JobHost", "meet", "settle", "spans_hosts", "take_given"]


def take_given(job: Job) -> None:
    """Take the address of this host in the network of ``VIAKIT_NETWORK=udp:NETWORK/BITS``.

    It concerns this host alone and precedes the meeting of the ranks. A rank that fails here leaves no meeting that
    other ranks still try to reach.

    Raises
    ------
    RendezvousError
        If this host has no address in that network.
    """
    given = job.network_device
    if given is not None and given.startswith("udp:") and "/" in given:
        address = _own_address(given)
        job.network_device, job.address = f"udp:{address}", job.address or address


def settle(job: Job, timeout: float) -> None:
    """Choose the NIC and the address of a rank, unless its environment names them. Collective without VIAKIT_NETWORK.

    A job on one host is left unchanged, and so is one whose hosts have no network in common.

    Raises
    ------
    RendezvousError
        If another rank's data are no addresses.
    """
    if job.network_device is not None or not spans_hosts(job.launcher, job.size, os.environ):
        return
    own = next(host for host in meet(job, {}, timeout) if job.rank in host.ranks)
    if own.address is not None:
        job.network_device, job.address = f"udp:{own.address}", job.address or own.address


@dataclass
class JobHost:
    """Host of a job.

    Attributes
    ----------
    address : str or None
        Address in the first network that all hosts of the job have in common.
    ranks : list of int
        Ranks on this host.
    about : list of dict
        What each of them has sent.
    """

    address: str | None
    ranks: list[int] = field(default_factory=list)
    about: list[dict[str, Any]] = field(default_factory=list)


def meet(job: Job, about: dict[str, Any], timeout: float) -> list[JobHost]:
    """Exchange the addresses of all ranks' hosts, and *about*; return the hosts in the order of their first ranks.

    Collective.

    Raises
    ------
    RendezvousError
        If a rank does not take part, or sends other data.
    """
    from viakit.remote.facts import common, facts  # start-up time

    mine = facts()
    addresses = [{name: one[name] for name in ("address", "loopback")} for one in mine["interfaces"] if one["address"]]
    message = {"host": f"{mine['boot']} {mine['netns']}", "addresses": addresses, "about": about}
    blobs = job.exchange(json.dumps(message).encode(), timeout)
    try:
        hosts: dict[str, JobHost] = {}
        lists: dict[str, list[dict[str, Any]]] = {}
        for rank, one in enumerate(map(json.loads, blobs)):
            lists.setdefault(one["host"], one["addresses"])
            host = hosts.setdefault(one["host"], JobHost(None))
            host.ranks.append(rank)
            host.about.append(dict(one["about"]))
        found = common(list(lists.values()), loopback=len(lists) == 1)
        for host, interface in zip(hosts.values(), found or [], strict=False):
            host.address = str(ipaddress.ip_interface(interface["address"]).ip)
    except (ValueError, TypeError, KeyError) as error:
        raise RendezvousError(f"a rank has sent no addresses ({error}): is its viakit of another version?") from error
    return list(hosts.values())


def spans_hosts(launcher: str, size: int, environment: Mapping[str, str]) -> bool:
    """Return whether the launcher has distributed its ranks over several hosts; the same on all ranks."""

    def number(name: str, default: int) -> int:
        text = environment.get(name, "")
        return int(text) if text.isdigit() else default

    if launcher == "openmpi":
        return number("OMPI_COMM_WORLD_LOCAL_SIZE", size) < size
    if launcher == "mpich" and "MPI_LOCALNRANKS" in environment:
        return number("MPI_LOCALNRANKS", size) < size
    return launcher in ("mpich", "srun") and number("SLURM_STEP_NUM_NODES", 1) > 1


def _own_address(device: str) -> str:
    """Return the address of this host in the network of ``udp:NETWORK/BITS``."""
    try:
        network = ipaddress.ip_network(device.partition(":")[2], strict=False)
    except ValueError as error:
        raise RendezvousError(f"VIAKIT_NETWORK is {device!r}; expected udp:ADDRESS or udp:NETWORK/BITS") from error
    from viakit.remote.facts import interfaces  # start-up time

    own = [ipaddress.ip_interface(one["address"]).ip for one in interfaces() if one["address"]]
    for address in own:
        if address in network:
            return str(address)
    raise RendezvousError(
        f"VIAKIT_NETWORK is {device}, but {os.uname().nodename} has no address in it; it has "
        f"{', '.join(map(str, own)) or 'none'}"
    )
