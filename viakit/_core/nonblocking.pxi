# Non-blocking collectives with plain arguments. For all other arguments the general path begins (`_begin_bcast`, ...),
# before anything has been sent. The plans, messages and tags are those of viakit/comm/collective.py, so ranks may take
# different paths.

cdef Places _nothing = _units(_pin(b""), 0)


cdef class PendingComm(PlannedComm):
    """Non-blocking collectives, and the plans that they have beside those of planned.pxi."""

    # ------------------------------------------------------------ arguments; False: the general path interprets them

    cdef bint _prepare_bcast(self, Direct d, object buf) except -1:
        cdef Pinned data = _pin_message(buf, PyBUF_WRITABLE if self._rank != d.root else 0, 1)
        cdef bint is_long
        cdef Py_ssize_t length
        if data is None:
            return False
        is_long = <size_t>data.view.len >= coll_long_from(COLL_BCAST, self._size)
        d.places = _units(data, 1 if is_long else data.view.len)
        length = data.view.len if is_long else 1
        d.rounds = _rounds("bcast", is_long, self._size, self._rank, d.root, length, ALL_AT_ONCE)
        return True

    cdef bint _prepare_gather(self, Direct d, object parts, object mine, bint gathers) except -1:
        """Prepare Gather or Scatter, with the argument for all ranks and that for this rank."""
        cdef Pinned own, all_parts = None
        cdef Places one, several
        cdef Py_ssize_t each
        cdef int i, n = self._size, me = (self._rank - d.root + n) % n
        cdef bint in_place = _is_in_place(mine)
        if not in_place:
            own = _pin_message(mine, 0 if gathers else PyBUF_WRITABLE, 1)
            if own is None:
                return False
            each = own.view.len
            d.places = one = several = _units(own, each)
        if self._rank == d.root:
            all_parts = _pin_message(parts, PyBUF_WRITABLE if gathers else 0, n)
            if all_parts is None or all_parts.view.len != (all_parts.view.len // n if in_place else each) * n:
                return False
            each = all_parts.view.len // n
            d.places = several = _units(all_parts, each)
        elif in_place:
            return False
        if n > 3 and each <= SHORT_TREE:    # by a tree, with parts numbered from the root on
            d.places = _units(_pin(bytearray(each * n)), each)
            d.rounds = _tree(gathers, n, self._rank, d.root)
            if gathers:
                _copy_units(several if in_place else one, self._rank if in_place else 0, d.places, me, 1)
                d.target, d.turned, d.n_taken = None if all_parts is None else several, d.root, n
                return True
            for i in range(n if all_parts is not None else 0):
                _copy_units(several, i, d.places, (i - d.root + n) % n, 1)
            if not in_place:
                d.target, d.taken, d.n_taken = one, me, 1
            return True
        d.rounds = _plans.star(gathers, n, self._rank, d.root)
        if all_parts is not None and not in_place:
            if gathers:
                _copy_units(one, 0, several, self._rank, 1)
            else:
                d.target, d.taken, d.n_taken = one, self._rank, 1
        return True

    cdef bint _prepare_allgather(self, Direct d, object sendbuf, object recvbuf) except -1:
        cdef Pinned mine, all_parts
        cdef Places into
        cdef Py_ssize_t each
        cdef int n = self._size
        all_parts = _pin_message(recvbuf, PyBUF_WRITABLE, n)
        if all_parts is None or all_parts.view.len % n:
            return False
        each = all_parts.view.len // n
        into = _units(all_parts, each)
        if not _is_in_place(sendbuf):
            mine = _pin_message(sendbuf, 0, 1)
            if mine is None or mine.view.len != each:
                return False
            _copy_units(_units(mine, each), 0, into, self._rank, 1)
        if <size_t>each >= coll_long_from(COLL_ALLGATHER, n):
            d.places, d.rounds = into, _rounds("allgather", True, n, self._rank, 0, 1, ALL_AT_ONCE)
            return True
        d.places, d.target, d.n_taken = _units(_pin(bytearray(2 * n * each)), each), into, n
        d.rounds = _rounds("allgather", False, n, self._rank, 0, 1, ALL_AT_ONCE)
        return _copy_units(into, self._rank, d.places, self._rank, 1) == 0

    cdef bint _prepare_alltoall(self, Direct d, object sendbuf, object recvbuf) except -1:
        cdef Pinned mine, theirs
        cdef Places out, into
        cdef Py_ssize_t each
        cdef int n = self._size
        theirs = _pin_message(recvbuf, PyBUF_WRITABLE, n)
        if theirs is None:
            return False
        if _is_in_place(sendbuf):
            mine = _pin(bytearray(theirs.view.len))
            memcpy(mine.view.buf, theirs.view.buf, theirs.view.len)
        else:
            mine = _pin_message(sendbuf, 0, n)
        if mine is None or mine.view.len != theirs.view.len or mine.view.len % n:
            return False
        each = mine.view.len // n
        out, into = _units(mine, each), _units(theirs, each)
        if <size_t>each >= coll_long_from(COLL_ALLTOALL, n):
            _copy_units(out, self._rank, into, self._rank, 1)
            out.others, out.first = into, n
            d.places, d.rounds = out, _plans.pairwise(n, self._rank, _plans.at_once(n, each))
            return True
        d.places = _units(_pin(bytearray((4 * n + 2) * each)), each)    # outgoing and incoming parts, and scratch
        d.rounds = _rounds("alltoall", False, n, self._rank, 0, 1, ALL_AT_ONCE)
        _copy_units(out, 0, d.places, 0, n)
        d.target, d.taken, d.n_taken = into, n, n
        return _copy_units(out, self._rank, d.places, n + self._rank, 1) == 0

    cdef bint _prepare_reduce(self, Direct d, object sendbuf, object recvbuf, object op) except -1:
        cdef int root = d.root
        cdef Pinned mine = self._operand(d, sendbuf, recvbuf, op, 1), into
        cdef Py_ssize_t each
        d.root = root   # These tags contain the root, not the operation.
        if mine is None or (self._rank != root and _is_in_place(sendbuf)):
            return False
        each = mine.view.len
        if self._rank == root:
            into = self._result(d, recvbuf, each)
            if into is None:
                return False
            d.target, d.n_taken = _units(into, each), 1
        d.places = _units(_pin(bytearray(2 * each)), each)
        d.rounds = _rounds("reduce", False, self._size, self._rank, root, 1, ALL_AT_ONCE)
        return _copy_units(_units(mine, each), 0, d.places, 0, 1) == 0

    cdef bint _prepare_allreduce(self, Direct d, object sendbuf, object recvbuf, object op) except -1:
        cdef Pinned mine = self._operand(d, sendbuf, recvbuf, op, 1), into
        cdef Py_ssize_t unit, count
        cdef bint is_long
        if mine is None:
            return False
        into = self._result(d, recvbuf, mine.view.len)
        if into is None:
            return False
        unit = _kind_sizes[d.element]
        count = mine.view.len // unit
        is_long = <size_t>mine.view.len >= coll_long_from(COLL_ALLREDUCE, self._size) and count >= self._size
        d.places = _units(_pin(bytearray((2 * count + 1) * unit)), unit)    # the operand, and scratch
        d.target, d.n_taken = _units(into, unit), count
        d.rounds = _rounds("allreduce", is_long, self._size, self._rank, 0, count, ALL_AT_ONCE)
        return _copy_units(_units(mine, unit), 0, d.places, 0, count) == 0

    cdef bint _prepare(self, Planned call, Direct d, object sendbuf, object recvbuf, object op,
                       object counts) except -1:
        if call == BARRIER:
            if self._s.barrier is None:
                self._s.barrier = _rounds("allgather", False, self._size, self._rank, 0, 1, ALL_AT_ONCE)
            d.places, d.rounds = _nothing, self._s.barrier
            return True
        if call == BCAST:
            return self._prepare_bcast(d, sendbuf)
        if call == GATHER:
            return self._prepare_gather(d, recvbuf, sendbuf, True)
        if call == SCATTER:
            return self._prepare_gather(d, sendbuf, recvbuf, False)
        if call == ALLGATHER:
            return self._prepare_allgather(d, sendbuf, recvbuf)
        if call == ALLTOALL:
            return self._prepare_alltoall(d, sendbuf, recvbuf)
        if call == REDUCE:
            return self._prepare_reduce(d, sendbuf, recvbuf, op)
        if call == ALLREDUCE:
            return self._prepare_allreduce(d, sendbuf, recvbuf, op)
        return PlannedComm._prepare(self, call, d, sendbuf, recvbuf, op, counts)

    cdef PlanRequest _begin_plan(self, Planned call, object sendbuf, object recvbuf, object root, object op,
                                 object counts):
        """Start a collective and return its request; None if the general path must do it."""
        cdef int at = self._plain_root(root)
        cdef Direct d
        cdef PlanRequest request
        if at < 0:
            return None
        d = self._direct(_PLANNED[<int>call], at)
        try:
            if not self._prepare(call, d, sendbuf, recvbuf, op, counts):
                return None
            if not d.counted:
                self._count(d)
        except BaseException as problem:
            self._refuse_direct(d, problem)
            raise
        request = _new_plan_request()
        request._begin(self, d)
        return request

    # ------------------------------------------------------------ the calls

    def Ibarrier(self):
        """Start to wait until all ranks have called the barrier.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(BARRIER, None, None, 0, None, None)
        return self._begin_barrier() if request is None else request

    def Ibcast(self, buf, root=0):
        """Start to broadcast the root's buffer to all ranks.

        The parameters are those of `Bcast`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(BCAST, buf, None, root, None, None)
        return self._begin_bcast(buf, root) if request is None else request

    def Igather(self, sendbuf, recvbuf, root=0):
        """Start to gather buffers of equal length to the root, in the order of ranks.

        The parameters are those of `Gather`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(GATHER, sendbuf, recvbuf, root, None, None)
        return self._begin_gather(sendbuf, recvbuf, root) if request is None else request

    def Igatherv(self, sendbuf, recvbuf, root=0):
        """Start to gather buffers to the root, with a count and a displacement for each rank.

        The parameters are those of `Gatherv`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(GATHERV, sendbuf, recvbuf, root, None, None)
        return self._begin_gatherv(sendbuf, recvbuf, root) if request is None else request

    def Iscatter(self, sendbuf, recvbuf, root=0):
        """Start to scatter equal parts of the root's buffer to the ranks.

        The parameters are those of `Scatter`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(SCATTER, sendbuf, recvbuf, root, None, None)
        return self._begin_scatter(sendbuf, recvbuf, root) if request is None else request

    def Iscatterv(self, sendbuf, recvbuf, root=0):
        """Start to scatter parts of the root's buffer, with a count and a displacement for each rank.

        The parameters are those of `Scatterv`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(SCATTERV, sendbuf, recvbuf, root, None, None)
        return self._begin_scatterv(sendbuf, recvbuf, root) if request is None else request

    def Iallgather(self, sendbuf, recvbuf):
        """Start to gather buffers of equal length to all ranks, in the order of ranks.

        The parameters are those of `Allgather`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(ALLGATHER, sendbuf, recvbuf, 0, None, None)
        return self._begin_allgather(sendbuf, recvbuf) if request is None else request

    def Iallgatherv(self, sendbuf, recvbuf):
        """Start to gather buffers to all ranks, with a count and a displacement for each rank.

        The parameters are those of `Allgatherv`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(ALLGATHERV, sendbuf, recvbuf, 0, None, None)
        return self._begin_allgatherv(sendbuf, recvbuf) if request is None else request

    def Ialltoall(self, sendbuf, recvbuf):
        """Start to send an equal part of the buffer to each rank, and to receive one from each rank.

        The parameters are those of `Alltoall`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(ALLTOALL, sendbuf, recvbuf, 0, None, None)
        return self._begin_alltoall(sendbuf, recvbuf) if request is None else request

    def Ialltoallv(self, sendbuf, recvbuf):
        """Start to exchange parts of the buffers, with a count and a displacement for each rank.

        The parameters are those of `Alltoallv`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(ALLTOALLV, sendbuf, recvbuf, 0, None, None)
        return self._begin_alltoallv(sendbuf, recvbuf) if request is None else request

    def Ialltoallw(self, sendbuf, recvbuf):
        """Start to exchange parts of the buffers, with a count, a displacement in bytes and a datatype for each rank.

        The parameters are those of `Alltoallw`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        request = self._begin_plan(ALLTOALLW, sendbuf, recvbuf, 0, None, None)
        return self._begin_alltoallw(sendbuf, recvbuf) if request is None else request

    def Ireduce(self, sendbuf, recvbuf, op=None, root=0):
        """Start to combine the buffers of all ranks on the root.

        The parameters are those of `Reduce`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        op = _sum if op is None else op
        request = self._begin_plan(REDUCE, sendbuf, recvbuf, root, op, None)
        return self._begin_reduce(sendbuf, recvbuf, op, root) if request is None else request

    def Iallreduce(self, sendbuf, recvbuf, op=None):
        """Start to combine the buffers of all ranks, with the result on all ranks.

        The parameters are those of `Allreduce`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        op = _sum if op is None else op
        request = self._begin_plan(ALLREDUCE, sendbuf, recvbuf, 0, op, None)
        return self._begin_allreduce(sendbuf, recvbuf, op) if request is None else request

    def Ireduce_scatter_block(self, sendbuf, recvbuf, op=None):
        """Start to combine the buffers of all ranks and scatter the result in equal parts.

        The parameters are those of `Reduce_scatter_block`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        op = _sum if op is None else op
        request = self._begin_plan(REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, 0, op, None)
        return self._begin_reduce_scatter_block(sendbuf, recvbuf, op) if request is None else request

    def Ireduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=None):
        """Start to combine the buffers of all ranks and scatter the result, with a count for each rank.

        The parameters are those of `Reduce_scatter`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        op = _sum if op is None else op
        request = self._begin_plan(REDUCE_SCATTER, sendbuf, recvbuf, 0, op, recvcounts)
        return self._begin_reduce_scatter(sendbuf, recvbuf, recvcounts, op) if request is None else request

    def Iscan(self, sendbuf, recvbuf, op=None):
        """Start to combine the buffers of ranks 0 to this one.

        The parameters are those of `Scan`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        op = _sum if op is None else op
        request = self._begin_plan(SCAN, sendbuf, recvbuf, 0, op, None)
        return self._begin_scan(sendbuf, recvbuf, op) if request is None else request

    def Iexscan(self, sendbuf, recvbuf, op=None):
        """Start to combine the buffers of all lower ranks. The result on rank 0 is undefined.

        The parameters are those of `Exscan`. Do not access the buffers before the request completes.

        Returns
        -------
        Request
        """
        cdef PlanRequest request
        op = _sum if op is None else op
        request = self._begin_plan(EXSCAN, sendbuf, recvbuf, 0, op, None)
        return self._begin_exscan(sendbuf, recvbuf, op) if request is None else request
