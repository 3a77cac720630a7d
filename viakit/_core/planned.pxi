# Collectives with a plan and plain arguments: Gatherv, Scatterv, Allgatherv, Alltoallv, Alltoallw, reductions in parts,
# prefixes.
#
# `_prepare` pins the arguments and finds the plan that viakit/comm/collective.py uses for all other arguments. Then the
# collective is counted, and the plan is performed (`_play`). So ranks may take different paths (see rooted.pxi).

cdef enum:
    FIRST_COMPLEX = 10      # types in csrc/coll from here on are complex


cdef inline bint _counts_elements(object buf, int kind) except -1:
    """Return whether a pinned argument counts elements of that type, and not a derived datatype of several."""
    if PyList_CheckExact(buf) or PyTuple_CheckExact(buf):
        last = buf[len(buf) - 1]
        if _is_datatype(last):
            return (<MsgType>last).plain == _kind_sizes[kind]
    return True


cdef int _deliver(Direct d) except -1:
    """Copy the results of a plan from its places to where the caller wants them."""
    cdef Py_ssize_t at
    cdef Places source = d.places, target = d.target
    if target is None:
        return 0
    if (source.spans == NULL and target.spans == NULL and source.others is None and not d.turned
            and source.unit == target.unit):
        return _copy_units(source, d.taken, target, 0, d.n_taken)
    for at in range(d.n_taken):
        _copy_units(source, d.taken + at, target, (d.turned + at) % d.n_taken, 1)
    return 0


