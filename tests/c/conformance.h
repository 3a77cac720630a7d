/* conformance.h - the cases of the conformance suite, by file. Each X(name, flags, options) is two functions. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include "harness.h"

/* Option settings that cases require. */
void wrap_soon(viakit_nic_options *o);   /* sequence numbers and queue indices begin just below 2^32 */
void small_rings(viakit_nic_options *o); /* every ring wraps often */

/* cases_connect.c */
#define CONNECT_CASES(X)                \
    X(connect, 0, NULL)                 \
    X(reject, 0, NULL)                  \
    X(no_match, 0, NULL)                \
    X(connect_timeout, 0, NULL)         \
    X(wait_timeout, 0, NULL)            \
    X(accept_mismatch, 0, NULL)         \
    X(discriminators, 0, NULL)          \
    X(two_waiters, 0, NULL)             \
    X(one_nic_alone, CASE_NO_ETH, NULL) \
    X(reconnect, 0, NULL)               \
    X(discover, CASE_NO_FAULT, NULL)    \
    X(many_vis, CASE_NO_FAULT, NULL)

/* cases_message.c, cases_stream.c */
#define MESSAGE_CASES(X)                     \
    X(zero, 0, NULL)                         \
    X(sizes, 0, NULL)                        \
    X(maximal, 0, NULL)                      \
    X(too_long_to_send, CASE_NO_FAULT, NULL) \
    X(too_long_to_receive, 0, NULL)          \
    X(order, 0, NULL)                        \
    X(segments, 0, NULL)                     \
    X(immediate, 0, NULL)                    \
    X(both_ways, 0, NULL)                    \
    X(ring_wrap, 0, small_rings)             \
    X(psn_wrap, 0, wrap_soon)                \
    X(unreliable_faults, 0, NULL)

/* cases_rdma.c */
#define RDMA_CASES(X)          \
    X(rdma_write, 0, NULL)     \
    X(rdma_shifted, 0, NULL)   \
    X(rdma_immediate, 0, NULL) \
    X(rdma_bounds, 0, NULL)    \
    X(rdma_denied, 0, NULL)    \
    X(rdma_spin, 0, NULL)      \
    X(rdma_empty_queue, 0, NULL)

/* cases_read.c, cases_read_error.c */
#define READ_CASES(X)                    \
    X(rdma_read, 0, NULL)                \
    X(read_largest, CASE_NO_FAULT, NULL) \
    X(read_many, 0, NULL)                \
    X(read_after_write, 0, NULL)         \
    X(read_fence, 0, NULL)               \
    X(read_let_go, 0, NULL)              \
    X(read_told, 0, NULL)                \
    X(read_denied, 0, NULL)              \
    X(read_format, 0, NULL)              \
    X(read_deregistered, 0, NULL)        \
    X(read_killed, CASE_NO_LOOP | CASE_KILLS_B, NULL)

/* cases_error.c */
#define ERROR_CASES(X)                                     \
    X(bad_descriptor, 0, NULL)                             \
    X(bad_format, 0, NULL)                                 \
    X(bad_memory, 0, NULL)                                 \
    X(deregister_posted, 0, NULL)                          \
    X(no_receive, 0, NULL)                                 \
    X(disconnect_posted, 0, NULL)                          \
    X(peer_killed, CASE_NO_LOOP | CASE_KILLS_B, NULL)      \
    X(peer_killed_idle, CASE_NO_LOOP | CASE_KILLS_B, NULL) \
    X(close_with_everything, 0, NULL)

/* cases_memory.c */
#define MEMORY_CASES(X)  \
    X(null_tag, 0, NULL) \
    X(receive_past_region, 0, NULL)

/* cases_wait.c */
#define WAIT_CASES(X)                  \
    X(wait_timeouts, 0, NULL)          \
    X(sleeper_woken, 0, NULL)          \
    X(completion_queue, 0, wrap_soon)  \
    X(cq_wait_thread, 0, NULL)         \
    X(interrupted, 0, NULL)            \
    X(no_thread, CASE_NO_THREAD, NULL) \
    X(opened_twice, CASE_NO_ETH, NULL)

/* cases_peer.c */
#define PEER_CASES(X)               \
    X(peer_connect, 0, NULL)        \
    X(peer_handler, 0, NULL)        \
    X(one_nic, 0, NULL)             \
    X(peer_names, 0, NULL)          \
    X(peer_mismatch, 0, NULL)       \
    X(peer_timeout, 0, NULL)        \
    X(peer_self, CASE_NO_ETH, NULL) \
    X(peer_crowd, 0, NULL)

/* cases_notify.c */
#define NOTIFY_CASES(X)                    \
    X(notify_queues, 0, NULL)              \
    X(notify_polled, CASE_NO_THREAD, NULL) \
    X(notify_cq, 0, NULL)                  \
    X(cq_tags, 0, NULL)                    \
    X(deferred, 0, NULL)

/* cases_secret.c */
#define SECRET_CASES(X)         \
    X(secret_right, 0, NULL)    \
    X(secret_wrong, 0, NULL)    \
    X(secret_mismatch, 0, NULL) \
    X(secret_tampered, 0, NULL) \
    X(secret_replayed, 0, NULL) \
    X(secret_forged, 0, NULL)   \
    X(secret_unconfirmed, 0, NULL)

#define ALL_CASES(X) \
    NOTIFY_CASES(X)  \
    CONNECT_CASES(X) \
    PEER_CASES(X)    \
    SECRET_CASES(X) MESSAGE_CASES(X) RDMA_CASES(X) READ_CASES(X) ERROR_CASES(X) MEMORY_CASES(X) WAIT_CASES(X)

#define DECLARE(name, flags, options) \
    void name##_a(side *s);           \
    void name##_b(side *s);
ALL_CASES(DECLARE)
#undef DECLARE

#endif /* CONFORMANCE_H */
