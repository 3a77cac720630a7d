# Arguments with one contiguous buffer: an array, or a list of buffer, count, displacement and datatype.
#
# `_is_message` pins such a buffer. Everything else is left to spec.pxi.

from cpython.buffer cimport PyObject_CheckBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.list cimport PyList_Check, PyList_CheckExact
from cpython.long cimport PyLong_CheckExact
from cpython.tuple cimport PyTuple_Check, PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact

cdef extern from "Python.h":
    bint PyMemoryView_Check(object)
    Py_ssize_t PySequence_Fast_GET_SIZE(object)
    PyObject *PySequence_Fast_GET_ITEM(object, Py_ssize_t)
    PyObject **PySequence_Fast_ITEMS(object)

cdef extern from *:
    """
    /* Pins a memoryview of contiguous memory: as PyObject_GetBuffer, released by PyBuffer_Release. Returns 0, without
     * an exception, if the buffer protocol must do it or refuse it. */
    static inline int viakit_memoryview_view(PyObject *object, Py_buffer *view, int flags)
    {
        PyMemoryViewObject *m = (PyMemoryViewObject *)object;
        if (Py_TYPE(object) != &PyMemoryView_Type || m->flags & _Py_MEMORYVIEW_RELEASED
            || m->mbuf->flags & _Py_MANAGED_BUFFER_RELEASED
            || !(m->flags & (_Py_MEMORYVIEW_C | _Py_MEMORYVIEW_FORTRAN))
            || (flags & PyBUF_WRITABLE && m->view.readonly))
            return 0;
        *view = m->view;
        view->obj = object;
        Py_INCREF(object);
        m->exports++;
        return 1;
    }

    /* Reads an int of 0 or more. Returns 0, without an exception, for anything else. */
    static inline int viakit_read_count(PyObject *object, Py_ssize_t *number)
    {
        int overflow;
        if (!PyLong_CheckExact(object))
            return 0;
        *number = PyLong_AsLongAndOverflow(object, &overflow);
        return !overflow && *number >= 0;
    }
    """
    bint _is_memoryview "viakit_memoryview_view"(object, Py_buffer *, int) noexcept
    bint _read_count "viakit_read_count"(object, Py_ssize_t *) noexcept


cdef inline object _item(object sequence, Py_ssize_t i):
    """Return an element of a list or tuple, without a check of the index."""
    return <object>PySequence_Fast_GET_ITEM(sequence, i)


cdef inline bint _is_plain(object buf, Py_buffer *view, int flags) except -1:
    """Pin `buf` if it is one contiguous buffer of numbers. Returns 0 if the general path has to interpret it."""
    if _is_array(buf, view, flags):
        return 1
    if PyList_Check(buf) or PyTuple_Check(buf) or buf is None or not PyObject_CheckBuffer(buf):
        return 0
    if isinstance(buf, NoMemory):
        return 0
    PyObject_GetBuffer(buf, view, PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT | flags)
    if view.format != NULL and (view.format[0] == c'O' or (view.format[0] != 0 and view.format[1] != 0)):
        PyBuffer_Release(view)
        return 0
    return 1


cdef class MsgType:
    """Part of a datatype in C: what the short paths need of it.

    `plain` is the size of an element in bytes if its elements lie side by side from offset 0, and 0 if not or if the
    datatype is null. `kind` is the number of a basic type in csrc/coll, or -1.
    """

    cdef public Py_ssize_t plain, size, lb, extent, true_lb, true_ub
    cdef public bint contiguous
    cdef public int kind

    def __cinit__(self, *args, **options):
        self.kind = -1

    def take_layout(self, MsgType other not None):
        """Become another handle of a datatype, as far as this part is concerned."""
        self.plain, self.kind, self.size, self.contiguous = other.plain, other.kind, other.size, other.contiguous
        self.lb, self.extent, self.true_lb, self.true_ub = other.lb, other.extent, other.true_lb, other.true_ub


cdef object _datatypes = None       # the class of the last datatype that `_is_datatype` has seen


cdef inline bint _is_datatype(object what) except -1:
    """Return whether *what* is a datatype. The test of the class alone is faster than that of its bases."""
    global _datatypes
    if type(what) is _datatypes:
        return True
    if isinstance(what, MsgType):
        _datatypes = type(what)
        return True
    return False


cdef dict _type_of_name = {}        # predefined datatypes, by the names and type codes that arguments have used


cdef inline MsgType _type_of_item(object what):
    """Return the datatype that the last item of a list is or names. None: it is something else."""
    if _is_datatype(what):
        return <MsgType>what
    if not PyUnicode_CheckExact(what):
        return None
    found = _type_of_name.get(what)
    if found is None:
        found = _type_of_name[what] = _rare.datatype_of(what, None)
    return <MsgType>found


