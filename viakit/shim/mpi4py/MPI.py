"""Module ``mpi4py.MPI``: the import returns ``viakit.mpi.MPI`` in its place."""

import sys

from viakit.mpi import MPI

sys.modules[__name__] = MPI
