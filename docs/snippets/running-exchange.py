from viakit.launch import bootstrap

job = bootstrap()
names = job.exchange(f"rank {job.rank} of {job.size}".encode())  # of all ranks, in their order
