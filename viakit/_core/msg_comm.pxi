# The part of a communicator that is written in C.
#
# A communicator has five contexts of the engine, so that internal messages never match those of the program. The
# contexts are: the program's messages, collectives, long parts of pickled objects, creation of communicators, and
# csrc/coll (group.pxi).

cdef enum:
    CONTEXTS = 5           # contexts of the engine per communicator
    REVOCABLE = 3          # of these, the first ones end when the communicator is revoked


cdef class CommState:
    """State that all handles of one communicator share."""

    cdef int context               # first of the five contexts
    cdef int own                   # context of the program's messages, negative once the communicator is freed
    cdef long long n_collectives   # begun so far, in csrc/coll and by messages
    cdef CollectiveGroup group     # of csrc/coll
    cdef bint tried                # to create the group
    cdef uint64_t oldest           # number of the oldest collective under way by messages, or 0
    cdef set pending               # numbers of all of them
    cdef tuple barrier             # plan of a barrier by messages, once there was one
    cdef uint64_t incarnation            # distinguishes it from earlier communicators of its number; same on all ranks
    cdef bint freed
    cdef long long n_objects       # long objects sent so far
    cdef object name, info
    cdef list spare                # buffers for short objects (object.pxi)
    cdef msg_scope scope           # of the contexts that end when the communicator is revoked

    def __cinit__(self):
        self.spare, self.pending = [], set()

    def __dealloc__(self):
        msg_scope_close(&self.scope)


cdef CommState _null_state = CommState()    # of all null handles
_null_state.context = _null_state.own = -65536
_null_state.freed = True
_null_state.name, _null_state.info = "MPI_COMM_NULL", {}


