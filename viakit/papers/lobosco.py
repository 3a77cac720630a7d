"""Lobosco et al.: five applications over MPICH on TCP, and over MVICH on M-VIA and on Giganet.

Fitted: one delay of the Ethernet card, to the latency of TCP (figure 2), which M-VIA has on that card, too. The hosts
are those of Ong and Farrell by the clock, the Giganet card is that of Turner and Chen and of Gupta et al. The messages
of each application are those of :mod:`viakit.apps`: :func:`schedule` lists them for any number of ranks, and Table II
checks the lists to the message. Computing is Table I divided by the ranks.

The redistribution of IS is MPI_Alltoallv: Table II counts the messages of each rank to itself, which only that call
sends. MPICH 1.2.0, and MVICH with it, posts its receives and sends from rank 0 to the last one.
"""

from __future__ import annotations

from functools import cache

from viakit import machines
from viakit.apps import is_
from viakit.apps.speedup import paper
from viakit.apps.water_exchange import window
from viakit.papers.rules import Prediction
from viakit.replay import Model, Schedule, library, model, run

__all__ = ["COLUMNS", "PROBLEMS", "PROBLEM_OF", "columns", "predict", "schedule", "speedup", "speedups"]

KB = 1024
MB = 1024 * KB  # in Table II: Table I, Table III and its kilobytes give its bandwidths with this unit only
PROBLEMS = ("ep", "sor-zero", "sor-nonzero", "water-288", "water-1728", "fft", "is")
TITLES = {"ep": "EP", "sor-zero": "SOR-Zero", "sor-nonzero": "SOR-Nonzero", "water-288": "Water-288",
          "water-1728": "Water-1728", "fft": "3-D FFT", "is": "IS Class A"}  # fmt: skip
PROBLEM_OF = {"fig6": "ep", "fig4": "sor-zero", "fig5": "sor-nonzero", "fig7": "water-288", "fig8": "water-1728",
              "fig10": "fft", "fig9": "is"}  # fmt: skip
# Column of Table III: machine and policy.
COLUMNS = {
    "MPICH Eth": ("pentium3-650-fasteth-tcp", "mpich-p4"),
    "MVICH Eth": ("pentium3-650-fasteth-mvia", "mvich-r3"),
    "MVICH Eth RDMA": ("pentium3-650-fasteth-mvia", "mvich-rput"),
    "MVICH Gig": ("pentium3-650-giganet", "mvich-r3"),
    "MVICH Gig RDMA": ("pentium3-650-giganet", "mvich-rput"),
}

NAGLE = "exchanges lose over 100 ms, as Nagle's algorithm with delayed acknowledgements does; the paper blames MPI_Recv"
TRANSPOSE = "the transposes take three seconds more than their bytes need, on Giganet one; their order is not published"
WIRE = (
    "MVICH's 3.18 on Ethernet needs more than 100 Mbit/s for the bytes of Table II; its order may differ from MPICH's"
)
# Likely causes of wrong predictions.
CAUSES = {
    "ep": "caches: computing is faster than Table I divided by the ranks",
    "sor-zero": NAGLE,
    "sor-nonzero": NAGLE,
    "water-288": "caches: the paper's speed-up on VIA is above linear",
    "water-1728": "the paper suspects MVICH itself at 8 processes (III.C.2)",
    "fft": TRANSPOSE,
    "is": WIRE,
}


@cache
def schedule(problem: str, ranks: int) -> Schedule:
    """Return the operations of an application at the paper's size. Computing is Table I in equal parts."""
    made = Schedule.empty(ranks, f"{TITLES[problem]} on {ranks}")
    total = paper()["problems"][problem]["sequential_ms"] * 1e-3
    if problem == "ep":
        _ep(made, ranks, total)
    elif problem.startswith("sor"):
        _sor(made, ranks, total)
    elif problem.startswith("water"):
        _water(made, ranks, total, int(problem.partition("-")[2]))
    elif problem == "fft":
        _fft(made, ranks, total)
    else:
        _is(made, ranks, total)
    return made


