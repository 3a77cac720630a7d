# Collectives of a communicator in csrc/coll: barriers, and operations on buffers of equal length, through the shared
# memory of a host and by RDMA write. Messages (planned.pxi, or viakit/comm/collective.py) do the rest:
#
# - operations that csrc/coll does not have,
# - all operations on other channels,
# - all operations on a communicator whose group was broken by anything but the death of a rank.
#
# All ranks must make the same choice. So it depends only on the channel, the number of ranks, the operation and the
# basic datatype, never on the layout of one rank's buffer.

cdef enum:
    COLL_NO_TYPE = -1
    LARGEST_NUMBER = 16     # bytes

cdef enum Planned:      # collectives that have a plan (planned.pxi, nonblocking.pxi)
    GATHERV, SCATTERV, ALLGATHERV, ALLTOALLV, ALLTOALLW, REDUCE_SCATTER_BLOCK, REDUCE_SCATTER, SCAN, EXSCAN
    BARRIER, BCAST, GATHER, SCATTER, ALLGATHER, ALLTOALL, REDUCE, ALLREDUCE

_PLANNED = ("gatherv", "scatterv", "allgatherv", "alltoallv", "alltoallw", "reduce_scatter_block", "reduce_scatter",
            "scan", "exscan", "barrier", "bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce")

COLL_OPS = {"MPI_SUM": 0, "MPI_PROD": 1, "MPI_MAX": 2, "MPI_MIN": 3, "MPI_LAND": 4, "MPI_LOR": 5, "MPI_LXOR": 6,
            "MPI_BAND": 7, "MPI_BOR": 8, "MPI_BXOR": 9}
_COLL_KINDS = {("i", 1): 0, ("u", 1): 1, ("i", 2): 2, ("u", 2): 3, ("i", 4): 4, ("u", 4): 5, ("i", 8): 6, ("u", 8): 7,
               ("f", 4): 8, ("f", 8): 9, ("c", 8): 10, ("c", 16): 11}
# Operations on floating-point numbers are the first four, on complex ones the first two (combine.c).
_COLL_OPS_OF_KIND = {"i": 10, "u": 10, "f": 4, "c": 2}


cdef inline int _type_of(Py_buffer *view) noexcept nogil:
    """Return the number in csrc/coll of a plain buffer's element type, or COLL_NO_TYPE."""
    cdef char c
    cdef int size = <int>view.itemsize
    if view.format == NULL:
        return 1
    c = view.format[0]
    if c == c'd' and size == 8:
        return 9
    if c == c'f' and size == 4:
        return 8
    if c == c'l' or c == c'i' or c == c'q' or c == c'h' or c == c'b':
        return 6 if size == 8 else 4 if size == 4 else 2 if size == 2 else 0
    if c == c'L' or c == c'I' or c == c'Q' or c == c'H' or c == c'B':
        return 7 if size == 8 else 5 if size == 4 else 3 if size == 2 else 1
    return COLL_NO_TYPE


cdef Py_ssize_t *_kind_sizes = [1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 8, 16]    # bytes of each type in csrc/coll


cdef inline int _element_kind(object buf, Py_buffer *view) except -2:
    """Return the number in csrc/coll of the element type of a pinned argument, or COLL_NO_TYPE."""
    if PyList_CheckExact(buf) or PyTuple_CheckExact(buf):
        named = _type_of_item(buf[len(buf) - 1])
        if named is not None:
            return (<MsgType>named).kind
    return _type_of(view)


cdef inline bint _is_in_place(object sendbuf) noexcept:
    """Return whether the operand is in the result's buffer. As in mpi4py, None means the same as IN_PLACE."""
    return sendbuf is None or sendbuf is _in_place


cdef extern from "Python.h" nogil:
    ctypedef struct PyThreadState
    PyThreadState *PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState *state)


cdef void _save_thread(void *state) noexcept nogil:
    (<PyThreadState **>state)[0] = PyEval_SaveThread()


