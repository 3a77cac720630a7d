# Requests of non-blocking collectives that have a plan and plain arguments.
#
# A request keeps the collective (Direct) and starts its first round. When all messages of a round have ended, it starts
# the next one. It makes progress whenever a request of the world is tested or waited for, and while blocking calls wait
# (MsgWorld.step). Its messages and tags are those of the general path. ScheduleRequest defines its behaviour, too:
#
# - An error in a round, or a check that fails, is kept. The call that waits for this request raises it.
# - Ctrl-C in Wait is raised there. The request remains active.
# - Ctrl-C while a round starts ends the collective, because part of its messages is missing.
#
# `_busy` is set as long as one call uses the messages. Another thread, or a signal handler, then leaves them alone.

cdef extern from *:
    """
    static inline PyObject *viakit_new(PyObject *type, PyObject *arguments)
    {
        return ((PyTypeObject *)type)->tp_new((PyTypeObject *)type, arguments, NULL);
    }
    """
    object viakit_new(object, object)

cdef object _plan_type = None       # the class of these requests: a subclass of PlanRequest
cdef tuple _no_arguments = ()


def set_plan_type(plan_type):
    """Set the class of requests of non-blocking collectives. :mod:`viakit.comm` calls it once."""
    global _plan_type
    _plan_type = plan_type


cdef PlanRequest _new_plan_request():
    """Return a request without a call of its constructor, as all requests of operations are made."""
    return <PlanRequest>viakit_new(_plan_type, _no_arguments)


cdef object _make_other(str text):
    """Return an exception of the class ERR_OTHER."""
    from viakit.comm.errors import error
    return error("ERR_OTHER", text)


