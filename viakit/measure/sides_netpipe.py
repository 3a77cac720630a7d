"""NetPIPE's own program over TCP, as a protocol of a sweep: ``netpipe:tcp``.

Each burst starts NPtcp on both sides, on the cores and in the networks of the workers, and reads its np.out. So NetPIPE
and viakit are measured in turns, on one wire, and their agreement can be checked at every size. NPtcp waits by
blocking calls, does not touch its buffers, and reports the best of several trials.
"""

from __future__ import annotations

import array
import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from typing import Any

from viakit.measure.endpoints import MeasureError
from viakit.measure.foreign import NETPIPE_TRIALS as TRIALS
from viakit.measure.foreign import netpipe_points
from viakit.measure.sides import Side, interface_facts

__all__ = ["NetpipeEndpoint", "NetpipeSide", "debian_version", "options_of"]

PROGRAM = "NPtcp"
_FIRST_PORT, _N_PORTS = 20000, 12000  # below the ports that the kernel gives to connections
_LISTENING = "0A"  # the state of a socket in /proc/net/tcp


def options_of(nbytes: int, count: int, offset: int, buffers: str) -> list[str]:
    """Return the options of a program of NetPIPE for one size and at least *count* round trips, in seven trials."""
    words = ["-l", str(nbytes), "-u", str(nbytes), "-p", "0", "-n", str(max(1, -(-count // TRIALS)))]
    words += ["-O", f"{offset},{offset}"] if offset else []
    return words + ["-I"] * (buffers == "cold")


def debian_version(package: str) -> str:
    """Return "NetPIPE" and the version of a package of Debian, as far as dpkg has it."""
    words = ["dpkg-query", "-W", "-f", "${Version}", package]
    there = shutil.which("dpkg-query") is not None
    known = subprocess.run(words, capture_output=True, text=True, check=False).stdout if there else ""
    version = re.match(r"[0-9.]+", known)
    return f"NetPIPE {version[0]}" if version else "NetPIPE"


class NetpipeEndpoint:
    """One run of NPtcp for each burst, with the methods of :class:`viakit._core.BenchEndpoint` that a worker calls."""

    timeout_s = 0.0
    folder = ""  # of one run

    def __init__(self, side: Side, program: str) -> None:
        self.side, self.program = side, program
        self.process: subprocess.Popen[bytes] | None = None

    def prepare(self, nbytes: int, run_id: int, count: int, offset: int, timeout_s: float, **plan: Any) -> None:
        """B starts the receiver and waits until it listens."""
        self.end()
        self.timeout_s = timeout_s
        port = _FIRST_PORT + run_id % _N_PORTS
        self.folder = tempfile.mkdtemp(prefix="viakit-netpipe-")
        self.words = [self.program, "-P", str(port), *options_of(nbytes, count, offset, plan["buffers"])]
        if sockbuf := self.side.request.get("sockbuf"):
            self.words += ["-b", str(sockbuf)]
        if self.side.side == 1:
            self._start([])
            deadline = time.monotonic() + timeout_s
            while not _listens(port):
                self._check(deadline)
                time.sleep(0.001)

    def _start(self, words: list[str]) -> None:
        out = os.path.join(self.folder, "np.out")
        with open(os.path.join(self.folder, "said"), "wb") as said:
            self.process = subprocess.Popen(
                [*self.words, *words, "-o", out], stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=self.folder
            )

    def _check(self, deadline: float) -> None:
        assert self.process is not None
        if self.process.poll() not in (None, 0):
            raise self._failed(f"exit status {self.process.returncode}")
        if time.monotonic() > deadline:
            self.end()
            raise MeasureError(f"{self.side.protocol}: a run was not over after {self.timeout_s:g} s", "timeout")

    def _reason(self, said: str) -> str:
        """Return the reason of a failure from the output."""
        return said.splitlines()[-1]

    def _failed(self, how: str) -> MeasureError:
        with open(os.path.join(self.folder, "said"), encoding="utf-8", errors="replace") as file:
            said = file.read().strip() or "it printed nothing"
        name = os.path.basename(self.program)
        return MeasureError(f"{self.side.protocol}: {name} failed ({how}): {self._reason(said)}", "error")

    def run(self) -> bytes:
        """A starts the transmitter; both wait for their program. Return A's time, in nanoseconds."""
        if self.side.side == 0:
            assert isinstance(self.side, NetpipeSide)
            self._start(["-h", self.side.peer_address])
        assert self.process is not None
        deadline = time.monotonic() + self.timeout_s
        while self.process.poll() is None:
            self._check(deadline)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.05)
        self._check(deadline)
        samples = self._samples() if self.side.side == 0 else b""
        self.end()
        return samples

    def _samples(self) -> bytes:
        """Return the time in np.out, in nanoseconds."""
        text = ""
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self.folder, "np.out"), encoding="utf-8") as out:
            text = out.read()
        points = netpipe_points(text)
        if len(points) != 1:
            raise self._failed(f"np.out has {len(points)} sizes instead of one")
        return array.array("d", [points[0][1] * 1e9]).tobytes()

    def counters(self) -> dict[str, int]:
        """Return no counters: NetPIPE counts nothing."""
        return {}

    def stop(self) -> None:
        """End the program from another thread."""
        process = self.process
        if process is not None:
            process.kill()

    def end(self) -> None:
        """End the program, and remove its files."""
        process, self.process = self.process, None
        if process is not None:
            if process.poll() is None:
                process.kill()
            process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)

    close = end


def _listens(port: int) -> bool:
    with open("/proc/net/tcp", encoding="ascii") as file:
        sockets = [line.split() for line in file.readlines()[1:]]
    return any(one[1].endswith(f":{port:04X}") and one[3] == _LISTENING for one in sockets)


class NetpipeSide(Side):
    """Side that starts NPtcp."""

    peer_address = ""

    def open(self) -> dict[str, Any]:
        """Find the program."""
        super().open()
        program = shutil.which(PROGRAM)
        if program is None:
            raise MeasureError(
                f"netpipe:tcp: there is no {PROGRAM}. Remedy: sudo apt-get install netpipe-tcp", "missing"
            )
        self.program = program
        return {"address": self.request["address"]}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Store the peer's address: NPtcp makes a connection for each run."""
        self.peer_address = peer["address"]
        self.endpoint = NetpipeEndpoint(self, self.program)

    def describe(self) -> dict[str, Any]:
        """Return the version, the socket buffers and the interface."""
        return {
            "library": debian_version("netpipe-tcp"),
            "transport": f"TCP by {PROGRAM}, a connection for each burst; best of {TRIALS} trials",
            "sockbuf": self.request.get("sockbuf") or "automatic",
            **interface_facts(self.request["interface"]),
        }
