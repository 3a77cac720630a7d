# Control messages between the ranks of a communicator: notices of ranks that gave up a collective, and notes of ranks
# that wait in one. csrc/coll reads and sends them, too, and coll.h declares their structs. Revocation is a notice of
# the engine itself. Waits of csrc/coll are compared with those in other communicators (viakit/comm/crossed.py).

from ccoll cimport *

cdef enum:
    COLL_PART = 4           # the context of csrc/coll and of control messages

# For viakit.comm.step: the tags of control messages between ranks (coll.h), and the codes in notices.
NOTE_TAG, ABORT_TAG, GIVE_UP_TAG = COLL_TAG_NOTE, COLL_TAG_ABORT, COLL_TAG_GIVE_UP
GIVE_UP_NUMBERS = COLL_GIVE_UP_NUMBERS
ERR_LEFT, ERR_COLLECTIVE = MSG_ERR_LEFT, MSG_ERR_COLLECTIVE


cdef class NoticeComm(ObjectComm):
    """Control messages of a communicator. Those of an earlier communicator of the same number are dropped."""

    @property
    def incarnation(self):
        """Number that distinguishes the communicator from earlier ones of its number; the same on all ranks."""
        return self._s.incarnation

    @incarnation.setter
    def incarnation(self, uint64_t incarnation):
        self._s.incarnation = incarnation

    def open_scope(self, uint64_t incarnation, int lead):
        """Let the communicator be revoked. `lead` is its lowest world rank: others may have the same number now."""
        self.world._open()
        msg_scope_open(self.world._w, &self._s.scope, self._s.context, REVOCABLE, incarnation << 32 | <uint64_t>lead)

    @property
    def _revoked(self):
        """Whether this rank has noticed that the communicator is revoked."""
        return self._s.scope.revoked != 0

    def refuse_revoked(self, str what):
        """Raise ERR_REVOKED if the communicator is revoked."""
        if self._s.scope.revoked:
            raise _message_error(MSG_ERR_REVOKED, f"{what}: this communicator has been revoked; continue with Shrink")

    def revoke(self, list ranks):
        """Revoke the communicator, whose ranks in the world are *ranks*, without a wait."""
        cdef int i, n = len(ranks)
        cdef int *places = <int *>calloc(n + 1, sizeof(int))
        if places == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                places[i] = ranks[i]
            self.world._open()
            self.world._check(msg_revoke(&self._s.scope, places, n))
        finally:
            free(places)

    def notice(self, int64_t code, uint64_t number, int origin, int tag, bytes reason):
        """Return the notice that this rank gives up a collective, as bytes."""
        cdef coll_word word
        memset(&word, 0, sizeof(word))
        word.code, word.number, word.incarnation, word.origin, word.tag = code, number, self._s.incarnation, origin, tag
        memcpy(word.reason, <const char *>reason, min(len(reason), COLL_REASON_LEN - 1))
        return PyBytes_FromStringAndSize(<char *>&word, sizeof(word))

    def note(self, uint64_t number, int tag):
        """Return the note that this rank waits in a collective by messages with this tag, as bytes."""
        cdef coll_note note
        memset(&note, 0, sizeof(note))
        note.number, note.algorithm, note.root, note.incarnation, note.oldest = (
            number, COLL_NOTE_MESSAGES, tag, self._s.incarnation, self._s.oldest)
        return PyBytes_FromStringAndSize(<char *>&note, sizeof(note))

    cdef int _take_control(self, int tag, void *what, size_t length, int *source) except -1:
        cdef int there, context = self._at(COLL_PART)
        source[0] = MSG_ANY_SOURCE
        self.world._open()
        self.world._n_calls += 1
        with nogil:
            there = coll_take_control(self.world._w, context, tag, what, length, source)
        self.world._n_calls -= 1
        self.world._left()
        return there

    def take_notice(self, int tag):
        """Receive a notice with this tag, if one has arrived.

        Returns (source, code, number, origin, tag of the messages, reason), or None.
        """
        cdef coll_word word
        cdef int source
        while self._take_control(tag, &word, sizeof(word), &source):
            word.reason[COLL_REASON_LEN - 1] = 0
            if word.incarnation == self._s.incarnation:
                return self._back(source), word.code, word.number, word.origin, word.tag, <bytes>(<char *>word.reason)
        return None

    def take_note(self):
        """Receive a note of a waiting rank, if one has arrived.

        Returns (source, number, operation, root, oldest), or None. `operation` is its name, and "" for a collective by
        messages, whose tag is in `root`.
        """
        cdef coll_note note
        cdef int source
        while self._take_control(COLL_TAG_NOTE, &note, sizeof(note), &source):
            if note.incarnation == self._s.incarnation:
                name = "setting up" if note.operation == 0 else _text(coll_operation_name(note.operation))
                return (self._back(source), note.number, "" if note.algorithm & COLL_NOTE_MESSAGES else name, note.root,
                        note.oldest)
        return None


cdef int _collective_crossed(void *context, int group_context, const coll_note *now, int awaited) noexcept nogil:
    """Return whether an awaited rank waits for this one in another communicator. The error is kept for the caller."""
    with gil:
        try:
            operation = _text(coll_operation_name(now.operation)) if now.operation else "setting up collectives"
            problem = _words.find_crossed(<MsgWorld>context, group_context // CONTEXTS, now.number, operation,
                                          None if awaited < 0 else (awaited,))
            if problem is not None:
                _keep_raised(problem)
            return problem is not None
        except BaseException as error:  # C cannot raise: the wait polls for it and ends, and the caller raises
            _keep_raised(error)
            return 0
