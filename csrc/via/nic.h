/*
 * nic.h - a NIC: its link, its objects, the thread that drives it and the threads that sleep (objects/nic.c).
 *
 * Only the NIC's owner (own.h) touches these fields, unless a contract states otherwise.
 */
#ifndef VIAKIT_VIA_NIC_H
#define VIAKIT_VIA_NIC_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "base/budget.h"
#include "base/pool.h"
#include "link/link.h"
#include "via/limits.h"
#include "via/own.h"
#include "via/pending.h"
#include "viakit.h"

struct via_allocation;
struct via_cq;
struct via_discovery;
struct via_reorder_group;
struct via_observer;
struct via_peering;
struct via_ptag;
struct via_region;
struct via_tap;
struct via_vi;

struct via_event {
    VIP_ERROR_DESCRIPTOR error;
};
#define VIA_MAX_EVENTS 1024

/* Owner of every field: the NIC's owner, unless another one is named. Times are ns of vk_now(), lengths are bytes.
 * Lists are linked by the members' own `next`, and hold no reference: an object leaves them before it is freed.
 *
 * The fields before `ops` survive the NIC. A call with an old handle reads `object`, `own` and `pid` (enter.h). */
struct via_nic {
    struct vk_object object;
    struct via_own own __attribute__((aligned(VK_CACHE_LINE)));
    int pid;                        /* the process that opened it */
    int inspectable;                /* fully open, and counted by inspect.c, which reads this before it enters */
    const struct link_ops *ops;     /* zeroed from here on when a slot is reused */
    struct link_client link_client; /* the NIC as seen by its link */
    struct link *link;
    struct link_limits limits;
    size_t n_failed_peers;      /* entries of failed_peers, below */
    char trouble[LINK_TROUBLE]; /* the link's last permanent failure */
    uint64_t polls;             /* free-running; the NIC's thread watches it */
    uint32_t idle;              /* consecutive polls that found nothing */
    int closing;
    int checksum;           /* frames need a CRC32C ... */
    int checksum_verified;  /* ... of the header alone, while the link has verified the rest */
    uint64_t whole_message; /* first word of a frame that is a whole message for this NIC, without length and VI */
    viakit_nic_options options;
    uint32_t long_window;    /* how far a VI's window may grow over a long wire, link sends; at least options.window */
    uint8_t window_may_grow; /* the program has not requested a window */
    char device[64];         /* the device */
    char name[64];           /* the name that the program passed to VipOpenNic */

    struct via_vi **vi_by_number; /* [VIA_MAX_VI] */
    uint32_t next_vi_number, n_vis, n_cqs;
    struct via_vi *vis;
    struct via_cq *cqs;
    struct via_vi *ack_list, *stall_list, *answer_list;
    struct via_tap *tap;                    /* owned by the observer; NULL: no capture */
    const struct via_observer *observer;    /* NULL: the NIC is not observed */
    struct via_reorder_group *reorder_free; /* groups for out-of-order frames that no VI uses at present */
    uint32_t n_reorder_groups;              /* groups that exist, used and free */

    struct via_region *regions;   /* [VIA_MAX_REGIONS] */
    struct via_region *published; /* the copy that peers see; NULL: none */
    uint32_t region_free, region_touched, n_regions;
    uint32_t
        region_epoch; /* increases when a region is removed or changed: grants found before it must be checked again */
    struct via_allocation *allocations; /* by viakit_alloc, not freed yet */
    uint64_t bytes_registered, bytes_pinned;
    struct via_ptag *ptags[VIA_MAX_PTAGS];
    uint32_t n_ptags;

    struct via_waiter *waiters;
    struct {
        uint64_t until; /* ns */
        uint16_t port;
    } no_room[8]; /* see report_no_address_space in link.h; the oldest entry is replaced */
    uint32_t n_no_room;
    uint16_t echo; /* while a frame of a handshake is handled: the time in it, for replies (conn.c); else 0 */
    struct via_request *requests;
    struct via_conn *conns, *oldest_conn; /* the newest one, from which `next` leads to the oldest */
    struct via_conn *conns_by_hash[VIA_CONN_HASHES];
    uint32_t n_conns, n_refused;
    uint32_t n_neighbours;        /* NICs of this station when last counted, for NOMATCH ... */
    struct vk_budget counting;    /* ... and how often they may be counted */
    uint32_t refused[64];         /* the last requests answered NOMATCH: a late copy of one is not accepted */
    struct via_peering *peerings; /* peer requests, oldest first */
    struct via_peer_refusal peer_refusals[VIA_PEER_REFUSALS]; /* the last refusals, to repeat them */
    uint32_t n_peer_refusals;
    struct via_discovery *discoveries; /* calls that search for NICs on the wire (discover.c) */
    uint8_t *discovered;               /* the result of the last one: the program has its address */
    char *hosts_file;                  /* passed to VipNSInit, or NULL */

