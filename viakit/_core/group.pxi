# Collectives of a communicator by csrc/coll: barriers, and what has buffers of equal length, by memory that a host
# shares and by RDMA write. What csrc/coll has no form for goes by messages (viakit/_comm/collective.py), and so does
# everything on other channels, and on a communicator whose group was broken by something else than a death.
#
# All ranks have to come to the same decision. So it depends on nothing but the channel, the number of ranks, the
# operation and the basic datatype, never on how a rank has its buffer lying about.

from ccoll cimport *

cdef enum:
    COLL_PART = 4           # the context of a group
    COLL_NO_TYPE = -1

cdef object _plain_of = None        # viakit._comm.spec
cdef object _blocks_of = None
cdef object _in_place = None
cdef object _sum = None

_COLL_OPS = {"MPI_SUM": 0, "MPI_PROD": 1, "MPI_MAX": 2, "MPI_MIN": 3, "MPI_LAND": 4, "MPI_LOR": 5, "MPI_LXOR": 6,
             "MPI_BAND": 7, "MPI_BOR": 8, "MPI_BXOR": 9}
_COLL_KINDS = {("i", 1): 0, ("u", 1): 1, ("i", 2): 2, ("u", 2): 3, ("i", 4): 4, ("u", 4): 5, ("i", 8): 6, ("u", 8): 7,
               ("f", 4): 8, ("f", 8): 9, ("c", 8): 10, ("c", 16): 11}
# Operations on floating-point numbers are the first four, on complex ones the first two (combine.c).
_COLL_OPS_OF_KIND = {"i": 10, "u": 10, "f": 4, "c": 2}


def set_collective_types(simple, same_blocks, in_place, default_op):
    """Tell what reads buffer arguments; called once, by :mod:`viakit._comm`."""
    global _plain_of, _blocks_of, _in_place, _sum
    _plain_of, _blocks_of, _in_place, _sum = simple, same_blocks, in_place, default_op


cdef void _collective_meanwhile(void *context) noexcept nogil:
    with gil:
        try:
            (<MsgWorld>context).step()
        except BaseException as problem:  # C cannot raise: it asks whether it shall end, and the caller raises
            _keep_raised(problem)


cdef inline int _type_of(Py_buffer *view) noexcept nogil:
    """The number in csrc/coll of a plain buffer's elements, or COLL_NO_TYPE."""
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


cdef inline bint _is_in_place(object sendbuf) noexcept:
    """Whether the operand is where the result will be: mpi4py has None say so, too."""
    return sendbuf is None or sendbuf is _in_place


cdef class CollectiveGroup:
    """The group of a communicator in csrc/coll; belongs to its world."""

    cdef coll *_c
    cdef bint _busy

    def __dealloc__(self):
        coll_forget(self._c)

    def forget(self):
        """The world is closed."""
        coll_forget(self._c)
        self._c = NULL

    @property
    def error(self):
        """What broke it, as a number of the engine's; 0: it is whole."""
        return coll_error(self._c) if self._c != NULL else MSG_ERR_STATE


