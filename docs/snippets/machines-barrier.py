"""A barrier of 4,096 ranks on a machine of 2002, by replay."""

from viakit import machines, replay

costs = replay.model(machines.load("barrier-cluster-3"))
for algorithm in ("message", "rdma"):
    done = replay.run(replay.barrier(algorithm, ranks=4096), costs)
    print(algorithm, round(done.end_s * 1e6), "µs,", done.messages, "messages")
