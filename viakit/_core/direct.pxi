# Collectives of objects. The messages of gather and scatter are those of viakit/comm/collective.py: the length first,
# then the pickle.
#
# Broadcasts, allgathers and allreduces use csrc/coll, in slots of equal length:
#
#     a slot     length (8)  |  pickle, as far as it fits (248)         The rest follows in a second collective.
#     failed     2^64 - 1    |  the reason                              The object cannot be pickled.
#
# All ranks must choose alike between csrc/coll and messages. So the choice depends only on the calls that all ranks
# have made.

cdef enum:
    HEAD = 8                # bytes of an object's length, which precedes its pickle: little-endian, unsigned
    SLOT = 256              # bytes of a short object in csrc/coll: its length, and up to SHORT bytes of its pickle
    SHORT = SLOT - HEAD
    MOST_PADDED = 1 << 18   # bytes of all ranks up to which the rest of objects is padded to the longest
    FIRST_MESSAGES = 16     # collectives of a communicator before one of objects creates its group in csrc/coll
    MOST_FOLDED = 16        # ranks up to which each rank combines short objects itself

cdef uint64_t FAILED = UINT64_MAX   # length of an object that its rank could not pickle; the reason is in the slot


cdef uint64_t _length(const uint8_t *head) noexcept:
    """Return the number in an object's head."""
    cdef uint64_t n = 0
    cdef int i
    for i in range(HEAD):
        n |= <uint64_t>head[i] << 8 * i
    return n


cdef int _set_length(uint8_t *head, uint64_t n) except -1:
    cdef int i
    for i in range(HEAD):
        head[i] = <uint8_t>(n >> 8 * i & 0xFF)
    return 0


cdef object _dumped(object obj):
    """Return the whole pickle of an object."""
    return _dumps(obj, 5) if _pickling.plain else _pickling.dumps(obj)


cdef object _restored(object data):
    """Return the object of a pickle. No bytes at all give None, as in mpi4py."""
    if not len(data):
        return None
    return _loads(data) if _pickling.plain else _pickling.loads(data)


cdef int _fill_slot(Pinned slot, Py_ssize_t at, object data, object reason) except -1:
    """Write an object's length and the beginning of its pickle; or, if `data` is None, the reason of the failure."""
    cdef Pinned text = _pin(data if data is not None else reason)
    cdef uint8_t *place = <uint8_t *>slot.view.buf + at
    _set_length(place, <uint64_t>text.view.len if data is not None else FAILED)
    memcpy(place + HEAD, text.view.buf, min(text.view.len, <Py_ssize_t>SHORT))
    return 0


cdef object _from_slot(Pinned slot, Py_ssize_t at, object rest, Py_ssize_t rest_at):
    """Return the pickle that begins in a slot and goes on in `rest`."""
    cdef const uint8_t *place = <const uint8_t *>slot.view.buf + at
    cdef Py_ssize_t n = <Py_ssize_t>_length(place)
    cdef bytes first = (<const char *>place + HEAD)[:min(n, <Py_ssize_t>SHORT)]
    return first if n <= SHORT else b"".join([first, memoryview(rest)[rest_at:rest_at + n - SHORT]])