cdef class NoMemory:
    """Base class of constants in the place of a buffer. As a buffer it is empty, and no message accepts it."""

    def __getbuffer__(self, Py_buffer *view, int flags):
        # Without `obj` the memoryview belongs to nothing, as mpi4py requires.
        view.buf, view.len, view.readonly, view.ndim, view.itemsize = <char *>b"", 0, 1, 1, 1
        view.format = <char *>b"B" if flags & PyBUF_FORMAT else NULL
        view.shape = &view.len if flags & PyBUF_ND else NULL
        view.strides = &view.itemsize if (flags & PyBUF_STRIDES) == PyBUF_STRIDES else NULL
        view.suboffsets = view.internal = NULL


cdef bint _read_place(object what, Py_ssize_t *number) except -1:
    """Read a count or displacement; None leaves `number` unchanged. Return 0 for what the general path interprets."""
    if PyLong_CheckExact(what) or isinstance(what, _integer):
        number[0] = what
        return number[0] >= 0
    return what is None


cdef bint _read_middle(object spec, Py_ssize_t n, Py_ssize_t *count, Py_ssize_t *first) except -1:
    """Read what a list of *n* items has between its buffer and its datatype: a count, a displacement, or both."""
    if n == 3:
        return _read_place(_item(spec, 1), count) and _read_place(_item(spec, 2), first)
    middle = _item(spec, 1)
    if PyTuple_CheckExact(middle) or PyList_CheckExact(middle):
        return (PySequence_Fast_GET_SIZE(middle) == 2 and _read_place(_item(middle, 0), count)
                and _read_place(_item(middle, 1), first))
    return _read_place(middle, count)


cdef bint _is_plain_list(object spec, Py_buffer *view, int flags, Py_ssize_t blocks) except -1:
    """Pin the contiguous buffer of a list.

    The list has the buffer, then a count, a count and a displacement, or a pair of both, then a datatype or its name.
    Only the buffer is required. Sets `view.buf` and `view.len` to the place of the elements. A count is that of one of
    `blocks` blocks. Returns 0 if the general path has to interpret or to refuse the list.
    """
    cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(spec), count = -1, first = 0, each, total, start = 0
    cdef MsgType kind = None
    if not 1 <= n <= 4:
        return 0
    what, last = _item(spec, 0), _item(spec, n - 1)
    if n > 1:
        kind = _type_of_item(last)
        if kind is not None:
            if kind.plain == 0:
                return 0
            n -= 1
        elif n > 2:
            return 0
        if n > 1 and not _read_middle(spec, n, &count, &first):
            return 0
    if _is_array(what, view, flags):
        pass
    elif kind is not None and PyMemoryView_Check(what):     # before the tests of other classes, which take longer
        PyObject_GetBuffer(what, view, PyBUF_ANY_CONTIGUOUS | flags)
    else:
        if what is None or isinstance(what, NoMemory) or not PyObject_CheckBuffer(what):
            return 0
        if isinstance(what, _array) and what.dtype.hasobject:
            return 0
        if kind is not None:
            PyObject_GetBuffer(what, view, PyBUF_ANY_CONTIGUOUS | flags)
        elif not _is_plain(what, view, flags):
            return 0
    each = view.itemsize if kind is None else kind.plain
    if first:
        start = viakit_place(first, each)
    each *= blocks
    if count < 0:
        total = view.len - start
        if each != 1 and total % each:
            start = -1
    else:
        total = viakit_place(count, each)       # a division would take longer
    if start < 0 or not 0 <= total <= view.len - start:
        PyBuffer_Release(view)
        return 0
    view.buf = <char *>view.buf + start
    view.len = total
    return 1


cdef inline bint _is_usual_list(object spec, Py_buffer *view, int flags) except -1:
    """Pin [buffer, datatype] or [buffer, count, datatype], as `_is_plain_list` does but for the usual classes only.

    Returns 0 for any other list, and for one that has to be refused. Nothing is remembered about a list, because the
    program may change it.
    """
    cdef Py_ssize_t n = PySequence_Fast_GET_SIZE(spec), each, total
    cdef PyObject **items = PySequence_Fast_ITEMS(spec)
    if n != 2 and n != 3 or type(<object>items[n - 1]) is not _datatypes:
        return 0
    each = (<MsgType>items[n - 1]).plain
    if each <= 0 or not (_is_array(<object>items[0], view, flags) or _is_memoryview(<object>items[0], view, flags)):
        return 0
    if n == 3:
        if _read_count(<object>items[1], &total):
            total = viakit_place(total, each)
            if 0 <= total <= view.len:
                view.len = total
                return 1
    elif each == 1 or view.len % each == 0:
        return 1
    PyBuffer_Release(view)
    return 0


cdef inline bint _is_message(object buf, Py_buffer *view, int flags, Py_ssize_t blocks=1) except -1:
    """Pin `buf` if it is one contiguous buffer, alone or in a list. Returns 0 if the general path interprets it."""
    if PyList_CheckExact(buf) or PyTuple_CheckExact(buf):
        if blocks == 1 and _is_usual_list(buf, view, flags):
            return 1
        return _is_plain_list(buf, view, flags, blocks)
    return _is_plain(buf, view, flags)
