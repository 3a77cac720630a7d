/*
 * bip.h: BIP with the interface of 1997 for C programs. A process has one job. Lengths are in words. Calls return no
 * code: an error goes to the handler, or ends the program. The functions of job.h do the work; this file only converts:
 *
 *     a length in words     bytes(words), WORD each; below zero is a program error
 *     a length received     words(bytes), rounded up, because a sender in another language may send any number of bytes
 *     a code below zero     report_error(): the handler and -1, or a line on stderr and exit(1)
 *
 * One thread calls; there are no locks.
 *
 * State: the_job exists from bip_init to bip_end. Before and after, every call but bip_taginit and bip_onerror is a
 * program error, which `ready` reports.
 *
 * Not done: several jobs in one process, and calls of several threads. job.h has both, and this interface has no
 * argument to name a job.
 */
#include "bip.h"

#include <stdio.h>
#include <stdlib.h>

#include "bip/launch.h"

#define WORD 4           /* bytes of an int, the unit of all lengths */
#define CONNECT_MS 60000 /* for connecting all pairs, as BIP_MEET_MS for meeting */
#define CLOSE_MS 5000    /* for messages that are not acknowledged when the program ends; chosen */

int bip_mynode, bip_numnodes;

static bip_job *the_job;
static void (*the_handler)(const char *text);

/* Calls of bip_taginit before bip_init are kept until then. The list is in reverse order, which matters only for a
 * tag that is named twice. */
static struct pending_tag {
    int tag, n, len;
    struct pending_tag *next;
} *pending_tags;

/* ---------------------------------------------------------------- errors */

/* Reports an error, and returns the call's result if the handler returns. */
static int report_error(int code, const char *text)
{
    char line[BIP_ERROR_LEN + 64];
    snprintf(line, sizeof line, "BIP, node %d: %s", bip_mynode, text);
    if (the_handler) {
        the_handler(line);
        return code < 0 ? -1 : code;
    }
    fprintf(stderr, "%s\n", line);
    exit(1);
}

/* Returns the result of a call of job.h, or -1 after the handler. */
static int checked(int code)
{
    return code < 0 ? report_error(code, bip_error(the_job)) : code;
}

/* Returns 1, or 0 after the handler. */
static int ready(void)
{
    if (the_job == NULL)
        report_error(-1, "call bip_init first");
    return the_job != NULL;
}

/* Words to bytes. Below zero: reports the error and returns 0, so the caller must test the sign itself. */
static size_t bytes(int words)
{
    if (words < 0) {
        report_error(-1, "a length below zero");
        return 0;
    }
    return (size_t)words * WORD;
}

/* Handler NULL: the first error ends the program again. */
void bip_onerror(void (*handler)(const char *text))
{
    the_handler = handler;
}

/* ---------------------------------------------------------------- the job */

/* the_job becomes NULL first, so that later calls report that there is no job. */
void bip_end(void)
{
    bip_job *job = the_job;
    the_job = NULL;
    if (job)
        bip_close(job, CLOSE_MS);
}

/* On failure the_job is the job that bip_end must close, if any. */
static int open_job(char *error)
{
    bip_launch launch;
    uint8_t card[BIP_CARD_LEN], *cards;
    if (bip_launch_find(&launch, error) != 0 ||
        (launch.n_ranks > 1 && bip_launch_name(&launch, BIP_MEET_MS, error) != 0))
        return -1;
    bip_options options = {.size = sizeof options,
                           .rank = launch.rank,
                           .n_ranks = launch.n_ranks,
                           .job = launch.job,
                           .host = launch.host,
                           .network_device = launch.network,
                           .local_device = getenv("VIAKIT_BIP_DEVICE"),
                           .secret = launch.secret};
    /* Before bip_open, so that its error texts name the node. */
    bip_mynode = launch.rank;
    bip_numnodes = launch.n_ranks;
    if (bip_open(&options, &the_job, error) != 0)
        return -1;
    if (launch.n_ranks == 1)
        return 0;
    bip_card(the_job, card);
    cards = malloc((size_t)launch.n_ranks * BIP_CARD_LEN);
    int code = -1;
    if (cards == NULL)
        snprintf(error, BIP_ERROR_LEN, "no memory");
    else if ((code = bip_launch_exchange(&launch, card, sizeof card, cards, BIP_MEET_MS, error)) == 0 &&
             (code = bip_connect(the_job, cards, CONNECT_MS)) != 0)
        snprintf(error, BIP_ERROR_LEN, "%s", bip_error(the_job));
    free(cards);
    return code;
}

/* A second bip_init is an error; one after bip_end opens a new job. */
void bip_init(void)
{
    static int registered;
    char error[BIP_ERROR_LEN] = "";
    if (the_job) {
        report_error(-1, "bip_init was called twice");
        return;
    }
    if (open_job(error) != 0) {
        bip_end();
        report_error(-1, error);
        return;
    }
    while (pending_tags) {
        struct pending_tag *w = pending_tags;
        pending_tags = w->next;
        bip_taginit(w->tag, w->n, w->len);
        free(w);
    }
    /* A program that returns from main then still sends BYE. Once only, because atexit cannot be undone. */
    if (!registered)
        registered = atexit(bip_end) == 0;
}

/* Before bip_init the queue is only recorded; after it, the queue is created at once. A negative length is reported at
 * once in both cases, and creates no queue. */
