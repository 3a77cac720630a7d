# The message engine (csrc/msg) as viakit.comm needs it: worlds, one rank's end of a communicator, requests, messages.
#
# Here is only what has to be fast or has to hold memory; MPI's names for the rest are in viakit/_comm. A communicator
# has five contexts of the engine, so that what travels for it never matches what the program sends: the program's own
# messages, collectives, the long parts of pickled objects, what makes new communicators, and csrc/coll (group.pxi).
#
# A request holds its buffer (Py_buffer) until the engine has done with it. A request that is dropped while it is active
# hands both to its world, which keeps them until the operation has ended.

from cpython.list cimport PyList_Check
from cpython.tuple cimport PyTuple_Check

from cmsg cimport *

cdef enum:
    CONTEXTS = 5           # of the engine, for each communicator
    SLICE_MS = 1           # how long a wait lasts at a time while other schedules of this process want to go on
    ENDS_BY_ABORT = 1
    ENDS_BY_CLOSE = 2
    ORPHANS = 64           # requests dropped by the program, before their world looks which have ended

cdef object _message_error = None      # (code, text) -> exception
cdef object _request_type = None       # what Isend and Irecv return: a subclass of MsgRequest


def set_message_types(error, request_type):
    """Tell which exception and which class of requests to make; called once, by :mod:`viakit._comm`."""
    global _message_error, _request_type
    _message_error = error
    _request_type = request_type


def message_calibration_path(str link):
    """Where the message engine looks for the calibration of a link: "shm", "eth", "udp", "tcp"."""
    cdef char path[4096]
    cdef bytes name = link.encode()
    if msg_calibration_path(name, path, sizeof(path)) != 0:
        raise FileNotFoundError(2, "there is no home directory for calibrations: set XDG_CACHE_HOME or HOME", link)
    return path.decode("utf-8", "surrogateescape")


cdef int _message_interrupted(void *context) noexcept nogil:
    cdef int answer
    with gil:
        answer = (<MsgWorld>context)._ending != 0 or _look_for_signals()
    return answer


cdef int _exchange_blobs(void *context, const void *mine, size_t length, void *everybody) noexcept nogil:
    with gil:
        return (<MsgWorld>context)._exchange(mine, length, everybody)


cdef class MsgStatus:
    """What is known of a message that was received or found: `source`, `tag`, `error` and its bytes, `nbytes`."""

    cdef public int source, tag, error
    cdef public Py_ssize_t nbytes
    cdef public bint was_cancelled

    def __cinit__(self, *args):
        self.source, self.tag = MSG_ANY_SOURCE, MSG_ANY_TAG


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
                 address=None, double timeout_s=60.0):
        cdef msg_options options
        cdef msg_policy chosen
        cdef const msg_policy *found
        cdef char error[MSG_ERROR_LEN]
        cdef int code
        cdef str base
        memset(&options, 0, sizeof(options))
        error[0] = 0
        base, _, changes = policy.partition(",")
        found = msg_policy_find(base.encode())
        if found == NULL:
            raise _message_error(MSG_ERR_ARG, f"there is no policy {base!r}; 'via' and 'tcp' are two that there are")
        chosen = found[0]
        if changes and msg_policy_parse(&chosen, changes.encode(), error) != 0:
            raise _message_error(MSG_ERR_ARG, _text(error))
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
        options.open_timeout_ms = <int64_t>(timeout_s * 1000)
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
        cdef msg_world *w = self._w
        if w != NULL:
            self._clear()
            w = self._w
        cdef int64_t timeout_ms = MSG_FOREVER if timeout_s is None else <int64_t>(<double>timeout_s * 1000)
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

    def idle(self, double timeout_s):
        """Wait until something has happened, at most `timeout_s` seconds. Ctrl-C ends it."""
        cdef int64_t timeout_ms = <int64_t>(timeout_s * 1000)
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

    def wait_for(self, double timeout_s=-1):
        """Wait, at most `timeout_s` seconds (below 0: for ever); True if it has ended."""
        return self._wait(MSG_FOREVER if timeout_s < 0 else <int64_t>(timeout_s * 1000)) != 0

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

    def look(self, int source, int tag, MsgStatus status, double timeout_s, int part=0):
        """Is there such a message? Waits at most `timeout_s` seconds for one; fills in `status`."""
        cdef msg_status result
        cdef int code, target = self._target(source, True), context = self._at(part)
        cdef int64_t timeout_ms = MSG_FOREVER if timeout_s < 0 else <int64_t>(timeout_s * 1000)
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

    def take(self, int source, int tag, double timeout_s, message_type):
        """As look, and take the message out of the queue: a `message_type`, or None."""
        cdef msg_status result
        cdef MsgMessage message = message_type.__new__(message_type)
        cdef int code, target = self._target(source, True), context = self._at(0)
        cdef int64_t timeout_ms = MSG_FOREVER if timeout_s < 0 else <int64_t>(timeout_s * 1000)
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
