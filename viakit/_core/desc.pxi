# Descriptors: 64 bytes or more, 64-byte aligned, in registered memory that the NIC manages for the program.
#
# The memory is divided into chunks, and chunks into slots. A chunk belongs to one protection tag, because a descriptor
# must have the tag of the VI it is posted on. Its slots have one size (64, 128 ... 4096 bytes for 2, 6 ... 254
# segments). A descriptor holds a reference to its chunk, so that its memory stays valid after the NIC is closed.

cdef enum:
    N_CHUNK_SIZES = 7
    CHUNK_BYTES = 32768
    MAX_SEGMENTS = 254   # capacity of the largest slot; the NIC's own limit is attributes.max_segments_per_descriptor


@cython.final
cdef class _Chunk:
    # Registered memory, divided into slots of `slot_bytes`. free_slots[:n_free] are the numbers of the free slots.
    cdef Nic nic
    cdef char *memory
    cdef VIP_MEM_HANDLE handle
    cdef int slot_bytes
    cdef int n_free
    cdef bint registered
    cdef uint16_t free_slots[512]   # CHUNK_BYTES / 64, the number of slots of the smallest size
    cdef long generation

    def __cinit__(self, ProtectionTag tag, int size_class):
        cdef VIP_MEM_ATTRIBUTES attributes
        cdef void *memory = NULL
        cdef int i
        self.generation = _generation
        self.nic = tag._nic
        self.slot_bytes = 64 << size_class
        if posix_memalign(&memory, 4096, CHUNK_BYTES) != 0:
            raise MemoryError()
        self.memory = <char *>memory
        memset(memory, 0, CHUNK_BYTES)
        memset(&attributes, 0, sizeof(attributes))
        attributes.Ptag = tag._handle
        _check(VipRegisterMem(self.nic._handle, memory, CHUNK_BYTES, &attributes, &self.handle), "VipRegisterMem")
        self.registered = True
        self.n_free = CHUNK_BYTES // self.slot_bytes
        for i in range(self.n_free):
            self.free_slots[i] = <uint16_t>(self.n_free - 1 - i)

    cdef void deregister(self) noexcept:
        if self.registered and not self.nic._closed and self.generation == _generation:
            VipDeregisterMem(self.nic._handle, self.memory, self.handle)
        self.registered = False

    def __dealloc__(self):
        # Neither a tag nor a descriptor refers to the chunk. The tag or the NIC has deregistered it before.
        free(self.memory)


cdef _Chunk _chunk_with_free_slot(ProtectionTag tag, int size_class):
    cdef list chunks = tag._chunks[size_class]
    cdef _Chunk chunk
    for chunk in reversed(chunks):
        if chunk.n_free:
            return chunk
    chunk = _Chunk(tag, size_class)
    chunks.append(chunk)
    return chunk


cdef list _segments_of(object segments):
    """Return one Segment or MemoryRegion, or a sequence of them, as a list of Segments."""
    cdef list result = []
    if isinstance(segments, (Segment, MemoryRegion)):
        segments = (segments,)
    for item in segments:
        if isinstance(item, MemoryRegion):
            item = item[:]
        elif not isinstance(item, Segment):
            raise TypeError(f"a descriptor needs registered memory, such as region[a:b], got {type(item).__name__}; "
                            "register it first")
        if (<Segment>item).region is not None:
            (<Segment>item).region._use()
        result.append(item)
    return result


cdef ProtectionTag _owner_tag(list segments, object owner):
    """Return the tag whose descriptor memory is used: that of the owner, or of the first segment's region."""
    cdef Segment segment
    if owner is None:
        for segment in segments:
            if segment.region is not None:
                return segment.region._tag
        raise ValueError("a descriptor without segments needs the argument owner: a Vi, a ProtectionTag or a Nic")
    if isinstance(owner, Vi):
        return (<Vi>owner)._tag
    if isinstance(owner, Nic):
        return owner.tag
    return owner


