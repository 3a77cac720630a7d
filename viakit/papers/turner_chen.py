"""Turner and Chen 2002: seven message-passing libraries on gigabit Ethernet, Myrinet and Giganet.

Fitted: peak and latency of raw TCP on each card, of raw GM in both modes, and of MVICH on Giganet and on M-VIA. All
other figures are predictions: what thresholds, copies, daemons and socket buffers take away.

Each library is its policy of csrc/msg/policy.c. Three facts are assumed, because the paper does not have them:

- PVM unpacks each message with a copy, even if PvmDataInPlace saves the packing.
- PVM's daemons exchange datagrams of 4,096 bytes and wait for each acknowledgement.
- LAM's daemons use packets of 8,192 bytes.
"""

from __future__ import annotations

from viakit import machines
from viakit.machines import Machine
from viakit.papers.curves import Curve, curve, loss_percent, tcp
from viakit.papers.rules import Prediction
from viakit.replay.model import Library, library

__all__ = ["LIBRARIES", "MEASURED", "curves", "predict"]

KB = 1024
TUNED = tcp(512.0 * KB)

LIBRARIES: dict[str, Library] = {
    "MPICH default": library("mpich-p4"),
    "MPICH": library("mpich-p4-tuned"),
    "LAM": library("lam-c2c"),
    "LAM without -O": library("lam-c2c-convert"),
    "LAM -lamd": library("lam-lamd"),
    "MPI/Pro": library("mpi-pro-tuned"),
    "MP_Lite": library("mp_lite"),
    "PVM default": library("pvm"),
    "PVM direct": library("pvm-direct"),
    "PVM": library("pvm-direct-inplace", copies=1.0),
    "TCGMSG": library("tcgmsg"),
    "TCGMSG tuned": library("tcgmsg-tuned"),
}
VIA: dict[str, Library] = {
    "MVICH": library("mvich-rput-tuned"),
    "MVICH default": library("mvich-rput"),
    "MP_Lite": library("mp_lite-via"),
    "MPI/Pro": library("mpi-pro-via"),
}
# Protocols of `viakit sweep` whose curves can be measured here, for each figure: policies, and the libraries themselves
# that are installed.
REAL = ("lam", "pvm3:inplace", "mpi:mpich", "mpi:openmpi")
MEASURED = {
    "fig1": ("tcp", "msg-tcp:mpich-p4-tuned", "msg-tcp:lam-c2c", "msg-tcp:mpi-pro-tuned",
             "msg-tcp:pvm-direct-inplace", *REAL),
    "fig2": ("tcp", "msg-tcp:mpich-p4-tuned", "msg-tcp:lam-c2c", "msg-tcp:mpi-pro-tuned", "msg-tcp:mp_lite",
             "msg-tcp:pvm-direct-inplace", "msg-tcp:tcgmsg", *REAL),
    "fig3": ("tcp", "msg-tcp:mpich-p4-tuned", "msg-tcp:lam-c2c", "msg-tcp:mp_lite", "msg-tcp:pvm-direct-inplace",
             "msg-tcp:tcgmsg", *REAL),
    "fig4": ("via-eth", "msg-via:mpich-gm", "msg-via:mpi-pro-gm", "msg-tcp:ip-gm"),
    "fig5": ("via-eth", "msg-via:mvich-rput-tuned", "msg-via:mp_lite-via", "msg-via:mpi-pro-via"),
}  # fmt: skip
GM = library("mpich-gm")

P4_BLOCKS = "p4 writes a message in blocks and stalls between them; with 32 kB the card's 120 us do not explain it"
SOCKETS = "the effective size of a socket buffer differs between drivers and kernels"
COPY = "a copy out of cache, estimated from the memory bus, is slower than on these machines"


def gige(name: str) -> Machine:
    """Return the machine with a gigabit card."""
    return machines.load("ds20-syskonnect-9000" if name == "ds20" else f"pentium4-1800-{name}")


def of(name: str, card: str) -> Curve:
    """Return the curve of a library on a gigabit card."""
    return curve(gige(card), LIBRARIES[name])


def loss(name: str, card: str) -> float:
    """Return by how many percent a library's peak is below that of raw TCP with large socket buffers."""
    return loss_percent(of(name, card).mbit_s(), curve(gige(card), TUNED).mbit_s())


def via(name: str, machine: str) -> Curve:
    """Return the curve of a library over VIA. MPI/Pro's thread is woken by an interrupt."""
    chosen = machines.load(machine)
    which = VIA[name]
    return curve(chosen, which.with_(latency_us=chosen["via.interrupt_us"]) if name == "MPI/Pro" else which)


