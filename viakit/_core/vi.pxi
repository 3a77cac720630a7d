# The VI: two work queues (queue.pxi) and the connection.
#
# Posting and polling keep the GIL: they are shorter than giving it away. Long messages, calls that wait, and polling
# that goes on for more than some microseconds release it.

cdef enum:
    LONG_MESSAGE = 32768   # bytes from which a post gives the GIL away
    CLOSE_ATTEMPTS = 100   # of close(), while other threads go on posting


cdef class Vi:
    """A virtual interface: a send queue and a receive queue, to be connected to those of one peer.

    Made by :meth:`Nic.create_vi`. Descriptors are posted on a queue, are worked off in order, and are taken from it in
    the same order when they are done. A message finds a receive only if that is posted already: post receives before
    connecting, and post the next one before answering.
    """

    cdef object __weakref__
    cdef Nic _nic
    cdef VIP_VI_HANDLE _handle
    cdef ProtectionTag _tag
    cdef CompletionQueue _send_cq
    cdef CompletionQueue _recv_cq
    cdef _Posted _sends
    cdef _Posted _recvs
    cdef dict _handlers        # of notifications that are outstanding, by number
    cdef object _user_data
    cdef bint _deferring
    cdef str _made_at
    cdef long _generation
    cdef bint _closing

    def __cinit__(self):
        self._generation = _generation

    def __init__(self, Nic nic not None, reliability=_types.Reliability.RELIABLE_DELIVERY, max_transfer_size=0,
                 tag=None, rdma_write=False, rdma_read=False, CompletionQueue send_cq=None,
                 CompletionQueue recv_cq=None):
        cdef VIP_VI_ATTRIBUTES attributes
        cdef VIP_CQ_HANDLE send_handle = NULL
        cdef VIP_CQ_HANDLE recv_handle = NULL
        if self._handle != NULL:
            raise TypeError("a Vi is made once")
        nic._use()
        for cq in (send_cq, recv_cq):
            if cq is not None:
                (<CompletionQueue>cq)._use()
                if (<CompletionQueue>cq)._nic is not nic:
                    raise ValueError(f"{cq!r} belongs to another Nic than {nic!r}")
        self._nic = nic
        self._tag = nic._tag_of(tag)
        self._sends = _Posted()
        self._recvs = _Posted()
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
        nic._children.add(self)
        nic._vis[<size_t>self._handle] = weakref.ref(self)

    def __del__(self):
        if self._handle != NULL and self._generation == _generation:
            _warn_unclosed(self, self._made_at)
            self.close()

    cdef inline int _use(self) except -1:
        if self._generation != _generation:
            raise _refuse_fork(self)
        if self._handle == NULL:
            raise _errors.ClosedError(f"{self!r} is closed")
        return 0

    def close(self):
        """Disconnect, take everything from both queues, and destroy the VI. Closing twice does nothing.

        Raises
        ------
        ResourceError
            Other threads post faster than it can be closed; it stays open.
        """
        cdef VIP_VI_HANDLE handle = self._handle
        cdef VIP_RETURN code = VIP_ERROR_RESOURCE
        cdef int i
        if handle == NULL or self._generation != _generation:
            self._handle = NULL
            return
        if self._closing:
            return   # another thread is at it
        self._closing = True
        try:
            for i in range(CLOSE_ATTEMPTS):
                with nogil:
                    VipDisconnect(handle)
                self.drain()
                with nogil:
                    code = VipDestroyVi(handle)
                if code != VIP_ERROR_RESOURCE:
                    break   # otherwise another thread posted, or began to connect, after the queues were empty
        finally:
            self._closing = False
        if code == VIP_ERROR_RESOURCE:
            _check(code, "VipDestroyVi")   # it lives, and can be closed later
        self._handle = NULL
        _cancel_notifications(self._handlers)
        for posted in (self._sends, self._recvs):   # what a notification had taken and not yet told
            while (<_Posted>posted).head is not None:
                (<_Posted>posted).take((<_Posted>posted).head._c)
        self._nic._vis.pop(<size_t>handle, None)
        self._tag._n_users -= 1
        if self._send_cq is not None:
            self._send_cq._n_users -= 1
        if self._recv_cq is not None:
            self._recv_cq._n_users -= 1
        _check(code, "VipDestroyVi")

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        if self._handle == NULL or self._generation != _generation:
            return "<viakit.via.Vi closed>"
        return (f"<viakit.via.Vi {self.state.name} on {self._nic.device!r}, "
                f"{self._sends.n} sends and {self._recvs.n} receives posted>")

    # ---------------------------------------------------------------- what it is

    @property
    def closed(self):
        """Whether :meth:`close` was called."""
        return self._handle == NULL

    @property
    def nic(self):
        """The :class:`Nic` that it was made from."""
        return self._nic

    @property
    def tag(self):
        """The :class:`ProtectionTag` that it carries."""
        return self._tag

    @property
    def state(self):
        """The :class:`ViState`, as it is now."""
        cdef VIP_VI_STATE state
        cdef VIP_VI_ATTRIBUTES attributes
        cdef VIP_BOOLEAN send_empty, recv_empty
        self._use()
        _check(VipQueryVi(self._handle, &state, &attributes, &send_empty, &recv_empty), "VipQueryVi")
        return _ViState(<int>state)

    @property
    def attributes(self):
        """The :class:`ViAttributes`."""
        cdef VIP_VI_STATE state
        cdef VIP_VI_ATTRIBUTES attributes
        cdef VIP_BOOLEAN send_empty, recv_empty
        self._use()
        _check(VipQueryVi(self._handle, &state, &attributes, &send_empty, &recv_empty), "VipQueryVi")
        return _vi_attributes(&attributes)

    def set_attributes(self, reliability=None, max_transfer_size=None, tag=None, rdma_write=None, rdma_read=None):
        """Change some attributes of an idle VI; None leaves one as it is.

        Parameters
        ----------
        reliability : Reliability, optional
        max_transfer_size : int, optional
            Bytes of the longest message; 0 is the NIC's maximum.
        tag : ProtectionTag, optional
        rdma_write, rdma_read : bool, optional

        Raises
        ------
        InvalidStateError
            The VI is not idle.
        ReliabilityLevelError, MtuError, RdmaReadError
            As in :meth:`Nic.create_vi`; nothing is changed then.
        """
        cdef VIP_VI_STATE state
        cdef VIP_VI_ATTRIBUTES attributes
        cdef VIP_BOOLEAN send_empty, recv_empty
        cdef ProtectionTag new_tag
        self._use()
        new_tag = self._tag if tag is None else self._nic._tag_of(tag)
        _check(VipQueryVi(self._handle, &state, &attributes, &send_empty, &recv_empty), "VipQueryVi")
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
        self._tag._n_users -= 1
        new_tag._n_users += 1
        self._tag = new_tag

    @property
    def user_data(self):
        """Any object of the program's, None at first. C code gets a borrowed ``PyObject *`` by VipGetUserData."""
        return self._user_data

    @user_data.setter
    def user_data(self, data):
        self._use()
        VipSetUserData(self._handle, <VIP_PVOID><PyObject *>data)
        self._user_data = data

    @property
    def deferring(self):
        """Whether sends wait: set it to True, post, set it to False; what was posted meanwhile leaves then, at once."""
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
        """The VI's :class:`Counters`; what only a NIC can know stays 0."""
        cdef uint64_t values[VIAKIT_N_COUNTERS]
        self._use()
        _check(viakit_vi_counters(self._handle, values), "viakit_vi_counters")
        return _counters(values)

    @property
    def info(self):
        """How the connection is doing at this moment, with the measured round trip: a :class:`ViInfo`."""
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
        """Descriptors in the send queue, complete or not, that were not taken yet."""
        return self._sends.n

    @property
    def n_recvs_posted(self):
        """Descriptors in the receive queue, complete or not, that were not taken yet."""
        return self._recvs.n

    # ---------------------------------------------------------------- the connection

    def connect(self, remote, timeout_s=10.0, retry=False):
        """Ask for a connection to whoever waits at an address.

        Parameters
        ----------
        remote : Address
            ``nic.address / "name"`` on this host (or interface), ``nic.resolve(host, "name")`` elsewhere.
        timeout_s : float or None
            Seconds that the other side has to answer; more than 0. None waits for ever.
        retry : bool
            Ask again, until the time is over, while nobody waits there yet or there is no such NIC.

        Returns
        -------
        ViAttributes
            Of the VI at the other end.

        Raises
        ------
        NoMatchError, NotReachableError, RejectedError
            Nobody waits there; there is no such NIC; whoever waits refused.
        ViaTimeoutError
            No answer in time.
        InvalidStateError
            The VI is not idle.
        """
        cdef NetAddress here, there
        cdef VIP_VI_ATTRIBUTES attributes
        cdef VIP_VI_HANDLE handle
        cdef VIP_RETURN code
        cdef VIP_ULONG left_ms
        cdef Call call
        cdef void *nic
        cdef int64_t deadline = _deadline_ns(timeout_s)
        cdef double pause_s = 0.001
        self._use()
        if not isinstance(remote, _types.Address):
            raise TypeError(f"remote is an Address, such as nic.address / 'name'; not {remote!r}")
        _fill_address(&here, self._nic._address)
        _fill_address(&there, remote)
        handle = self._handle
        nic = <void *>self._nic
        left_ms = _remaining_ms(deadline)
        while True:
            with nogil:
                _begin_wait(&call, nic, False)
                code = VipConnectRequest(handle, &here.net, &there.net, left_ms, &attributes)
                _end_wait(&call)
                if code == VIP_SUCCESS and viakit_raised != NULL:
                    VipDisconnect(handle)   # the caller is told of the signal, not of the connection
            if code == VIP_SUCCESS:
                _raise_signal()
                return _vi_attributes(&attributes)
            error = _error(code, "VipConnectRequest")
            _raise_interrupt()
            self._use()
            left_ms = _remaining_ms(deadline)
            if left_ms == 0 or code == VIP_TIMEOUT and deadline != _FOREVER:
                raise error
            if code == VIP_TIMEOUT:
                continue
            if not retry or code not in (VIP_NO_MATCH, VIP_NOT_REACHABLE):
                raise error
            _sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)

    def connect_peer(self, remote, local=b"", timeout_s=10.0):
        """Connect to somebody who does the same: neither side is server, and it does not matter who begins.

        The two belong together if each asks for the address and the discriminator that the other has.

        Parameters
        ----------
        remote : Address
            The other side's: ``nic.resolve(host, "name of the other end")``.
        local : bytes or str
            The discriminator of this end; the other side asks for it.
        timeout_s : float or None
            Seconds that the other side has to ask; more than 0. None waits for ever.

        Returns
        -------
        ViAttributes
            Of the VI at the other end.

        Raises
        ------
        ViaTimeoutError
            Nobody asked for this VI in time.
        ReliabilityLevelError, MtuError, QosError
            The two VIs do not fit; both sides are told so.
        InvalidStateError
            The VI is not idle.
        """
        _peer_request(self, remote, local, timeout_s)
        return _peer_wait(self)

    def request_peer(self, remote, local=b"", timeout_s=10.0):
        """Begin what :meth:`connect_peer` does, and return at once; :meth:`peer_done` tells the result."""
        _peer_request(self, remote, local, timeout_s)

    def peer_done(self):
        """Has the peer request come to an end?

        Returns
        -------
        ViAttributes or None
            Of the VI at the other end, now that the two are connected; None while nothing is decided. The result is
            given once.

        Raises
        ------
        InvalidStateError
            No peer request is under way, or its result was given.
        ViaTimeoutError, ReliabilityLevelError, MtuError, QosError
            As in :meth:`connect_peer`.
        """
        return _peer_done(self)

    def disconnect(self):
        """End the connection; every descriptor that is still posted completes with DESC_FLUSHED. The VI is idle again.

        The other side's VI goes to state ERROR and its Nic reports CONN_LOST. Does nothing on an idle VI.
        """
        cdef VIP_VI_HANDLE handle = self._handle
        cdef VIP_RETURN code
        self._use()
        with nogil:
            code = VipDisconnect(handle)
        _check(code, "VipDisconnect")

    # ---------------------------------------------------------------- posting and taking

    cdef int _post(self, Descriptor descriptor, bint recv) except -1:
        cdef VIP_DESCRIPTOR *c = descriptor._c
        cdef VIP_VI_HANDLE handle = self._handle
        cdef VIP_MEM_HANDLE memory
        cdef _Posted posted = self._recvs if recv else self._sends
        cdef VIP_RETURN code
        self._use()
        if descriptor._chunk is None:
            raise TypeError("a descriptor is made by Descriptor.send(), .recv(), .rdma_write() or .rdma_read()")
        memory = descriptor._chunk.handle
        if descriptor._posted:
            raise _errors.InvalidStateError(f"{descriptor!r} is posted already")
        if descriptor._is_recv != recv:
            raise ValueError(f"{descriptor!r} was made for the other queue")
        if descriptor._chunk.nic is not self._nic:
            raise ValueError(f"{descriptor!r} points at memory of another Nic")
        c.CS.Status = 0
        c.CS.Length = descriptor._total   # a receive left there what arrived
        posted.append(descriptor)         # before the call: it may be complete when the call returns
        if recv:
            code = VipPostRecv(handle, c, memory)
        elif descriptor._total < LONG_MESSAGE:
            code = VipPostSend(handle, c, memory)
        else:
            with nogil:
                code = VipPostSend(handle, c, memory)
        if code != VIP_SUCCESS:
            posted.take(c)
            raise _error(code, "VipPostRecv" if recv else "VipPostSend")
        return 0

    cdef Descriptor _taken(self, bint recv, VIP_RETURN code, VIP_DESCRIPTOR *c):
        """The descriptor that a Done or Wait call handed out; None if the queue was empty."""
        cdef Descriptor descriptor
        if c == NULL:
            if code == VIP_DESCRIPTOR_ERROR:
                return None
            self._use()   # closed by another thread meanwhile?
            raise _error(code, "VipRecvDone" if recv else "VipSendDone")
        descriptor = (self._recvs if recv else self._sends).take(c)
        if descriptor is None:
            raise RuntimeError(f"the NIC completed a descriptor at {<size_t>c:#x} that was not posted here")
        return descriptor

    cdef Descriptor _done(self, bint recv):
        cdef VIP_DESCRIPTOR *c = NULL
        cdef VIP_RETURN code
        cdef Descriptor descriptor
        self._use()
        code = _queue_done(self._handle, recv, &c)
        if code == VIP_NOT_DONE:
            return None
        descriptor = self._taken(recv, code, c)
        if descriptor is not None and c.CS.Status & VIP_STATUS_ERROR_MASK:
            raise _completion_error(descriptor, self)
        return descriptor

    cdef Descriptor _wait(self, bint recv, object timeout_s, bint spin):
        cdef VIP_DESCRIPTOR *c = NULL
        cdef VIP_VI_HANDLE handle = self._handle
        cdef VIP_RETURN code = VIP_NOT_DONE
        cdef VIP_ULONG left_ms
        cdef Descriptor descriptor
        cdef int64_t deadline
        cdef Call call
        cdef void *nic = <void *>self._nic
        cdef int i
        self._use()
        if spin:
            for i in range(POLLS_WITH_GIL):
                code = _queue_done(handle, recv, &c)
                if code != VIP_NOT_DONE:
                    break
        if code == VIP_NOT_DONE:
            deadline = _deadline_ns(timeout_s)
        while code == VIP_NOT_DONE:
            if spin:
                with nogil:
                    _begin_wait(&call, nic, True)
                    code = _spin(handle, recv, deadline, &c, &call)
                    _end_wait(&call)
            else:
                left_ms = _remaining_ms(deadline)
                with nogil:
                    _begin_wait(&call, nic, True)
                    code = VipRecvWait(handle, left_ms, &c) if recv else VipSendWait(handle, left_ms, &c)
                    _end_wait(&call)
            if code == VIP_TIMEOUT:
                _raise_interrupt()
                self._use()
                if deadline == _FOREVER or _now_ns() < deadline:
                    code = VIP_NOT_DONE
                    continue
                raise _errors.ViaTimeoutError(
                    f"no {'receive' if recv else 'send'} was complete after {timeout_s} s; "
                    f"{(self._recvs if recv else self._sends).n} are posted", code=VIP_TIMEOUT,
                    operation="VipRecvWait" if recv else "VipSendWait")
        descriptor = self._taken(recv, code, c)
        if descriptor is None:
            raise _errors.InvalidStateError(
                f"there is nothing to wait for: no {'receive' if recv else 'send'} is posted on {self!r}")
        if c.CS.Status & VIP_STATUS_ERROR_MASK:
            raise _completion_error(descriptor, self)
        return descriptor

    def post_send(self, Descriptor descriptor not None):
        """Put a send, RDMA write or RDMA read at the end of the send queue.

        The VI holds the descriptor until it is taken.
        On a VI that is not connected it completes with DESC_FLUSHED.

        Raises
        ------
        ResourceError
            The queue holds attributes.max_descriptors_per_queue of the NIC already.
        InvalidStateError
            The descriptor is posted already.
        """
        self._post(descriptor, False)

    def post_recv(self, Descriptor descriptor not None):
        """Put a receive at the end of the receive queue; allowed before there is a connection. Raises as post_send."""
        self._post(descriptor, True)

    def send_done(self):
        """Take the oldest send, if it is done. Drives the NIC; does not wait.

        Returns
        -------
        Descriptor or None
            None if it is not done, or if none is posted.

        Raises
        ------
        CompletionError
            It completed with an error; it was taken all the same.
        """
        return self._done(False)

    def recv_done(self):
        """Take the oldest receive, if it is done: as :meth:`send_done`."""
        return self._done(True)

    def send_wait(self, timeout_s=None):
        """Wait until the oldest send is done, asleep in the kernel after a short while, and take it.

        Parameters
        ----------
        timeout_s : float or None
            Seconds; None waits for ever.

        Returns
        -------
        Descriptor

        Raises
        ------
        CompletionError
            It completed with an error; it was taken all the same.
        ViaTimeoutError
            It is still posted.
        InvalidStateError
            None is posted, or the queue has a completion queue: wait there.
        """
        return self._wait(False, timeout_s, False)

    def recv_wait(self, timeout_s=None):
        """Wait until the oldest receive is done and take it: as :meth:`send_wait`."""
        return self._wait(True, timeout_s, False)

    def spin_send(self, timeout_s=None):
        """As :meth:`send_wait`, but polling in C all the time: lowest latency, one core busy."""
        return self._wait(False, timeout_s, True)

    def spin_recv(self, timeout_s=None):
        """As :meth:`recv_wait`, but polling in C all the time: lowest latency, one core busy."""
        return self._wait(True, timeout_s, True)

    def send_notify(self, handler):
        """Call a function when the oldest send is done, once; several calls queue up.

        Parameters
        ----------
        handler : callable
            Takes a :class:`Completion`, of which an ``error`` may be set. It runs on the NIC's own thread (with
            ``no_thread`` in :meth:`Nic.poll` and in calls that wait) and may use the NIC and ask to be called again.
            What it raises is reported by ``sys.unraisablehook``, or, where a call of the program's runs it, raised by
            that if it is a KeyboardInterrupt or SystemExit. If the VI is closed first it is never called.

        Raises
        ------
        InvalidStateError
            The queue has a completion queue: use its ``notify``.
        """
        self._notify(handler, False)

    def recv_notify(self, handler):
        """Call a function when the oldest receive is done: as :meth:`send_notify`."""
        self._notify(handler, True)

    cdef int _notify(self, object handler, bint recv) except -1:
        cdef VIP_RETURN code
        cdef size_t number
        self._use()
        number = _new_notification(self, self._handlers, handler)
        if recv:
            code = VipRecvNotify(self._handle, <VIP_PVOID>number, _on_recv_done)
        else:
            code = VipSendNotify(self._handle, <VIP_PVOID>number, _on_send_done)
        if code != VIP_SUCCESS:
            self._handlers.pop(number, None)
            _notified.pop(number, None)
            raise _error(code, "VipRecvNotify" if recv else "VipSendNotify")
        return 0

    def drain(self):
        """Take everything that is done from both queues, with and without error, and raise nothing.

        Returns
        -------
        list of Descriptor
            Sends first, each queue in order.
        """
        cdef VIP_DESCRIPTOR *c
        cdef VIP_RETURN code
        cdef list taken = []
        cdef bint recv
        self._use()
        for recv in (False, True):
            while True:
                c = NULL
                code = _queue_done(self._handle, recv, &c)
                if c == NULL:
                    break
                taken.append(self._taken(recv, code, c))
        return taken

    # ---------------------------------------------------------------- comfort

    def send(self, data, immediate=None, timeout_s=None):
        """Send one message and wait until the NIC is done with it.

        Parameters
        ----------
        data : Segment, MemoryRegion, or anything with a buffer
            What is not registered is registered for this one message, which costs some microseconds.
        immediate : int, optional
            32 bits that travel beside the data.
        timeout_s : float or None
            Seconds. When they are over the message is still posted: take it with :meth:`send_wait`.

        Raises
        ------
        InvalidStateError
            There are sends posted that were not taken: their completions would be mixed up.
        CompletionError, ViaTimeoutError
        """
        self._use()
        if self._sends.n:
            raise _errors.InvalidStateError(f"{self._sends.n} sends are posted: take them before send()")
        descriptor, region = self._for_one_message(data, immediate, False)
        try:
            self.post_send(descriptor)
            self._wait(False, timeout_s, False)
        finally:
            if region is not None and not descriptor.posted:
                region.close()

    def recv(self, room, timeout_s=None):
        """Post one receive and wait until a message has filled it.

        Only right where the peer cannot send before this call: a message that finds no receive is lost, or breaks the
        connection. Otherwise post receives ahead with :meth:`post_recv`.

        Parameters
        ----------
        room : Segment, MemoryRegion, or anything with a writable buffer
        timeout_s : float or None
            Seconds. When they are over the receive is still posted: take it with :meth:`recv_wait`.

        Returns
        -------
        Descriptor
            Its ``length`` and ``immediate`` tell what came.

        Raises
        ------
        InvalidStateError
            There are receives posted that were not taken.
        CompletionError, ViaTimeoutError
        """
        self._use()
        if self._recvs.n:
            raise _errors.InvalidStateError(f"{self._recvs.n} receives are posted: take them before recv()")
        descriptor, region = self._for_one_message(room, None, True)
        try:
            self.post_recv(descriptor)
            return self._wait(True, timeout_s, False)
        finally:
            if region is not None and not descriptor.posted:
                region.close()

    cdef tuple _for_one_message(self, object data, object immediate, bint recv):
        """A descriptor for `data`, and the region that was made for it, if any."""
        region = None
        if not isinstance(data, (Segment, MemoryRegion)):
            if not memoryview(data).nbytes:
                data = ()
            else:
                region = data = _LentRegion(self._nic, data, self._tag)
        try:
            if recv:
                return Descriptor.recv(data, owner=self), region
            return Descriptor.send(data, immediate, owner=self), region
        except BaseException:
            if region is not None:
                region.close()
            raise


cdef class _LentRegion(MemoryRegion):
    # Registered for one message. If that is still posted when the call gives up, its descriptor holds the region, and
    # the region closes itself, without a warning, when the descriptor is gone.
    def __del__(self):
        if not self._closed and self._generation == _generation:
            self.close()
