"""Ong and Farrell 2000: TCP, LAM 6.3, MPICH 1.1.2 and MVICH 0.02 on three gigabit cards.

These figures are fitted: the corner cells of table 1 at 128 KB, latencies of TCP, and M-VIA's latency and throughput at
30 KB. The latency that LAM and MPICH add on the SysKonnect card is fitted, too. All others are predictions.

LAM ran without -O, so both ends pass over the data for its byte order. Its socket buffers follow the switch-over point.
MPICH copies each message out of p4's buffer, and sets socket buffers of 4,096 bytes (4.2).
"""

from __future__ import annotations

from viakit import machines
from viakit.machines import Machine
from viakit.papers.curves import Curve, curve, loss_percent, tcp
from viakit.papers.rules import Prediction
from viakit.replay.model import library

__all__ = ["MEASURED", "curves", "predict"]

KB = 1024
MTUS = (1500, 4500, 8500, 9000)
LAM_US, MPICH_US = 10.0, 26.5  # on each side; fitted: 66 - 46 and 99 - 46 us on the SysKonnect card (4.1, 4.2)

# Protocols of `viakit sweep` whose curves can be measured here, for each figure.
MEASURED = {
    "fig1": ("tcp",),
    "fig2": ("via-eth", "tcp"),
    "fig3": ("tcp", "msg-tcp:lam-c2c-convert"),
    "fig4": ("tcp", "msg-tcp:mpich-p4"),
    "fig5": ("via-eth", "msg-via:mvich-r3"),
}
LAM = library(
    "lam-c2c-convert", eager_limit=128.0 * KB, request_data=128.0 * KB, sockbuf=128.0 * KB + 24, overhead_us=LAM_US
)
MPICH = library("mpich-p4", sockbuf=4096.0, overhead_us=MPICH_US)
MVICH = library("mvich-r3")

BUFFERS = "with socket buffers of 4,096 bytes the window would close at two segments, and the measured rates need seven"


def card(name: str, mtu: int = 1500) -> Machine:
    """Return the machine with a card and an MTU."""
    wanted = "acenic-jumbo" if name == "acenic" and mtu > 1500 else name
    return machines.load(f"pentium3-450-{wanted}").replace(wire__mtu=mtu)


def _raw(name: str, mtu: int = 1500, sockbuf: int = 128 * KB) -> Curve:
    return curve(card(name, mtu), tcp(float(sockbuf)))


def _best(name: str, nbytes: int) -> float:
    """Return the throughput of raw TCP at a size, with the best MTU of the card."""
    return max(_raw(name, mtu).mbit_s(nbytes) for mtu in (MTUS if name != "gnic2" else (1500,)))


def curves() -> dict[str, list[tuple[str, Curve]]]:
    """Return the curves of figures 1 to 5."""
    names = {"gnic2": "GNIC-II", "acenic": "ACEnic", "sknet": "SK-NET"}
    mvia = machines.load("pentium3-450-mvia-gige")
    raw_mvia = curve(
        mvia, MVICH.with_(name="M-VIA", eager_limit=float(1 << 40), eager_copies=0.0, overhead_us=0.0), 32 * KB
    )
    return {
        "fig1": [
            (f"{title}, MTU {mtu}", _raw(name, mtu))
            for name, title in names.items()
            for mtu in ((1500,) if name == "gnic2" else (1500, 9000))
        ],
        "fig2": [("M-VIA on GNIC-II", raw_mvia), *((f"TCP, {title}", _raw(name)) for name, title in names.items())],
        "fig3": [(f"LAM, {title}", curve(card(name), LAM)) for name, title in names.items()],
        "fig4": [(f"MPICH, {title}", curve(card(name), MPICH)) for name, title in names.items()],
        "fig5": [("MVICH on GNIC-II", curve(mvia, MVICH, 32 * KB))],
    }


def _table_1() -> dict[int, Prediction]:
    found = {}
    line = 22
    for mtu in MTUS:
        for name in ("acenic", "sknet"):
            for sockbuf in (64, 128):
                value = _raw(name, mtu, sockbuf * KB).mbit_s()
                fitted = sockbuf == 128 and mtu in (1500, 9000)
                how = f"raw TCP, MTU {mtu}, {sockbuf} KB of socket buffers"
                found[line] = Prediction(value, "order", f"table 1 {name}", how, fitted=fitted)
                line += 1
    return found


