# Peer-to-peer connections: the implementation of Vi.connect_peer, request_peer and peer_done.

cdef int _peer_request(Vi vi, object remote, object local, object timeout_s) except -1:
    cdef NetAddress here, there
    cdef VIP_VI_HANDLE handle
    cdef VIP_RETURN code
    cdef VIP_ULONG left_ms
    vi._use()
    if not isinstance(remote, _types.Address):
        raise TypeError(f"remote must be an Address such as nic.address / 'name', got {remote!r}")
    _fill_address(&here, vi._nic._address / local)
    _fill_address(&there, remote)
    left_ms = _remaining_ms(_deadline_ns(timeout_s))
    handle = vi._handle
    with nogil:
        code = VipConnectPeerRequest(handle, &here.net, &there.net, left_ms)
    return _check(code, "VipConnectPeerRequest")


cdef object _peer_done(Vi vi):
    cdef VIP_VI_ATTRIBUTES attributes
    cdef VIP_RETURN code
    vi._use()
    code = VipConnectPeerDone(vi._handle, &attributes)
    if code == VIP_NOT_DONE:
        return None
    _check(code, "VipConnectPeerDone")
    return _vi_attributes(&attributes)


cdef object _peer_wait(Vi vi):
    """Wait for the result of the peer request. If a signal handler raises, the request is withdrawn."""
    cdef VIP_VI_ATTRIBUTES attributes
    cdef VIP_VI_HANDLE handle
    cdef VIP_RETURN code
    cdef Call call
    while True:
        vi._use()
        handle = vi._handle
        with nogil:
            _begin_wait(&call, <void *>vi._nic, True)
            code = VipConnectPeerWait(handle, &attributes)
            _end_wait(&call)
            if viakit_raised != NULL:
                VipDisconnect(handle)
        if code == VIP_SUCCESS:
            return _vi_attributes(&attributes)
        error = _error(code, "VipConnectPeerWait")
        _raise_interrupt()
        vi._use()
        if code != VIP_TIMEOUT or not call.woken:
            raise error
