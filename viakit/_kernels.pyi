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
def sor_sweep(
    red: npt.NDArray[np.float32],
    black: npt.NDArray[np.float32],
    n_stages: int,
    black_first: bool,
    first: int,
    last: int,
    *,
    origin: int = 0,
    first_step: int = 0,
    last_step: int = 0,
) -> None: ...
def sor_fnv(red: npt.NDArray[np.float32], black: npt.NDArray[np.float32], value: int | None = None) -> int: ...

# EP

# IS
def is_keys(x: int, max_log: int, out: npt.NDArray[np.int32]) -> None: ...
def is_count(
    keys: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int32],
    base: int = 0,
    work: npt.NDArray[np.uint8] | None = None,
) -> None: ...
def is_prefix(counts: npt.NDArray[np.int32], start: int = 0) -> int: ...
def is_partition(
    keys: npt.NDArray[np.int32],
    shift: int,
    out: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int32],
) -> None: ...
def is_place(
    keys: npt.NDArray[np.int32],
    cumulative: npt.NDArray[np.int32],
    first: int,
    out: npt.NDArray[np.int32],
    base: int = 0,
) -> int: ...

# FT

# Water
def water_partners(i: int, n: int) -> int: ...
def water_predict(state: Array) -> None: ...
def water_correct(state: Array, forces: Array, h: float) -> None: ...
def water_place(state: Array, sites: Array) -> None: ...
def water_intra(sites: Array, n: int, forces: Array | None = None) -> tuple[float, float]: ...
def water_pair_forces(
    sites: Array, first: int, own: int, n: int, box: float, cutoff: float, forces: Array
) -> tuple[float, int]: ...
def water_pair_energies(
    sites: Array, first: int, own: int, n: int, box: float, cutoff: float
) -> tuple[float, float, int]: ...
def water_fold(forces: Array) -> None: ...
def water_wrap(state: Array, box: float) -> None: ...
def water_kinetic(state: Array) -> float: ...
