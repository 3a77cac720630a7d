# A world: the connection of this rank to a job. The engine makes progress while any call waits.
#
# Threads: calls that wait run in C without the GIL. Each call counts itself in and out (_n_calls). A signal handler or
# another thread that closes or aborts the world sets _ending, so that the calls end. The last call to return releases
# the world; it is never released while a call uses it.

cdef enum:
    ENDS_BY_ABORT = 1
    ENDS_BY_CLOSE = 2
    ORPHANS = 64           # requests dropped by the program before their world checks which have ended


cdef int _message_interrupted(void *context) noexcept nogil:
    cdef int answer
    with gil:
        answer = (<MsgWorld>context)._ending != 0 or _look_for_signals()
        if (<MsgWorld>context)._generation != _generation:  # A signal handler has forked; the wait ends in the child.
            answer = 1
    return answer


cdef int _exchange_blobs(void *context, const void *mine, size_t length, void *gathered) noexcept nogil:
    with gil:
        return (<MsgWorld>context)._exchange(mine, length, gathered)


cdef bytes _job_secret(object secret):
    """Return the secret as bytes, or None. Raise ValueError if it does not have 32 bytes."""
    if secret is None:
        return None
    if len(secret) != MSG_SECRET_LEN:
        raise ValueError(f"the secret of a job has {MSG_SECRET_LEN} bytes, got {len(secret)}; "
                         f"secrets.token_bytes({MSG_SECRET_LEN}) makes one")
    return bytes(secret)


