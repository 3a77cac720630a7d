# Gather and scatter of plain arguments by messages, at the cost of the messages.
#
# viakit/comm/collective.py performs the same collectives for every kind of argument, as schedules. The paths here
# exchange the same messages under the same tags. So the ranks of one collective may take different paths:
#
#     plain arguments, blocking                here; IN_PLACE by a plan (planned.pxi)
#     plain arguments, non-blocking            plan_request.pxi, by the methods here
#     all else (derived datatypes, ...)        _block_gather and its like: schedules
#
# A rank that has waited for CHECK_MS continues with a Step (viakit/comm/step.py), which detects dead ranks and
# mismatched collectives.

cdef enum:
    COLLECTIVE_PART = 1     # context of the messages: _PART of viakit/comm/step.py
    CHECK_MS = 50           # wait between two checks: _LOOK_S of viakit/comm/schedule.py
    SPARE = 64              # messages that a world keeps
    SHORT_TREE = 8192       # bytes of one rank up to which a tree is used: _SHORT_TREE of viakit/comm/collective.py
    EXCHANGE = 0            # kinds of a step of a plan; the third copies
    COMBINE = 1

cdef object _rounds = None          # viakit.comm.collective: the messages of an algorithm
cdef object _tree = None            # ... and those of a gather or scatter by a tree
cdef object _plans = None           # the module, with the plans of planned.pxi
cdef list _kinds = []               # names of collectives by their numbers in tags
cdef dict _kind_numbers = {}        # the numbers by names
cdef dict _op_numbers = {}          # numbers of operations in tags by their names; others have 0


def set_collective_kinds(plans, list kinds, dict op_numbers):
    """Set the module of plans, the names of collectives in the order of tags, and the numbers of operations in tags.

    :mod:`viakit.comm` calls it once.
    """
    global _rounds, _tree, _plans, _kinds, _kind_numbers, _op_numbers
    _rounds, _tree, _plans, _kinds, _op_numbers = plans.rounds, plans.tree, plans, kinds, op_numbers
    _kind_numbers = {kind: number for number, kind in enumerate(kinds)}


cdef class Direct:
    """One collective on the short path."""

    cdef int kind, root, tag        # root: low bits of the tag; of reductions to all ranks, the operation's number
    cdef bint counted
    cdef long long before           # number of collectives before it
    cdef list messages              # of the current round
    cdef Places places              # units of the plan
    cdef object rounds              # the plan
    cdef int element, op            # of its combinations: numbers in csrc/coll
    cdef Places target              # for units from `taken` on, when the plan has been performed; None: nothing to copy
    cdef Py_ssize_t taken, n_taken
    cdef int turned                 # the first of them belongs to this place, the others to the next ones, in a circle


