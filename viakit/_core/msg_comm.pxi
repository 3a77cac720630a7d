# One rank's end of a communicator.
#
# A communicator has five contexts of the engine, so that what travels for it never matches what the program sends: the
# program's own messages, collectives, the long parts of pickled objects, what makes new communicators, and csrc/coll
# (group.pxi).

from cpython.list cimport PyList_Check
from cpython.tuple cimport PyTuple_Check

cdef enum:
    CONTEXTS = 5           # of the engine, for each communicator


cdef inline bint _is_plain(object buf, Py_buffer *view, int flags) except -1:
    """Pin `buf` if it is one contiguous buffer of numbers; 0: the general way has to look at it."""
    if PyList_Check(buf) or PyTuple_Check(buf) or buf is None:
        return 0
    PyObject_GetBuffer(buf, view, PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT | flags)
    if view.format != NULL and (view.format[0] == c'O' or (view.format[0] != 0 and view.format[1] != 0)):
        PyBuffer_Release(view)
        return 0
    return 1


cdef class MsgComm:
    """A communicator's part in C: who its ranks are, its contexts, and the calls that have to be short."""

    cdef readonly MsgWorld world
    cdef readonly int rank, size, number
    cdef int *_to            # this communicator's ranks in the world, NULL: the same
    cdef int *_from          # and back
    cdef int _context        # the first of five ...
    cdef int _own            # ... which is the program's; freed communicators have none

    def __cinit__(self, MsgWorld world, int number, ranks=None, *args, **options):
        cdef int i
        self.world, self.number, self._context = world, number, number * CONTEXTS
        self._own = self._context
        self.rank, self.size = world.rank, world.size
        if ranks is None:
            return
        self.size = len(ranks)
        self._to = <int *>calloc(self.size + 1, sizeof(int))
        self._from = <int *>calloc(world.size, sizeof(int))
        if self._to == NULL or self._from == NULL:
            raise MemoryError()
        self.rank = -1
        for i in range(world.size):
            self._from[i] = MSG_PROC_NULL
        for i in range(self.size):
            if not 0 <= <int>ranks[i] < world.size:
                raise _message_error(MSG_ERR_RANK, f"rank {ranks[i]} is not in a world of {world.size}")
            self._to[i] = ranks[i]
            self._from[self._to[i]] = i
            if self._to[i] == world.rank:
                self.rank = i

    def __dealloc__(self):
        free(self._to)
        free(self._from)

    cdef inline int _back(self, int rank) noexcept nogil:
        return self._from[rank] if self._from != NULL else rank

    cdef int _target(self, int rank, bint receive) except -10:
        """The world's number of a rank, or a wildcard; raises for ranks that this communicator does not have."""
        if 0 <= rank < self.size:
            return self._to[rank] if self._to != NULL else rank
        if rank == MSG_PROC_NULL or (receive and rank == MSG_ANY_SOURCE):
            return rank
        raise _message_error(MSG_ERR_RANK, f"rank {rank}: this communicator has ranks 0 to {self.size - 1}"
                             + (", and ANY_SOURCE" if receive else "") + " and PROC_NULL")

    def world_ranks(self):
        """The world's numbers of this communicator's ranks, in their order."""
        return list(range(self.size)) if self._to == NULL else [self._to[i] for i in range(self.size)]

    cdef int _at(self, int part) except -1:
        """The context of a part; the program's ends when the communicator is freed, others with the last operation."""
        cdef int context = self._context + part if part else self._own
        if context < 0:
            raise _message_error(MSG_ERR_CONTEXT, "this communicator has been freed")
        return context

    def close_own(self):
        """The program may start nothing any more; what is under way goes on."""
        self._own = -1

    def forget(self):
        """No call is possible on this communicator any more, and nothing of it reaches the next one of its number."""
        if self._context >= 0 and self.world._w != NULL:
            msg_retire(self.world._w, self._context, CONTEXTS)
        self._own = self._context = -65536

    def discard(self, int part, int mask, int tag):
        """Throw away messages that nobody will receive: those with the bits of `tag` where `mask` has ones."""
        self.world._open()
        return msg_discard(self.world._w, self._at(part), mask, tag)

    cdef MsgRequest _new(self, object buffer, bint writable):
        cdef MsgRequest request = _request_type.__new__(_request_type)
        request._comm = self
        PyObject_GetBuffer(buffer, &request._view, PyBUF_ANY_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
        request._pinned = True
        return request

    cpdef MsgRequest start_send(self, object buffer, int dest, int tag=0, int mode=0, int part=0):
        """Start to send a contiguous buffer; `part`: 0 the program's, 1 collectives, 2 bodies of objects."""
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
        """Start to send or to receive what _is_plain has pinned; the request holds it from now on."""
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
        """Start to send a buffer."""
        cdef Py_buffer view
        if _is_plain(buf, &view, 0):
            return self._begin(&view, dest, tag, MSG_STANDARD, False)
        return self._start(buf, dest, tag, MSG_STANDARD)

    def Issend(self, buf, int dest, int tag=0):
        """Start to send; complete when its receive has begun."""
        cdef Py_buffer view
        if _is_plain(buf, &view, 0):
            return self._begin(&view, dest, tag, MSG_SYNCHRONOUS, False)
        return self._start(buf, dest, tag, MSG_SYNCHRONOUS)

    def Irecv(self, buf, int source=MSG_ANY_SOURCE, int tag=MSG_ANY_TAG):
        """Start to receive into a buffer."""
        cdef Py_buffer view
        if _is_plain(buf, &view, PyBUF_WRITABLE):
            return self._begin(&view, source, tag, MSG_STANDARD, True)
        return self._await(buf, source, tag)

    cdef int _send_fast(self, Py_buffer *view, int dest, int tag, int mode) except -1:
        cdef int code, target, context
        cdef msg_world *w
        try:
            target, context = self._target(dest, False), self._at(0)
            self.world._open()
            w = self.world._w
            self.world._n_calls += 1
            with nogil:
                code = msg_send(w, context, view.buf, view.len, target, tag, <msg_mode>mode)
            self.world._n_calls -= 1
            self.world._left()
            self.world._check(code)
        finally:
            PyBuffer_Release(view)
        return 0

    def Send(self, buf, int dest, int tag=0):
        """Send a buffer; returns when it may be used again."""
        cdef Py_buffer view
        if self.world.n_active == 0 and _is_plain(buf, &view, 0):
            self._send_fast(&view, dest, tag, MSG_STANDARD)
        else:
            self._send_any(buf, dest, tag, MSG_STANDARD)

    def Ssend(self, buf, int dest, int tag=0):
        """Send a buffer; returns when its receive has begun."""
        cdef Py_buffer view
        if self.world.n_active == 0 and _is_plain(buf, &view, 0):
            self._send_fast(&view, dest, tag, MSG_SYNCHRONOUS)
        else:
            self._send_any(buf, dest, tag, MSG_SYNCHRONOUS)

    def Recv(self, buf, int source=MSG_ANY_SOURCE, int tag=MSG_ANY_TAG, MsgStatus status=None):
        """Receive a message into a buffer."""
        cdef Py_buffer view
        cdef msg_status result
        cdef int code, target, context
        cdef msg_world *w
        if self.world.n_active or not _is_plain(buf, &view, PyBUF_WRITABLE):
            self._recv_any(buf, source, tag, status)
            return
        try:
            target, context = self._target(source, True), self._at(0)
            self.world._open()
            w = self.world._w
            self.world._n_calls += 1
            with nogil:
                code = msg_recv(w, context, view.buf, view.len, target, tag, &result)
            self.world._n_calls -= 1
            self.world._left()
            self.world._check(code)
        finally:
            PyBuffer_Release(&view)
        if status is not None:
            status.source = self._back(result.source) if result.source >= 0 else result.source
            status.tag, status.error, status.nbytes = result.tag, result.error, result.len
            status.was_cancelled = False

    def look(self, int source, int tag, MsgStatus status, timeout_s, int part=0):
        """Is there such a message? Waits at most `timeout_s` seconds (None: no limit) for one; fills in `status`."""
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
            status.source = self._back(result.source) if result.source >= 0 else result.source
            status.tag, status.error, status.nbytes = result.tag, result.error, result.len
            status.was_cancelled = False
        return True

    def take(self, int source, int tag, timeout_s, message_type):
        """As look, and take the message out of the queue: a `message_type`, or None."""
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
