"""The communicator's parts: what :mod:`viakit.comm` and :mod:`viakit.mpi` offer under MPI's names.

Reading order: errors, datatype, op, spec (what a buffer argument means), status, request, message, schedule
(operations of several messages), point (messages between two ranks), collective (the algorithms), collective_calls
(collectives under MPI's names), group, communicator.
"""
