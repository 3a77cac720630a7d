/* The cases of test_msg: name, ranks, policy on top of the link's own, links. */
#ifndef MSG_CASES_H
#define MSG_CASES_H

#include "msg_job.h"

#define ON_SHM 1
#define ON_LOOP 2
#define ON_TCP 4 /* and every other channel that is not over VIA */
#define ON_BIP 8
#define ON_VIA (ON_SHM | ON_LOOP)
#define ON_ALL (ON_VIA | ON_TCP | ON_BIP)

#define TIGHT "unexpected_bytes=1M,socket_buffer=256K"

#define LAST_CREDIT "rendezvous=rget,rendezvous_local=rget,credits=63,eager_limit=1K,eager_limit_local=1K"

/* Requests of long messages carry their first bytes. */
#define FIRST_BYTES "rendezvous=r3,eager_limit=8K,eager_limit_local=8K,request_data=4K"

/* Both ranks copy messages of any length that are not sent eagerly. */
#define SHARED "share_from=1,rendezvous=rget,rendezvous_local=rget,eager_limit=1K,eager_limit_local=1K"

/* Through a daemon on each host. Ranks on two hosts have datagrams between them. */
#define DAEMON "route=daemon,spin_us=-1"

#define FEW "pool_bytes=1M,eager_limit=16K"

