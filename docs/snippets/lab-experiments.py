from viakit import lab

# Algorithms over ranks. Options: hosts=N (several hosts), skew_s=50e-6 (late ranks), with_mpi=True (MPI as well).
lab.barrier("default", "message", ranks=[2, 3], seconds=1)

# Loss: acknowledgements, retransmissions, goodput.
lab.faults(losses=[0, 0.01], seconds=2)

# An application: its speed-up, and a timeline over each protocol.
lab.app("sor-zero", protocols=["via", "tcp"], ranks=[1, 2], rounds=1)
