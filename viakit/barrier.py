"""Barriers, measured: the public name of :mod:`viakit.measure.barrier`."""

from viakit.measure.barrier import *  # noqa: F403 - exactly the names of its __all__
from viakit.measure.barrier import __all__ as __all__
