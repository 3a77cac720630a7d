# Binding of one-sided communication (csrc/rma) for viakit.comm.
#
# A service is a world that serves windows, with a progress thread. A window pins its memory, and each pending operation
# pins its buffers until it has ended. viakit/comm/win.py has MPI's names, epochs and datatypes.

from posix.mman cimport munmap

from crma cimport *


cdef class RmaMemory:
    """Zeroed memory, writable, with the buffer protocol: of a service, or shared by the ranks of a host.

    It is released when it is closed and no view of it is left.
    """

    cdef void *_base
    cdef readonly Py_ssize_t nbytes
    cdef MsgWorld _world           # owns memory that peers can map; None: a mapping of its own
    cdef Py_ssize_t _mapped        # bytes of the mapping

    def __dealloc__(self):
        if self._base == NULL:
            return
        if self._world is None:
            munmap(self._base, self._mapped)
        elif self._world._w != NULL and self._world._generation == _generation:
            msg_free(self._world._w, self._base)

    @staticmethod
    def allocate(MsgWorld world, Py_ssize_t nbytes):
        """Allocate memory that ranks of the host can write to directly."""
        cdef RmaMemory made = RmaMemory.__new__(RmaMemory)
        world._open()
        world._check(msg_alloc(world._w, nbytes, &made._base))
        memset(made._base, 0, nbytes)
        made._world, made.nbytes = world, nbytes
        return made

    @staticmethod
    def offer(Py_ssize_t nbytes):
        """Create memory for other processes of this host. Return (descriptor, magic), or None if it cannot."""
        cdef uint64_t magic[2]
        cdef int fd = coll_offer_make(nbytes, magic)
        return None if fd < 0 else (fd, (magic[0], magic[1]))

    @staticmethod
    def map(int pid, int fd, Py_ssize_t nbytes, numbers):
        """Map memory that a process offers. Return None if this process may not open it."""
        cdef RmaMemory made = RmaMemory.__new__(RmaMemory)
        cdef uint64_t[2] magic = [numbers[0], numbers[1]]
        if coll_offer_map(pid, fd, nbytes, magic, &made._base) != 0 or made._base == NULL:
            return None
        made._mapped = made.nbytes = nbytes
        return made

    @property
    def address(self):
        """Address of the first byte."""
        return <uintptr_t>self._base

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self._base, self.nbytes, 0, flags)

    def __releasebuffer__(self, Py_buffer *view):
        pass


cdef class RmaService:
    """The windows of a world."""

    cdef rma *_r
    cdef readonly MsgWorld world

    def __init__(self, MsgWorld world):
        world._open()
        self.world = world
        world._check(rma_start(world._w, &self._r))

    def close(self, timeout_s=None):
        """Close the world. All windows must be closed. Waits for the other ranks, at most `timeout_s` seconds."""
        if self.world._w != NULL and self.world._generation == _generation:
            rma_stop(self._r)
            self._r = NULL
        self.world.close(timeout_s)

    def abort(self):
        """Close the world without notice to the other ranks."""
        if self.world._w != NULL and self.world._generation == _generation:
            rma_stop(self._r)
            self._r = NULL
        self.world.abort()

    def number_is_free(self, uint32_t number):
        """Return whether no window of this rank has the number."""
        self.world._open()
        return bool(rma_number_is_free(self._r, number))


cdef class RmaOp:
    """A pending operation, which pins its buffers."""

    cdef rma_op *_op
    cdef RmaWindow _window
    cdef readonly int target
    cdef readonly bint ended
    cdef public object after       # called once when it has ended: unpacks the data
    cdef object _buffers

    cdef int _end(self, int code) except -1:
        cdef MsgWorld world = self._window.service.world
        self._op = NULL
        self.ended = True
        after, self.after, self._buffers = self.after, None, None
        world._check(code)
        if after is not None:
            after()
        return 0

    def test(self):
        """Return whether the operation has ended."""
        cdef int code
        if self.ended:
            return True
        if self._op == NULL:
            self._end(0)
            return True
        self._window.service.world._open()
        code = rma_op_test(self._op)
        if code == MSG_PENDING:
            return False
        self._end(code)
        return True

    def wait(self):
        """Wait until the operation has ended."""
        cdef int code
        cdef MsgWorld world = self._window.service.world
        if self.ended:
            return
        if self._op == NULL:
            self._end(0)
            return
        world._open()
        world._n_calls += 1
        with nogil:
            code = rma_op_wait(self._op)
        world._n_calls -= 1
        if code == MSG_INTERRUPTED:
            world._left()
            world._check(code)
        self._op = NULL
        world._left()
        self._end(code)


