"""The relay that delays a testbed's frames: its process and its counts.

Linux delays frames by the queueing discipline netem, which many kernels lack. The relay needs only packet sockets, so
it works wherever the testbed does. It is the switch of the testbed, in place of the kernel's bridge: each host's wire
ends at a packet socket, and a process forwards every frame when its delay has passed (csrc/bench/relay.c).

The supervisor forks that process. So this module imports nothing of viakit but its siblings before the fork;
:mod:`viakit.testbed.namespaces` gives the reason.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from viakit.base.process import end_with_parent

from . import namespaces as ns

#: Names of the relay's counts, in their order in the shared memory; the compiled extension has the same.
COUNTS = ("frames", "bytes", "dropped", "late_ns", "late_max_ns", "queued_max")


class Relay:
    """Process that forwards frames between the ports of the switch; created in the switch's network namespace.

    Parameters
    ----------
    ports : list of (str, bytes)
        Each interface of the switch, and the MAC address of the host at its other end.
    delay_ns, longest : int
        Delay of each frame, and length of the longest frame in bytes.
    release : callable
        Called in the new process: closes what belongs to the supervisor only.

    Raises
    ------
    Refused
        With step "relay", if the kernel refuses a packet socket or its ring.
    """

    def __init__(
        self, ports: list[tuple[str, bytes]], delay_ns: int, longest: int, release: Callable[[], None]
    ) -> None:
        self._counts = mmap.mmap(-1, mmap.PAGESIZE)
        ready_r, ready_w = os.pipe()
        supervisor = os.getpid()
        self.status: int | None = None  # exit status; None while the process runs
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ready_r)
            self._forward(ports, delay_ns, longest, supervisor, ready_w, release)
        os.close(ready_w)
        with open(ready_r, "rb") as pipe:
            message = pipe.read(4)  # returns at once if the process dies
        number = struct.unpack("=i", message)[0] if len(message) == 4 else errno.ECHILD
        if number:
            os.waitpid(self.pid, 0)
            raise ns.Refused("relay", number)

    def _forward(
        self,
        ports: list[tuple[str, bytes]],
        delay_ns: int,
        longest: int,
        supervisor: int,
        ready_w: int,
        release: Callable[[], None],
    ) -> NoReturn:
        """Run the relay in the new process until the supervisor ends it."""

        def report(number: int) -> None:
            os.write(ready_w, struct.pack("=i", number))
            os.close(ready_w)

        try:
            end_with_parent()
            if os.getppid() != supervisor:
                os._exit(1)  # the supervisor died before PR_SET_PDEATHSIG took effect
            release()
            from viakit import _core  # only here: the supervisor has to stay without threads

            _core.relay(ports, delay_ns, longest, memoryview(self._counts).cast("Q")[: len(COUNTS)], lambda: report(0))
        except OSError as error:
            report(error.errno or 1)
        finally:
            os._exit(1)

    def running(self) -> bool:
        """Return whether the process still forwards frames."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None

    def describe(self) -> dict[str, Any]:
        """Return the counts so far, the number of the process, and whether it is ``running``."""
        values = struct.unpack_from(f"={len(COUNTS)}Q", self._counts)
        return {**dict(zip(COUNTS, values, strict=True)), "pid": self.pid, "running": self.running()}

    def stop(self) -> None:
        """End the process and wait for it."""
        if self.running():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