cdef class RootedComm(CollectiveComm):
    """Collectives by messages between a root and the other ranks."""

    # ------------------------------------------------------------ the messages of one collective

    cdef int _plain_root(self, object root) except -2:
        """Return the root's rank; -1 if the general path must check it, or must do the collective."""
        cdef long rank
        cdef int overflow
        if (not PyLong_CheckExact(root) or self._s.context < 0 or self._s.freed or self._s.scope.revoked
                or self.world._w == NULL or self.world._ending or self.world._generation != _generation):
            return -1
        rank = PyLong_AsLongAndOverflow(root, &overflow)
        return <int>rank if 0 <= rank < self._size else -1

    cdef Direct _direct(self, str name, int root):
        """Return a collective that is not counted yet."""
        cdef Direct d = Direct.__new__(Direct)
        d.kind, d.root, d.before, d.messages = _kind_numbers[name], root, self._s.n_collectives, []
        return d

    cdef int _count(self, Direct d) except -1:
        """Count a collective. Objects are pickled later, because that may call other collectives."""
        cdef long long number = self._s.n_collectives + 1
        d.before = self._s.n_collectives  # again: the arguments may be of a class whose methods have called others
        self._s.n_collectives = number
        d.counted = True
        if not number & 1023:
            _words.sweep(self, number)
        d.tag = <int>((number & 0xFFFF) << 14 | d.kind << 8 | d.root & 0xFF)
        return 0

    cdef int _message(self, Direct d, Pinned data, Py_ssize_t at, Py_ssize_t n, int peer, bint receives) except -1:
        """Start to send *n* bytes to a rank, or to receive exactly so many from it."""
        cdef MsgRequest request = self._new_message()
        cdef int code, context = self._at(COLLECTIVE_PART), target = self._target(peer, False)
        cdef char *where = <char *>data.view.buf + at
        self.world._open()
        request._comm = self
        PyBuffer_FillInfo(&request._view, data, where, n, 0, PyBUF_WRITABLE)
        request._pinned = True
        if receives:
            request.collective, request.awaited, request.exact = _kinds[d.kind], peer, n
            code = msg_irecv(self.world._w, context, where, n, target, d.tag, &request._r)
        else:
            code = msg_isend(self.world._w, context, where, n, target, d.tag, MSG_STANDARD, &request._r)
        d.messages.append(request)  # before the check, which raises after a signal: the message may be under way
        self.world._check(code)
        return 0

    cdef MsgRequest _new_message(self):
        """Return a request for a message: one that has ended, if there is one."""
        cdef list spare = self.world.spare
        cdef MsgRequest request
        if not spare:
            return MsgRequest.__new__(MsgRequest)
        request = spare.pop()
        request.ended, request.collective = False, None
        memset(&request._status, 0, sizeof(request._status))
        return request

    cdef int _reuse_messages(self, Direct d) except -1:
        """Keep the messages of a round, all of which have ended, for later collectives."""
        cdef MsgRequest message
        cdef list spare = self.world.spare
        for message in d.messages:
            if len(spare) >= SPARE:
                break
            if message.ended and message._r == NULL:
                message._comm = None
                spare.append(message)
        return 0

    cdef int _await(self, Direct d) except -1:
        """Wait for the messages of a round, and check now and then whether they can still arrive."""
        cdef MsgRequest message
        step = None
        for message in d.messages:
            while not (self._wait_beside(message) if self.world.n_active else message._wait(CHECK_MS)):
                if step is None:
                    step = _words.Step.resume(self, d.kind, d.root, d.before + 1, d.messages)
                step.check()
        if step is None:
            self._reuse_messages(d)
        d.messages.clear()
        return 0

    cdef bint _wait_beside(self, MsgRequest message) except -1:
        """Wait up to CHECK_MS for a message while other operations of this process make progress.

        Any event of the world ends a wait: it may be the message that another operation needs for its next round.
        """
        cdef MsgWorld world = self.world
        cdef int64_t began = _now_ns()
        world._open()
        while not message.ended:
            msg_progress(world._w)
            world.step()
            world._open()
            if message._r == NULL or msg_request_peek(world._w, message._r, NULL):
                message._wait(0)
            elif _now_ns() - began > CHECK_MS * 1000000:
                return False
            else:
                world.idle(0.001)
        return True

    cdef int _refuse_direct(self, Direct d, object problem) except -1:
        """Give up a collective whose arguments were refused, or whose messages failed."""
        if self._s.freed or self.world.closed:
            return 0
        if not d.counted:
            d.before = self._s.n_collectives
        self._s.n_collectives = max(self._s.n_collectives, d.before + 1)
        if not d.counted:  # its tag may not be complete
            _words.give_up(self, d.before + 1, problem)
            return 0
        _words.Step.resume(self, d.kind, d.root, d.before + 1, d.messages).give_up(problem)
        return 0

    cdef int _exchange_units(self, Direct d, Places places, Py_ssize_t at, Py_ssize_t n, int peer,
                             bint receives) except -1:
        """Start to send units to a rank, or to receive them from it."""
        cdef Places holder = _holder(places, &at)
        return self._message(d, holder.pinned, _offset(holder, at), _extent(holder, at, n), peer, receives)

    cdef int _combine_units(self, Direct d, Places places, Py_ssize_t low, Py_ssize_t high, Py_ssize_t n,
                            Py_ssize_t result) except -1:
        """Write *n* units at *low*, combined with those at *high*, to *result*."""
        cdef Places a = _holder(places, &low), b = _holder(places, &high), to = _holder(places, &result)
        cdef size_t count = <size_t>(_extent(a, low, n) // _kind_sizes[d.element])
        cdef char *left = _address(a, low)
        cdef char *right = _address(b, high)
        cdef char *target = _address(to, result)
        with nogil:
            coll_combine(d.element, d.op, count, left, right, target)
        return 0

    cdef int _play(self, Direct d, Places places, object rounds) except -1:
        """Perform a plan."""
        for now in rounds:
            self._start_round(d, places, now)
            self._await(d)
        return 0

    cdef int _start_round(self, Direct d, Places places, list now) except -1:
        """Perform the local steps of a round, and start its messages."""
        cdef int kind, to, source
        cdef Py_ssize_t out, out_n, into, in_n, result
        for kind, to, source, out, out_n, into, in_n, result in now:
            if kind == COMBINE:
                self._combine_units(d, places, out, into, out_n, result)
            elif kind != EXCHANGE:
                _copy_units(places, out, places, result, out_n)
            elif source >= 0:
                self._exchange_units(d, places, into, in_n, source, True)
        for kind, to, source, out, out_n, into, in_n, result in now:
            if kind == EXCHANGE and to >= 0:
                self._exchange_units(d, places, out, out_n, to, False)
        return 0

    # ------------------------------------------------------------ gather and scatter

    cdef int _gather_to(self, Pinned mine, Pinned into, Direct d) except -1:
        """Gather parts of equal length, by a tree if they are short and many. `into` is the root's."""
        cdef Py_ssize_t each = mine.view.len
        cdef int i, root = d.root
        cdef Pinned have
        cdef char *place
        self._count(d)
        if self._size > 3 and each <= SHORT_TREE:
            have = _pin(bytearray(each * self._size))
            place = <char *>have.view.buf
            memcpy(place + (self._rank - root + self._size) % self._size * each, mine.view.buf, each)
            self._play(d, _units(have, each), _tree(True, self._size, self._rank, root))
            for i in range(self._size if into is not None else 0):
                memcpy(<char *>into.view.buf + i * each, place + (i - root + self._size) % self._size * each, each)
            return 0
        if into is None:
            self._message(d, mine, 0, each, root, False)
        else:
            for i in range(self._size):
                if i != root:
                    self._message(d, into, i * each, each, i, True)
            memmove(<char *>into.view.buf + root * each, mine.view.buf, each)
        self._await(d)
        return 0

    cdef int _gather_plain(self, object sendbuf, object recvbuf, Direct d) except -1:
        """Gather plain buffers; return 0 if they are not plain or do not fit (then the general path checks them)."""
        cdef Pinned mine, into = None
        if _is_in_place(sendbuf):
            return 0
        mine = _pin_message(sendbuf, 0, 1)
        if mine is None:
            return 0
        if self._rank == d.root:
            into = _pin_message(recvbuf, PyBUF_WRITABLE, self._size)
            if into is None or into.view.len != mine.view.len * self._size:
                return 0
        self._gather_to(mine, into, d)
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
        cdef int done = 0, at = self._plain_root(root)
        cdef Direct d
        if at >= 0:
            d = self._direct("gather", at)
            try:
                done = self._gather_plain(sendbuf, recvbuf, d)
            except BaseException as problem:
                self._refuse_direct(d, problem)
                raise
        if not done and not (_is_in_place(sendbuf) and self._perform(GATHER, sendbuf, recvbuf, root, None, None)):
            self._block_gather(sendbuf, recvbuf, root)

    cdef int _scatter_from(self, Pinned out, Pinned mine, Direct d) except -1:
        """Scatter parts of equal length, by a tree if they are short and many. `out` is the root's."""
        cdef Py_ssize_t each = mine.view.len
        cdef int i, root = d.root
        cdef Pinned have
        cdef char *place
        self._count(d)
        if self._size > 3 and each <= SHORT_TREE:
            have = _pin(bytearray(each * self._size))
            place = <char *>have.view.buf
            for i in range(self._size if out is not None else 0):
                memcpy(place + (i - root + self._size) % self._size * each, <char *>out.view.buf + i * each, each)
            self._play(d, _units(have, each), _tree(False, self._size, self._rank, root))
            memcpy(mine.view.buf, place + (self._rank - root + self._size) % self._size * each, each)
            return 0
        if out is None:
            self._message(d, mine, 0, each, root, True)
        else:
            for i in range(self._size):
                if i != root:
                    self._message(d, out, i * each, each, i, False)
            memmove(mine.view.buf, <char *>out.view.buf + root * each, each)
        self._await(d)
        return 0

    cdef int _scatter_plain(self, object sendbuf, object recvbuf, Direct d) except -1:
        """Scatter plain buffers; return 0 if they are not plain or do not fit (then the general path checks them)."""
        cdef Pinned mine, out = None
        if _is_in_place(recvbuf):
            return 0
        mine = _pin_message(recvbuf, PyBUF_WRITABLE, 1)
        if mine is None:
            return 0
        if self._rank == d.root:
            out = _pin_message(sendbuf, 0, self._size)
            if out is None or out.view.len != mine.view.len * self._size:
                return 0
        self._scatter_from(out, mine, d)
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
        cdef int done = 0, at = self._plain_root(root)
        cdef Direct d
        if at >= 0:
            d = self._direct("scatter", at)
            try:
                done = self._scatter_plain(sendbuf, recvbuf, d)
            except BaseException as problem:
                self._refuse_direct(d, problem)
                raise
        if not done and not (_is_in_place(recvbuf) and self._perform(SCATTER, sendbuf, recvbuf, root, None, None)):
            self._block_scatter(sendbuf, recvbuf, root)
