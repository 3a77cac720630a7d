"""Gupta et al. 2002: barriers by RDMA write and by messages on three clusters with Giganet cards.

Fitted: one exchange by RDMA write on cluster 1 (a third of the barrier of 8 nodes). A message costs 4 us more on all
clusters (7.1). The host's share of an RDMA write follows the clock. All other figures are predictions, from the
algorithms of csrc/coll.
"""

from __future__ import annotations

from functools import cache

from viakit import _core, machines
from viakit.papers.rules import Prediction
from viakit.replay import barrier, model, run

__all__ = ["barrier_us", "figures", "predict"]

REPEATS = 10  # barriers in a row; the paper averaged 10,000
NODES = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 2048, 4096)


@cache
def barrier_us(cluster: int, algorithm: str, ranks: int, per_node: int = 1, repeats: int = REPEATS) -> float:
    """Return the microseconds of one barrier on a cluster."""
    costs = model(machines.load(f"barrier-cluster-{cluster}"))
    schedule = barrier(algorithm, ranks, per_node, per_node, repeats)
    return run(schedule, costs, per_node).end_s / repeats * 1e6


def figures() -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the series of figures 4a, 4b and 5, and of figure 5 continued to 4,096 nodes."""
    names = {"message": "message passing", "rdma": "RDMA"}
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for figure, cluster, most in (("fig4a", 1, 8), ("fig4b", 2, 16), ("fig5", 3, 32)):
        nodes = [n for n in NODES if n <= most]
        found[figure] = {
            title + (", 1 task/node" if cluster == 3 else ""): [(n, barrier_us(cluster, name, n)) for n in nodes]
            for name, title in names.items()
        }
    for name, title in (("message", "message passing"), ("overall", "RDMA and shared memory")):
        found["fig5"][f"{title}, 2 tasks/node"] = [(n, barrier_us(3, name, 2 * n, 2)) for n in NODES if n <= 32]
    found["fig5-4096"] = {
        title: [(n, barrier_us(3, name, n, 1, 1)) for n in NODES if n >= 32] for name, title in names.items()
    }
    return found


def predict() -> dict[int, Prediction]:
    """Return the predictions by lines of claims.csv."""
    us = barrier_us
    how, group = "replay of csrc/coll's barrier", "figure "
    crowd = "two tasks on a node contend for the card and the bus, of which the model has only the queue of frames"
    writes = sum(step == "signal" for step, _ in _core.barrier_plan("rdma", 16, 5))
    # 13 nodes are 8 and 5 more. Rank 0 has a partner among the 5: it waits for it, exchanges, and notifies it.
    steps = sum(step == "await" for step, _ in _core.barrier_plan("rdma", 13, 0)) + 1

    def gain(cluster: int, fast: str, slow: str, ranks: int, per_node: int = 1) -> float:
        return 100 * (1 - us(cluster, fast, ranks, per_node) / us(cluster, slow, ranks, per_node))

    return {
        317: Prediction(gain(3, "overall", "message", 64, 2), "sign", how=how, cause=crowd),
        320: Prediction(writes, how="RDMA writes of one of 16 ranks in csrc/coll: log2 16", here=True, published=4.0),
        321: Prediction(steps, how="steps of rank 0 of 13 in csrc/coll: log2 8, and 2", here=True, published=5.0),
        323: Prediction(us(1, "rdma", 8), "order", group + "4a", how, fitted=True),
        324: Prediction(us(1, "message", 8), "order", group + "4a", how),
        325: Prediction(2 * machines.load("barrier-cluster-1")["message.overhead_us"], fitted=True),
        326: Prediction(gain(1, "rdma", "message", 8), "sign", how=how),
        327: Prediction(us(2, "rdma", 8), "order", group + "4b", how),
        328: Prediction(us(2, "message", 8), "order", group + "4b", how),
        329: Prediction(us(2, "rdma", 16), "order", group + "4b", how),
        330: Prediction(us(2, "message", 16), "order", group + "4b", how),
        331: Prediction(
            gain(2, "rdma", "message", 8), "sign", how=how, cause="MVICH spends more than 4 us of a message"
        ),
        332: Prediction(
            gain(2, "rdma", "message", 16), "sign", how=how, cause="MVICH spends more than 4 us of a message"
        ),
        333: Prediction(
            gain(3, "rdma", "message", 32), "sign", how=how, cause="MVICH spends more than 4 us of a message at 500 MHz"
        ),
        334: Prediction(us(3, "message", 64, 2), "order", group + "5", how, crowd),
        335: Prediction(us(3, "overall", 64, 2), "order", group + "5", how),
        336: Prediction(gain(3, "overall", "message", 64, 2), "sign", how=how, cause=crowd),
    }
