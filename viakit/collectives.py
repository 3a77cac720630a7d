"""Collectives, measured: the public name of :mod:`viakit.measure.collectives`."""

from viakit.measure.collectives import *  # noqa: F403 - exactly the names of its __all__
from viakit.measure.collectives import __all__ as __all__
