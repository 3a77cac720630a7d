# cython: language_level=3
"""msg.h and policy.h as Cython sees them, as far as the communicator needs them."""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t

cdef extern from "msg/mpi_exit.h" nogil:
    int msg_mpi_exit_can()
    int msg_mpi_exit(const char *library, uintptr_t world, uintptr_t own, int grace_ms)

cdef extern from "msg/msg.h" nogil:
    enum:
        MSG_SUCCESS
        MSG_PENDING
        MSG_TIMEOUT
        MSG_INTERRUPTED
        MSG_ERR_ARG
        MSG_ERR_RANK
        MSG_ERR_CONTEXT
        MSG_ERR_PROC_FAILED
        MSG_ERR_LEFT
        MSG_ERR_STATE
        MSG_ERR_PROCESS
        MSG_ERR_COLLECTIVE
        MSG_ERR_REVOKED
        MSG_ERR_NOT_SUPPORTED
        MSG_ERR_CHANNEL
        MSG_ANY_SOURCE
        MSG_ANY_TAG
        MSG_PROC_NULL
        MSG_ERROR_LEN
        MSG_SECRET_LEN
        MSG_N_ERRORS
        MSG_N_COUNTERS
    const int64_t MSG_FOREVER
    ctypedef enum msg_mode:
        MSG_STANDARD
        MSG_SYNCHRONOUS
        MSG_BUFFERED
        MSG_READY
    ctypedef struct msg_world:
        pass
    ctypedef struct msg_request:
        pass
    ctypedef struct msg_message:
        pass
    ctypedef struct msg_status:
        int source
        int tag
        int error
        int cancelled
        size_t len
        uint64_t id
    ctypedef int (*msg_exchange)(void *context, const void *mine, size_t len, void *all) noexcept nogil
    ctypedef struct msg_options:
        size_t size
        int rank
        int n_ranks
        const msg_policy *policy
        msg_exchange exchange
        void *exchange_context
        const char *host
        const char *local_device
        const char *network_device
        const char *address
        int threads
        int64_t open_timeout_ms
        int (*interrupt)(void *context) noexcept nogil
        void *interrupt_context
        const unsigned char *secret

    const char *msg_error_name(int code)
    const char *msg_error_text(int code)
    int msg_world_open(const msg_options *options, msg_world **world, char *error)
    int msg_world_close(msg_world *world, int64_t timeout_ms)
    void msg_world_abort(msg_world *world)
    const msg_policy *msg_world_policy(const msg_world *world)
    const char *msg_last_error(const msg_world *world)
    const char *msg_peer_route(const msg_world *world, int rank)

    int msg_isend(msg_world *world, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode,
                  msg_request **request)
    int msg_irecv(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_request **request)
    int msg_send(msg_world *world, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode)
    int msg_recv(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_status *status)
    int msg_send_now(msg_world *world, int context, const void *buf, size_t len, int dst, int tag)
    int msg_recv_soon(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_status *status,
                      msg_request **request)
    int msg_recv_rest(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_status *status,
                      msg_request *request)
    size_t MSG_BUFFER_AUTOMATIC
    int msg_buffer_attach(msg_world *world, void *buf, size_t len)
    int msg_buffer_detach(msg_world *world, void **buf, size_t *len)

    int msg_test(msg_world *world, msg_request **request, msg_status *status)
    int msg_wait(msg_world *world, msg_request **request, msg_status *status, int64_t timeout_ms)
    int msg_wait_soon(msg_world *world, msg_request **request, msg_status *status)
    int msg_request_peek(const msg_world *world, const msg_request *request, msg_status *status)
    int msg_cancel(msg_world *world, msg_request *request)

    int msg_probe(msg_world *world, int context, int src, int tag, msg_status *status, int64_t timeout_ms)
    int msg_mprobe(msg_world *world, int context, int src, int tag, msg_message **message, msg_status *status,
                   int64_t timeout_ms)
    int msg_imrecv(msg_world *world, msg_message **message, void *buf, size_t len, msg_request **request)

    int msg_probe_other_tag(msg_world *world, int context, int mask, int tag, msg_status *status)
    int msg_discard(msg_world *world, int context, int mask, int tag)
    void msg_retire(msg_world *world, int context, int n)
    int msg_progress(msg_world *world)
    int msg_idle(msg_world *world, int64_t timeout_ms)
    ctypedef struct msg_scope:
        msg_world *world
        int revoked
    int msg_scope_open(msg_world *world, msg_scope *scope, int context, int n, uint64_t id)
    void msg_scope_close(msg_scope *scope)
    void msg_scopes_end(msg_world *world)
    int msg_revoke(msg_scope *scope, const int *ranks, int n)
    int msg_failures(msg_world *world, int *ranks, int room)
    void msg_failures_ack(msg_world *world)
    void msg_counters(msg_world *world, uint64_t *values)
    const char *msg_counter_name(int counter)
    int msg_nic_counters(msg_world *world, uint64_t *values)

cdef extern from "msg/calibration.h" nogil:
    int msg_calibration_path(const char *link, char *path, size_t room)

cdef extern from "msg/policy.h" nogil:
    ctypedef struct msg_policy:
        size_t size
        char *name
        char *channel
    const msg_policy *msg_policy_at(int i)
    const msg_policy *msg_policy_find(const char *name)
    int msg_policy_parse(msg_policy *policy, const char *text, char *error)
    const char *msg_policy_field_name(int i)
    int64_t msg_policy_get(const msg_policy *policy, int i)
