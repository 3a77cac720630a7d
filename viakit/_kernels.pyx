# cython: language_level=3, embedsignature=True, freethreading_compatible=False
"""The numeric kernels of the applications (csrc/kernels), for :mod:`viakit.apps`.

An extension of its own: kernels know nothing of networks, and a program that only communicates does not load them.
Each function checks what it is given, then computes without the GIL. Nothing is defined in this file; each included
file holds the kernels of one application.
"""

include "_kernels/common.pxi"
include "_kernels/random.pxi"
include "_kernels/sor.pxi"
include "_kernels/ep.pxi"
include "_kernels/is.pxi"
include "_kernels/ft.pxi"
include "_kernels/water.pxi"
