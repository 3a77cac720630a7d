from viakit.launch import bootstrap

job = bootstrap()
names = job.exchange(f"rank {job.rank} of {job.size}".encode())  # everybody's, in their order
