/*
 * harness.h - a pair of endpoints on any link, for tests that do not care which.
 *
 * A test program is a table of cases. A case has an A side (the client) and a B side (the server); each side opens a
 * NIC of its own. On `loop` the sides are two threads of one process, on `shm` and `udp...-lo` two processes. On `eth`
 * and `udp` they are two processes in two network namespaces joined by a veth pair. The sides share nothing but the
 * link and a control channel (a socket pair), by which they agree when to go on.
 *
 * Link names on the command line: that of any link, or a variant of one: shm-mapped | shm-ring | eth-auto | eth-plain |
 * eth-udp | udp6 | udp-lo | udp6-lo. "shm-mapped" takes test memory from viakit_alloc, and "shm-ring" forbids every
 * direct copy. "-9000" may follow (eth, udp: the MTU, otherwise 1500), and then "+fault". With faults both sides lose,
 * double and reorder 5 % of their frames each, and corrupt 1 %. The seed of the faults is printed, and taken from
 * VIAKIT_TEST_SEED if that is set.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "address.h"
#include "check.h"
#include "viakit.h"

typedef struct {
    char name[32];
    const viakit_link_info *about;
    enum {
        ON_LOOP,
        ON_SHM,
        ON_ETH,
        ON_UDP
    } kind; /* by its properties; from ON_ETH on: a network, which may lose frames */
    viakit_form form;
    int ipv6, one_host; /* udp: the kind of address; by the loopback interface */
    int mtu;
    int mapped, ring_only; /* shm: how test memory may be reached */
    int fault;
} link_spec;

struct side;
typedef void side_function(struct side *s);

enum {
    CASE_NO_LOOP = 1, /* needs two processes */
    CASE_NO_ETH = 2,  /* about one process, or one host */
    CASE_ONLY_ETH = 4,
    CASE_NO_FAULT = 8,      /* looks at behaviour that faults change by design */
    CASE_KILLS_B = 16,      /* B ends by SIGKILL */
    CASE_NO_THREAD = 32,    /* NICs without a progress thread */
    CASE_ONLY_NETWORK = 64, /* two hosts with an interface each */
    CASE_ONLY_UDP = 128
};

typedef struct {
    const char *name;
    side_function *a, *b;
    unsigned flags;
    void (*options)(viakit_nic_options *options); /* NULL: defaults */
} test_case;

typedef enum { SIDE_A = 0, SIDE_B = 1 } side_role;

/* Everything one side of a case knows. Owned by the thread that runs it; the error counts are atomic because error
 * handlers run on the NIC's own thread. */
typedef struct side {
    side_role role;
    const link_spec *link;
    const test_case *test;
    int ctl;         /* control channel */
    pid_t peer_pid;  /* of the other side's process; own pid on loop */
    char device[64]; /* what VipOpenNic was given */
    viakit_nic_options options;
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attr;
    uint8_t peer_host[6]; /* the other side's host address */
    int n_levels;         /* reliability levels on which no lone message may be lost here */
    int n_burst_levels;   /* ... and not even hundreds at once, which are too much for a receive ring on a wire */
    VIP_RELIABILITY_LEVEL levels[3];
    atomic_int errors[VIP_ERROR_CATASTROPHIC + 1]; /* asynchronous errors so far, by code */
    VIP_ERROR_DESCRIPTOR last_error;               /* valid after the count was seen to rise */
} side;

int harness_main(int argc, char **argv, const test_case *cases, size_t n_cases);

/* ---------------------------------------------------------------- the control channel */

void side_send(side *s, const void *data, size_t len);
void side_recv(side *s, void *data, size_t len);
uint64_t side_exchange(side *s, uint64_t own); /* gives one number, gets the other side's */
void side_sync_at(side *s, int line);          /* both sides are here; fails if they are in different places */
#define SIDE_SYNC(s, tag) side_sync_at((s), (tag))

/* ---------------------------------------------------------------- addresses */

