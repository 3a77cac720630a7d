# The tap on a NIC: a record of the NIC's activity in pcapng.

cdef class Tap(_Resource):
    """Record of a NIC's activity in pcapng. Created by :meth:`Nic.tap`; ends with :meth:`close`, or with its NIC.

    Attributes
    ----------
    file : str or None
        Name of the file as it was opened; None if there is no file and :meth:`read` returns the contents.
    """

    cdef Nic _nic
    cdef readonly object file
    cdef bint _closed

    def __cinit__(self):
        self._closed = True

    def __init__(self, Nic nic not None, file=None, *, events=False, frames=True, snap_bytes=None, ring_bytes=None,
                 file_bytes=None):
        cdef viakit_tap_options options
        cdef bytes name = b"" if file is None else os.fsencode(file)
        cdef const char *c_name = NULL
        cdef VIP_RETURN code
        cdef int os_error
        nic._use()
        self._nic = nic
        if b"\0" in name:
            raise ValueError(f"the file name {file!r} contains a zero byte; remove it")
        if file is not None:
            c_name = name
        memset(&options, 0, sizeof(options))
        options.size = sizeof(options)
        options.events = bool(events)
        options.no_frames = not frames
        options.snap_len = _option_u32("snap_bytes", snap_bytes or 0)
        options.ring_bytes = _option_u32("ring_bytes", ring_bytes or 0)
        options.file_bytes = _whole("file_bytes", file_bytes or 0, UINT64_MAX)
        with nogil:
            c_errno.errno = 0
            code = viakit_tap_open(nic._handle, c_name, &options)
            os_error = c_errno.errno
        if code != VIP_SUCCESS:
            raise _error(code, "viakit_tap_open", os_error)
        self._closed = False
        self.file = self.info.file if file is not None else None

    cdef int _use(self) except -1:
        if self._nic is not None:
            self._nic._use()
        if self._closed:
            raise _closed_error(self)
        return 0

    @property
    def closed(self):
        """Whether :meth:`close` was called, or the NIC was closed."""
        return bool(self._closed or self._nic._closed)

    @property
    def info(self):
        """Number of records so far: a :class:`TapInfo`."""
        cdef viakit_tap_info i
        cdef VIP_RETURN code
        self._use()
        with nogil:
            code = viakit_query_tap(self._nic._handle, &i)
        _check(code, "viakit_query_tap")
        return _types.TapInfo(os.fsdecode(<bytes>i.file), i.frames_sent, i.frames_received, i.events, i.lost)

    def read(self, nbytes=1 << 20):
        """Return the records since the last read, if the tap has no file.

        Parameters
        ----------
        nbytes : int
            Maximum number of bytes; values below 200 KiB count as 200 KiB.

        Returns
        -------
        bytes
            Complete blocks of a pcapng file. The first read returns the file's header; the result is empty if there are
            no new records.
        """
        cdef size_t n = 0
        cdef size_t size = max(nbytes, 200 << 10)
        cdef VIP_RETURN code
        cdef void *buffer
        self._use()
        buffer = malloc(size)
        if buffer == NULL:
            raise MemoryError(f"no memory for {size} bytes; give a smaller nbytes")
        try:
            with nogil:
                code = viakit_tap_read(self._nic._handle, buffer, size, &n)
            _check(code, "viakit_tap_read")
            return (<char *>buffer)[:n]
        finally:
            free(buffer)

    def flush(self):
        """Write all records so far to the file."""
        cdef VIP_RETURN code
        self._use()
        with nogil:
            code = viakit_tap_flush(self._nic._handle)
        _check(code, "viakit_tap_flush")

    def close(self):
        """Write the remaining records and end the recording. Closing twice does nothing.

        Raises
        ------
        ResourceError
            If the file could not be written completely. The tap is closed nevertheless.
        """
        cdef VIP_RETURN code
        if self.closed or self._generation != _generation:
            self._closed = True
            return
        self._closed = True
        with nogil:
            code = viakit_tap_close(self._nic._handle)
        _check(code, "viakit_tap_close")

    def __repr__(self):
        device = None if self._nic is None else self._nic.device
        return (f"<viakit.via.Tap of {device!r}{'' if self.file is None else f' into {self.file}'}"
                f"{' closed' if self._closed else ''}>")
