# A work queue of a VI: the list of its posted descriptors; posting, polling and waiting.
#
# A linked list mirrors each queue. It holds the posted Descriptor objects in posting order, which is also the order of
# completion. The references keep all memory alive that C may access.
#
# Posting and polling keep the GIL, because releasing it takes longer than the call. Long messages, calls that wait, and
# polling for more than some microseconds release it.

cdef enum:
    LONG_MESSAGE = 32768   # length in bytes from which a post releases the GIL
    POLLS_WITH_GIL = 32    # polls of spin_recv() before it releases the GIL: about half a microsecond
    POLLS_PER_CHECK = 96   # polls between two checks of the clock, each with a sched_yield(): about a microsecond

cdef int64_t SIGNAL_CHECK_NS = 20000000   # interval of signal checks while polling without the GIL


cdef inline VIP_RETURN _queue_done(VIP_VI_HANDLE vi, bint recv, VIP_DESCRIPTOR **descriptor) noexcept nogil:
    return VipRecvDone(vi, descriptor) if recv else VipSendDone(vi, descriptor)


cdef VIP_RETURN _spin(VIP_VI_HANDLE vi, bint recv, int64_t deadline_ns, VIP_DESCRIPTOR **descriptor,
                      Call *call) noexcept nogil:
    """Poll until a descriptor is done.

    Returns VIP_TIMEOUT at the deadline, and also if a signal or an asynchronous error has to be handled.
    """
    cdef VIP_RETURN code
    cdef int64_t now, check_ns = _now_ns() + SIGNAL_CHECK_NS
    cdef int i
    while True:
        for i in range(POLLS_PER_CHECK):
            code = _queue_done(vi, recv, descriptor)
            if code != VIP_NOT_DONE:
                return code
        now = _now_ns()
        if now >= deadline_ns:
            return VIP_TIMEOUT
        if now >= check_ns:
            if _interrupted(call):
                return VIP_TIMEOUT
            check_ns = now + SIGNAL_CHECK_NS
        # If the two peers share one core, the yield lets the other process run and reply.
        sched_yield()


