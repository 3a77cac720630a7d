"""Processes of viakit: the command that starts one, and its end with its parent (prctl(2), PR_SET_PDEATHSIG)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

__all__ = ["command", "end_with_parent"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded here, because a child that has just been forked must not load it


def command(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command that runs the function main() of a module, with the same Python and the same viakit.

    (``python -m`` searches the current directory first, and would find a folder of sources in a checkout.)
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = (
        "import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; "
        f"from {module} import main; sys.exit(main())"
    )
    return [sys.executable, "-c", code, root, *arguments]


def end_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Let the kernel send a signal to this process when the thread that forked it ends.

    A parent that has ended before this call goes unnoticed: where that matters, compare `os.getppid()` afterwards.

    Raises
    ------
    OSError
        If the kernel refuses the call, for example because there is no such signal.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
