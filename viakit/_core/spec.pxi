# Arguments with buffers: which bytes of which memory the elements of a message are.
#
#     Simple        elements of one datatype in one buffer
#     simple        buffer, [buffer, count, datatype], ...
#     vector        [buffer, (counts, displacements), datatype]: a part for each rank, as a list of Simple
#     w_vector      the same with a datatype for each rank, and displacements in bytes
#
# Rare cases are left to viakit.comm.spec: absolute addresses, memory without the buffer protocol, names of datatypes.

from cpython.buffer cimport PyBUF_FULL_RO
from cpython.number cimport PyNumber_AsSsize_t

cdef extern from *:
    """
    /* Whether `count` elements from byte `start` reach outside of `n` bytes. Sums that overflow do. */
    static inline int viakit_reach_beyond(Py_ssize_t start, Py_ssize_t count, Py_ssize_t extent, Py_ssize_t true_ub,
                                          Py_ssize_t n)
    {
        Py_ssize_t end;
        if (count == 0)
            return 0;
        return start < 0 || __builtin_mul_overflow(count - 1, extent, &end) || __builtin_add_overflow(end, start, &end)
            || __builtin_add_overflow(end, true_ub, &end) || end > n;
    }
    /* The product, or -1, which is no valid place, if it overflows. */
    static inline Py_ssize_t viakit_place(Py_ssize_t number, Py_ssize_t extent)
    {
        Py_ssize_t place;
        return __builtin_mul_overflow(number, extent, &place) ? -1 : place;
    }
    """
    bint viakit_reach_beyond(Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t) nogil
    Py_ssize_t viakit_place(Py_ssize_t, Py_ssize_t) nogil

# The module that interprets rare cases, viakit.comm.spec, and functions and types of NumPy.
cdef object _rare = None
cdef object _frombuffer = None
cdef object _uint8 = None
cdef object _integer = None
cdef object _array = None
cdef Py_ssize_t _MOST = sys.maxsize
cdef dict _type_of_format = {}          # by the format of a buffer: the datatype of its elements


def set_rare_arguments(rare, numpy):
    """Set the module that interprets rare arguments, and NumPy. :mod:`viakit.comm.spec` calls it once."""
    global _rare, _frombuffer, _uint8, _integer, _array
    _rare, _frombuffer, _uint8, _integer, _array = rare, numpy.frombuffer, numpy.uint8, numpy.integer, numpy.ndarray
    _learn_arrays(numpy)


cdef class Simple:
    """*count* elements of *datatype* in *memory* (bytes), the first at byte *start*.

    Raises ERR_TRUNCATE if they do not lie inside the memory.
    """

    cdef readonly object memory
    cdef readonly MsgType datatype
    cdef public Py_ssize_t count, start

    def __init__(self, memory, MsgType datatype not None, Py_ssize_t count, Py_ssize_t start=0):
        self.memory, self.datatype, self.count, self.start = memory, datatype, count, start
        if count:
            _check_inside(datatype, count, start, memory.size)

    @property
    def nbytes(self):
        """Length of the packed data in bytes."""
        return self.count * self.datatype.size

    def pack(self):
        """Return the data as bytes without gaps: a view if the datatype has no gaps, otherwise a copy."""
        if self.datatype.contiguous:
            return self.memory[self.start:self.start + self.count * self.datatype.size]
        return self.datatype.gather(self.memory, self.start, self.count)

    def unpack(self, data):
        """Write packed bytes to the places of the elements."""
        self.datatype.scatter(self.memory, self.start, self.count, data)

    @property
    def direct(self):
        """Whether `pack` returns a view, into which a message can be received."""
        return self.datatype.contiguous

    def check_twin(self, Simple operand not None):
        """Raise ValueError unless *operand* has the same datatype and length as this result."""
        mine, others = self.datatype.dtype, operand.datatype.dtype
        if mine != others:
            raise ValueError(f"mismatch in send and receive datatypes: {others} is sent and {mine} received")
        if self.nbytes != operand.nbytes:
            raise ValueError(f"mismatch in send count and receive count: {operand.nbytes} and {self.nbytes} bytes")

    def part(self, Py_ssize_t index, Py_ssize_t parts):
        """Return one of *parts* equal parts."""
        cdef Py_ssize_t each = self.count // parts
        return _simple_at(self.memory, self.datatype, each, self.start + index * each * self.datatype.extent)


cdef int _check_inside(MsgType datatype, Py_ssize_t count, Py_ssize_t start, Py_ssize_t nbytes) except -1:
    if viakit_reach_beyond(start, count, datatype.extent, datatype.true_ub, nbytes):
        _rare.refuse_place(datatype.extent, count, start, nbytes)
    return 0


cdef Simple _simple_at(object memory, MsgType datatype, Py_ssize_t count, Py_ssize_t start):
    """Return a Simple whose place has been checked."""
    cdef Simple made = Simple.__new__(Simple)
    made.memory, made.datatype, made.count, made.start = memory, datatype, count, start
    return made


