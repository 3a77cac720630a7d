"""Processes that measure, from their owner's side: how they are started, dismissed, and killed if they do not end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

import viakit
from viakit.measure.channel import Channel

if TYPE_CHECKING:
    from viakit.measure.ranks import Ranks
    from viakit.testbed import Host

__all__ = ["command", "dismiss", "end", "last_words", "start"]

_CLOSE_S = 5.0  # time for processes to end after the request to close


def command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command that runs the function main() of a module, with the same Python and the same viakit.

    (``python -m`` searches the current directory first, and would find a folder of sources in a checkout.)
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(viakit.__file__)))
    code = (
        "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; "
        f"from {module} import main; sys.exit(main())"
    )
    return [sys.executable, "-c", code, root, *arguments]


def start(command: list[str], fds: Sequence[int], output: IO[bytes], host: Host | None) -> Any:
    """Start a process that inherits descriptors and writes to *output*.

    The process runs on *host*, a host of a testbed, or on this host if it is None.

    Returns
    -------
    subprocess.Popen or viakit.testbed.HostProcess
    """
    how: dict[str, Any] = {"pass_fds": fds, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
    return subprocess.Popen(command, **how) if host is None else host.popen(command, **how)


def use_machine(text: str | None) -> None:
    """Give this process, a worker, the numbers of a machine, on which its link ``sim`` then runs; None: no machine."""
    if text is None or "VIAKIT_MACHINE" in os.environ:
        return
    fd = os.memfd_create("viakit-machine")
    os.write(fd, text.encode())
    os.environ["VIAKIT_MACHINE"] = f"/proc/self/fd/{fd}"


def last_words(output: IO[bytes]) -> str:
    """Return the end of the processes' output."""
    output.seek(0)
    return output.read()[-2000:].decode(errors="replace").strip()


def dismiss(channels: Sequence[Channel], processes: Sequence[Any]) -> None:
    """Request all processes to end, and wait for them."""
    for channel in channels:
        with contextlib.suppress(OSError):
            channel.send({"op": "close"})
    deadline = time.monotonic() + _CLOSE_S
    for process in processes:
        with contextlib.suppress(Exception):  # TimeoutExpired, or the testbed's HostTimeoutError
            process.wait(timeout=max(0.0, deadline - time.monotonic()))


def end(channels: Sequence[Channel], processes: Sequence[Any], ranks: Ranks | None) -> None:
    """Kill all processes that still run."""
    for channel in channels:
        channel.close()
    if ranks is not None:
        ranks.kill()
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(Exception):
                process.kill()
        with contextlib.suppress(Exception):
            process.wait(timeout=_CLOSE_S)
