# A world: this rank's end of a job, which the engine drives while anything waits.
#
# Calls that wait are in C without the GIL. Each counts itself in and out (_n_calls), so that a signal handler or
# another thread that closes or aborts the world does not take it away under them: they are told to end (_ending), and
# the last one that does lets go of it.

cdef enum:
    ENDS_BY_ABORT = 1
    ENDS_BY_CLOSE = 2
    ORPHANS = 64           # requests dropped by the program, before their world looks which have ended


cdef int _message_interrupted(void *context) noexcept nogil:
    cdef int answer
    with gil:
        answer = (<MsgWorld>context)._ending != 0 or _look_for_signals()
    return answer


cdef int _exchange_blobs(void *context, const void *mine, size_t length, void *everybody) noexcept nogil:
    with gil:
        return (<MsgWorld>context)._exchange(mine, length, everybody)


cdef class MsgWorld:
    """This rank's end of a job: ``MsgWorld(rank, size, exchange=..., policy=...)``; see :func:`viakit.comm.world`."""

    cdef msg_world *_w
    cdef readonly int rank, size
    cdef readonly str channel
    cdef public int n_active        # schedules that want to be looked after while anything waits
    cdef public object schedules
    cdef readonly dict groups       # of communicators: their part in csrc/coll (group.pxi)
    cdef public bint by_messages    # no such groups: all collectives by messages
    cdef object _ask, _problem, _attached
    cdef list _orphans
    cdef int _orphan_limit
    cdef int _n_calls               # that are in C without the GIL: it must not go away under them
    cdef int _ending                # ENDS_*: all calls that wait shall end

    def __init__(self, int rank, int size, *, exchange=None, str policy="via", local_device=None, network_device=None,
                 address=None, timeout_s=60.0):
        cdef msg_options options
        cdef msg_policy chosen
        cdef char error[MSG_ERROR_LEN]
        cdef int code
        cdef str problem
        memset(&options, 0, sizeof(options))
        error[0] = 0
        problem = _read_policy(policy, &chosen)
        if problem is not None:
            raise _message_error(MSG_ERR_ARG, problem)
        keep = [name.encode() if name else None for name in (local_device, network_device, address)]
        options.size = sizeof(options)
        options.rank, options.n_ranks = rank, size
        options.policy = &chosen
        options.exchange = _exchange_blobs
        options.exchange_context = <void *>self
        if keep[0]:
            options.local_device = keep[0]
        if keep[1]:
            options.network_device = keep[1]
        if keep[2]:
            options.address = keep[2]
        options.threads = 1
        options.open_timeout_ms = _open_ms(timeout_s)
        options.interrupt = _message_interrupted
        options.interrupt_context = <void *>self
        self._ask = exchange
        self._orphans = []
        self._orphan_limit = ORPHANS
        self.schedules = {}
        self.groups = {}
        self.rank, self.size = rank, size
        with nogil:
            code = msg_world_open(&options, &self._w, error)
        self._ask = None
        if viakit_raised != NULL:
            self.abort()
            _raise_signal()
        if code != MSG_SUCCESS:
            if self._problem is not None:
                raise self._problem
            raise _message_error(code, _text(error) or _text(msg_error_text(code)))
        self.channel = _text(msg_world_policy(self._w).channel)

    def __dealloc__(self):
        if self._w != NULL:
            msg_world_abort(self._w)

    cdef int _exchange(self, const void *mine, size_t length, void *everybody) noexcept:
        cdef bytes blob
        cdef char *to = <char *>everybody
        try:
            blobs = self._ask((<const char *>mine)[:length])
            for blob in blobs:
                if <size_t>len(blob) != length:
                    raise ValueError("ranks of this job gave blobs of different lengths: different versions?")
                memcpy(to, <const char *>blob, length)
                to += length
            return 0
        except BaseException as error:
            self._problem = error
            return 1

    cdef int _open(self) except -1:
        if self._w == NULL or self._ending:
            raise _message_error(MSG_ERR_STATE, "this world has been closed")
        return 0

    cdef bint _in_use(self) noexcept:
        """Whether a call is in C: another thread's, or one that the signal handler interrupts that we are in."""
        cdef CollectiveGroup group
        if self._n_calls:
            return True
        for group in self.groups.values():
            if group._busy:
                return True
        return False

    cdef int _left(self) except -1:
        """A call has come back from C, and has counted itself out."""
        if self._ending:
            if self._ending == ENDS_BY_ABORT and not self._in_use():
                self._ending = 0
                self.abort()
            _raise_signal()
            self._open()
        return 0

    cdef int _clear(self) except -1:
        """Have all calls end that other threads are in."""
        if not self._in_use():
            return 0
        if viakit_n_checks:
            raise _message_error(MSG_ERR_STATE, "this signal handler has interrupted a call that waits: raise an "
                                 "exception in it, and close the world where that is caught")
        self._ending = ENDS_BY_CLOSE
        try:
            while self._in_use():
                _sleep(0.001)
        finally:
            self._ending = 0
        return 0

    @property
    def closed(self):
        """Whether close or abort has been called."""
        return self._w == NULL or self._ending == ENDS_BY_ABORT

    def close(self, timeout_s=None):
        """Send what is queued, wait for the others to close, too (None: as long as it takes), and let go of all."""
        cdef int64_t timeout_ms = _message_ms(timeout_s)
        cdef msg_world *w = self._w
        if w != NULL:
            self._clear()
            w = self._w
        self._w = NULL
        if w != NULL:
            with nogil:
                msg_world_close(w, timeout_ms)
            self._orphans = []
            self._attached = None
            self._forget_groups()
            _raise_signal()

    def abort(self):
        """Let go of everything without a word: the others see this rank die. Calls that wait end with an error."""
        cdef msg_world *w = self._w
        if w != NULL and self._in_use():
            self._ending = ENDS_BY_ABORT   # the last of them does it
            return
        self._w = NULL
        if w != NULL:
            with nogil:
                msg_world_abort(w)
            self._orphans = []
            self._forget_groups()
            _raise_signal()

    cdef int _forget_groups(self) except -1:
        for group in self.groups.values():
            group.forget()
        self.groups.clear()
        return 0

    def route(self, int rank):
        """How `rank` is reached: "self", "shm:NAME", "eth:eth0", "tcp 10.0.0.2:4711"."""
        self._open()
        return _text(msg_peer_route(self._w, rank))

    def policy(self):
        """The policy in force: field names and their values."""
        cdef int i = 0
        self._open()
        fields = {"name": _text(msg_world_policy(self._w).name), "channel": self.channel}
        while msg_policy_field_name(i) != NULL:
            fields[_text(msg_policy_field_name(i))] = msg_policy_get(msg_world_policy(self._w), i)
            i += 1
        return fields

    def counters(self):
        """The engine's counters by name."""
        cdef uint64_t values[MSG_N_COUNTERS]
        self._open()
        msg_counters(self._w, values)
        return {_text(msg_counter_name(i)): values[i] for i in range(MSG_N_COUNTERS)}

    def failures(self):
        """Ranks that are known to have died."""
        cdef int *ranks
        cdef int n
        self._open()
        ranks = <int *>calloc(self.size, sizeof(int))
        if ranks == NULL:
            raise MemoryError()
        try:
            n = msg_failures(self._w, ranks, self.size)
            return [ranks[i] for i in range(n)]
        finally:
            free(ranks)

    def failures_ack(self):
        """Allow receives from any source again although ranks have died."""
        self._open()
        msg_failures_ack(self._w)

    def progress(self):
        """Do what can be done without waiting."""
        self._open()
        msg_progress(self._w)

    def idle(self, timeout_s):
        """Wait until something has happened, at most `timeout_s` seconds (None: no limit). Ctrl-C ends it."""
        cdef int64_t timeout_ms = _message_ms(timeout_s)
        self._open()
        self._n_calls += 1
        with nogil:
            msg_idle(self._w, timeout_ms)
        self._n_calls -= 1
        self._left()
        _raise_signal()

    def attach(self, buffer):
        """Give the engine a writable buffer for buffered sends."""
        cdef Py_buffer view
        cdef int code
        self._open()
        held = memoryview(buffer).cast("B")
        PyObject_GetBuffer(held, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
        code = msg_buffer_attach(self._w, view.buf, view.len)
        PyBuffer_Release(&view)
        self._check(code)
        self._attached = (held, buffer)

    def detach(self):
        """Wait until all buffered sends have left, and return the buffer."""
        cdef void *memory = NULL
        cdef size_t length = 0
        cdef int code
        self._open()
        self._n_calls += 1
        with nogil:
            code = msg_buffer_detach(self._w, &memory, &length)
        self._n_calls -= 1
        self._left()
        self._check(code)
        attached, self._attached = self._attached, None
        return None if attached is None else attached[1]

    cdef int _check(self, int code) except -1:
        if viakit_raised != NULL:
            return _raise_signal()
        if code == MSG_SUCCESS:
            return 0
        if code == MSG_INTERRUPTED:
            raise KeyboardInterrupt()
        text = _text(msg_last_error(self._w)) if self._w != NULL else ""
        raise _message_error(code, text or _text(msg_error_text(code)))

    cdef int _adopt(self, MsgRequest orphan) except -1:
        self._orphans.append(orphan)
        if len(self._orphans) >= self._orphan_limit:
            self._orphans = [r for r in self._orphans if not (<MsgRequest>r)._look()]
            self._orphan_limit = max(<int>ORPHANS, 2 * len(self._orphans))
        return 0

    def step(self):
        """Let the schedules of this process (non-blocking collectives, parts of objects) go on."""
        for schedule in list(self.schedules):
            schedule._step()
