"""Hardware that decides the times of a measurement: network card, clock source and frequency governor of this host.

All values come from the kernel. Nothing needs root. The card is read by requests of ethtool and not from
``/sys/class/net``, which shows the interfaces of the host that mounted it, not those of a network namespace.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from typing import Any

__all__ = ["card", "clock_source", "governors", "judge_clock", "judge_governors"]

_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946
_OFFLOADS = {"rx-checksum": 0x14, "tx-checksum": 0x16, "sg": 0x18, "tso": 0x1E, "gso": 0x23, "gro": 0x2B}
_GSET, _GDRVINFO = 0x1, 0x3
_UNKNOWN_SPEEDS = (0, 0xFFFF, 0xFFFFFFFF)
_QUICK_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "riscv_clocksource", "timebase")
_CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def _line(path: str) -> str | None:
    """Return the first line of a file, or None if it cannot be read or is empty."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip() or None
    except OSError:
        return None


def card(interface: str) -> dict[str, Any]:
    """Return the properties of an interface, as far as the kernel reports them.

    Parameters
    ----------
    interface : str
        Name of an interface in this process's network namespace.

    Returns
    -------
    dict
        Keys "interface", "mtu" (bytes), "driver", "model" (vendor and device number of a PCI card, "8086:100e"),
        "speed_mbit_s" and "offloads" (object of bool). A value that the kernel does not report is missing.
    """
    facts: dict[str, Any] = {"interface": interface}
    name = interface.encode()[:15]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:

        def ethtool(command: int, n_words: int) -> bytes | None:
            value = array.array("I", [command, *[0] * (n_words - 1)])
            try:
                fcntl.ioctl(sock, _SIOCETHTOOL, struct.pack("16sP16x", name, value.buffer_info()[0]))
            except OSError:
                return None
            return value.tobytes()

        try:
            facts["mtu"] = struct.unpack("16si20x", fcntl.ioctl(sock, _SIOCGIFMTU, struct.pack("16s24x", name)))[1]
        except OSError:
            return facts
        if (about := ethtool(_GDRVINFO, 49)) is not None:  # struct ethtool_drvinfo
            driver, bus = (
                about[begin : begin + 32].partition(b"\0")[0].decode("ascii", "replace") for begin in (4, 100)
            )
            facts |= {"driver": driver} if driver else {}
            parts = [_line(f"/sys/bus/pci/devices/{bus}/{part}") for part in ("vendor", "device")] if bus else []
            facts |= {"model": ":".join(str(part).removeprefix("0x") for part in parts)} if parts and all(parts) else {}
        if (settings := ethtool(_GSET, 11)) is not None:  # struct ethtool_cmd: the speed is in two parts
            speed = struct.unpack_from("=H", settings, 12)[0] | struct.unpack_from("=H", settings, 28)[0] << 16
            facts |= {"speed_mbit_s": speed} if speed not in _UNKNOWN_SPEEDS else {}
        found = {text: ethtool(command, 2) for text, command in _OFFLOADS.items()}
    offloads = {text: any(value[4:]) for text, value in found.items() if value is not None}
    return facts | ({"offloads": offloads} if offloads else {})


def clock_source() -> str | None:
    """Return the kernel's clock source, for instance "tsc"; None if it cannot be read."""
    return _line(_CLOCK)


def judge_clock() -> tuple[bool | None, str, str, str]:
    """Return ok, value, detail and remedy of the clock source, for the doctor."""
    source = clock_source()
    if source is None:
        return None, "not visible", "", ""
    if source in _QUICK_CLOCKS:
        return True, source, "the clock is read without a system call", ""
    available = (_line(_CLOCK.replace("current", "available")) or "").split()
    better = next((name for name in _QUICK_CLOCKS if name in available), None)
    remedy = (
        f"echo {better} | sudo tee {_CLOCK}"
        if better
        else "boot with the kernel's option tsc=reliable if the processor's counter is stable"
    )
    return None, source, "each reading of the clock is a system call, so short times are measured too long", remedy


def governors() -> list[str]:
    """Return the frequency governors of the cores that this process may use, without repetition; often empty."""
    paths = (f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor" for core in os.sched_getaffinity(0))
    return sorted({value for path in paths if (value := _line(path))})


def judge_governors() -> tuple[bool | None, str, str, str]:
    """Return ok, value, detail and remedy of the frequency governors, for the doctor."""
    found = governors()
    if not found:
        return None, "not visible", "usual in a virtual machine; nothing can be set", ""
    if found == ["performance"]:
        return True, found[0], "", ""
    detail = "latencies vary with the clock frequency; each result records the governor"
    return None, ", ".join(found), detail, "sudo cpupower frequency-set -g performance"
