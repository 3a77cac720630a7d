/*
 * bip_cases_life.c - cases of test_bip: ranks that leave, that are killed, and that are interrupted.
 *
 * An orderly exit (LEFT) ends all waits for that rank or for any rank. A death (PEER) ends all waits. The shared word
 * `flag` and /proc order the events, because messages cannot: their senders are gone.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "bip_cases.h"
#include "process.h"

/* A rank leaves in order. The others go on. Only waits for that rank, or for any rank, end. */
void case_leaves(int rank, int n)
{
    char c = 1;
    size_t len;
    int node, id;
    (void)n;
    if (rank == 2) {
        send_to(0, 1, &c, 1); /* has to arrive though we leave at once */
        return;
    }
    if (rank == 0) {
        CHECK_EQ(recv_from(1, &c, 1, &node), 1);
        CHECK_EQ(node, 2);
        int code;
        double end = check_now() + CHECK_WAIT_S;
        /* Sends succeed until word of the leaving has come. */
        while ((code = bip_isend_bytes(job, 2, 1, &c, 1)) >= 0 && check_now() < end)
            if (bip_swait_id(job, code, 100) == BIP_ERR_LEFT) {
                code = BIP_ERR_LEFT;
                break;
            }
        CHECK_EQ(code, BIP_ERR_LEFT);
        /* Ranks 0 and 1 go on with each other. */
        send_to(1, 5, &c, 1);
        CHECK_EQ(recv_from(6, &c, 1, NULL), 1);
    } else {
        CHECK_EQ(recv_from(5, &c, 1, NULL), 1);
        send_to(0, 6, &c, 1);
        /* Only rank 0 is left to send with tag 7, and it leaves as well. */
        OK(id = bip_irecv_bytes(job, 7, &c, 1));
        GIVES(bip_rwait_id(job, id, &len, &node, WAIT_MS), BIP_ERR_LEFT);
    }
}

/* A rank is killed in the middle of traffic: all waits end with an error. */
void case_killed(int rank, int n)
{
    static char buf[1 << 20];
    char c = 0;
    size_t len;
    int node, id, s;
    meet(rank, n);
    vk_add(flag, 1);
    if (rank == 1) { /* not before the others have received all of it */
        WAIT_UNTIL(bip_progress(job) >= 0 && vk_load_acquire(flag) == n);
        raise(SIGKILL);
    }
    /* Rank 0 waits for a long send to the dead one and for a receive from any rank, the others only for the latter. */
    if (rank == 0) {
        OK(id = bip_irecv_bytes(job, 7, &c, 1));
        s = bip_isend_bytes(job, 1, 1, buf, sizeof buf);
        if (s >= 0)
            s = bip_swait_id(job, s, WAIT_MS);
        CHECK_EQ(s, BIP_ERR_PEER);
        GIVES(bip_rwait_id(job, id, &len, &node, WAIT_MS), BIP_ERR_PEER);
        CHECK(strstr(bip_error(job), "rank 1 died") != NULL);
        GIVES(bip_isend_bytes(job, 1, 1, buf, 1), BIP_ERR_PEER);
    } else {
        OK(id = bip_irecv_bytes(job, 1, &c, 1));
        GIVES(bip_rwait_id(job, id, &len, &node, WAIT_MS), BIP_ERR_PEER);
    }
}

/* Looks at the link once. Has the NIC a VI that is connected? */
static int is_connected(VIP_NIC_HANDLE nic)
{
    static char text[1 << 16];
    size_t len;
    CHECK_OK(viakit_poll(nic, NULL));
    CHECK_OK(viakit_snapshot(nic, text, sizeof text, &len));
    return strstr(text, "\"connected\"") != NULL;
}

/* The receiver dies while most of this rank's buffers are in flight. The rank detects it only when it needs a buffer:
 * that send ends, and later sends do not wait for it. */
void case_killed_full(int rank, int n)
{
    static char buf[1 << 20];
    (void)n;
    if (rank == 1) {
        pid_t me = getpid();
        send_to(0, 1, &me, sizeof me);
        recv_from(1, buf, 1, NULL); /* it has arrived */
        WAIT_UNTIL(bip_progress(job) >= 0 && vk_load_acquire(flag));
        raise(SIGSTOP);
        return;
    }
    pid_t other;
    recv_from(1, &other, sizeof other, NULL);
    send_to(1, 1, buf, 1);
    WAIT_UNTIL(bip_progress(job) >= 0 && !bip_unsettled(job)); /* acknowledged: all buffers are free */
    vk_store_release(flag, 1);
    WAIT_UNTIL(bip_progress(job) >= 0 && process_state(other) == 'T');
    int last = 0;
    /* 60 of them are under way to a process that takes none. Its death comes on top. */
    for (int i = 0; i < 60; i++)
        OK(last = bip_isend_bytes(job, 1, 2, buf, 100));
    kill(other, SIGKILL);
    WAIT_UNTIL(!is_connected(bip_nic(job, 1))); /* no call of BIP meanwhile: only the NIC detects it */
    /* The first send detects the death. The second must not wait for the resources of the first. */
    for (int i = 0; i < 2; i++) {
        int id = bip_isend_bytes(job, 1, 3, buf, sizeof buf);
        if (id == BIP_ERR_BUSY) { /* the last one found no buffer: then it is what learns of it */
            CHECK_EQ(bip_swait_id(job, last, WAIT_MS), BIP_ERR_PEER);
            continue;
        }
        CHECK_EQ(id < 0 ? id : bip_swait_id(job, id, WAIT_MS), BIP_ERR_PEER);
    }
}

/* A rank that calls nothing retransmits lost frames. */
void case_computes(int rank, int n)
{
    char c = 7;
    (void)n;
    if (rank == 0) {
        send_to(1, 1, &c, 1);
        WAIT_UNTIL(vk_load_acquire(flag) == 1);
        return;
    }
    CHECK_EQ(recv_from(1, &c, 1, NULL), 1);
    CHECK_EQ(c, 7);
    vk_add(flag, 1);
}

static int interrupts;
static int interrupt(void *context)
{
    (void)context;
    return interrupts;
}

void interruptible(bip_options *o)
{
    o->interrupt = interrupt;
    o->blocking = 1;
}

/* Interrupted while it waits without end; the receive itself stays and takes its message afterwards. */
void case_interrupt(int rank, int n)
{
    char c = 0;
    size_t len;
    int node, id;
    OK(id = bip_irecv_bytes(job, 1, &c, 1));
    interrupts = 1;
    GIVES(bip_rwait_id(job, id, &len, &node, -1), BIP_ERR_INTERRUPTED);
    interrupts = 0;
    vk_add(flag, 1);
    WAIT_UNTIL(bip_progress(job) >= 0 && vk_load_acquire(flag) == n);
    send_to(1 - rank, 1, &c, 1);
    OK(bip_rwait_id(job, id, &len, &node, WAIT_MS)); /* nothing is lost */
    meet(rank, n);
}