cdef Py_ssize_t _count_of(object what) except -1:
    """Return a count. A float is refused, not truncated."""
    cdef Py_ssize_t number = PyNumber_AsSsize_t(what, OverflowError)
    if number < 0:
        _rare.refuse_count(number)
    return number


cdef tuple _take_apart(object spec):
    """Return buffer, count, displacement and datatype, or None for each. A pair may hold count and displacement."""
    cdef Py_ssize_t n
    if not isinstance(spec, (list, tuple)):
        if spec is None or spec is _in_place:
            _rare.refuse_buffer(spec)
        return spec, None, None, None
    n = len(spec)
    if n == 3:
        return spec[0], spec[1], None, spec[2]
    if n == 2 and isinstance(spec[1], (MsgType, str)):
        return spec[0], None, None, spec[1]
    if n == 2:
        return spec[0], spec[1], None, None
    if n == 4:
        return tuple(spec)
    if n == 1:
        return spec[0], None, None, None
    raise ValueError("message: expecting 1 to 4 items")


cdef object _array_of(object buffer, bint writable):
    """Return the memory of an object with the buffer protocol as an array of bytes."""
    cdef Py_buffer view
    cdef bint plain
    PyObject_GetBuffer(buffer, &view, PyBUF_FULL_RO)
    plain = view.len > 0 and not (writable and view.readonly) and PyBuffer_IsContiguous(&view, c'C') and (
        view.format == NULL or view.format[0] != c'O' and (view.format[0] == 0 or view.format[1] == 0))
    PyBuffer_Release(&view)
    return _frombuffer(buffer, _uint8) if plain else _rare.as_bytes(buffer, writable)


cdef MsgType _type_in(object buffer):
    """Return the datatype of a buffer's elements."""
    cdef MsgType found
    view = PyMemoryView_FromObject(buffer)
    format = view.format
    found = _type_of_format.get(format)
    if found is None or found.extent != view.itemsize:
        found = _rare.of_buffer(view)
        if len(format) == 1:
            _type_of_format[format] = found
    return found


cdef tuple _memory_and_type(object buffer, object kind, bint writable):
    if buffer is None or isinstance(buffer, NoMemory) or not PyObject_CheckBuffer(buffer):
        memory, view = _rare.memory_of(buffer, writable)
        return memory, _rare.datatype_of(kind, view)
    memory = _array_of(buffer, writable)
    if isinstance(kind, MsgType) and (<MsgType>kind).plain:
        return memory, kind
    return memory, _type_in(buffer) if kind is None else _rare.datatype_of(kind, None)


cdef Py_ssize_t _elements_in(Py_ssize_t nbytes, MsgType datatype) except -1:
    """Return how many elements fit, for a buffer without a count. It must hold a whole number of them."""
    if nbytes and datatype.extent <= 0:
        raise ValueError(f"message: cannot infer count, datatype extent {datatype.extent}")
    if datatype.extent <= 0:
        return 0
    if not datatype.contiguous:
        return 0 if nbytes < datatype.true_ub else (nbytes - datatype.true_ub) // datatype.extent + 1
    if nbytes % datatype.extent:
        raise ValueError(
            f"message: buffer length {nbytes} is not a multiple of the datatype's extent {datatype.extent}"
        )
    return nbytes // datatype.extent


def simple(spec, bint writable, Py_ssize_t blocks=1):
    """Interpret an argument with one buffer.

    Parameters
    ----------
    spec : buffer or list
        The argument.
    writable : bool
        Whether the buffer must be writable.
    blocks : int
        Number of ranks that have a block in the buffer. A count applies to one block. Without a count the buffer holds
        as many elements as fit, which must be a multiple of `blocks`.

    Returns
    -------
    Simple
        All elements of the buffer.
    """
    cdef MsgType datatype
    cdef Py_ssize_t start, number, size
    buffer, count, displacement, kind = _take_apart(spec)
    if isinstance(count, (list, tuple)):
        count, displacement = count
    if kind is not None and buffer is _rare.BOTTOM:
        return _rare.absolute(kind, count, displacement)
    memory, datatype = _memory_and_type(buffer, kind, writable)
    size = len(memory)
    start = viakit_place(PyNumber_AsSsize_t(displacement or 0, OverflowError), datatype.extent)
    if start < 0:
        raise ValueError(f"message: negative displacement {displacement}")
    if start > size:
        raise ValueError(f"message: displacement {displacement} out of bounds, the buffer has {size} bytes")
    if count is None:
        number = _elements_in(size - start, datatype)
        if blocks > 1 and number % blocks:
            raise ValueError(f"message: number of datatype items {number} is not a multiple of the required number of "
                             f"blocks {blocks}")
    else:
        number = viakit_place(_count_of(count), blocks)
        if number < 0:
            raise OverflowError(f"a count of {count} for each of {blocks} blocks is too large")
    if number:
        _check_inside(datatype, number, start, size)
    return _simple_at(memory, datatype, number, start)


cdef object _numbers(object what, Py_ssize_t ranks, str name):
    """Return a number for each rank, as a list."""
    numbers = what.tolist() if isinstance(what, _array) else list(what)
    if len(numbers) != ranks:
        raise ValueError(f"message: expecting {ranks} {name}, got {len(numbers)}")
    return numbers


