# Memory of a collective on a short path: buffers that stay pinned, and the units that a plan's steps refer to.
#
#     Places     units of equal length:   | 0 | 1 | 2 | 3 | ...           one buffer
#                parts of any length:     | 0   |1|  | 2     | ...        one buffer, with gaps or overlaps
#                both:                    units from `first` on are those of other places, for another buffer
#
# A plan (viakit/comm/collective.py) is a tuple of rounds, and a round is a list of steps (struct coll_step).

cdef extern from "Python.h":
    long PyLong_AsLongAndOverflow(object number, int *overflow) except? -1


cdef class Pinned:
    """A buffer that stays exported as long as a message uses a part of it."""

    cdef Py_buffer view
    cdef bint held

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef Pinned _pin_message(object buf, int flags, Py_ssize_t blocks):
    """Pin a plain argument of a collective. Return None for another one, which the general path interprets."""
    cdef Pinned pinned = Pinned.__new__(Pinned)
    pinned.held = _is_message(buf, &pinned.view, flags, blocks)
    return pinned if pinned.held else None


cdef Pinned _pin(object buf):
    """Pin a contiguous buffer of bytes."""
    cdef Pinned pinned = Pinned.__new__(Pinned)
    PyObject_GetBuffer(buf, &pinned.view, PyBUF_ANY_CONTIGUOUS)
    pinned.held = True
    return pinned


cdef class Places:
    """Units of a plan in pinned memory."""

    cdef Pinned pinned
    cdef Py_ssize_t unit            # bytes of each, if they have the same length
    cdef Py_ssize_t *spans          # otherwise offset and length of each part in bytes
    cdef Places others              # the units from `first` on; None: all are here
    cdef Py_ssize_t first

    def __dealloc__(self):
        free(self.spans)


cdef Places _units(Pinned pinned, Py_ssize_t unit):
    """Return places of units of *unit* bytes."""
    cdef Places made = Places.__new__(Places)
    made.pinned, made.unit = pinned, unit
    return made


cdef Places _parts(Pinned pinned, Py_ssize_t n):
    """Return places of *n* parts. The caller fills in their spans."""
    cdef Places made = Places.__new__(Places)
    made.pinned = pinned
    made.spans = <Py_ssize_t *>calloc(2 * n + 1, sizeof(Py_ssize_t))
    if made.spans == NULL:
        raise MemoryError()
    return made


cdef inline Py_ssize_t _offset(Places places, Py_ssize_t at) noexcept:
    return at * places.unit if places.spans == NULL else places.spans[2 * at]


cdef inline Py_ssize_t _extent(Places places, Py_ssize_t at, Py_ssize_t n) noexcept:
    """Return the bytes of *n* units; of parts, of one."""
    return n * places.unit if places.spans == NULL else places.spans[2 * at + 1]


cdef inline Places _holder(Places places, Py_ssize_t *at):
    """Return the places that hold unit *at*, and make *at* its number there."""
    if places.others is None or at[0] < places.first:
        return places
    at[0] -= places.first
    return places.others


cdef inline char *_address(Places places, Py_ssize_t at) noexcept:
    return <char *>places.pinned.view.buf + _offset(places, at)


cdef int _copy_units(Places out, Py_ssize_t at, Places into, Py_ssize_t to, Py_ssize_t n) except -1:
    """Copy *n* units, or one part. Both have the same length."""
    cdef Places source = _holder(out, &at), target = _holder(into, &to)
    cdef Py_ssize_t length = _extent(source, at, n)
    if length != _extent(target, to, n):
        raise SystemError("units of different lengths cannot be copied")
    if length:
        memmove(_address(target, to), _address(source, at), length)
    return 0


# ---------------------------------------------------------------- vectors

cdef bint _read_numbers(object what, Py_ssize_t n, Py_ssize_t *out, Py_ssize_t stride) except -1:
    """Read *n* integers of 0 or more from a list, tuple or array. Return False for anything else."""
    cdef Py_ssize_t i
    cdef int overflow = 0
    if type(what) is _array:
        what = what.tolist()
    elif PyTuple_CheckExact(what):
        what = list(what)
    if not PyList_CheckExact(what) or len(<list>what) != n:
        return False
    for i in range(n):
        number = (<list>what)[i]
        if not PyLong_CheckExact(number):
            return False
        out[stride * i] = PyLong_AsLongAndOverflow(number, &overflow)
        if overflow or out[stride * i] < 0:
            return False
    return True


