"""The kernels as plain C loops, as a readable reference and for comparison with the library's kernels.

Each application has a source NAME.c here. Its module has a function ``beside(quick)`` that yields :class:`Case`
objects: the same work by the library and by the plain loop. :func:`compare` compiles the source on this machine, with
``cc -O3`` and with ``cc -O3 -march=native``. It measures the three in turns, so that drift cancels in the ratios.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

__all__ = ["COMPILERS", "FLAGS", "MODULES", "Case", "Comparison", "NoCompiler", "build", "compare", "compiler"]

COMPILERS = ("cc", "gcc", "clang")
FLAGS: dict[str, tuple[str, ...]] = {"-O3": ("-O3",), "-O3 -march=native": ("-O3", "-march=native")}
MODULES = {
    "sor": "sor",
    "ep": "ep",
    "is": "is_",
    "ft": "fft",
    "water": "water",
}  # by name of the source: module of the application
COMPILE_S = 120


class NoCompiler(RuntimeError):
    """No C compiler was found, or it failed; the message gives the command and the reason."""


@dataclass(frozen=True)
class Case:
    """One piece of work, for the library and for the plain loop.

    Attributes
    ----------
    what : str
        Name of the work: "SOR, zero, 4096 x 4096, 50 iterations".
    kernel : callable
        ``kernel()``: the work by the library's kernel; returns the result.
    plain : callable
        ``plain(library)``: the same work by the compiled plain source, a ``ctypes.CDLL``.
    same : callable
        ``same(a, b)``: whether two results agree.
    prepare : callable, optional
        Function called before each of the two. Its time does not count.
    """

    what: str
    kernel: Callable[[], Any]
    plain: Callable[[ctypes.CDLL], Any]
    same: Callable[[Any, Any], bool]
    prepare: Callable[[], None] | None = None


@dataclass
class Comparison:
    """Measured seconds of each turn, for the library (``kernel``) and for the plain loop by compiler flags."""

    what: str
    kernel: list[float] = field(default_factory=list)
    plain: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, flags: str = "-O3") -> float:
        """Return the median time of the library over that of the plain loop."""
        return statistics.median(self.kernel) / statistics.median(self.plain[flags])


def compiler() -> list[str]:
    """Return the command of the C compiler: CC, else the first of :data:`COMPILERS` found. Raises NoCompiler."""
    if os.environ.get("CC"):
        return os.environ["CC"].split()
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise NoCompiler("no C compiler to make the plain loops with (CC, cc, gcc, clang): sudo apt-get install gcc")


def build(name: str, folder: str | os.PathLike[str], flags: Iterable[str] = ("-O3",)) -> ctypes.CDLL:
    """Compile NAME.c of this folder into a shared library in *folder*, and load it. Raises NoCompiler."""
    flags = tuple(flags)
    target = Path(folder) / f"{name}{''.join(flags)}.so"
    source = resources.files(__name__) / f"{name}.c"
    with resources.as_file(source) as path:
        command = [*compiler(), *flags, "-shared", "-fPIC", "-o", str(target), str(path), "-lm"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoCompiler(f"{' '.join(command)}: {error}") from error
    if done.returncode:
        raise NoCompiler(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return ctypes.CDLL(str(target))


def _timed(case: Case, work: Callable[[], Any]) -> tuple[float, Any]:
    if case.prepare is not None:
        case.prepare()
    began = time.thread_time()  # CPU time of this thread, so that other programs on the machine count less
    outcome = work()
    return time.thread_time() - began, outcome


def compare(name: str, *, rounds: int = 5, quick: bool = False) -> Iterator[Comparison]:
    """Measure the kernels of one application and its plain loops in turns.

    Parameters
    ----------
    name : str
        A key of :data:`MODULES`.
    rounds : int
        Turns of each. One more turn, which warms caches and compares the results, does not count.
    quick : bool
        Small sizes, for a test.

    Yields
    ------
    Comparison
        Comparison of a case, after its last turn.

    Raises
    ------
    NoCompiler
        If the plain loops cannot be compiled.
    ArithmeticError
        If the two do not agree.
    """
    module = importlib.import_module(f"viakit.apps.{MODULES[name]}")
    with tempfile.TemporaryDirectory(prefix="viakit-plain-") as folder:
        libraries = {label: build(name, folder, flags) for label, flags in FLAGS.items()}
        for case in module.beside(quick):
            comparison = Comparison(case.what, plain={label: [] for label in libraries})
            for turn in range(rounds + 1):
                took, outcome = _timed(case, case.kernel)
                if turn:
                    comparison.kernel.append(took)
                for label, library in libraries.items():
                    took, other = _timed(case, partial(case.plain, library))
                    if turn:
                        comparison.plain[label].append(took)
                    elif not case.same(outcome, other):
                        raise ArithmeticError(f"{case.what}: the result of the plain loop ({label}) differs")
            yield comparison