cdef bint _is_number(object what):
    return PyLong_CheckExact(what) or isinstance(what, (int, _integer)) or (isinstance(what, _array) and what.ndim == 0)


cdef int _read_counts(object counts, Py_ssize_t ranks, Py_ssize_t size, MsgType datatype, Py_ssize_t *out) except -1:
    """Read the counts of a vector: None, one for all ranks, or one for each."""
    cdef Py_ssize_t i, number
    if counts is None:
        number = _elements_in(size, datatype)
        for i in range(ranks):
            out[i] = number // ranks + (i < number % ranks)
    elif _is_number(counts):
        number = _count_of(counts)
        for i in range(ranks):
            out[i] = number
    else:
        for i, each in enumerate(_numbers(counts, ranks, "counts")):
            out[i] = _count_of(each)
    return 0


cdef int _read_displacements(object displacements, Py_ssize_t ranks, Py_ssize_t *counts, Py_ssize_t *out) except -1:
    """Read the displacements of a vector: None (the parts lie side by side), one distance, or one for each rank."""
    cdef Py_ssize_t i, number = 0
    if displacements is None:
        for i in range(ranks):
            out[i] = number
            if number > _MOST - counts[i]:
                raise OverflowError("the sum of the counts is too large")
            number += counts[i]
    elif _is_number(displacements):
        number = PyNumber_AsSsize_t(displacements, OverflowError)
        for i in range(ranks):
            out[i] = viakit_place(number, i)
    else:
        for i, each in enumerate(_numbers(displacements, ranks, "displacements")):
            out[i] = PyNumber_AsSsize_t(each, OverflowError)
    return 0


def vector(spec, bint writable, Py_ssize_t ranks):
    """Interpret the argument of a vector collective (Scatterv, Allgatherv, ...).

    Parameters
    ----------
    spec : buffer or list
        The argument. The displacements are in elements.
    writable : bool
        Whether the buffer must be writable.
    ranks : int
        Number of parts.

    Returns
    -------
    list of Simple
        One part of the buffer for each rank.
    """
    cdef MsgType datatype
    cdef Py_ssize_t i, at, size
    cdef Py_ssize_t *numbers
    cdef list parts = []
    buffer, counts, displacements, kind = _take_apart(spec)
    if isinstance(counts, tuple) and len(counts) == 2 and len(spec) < 4:
        counts, displacements = counts
    bottom = buffer is _rare.BOTTOM
    memory, datatype = _memory_and_type(None if bottom else buffer, kind, writable)
    size = len(memory)
    numbers = <Py_ssize_t *>calloc(2 * ranks + 1, sizeof(Py_ssize_t))
    if numbers == NULL:
        raise MemoryError()
    try:
        _read_counts(counts, ranks, size, datatype, numbers)
        _read_displacements(displacements, ranks, numbers, numbers + ranks)
        for i in range(ranks):
            at = viakit_place(numbers[ranks + i], datatype.extent)
            if bottom:
                parts.append(_rare.at_address(at, datatype, numbers[i]))
                continue
            _check_inside(datatype, numbers[i], at, size)
            parts.append(_simple_at(memory, datatype, numbers[i], at))
    finally:
        free(numbers)
    return parts


def w_vector(spec, bint writable, Py_ssize_t ranks):
    """Interpret the argument of Alltoallw, whose displacements are in bytes. Returns a list of Simple."""
    cdef MsgType datatype
    cdef Py_ssize_t size = 0, count, at
    cdef list parts = []
    counts = displacements = memory = None
    if not isinstance(spec, (list, tuple)) or not 2 <= len(spec) <= 4:
        raise ValueError("message: expecting 2 to 4 items")
    buffer, kinds = spec[0], spec[len(spec) - 1]
    if len(spec) == 3:
        counts, displacements = spec[1]
    elif len(spec) == 4:
        counts, displacements = spec[1], spec[2]
    bottom = buffer is _rare.BOTTOM
    if bottom and (counts is None or displacements is None):
        raise ValueError("message: BOTTOM needs counts and displacements, which are addresses (Get_address)")
    if not bottom:
        memory = _memory_and_type(buffer, _rare.BYTE, writable)[0]
        size = len(memory)
    kinds = [kinds] * ranks if isinstance(kinds, (MsgType, str)) else list(kinds)
    counts = [1] * ranks if counts is None else _numbers(counts, ranks, "counts")
    displacements = [0] * ranks if displacements is None else _numbers(displacements, ranks, "displacements")
    for kind, number, place in zip(kinds, counts, displacements, strict=True):
        datatype = kind if isinstance(kind, MsgType) and (<MsgType>kind).plain else _rare.datatype_of(kind, None)
        count, at = _count_of(number), PyNumber_AsSsize_t(place, OverflowError)
        if bottom:
            parts.append(_rare.at_address(at, datatype, count))
            continue
        _check_inside(datatype, count, at, size)
        parts.append(_simple_at(memory, datatype, count, at))
    return parts
