# The memory of NumPy arrays, without the buffer protocol: NumPy composes the description of an array at each call.
#
# Arrays and dtypes begin with the fields below, which are public in NumPy's C interface (ndarraytypes.h), and the same
# in NumPy 1 and 2. `_learn_arrays` compares them with the buffer protocol's description. A type of numbers for which
# they differ is left to the buffer protocol, as are arrays of objects, of other byte orders, and with gaps.

cdef extern from *:
    """
    enum {
        VIAKIT_ARRAY_CONTIGUOUS = 3,            /* in the order of C, or of Fortran */
        VIAKIT_ARRAY_ALIGNED = 0x100,
        VIAKIT_ARRAY_WRITEABLE = 0x400,
        VIAKIT_ARRAY_WARNS = 1 << 30 << 1,      /* writing to it is deprecated: the buffer protocol warns */
        VIAKIT_ARRAY_NUMBERS = 24               /* numbers of dtypes looked at: all integers and real numbers */
    };
    struct viakit_dtype {
        PyObject_HEAD
        PyTypeObject *scalar;
        char kind, character, byteorder, flags;
        int number;
    };
    struct viakit_array {
        PyObject_HEAD
        char *data;
        int n_dimensions;
        Py_ssize_t *dimensions, *strides;
        PyObject *base;
        struct viakit_dtype *dtype;
        int flags;
    };
    /* By the number of a dtype: bytes of an element (0: left to the buffer protocol), and its format. */
    static Py_ssize_t viakit_array_item[VIAKIT_ARRAY_NUMBERS];
    static char viakit_array_format[VIAKIT_ARRAY_NUMBERS][2];
    static PyTypeObject *viakit_array_type;     /* numpy.ndarray, or NULL */

    /* Pins an array: as PyObject_GetBuffer, released by PyBuffer_Release. Returns 0 if the buffer protocol must. */
    static inline int viakit_array_view(PyObject *object, Py_buffer *view, int flags)
    {
        const struct viakit_array *a = (const struct viakit_array *)object;
        int wanted = VIAKIT_ARRAY_ALIGNED | (flags & PyBUF_WRITABLE ? VIAKIT_ARRAY_WRITEABLE : 0);
        if (Py_TYPE(object) != viakit_array_type || (a->flags & (wanted | VIAKIT_ARRAY_WARNS)) != wanted
            || !(a->flags & VIAKIT_ARRAY_CONTIGUOUS) || (unsigned)a->dtype->number >= VIAKIT_ARRAY_NUMBERS
            || (a->dtype->byteorder != '=' && a->dtype->byteorder != '|'))
            return 0;
        int number = a->dtype->number;
        Py_ssize_t n = viakit_array_item[number];
        if (n == 0)
            return 0;
        *view = (Py_buffer){.buf = a->data, .obj = object, .itemsize = n, .ndim = 1,
                            .readonly = !(a->flags & VIAKIT_ARRAY_WRITEABLE), .format = viakit_array_format[number]};
        for (int i = 0; i < a->n_dimensions; i++)
            n *= a->dimensions[i];
        view->len = n;
        Py_INCREF(object);
        return 1;
    }

    /* Learns the type of an array's elements, if this file's fields describe the array as `view` does. */
    static inline void viakit_array_learn(PyObject *object, const Py_buffer *view)
    {
        const struct viakit_array *a = (const struct viakit_array *)object;
        Py_ssize_t n = view->itemsize;
        if (a->data != view->buf || a->n_dimensions != view->ndim || (unsigned)a->dtype->number >= VIAKIT_ARRAY_NUMBERS
            || view->format[0] == 0 || view->format[0] == 'O' || view->format[1] != 0
            || Py_TYPE(object)->tp_as_buffer->bf_releasebuffer != NULL)     /* it expects its own views only */
            return;
        for (int i = 0; i < view->ndim; i++) {
            if (a->dimensions[i] != view->shape[i] || a->strides[i] != view->strides[i])
                return;
            n *= a->dimensions[i];
        }
        if (n != view->len)
            return;
        viakit_array_item[a->dtype->number] = view->itemsize;
        viakit_array_format[a->dtype->number][0] = view->format[0];
        viakit_array_type = Py_TYPE(object);
    }
    """
    bint _is_array "viakit_array_view"(object, Py_buffer *, int) noexcept
    void _learn_array "viakit_array_learn"(object, const Py_buffer *) noexcept


def _learn_arrays(numpy):
    """Learn the types of numbers in NumPy arrays."""
    cdef Py_buffer view
    for character in "?bBhHiIlLqQefdg":
        array = numpy.zeros((2, 3), character)
        if type(array) is numpy.ndarray and array.flags.aligned and array.flags.writeable:
            PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_STRIDES)
            _learn_array(array, &view)
            PyBuffer_Release(&view)
