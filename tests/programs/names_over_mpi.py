"""Runs a program with viakit's own names for MPI's on the channel "mpi", where viakit.mpi would give mpi4py's module.

viakit run -n 2 --protocol mpi names_over_mpi.py PROGRAM
"""

import os
import runpy
import sys

os.environ["VIAKIT_PROTOCOL"] = "via"
import viakit.mpi

os.environ["VIAKIT_PROTOCOL"] = "mpi"  # the protocol with which the program's first use opens MPI.COMM_WORLD
assert viakit.mpi.MPI.COMM_WORLD.over_mpi
runpy.run_path(sys.argv[1], run_name="__main__")