def _raw_figures() -> dict[int, Prediction]:
    at_16k = {name: _raw(name).mbit_s(16 * KB) for name in ("gnic2", "acenic", "sknet")}
    text = "raw TCP at 16 KB"
    mvia = curves()["fig2"][0][1]
    rate = mvia.mbit_s(30 * KB)
    jumbo = 100 * (_raw("acenic", 9000).mbit_s() / _raw("acenic").mbit_s() - 1)
    found = {
        38: Prediction(100 * (at_16k["sknet"] / at_16k["gnic2"] - 1), "sign", how=text),
        39: Prediction(100 * (at_16k["sknet"] / at_16k["acenic"] - 1), "sign", how=text),
        40: Prediction(_raw("sknet").mbit_s(), fitted=True),
        41: Prediction(_raw("sknet").reaches(0.95) / KB, "knee", how="size with 95 % of the peak"),
        42: Prediction(_raw("acenic", 9000).mbit_s(), fitted=True),
        43: Prediction(jumbo, "sign", how="peaks of raw TCP", fitted=True),
        44: Prediction(_raw("sknet", 9000).mbit_s(), fitted=True),
        45: Prediction(_raw("acenic", 9000).latency_us, fitted=True),
        46: Prediction(_raw("sknet", 9000).latency_us, fitted=True),
        48: Prediction(rate, fitted=True),
        49: Prediction(mvia.latency_us, fitted=True),
    }
    for line, name in ((52, "gnic2"), (53, "acenic"), (54, "sknet")):
        how = "M-VIA against raw TCP at 30 KB, with the best MTU"
        cause = "the curves differ at 30 KB, which lies on the slope of TCP's"
        found[line] = Prediction(100 * (rate / _best(name, 30 * KB) - 1), "order", "M-VIA above TCP", how, cause)
    return found


def _libraries() -> dict[int, Prediction]:
    found = {}
    for start, which, title in ((55, LAM, "LAM"), (64, MPICH, "MPICH")):
        cause = BUFFERS if which is MPICH else ""
        for i, name in enumerate(("gnic2", "acenic", "sknet")):
            one = curve(card(name), which)
            fitted = name == "sknet" or (title == "LAM")
            drop = loss_percent(one.mbit_s(), _raw(name).mbit_s())
            group = f"{title} on three cards"
            found[start + 3 * i] = Prediction(one.mbit_s(), "order", group, f"{title} on TCP", cause)
            found[start + 3 * i + 1] = Prediction(
                one.latency_us, "order", group + ", latency", f"TCP's latency and what {title} adds", fitted=fitted
            )
            found[start + 3 * i + 2] = Prediction(
                drop, "sign", how="peaks of the library and of raw TCP", cause=cause, fitted=start + 3 * i == 55
            )
        for line, name in ((73, "sknet"), (74, "acenic")) if which is LAM else ((75, "sknet"), (76, "acenic")):
            change = 100 * (curve(card(name, 9000), which).mbit_s() / curve(card(name), which).mbit_s() - 1)
            found[line] = Prediction(change, "sign", how="peaks at MTU 9000 and 1500", cause=cause)
    for line, which, name in ((77, LAM, "sknet"), (78, LAM, "acenic"), (79, MPICH, "sknet")):
        one = curve(card(name, 9000), which)
        found[line] = Prediction(
            one.latency_us, "order", "latency at MTU 9000", "TCP's latency and what the library adds"
        )
    found[85] = Prediction(curve(card("sknet"), LAM).dip() / KB, "knee", how="the largest fall of the curve")
    mvich = curve(machines.load("pentium3-450-mvia-gige"), MVICH, 32 * KB)
    found[86] = Prediction(
        mvich.mbit_s(32 * KB), "order", "MPI at 32 KB", "eager packets of 16 KB, copied on both sides"
    )
    found[87] = Prediction(mvich.latency_us, "order", "MPI latency", "M-VIA's latency and MVICH's overhead")
    return found


def predict() -> dict[int, Prediction]:
    """Return the predictions by lines of claims.csv."""
    return {**_table_1(), **_raw_figures(), **_libraries()}
