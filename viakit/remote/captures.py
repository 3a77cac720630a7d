"""Captures of taps on other machines, and how far their clocks are apart.

If ``VIAKIT_TAP`` of this process names a folder, it applies to the processes on the other machines, too. There they
write to a temporary folder. When the connection is closed, its files come here, into a folder of that folder::

    FOLDER/                     captures of this machine
      beta-x3k1/PID.pcapng      captures of the host beta
      beta-x3k1/clock.json      its name, and the limits of its clock's offset

The offset of a clock is its CLOCK_MONOTONIC minus that of this machine. A request for the time there was answered
between its departure and the arrival of the reply. Each reply therefore gives a lower and an upper limit.
:mod:`viakit.trace` reads these files, and narrows the limits by the frames between the hosts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from viakit.remote.spec import HERE
from viakit.testbed.call import TestbedError

if TYPE_CHECKING:
    from viakit.remote import RemoteHost

__all__ = ["CLOCK_FILE", "Captures", "begin"]

CLOCK_FILE = "clock.json"
_READINGS = 8  # of the clock, at the begin and at the end
_FETCH_S = 60.0  # limit for one file, and for a reply


class Captures:
    """The captures of one host.

    Parameters
    ----------
    host : RemoteHost
    folder : Path
        Destination of the files.
    words : str
        The part of ``VIAKIT_TAP`` after the folder, with its comma.
    """

    def __init__(self, host: RemoteHost, folder: Path, words: str) -> None:
        self._host = host
        self._limits: list[tuple[int, int]] = []
        self._there = host.folder()
        self._read_clock()
        # The connection may be opened several times in a run.
        self._folder = Path(tempfile.mkdtemp(prefix=re.sub(r"[^\w.-]", "_", host.name) + "-", dir=folder))
        host.environment["VIAKIT_TAP"] = f"{self._there}/{words}"

    def _read_clock(self) -> None:
        for _ in range(_READINGS):
            before = time.monotonic_ns()
            there = int(self._host.query("clock", _FETCH_S)["monotonic_ns"])
            self._limits.append((there - time.monotonic_ns(), there - before))

    def fetch(self) -> None:
        """Fetch all captures, and write the clock's file. A failure is written to that file, and not raised."""
        problem = ""
        try:
            self._read_clock()
            for name in self._host.query("files", _FETCH_S, folder=self._there)["files"]:
                done = self._host.run(["cat", "--", name], text=False, timeout=_FETCH_S, check=True)
                (self._folder / os.path.basename(name)).write_bytes(done.stdout)
        except (TestbedError, OSError, subprocess.SubprocessError) as error:
            problem = str(error)
        about = {
            "host": self._host.name,
            "low_ns": max(low for low, _ in self._limits),
            "high_ns": min(high for _, high in self._limits),
            "problem": problem,
        }
        (self._folder / CLOCK_FILE).write_text(json.dumps(about), encoding="utf-8")


def begin(hosts: Sequence[RemoteHost]) -> list[Captures]:
    """Let the taps of the processes on *hosts* write captures, if ``VIAKIT_TAP`` of this process names a folder."""
    name, comma, words = os.environ.get("VIAKIT_TAP", "").partition(",")
    if not name or not os.path.isdir(name):
        return []
    return [Captures(host, Path(name), comma + words) for host in hosts if host.name != HERE]