def _ep(made: Schedule, ranks: int, total: float) -> None:
    """Each rank sends its counts to rank 0 (III.C.2)."""
    for rank in range(ranks):
        made.compute(rank, total / ranks)
        for other in range(1, ranks) if rank == 0 else ():
            made.recv(rank, other)
        if rank:
            made.send(rank, 0, 44)


def _sor(made: Schedule, ranks: int, total: float, size: int = 4096, iterations: int = 50) -> None:
    """Half sweeps, each followed by an exchange of boundary rows of one colour; the first iteration is not counted."""
    row = size // 2 * 4
    for rank in range(ranks):
        neighbours = [other for other in (rank - 1, rank + 1) if 0 <= other < ranks]
        for _ in range(2 * (iterations - 1)):
            made.compute(rank, total / ranks / (2 * (iterations - 1)))
            for other in neighbours:
                made.send(rank, other, row)
            for other in neighbours:
                made.recv(rank, other)


def _water(made: Schedule, ranks: int, total: float, molecules: int, steps: int = 5) -> None:
    """Positions, forces, sums, positions and sums in each step (viakit.apps.water_exchange)."""
    pieces = [[p for p in window(molecules, rank, ranks)[1] if p.owner != rank] for rank in range(ranks)]
    # Nine tenths of the computing are forces and energies between molecules, in two equal parts.
    before, main = 0.1 * total / ranks / steps / 2, 0.9 * total / ranks / steps / 2

    def positions(rank: int) -> None:
        for piece in pieces[rank]:
            made.recv(rank, piece.owner, 1, wait=False)
        for other in range(ranks):
            for piece in pieces[other]:
                if piece.owner == rank:
                    made.send(rank, other, piece.n * 12 * 8, 1, wait=False)

    def sums(rank: int) -> None:
        for other in range(1, ranks):
            if rank == 0:
                made.recv(rank, other, 3)
            elif rank == other:
                made.send(rank, 0, 24, 3)
        for other in range(1, ranks):
            if rank == 0:
                made.send(rank, other, 24, 3)
            elif rank == other:
                made.recv(rank, 0, 3)

    for rank in range(ranks):
        for _ in range(steps):
            positions(rank)
            made.compute(rank, before)
            made.wait(rank)
            made.compute(rank, main)
            for other in range(ranks):
                for piece in pieces[other]:
                    if piece.owner == rank:
                        made.recv(rank, other, 2, wait=False)
            for piece in pieces[rank]:
                made.send(rank, piece.owner, piece.n * 9 * 8, 2, wait=False)
            made.wait(rank)
            sums(rank)
            positions(rank)
            made.compute(rank, before)
            made.wait(rank)
            made.compute(rank, main)
            sums(rank)


def _fft(made: Schedule, ranks: int, total: float, n: int = 64, iterations: int = 10) -> None:
    """Eleven transposes, all to all; each rank notifies rank 0 of each iteration (viakit.apps.fft)."""
    block = n**3 * 16 // ranks**2
    for rank in range(ranks):
        for time in range(iterations + 1):
            made.compute(rank, total / ranks / (iterations + 1))
            _all_to_all(made, rank, ranks, block)
            if time:
                for other in range(1, ranks) if rank == 0 else ():
                    made.recv(rank, other, 5)
                if rank:
                    made.send(rank, 0, 4, 5)


def _all_to_all(made: Schedule, rank: int, ranks: int, block: int) -> None:
    for step in range(1, ranks):
        made.recv(rank, (rank - step) % ranks, 4, wait=False)
    for step in range(1, ranks):
        made.send(rank, (rank + step) % ranks, block, 4, wait=False)
    made.wait(rank)


def _alltoallv(made: Schedule, rank: int, ranks: int, block: int) -> None:
    """MPI_Alltoallv of MPICH 1.2.0: all receives and then all sends, in the order of ranks, also to itself."""
    for other in range(ranks):
        made.recv(rank, other, 4, wait=False)
    for other in range(ranks):
        made.send(rank, other, block, 4, wait=False)
    made.wait(rank)


