# A work queue of a VI: the list of what is posted on it, and polling it.
#
# Each queue is mirrored by a linked list of the posted Descriptor objects, in posting order, which is the order in
# which they complete. It holds them, so that nothing that C may touch goes away.

cdef enum:
    POLLS_WITH_GIL = 32    # polls that spin_recv() does before it gives the GIL away: about half a microsecond
    POLLS_PER_LOOK = 96    # polls, a microsecond of them, between looks at the clock and offers of the core

cdef int64_t LOOK_NS = 20000000   # between looks for signals while polling without the GIL


cdef inline VIP_RETURN _queue_done(VIP_VI_HANDLE vi, bint recv, VIP_DESCRIPTOR **descriptor) noexcept nogil:
    return VipRecvDone(vi, descriptor) if recv else VipSendDone(vi, descriptor)


cdef VIP_RETURN _spin(VIP_VI_HANDLE vi, bint recv, int64_t deadline_ns, VIP_DESCRIPTOR **descriptor,
                      Call *call) noexcept nogil:
    """Poll until something is done, the time is over (VIP_TIMEOUT), or somebody has to be told something (the same)."""
    cdef VIP_RETURN code
    cdef int64_t now, look_ns = _now_ns() + LOOK_NS
    cdef int i
    while True:
        for i in range(POLLS_PER_LOOK):
            code = _queue_done(vi, recv, descriptor)
            if code != VIP_NOT_DONE:
                return code
        now = _now_ns()
        if now >= deadline_ns:
            return VIP_TIMEOUT
        if now >= look_ns:
            if _interrupted(call):
                return VIP_TIMEOUT
            look_ns = now + LOOK_NS
        # Where two processes that answer each other have to share one core, this is what lets the other one answer.
        sched_yield()


@cython.final
cdef class _Posted:
    # The descriptors of one work queue, oldest first; linked through Descriptor._next.
    cdef Descriptor head
    cdef Descriptor tail
    cdef int n

    cdef inline void append(self, Descriptor descriptor) noexcept:
        if self.head is None:
            self.head = descriptor
        else:
            self.tail._next = descriptor
        self.tail = descriptor
        self.n += 1
        descriptor._posted = True
        descriptor._hold()

    cdef Descriptor take(self, VIP_DESCRIPTOR *c):
        """Remove and return the one at `c`: the oldest, unless two threads posted at the same time."""
        cdef Descriptor before = None
        cdef Descriptor found = self.head
        while found is not None and found._c != c:
            before = found
            found = found._next
        if found is None:
            return None
        if before is None:
            self.head = found._next
        else:
            before._next = found._next
        if found._next is None:
            self.tail = before
        found._next = None
        self.n -= 1
        found._posted = False
        found._let_go()
        return found