cdef inline void _before_short(coll *c, PyThreadState **state) noexcept nogil:
    """Begin a collective of little data. It releases the GIL before it waits longer than some microseconds."""
    state[0] = NULL
    if not coll_set_release(c, _save_thread, state):
        state[0] = PyEval_SaveThread()


cdef inline void _after_short(coll *c, PyThreadState *state) noexcept nogil:
    """Get the GIL back if it was released."""
    coll_set_release(c, NULL, NULL)
    if state != NULL:
        PyEval_RestoreThread(state)


cdef inline int _combine(coll *c, const void *out, void *into, size_t count, int kind, int op, int root,
                         bint to_all) noexcept nogil:
    if to_all:
        return coll_allreduce(c, COLL_DEFAULT, out, into, count, kind, op)
    return coll_reduce(c, COLL_DEFAULT, out, into, count, kind, op, root)


cdef inline int _swap(coll *c, const void *out, void *into, size_t each, bint everything) noexcept nogil:
    if everything:
        return coll_alltoall(c, COLL_DEFAULT, out, into, each)
    return coll_allgather(c, COLL_DEFAULT, out, into, each)


cdef class MsgOp:
    """Part of a reduction operation in C: its number in csrc/coll, or -1 if csrc/coll lacks it."""

    cdef public int _number

    def __cinit__(self, *args, **options):
        self._number = -1


cdef inline int _number_of(object op) except -2:
    """Return the operation's number in csrc/coll, or -1."""
    if not isinstance(op, MsgOp):
        raise TypeError(f"op must be an Op such as MPI.SUM, got {type(op).__name__}; Op.Create makes one of a function")
    return (<MsgOp>op)._number


