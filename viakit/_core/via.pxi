# Python binding of the provider, one file per object.
#
# References: every object holds its Nic. The Nic refers to its children weakly, so that an object the program drops is
# collected (with a ResourceWarning) while the NIC is open. A VI holds its posted descriptors, and a descriptor holds
# its regions, so that memory in use by C is never freed. A region releases its buffer when three conditions are met:
# the region is deregistered, it has no exported views, and no posted descriptor refers to it.

cdef class Nic(_Resource)
cdef class ProtectionTag(_Resource)
cdef class Allocation(_Resource)
cdef class MemoryRegion(_Resource)
cdef class Segment
cdef class Descriptor
cdef class Vi(_Resource)
cdef class CompletionQueue(_Resource)
cdef class ConnectionRequest(_Resource)
cdef class Tap(_Resource)

include "fault.pxi"
include "library.pxi"
include "options.pxi"
include "nic.pxi"
include "mem.pxi"
include "desc.pxi"
include "queue.pxi"
include "vi.pxi"
include "cq.pxi"
include "conn.pxi"
include "names.pxi"
include "peer.pxi"
include "notify.pxi"
include "tap.pxi"