#define MSG_CASES(X)                                         \
    X(alone, 1, NULL, ON_ALL)                                \
    X(sizes, 2, NULL, ON_ALL)                                \
    X(sizes_rget, 2, "rendezvous=rget", ON_VIA)              \
    X(sizes_r3, 2, "rendezvous=r3", ON_VIA)                  \
    X(sizes_shared, 2, SHARED, ON_VIA)                       \
    X(shared_rooms, 2, SHARED, ON_VIA)                       \
    X(shared_pieces, 2, SHARED ",piece=4K", ON_VIA)          \
    X(shared_forged, 2, SHARED, ON_VIA)                      \
    X(death_shared, 2, SHARED, ON_SHM)                       \
    X(leave_shared, 2, SHARED, ON_VIA)                       \
    X(sizes_first, 2, FIRST_BYTES, ON_ALL)                   \
    X(first_bytes, 2, FIRST_BYTES, ON_ALL)                   \
    X(first_posted, 2, FIRST_BYTES, ON_ALL)                  \
    X(first_order, 3, FIRST_BYTES, ON_ALL)                   \
    X(first_truncation, 2, FIRST_BYTES, ON_ALL)              \
    X(first_probes, 2, FIRST_BYTES, ON_ALL)                  \
    X(first_cancel, 2, FIRST_BYTES, ON_ALL)                  \
    X(first_throttle, 3, TIGHT "," FIRST_BYTES, ON_ALL)      \
    X(first_convert, 2, FIRST_BYTES ",convert=1", ON_ALL)    \
    X(first_copied, 2, FIRST_BYTES ",copy_recv=1", ON_ALL)   \
    X(first_interrupt, 2, FIRST_BYTES, ON_ALL)               \
    X(death_first, 3, FIRST_BYTES, ON_SHM | ON_TCP | ON_BIP) \
    X(daemon_ends, 2, DAEMON, ON_TCP)                        \
    X(daemon_killed, 2, DAEMON, ON_TCP)                      \
    X(daemon_sizes, 2, DAEMON, ON_TCP)                       \
    X(daemon_ring, 5, DAEMON, ON_TCP)                        \
    X(daemon_storm, 8, DAEMON, ON_TCP)                       \
    X(hosts_daemon_sizes, 2, DAEMON, ON_TCP)                 \
    X(hosts_daemon_ring, 4, DAEMON, ON_TCP)                  \
    X(hosts_daemon_order, 3, DAEMON, ON_TCP)                 \
    X(hosts_daemon_storm, 8, DAEMON, ON_TCP)                 \
    X(hosts_daemon_throttle, 3, TIGHT "," DAEMON, ON_TCP)    \
    X(death_daemon, 4, DAEMON, ON_TCP)                       \
    X(leave_daemon, 3, DAEMON, ON_TCP)                       \
    X(ring, 5, NULL, ON_ALL)                                 \
    X(order, 3, "credits=8", ON_ALL)                         \
    X(wildcards, 4, NULL, ON_ALL)                            \
    X(truncation, 2, NULL, ON_ALL)                           \
    X(probes, 2, NULL, ON_ALL)                               \
    X(cancel, 2, NULL, ON_ALL)                               \
    X(retire, 3, NULL, ON_ALL)                               \
    X(modes, 2, NULL, ON_ALL)                                \
    X(arguments, 2, NULL, ON_ALL)                            \
    X(requests, 2, NULL, ON_ALL)                             \
    X(last_credit, 2, LAST_CREDIT, ON_ALL)                   \
    X(late, 2, NULL, ON_VIA)                                 \
    X(contexts, 2, NULL, ON_ALL)                             \
    X(unexpected, 2, NULL, ON_ALL)                           \
    X(throttle, 3, TIGHT, ON_ALL)                            \
    X(outstanding, 2, NULL, ON_ALL)                          \
    X(posted, 2, NULL, ON_ALL)                               \
    X(put, 3, NULL, ON_VIA)                                  \
    X(put_leave, 2, NULL, ON_VIA)                            \
    X(cache, 2, "cache_entries=4", ON_VIA)                   \
    X(storm, 8, NULL, ON_ALL)                                \
    X(many, 64, NULL, ON_SHM | ON_TCP | ON_BIP)              \
    X(few_files, 48, NULL, ON_SHM | ON_BIP)                  \
    X(giant, 2, NULL, ON_ALL)                                \
    X(hosts_ring, 4, NULL, ON_SHM | ON_TCP | ON_BIP)         \
    X(death, 4, NULL, ON_SHM | ON_TCP | ON_BIP)              \
    X(death_long, 3, NULL, ON_SHM | ON_TCP | ON_BIP)         \
    X(leave, 3, NULL, ON_ALL)                                \
    X(interrupt, 2, NULL, ON_ALL)                            \
    X(soon, 2, NULL, ON_ALL)                                 \
    X(ids, 1, NULL, ON_LOOP)                                 \
    X(threads, 2, NULL, ON_ALL)                              \
    X(thread_progress, 2, "progress=thread", ON_ALL)         \
    X(signal_progress, 2, "progress=signal", ON_ALL)         \
    X(sizes_bip, 2, "rendezvous=rget", ON_BIP)               \
    X(ranges, 1, NULL, ON_LOOP)                              \
    X(policies, 2, NULL, ON_SHM)                             \
    X(hosts_credits, 3, FEW, ON_ALL)                         \
    X(put_order, 2, "piece=64K", ON_VIA)                     \
    X(convert, 2, "convert=1", ON_ALL)                       \
    X(giant_piece, 2, "piece=256M", ON_VIA)                  \
    X(forged, 2, NULL, ON_TCP)                               \
    X(close_buffered, 1, NULL, ON_ALL)                       \
    X(death_buffered, 2, NULL, ON_SHM | ON_TCP | ON_BIP)     \
    X(death_next, 3, NULL, ON_SHM | ON_TCP | ON_BIP)         \
    X(death_silent, 2, NULL, ON_SHM)                         \
    X(bound, 2, NULL, ON_SHM | ON_TCP | ON_BIP)              \
    X(address_space, 3, NULL, ON_SHM | ON_BIP)               \
    X(meet_counts, 12, NULL, ON_VIA)                         \
    X(meet_all, 12, "connect=all", ON_VIA)                   \
    X(meet_crossed, 12, NULL, ON_VIA)                        \
    X(meet_any, 12, NULL, ON_VIA)                            \
    X(meet_put, 12, NULL, ON_VIA)                            \
    X(threads_meet, 12, NULL, ON_VIA)                        \
    X(death_unmet, 12, NULL, ON_SHM)                         \
    X(leave_unmet, 12, NULL, ON_VIA)                         \
    X(leave_early, 12, NULL, ON_VIA)                         \
    X(revoke, 3, NULL, ON_ALL)                               \
    X(revoke_rget, 3, "rendezvous=rget", ON_VIA)             \
    X(revoke_unmet, 12, NULL, ON_VIA)

#define X(name, ranks, policy, links) void case_##name(msg_world **world, int rank, int n_ranks);
MSG_CASES(X)
#undef X

extern const char *case_link;
extern int case_bip;

#endif