cdef class CollectiveComm(GroupComm):
    """Collectives of a communicator that csrc/coll implements."""

    cdef bint _perform(self, Planned call, object sendbuf, object recvbuf, object root, object op,
                       object counts) except -1:
        """Perform a collective by its plan. Return False if the general path must (PlannedComm does)."""
        return False

    def Barrier(self):
        """Wait until all ranks have called the barrier.

        The algorithms are those of csrc/coll/barrier.c.
        """
        cdef long long before = self._s.n_collectives
        cdef PyThreadState *state
        cdef int code
        cdef coll *c
        try:
            c = self._enter()
            if c != NULL:
                _before_short(c, &state)
                code = coll_barrier(c, COLL_BARRIER_DEFAULT)
                _after_short(c, state)
                if code == MSG_SUCCESS or not self._repeat(c, code):
                    self._conclude(code, "barrier", 0)
                    return
            elif self._count_alone():
                return
            if not self._perform(BARRIER, None, None, 0, None, None):
                self._block_barrier()
        except BaseException as problem:
            self._refused(before, problem)
            raise

    cdef int _bcast(self, object buf, int root) except -1:
        """Broadcast by csrc/coll; return 0 if messages must do it."""
        cdef Py_buffer view
        cdef PyThreadState *state
        cdef int code
        cdef coll *c = self._enter()
        if c == NULL:
            if self._size != 1 or not _is_message(buf, &view, 0):
                return 0
            PyBuffer_Release(&view)
            return self._count_alone()
        place = None
        try:
            if not _is_message(buf, &view, PyBUF_WRITABLE if self._rank != root else 0):
                place = _plain_of(buf, self._rank != root)
                data = place.pack() if self._rank == root or place.direct else bytearray(place.nbytes)
                PyObject_GetBuffer(data, &view, PyBUF_ANY_CONTIGUOUS)
        except BaseException:
            self._s.group._busy = False
            raise
        if view.len < LONG_MESSAGE:
            _before_short(c, &state)
            code = coll_bcast(c, COLL_DEFAULT, view.buf, view.len, root)
            _after_short(c, state)
        else:
            with nogil:
                code = coll_bcast(c, COLL_DEFAULT, view.buf, view.len, root)
        PyBuffer_Release(&view)
        if code != MSG_SUCCESS and self._repeat(c, code):
            return 0
        self._conclude(code, "bcast", root)
        if place is not None and self._rank != root and not place.direct:
            place.unpack(_bytes_of(data))
        return 1

    def Bcast(self, buf, root=0):
        """Broadcast the root's buffer to all ranks.

        Parameters
        ----------
        buf : buffer or list
            Data to send on the root, memory to receive into on other ranks.
        root : int
            Rank of the root.
        """
        cdef long long before = self._s.n_collectives
        cdef int done
        try:
            done = self._bcast(buf, self._root(root))
            if not done and not self._perform(BCAST, buf, None, root, None, None):
                self._block_bcast(buf, root)
        except BaseException as problem:
            self._refused(before, problem)
            raise

    cdef int _reduce(self, const void *out, void *into, size_t count, int kind, int op, int root,
                     bint to_all) except -1:
        """Reduce by csrc/coll; return 0 if messages must do it."""
        cdef PyThreadState *state
        cdef int code
        cdef coll *c = self._enter()
        if c == NULL:
            if not self._count_alone():
                return 0
            memmove(into, out, count * <size_t>_kind_sizes[kind])
            return 1
        if count < LONG_MESSAGE // LARGEST_NUMBER:
            _before_short(c, &state)
            code = _combine(c, out, into, count, kind, op, root, to_all)
            _after_short(c, state)
        else:
            with nogil:
                code = _combine(c, out, into, count, kind, op, root, to_all)
        if code != MSG_SUCCESS and self._repeat(c, code):
            return 0
        self._conclude(code, "allreduce" if to_all else "reduce", root)
        return 1

    cdef int _reduce_fast(self, object sendbuf, object recvbuf, int op, int root, bint to_all) except -1:
        """Reduce plain buffers; return 0 if they are not plain or do not fit (then _reduce_any checks them)."""
        cdef Py_buffer out, into
        cdef int kind
        cdef bint gets = to_all or self._rank == root
        if op < 0:
            return 0
        if _is_in_place(sendbuf):
            return self._reduce_in_place(recvbuf, op, root, to_all) if gets else 0
        if not _is_message(sendbuf, &out, 0):
            return 0
        try:
            kind = _element_kind(sendbuf, &out)
            if kind == COLL_NO_TYPE or (kind >= 8 and op > 3) or (kind >= 10 and op > 1):
                return 0
            if not gets:
                return self._reduce(out.buf, NULL, out.len // _kind_sizes[kind], kind, op, root, to_all)
            if not _is_message(recvbuf, &into, PyBUF_WRITABLE):
                return 0
            try:
                if into.len != out.len or _element_kind(recvbuf, &into) != kind:
                    return 0
                return self._reduce(out.buf, into.buf, out.len // _kind_sizes[kind], kind, op, root, to_all)
            finally:
                PyBuffer_Release(&into)
        finally:
            PyBuffer_Release(&out)

    cdef int _reduce_in_place(self, object recvbuf, int op, int root, bint to_all) except -1:
        """Reduce plain buffers, of which this one has the operand, too; return 0 for others."""
        cdef Py_buffer into
        cdef int kind, done = 0
        if not _is_message(recvbuf, &into, PyBUF_WRITABLE):
            return 0
        try:
            kind = _element_kind(recvbuf, &into)
            if kind == COLL_NO_TYPE or (kind >= 8 and op > 3) or (kind >= 10 and op > 1):
                return 0
            work = bytearray(into.len)      # The operand stays where it is in case messages must repeat the reduction.
            done = self._reduce(into.buf, PyByteArray_AS_STRING(work), into.len // _kind_sizes[kind], kind, op, root,
                                to_all)
            if done:
                memcpy(into.buf, PyByteArray_AS_STRING(work), into.len)
        finally:
            PyBuffer_Release(&into)
        return done

    cdef int _reduce_any(self, object sendbuf, object recvbuf, int number, int root, bint to_all) except -1:
        """Reduce any buffers; return 0 if messages must do it."""
        cdef Py_buffer view, result
        cdef int kind, done
        cdef bint gets = to_all or self._rank == root, in_place = _is_in_place(sendbuf) and gets
        if number < 0 or self._size <= 1:
            return 0
        into = _plain_of(recvbuf, True) if gets else None
        mine = into if in_place else _plain_of(sendbuf, False)
        dtype = mine.datatype.dtype
        if dtype is None or not dtype.isnative or number >= _COLL_OPS_OF_KIND.get(dtype.kind, 0):
            return 0
        kind = _COLL_KINDS.get((dtype.kind, dtype.itemsize), COLL_NO_TYPE)
        if kind == COLL_NO_TYPE or (
                into is not None and (into.nbytes != mine.nbytes or into.datatype.dtype != dtype)):
            return 0
        data, target = mine.pack(), bytearray(mine.nbytes if gets else 0)
        PyObject_GetBuffer(data, &view, PyBUF_ANY_CONTIGUOUS)
        PyObject_GetBuffer(target, &result, PyBUF_ANY_CONTIGUOUS)
        try:
            done = self._reduce(view.buf, result.buf if gets else NULL, <size_t>view.len // <size_t>dtype.itemsize,
                                kind, number, root, to_all)
        finally:
            PyBuffer_Release(&view)
            PyBuffer_Release(&result)
        if done and gets:
            _first_bytes(into, len(target)).unpack(_bytes_of(target))
        return done

    def Allreduce(self, sendbuf, recvbuf, op=None):
        """Combine the buffers of all ranks, with the result on all ranks.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Operand of this rank, or IN_PLACE if it is in `recvbuf`; memory for the result.
        op : Op, optional
            Operation. Default: SUM.
        """
        cdef long long before = self._s.n_collectives
        cdef int number, done
        op = _sum if op is None else op
        try:
            number = _number_of(op)
            done = (self._reduce_fast(sendbuf, recvbuf, number, 0, True)
                    or self._reduce_any(sendbuf, recvbuf, number, 0, True))
            if not done and not self._perform(ALLREDUCE, sendbuf, recvbuf, 0, op, None):
                self._block_allreduce(sendbuf, recvbuf, op)
        except BaseException as problem:
            self._refused(before, problem)
            raise

    def Reduce(self, sendbuf, recvbuf, op=None, root=0):
        """Combine the buffers of all ranks on the root.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Operand of this rank; memory for the result, ignored on other ranks than the root. On the root IN_PLACE
            means that the operand is in `recvbuf`.
        op : Op, optional
            Operation. Default: SUM.
        root : int
            Rank of the root.
        """
        cdef long long before = self._s.n_collectives
        cdef int number, done, at
        op = _sum if op is None else op
        try:
            at = self._root(root)
            number = _number_of(op)
            done = (self._reduce_fast(sendbuf, recvbuf, number, at, False)
                    or self._reduce_any(sendbuf, recvbuf, number, at, False))
            if not done and not self._perform(REDUCE, sendbuf, recvbuf, root, op, None):
                self._block_reduce(sendbuf, recvbuf, op, root)
        except BaseException as problem:
            self._refused(before, problem)
            raise

    cdef int _exchange(self, const void *out, void *into, size_t each, bint everything) except -1:
        """Allgather, or alltoall if *everything*, by csrc/coll; return 0 if messages must do it."""
        cdef PyThreadState *state
        cdef int code
        cdef coll *c = self._enter()
        if c == NULL:
            if not self._count_alone():
                return 0
            if out != NULL:
                memmove(into, out, each)
            return 1
        if each < LONG_MESSAGE // <size_t>self._size:
            _before_short(c, &state)
            code = _swap(c, out, into, each, everything)
            _after_short(c, state)
        else:
            with nogil:
                code = _swap(c, out, into, each, everything)
        if code != MSG_SUCCESS and self._repeat(c, code):
            return 0
        self._conclude(code, "alltoall" if everything else "allgather", 0)
        return 1

    cdef int _exchange_fast(self, object sendbuf, object recvbuf, bint everything) except -1:
        """Exchange plain buffers of the right lengths; return 0 for others."""
        cdef Py_buffer out, into
        cdef Py_ssize_t each
        if self._size < 1:
            return 0
        if _is_in_place(sendbuf):
            return self._exchange_in_place(recvbuf, everything)
        if not _is_message(sendbuf, &out, 0, self._size if everything else 1):
            return 0
        try:
            if not _is_message(recvbuf, &into, PyBUF_WRITABLE, self._size):
                return 0
            try:
                each = into.len // self._size
                if into.len % self._size or out.len != (into.len if everything else each):
                    return 0
                return self._exchange(out.buf, into.buf, each, everything)
            finally:
                PyBuffer_Release(&into)
        finally:
            PyBuffer_Release(&out)

    cdef int _exchange_in_place(self, object recvbuf, bint everything) except -1:
        """Exchange a plain buffer that has the data to send, too; return 0 for others."""
        cdef Py_buffer into
        cdef int done = 0
        if not _is_message(recvbuf, &into, PyBUF_WRITABLE, self._size):
            return 0
        try:
            if into.len % self._size:
                return 0
            work = bytearray(into.len)      # The data stay where they are in case messages must repeat the collective.
            memcpy(PyByteArray_AS_STRING(work), into.buf, into.len)
            done = self._exchange(NULL, PyByteArray_AS_STRING(work), into.len // self._size, everything)
            if done:
                memcpy(into.buf, PyByteArray_AS_STRING(work), into.len)
        finally:
            PyBuffer_Release(&into)
        return done

    cdef int _exchange_any(self, object sendbuf, object recvbuf, bint everything) except -1:
        """Exchange any buffers; return 0 if messages must do it."""
        cdef Py_buffer view
        cdef int i, done
        cdef size_t each
        if self._size <= 1:
            return 0
        into = _blocks_of(_plain_of(recvbuf, True, self._size), self._size)
        each = into[0].nbytes
        work = bytearray(each * <size_t>self._size)
        room = memoryview(work)
        if _is_in_place(sendbuf):
            parts = into if everything else [into[self._rank]]
        elif everything:
            parts = _blocks_of(_plain_of(sendbuf, False, self._size), self._size)
        else:
            parts = [_plain_of(sendbuf, False)]
        for i, part in enumerate(parts):
            if part.nbytes != each:
                return 0
            i = i if everything else self._rank
            room[i * each:(i + 1) * each] = memoryview(part.pack())
        PyObject_GetBuffer(work, &view, PyBUF_ANY_CONTIGUOUS)
        try:
            done = self._exchange(NULL, view.buf, each, everything)
        finally:
            PyBuffer_Release(&view)
        if done:
            got = _bytes_of(work)
            for i, part in enumerate(into):
                part.unpack(got[i * each:(i + 1) * each])
        return done

    def Allgather(self, sendbuf, recvbuf):
        """Gather buffers of equal length to all ranks, in the order of ranks.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Data of this rank, or IN_PLACE if it is in `recvbuf`; memory for the data of all ranks.
        """
        cdef long long before = self._s.n_collectives
        cdef int done
        try:
            done = self._exchange_fast(sendbuf, recvbuf, False) or self._exchange_any(sendbuf, recvbuf, False)
            if not done and not self._perform(ALLGATHER, sendbuf, recvbuf, 0, None, None):
                self._block_allgather(sendbuf, recvbuf)
        except BaseException as problem:
            self._refused(before, problem)
            raise

    def Alltoall(self, sendbuf, recvbuf):
        """Send an equal part of the buffer to each rank, and receive one from each rank.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Parts for all ranks, or IN_PLACE if they are in `recvbuf`; memory for the parts received.
        """
        cdef long long before = self._s.n_collectives
        cdef int done
        try:
            done = self._exchange_fast(sendbuf, recvbuf, True) or self._exchange_any(sendbuf, recvbuf, True)
            if not done and not self._perform(ALLTOALL, sendbuf, recvbuf, 0, None, None):
                self._block_alltoall(sendbuf, recvbuf)
        except BaseException as problem:
            self._refused(before, problem)
            raise


cdef object _bytes_of(object data):
    import numpy
    return numpy.frombuffer(data, numpy.uint8)


cdef object _first_bytes(object place, Py_ssize_t nbytes):
    """Return the beginning of a place, as much as a result of *nbytes* bytes fills."""
    return type(place)(place.memory, place.datatype, nbytes // place.datatype.size if nbytes else 0, place.start)
