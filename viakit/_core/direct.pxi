# Collectives of objects at the cost of their messages, which are those of viakit/comm/collective.py: the length of a
# pickle, then the pickle. Ranks of one collective may take this path or the general one (see rooted.pxi).

cdef enum:
    HEAD = 8                # bytes of a pickle's length: little-endian, unsigned
    ALL_AT_ONCE = 1 << 30   # exchanges of a round


cdef object _dumped(object obj):
    """Return the whole pickle of an object."""
    return _dumps(obj, 5) if _pickling.plain else _pickling.dumps(obj)


cdef object _restored(object data):
    """Return the object of a pickle. No bytes at all give None, as in mpi4py."""
    if not len(data):
        return None
    return _loads(data) if _pickling.plain else _pickling.loads(data)


cdef Py_ssize_t _length(Pinned heads, int i) except -1:
    """Return the length in head i."""
    cdef const uint8_t *head = <const uint8_t *>heads.view.buf + HEAD * i
    cdef uint64_t n = 0
    cdef int k
    for k in range(HEAD):
        n |= <uint64_t>head[k] << 8 * k
    if n >> 62:
        raise MemoryError(f"a rank sends a pickle of {n} bytes")
    return <Py_ssize_t>n


cdef int _set_length(Pinned heads, int i, uint64_t n) except -1:
    cdef uint8_t *head = <uint8_t *>heads.view.buf + HEAD * i
    cdef int k
    for k in range(HEAD):
        head[k] = <uint8_t>(n >> 8 * k & 0xFF)
    return 0


