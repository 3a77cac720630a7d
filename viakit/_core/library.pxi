# Information about the C library itself: its counters, objects, links, return codes and errors.

cdef object _counters(const uint64_t *values):
    cdef int i
    result = _Counters()
    for i in range(VIAKIT_N_COUNTERS):
        result[_COUNTER_NAMES[i]] = values[i]
    return result


cdef tuple _COUNTER_NAMES = tuple([_text(viakit_counter_name(i)) for i in range(VIAKIT_N_COUNTERS)])

counters_help = {_text(viakit_counter_name(i)): _text(viakit_counter_text(i)) for i in range(VIAKIT_N_COUNTERS)}


def live_objects():
    """Return the number of objects in the C library in this process, over all NICs.

    All numbers are zero once everything is closed.

    Returns
    -------
    dict of str to int
        ``nics``, ``vis``, ``cqs``, ``ptags``, ``regions``, ``connections``, ``allocations``.
    """
    cdef viakit_live live
    viakit_live_objects(&live)
    return {"nics": live.nics, "vis": live.vis, "cqs": live.cqs, "ptags": live.ptags, "regions": live.regions,
            "connections": live.connections, "allocations": live.allocations}


cdef object _link_info(const viakit_link_info *i):
    return _types.LinkInfo(
        _text(i.name), _text(i.devices), _text(i.transport), bool(i.leaves_process), bool(i.leaves_host),
        bool(i.lossless), bool(i.maps_memory), ("name", "interface", "address")[<int>i.named_by],
    )


def links():
    """Return the properties of all links.

    Returns
    -------
    tuple of LinkInfo
    """
    cdef list found = []
    while viakit_link(<int>len(found)) != NULL:
        found.append(_link_info(viakit_link(<int>len(found))))
    return tuple(found)


def link_of(str device):
    """Return the properties of the link that a device name selects. No NIC is opened; the device need not exist.

    Parameters
    ----------
    device : str
        As for :class:`Nic`; the name of a link alone is accepted, too.

    Returns
    -------
    LinkInfo

    Raises
    ------
    InvalidParameterError
        If the name selects no link.
    """
    cdef bytes name = device.encode()
    cdef const viakit_link_info *found = viakit_link_of(name)
    if found == NULL:
        raise _error(VIP_INVALID_PARAMETER, "viakit_link_of", 0)
    return _link_info(found)


def return_codes():
    """Return the names and meanings of all return codes of the C library, by value.

    Returns
    -------
    dict of int to (str, str)
    """
    return {code: (_text(viakit_return_name(code)), _text(viakit_return_text(code)))
            for code in range(256) if viakit_return_name(code) != NULL}


def error_codes():
    """Return the names and meanings of all asynchronous errors of the C library, by value.

    Returns
    -------
    dict of int to (str, str)
    """
    return {code: (_text(viakit_error_code_name(code)), _text(viakit_error_code_text(code)))
            for code in range(256) if viakit_error_code_name(code) != NULL}


# ---------------------------------------------------------------- virtual time (viakit.virtual)

def virtual_begin(int n_ranks, int rank, double timeout_s):
    """Start virtual time with all ranks of a simulated machine. See :func:`viakit.virtual.begin`."""
    cdef VIP_RETURN code
    cdef uint64_t deadline = viakit_time_ns() + <uint64_t>(timeout_s * 1e9)
    while True:
        with nogil:
            code = viakit_virtual_begin(n_ranks, rank, 50)
        if code != VIP_TIMEOUT or viakit_time_ns() >= deadline:
            _check(code, "viakit_virtual_begin")
            return
        PyErr_CheckSignals()


def virtual_end():
    """End virtual time for this rank. See :func:`viakit.virtual.end`."""
    viakit_virtual_end()


def virtual_compute(double seconds):
    """Declare that the program computes. See :func:`viakit.virtual.compute`."""
    cdef VIP_RETURN code
    with nogil:
        code = viakit_virtual_compute(seconds)
    _check(code, "viakit_virtual_compute")


def time_ns():
    """Return the library's time in nanoseconds."""
    return viakit_time_ns()


def time_is_virtual():
    """Return whether this process is in virtual time."""
    return bool(viakit_time_is_virtual())
