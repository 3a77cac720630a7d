"""The side of ``%%ranks`` that runs in each rank: interrupts that end a cell and nothing else.

ipykernel lets SIGINT raise KeyboardInterrupt at any place while it handles a request. Such a place can be before the
first line of the cell, or where the traceback of an earlier interrupt is formatted. A request that is interrupted there
gets no reply, and the notebook would wait until it ends the ranks. The handler here raises only while the cell itself
runs. IPython turns that exception into an ordinary reply. The notebook repeats an interrupt that came too early.
"""

from __future__ import annotations

import functools
import signal
from types import FrameType
from typing import Any

__all__ = ["prepare"]


def prepare() -> int:
    """Make interrupts end cells only. Runs once in each engine, before the first cell.

    Returns
    -------
    int
        The rank of this process.
    """
    from IPython import get_ipython  # optional package, which each engine has

    from viakit.launch import detect

    shell = get_ipython()
    take = functools.partial(signal.signal, signal.SIGINT, functools.partial(_interrupt, shell))
    # ipykernel calls these hooks around each request. Both set the handler, because a cell may have changed it.
    shell.kernel.pre_handler_hook = shell.kernel.post_handler_hook = take
    take()
    return detect().rank


def _interrupt(shell: Any, _number: int, frame: FrameType | None) -> None:
    """Handle SIGINT: raise KeyboardInterrupt if a cell runs. IPython's `run_code` has called the cell's first frame."""
    run_code = shell.run_code.__code__
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code is run_code and frame.f_globals is shell.user_global_ns:
            raise KeyboardInterrupt
        frame = frame.f_back
