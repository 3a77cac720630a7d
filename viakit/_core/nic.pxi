# The NIC: opening and closing, attributes, counters, and the asynchronous errors of all its objects.

cdef object _threading():
    import threading
    return threading


cdef class Nic(_Resource):
    """Network interface of the Virtual Interface Architecture. Memory is registered and VIs are created on a NIC.

    Closing a NIC closes all objects created from it. Use it in a ``with`` statement, or call :meth:`close`.

    Parameters
    ----------
    device : str
        The name of a link, alone or followed by ``:`` and what the link needs. ``"shm"`` connects processes of one host
        and one user. ``"eth:eth0"`` sends raw Ethernet frames on an interface; it needs CAP_NET_RAW, see
        :mod:`viakit.testbed`. :func:`links` lists the links, and docs/devices.md describes their devices.
    **options
        0 or None selects the default.

        - ``form`` (eth): ``"auto"``, ``"plain"`` or ``"udp"``.
        - ``mtu`` (eth, udp, verbs): bytes of a frame after its header.
        - ``ring_slots``, ``window``: frames.
        - ``rto_us``, ``max_retries``, ``ack_delay_us``, ``keepalive_ms``, ``first_psn``: the reliable protocol.
        - ``spin_us``: time for which waits poll before they sleep; -1: waits do not poll.
        - ``no_thread``: the NIC has no thread, and only calls make progress.
        - ``no_cma``, ``no_map`` (shm): never copy directly between processes.
        - ``retransmission``: treatment of frames that arrive before a lost one. ``"selective"`` keeps them,
          ``"go_back_n"`` drops them.
        - ``checksum`` (eth, udp, verbs), for frames that this side sends: ``"auto"`` leaves the data of long messages
          to UDP's checksum, as TCP does, or to the card's. ``"crc"`` covers every byte by CRC32C.
        - ``takeover_us``: time after which the NIC's thread takes over when the program has stopped polling.

    Raises
    ------
    NicPermissionError
        If the kernel refuses a raw socket.
    ResourceError, InvalidParameterError
        If there is no such device, or an option does not apply to it.
    """

    cdef VIP_NIC_HANDLE _handle
    cdef readonly str device
    cdef object _children      # WeakSet of the objects that must be closed before the NIC
    cdef dict _vis             # handle of a VI -> weak reference to it
    cdef dict _cqs
    cdef ProtectionTag _tag
    cdef EventRing *_events
    cdef object _errors        # deque of AsyncError
    cdef object _on_error
    cdef object _address
    cdef int _n_allocations    # allocations that still own memory of the NIC
    cdef bint _closed
    cdef bint _closing
    cdef bint _named

    def __cinit__(self):
        self._closed = True

    def __init__(self, device="shm", **options):
        cdef viakit_nic_options c_options
        cdef bytes name
        cdef const char *c_name
        cdef VIP_NIC_HANDLE handle = NULL
        cdef VIP_RETURN code
        cdef int os_error
        cdef VIP_NIC_ATTRIBUTES attributes
        if self._handle != NULL:
            raise TypeError("this Nic is open already; create another Nic")
        if not isinstance(device, str):
            raise TypeError(f"device must be a string such as 'shm' or 'eth:eth0', got {device!r}")
        _fill_options(&c_options, options)
        name = device.encode()
        if b"\0" in name:
            raise ValueError(f"the device name {device!r} contains a zero byte; remove it")
        c_name = name
        _free_event_ring(self._events)   # Left over from a failed attempt or a closed NIC, so it has no writer.
        self._events = NULL
        self._events = _new_event_ring()
        with nogil:
            c_errno.errno = 0
            code = viakit_open_nic(c_name, &c_options, &handle)
            os_error = c_errno.errno
        if code != VIP_SUCCESS:
            raise _error(code, "VipOpenNic", os_error)
        self._handle = handle
        self._closed = False
        self.device = device
        self._children = weakref.WeakSet()
        self._vis = {}
        self._cqs = {}
        self._errors = _deque(maxlen=N_EVENTS)
        self._made_at = _place()
        _nics.add(self)
        VipErrorCallback(handle, self._events, _on_event)
        _check(VipQueryNic(handle, &attributes), "VipQueryNic")
        self._address = _Address((<char *>attributes.LocalNicAddress)[:attributes.NicAddressLen])

    def __del__(self):
        if not self._closed and self._generation == _generation:
            _warn_unclosed(self, self._made_at)
            self._finalize()

    def __dealloc__(self):
        # After a fork the parent's NIC uses the parent's copy of the ring. This copy belongs to the child only.
        _free_event_ring(self._events)

    cdef int _use(self) except -1:
        """Raise if the NIC has been closed or belongs to the parent process."""
        if self._generation != _generation:
            raise _refuse_fork(self)
        if self._closed:
            raise _closed_error(self)
        return 0

    cdef ProtectionTag _tag_of(self, object tag):
        """Return the tag for a `tag=` argument; None stands for the NIC's own tag."""
        cdef ProtectionTag result
        if tag is None:
            if self._tag is None:
                self._tag = ProtectionTag(self)
            return self._tag
        result = tag
        if result._nic is not self:
            raise ValueError(f"{tag!r} belongs to another Nic than {self!r}; use a tag of this Nic")
        result._use()
        return result

    cdef int _dispatch_errors(self) except -1:
        """Convert the events in the ring to AsyncError objects, store them, and call on_error.

        Raises only an interrupt that on_error raised, and only after all events have been handled.
        """
        cdef Event event
        interrupt = None
        # After a fork the errors belong to the parent. Its lock may be held by a thread that the child does not have.
        while not self._closed and self._generation == _generation and _next_event(self._events, &event):
            vi = self._vis.get(<size_t>event.vi)
            cq = self._cqs.get(<size_t>event.cq)
            error = _types.AsyncError(
                _types.ErrorCode(event.code), _types.Resource(event.resource),
                _text(viakit_error_code_text(event.code)), self,
                None if vi is None else vi(), None if cq is None else cq(),
            )
            self._errors.append(error)
            handler = self._on_error
            if handler is None:
                continue
            try:
                handler(error)
            except _INTERRUPTS as raised:
                interrupt = interrupt or raised
            except BaseException as raised:
                _report(raised, handler)
        if interrupt is not None:
            raise interrupt
        return 0

    cdef void _allocation_gone(self) noexcept:
        self._n_allocations -= 1
        if self._closed and self._n_allocations == 0:
            self._close_handle()

    cdef void _close_handle(self) noexcept:
        cdef VIP_NIC_HANDLE handle = self._handle
        cdef VIP_RETURN code = VIP_INVALID_STATE
        if handle == NULL or self._generation != _generation:
            return
        if not _waits_on(self):
            with nogil:
                code = VipCloseNic(handle)
        if code != VIP_INVALID_STATE:
            self._handle = NULL
            return
        # The caller is a handler called by the NIC, or a signal handler that interrupted a wait on the NIC.
        # VipCloseNic waits until both have returned, so it needs a thread of its own, which holds this object.
        try:
            _threading().Thread(target=self._close_elsewhere, args=(<size_t>handle,), name="viakit-close").start()
        except BaseException as error:
            _report(error, self)   # The interpreter is shutting down, and the NIC ends with it.

    def _close_elsewhere(self, size_t handle):
        cdef VIP_NIC_HANDLE nic = <VIP_NIC_HANDLE>handle
        with nogil:
            VipCloseNic(nic)
        self._handle = NULL

    def close(self):
        """Close all objects created from this NIC, and the NIC itself. Closing twice does nothing.

        Memory of :meth:`allocate` stays valid as long as an array or a memoryview refers to it; the C library's NIC
        stays open until then. A handler of a notification, of an error or of a signal may also close the NIC. In this
        case a separate thread closes the C library's NIC as soon as the handler has returned.
        """
        if self._closed or self._closing:
            return   # _closing: another thread is closing the NIC, or it has called this on_error handler.
        if self._generation != _generation:
            self._closed = True
            return
        interrupt = None
        self._closing = True
        try:
            try:
                self._dispatch_errors()
            except _INTERRUPTS as raised:
                interrupt = raised
            # Close VIs before regions, tags and completion queues, because VIs refer to these.
            for kind in (ConnectionRequest, Vi, CompletionQueue, MemoryRegion, Allocation, ProtectionTag):
                for child in [child for child in self._children if isinstance(child, kind)]:
                    child.close()
            self._closed = True
        finally:
            self._closing = False
        _nics.discard(self)
        self._tag = None
        if self._n_allocations == 0:
            self._close_handle()
        if interrupt is not None:
            raise interrupt

    def __repr__(self):
        return f"<viakit.via.Nic {self.device!r}{' closed' if self._closed else ''}>"

    @property
    def closed(self):
        """Whether :meth:`close` was called."""
        return bool(self._closed)

    @property
    def address(self):
        """:class:`Address` of this NIC's host, without discriminator. ``nic.address / "name"`` adds one."""
        return self._address

    @property
    def tag(self):
        """:class:`ProtectionTag` that regions and VIs get by default."""
        self._use()
        return self._tag_of(None)

    @property
    def attributes(self):
        """Guaranteed limits of the NIC: a :class:`NicAttributes`."""
        cdef VIP_NIC_ATTRIBUTES a
        self._use()
        _check(VipQueryNic(self._handle, &a), "VipQueryNic")
        return _types.NicAttributes(
            _text(a.Name), a.HardwareVersion, a.ProviderVersion, self._address.host, bool(a.ThreadSafe),
            a.MaxDiscriminatorLen, a.MaxRegisterBytes, a.MaxRegisterRegions, a.MaxRegisterBlockBytes, a.MaxVI,
            a.MaxDescriptorsPerQueue, a.MaxSegmentsPerDesc, a.MaxCQ, a.MaxCQEntries, a.MaxTransferSize, a.NativeMTU,
            a.MaxPtags, _Reliability(a.ReliabilityLevelSupport & 7), _Reliability(a.RDMAReadSupport & 7),
        )

    @property
    def info(self):
        """Actual configuration of the NIC and the number of its objects: a :class:`NicInfo`."""
        cdef viakit_nic_info i
        self._use()
        _check(viakit_query_nic(self._handle, &i), "viakit_query_nic")
        return _types.NicInfo(
            _text(i.link), _text(i.device), _text(i.interface), _text(i.form), (<char *>i.address)[:6], i.port, i.mtu,
            i.max_payload, i.super_payload, i.ring_slots, i.window, i.bytes_registered, i.bytes_pinned,
            bool(i.lossless), None if i.cma < 0 else bool(i.cma), bool(i.thread), i.vis, i.regions, i.ptags, i.cqs,
            _text(i.trouble),
        )

    @property
    def counters(self):
        """Current values of the NIC's :class:`Counters`."""
        cdef uint64_t values[VIAKIT_N_COUNTERS]
        self._use()
        _check(viakit_nic_counters(self._handle, values), "viakit_nic_counters")
        return _counters(values)

    def snapshot(self):
        """Return the current state of the NIC and all its objects.

        The snapshot is consistent and does not change the state of the NIC. :mod:`viakit.inspect` displays snapshots as
        tables, and takes them from other processes.

        Returns
        -------
        dict
            ``vis`` (state, peer, sequence numbers, queues with their oldest descriptors), ``cqs``, ``regions``,
            ``ptags``, ``connections`` (pending), ``counters``, and the configuration of the NIC; docs/inspect.md lists
            all items.
        """
        cdef size_t size = 16384
        cdef size_t length = 0
        cdef VIP_RETURN code
        cdef char *text
        self._use()
        while True:
            text = <char *>malloc(size)
            if text == NULL:
                raise MemoryError
            try:
                with nogil:
                    code = viakit_snapshot(self._handle, text, size, &length)
                if code == VIP_SUCCESS:
                    return _json_loads(text[:length])
                if code != VIP_ERROR_RESOURCE or length < size:
                    _check(code, "viakit_snapshot")
                size = length + length // 4 + 4096   # The next snapshot may be longer.
            finally:
                free(text)

    @property
    def faults(self):
        """Faults that the NIC applies to the frames it sends: a :class:`Faults`, or None.

        Set it to a :class:`Faults`, to a line of text (``"loss=0.05,delay=200us,seed=7"``), or to None, which removes
        all faults. Frames and times are counted from that moment. On lossless links (loop, shm) the faults apply to
        later connections only, because existing ones rely on the link.

        Raises
        ------
        ValueError
            If a probability is outside 0..1, a time is negative, or the text is not understood.
        """
        cdef viakit_faults f
        cdef int active = 0
        f.size = sizeof(f)
        self._use()
        _check(viakit_get_faults(self._handle, &f, &active), "viakit_get_faults")
        return _faults_from(&f) if active else None

    @faults.setter
    def faults(self, faults):
        cdef viakit_faults f
        cdef VIP_RETURN code
        cdef VIP_NIC_HANDLE handle
        cdef bint heal = faults is None
        if not heal:
            _fill_faults(&f, faults)
        self._use()
        handle = self._handle
        with nogil:  # The NIC's thread may hold the NIC's lock.
            code = viakit_set_faults(handle, NULL if heal else &f)
        _check(code, "viakit_set_faults")

    @property
    def on_error(self):
        """Function that is called with every :class:`AsyncError`, or None.

        It runs like a signal handler: in the main thread between two bytecodes, or in a thread that waits in this
        library. It may use the NIC and close it. Exceptions it raises are reported by ``sys.unraisablehook``.
        KeyboardInterrupt and SystemExit are raised in the program instead.
        """
        return self._on_error

    @on_error.setter
    def on_error(self, handler):
        if handler is not None and not callable(handler):
            raise TypeError(f"on_error must be a function that takes an AsyncError, or None; got {handler!r}")
        self._on_error = handler

    @property
    def errors(self):
        """The last 256 asynchronous errors, oldest first, handled or not: a deque that the program may clear."""
        self._use()
        self._dispatch_errors()
        return self._errors

    def poll(self):
        """Make progress once, without waiting. Needed only with ``no_thread=True`` if no other call polls the NIC.

        Returns
        -------
        int
            Number of frames handled.
        """
        cdef int n_events = 0
        cdef Call call
        cdef VIP_RETURN code
        self._use()
        _begin_wait(&call, <void *>self, False)   # viakit_poll may run handlers.
        code = viakit_poll(self._handle, &n_events)
        _end_wait(&call)
        _raise_signal()
        _check(code, "viakit_poll")
        return n_events

    def tap(self, file=None, *, events=False, frames=True, snap_bytes=None, ring_bytes=None, file_bytes=None):
        """Record the activity of the NIC: return a :class:`Tap`, best used in a ``with`` statement.

        A NIC has at most one tap.

        Parameters
        ----------
        file : path-like, optional
            Name of the pcapng file, for Wireshark and for :mod:`viakit.trace`. An existing file is overwritten. ``%p``
            in the name is replaced by the process number, and a folder gets one file per process. NICs of one process
            may share a file. Default: no file; :meth:`Tap.read` returns the contents.
        events : bool
            Record the events of each descriptor as well: posted, doorbell, placed, acknowledged, completed, reaped.
        frames : bool
            Record the frames that are sent and received.
        snap_bytes : int, optional
            Number of bytes to keep of each frame, including its 32-byte header; at least 48. Default: all.
        ring_bytes : int, optional
            Size of the buffer for records that have not been written yet. Records that do not fit are lost and counted.
            Default: 8 MiB.
        file_bytes : int, optional
            Approximate limit of the file size. Later records are lost and counted. Default: no limit.

        Raises
        ------
        InvalidStateError
            If the NIC has a tap already.
        ResourceError
            If the file cannot be created.
        """
        return Tap(self, file, events=events, frames=frames, snap_bytes=snap_bytes, ring_bytes=ring_bytes,
                   file_bytes=file_bytes)

    def create_tag(self):
        """Create a :class:`ProtectionTag`. A VI can access only regions with its own tag."""
        self._use()
        return ProtectionTag(self)

    def allocate(self, nbytes):
        """Allocate memory that peers on the same host can map: an :class:`Allocation`, page-aligned and zeroed.

        On ``shm`` a message from or to such memory is copied once, directly between the two processes. The memory is
        not registered yet: use ``nic.register(nic.allocate(n))``, or :meth:`create_region`.
        """
        self._use()
        return Allocation(self, nbytes)

    def register(self, buffer, tag=None, rdma_write=False, rdma_read=False):
        """Register memory, so that descriptors can refer to it.

        Parameters
        ----------
        buffer : buffer
            Any contiguous object that exports a buffer: a NumPy array, bytearray, memoryview, :class:`Allocation`.
            Bytes and other read-only memory can only be sent from. The buffer cannot be resized until the region is
            closed.
        tag : ProtectionTag, optional
            Default: the NIC's own tag.
        rdma_write, rdma_read : bool
            Whether peers may write or read this memory through VIs that permit it too.

        Returns
        -------
        MemoryRegion

        Raises
        ------
        BufferError
            If the memory is not contiguous.
        ResourceError
            If the NIC's limits on regions or bytes are reached.
        """
        self._use()
        return MemoryRegion(self, buffer, tag, rdma_write, rdma_read)

    def create_region(self, nbytes, tag=None, rdma_write=False, rdma_read=False):
        """Allocate and register memory in one step: ``nic.register(nic.allocate(nbytes), ...)``."""
        return self.register(self.allocate(nbytes), tag, rdma_write, rdma_read)

    def create_vi(self, reliability=_types.Reliability.RELIABLE_DELIVERY, max_transfer_size=0, tag=None,
                  rdma_write=False, rdma_read=False, send_cq=None, recv_cq=None, *, secret=None):
        """Create a VI: a send queue and a receive queue, which form one end of a connection.

        Parameters
        ----------
        reliability : Reliability
            Reliability level; both ends must have the same.
        max_transfer_size : int
            Length of the longest message in bytes; 0 is the NIC's maximum. Both ends must have the same.
        tag : ProtectionTag, optional
            Default: the NIC's own tag.
        rdma_write, rdma_read : bool
            Whether the peer may write or read local memory through this VI, in regions that permit it too.
        send_cq, recv_cq : CompletionQueue, optional
            Completion queues that report the completions of each work queue.
        secret : bytes, optional
            16 to 32 bytes. The VI then connects only with a VI that has the same secret; see :attr:`Vi.secret`.

        Returns
        -------
        Vi

        Raises
        ------
        ValueError
            If `reliability` is not a level, `max_transfer_size` is negative, or `secret` has the wrong length.
        ReliabilityLevelError, MtuError, RdmaReadError
            If the NIC does not support the requested attribute.
        """
        self._use()
        return Vi(self, reliability, max_transfer_size, tag, rdma_write, rdma_read, send_cq, recv_cq, secret=secret)

    def create_cq(self, n_entries):
        """Create a :class:`CompletionQueue` for at most `n_entries` completions that have not been taken yet.

        Raises
        ------
        ValueError
            If `n_entries` is negative or does not fit into 32 bits.
        """
        self._use()
        return CompletionQueue(self, n_entries)

    def connect_wait(self, discriminator, timeout_s=None):
        """Wait for a connection request to this NIC with the given discriminator.

        Parameters
        ----------
        discriminator : bytes or str
            Discriminator of the endpoint.
        timeout_s : float or None
            Timeout in seconds; 0 checks once, None waits for ever.

        Returns
        -------
        ConnectionRequest

        Raises
        ------
        ViaTimeoutError
            If no request arrives in time.
        """
        self._use()
        return _connect_wait(self, self._address / discriminator, timeout_s)

    def resolve(self, name, discriminator=b""):
        """Return the :class:`Address` of a host by name.

        Parameters
        ----------
        name : str
            ``"localhost"``. On shm and loop: the NAME of a device. On eth: a MAC address or a name of the hosts file.
            On udp: a host name or an IP address, optionally followed by ``:PORT``.
        discriminator : bytes or str
            Discriminator of the returned address.

        Raises
        ------
        NameServiceError
            If the name is unknown.
        """
        return _resolve(self, name, discriminator)

    def name_of(self, address):
        """Return the name of the host with this :class:`Address`.

        Raises
        ------
        NameServiceError
            If the address has no name.
        """
        return _name_of(self, address)

    def discover(self):
        """Return the addresses of reachable hosts: those that have a name, and those that answer a discovery request.

        On loop and shm the result is the one station that exists. On eth the request is broadcast, which takes 0.2 s.

        Returns
        -------
        list of Address
            Includes the address of this NIC.
        """
        return _discover(self)

    @property
    def names(self):
        """Named hosts: a dictionary of str to Address with all hosts that :meth:`discover` finds and that have a name.
        """
        result = {}
        for address in self.discover():
            try:
                result[self.name_of(address)] = address
            except _errors.NameServiceError:
                continue
        return result
