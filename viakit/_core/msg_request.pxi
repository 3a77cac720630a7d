# Requests, and the statuses and messages that requests and probes return.
#
# A request holds its buffer (Py_buffer) until the engine has finished with it. If the program drops an active request,
# an orphan takes over the operation and the buffer. The world keeps the orphan until the operation has ended.

cdef enum:
    SLICE_MS = 1           # length of one wait while other schedules of this process need progress


cdef class MsgStatus:
    """Properties of a received or probed message: `source`, `tag`, `error`, and its length in bytes, `nbytes`."""

    cdef public int source, tag, error
    cdef public Py_ssize_t nbytes
    cdef public bint was_cancelled

    def __cinit__(self, *args):
        self.source, self.tag = MSG_ANY_SOURCE, MSG_ANY_TAG

    def __getbuffer__(self, Py_buffer *view, int flags):
        # Source, tag and error are the first fields, one after the other.
        PyBuffer_FillInfo(view, self, &self.source, 3 * sizeof(int), 0, flags)


@cython.no_gc_clear  # __del__ transfers the buffer to the world, so the collector must not clear it before.
cdef class MsgRequest:
    """One pending operation. Its buffer stays pinned until the operation has ended."""

    cdef msg_request *_r
    cdef MsgComm _comm
    cdef Py_buffer _view
    cdef bint _pinned
    cdef readonly bint ended       # The operation is complete, and the program has been notified.
    cdef msg_status _status
    cdef public object after       # Called once with this request after it succeeded; unpacks the received data.
    cdef public str collective     # In a receive of a collective: its name, None in other operations. Then also ...
    cdef public int awaited        # ... the rank that sends, and ...
    cdef public Py_ssize_t exact   # ... the length in bytes that the message must have.

    def __dealloc__(self):
        if self._pinned:
            PyBuffer_Release(&self._view)

    def __del__(self):
        if self._r != NULL:
            self._give_up()

    cdef int _give_up(self) except -1:
        """Transfer the operation and the buffer to the world."""
        cdef MsgRequest orphan = MsgRequest.__new__(MsgRequest)
        if self._comm.world._w == NULL or self._comm.world._generation != _generation:
            self._r = NULL  # The request is the parent's; the buffer here is a copy of this process.
            self.ended = True
            return 0
        orphan._comm = self._comm
        orphan._r, self._r = self._r, NULL
        orphan._view = self._view
        memset(&self._view, 0, sizeof(self._view))  # The orphan owns the only reference now.
        orphan._pinned, self._pinned = self._pinned, False
        orphan.after, self.after = self.after, None
        self.ended = True
        self._comm.world._adopt(orphan)
        return 0

    cdef bint _look(self) noexcept:
        """Return whether an orphan has ended."""
        if self._r == NULL or self._comm.world._w == NULL or self._comm.world._generation != _generation:
            self._r = NULL
            return True
        if not msg_request_peek(self._comm.world._w, self._r, NULL):
            return False
        msg_test(self._comm.world._w, &self._r, &self._status)
        return True

    cdef int _end(self) except -1:
        """Release the buffer and raise the operation's error. The engine has freed its request.

        A signal may arrive before this call, or within `after`. The next wait or test then finds no request of the
        engine and completes this step.
        """
        if self._pinned:
            self._pinned = False
            PyBuffer_Release(&self._view)
            if self._status.source >= 0:
                self._status.source = self._comm._back(self._status.source)
        if (self.collective is not None and self.exact != <Py_ssize_t>self._status.len and not self._status.error
                and not self._status.cancelled):
            self.ended = True
            raise _words.wrong_length(self.collective, self.awaited, self._status.len, self.exact)
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
        """Return whether the operation is complete, without making progress; if it is, fill in `status`."""
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
        """Make progress without waiting: of this operation, and of the other ones of this process."""
        if self._r != NULL:
            self._comm.world._open()
            msg_progress(self._comm.world._w)
            if self._comm.world.n_active:
                self._comm.world.step()

    def test_once(self):
        """Make progress and return whether the operation is complete. If it is, the request has ended."""
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
        """Wait at most `timeout_s` seconds (None: no limit); return whether the operation has ended."""
        return self._wait(_message_ms(timeout_s)) != 0

    cdef int _wait(self, int64_t timeout_ms) except -1:
        """Return 1 if the operation has ended, 0 if the time is over."""
        cdef int code
        cdef MsgWorld world
        cdef int64_t began
        if self._r == NULL:
            if not self.ended:
                self._end()
            return 1
        world = self._comm.world
        world._open()
        if msg_request_peek(world._w, self._r, NULL):  # Complete: there is no wait, so the GIL can be kept.
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
            return self._wait_alone(timeout_ms)
        if code == MSG_TIMEOUT:
            _raise_signal()
            return 0
        world._check(code)
        self._end()
        return 1

    cdef int _wait_alone(self, int64_t timeout_ms) except -1:
        """Wait in the engine, without progress of other operations of this process. The operation is under way.

        The GIL is kept while a message in a short buffer is polled for some microseconds.
        """
        cdef MsgWorld world = self._comm.world
        cdef int code = MSG_PENDING
        if timeout_ms != 0 and self._view.len < LONG_MESSAGE:
            code = msg_wait_soon(world._w, &self._r, &self._status)
        if code == MSG_PENDING:
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
        """Wait until the operation completes.

        Parameters
        ----------
        status : Status, optional
            Filled with the properties of the message.

        Returns
        -------
        bool
            Always True.
        """
        if type(self) is not _request_type:  # a schedule or a persistent request
            return self._wait_any(status)
        if self.ended:
            if status is not None:
                _fill_inactive(status)
            return True
        self._wait(MSG_FOREVER)
        if status is not None:
            self.fill(status)
        return True

    def Test(self, MsgStatus status=None):
        """Test whether the operation is complete. If it is, the request is released.

        Parameters
        ----------
        status : Status, optional
            Filled with the properties of the message once it is complete.
        """
        if type(self) is not _request_type:
            return self._test_any(status)
        if self.ended:
            if status is not None:
                _fill_inactive(status)
            return True
        if not self.test_once():
            return False
        if status is not None:
            self.fill(status)
        return True

    def withdraw(self):
        """Request cancellation of the operation. The request must still be waited for."""
        if self._r != NULL:
            self._comm.world._open()
            self._comm.world._check(msg_cancel(self._comm.world._w, self._r))

    def release(self):
        """Release the handle. The operation continues until it completes."""
        if self._r != NULL:
            self._give_up()
        self.ended = True

    def fill(self, MsgStatus status):
        """Write the properties of the received message to `status`."""
        status.source, status.tag = self._status.source, self._status.tag
        status.error, status.nbytes = self._status.error, self._status.len
        status.was_cancelled = self._status.cancelled != 0

    @property
    def nbytes(self):
        """Length of the received message in bytes, once the operation has ended."""
        return self._status.len


cdef int _fill_inactive(MsgStatus status) except -1:
    """Fill `status` with the values that MPI defines for an inactive request."""
    status.source, status.tag, status.error = MSG_ANY_SOURCE, MSG_ANY_TAG, 0
    status.nbytes, status.was_cancelled = 0, False
    return 0


cdef class MsgMessage:
    """Message that a matching probe has removed from the queue."""

    cdef msg_message *_m
    cdef readonly MsgComm comm
    cdef readonly int source, tag
    cdef readonly Py_ssize_t nbytes

    def receive(self, buffer, request_type=None):
        """Start to receive the message into a contiguous buffer; return the request."""
        cdef MsgRequest request
        if self._m == NULL:
            raise _message_error(MSG_ERR_ARG, "this message has been received already; probe for the next one")
        self.comm.world._open()
        request = self.comm._new(buffer, True)
        self.comm.world._check(msg_imrecv(self.comm.world._w, &self._m, request._view.buf, request._view.len,
                                          &request._r))
        return request

    def __bool__(self):
        return self._m != NULL
