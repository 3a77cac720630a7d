# Short objects of the simplest types as bytes, which costs a fraction of a pickle. Everything else is pickled.
#
# A message is the byte "C" and a value. A value begins with a byte that names its type:
#
# - "N", "T", "F": None, True, False
# - "b" and a byte, or "q" and 8 bytes: int
# - "d" and 8 bytes: float
# - "B", a length, and bytes: bytes
# - "s", a kind, a length, and text with `kind` bytes per character, as Python stores it: str
# - "[" or "(", a length, and values: list or tuple
# - "{", a length, and pairs of values: dict
#
# Lengths have 4 bytes. Numbers have the byte order of the machine, which all ranks of a job have. The first byte of a
# pickle is another one (object.pxi).
#
# A pickle has each object once, however often it is referred to. Values do not: an object that contains a list, dict or
# tuple twice, or itself, is pickled. Whether a str, a number or bytes are the same object is not kept.

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_SetItem, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(object)
    long long PyLong_AsLongLongAndOverflow(object, int *) noexcept
    bint PyUnicode_CheckExact(object)
    bint PyUnicode_IS_COMPACT(object)
    int PyUnicode_KIND(object)
    void *PyUnicode_DATA(object)
    Py_ssize_t PyUnicode_GET_LENGTH(object)
    object PyUnicode_FromKindAndData(int, const void *, Py_ssize_t)

cdef enum:
    MOST_COMPACT = 8192     # bytes of a message
    MOST_ITEMS = 500        # of one list, tuple or dict: pickle has less work with each of many
    MOST_DEPTH = 16         # lists, tuples and dicts within each other
    MOST_SEEN = 24          # lists, tuples and dicts of an object to which there is more than one reference


cdef struct Compact:
    char *at                # next byte to write or to read
    char *end
    int depth, n_seen
    void *seen[MOST_SEEN]


cdef inline bint _put_byte(Compact *c, char value) noexcept:
    if c.at == c.end:
        return False
    c.at[0] = value
    c.at += 1
    return True


cdef inline bint _put_bytes(Compact *c, const void *data, Py_ssize_t n) noexcept:
    if c.end - c.at < n:
        return False
    memcpy(c.at, data, n)
    c.at += n
    return True


cdef inline bint _put_length(Compact *c, char tag, Py_ssize_t n) noexcept:
    cdef uint32_t length = <uint32_t>n
    return n <= MOST_COMPACT and _put_byte(c, tag) and _put_bytes(c, &length, sizeof(length))


cdef bint _is_seen(Compact *c, object value) noexcept:
    """Return whether a list, tuple or dict may be in the object already. One with one reference cannot."""
    cdef int i
    if Py_REFCNT(value) == 1:
        return False
    for i in range(c.n_seen):
        if c.seen[i] == <void *>value:
            return True
    if c.n_seen == MOST_SEEN:
        return True
    c.seen[c.n_seen] = <void *>value
    c.n_seen += 1
    return False


cdef bint _put_number(Compact *c, object value) noexcept:
    cdef int overflow = 0
    cdef long long number
    cdef double real
    if PyFloat_CheckExact(value):
        real = PyFloat_AS_DOUBLE(value)
        return _put_byte(c, c"d") and _put_bytes(c, &real, sizeof(real))
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return False
    if -128 <= number <= 127:
        return _put_byte(c, c"b") and _put_byte(c, <char>number)
    return _put_byte(c, c"q") and _put_bytes(c, &number, sizeof(number))


cdef bint _put_text(Compact *c, object value) noexcept:
    cdef Py_ssize_t n = PyUnicode_GET_LENGTH(value)
    cdef int kind = PyUnicode_KIND(value)
    cdef uint32_t length = <uint32_t>n
    return (PyUnicode_IS_COMPACT(value) and n <= MOST_COMPACT and _put_byte(c, c"s") and _put_byte(c, <char>kind)
            and _put_bytes(c, &length, sizeof(length)) and _put_bytes(c, PyUnicode_DATA(value), n * kind))


cdef bint _put_items(Compact *c, object value) noexcept:
    """Write a list, tuple or dict."""
    cdef Py_ssize_t n, i = 0
    cdef PyObject *key
    cdef PyObject *item
    if PyDict_CheckExact(value):
        n = PyDict_Size(value)
        if n > MOST_ITEMS or not _put_length(c, c"{", n):
            return False
        while PyDict_Next(value, &i, &key, &item):
            if not _put(c, <object>key) or not _put(c, <object>item):
                return False
        return True
    if PyList_CheckExact(value):
        n = PyList_GET_SIZE(value)
        if n > MOST_ITEMS or not _put_length(c, c"[", n):
            return False
        for i in range(n):
            if not _put(c, <object>PyList_GET_ITEM(value, i)):
                return False
        return True
    n = PyTuple_GET_SIZE(value)
    if n > MOST_ITEMS or not _put_length(c, c"(", n):
        return False
    for i in range(n):
        if not _put(c, <object>PyTuple_GET_ITEM(value, i)):
            return False
    return True


