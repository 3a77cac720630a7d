/*
 * test_queue.c - how eth receives super-frames: test_queue LINK [CASE...].
 *
 * The kernel keeps them in the socket's queue, from where their payload goes to its place, or in long slots, from where
 * the provider copies it. The number of slots that is requested decides, because net.core.rmem_max limits the queue.
 */
#include <sys/socket.h>

#include "harness.h"
#include "netns.h"

#define MESSAGE (1u << 20)
#define N_MESSAGES 8
#define MEMORY 73728u /* that a super-frame may take of a receive buffer (SUPER_MEMORY in link/eth_open.c) */

/* The peer's end of a connection is an error that no case waits for. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    CHECK_EQ(error->ErrorCode, VIP_ERROR_CONN_LOST);
}

static void reopen(side *s, uint32_t ring_slots)
{
    CHECK_OK(VipCloseNic(s->nic));
    SIDE_SYNC(s, 1);
    s->options.ring_slots = ring_slots;
    if (viakit_open_nic(s->device, &s->options, &s->nic) != VIP_SUCCESS)
        FAIL("cannot open %s", s->device);
    CHECK_OK(VipErrorCallback(s->nic, s, on_error));
    SIDE_SYNC(s, 2);
}

/* Returns whether a socket gets a receive buffer for n super-frames. */
static int grants(uint32_t n)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0), bytes = (int)(n * MEMORY / 2), granted = 0;
    socklen_t len = sizeof(granted);
    CHECK(fd >= 0);
    CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes)), 0);
    CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &granted, &len), 0);
    close(fd);
    return (uint32_t)granted >= n * MEMORY;
}

/* Takes B's interface down and up. Its sockets report the error with the next call. */
static void interrupt(side *s)
{
    for (int i = 0; i < 4 && s->role == SIDE_B; i++) {
        usleep(1000);
        CHECK_EQ(netns_set_up(0), 0);
        CHECK_EQ(netns_set_up(1), 0);
    }
}

/* Sends messages of len bytes from A to B by one connection, all posted at once. meanwhile, if not NULL, runs on both
 * sides. */
static void pass_of(side *s, size_t len, uint64_t seed, void (*meanwhile)(side *))
{
    endpoint e;
    VIP_DESCRIPTOR *d[N_MESSAGES];
    uint8_t *data[N_MESSAGES];
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, (N_MESSAGES + 1) * len);
    for (int i = 0; i < N_MESSAGES; i++) {
        d[i] = descriptor(&e, 1);
        data[i] = buffer(&e, len);
        if (s->role == SIDE_B)
            post_recv(&e, prep_recv(&e, d[i], data[i], len));
        else
            pattern_fill(data[i], len, seed + (uint64_t)i);
    }
    endpoint_connect(&e, "queue");
    SIDE_SYNC(s, 3);
    for (int i = 0; i < N_MESSAGES && s->role == SIDE_A; i++)
        post_send(&e, prep_send(&e, d[i], data[i], len));
    if (meanwhile)
        meanwhile(s);
    for (int i = 0; i < N_MESSAGES; i++) {
        if (s->role == SIDE_A) {
            reap_send(&e, d[i], VIP_STATUS_OP_SEND);
            continue;
        }
        reap_recv(&e, d[i], VIP_STATUS_OP_RECEIVE);
        CHECK_EQ(d[i]->CS.Length, len);
        pattern_check(data[i], len, seed + (uint64_t)i);
    }
    SIDE_SYNC(s, 4);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void pass(side *s, uint64_t seed, void (*meanwhile)(side *))
{
    pass_of(s, MESSAGE, seed, meanwhile);
}

/* The provider copies the payload of long slots, and of the queue's super-frames little more than the first segment. */
static void copies(side *s)
{
    static const uint32_t slots[] = {0, 256, 64};
    for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
        reopen(s, slots[i]);
        pass(s, 100 * i, NULL);
        if (s->role == SIDE_A)
            continue;
        uint64_t copied = nic_counter(s, VIAKIT_COUNTER_bytes_copied), sent = (uint64_t)N_MESSAGES * MESSAGE;
        if (grants(slots[i] ? slots[i] : 113))
            CHECK(copied < sent / 4);
        else
            CHECK(copied > sent / 10 * 9);
    }
}

/* Messages of 64 KiB have one full super-frame each. All but the first are received from the queue, because the one
 * before was not acknowledged when they were sent. */
static void stream(side *s)
{
    const size_t len = 64 << 10;
    reopen(s, 0);
    pass_of(s, len, 5000, NULL);
    if (s->role == SIDE_B && grants(113))
        CHECK(nic_counter(s, VIAKIT_COUNTER_bytes_copied) < N_MESSAGES * len / 2);
}

/* The queue has room for two super-frames, and the sender has a window of 64. */
static void full(side *s)
{
    reopen(s, s->role == SIDE_A ? 0 : 2);
    for (uint64_t round = 0; round < 3; round++)
        pass(s, 1000 + 10 * round, NULL);
    if (s->role == SIDE_B)
        CHECK(nic_counter(s, VIAKIT_COUNTER_dropped_ring_full) > 0);
}

/* An error of the socket takes no super-frame out of the queue: the next slots must not get those of their
 * predecessors. */
static void down(side *s)
{
    uint64_t before;
    reopen(s, 0);
    for (uint64_t round = 0; round < 5; round++)
        pass(s, 2000 + 10 * round, interrupt);
    before = nic_counter(s, VIAKIT_COUNTER_bytes_copied);
    pass(s, 3000, NULL);
    if (s->role == SIDE_B && grants(113))
        CHECK(nic_counter(s, VIAKIT_COUNTER_bytes_copied) - before < (uint64_t)N_MESSAGES * MESSAGE / 4);
}

static const test_case cases[] = {
    {"copies", copies, copies, CASE_ONLY_ETH, NULL},
    {"stream", stream, stream, CASE_ONLY_ETH, NULL},
    {"full", full, full, CASE_ONLY_ETH, NULL},
    {"down", down, down, CASE_ONLY_ETH, NULL},
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
