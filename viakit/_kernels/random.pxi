# The random numbers of the NAS Parallel Benchmarks.

cdef extern from "kernels.h" nogil:
    uint64_t KERNELS_RANDOM_A
    uint64_t KERNELS_RANDOM_MASK
    uint64_t kernels_random_power(uint64_t a, uint64_t n)
    uint64_t kernels_random_skip(uint64_t x, uint64_t n)
    uint64_t kernels_random_fill(uint64_t x, double *out, size_t n)


cdef uint64_t _state(object x) except? 0:
    """Return the state of the generator that *x* is, or raise ValueError."""
    if not 0 <= x <= KERNELS_RANDOM_MASK:
        raise ValueError(f"a state of the generator is in [0, 2^46), not {x}")
    return x


def random_skip(x, n) -> int:
    """Return the state *n* numbers after the state *x*: x 5^(13 n) mod 2^46. *n* is in [0, 2^64)."""
    return kernels_random_skip(_state(x), n)


def random_fill(x, out) -> int:
    """Put the numbers in (0, 1) that follow the state *x* into *out*, float64; return the state after them."""
    _check(out, "out", "float64", (None,), written=True)
    cdef uint64_t state = _state(x)
    cdef double *address = <double *>_address(out)
    cdef size_t n = out.size
    with nogil:
        state = kernels_random_fill(state, address, n)
    return state