cdef class MsgComm:
    """Part of a communicator in C: its ranks, its contexts, and the calls whose overhead matters.

    An object is a handle. `MsgComm(world, number, ranks)` makes a communicator, `MsgComm(comm)` another handle of an
    existing one, and `MsgComm()` a null handle. The handles of a communicator share its state.
    """

    cdef readonly MsgWorld world
    cdef readonly int number
    cdef int _rank, _size
    cdef CommState _s
    cdef int *_to            # world rank of each rank of this communicator, NULL if they are the same
    cdef int *_from          # rank in this communicator of each world rank, NULL if they are the same

    def __cinit__(self, what=None, number=0, ranks=None, *args, **options):
        cdef MsgComm other
        cdef MsgWorld world
        if isinstance(what, MsgWorld):
            world = what
            self._s = CommState()
            self._s.name, self._s.info = "", {}
            self.world, self.number, self._s.context = world, number, <int>number * CONTEXTS
            self._s.own = self._s.context
            self._rank, self._size = world.rank, world.size
            if ranks is not None:
                self._place([int(rank) for rank in ranks])
        elif isinstance(what, MsgComm) and (<MsgComm>what)._s is not _null_state:
            other = what
            self.world, self.number, self._s = other.world, other.number, other._s
            self._rank, self._size = other._rank, other._size
            if other._to != NULL:
                self._place(other.world_ranks())
        else:
            self.world, self.number, self._s = _null_world(), -1, _null_state
            self._rank = -1

    cdef int _place(self, list ranks) except -1:
        """Set the tables of ranks: `ranks` are the world's, in the order of this communicator."""
        cdef int i, there
        self._size = len(ranks)
        self._to = <int *>calloc(self._size + 1, sizeof(int))
        self._from = <int *>calloc(self.world.size, sizeof(int))
        if self._to == NULL or self._from == NULL:
            raise MemoryError()
        self._rank = -1
        for i in range(self.world.size):
            self._from[i] = MSG_PROC_NULL
        for i in range(self._size):
            if not 0 <= ranks[i] < self.world.size:
                raise _message_error(MSG_ERR_RANK, f"rank must be 0 to {self.world.size - 1} in this world, "
                                     f"got {ranks[i]}")
            there = self._to[i] = ranks[i]
            self._from[there] = i
            if there == self.world.rank:
                self._rank = i
        return 0

    def __dealloc__(self):
        free(self._to)
        free(self._from)

    cdef int _real(self) except -1:
        """Raise ERR_COMM for a null handle."""
        if self._s is _null_state:
            raise _message_error(MSG_ERR_CONTEXT, "this communicator is COMM_NULL; this rank is not a member of it")
        return 0

    @property
    def rank(self):
        """Rank of this process in the communicator."""
        self._real()
        return self._rank

    @property
    def size(self):
        """Number of ranks in the communicator."""
        self._real()
        return self._size

    @property
    def is_null(self):
        """Whether this is a null handle."""
        return self._s is _null_state

    def nullify(self):
        """Make this a null handle. The communicator and its other handles remain."""
        free(self._to)
        free(self._from)
        self._to = self._from = NULL
        self.world, self.number, self._s = _null_world(), -1, _null_state
        self._rank, self._size = -1, 0

    def shares(self, MsgComm other):
        """Return whether both are handles of the same communicator."""
        return self._s is other._s

    @property
    def _freed(self):
        """Whether the communicator has been freed."""
        return self._s.freed

    @_freed.setter
    def _freed(self, bint freed):
        self._s.freed = freed

    @property
    def _name(self):
        return self._s.name

    @_name.setter
    def _name(self, str name):
        self._real()
        self._s.name = name

    @property
    def _info(self):
        return self._s.info

    @_info.setter
    def _info(self, info):
        self._real()
        self._s.info = info

    @property
    def _n_objects(self):
        return self._s.n_objects

    @_n_objects.setter
    def _n_objects(self, long long number):
        self._s.n_objects = number

    cdef inline int _back(self, int rank) noexcept nogil:
        return self._from[rank] if self._from != NULL else rank

    @cython.final
    cdef inline int _target(self, int rank, bint receive) except -10:
        """Translate a rank to a world rank; keep wildcards. Raises ERR_RANK if this communicator has no such rank."""
        if 0 <= rank < self._size:
            return self._to[rank] if self._to != NULL else rank
        return self._special(rank, receive)

    cdef int _special(self, int rank, bint receive) except -10:
        if rank == MSG_PROC_NULL or (receive and rank == MSG_ANY_SOURCE):
            return rank
        self._real()
        raise _message_error(MSG_ERR_RANK, f"rank must be 0 to {self._size - 1}"
                             + (", ANY_SOURCE" if receive else "") + f" or PROC_NULL in this communicator, got {rank}")

    def world_ranks(self):
        """Return the world ranks of this communicator's ranks, in order."""
        self._real()
        return list(range(self._size)) if self._to == NULL else [self._to[i] for i in range(self._size)]

    @cython.final
    cdef inline int _at(self, int part) except -1:
        """Return the context of a part.

        The program's context ends when the communicator is freed; the other contexts end with the last pending
        operation.
        """
        cdef int context = self._s.context + part if part else self._s.own
        if context < 0:
            raise _message_error(MSG_ERR_CONTEXT, "this communicator has been freed")
        return context

    def close_own(self):
        """Refuse new operations of the program. Pending operations continue."""
        self._s.own = -1

    def forget(self):
        """Retire all contexts, so that no late message reaches the next communicator with the same number."""
        if self._s.context >= 0 and self.world._w != NULL and self.world._generation == _generation:
            msg_retire(self.world._w, self._s.context, CONTEXTS)
        msg_scope_close(&self._s.scope)
        self._s.own = self._s.context = -65536

    def probe_other_tag(self, int part, int mask, int tag, MsgStatus status):
        """Return whether a message has arrived whose tag differs from `tag` but equals it in the bits of `mask`.

        Sets `status` if so.
        """
        cdef msg_status result
        self.world._open()
        if not msg_probe_other_tag(self.world._w, self._at(part), mask, tag, &result):
            return False
        status.source, status.tag = self._back(result.source), result.tag
        return True

    def discard(self, int part, int mask, int tag):
        """Discard unexpected messages whose tags equal `tag` in the bits set in `mask`."""
        self.world._open()
        return msg_discard(self.world._w, self._at(part), mask, tag)

    cdef MsgRequest _new(self, object buffer, bint writable):
        cdef MsgRequest request = _request_type.__new__(_request_type)
        request._comm = self
        PyObject_GetBuffer(buffer, &request._view, PyBUF_ANY_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
        request._pinned = True
        return request

    cpdef MsgRequest start_send(self, object buffer, int dest, int tag=0, int mode=0, int part=0):
        """Start to send a contiguous buffer.

        `part` selects the context: 0 for the program, 1 for collectives, 2 for the bodies of objects.
        """
        cdef MsgRequest request
        cdef int target = self._target(dest, False)
        cdef int context = self._at(part)
        self.world._open()
        request = self._new(buffer, False)
        self.world._check(msg_isend(self.world._w, context, request._view.buf, request._view.len, target,
                                    tag, <msg_mode>mode, &request._r))
        return request

    cpdef MsgRequest start_recv(self, object buffer, int source=MSG_ANY_SOURCE, int tag=MSG_ANY_TAG, int part=0):
        """Start to receive into a contiguous, writable buffer."""
        cdef MsgRequest request
        cdef int target = self._target(source, True)
        cdef int context = self._at(part)
        self.world._open()
        request = self._new(buffer, True)
        self.world._check(msg_irecv(self.world._w, context, request._view.buf, request._view.len, target,
                                    tag, &request._r))
        return request

    cdef MsgRequest _begin(self, Py_buffer *view, int peer, int tag, int mode, bint receive):
        """Start to send or receive a buffer that `_is_plain` has pinned. The request owns the buffer from here on."""
        cdef MsgRequest request = _request_type.__new__(_request_type)
        cdef msg_world *w
        cdef int code, target, context
        request._comm = self
        request._view, request._pinned = view[0], True
        target, context = self._target(peer, receive), self._at(0)
        self.world._open()
        w = self.world._w
        if receive:
            code = msg_irecv(w, context, request._view.buf, request._view.len, target, tag, &request._r)
        else:
            code = msg_isend(w, context, request._view.buf, request._view.len, target, tag, <msg_mode>mode,
                             &request._r)
        if code != MSG_SUCCESS:
            self.world._check(code)
        return request

    def Isend(self, buf, int dest, int tag=0):
        """Start to send a buffer.

        Parameters
        ----------
        buf : buffer or list
            Data to send: an array, or [buffer, count, datatype]. Do not modify it before the request completes.
        dest : int
            Destination rank.
        tag : int
            Message tag.

        Returns
        -------
        Request
        """
        cdef Py_buffer view
        if _is_message(buf, &view, 0):
            return self._begin(&view, dest, tag, MSG_STANDARD, False)
        return self._start(buf, dest, tag, MSG_STANDARD)

    def Issend(self, buf, int dest, int tag=0):
        """Start to send a buffer in synchronous mode; the request completes after the matching receive has started."""
        cdef Py_buffer view
        if _is_message(buf, &view, 0):
            return self._begin(&view, dest, tag, MSG_SYNCHRONOUS, False)
        return self._start(buf, dest, tag, MSG_SYNCHRONOUS)

    def Irecv(self, buf, int source=MSG_ANY_SOURCE, int tag=MSG_ANY_TAG):
        """Start to receive a message into a buffer.

        Parameters
        ----------
        buf : buffer or list
            Memory to receive into: an array, or [buffer, count, datatype].
        source : int
            Source rank, or ANY_SOURCE.
        tag : int
            Message tag, or ANY_TAG.

        Returns
        -------
        Request
        """
        cdef Py_buffer view
        if _is_message(buf, &view, PyBUF_WRITABLE):
            return self._begin(&view, source, tag, MSG_STANDARD, True)
        return self._await(buf, source, tag)

    cdef int _send_fast(self, Py_buffer *view, int dest, int tag, int mode) except -1:
        """Send what `view` has pinned, and release it. The GIL is kept for a short message that can leave at once."""
        cdef int code = MSG_PENDING, target, context
        cdef msg_world *w
        try:
            target, context = self._target(dest, False), self._at(0)
            self.world._open()
            w = self.world._w
            if mode == MSG_STANDARD and view.len < LONG_MESSAGE:
                code = msg_send_now(w, context, view.buf, view.len, target, tag)
            if code == MSG_PENDING:
                self.world._n_calls += 1
                with nogil:
                    code = msg_send(w, context, view.buf, view.len, target, tag, <msg_mode>mode)
                self.world._n_calls -= 1
                self.world._left()
            self.world._check(code)
        finally:
            PyBuffer_Release(view)
        return 0

    cdef int _recv_fast(self, void *buf, Py_ssize_t room, int source, int tag, msg_status *result) except -1:
        """Receive a message. The GIL is kept while a message into a short buffer is polled for some microseconds."""
        cdef int code = MSG_PENDING, target = self._target(source, True), context = self._at(0)
        cdef msg_world *w
        cdef msg_request *begun = NULL
        self.world._open()
        w = self.world._w
        if room < LONG_MESSAGE:
            code = msg_recv_soon(w, context, buf, room, target, tag, result, &begun)
        if code == MSG_PENDING:
            self.world._n_calls += 1
            with nogil:
                code = msg_recv_rest(w, context, buf, room, target, tag, result, begun)
            self.world._n_calls -= 1
            self.world._left()
        self.world._check(code)
        return 0

    cdef int _report(self, const msg_status *result, MsgStatus status) except -1:
        """Fill in a status."""
        status.source = self._back(result.source) if result.source >= 0 else result.source
        status.tag, status.error, status.nbytes = result.tag, result.error, result.len
        status.was_cancelled = False
        return 0

    def Send(self, buf, int dest, int tag=0):
        """Send a buffer; return when it may be modified again.

        Parameters
        ----------
        buf : buffer or list
            Data to send: an array, or [buffer, count, datatype].
        dest : int
            Destination rank.
        tag : int
            Message tag.

        Raises
        ------
        Exception
            ERR_PROC_FAILED if the destination has failed.
        """
        cdef Py_buffer view
        if self.world.n_active == 0 and _is_message(buf, &view, 0):
            self._send_fast(&view, dest, tag, MSG_STANDARD)
        else:
            self._send_any(buf, dest, tag, MSG_STANDARD)

    def Ssend(self, buf, int dest, int tag=0):
        """Send a buffer in synchronous mode; return after the matching receive has started."""
        cdef Py_buffer view
        if self.world.n_active == 0 and _is_message(buf, &view, 0):
            self._send_fast(&view, dest, tag, MSG_SYNCHRONOUS)
        else:
            self._send_any(buf, dest, tag, MSG_SYNCHRONOUS)

    def Recv(self, buf, int source=MSG_ANY_SOURCE, int tag=MSG_ANY_TAG, MsgStatus status=None):
        """Receive a message into a buffer.

        Parameters
        ----------
        buf : buffer or list
            Memory to receive into: an array, or [buffer, count, datatype]. It may be longer than the message.
        source : int
            Source rank, or ANY_SOURCE.
        tag : int
            Message tag, or ANY_TAG.
        status : Status, optional
            Filled with the source, tag and length of the message.

        Raises
        ------
        Exception
            ERR_TRUNCATE if the message is longer than the buffer; ERR_PROC_FAILED if the source has failed.
        """
        cdef Py_buffer view
        cdef msg_status result
        if self.world.n_active or not _is_message(buf, &view, PyBUF_WRITABLE):
            self._recv_any(buf, source, tag, status)
            return
        try:
            self._recv_fast(view.buf, view.len, source, tag, &result)
        finally:
            PyBuffer_Release(&view)
        if status is not None:
            self._report(&result, status)

    def look(self, int source, int tag, MsgStatus status, timeout_s, int part=0):
        """Return whether a matching message has arrived, and fill in `status`.

        Waits at most `timeout_s` seconds (None: no limit).
        """
        cdef msg_status result
        cdef int code, target = self._target(source, True), context = self._at(part)
        cdef int64_t timeout_ms = _message_ms(timeout_s)
        self.world._open()
        self.world._n_calls += 1
        with nogil:
            code = msg_probe(self.world._w, context, target, tag, &result, timeout_ms)
        self.world._n_calls -= 1
        self.world._left()
        if code == MSG_TIMEOUT:
            _raise_signal()
            return False
        self.world._check(code)
        if status is not None:
            self._report(&result, status)
        return True

    def take(self, int source, int tag, timeout_s, message_type):
        """Remove a matching message from the queue and return it as a `message_type`.

        Waits at most `timeout_s` seconds (None: no limit); returns None if no message matches until then.
        """
        cdef msg_status result
        cdef MsgMessage message = message_type.__new__(message_type)
        cdef int code, target = self._target(source, True), context = self._at(0)
        cdef int64_t timeout_ms = _message_ms(timeout_s)
        self.world._open()
        self.world._n_calls += 1
        with nogil:
            code = msg_mprobe(self.world._w, context, target, tag, &message._m, &result, timeout_ms)
        self.world._n_calls -= 1
        self.world._left()
        if code == MSG_TIMEOUT:
            _raise_signal()
            return None
        self.world._check(code)
        message.comm = self
        message.source = self._back(result.source) if result.source >= 0 else result.source
        message.tag, message.nbytes = result.tag, result.len
        return message
