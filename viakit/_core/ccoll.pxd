# cython: language_level=3
"""coll.h as Cython sees it."""

from libc.stdint cimport int32_t, int64_t, uint16_t, uint64_t

from cmsg cimport msg_world

cdef extern from "coll/coll.h" nogil:
    ctypedef struct coll:
        pass
    struct coll_word:
        int64_t code
        uint64_t number, incarnation
        int32_t origin, tag
        char reason[96]
    struct coll_note:
        uint64_t number
        uint16_t operation, algorithm
        int32_t root
        uint64_t incarnation, oldest
    struct coll_step:
        int kind, to, source "from"
        size_t out, out_len, into "in", in_len, result
    ctypedef struct coll_options:
        uint64_t number
        uint64_t incarnation
        uint64_t oldest
        const int *wanted
        void (*meanwhile)(void *context) noexcept nogil
        int (*crossed)(void *context, int group_context, const coll_note *now, int awaited) noexcept nogil
        void *context
        int revocable
        coll_word *cause
    enum:
        COLL_N_BARRIERS
        COLL_BARRIER_DEFAULT
        COLL_N_OPERATIONS
        COLL_DEFAULT
        COLL_TAG_ABORT
        COLL_TAG_NOTE
        COLL_TAG_GIVE_UP
        COLL_GIVE_UP_NUMBERS
        COLL_REASON_LEN
        COLL_NOTE_MESSAGES
        COLL_BCAST
        COLL_ALLREDUCE
        COLL_ALLGATHER
        COLL_ALLTOALL
        COLL_STEP_EXCHANGE
        COLL_STEP_COMBINE
        COLL_SCATTER
        COLL_STEP_SIGNAL
        COLL_BY_MESSAGE
    int coll_combines(int type, int op)
    void coll_combine(int type, int op, size_t count, const void *low, const void *high, void *to)
    int coll_create_with(msg_world *world, const int *ranks, int n, int context, const coll_options *options,
                         coll **group)
    void coll_set_number(coll *group, uint64_t number)
    void coll_set_oldest(coll *group, uint64_t number)
    int coll_set_release(coll *group, void (*release)(void *context) noexcept nogil, void *context)
    int coll_take_control(msg_world *world, int context, int tag, void *what, size_t length, int *source)
    void coll_break(coll *group, int code, const char *reason)
    const coll_word *coll_cause(const coll *group)
    int coll_find_completed(const coll *group, uint64_t number)
    uint64_t coll_error_at(const coll *group)
    int coll_error(const coll *group)
    int coll_may_retry(const coll *group)
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
    size_t coll_long_from(int operation, int n)
    int coll_plan(int operation, int is_long, int n, int me, int root, size_t length, coll_step **steps, int *n_steps)

    int coll_barrier_plan(int algorithm, int n, int me, int per_host, int cores, coll_step **steps, int *n_steps)
    int coll_barrier_means(int algorithm)
    int coll_barrier_find(const char *name)

    int coll_bcast(coll *group, int algorithm, void *buf, size_t length, int root)
    int coll_reduce(coll *group, int algorithm, const void *send, void *recv, size_t count, int type, int op, int root)
    int coll_allreduce(coll *group, int algorithm, const void *send, void *recv, size_t count, int type, int op)
    int coll_allgather(coll *group, int algorithm, const void *send, void *recv, size_t length)
    int coll_alltoall(coll *group, int algorithm, const void *send, void *recv, size_t length)
