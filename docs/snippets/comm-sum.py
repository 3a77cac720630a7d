import numpy as np

import viakit

comm = viakit.world()  # "via"; "bip"; "tcp"; "mpi": mpi4py underneath; or what VIAKIT_PROTOCOL says
total = np.zeros(3)
comm.Allreduce(np.full(3, comm.rank + 1.0), total)
assert (total == comm.size * (comm.size + 1) / 2).all()
