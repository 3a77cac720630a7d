import numpy as np

import viakit

comm = viakit.world()
mine = np.random.default_rng(comm.rank).random((1_000_000, 2))
inside = np.array([np.count_nonzero((mine**2).sum(axis=1) < 1)])
total = np.zeros_like(inside)
comm.Allreduce(inside, total)
if comm.rank == 0:
    print(f"pi is about {4 * total[0] / (comm.size * len(mine)):.3f}, say {comm.size} ranks")