cdef class CollectiveComm(MsgComm):
    """A communicator's collectives, as far as csrc/coll has them."""

    cdef public long long _n_collectives       # begun so far, these and those by messages
    cdef public uint64_t birth                 # tells it from earlier ones of its number; alike on all ranks
    cdef CollectiveGroup _group
    cdef bint _tried

    cdef int _make_group(self) except -1:
        """Collective: at the first that can use it."""
        cdef coll_options options
        cdef coll *made = NULL
        cdef int *ranks
        cdef int code, i, context = self._context + COLL_PART
        cdef msg_world *w = self.world._w
        self._tried = True
        if self.number in self.world.groups:
            self._group = self.world.groups[self.number]
            return 0
        if self.world.channel != "via" or self.world.by_messages:
            return 0
        ranks = <int *>calloc(self.size, sizeof(int))
        if ranks == NULL:
            raise MemoryError()
        for i in range(self.size):
            ranks[i] = self._to[i] if self._to != NULL else i
        options.number = <uint64_t>self._n_collectives
        options.birth = self.birth
        options.wanted = &self.world.n_active
        options.meanwhile = _collective_meanwhile
        options.context = <void *>self.world
        self.world._n_calls += 1
        with nogil:
            code = coll_create_with(w, ranks, self.size, context, &options, &made)
        self.world._n_calls -= 1
        free(ranks)
        self._n_collectives += 1  # a collective of its own: who waited in it has told those who were late
        self._conclude(code, "setting up collectives", 0)
        group = CollectiveGroup()
        (<CollectiveGroup>group)._c = made
        self.world.groups[self.number] = self._group = group
        return 0

    cdef coll *_enter(self) except? NULL:
        """The group, ready for the next collective; NULL: by messages."""
        cdef CollectiveGroup group
        cdef int code
        self.world._open()
        if self.size == 1 or self._context < 0:
            return NULL
        if not self._tried:
            self._make_group()
        group = self._group
        if group is None or group._c == NULL:
            return NULL
        code = coll_error(group._c)
        if code != MSG_SUCCESS:
            if code != MSG_ERR_PROC_FAILED:
                return NULL
            self._n_collectives += 1
            self._conclude(code, "collective", 0)
        if group._busy:
            raise _message_error(MSG_ERR_STATE, "another thread is in a collective of this communicator")
        coll_set_number(group._c, <uint64_t>self._n_collectives)
        self._n_collectives += 1
        group._busy = True
        return group._c

    cdef int _conclude(self, int code, str what, int root) except -1:
        """Raise what went wrong."""
        if self._group is not None:
            self._group._busy = False
        self.world._left()
        _raise_signal()
        if code == MSG_SUCCESS:
            return 0
        if code == MSG_INTERRUPTED:
            raise KeyboardInterrupt()
        text = _text(msg_error_text(code))
        if code == MSG_ERR_PROC_FAILED:
            dead = set(self.world.failures())
            ranks = [str(i) for i, rank in enumerate(self.world_ranks()) if rank in dead]
            text = f"rank {', '.join(ranks)} of this communicator has died" if ranks else text
        elif code == MSG_ERR_LEFT:
            text = "a rank of this communicator has left, or has given up"
        elif code == MSG_ERR_COLLECTIVE:
            text = (f"mismatched collectives: this rank is in {what} with root {root}, another rank does something "
                    "else, or counts or datatypes differ")
        raise _message_error(code, f"{what}: {text}")

    cdef bint _repeat(self, coll *c, int code) noexcept:
        """Whether the collective has to be done once more, by messages: a rank was interrupted in an earlier one."""
        if code != MSG_ERR_LEFT or not coll_may_repeat(c) or viakit_raised != NULL:
            return False
        self._group._busy = False
        self._n_collectives -= 1
        return True

    cdef int _root(self, int root) except -1:
        if not 0 <= root < self.size:
            from viakit._comm.errors import error
            raise error("ERR_ROOT", f"root {root}: this communicator has ranks 0 to {self.size - 1}")
        return root

    def _mismatched(self, int source):
        """Tell a rank that waits in a collective of csrc/coll that this one is in another."""
        cdef int code = MSG_ERR_COLLECTIVE
        if self._group is not None and self._group._c != NULL:
            coll_break(self._group._c, code)
        else:
            word = b"".join(part.to_bytes(8, "little") for part in (code, self._n_collectives, self.birth))
            self.start_send(word, source, COLL_TAG_ABORT, 0, COLL_PART)

    def _close_group(self):
        """Collective: give up what csrc/coll has of this communicator."""
        cdef CollectiveGroup group = self._group
        cdef coll *c
        self._group, self._tried = None, True
        self.world.groups.pop(self.number, None)
        if group is not None and group._c != NULL:
            c, group._c = group._c, NULL
            self.world._n_calls += 1
            with nogil:
                coll_close(c)
            self.world._n_calls -= 1
            self.world._left()
            _raise_signal()

    # ------------------------------------------------------------ the collectives

    def Barrier(self):
        """Barrier: wait until all ranks are here."""
        cdef int code
        cdef coll *c = self._enter()
        if c == NULL:
            self._block_barrier()
            return
        with nogil:
            code = coll_barrier(c, COLL_BARRIER_DEFAULT)
        if code != MSG_SUCCESS and self._repeat(c, code):
            self._block_barrier()
            return
        self._conclude(code, "barrier", 0)

    def Bcast(self, buf, int root=0):
        """Bcast: the root's buffer, into all ranks' buffers."""
        cdef Py_buffer view
        cdef int code
        cdef coll *c = self._enter() if 0 <= root < self.size else NULL
        if c == NULL:
            self._block_bcast(buf, root)
            return
        place = None
        try:
            if not _is_plain(buf, &view, PyBUF_WRITABLE if self.rank != root else 0):
                place = _plain_of(buf, self.rank != root)
                data = place.pack() if self.rank == root or place.direct else bytearray(place.nbytes)
                PyObject_GetBuffer(data, &view, PyBUF_ANY_CONTIGUOUS)
        except BaseException:
            self._group._busy = False
            raise
        with nogil:
            code = coll_bcast(c, COLL_DEFAULT, view.buf, view.len, root)
        PyBuffer_Release(&view)
        self._conclude(code, "bcast", root)
        if place is not None and self.rank != root and not place.direct:
            place.unpack(_bytes_of(data))

    cdef int _may_combine(self, op) except -2:
        """The operation's number in csrc/coll, or -1."""
        found = _COLL_OPS.get(op.name, -1) if op.is_predefined else -1
        return found

    cdef int _reduce_fast(self, object sendbuf, object recvbuf, int op, int root, bint everybody) except -1:
        """Of plain buffers; 0: the general way has to look at them."""
        cdef Py_buffer out, into
        cdef int code, kind
        cdef bint gets = everybody or self.rank == root
        cdef coll *c
        if op < 0 or _is_in_place(sendbuf) or not _is_plain(sendbuf, &out, 0):
            return 0
        try:
            kind = _type_of(&out)
            if kind == COLL_NO_TYPE or (kind >= 8 and op > 3):
                return 0
            into.buf = NULL
            if gets:
                if not _is_plain(recvbuf, &into, PyBUF_WRITABLE):
                    return 0
                if into.len != out.len or _type_of(&into) != kind:
                    PyBuffer_Release(&into)
                    return 0
            try:
                c = self._enter()
                if c == NULL:
                    return 0
                with nogil:
                    if everybody:
                        code = coll_allreduce(c, COLL_DEFAULT, out.buf, into.buf, out.len // out.itemsize, kind, op)
                    else:
                        code = coll_reduce(c, COLL_DEFAULT, out.buf, into.buf, out.len // out.itemsize, kind, op, root)
            finally:
                if gets:
                    PyBuffer_Release(&into)
        finally:
            PyBuffer_Release(&out)
        if code != MSG_SUCCESS and everybody and self._repeat(c, code):
            return 0
        self._conclude(code, "allreduce" if everybody else "reduce", root)
        return 1

    cdef int _reduce_any(self, object sendbuf, object recvbuf, int number, int root, bint everybody) except -1:
        """Of any buffers; 0: by messages."""
        cdef Py_buffer view, result
        cdef int code, kind
        cdef bint gets = everybody or self.rank == root, in_place = _is_in_place(sendbuf) and gets
        cdef coll *c
        cdef size_t count
        if number < 0 or self.size == 1:
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
        c = self._enter()
        if c == NULL:
            return 0
        data = mine.pack()
        count = <size_t>mine.nbytes // <size_t>dtype.itemsize
        target = bytearray(mine.nbytes if gets else 0)
        PyObject_GetBuffer(data, &view, PyBUF_ANY_CONTIGUOUS)
        PyObject_GetBuffer(target, &result, PyBUF_ANY_CONTIGUOUS)
        with nogil:
            if everybody:
                code = coll_allreduce(c, COLL_DEFAULT, view.buf, result.buf, count, kind, number)
            else:
                code = coll_reduce(c, COLL_DEFAULT, view.buf, result.buf if gets else NULL, count, kind, number, root)
        PyBuffer_Release(&view)
        PyBuffer_Release(&result)
        if code != MSG_SUCCESS and everybody and self._repeat(c, code):
            return 0
        self._conclude(code, "allreduce" if everybody else "reduce", root)
        if gets:
            _first_bytes(into, len(target)).unpack(_bytes_of(target))
        return 1

    def Allreduce(self, sendbuf, recvbuf, op=None):
        """Allreduce: all ranks' buffers combined, on all."""
        op = _sum if op is None else op
        cdef int number = self._may_combine(op)
        if not self._reduce_fast(sendbuf, recvbuf, number, 0, True):
            if not self._reduce_any(sendbuf, recvbuf, number, 0, True):
                self._block_allreduce(sendbuf, recvbuf, op)

    def Reduce(self, sendbuf, recvbuf, op=None, int root=0):
        """Reduce: all ranks' buffers combined, on the root."""
        op = _sum if op is None else op
        cdef int number = self._may_combine(op)
        self._root(root)
        if not self._reduce_fast(sendbuf, recvbuf, number, root, False):
            if not self._reduce_any(sendbuf, recvbuf, number, root, False):
                self._block_reduce(sendbuf, recvbuf, op, root)

    cdef int _exchange_fast(self, object sendbuf, object recvbuf, bint everything) except -1:
        """Allgather, or (everything) alltoall, of plain buffers of the right lengths; 0: another way."""
        cdef Py_buffer out, into
        cdef int code
        cdef Py_ssize_t each
        cdef coll *c
        if _is_in_place(sendbuf) or not _is_plain(sendbuf, &out, 0):
            return 0
        try:
            if not _is_plain(recvbuf, &into, PyBUF_WRITABLE):
                return 0
            try:
                each = into.len // self.size
                if into.len % self.size or out.len != (into.len if everything else each):
                    return 0
                c = self._enter()
                if c == NULL:
                    return 0
                with nogil:
                    if everything:
                        code = coll_alltoall(c, COLL_DEFAULT, out.buf, into.buf, each)
                    else:
                        code = coll_allgather(c, COLL_DEFAULT, out.buf, into.buf, each)
            finally:
                PyBuffer_Release(&into)
        finally:
            PyBuffer_Release(&out)
        if code != MSG_SUCCESS and self._repeat(c, code):
            return 0
        self._conclude(code, "alltoall" if everything else "allgather", 0)
        return 1

    cdef int _exchange_any(self, object sendbuf, object recvbuf, bint everything) except -1:
        """Of any buffers; 0: by messages."""
        cdef Py_buffer view
        cdef int code, i
        cdef size_t each
        cdef coll *c
        if self.size == 1:
            return 0
        into = _blocks_of(_plain_of(recvbuf, True, self.size), self.size)
        each = into[0].nbytes
        work = bytearray(each * <size_t>self.size)
        room = memoryview(work)
        if _is_in_place(sendbuf):
            parts = into if everything else [into[self.rank]]
        elif everything:
            parts = _blocks_of(_plain_of(sendbuf, False, self.size), self.size)
        else:
            parts = [_plain_of(sendbuf, False)]
        for i, part in enumerate(parts):
            if part.nbytes != each:
                return 0
            i = i if everything else self.rank
            room[i * each:(i + 1) * each] = memoryview(part.pack())
        c = self._enter()
        if c == NULL:
            return 0
        PyObject_GetBuffer(work, &view, PyBUF_ANY_CONTIGUOUS)
        with nogil:
            if everything:
                code = coll_alltoall(c, COLL_DEFAULT, NULL, view.buf, each)
            else:
                code = coll_allgather(c, COLL_DEFAULT, NULL, view.buf, each)
        PyBuffer_Release(&view)
        if code != MSG_SUCCESS and self._repeat(c, code):
            return 0
        self._conclude(code, "alltoall" if everything else "allgather", 0)
        got = _bytes_of(work)
        for i, part in enumerate(into):
            part.unpack(got[i * each:(i + 1) * each])
        return 1

    def Allgather(self, sendbuf, recvbuf):
        """Allgather: all ranks' buffers, one after the other."""
        if not self._exchange_fast(sendbuf, recvbuf, False) and not self._exchange_any(sendbuf, recvbuf, False):
            self._block_allgather(sendbuf, recvbuf)

    def Alltoall(self, sendbuf, recvbuf):
        """Alltoall: from each rank the part that it has for this one."""
        if not self._exchange_fast(sendbuf, recvbuf, True) and not self._exchange_any(sendbuf, recvbuf, True):
            self._block_alltoall(sendbuf, recvbuf)


cdef object _bytes_of(object data):
    import numpy
    return numpy.frombuffer(data, numpy.uint8)


cdef object _first_bytes(object place, Py_ssize_t nbytes):
    """The part of a place that a shorter result goes to."""
    return type(place)(place.memory, place.datatype, nbytes // place.datatype.size if nbytes else 0, place.start)
