# IS: ranking of integers.

cdef extern from "kernels.h" nogil:
    size_t KERNELS_IS_BUCKETS
    void kernels_is_keys(uint64_t x, int max_log, int32_t *keys, size_t n)
    size_t kernels_is_work(size_t m)
    int kernels_is_count(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *counts, void *work)
    int32_t kernels_is_prefix(int32_t *counts, size_t m, int32_t start)
    int kernels_is_partition(const int32_t *keys, size_t n, int shift, size_t n_buckets, int32_t *out, int32_t *starts)
    int64_t kernels_is_place(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *cumulative, int32_t first,
                             int32_t *out, size_t len)


def is_keys(x, int max_log, out) -> None:
    """Put the keys below 2^max_log, in [2, 30], whose random numbers follow the state *x*, into *out*, int32."""
    _check(out, "out", "int32", (None,), written=True)
    if not 2 <= max_log <= 30:
        raise ValueError(f"keys are below 2^2 to 2^30, not 2^{max_log}")
    cdef uint64_t state = _state(x)
    cdef int32_t *keys = <int32_t *>_address(out)
    cdef size_t n = out.size
    with nogil:
        kernels_is_keys(state, max_log, keys, n)


def is_count(keys, counts, base=0, work=None) -> None:
    """Add to ``counts[k - base]`` how often each key k occurs.

    *keys* and *counts* are int32; all keys are in [base, base + len(counts)), or ValueError is raised. *work*, uint8,
    is memory to use, as many bytes as counts, made up to a power of two; None: it is taken for this call.
    """
    _check(keys, "keys", "int32", (None,))
    _check(counts, "counts", "int32", (None,), written=True)
    cdef size_t n = keys.size, m = counts.size
    cdef int32_t low = base
    if n == 0:
        return
    if m == 0:
        raise ValueError("there are keys and no counts")
    if work is None:
        work = np.empty(kernels_is_work(m), np.uint8)
    _check(work, "work", "uint8", (None,), written=True)
    if <size_t>work.size < kernels_is_work(m):
        raise ValueError(f"work has {work.size} bytes; {m} counts want {kernels_is_work(m)}")
    _apart(keys, "keys", counts, "counts")
    _apart(keys, "keys", work, "work")
    _apart(counts, "counts", work, "work")
    cdef int32_t *k = <int32_t *>_address(keys)
    cdef int32_t *c = <int32_t *>_address(counts)
    cdef void *w = _address(work)
    cdef int status
    with nogil:
        status = kernels_is_count(k, n, low, m, c, w)
    if status != 0:
        raise ValueError(f"a key is not in [{low}, {low + <object>m}), for which there are counts")


def is_prefix(counts, start=0) -> int:
    """Make of *counts*, int32, how many keys are at most so large: each becomes *start* + the sum up to and with it."""
    _check(counts, "counts", "int32", (None,), written=True)
    cdef int32_t *c = <int32_t *>_address(counts)
    cdef size_t m = counts.size
    cdef int32_t first = start, total
    with nogil:
        total = kernels_is_prefix(c, m, first)
    return total


def is_partition(keys, int shift, out, starts) -> None:
    """Group *keys* by bucket, ``k >> shift``: bucket b is ``out[starts[b]:starts[b + 1]]``, in the order of the keys.

    All arrays are int32 and apart from each other. *out* is as long as *keys*; *starts*, which is written, has one more
    than there are buckets, up to 1024. ValueError if a key is beyond the last bucket.
    """
    _check(keys, "keys", "int32", (None,))
    _check(out, "out", "int32", (keys.size,), written=True)
    _check(starts, "starts", "int32", (None,), written=True)
    cdef size_t n = keys.size, n_buckets = max(starts.size - 1, 0)
    if not 0 <= shift < 31:
        raise ValueError(f"shift is in [0, 30], not {shift}")
    if not 0 < n_buckets <= KERNELS_IS_BUCKETS or <object>n_buckets << shift > 1 << 31:
        raise ValueError(f"1 to {KERNELS_IS_BUCKETS} buckets, of keys below 2^31; not {n_buckets} of 2^{shift}")
    if n >= 1 << 31:
        raise ValueError(f"{n} keys are too many for starts of 32 bits")
    _apart(keys, "keys", out, "out")
    _apart(keys, "keys", starts, "starts")
    _apart(out, "out", starts, "starts")
    cdef int32_t *k = <int32_t *>_address(keys)
    cdef int32_t *o = <int32_t *>_address(out)
    cdef int32_t *s = <int32_t *>_address(starts)
    cdef int status
    with nogil:
        status = kernels_is_partition(k, n, shift, n_buckets, o, s)
    if status != 0:
        raise ValueError(f"a key is not in [0, {<object>n_buckets << shift}), for which there are buckets")


def is_place(keys, cumulative, int first, out, base=0) -> int:
    """Put each key k of [base, base + len(cumulative)) to ``out[rank - first]``; return how many these were.

    Its rank is ``cumulative[k - base]`` after 1 was taken off that. All arrays are int32. Where that is not in *out*,
    the key is left out.
    """
    _check(keys, "keys", "int32", (None,))
    _check(cumulative, "cumulative", "int32", (None,), written=True)
    _check(out, "out", "int32", (None,), written=True)
    _apart(keys, "keys", cumulative, "cumulative")
    _apart(keys, "keys", out, "out")
    _apart(cumulative, "cumulative", out, "out")
    cdef int32_t *k = <int32_t *>_address(keys)
    cdef int32_t *c = <int32_t *>_address(cumulative)
    cdef int32_t *o = <int32_t *>_address(out)
    cdef size_t n = keys.size, m = cumulative.size, room = out.size
    cdef int32_t low = base
    cdef int64_t placed
    with nogil:
        placed = kernels_is_place(k, n, low, m, c, first, o, room)
    return placed
