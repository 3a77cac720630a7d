# Protection tags, memory that peers can map, registered regions, and segments of regions for descriptors.

cdef class ProtectionTag(_Resource):
    """Protection tag of regions and VIs: a VI can access only regions with its own tag. See :meth:`Nic.create_tag`."""

    cdef Nic _nic
    cdef VIP_PROTECTION_HANDLE _handle
    cdef list _chunks        # chunks of descriptors, one list for each slot size

    def __init__(self, Nic nic not None):
        nic._use()
        self._nic = nic
        self._chunks = [[] for _ in range(N_CHUNK_SIZES)]
        self._made_at = _place()
        _check(VipCreatePtag(nic._handle, &self._handle), "VipCreatePtag")
        nic._n_users += 1
        nic._children.add(self)

    def __del__(self):
        if self._handle != NULL and self._generation == _generation and not self._nic._closed:
            # The NIC's own tag ends with the NIC and without a warning, because the program did not create it.
            if self._nic._tag is not self:
                _warn_unclosed(self, self._made_at)
            self._finalize()

    cdef int _use(self) except -1:
        self._nic._use()
        if self._handle == NULL:
            raise _closed_error(self)
        return 0

    def close(self):
        """Destroy the tag. Closing twice does nothing.

        Raises
        ------
        ResourceError
            If a region or a VI still has this tag.
        """
        cdef VIP_PROTECTION_HANDLE handle = self._handle
        cdef VIP_RETURN code
        cdef _Chunk chunk
        if handle == NULL or self._nic._closed or self._generation != _generation:
            self._handle = NULL
            return
        if self._n_users:
            raise _errors.ResourceError(
                f"{self._n_users} regions and VIs still use {self!r}; close them first",
                code=VIP_ERROR_RESOURCE, operation="VipDestroyPtag")
        for chunks in self._chunks:
            for chunk in chunks:
                chunk.deregister()
        self._handle = NULL
        code = VipDestroyPtag(self._nic._handle, handle)
        self._nic._drop_user()
        _check(code, "VipDestroyPtag")

    def __repr__(self):
        return f"<viakit.via.ProtectionTag of {self._nic.device!r}{'' if self._handle != NULL else ' closed'}>"


@cython.no_gc_clear  # Views may outlive __del__. The last one releases the memory and needs the NIC for that.
cdef class Allocation(_Resource):
    """Memory of a NIC that peers on the same host can map. Created by :meth:`Nic.allocate`; exports a writable buffer.

    Attributes
    ----------
    nbytes : int
        Size in bytes.
    address : int
        Virtual address of the first byte in this process.
    """

    cdef Nic _nic
    cdef void *_memory
    cdef readonly Py_ssize_t nbytes
    cdef int _n_exports
    cdef bint _closed

    def __init__(self, Nic nic not None, nbytes):
        cdef Py_ssize_t size = nbytes
        cdef void *memory = NULL
        cdef VIP_RETURN code
        if self._memory != NULL:
            raise TypeError("this Allocation exists already; create another one with Nic.allocate()")
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
        # Dropping an allocation releases it without a warning, as with any other memory.
        self.close()

    @property
    def address(self):
        """Virtual address of the first byte in this process."""
        return <size_t>self._memory

    def close(self):
        """Release the memory, or do so as soon as no array, memoryview or region refers to it."""
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
            raise _closed_error(self)
        PyBuffer_FillInfo(view, self, self._memory, self.nbytes, 0, flags)
        self._n_exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._n_exports -= 1
        if self._closed and self._n_exports == 0:
            self._release()

    def __len__(self):
        return self.nbytes

    def __repr__(self):
        return (f"<viakit.via.Allocation of {self.nbytes} byte{'s' * (self.nbytes != 1)}"
                f"{' closed' if self._closed else ''}>")


