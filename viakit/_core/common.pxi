# Code shared by all bindings of the C library: conversion of return codes to exceptions, timeouts, interruptible waits,
# delivery of asynchronous errors to Python, and the base class of the provider's objects.

import atexit
import operator
import os
import sys
import warnings
import weakref
from json import loads as _json_loads

cimport cython
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_C_CONTIGUOUS, PyBUF_F_CONTIGUOUS, PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE,
    PyBuffer_FillInfo, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident, PyThread_release_lock,
    PyThread_type_lock, WAIT_LOCK,
)
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc cimport errno as c_errno
from libc.math cimport INFINITY, ceil
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove, memset

from cvipl cimport *

from viakit import errors as _errors
from viakit.base import types as _types

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    void PyErr_SetObject(object kind, object error)
    void PyErr_WriteUnraisable(object what)
    int Py_AddPendingCall(int (*function)(void *) except -1, void *argument) nogil

cdef extern from "<pthread.h>" nogil:
    int pthread_atfork(void (*prepare)() noexcept nogil, void (*parent)() noexcept nogil,
                       void (*child)() noexcept nogil)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **memory, size_t alignment, size_t size)

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    ctypedef int clockid_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int clock_gettime(clockid_t clock, timespec *now)
    enum:
        CLOCK_MONOTONIC


cdef object _Status = _types.Status
cdef object _Operation = _types.Operation
cdef object _Reliability = _types.Reliability
cdef object _ViState = _types.ViState
cdef object _Counters = _types.Counters
cdef object _Address = _types.Address
cdef object _Completion = _types.Completion
cdef object _QUEUE_SEND = _types.Queue.SEND
cdef object _QUEUE_RECV = _types.Queue.RECV
cdef object _deque = __import__("collections").deque
cdef object _sleep = __import__("time").sleep


# ---------------------------------------------------------------- return codes to exceptions

cdef object _text(const char *text):
    return "" if text == NULL else text.decode("utf-8", "replace")


cdef object _error(int code, str operation, int os_error=0):
    """Return the exception for the return code of `operation`.

    Call it in the thread that made the call, before the next call, because it uses the thread's last error text.
    """
    cdef str text = _text(viakit_last_error())
    _end_thread()
    if not text:
        text = _text(viakit_return_text(code)) or f"{operation} returned {code}"
    return _errors.from_code(code, operation, text, os_error)


cdef int _check(VIP_RETURN code, str operation) except -1:
    """Raise the exception for the return code of a VIPL call, unless the call succeeded."""
    if code != VIP_SUCCESS:
        raise _error(code, operation)
    return 0


# ---------------------------------------------------------------- conversion of numbers to C

cdef uint64_t _whole(str name, object value, uint64_t most) except? 0xffffffffffffffff:
    """Return an integer from 0 to `most`. Another integer raises ValueError; another type raises TypeError."""
    cdef object number
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected a whole number") from None
    if not 0 <= number <= most:
        raise ValueError(f"{name}={value!r}: expected a whole number from 0 to {most}")
    return number


cdef VIP_ULONG _reliability_level(object value) except? 0xffffffff:
    """Return a reliability level. The C library reports levels that it does not support."""
    try:
        return _whole("reliability", value, 0xffff)
    except (TypeError, ValueError):
        levels = ", ".join(f"Reliability.{level.name}" for level in _Reliability)
        raise ValueError(f"reliability={value!r}: expected one of {levels}") from None


# ---------------------------------------------------------------- time

cdef int64_t _FOREVER = 0x7fffffffffffffff


cdef inline int64_t _now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef double _LONG = 1e9   # seconds; longer waits have no limit


cdef double _seconds(object timeout_s) except -1:
    """Check a timeout and return it in seconds. None and infinity mean no limit."""
    cdef double seconds
    if timeout_s is None:
        return INFINITY
    seconds = timeout_s
    if not seconds >= 0:
        raise ValueError(f"timeout_s must be a number of seconds, 0 or more, or None for no limit; got {timeout_s!r}")
    return seconds


