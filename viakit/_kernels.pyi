"""What the extension of the applications' kernels exports, with its types; one part for each application."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# all
def level() -> str: ...
def levels() -> list[str]: ...
def set_level(name: str) -> None: ...

# random numbers of the NAS Parallel Benchmarks
def random_skip(x: int, n: int) -> int: ...
def random_fill(x: int, out: npt.NDArray[np.float64]) -> int: ...

# SOR

# EP

# IS

# FT

# Water
