"""Graphs, grids and their neighbourhood collectives, run by every rank of a job. Rank 0 prints END all."""

from __future__ import annotations

import numpy as np

from viakit.mpi import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size


def raises(kind: str, call, *args) -> None:
    """Check that the call raises an error of this class, on all ranks."""
    found = None
    try:
        call(*args)
    except MPI.Exception as problem:
        found = problem
    assert found is not None, f"{call} raised no {kind}"
    assert found.Get_error_class() == getattr(MPI, kind), (kind, found)


def exchange(topo, sources, destinations) -> None:
    """Run every neighbourhood collective, in its three forms, and compare what arrives."""
    assert topo.inoutedges == (sources, destinations)
    assert topo.degrees == (len(sources), len(destinations))
    mine = np.array([topo.rank, 7], "i4")
    for form in ("block", "begin", "keep"):
        got = np.full(2 * len(sources), -1, "i4")
        if form == "block":
            topo.Neighbor_allgather(mine, got)
        elif form == "begin":
            topo.Ineighbor_allgather(mine, got).Wait()
        else:
            request = topo.Neighbor_allgather_init(mine, got)
            request.Start()
            request.Wait()
            request.Free()
        assert got.tolist() == [x for s in sources for x in ((s, 7) if s != MPI.PROC_NULL else (-1, -1))]
    out = np.array([100 * topo.rank + i for i in range(len(destinations))], "i4")
    got = np.full(len(sources), -1, "i4")
    topo.Neighbor_alltoall(out, got)
    given = comm.allgather((topo.rank, destinations)) if topo.size == size else None
    for i, source in enumerate(sources):
        if source == MPI.PROC_NULL:
            assert got[i] == -1
        elif given is not None:
            to = dict(given)[source]
            assert got[i] // 100 == source
            assert to[got[i] % 100] == topo.rank
    counts = [1] * len(sources)
    again = np.full(len(sources), -1, "i4")
    topo.Neighbor_alltoallv([out, [1] * len(destinations), MPI.INT], [again, counts, MPI.INT])
    assert again.tolist() == got.tolist()
    again[:] = -1
    places = ([1] * len(destinations), [4 * i for i in range(len(destinations))])
    into = (counts, [4 * i for i in range(len(sources))])
    topo.Ineighbor_alltoallw(
        [out, places, [MPI.INT] * len(destinations)], [again, into, [MPI.INT] * len(sources)]
    ).Wait()
    assert again.tolist() == got.tolist()
    assert topo.neighbor_allgather({"rank": topo.rank}) == [
        None if s == MPI.PROC_NULL else {"rank": s} for s in sources
    ]
    found = topo.neighbor_alltoall([("item", int(x)) for x in out])
    assert found == [None if x < 0 else ("item", int(x)) for x in got]


def main() -> None:
    ring = [(rank - 1) % size, (rank + 1) % size]
    index, edges = list(range(2, 2 * size + 1, 2)), [x for i in range(size) for x in ((i - 1) % size, (i + 1) % size)]
    topo = comm.Create_graph(index, edges)
    assert (topo.topology, topo.dims, topo.neighbors) == (MPI.GRAPH, (size, 2 * size), ring)
    assert comm.Graph_map([0, *index], edges) == rank
    exchange(topo, ring, ring)
    copy = topo.Dup()
    assert copy.Get_topo() == (index, edges)
    copy.Free()
    topo.Free()

    sources, destinations = [(rank - 1) % size], [(rank + 1) % size]
    topo = comm.Create_dist_graph_adjacent(sources, destinations, [5], [6])
    assert topo.Get_dist_neighbors() == (sources, destinations, ([5], [6]))
    exchange(topo, sources, destinations)
    topo.Free()
    if rank == 0:  # one rank describes the whole ring
        topo = comm.Create_dist_graph(list(range(size)), [1] * size, [(i + 1) % size for i in range(size)])
    else:
        topo = comm.Create_dist_graph([], [], [])
    assert topo.Get_dist_neighbors() == (sources, destinations, None)
    exchange(topo, sources, destinations)
    topo.Free()

    for periodic in (False, True):
        topo = comm.Create_cart([size], [periodic])
        left, right = topo.Shift(0, 1)
        exchange(topo, [left, right], [left, right])
        # The part for the next rank arrives from the previous one, also where both are one rank.
        got = np.full(2, -1, "i4")
        topo.Neighbor_alltoall(np.array([10 * rank, 10 * rank + 1], "i4"), got)
        assert got[0] == (-1 if left == MPI.PROC_NULL else 10 * left + 1)
        assert got[1] == (-1 if right == MPI.PROC_NULL else 10 * right)
        topo.Free()
    assert comm.Cart_map([size]) == rank
    raises("ERR_ARG", comm.Create_graph, [1] * (size + 1), [0])
    raises("ERR_RANK", comm.Create_dist_graph_adjacent, [size], [])
    raises("ERR_DIMS", comm.Cart_map, [size + 1])
    if rank == 0:
        print("END all", flush=True)


main()
