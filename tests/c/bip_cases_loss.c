/*
 * bip_cases_loss.c - cases of test_bip: jobs at the unreliable level (bip_options.unreliable), whose frames are lost or
 * damaged. Each loss is detected, and not repaired: no wait may hang, and no wrong byte may arrive.
 */
#include <string.h>

#include "bip_cases.h"

#define LONG 300000

/* Sends in turn, or receives, and checks the bytes. Returns 0, or the error. */
static int one_message(int rank, int round, char *buf, size_t len)
{
    size_t got = 0;
    int node, id, sender = round % 2;
    if (rank == sender) {
        pattern_fill(buf, len, (unsigned)round);
        id = bip_isend_bytes(job, 1 - rank, 1, buf, len);
        return id < 0 ? id : bip_swait_id(job, id, WAIT_MS);
    }
    if ((id = bip_irecv_bytes(job, 1, buf, LONG)) < 0)
        return id;
    int code = bip_rwait_id(job, id, &got, &node, WAIT_MS);
    if (code < 0)
        return code;
    CHECK_EQ(got, len);
    CHECK(pattern_holds(buf, len, (unsigned)round));
    return 0;
}

/* Messages of one length go back and forth until one is lost. Each is the last before a pause, so nothing that follows
 * reveals the loss. The rank that detects it gets DAMAGED. The other, whose wait would never end, gets an error,
 * too. */
static void until_lost(int rank, size_t len)
{
    static char buf[LONG];
    int code = 0;
    for (int round = 0; round < 100000 && code == 0; round++)
        code = one_message(rank, round, buf, len);
    CHECK(code == BIP_ERR_DAMAGED || code == BIP_ERR_PEER || code == BIP_ERR_LEFT);
    vk_add(flag, code == BIP_ERR_DAMAGED ? 0x100 : 1);
    WAIT_UNTIL((vk_load_acquire(flag) & 0xff) + (vk_load_acquire(flag) >> 8) == 2);
    CHECK(vk_load_acquire(flag) >= 0x100);
    /* Later calls report an error, too. */
    CHECK(bip_isend_bytes(job, 1 - rank, 1, buf, 8) < 0);
}

void case_lost_short(int rank, int n)
{
    (void)n;
    until_lost(rank, 100);
}

void case_lost_long(int rank, int n)
{
    (void)n;
    until_lost(rank, LONG);
}

/* A rank may be in no call for long. It sends no BEAT then, and is not taken for dead. */
void case_silent(int rank, int n)
{
    char c = 7;
    double until = check_now() + 0.5;
    (void)n;
    if (rank == 0) {
        while (check_now() < until) /* computes */
            vk_pause();
        send_to(1, 1, &c, 1);
        CHECK_EQ(recv_from(2, &c, 1, NULL), 1);
    } else {
        CHECK_EQ(recv_from(1, &c, 1, NULL), 1);
        CHECK_EQ(c, 7);
        send_to(0, 2, &c, 1);
    }
}
