# EP: pairs of Gaussian deviates.

cdef extern from "kernels.h" nogil:
    enum:
        KERNELS_EP_N_COUNTS

    struct kernels_ep_s "kernels_ep":
        uint64_t counts[KERNELS_EP_N_COUNTS]
        double x
        double y
        double abs_x
        double abs_y

    void kernels_ep(uint64_t x, uint64_t n, kernels_ep_s *out)


def ep_pairs(x, n, counts, sums) -> None:
    """Count and sum the Gaussian deviates that come of *n* pairs of random numbers.

    Parameters
    ----------
    x : int
        State of the generator before the first of the 2 n numbers: odd, as all states that follow an odd seed are.
    n : int
        Pairs.
    counts : numpy.ndarray, uint64, shape (10,)
        Added to: accepted pairs by the whole part of max(abs(X), abs(Y)).
    sums : numpy.ndarray, float64, shape (4,)
        Added to: the sums of X, of Y, of abs(X), of abs(Y).
    """
    _check(counts, "counts", "uint64", (KERNELS_EP_N_COUNTS,), written=True)
    _check(sums, "sums", "float64", (4,), written=True)
    cdef uint64_t state = _state(x)
    if state % 2 == 0:  # their sequences are short; 2^45's is 1/2 for ever: all pairs at the origin, where ln 0 is
        raise ValueError(f"a state that EP's numbers follow is odd, not {x}")
    if not 0 <= n < 2 ** 62:
        raise ValueError(f"pairs are a number in [0, 2^62), not {n}")
    cdef uint64_t pairs = n
    cdef uint64_t *counts_p = <uint64_t *>_address(counts)
    cdef double *sums_p = <double *>_address(sums)
    cdef kernels_ep_s out
    cdef int i
    for i in range(KERNELS_EP_N_COUNTS):
        out.counts[i] = 0
    out.x = out.y = out.abs_x = out.abs_y = 0.0
    with nogil:
        kernels_ep(state, pairs, &out)
    for i in range(KERNELS_EP_N_COUNTS):
        counts_p[i] += out.counts[i]
    sums_p[0] += out.x
    sums_p[1] += out.y
    sums_p[2] += out.abs_x
    sums_p[3] += out.abs_y
