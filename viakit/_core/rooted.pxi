# Gather and scatter of plain arguments by messages, at the cost of the messages.
#
# viakit/comm/collective.py performs the same collectives for every kind of argument, as schedules. The paths here
# exchange the same messages under the same tags. So the ranks of one collective may take different paths:
#
#     plain arguments, and no non-blocking collective under way    here
#     all else (IN_PLACE, derived datatypes, ...)                  _block_gather and its like: schedules
#
# A rank that has waited for CHECK_MS continues with a Step (viakit/comm/step.py), which detects dead ranks and
# mismatched collectives.

cdef enum:
    COLLECTIVE_PART = 1     # context of the messages: _PART of viakit/comm/step.py
    CHECK_MS = 50           # wait between two checks: _LOOK_S of viakit/comm/schedule.py
    SHORT_TREE = 8192       # bytes of one rank up to which a tree is used: _SHORT_TREE of viakit/comm/collective.py

cdef extern from "Python.h":
    long PyLong_AsLongAndOverflow(object number, int *overflow) except? -1

cdef object _rounds = None          # viakit.comm.collective: the messages of trees
cdef object _general = None         # viakit.comm.collective_calls.Collectives
cdef int _gather_kind, _scatter_kind, _gather_objects, _scatter_objects   # numbers in tags


def set_collective_kinds(rounds, list kinds, general):
    """Set the function that returns a tree's messages, the names of collectives, and the class of the general paths.

    :mod:`viakit.comm` calls it once.
    """
    global _rounds, _general, _gather_kind, _scatter_kind, _gather_objects, _scatter_objects
    _rounds, _general = rounds, general
    _gather_kind, _scatter_kind = kinds.index("gather"), kinds.index("scatter")
    _gather_objects, _scatter_objects = kinds.index("gather(object)"), kinds.index("scatter(object)")


cdef class Pinned:
    """A buffer that stays exported as long as a message uses a part of it."""

    cdef Py_buffer view
    cdef bint held

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef Pinned _pin_message(object buf, int flags, Py_ssize_t blocks):
    """Pin a plain argument of a collective. Return None for another one, which the general path interprets."""
    cdef Pinned pinned = Pinned.__new__(Pinned)
    pinned.held = _is_message(buf, &pinned.view, flags, blocks)
    return pinned if pinned.held else None


cdef Pinned _pin(object buf):
    """Pin a contiguous buffer of bytes."""
    cdef Pinned pinned = Pinned.__new__(Pinned)
    PyObject_GetBuffer(buf, &pinned.view, PyBUF_ANY_CONTIGUOUS)
    pinned.held = True
    return pinned