VIP_NET_ADDRESS *make_address(address *a, const uint8_t host[6], const void *discriminator, size_t len);
/* `a` has six bytes: the port goes between them and the discriminator. The port is the NIC's number at its station,
 * which viakit_query_nic returns. Several NICs may share the six bytes. */
void add_port(address *a, uint16_t port);

/* ---------------------------------------------------------------- one VI with memory around it */

/* One registered region holds descriptors and buffers, handed out upwards, with GUARD bytes of 0xA5 around each. */
#define GUARD 64

typedef struct {
    side *s;
    VIP_PROTECTION_HANDLE ptag;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES attr; /* as created */
    uint8_t *mem;
    size_t size, used;
    VIP_MEM_HANDLE mh;
    size_t n_buffers, max_buffers;
    struct {
        uint8_t *start;
        size_t len;
    } *buffers;
} endpoint;

/* Tag, region of at least `size` bytes of room for buffers (RDMA write allowed), VI. CQs may be NULL. */
void endpoint_open(endpoint *e, side *s, VIP_RELIABILITY_LEVEL level, size_t size);
void endpoint_open_with(endpoint *e, side *s, VIP_RELIABILITY_LEVEL level, size_t size, size_t max_transfer,
                        VIP_CQ_HANDLE send_cq, VIP_CQ_HANDLE recv_cq);
void endpoint_close(endpoint *e); /* disconnects, drains, checks guards, destroys */

/* A connects to B; both sides call it with the same words. B must call it, too: it waits and accepts. */
void endpoint_connect(endpoint *e, const char *discriminator);
void endpoint_accept(endpoint *e, const char *discriminator); /* B's half: waits for one request, and accepts it */
void endpoint_disconnect(endpoint *e); /* both sides, after a sync; the VI is IDLE and both queues are empty */

VIP_VI_STATE vi_state(VIP_VI_HANDLE vi);
void wait_state(endpoint *e, VIP_VI_STATE state);
int drain(VIP_VI_HANDLE vi); /* takes everything completed off both queues; number of descriptors */

uint8_t *buffer(endpoint *e, size_t len);                     /* guarded, 64-byte aligned, filled with 0xEE */
VIP_DESCRIPTOR *descriptor(endpoint *e, unsigned n_segments); /* zeroed, 64-byte aligned */
void check_guards(endpoint *e);

/* ---------------------------------------------------------------- descriptors and messages */

VIP_DESCRIPTOR *prep_send(endpoint *e, VIP_DESCRIPTOR *d, const void *data, size_t len);
VIP_DESCRIPTOR *prep_recv(endpoint *e, VIP_DESCRIPTOR *d, void *data, size_t len);
VIP_DESCRIPTOR *prep_write(endpoint *e, VIP_DESCRIPTOR *d, const void *data, size_t len, uint64_t remote,
                           VIP_MEM_HANDLE handle);
void post_send(endpoint *e, VIP_DESCRIPTOR *d);
void post_recv(endpoint *e, VIP_DESCRIPTOR *d);

/* Polls until the queue's head is `d`, completed with exactly `status` (VIP_STATUS_DONE is added). */
void reap_send(endpoint *e, VIP_DESCRIPTOR *d, uint32_t status);
void reap_recv(endpoint *e, VIP_DESCRIPTOR *d, uint32_t status);
/* Polls until the head is completed, and returns it whatever its status. */
VIP_DESCRIPTOR *next_send(endpoint *e);
VIP_DESCRIPTOR *next_recv(endpoint *e);

/* Bytes that depend on seed and position; no two seeds agree for long. */
void pattern_fill(void *data, size_t len, uint64_t seed);
void pattern_check(const void *data, size_t len, uint64_t seed);
uint64_t random_next(uint64_t *state);

int error_count(side *s, VIP_ERROR_CODE code);
void wait_error(side *s, VIP_ERROR_CODE code, int count); /* until it was reported at least so often */
uint64_t nic_counter(side *s, viakit_counter counter);
int nic_thread_sleeps(void); /* at this moment; for processes with one NIC */

#endif /* HARNESS_H */
