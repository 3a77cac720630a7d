# cython: language_level=3, embedsignature=True, freethreading_compatible=False
"""viakit's compiled part: the Python faces of the C library, in one extension.

One extension and not several: the C library is linked into it statically, and two copies would have their globals
twice. Nothing is defined in this file; each included file holds one family of objects.
"""

include "_core/common.pxi"
include "_core/via.pxi"
include "_core/bench.pxi"
include "_core/msg.pxi"
include "_core/coll.pxi"
include "_core/group.pxi"
include "_core/bip.pxi"
