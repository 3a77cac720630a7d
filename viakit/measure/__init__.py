"""Measurements: sweeps over message sizes and protocols, statistics, results, plots and reports.

Submodules are loaded at their first use::

    from viakit.measure import Config, result, sweep

    outcome = sweep.run(Config(protocols=["via-shm", "unix"], sizes=[8, 4096], seconds=5))
    result.save(outcome.document, "shm.json")

Modules
-------
ladder
    Message sizes.
endpoints, pair
    The protocols that can be measured, and the two processes that measure one.
stats
    Medians, intervals, ratios.
sweep, plan
    Measurement of several protocols, interleaved point by point, and its configuration.
turns
    The order, the time, the end and the result of every measurement.
analysis, fit, comparison
    Results as objects with plots, models and knees of their curves, and changes between two results.
loss
    The cost of lost frames.
result, environment
    Files of schema ``viakit.result/1``, and their description of the machine.
table, plot, report
    Display of results.
goals
    The performance goals of viakit.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viakit.bench import goals
    from viakit.measure import analysis, endpoints, environment, ladder, pair, plot, report, result, stats, sweep, table
    from viakit.measure.analysis import Result
    from viakit.measure.endpoints import MeasureError
    from viakit.measure.pair import Pair
    from viakit.measure.sweep import Config, Outcome

__all__ = [
    "Config",
    "MeasureError",
    "Outcome",
    "Pair",
    "Result",
    "analysis",
    "comparison",
    "endpoints",
    "environment",
    "fit",
    "goals",
    "ladder",
    "loss",
    "pair",
    "plot",
    "report",
    "result",
    "stats",
    "sweep",
    "table",
]
_NAMES = {"Result": "analysis", "Config": "sweep", "MeasureError": "endpoints", "Outcome": "sweep", "Pair": "pair"}


def __getattr__(name: str) -> Any:
    """Load the submodule or name on first use (PEP 562)."""
    if name == "goals":  # a public name of a module that stands above this room
        return importlib.import_module("viakit.bench.goals")
    if name in _NAMES:
        return getattr(importlib.import_module(f"viakit.measure.{_NAMES[name]}"), name)
    if name in __all__:
        return importlib.import_module(f"viakit.measure.{name}")
    raise AttributeError(f"module 'viakit.measure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