cdef class MsgWorld:
    """Connection of this rank to a job: ``MsgWorld(rank, size, exchange=..., policy=..., secret=...)``.

    `secret` is 32 bytes that only the ranks of this job have. A world of one rank needs no secret. Programs open the
    world with :func:`viakit.comm.world`.
    """

    cdef msg_world *_w
    cdef readonly int rank, size
    cdef readonly str channel
    cdef public int n_active        # operations that must make progress while a call waits: those of ...
    cdef public dict schedules      # ... schedule.py with their communicators, and of ...
    cdef list plans                 # ... plan_request.pxi
    cdef list spare                 # messages of collectives that have ended, for the next ones (rooted.pxi)
    cdef readonly dict groups       # by communicator number: its group in csrc/coll (group.pxi)
    cdef public bint by_messages    # create no such groups: messages do all collectives
    cdef object _exchange_fn, _problem, _attached
    cdef list _orphans
    cdef int _orphan_limit
    cdef int _n_calls               # calls that are in C without the GIL; the world is not released under them
    cdef int _ending                # ENDS_*: all waiting calls have to end
    cdef long _generation           # of the process that opened the world; a child of fork cannot use it

    def __init__(self, int rank, int size, *, exchange=None, str policy="via", local_device=None, network_device=None,
                 address=None, timeout_s=60.0, secret=None):
        cdef msg_options options
        cdef bytes proof = _job_secret(secret)
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
        if proof is not None:
            options.secret = <const unsigned char *>PyBytes_AS_STRING(proof)
        self._exchange_fn = exchange
        self._generation = _generation
        self._orphans = []
        self._orphan_limit = ORPHANS
        self.schedules, self.plans, self.spare = {}, [], []
        self.groups = {}
        self.rank, self.size = rank, size
        with nogil:
            code = msg_world_open(&options, &self._w, error)
        self._exchange_fn = None
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
            msg_scopes_end(self._w)
            msg_world_abort(self._w)

    cdef int _exchange(self, const void *mine, size_t length, void *gathered) noexcept:
        cdef bytes blob
        cdef char *to = <char *>gathered
        try:
            blobs = self._exchange_fn((<const char *>mine)[:length])
            for blob in blobs:
                if <size_t>len(blob) != length:
                    raise ValueError("ranks of this job gave blobs of different lengths: different versions?")
                memcpy(to, <const char *>blob, length)
                to += length
            return 0
        except BaseException as error:
            self._problem = error
            return 1

    @cython.final
    cdef inline int _open(self) except -1:
        if self._w == NULL or self._ending or self._generation != _generation:
            self._refuse()
        return 0

    cdef int _refuse(self) except -1:
        """Raise the reason why this world cannot be used."""
        if self._orphans is None:  # the world of null handles, which is never opened
            raise _message_error(MSG_ERR_CONTEXT, "this communicator is COMM_NULL; this rank is not a member of it")
        if self._generation != _generation:
            raise _message_error(MSG_ERR_PROCESS, "this communicator was opened before a fork and belongs to the "
                                 "parent process: a call in the child is an error. Open a world of a job of its own "
                                 "in the child, or use communicators in the parent only")
        raise _message_error(MSG_ERR_STATE, "this world has been closed")

    def require(self):
        """Raise an error unless this world is open in this process."""
        self._open()

    @property
    def forked(self):
        """Whether this process is a child of fork of the one that opened the world."""
        return self._generation != _generation

    cdef bint _in_use(self) noexcept:
        """Return whether a call is in C: another thread's, or one that the current signal handler interrupted."""
        cdef CollectiveGroup group
        if self._n_calls:
            return True
        for group in self.groups.values():
            if group._busy:
                return True
        return False

    @cython.final
    cdef inline int _left(self) except -1:
        """Finish a call that has returned from C and counted itself out: perform a pending abort, raise its error."""
        if self._ending or self._generation != _generation:
            self._end_call()
        return 0

    cdef int _end_call(self) except -1:
        if self._generation != _generation:  # A signal handler has forked in the meantime.
            _raise_signal()
            self._refuse()
        if self._ending == ENDS_BY_ABORT and not self._in_use():
            self._ending = 0
            self.abort()
        _raise_signal()
        return self._open()

    cdef int _clear(self) except -1:
        """Make the calls of other threads end, and wait until they have."""
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
        """Whether close or abort has been called; in a child of fork always True."""
        return self._w == NULL or self._ending == ENDS_BY_ABORT or self._generation != _generation

    def close(self, timeout_s=None):
        """Transmit pending messages, wait for the other ranks to close, and release all resources.

        Waits at most `timeout_s` seconds for the other ranks (None: no limit). In a child of fork the call does
        nothing, because the world belongs to the parent.
        """
        cdef int64_t timeout_ms = _message_ms(timeout_s)
        cdef msg_world *w = self._w
        if self._generation != _generation:
            return
        if w != NULL:
            self._clear()
            w = self._w
        self._w = NULL
        if w != NULL:
            msg_scopes_end(w)  # with the GIL, so that no communicator ends meanwhile
            with nogil:
                msg_world_close(w, timeout_ms)
            self._orphans = []
            self._attached = None
            self._forget_groups()
            _raise_signal()

    def abort(self):
        """Release all resources without notice to the peers, which report this rank as failed.

        Calls that wait in other threads end with an error.
        """
        cdef msg_world *w = self._w
        if self._generation != _generation:
            return
        if w != NULL and self._in_use():
            self._ending = ENDS_BY_ABORT   # the last of these calls performs the abort
            return
        self._w = NULL
        if w != NULL:
            msg_scopes_end(w)
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
        """Return the device or address that connects `rank`: "self", "shm:NAME", "eth:eth0", "tcp 10.0.0.2:4711"."""
        self._open()
        return _text(msg_peer_route(self._w, rank))

    def policy(self):
        """Return the active policy: a dict of field names and values."""
        cdef int i = 0
        self._open()
        fields = {"name": _text(msg_world_policy(self._w).name), "channel": self.channel}
        while msg_policy_field_name(i) != NULL:
            fields[_text(msg_policy_field_name(i))] = msg_policy_get(msg_world_policy(self._w), i)
            i += 1
        return fields

    def counters(self):
        """Return the counters of the engine by name."""
        cdef uint64_t values[MSG_N_COUNTERS]
        self._open()
        msg_counters(self._w, values)
        return {_text(msg_counter_name(i)): values[i] for i in range(MSG_N_COUNTERS)}

    def nic_counters(self):
        """Return the sums of the counters of the channel's NICs by name; empty if the channel reports none."""
        cdef uint64_t values[VIAKIT_N_COUNTERS]
        self._open()
        return dict(_counters(values)) if msg_nic_counters(self._w, values) else {}

    def failures(self):
        """Return the ranks that are known to have failed."""
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
        """Acknowledge failed ranks, so that receives from ANY_SOURCE are possible again."""
        self._open()
        msg_failures_ack(self._w)

    def progress(self):
        """Make progress without waiting."""
        self._open()
        msg_progress(self._w)

    def idle(self, timeout_s):
        """Wait for an event, at most `timeout_s` seconds (None: no limit). Ctrl-C ends the wait."""
        cdef int64_t timeout_ms = _message_ms(timeout_s)
        self._open()
        self._n_calls += 1
        with nogil:
            msg_idle(self._w, timeout_ms)
        self._n_calls -= 1
        self._left()
        _raise_signal()

    def attach(self, buffer, bint automatic=False):
        """Attach a writable buffer for buffered sends; an automatic one has memory of the engine."""
        cdef Py_buffer view
        cdef int code
        self._open()
        if automatic:
            self._check(msg_buffer_attach(self._w, NULL, MSG_BUFFER_AUTOMATIC))
            self._attached = (None, buffer)
            return
        held = memoryview(buffer).cast("B")
        PyObject_GetBuffer(held, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
        code = msg_buffer_attach(self._w, view.buf, view.len)
        PyBuffer_Release(&view)
        self._check(code)
        self._attached = (held, buffer)

    def detach(self):
        """Wait until all buffered sends have been transmitted, then detach and return the buffer."""
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

    @cython.final
    cdef inline int _check(self, int code) except -1:
        """Raise the exception of a signal handler, or the error that *code* stands for."""
        if code != MSG_SUCCESS or viakit_raised != NULL:
            self._fail(code)
        return 0

    cdef int _fail(self, int code) except -1:
        if viakit_raised != NULL:
            return _raise_signal()
        if code == MSG_SUCCESS:
            return 0
        if code == MSG_ERR_PROCESS:
            self._refuse()
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
        """Let the schedules of this process (non-blocking collectives, parts of objects) make progress."""
        cdef PlanRequest plan
        if self.schedules:
            for schedule in list(self.schedules):
                schedule._step()
        if self.plans:
            for plan in list(self.plans):
                plan._advance()

    cdef int _forget_plan(self, PlanRequest plan) except -1:
        """Remove a complete operation from those under way."""
        cdef Py_ssize_t i
        for i in range(len(self.plans)):
            if self.plans[i] is plan:
                del self.plans[i]
                break
        return 0

    def count_active(self):
        """Count the operations that must make progress while a call waits."""
        self.n_active = <int>(len(self.schedules) + len(self.plans))

    def active_comms(self):
        """Return the communicators of the operations that are under way."""
        cdef PlanRequest plan
        return list(self.schedules.values()) + [plan._comm for plan in self.plans]


cdef MsgWorld _no_world = None


cdef MsgWorld _null_world():
    """Return the world of null handles. It is never open, so each call on it is refused."""
    global _no_world
    if _no_world is None:
        _no_world = MsgWorld.__new__(MsgWorld)
    return _no_world
