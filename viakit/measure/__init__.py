"""The instrument: sweeps over message sizes and protocols, statistics, results, plots and reports.

Nothing is loaded until it is used::

    from viakit.measure import Config, result, sweep

    outcome = sweep.run(Config(protocols=["via-shm", "unix"], sizes=[8, 4096], seconds=5))
    result.save(outcome.document, "shm.json")

Modules
-------
ladder
    Message sizes.
endpoints, pair
    What can be measured, and two processes that measure it.
stats
    Medians, intervals, ratios.
sweep
    Several protocols, interleaved point by point.
analysis, fit, comparison
    Results as objects that draw themselves, models and knees of their curves, and what has changed between two.
loss
    What frames that are lost cost.
result, environment
    Files of schema ``viakit.result/1`` and what they say of the machine.
table, plot, report
    Results for people.
goals
    The figures that viakit has set itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viakit.measure import (
        analysis,
        endpoints,
        environment,
        goals,
        ladder,
        pair,
        plot,
        report,
        result,
        stats,
        sweep,
        table,
    )
    from viakit.measure.analysis import Result
    from viakit.measure.endpoints import MeasureError
    from viakit.measure.pair import Pair
    from viakit.measure.sweep import Config, Outcome

_MODULES = (
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
)
_NAMES = {"Result": "analysis", "Config": "sweep", "MeasureError": "endpoints", "Outcome": "sweep", "Pair": "pair"}

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


def __getattr__(name: str) -> Any:
    """Load what is asked for on first use (PEP 562)."""
    if name in _MODULES:
        return importlib.import_module(f"viakit.measure.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"viakit.measure.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'viakit.measure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
