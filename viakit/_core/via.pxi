# The Python face of the provider, one file per object, from the NIC outwards.
#
# Who holds whom: everything holds its Nic, and the Nic knows its children weakly, so that what a program forgets is
# collected (with a ResourceWarning) although the NIC is open. A posted descriptor is held by its VI, and a descriptor
# holds its regions: nothing that C may touch can go away under it. A region gives its buffer back when it is
# deregistered, nobody looks at it through the region, and no posted descriptor names it: whichever is last.

cdef class Nic
cdef class ProtectionTag
cdef class Allocation
cdef class MemoryRegion
cdef class Segment
cdef class Descriptor
cdef class Vi
cdef class CompletionQueue
cdef class ConnectionRequest
cdef class Tap

include "fault.pxi"
include "nic.pxi"
include "mem.pxi"
include "desc.pxi"
include "queue.pxi"
include "vi.pxi"
include "cq.pxi"
include "conn.pxi"
include "peer.pxi"
include "notify.pxi"
include "tap.pxi"