cdef int64_t _deadline_ns(object timeout_s) except -1:
    """Return the time at which a wait of `timeout_s` seconds ends; None has no deadline."""
    cdef double seconds = _seconds(timeout_s)
    if seconds > _LONG:
        return _FOREVER
    return _now_ns() + <int64_t>(seconds * 1e9)


cdef inline VIP_ULONG _remaining_ms(int64_t deadline_ns) noexcept nogil:
    """Return the milliseconds until the deadline, rounded up so that a short wait does not become a poll."""
    cdef int64_t left
    if deadline_ns == _FOREVER:
        return VIP_INFINITE
    left = deadline_ns - _now_ns()
    if left <= 0:
        return 0
    left = (left + 999999) // 1000000
    # The caller checks the clock and repeats waits that do not fit into 32 bits.
    return <VIP_ULONG>left if left < 0x7fffffff else 0x7fffffff


# ---------------------------------------------------------------- waits that can be interrupted
#
# While a thread waits in C, the C library calls back at least every 50 ms, and Python's signal handlers run in this
# callback. An exception of a handler is stored, one for each thread. The waiting call raises it with _raise_signal()
# after it has returned from C. It cannot be raised earlier: C may have to release a buffer or to run other callbacks,
# and Python code must not run while an exception is set. The callback's result ends the wait and takes no descriptor. A
# descriptor that has completed in the meantime stays in its queue for the next call.
#
# The waiting VIPL calls of a thread form a chain, because a handler that runs during a wait may itself wait.

cdef extern from *:
    """
    static __thread void *viakit_innermost;               /* innermost waiting call of this thread, a struct Call */
    static __thread PyObject *viakit_raised;              /* exception of a signal handler, to be raised, owned */
    static __thread int viakit_n_checks;                  /* nesting of signal checks, not 0 within a handler */
    """
    int viakit_n_checks
    void *viakit_innermost
    PyObject *viakit_raised

cdef struct Call:
    Call *outer
    void *nic          # the Nic that the call waits on; borrowed
    bint for_events    # Asynchronous errors end the wait as well. The wait can be repeated at any time.
    bint woken         # An asynchronous error has ended the wait.


cdef int _keep_raised(object error) except -1:
    """Store an exception for the waiting call of this thread. Only the first one is kept."""
    global viakit_raised
    if viakit_raised == NULL:
        Py_INCREF(error)
        viakit_raised = <PyObject *>error
    return 0


cdef bint _look_for_signals() noexcept:
    """Run pending signal handlers. Returns whether the waiting call of this thread has to end."""
    global viakit_n_checks
    if viakit_raised == NULL:
        viakit_n_checks += 1
        try:
            PyErr_CheckSignals()
        except BaseException as error:
            _keep_raised(error)
        viakit_n_checks -= 1
    return viakit_raised != NULL


cdef int _raise_signal() except -1:
    """Raise the exception that a signal handler raised while this thread was in C, if there is one."""
    global viakit_raised
    if viakit_raised == NULL:
        return 0
    error = <object>viakit_raised
    Py_DECREF(error)
    viakit_raised = NULL
    raise error


cdef int _interrupted(void *context) noexcept nogil:
    cdef Call *call = <Call *>context
    cdef int ends
    with gil:
        ends = _look_for_signals()
    if not ends and call.for_events and _events_waiting:
        call.woken = ends = True
    return ends


cdef inline void _begin_wait(Call *call, void *nic, bint for_events) noexcept nogil:
    """Start an interruptible wait of this thread on a Nic. It ends with _end_wait()."""
    global viakit_innermost
    call.outer = <Call *>viakit_innermost
    call.nic = nic
    call.for_events = for_events
    call.woken = False
    viakit_innermost = call
    viakit_set_interrupt(_interrupted, call)


