/*
 * bip_cases_life.c - cases of test_bip: ranks that leave, that are killed, and that are interrupted.
 *
 * Leaving in order (LEFT) ends the waits of those that wait for that rank or for anybody; a death (PEER) ends
 * everybody's. The order of events is made by the shared word `flag` and by looking at /proc: messages could not make
 * it, as those who would send them are gone.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "bip_cases.h"
#include "process.h"

/* Somebody leaves in order: others go on, and only who waits for him, or for nobody, is told. */
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
        /* Nobody else is left who could send with tag 7 but rank 0, which leaves as well. */
        OK(id = bip_irecv_bytes(job, 7, &c, 1));
        GIVES(bip_rwait_id(job, id, &len, &node, WAIT_MS), BIP_ERR_LEFT);
    }
}

/* Somebody is killed: in the middle of everything, whoever waits is told. */
void case_killed(int rank, int n)
{
    static char buf[1 << 20];
    char c = 0;
    size_t len;
    int node, id, s;
    meet(rank, n);
    vk_add(flag, 1);
    if (rank == 1) { /* not before the others have heard all of it */
        WAIT_UNTIL(bip_progress(job) >= 0 && vk_load_acquire(flag) == n);
        raise(SIGKILL);
    }
    /* Rank 0 waits for a long send to the dead one and for a receive from nobody in particular, the others only for the
     * latter. */
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

/* The receiver dies while most buffers of ours are under way, and we learn of it only when we look for one: the send
 * that looked ends, and those after it do not wait for it. */
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
    WAIT_UNTIL(!is_connected(bip_nic(job, 1))); /* nobody calls BIP meanwhile, only the NIC finds out */
    /* The first send learns of the death, the second must not wait for what the first one had taken. */
    for (int i = 0; i < 2; i++) {
        int id = bip_isend_bytes(job, 1, 3, buf, sizeof buf);
        if (id == BIP_ERR_BUSY) { /* the last one found no buffer: then it is what learns of it */
            CHECK_EQ(bip_swait_id(job, last, WAIT_MS), BIP_ERR_PEER);
            continue;
        }
        CHECK_EQ(id < 0 ? id : bip_swait_id(job, id, WAIT_MS), BIP_ERR_PEER);
    }
}

/* What was lost is sent again by a rank that calls nothing. */
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
