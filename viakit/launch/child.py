"""Preparation of the process of a rank, before its program starts."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Collection

from viakit.base.process import end_with_parent

__all__ = ["allow_files", "become_rank"]

_OPEN_FILES = 65536


def become_rank(cores: Collection[int]) -> None:
    """Prepare the child process of a rank, before its program starts, and bind it to cores if any are given.

    The kernel ends the rank with the launcher, also before the guard has its number. The limit of open files is raised,
    because over shm a rank has several open for each rank of its host.
    """
    end_with_parent()
    os.setpgid(0, 0)
    allow_files(_OPEN_FILES)
    if cores:
        os.sched_setaffinity(0, cores)


def allow_files(wanted: int) -> None:
    """Raise the limit of open files to `wanted`, or to the hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