    /* time */
    uint64_t now;       /* when the clock was last read */
    uint64_t timers_at; /* when the next timer is due; VK_NEVER. The NIC's thread reads it ... */
    uint64_t
        acks_at; /* ... and this: when the first VI of ack_list must send its acknowledgement by itself; VK_NEVER */

    /* sleeping (engine.c, wait.c) */
    int wake_fd, waiter_fd; /* eventfds: wake the NIC's thread / the waiting call that sleeps on data_fd */
    int data_fd, control_fd;
    int has_thread;
    pthread_t thread;
    uint32_t sleeper;              /* sleeping on data_fd: 0 no thread, 1 the NIC's thread, 2 a waiting call */
    uint32_t sleeper_thread;       /* its via_thread_id */
    uint64_t sleep_until;          /* when it will wake */
    uint32_t n_calls;              /* calls in a wait, spinning ones included: the NIC cannot be freed */
    uint32_t n_waiting;            /* calls in a sleeping wait */
    uint32_t listeners;            /* n_waiting + n_notifications: how many want completions reported */
    uint32_t n_queue_waits;        /* calls in VipSendWait and VipRecvWait */
    uint32_t event_word;           /* futex of the waiting calls that do not sleep on data_fd ... */
    uint32_t n_followers;          /* ... and the number of calls that sleep on it */
    uint32_t thread_in_long_sleep; /* the thread is in a long sleep: wake it when the program leaves */

    /* the thread's next check whether the program polls (postpone_check in engine.c) */
    int check_fd;             /* timerfd ... */
    uint64_t check_at;        /* ... and when it expires, ns */
    uint64_t postponed_at;    /* when a poll last postponed it, ns ... */
    uint64_t postponed_by;    /* ... and by how much */
    uint64_t postponed_polls; /* `polls` then */

    /* asynchronous errors */
    VIP_ERROR_HANDLER handler;
    VIP_PVOID handler_context;
    viakit_peer_request_handler request_handler; /* of peer requests that match no VI; NULL: none */
    void *request_context;
    struct via_event *events; /* [VIA_MAX_EVENTS] */
    uint32_t events_head, events_tail;
    struct via_notification *notifications; /* requested, oldest first (notify.c) */
    uint32_t n_notifications;
    uint32_t notify_due; /* a notification may have a completion to report */

    int lossy;                  /* the decorator is installed: new connections do not treat the link as lossless */
    int discards_arrivals;      /* arriving frames are dropped; set only while the decorator polls */
    struct link_flat *deferred; /* control frames that did not fit on the link */
    uint32_t n_deferred;

    struct link_peer *failed_peers[VIA_FAILED_PEERS]; /* the link reported a permanent failure on the routes to them */

    uint64_t counters[VIAKIT_N_COUNTERS];
};

#define NIC_COUNT(nic, name, n) ((nic)->counters[VIAKIT_COUNTER_##name] += (uint64_t)(n))

extern struct vk_pool via_nic_pool, via_vi_pool, via_cq_pool, via_ptag_pool, via_conn_pool;
extern int via_process_id; /* getpid() without the system call; updated in the child of a fork. */
extern uint32_t via_n_regions_live, via_n_allocations_live;

/* Fills in the result of viakit_query_nic. The caller is the owner. */
void via_nic_info(struct via_nic *nic, viakit_nic_info *info);

/* Become and cease to be the owner. Entering spins while another thread is inside (own.h), and is not recursive. */
static inline void via_enter(struct via_nic *nic)
{
    via_own_enter(&nic->own);
}
static inline void via_leave(struct via_nic *nic)
{
    via_own_leave(&nic->own);
}

#endif