cdef class DirectComm(PendingComm):
    """Collectives of objects, without the general path's cost."""

    cdef Direct _direct_objects(self, str name, object root):
        """Return a collective of objects that is not counted yet; None if the general path must do it."""
        cdef int at = self._plain_root(root)
        return None if at < 0 or self.world.seal is not None else self._direct(name, at)

    # ------------------------------------------------------------ pickles between two ranks, and from one to all

    cdef int _start_pickles(self, Direct d, list pickles, list ranks) except -1:
        """Start to send each rank its pickle."""
        cdef Pinned heads = _pin(bytearray(HEAD * len(ranks))), data
        cdef int i
        for i in range(len(ranks)):
            data = _pin(pickles[i])
            _set_length(heads, i, data.view.len)
            self._message(d, heads, HEAD * i, HEAD, ranks[i], False)
            self._message(d, data, 0, data.view.len, ranks[i], False)
        return 0

    cdef list _receive_pickles(self, Direct d, list ranks):
        """Receive a pickle from each rank: all lengths first."""
        cdef Pinned heads = _pin(bytearray(HEAD * len(ranks)))
        cdef list pickles = []
        cdef int i
        for i in range(len(ranks)):
            self._message(d, heads, HEAD * i, HEAD, ranks[i], True)
        self._await(d)
        for i in range(len(ranks)):
            pickles.append(bytearray(_length(heads, i)))
            self._message(d, _pin(pickles[i]), 0, len(pickles[i]), ranks[i], True)
        self._await(d)
        return pickles

    cdef int _spread(self, Direct d, Pinned data) except -1:
        """Broadcast the root's bytes: short ones by a tree as one unit, long ones by the algorithm for long data."""
        cdef Py_ssize_t n = data.view.len
        if <size_t>n < coll_long_from(COLL_BCAST, self._size):
            self._play(d, _units(data, n), _rounds("bcast", False, self._size, self._rank, d.root, 1, ALL_AT_ONCE))
        else:
            self._play(d, _units(data, 1), _rounds("bcast", True, self._size, self._rank, d.root, n, ALL_AT_ONCE))
        return 0

    cdef object _spread_pickle(self, Direct d, object data):
        """Broadcast the root's pickle, and return it. `data` is ignored on other ranks."""
        cdef Pinned head = _pin(bytearray(HEAD)), body
        cdef bint is_root = self._rank == d.root
        if is_root:
            body = _pin(data)
            _set_length(head, 0, body.view.len)
        self._spread(d, head)
        if not is_root:
            data = bytearray(_length(head, 0))
            body = _pin(data)
        if body.view.len:
            self._spread(d, body)
        return data

    # ------------------------------------------------------------ broadcast, gather, scatter

    def bcast(self, obj, root=0):
        """Broadcast the root's object to all ranks, and return it.

        Parameters
        ----------
        obj : object
            Object to send; ignored on other ranks than the root.
        root : int
            Rank of the root.
        """
        cdef Direct d = self._direct_objects("bcast(object)", root)
        if d is None:
            return self._bcast_any(obj, root)
        try:
            self._count(d)
            data = _dumped(obj) if self._rank == d.root else None
            data = self._spread_pickle(d, data)
            return obj if self._rank == d.root else _restored(data)
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise

    def gather(self, sendobj, root=0):
        """Gather the objects of all ranks to the root.

        Parameters
        ----------
        sendobj : object
            Object of this rank.
        root : int
            Rank of the root.

        Returns
        -------
        list or None
            The objects in the order of ranks on the root, None on other ranks.
        """
        cdef Direct d = self._direct_objects("gather(object)", root)
        if d is None:
            return self._gather_any(sendobj, root)
        try:
            self._count(d)
            data = _dumped(sendobj)
            if self._rank != d.root:
                self._start_pickles(d, [data], [d.root])
                self._await(d)
                return None
            pickles = self._receive_pickles(d, [i for i in range(self._size) if i != d.root])
            pickles.insert(d.root, data)
            return [_restored(one) for one in pickles]
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise

    def scatter(self, sendobj, root=0):
        """Scatter the items of the root's sequence to the ranks.

        Parameters
        ----------
        sendobj : sequence or None
            One item for each rank; ignored on other ranks than the root.
        root : int
            Rank of the root.

        Returns
        -------
        object
            The item of this rank.
        """
        cdef Direct d = self._direct_objects("scatter(object)", root)
        if d is None or (self._rank == d.root
                         and (type(sendobj) not in (list, tuple) or len(sendobj) != self._size)):
            return self._scatter_any(sendobj, root)
        try:
            self._count(d)
            if self._rank != d.root:
                return _restored(self._receive_pickles(d, [d.root])[0])
            pickles = [_dumped(item) for item in tuple(sendobj)]
            mine = pickles.pop(d.root)
            self._start_pickles(d, pickles, [i for i in range(self._size) if i != d.root])
            self._await(d)
            return _restored(mine)
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise

    # ------------------------------------------------------------ allgather, alltoall, allreduce

    cdef list _all_pickles(self, Direct d, object data):
        """Gather the pickles of all ranks: the lengths by Bruck's algorithm, the pickles by a ring."""
        cdef int n = self._size, i, kind, to, source, out, into
        cdef Pinned heads = _pin(bytearray(2 * n * HEAD))
        cdef list parts
        _set_length(heads, self._rank, len(data))
        self._play(d, _units(heads, HEAD), _rounds("allgather", False, n, self._rank, 0, 1, ALL_AT_ONCE))
        parts = [data if i == self._rank else bytearray(_length(heads, i)) for i in range(n)]
        for now in _rounds("allgather", True, n, self._rank, 0, 1, ALL_AT_ONCE):
            for kind, to, source, out, _, into, _, _ in now:
                if kind != EXCHANGE:
                    raise SystemError("a ring of pickles has exchanges only")
                if source >= 0:
                    self._message(d, _pin(parts[into]), 0, len(parts[into]), source, True)
            for kind, to, source, out, _, into, _, _ in now:
                if to >= 0:
                    self._message(d, _pin(parts[out]), 0, len(parts[out]), to, False)
            self._await(d)
        return parts

    def allgather(self, sendobj):
        """Gather the objects of all ranks to all ranks.

        Parameters
        ----------
        sendobj : object
            Object of this rank.

        Returns
        -------
        list
            The objects in the order of ranks.
        """
        cdef Direct d = self._direct_objects("allgather(object)", 0)
        if d is None:
            return self._allgather_any(sendobj)
        try:
            self._count(d)
            data = _dumped(sendobj)
            return [_restored(one) for one in self._all_pickles(d, data)]
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise

    def _allgather_block(self, bytes block):
        """Gather blocks of equal length, and return the list of them: an allgather of objects without their pickles."""
        cdef Direct d = self._direct_objects("allgather(object)", 0)
        cdef Py_ssize_t i, each = len(block)
        cdef Pinned have
        cdef char *place
        if d is None:
            return self._allgather_block_any(block)
        try:
            self._count(d)
            have = _pin(bytearray(2 * self._size * each))
            place = <char *>have.view.buf
            memcpy(place + self._rank * each, PyBytes_AS_STRING(block), each)
            self._play(d, _units(have, each), _rounds("allgather", False, self._size, self._rank, 0, 1, ALL_AT_ONCE))
            return [PyBytes_FromStringAndSize(place + i * each, each) for i in range(self._size)]
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise

    def _meet_at_once(self):
        """Exchange a message with each rank (`meet` in collective.py). Return False if the general path must do it."""
        cdef Direct d
        if self._plain_root(0) < 0:
            return False
        d = self._direct("barrier", 0)
        try:
            self._count(d)
            self._play(d, _nothing, _plans.meeting(self._size, self._rank))
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise
        return True

    cdef list _swapped_pickles(self, Direct d, list pickles):
        """Send each rank its pickle, and return those received: all lengths first."""
        cdef int n = self._size, i
        cdef Pinned sent = _pin(bytearray(n * HEAD)), heads = _pin(bytearray(n * HEAD))
        cdef list pinned = [_pin(one) for one in pickles], into = list(pickles)
        for i in range(n):
            _set_length(sent, i, (<Pinned>pinned[i]).view.len)
            if i != self._rank:
                self._message(d, heads, HEAD * i, HEAD, i, True)
        for i in range(n):
            if i != self._rank:
                self._message(d, sent, HEAD * i, HEAD, i, False)
        self._await(d)
        for i in range(n):
            if i != self._rank:
                into[i] = bytearray(_length(heads, i))
                self._message(d, _pin(into[i]), 0, len(into[i]), i, True)
        for i in range(n):
            if i != self._rank:
                self._message(d, pinned[i], 0, (<Pinned>pinned[i]).view.len, i, False)
        self._await(d)
        return into

    def alltoall(self, sendobj):
        """Send one item to each rank, and return the list of items received, in the order of ranks.

        Parameters
        ----------
        sendobj : sequence or None
            One item for each rank; None sends None to each.
        """
        cdef Direct d = self._direct_objects("alltoall(object)", 0)
        if d is None or type(sendobj) not in (list, tuple) or len(sendobj) != self._size:
            return self._alltoall_any(sendobj)
        try:
            self._count(d)
            pickles = [_dumped(item) for item in tuple(sendobj)]
            return [_restored(one) for one in self._swapped_pickles(d, pickles)]
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise

    cdef object _reduced(self, Direct d, object have, object op):
        """Reduce objects by a binomial tree to rank 0, in the order of ranks; return this rank's partial result."""
        cdef int kind, to, source
        cdef list pickles
        other = None
        for ((kind, to, source, _, _, _, _, _),) in _rounds("reduce", False, self._size, self._rank, 0, 1, 1):
            if kind != EXCHANGE:
                have = op(have, other)
            elif to >= 0:
                self._start_pickles(d, [_dumped(have)], [to])
                self._await(d)
            else:
                pickles = self._receive_pickles(d, [source])
                other = _restored(pickles[0])
        return have

    def allreduce(self, sendobj, op=None):
        """Combine the objects of all ranks in the order of ranks, with the result on all ranks.

        Parameters
        ----------
        sendobj : object
            Operand of this rank.
        op : Op or callable, optional
            Function of two operands. Default: their sum.

        Returns
        -------
        object
            The result.
        """
        cdef Direct d = self._direct_objects("allreduce(object)", 0)
        op = _sum if op is None else op
        if d is None:
            return self._allreduce_any(sendobj, op)
        try:
            self._count(d)
            have = self._reduced(d, _restored(_dumped(sendobj)), op)
            data = self._spread_pickle(d, _dumped(have) if self._rank == 0 else None)
            return have if self._rank == 0 else _restored(data)
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise

    def reduce(self, sendobj, op=None, root=0):
        """Combine the objects of all ranks on the root, in the order of ranks.

        Parameters
        ----------
        sendobj : object
            Operand of this rank.
        op : Op or callable, optional
            Function of two operands. Default: their sum.
        root : int
            Rank of the root.

        Returns
        -------
        object
            The result on the root, None on other ranks.
        """
        cdef Direct d = self._direct_objects("reduce(object)", root)
        op = _sum if op is None else op
        if d is None:
            return self._reduce_objects_any(sendobj, op, root)
        try:
            self._count(d)
            have = self._reduced(d, _restored(_dumped(sendobj)), op)
            if d.root and self._rank == 0:
                self._start_pickles(d, [_dumped(have)], [d.root])
                self._await(d)
            elif d.root and self._rank == d.root:
                have = _restored(self._receive_pickles(d, [0])[0])
            return have if self._rank == d.root else None
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise

    cdef object _prefix(self, object obj, object op, bint exclusive):
        """Combine along the chain of ranks: each rank sends its prefix to the next."""
        cdef Direct d = self._direct_objects("exscan(object)" if exclusive else "scan(object)", 0)
        cdef int after = self._rank + 1
        if d is None:
            return self._exscan_any(obj, op) if exclusive else self._scan_any(obj, op)
        try:
            self._count(d)
            before = _restored(self._receive_pickles(d, [self._rank - 1])[0]) if self._rank else None
            have = _restored(_dumped(obj))
            if self._rank:
                have = op(before, have)
            if after < self._size:
                self._start_pickles(d, [_dumped(have)], [after])
                self._await(d)
            return before if exclusive else have
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise

    def scan(self, sendobj, op=None):
        """Combine the objects of ranks 0 to this one, and return the result.

        Parameters
        ----------
        sendobj : object
            Operand of this rank.
        op : Op or callable, optional
            Function of two operands. Default: their sum.
        """
        return self._prefix(sendobj, _sum if op is None else op, False)

    def exscan(self, sendobj, op=None):
        """Combine the objects of all lower ranks, and return the result; None on rank 0.

        Parameters
        ----------
        sendobj : object
            Operand of this rank.
        op : Op or callable, optional
            Function of two operands. Default: their sum.
        """
        return self._prefix(sendobj, _sum if op is None else op, True)