cdef class PlanRequest(MsgRequest):
    """Request of a non-blocking collective that has a plan."""

    cdef Direct _d                  # None once it is complete, so that its buffers are released
    cdef Py_ssize_t _next           # number of the next round
    cdef bint _busy, _complete, _listed, _starting
    cdef int64_t _checked_ns        # time of the last check
    cdef object _checks             # its Step, from the first check on
    cdef object _problem            # error that the caller has not got yet
    cdef MsgWorld _world            # The program may turn the communicator's handle into a null one.

    # ------------------------------------------------------------ progress

    cdef int _begin(self, RootedComm comm, Direct d) except -1:
        """Start a collective that has been counted."""
        self._comm, self._world, self._d = comm, comm.world, d
        self._checked_ns = _now_ns()
        try:
            self._advance()
            if not self._complete:  # The messages of the other ranks may be in memory already.
                self._world._open()
                msg_progress(self._world._w)
                self._advance()
        except BaseException:  # After an interrupt no caller gets this request.
            if not self._complete:
                self._finish(_make_other("this operation was abandoned"))
            raise
        if not self._complete:
            self._world.plans.append(self)
            self._listed = True
            comm._set_pending(d.before + 1, True)
            self._world.count_active()
        return 0

    cdef int _advance(self) except -1:
        """Continue as far as possible without waiting."""
        cdef Direct d = self._d
        cdef RootedComm comm
        if self._busy or self._complete:
            return 0
        self._busy = True
        comm = <RootedComm>self._comm
        try:
            while True:
                if not self._have_ended(d):
                    if _now_ns() - self._checked_ns > CHECK_MS * 1000000:
                        self._check_ranks()
                    return 0
                if self._checks is None:
                    comm._reuse_messages(d)
                d.messages.clear()
                if self._next == len(<tuple>d.rounds):
                    break
                self._starting = True
                now, self._next = (<tuple>d.rounds)[self._next], self._next + 1
                comm._start_round(d, d.places, now)
                self._starting = False
            _deliver(d)
            self._finish(None)
        except Exception as problem:
            self._finish(problem)
        except BaseException as problem:
            if self._starting:
                self._finish(_make_other(f"this operation was ended by {type(problem).__name__}"))
            raise
        finally:
            self._busy = False
        return 0

    cdef bint _have_ended(self, Direct d) except -1:
        """Return whether all messages of this round have ended. The engine's progress is the caller's."""
        cdef MsgRequest message
        cdef MsgWorld world = self._world
        cdef bint all_ended = True
        cdef int code
        world._open()
        for message in d.messages:
            if message.ended:
                continue
            if message._r != NULL:
                if not msg_request_peek(world._w, message._r, NULL):
                    all_ended = False
                    continue
                code = msg_test(world._w, &message._r, &message._status)
                if code == MSG_PENDING:
                    all_ended = False
                    continue
                world._check(code)
            message._end()
        return all_ended

    cdef int _check_ranks(self) except -1:
        """Raise an error if this collective may never end."""
        cdef Direct d = self._d
        self._checked_ns = _now_ns()
        if self._checks is None:
            self._checks = _words.Step.resume(self._comm, d.kind, d.root, d.before + 1, d.messages)
            self._checks.blocking = False
        else:
            self._checks.receives = [one for one in d.messages if (<MsgRequest>one).collective is not None]
        self._checks.check()
        return 0

    cdef int _finish(self, object problem) except -1:
        """Complete the request, with an error or without. After an error, notify the other ranks."""
        cdef RootedComm comm = <RootedComm>self._comm
        cdef Direct d = self._d
        if d is None:  # It was complete, and the release of its communicator has failed.
            self._problem = problem if self._problem is None else self._problem
            return 0
        self._complete, self._problem = True, problem
        self._d = self._checks = None
        if self._listed:
            self._listed = False
            comm._set_pending(d.before + 1, False)
            self._world._forget_plan(self)
            self._world.count_active()
        if problem is not None:
            try:
                _words.Step.resume(comm, d.kind, d.root, d.before + 1, d.messages).give_up(problem)
            except Exception:
                pass  # The caller gets the error that has ended the collective.
        if comm._s.freed and comm._s is not _null_state:
            comm._let_go()
        return 0

    # ------------------------------------------------------------ waits and tests

    cdef int _take(self) except -1:
        """Notify the caller of the end."""
        self.ended = True
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        return 0

    cdef int _wait(self, int64_t timeout_ms) except -1:
        """Return 1 if the collective is complete, 0 if the time is over."""
        cdef MsgWorld world = self._world
        cdef int64_t began = _now_ns() if timeout_ms >= 0 else 0, left
        while not self._complete:
            if world.n_active > 1:
                world.step()
            self._advance()
            if self._complete:
                break
            left = CHECK_MS
            if timeout_ms >= 0:
                left = max(timeout_ms - (_now_ns() - began) // 1000000, 0)
            # Without other operations to drive, the engine waits for a message of this one.
            if world.n_active > 1 or not self._wait_message(min(left, <int64_t>CHECK_MS)):
                world.idle(0.001)
            if timeout_ms >= 0 and (_now_ns() - began) // 1000000 >= timeout_ms:
                self._advance()
                if not self._complete:
                    return 0
        self._take()
        return 1

    cdef bint _wait_message(self, int64_t timeout_ms) except -1:
        """Wait for the next message of this round. Return False if none is under way, or another call uses them."""
        cdef MsgRequest message
        if self._busy or self._complete:
            return False
        for message in self._d.messages:
            if message._r != NULL:
                break
        else:
            return False
        self._busy = True
        try:
            self._world._open()
            message._wait_alone(timeout_ms)
        except Exception as problem:
            self._finish(problem)
        finally:
            self._busy = False
        return True

    def Wait(self, MsgStatus status=None):
        """Wait until the operation completes.

        Parameters
        ----------
        status : Status, optional
            Filled with the values of an operation that receives no message of its own.

        Returns
        -------
        bool
            Always True.
        """
        if not self.ended:
            self._wait(MSG_FOREVER)
        if status is not None:
            _fill_inactive(status)
        return True

    def Test(self, MsgStatus status=None):
        """Test whether the operation is complete. If it is, the request is released.

        Parameters
        ----------
        status : Status, optional
            Filled once it is complete, with the values of an operation that receives no message of its own.
        """
        if not self.ended and not self.test_once():
            return False
        if status is not None:
            _fill_inactive(status)
        return True

    def test_once(self):
        """Make progress and return whether the operation is complete. If it is, the request has ended."""
        if not self._complete:
            self._world.progress()
            if self._world.n_active > 1:
                self._world.step()
            self._advance()
        if not self._complete:
            return False
        self._take()
        return True

    def peek(self, MsgStatus status=None):
        """Return whether the operation is complete, without making progress."""
        if self._complete and status is not None:
            _fill_inactive(status)
        return self._complete

    def progress(self):
        """Make progress without waiting: of this operation, and of the other ones of this process."""
        self._world.progress()
        if self._world.n_active > 1:
            self._world.step()
        self._advance()

    def fill(self, MsgStatus status):
        """Write the values of an operation that receives no message of its own to `status`."""
        _fill_inactive(status)

    @property
    def world(self):
        """World of the operation."""
        return self._world
