# cython: language_level=3
"""bench.h and content.h as Cython sees them."""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

cdef extern from "bench/bench.h" nogil:
    enum:
        BENCH_DONE
        BENCH_NOT_YET
        BENCH_ERROR
        BENCH_TIMEOUT
        BENCH_STOPPED
        BENCH_MISMATCH
        BENCH_GONE
        BENCH_ERROR_LEN
        BENCH_ADDRESS_LEN
        BENCH_N_COUNTERS

    ctypedef enum bench_mode:
        BENCH_PINGPONG
        BENCH_STREAM
        BENCH_BIDIR

    ctypedef enum bench_memory:
        BENCH_MEMORY_USER
        BENCH_MEMORY_VIAKIT

    ctypedef enum bench_use:
        BENCH_SAME
        BENCH_TOUCHED
        BENCH_COLD

    ctypedef struct bench_plan:
        bench_mode mode
        int side
        size_t len
        uint64_t count
        uint64_t warmup
        uint64_t repeats
        size_t offset
        bench_memory memory
        bench_use buffers
        uint64_t spin_ns
        size_t pool
        bint validate
        bint one_core
        bint computes
        uint32_t run_id
        double timeout_s
        double stall_s
        int control_fd
        int *stop
        int (*interrupt)(void *context) noexcept nogil
        void *interrupt_context

    ctypedef struct bench_ops:
        const char *name
        size_t min_len
        size_t max_len

    ctypedef struct bench_ep:
        const bench_ops *ops
        size_t window
        char error[512]

    ctypedef struct bench_via_options:
        const char *device
        unsigned reliability
        unsigned form
        unsigned mtu
        int spin_us
        bint polled
        unsigned retransmission
        unsigned checksum
        const char *faults
        const unsigned char *secret
        bint rdma_write

    ctypedef struct bench_bip_options:
        const char *device
        const char *job
        int side
        uint64_t small
        uint64_t packet
        bint unreliable
        unsigned form
        unsigned mtu
        unsigned retransmission
        unsigned checksum
        int spin_us
        bint polled
        const char *faults
        const unsigned char *secret

    int bench_prepare(bench_ep *ep, const bench_plan *plan)
    int bench_run(bench_ep *ep, const bench_plan *plan, double *samples)
    void bench_counters(bench_ep *ep, uint64_t *values)
    double bench_touch_ns(bench_ep *ep, const bench_plan *plan)
    const char *bench_counter_name(int counter)
    void bench_close(bench_ep *ep)
    double bench_ns_per_tick()
    const char *bench_clock_name()

    ctypedef struct bench_options:
        int fd
        int side
        bint polled
        bint rdma_write
        const char *device
        int64_t buffer

    bench_ep *bench_open(const char *name, const bench_options *options, char *error)
    int bench_address(bench_ep *ep, unsigned char *address, size_t room)
    int bench_join(bench_ep *ep, const unsigned char *address, size_t len)
    bench_ep *bench_zmq_open(void *socket, const char *library, bint polled, char *error)
    bench_ep *bench_mpi_open(const char *library, uintptr_t comm, uintptr_t byte_type, int peer, char *error)
    bench_ep *bench_lam_open(const char *library, bint polled, char *error)
    bench_ep *bench_pvm_open(const char *library, int peer, bint in_place, bint polled, char *error)
    bench_ep *bench_via_open(const bench_via_options *options, char *error)
    int bench_via_address(bench_ep *ep, unsigned char *address, size_t room)
    int bench_via_accept(bench_ep *ep, const unsigned char *token, size_t token_len)
    int bench_via_connect(bench_ep *ep, const unsigned char *address, size_t address_len, const unsigned char *token,
                          size_t token_len)
    int bench_via_counters(bench_ep *ep, uint64_t *values, int n)
    int bench_via_describe(bench_ep *ep, char *text, size_t room)
    bench_ep *bench_bip_open(const bench_bip_options *options, char *error)
    int bench_bip_card(bench_ep *ep, unsigned char *card, size_t room)
    int bench_bip_connect(bench_ep *ep, const unsigned char *cards, int timeout_ms)
    int bench_bip_counters(bench_ep *ep, uint64_t *values, int n)
    int bench_bip_describe(bench_ep *ep, size_t len, char *text, size_t room)

    ctypedef struct bench_msg_options:
        const char *channel
        const char *policy
        const char *network_device
        const char *address
        int fd
        int side
        bint polled
        double timeout_s
        const unsigned char *secret

    bench_ep *bench_msg_open(const bench_msg_options *options, char *error)
    int bench_msg_counters(bench_ep *ep, uint64_t *values)
    int bench_msg_describe(bench_ep *ep, char *text, size_t room)

cdef extern from "bench/content.h" nogil:
    void bench_content_write(unsigned char *message, size_t len, uint64_t value)
    uint64_t bench_content_sum(const unsigned char *message, size_t len)
    uint64_t bench_content_sum_of(size_t len, uint64_t value)

    double bench_step_call_c "bench_step_call"(int n)
    double bench_step_copy_c "bench_step_copy"(unsigned char *to, const unsigned char *source, size_t len, int n)
    int bench_step_pass_c "bench_step_pass"(int out, int source, unsigned char *buffer, size_t len, int batch,
                                            double *send_s, double *recv_s)
