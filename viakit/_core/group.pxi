# The group of a communicator in csrc/coll: it is created at the first collective that can use it, and broken by errors.
# The collectives themselves are in collective.pxi.

cdef object _plain_of = None        # viakit.comm.spec
cdef object _blocks_of = None
cdef object _in_place = None
cdef object _sum = None
cdef object _words = None           # viakit.comm.step: the notices between ranks


def set_collective_types(simple, same_blocks, in_place, default_op, words):
    """Set the functions that read buffer arguments and send notices. :mod:`viakit.comm` calls it once."""
    global _plain_of, _blocks_of, _in_place, _sum, _words
    _plain_of, _blocks_of, _in_place, _sum, _words = simple, same_blocks, in_place, default_op, words


cdef void _collective_meanwhile(void *context) noexcept nogil:
    with gil:
        try:
            (<MsgWorld>context).step()
        except BaseException as problem:  # C cannot raise: the wait polls for it and ends, and the caller raises
            _keep_raised(problem)


cdef class CollectiveGroup:
    """Group of a communicator in csrc/coll. It belongs to its world."""

    cdef coll *_c
    cdef bint _busy
    cdef bint _left                 # Abandoned while another thread used it; not used again.

    def __dealloc__(self):
        coll_forget(self._c)

    def forget(self):
        """Release the group after its world has been closed."""
        coll_forget(self._c)
        self._c = NULL

    @property
    def error(self):
        """Error of the engine that broke the group; 0 if it is intact."""
        return coll_error(self._c) if self._c != NULL else MSG_ERR_STATE