cdef inline void _end_wait(Call *call) noexcept nogil:
    global viakit_innermost
    viakit_innermost = call.outer
    if call.outer == NULL:
        viakit_set_interrupt(NULL, NULL)
    else:
        viakit_set_interrupt(_interrupted, call.outer)


cdef bint _waits_on(object nic) noexcept:
    """Return whether this thread is within a call that waits on the Nic, that is, runs in a handler."""
    cdef Call *call = <Call *>viakit_innermost
    while call != NULL:
        if call.nic == <void *>nic:
            return True
        call = call.outer
    return False


cdef int _raise_interrupt() except -1:
    """Raise the exception of a signal handler, if there is one; otherwise dispatch the asynchronous errors."""
    _raise_signal()
    if _events_waiting:
        _dispatch_events()
    return 0


# ---------------------------------------------------------------- asynchronous errors
#
# The handler runs on a thread of the C library. At this moment another thread may hold the GIL and wait for this one.
# The handler therefore takes no GIL. It stores the error in the NIC's ring, and requests that the interpreter reads the
# ring between two bytecodes of the main thread. A thread that waits in the C library also reads the ring.

cdef enum:
    N_EVENTS = 256   # errors that a ring holds until Python runs; further ones are only counted

cdef struct Event:
    VIP_VI_HANDLE vi
    VIP_CQ_HANDLE cq
    int resource
    int code

cdef struct EventRing:
    PyThread_type_lock lock
    unsigned int head      # free-running, the next event to dispatch
    unsigned int tail      # free-running, the next event to write
    uint64_t lost
    Event events[N_EVENTS]

cdef volatile int _events_waiting = 0   # some ring may hold an event
cdef volatile int _call_pending = 0     # a pending call has been requested and has not run yet
cdef object _nics = weakref.WeakSet()   # all open Nics


cdef EventRing *_new_event_ring() except NULL:
    cdef EventRing *ring = <EventRing *>calloc(1, sizeof(EventRing))
    if ring == NULL:
        raise MemoryError()
    ring.lock = PyThread_allocate_lock()
    if ring.lock == NULL:
        free(ring)
        raise MemoryError()
    return ring


cdef void _free_event_ring(EventRing *ring) noexcept:
    if ring != NULL:
        PyThread_free_lock(ring.lock)
        free(ring)


cdef void _on_event(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error) noexcept nogil:
    global _events_waiting, _call_pending
    cdef EventRing *ring = <EventRing *>context
    cdef Event *event
    PyThread_acquire_lock(ring.lock, WAIT_LOCK)
    if ring.tail - ring.head < N_EVENTS:
        event = &ring.events[ring.tail % N_EVENTS]
        event.vi = error.ViHandle
        event.cq = error.CQHandle
        event.resource = error.ResourceCode
        event.code = error.ErrorCode
        ring.tail += 1
    else:
        ring.lost += 1
    PyThread_release_lock(ring.lock)
    _events_waiting = 1
    if not _call_pending:
        _call_pending = 1
        if Py_AddPendingCall(_events_call, NULL) != 0:
            _call_pending = 0   # The interpreter's queue is full. The next wait or the next error tries again.


cdef bint _next_event(EventRing *ring, Event *event) noexcept nogil:
    cdef bint found
    PyThread_acquire_lock(ring.lock, WAIT_LOCK)
    found = ring.head != ring.tail
    if found:
        event[0] = ring.events[ring.head % N_EVENTS]
        ring.head += 1
    PyThread_release_lock(ring.lock)
    return found


cdef int _events_call(void *argument) except -1 with gil:
    global _call_pending
    _call_pending = 0
    return _dispatch_events()


cdef int _dispatch_events() except -1:
    """Let every Nic dispatch its errors; then raise the interrupt that a handler of the program raised, if any."""
    global _events_waiting
    interrupt = None
    _events_waiting = 0
    for nic in list(_nics):
        try:
            (<Nic>nic)._dispatch_errors()
        except BaseException as error:
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt
    return 0