@cython.no_gc_clear  # for the reason given at Allocation
cdef class MemoryRegion(_Resource):
    """Registered memory. Created by :meth:`Nic.register` or :meth:`Nic.create_region`.

    The region exports the buffer that it registered, including format and shape: ``np.asarray(region)`` is a view, not
    a copy. ``region[a:b]`` counts **bytes** and returns a :class:`Segment` for a descriptor.

    Attributes
    ----------
    nbytes : int
        Size in bytes.
    readonly : bool
        Whether the memory can only be sent from.
    tag : ProtectionTag
        Protection tag of the region.
    """

    cdef Nic _nic
    cdef Py_buffer _source       # held as long as the memory may be accessed
    cdef bint _has_source
    cdef VIP_MEM_HANDLE _handle
    cdef uint64_t _address
    cdef readonly Py_ssize_t nbytes
    cdef readonly bint readonly
    cdef ProtectionTag _tag
    cdef int _n_holds            # exported views, and posted descriptors that refer to the region
    cdef bint _closed

    def __cinit__(self):
        self._closed = True

    def __init__(self, Nic nic not None, buffer, tag=None, rdma_write=False, rdma_read=False):
        cdef VIP_MEM_ATTRIBUTES attributes
        cdef VIP_RETURN code
        cdef int shape = PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT
        if self._has_source:
            raise TypeError("this MemoryRegion is registered already; create another one with Nic.register()")
        self._nic = nic
        self._tag = nic._tag_of(tag)
        try:
            PyObject_GetBuffer(buffer, &self._source, shape | PyBUF_WRITABLE)
        except (BufferError, ValueError, TypeError):
            # Read-only memory can be sent from. An object without a contiguous buffer fails here again.
            PyObject_GetBuffer(buffer, &self._source, shape)
        self._has_source = True
        self._address = <uint64_t>self._source.buf
        self.nbytes = self._source.len
        self.readonly = self._source.readonly
        self._made_at = _place()
        try:
            if self.readonly and rdma_write:
                raise ValueError(f"{type(buffer).__name__} is read-only, so rdma_write=True is not possible; register "
                                 "writable memory")
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
        nic._n_users += 1
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
            raise _closed_error(self)
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

        Closing is permitted while descriptors that refer to the region are posted. They complete with PROTECTION_ERROR
        if the NIC has not started to process them. The buffer stays locked until they are taken from their queue.
        """
        cdef VIP_RETURN code = VIP_SUCCESS
        cdef VIP_NIC_HANDLE nic
        if self._closed:
            return
        self._closed = True
        if self._generation == _generation:
            nic = self._nic._handle
            with nogil:
                code = VipDeregisterMem(nic, <void *>self._address, self._handle)
        if self._n_holds == 0:
            self._release()
        self._tag._drop_user()
        self._nic._drop_user()
        _check(code, "VipDeregisterMem")

    deregister = close

    def __repr__(self):
        return (f"<viakit.via.MemoryRegion {self._handle:#x} of {self.nbytes} byte{'s' * (self.nbytes != 1)}"
                f"{' read-only' if self.readonly else ''}{' closed' if self._closed else ''}>")

    @property
    def closed(self):
        """Whether :meth:`close` was called."""
        return bool(self._closed)

    @property
    def handle(self):
        """Memory handle: 32 bits, not zero. Together with the address, a peer needs it for RDMA."""
        return self._handle

    @property
    def address(self):
        """Virtual address of the first byte in this process."""
        return self._address

    @property
    def tag(self):
        """:class:`ProtectionTag` of the region."""
        return self._tag

    @property
    def rdma_write(self):
        """Whether peers may write to the region."""
        return self._query() & 1 != 0

    @property
    def rdma_read(self):
        """Whether peers may read from the region."""
        return self._query() & 2 != 0

    cdef int _query(self) except -1:
        cdef VIP_MEM_ATTRIBUTES attributes
        self._use()
        _check(VipQueryMem(self._nic._handle, <void *>self._address, self._handle, &attributes), "VipQueryMem")
        return (1 if attributes.EnableRdmaWrite else 0) | (2 if attributes.EnableRdmaRead else 0)

    def set_attributes(self, tag=None, rdma_write=None, rdma_read=None):
        """Change the tag and the RDMA rights of the region. None leaves a value unchanged. The handle stays the same.

        Parameters
        ----------
        tag : ProtectionTag, optional
            New protection tag.
        rdma_write, rdma_read : bool, optional
            Whether peers may write or read the region.
        """
        cdef VIP_MEM_ATTRIBUTES attributes
        cdef ProtectionTag wanted
        cdef int rights = self._query()
        wanted = self._tag if tag is None else self._nic._tag_of(tag)
        if rdma_write and self.readonly:
            raise ValueError(f"{self!r} is read-only, so rdma_write=True is not possible")
        attributes.Ptag = wanted._handle
        attributes.EnableRdmaWrite = rights & 1 if rdma_write is None else bool(rdma_write)
        attributes.EnableRdmaRead = (rights >> 1) & 1 if rdma_read is None else bool(rdma_read)
        _check(VipSetMemAttributes(self._nic._handle, <void *>self._address, self._handle, &attributes),
               "VipSetMemAttributes")
        wanted._n_users += 1
        self._tag._drop_user()
        self._tag = wanted

    def __len__(self):
        return self.nbytes

    def __getitem__(self, key):
        cdef Py_ssize_t start, stop
        self._use()   # NumPy falls back to __getitem__ if a closed region refuses to export its buffer.
        start, stop = _byte_range(key, self.nbytes)
        return _segment(self, self._address + start, self._handle, stop - start)

    def __getbuffer__(self, Py_buffer *view, int flags):
        cdef Py_buffer *source = &self._source
        self._use()
        if flags & PyBUF_WRITABLE and self.readonly:
            raise BufferError(f"{self!r} is read-only and cannot export a writable buffer")
        if not _c_contiguous(source):
            if (flags & PyBUF_STRIDES) != PyBUF_STRIDES:
                raise BufferError(f"{self!r} is in Fortran order and needs a consumer that supports strides")
            if (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS:
                raise BufferError(f"{self!r} is in Fortran order and cannot export a C-contiguous buffer")
        if (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS and not PyBuffer_IsContiguous(source, c"F"):
            raise BufferError(f"{self!r} is in C order and cannot export a Fortran-contiguous buffer")
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
    """Return start and stop of region[start:stop] in bytes, clipped like a Python slice."""
    if not isinstance(key, slice):
        raise TypeError("a region takes a slice in bytes, region[start:stop]; "
                        "for its elements use numpy.asarray(region) or memoryview(region)")
    start, stop, step = key.indices(nbytes)
    if step != 1:
        raise ValueError(f"a segment must be contiguous, so the step of the slice must be 1, got {step}")
    return start, max(start, stop)


cdef Segment _segment(MemoryRegion region, uint64_t address, VIP_MEM_HANDLE handle, Py_ssize_t nbytes):
    cdef Segment segment = Segment.__new__(Segment)
    if nbytes > UINT32_MAX:
        raise ValueError(f"a segment of {nbytes} bytes is too long; the length has 32 bits")
    segment.region = region
    segment.address = address
    segment.handle = handle
    segment.nbytes = nbytes
    return segment


@cython.final
@cython.no_gc_clear
cdef class Segment:
    """Contiguous part of a region, for use in a descriptor: ``region[a:b]``. Exports its bytes as a buffer.

    Attributes
    ----------
    region : MemoryRegion or None
        The region; None for an unchecked segment.
    address : int
        Virtual address of the first byte.
    handle : int
        Memory handle of the region.
    nbytes : int
        Length in bytes.
    """

    cdef readonly MemoryRegion region
    cdef readonly uint64_t address
    cdef readonly VIP_MEM_HANDLE handle
    cdef readonly Py_ssize_t nbytes

    def __init__(self):
        raise TypeError("a Segment is a part of a region; write region[start:stop]")

    @staticmethod
    def unchecked(address, handle, nbytes):
        """Return a segment with arbitrary values, to test how the NIC refuses it. Python does not access the memory.

        Parameters
        ----------
        address, handle, nbytes : int
            Values for the descriptor.
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
            raise BufferError("an unchecked segment has no memory to export")
        self.region._use()
        PyBuffer_FillInfo(view, self, <void *><size_t>self.address, self.nbytes, self.region.readonly, flags)
        self.region._n_holds += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.region._let_go()

    def __repr__(self):
        return (f"<viakit.via.Segment {self.address:#x} of {self.nbytes} byte{'s' * (self.nbytes != 1)} "
                f"in region {self.handle:#x}>")