def _is(made: Schedule, ranks: int, total: float, iterations: int = 10) -> None:
    """Each ranking sends counts and keys from all to all, and gathers totals (viakit.apps.is_)."""
    what = is_.problem("paper")
    for rank in range(ranks):
        for _ in range(iterations + 1):
            made.compute(rank, total / ranks / (iterations + 1) / 2)
            _alltoallv(made, rank, ranks, 4)
            _alltoallv(made, rank, ranks, what.n_keys * 4 // ranks**2)
            made.compute(rank, total / ranks / (iterations + 1) / 2)
            _all_to_all(made, rank, ranks, 4)


@cache
def _costs(column: str) -> Model:
    machine, policy = COLUMNS[column]
    return model(machines.load(machine), library(policy, overhead_us=None))


@cache
def speedup(problem: str, column: str, ranks: int) -> float:
    """Return the predicted speed-up of a problem in a column of Table III."""
    total = paper()["problems"][problem]["sequential_ms"] * 1e-3
    return total / run(schedule(problem, ranks), _costs(column)).end_s


def columns(problem: str, ranks: int = 8) -> list[float]:
    """Return the predicted speed-ups of a problem on *ranks* processors, in the order of Table III's columns."""
    return [speedup(problem, column, ranks) for column in COLUMNS]


def speedups(ranks: tuple[int, ...] = (1, 2, 4, 8, 16)) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the series of figures 4 to 10: speed-ups by processors."""
    return {
        figure: {column: [(n, 1.0 if n == 1 else speedup(problem, column, n)) for n in ranks] for column in COLUMNS}
        for figure, problem in PROBLEM_OF.items()
    }


def _table_2() -> dict[int, Prediction]:
    """Messages and bytes of the programs, and their bandwidth in the time that is predicted for MPICH."""
    found = {}
    order = ("ep", "sor-zero", "sor-nonzero", "is", "water-288", "water-1728", "fft")
    for i, problem in enumerate(order):
        messages, nbytes = schedule(problem, 8).traffic()
        took = run(schedule(problem, 8), _costs("MPICH Eth")).end_s
        how = "messages of viakit's program"
        line = 225 + 4 * i
        cause = CAUSES[problem]
        found[line] = Prediction(messages, how=how, measured=messages)
        found[line + 1] = Prediction(nbytes / KB, how=how, measured=nbytes / KB)
        found[line + 2] = Prediction(nbytes / KB / messages, how=how, measured=nbytes / KB / messages)
        found[line + 3] = Prediction(
            nbytes / 8 / MB / took, "order", "bandwidth", "bytes over the replay of MPICH", cause
        )
    return found


def _table_3() -> dict[int, Prediction]:
    found = {}
    line = 253
    for problem in ("ep", "sor-zero", "sor-nonzero", "water-288", "water-1728", "fft", "is"):
        for column in COLUMNS:
            value = speedup(problem, column, 8)
            found[line] = Prediction(value, "order", "table 3 " + problem, f"replay, {column}", CAUSES[problem])
            line += 1
    del found[285]  # IS on M-VIA with RDMA did not run
    return found


def _text() -> dict[int, Prediction]:
    def ratio(problem: str, slow: str, fast: str, ranks: int = 8) -> Prediction:
        value = 100 * speedup(problem, slow, ranks) / speedup(problem, fast, ranks)
        return Prediction(value, "below", how=f"{slow} over {fast}, {ranks} ranks", cause=CAUSES[problem])

    def gain(problem: str, fast: str, slow: str) -> float:
        return 100 * (speedup(problem, fast, 8) / speedup(problem, slow, 8) - 1)

    def sor_range(problem: str) -> Prediction:
        found = [100 * speedup(problem, one, 8) / speedup(problem, "MPICH Eth", 8) for one in list(COLUMNS)[1:]]
        return Prediction(max(found), "below", how="all of MVICH over MPICH", cause=CAUSES[problem], low=min(found))

    others = [p for p in PROBLEMS if not p.startswith("sor")]
    shares = [
        100 * speedup(p, "MPICH Eth", 8) / speedup(p, c, 8) for p in others for c in ("MVICH Eth", "MVICH Eth RDMA")
    ]
    hardware = [gain(p, "MVICH Gig", "MVICH Eth") for p in ("fft", "sor-nonzero")]
    same = max(abs(gain(p, "MVICH Gig", "MVICH Eth")) for p in ("sor-zero", "water-1728", "water-288", "is"))
    small, messages_16 = schedule("water-1728", 16).traffic()[1], schedule("water-1728", 16).traffic()[0]
    eth, gig = "MVICH Eth", "MVICH Gig"
    rate = {p: _table_2()[line].value for p, line in (("water-288", 244), ("water-1728", 248), ("fft", 252))}
    latency = {c: library(p, overhead_us=0.0).message_s(machines.load(m), 1) for c, (m, p) in COLUMNS.items()}
    sor = [speedup("sor-nonzero", "MPICH Eth", n) for n in (2, 4)]
    return {
        204: Prediction(max(shares), "below", how="TCP over M-VIA, all but SOR", cause=CAUSES["fft"], low=min(shares)),
        205: Prediction(max(hardware), "sign", how="SOR-NZ and 3D-FFT", cause=CAUSES["fft"], low=min(hardware)),
        206: Prediction(
            same, how="largest difference of the four", cause="IS needs the bandwidth of Giganet in the model"
        ),
        207: Prediction(gain("ep", eth, gig), how="EP", cause="the computing of EP, whose messages take no time"),
        208: Prediction(100 * latency[eth] / latency["MPICH Eth"], "below", how="one byte, without the message layer"),
        209: Prediction(
            latency["MPICH Eth"] / latency[gig],
            "ratio",
            how="TCP over Giganet, one byte",
            published=10.0,
            fitted=True,
        ),
        288: sor_range("sor-zero"),
        289: sor_range("sor-nonzero"),
        290: Prediction(sor[0], how="replay", cause=CAUSES["sor-nonzero"]),
        291: Prediction(speedup("sor-nonzero", eth, 2), how="replay", published=2.0),
        293: Prediction(sor[1], how="replay", cause=CAUSES["sor-nonzero"]),
        294: ratio("ep", "MPICH Eth", eth, 16),
        295: ratio("ep", "MPICH Eth", gig, 16),
        296: ratio("ep", gig, eth, 16),
        299: ratio("water-288", "MPICH Eth", eth),
        300: ratio("water-288", "MPICH Eth", gig),
        301: Prediction(rate["water-288"], "order", "rate", "as in Table II", cause=CAUSES["water-288"]),
        302: Prediction(rate["water-1728"], "order", "rate", "as in Table II", cause=CAUSES["water-1728"]),
        303: Prediction(schedule("water-1728", 8).traffic()[1] / KB / 620, how="messages of viakit's program"),
        304: Prediction(small / KB / messages_16, how="messages of viakit's program, 16 ranks"),
        305: Prediction(abs(gain("water-1728", gig, eth)), how="Water-1728"),
        306: ratio("is", "MPICH Eth", eth),
        307: ratio("is", "MPICH Eth", "MVICH Gig RDMA"),
        311: ratio("fft", "MPICH Eth", eth),
        312: ratio("fft", "MPICH Eth", "MVICH Eth RDMA"),
        313: ratio("fft", "MPICH Eth", gig),
        314: Prediction(rate["fft"], "order", "rate", "as in Table II", cause=CAUSES["fft"]),
        315: Prediction(schedule("fft", 8).traffic()[1] / KB / 686, how="messages of viakit's program"),
        316: Prediction(gain("sor-nonzero", "MPICH Eth", eth), "sign", how="SOR-NZ", cause=CAUSES["sor-nonzero"]),
    }


def predict() -> dict[int, Prediction]:
    """Return the predictions by lines of claims.csv."""
    return {**_table_2(), **_table_3(), **_text()}
