"""The communicator's parts: what :mod:`viakit.comm` and :mod:`viakit.mpi` offer under MPI's names.

Reading order: errors, datatype, op, spec (what a buffer argument means), request, collective (the algorithms),
group, communicator.
"""
