"""Compute with dask on the ranks of a job: dask_mpi makes rank 0 the scheduler and ranks from 2 on the workers."""

from dask.distributed import Client
from dask_mpi import initialize

initialize(nthreads=1, local_directory=None, dashboard=False)


def square(x):
    """Return the second power."""
    return x * x


with Client() as client:
    client.wait_for_workers(2)
    total = sum(client.gather(client.map(square, range(200))))
    print(f"sum {total}, workers {len(client.scheduler_info()['workers'])}")
