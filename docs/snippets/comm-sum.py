import numpy as np

import viakit

comm = viakit.world()  # or world("bip"), "tcp", "mpi" (mpi4py); see VIAKIT_PROTOCOL for the default
total = np.zeros(3)
comm.Allreduce(np.full(3, comm.rank + 1.0), total)
assert (total == comm.size * (comm.size + 1) / 2).all()