cdef bint _put(Compact *c, object value) noexcept:
    """Write a value. Returns False if it must be pickled. Runs no code of the program."""
    cdef bint done
    if PyUnicode_CheckExact(value):
        return _put_text(c, value)
    if PyLong_CheckExact(value) or PyFloat_CheckExact(value):
        return _put_number(c, value)
    if PyBytes_CheckExact(value):
        return (_put_length(c, c"B", PyBytes_GET_SIZE(value))
                and _put_bytes(c, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)))
    if value is None:
        return _put_byte(c, c"N")
    if value is True or value is False:
        return _put_byte(c, c"T" if value is True else c"F")
    if not (PyDict_CheckExact(value) or PyList_CheckExact(value) or PyTuple_CheckExact(value)):
        return False
    if c.depth == MOST_DEPTH or _is_seen(c, value):
        return False
    c.depth += 1
    done = _put_items(c, value)
    c.depth -= 1
    return done


cdef Py_ssize_t _compact(object value, char *room) noexcept:
    """Write a message of at most MOST_COMPACT bytes, and return its length; 0 if the object must be pickled."""
    cdef Compact c
    c.at, c.end, c.depth, c.n_seen = room, room + MOST_COMPACT, 0, 0
    return c.at - room if _put_byte(&c, c"C") and _put(&c, value) else 0


# ---------------------------------------------------------------- reading

cdef char *_next(Compact *c, Py_ssize_t n) except NULL:
    """Return the next n bytes."""
    cdef char *here = c.at
    if n < 0 or c.end - here < n:
        raise EOFError("the message of an object ends within a value; it was not sent by send")
    c.at += n
    return here


cdef Py_ssize_t _next_length(Compact *c) except -1:
    cdef uint32_t length
    memcpy(&length, _next(c, sizeof(length)), sizeof(length))
    return length


cdef object _next_items(Compact *c, char tag):
    """Read a list, tuple or dict."""
    cdef Py_ssize_t i, n = _next_length(c)
    if n > c.end - c.at or c.depth == MOST_DEPTH:     # a value has one byte at least
        raise EOFError("the message of an object ends within a value; it was not sent by send")
    c.depth += 1
    if tag == c"{":
        items = {}
        for i in range(n):
            key = _get(c)
            PyDict_SetItem(items, key, _get(c))
    elif tag == c"[":
        items = [None] * n
        for i in range(n):
            (<list>items)[i] = _get(c)
    else:
        items = tuple([_get(c) for i in range(n)])
    c.depth -= 1
    return items


cdef object _get(Compact *c):
    """Read a value."""
    cdef char tag = _next(c, 1)[0], kind
    cdef long long number
    cdef double real
    cdef Py_ssize_t n
    if tag == c"s":
        kind = _next(c, 1)[0]
        n = _next_length(c)
        if kind == 1 or kind == 2 or kind == 4:
            return PyUnicode_FromKindAndData(kind, _next(c, n * kind), n)
    elif tag == c"b":
        return <int><signed char>_next(c, 1)[0]
    elif tag == c"q":
        memcpy(&number, _next(c, sizeof(number)), sizeof(number))
        return number
    elif tag == c"d":
        memcpy(&real, _next(c, sizeof(real)), sizeof(real))
        return real
    elif tag == c"B":
        n = _next_length(c)
        return PyBytes_FromStringAndSize(_next(c, n), n)
    elif tag == c"[" or tag == c"{" or tag == c"(":
        return _next_items(c, tag)
    elif tag == c"T" or tag == c"F":
        return tag == c"T"
    elif tag == c"N":
        return None
    raise ValueError(f"a message holds no object: byte {tag} begins no value; was it sent by send?")


cdef object _expanded(const char *data, Py_ssize_t n):
    """Return the object of a message of `_compact`."""
    cdef Compact c
    c.at, c.end, c.depth = <char *>data + 1, <char *>data + n, 0
    return _get(&c)


def load_compact(data):
    """Return the object of a message that is not a pickle, from bytes or another buffer."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_ANY_CONTIGUOUS)
    try:
        return _expanded(<const char *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
