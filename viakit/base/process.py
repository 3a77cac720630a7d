"""The end of a process with its parent (prctl(2), PR_SET_PDEATHSIG)."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded here, because a child that has just been forked must not load it


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