def curves() -> dict[str, list[tuple[str, Curve]]]:
    """Return the curves of figures 1 to 5."""
    shown = {
        "fig1": ("ga620", ("MPICH", "LAM", "MPI/Pro", "PVM")),
        "fig2": ("trendnet", ("MPICH", "LAM", "MPI/Pro", "MP_Lite", "PVM", "TCGMSG")),
        "fig3": ("ds20", ("MPICH", "LAM", "MP_Lite", "PVM", "TCGMSG")),
    }
    found = {
        figure: [("raw TCP", curve(gige(card), TUNED)), *((name, of(name, card)) for name in names)]
        for figure, (card, names) in shown.items()
    }
    gm = machines.load("pentium4-1800-gm")
    raw_gm = Library("raw GM", "via")
    found["fig4"] = [("raw GM", curve(gm, raw_gm)), ("MPICH-GM", curve(gm, GM)), ("TCP over IP-GM", curve(gm, TUNED))]
    found["fig5"] = [
        (f"{name}, Giganet", via(name, "pentium4-1800-giganet")) for name in ("MVICH", "MP_Lite", "MPI/Pro")
    ]
    found["fig5"] += [(f"{name}, M-VIA", via(name, "pentium4-1800-mvia")) for name in ("MVICH", "MP_Lite")]
    return found


def _raw() -> dict[int, Prediction]:
    default = curve(gige("trendnet"), tcp()).mbit_s()
    full = curve(gige("trendnet"), TUNED)
    needed = next(
        n for n in (2**i for i in range(13, 22)) if curve(gige("trendnet"), tcp(n)).mbit_s() >= 0.99 * full.mbit_s()
    )
    fitted = {
        127: curve(gige("ga620"), TUNED).mbit_s(), 128: full.mbit_s(),
        129: curve(gige("ga620"), TUNED).latency_us, 130: full.latency_us,
        131: curve(gige("ds20"), TUNED).mbit_s(), 132: curve(gige("ds20"), TUNED).latency_us,
        133: curve(gige("syskonnect"), TUNED).mbit_s(),
    }  # fmt: skip
    return {
        125: Prediction(default, "order", "TrendNet", "raw TCP with the system's socket buffers", SOCKETS),
        126: Prediction(needed / KB, "knee", how="smallest power of two without effect", cause=SOCKETS),
        **{
            line: Prediction(value, fitted=True, group={128: "TrendNet", 129: "latency", 131: "figure 3"}.get(line, ""))
            for line, value in fitted.items()
        },
    }


def _ethernet() -> dict[int, Prediction]:
    ga = {name: of(name, "ga620").mbit_s() for name in LIBRARIES}
    trend = {name: of(name, "trendnet").mbit_s() for name in LIBRARIES}
    ds = {name: of(name, "ds20").mbit_s() for name in LIBRARIES}
    mpich = of("MPICH", "ga620")
    limit, machine = LIBRARIES["MPICH"].eager_limit, gige("ga620")
    free = LIBRARIES["MPICH"].with_(eager_limit=float(1 << 40))
    handshake = LIBRARIES["MPICH"].message_s(machine, limit + 1) - free.message_s(machine, limit + 1)
    cards = ("ga620", "trendnet", "ds20")
    p4, lam, pvm, fig3 = "MPICH", "LAM", "PVM", "figure 3"  # compared in one section of the paper
    mpich_losses = [loss("MPICH", one) for one in cards]
    nearest = max(loss(one, "syskonnect") for one in ("LAM", "MPI/Pro", "MP_Lite", "TCGMSG tuned"))
    both = [loss(one, "syskonnect") for one in ("MPICH", "PVM")]
    limited = [trend[one] for one in ("LAM", "MPI/Pro", "TCGMSG")]
    gains = [ga["PVM"] / ga["PVM default"], ga["MPICH"] / ga["MPICH default"], trend["TCGMSG tuned"] / trend["TCGMSG"]]
    needed = next(
        n
        for n in (2**i for i in range(13, 22))
        if curve(gige("trendnet"), LIBRARIES["TCGMSG"].with_(sockbuf=float(n))).mbit_s() >= 0.99 * trend["TCGMSG tuned"]
    )
    thin = LIBRARIES["MPICH"].with_(overhead_us=1.0)
    grown = curve(gige("ds20"), LIBRARIES["TCGMSG"].with_(sockbuf=128.0 * KB)).mbit_s()
    return {
        123: Prediction(
            handshake / LIBRARIES["MPICH"].message_s(machine, 1), how="handshake over latency at 128,001 bytes"
        ),
        134: Prediction(ga["MPICH default"], "order", p4, "MPICH, 32 kB", P4_BLOCKS),
        135: Prediction(ga["MPICH"], "order", p4, "MPICH, 256 kB: a copy out of p4's buffer"),
        136: Prediction(ga["MPICH"] / ga["MPICH default"], how="both peaks", cause=P4_BLOCKS),
        137: Prediction(max(mpich_losses), "sign", how="figures 1 to 3", cause=COPY, low=min(mpich_losses)),
        138: Prediction(mpich.dip() / 1000, "knee", how="the largest fall of the curve"),
        139: Prediction(ga["LAM without -O"], "order", lam, "both ends pass over the data", COPY),
        140: Prediction(ga["LAM"], "order", lam, "LAM with -O", published=550.0),
        141: Prediction(ga["LAM -lamd"], "order", lam, "two crossings on each host, four copies"),
        142: Prediction(
            of("LAM -lamd", "ga620").latency_us, "order", "latency", "two more wake-ups", "wake-ups cost more"
        ),
        143: Prediction(loss("LAM", "ds20"), "sign", how="peaks", cause="LAM's socket buffers"),
        144: Prediction(loss("LAM", "trendnet"), "sign", how="peaks", cause=SOCKETS),
        147: Prediction(loss("MPI/Pro", "ga620"), how="peaks"),
        148: Prediction(trend["MPI/Pro"], "order", "TrendNet", "the system's socket buffers", SOCKETS),
        149: Prediction(max(loss("MP_Lite", one) for one in cards), how="largest loss of three cards"),
        150: Prediction(ga["PVM default"], "order", pvm, "datagrams of 4,096 bytes, one at a time"),
        151: Prediction(ga["PVM direct"], "order", pvm, "packing and unpacking: two copies"),
        152: Prediction(ga["PVM direct"] / ga["PVM default"], "ratio", how="both peaks"),
        153: Prediction(ga["PVM"], "order", pvm, "unpacking: one copy"),
        154: Prediction(loss("PVM", "ga620"), "sign", how="peaks"),
        155: Prediction(trend["PVM"], "order", pvm, "the system's socket buffers, and a copy", SOCKETS),
        156: Prediction(ds["PVM"], "order", fig3, "the system's socket buffers, and a copy", SOCKETS),
        157: Prediction(loss("TCGMSG", "ga620"), how="peaks"),
        158: Prediction(trend["TCGMSG"], "order", "TCGMSG", "socket buffers of 32 kB", SOCKETS),
        159: Prediction(ds["TCGMSG"], "order", "TCGMSG", "socket buffers of 32 kB", SOCKETS),
        160: Prediction(
            loss_percent(curve(machine, thin).mbit_s(), ga["MPICH"]), how="a call of 1 us more on each side"
        ),
        183: Prediction(max(gains), how="largest gain: PVM without its daemons"),
        184: Prediction(max(loss("MPICH", "ga620"), loss("PVM", "ga620")), "sign", how="larger loss", cause=COPY),
        185: Prediction(max(both), "sign", how="both", cause=COPY, low=min(both)),
        186: Prediction(nearest, how="largest loss of LAM, MPI/Pro, MP_Lite and TCGMSG", cause=SOCKETS),
        187: Prediction(max(limited), how="LAM, MPI/Pro and TCGMSG", cause=SOCKETS, low=min(limited)),
        188: Prediction(
            needed / KB, "knee", how="smallest power of two without effect", cause=SOCKETS, published=256.0
        ),
        189: Prediction(grown, "order", "TCGMSG", "socket buffers of 128 kB"),
    }


