# cython: language_level=3
"""rma.h as Cython sees it."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from cmsg cimport msg_world

cdef extern from "msg/msg.h" nogil:
    int msg_alloc(msg_world *world, size_t len, void **memory)
    int msg_free(msg_world *world, void *memory)

cdef extern from "coll/offer.h" nogil:
    int coll_offer_make(size_t len, uint64_t *magic)
    int coll_offer_map(int pid, int fd, size_t len, const uint64_t *magic, void **memory)

cdef extern from "rma/rma.h" nogil:
    ctypedef struct rma:
        pass
    ctypedef struct rma_window:
        pass
    ctypedef struct rma_op:
        pass
    struct rma_card:
        uint64_t len
        uint32_t exposed, dynamic
    size_t rma_type_size(int type)
    int rma_combines(int type, int combine)
    int rma_start(msg_world *world, rma **out)
    void rma_stop(rma *r)
    int rma_number_is_free(rma *r, uint32_t number)
    int rma_window_open(rma *r, uint32_t number, void *base, size_t len, int dynamic, rma_card *card, rma_window **out)
    int rma_window_join(rma_window *win, const rma_card *cards)
    void rma_window_map(rma_window *win, int rank, void *memory)
    void rma_window_close(rma_window *win)
    int rma_attach(rma_window *win, void *base, size_t len)
    int rma_detach(rma_window *win, const void *base)
    int rma_put_now(rma_window *win, const void *buf, size_t len, int target, uint64_t offset)
    int rma_put(rma_window *win, const void *buf, size_t len, int target, uint64_t offset, rma_op **op)
    int rma_get(rma_window *win, void *buf, size_t len, int target, uint64_t offset, rma_op **op)
    int rma_accumulate(rma_window *win, const void *buf, void *result, size_t count, int type, int combine, int target,
                       uint64_t offset, rma_op **op)
    int rma_compare_and_swap(rma_window *win, const void *desired, const void *expected, void *result, size_t size,
                             int target, uint64_t offset, rma_op **op)
    int rma_op_test(rma_op *op)
    int rma_op_wait(rma_op *op)
    int rma_flush(rma_window *win, int target)
    int rma_flush_now(rma_window *win, int target)
    int rma_is_quiet(rma_window *win, int target)
    int rma_lock(rma_window *win, int target, int exclusive)
    int rma_unlock(rma_window *win, int target)
    int rma_post(rma_window *win, const int *ranks, int n)
    int rma_await_post(rma_window *win, const int *ranks, int n)
    int rma_complete(rma_window *win, const int *ranks, int n)
    int rma_await_complete(rma_window *win, const int *ranks, int n, int poll)
