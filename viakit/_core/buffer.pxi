# MPI.buffer: memory with an address, which any object of the buffer protocol, DLPack or the CUDA array interface gives.
#
# A buffer keeps what keeps its memory alive (`_keep`): a memoryview of the owner, or a DLPack capsule. Each view of the
# buffer holds a reference of its own to it, so `release` never pulls memory from under a view.

from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int32_t
from libc.string cimport memmove

cdef extern from "Python.h":
    Py_buffer *PyMemoryView_GET_BUFFER(object)
    void *PyCapsule_GetPointer(object, const char *) except NULL
    bint PyCapsule_IsValid(object, const char *)

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    Py_ssize_t process_vm_readv(int, const iovec *, unsigned long, const iovec *, unsigned long, unsigned long)

cdef extern from "<unistd.h>" nogil:
    int getpid()

cdef extern from *:
    """
    /* DLPack, https://dmlc.github.io/dlpack: the structs that a capsule holds. */
    #include <stdint.h>
    struct viakit_dl_tensor {
        void *data;
        int32_t device_type, device_id;
        int32_t ndim;
        uint8_t code, bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
    };
    struct viakit_dl_versioned {
        uint32_t major, minor;
        void *manager, (*deleter)(void *);
        uint64_t flags;
        struct viakit_dl_tensor tensor;
    };
    """
    struct viakit_dl_tensor:
        void *data
        int32_t device_type, device_id, ndim
        uint8_t code, bits
        uint16_t lanes
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    struct viakit_dl_versioned:
        uint32_t major, minor
        uint64_t flags
        viakit_dl_tensor tensor


def read_dlpack(capsule):
    """Read a DLPack capsule, which stays unused: its owner frees the memory when the capsule is deleted.

    Returns (address, shape, strides or None, type code, bits, lanes, read-only). Raises BufferError if it is none.
    """
    cdef viakit_dl_versioned *versioned
    cdef viakit_dl_tensor *tensor
    cdef bint readonly = False
    if PyCapsule_IsValid(capsule, "dltensor_versioned"):
        versioned = <viakit_dl_versioned *>PyCapsule_GetPointer(capsule, "dltensor_versioned")
        if versioned.major != 1:
            raise BufferError(f"DLPack has version {versioned.major}.{versioned.minor}; versions 0 and 1 are supported")
        readonly = versioned.flags & 1
        tensor = &versioned.tensor
    elif PyCapsule_IsValid(capsule, "dltensor"):
        tensor = <viakit_dl_tensor *>PyCapsule_GetPointer(capsule, "dltensor")
    else:
        raise BufferError("__dlpack__ returned no DLPack capsule, or one that has been used; it must return a new one")
    if tensor.ndim < 0 or (tensor.ndim and tensor.shape == NULL):
        raise BufferError(f"the DLPack tensor has {tensor.ndim} dimensions and no valid shape")
    shape = tuple([tensor.shape[i] for i in range(tensor.ndim)])
    strides = None
    if tensor.strides != NULL:
        strides = tuple([tensor.strides[i] for i in range(tensor.ndim)])
    return (<uintptr_t>tensor.data + <uintptr_t>tensor.byte_offset, shape, strides, tensor.code, tensor.bits,
            tensor.lanes, readonly)


def is_readable(uintptr_t address, Py_ssize_t length):
    """Return whether this process can read memory from its first to its last byte: not, if it is a GPU's."""
    cdef char byte
    cdef iovec here, there
    here.iov_base, here.iov_len, there.iov_len = &byte, 1, 1
    for offset in ((0, length - 1) if length > 0 else ()):
        there.iov_base = <void *>(address + <uintptr_t>offset)
        if process_vm_readv(getpid(), &here, 1, &there, 1, 0) < 0 and c_errno.errno == c_errno.EFAULT:
            return False
    return True


cdef object _find_memory = None     # viakit.comm.buffers: object without the buffer protocol -> Buffer


def set_find_memory(function):
    """Set the function that finds the memory of objects without the buffer protocol."""
    global _find_memory
    _find_memory = function