cdef class GroupComm(NoticeComm):
    """The group of a communicator in csrc/coll, and the end of its collectives, good or bad."""

    @property
    def _n_collectives(self):
        """Number of collectives begun so far, here and by messages."""
        return self._s.n_collectives

    @_n_collectives.setter
    def _n_collectives(self, long long number):
        self._s.n_collectives = number

    cdef int _make_group(self) except -1:
        """Create the group. Collective: called at the first operation that can use it."""
        cdef coll_options options
        cdef coll_word cause
        cdef coll *made = NULL
        cdef int *ranks
        cdef int code, i, context = self._s.context + COLL_PART
        cdef msg_world *w = self.world._w
        self._s.tried = True
        if self.number in self.world.groups:
            self._s.group = self.world.groups[self.number]
            return 0
        if self.world.channel != "via" or self.world.by_messages:
            return 0
        ranks = <int *>calloc(self._size, sizeof(int))
        if ranks == NULL:
            raise MemoryError()
        for i in range(self._size):
            ranks[i] = self._to[i] if self._to != NULL else i
        options.number = <uint64_t>self._s.n_collectives
        options.incarnation = self._s.incarnation
        options.oldest = self._s.oldest
        options.wanted = &self.world.n_active
        options.meanwhile = _collective_meanwhile
        options.crossed = _collective_crossed
        options.context = <void *>self.world
        options.revocable = self._s.context
        options.cause = &cause
        cause.origin = -1
        self.world._n_calls += 1
        with nogil:
            code = coll_create_with(w, ranks, self._size, context, &options, &made)
        self.world._n_calls -= 1
        free(ranks)
        self._s.n_collectives += 1  # one of its own: ranks that waited in it have notified those that were late
        if code == MSG_ERR_NOT_SUPPORTED:  # A rank abandoned an earlier one: all use messages.
            self.world._left()
            _raise_signal()
            self._s.n_collectives -= 1
            return 0
        if code == MSG_ERR_LEFT and 0 <= cause.origin != self._rank:
            raise _words.aborted("setting up collectives", cause.origin, <bytes>(<char *>cause.reason))
        self._conclude(code, "setting up collectives", 0)
        group = CollectiveGroup()
        (<CollectiveGroup>group)._c = made
        coll_set_oldest(made, self._s.oldest)
        self.world.groups[self.number] = self._s.group = group
        return 0

    cdef coll *_enter(self) except? NULL:
        """Return the group, ready for the next collective; NULL if messages do it."""
        cdef CollectiveGroup group
        cdef int code
        self.world._open()
        if self._size <= 1 or self._s.context < 0 or self._s.scope.revoked:  # the caller refuses a revoked one
            return NULL
        if not self._s.tried:
            self._make_group()
        group = self._s.group
        if group is None or group._c == NULL or group._left:
            return NULL
        code = coll_error(group._c)
        if code != MSG_SUCCESS:
            if code != MSG_ERR_PROC_FAILED:
                return NULL
            self._s.n_collectives += 1
            self._conclude(code, "collective", 0)
        if group._busy:
            raise _message_error(MSG_ERR_STATE, "another thread is in a collective of this communicator")
        coll_set_number(group._c, <uint64_t>self._s.n_collectives)
        self._s.n_collectives += 1
        if not self._s.n_collectives & 1023:
            _words.sweep(self, self._s.n_collectives)
        group._busy = True
        return group._c

    cdef bint _count_alone(self) except -1:
        """Count a collective of the only rank, which needs no message. Return False if the general path must do it."""
        if self._size != 1 or self._s.context < 0 or self._s.freed or self._s.scope.revoked or self.world.n_active:
            return False
        self._s.n_collectives += 1
        return True

    cdef int _conclude(self, int code, str what, int root) except -1:
        """Release the group after a collective, and raise the error that *code* stands for."""
        cdef CollectiveGroup group
        if self._s.group is not None:
            self._s.group._busy = False
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
            group = self._s.group
            if group is not None and group._c != NULL and coll_cause(group._c).origin != self._rank:
                cause = coll_cause(group._c)
                raise _words.aborted(what, cause.origin, <bytes>(<char *>cause.reason))
        elif code == MSG_ERR_COLLECTIVE:
            raise _words.mismatched(f"this rank is in {what} with root {root}, another rank does something else, or "
                                    "operators, counts or datatypes differ")
        raise _message_error(code, f"{what}: {text}")

    cdef bint _repeat(self, coll *c, int code) noexcept:
        """Return whether messages must repeat the collective, because a rank was interrupted in an earlier one."""
        cdef long long number
        if code not in (MSG_ERR_LEFT, MSG_ERR_COLLECTIVE) or not coll_may_retry(c) or viakit_raised != NULL:
            return False
        self._s.group._busy = False
        try:  # This rank may have completed later collectives in the group without a wait. They are not repeated.
            for number in range(<long long>coll_error_at(c) + 1, self._s.n_collectives):
                _words.give_up(self, number, _words.COMPLETED)
        except BaseException as problem:
            _keep_raised(problem)
            return False
        self._s.n_collectives -= 1
        return True

    cdef int _refused(self, long long before, object problem) except -1:
        """Abandon the collective that began as number `before`, after an error, so that no rank waits for this one."""
        cdef CollectiveGroup group = self._s.group
        cdef long long number
        cdef bytes reason
        if self._s.context < 0 or self._s.freed or self.world.closed:
            return 0
        number = self._s.n_collectives = max(self._s.n_collectives, before + 1)
        if group is not None and group._c != NULL and not group._left:
            if group._busy:  # Another thread uses it in an earlier collective, which may succeed.
                group._left = True
                _words.leave_group(self, number, problem)
            elif coll_error(group._c) == MSG_SUCCESS:
                coll_set_number(group._c, <uint64_t>number)
                reason = _words.reason_of(self, problem)[1]
                coll_break(group._c, MSG_ERR_LEFT, <const char *>reason)
        elif not self._s.tried and self.world.channel == "via" and not self.world.by_messages:
            self._s.tried = True  # The other ranks try to create the group; this rank prevents it.
            _words.leave_group(self, number, problem)
        _words.give_up(self, number, problem)
        return 0

    def find_completed(self, number):
        """Return a rank that completed this collective although the group is broken, or -1."""
        if self._s.group is None or self._s.group._c == NULL or self._s.group._busy:
            return -1
        return coll_find_completed(self._s.group._c, <uint64_t>number)

    def set_pending(self, long long number, bint pending):
        """Count a collective among those under way by messages, or not any more. Notes contain the oldest one."""
        self._set_pending(number, pending)

    cdef int _set_pending(self, long long number, bint pending) except -1:
        cdef set numbers = self._s.pending
        if pending:
            numbers.add(number)
        else:
            numbers.discard(number)
        if not numbers:
            self._s.oldest = 0
        elif pending and len(numbers) == 1:
            self._s.oldest = <uint64_t>number
        else:
            self._s.oldest = min(numbers)
        if self._s.group is not None and self._s.group._c != NULL:
            coll_set_oldest(self._s.group._c, self._s.oldest)
        return 0

    cdef int _root(self, object root) except -1:
        if not 0 <= root < self._size:
            self._real()
            from viakit.comm.errors import error
            raise error("ERR_ROOT", f"root {root}: this communicator has ranks 0 to {self._size - 1}")
        return root

    def _mismatched(self, int source):
        """Notify the ranks that wait in a collective of csrc/coll that this one is in another."""
        if self._s.group is not None and self._s.group._c != NULL and not self._s.group._busy:
            coll_set_number(self._s.group._c, <uint64_t>self._s.n_collectives)
            coll_break(self._s.group._c, MSG_ERR_COLLECTIVE, NULL)
        else:
            self._s.tried = True
            _words.notify(self, COLL_TAG_ABORT, MSG_ERR_COLLECTIVE, self._s.n_collectives, None)

    def _close_group(self):
        """Close the group of this communicator. Collective."""
        cdef CollectiveGroup group = self._s.group
        cdef coll *c
        self._s.group, self._s.tried = None, True
        self.world.groups.pop(self.number, None)
        if group is not None and group._c != NULL:
            c, group._c = group._c, NULL
            self.world._n_calls += 1
            with nogil:
                coll_close(c)
            self.world._n_calls -= 1
            self.world._left()
            _raise_signal()
