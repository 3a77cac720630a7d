# What every face of the C library shares: statuses to exceptions, time-outs, interruptible waits, asynchronous errors
# on their way to Python, the process an object belongs to, and the place where it was made.

import atexit
import os
import sys
import warnings
import weakref
from json import loads as _json_loads

cimport cython
from cpython.buffer cimport (
    PyBUF_ANY_CONTIGUOUS, PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDES, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.pythread cimport (
    PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_release_lock, PyThread_type_lock,
    WAIT_LOCK,
)
from cpython.ref cimport PyObject
from libc cimport errno as c_errno
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from cvipl cimport *

from viakit import _types, errors as _errors

cdef extern from "Python.h":
    int PyErr_CheckSignals()          # not `except -1`: the exception stays set and the caller looks for it
    PyObject *PyErr_Occurred()
    int Py_AddPendingCall(int (*function)(void *) noexcept, void *argument) nogil

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


# ---------------------------------------------------------------- time

cdef int64_t _FOREVER = 0x7fffffffffffffff


cdef inline int64_t _now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef int64_t _deadline_ns(object timeout_s) except -1:
    """The moment at which a wait of `timeout_s` seconds is over; None waits for ever."""
    cdef double seconds
    if timeout_s is None:
        return _FOREVER
    seconds = timeout_s
    if not seconds >= 0:
        raise ValueError(f"timeout_s is a number of seconds, 0 or more, or None for no limit; not {timeout_s!r}")
    if seconds > 1e9:
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
# The C library calls _interrupted at least every 50 ms while this thread waits inside it. It answers 1, which ends the
# wait without losing anything, when a signal handler raised (the exception stays set in this thread) or when there are
# asynchronous errors to be told, which is done outside the wait, because their handlers may call VIPL.

cdef int _interrupted(void *context) noexcept nogil:
    cdef int answer
    with gil:
        answer = PyErr_CheckSignals() != 0
    return answer or (context != NULL and _events_waiting)


cdef int _raise_interrupt() except -1:
    """Raise what a signal handler raised during the wait, if any did; then tell the asynchronous errors."""
    if PyErr_Occurred() != NULL:
        return -1
    if _events_waiting:
        _tell_events()
    return 0


cdef int _raise_signal() except -1:
    """Raise what a signal handler raised during a wait that succeeded all the same."""
    return -1 if PyErr_Occurred() != NULL else 0


cdef int _WAKE_FOR_EVENTS = 1   # only its address is used: the context of waits that may be begun again at any time


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


cdef int _events_call(void *argument) noexcept with gil:
    global _call_pending
    _call_pending = 0
    _tell_events()
    return 0


cdef void _tell_events():
    """Hand every waiting error to its Nic. What a user's handler raises is reported, and stops nothing."""
    global _events_waiting
    _events_waiting = 0
    for nic in list(_nics):
        try:
            (<Nic>nic)._tell()
        except BaseException as error:
            sys.unraisablehook(_Unraisable(error, nic, "Exception ignored in the on_error handler of"))


class _Unraisable:
    # What sys.unraisablehook expects.
    def __init__(self, error, what, message):
        self.exc_type = type(error)
        self.exc_value = error
        self.exc_traceback = error.__traceback__
        self.err_msg = message
        self.object = what


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
        sys.unraisablehook(_Unraisable(error, what, "Exception ignored while dropping"))


@atexit.register
def _close_all():
    # Interpreters end with NICs open, in notebooks for instance; their threads must not outlive it.
    for nic in list(_nics):
        if (<Nic>nic)._generation == _generation:
            try:
                (<Nic>nic).close()
            except Exception:
                pass