cdef class RmaWindow:
    """This rank's end of a window. Ranks are those of the service's world, offsets are in bytes."""

    cdef rma_window *_win
    cdef readonly RmaService service
    cdef readonly bytes card        # description of this rank's part, for the other ranks
    cdef object _memory
    cdef Py_buffer _view
    cdef bint _pinned
    cdef readonly list pending      # operations that a flush must end

    def __init__(self, RmaService service, uint32_t number, memory=None, Py_ssize_t start=0, Py_ssize_t nbytes=0,
                 bint dynamic=False):
        cdef rma_card card
        cdef char *base = NULL
        service.world._open()
        self.service = service
        self.pending = []
        if memory is not None and nbytes:
            PyObject_GetBuffer(memory, &self._view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
            self._pinned = True
            if start < 0 or start + nbytes > self._view.len:
                raise ValueError(f"{nbytes} bytes at {start} do not fit into a buffer of {self._view.len} bytes")
            base = <char *>self._view.buf + start
        service.world._check(rma_window_open(service._r, number, base, nbytes, dynamic, &card, &self._win))
        self.card = (<char *>&card)[:sizeof(card)]

    def __dealloc__(self):
        self._finish()

    cdef int _finish(self) noexcept:
        if self._win != NULL and self.service._r != NULL and self.service.world._generation == _generation:
            with nogil:
                rma_window_close(self._win)
        self._win = NULL
        if self._pinned:
            self._pinned = False
            PyBuffer_Release(&self._view)
        return 0

    @cython.final
    cdef inline int _open(self) except -1:
        if self._win == NULL:
            raise _message_error(MSG_ERR_STATE, "this window has been freed")
        return self.service.world._open()

    def join(self, list cards):
        """Make the window usable, with the cards of all ranks."""
        cdef bytes together = b"".join(cards)
        self._open()
        if len(together) != sizeof(rma_card) * self.service.world.size:
            raise ValueError("the ranks have described their windows differently: different versions?")
        self.service.world._check(rma_window_join(self._win, <const rma_card *><char *>together))

    def map_rank(self, int rank, RmaMemory memory, Py_ssize_t start):
        """Use a mapping of the rank's part: puts and gets are copies. The caller keeps the memory."""
        self._open()
        rma_window_map(self._win, rank, <char *>memory._base + start)

    def close(self):
        """Release the window. No rank may have an operation on it."""
        for op in self.pending:
            (<RmaOp>op)._op = NULL
            (<RmaOp>op).ended = True
        self.pending.clear()
        self._finish()

    @property
    def closed(self):
        """Whether the window has been closed."""
        return self._win == NULL

    def attach(self, uintptr_t address, Py_ssize_t nbytes):
        """Add memory to a dynamic window. The caller keeps it alive."""
        self._open()
        self.service.world._check(rma_attach(self._win, <void *>address, nbytes))

    def detach(self, uintptr_t address):
        """Remove memory from a dynamic window."""
        self._open()
        self.service.world._check(rma_detach(self._win, <void *>address))

    cdef int _done(self, int code) except -1:
        self.service.world._n_calls -= 1
        self.service.world._left()
        return self.service.world._check(code)

    cdef RmaOp _pend(self, rma_op *op, int target, object buffers):
        cdef RmaOp made
        if op == NULL:
            return None
        made = RmaOp.__new__(RmaOp)
        made._op, made._window, made.target, made._buffers = op, self, target, buffers
        self.pending.append(made)
        return made

    def put(self, buffer, Py_ssize_t start, Py_ssize_t nbytes, int target, uint64_t offset):
        """Write bytes of a contiguous buffer. Return the pending operation; None if the buffer may be reused.

        With `nbytes` -1 the whole buffer is written.
        """
        cdef Py_buffer view
        cdef rma_op *op = NULL
        cdef int code
        cdef char *base
        self._open()
        PyObject_GetBuffer(buffer, &view, PyBUF_ANY_CONTIGUOUS)
        base = <char *>view.buf + start
        if nbytes < 0:
            nbytes = view.len
        if start < 0 or start + nbytes > view.len:
            PyBuffer_Release(&view)
            raise ValueError(f"{nbytes} bytes at {start} do not fit into a buffer of {len(buffer)} bytes")
        self.service.world._n_calls += 1
        with nogil:
            code = rma_put(self._win, base, nbytes, target, offset, &op)
        PyBuffer_Release(&view)
        self._done(code)
        return None if op == NULL else self._pend(op, target, memoryview(buffer))

    def get(self, buffer, Py_ssize_t start, Py_ssize_t nbytes, int target, uint64_t offset):
        """Read bytes into a contiguous buffer. Return the pending operation; None if the data has arrived."""
        cdef Py_buffer view
        cdef rma_op *op = NULL
        cdef int code
        cdef char *base
        self._open()
        PyObject_GetBuffer(buffer, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE)
        base = <char *>view.buf + start
        if nbytes < 0:
            nbytes = view.len
        if start < 0 or start + nbytes > view.len:
            PyBuffer_Release(&view)
            raise ValueError(f"{nbytes} bytes at {start} do not fit into a buffer of {len(buffer)} bytes")
        self.service.world._n_calls += 1
        with nogil:
            code = rma_get(self._win, base, nbytes, target, offset, &op)
        PyBuffer_Release(&view)
        self._done(code)
        return None if op == NULL else self._pend(op, target, memoryview(buffer))

    def accumulate(self, buffer, result, Py_ssize_t count, int kind, int combine, int target, uint64_t offset):
        """Combine elements with the target's. `buffer` and `result` are packed bytes, or None."""
        cdef const unsigned char[::1] source = None
        cdef unsigned char[::1] back = None
        cdef rma_op *op = NULL
        cdef int code
        cdef const void *data = NULL
        cdef void *to = NULL
        cdef Py_ssize_t nbytes = count * <Py_ssize_t>rma_type_size(kind)
        self._open()
        if buffer is not None and nbytes:
            source = buffer
            data = &source[0]
        if result is not None and nbytes:
            back = result
            to = &back[0]
        if (data != NULL and source.shape[0] < nbytes) or (to != NULL and back.shape[0] < nbytes):
            raise ValueError(f"{count} elements do not fit into the buffers")
        self.service.world._n_calls += 1
        with nogil:
            code = rma_accumulate(self._win, data, to, count, kind, combine, target, offset, &op)
        self._done(code)
        return self._pend(op, target, (buffer, memoryview(result) if result is not None else None))

    def compare_and_swap(self, desired, expected, result, int target, uint64_t offset):
        """Store `desired` if the target has `expected`; `result` receives the target's bytes. Packed bytes."""
        cdef const unsigned char[::1] new = desired, old = expected
        cdef unsigned char[::1] back = result
        cdef rma_op *op = NULL
        cdef int code
        cdef size_t size = new.shape[0]
        self._open()
        if old.shape[0] != new.shape[0] or back.shape[0] != new.shape[0] or size == 0:
            raise ValueError("the three elements of compare and swap must have the same size")
        self.service.world._n_calls += 1
        with nogil:
            code = rma_compare_and_swap(self._win, &new[0], &old[0], &back[0], size, target, offset, &op)
        self._done(code)
        return self._pend(op, target, memoryview(result))

    def flush(self, int target):
        """Wait until all operations to the target are complete; -1: to every rank."""
        cdef int code
        self._open()
        self.service.world._n_calls += 1
        with nogil:
            code = rma_flush(self._win, target)
        self.service.world._n_calls -= 1
        if code == MSG_INTERRUPTED:
            self.service.world._left()
            self.service.world._check(code)
        for op in [op for op in self.pending if target < 0 or (<RmaOp>op).target == target]:
            self.pending.remove(op)
            if code == 0:
                op.wait()
            else:
                try:
                    op.wait()
                except Exception:
                    pass            # the flush reports the first of the errors
        self.service.world._left()
        self.service.world._check(code)

    def is_quiet(self, int target):
        """Return whether nothing to the target (-1: to any rank) is outstanding."""
        self._open()
        return bool(rma_is_quiet(self._win, target))

    def lock(self, int target, bint exclusive):
        """Wait for the lock of the target's part."""
        cdef int code
        self._open()
        self.service.world._n_calls += 1
        with nogil:
            code = rma_lock(self._win, target, exclusive)
        self._done(code)

    def unlock(self, int target):
        """Release the lock of the target's part."""
        self._open()
        self.service.world._check(rma_unlock(self._win, target))

    cdef int _among(self, ranks, int what) except -1:
        """Call a function on a list of ranks. Return its code."""
        cdef int n = len(ranks), i, code
        cdef int *numbers
        self._open()
        numbers = <int *>calloc(n + 1, sizeof(int))
        if numbers == NULL:
            raise MemoryError()
        for i in range(n):
            numbers[i] = ranks[i]
        self.service.world._n_calls += 1
        with nogil:
            if what == 0:
                code = rma_post(self._win, numbers, n)
            elif what == 1:
                code = rma_await_post(self._win, numbers, n)
            elif what == 2:
                code = rma_complete(self._win, numbers, n)
            else:
                code = rma_await_complete(self._win, numbers, n, what == 4)
        free(numbers)
        self.service.world._n_calls -= 1
        self.service.world._left()
        if code != MSG_PENDING:
            self.service.world._check(code)
        return code

    def post(self, ranks):
        """Notify ranks that they may access this rank's part."""
        self._among(ranks, 0)

    def await_post(self, ranks):
        """Wait for the ranks' posts."""
        self._among(ranks, 1)

    def complete(self, ranks):
        """Notify ranks that this rank's access to their parts is over."""
        self._among(ranks, 2)

    def await_complete(self, ranks, bint poll=False):
        """Wait for the ranks' notices of completion, or return whether all have arrived."""
        return self._among(ranks, 4 if poll else 3) == 0


def rma_combines_elements(int kind, int combine):
    """Return whether csrc/rma can combine elements of this type by this operation."""
    return bool(rma_combines(kind, combine))
