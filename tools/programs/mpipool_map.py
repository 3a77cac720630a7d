"""Map functions over the ranks with mpipool: the interface of concurrent.futures, and that of multiprocessing."""

import math

from mpipool import MPIExecutor, MPIPool


def cube(x):
    """Return the third power."""
    return x**3


with MPIExecutor() as executor:
    executor.workers_exit()
    print(f"executor {sum(executor.map(cube, range(100)))}, one {executor.submit(math.factorial, 20).result()}")

with MPIPool() as pool:
    pool.workers_exit()
    print(f"pool {sum(pool.map(cube, range(50)))}")
