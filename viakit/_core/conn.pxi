# Addresses on their way to C and back, waiting for a connection, and the request that came.

cdef union NetAddress:
    VIP_NET_ADDRESS net
    char room[4 + 256 + 256]   # the lengths, then host address and discriminator


cdef int _fill_address(NetAddress *buffer, object address) except -1:
    cdef bytes host = address.host
    cdef bytes discriminator = address.discriminator
    memset(buffer, 0, sizeof(NetAddress))
    buffer.net.HostAddressLen = <uint16_t>len(host)
    buffer.net.DiscriminatorLen = <uint16_t>len(discriminator)
    memcpy(buffer.room + 4, <char *>host, len(host))
    memcpy(buffer.room + 4 + len(host), <char *>discriminator, len(discriminator))
    return 0


cdef object _address_of(NetAddress *buffer):
    cdef size_t n_host = buffer.net.HostAddressLen
    cdef size_t n_discriminator = buffer.net.DiscriminatorLen
    return _Address((buffer.room + 4)[:n_host], (buffer.room + 4 + n_host)[:n_discriminator])


cdef object _vi_attributes(const VIP_VI_ATTRIBUTES *a):
    return _types.ViAttributes(_Reliability(a.ReliabilityLevel & 7), a.MaxTransferSize, bool(a.EnableRdmaWrite),
                               bool(a.EnableRdmaRead))


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
    there.net.DiscriminatorLen = 255   # the room that there is
    handle = nic._handle
    while True:
        left_ms = _remaining_ms(deadline)
        # Not woken for asynchronous errors: whoever asked between two waits would be told that nobody is here. Who asks
        # while a signal handler raises is refused, by C.
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
                f"nobody asked for the discriminator {local.discriminator!r} of {nic.device} within {timeout_s} s",
                code=code, operation="VipConnectWait")
    request = ConnectionRequest.__new__(ConnectionRequest)
    request._nic = nic
    request._handle = connection
    request.remote_address = _address_of(&there)
    request.remote_attributes = _vi_attributes(&attributes)
    request._generation = _generation
    request._made_at = _place()
    nic._children.add(request)
    return request


@cython.final
cdef class ConnectionRequest:
    """Somebody's wish for a connection, from :meth:`Nic.connect_wait`; to be accepted or rejected once.

    Attributes
    ----------
    remote_address : Address
        Who asks.
    remote_attributes : ViAttributes
        Of the VI that asks: the VI that accepts must have the same reliability level and maximal transfer size.
    """

    cdef object __weakref__
    cdef Nic _nic
    cdef VIP_CONN_HANDLE _handle
    cdef readonly object remote_address
    cdef readonly object remote_attributes
    cdef str _made_at
    cdef long _generation

    def __init__(self):
        raise TypeError("a ConnectionRequest comes from Nic.connect_wait()")

    def __del__(self):
        if self._handle != NULL and self._generation == _generation and not self._nic._closed:
            _warn_unclosed(self, self._made_at)
            self.close()

    cdef int _use(self) except -1:
        self._nic._use()
        if self._handle == NULL:
            raise _errors.ClosedError(f"{self!r} was answered already")
        return 0

    def accept(self, Vi vi not None):
        """Connect it to an idle VI, which has its receives posted by now.

        Raises
        ------
        ReliabilityLevelError, MtuError, QosError
            The two VIs do not fit; the request is still open: try another VI, or reject.
        InvalidStateError
            The VI is not idle; the request is still open.
        ViaTimeoutError
            Whoever asked has given up.
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
        """Refuse: the other side gets a :class:`RejectedError`."""
        cdef VIP_CONN_HANDLE handle = self._handle
        cdef VIP_RETURN code
        self._use()
        self._handle = NULL
        with nogil:
            code = VipConnectReject(handle)
        if code != VIP_TIMEOUT:   # who has given up needs no answer
            _check(code, "VipConnectReject")

    def close(self):
        """Reject, unless it was answered already."""
        cdef VIP_CONN_HANDLE handle = self._handle
        self._handle = NULL
        if handle != NULL and self._generation == _generation and not self._nic._closed:
            with nogil:
                VipConnectReject(handle)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        state = "" if self._handle != NULL else " answered"
        return f"<viakit.via.ConnectionRequest from {self.remote_address}{state}>"
