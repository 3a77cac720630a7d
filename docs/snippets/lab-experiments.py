from viakit import lab

# Algorithms over ranks; with hosts=N among hosts, skew_s=50e-6 with ranks that come late, with_mpi=True beside MPI.
lab.barrier("default", "message", ranks=[2, 3], seconds=1)

# Loss: acknowledgements, retransmissions, goodput.
lab.faults(losses=[0, 0.01], seconds=2)

# An application: its speed-up, and a timeline over each protocol.
lab.app("sor-zero", protocols=["via", "tcp"], ranks=[1, 2], rounds=1)