cdef class RootedComm(CollectiveComm):
    """Collectives by messages between a root and the other ranks."""

    # ------------------------------------------------------------ the messages of one collective

    cdef int _direct_root(self, object root) except -2:
        """Return the root's rank; -1 if the general path must check it, or must do the collective."""
        cdef long rank
        cdef int overflow
        if (not PyLong_CheckExact(root) or self._s.context < 0 or self._s.freed or self._s.scope.revoked
                or self.world.n_active or self.world._w == NULL or self.world._ending
                or self.world._generation != _generation):
            return -1
        rank = PyLong_AsLongAndOverflow(root, &overflow)
        return <int>rank if 0 <= rank < self._size else -1

    cdef int _count(self, int kind, int root) except -1:
        """Count a collective, and return the tag of its messages."""
        cdef long long number = self._s.n_collectives + 1
        self._s.n_collectives = number
        if not number & 1023:
            _words.sweep(self, number)
        return <int>((number & 0xFFFF) << 14 | kind << 8 | root & 0xFF)

    cdef MsgRequest _message(self, Pinned data, Py_ssize_t at, Py_ssize_t n, int peer, int tag, str receive):
        """Start to send *n* bytes to a rank, or to receive them in the collective named *receive*."""
        cdef MsgRequest request = _request_type.__new__(_request_type)
        cdef int code, context = self._at(COLLECTIVE_PART), target = self._target(peer, False)
        cdef char *where = <char *>data.view.buf + at
        request._comm = self
        PyBuffer_FillInfo(&request._view, data, where, n, 0, PyBUF_WRITABLE)
        request._pinned = True
        if receive is None:
            code = msg_isend(self.world._w, context, where, n, target, tag, MSG_STANDARD, &request._r)
        else:
            request.collective, request.awaited, request.exact = receive, peer, n
            code = msg_irecv(self.world._w, context, where, n, target, tag, &request._r)
        self.world._check(code)
        return request

    cdef int _await(self, list messages, int kind, int root, long long number) except -1:
        """Wait for messages, and check now and then whether they can still arrive."""
        cdef MsgRequest message
        step = None
        for message in messages:
            while not message._wait(CHECK_MS):
                if step is None:
                    step = _words.Step.resume(self, kind, root, number, messages)
                step.check()
        return 0

    cdef int _refuse_direct(self, long long before, int kind, int root, list messages, object problem) except -1:
        """Give up the collective after number `before`, whose arguments were refused or whose messages failed."""
        cdef long long number = before + 1
        if self._s.freed or self.world.closed:
            return 0
        self._s.n_collectives = max(self._s.n_collectives, number)
        _words.Step.resume(self, kind, root, number, messages).give_up(problem)
        return 0

    cdef int _climb(self, Pinned data, Py_ssize_t unit, bint gathers, int kind, int root, int tag, str name,
                    list messages) except -1:
        """Perform the messages of a tree. Parts of *unit* bytes lie in *data* in the order of ranks from the root."""
        cdef int to, source
        cdef Py_ssize_t out, out_n, into, in_n
        for now in _rounds(gathers, self._size, self._rank, root):
            messages.clear()
            for _, to, source, out, out_n, into, in_n, _ in now:
                if source >= 0:
                    messages.append(self._message(data, into * unit, in_n * unit, source, tag, name))
            for _, to, source, out, out_n, into, in_n, _ in now:
                if to >= 0:
                    messages.append(self._message(data, out * unit, out_n * unit, to, tag, None))
            self._await(messages, kind, root, self._s.n_collectives)
        return 0

    # ------------------------------------------------------------ gather and scatter

    cdef int _gather_to(self, Pinned mine, Pinned into, int root, list messages) except -1:
        """Gather parts of equal length, by a tree if they are short and many. `into` is the root's."""
        cdef Py_ssize_t each = mine.view.len
        cdef int i, tag = self._count(_gather_kind, root)
        cdef Pinned have
        cdef char *place
        if self._size > 3 and each <= SHORT_TREE:
            have = _pin(bytearray(each * self._size))
            place = <char *>have.view.buf
            memcpy(place + (self._rank - root + self._size) % self._size * each, mine.view.buf, each)
            self._climb(have, each, True, _gather_kind, root, tag, "gather", messages)
            for i in range(self._size if into is not None else 0):
                memcpy(<char *>into.view.buf + i * each, place + (i - root + self._size) % self._size * each, each)
            return 0
        if into is None:
            messages.append(self._message(mine, 0, each, root, tag, None))
        else:
            for i in range(self._size):
                if i != root:
                    messages.append(self._message(into, i * each, each, i, tag, "gather"))
            memmove(<char *>into.view.buf + root * each, mine.view.buf, each)
        self._await(messages, _gather_kind, root, self._s.n_collectives)
        return 0

    cdef int _gather_plain(self, object sendbuf, object recvbuf, int root, list messages) except -1:
        """Gather plain buffers; return 0 if they are not plain or do not fit (then the general path checks them)."""
        cdef Pinned mine, into = None
        if _is_in_place(sendbuf):
            return 0
        mine = _pin_message(sendbuf, 0, 1)
        if mine is None:
            return 0
        if self._rank == root:
            into = _pin_message(recvbuf, PyBUF_WRITABLE, self._size)
            if into is None or into.view.len != mine.view.len * self._size:
                return 0
        self._gather_to(mine, into, root, messages)
        return 1

    def Gather(self, sendbuf, recvbuf, root=0):
        """Gather buffers of equal length to the root, in the order of ranks.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Data of this rank, or IN_PLACE on the root; memory for the data of all ranks, ignored on other ranks.
        root : int
            Rank of the root.
        """
        cdef long long before = self._s.n_collectives
        cdef int done = 0, at = self._direct_root(root)
        cdef list messages = []
        if at >= 0:
            try:
                done = self._gather_plain(sendbuf, recvbuf, at, messages)
            except BaseException as problem:
                self._refuse_direct(before, _gather_kind, at, messages, problem)
                raise
        if not done:
            self._block_gather(sendbuf, recvbuf, root)

    cdef int _scatter_from(self, Pinned out, Pinned mine, int root, list messages) except -1:
        """Scatter parts of equal length, by a tree if they are short and many. `out` is the root's."""
        cdef Py_ssize_t each = mine.view.len
        cdef int i, tag = self._count(_scatter_kind, root)
        cdef Pinned have
        cdef char *place
        if self._size > 3 and each <= SHORT_TREE:
            have = _pin(bytearray(each * self._size))
            place = <char *>have.view.buf
            for i in range(self._size if out is not None else 0):
                memcpy(place + (i - root + self._size) % self._size * each, <char *>out.view.buf + i * each, each)
            self._climb(have, each, False, _scatter_kind, root, tag, "scatter", messages)
            memcpy(mine.view.buf, place + (self._rank - root + self._size) % self._size * each, each)
            return 0
        if out is None:
            messages.append(self._message(mine, 0, each, root, tag, "scatter"))
        else:
            for i in range(self._size):
                if i != root:
                    messages.append(self._message(out, i * each, each, i, tag, None))
            memmove(mine.view.buf, <char *>out.view.buf + root * each, each)
        self._await(messages, _scatter_kind, root, self._s.n_collectives)
        return 0

    cdef int _scatter_plain(self, object sendbuf, object recvbuf, int root, list messages) except -1:
        """Scatter plain buffers; return 0 if they are not plain or do not fit (then the general path checks them)."""
        cdef Pinned mine, out = None
        if _is_in_place(recvbuf):
            return 0
        mine = _pin_message(recvbuf, PyBUF_WRITABLE, 1)
        if mine is None:
            return 0
        if self._rank == root:
            out = _pin_message(sendbuf, 0, self._size)
            if out is None or out.view.len != mine.view.len * self._size:
                return 0
        self._scatter_from(out, mine, root, messages)
        return 1

    def Scatter(self, sendbuf, recvbuf, root=0):
        """Scatter equal parts of the root's buffer to the ranks.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Data for all ranks on the root; memory for this rank's part, or IN_PLACE on the root.
        root : int
            Rank of the root.
        """
        cdef long long before = self._s.n_collectives
        cdef int done = 0, at = self._direct_root(root)
        cdef list messages = []
        if at >= 0:
            try:
                done = self._scatter_plain(sendbuf, recvbuf, at, messages)
            except BaseException as problem:
                self._refuse_direct(before, _scatter_kind, at, messages, problem)
                raise
        if not done:
            self._block_scatter(sendbuf, recvbuf, root)