@cython.final
cdef class _WorkQueue:
    # One of a VI's two queues. Its posted descriptors, oldest first, are linked through Descriptor._next. The VI holds
    # the queue and passes itself to each call, so that there is no reference cycle.
    cdef bint recv
    cdef Descriptor head
    cdef Descriptor tail
    cdef int n

    def __cinit__(self, bint recv):
        self.recv = recv

    cdef str kind(self):
        return "receive" if self.recv else "send"

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
        """Remove and return the descriptor at `c`. It is the oldest one, unless two threads posted at the same time."""
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

    cdef int post(self, Vi vi, Descriptor descriptor) except -1:
        """Post a descriptor of this queue's kind."""
        cdef VIP_DESCRIPTOR *c = descriptor._c
        cdef VIP_VI_HANDLE handle = vi._handle
        cdef VIP_MEM_HANDLE memory
        cdef VIP_RETURN code
        vi._use()
        if descriptor._chunk is None:
            raise TypeError("use Descriptor.send(), .recv(), .rdma_write() or .rdma_read() to create a descriptor")
        memory = descriptor._chunk.handle
        if descriptor._posted:
            raise _errors.InvalidStateError(f"{descriptor!r} is posted already; take it from its queue first")
        if descriptor._is_recv != self.recv:
            raise ValueError(f"{descriptor!r} belongs on the {'send' if self.recv else 'receive'} queue")
        if descriptor._chunk.nic is not vi._nic:
            raise ValueError(f"{descriptor!r} refers to memory of another Nic; use memory of this Nic")
        c.CS.Status = 0
        c.CS.Length = descriptor._total   # An earlier receive has stored the received length here.
        self.append(descriptor)           # It may be complete before the call returns, so append it first.
        if self.recv:
            code = VipPostRecv(handle, c, memory)
        elif descriptor._total < LONG_MESSAGE:
            code = VipPostSend(handle, c, memory)
        else:
            with nogil:
                code = VipPostSend(handle, c, memory)
        if code != VIP_SUCCESS:
            self.take(c)
            vi._use()   # Raise ClosedError if another thread has closed the VI.
            raise _error(code, "VipPostRecv" if self.recv else "VipPostSend")
        return 0

    cdef Descriptor taken(self, Vi vi, VIP_RETURN code, VIP_DESCRIPTOR *c):
        """Return the Descriptor for the C descriptor of a Done or Wait call; None if the queue was empty."""
        cdef Descriptor descriptor
        if c == NULL:
            if code == VIP_DESCRIPTOR_ERROR:
                return None
            vi._use()   # Raise ClosedError if another thread has closed the VI.
            raise _error(code, "VipRecvDone" if self.recv else "VipSendDone")
        descriptor = self.take(c)
        if descriptor is None:
            vi._use()   # A thread that closed the VI has taken all descriptors, before this thread got the GIL again.
            raise RuntimeError(f"the NIC completed a descriptor at {<size_t>c:#x} that was not posted here")
        return descriptor

    cdef Descriptor done(self, Vi vi):
        """Take the oldest descriptor, if it is complete; otherwise return None."""
        cdef VIP_DESCRIPTOR *c = NULL
        cdef VIP_RETURN code
        cdef Descriptor descriptor
        vi._use()
        code = _queue_done(vi._handle, self.recv, &c)
        if code == VIP_NOT_DONE:
            return None
        descriptor = self.taken(vi, code, c)
        if descriptor is not None and c.CS.Status & VIP_STATUS_ERROR_MASK:
            raise _completion_error(descriptor, vi)
        return descriptor

    cdef Descriptor wait(self, Vi vi, object timeout_s, bint spin):
        """Wait until the oldest descriptor is complete, and take it. With `spin`, poll instead of sleeping."""
        cdef VIP_DESCRIPTOR *c = NULL
        cdef VIP_VI_HANDLE handle = vi._handle
        cdef VIP_RETURN code = VIP_NOT_DONE
        cdef VIP_ULONG left_ms
        cdef Descriptor descriptor
        cdef int64_t deadline
        cdef Call call
        cdef void *nic = <void *>vi._nic
        cdef bint recv
        cdef int i
        vi._use()
        recv = self.recv
        if spin:
            for i in range(POLLS_WITH_GIL):
                code = _queue_done(handle, recv, &c)
                if code != VIP_NOT_DONE:
                    break
        if code == VIP_NOT_DONE:
            deadline = _deadline_ns(timeout_s)
        while code == VIP_NOT_DONE:
            if spin:
                with nogil:
                    _begin_wait(&call, nic, True)
                    code = _spin(handle, recv, deadline, &c, &call)
                    _end_wait(&call)
            else:
                left_ms = _remaining_ms(deadline)
                with nogil:
                    _begin_wait(&call, nic, True)
                    code = VipRecvWait(handle, left_ms, &c) if recv else VipSendWait(handle, left_ms, &c)
                    _end_wait(&call)
            if code == VIP_TIMEOUT:
                _raise_interrupt()
                vi._use()
                if deadline == _FOREVER or _now_ns() < deadline:
                    code = VIP_NOT_DONE
                    continue
                raise _errors.ViaTimeoutError(
                    f"no {self.kind()} completed within {timeout_s} s; {self.n} are posted", code=VIP_TIMEOUT,
                    operation="VipRecvWait" if recv else "VipSendWait")
        descriptor = self.taken(vi, code, c)
        if descriptor is None:
            vi._use()
            if vi._closing:
                raise _closed_error(vi)   # Another thread has drained the queue.
            _end_thread()   # likewise, because the interpreter exits
            raise _errors.InvalidStateError(f"no {self.kind()} is posted on {vi!r}; post one before waiting")
        if c.CS.Status & VIP_STATUS_ERROR_MASK:
            raise _completion_error(descriptor, vi)
        return descriptor

    cdef int notify(self, Vi vi, object handler) except -1:
        """Call `handler` once when the oldest descriptor is complete."""
        cdef VIP_RETURN code
        cdef size_t number
        vi._use()
        number = _new_notification(vi, vi._handlers, handler)
        if self.recv:
            code = VipRecvNotify(vi._handle, <VIP_PVOID>number, _on_recv_done)
        else:
            code = VipSendNotify(vi._handle, <VIP_PVOID>number, _on_send_done)
        if code != VIP_SUCCESS:
            _drop_notification(vi._handlers, number)
            raise _error(code, "VipRecvNotify" if self.recv else "VipSendNotify")
        return 0
