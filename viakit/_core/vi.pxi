# The VI: two work queues (queue.pxi) and the connection (conn.pxi, peer.pxi).

cdef enum:
    CLOSE_ATTEMPTS = 100   # attempts of close() while other threads continue to post


cdef class Vi(_Resource):
    """Virtual interface: a send queue and a receive queue, which can be connected to those of one peer.

    Created by :meth:`Nic.create_vi`. Descriptors that are posted on a queue are processed in order, and are taken from
    the queue in the same order when they are done. A message needs a receive that has been posted before it arrives.
    Therefore post receives before connecting, and post the next receive before replying.
    """

    cdef Nic _nic
    cdef VIP_VI_HANDLE _handle
    cdef ProtectionTag _tag
    cdef CompletionQueue _send_cq
    cdef CompletionQueue _recv_cq
    cdef _WorkQueue _sends
    cdef _WorkQueue _recvs
    cdef dict _handlers        # functions of outstanding notifications, by number
    cdef object _user_data
    cdef bint _deferring
    cdef bint _secret          # The VI has a secret.
    cdef bint _closing

    def __init__(self, Nic nic not None, reliability=_types.Reliability.RELIABLE_DELIVERY, max_transfer_size=0,
                 tag=None, rdma_write=False, rdma_read=False, CompletionQueue send_cq=None,
                 CompletionQueue recv_cq=None, *, secret=None):
        cdef VIP_VI_ATTRIBUTES attributes
        cdef VIP_CQ_HANDLE send_handle = NULL
        cdef VIP_CQ_HANDLE recv_handle = NULL
        if self._handle != NULL:
            raise TypeError("this Vi exists already; create another one with Nic.create_vi()")
        nic._use()
        for cq in (send_cq, recv_cq):
            if cq is not None:
                (<CompletionQueue>cq)._use()
                if (<CompletionQueue>cq)._nic is not nic:
                    raise ValueError(f"{cq!r} belongs to another Nic than {nic!r}; use one created by this Nic")
        self._nic = nic
        self._tag = nic._tag_of(tag)
        self._sends = _WorkQueue(False)
        self._recvs = _WorkQueue(True)
        self._handlers = {}
        self._send_cq = send_cq
        self._recv_cq = recv_cq
        self._made_at = _place()
        memset(&attributes, 0, sizeof(attributes))
        attributes.ReliabilityLevel = _reliability_level(reliability)
        attributes.MaxTransferSize = _whole("max_transfer_size", max_transfer_size, UINT32_MAX)
        attributes.Ptag = self._tag._handle
        attributes.EnableRdmaWrite = bool(rdma_write)
        attributes.EnableRdmaRead = bool(rdma_read)
        if send_cq is not None:
            send_handle = send_cq._handle
        if recv_cq is not None:
            recv_handle = recv_cq._handle
        _check(VipCreateVi(nic._handle, &attributes, send_handle, recv_handle, &self._handle), "VipCreateVi")
        self._tag._n_users += 1
        if send_cq is not None:
            send_cq._n_users += 1
        if recv_cq is not None:
            recv_cq._n_users += 1
        nic._n_users += 1
        nic._children.add(self)
        nic._vis[<size_t>self._handle] = weakref.ref(self)
        if secret is not None:
            try:
                self.secret = secret
            except BaseException:
                self.close()
                raise

    def __del__(self):
        if self._handle != NULL and self._generation == _generation:
            _warn_unclosed(self, self._made_at)
            self.close()

    cdef inline int _use(self) except -1:
        if self._generation != _generation:
            raise _refuse_fork(self)
        if self._handle == NULL:
            raise _closed_error(self)
        return 0

    def close(self):
        """Disconnect, take all descriptors from both queues, and destroy the VI. Closing twice does nothing.

        Raises
        ------
        ResourceError
            If other threads keep posting descriptors; the VI stays open.
        """
        cdef VIP_VI_HANDLE handle = self._handle
        cdef VIP_RETURN code = VIP_ERROR_RESOURCE
        if handle == NULL or self._generation != _generation:
            self._handle = NULL
            return
        if self._closing:
            return   # Another thread is closing it.
        self._closing = True
        try:
            for _ in range(CLOSE_ATTEMPTS):
                with nogil:
                    VipDisconnect(handle)
                self.drain()
                self._handle = NULL   # Calls of other threads that return meanwhile raise ClosedError.
                with nogil:
                    code = VipDestroyVi(handle)
                if code != VIP_ERROR_RESOURCE:
                    break
                self._handle = handle   # Another thread has posted or started to connect since the queues were drained.
        finally:
            self._closing = False
        if code == VIP_ERROR_RESOURCE:
            _check(code, "VipDestroyVi")   # The VI stays open and can be closed later.
        _cancel_notifications(self._handlers)
        for queue in (self._sends, self._recvs):   # descriptors taken by a notification that has not run yet
            while (<_WorkQueue>queue).head is not None:
                (<_WorkQueue>queue).take((<_WorkQueue>queue).head._c)
        self._nic._vis.pop(<size_t>handle, None)
        for cq in (self._send_cq, self._recv_cq):
            if cq is not None:
                (<CompletionQueue>cq)._drop_user()
        self._tag._drop_user()
        self._nic._drop_user()
        _check(code, "VipDestroyVi")

    def __repr__(self):
        if self._handle == NULL or self._generation != _generation:
            return "<viakit.via.Vi closed>"
        return (f"<viakit.via.Vi {self.state.name} on {self._nic.device!r}, "
                f"{self._sends.n} sends and {self._recvs.n} receives posted>")

    # ---------------------------------------------------------------- properties

    @property
    def closed(self):
        """Whether :meth:`close` was called."""
        return self._handle == NULL

    @property
    def nic(self):
        """:class:`Nic` that the VI belongs to."""
        return self._nic

    @property
    def tag(self):
        """:class:`ProtectionTag` of the VI."""
        return self._tag

    @property
    def state(self):
        """Current :class:`ViState`."""
        cdef VIP_VI_ATTRIBUTES attributes
        return _ViState(self._query(&attributes))

    @property
    def attributes(self):
        """Attributes of the VI: a :class:`ViAttributes`."""
        cdef VIP_VI_ATTRIBUTES attributes
        self._query(&attributes)
        return _vi_attributes(&attributes)

    cdef int _query(self, VIP_VI_ATTRIBUTES *attributes) except -1:
        """Store the attributes and return the state."""
        cdef VIP_VI_STATE state
        cdef VIP_BOOLEAN send_empty, recv_empty
        self._use()
        _check(VipQueryVi(self._handle, &state, attributes, &send_empty, &recv_empty), "VipQueryVi")
        return state

    def set_attributes(self, reliability=None, max_transfer_size=None, tag=None, rdma_write=None, rdma_read=None):
        """Change attributes of an idle VI. None leaves an attribute unchanged.

        Parameters
        ----------
        reliability : Reliability, optional
            Reliability level.
        max_transfer_size : int, optional
            Length of the longest message in bytes; 0 is the NIC's maximum.
        tag : ProtectionTag, optional
            Protection tag.
        rdma_write, rdma_read : bool, optional
            Whether the peer may write or read local memory through this VI.

        Raises
        ------
        InvalidStateError
            If the VI is not idle.
        ReliabilityLevelError, MtuError, RdmaReadError
            As in :meth:`Nic.create_vi`; nothing is changed.
        """
        cdef VIP_VI_ATTRIBUTES attributes
        cdef ProtectionTag new_tag
        self._query(&attributes)
        new_tag = self._tag if tag is None else self._nic._tag_of(tag)
        if reliability is not None:
            attributes.ReliabilityLevel = _reliability_level(reliability)
        if max_transfer_size is not None:
            attributes.MaxTransferSize = _whole("max_transfer_size", max_transfer_size, UINT32_MAX)
        if rdma_write is not None:
            attributes.EnableRdmaWrite = bool(rdma_write)
        if rdma_read is not None:
            attributes.EnableRdmaRead = bool(rdma_read)
        attributes.Ptag = new_tag._handle
        _check(VipSetViAttributes(self._handle, &attributes), "VipSetViAttributes")
        new_tag._n_users += 1
        self._tag._drop_user()
        self._tag = new_tag

    @property
    def user_data(self):
        """Any object of the program, initially None. VipGetUserData returns it to C code as a borrowed ``PyObject *``.
        """
        return self._user_data

    @user_data.setter
    def user_data(self, data):
        self._use()
        VipSetUserData(self._handle, <VIP_PVOID><PyObject *>data)
        self._user_data = data

    @property
    def secret(self):
        """Whether the VI connects by a secret: True or False; assign 16 to 32 bytes, or None to remove it.

        A VI with a secret connects only with a VI that has the same one, and both sides prove it before either is
        connected. The bytes themselves cannot be read back. Only an idle VI's secret can be changed.

        Raises
        ------
        ValueError
            The secret is shorter than 16 bytes or longer than 32.
        InvalidStateError
            The VI is not idle.
        """
        return bool(self._secret)

    @secret.setter
    def secret(self, secret):
        cdef const unsigned char[::1] view
        cdef const void *data = NULL
        cdef size_t length = 0
        self._use()
        if secret is not None:
            view = secret
            length = view.shape[0]
            if not 16 <= length <= 32:
                raise ValueError(f"a secret has 16 to 32 bytes, got {length}; secrets.token_bytes(32) makes one")
            data = &view[0]
        _check(viakit_set_vi_secret(self._handle, data, length), "viakit_set_vi_secret")
        self._secret = secret is not None

    @property
    def deferring(self):
        """Whether sends are deferred. Sends posted while it is True are transmitted together when it is set to False.
        """
        return bool(self._deferring)

    @deferring.setter
    def deferring(self, on):
        cdef VIP_VI_HANDLE handle = self._handle
        cdef VIP_BOOLEAN enable = bool(on)
        cdef VIP_RETURN code
        self._use()
        with nogil:
            code = VipPostDeferredSends(handle, enable, NULL)
        _check(code, "VipPostDeferredSends")
        self._deferring = bool(on)

    @property
    def counters(self):
        """:class:`Counters` of the VI. Counters that exist only per NIC stay 0."""
        cdef uint64_t values[VIAKIT_N_COUNTERS]
        self._use()
        _check(viakit_vi_counters(self._handle, values), "viakit_vi_counters")
        return _counters(values)

    @property
    def info(self):
        """Current state of the connection, including the measured round-trip time: a :class:`ViInfo`."""
        cdef viakit_vi_info i
        self._use()
        _check(viakit_query_vi(self._handle, &i), "viakit_query_vi")
        return _types.ViInfo(
            bool(i.lossless), _types.Retransmission(<int>i.retransmission), i.srtt_us * 1e-6, i.rttvar_us * 1e-6,
            i.rto_us * 1e-6, i.tail_probe_us * 1e-6, i.window, i.sends_in_flight, i.frames_in_flight, i.frames_missing,
            i.reads_open, i.retries,
        )

    @property
    def n_sends_posted(self):
        """Number of descriptors in the send queue, complete or not, that have not been taken."""
        return self._sends.n

    @property
    def n_recvs_posted(self):
        """Number of descriptors in the receive queue, complete or not, that have not been taken."""
        return self._recvs.n

    # ---------------------------------------------------------------- connection

    def connect(self, remote, timeout_s=10.0, retry=False):
        """Request a connection to an endpoint that waits in :meth:`Nic.connect_wait`.

        Parameters
        ----------
        remote : Address
            ``nic.address / "name"`` on this host (or interface), ``nic.resolve(host, "name")`` on another one.
        timeout_s : float or None
            Timeout in seconds, more than 0. None waits for ever.
        retry : bool
            Repeat the request until the timeout while there is no such NIC, or no endpoint waits there yet.

        Returns
        -------
        ViAttributes
            Attributes of the remote VI.

        Raises
        ------
        NoMatchError, NotReachableError, RejectedError
            If no endpoint waits for this discriminator, if there is no such NIC, or if the endpoint rejects it.
        ViaTimeoutError
            If there is no reply in time.
        InvalidStateError
            If the VI is not idle.
        """
        return _connect(self, remote, timeout_s, retry)

    def connect_peer(self, remote, local=b"", timeout_s=10.0):
        """Connect to a peer that makes the same call. Neither side is a server, and either may start.

        Two requests match if each names the other's address and discriminator.

        Parameters
        ----------
        remote : Address
            Address of the peer: ``nic.resolve(host, "name of the peer's end")``.
        local : bytes or str
            Discriminator of this end, which the peer uses in its request.
        timeout_s : float or None
            Timeout in seconds, more than 0. None waits for ever.

        Returns
        -------
        ViAttributes
            Attributes of the remote VI.

        Raises
        ------
        ViaTimeoutError
            If no matching request arrives in time.
        ReliabilityLevelError, MtuError, QosError
            If the attributes of the two VIs differ. Both sides get the error.
        InvalidStateError
            If the VI is not idle.
        """
        _peer_request(self, remote, local, timeout_s)
        return _peer_wait(self)

    def request_peer(self, remote, local=b"", timeout_s=10.0):
        """Start the connection of :meth:`connect_peer` and return at once. :meth:`peer_done` returns the result."""
        _peer_request(self, remote, local, timeout_s)

    def peer_done(self):
        """Return the result of the peer request, once it is complete. The result is returned once.

        Returns
        -------
        ViAttributes or None
            Attributes of the remote VI if the two are connected; None while the request is pending.

        Raises
        ------
        InvalidStateError
            If no peer request is pending, or its result has been returned.
        ViaTimeoutError, ReliabilityLevelError, MtuError, QosError
            As in :meth:`connect_peer`.
        """
        return _peer_done(self)

    def disconnect(self):
        """Close the connection. All posted descriptors complete with DESC_FLUSHED, and the VI becomes idle.

        The remote VI changes to state ERROR, and its Nic reports CONN_LOST. On an idle VI the call does nothing.
        """
        cdef VIP_VI_HANDLE handle = self._handle
        cdef VIP_RETURN code
        self._use()
        with nogil:
            code = VipDisconnect(handle)
        _check(code, "VipDisconnect")

    # ---------------------------------------------------------------- posting and reaping descriptors

    def post_send(self, Descriptor descriptor not None):
        """Post a send, RDMA write or RDMA read on the send queue.

        The VI holds the descriptor until it is taken from the queue. On a VI that is not connected the descriptor
        completes with DESC_FLUSHED.

        Raises
        ------
        ResourceError
            If the queue already holds attributes.max_descriptors_per_queue descriptors.
        InvalidStateError
            If the descriptor is posted already.
        """
        self._sends.post(self, descriptor)

    def post_recv(self, Descriptor descriptor not None):
        """Post a receive on the receive queue. The VI need not be connected. Raises as :meth:`post_send`."""
        self._recvs.post(self, descriptor)

    def send_done(self):
        """Take the oldest send from its queue, if it is done. Makes progress on the NIC, and does not wait.

        Returns
        -------
        Descriptor or None
            None if no send is done or posted.

        Raises
        ------
        CompletionError
            If the send completed with an error. It is taken from the queue nevertheless.
        """
        return self._sends.done(self)

    def recv_done(self):
        """Take the oldest receive from its queue, if it is done. Otherwise as :meth:`send_done`."""
        return self._recvs.done(self)

    def send_wait(self, timeout_s=None):
        """Wait until the oldest send is done, and take it from its queue.

        The thread polls for a short time and then sleeps in the kernel.

        Parameters
        ----------
        timeout_s : float or None
            Timeout in seconds; None waits for ever.

        Returns
        -------
        Descriptor

        Raises
        ------
        CompletionError
            If the send completed with an error. It is taken from the queue nevertheless.
        ViaTimeoutError
            If the send is not done in time. It is still posted.
        InvalidStateError
            If no send is posted, or the queue has a completion queue, which must be used instead.
        """
        return self._sends.wait(self, timeout_s, False)

    def recv_wait(self, timeout_s=None):
        """Wait until the oldest receive is done, and take it from its queue. Otherwise as :meth:`send_wait`."""
        return self._recvs.wait(self, timeout_s, False)

    def spin_send(self, timeout_s=None):
        """Wait like :meth:`send_wait`, but poll all the time: the latency is lowest, and one core is busy."""
        return self._sends.wait(self, timeout_s, True)

    def spin_recv(self, timeout_s=None):
        """Wait like :meth:`recv_wait`, but poll all the time: the latency is lowest, and one core is busy."""
        return self._recvs.wait(self, timeout_s, True)

    def send_notify(self, handler):
        """Call a function once when the oldest send is done. Several notifications can be outstanding.

        Parameters
        ----------
        handler : callable
            Takes a :class:`Completion`, whose ``error`` may be set. It runs on the NIC's own thread (with ``no_thread``
            in :meth:`Nic.poll` and in calls that wait). It may use the NIC and request the next notification.
            Exceptions it raises are reported by ``sys.unraisablehook``. If it runs within a call of the program, that
            call raises KeyboardInterrupt and SystemExit instead. If the VI is closed first, the function is never
            called.

        Raises
        ------
        InvalidStateError
            If the queue has a completion queue; use the ``notify`` of that queue.
        """
        self._sends.notify(self, handler)

    def recv_notify(self, handler):
        """Call a function once when the oldest receive is done. Otherwise as :meth:`send_notify`."""
        self._recvs.notify(self, handler)

    def drain(self):
        """Take all completed descriptors from both queues, with or without error. Raises no errors of descriptors.

        Returns
        -------
        list of Descriptor
            Sends first; each queue in order.
        """
        cdef VIP_DESCRIPTOR *c
        cdef VIP_RETURN code
        cdef list taken = []
        cdef _WorkQueue queue
        self._use()
        for queue in (self._sends, self._recvs):
            while True:
                c = NULL
                code = _queue_done(self._handle, queue.recv, &c)
                if c == NULL:
                    break
                taken.append(queue.taken(self, code, c))
        return taken

    # ---------------------------------------------------------------- single messages

    def send(self, data, immediate=None, timeout_s=None):
        """Send one message and wait until the send is complete.

        Parameters
        ----------
        data : Segment, MemoryRegion, or buffer
            Data to send. Memory that is not registered is registered for this message, which costs some microseconds.
        immediate : int, optional
            32 bits that are transmitted with the data.
        timeout_s : float or None
            Timeout in seconds. After a timeout the message is still posted: take it with :meth:`send_wait`.

        Raises
        ------
        InvalidStateError
            If other sends are posted, because their completions would be confused with this one.
        CompletionError, ViaTimeoutError
            As in :meth:`send_wait`.
        """
        self._one_message(self._sends, data, immediate, timeout_s)

    def recv(self, room, timeout_s=None):
        """Post one receive and wait until a message has arrived in it.

        Use it only if the peer cannot send before this call. A message that finds no posted receive is lost or breaks
        the connection. In all other cases post receives in advance with :meth:`post_recv`.

        Parameters
        ----------
        room : Segment, MemoryRegion, or writable buffer
            Memory to receive into.
        timeout_s : float or None
            Timeout in seconds. After a timeout the receive is still posted: take it with :meth:`recv_wait`.

        Returns
        -------
        Descriptor
            Its ``length`` and ``immediate`` describe the message.

        Raises
        ------
        InvalidStateError
            If other receives are posted.
        CompletionError, ViaTimeoutError
            As in :meth:`recv_wait`.
        """
        return self._one_message(self._recvs, room, None, timeout_s)

    cdef Descriptor _one_message(self, _WorkQueue queue, object data, object immediate, object timeout_s):
        """Post a descriptor for `data` on the queue, and wait for it. Register memory that is not yet registered."""
        cdef Descriptor descriptor = None
        region = None
        self._use()
        if queue.n:
            raise _errors.InvalidStateError(f"{queue.n} {queue.kind()}s are posted; take them before calling "
                                            f"{'recv' if queue.recv else 'send'}()")
        if not isinstance(data, (Segment, MemoryRegion)):
            if not memoryview(data).nbytes:
                data = ()
            else:
                region = data = _TemporaryRegion(self._nic, data, self._tag)
        try:
            if queue.recv:
                descriptor = Descriptor.recv(data, owner=self)
            else:
                descriptor = Descriptor.send(data, immediate, owner=self)
            queue.post(self, descriptor)
            return queue.wait(self, timeout_s, False)
        finally:
            if region is not None and (descriptor is None or not descriptor._posted):
                region.close()


cdef class _TemporaryRegion(MemoryRegion):
    # Region for one message. If the message is still posted after a timeout, its descriptor holds the region. The
    # region then closes without a warning when the descriptor is deallocated.
    def __del__(self):
        if not self._closed and self._generation == _generation:
            self.close()
