# FT: what surrounds the Fourier transforms of rows.

cdef extern from "kernels.h" nogil:
    struct kernels_ft_planes:
        size_t n_planes, n_rows, n_columns
        size_t in_plane, in_row
        size_t out_plane, out_row
    void kernels_ft_scale(const double *source, double *target, size_t n_rows, size_t n, const double *of_row,
                          const double *of_column)
    void kernels_ft_transpose(const kernels_ft_planes *planes, const double *source, double *target)


cdef object _planes(object array, str name, bint written):
    """Return *array* if it is of three dimensions, complex128, its rows contiguous; else raise what is wrong."""
    if not isinstance(array, np.ndarray) or array.dtype != "complex128":
        raise TypeError(f"{name} is to be a NumPy array of complex128")
    if array.ndim != 3:
        raise ValueError(f"{name} is to have three dimensions, planes of rows, not {array.ndim}")
    if array.shape[2] > 1 and array.strides[2] != 16:
        raise ValueError(f"the rows of {name} are to be contiguous")
    if any(step < 0 or step % 16 for step in array.strides[:2]):
        raise ValueError(f"the rows of {name} are to be whole numbers of elements apart, in rising order")
    if written and not array.flags.writeable:
        raise ValueError(f"{name} is read-only, and results are to go there")
    return array


# As _address() in common.pxi, of an array that is part of another.
cdef void *_address_of_part(object array) except? NULL:
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_STRIDES)
    cdef void *address = view.buf
    PyBuffer_Release(&view)
    return address


def ft_scale(source, target, of_row, of_column) -> None:
    """``target[row, i] = source[row, i] * of_row[row] * of_column[i]``: complex128, contiguous; the factors float64.

    source and target must not overlap.
    """
    _check(source, "source", "complex128", (None, None))
    _check(target, "target", "complex128", source.shape, written=True)
    _check(of_row, "of_row", "float64", (source.shape[0],))
    _check(of_column, "of_column", "float64", (source.shape[1],))
    _apart(source, "source", target, "target")
    cdef double *a = <double *>_address(source)
    cdef double *b = <double *>_address(target)
    cdef double *r = <double *>_address(of_row)
    cdef double *c = <double *>_address(of_column)
    cdef size_t n_rows = source.shape[0], n = source.shape[1]
    with nogil:
        kernels_ft_scale(a, b, n_rows, n, r, c)


def ft_transpose(source, target) -> None:
    """``target[plane, column, row] = source[plane, row, column]``, for complex128 arrays of three dimensions.

    Both may be parts of larger arrays, as long as the elements of a row are side by side. They must not overlap.
    """
    _planes(source, "source", False)
    _planes(target, "target", True)
    cdef kernels_ft_planes p
    p.n_planes, p.n_rows, p.n_columns = source.shape
    wanted = (source.shape[0], source.shape[2], source.shape[1])
    if target.shape != wanted:
        raise ValueError(f"target is to be of shape {wanted}, not {target.shape}")
    if source.size == 0:
        return
    if np.may_share_memory(source, target):
        raise ValueError("source and target overlap")
    p.in_plane, p.in_row = source.strides[0] // 16, source.strides[1] // 16
    p.out_plane, p.out_row = target.strides[0] // 16, target.strides[1] // 16
    cdef double *a = <double *>_address_of_part(source)
    cdef double *b = <double *>_address_of_part(target)
    with nogil:
        kernels_ft_transpose(&p, a, b)
