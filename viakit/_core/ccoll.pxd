# cython: language_level=3
"""coll.h as Cython sees it."""

from libc.stdint cimport uint64_t

from cmsg cimport msg_world

cdef extern from "coll/coll.h" nogil:
    ctypedef struct coll:
        pass
    ctypedef struct coll_options:
        uint64_t number
        uint64_t birth
        const int *wanted
        void (*meanwhile)(void *context) noexcept nogil
        void *context
    enum:
        COLL_N_BARRIERS
        COLL_BARRIER_DEFAULT
        COLL_N_OPERATIONS
        COLL_DEFAULT
        COLL_TAG_ABORT
        COLL_TAG_NOTE
    int coll_create_with(msg_world *world, const int *ranks, int n, int context, const coll_options *options,
                         coll **group)
    void coll_set_number(coll *group, uint64_t number)
    void coll_break(coll *group, int code)
    int coll_error(const coll *group)
    int coll_may_repeat(const coll *group)
    void coll_close(coll *group)
    void coll_forget(coll *group)
    int coll_hosts(const coll *group)

    const char *coll_barrier_name(int algorithm)
    const char *coll_barrier_text(int algorithm)
    int coll_barrier_check(const coll *group, int algorithm)
    int coll_barrier_default(const coll *group)
    int coll_barrier(coll *group, int algorithm)

    const char *coll_operation_name(int operation)
    const char *coll_algorithm_name(int operation, int algorithm)
    const char *coll_algorithm_text(int operation, int algorithm)
    int coll_algorithm_check(const coll *group, int operation, int algorithm)
    int coll_algorithm_default(const coll *group, int operation, size_t length)

    int coll_bcast(coll *group, int algorithm, void *buf, size_t length, int root)
    int coll_reduce(coll *group, int algorithm, const void *send, void *recv, size_t count, int type, int op, int root)
    int coll_allreduce(coll *group, int algorithm, const void *send, void *recv, size_t count, int type, int op)
    int coll_allgather(coll *group, int algorithm, const void *send, void *recv, size_t length)
    int coll_alltoall(coll *group, int algorithm, const void *send, void *recv, size_t length)
