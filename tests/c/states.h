/*
 * states.h - the pieces of test_states.c: two NICs in one process, a VI that is brought into a state, and the words in
 * which docs/states.md describes what happens to it.
 */
#ifndef STATES_H
#define STATES_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "address.h"
#include "check.h"

#define CELL 160

/* One of the two NICs ("hosts") of a cell. */
typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attr;
    VIP_PROTECTION_HANDLE ptag;
    uint8_t *mem; /* a page: descriptors in the first half, data in the second */
    VIP_MEM_HANDLE mh;
    int closed;
    atomic_int errors[VIP_ERROR_CATASTROPHIC + 1];
} host;

/* A VipConnectRequest in a thread of its own. */
typedef struct {
    pthread_t thread;
    host *from, *to;
    VIP_VI_HANDLE vi;
    const char *discriminator;
    VIP_ULONG timeout_ms;
    VIP_RETURN result;
    atomic_int over;
    int started;
} requester;

typedef struct {
    host a, b;
    VIP_RELIABILITY_LEVEL level;
    VIP_VI_HANDLE vi;      /* on a: the one whose state is looked at (table vi, descriptor) */
    VIP_VI_HANDLE partner; /* on b */
    VIP_CONN_HANDLE conn;  /* of the request of vi to b, until it is answered */
    requester request;
    char effect[CELL / 2]; /* what the other side saw, without the semicolon */
} scene;

void host_open(host *h);
void host_close(host *h);
VIP_VI_HANDLE host_vi(host *h, VIP_RELIABILITY_LEVEL level, VIP_ULONG max_transfer);
VIP_DESCRIPTOR *host_descriptor(host *h, int which, size_t len); /* which: 0..7; one segment, or none for len 0 */
address *host_address(host *h, const char *discriminator, address *room);
void host_wait_error(host *h, VIP_ERROR_CODE code);

void request_start(requester *r, host *from, host *to, VIP_VI_HANDLE vi, const char *discriminator,
                   VIP_ULONG timeout_ms);
VIP_RETURN request_join(requester *r);
VIP_CONN_HANDLE take_request(host *h, const char *discriminator);

const char *state_of(VIP_VI_HANDLE vi); /* "IDLE", ..., "gone" */
void wait_for_state(VIP_VI_HANDLE vi, VIP_VI_STATE state);
const char *short_name(int code); /* VIP_RETURN without VIP_ */

/* The tables. A driver is called for one cell: `row` and `column` as docs/states.md has them. It writes what it saw
 * into `seen`, or "-" if it has no way to make the event happen in that state. Returns 0 for an unknown row. */
typedef int cell_driver(const char *row, int column, char *seen);
cell_driver drive_vi, drive_connection, drive_peer, drive_descriptor;

#endif /* STATES_H */