# ---------------------------------------------------------------- exceptions of the program's handlers
#
# Exceptions of a handler are reported and have no further effect. KeyboardInterrupt and SystemExit are raised in the
# program, as in asyncio, because they usually come from a signal that arrived while the handler ran.

cdef tuple _INTERRUPTS = (KeyboardInterrupt, SystemExit)


cdef void _report(object error, object what) noexcept:
    """Report "Exception ignored in: <what>" by sys.unraisablehook, but not the end of a thread at exit."""
    if _leaves and isinstance(error, SystemExit):
        return
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(what)


# ---------------------------------------------------------------- processes and places

cdef volatile long _generation = 0   # incremented by fork in the child; older objects belong to the parent


cdef void _after_fork_in_child() noexcept nogil:
    global _generation, _events_waiting, _call_pending
    _generation += 1
    _events_waiting = 0
    _call_pending = 0


pthread_atfork(NULL, NULL, _after_fork_in_child)


cdef object _refuse_fork(object what):
    return _errors.ForkError(
        f"this {type(what).__name__} was created before a fork and belongs to the parent process; "
        "open another Nic in the child"
    )


cdef str _place():
    """Return the place of the caller outside viakit, "file:line", for the warning about an unclosed object."""
    frame = sys._getframe(0)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("viakit."):
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


cdef void _warn_unclosed(object what, str place):
    """Warn that `what` was dropped while open, unless the interpreter is shutting down. Never raises."""
    if sys is None or warnings is None or sys.is_finalizing():
        return
    try:
        warnings.warn(f"unclosed {what!r}, created at {place}; use `with`, or call close()", ResourceWarning,
                      stacklevel=2, source=what)
    except BaseException as error:
        _report(error, what)


cdef class _Resource:
    # Base of the NIC and its objects. It records the process and the place of creation, and closes in `with`.
    #
    # Users hold a reference, so an object is finalized before its users only if the collector has found all of them in
    # a garbage cycle, where the order is arbitrary. The object is then abandoned, and its last user closes it.
    cdef object __weakref__
    cdef str _made_at
    cdef long _generation
    cdef int _n_users      # open objects that refer to this one and must be closed first
    cdef bint _abandoned

    def __cinit__(self):
        self._generation = _generation

    cdef int _drop_user(self) except -1:
        """Count a user out. The last one closes an abandoned object."""
        self._n_users -= 1
        if self._n_users == 0 and self._abandoned:
            self.close()
        return 0

    cdef int _finalize(self) except -1:
        """Close an object that the program has dropped, now or when its last user is closed."""
        self._abandoned = self._n_users != 0
        if not self._abandoned:
            self.close()
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()


# ---------------------------------------------------------------- the end of the interpreter

cdef bint _leaves = False          # An interpreter that exits has begun to close its objects ...
cdef unsigned long _leaver = 0     # ... in this thread.


def begin_exit():
    """Record that this thread closes all objects because the interpreter exits. Handlers of atexit call it first.

    Calls of other threads then raise SystemExit, which ends a thread without a traceback, instead of their errors.
    Daemon threads would otherwise report objects that were closed under them.
    """
    global _leaves, _leaver
    _leaver = PyThread_get_thread_ident()
    _leaves = True


cdef int _end_thread() except -1:
    """Raise SystemExit if another thread has begun to close all objects. Call it before raising an error."""
    if _leaves and PyThread_get_thread_ident() != _leaver:
        raise SystemExit
    return 0


cdef object _closed_error(object what):
    """Return the error of a call on a closed object."""
    _end_thread()
    return _errors.ClosedError(f"{what!r} is closed")


@atexit.register
def _close_all():
    # An interpreter may exit with open NICs, for instance in a notebook. The NICs' threads must end before it.
    begin_exit()
    for nic in list(_nics):
        if (<Nic>nic)._generation == _generation:
            try:
                (<Nic>nic).close()
            except Exception:
                pass
