# Protection tags, memory that peers can map, registered regions, and pieces of regions for descriptors to point at.

cdef class ProtectionTag:
    """A mark on regions and VIs: a VI reaches only regions with its own tag. Made by :meth:`Nic.create_tag`."""

    cdef object __weakref__
    cdef Nic _nic
    cdef VIP_PROTECTION_HANDLE _handle
    cdef list _chunks        # of descriptors, one list per size
    cdef int _n_users        # regions and VIs that carry it
    cdef str _made_at
    cdef long _generation

    def __init__(self, Nic nic not None):
        nic._use()
        self._generation = _generation
        self._nic = nic
        self._chunks = [[] for _ in range(N_CHUNK_SIZES)]
        self._made_at = _place()
        _check(VipCreatePtag(nic._handle, &self._handle), "VipCreatePtag")
        nic._children.add(self)

    def __del__(self):
        if self._handle != NULL and self._generation == _generation and not self._nic._closed:
            # The NIC's own tag goes with the NIC, silently: nobody made it by hand.
            if self._nic._tag is not self:
                _warn_unclosed(self, self._made_at)
            self.close()

    cdef int _use(self) except -1:
        self._nic._use()
        if self._handle == NULL:
            raise _errors.ClosedError(f"{self!r} is closed")
        return 0

    def close(self):
        """Destroy the tag. Closing twice does nothing.

        Raises
        ------
        ResourceError
            A region or a VI still carries it.
        """
        cdef VIP_PROTECTION_HANDLE handle = self._handle
        cdef _Chunk chunk
        if handle == NULL or self._nic._closed or self._generation != _generation:
            self._handle = NULL
            return
        if self._n_users:
            raise _errors.ResourceError(
                f"{self._n_users} regions and VIs still carry {self!r}: close these first",
                code=VIP_ERROR_RESOURCE, operation="VipDestroyPtag")
        for chunks in self._chunks:
            for chunk in chunks:
                chunk.deregister()
        self._handle = NULL
        _check(VipDestroyPtag(self._nic._handle, handle), "VipDestroyPtag")

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        return f"<viakit.via.ProtectionTag of {self._nic.device!r}{'' if self._handle != NULL else ' closed'}>"


@cython.no_gc_clear  # __del__ leaves what views still need; the last view releases it, and wants the NIC
cdef class Allocation:
    """Memory of a NIC that peers on the same host can map. Made by :meth:`Nic.allocate`; exports a writable buffer.

    Attributes
    ----------
    nbytes : int
    address : int
    """

    cdef object __weakref__
    cdef Nic _nic
    cdef void *_memory
    cdef readonly Py_ssize_t nbytes
    cdef int _n_exports
    cdef bint _closed
    cdef str _made_at
    cdef long _generation

    def __cinit__(self):
        self._generation = _generation

    def __init__(self, Nic nic not None, nbytes):
        cdef Py_ssize_t size = nbytes
        cdef void *memory = NULL
        cdef VIP_RETURN code
        if self._memory != NULL:
            raise TypeError("an Allocation is made once")
        nic._use()
        if size <= 0:
            raise ValueError(f"nbytes={nbytes}: expected 1 or more")
        with nogil:
            code = viakit_alloc(nic._handle, size, &memory)
        _check(code, "viakit_alloc")
        self._nic = nic
        self._memory = memory
        self.nbytes = size
        self._made_at = _place()
        nic._n_allocations += 1
        nic._children.add(self)

    def __del__(self):
        # Letting go of it is as good as closing it, as with any other memory.
        self.close()

    @property
    def address(self):
        """The virtual address of the first byte, in this process."""
        return <size_t>self._memory

    def close(self):
        """Give the memory back; while an array, a memoryview or a region looks at it, as soon as none does."""
        self._closed = True
        if self._n_exports == 0:
            self._release()

    cdef void _release(self) noexcept:
        cdef void *memory = self._memory
        self._memory = NULL
        if memory != NULL and self._generation == _generation:
            viakit_free(self._nic._handle, memory)
            self._nic._allocation_gone()

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self._generation != _generation:
            raise _refuse_fork(self)
        if self._memory == NULL or self._closed:
            raise _errors.ClosedError(f"{self!r} is closed")
        PyBuffer_FillInfo(view, self, self._memory, self.nbytes, 0, flags)
        self._n_exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._n_exports -= 1
        if self._closed and self._n_exports == 0:
            self._release()

    def __len__(self):
        return self.nbytes

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        return (f"<viakit.via.Allocation of {self.nbytes} byte{'s' * (self.nbytes != 1)}"
                f"{' closed' if self._closed else ''}>")


