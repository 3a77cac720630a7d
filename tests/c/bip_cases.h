/*
 * bip_cases.h - the cases of test_bip, and what they are made of: a job that is open, checks of its calls, messages
 * waited for.
 */
#ifndef BIP_CASES_H
#define BIP_CASES_H

#include "base/atomic.h"
#include "bip.h"
#include "bip/job.h"
#include "check.h"
#include "pattern.h"

#define MAX_RANKS 8

extern bip_job *job; /* of this rank */
extern int *flag;    /* shared by all ranks, 0 at first: where messages are what is tested */

/* A call on the job that must succeed. */
#define OK(call)                                                                                                     \
    do {                                                                                                             \
        int check_code = (call);                                                                                     \
        if (check_code < 0)                                                                                          \
            FAIL("%s: %s (%s)", #call, bip_code_name(check_code) ? bip_code_name(check_code) : "?", bip_error(job)); \
    } while (0)
/* One that must give this code. */
#define GIVES(call, code)                                                                            \
    do {                                                                                             \
        int check_code = (call);                                                                     \
        if (check_code != (code))                                                                    \
            FAIL("%s: %d %s instead of %s (%s)", #call, check_code,                                  \
                 bip_code_name(check_code) ? bip_code_name(check_code) : "", #code, bip_error(job)); \
    } while (0)

/* Blocking forms with a deadline. recv_from() returns the length; *node, unless it is NULL, becomes the sender. */
#define WAIT_MS (CHECK_WAIT_S * 1000)
void send_to(int dst, int tag, const void *buf, size_t len);
size_t recv_from(int tag, void *buf, size_t max, int *node);

/* All ranks meet, by messages with tags of their own. */
void meet(int rank, int n);

/* Options: waits sleep, and end where case_interrupt wants it. */
void interruptible(bip_options *o);

void case_lengths(int rank, int n);
void case_packets(int rank, int n);
void case_tags(int rank, int n);
void case_mixed(int rank, int n);
void case_full(int rank, int n);
void case_own_queue(int rank, int n);
void case_too_long(int rank, int n);
void case_arguments(int rank, int n);
void case_strict(int rank, int n);
void case_short_only(int rank, int n);
void case_crossing(int rank, int n);
void case_many_receives(int rank, int n);
void case_leaves(int rank, int n);
void case_killed(int rank, int n);
void case_killed_full(int rank, int n);
void case_computes(int rank, int n);
void case_interrupt(int rank, int n);
void case_classic(int rank, int n);
void case_lost_short(int rank, int n);
void case_lost_long(int rank, int n);
void case_silent(int rank, int n);

#endif