cdef class PlannedComm(RootedComm):
    """Collectives of buffers whose parts have different lengths, and reductions that csrc/coll does not have."""

    # ------------------------------------------------------------ arguments; False or None: the general path interprets

    cdef bint _prepare_rooted(self, Direct d, object parts, object mine, bint gathers) except -1:
        """Prepare Gatherv or Scatterv, with the argument for all ranks and that for this rank."""
        cdef Pinned own
        cdef Places all_parts, one
        d.rounds = _plans.star(gathers, self._size, self._rank, d.root)
        if _is_in_place(mine):
            if self._rank != d.root:
                return False
            d.places = _pin_vector(parts, PyBUF_WRITABLE if gathers else 0, self._size)
            return d.places is not None
        own = _pin_message(mine, 0 if gathers else PyBUF_WRITABLE, 1)
        if own is None:
            return False
        d.places = one = _units(own, own.view.len)
        if self._rank != d.root:
            return True
        d.places = all_parts = _pin_vector(parts, PyBUF_WRITABLE if gathers else 0, self._size)
        if all_parts is None or _extent(all_parts, self._rank, 1) != own.view.len:
            return False
        if gathers:
            _copy_units(one, 0, all_parts, self._rank, 1)
        else:
            d.target, d.taken, d.n_taken = one, self._rank, 1
        return True

    cdef bint _prepare_allgatherv(self, Direct d, object sendbuf, object recvbuf) except -1:
        cdef Pinned mine
        cdef Places into
        cdef int i
        cdef Py_ssize_t each
        into = _pin_vector(recvbuf, PyBUF_WRITABLE, self._size)
        if into is None:
            return False
        each = _extent(into, self._rank, 1)
        if not _is_in_place(sendbuf):
            mine = _pin_message(sendbuf, 0, 1)
            if mine is None or mine.view.len != each:
                return False
            _copy_units(_units(mine, each), 0, into, self._rank, 1)
        for i in range(self._size):
            if _extent(into, i, 1) != each:
                each = -1
                break
        if each < 0 or <size_t>each >= coll_long_from(COLL_ALLGATHER, self._size):
            d.places, d.rounds = into, _rounds("allgather", True, self._size, self._rank, 0, 1, ALL_AT_ONCE)
            return True
        d.places = _units(_pin(bytearray(2 * self._size * each)), each)
        d.rounds = _rounds("allgather", False, self._size, self._rank, 0, 1, ALL_AT_ONCE)
        d.target, d.taken, d.n_taken = into, 0, self._size
        return _copy_units(into, self._rank, d.places, self._rank, 1) == 0

    cdef bint _prepare_alltoallv(self, Direct d, object sendbuf, object recvbuf, bint of_types) except -1:
        """Prepare Alltoallv, or Alltoallw with a datatype for each part."""
        cdef Places out, into = _pin_parts(recvbuf, PyBUF_WRITABLE, self._size, of_types)
        if into is None:
            return False
        out = _copied(into, self._size) if _is_in_place(sendbuf) else _pin_parts(sendbuf, 0, self._size, of_types)
        if out is None or _extent(out, self._rank, 1) != _extent(into, self._rank, 1):
            return False
        _copy_units(out, self._rank, into, self._rank, 1)
        out.others, out.first = into, self._size
        d.places = out
        d.rounds = _plans.pairwise(self._size, self._rank, _plans.at_once(self._size, _extent(out, 0, 1)))
        return True

    cdef Pinned _operand(self, Direct d, object sendbuf, object recvbuf, object op, int blocks):
        """Pin the operand of a reduction; set its type and operation, and its number in tags."""
        cdef int number = _number_of(op), kind
        cdef bint in_place = _is_in_place(sendbuf)
        cdef Pinned out
        if number < 0:
            return None
        sendbuf = recvbuf if in_place else sendbuf
        out = _pin_message(sendbuf, PyBUF_WRITABLE if in_place else 0, blocks)
        if out is None:
            return None
        kind = _element_kind(sendbuf, &out.view)
        if (kind == COLL_NO_TYPE or kind >= FIRST_COMPLEX or not coll_combines(kind, number)
                or not _counts_elements(sendbuf, kind) or out.view.len % _kind_sizes[kind]):
            return None
        d.element, d.op, d.root = kind, number, _op_numbers.get(op.name, 0)
        return out

    cdef Pinned _result(self, Direct d, object recvbuf, Py_ssize_t nbytes):
        """Pin the result of a reduction, of the same type as the operand. A negative *nbytes*: of any length."""
        cdef Pinned into = _pin_message(recvbuf, PyBUF_WRITABLE, 1)
        if (into is None or 0 <= nbytes != into.view.len or _element_kind(recvbuf, &into.view) != d.element
                or not _counts_elements(recvbuf, d.element)):
            return None
        return into

    cdef list _all_counts(self, Direct d, Py_ssize_t mine, Py_ssize_t total):
        """Return the counts of all ranks. The reduction is counted before this collective, as on the general path."""
        self._count(d)
        counts = self._gather_all(mine)
        if sum(counts) != total:
            raise _plans.uneven(counts, total)
        return list(counts)

    cdef bint _prepare_parts(self, Direct d, object sendbuf, object recvbuf, object op, object counts,
                             bint in_blocks) except -1:
        """Prepare a reduction of which each rank gets a part.

        `counts` has the length of each part. Without it parts are equal if they are blocks or in place. Otherwise each
        is as long as the result of its rank, and the ranks exchange these lengths.
        """
        cdef bint in_place = _is_in_place(sendbuf)
        cdef Pinned out = self._operand(d, sendbuf, recvbuf, op, self._size if in_blocks else 1), into = out
        cdef Places parts
        cdef int i, n = self._size
        cdef Py_ssize_t each, at = 0
        if out is None:
            return False
        each = _kind_sizes[d.element]
        parts = _parts(out, n)
        if counts is None and not in_blocks and not in_place:
            into = self._result(d, recvbuf, -1)
            if into is None or into.view.len % each:
                return False
            counts = self._all_counts(d, into.view.len // each, out.view.len // each)
        if counts is None:
            counts = [out.view.len // each // n] * n
        if not _read_numbers(counts, n, parts.spans + 1, 2) or not _place_parts(parts, None, n, each):
            return False
        for i in range(n):
            at += _extent(parts, i, 1)
        each = _extent(parts, self._rank, 1)
        if not in_place:
            into = self._result(d, recvbuf, each)
        if into is None or at != out.view.len:
            return False
        parts.others, parts.first = _units(_pin(bytearray(n * each)), each), n
        _copy_units(parts, self._rank, parts, n + self._rank, 1)
        d.places, d.rounds = parts, _plans.everyone(n, self._rank)
        d.target, d.taken, d.n_taken = _units(into, each), n, 1
        return True

    cdef bint _prepare_prefix(self, Direct d, object sendbuf, object recvbuf, object op,
                              bint exclusive) except -1:
        cdef Pinned mine = self._operand(d, sendbuf, recvbuf, op, 1), into
        cdef Py_ssize_t each
        cdef int received = 0       # messages, at most
        if mine is None:
            return False
        each = mine.view.len
        into = self._result(d, recvbuf, each)
        if into is None:
            return False
        while 1 << received < self._size:
            received += 1
        d.rounds = _plans.prefix(self._size, self._rank)
        d.places = _units(_pin(bytearray((2 + received) * each)), each)
        d.target, d.taken, d.n_taken = _units(into, each), 1 if exclusive else 0, 1
        if exclusive and self._rank == 0:
            d.target = None
        return _copy_units(_units(mine, each), 0, d.places, 0, 1) == 0

    cdef bint _prepare(self, Planned call, Direct d, object sendbuf, object recvbuf, object op,
                       object counts) except -1:
        if call == GATHERV:
            return self._prepare_rooted(d, recvbuf, sendbuf, True)
        if call == SCATTERV:
            return self._prepare_rooted(d, sendbuf, recvbuf, False)
        if call == ALLGATHERV:
            return self._prepare_allgatherv(d, sendbuf, recvbuf)
        if call == ALLTOALLV or call == ALLTOALLW:
            return self._prepare_alltoallv(d, sendbuf, recvbuf, call == ALLTOALLW)
        if call == REDUCE_SCATTER_BLOCK:
            return self._prepare_parts(d, sendbuf, recvbuf, op, None, True)
        if call == REDUCE_SCATTER:
            return self._prepare_parts(d, sendbuf, recvbuf, op, counts, False)
        return self._prepare_prefix(d, sendbuf, recvbuf, op, call == EXSCAN)

    cdef bint _perform(self, Planned call, object sendbuf, object recvbuf, object root, object op,
                       object counts) except -1:
        """Perform a collective, unless the general path must: then return False, and nothing has been sent."""
        cdef int at = self._plain_root(root)
        cdef Direct d
        if at < 0:
            return False
        d = self._direct(_PLANNED[<int>call], at)
        try:
            if not self._prepare(call, d, sendbuf, recvbuf, op, counts):
                return False
            if not d.counted:
                self._count(d)
            self._play(d, d.places, d.rounds)
            _deliver(d)
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise
        return True

    # ------------------------------------------------------------ parts of different lengths

    def Gatherv(self, sendbuf, recvbuf, root=0):
        """Gather buffers to the root, with a count and a displacement for each rank.

        Parameters
        ----------
        sendbuf : buffer or list
            Data of this rank, or IN_PLACE on the root.
        recvbuf : list
            On the root [buffer, counts, displacements, datatype]; ignored on other ranks.
        root : int
            Rank of the root.
        """
        if not self._perform(GATHERV, sendbuf, recvbuf, root, None, None):
            self._block_gatherv(sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf, recvbuf, root=0):
        """Scatter parts of the root's buffer, with a count and a displacement for each rank.

        Parameters
        ----------
        sendbuf : list
            On the root [buffer, counts, displacements, datatype]; ignored on other ranks.
        recvbuf : buffer or list
            Memory for this rank's part, or IN_PLACE on the root.
        root : int
            Rank of the root.
        """
        if not self._perform(SCATTERV, sendbuf, recvbuf, root, None, None):
            self._block_scatterv(sendbuf, recvbuf, root)

    def Allgatherv(self, sendbuf, recvbuf):
        """Gather buffers to all ranks, with a count and a displacement for each rank.

        Parameters
        ----------
        sendbuf : buffer or list
            Data of this rank, or IN_PLACE if it is in `recvbuf`.
        recvbuf : list
            [buffer, counts, displacements, datatype].
        """
        if not self._perform(ALLGATHERV, sendbuf, recvbuf, 0, None, None):
            self._block_allgatherv(sendbuf, recvbuf)

    def Alltoallv(self, sendbuf, recvbuf):
        """Exchange parts of the buffers, with a count and a displacement for each rank.

        Parameters
        ----------
        sendbuf, recvbuf : list
            [buffer, counts, displacements, datatype] of the parts for all ranks, or IN_PLACE if they are in `recvbuf`;
            the same for the parts received.
        """
        if not self._perform(ALLTOALLV, sendbuf, recvbuf, 0, None, None):
            self._block_alltoallv(sendbuf, recvbuf)

    def Alltoallw(self, sendbuf, recvbuf):
        """Exchange parts of the buffers, with a count, a displacement in bytes and a datatype for each rank.

        Parameters
        ----------
        sendbuf, recvbuf : list
            [buffer, counts, displacements, datatypes] of the parts for all ranks, or IN_PLACE if they are in `recvbuf`;
            the same for the parts received.
        """
        if not self._perform(ALLTOALLW, sendbuf, recvbuf, 0, None, None):
            self._block_alltoallw(sendbuf, recvbuf)

    # ------------------------------------------------------------ reductions

    def Reduce_scatter_block(self, sendbuf, recvbuf, op=None):
        """Combine the buffers of all ranks and scatter the result in equal parts.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Operands for all ranks, or IN_PLACE if they are in `recvbuf`; memory for this rank's part of the result.
        op : Op, optional
            Operation. Default: SUM.
        """
        op = _sum if op is None else op
        if not self._perform(REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, 0, op, None):
            self._block_reduce_scatter_block(sendbuf, recvbuf, op)

    def Reduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=None):
        """Combine the buffers of all ranks and scatter the result, with a count for each rank.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Operands for all ranks, or IN_PLACE if they are in `recvbuf`; memory for this rank's part of the result.
        recvcounts : sequence of int, optional
            Elements of the result for each rank. Default: as many as the receive buffers hold.
        op : Op, optional
            Operation. Default: SUM.
        """
        op = _sum if op is None else op
        if not self._perform(REDUCE_SCATTER, sendbuf, recvbuf, 0, op, recvcounts):
            self._block_reduce_scatter(sendbuf, recvbuf, recvcounts, op)

    def Scan(self, sendbuf, recvbuf, op=None):
        """Combine the buffers of ranks 0 to this one.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Operand of this rank, or IN_PLACE if it is in `recvbuf`; memory for the result.
        op : Op, optional
            Operation. Default: SUM.
        """
        op = _sum if op is None else op
        if not self._perform(SCAN, sendbuf, recvbuf, 0, op, None):
            self._block_scan(sendbuf, recvbuf, op)

    def Exscan(self, sendbuf, recvbuf, op=None):
        """Combine the buffers of all lower ranks. The result on rank 0 is undefined.

        Parameters
        ----------
        sendbuf, recvbuf : buffer or list
            Operand of this rank, or IN_PLACE if it is in `recvbuf`; memory for the result.
        op : Op, optional
            Operation. Default: SUM.
        """
        op = _sum if op is None else op
        if not self._perform(EXSCAN, sendbuf, recvbuf, 0, op, None):
            self._block_exscan(sendbuf, recvbuf, op)
