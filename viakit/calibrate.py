"""Calibration: the public name of :mod:`viakit.measure.calibrate`."""

from viakit.measure.calibrate import *  # noqa: F403 - exactly the names of its __all__
from viakit.measure.calibrate import __all__ as __all__