cdef VIP_DESCRIPTOR _no_descriptor   # zero


@cython.final
cdef class Descriptor:
    """Request for a work queue: an operation and the segments of registered memory it applies to.

    Created by :meth:`send`, :meth:`recv`, :meth:`rdma_write` and :meth:`rdma_read`. It can be posted any number of
    times, but only on one queue at a time. It holds references to its regions, and does not need to be closed.
    """

    cdef _Chunk _chunk
    cdef int _slot
    cdef VIP_DESCRIPTOR *_c
    cdef Descriptor _next          # in its VI's list of posted descriptors
    cdef tuple _regions            # regions of its local segments
    cdef uint32_t _total           # total length of its local segments in bytes
    cdef bint _is_recv
    cdef bint _posted

    def __cinit__(self):
        self._c = &_no_descriptor   # valid even if the program calls Descriptor.__new__ directly

    def __init__(self):
        raise TypeError("use Descriptor.send(), .recv(), .rdma_write() or .rdma_read() to create a descriptor")

    def __dealloc__(self):
        if self._chunk is not None:
            self._chunk.free_slots[self._chunk.n_free] = <uint16_t>self._slot
            self._chunk.n_free += 1

    @staticmethod
    def send(segments=(), immediate=None, *, owner=None):
        """Create a send of registered memory, gathered from up to 252 segments.

        Parameters
        ----------
        segments : Segment, MemoryRegion, or a sequence of them
            Data to send. An empty sequence is an empty message and requires `owner`.
        immediate : int, optional
            32 bits that are transmitted with the data.
        owner : Vi, ProtectionTag or Nic, optional
            Object whose descriptor memory is used. Default: the tag of the first segment's region.

        Returns
        -------
        Descriptor
        """
        return _prepare(VIP_CONTROL_OP_SENDRECV, False, segments, immediate, 0, 0, owner)

    @staticmethod
    def recv(segments=(), *, owner=None):
        """Create a receive of one message into registered memory, scattered over up to 252 segments.

        Parameters
        ----------
        segments : Segment, MemoryRegion, or a sequence of them
            Memory to receive into. An empty sequence receives an empty message, or an RDMA write with immediate data,
            and requires `owner`.
        owner : Vi, ProtectionTag or Nic, optional
            Object whose descriptor memory is used. Default: the tag of the first segment's region.

        Returns
        -------
        Descriptor
        """
        return _prepare(VIP_CONTROL_OP_SENDRECV, True, segments, None, 0, 0, owner)

    @staticmethod
    def rdma_write(segments, remote_address, remote_handle, immediate=None, *, owner=None):
        """Create a write from local registered memory to remote registered memory.

        Parameters
        ----------
        segments : Segment, MemoryRegion, or a sequence of them
            Data to write.
        remote_address : int
            Destination in the remote process: ``region.address`` there, plus an offset in bytes.
        remote_handle : int
            ``region.handle`` there. The remote region and the remote VI must both have ``rdma_write=True``.
        immediate : int, optional
            32 bits that are delivered with the write and consume one remote receive descriptor. Without them, the
            remote program is not notified.
        owner : Vi, ProtectionTag or Nic, optional
            Object whose descriptor memory is used. Default: the tag of the first segment's region.

        Returns
        -------
        Descriptor
        """
        return _prepare(VIP_CONTROL_OP_RDMAWRITE, False, segments, immediate, remote_address, remote_handle, owner)

    @staticmethod
    def rdma_read(segments, remote_address, remote_handle, *, owner=None):
        """Create a read of remote registered memory into local registered memory.

        The remote program takes no part in it. RDMA reads need a VI of a reliable level. Post them with
        :meth:`Vi.post_send`, because they use the send queue.

        Parameters
        ----------
        segments : Segment, MemoryRegion, or a sequence of them
            Memory to read into. Their total length is the number of bytes read.
        remote_address : int
            Source in the remote process: ``region.address`` there, plus an offset in bytes.
        remote_handle : int
            ``region.handle`` there. The remote region and the remote VI must both have ``rdma_read=True``.
        owner : Vi, ProtectionTag or Nic, optional
            Object whose descriptor memory is used. Default: the tag of the first segment's region.

        Returns
        -------
        Descriptor
        """
        return _prepare(VIP_CONTROL_OP_RDMAREAD, False, segments, None, remote_address, remote_handle, owner)

    cdef inline void _hold(self) noexcept:
        cdef MemoryRegion region
        for region in self._regions:
            region._n_holds += 1

    cdef inline void _let_go(self) noexcept:
        cdef MemoryRegion region
        for region in self._regions:
            region._let_go()

    @property
    def operation(self):
        """:class:`Operation` of the descriptor; for a completed receive, the operation that consumed it."""
        cdef uint32_t status = self._c.CS.Status
        if status & VIP_STATUS_DONE:
            return _Operation((status & VIP_STATUS_OP_MASK) >> 16)
        if self._is_recv:
            return _Operation.RECEIVE
        if self._c.CS.Control & VIP_CONTROL_OP_MASK == VIP_CONTROL_OP_RDMAWRITE:
            return _Operation.RDMA_WRITE
        if self._c.CS.Control & VIP_CONTROL_OP_MASK == VIP_CONTROL_OP_RDMAREAD:
            return _Operation.RDMA_READ
        return _Operation.SEND

    @property
    def status(self):
        """:class:`Status` bits; 0 while the descriptor is posted and not done."""
        return _Status(self._c.CS.Status & (VIP_STATUS_DONE | VIP_STATUS_ERROR_MASK | VIP_STATUS_IMMEDIATE))

    @property
    def done(self):
        """Whether the descriptor is complete, with or without error.

        Reading it makes no progress on the NIC: see :meth:`Vi.recv_done`.
        """
        return self._c.CS.Status & VIP_STATUS_DONE != 0

    @property
    def posted(self):
        """Whether the descriptor is in a work queue, complete or not."""
        return bool(self._posted)

    @property
    def error(self):
        """:class:`CompletionError` for the descriptor's status, or None."""
        return _completion_error(self, None) if self._c.CS.Status & VIP_STATUS_ERROR_MASK else None

    @property
    def length(self):
        """Length of the message in bytes: the total of the segments; for a completed receive, the received length."""
        return self._c.CS.Length

    @property
    def immediate(self):
        """Immediate data: the 32 bits to send, or those that a completed receive got; None without immediate data.

        It can be set on a send that is not posted.
        """
        cdef bint has
        if self._is_recv:
            has = self._c.CS.Status & VIP_STATUS_IMMEDIATE != 0
        else:
            has = self._c.CS.Control & VIP_CONTROL_IMMEDIATE != 0
        return self._c.CS.ImmediateData if has else None

    @immediate.setter
    def immediate(self, value):
        if self._posted or self._is_recv:
            raise _errors.InvalidStateError("immediate data can only be set on a send that is not posted")
        if value is None:
            self._c.CS.Control &= <uint16_t>~<uint16_t>VIP_CONTROL_IMMEDIATE
            return
        self._c.CS.ImmediateData = <uint32_t>_whole("immediate", value, UINT32_MAX)
        self._c.CS.Control |= VIP_CONTROL_IMMEDIATE

    @property
    def fence(self):
        """Whether processing waits until all RDMA reads posted earlier on the same VI are complete.

        It can be set on a send, RDMA write or RDMA read that is not posted.
        """
        return self._c.CS.Control & VIP_CONTROL_QFENCE != 0

    @fence.setter
    def fence(self, value):
        if self._posted or self._is_recv:
            raise _errors.InvalidStateError("a fence can only be set on a send that is not posted")
        if value:
            self._c.CS.Control |= <uint16_t>VIP_CONTROL_QFENCE
        else:
            self._c.CS.Control &= <uint16_t>~<uint16_t>VIP_CONTROL_QFENCE

    @property
    def address(self):
        """Virtual address of the descriptor itself, a multiple of 64."""
        return <size_t>self._c

    @property
    def raw(self):
        """Copy of the descriptor's bytes: 32 of the control segment, and 16 of each further segment."""
        return (<char *>self._c)[:32 + 16 * self._c.CS.SegCount]

    def __repr__(self):
        status = self.status
        state = "done" if status == VIP_STATUS_DONE else status.name or repr(status) if status else "not done"
        return (f"<viakit.via.Descriptor {self.operation.name} of {self.length} byte{'s' * (self.length != 1)}, "
                f"{'posted, ' if self._posted else ''}{state}>")


