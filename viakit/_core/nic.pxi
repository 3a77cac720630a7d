# The NIC: opening and closing, what it is, what it counts, names, and the asynchronous errors of everything on it.

cdef dict _RETRANSMISSIONS = {r.name.lower(): int(r) for r in _types.Retransmission}
cdef dict _CHECKSUMS = {c.name.lower(): int(c) for c in _types.Checksum}
cdef dict _FORMS = {form.name.lower(): int(form) for form in _types.Form}
_OPTIONS = ("form", "mtu", "ring_slots", "window", "rto_us", "max_retries", "ack_delay_us", "keepalive_ms", "spin_us",
            "first_psn", "no_thread", "no_cma", "no_map", "retransmission", "checksum", "takeover_us")


cdef uint32_t _option_u32(str name, object value) except? 0:
    return <uint32_t>_whole(name, value, UINT32_MAX)


cdef int _fill_options(viakit_nic_options *options, dict given) except -1:
    cdef str name
    memset(options, 0, sizeof(viakit_nic_options))
    options.size = sizeof(viakit_nic_options)
    for name, value in given.items():
        if name not in _OPTIONS:
            raise TypeError(f"a Nic has no option {name!r}; there are {', '.join(_OPTIONS)}")
        if value is None:
            continue
        if name == "form":
            form = _FORMS.get(value.lower(), -1) if isinstance(value, str) else int(value)
            if form not in _FORMS.values():
                raise ValueError(f"form={value!r}: expected one of {', '.join(_FORMS)}")
            options.form = <viakit_form><int>form
        elif name == "mtu":
            options.mtu = _option_u32(name, value)
        elif name == "ring_slots":
            options.ring_slots = _option_u32(name, value)
        elif name == "window":
            options.window = _option_u32(name, value)
        elif name == "rto_us":
            options.rto_us = _option_u32(name, value)
        elif name == "max_retries":
            options.max_retries = _option_u32(name, value)
        elif name == "ack_delay_us":
            options.ack_delay_us = _option_u32(name, value)
        elif name == "keepalive_ms":
            options.keepalive_ms = _option_u32(name, value)
        elif name == "spin_us":
            options.spin_us = -1 if value == -1 else <int>_whole(name, value, 0x7fffffff)
        elif name == "first_psn":
            options.first_psn = _option_u32(name, value)
        elif name == "no_thread":
            options.no_thread = bool(value)
        elif name == "no_cma":
            options.no_cma = bool(value)
        elif name == "no_map":
            options.no_map = bool(value)
        elif name == "retransmission":
            way = _RETRANSMISSIONS.get(value.lower(), -1) if isinstance(value, str) else int(value)
            if way not in _RETRANSMISSIONS.values():
                raise ValueError(f"retransmission={value!r}: expected one of {', '.join(_RETRANSMISSIONS)}")
            options.retransmission = <viakit_retransmission><int>way
        elif name == "checksum":
            way = _CHECKSUMS.get(value.lower(), -1) if isinstance(value, str) else int(value)
            if way not in _CHECKSUMS.values():
                raise ValueError(f"checksum={value!r}: expected one of {', '.join(_CHECKSUMS)}")
            options.checksum = <viakit_checksum><int>way
        elif name == "takeover_us":
            options.takeover_us = _option_u32(name, value)
    return 0


cdef object _counters(const uint64_t *values):
    cdef int i
    result = _Counters()
    for i in range(VIAKIT_N_COUNTERS):
        result[_COUNTER_NAMES[i]] = values[i]
    return result


cdef tuple _COUNTER_NAMES = tuple([_text(viakit_counter_name(i)) for i in range(VIAKIT_N_COUNTERS)])

counters_help = {_text(viakit_counter_name(i)): _text(viakit_counter_text(i)) for i in range(VIAKIT_N_COUNTERS)}


def live_objects():
    """What exists in the C library in this process, over all NICs; all zero when everything was closed.

    Returns
    -------
    dict of str to int
        ``nics``, ``vis``, ``cqs``, ``ptags``, ``regions``, ``connections``, ``allocations``.
    """
    cdef viakit_live live
    viakit_live_objects(&live)
    return {"nics": live.nics, "vis": live.vis, "cqs": live.cqs, "ptags": live.ptags, "regions": live.regions,
            "connections": live.connections, "allocations": live.allocations}


