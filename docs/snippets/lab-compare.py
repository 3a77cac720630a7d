from viakit import lab

run = lab.compare("via-shm", "unix", sizes="8,4K,64K", seconds=2)
result = run.wait()
result.save("today.json")