cdef class Buffer:
    """Memory as a sequence of bytes: ``MPI.buffer``, also called ``MPI.memory``.

    `Buffer(obj)` is the memory of an object that has the buffer protocol, DLPack on the host, or the CUDA array
    interface on the host's memory. `Buffer()` is empty.

    If the object describes memory of a device that this process can read, messages accept the buffer. Its bytes cannot
    be read one by one, because the device may still be writing them.
    """

    cdef char *_at
    cdef Py_ssize_t _n, _items, _itemsize
    cdef bint _readonly, _device
    cdef object _obj, _keep
    cdef bytes _format

    def __cinit__(self, *args):
        cdef Py_buffer *view
        cdef Buffer found
        self._format, self._itemsize = b"B", 1
        if len(args) > 1:
            raise TypeError(f"buffer takes one object at most, got {len(args)}")
        if not args:
            return
        obj = args[0]
        if PyObject_CheckBuffer(obj):
            self._keep = PyMemoryView_FromObject(obj)
            view = PyMemoryView_GET_BUFFER(self._keep)
            if not self._keep.contiguous:
                raise BufferError("the memory is not contiguous; pass a contiguous copy")
            self._set(<char *>view.buf, view.len, view.readonly, obj)
        elif _find_memory is not None:
            found = _find_memory(obj)
            self._set(found._at, found._n, found._readonly, obj)
            self._keep, self._device = found._keep, found._device

    cdef int _check_host(self) except -1:
        if self._device:
            raise BufferError("this is memory of a device; copy it to the host to access its bytes")
        return 0

    cdef int _set(self, char *at, Py_ssize_t n, bint readonly, object obj) except -1:
        self._at, self._n, self._readonly, self._obj = at, n, readonly, obj
        self._items = n // self._itemsize
        return 0

    @staticmethod
    def of(uintptr_t address, Py_ssize_t nbytes, bint readonly=False, obj=None, keep=None, str format="B",
           Py_ssize_t itemsize=1, bint device=False):
        """Return memory at an address, which *keep* keeps alive, with elements of a format."""
        cdef Buffer made = Buffer()
        made._format, made._itemsize, made._keep = format.encode(), itemsize, keep
        made._device = device
        made._set(<char *>address, nbytes, readonly, obj)
        return made

    @staticmethod
    def allocate(nbytes, clear=False):
        """Allocate *nbytes* bytes. They are zero, whether *clear* is given or not."""
        if isinstance(nbytes, float) or not hasattr(nbytes, "__index__"):
            raise TypeError(f"the size must be an integer, got {type(nbytes).__name__}")
        if nbytes < 0:
            raise ValueError(f"the size must be 0 or more, got {nbytes}")
        return Buffer(bytearray(nbytes))

    @staticmethod
    def frombuffer(buf, readonly=False):
        """Return the memory of an object. Raises BufferError if it is read-only and *readonly* is false."""
        cdef Buffer made = Buffer(buf)
        if made._readonly and not readonly:
            raise BufferError("the object's memory is read-only; pass readonly=True")
        made._readonly = bool(readonly)
        return made

    @staticmethod
    def fromaddress(address, nbytes, readonly=False):
        """Return *nbytes* bytes at an address. The caller must keep the memory alive."""
        if nbytes < 0:
            raise ValueError(f"the size must be 0 or more, got {nbytes}")
        if address == 0 and nbytes > 0:
            raise ValueError(f"address 0 has no memory of {nbytes} bytes; pass the address of the first byte")
        return Buffer.of(address, nbytes, readonly)

    @property
    def address(self):
        """Address of the first byte; 0 after `release`."""
        return <uintptr_t>self._at

    @property
    def obj(self):
        """Object whose memory it is, or None."""
        return self._obj

    @property
    def nbytes(self):
        """Size in bytes."""
        return self._n

    @property
    def readonly(self):
        """Whether the memory is read-only."""
        return self._readonly

    @property
    def format(self):
        """Format of the elements, as in module struct."""
        return self._format.decode()

    @property
    def itemsize(self):
        """Size of an element in bytes."""
        return self._itemsize

    def cast(self, format, shape=None):
        """Return a memoryview of the memory with another format, and a shape of several dimensions if one is given."""
        self._check_host()
        view = memoryview(self).cast("B")
        return view.cast(format) if shape is None else view.cast(format, shape)

    def tobytes(self, order=None):
        """Return a copy of the memory as bytes."""
        del order
        self._check_host()
        return PyBytes_FromStringAndSize(self._at, self._n)

    def toreadonly(self):
        """Return a read-only buffer of the same memory."""
        cdef Buffer made = Buffer.of(<uintptr_t>self._at, self._n, True, self._obj, self._keep, device=self._device)
        return made

    def release(self):
        """Release the memory. Views of the buffer keep it until they are released."""
        self._set(NULL, 0, False, None)
        self._keep = None

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.release()

    def __len__(self):
        return self._n

    def __repr__(self):
        return f"<viakit MPI.buffer of {self._n} bytes at {<uintptr_t>self._at:#x}>"

    cdef int _range(self, object key, Py_ssize_t *start, Py_ssize_t *n) except -1:
        """Translate an index or a slice of step 1; return whether it is an index."""
        cdef Py_ssize_t stop, step, i
        if isinstance(key, slice):
            start[0], stop, step = key.indices(self._n)
            if step != 1:
                raise IndexError(f"a slice of a buffer has step 1, got {step}; use memoryview(buffer) for others")
            n[0] = max(stop - start[0], 0)
            return 0
        if not hasattr(key, "__index__"):
            raise TypeError(f"an index is an integer or a slice, got {type(key).__name__}")
        i = key
        i += self._n if i < 0 else 0
        if not 0 <= i < self._n:
            raise IndexError(f"index {key} is outside a buffer of {self._n} bytes")
        start[0], n[0] = i, 1
        return 1

    def __getitem__(self, key):
        cdef Py_ssize_t start, n
        if self._range(key, &start, &n):
            self._check_host()
            return <unsigned char>self._at[start]
        return Buffer.of(<uintptr_t>(self._at + start), n, self._readonly, self._obj, self._keep, device=self._device)

    def __setitem__(self, key, value):
        cdef Py_ssize_t start, n
        cdef Py_buffer view
        cdef unsigned char byte
        self._check_host()
        if self._readonly:
            raise TypeError("the buffer is read-only")
        one = self._range(key, &start, &n)
        if one or hasattr(value, "__index__"):
            byte = value
            memset(self._at + start, byte, n)
            return
        PyObject_GetBuffer(value, &view, PyBUF_ANY_CONTIGUOUS)
        try:
            if view.len != n:
                raise ValueError(f"{n} bytes are assigned, got {view.len}; the lengths must be the same")
            memmove(self._at + start, view.buf, n)
        finally:
            PyBuffer_Release(&view)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self._readonly and flags & PyBUF_WRITABLE:
            raise BufferError("the buffer is read-only")
        view.buf, view.len, view.readonly = self._at, self._n, self._readonly
        view.obj = self
        view.ndim, view.itemsize = 1, self._itemsize
        view.format = <char *>PyBytes_AS_STRING(self._format) if flags & PyBUF_FORMAT else NULL
        view.shape = &self._items if flags & PyBUF_ND else NULL
        view.strides = &self._itemsize if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        keep = (self._keep, self._format)
        Py_INCREF(keep)
        view.internal = <void *>keep

    def __releasebuffer__(self, Py_buffer *view):
        Py_DECREF(<object>view.internal)


cdef class MemoryOwner:
    """Base class of objects with a method `tomemory`: they have the buffer protocol for that memory."""

    # Views given so far. A class with a field can be a base beside Python's: its objects are larger than `object`'s.
    cdef readonly Py_ssize_t n_views

    def __getbuffer__(self, Py_buffer *view, int flags):
        self.n_views += 1
        PyObject_GetBuffer(self.tomemory(), view, flags)
