"""Results of other programs as ``viakit.result/1``: NetPIPE's np.out, the OSU benchmarks' output, iperf3's JSON.

Such a file has one number for each size, and knows nothing of its machine. Several files of one kind are bursts of one
series: :func:`read` then computes medians and, from six files on, intervals, so that results can be compared.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import viakit
from viakit.measure import stats
from viakit.measure.environment import command_line
from viakit.measure.plan import ONE_WAY
from viakit.measure.result import SCHEMA, Document, ResultError

__all__ = ["NETPIPE_PEERS", "NETPIPE_TRIALS", "Foreign", "best_of_trials", "netpipe_points", "parse", "read"]

NETPIPE_TRIALS = 7  # that NetPIPE makes of each size, and of which it reports the best
# What NetPIPE's program is compared with: the first of these in a sweep. NetPIPE makes a connection for each burst, and
# so do those with "fresh".
NETPIPE_PEERS = {
    "netpipe:tcp": ("tcp:fresh", "tcp"),
    "netpipe:openmpi": ("mpi:openmpi:fresh", "mpi:openmpi"),
    "netpipe:mpich": ("mpi:mpich:fresh", "mpi:mpich"),
}
_MBIT = float(1 << 20)  # NetPIPE's "Mbps" are of 2^20 bits


@dataclass(frozen=True)
class Foreign:
    """Contents of a file.

    Attributes
    ----------
    program : str
        "netpipe", "osu_latency", "osu_bw", "osu_bibw" or "iperf3".
    mode, wait : str
        As in a sweep.
    points : list of (int, float)
        Message sizes in bytes, and times per message and direction in seconds.
    info : dict
        What the file states further.
    """

    program: str
    mode: str
    wait: str
    points: list[tuple[int, float]]
    info: dict[str, Any] = field(default_factory=dict)


def best_of_trials(times: ArrayLike) -> float:
    """Return the time that NetPIPE would report for a burst: the least mean of seven parts of equal length."""
    times = np.asarray(times, dtype=np.float64).ravel()
    return float(min(part.mean() for part in np.array_split(times, min(NETPIPE_TRIALS, times.size))))


def netpipe_points(text: str) -> list[tuple[int, float]]:
    """Return sizes and one-way times of NetPIPE's np.out: lines of bytes, Mbit/s and seconds.

    The time is computed from the throughput, which has more digits.
    """
    found = []
    for line in text.splitlines():
        words = line.split()
        if not words:
            continue
        nbytes, rate, seconds = int(words[0]), float(words[1]), float(words[2])
        found.append((nbytes, nbytes * 8 / (rate * _MBIT) if rate > 0 else seconds))
    return found


def _netpipe(text: str) -> Foreign | None:
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or not all(re.fullmatch(r"\s*\d+\s+[0-9.]+\s+[0-9.]+(\s+[0-9.]+)*\s*", line) for line in lines):
        return None
    return Foreign("netpipe", "pingpong", "block", netpipe_points(text))


def _osu(text: str) -> Foreign | None:
    title = re.search(r"#\s*OSU MPI(?:-\S+)?\s+(Latency|Bi-Directional Bandwidth|Bandwidth) Test\s*(\S*)", text)
    if title is None:
        return None
    rows = [line.split() for line in text.splitlines() if re.match(r"\s*\d+\s+[0-9.]+", line)]
    info = {"library": f"OSU micro-benchmarks {title[2]}".strip()}
    if title[1] == "Latency":
        return Foreign("osu_latency", "pingpong", "poll", [(int(row[0]), float(row[1]) * 1e-6) for row in rows], info)
    both = title[1] != "Bandwidth"
    # Bandwidths are in 10^6 bytes per second; bibw has the sum of both directions.
    points = [(int(row[0]), (2 if both else 1) * int(row[0]) / (float(row[1]) * 1e6)) for row in rows if float(row[1])]
    return Foreign("osu_bibw" if both else "osu_bw", "bidir" if both else "stream", "poll", points, info)


def _iperf3(text: str) -> Foreign | None:
    try:
        document = json.loads(text)
        test, intervals = document["start"]["test_start"], document["intervals"]
        nbytes = int(test["blksize"])
        times = [8 * nbytes / one["sum"]["bits_per_second"] for one in intervals if one["sum"]["bits_per_second"] > 0]
    except (ValueError, KeyError, TypeError):
        return None
    info = {"library": document["start"].get("version", "iperf3"), "streams": test.get("num_streams", 1)}
    return Foreign("iperf3", "stream", "block", [(nbytes, time) for time in times], info)


def parse(text: str, name: str = "the file") -> Foreign:
    """Return the contents of a file of one of the three programs.

    Raises
    ------
    ResultError
        If the text is of none of them, or has no measurement.
    """
    found = _iperf3(text) or _osu(text) or _netpipe(text)
    if found is None or not found.points:
        raise ResultError(
            f"{name}: expected NetPIPE's np.out, the output of osu_latency, osu_bw or osu_bibw, or the JSON of "
            "iperf3 --json, with at least one measurement"
        )
    return found


def read(
    files: Sequence[str | Path],
    *,
    protocol: str | None = None,
    hosts: str = "local",
    mtu: int | None = None,
) -> Document:
    """Read files of other programs into one ``viakit.result/1``.

    Parameters
    ----------
    files : sequence of path
        Files of one program form one series.
    protocol : str, optional
        Name of the series. Default: the program; only if all files are of one program.
    hosts : {"local", "testbed", "ssh"}
        Where the program ran: on one host, on two of a testbed, or on two machines.
    mtu : int, optional
        MTU of the wire in bytes, if known.

    Returns
    -------
    dict
        The result. Its environment is unknown, except for the date of the first file.

    Raises
    ------
    ResultError
        If a file cannot be read, or has no result of such a program.
    """
    found: dict[str, list[tuple[str, Foreign]]] = {}
    for file in files:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ResultError(f"{file}: {error.strerror or error}; name a file that can be read") from error
        one = parse(text, str(file))
        found.setdefault(one.program, []).append((str(file), one))
    if protocol is not None and len(found) > 1:
        raise ResultError(f"{' and '.join(found)}: one name for several programs; import them one by one")
    series = [_series(protocol or program, every, hosts, mtu) for program, every in found.items()]
    written = datetime.fromtimestamp(Path(files[0]).stat().st_mtime, timezone.utc)
    unknown: dict[str, Any] = dict.fromkeys(("cores", "governor", "virtualisation", "seed"))
    environment = {
        "viakit": viakit.__version__, "date": written.isoformat(timespec="seconds"), "cpu": "unknown",
        "kernel": "unknown", "python": "unknown", **unknown,
    }  # fmt: skip
    return {
        "schema": SCHEMA, "command": command_line(), "complete": True, "errors": [], "skipped": [],
        "environment": environment, "floor": None, "series": series,
    }  # fmt: skip


def _series(name: str, every: list[tuple[str, Foreign]], hosts: str, mtu: int | None) -> dict[str, Any]:
    """Return the series of all files of one program."""
    first = every[0][1]
    bursts: dict[int, list[float]] = {}
    for _, one in every:
        for nbytes, seconds in one.points:
            bursts.setdefault(nbytes, []).append(seconds)
    points = []
    for nbytes, times in sorted(bursts.items()):
        middle = statistics.median(times)
        points.append(
            {
                "nbytes": nbytes,
                "one_way_s": stats.summarise([[time] for time in times]).as_dict(),
                "bandwidth_Bps": (2 if first.mode == "bidir" else 1) * nbytes / max(middle, 1e-12),
                "samples": len(times),
                "bursts_s": times,
                "rounds": list(range(len(times))),
                "counters": {},
            }
        )
    return {
        "protocol": name,
        "link": "unknown",
        "hosts": hosts,
        "mtu": mtu,
        "mode": first.mode,
        "wait": first.wait,
        "level": "c",
        "one_way": ONE_WAY[first.mode],
        "loop_overhead_s": None,
        "info": {"imported_from": [file for file, _ in every], "program": first.program, **first.info},
        "points": points,
    }
