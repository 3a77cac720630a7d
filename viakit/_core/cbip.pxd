# cython: language_level=3
"""model.h and job.h as Cython sees them."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "bip/model.h" nogil:
    ctypedef struct bip_model:
        double start
        double packet
        double byte
        double fill

    enum:
        BIP_MIN_PACKET

    uint64_t bip_equal_packets(uint64_t n, uint64_t p)
    double bip_model_time(const bip_model *model, uint64_t n, uint64_t p)
    uint64_t bip_model_best(const bip_model *model, uint64_t n, uint64_t most)
    int bip_table_path(const char *link, char *path, size_t room)

cdef extern from "bip/job.h" nogil:
    enum:
        BIP_ERR_INTERRUPTED
        BIP_ERR_TIMEOUT
        BIP_ERROR_LEN
        BIP_CARD_LEN
        BIP_N_COUNTERS

    ctypedef struct bip_job:
        pass

    ctypedef struct bip_options:
        size_t size
        int rank
        int n_ranks
        const char *job
        const char *host
        const char *local_device
        const char *network_device
        uint32_t n_slots
        uint64_t small
        uint64_t packet
        int strict
        int unreliable
        int checksum
        int blocking
        int spin_us
        int one_core
        int mtu
        int form
        int go_back_n
        const char *faults
        int (*interrupt)(void *context) noexcept nogil
        void *interrupt_context
        const unsigned char *secret

    const char *bip_code_name(int code)
    int bip_open(const bip_options *options, bip_job **job, char *error)
    void bip_card(const bip_job *job, uint8_t *card)
    int bip_connect(bip_job *job, const uint8_t *cards, int timeout_ms)
    int bip_close(bip_job *job, int timeout_ms)
    int bip_isend_bytes(bip_job *job, int dst, int tag, const void *buf, size_t length)
    int bip_stest_id(bip_job *job, int id)
    int bip_swait_id(bip_job *job, int id, int timeout_ms)
    int bip_irecv_bytes(bip_job *job, int tag, void *buf, size_t max_len)
    int bip_rtest_id(bip_job *job, int id, size_t *length, int *node)
    int bip_rwait_id(bip_job *job, int id, size_t *length, int *node, int timeout_ms)
    int bip_rcancel_id(bip_job *job, int id)
    int bip_getmsg(bip_job *job, int tag, const void **buf, size_t *length, int *node, int timeout_ms)
    int bip_freemsg(bip_job *job, int tag)
    int bip_taginit_bytes(bip_job *job, int tag, int n, size_t length)
    const char *bip_error(const bip_job *job)
    size_t bip_small(const bip_job *job, int dst)
    size_t bip_packet(const bip_job *job, int dst, size_t length)
    size_t bip_memory(const bip_job *job)
    void bip_counters(const bip_job *job, uint64_t *values)
    const char *bip_counter_name(int counter)
