"""The arguments of Spawn and Spawn_multiple."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from viakit.comm.errors import error

__all__ = ["Program", "program", "programs"]

Program = tuple[list[str], str | None, int]  # command, working folder, number of ranks
_MOST = 1024


def program(command: Any, args: Any, maxprocs: int, info: Any) -> Program:
    """Return a program to spawn. Raises ERR_SPAWN if it does not exist, and ERR_ARG for a wrong number of ranks."""
    words = [os.fspath(command), *([] if args is None else [args] if isinstance(args, str) else map(os.fspath, args))]
    folder = (info or {}).get("wdir")
    if not 1 <= maxprocs <= _MOST:
        raise error("ERR_ARG", f"maxprocs must be 1 to {_MOST}, got {maxprocs}")
    if folder is not None and not os.path.isdir(folder):
        raise error("ERR_SPAWN", f"the working folder {folder!r} does not exist")
    found = shutil.which(os.path.join(folder or "", words[0]) if os.path.dirname(words[0]) else words[0])
    if found is None:
        raise error("ERR_SPAWN", f"{words[0]}: no such program, or not executable; give its path, or one that PATH has")
    return ([os.path.abspath(found), *words[1:]], folder, int(maxprocs))


def programs(command: Any, args: Any, maxprocs: Any, info: Any) -> list[Program]:
    """Return the programs that Spawn_multiple starts.

    Raises
    ------
    ValueError
        If the sequences have different lengths.
    """
    if isinstance(command, (str, os.PathLike)):
        raise ValueError("command: expecting a sequence of programs, got one; use Spawn for a single one")
    commands = list(command)
    n = len(commands)
    if isinstance(args, str):
        raise ValueError("args: expecting one sequence of arguments for each program, got a string")
    each: list[Any] = [None] * n if args is None else list(args)
    counts = [maxprocs] * n if isinstance(maxprocs, int) else list(maxprocs)
    listed = isinstance(info, Sequence) and not hasattr(info, "handle")
    hints = list(info) if listed else [info] * n
    for name, given in (("args", each), ("maxprocs", counts), ("info", hints)):
        if len(given) != n:
            raise ValueError(f"{name}: expecting {n} entries, one for each program, got {len(given)}")
    return [program(*one) for one in zip(commands, each, counts, hints, strict=True)]