cdef object _completion_error(Descriptor descriptor, object vi):
    cdef uint32_t status = descriptor._c.CS.Status
    _end_thread()
    return _errors.CompletionError.from_status(
        status & (VIP_STATUS_DONE | VIP_STATUS_ERROR_MASK | VIP_STATUS_IMMEDIATE), (status & VIP_STATUS_OP_MASK) >> 16,
        descriptor, vi)


cdef Descriptor _prepare(int control, bint is_recv, object given, object immediate, object remote_address,
                         object remote_handle, object owner):
    cdef list segments = _segments_of(given)
    cdef ProtectionTag tag = _owner_tag(segments, owner)
    cdef bint rdma = control != VIP_CONTROL_OP_SENDRECV
    cdef bint fills = is_recv or control == VIP_CONTROL_OP_RDMAREAD
    cdef int n = len(segments) + rdma
    cdef int size_class = 0
    cdef int i = rdma
    cdef uint64_t total = 0
    cdef uint64_t address = 0
    cdef uint64_t handle = 0
    cdef Segment segment
    cdef Descriptor descriptor
    cdef _Chunk chunk
    cdef VIP_DESCRIPTOR *c
    tag._use()
    if rdma:
        address = _whole("remote_address", remote_address, UINT64_MAX)
        handle = _whole("remote_handle", remote_handle, UINT32_MAX)
    if n > MAX_SEGMENTS:
        raise ValueError(f"{n} segments are too many; the NIC accepts "
                         f"{tag._nic.attributes.max_segments_per_descriptor} in a descriptor")
    for segment in segments:
        total += segment.nbytes
        if fills and segment.region is not None and segment.region.readonly:
            raise ValueError(f"{segment.region!r} is read-only and cannot be {'received' if is_recv else 'read'} into")
    if total > UINT32_MAX:
        raise ValueError(f"a message of {total} bytes is too long; the length has 32 bits")
    while (64 << size_class) < 32 + 16 * n:
        size_class += 1

    chunk = _chunk_with_free_slot(tag, size_class)
    descriptor = Descriptor.__new__(Descriptor)
    chunk.n_free -= 1
    descriptor._slot = chunk.free_slots[chunk.n_free]
    descriptor._chunk = chunk
    c = descriptor._c = <VIP_DESCRIPTOR *>(chunk.memory + descriptor._slot * chunk.slot_bytes)
    memset(c, 0, chunk.slot_bytes)
    descriptor._regions = tuple([(<Segment>s).region for s in segments if (<Segment>s).region is not None])
    descriptor._total = <uint32_t>total
    descriptor._is_recv = is_recv
    c.CS.SegCount = <uint16_t>n
    c.CS.Control = <uint16_t>control
    c.CS.Length = <uint32_t>total
    if rdma:
        c.DS[0].Remote.Data.AddressBits = address
        c.DS[0].Remote.Handle = <VIP_MEM_HANDLE>handle
    for segment in segments:
        c.DS[i].Local.Data.AddressBits = segment.address
        c.DS[i].Local.Handle = segment.handle
        c.DS[i].Local.Length = <uint32_t>segment.nbytes
        i += 1
    if immediate is not None:
        descriptor.immediate = immediate
    return descriptor
