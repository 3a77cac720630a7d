# Conversion of addresses to C and back, requesting a connection, waiting for a request, and the request itself.

cdef union NetAddress:
    VIP_NET_ADDRESS net
    char data[4 + 256 + 256]   # the lengths, then host address and discriminator


cdef int _fill_address(NetAddress *buffer, object address) except -1:
    cdef bytes host = address.host
    cdef bytes discriminator = address.discriminator
    memset(buffer, 0, sizeof(NetAddress))
    buffer.net.HostAddressLen = <uint16_t>len(host)
    buffer.net.DiscriminatorLen = <uint16_t>len(discriminator)
    memcpy(buffer.data + 4, <char *>host, len(host))
    memcpy(buffer.data + 4 + len(host), <char *>discriminator, len(discriminator))
    return 0


cdef object _address_of(NetAddress *buffer):
    cdef size_t n_host = buffer.net.HostAddressLen
    cdef size_t n_discriminator = buffer.net.DiscriminatorLen
    return _Address((buffer.data + 4)[:n_host], (buffer.data + 4 + n_host)[:n_discriminator])


cdef object _vi_attributes(const VIP_VI_ATTRIBUTES *a):
    return _types.ViAttributes(_Reliability(a.ReliabilityLevel & 7), a.MaxTransferSize, bool(a.EnableRdmaWrite),
                               bool(a.EnableRdmaRead))


cdef object _connect(Vi vi, object remote, object timeout_s, object retry):
    cdef NetAddress here, there
    cdef VIP_VI_ATTRIBUTES attributes
    cdef VIP_VI_HANDLE handle
    cdef VIP_RETURN code
    cdef VIP_ULONG left_ms
    cdef Call call
    cdef void *nic
    cdef int64_t deadline = _deadline_ns(timeout_s)
    cdef double pause_s = 0.001
    vi._use()
    if not isinstance(remote, _types.Address):
        raise TypeError(f"remote must be an Address such as nic.address / 'name', got {remote!r}")
    _fill_address(&here, vi._nic._address)
    _fill_address(&there, remote)
    handle = vi._handle
    nic = <void *>vi._nic
    left_ms = _remaining_ms(deadline)
    while True:
        with nogil:
            _begin_wait(&call, nic, False)
            code = VipConnectRequest(handle, &here.net, &there.net, left_ms, &attributes)
            _end_wait(&call)
            if code == VIP_SUCCESS and viakit_raised != NULL:
                VipDisconnect(handle)   # The call raises and cannot return the connection.
        if code == VIP_SUCCESS:
            _raise_signal()
            return _vi_attributes(&attributes)
        error = _error(code, "VipConnectRequest")
        _raise_interrupt()
        vi._use()
        left_ms = _remaining_ms(deadline)
        if left_ms == 0 or code == VIP_TIMEOUT and deadline != _FOREVER:
            raise error
        if code == VIP_TIMEOUT:
            continue
        if not retry or code not in (VIP_NO_MATCH, VIP_NOT_REACHABLE):
            raise error
        _sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


cdef object _connect_wait(Nic nic, object local, object timeout_s):
    cdef NetAddress here, there
    cdef VIP_VI_ATTRIBUTES attributes
    cdef VIP_CONN_HANDLE connection = NULL
    cdef VIP_NIC_HANDLE handle
    cdef VIP_RETURN code
    cdef VIP_ULONG left_ms
    cdef Call call
    cdef int64_t deadline = _deadline_ns(timeout_s)
    cdef ConnectionRequest request
    _fill_address(&here, local)
    memset(&there, 0, sizeof(there))
    there.net.HostAddressLen = 6
    there.net.DiscriminatorLen = 255   # size of the buffer
    handle = nic._handle
    while True:
        left_ms = _remaining_ms(deadline)
        # Asynchronous errors do not wake this wait, because a request that arrives between two waits would be refused
        # with NO_MATCH. If a signal handler raises, C refuses the requests that arrive meanwhile.
        with nogil:
            _begin_wait(&call, <void *>nic, False)
            code = VipConnectWait(handle, &here.net, left_ms, &there.net, &attributes, &connection)
            _end_wait(&call)
        if code == VIP_SUCCESS:
            break
        _raise_interrupt()
        nic._use()
        if code != VIP_TIMEOUT:
            raise _error(code, "VipConnectWait")
        if deadline != _FOREVER and _now_ns() >= deadline:
            raise _errors.ViaTimeoutError(
                f"no connection request for discriminator {local.discriminator!r} of {nic.device} within {timeout_s} s",
                code=code, operation="VipConnectWait")
    request = ConnectionRequest.__new__(ConnectionRequest)
    request._nic = nic
    request._handle = connection
    request.remote_address = _address_of(&there)
    request.remote_attributes = _vi_attributes(&attributes)
    request._made_at = _place()
    nic._children.add(request)
    return request


@cython.final
cdef class ConnectionRequest(_Resource):
    """Connection request of a peer, from :meth:`Nic.connect_wait`. Accept or reject it once.

    Attributes
    ----------
    remote_address : Address
        Address of the requesting VI.
    remote_attributes : ViAttributes
        Attributes of the requesting VI. The accepting VI must have the same reliability level and maximum transfer
        size.
    """

    cdef Nic _nic
    cdef VIP_CONN_HANDLE _handle
    cdef readonly object remote_address
    cdef readonly object remote_attributes

    def __init__(self):
        raise TypeError("a ConnectionRequest is returned by Nic.connect_wait() and cannot be created")

    def __del__(self):
        if self._handle != NULL and self._generation == _generation and not self._nic._closed:
            _warn_unclosed(self, self._made_at)
            self.close()

    cdef int _use(self) except -1:
        self._nic._use()
        if self._handle == NULL:
            raise _errors.ClosedError(f"{self!r} has been accepted or rejected already")
        return 0

    def accept(self, Vi vi not None):
        """Accept the request with an idle VI. Its receives should be posted before this call.

        Raises
        ------
        ReliabilityLevelError, MtuError, QosError
            If the attributes of the two VIs differ. The request stays open: accept it with another VI, or reject it.
        InvalidStateError
            If the VI is not idle. The request stays open.
        ViaTimeoutError
            If the request of the peer has timed out.
        """
        cdef VIP_CONN_HANDLE handle = self._handle
        cdef VIP_VI_HANDLE vi_handle
        cdef VIP_RETURN code
        self._use()
        vi._use()
        vi_handle = vi._handle
        with nogil:
            code = VipConnectAccept(handle, vi_handle)
        if code in (VIP_SUCCESS, VIP_TIMEOUT):
            self._handle = NULL
        _check(code, "VipConnectAccept")

    def reject(self):
        """Reject the request. The peer gets a :class:`RejectedError`."""
        cdef VIP_CONN_HANDLE handle = self._handle
        cdef VIP_RETURN code
        self._use()
        self._handle = NULL
        with nogil:
            code = VipConnectReject(handle)
        if code != VIP_TIMEOUT:   # A peer whose request has timed out needs no reply.
            _check(code, "VipConnectReject")

    def close(self):
        """Reject the request, unless it has been accepted or rejected already."""
        cdef VIP_CONN_HANDLE handle = self._handle
        self._handle = NULL
        if handle != NULL and self._generation == _generation and not self._nic._closed:
            with nogil:
                VipConnectReject(handle)

    def __repr__(self):
        state = "" if self._handle != NULL else " answered"
        return f"<viakit.via.ConnectionRequest from {self.remote_address}{state}>"
