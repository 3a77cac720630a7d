# The message engine (csrc/msg) as viakit.comm needs it, one file per object, from the world inwards.
#
# Here is only what has to be fast or has to hold memory; MPI's names for the rest are in viakit/_comm. A world holds
# what the engine has open; a communicator, a request and a message hold their world.

from cmsg cimport *

cdef class MsgStatus
cdef class MsgWorld
cdef class MsgRequest
cdef class MsgMessage
cdef class MsgComm
cdef class CollectiveGroup

cdef object _message_error = None      # (code, text) -> exception
cdef object _request_type = None       # what Isend and Irecv return: a subclass of MsgRequest


def set_message_types(error, request_type):
    """Tell which exception and which class of requests to make; called once, by :mod:`viakit._comm`."""
    global _message_error, _request_type
    _message_error = error
    _request_type = request_type


def message_calibration_path(str link):
    """Where the message engine looks for the calibration of a link: "shm", "eth", "udp", "tcp"."""
    cdef char path[4096]
    cdef bytes name = link.encode()
    if msg_calibration_path(name, path, sizeof(path)) != 0:
        raise FileNotFoundError(2, "there is no home directory for calibrations: set XDG_CACHE_HOME or HOME", link)
    return path.decode("utf-8", "surrogateescape")


def policies():
    """Names of the message engine's policies, in the order of their table."""
    cdef int i = 0
    names = []
    while msg_policy_at(i) != NULL:
        names.append(_text(msg_policy_at(i).name))
        i += 1
    return names


cdef str _read_policy(str text, msg_policy *chosen):
    """Make a policy of "NAME" or "NAME,field=value,..."; what is wrong with the text, or None."""
    cdef char error[MSG_ERROR_LEN]
    base, _, changes = text.partition(",")
    cdef const msg_policy *found = msg_policy_find(base.encode())
    if found == NULL:
        return f"there is no policy {base!r}; right would be one of {', '.join(policies())}"
    chosen[0] = found[0]
    error[0] = 0
    if changes and msg_policy_parse(chosen, changes.encode(), error) != 0:
        return f"policy {text!r}: {_text(error)}"
    return None


def policy_channel(str text):
    """The channel of a policy, "mvich-rput" or "via,credits=16"; None of mere changes, "credits=16".

    Raises ValueError unless it is one.
    """
    cdef msg_policy chosen
    cdef bint changes = "=" in text.partition(",")[0]
    problem = _read_policy("via," + text if changes else text, &chosen)
    if problem is not None:
        raise ValueError(problem)
    return None if changes and "channel=" not in text else _text(chosen.channel)


def mpi_exit_can():
    """Whether :func:`mpi_exit` works with this C library."""
    return bool(msg_mpi_exit_can())


def mpi_exit(str library, uintptr_t world, uintptr_t own, int grace_ms):
    """Have the end of this process leave MPI by its exit status: in order, or with ``MPI_Abort`` for all ranks.

    Parameters
    ----------
    library : str
        A file that is loaded and has MPI's functions, or depends on what has them.
    world, own : int
        Handles of that library: ``MPI_COMM_WORLD``, and a duplicate that nobody else uses.
    grace_ms : int
        How long a rank with an exit status other than 0 waits for the others to end, too, before it aborts.

    Raises
    ------
    RuntimeError
        If there are no such functions.
    """
    cdef bytes path = library.encode("utf-8", "surrogateescape")
    if msg_mpi_exit(path, world, own, grace_ms) != 0:
        raise RuntimeError(f"{library}: MPI's functions are not in it, or the C library has no on_exit")


cdef int64_t _message_ms(object timeout_s) except -2:
    """Milliseconds for a wait of the engine's, rounded up so that a short one is not a mere look."""
    cdef double seconds = _seconds(timeout_s)
    return MSG_FOREVER if seconds > _LONG else <int64_t>ceil(seconds * 1000)


cdef int64_t _open_ms(object timeout_s) except -2:
    """The same for opening, which knows no "for ever": 24 days are as good. 0 would be the engine's own default."""
    cdef int64_t ms = _message_ms(timeout_s)
    return 0x7fffffff if ms == MSG_FOREVER or ms > 0x7fffffff else max(ms, 1)


include "msg_world.pxi"
include "msg_request.pxi"
include "msg_comm.pxi"