cdef class DirectComm(RootedComm):
    """Collectives of objects, without the general path's cost."""

    # ------------------------------------------------------------ objects: the length first, then the pickle

    cdef list _start_objects(self, list pickles, list ranks, int tag):
        """Start to send each rank its pickle."""
        cdef Pinned heads = _pin(bytearray(HEAD * len(ranks))), data
        cdef list messages = []
        cdef int i
        for i in range(len(ranks)):
            data = _pin(pickles[i])
            _set_length(<uint8_t *>heads.view.buf + HEAD * i, data.view.len)
            messages.append(self._message(heads, HEAD * i, HEAD, ranks[i], tag, None))
            messages.append(self._message(data, 0, data.view.len, ranks[i], tag, None))
        return messages

    cdef list _receive_objects(self, list ranks, str name, int kind, int root, int tag, list messages):
        """Receive a pickle from each rank: all lengths first."""
        cdef Pinned heads = _pin(bytearray(HEAD * len(ranks)))
        cdef list pickles = []
        cdef int i
        for i in range(len(ranks)):
            messages.append(self._message(heads, HEAD * i, HEAD, ranks[i], tag, name))
        self._await(messages, kind, root, self._s.n_collectives)
        messages.clear()
        for i in range(len(ranks)):
            data = bytearray(_length(<uint8_t *>heads.view.buf + HEAD * i))
            pickles.append(data)
            messages.append(self._message(_pin(data), 0, len(data), ranks[i], tag, name))
        self._await(messages, kind, root, self._s.n_collectives)
        return pickles

    cdef object _gather_some(self, object data, int root, list messages):
        """Gather pickles: return those of the other ranks on the root, in their order."""
        cdef int tag = self._count(_gather_objects, root)
        if self._rank != root:
            messages += self._start_objects([data], [root], tag)
            self._await(messages, _gather_objects, root, self._s.n_collectives)
            return None
        others = [i for i in range(self._size) if i != root]
        return self._receive_objects(others, "gather(object)", _gather_objects, root, tag, messages)

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
        cdef long long before = self._s.n_collectives
        cdef int at = self._direct_root(root)
        cdef list messages = []
        if at < 0 or self.world.seal is not None:
            return self._gather_any(sendobj, root)
        try:
            data = _dumped(sendobj)
            pickles = self._gather_some(data, at, messages)
            if pickles is None:
                return None
            pickles.insert(at, data)
            return [_restored(one) for one in pickles]
        except BaseException as problem:
            self._refuse_direct(before, _gather_objects, at, messages, problem)
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
        cdef long long before = self._s.n_collectives
        cdef int tag, at = self._direct_root(root)
        cdef list messages = []
        if at < 0 or self.world.seal is not None or (
                at == self._rank and (type(sendobj) not in (list, tuple) or len(sendobj) != self._size)):
            return self._scatter_any(sendobj, root)
        try:
            if at != self._rank:
                tag = self._count(_scatter_objects, at)
                data = self._receive_objects([at], "scatter(object)", _scatter_objects, at, tag, messages)[0]
            else:
                pickles = [_dumped(item) for item in sendobj]
                data = pickles.pop(at)
                tag = self._count(_scatter_objects, at)
                messages += self._start_objects(pickles, [i for i in range(self._size) if i != at], tag)
                self._await(messages, _scatter_objects, at, self._s.n_collectives)
            return _restored(data)
        except BaseException as problem:
            self._refuse_direct(before, _scatter_objects, at, messages, problem)
            raise

    cdef bint _may_use_group(self):
        """Return whether collectives of objects use csrc/coll. All ranks return the same in one collective.

        A communicator that is soon freed needs no group for its few objects.
        """
        return (self._s is not _null_state and not self._s.freed and self.world.seal is None
                and (self._s.tried or self._s.n_collectives >= FIRST_MESSAGES))

    cdef object _to_slot(self, Pinned slot, Py_ssize_t at, object obj):
        """Pickle an object into a slot; return the pickle, or the exception."""
        try:
            data = _dumped(obj)
        except BaseException as problem:  # raised once the other ranks have been notified
            _fill_slot(slot, at, None, _words.reason_of(self, problem)[1])
            return problem
        _fill_slot(slot, at, data, None)
        return data

    cdef int _check_slot(self, Pinned slot, Py_ssize_t at, int rank, str name) except -1:
        """Raise the error for an object that its rank could not pickle."""
        cdef uint8_t *place = <uint8_t *>slot.view.buf + at
        if _length(place) == FAILED:
            raise _words.aborted(name, rank, (<bytes>(<char *>place + HEAD)[:SHORT]).rstrip(b"\0"))
        return 0

    def bcast(self, obj, root=0):
        """Broadcast the root's object to all ranks, and return it.

        Parameters
        ----------
        obj : object
            Object to send; ignored on other ranks than the root.
        root : int
            Rank of the root.
        """
        cdef Pinned slot
        cdef Py_ssize_t n
        if not self._may_use_group():
            return self._bcast_any(obj, root)
        room = bytearray(SLOT)
        slot = _pin(room)
        data = self._to_slot(slot, 0, obj) if root == self._rank else None
        CollectiveComm.Bcast(self, room, root)
        if isinstance(data, BaseException):
            raise data
        self._check_slot(slot, 0, root, "bcast(object)")
        n, rest = <Py_ssize_t>_length(<uint8_t *>slot.view.buf), None
        if n > SHORT:
            rest = self._rest_of(data, n)
            CollectiveComm.Bcast(self, rest, root)
        return _restored(_from_slot(slot, 0, rest, 0)) if data is None else obj

    cdef object _rest_of(self, object data, Py_ssize_t n):
        """Return the rest of the root's pickle, or memory for it. An error notifies the other ranks."""
        try:
            return memoryview(data)[SHORT:] if data is not None else bytearray(n - SHORT)
        except BaseException as problem:
            self._refused(self._s.n_collectives, problem)
            raise

    cdef int _allgather_bytes(self, bytearray room, Py_ssize_t each) except -1:
        """Allgather parts of *each* bytes; that of this rank is in place."""
        cdef long long before = self._s.n_collectives
        cdef Pinned all_parts = _pin(room)
        try:
            if not self._exchange(NULL, all_parts.view.buf, each, False):
                self._block_allgather(None, room)
        except BaseException as problem:
            self._refused(before, problem)
            raise
        return 0

    cdef Pinned _gather_slots(self, object obj, str name, list data):
        """Gather the slots of all ranks, and append this rank's pickle to `data`."""
        cdef bytearray room = bytearray(SLOT * self._size)
        cdef Pinned slots = _pin(room)
        cdef int i
        made = self._to_slot(slots, SLOT * self._rank, obj)
        self._allgather_bytes(room, SLOT)
        if isinstance(made, BaseException):
            raise made
        for i in range(self._size):
            self._check_slot(slots, SLOT * i, i, name)
        data.append(made)
        return slots

    cdef Py_ssize_t _longest(self, Pinned slots):
        """Return the length of the longest pickle of all ranks in bytes."""
        cdef uint64_t n = 0
        cdef int i
        for i in range(self._size):
            n = max(n, _length(<uint8_t *>slots.view.buf + SLOT * i))
        return <Py_ssize_t>n

    cdef list _unpack_slots(self, Pinned slots, object rest, list places):
        """Return the objects of all ranks; that of rank i goes on at byte places[i] of `rest`."""
        return [_restored(_from_slot(slots, SLOT * i, rest, places[i])) for i in range(self._size)]

    cdef list _gather_rest(self, Pinned slots, object data, Py_ssize_t longest):
        """Gather what does not fit into the slots: padded to the longest, or by a ring if that is long."""
        cdef Py_ssize_t most = longest - SHORT, i
        cdef list counts, places
        if most * self._size <= MOST_PADDED:
            room = bytearray(most * self._size)
            mine = memoryview(data)[SHORT:]
            room[most * self._rank:most * self._rank + len(mine)] = mine
            self._allgather_bytes(room, most)
            return self._unpack_slots(slots, room, [most * i for i in range(self._size)])
        counts = [max(0, <Py_ssize_t>_length(<uint8_t *>slots.view.buf + SLOT * i) - <Py_ssize_t>SHORT)
                  for i in range(self._size)]
        places = [sum(counts[:i]) for i in range(self._size)]
        room = bytearray(sum(counts))
        _general.Allgatherv(self, memoryview(data)[SHORT:], [room, counts, places, "B"])
        return self._unpack_slots(slots, room, places)

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
        cdef Pinned slots
        cdef list data = []
        cdef Py_ssize_t longest
        if not self._may_use_group():
            return self._allgather_any(sendobj)
        slots = self._gather_slots(sendobj, "allgather(object)", data)
        longest = self._longest(slots)
        if longest <= SHORT:
            return self._unpack_slots(slots, None, [0] * self._size)
        return self._gather_rest(slots, data[0], longest)

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
        cdef Pinned slots
        op = _sum if op is None else op
        if self._size > MOST_FOLDED or not self._may_use_group():
            return self._allreduce_any(sendobj, op)
        slots = self._gather_slots(sendobj, "allreduce(object)", [])
        if self._longest(slots) > SHORT:
            return self._allreduce_any(sendobj, op)
        operands = self._unpack_slots(slots, None, [0] * self._size)
        have = operands[0]
        for other in operands[1:]:
            have = op(have, other)
        return have
