"""Run an application once on all ranks of a job, and say how much memory its arrays took at most: one line of JSON.

Arguments: the module below viakit.apps; its problem's options as JSON. Counted is what Python and NumPy allocate, from
where the application begins to where it ends, on each rank, and added up.
"""

import importlib
import json
import sys
import tracemalloc

from viakit.apps import harness
from viakit.mpi import MPI

module = importlib.import_module(f"viakit.apps.{sys.argv[1]}")
problem = module.APPLICATION.problem(**json.loads(sys.argv[2]))
comm = MPI.COMM_WORLD
tracemalloc.start()
run = harness.run(module.APPLICATION, problem, comm)
peaks = comm.gather(tracemalloc.get_traced_memory()[1], root=0)
if run is not None:
    assert run.ok, run.wrong()
    print(json.dumps({"peak": sum(peaks), "asked": module.APPLICATION.memory(problem, comm.Get_size())}))
