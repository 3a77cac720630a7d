# Completion queues: each reports the completions of several work queues.

cdef class CompletionQueue(_Resource):
    """Reports completions of the work queues that were attached to it when their VIs were created.

    Created by :meth:`Nic.create_cq`. ``for completion in cq`` takes all completions that are available, without
    waiting.

    Attributes
    ----------
    n_entries : int
        Number of completions that the queue can hold.
    """

    cdef Nic _nic
    cdef VIP_CQ_HANDLE _handle
    cdef readonly size_t n_entries
    cdef dict _handlers   # functions of outstanding notifications, by number

    def __init__(self, Nic nic not None, n_entries):
        cdef VIP_ULONG wanted = _whole("n_entries", n_entries, UINT32_MAX)
        if self._handle != NULL:
            raise TypeError("this CompletionQueue exists already; create another one with Nic.create_cq()")
        nic._use()
        self._nic = nic
        self._handlers = {}
        self.n_entries = wanted
        self._made_at = _place()
        _check(VipCreateCQ(nic._handle, wanted, &self._handle), "VipCreateCQ")
        nic._n_users += 1
        nic._children.add(self)
        nic._cqs[<size_t>self._handle] = weakref.ref(self)

    def __del__(self):
        if self._handle != NULL and self._generation == _generation:
            _warn_unclosed(self, self._made_at)
            self._finalize()

    cdef int _use(self) except -1:
        if self._generation != _generation:
            raise _refuse_fork(self)
        if self._handle == NULL:
            raise _closed_error(self)
        return 0

    def close(self):
        """Destroy the queue. Closing twice does nothing.

        Raises
        ------
        ResourceError
            If a VI is still attached to the queue.
        """
        cdef VIP_CQ_HANDLE handle = self._handle
        cdef VIP_RETURN code
        if handle == NULL or self._generation != _generation:
            self._handle = NULL
            return
        if self._n_users:
            raise _errors.ResourceError(f"{self._n_users} work queues are attached to {self!r}; close their VIs first",
                                        code=VIP_ERROR_RESOURCE, operation="VipDestroyCQ")
        self._handle = NULL
        _cancel_notifications(self._handlers)
        self._nic._cqs.pop(<size_t>handle, None)
        code = VipDestroyCQ(handle)
        self._nic._drop_user()
        _check(code, "VipDestroyCQ")

    def __repr__(self):
        return f"<viakit.via.CompletionQueue of {self.n_entries} entries{'' if self._handle != NULL else ' closed'}>"

    @property
    def closed(self):
        """Whether :meth:`close` was called."""
        return self._handle == NULL

    cdef object _completion(self, VIP_VI_HANDLE handle, bint recv):
        """Return the completion with its descriptor, which is taken from its work queue.

        Returns None if the descriptor was taken through the VI, or the VI was closed.
        """
        cdef VIP_DESCRIPTOR *c = NULL
        cdef VIP_RETURN code
        cdef Vi vi
        reference = self._nic._vis.get(<size_t>handle)
        vi = None if reference is None else reference()
        if vi is None or vi._handle == NULL:
            return None
        code = _queue_done(handle, recv, &c)
        if c == NULL:
            return None
        return _Completion(vi, _QUEUE_RECV if recv else _QUEUE_SEND,
                           (vi._recvs if recv else vi._sends).taken(vi, code, c))

    def done(self):
        """Take the next completion, if there is one. Makes progress on the NIC, and does not wait.

        Returns
        -------
        Completion or None
            A descriptor that completed with an error is returned like any other; check ``completion.error``.
        """
        cdef VIP_VI_HANDLE handle = NULL
        cdef VIP_BOOLEAN recv = 0
        cdef VIP_RETURN code
        while True:
            self._use()
            code = VipCQDone(self._handle, &handle, &recv)
            if code == VIP_NOT_DONE:
                return None
            _check(code, "VipCQDone")
            completion = self._completion(handle, recv != 0)
            if completion is not None:
                return completion

    def wait(self, timeout_s=None):
        """Wait for the next completion and take it.

        Parameters
        ----------
        timeout_s : float or None
            Timeout in seconds; None waits for ever.

        Returns
        -------
        Completion
            A descriptor that completed with an error is returned like any other; check ``completion.error``.

        Raises
        ------
        ViaTimeoutError
            If nothing completes in time.
        """
        cdef VIP_VI_HANDLE handle = NULL
        cdef VIP_BOOLEAN recv = 0
        cdef VIP_CQ_HANDLE cq
        cdef VIP_RETURN code
        cdef VIP_ULONG left_ms
        cdef Call call
        cdef void *nic = <void *>self._nic
        cdef int64_t deadline = _deadline_ns(timeout_s)
        while True:
            self._use()
            cq = self._handle
            left_ms = _remaining_ms(deadline)
            with nogil:
                _begin_wait(&call, nic, True)
                code = VipCQWait(cq, left_ms, &handle, &recv)
                _end_wait(&call)
            if code == VIP_SUCCESS:
                completion = self._completion(handle, recv != 0)
                if completion is not None:
                    return completion
                continue
            error = None if code == VIP_TIMEOUT else _error(code, "VipCQWait")
            _raise_interrupt()
            self._use()
            if code != VIP_TIMEOUT:
                raise error
            if deadline != _FOREVER and _now_ns() >= deadline:
                raise _errors.ViaTimeoutError(f"nothing completed on {self!r} within {timeout_s} s", code=code,
                                              operation="VipCQWait")

    def notify(self, handler):
        """Call a function with the next completion, once. Several notifications can be outstanding.

        Parameters
        ----------
        handler : callable
            Takes a :class:`Completion`, whose descriptor has been taken. As in :meth:`Vi.send_notify` the function runs
            on the NIC's own thread, may request the next notification, and is never called if the queue is closed
            first.
        """
        cdef VIP_RETURN code
        cdef size_t number
        self._use()
        number = _new_notification(self, self._handlers, handler)
        code = VipCQNotify(self._handle, <VIP_PVOID>number, _on_entry_done)
        if code != VIP_SUCCESS:
            _drop_notification(self._handlers, number)
            raise _error(code, "VipCQNotify")

    def resize(self, n_entries):
        """Change the number of entries. Existing completions stay in the queue, in order.

        Raises
        ------
        ResourceError
            If the queue holds more completions than `n_entries`; nothing is changed.
        """
        cdef VIP_ULONG wanted = _whole("n_entries", n_entries, UINT32_MAX)
        self._use()
        _check(VipResizeCQ(self._handle, wanted), "VipResizeCQ")
        self.n_entries = wanted

    def add_event(self, fd, tag=0, priority=0):
        """Signal an eventfd for every completion, so that ``select``, ``epoll`` or asyncio can wait for it.

        Parameters
        ----------
        fd : int
            Descriptor from :func:`os.eventfd`. The queue uses a duplicate, so the original may be closed.
        tag : int
            Distinguishes several events with the same `fd`.
        priority : int
            Events of higher priority are signalled first.
        """
        self._use()
        _check(VipAddTagCQ(self._handle, <VIP_PVOID><size_t>fd, tag, priority), "VipAddTagCQ")

    def remove_event(self, fd, tag=0):
        """Remove an event that :meth:`add_event` added."""
        self._use()
        _check(VipRemoveTagCQ(self._handle, <VIP_PVOID><size_t>fd, tag), "VipRemoveTagCQ")

    def __iter__(self):
        while True:
            completion = self.done()
            if completion is None:
                return
            yield completion
