"""Water on all ranks of a job, beside the program of one process; with argument mpi4py on its communicator."""

import sys

from viakit.apps import harness, water

if "mpi4py" in sys.argv[1:]:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
else:
    import viakit

    comm = viakit.world()

for molecules, steps, cutoff in [(64, 2, None), (35, 2, None), (125, 3, 5.0), (3, 1, None), (2, 1, None), (1, 1, None)]:
    problem = water.problem(molecules, steps, cutoff)
    run = harness.run(water.APPLICATION, problem, comm)
    if run is None:
        continue
    alone = water.serial(problem)
    assert run.ok, run.wrong()
    assert run.outcome.pairs == alone.pairs, molecules
    assert len(run.outcome.steps) == steps
    for ours, theirs in zip(run.outcome.steps, alone.steps, strict=True):
        assert all(abs(a - b) <= 1e-9 * max(1, abs(b)) for a, b in zip(ours, theirs, strict=True)), (
            molecules,
            ours,
            theirs,
        )
    if comm.Get_size() == 1:
        assert ours == theirs  # one rank does what one process does
if comm.Get_rank() == 0:
    print("same")