@cython.no_gc_clear  # as an Allocation
cdef class MemoryRegion:
    """Registered memory. Made by :meth:`Nic.register` or :meth:`Nic.create_region`.

    The region exports the buffer that it registered, format and shape included: ``np.asarray(region)`` is a view, not a
    copy. ``region[a:b]`` counts **bytes** and gives a :class:`Segment` for a descriptor to point at.

    Attributes
    ----------
    nbytes : int
    readonly : bool
        The memory may only be sent from.
    tag : ProtectionTag
    """

    cdef object __weakref__
    cdef Nic _nic
    cdef Py_buffer _source       # held as long as anybody may look at the memory
    cdef bint _has_source
    cdef VIP_MEM_HANDLE _handle
    cdef uint64_t _address
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint readonly
    cdef ProtectionTag _tag
    cdef int _n_holds            # exported views, and posts of descriptors that name the region
    cdef bint _closed
    cdef str _made_at
    cdef long _generation

    def __cinit__(self):
        self._generation = _generation
        self._closed = True

    def __init__(self, Nic nic not None, buffer, tag=None, rdma_write=False, rdma_read=False):
        cdef VIP_MEM_ATTRIBUTES attributes
        cdef VIP_RETURN code
        cdef int shape = PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT
        if self._has_source:
            raise TypeError("a MemoryRegion is made once")
        self._nic = nic
        self._tag = nic._tag_of(tag)
        try:
            PyObject_GetBuffer(buffer, &self._source, shape | PyBUF_WRITABLE)
        except (BufferError, ValueError, TypeError):
            # Read-only memory can be sent from; what is not memory at all, or in pieces, fails again here.
            PyObject_GetBuffer(buffer, &self._source, shape)
        self._has_source = True
        self._address = <uint64_t>self._source.buf
        self.nbytes = self._source.len
        self.readonly = self._source.readonly
        self._made_at = _place()
        try:
            if self.readonly and rdma_write:
                raise ValueError(f"{type(buffer).__name__} is read-only memory: it cannot take rdma_write=True")
            attributes.Ptag = self._tag._handle
            attributes.EnableRdmaWrite = bool(rdma_write)
            attributes.EnableRdmaRead = bool(rdma_read)
            with nogil:
                code = VipRegisterMem(nic._handle, self._source.buf, self._source.len, &attributes, &self._handle)
            _check(code, "VipRegisterMem")
        except BaseException:
            self._release()
            raise
        self._closed = False
        self._tag._n_users += 1
        nic._children.add(self)

    def __del__(self):
        if not self._closed and self._generation == _generation:
            _warn_unclosed(self, self._made_at)
            self.close()

    def __dealloc__(self):
        if self._has_source:
            self._has_source = False
            PyBuffer_Release(&self._source)

    cdef int _use(self) except -1:
        if self._generation != _generation:
            raise _refuse_fork(self)
        if self._closed:
            raise _errors.ClosedError(f"{self!r} is closed")
        return 0

    cdef void _release(self) noexcept:
        if self._has_source:
            self._has_source = False
            PyBuffer_Release(&self._source)

    cdef inline void _let_go(self) noexcept:
        self._n_holds -= 1
        if self._n_holds == 0 and self._closed:
            self._release()

    def close(self):
        """Deregister the memory. Closing twice does nothing.

        Allowed while descriptors that name it are posted: these complete with PROTECTION_ERROR if the NIC had not begun
        with them. The buffer stays locked until they are taken from their queue.
        """
        cdef VIP_RETURN code = VIP_SUCCESS
        cdef VIP_NIC_HANDLE nic
        if self._closed:
            return
        self._closed = True
        self._tag._n_users -= 1
        if self._generation == _generation:
            nic = self._nic._handle
            with nogil:
                code = VipDeregisterMem(nic, <void *>self._address, self._handle)
        if self._n_holds == 0:
            self._release()
        _check(code, "VipDeregisterMem")

    deregister = close

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()

    def __repr__(self):
        return (f"<viakit.via.MemoryRegion {self._handle:#x} of {self.nbytes} byte{'s' * (self.nbytes != 1)}"
                f"{' read-only' if self.readonly else ''}{' closed' if self._closed else ''}>")

    @property
    def closed(self):
        """Whether :meth:`close` was called."""
        return bool(self._closed)

    @property
    def handle(self):
        """The memory handle: 32 bits, not zero. With the address it is what a peer needs for an RDMA write."""
        return self._handle

    @property
    def address(self):
        """The virtual address of the first byte, in this process."""
        return self._address

    @property
    def tag(self):
        """The :class:`ProtectionTag` that the region carries."""
        return self._tag

    @property
    def rdma_write(self):
        """Whether peers may write here."""
        return self._query() & 1 != 0

    @property
    def rdma_read(self):
        """Whether peers may read here."""
        return self._query() & 2 != 0

    cdef int _query(self) except -1:
        cdef VIP_MEM_ATTRIBUTES attributes
        self._use()
        _check(VipQueryMem(self._nic._handle, <void *>self._address, self._handle, &attributes), "VipQueryMem")
        return (1 if attributes.EnableRdmaWrite else 0) | (2 if attributes.EnableRdmaRead else 0)

    def set_attributes(self, tag=None, rdma_write=None, rdma_read=None):
        """Change tag and rights; None leaves a value as it is. The handle stays the same.

        Parameters
        ----------
        tag : ProtectionTag, optional
        rdma_write, rdma_read : bool, optional
        """
        cdef VIP_MEM_ATTRIBUTES attributes
        cdef ProtectionTag wanted
        cdef int rights = self._query()
        wanted = self._tag if tag is None else self._nic._tag_of(tag)
        if rdma_write and self.readonly:
            raise ValueError(f"{self!r} cannot take rdma_write=True")
        attributes.Ptag = wanted._handle
        attributes.EnableRdmaWrite = rights & 1 if rdma_write is None else bool(rdma_write)
        attributes.EnableRdmaRead = (rights >> 1) & 1 if rdma_read is None else bool(rdma_read)
        _check(VipSetMemAttributes(self._nic._handle, <void *>self._address, self._handle, &attributes),
               "VipSetMemAttributes")
        self._tag._n_users -= 1
        wanted._n_users += 1
        self._tag = wanted

    def __len__(self):
        return self.nbytes

    def __getitem__(self, key):
        cdef Py_ssize_t start, stop
        self._use()   # first: NumPy comes here when the region has refused to export its buffer
        start, stop = _byte_range(key, self.nbytes)
        return _segment(self, self._address + start, self._handle, stop - start)

    def __getbuffer__(self, Py_buffer *view, int flags):
        cdef Py_buffer *source = &self._source
        self._use()
        if flags & PyBUF_WRITABLE and self.readonly:
            raise BufferError(f"{self!r} cannot be written to")
        if not _c_contiguous(source):
            if (flags & PyBUF_STRIDES) != PyBUF_STRIDES:
                raise BufferError(f"{self!r} is in Fortran order and needs a consumer that understands strides")
            if (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS:
                raise BufferError(f"{self!r} is in Fortran order, and was asked for as C-contiguous")
        if (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS and not PyBuffer_IsContiguous(source, c"F"):
            raise BufferError(f"{self!r} is in C order, and was asked for as Fortran-contiguous")
        view.obj = self
        view.buf = source.buf
        view.len = source.len
        view.readonly = source.readonly
        view.itemsize = source.itemsize
        view.ndim = source.ndim
        view.format = source.format if flags & PyBUF_FORMAT else NULL
        view.shape = source.shape if flags & PyBUF_ND else NULL
        view.strides = source.strides if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL
        self._n_holds += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._let_go()


cdef bint _c_contiguous(const Py_buffer *source) noexcept:
    cdef Py_ssize_t expected = source.itemsize
    cdef int i
    for i in range(source.ndim - 1, -1, -1):
        if source.shape[i] > 1 and source.strides[i] != expected:
            return False
        expected *= source.shape[i]
    return True


cdef tuple _byte_range(object key, Py_ssize_t nbytes):
    """Start and stop of region[start:stop], in bytes, as Python clips slices."""
    if not isinstance(key, slice):
        raise TypeError("a region is cut into pieces by region[start:stop], in bytes; "
                        "for its elements use numpy.asarray(region) or memoryview(region)")
    start, stop, step = key.indices(nbytes)
    if step != 1:
        raise ValueError(f"a piece of a region is contiguous: step {step} is not possible")
    return start, max(start, stop)


cdef Segment _segment(MemoryRegion region, uint64_t address, VIP_MEM_HANDLE handle, Py_ssize_t nbytes):
    cdef Segment segment = Segment.__new__(Segment)
    if nbytes > UINT32_MAX:
        raise ValueError(f"a segment of {nbytes} bytes is too long: its length has 32 bits")
    segment.region = region
    segment.address = address
    segment.handle = handle
    segment.nbytes = nbytes
    return segment


@cython.final
@cython.no_gc_clear
cdef class Segment:
    """A piece of a region, in bytes, for a descriptor to point at: ``region[a:b]``. Exports its bytes as a buffer.

    Attributes
    ----------
    region : MemoryRegion or None
    address : int
        The virtual address of its first byte.
    handle : int
        The memory handle of its region.
    nbytes : int
    """

    cdef readonly MemoryRegion region
    cdef readonly uint64_t address
    cdef readonly VIP_MEM_HANDLE handle
    cdef readonly Py_ssize_t nbytes

    def __init__(self):
        raise TypeError("a Segment is a piece of a region: region[start:stop]")

    @staticmethod
    def unchecked(address, handle, nbytes):
        """A segment that claims anything at all, to see how the NIC refuses it: no access happens in Python.

        Parameters
        ----------
        address, handle, nbytes : int
            As they shall stand in the descriptor.
        """
        return _segment(None, _whole("address", address, UINT64_MAX), _whole("handle", handle, UINT32_MAX),
                        _whole("nbytes", nbytes, UINT32_MAX))

    def __len__(self):
        return self.nbytes

    def __getitem__(self, key):
        cdef Py_ssize_t start, stop
        start, stop = _byte_range(key, self.nbytes)
        return _segment(self.region, self.address + start, self.handle, stop - start)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.region is None:
            raise BufferError("an unchecked segment is not memory")
        self.region._use()
        PyBuffer_FillInfo(view, self, <void *><size_t>self.address, self.nbytes, self.region.readonly, flags)
        self.region._n_holds += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.region._let_go()

    def __repr__(self):
        return (f"<viakit.via.Segment {self.address:#x} of {self.nbytes} byte{'s' * (self.nbytes != 1)} "
                f"in region {self.handle:#x}>")