def return_codes():
    """Every code that the C library's calls can answer, by value: its name and its meaning.

    Returns
    -------
    dict of int to (str, str)
    """
    return {code: (_text(viakit_return_name(code)), _text(viakit_return_text(code)))
            for code in range(256) if viakit_return_name(code) != NULL}


def error_codes():
    """Every asynchronous error of the C library, by value: its name and its meaning.

    Returns
    -------
    dict of int to (str, str)
    """
    return {code: (_text(viakit_error_code_name(code)), _text(viakit_error_code_text(code)))
            for code in range(256) if viakit_error_code_name(code) != NULL}


cdef object _threading():
    import threading
    return threading


cdef class Nic:
    """A network interface of the Virtual Interface Architecture: where memory is registered and VIs are made.

    Closing it closes all that was made from it. Use it in a ``with`` statement, or call :meth:`close`.

    Parameters
    ----------
    device : str
        ``"loop"`` or ``"loop:NAME"`` (NICs of one process), ``"shm"`` or ``"shm:NAME"`` (processes of one host and one
        user), ``"eth:IFNAME"`` (raw Ethernet frames on an interface; needs CAP_NET_RAW, see :mod:`viakit.testbed`),
        ``"udp:ADDRESS"``, ``"udp:IFNAME"`` or ``"udp:"`` (datagrams from this host's address, on any network, without
        privilege), with ``:PORT`` behind it for a station other than the usual one.
    **options
        ``form`` (eth: ``"auto"``, ``"plain"``, ``"udp"``), ``mtu`` (eth, udp: bytes of a frame after its header),
        ``ring_slots`` (frames), ``window`` (frames), ``rto_us``, ``max_retries``, ``ack_delay_us``, ``keepalive_ms``,
        ``spin_us`` (how long waits spin before they sleep; -1: never), ``first_psn``, ``no_thread`` (only calls make
        progress), ``no_cma`` and ``no_map`` (shm: never copy straight between processes), ``retransmission`` (what this
        side does with frames that come before a lost one: ``"selective"`` keeps them, ``"go_back_n"`` drops them),
        ``checksum`` (eth, udp, of what this side sends: ``"auto"`` leaves the data of long messages to UDP's checksum,
        as TCP does; ``"crc"`` covers every byte by CRC32C), ``takeover_us`` (the NIC's thread looks so often, at least,
        whether the program has stopped polling). 0 or None: the default.

    Raises
    ------
    NicPermissionError
        The kernel refuses a raw socket.
    ResourceError, InvalidParameterError
        There is no such device, or an option does not fit it.
    """

    cdef object __weakref__
    cdef VIP_NIC_HANDLE _handle
    cdef readonly str device
    cdef object _children      # WeakSet of all that has to be closed before the NIC
    cdef dict _vis             # handle of a VI -> weak reference to it
    cdef dict _cqs
    cdef ProtectionTag _tag
    cdef EventRing *_events
    cdef object _errors        # deque of AsyncError
    cdef object _on_error
    cdef object _address
    cdef str _made_at
    cdef long _generation
    cdef int _n_allocations    # that still have memory of the NIC
    cdef bint _closed
    cdef bint _closing
    cdef bint _named

    def __cinit__(self):
        self._generation = _generation
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
            raise TypeError("a Nic is opened once")
        if not isinstance(device, str):
            raise TypeError(f"a device is named by a string such as 'shm' or 'eth:eth0', not by {device!r}")
        _fill_options(&c_options, options)
        name = device.encode()
        if b"\0" in name:
            raise ValueError(f"the device name {device!r} holds a zero byte")
        c_name = name
        _free_event_ring(self._events)   # of an attempt that failed, or of a closed NIC: nobody writes there now
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
            self.close()

    def __dealloc__(self):
        # After a fork the ring still belongs to the parent's copy of the NIC; its memory here is ours alone.
        _free_event_ring(self._events)

    cdef int _use(self) except -1:
        """Refuse a NIC that was closed, or that belongs to the parent process."""
        if self._generation != _generation:
            raise _refuse_fork(self)
        if self._closed:
            raise _errors.ClosedError(f"{self!r} is closed")
        return 0

    cdef ProtectionTag _tag_of(self, object tag):
        """The tag that a `tag=` argument names; None is the NIC's own."""
        cdef ProtectionTag result
        if tag is None:
            if self._tag is None:
                self._tag = ProtectionTag(self)
            return self._tag
        result = tag
        if result._nic is not self:
            raise ValueError(f"{tag!r} belongs to another Nic than {self!r}")
        result._use()
        return result

    cdef int _tell(self) except -1:
        """Turn what the handler left in the ring into AsyncError objects, keep them, and call on_error.

        Raises only an interrupt that came while on_error ran, and that at the end.
        """
        cdef Event event
        interrupt = None
        # After a fork the errors are the parent's, and the lock may be held for ever by a thread that is not here.
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
        # We are in a handler that the NIC calls, or in a signal handler in the middle of a wait on it. VipCloseNic
        # waits until both are over, so it needs a thread of its own, which holds this object.
        try:
            _threading().Thread(target=self._close_elsewhere, args=(<size_t>handle,), name="viakit-close").start()
        except BaseException as error:
            _report(error, self)   # the interpreter is ending, and the NIC with it

    def _close_elsewhere(self, size_t handle):
        cdef VIP_NIC_HANDLE nic = <VIP_NIC_HANDLE>handle
        with nogil:
            VipCloseNic(nic)
        self._handle = NULL

    def close(self):
        """Close everything that was made from this NIC, and the NIC. Closing twice does nothing.

        Memory of :meth:`allocate` that an array or a memoryview still looks at stays until the last of these is gone,
        and the C library's NIC with it. A handler may call it, too: that of a notification, of an error, of a signal.
        Then the C library's NIC goes, in a thread of its own, as soon as the handler has returned.
        """
        if self._closed or self._closing:
            return   # the latter: another thread is at it, or this is an on_error that it called
        if self._generation != _generation:
            self._closed = True
            return
        interrupt = None
        self._closing = True
        try:
            try:
                self._tell()
            except _INTERRUPTS as raised:
                interrupt = raised
            # VIs first: they let go of regions, tags and completion queues.
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

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        return f"<viakit.via.Nic {self.device!r}{' closed' if self._closed else ''}>"

    @property
    def closed(self):
        """Whether :meth:`close` was called."""
        return bool(self._closed)

    @property
    def address(self):
        """The :class:`Address` of this NIC's host, without discriminator. ``nic.address / "name"`` adds one."""
        return self._address

    @property
    def tag(self):
        """The :class:`ProtectionTag` that regions and VIs get when none is given."""
        self._use()
        return self._tag_of(None)

    @property
    def attributes(self):
        """What the NIC promises: a :class:`NicAttributes`."""
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
        """What the NIC really is, and what exists on it now: a :class:`NicInfo`."""
        cdef viakit_nic_info i
        self._use()
        _check(viakit_query_nic(self._handle, &i), "viakit_query_nic")
        return _types.NicInfo(
            _text(i.link), _text(i.device), _text(i.interface), _text(i.form), (<char *>i.address)[:6], i.port, i.mtu,
            i.max_payload, i.super_payload, i.ring_slots, i.window, i.bytes_registered, i.bytes_pinned,
            bool(i.lossless), None if i.cma < 0 else bool(i.cma), bool(i.thread), i.vis, i.regions, i.ptags, i.cqs,
        )

    @property
    def counters(self):
        """The NIC's :class:`Counters`, as they are now."""
        cdef uint64_t values[VIAKIT_N_COUNTERS]
        self._use()
        _check(viakit_nic_counters(self._handle, values), "viakit_nic_counters")
        return _counters(values)

    def snapshot(self):
        """What the NIC and everything on it is doing at this moment.

        Taken in one piece, without driving or changing anything. :mod:`viakit.inspect` shows it as tables, and takes it
        from other processes.

        Returns
        -------
        dict
            ``vis`` (state, peer, sequence numbers, queues with their oldest descriptors), ``cqs``, ``regions``,
            ``ptags``, ``connections`` (in the making), ``counters``, and what the NIC is; docs/inspect.md lists it.
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
                size = length + length // 4 + 4096   # a moment later there may be more to tell
            finally:
                free(text)

    @property
    def faults(self):
        """What the NIC does to the frames that it sends: a :class:`Faults`, or None.

        Set it to a :class:`Faults`, to a line of text (``"loss=0.05,delay=200us,seed=7"``), or to None, which heals.
        Frames and times are counted from then on. On links that lose nothing (loop, shm) it concerns connections that
        are made afterwards; older ones rely on the link and are left alone.

        Raises
        ------
        ValueError
            On a chance outside 0..1, a time below 0, or a text that is not understood.
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
        with nogil:  # the NIC's thread may be inside
            code = viakit_set_faults(handle, NULL if heal else &f)
        _check(code, "viakit_set_faults")

    @property
    def on_error(self):
        """A function that is called with every :class:`AsyncError`, or None.

        It runs like a signal handler: in the main thread between two bytecodes, or in a thread that waits in this
        library; it may use the NIC, and close it. What it raises is reported by ``sys.unraisablehook``, all but
        KeyboardInterrupt and SystemExit, which go on to the program.
        """
        return self._on_error

    @on_error.setter
    def on_error(self, handler):
        if handler is not None and not callable(handler):
            raise TypeError(f"on_error is a function that takes an AsyncError, or None; not {handler!r}")
        self._on_error = handler

    @property
    def errors(self):
        """The last 256 asynchronous errors, oldest first, handled or not: a deque that may be cleared."""
        self._use()
        self._tell()
        return self._errors

    def poll(self):
        """Drive the NIC once, without waiting. Only needed with ``no_thread=True`` where nothing else polls.

        Returns
        -------
        int
            The number of frames handled.
        """
        cdef int n_events = 0
        cdef Call call
        cdef VIP_RETURN code
        self._use()
        _begin_wait(&call, <void *>self, False)   # it may run handlers
        code = viakit_poll(self._handle, &n_events)
        _end_wait(&call)
        _raise_signal()
        _check(code, "viakit_poll")
        return n_events

    def tap(self, file=None, *, events=False, frames=True, snap_bytes=None, ring_bytes=None, file_bytes=None):
        """Write down what the NIC does: a :class:`Tap`, best used in a ``with`` statement. A NIC has at most one.

        Parameters
        ----------
        file : path-like, optional
            A pcapng file, for Wireshark and for :mod:`viakit.trace`; it is emptied. ``%p`` in its name is the process
            number, and a folder gets one file per process. NICs of one process may share a file. None: there is no
            file, and :meth:`Tap.read` gives what would be in it.
        events : bool
            Write the life of each descriptor, too: posted, doorbell, placed, acknowledged, completed, reaped.
        frames : bool
            Write the frames that are sent and received.
        snap_bytes : int, optional
            Keep so many bytes of each frame, its 32-byte header included; 48 at least. None: all.
        ring_bytes : int, optional
            Room for what was not written yet. What finds no room is lost and counted. None: 8 MiB.
        file_bytes : int, optional
            About how long the file may become; what comes then is counted as lost. None: no bound.

        Raises
        ------
        InvalidStateError
            The NIC has a tap.
        ResourceError
            The file cannot be made.
        """
        return Tap(self, file, events=events, frames=frames, snap_bytes=snap_bytes, ring_bytes=ring_bytes,
                   file_bytes=file_bytes)

    def create_tag(self):
        """A new :class:`ProtectionTag`: only VIs and regions with the same tag work together."""
        self._use()
        return ProtectionTag(self)

    def allocate(self, nbytes):
        """Memory that peers on the same host can map, page-aligned and zero, as an :class:`Allocation`.

        On ``shm`` a message from or to such memory is copied once, straight between the two processes. It is not yet
        registered: ``nic.register(nic.allocate(n))``, or :meth:`create_region`.
        """
        self._use()
        return Allocation(self, nbytes)

    def register(self, buffer, tag=None, rdma_write=False, rdma_read=False):
        """Register memory, so that descriptors may point into it.

        Parameters
        ----------
        buffer
            Anything contiguous that exports a buffer: a NumPy array, bytearray, memoryview, :class:`Allocation`; bytes
            and other read-only memory may only be sent from. It cannot be resized until the region is closed.
        tag : ProtectionTag, optional
            The NIC's own by default.
        rdma_write, rdma_read : bool
            Whether peers may write or read this memory through VIs that allow it too.

        Returns
        -------
        MemoryRegion

        Raises
        ------
        BufferError
            The memory is not contiguous.
        ResourceError
            The NIC's limits on regions or bytes are reached.
        """
        self._use()
        return MemoryRegion(self, buffer, tag, rdma_write, rdma_read)

    def create_region(self, nbytes, tag=None, rdma_write=False, rdma_read=False):
        """Allocate and register in one step: ``nic.register(nic.allocate(nbytes), ...)``."""
        return self.register(self.allocate(nbytes), tag, rdma_write, rdma_read)

    def create_vi(self, reliability=_types.Reliability.RELIABLE_DELIVERY, max_transfer_size=0, tag=None,
                  rdma_write=False, rdma_read=False, send_cq=None, recv_cq=None):
        """Make a VI: a pair of work queues, and one end of a connection to be.

        Parameters
        ----------
        reliability : Reliability
            Both ends must have the same.
        max_transfer_size : int
            Bytes of the longest message; 0 is the NIC's maximum. Both ends must have the same.
        tag : ProtectionTag, optional
            The NIC's own by default.
        rdma_write, rdma_read : bool
            Whether the peer may write or read memory of this side through this VI, in regions that allow it too.
        send_cq, recv_cq : CompletionQueue, optional
            Where completions of each work queue are announced.

        Returns
        -------
        Vi

        Raises
        ------
        ValueError
            `reliability` is no level at all, or `max_transfer_size` is negative.
        ReliabilityLevelError, MtuError, RdmaReadError
            The NIC does not offer it.
        """
        self._use()
        return Vi(self, reliability, max_transfer_size, tag, rdma_write, rdma_read, send_cq, recv_cq)

    def create_cq(self, n_entries):
        """Make a :class:`CompletionQueue` for at most `n_entries` completions that nobody has taken yet.

        Raises
        ------
        ValueError
            `n_entries` is negative, or does not fit 32 bits.
        """
        self._use()
        return CompletionQueue(self, n_entries)

    def connect_wait(self, discriminator, timeout_s=None):
        """Wait until somebody asks for a connection to this NIC under this discriminator.

        Parameters
        ----------
        discriminator : bytes or str
        timeout_s : float or None
            Seconds; 0 looks once, None waits for ever.

        Returns
        -------
        ConnectionRequest

        Raises
        ------
        ViaTimeoutError
        """
        self._use()
        return _connect_wait(self, self._address / discriminator, timeout_s)

    def resolve(self, name, discriminator=b""):
        """The :class:`Address` of a host by name.

        Parameters
        ----------
        name : str
            ``"localhost"``; on shm and loop the NAME of a device; on eth a MAC address or a name of the hosts file; on
            udp a host of the Internet by name or address, with ``:PORT`` if need be.
        discriminator : bytes or str
            What the address shall carry.

        Raises
        ------
        NameServiceError
            Nobody knows the name.
        """
        cdef NetAddress buffer
        cdef bytes c_name = name.encode()
        cdef char *p_name = c_name
        self._start_names()
        memset(&buffer, 0, sizeof(buffer))
        buffer.net.HostAddressLen = 6
        cdef VIP_RETURN code
        with nogil:
            code = VipNSGetHostByName(self._handle, p_name, &buffer.net, 0)
        _check(code, "VipNSGetHostByName")
        return _address_of(&buffer) / discriminator

    def name_of(self, address):
        """The name of the host that has this :class:`Address`.

        Raises
        ------
        NameServiceError
            The address has no name.
        """
        cdef NetAddress buffer
        cdef char name[256]
        cdef VIP_ULONG length = sizeof(name)
        cdef VIP_RETURN code
        self._start_names()
        _fill_address(&buffer, _Address(address.host))
        memset(name, 0, sizeof(name))
        with nogil:
            code = VipNSGetHostByAddr(self._handle, &buffer.net, name, &length)
        _check(code, "VipNSGetHostByAddr")
        return _text(name)

    def discover(self):
        """Who could be talked to: the addresses of hosts that have a name here, and of those that answer a question.

        On loop and shm that is the one station there is. On eth everybody on the wire is asked, which takes 0.2 s.

        Returns
        -------
        list of Address
            This NIC's own among them.
        """
        cdef VIP_AUTODISCOVERY_LIST found
        cdef VIP_NIC_HANDLE handle = self._handle
        cdef VIP_RETURN code
        cdef size_t i
        cdef char *entry
        self._use()
        memset(&found, 0, sizeof(found))
        with nogil:
            code = VipQuerySystemManagementInfo(handle, VIP_SMI_AUTODISCOVERY, &found)
        _check(code, "VipQuerySystemManagementInfo")
        result = []
        for i in range(found.NumAdAddrs):
            entry = <char *>found.ADAddrArray + i * 10   # lengths, then six bytes
            result.append(_Address(entry[4:10]))
        return result

    @property
    def names(self):
        """Hosts by name: a dictionary of str to Address, of all that :meth:`discover` finds and that have a name."""
        result = {}
        for address in self.discover():
            try:
                result[self.name_of(address)] = address
            except _errors.NameServiceError:
                continue
        return result

    cdef int _start_names(self) except -1:
        self._use()
        if not self._named:
            _check(VipNSInit(self._handle, NULL), "VipNSInit")
            self._named = True
        return 0
