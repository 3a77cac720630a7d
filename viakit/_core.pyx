# cython: language_level=3, embedsignature=True, freethreading_compatible=False
"""viakit's compiled extension: the Python binding of the C library.

There is only one extension, because the C library is linked into it statically. A second extension would have a second
copy of the library's global variables. This file defines nothing; each included file holds one family of objects.
"""

include "_core/common.pxi"
include "_core/via.pxi"
include "_core/bench.pxi"
include "_core/msg.pxi"
include "_core/compact.pxi"
include "_core/object.pxi"
include "_core/buffer.pxi"
include "_core/spec.pxi"
include "_core/coll.pxi"
include "_core/notice.pxi"
include "_core/group.pxi"
include "_core/collective.pxi"
include "_core/places.pxi"
include "_core/rooted.pxi"
include "_core/plan_request.pxi"
include "_core/planned.pxi"
include "_core/nonblocking.pxi"
include "_core/direct.pxi"
include "_core/rma.pxi"
include "_core/rma_access.pxi"
include "_core/bip.pxi"
include "_core/sim.pxi"
include "_core/relay.pxi"
