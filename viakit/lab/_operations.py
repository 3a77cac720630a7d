"""Operations of a worker. Each takes the wire and its request, and returns the last message.

The message has ``result`` (a document, or None), ``stopped`` and ``error``, and optionally ``extra``.
"""

from __future__ import annotations

import base64
import os
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viakit.lab._worker import Wire

__all__ = ["OPERATIONS"]

TIMELINE_S = 120.0  # time limit of a run for a timeline


def _sweep(wire: Wire, request: Mapping[str, Any]) -> dict[str, Any]:
    from viakit.measure import sweep  # start-up time

    def on_point(series: Mapping[str, Any], point: dict[str, Any]) -> None:
        where = (series[name] for name in ("protocol", "level", "mtu"))
        wire.point("/".join(map(str, (*where, series.get("sockbuf"), series.get("wire")))), series, point)

    outcome = sweep.run(
        sweep.Config(**request["config"]),
        on_point=on_point,
        on_progress=lambda progress: wire.progress(progress.fraction, progress.left_s, progress.text),
        stop=wire.stop,
        command=request["command"],
    )
    return {
        "result": outcome.document,
        "stopped": outcome.interrupted,
        "error": str(outcome.error) if outcome.error is not None else None,
    }


def _listeners(wire: Wire, seconds: float) -> dict[str, Any]:
    """Return on_progress and on_series for measurements that report whole series. A stop raises KeyboardInterrupt."""

    def on_progress(part: float, text: str) -> None:
        wire.progress(part, (1 - part) * seconds, text)
        if wire.stop.is_set():
            raise KeyboardInterrupt

    def on_series(series: list[dict[str, Any]]) -> None:
        for one in series:
            key = "/".join(str(one.get(name, "")) for name in ("protocol", "algorithm", "label", "ranks"))
            for point in one["points"]:
                wire.point(key, {**one, "points": []}, point)

    return {"on_progress": on_progress, "on_series": on_series}


def _outcome(document: dict[str, Any]) -> dict[str, Any]:
    """Return the message for a document that records how its measurement ended."""
    error = "; ".join(one["message"] for one in document["errors"]) or None
    return {"result": document, "stopped": not document["complete"] and error is None, "error": error}


def _barrier(wire: Wire, request: Mapping[str, Any]) -> dict[str, Any]:
    from viakit.measure import barrier  # start-up time

    settings = dict(request["settings"])
    listeners = _listeners(wire, settings["seconds"])
    document = barrier.measure(settings.pop("ranks"), **settings, **listeners, command=request["command"])
    return _outcome(document)


def _app(wire: Wire, request: Mapping[str, Any]) -> dict[str, Any]:
    from viakit.apps import speedup  # start-up time

    settings = dict(request["settings"])
    settings.pop("name")
    timeline = settings.pop("timeline")
    listeners = _listeners(wire, float("nan"))
    document = speedup.measure(request["labels"], **settings, **listeners, command=request["command"])
    errors = [one["message"] for one in document["errors"]]
    stopped = not document["complete"] and not errors
    extra: dict[str, Any] = {}
    if timeline and not stopped:
        try:
            extra["timelines"] = _timelines(wire, request["labels"][0], settings)
        except KeyboardInterrupt:
            stopped = True
    any_series = bool(document["series"])
    return {
        "result": document if any_series else None,
        "stopped": stopped,
        "error": None if any_series else "; ".join(errors),
        "extra": extra,
    }


