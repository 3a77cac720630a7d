# What every face of the C library shares: statuses to exceptions, time-outs, interruptible waits, asynchronous errors
# on their way to Python, the process an object belongs to, and the place where it was made.

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
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, PyThread_type_lock,
    WAIT_LOCK,
)
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc cimport errno as c_errno
from libc.math cimport INFINITY, ceil
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from cvipl cimport *

from viakit import _types, errors as _errors

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


# ---------------------------------------------------------------- one table from statuses to exceptions

cdef object _text(const char *text):
    return "" if text == NULL else text.decode("utf-8", "replace")


cdef object _error(int code, str operation, int os_error=0):
    """The exception for what `operation` answered; read in the thread that called, before it calls again."""
    cdef str text = _text(viakit_last_error())
    if not text:
        text = _text(viakit_return_text(code)) or f"{operation} answered {code}"
    return _errors.from_code(code, operation, text, os_error)


cdef int _check(VIP_RETURN code, str operation) except -1:
    """Raise what a VIPL call answered, unless it succeeded."""
    if code != VIP_SUCCESS:
        raise _error(code, operation)
    return 0


# ---------------------------------------------------------------- numbers on their way to C

cdef uint64_t _whole(str name, object value, uint64_t most) except? 0xffffffffffffffff:
    """A whole number from 0 to `most`; another number is a ValueError, and what is none a TypeError."""
    cdef object number
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: expected a whole number") from None
    if not 0 <= number <= most:
        raise ValueError(f"{name}={value!r}: expected a whole number from 0 to {most}")
    return number


cdef VIP_ULONG _reliability_level(object value) except? 0xffffffff:
    """One of the levels; C says which it does not have."""
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


cdef double _LONG = 1e9   # seconds; whoever waits longer waits for ever


cdef double _seconds(object timeout_s) except -1:
    """A time-out as it was given, checked; None, as infinity, is no limit."""
    cdef double seconds
    if timeout_s is None:
        return INFINITY
    seconds = timeout_s
    if not seconds >= 0:
        raise ValueError(f"timeout_s is a number of seconds, 0 or more, or None for no limit; not {timeout_s!r}")
    return seconds


cdef int64_t _deadline_ns(object timeout_s) except -1:
    """The moment at which a wait of `timeout_s` seconds is over; None waits for ever."""
    cdef double seconds = _seconds(timeout_s)
    if seconds > _LONG:
        return _FOREVER
    return _now_ns() + <int64_t>(seconds * 1e9)


cdef inline VIP_ULONG _remaining_ms(int64_t deadline_ns) noexcept nogil:
    """Milliseconds until then for a VIPL call, rounded up so that a short wait is not a poll."""
    cdef int64_t left
    if deadline_ns == _FOREVER:
        return VIP_INFINITE
    left = deadline_ns - _now_ns()
    if left <= 0:
        return 0
    left = (left + 999999) // 1000000
    # Longer waits than 32 bits hold are begun again by the caller, who looks at the clock.
    return <VIP_ULONG>left if left < 0x7fffffff else 0x7fffffff


# ---------------------------------------------------------------- waits that can be interrupted
#
# While a thread waits in C, the C library calls back at least every 50 ms, and Python's signal handlers run then. What
# one of them raises is kept here, one exception for each thread, until the call has come back from C and raises it with
# _raise_signal(): C may have a buffer to let go of or other callbacks to make, and Python must not run with an
# exception set. The callback's answer ends the wait, and takes nothing: what completed meanwhile is there for the next
# call.
#
# The calls of a thread that wait in VIPL form a chain, for a handler that runs in the middle of one may wait itself.

cdef extern from *:
    """
    struct viakit_call;
    static __thread struct viakit_call *viakit_innermost; /* of the calls that this thread waits in */
    static __thread PyObject *viakit_raised;              /* by a signal handler, to be raised; owned */
    static __thread int viakit_n_checks;                  /* looks for signals that it is in: we are in a handler */
    """
    int viakit_n_checks
    void *viakit_innermost
    PyObject *viakit_raised

cdef struct Call:
    Call *outer
    void *nic          # the Nic that it waits on; borrowed
    bint for_events    # asynchronous errors end it, too: it may be begun again at any time
    bint woken         # by them it was ended


cdef int _keep_raised(object error) except -1:
    """Have the call of this thread that is in C raise it; the first one counts."""
    global viakit_raised
    if viakit_raised == NULL:
        Py_INCREF(error)
        viakit_raised = <PyObject *>error
    return 0