def _others() -> dict[int, Prediction]:
    gm = machines.load("pentium4-1800-gm")
    raw = curve(gm, Library("raw GM", "via"))
    giganet, mvia = "pentium4-1800-giganet", "pentium4-1800-mvia"
    middle = 64 * KB
    rates = {name: via(name, giganet).mbit_s() for name in ("MVICH", "MP_Lite", "MPI/Pro")}
    latency = "latency over VIA"
    thread = "the thread also wakes the program, which costs a second switch"
    return {
        162: Prediction(raw.mbit_s(), fitted=True),
        163: Prediction(raw.latency_us, fitted=True),
        164: Prediction(raw.latency_us + gm["via.interrupt_us"], fitted=True),
        166: Prediction(loss_percent(curve(gm, GM).mbit_s(middle), raw.mbit_s(middle)), how="MPICH-GM at 64 KB"),
        167: Prediction(curve(gm, TUNED).latency_us, how="GM's card, TCP's stack and an interrupt"),
        172: Prediction(rates["MPI/Pro"], how="rendezvous by RDMA write"),
        173: Prediction(rates["MVICH"], fitted=True),
        174: Prediction(rates["MP_Lite"], how="rendezvous by RDMA write"),
        175: Prediction(via("MVICH", giganet).latency_us, fitted=True, group=latency),
        176: Prediction(via("MP_Lite", giganet).latency_us, "order", latency, "a message over VIA"),
        177: Prediction(
            via("MPI/Pro", giganet).latency_us, "order", latency, "and an interrupt for its thread", thread
        ),
        178: Prediction(via("MVICH", mvia).mbit_s(), fitted=True),
        179: Prediction(via("MVICH", mvia).latency_us, fitted=True),
        180: Prediction(via("MP_Lite", mvia).mbit_s(), how="rendezvous by RDMA write"),
        181: Prediction(via("MP_Lite", mvia).latency_us, how="a message over VIA"),
        182: Prediction(
            via("MVICH default", mvia).dip() / KB,
            "knee",
            how="the largest fall of the curve",
            cause="copies of 16 kB are in cache, and faster than the model's, which hide the handshake",
        ),
        190: Prediction(raw.latency_us, fitted=True),
        191: Prediction(min(rates.values()), how="the slowest of the three"),
    }


def predict() -> dict[int, Prediction]:
    """Return the predictions by lines of claims.csv."""
    return {**_raw(), **_ethernet(), **_others()}