void bip_taginit(int tag, int nbufs, int length)
{
    size_t len = bytes(length);
    if (length < 0)
        return;
    if (the_job) {
        checked(bip_taginit_bytes(the_job, tag, nbufs, len));
        return;
    }
    struct pending_tag *w = malloc(sizeof *w);
    if (w == NULL) {
        report_error(-1, "no memory");
        return;
    }
    *w = (struct pending_tag){tag, nbufs, length, pending_tags};
    pending_tags = w;
}

/* ---------------------------------------------------------------- sending */

/* bytes() has already reported a negative length. The result is then -1, as for any other error that the handler
 * accepts. */
int bip_tisend(int dst, int tag, int *buf, int length)
{
    return ready() && length >= 0 ? checked(bip_isend_bytes(the_job, dst, tag, buf, bytes(length)))
                                  : (length < 0 ? (int)bytes(length) - 1 : -1);
}

/* An id below 0 is the result of a send that failed and was reported: nothing to wait for. */
void bip_swait(int id)
{
    if (ready() && id >= 0)
        checked(bip_swait_id(the_job, id, -1));
}

/* 1: complete, 0: not yet, -1: an error that the handler accepted. */
int bip_stest(int id)
{
    return ready() && id >= 0 ? checked(bip_stest_id(the_job, id)) : -1;
}

/* Returns when the buffer may be reused, which for a short message is at once. */
void bip_tsend(int dst, int tag, int *buf, int length)
{
    bip_swait(bip_tisend(dst, tag, buf, length));
}

/* ---------------------------------------------------------------- receiving */

/* Bytes to words. The unused part of the last word keeps its earlier contents. */
static int words(size_t len)
{
    return (int)((len + WORD - 1) / WORD);
}

int bip_tirecv(int tag, int *buf, int maxlength)
{
    return ready() && maxlength >= 0 ? checked(bip_irecv_bytes(the_job, tag, buf, bytes(maxlength)))
                                     : (maxlength < 0 ? (int)bytes(maxlength) - 1 : -1);
}

/* Returns the words received, or -1. node may be NULL. */
int bip_rwaitx(int id, int *node)
{
    size_t len = 0;
    if (!ready() || id < 0)
        return -1;
    return checked(bip_rwait_id(the_job, id, &len, node, -1)) < 0 ? -1 : words(len);
}

/* As bip_rwaitx, without the sender's number. */
int bip_rwait(int id)
{
    return bip_rwaitx(id, NULL);
}

/* Returns -1 for "not yet", which differs from 0, a message of no words. */
int bip_rtestx(int id, int *node)
{
    size_t len = 0;
    if (!ready() || id < 0)
        return -1;
    return checked(bip_rtest_id(the_job, id, &len, node)) == 1 ? words(len) : -1;
}

/* 1: received, and the id ends. 0: not yet, or an error that the handler accepted. */
int bip_rtest(int id)
{
    return bip_rtestx(id, NULL) >= 0;
}

/* An error of bip_tirecv is reported there, and its -1 passes through bip_rwaitx. */
int bip_trecvx(int tag, int *buf, int maxlength, int *node)
{
    return bip_rwaitx(bip_tirecv(tag, buf, maxlength), node);
}

int bip_trecv(int tag, int *buf, int maxlength)
{
    return bip_trecvx(tag, buf, maxlength, NULL);
}

/* ---------------------------------------------------------------- without a tag */

/* The calls without a tag use tag 0, as if it had been named. Programs that mix both share that tag. */
void bip_send(int dst, int *buf, int length)
{
    bip_tsend(dst, 0, buf, length);
}

int bip_isend(int dst, int *buf, int length)
{
    return bip_tisend(dst, 0, buf, length);
}

int bip_recv(int *buf, int maxlength)
{
    return bip_trecv(0, buf, maxlength);
}

int bip_recvx(int *buf, int maxlength, int *node)
{
    return bip_trecvx(0, buf, maxlength, node);
}

int bip_irecv(int *buf, int maxlength)
{
    return bip_tirecv(0, buf, maxlength);
}

/* ---------------------------------------------------------------- short messages */

/* *node is set only if a message was received. A long message, and none, are both -1. */
int bip_trecvshort(int tag, int *buf, int maxlength, int *node)
{
    size_t len = 0;
    int from = 0;
    size_t most = bytes(maxlength);
    if (maxlength < 0 || !ready() || checked(bip_recv_short(the_job, tag, buf, most, &len, &from)) != 1)
        return -1;
    if (node)
        *node = from;
    return words(len);
}

/* Returns the message in place; the program frees it by bip_tfreemsg. NULL: none, or an error that the handler
 * accepted. */
static int *get_message(int tag, int *length, int *node, int timeout_ms)
{
    const void *buf = NULL;
    size_t len = 0;
    int from = 0;
    if (!ready() || checked(bip_getmsg(the_job, tag, &buf, &len, &from, timeout_ms)) != 1)
        return NULL;
    if (length)
        *length = words(len);
    if (node)
        *node = from;
    return (int *)(uintptr_t)buf;
}

/* Waits for a message. */
int *bip_tgetmsg(int tag, int *length, int *node)
{
    return get_message(tag, length, node, -1);
}

/* Polls once. */
int *bip_tgetmsgnb(int tag, int *length, int *node)
{
    return get_message(tag, length, node, 0);
}

/* Frees the place of the message that bip_tgetmsg returned, and so a credit of its sender. */
void bip_tfreemsg(int tag)
{
    if (ready())
        checked(bip_freemsg(the_job, tag));
}
