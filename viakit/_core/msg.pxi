# Binding of the message engine (csrc/msg) for viakit.comm, one file per object.
#
# These classes contain only the code that must be fast or that pins memory. viakit/comm has the rest, under MPI's
# names. A world owns the engine's resources; a communicator, a request and a message hold a reference to their world.

from cmsg cimport *

cdef class MsgStatus
cdef class MsgWorld
cdef class MsgRequest
cdef class PlanRequest(MsgRequest)
cdef class MsgMessage
cdef class MsgComm
cdef class MsgType
cdef class CollectiveGroup

cdef object _make_error = None         # (code, text) -> exception
cdef object _request_type = None       # what Isend and Irecv return: a subclass of MsgRequest


def set_message_types(error, request_type):
    """Register the factory of exceptions and the class of requests. :mod:`viakit.comm` calls it once."""
    global _make_error, _request_type
    _make_error = error
    _request_type = request_type


cdef object _message_error(object code, object text):
    """Return the exception of the interface above for a code of the engine."""
    _end_thread()
    return _make_error(code, text)


def message_calibration_path(str link):
    """Return the path of the message engine's calibration file for a link: "shm", "eth", "udp" or "tcp"."""
    cdef char path[4096]
    cdef bytes name = link.encode()
    if msg_calibration_path(name, path, sizeof(path)) != 0:
        raise FileNotFoundError(2, "no directory for calibration files; set XDG_CACHE_HOME or HOME", link)
    return path.decode("utf-8", "surrogateescape")


def policies():
    """Return the names of the message engine's policies, in the order of their table."""
    cdef int i = 0
    names = []
    while msg_policy_at(i) != NULL:
        names.append(_text(msg_policy_at(i).name))
        i += 1
    return names


cdef str _read_policy(str text, msg_policy *chosen):
    """Parse "NAME" or "NAME,field=value,..." into a policy. Returns None, or the text of the error."""
    cdef char error[MSG_ERROR_LEN]
    base, _, changes = text.partition(",")
    cdef const msg_policy *found = msg_policy_find(base.encode())
    if found == NULL:
        return f"there is no policy {base!r}; choose one of {', '.join(policies())}"
    chosen[0] = found[0]
    error[0] = 0
    if changes and msg_policy_parse(chosen, changes.encode(), error) != 0:
        return f"policy {text!r}: {_text(error)}"
    return None


def policy_channel(str text):
    """Return the channel of a policy such as "mvich-rput" or "via,credits=16".

    Returns None if the text contains only changes that leave the channel open, such as "credits=16". Raises ValueError
    if the text is not a policy.
    """
    cdef msg_policy chosen
    cdef bint changes = "=" in text.partition(",")[0]
    problem = _read_policy("via," + text if changes else text, &chosen)
    if problem is not None:
        raise ValueError(problem)
    return None if changes and "channel=" not in text else _text(chosen.channel)


def policy_fields(str text):
    """Return a policy's fields as a dict, with its ``name`` and ``channel``.

    Raises ValueError if the text is not a policy.
    """
    cdef msg_policy chosen
    cdef int i = 0
    problem = _read_policy(text, &chosen)
    if problem is not None:
        raise ValueError(problem)
    found = {"name": _text(chosen.name), "channel": _text(chosen.channel)}
    while msg_policy_field_name(i) != NULL:
        found[_text(msg_policy_field_name(i))] = msg_policy_get(&chosen, i)
        i += 1
    return found


def mpi_exit_can():
    """Return whether :func:`mpi_exit` works with this C library."""
    return bool(msg_mpi_exit_can())


def mpi_exit(str library, uintptr_t world, uintptr_t own, int grace_ms):
    """Leave MPI at the end of this process, as its exit status requires: finalise, or abort all ranks.

    Parameters
    ----------
    library : str
        A loaded file that contains MPI's functions or depends on a library that does.
    world, own : int
        Handles of that library: ``MPI_COMM_WORLD``, and a duplicate that is used for nothing else.
    grace_ms : int
        How long a rank with a non-zero exit status waits for the other ranks to end before it aborts the job.

    Raises
    ------
    RuntimeError
        If there are no such functions.
    """
    cdef bytes path = library.encode("utf-8", "surrogateescape")
    if msg_mpi_exit(path, world, own, grace_ms) != 0:
        raise RuntimeError(f"{library} does not provide MPI's functions, or the C library has no on_exit")


cdef int64_t _message_ms(object timeout_s) except -2:
    """Convert seconds to the engine's milliseconds, rounded up so that a short wait does not become a poll."""
    cdef double seconds = _seconds(timeout_s)
    return MSG_FOREVER if seconds > _LONG else <int64_t>ceil(seconds * 1000)


cdef int64_t _open_ms(object timeout_s) except -2:
    """Convert the timeout for opening a world, which cannot be infinite: at most 24 days.

    A timeout of 0 becomes 1 ms, because 0 selects the engine's default.
    """
    cdef int64_t ms = _message_ms(timeout_s)
    return 0x7fffffff if ms == MSG_FOREVER or ms > 0x7fffffff else max(ms, 1)


include "msg_world.pxi"
include "msg_request.pxi"
include "ndarray.pxi"
include "plain.pxi"
include "msg_comm.pxi"