cdef bint _place_parts(Places places, object displacements, Py_ssize_t n, Py_ssize_t each) except -1:
    """Turn counts of elements of *each* bytes into spans. Return False unless all parts lie in the buffer."""
    cdef Py_ssize_t i, count, at = 0, room = places.pinned.view.len // each
    cdef Py_ssize_t *spans = places.spans
    if displacements is not None and not _read_numbers(displacements, n, spans, 2):
        return False
    for i in range(n):
        count = spans[2 * i + 1]
        if displacements is not None:
            at = spans[2 * i]
        if count and (at > room or count > room - at):
            return False
        spans[2 * i], spans[2 * i + 1] = at * each if count else 0, count * each
        at += count
    return True


cdef Places _pin_vector(object spec, int flags, Py_ssize_t n):
    """Pin [buffer, counts, displacements, datatype], or a form without the last one or two, of *n* ranks.

    Return None for an argument that the general path has to interpret or to refuse (`vector` in spec.pxi).
    """
    cdef Py_ssize_t items
    cdef Pinned pinned
    cdef Places made
    cdef MsgType kind = None
    if not PyList_CheckExact(spec) and not PyTuple_CheckExact(spec):
        return None
    items = len(spec)
    if not 2 <= items <= 4 or not PyObject_CheckBuffer(spec[0]):
        return None
    counts, displacements = spec[1], None
    if items > 2:
        if not isinstance(spec[items - 1], MsgType):
            return None
        kind = spec[items - 1]
    if items == 4:
        displacements = spec[2]
    elif PyTuple_CheckExact(counts) and len(<tuple>counts) == 2:
        counts, displacements = counts
    pinned = _pin_message(spec[0] if kind is None else [spec[0], kind], flags, 1)
    if pinned is None:
        return None
    made = _parts(pinned, n)
    if not _read_numbers(counts, n, made.spans + 1, 2):
        return None
    return made if _place_parts(made, displacements, n, pinned.view.itemsize if kind is None else kind.plain) else None


cdef Places _pin_types(object spec, int flags, Py_ssize_t n):
    """Pin [buffer, counts, displacements in bytes, datatypes] of *n* ranks; counts and displacements may be a pair.

    Return None for an argument that the general path has to interpret or to refuse (`w_vector` in spec.pxi).
    """
    cdef Py_ssize_t items, i, room, count, length
    cdef Pinned pinned
    cdef Places made
    cdef Py_ssize_t *spans
    cdef list types
    if not PyList_CheckExact(spec) and not PyTuple_CheckExact(spec):
        return None
    items = len(spec)
    if items == 4:
        what, counts, displacements, kinds = spec
    elif items == 3 and (PyTuple_CheckExact(spec[1]) or PyList_CheckExact(spec[1])) and len(spec[1]) == 2:
        what, (counts, displacements), kinds = spec
    else:
        return None
    if what is None or isinstance(what, NoMemory) or not PyObject_CheckBuffer(what):
        return None
    if not PyList_CheckExact(kinds) and not PyTuple_CheckExact(kinds) or len(kinds) != n:
        return None
    types = list(kinds)
    pinned = Pinned.__new__(Pinned)
    PyObject_GetBuffer(what, &pinned.view, PyBUF_ANY_CONTIGUOUS | flags)
    pinned.held = True
    made = _parts(pinned, n)
    spans, room = made.spans, pinned.view.len
    if not _read_numbers(counts, n, spans + 1, 2) or not _read_numbers(displacements, n, spans, 2):
        return None
    for i in range(n):
        if not isinstance(types[i], MsgType) or (<MsgType>types[i]).plain == 0:
            return None
        count = spans[2 * i + 1]
        if count > room // (<MsgType>types[i]).plain:
            return None
        length = count * (<MsgType>types[i]).plain
        if length and spans[2 * i] > room - length:
            return None
        spans[2 * i], spans[2 * i + 1] = spans[2 * i] if length else 0, length
    return made


cdef Places _pin_parts(object spec, int flags, Py_ssize_t n, bint of_types):
    """Pin the argument of Alltoallv, or of Alltoallw."""
    return _pin_types(spec, flags, n) if of_types else _pin_vector(spec, flags, n)


cdef Places _copied(Places parts, Py_ssize_t n):
    """Return a copy of *n* parts, side by side."""
    cdef Places made
    cdef Py_ssize_t i, total = 0
    for i in range(n):
        total += _extent(parts, i, 1)
    made, total = _parts(_pin(bytearray(total)), n), 0
    for i in range(n):
        made.spans[2 * i], made.spans[2 * i + 1] = total, _extent(parts, i, 1)
        total += made.spans[2 * i + 1]
        _copy_units(parts, i, made, i, 1)
    return made
