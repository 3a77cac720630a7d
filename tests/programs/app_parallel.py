"""Run problems of an application on all ranks: each must be verified, and give what its serial program gives.

    app_parallel.py MODULE '[{"klass": "S"}, ...]'

With APP_COMM=mpi4py on mpi4py's own COMM_WORLD, else on viakit's world. Rank 0 prints how many problems were right.
"""

import importlib
import json
import os
import sys

from viakit.apps import harness


def main() -> None:
    """Run them."""
    if os.environ.get("APP_COMM") == "mpi4py":
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    else:
        import viakit

        comm = viakit.world()
    module = importlib.import_module(f"viakit.apps.{sys.argv[1]}")
    problems = json.loads(sys.argv[2])
    for options in problems:
        what = module.problem(**options)
        run = harness.run(module.APPLICATION, what, comm)
        if run is not None:
            assert run.ok, [str(one) for one in run.wrong()]
            alone = module.serial(what)
            assert module.same(alone, run.outcome), (options, alone, run.outcome)
    if comm.Get_rank() == 0:
        print(f"right {len(problems)}", flush=True)


main()