cdef bint _look_for_signals() noexcept:
    """Run the signal handlers that are due; whether the call of this thread that is in C shall end."""
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
    """Raise what a signal handler raised while this thread was in C, if any did."""
    global viakit_raised
    if viakit_raised == NULL:
        return 0
    error = <object>viakit_raised
    Py_DECREF(error)
    viakit_raised = NULL
    raise error


cdef int _interrupted(void *context) noexcept nogil:
    cdef Call *call = <Call *>context
    cdef int answer
    with gil:
        answer = _look_for_signals()
    if not answer and call.for_events and _events_waiting:
        call.woken = answer = True
    return answer


cdef inline void _begin_wait(Call *call, void *nic, bint for_events) noexcept nogil:
    """From here to _end_wait() this thread waits on a Nic in VIPL, and can be interrupted."""
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
    """Whether this thread is in the middle of a call that waits on the Nic: we are in a handler then."""
    cdef Call *call = <Call *>viakit_innermost
    while call != NULL:
        if call.nic == <void *>nic:
            return True
        call = call.outer
    return False


cdef int _raise_interrupt() except -1:
    """Raise what a signal handler raised during the wait, if any did; then tell the asynchronous errors."""
    _raise_signal()
    if _events_waiting:
        _tell_events()
    return 0


# ---------------------------------------------------------------- asynchronous errors
#
# The handler runs on a thread of the C library, at a moment when somebody may hold the GIL and wait for that very
# thread. So it takes no GIL: it leaves the error in the NIC's ring, and asks the interpreter to look there between
# two bytecodes of the main thread. A thread that waits in the C library looks as well.

cdef enum:
    N_EVENTS = 256   # errors that a NIC keeps until Python runs; later ones are counted only

cdef struct Event:
    VIP_VI_HANDLE vi
    VIP_CQ_HANDLE cq
    int resource
    int code

cdef struct EventRing:
    PyThread_type_lock lock
    unsigned int head      # free-running; the next to be told
    unsigned int tail      # free-running; the next to be written
    uint64_t lost
    Event events[N_EVENTS]

cdef volatile int _events_waiting = 0   # some ring may hold something
cdef volatile int _call_pending = 0     # the interpreter has been asked and has not come yet
cdef object _nics = weakref.WeakSet()   # every Nic that is open


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
            _call_pending = 0   # the interpreter's queue is full; the next wait or the next error asks again


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
    return _tell_events()


cdef int _tell_events() except -1:
    """Hand every waiting error to its Nic; then raise the interrupt that came while a user's handler ran, if any."""
    global _events_waiting
    interrupt = None
    _events_waiting = 0
    for nic in list(_nics):
        try:
            (<Nic>nic)._tell()
        except BaseException as error:
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt
    return 0


# ---------------------------------------------------------------- what the program's own handlers raise
#
# An error of theirs is reported and stops nothing. But KeyboardInterrupt and SystemExit are mostly a signal's, which
# happened to come while a handler ran: they are for the program, as in asyncio.

cdef tuple _INTERRUPTS = (KeyboardInterrupt, SystemExit)


cdef void _report(object error, object what) noexcept:
    """"Exception ignored in: <what>", by sys.unraisablehook."""
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable(what)


# ---------------------------------------------------------------- processes and places

cdef volatile long _generation = 0   # goes up in every child: what was made before belongs to the parent


cdef void _after_fork_in_child() noexcept nogil:
    global _generation, _events_waiting, _call_pending
    _generation += 1
    _events_waiting = 0
    _call_pending = 0


pthread_atfork(NULL, NULL, _after_fork_in_child)


cdef object _refuse_fork(object what):
    return _errors.ForkError(
        f"this {type(what).__name__} was made before a fork and belongs to the parent process; "
        "open a Nic of its own in the child"
    )


cdef str _place():
    """Where the caller of this library stands: "file:line", for the warning about something left open."""
    frame = sys._getframe(0)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("viakit."):
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


cdef void _warn_unclosed(object what, str place):
    """Say that `what` was dropped open; only while the interpreter lives, and never raising out of a destructor."""
    if sys is None or warnings is None or sys.is_finalizing():
        return
    try:
        warnings.warn(f"unclosed {what!r}, made at {place}: use `with`, or close()", ResourceWarning, stacklevel=2,
                      source=what)
    except BaseException as error:
        _report(error, what)


@atexit.register
def _close_all():
    # Interpreters end with NICs open, in notebooks for instance; their threads must not outlive it.
    for nic in list(_nics):
        if (<Nic>nic)._generation == _generation:
            try:
                (<Nic>nic).close()
            except Exception:
                pass
