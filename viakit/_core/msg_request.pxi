# Requests, and the statuses and messages that they and probes give.
#
# A request holds its buffer (Py_buffer) until the engine has done with it. A request that is dropped while it is active
# hands both to its world, which keeps them until the operation has ended.

cdef enum:
    SLICE_MS = 1           # how long a wait lasts at a time while other schedules of this process want to go on


cdef class MsgStatus:
    """What is known of a message that was received or found: `source`, `tag`, `error` and its bytes, `nbytes`."""

    cdef public int source, tag, error
    cdef public Py_ssize_t nbytes
    cdef public bint was_cancelled

    def __cinit__(self, *args):
        self.source, self.tag = MSG_ANY_SOURCE, MSG_ANY_TAG


@cython.no_gc_clear  # __del__ hands the buffer on to the world: it is not to be let go of here
cdef class MsgRequest:
    """One operation under way; its buffer stays pinned until it has ended."""

    cdef msg_request *_r
    cdef MsgComm _comm
    cdef Py_buffer _view
    cdef bint _pinned
    cdef readonly bint ended       # complete, and taken note of
    cdef msg_status _status
    cdef public object after       # called with this request once, when it has ended well: unpacks what was received

    def __dealloc__(self):
        if self._pinned:
            PyBuffer_Release(&self._view)

    def __del__(self):
        if self._r != NULL:
            self._give_up()

    cdef int _give_up(self) except -1:
        """Leave the operation, and the buffer, to the world."""
        cdef MsgRequest orphan = MsgRequest.__new__(MsgRequest)
        if self._comm.world._w == NULL:
            self._r = NULL
            return 0
        orphan._comm = self._comm
        orphan._r, self._r = self._r, NULL
        orphan._view = self._view
        memset(&self._view, 0, sizeof(self._view))  # its one reference is the orphan's now
        orphan._pinned, self._pinned = self._pinned, False
        orphan.after, self.after = self.after, None
        self.ended = True
        self._comm.world._adopt(orphan)
        return 0

    cdef bint _look(self) noexcept:
        """Whether an orphan has ended."""
        if self._r == NULL or self._comm.world._w == NULL:
            self._r = NULL
            return True
        if not msg_request_peek(self._comm.world._w, self._r, NULL):
            return False
        msg_test(self._comm.world._w, &self._r, &self._status)
        return True

    cdef int _end(self) except -1:
        """The engine has freed its request: let go of the buffer, raise what went wrong.

        A signal may come before this, or within `after`: then the next wait or test finds no request of the engine's,
        and ends it.
        """
        if self._pinned:
            self._pinned = False
            PyBuffer_Release(&self._view)
            if self._status.source >= 0:
                self._status.source = self._comm._back(self._status.source)
        if self.after is not None and not self._status.error and not self._status.cancelled:
            try:
                self.after(self)
            except Exception:
                self.after = None
                self.ended = True
                raise
        self.after = None
        self.ended = True
        if self._status.error:
            self._comm.world._check(self._status.error)
        return 0

    def peek(self, MsgStatus status=None):
        """Whether it is complete, without progress; then `status` gets what is known of its message."""
        cdef msg_status result
        if self._r == NULL:
            return True
        self._comm.world._open()
        if not msg_request_peek(self._comm.world._w, self._r, &result):
            return False
        if status is not None:
            status.source = self._comm._back(result.source) if result.source >= 0 else result.source
            status.tag, status.error, status.nbytes = result.tag, result.error, result.len
            status.was_cancelled = result.cancelled != 0
        return True

    def progress(self):
        """Let messages go on, without waiting."""
        if self._r != NULL:
            self._comm.world._open()
            msg_progress(self._comm.world._w)

    def test_once(self):
        """Make progress; True if it is complete (then it has ended)."""
        cdef int code
        if self._r == NULL:
            if not self.ended:
                self._end()
            return True
        self._comm.world._open()
        code = msg_test(self._comm.world._w, &self._r, &self._status)
        if code == MSG_PENDING:
            if self._comm.world.n_active:
                self._comm.world.step()
            return False
        self._comm.world._check(code)
        self._end()
        return True

    def wait_for(self, timeout_s=None):
        """Wait, at most `timeout_s` seconds (None: as long as it takes); True if it has ended."""
        return self._wait(_message_ms(timeout_s)) != 0

    cdef int _wait(self, int64_t timeout_ms) except -1:
        """1 if it has ended, 0 if time is out."""
        cdef int code
        cdef MsgWorld world
        cdef int64_t began
        if self._r == NULL:
            if not self.ended:
                self._end()
            return 1
        world = self._comm.world
        world._open()
        if msg_request_peek(world._w, self._r, NULL):  # then nothing is waited for, and no thread need be let in
            code = msg_test(world._w, &self._r, &self._status)
        elif world.n_active:
            began = _now_ns()
            while True:
                world.step()
                world._open()
                world._n_calls += 1
                with nogil:
                    code = msg_wait(world._w, &self._r, &self._status, SLICE_MS if timeout_ms else 0)
                world._n_calls -= 1
                world._left()
                if code != MSG_TIMEOUT or 0 <= timeout_ms <= (_now_ns() - began) // 1000000:
                    break
        else:
            world._n_calls += 1
            with nogil:
                code = msg_wait(world._w, &self._r, &self._status, timeout_ms)
            world._n_calls -= 1
            world._left()
        if code == MSG_TIMEOUT:
            _raise_signal()
            return 0
        world._check(code)
        self._end()
        return 1

    def Wait(self, MsgStatus status=None):
        """Wait until the operation is complete; always True."""
        if type(self) is not _request_type:  # a schedule, or a persistent one
            return self._wait_any(status)
        if self.ended:
            if status is not None:
                _of_nothing(status)
            return True
        self._wait(MSG_FOREVER)
        if status is not None:
            self.fill(status)
        return True

    def Test(self, MsgStatus status=None):
        """Whether the operation is complete."""
        if type(self) is not _request_type:
            return self._test_any(status)
        if self.ended:
            if status is not None:
                _of_nothing(status)
            return True
        if not self.test_once():
            return False
        if status is not None:
            self.fill(status)
        return True

    def withdraw(self):
        """Ask for the operation to be cancelled; it still has to be waited for."""
        if self._r != NULL:
            self._comm.world._open()
            self._comm.world._check(msg_cancel(self._comm.world._w, self._r))

    def release(self):
        """Forget the operation; it goes on until it ends."""
        if self._r != NULL:
            self._give_up()
        self.ended = True

    def fill(self, MsgStatus status):
        """Write what is known of the message that it received, or of nothing, into `status`."""
        status.source, status.tag = self._status.source, self._status.tag
        status.error, status.nbytes = self._status.error, self._status.len
        status.was_cancelled = self._status.cancelled != 0

    @property
    def nbytes(self):
        """Bytes of the message received, once it has ended."""
        return self._status.len


cdef int _of_nothing(MsgStatus status) except -1:
    """What a wait for a request that is not active says."""
    status.source, status.tag, status.error = MSG_ANY_SOURCE, MSG_ANY_TAG, 0
    status.nbytes, status.was_cancelled = 0, False
    return 0


cdef class MsgMessage:
    """A message taken out of the queue by a matching probe."""

    cdef msg_message *_m
    cdef readonly MsgComm comm
    cdef readonly int source, tag
    cdef readonly Py_ssize_t nbytes

    def receive(self, buffer, request_type=None):
        """Start to receive it into a contiguous buffer; returns the request."""
        cdef MsgRequest request
        if self._m == NULL:
            raise _message_error(MSG_ERR_ARG, "this message has been received already")
        self.comm.world._open()
        request = self.comm._new(buffer, True)
        self.comm.world._check(msg_imrecv(self.comm.world._w, &self._m, request._view.buf, request._view.len,
                                          &request._r))
        return request

    def __bool__(self):
        return self._m != NULL