def _timelines(wire: Wire, label: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Run the problem once more over each protocol with tracing; return the pictures of successful runs as text."""
    from viakit.apps import harness, jobs, speedup  # start-up time
    from viakit.apps.kernels import VARIABLE  # start-up time
    from viakit.launch.described import on_machine  # start-up time

    problem, ranks = speedup.PROBLEMS[label], max(settings["ranks"])
    words = settings["problem"] or (problem.quick if settings["quick"] else problem.words)
    drawn = {}
    for protocol in settings["protocols"]:
        wire.progress(1.0, float("nan"), f"timeline over {protocol}")
        with tempfile.TemporaryDirectory(prefix="viakit-timeline-") as scratch:
            path = os.path.join(scratch, "trace.png")
            command = ["-m", harness.module_of(problem.application), *words, "--trace", path, "--quiet"]
            described = on_machine(settings["machine"], settings["computing"])
            with open(os.path.join(scratch, "said"), "w+b") as said, described as variables:
                launched, policy = jobs.with_policy(protocol, speedup.COPIES)
                status = jobs.run_ranks(
                    [*command, *jobs.protocol_words(launched)], ranks, launched, hosts=min(settings["hosts"], ranks),
                    mtu=settings["mtu"], rate=settings["rate"], timeout_s=TIMELINE_S, policy=policy,
                    environment={VARIABLE: settings["kernels"], **variables}, out=said, err=said,
                )  # fmt: skip
            if status == 0 and os.path.exists(path):
                with open(path, "rb") as file:
                    drawn[protocol] = base64.b64encode(file.read()).decode()
    return drawn


def _faults(wire: Wire, request: Mapping[str, Any]) -> dict[str, Any]:
    from viakit.measure import loss  # start-up time

    def on_progress(part: float, left_s: float, text: str) -> float | None:
        wire.progress(part, left_s, text)
        if wire.stop.is_set():
            raise KeyboardInterrupt
        return wire.settings.get("loss")

    def on_point(series: Mapping[str, Any], point: dict[str, Any]) -> None:
        wire.point(f"{series['retransmission']}/{series['loss']}", series, point)

    document = loss.measure(
        **request["settings"], command=request["command"], on_progress=on_progress, on_point=on_point
    )
    return _outcome(document)


def _disturbance(wire: Wire, request: Mapping[str, Any]) -> dict[str, Any]:
    """See :mod:`viakit.lab._disturbance`."""
    import numpy as np  # start-up time

    from viakit.measure import stats  # start-up time
    from viakit.measure.pair import Pair  # start-up time

    settings = request["settings"]
    chance = random.Random(settings["seed"])
    taken: dict[bool, list[float]] = {False: [], True: []}
    with Pair(settings["protocol"]) as pair:

        def burst(count: int) -> Any:
            return np.asarray(pair.run(settings["nbytes"], count=count, warmup=count // 5).one_way_s)

        count = int(min(max(0.005 / max(float(np.median(burst(1000))), 1e-9), 10), 10000))
        began = time.monotonic()
        while not wire.stop.is_set():
            used = (time.monotonic() - began) / settings["seconds"]
            if used >= 1 and len(taken[True]) >= 3 * stats.MIN_BURSTS:
                break
            for watched in chance.sample([False, True], 2):
                if watched:
                    _as_if(wire, taken[True][-1] if taken[True] else 1e-6, len(taken[True]))
                    wire.progress(min(used, 1.0), settings["seconds"] * max(0.0, 1 - used), f"burst {len(taken[True])}")
                    wire.flush()
                taken[watched].append(float(np.median(burst(count))))
    return {
        "result": None,
        "stopped": wire.stop.is_set(),
        "error": None,
        "extra": {"alone_s": taken[False], "watched_s": taken[True]},
    }


def _as_if(wire: Wire, time_s: float, number: int) -> None:
    """Send two complete curves, all of whose points have moved, to the panel."""
    for protocol in ("via-eth", "tcp"):
        series = {
            "protocol": protocol,
            "hosts": "testbed",
            "mtu": 1500,
            "mode": "pingpong",
            "wait": "poll",
            "level": "c",
        }
        for nbytes in (1 << i for i in range(21)):
            one_way_s = time_s * (1 + nbytes / 1e4) * (1 + number * 1e-6)
            times = dict.fromkeys(("median", "p5", "p50", "p90", "p99", "p999", "min", "max"), one_way_s)
            point = {"nbytes": nbytes, "one_way_s": times, "bandwidth_Bps": nbytes / one_way_s, "counters": {}}
            wire.point(protocol, {**series, "points": []}, point)


OPERATIONS: dict[str, Callable[[Wire, Mapping[str, Any]], dict[str, Any]]] = {
    "sweep": _sweep,
    "barrier": _barrier,
    "app": _app,
    "faults": _faults,
    "disturbance": _disturbance,
}
