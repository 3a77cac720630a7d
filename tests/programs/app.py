"""Run an application on several problems and several numbers of ranks, in one job.

Arguments: the module below viakit.apps, a JSON list of problems' options, and a JSON list of numbers of ranks, up to
the job's. Rank 0 writes a line of JSON for each: ranks, problem, outcome (its repr), checks that failed, how many there
were, messages, bytes. VIAKIT_PROTOCOL chooses the channel; "mpi4py" is mpi4py's own COMM_WORLD.
"""

import importlib
import json
import os
import sys

from viakit.apps import harness

module = importlib.import_module(f"viakit.apps.{sys.argv[1]}")
problems, numbers = json.loads(sys.argv[2]), json.loads(sys.argv[3])

if os.environ.get("VIAKIT_PROTOCOL") == "mpi4py":
    from mpi4py import MPI
else:
    from viakit.mpi import MPI
world = MPI.COMM_WORLD

rank = world.Get_rank()
for size in numbers:
    comm = world.Split(0 if rank < size else MPI.UNDEFINED, rank)
    if rank >= size:
        continue
    assert comm.Get_size() == size
    for options in problems:
        problem = module.APPLICATION.problem(**options)
        run = harness.run(module.APPLICATION, problem, comm)
        if run is not None:
            line = {
                "ranks": size,
                "options": options,
                "outcome": repr(run.outcome),
                "wrong": [str(one) for one in run.wrong()],
                "checks": len(run.checks),
                "messages": sum(one.messages for one in run.ranks),
                "nbytes": sum(one.nbytes for one in run.ranks),
            }
            print(json.dumps(line), flush=True)
    comm.Free()
world.Barrier()
