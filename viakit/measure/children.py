"""Processes that measure, as their owner sees them: started, asked to go, and ended if they do not."""

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

_CLOSE_S = 5.0  # until they have gone when asked to


def command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command for the function main() of a module: the same Python and the same viakit, wherever we are.

    (``python -m`` looks into the current directory first, and in a checkout finds a folder of sources.)
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(viakit.__file__)))
    code = (
        "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; "
        f"from {module} import main; sys.exit(main())"
    )
    return [sys.executable, "-c", code, root, *arguments]


def start(command: list[str], fds: Sequence[int], output: IO[bytes], host: Host | None) -> Any:
    """Start a process that inherits files and writes to *output*, on a host of a testbed or, if that is None, here.

    Returns
    -------
    subprocess.Popen or viakit.testbed.HostProcess
    """
    how: dict[str, Any] = {"pass_fds": fds, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
    return subprocess.Popen(command, **how) if host is None else host.popen(command, **how)


def last_words(output: IO[bytes]) -> str:
    """Return the end of what the processes have written."""
    output.seek(0)
    return output.read()[-2000:].decode(errors="replace").strip()


def dismiss(channels: Sequence[Channel], processes: Sequence[Any]) -> None:
    """Ask all processes to go, and give them time to."""
    for channel in channels:
        with contextlib.suppress(OSError):
            channel.send({"op": "close"})
    deadline = time.monotonic() + _CLOSE_S
    for process in processes:
        with contextlib.suppress(Exception):  # TimeoutExpired, or the testbed's own
            process.wait(timeout=max(0.0, deadline - time.monotonic()))


def end(channels: Sequence[Channel], processes: Sequence[Any], ranks: Ranks | None) -> None:
    """End whatever still runs, at once."""
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
