"""Prylli and Tourancheau 1997: BIP on Myrinet, and MPI on BIP.

Fitted: BIP's latency, and MPI-BIP's. The memory's and the buses' rates are the paper's. The pipeline is the model of
csrc/bip/model.h, which also chooses BIP's packets on today's links.
"""

from __future__ import annotations

from functools import cache

from viakit import _core, machines
from viakit.papers.rules import Prediction

__all__ = ["figures", "message_us", "mpi_us", "predict"]

KB = 1024


@cache
def _machine() -> machines.Machine:
    return machines.load("ppro200-myrinet-bip")


@cache
def pipeline() -> tuple[float, float, float, float]:
    """Return the numbers of ``bip_model``: start and packet in seconds, byte and fill in seconds per byte.

    A packet takes four steps (4.3): from memory into the card, to the wire, from the wire, into memory. The pipeline is
    full "from the start of the fourth packet", so each of the four takes a packet's time.
    """
    m = _machine()
    bus, wire = 1e-6 / m["card.bus_mb_s"], 8e-6 / m["wire.rate_mbit_s"]
    packet = m["bip.packet_us"] * 1e-6
    start = (
        m["bip.send_us"] + m["bip.receive_us"] + m["bip.rendezvous_us"] + m["switch.latency_us"]
    ) * 1e-6 + 2 * packet
    return start, packet, max(bus, wire), 2 * bus + 2 * wire


def message_us(nbytes: float, packet: float | None = None, pinned: bool = True) -> float:
    """Return the microseconds of a message: short ones by programmed input and output, long ones by the pipeline.

    Parameters
    ----------
    nbytes : float
        Length.
    packet : float, optional
        Fixed size of the packets; None: the best for the length.
    pinned : bool
        Whether the pages have been locked before.
    """
    m = _machine()
    if nbytes <= m["bip.small_bytes"]:
        wire = 8.0 / m["wire.rate_mbit_s"] + 1.0 / m["card.bus_mb_s"]
        ends = m["bip.send_us"] + m["bip.receive_us"] + 2 * m["bip.packet_us"] + m["switch.latency_us"]
        return ends + nbytes * (1.0 / m["bip.small_mb_s"] + wire)
    n = int(nbytes)
    best = packet or _core.bip_best(*pipeline(), n, 1 << 20)
    took = _core.bip_time(*pipeline(), n, int(best)) * 1e6
    return took if pinned else took + m["bip.pin_us"] * -(-n // 4096)


def mpi_us(nbytes: float) -> float:
    """Return the microseconds of a message of MPI-BIP: a long one begins with a request and a reply."""
    extra = 2 * _machine()["message.overhead_us"]
    short = message_us(0) + extra
    if nbytes <= _machine()["bip.small_bytes"]:
        return message_us(nbytes) + extra
    return 2 * short + message_us(nbytes) + extra


def _half(time_us: object, peak: float) -> int:
    """Return the length from which half of the peak is reached, in bytes."""
    assert callable(time_us)
    return next(n for n in range(64, 1 << 20, 64) if n / time_us(n) >= peak / 2)


def figures() -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the series of figures 2 to 4: microseconds, MB/s, microseconds."""
    short = list(range(0, 513, 16))
    long = [1 << i for i in range(4, 23)]
    stairs = list(range(512, 32769, 512))
    return {
        "fig2": {"BIP": [(n, message_us(n)) for n in short]},
        "fig3": {"BIP": [(n, n / message_us(n)) for n in long], "MPI-BIP": [(n, n / mpi_us(n)) for n in long]},
        "fig4": {
            "adaptive packets": [(n, message_us(n)) for n in stairs],
            "packets of 8 KB": [(n, message_us(n, 8 * KB)) for n in stairs],
            "packets of 1 KB": [(n, message_us(n, KB)) for n in stairs],
        },
    }


def predict() -> dict[int, Prediction]:
    """Return the predictions by lines of claims.csv."""
    big = 8 << 20
    peak, mpi_peak = big / message_us(big), big / mpi_us(big)
    half, mpi_half = _half(message_us, peak), _half(mpi_us, mpi_peak)
    how = "the pipeline of csrc/bip/model.h"
    memory = 1.0 / (1 / 80 + 1 / 180)  # a copy, and a pass that only reads: 4.2
    return {
        343: Prediction(message_us(0), fitted=True),
        344: Prediction(peak * 8e-3, how=how),
        353: Prediction(big / message_us(big, pinned=False), fitted=True),
        354: Prediction(peak, how=how),
        361: Prediction(message_us(0) * _machine()["host.cpu_mhz"], how="latency times the clock", fitted=True),
        363: Prediction(half / KB, "knee", how=how),
        364: Prediction(peak, how=how),
        367: Prediction(mpi_us(0), fitted=True),
        368: Prediction(mpi_peak, how=how),
        399: Prediction(message_us(0), fitted=True),
        400: Prediction(peak, how=how),
        401: Prediction(half, "knee", how=how),
        402: Prediction(mpi_us(0), fitted=True),
        403: Prediction(mpi_peak, how=how),
        404: Prediction(mpi_half, "knee", how=how + ", a request and a reply first"),
        414: Prediction(100 * (1 - mpi_peak / peak), how=how),
        415: Prediction(memory, how="TCP's copy and checksum at the memory's rates of 4.2"),
    }
