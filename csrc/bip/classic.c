/*
 * bip.h: BIP as C programs of 1997 call it. One job in a process; words for bytes; and calls
 * that return no code: an error goes to the handler, or ends the program. What the calls do
 * is in job.h's functions; here is only the conversion:
 *
 *     a length in words     bytes(words), WORD each; below zero is an error of the program's
 *     a length received     words(bytes), rounded up: a sender that is no C program may send any number of bytes
 *     a code below zero     complain(): the handler and -1, or a line on stderr and exit(1)
 *
 * One thread calls: nothing here is locked.
 */
#include "bip.h"

#include <stdio.h>
#include <stdlib.h>

#include "bip/launch.h"

#define WORD 4
#define CONNECT_MS 60000
#define CLOSE_MS 5000

int bip_mynode, bip_numnodes;

static bip_job *the_job;
static void (*the_handler)(const char *text);

/* bip_taginit may come before bip_init: kept until then. The list is in the opposite order, which matters to nobody
 * but a tag that is named twice. */
static struct wish {
    int tag, n, len;
    struct wish *next;
} *wishes;

/* ---------------------------------------------------------------- errors */

/* Returns what the call is to return, if the handler lets it. */
static int complain(int code, const char *text)
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

/* What a call of job.h's gave, or -1 after the handler. */
static int checked(int code)
{
    return code < 0 ? complain(code, bip_error(the_job)) : code;
}

/* 1, or 0 after the handler. */
static int ready(void)
{
    if (the_job == NULL)
        complain(-1, "call bip_init first");
    return the_job != NULL;
}

/* Words to bytes. */
static size_t bytes(int words)
{
    if (words < 0) {
        complain(-1, "a length below zero");
        return 0;
    }
    return (size_t)words * WORD;
}

void bip_onerror(void (*handler)(const char *text))
{
    the_handler = handler;
}

/* ---------------------------------------------------------------- the job */

/* the_job is NULL first: whoever calls BIP from here on hears that there is no job. */
void bip_end(void)
{
    bip_job *job = the_job;
    the_job = NULL;
    if (job)
        bip_close(job, CLOSE_MS);
}

/* On failure the_job is what bip_end has to close, if anything. */
static int open_job(char *error)
{
    bip_launch launch;
    uint8_t card[BIP_CARD_LEN], *cards;
    if (bip_launch_find(&launch, error) != 0)
        return -1;
    bip_options options = {.size = sizeof options,
                           .rank = launch.rank,
                           .n_ranks = launch.n_ranks,
                           .job = launch.job,
                           .host = launch.host,
                           .network_device = launch.network,
                           .local_device = getenv("VIAKIT_BIP_DEVICE")};
    /* Before bip_open, so that its complaints name the node. */
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
    else if ((code = bip_launch_exchange(&launch, card, sizeof card, cards, error)) == 0 &&
             (code = bip_connect(the_job, cards, CONNECT_MS)) != 0)
        snprintf(error, BIP_ERROR_LEN, "%s", bip_error(the_job));
    free(cards);
    return code;
}

void bip_init(void)
{
    static int registered;
    char error[BIP_ERROR_LEN] = "";
    if (the_job) {
        complain(-1, "bip_init was called twice");
        return;
    }
    if (open_job(error) != 0) {
        bip_end();
        complain(-1, error);
        return;
    }
    while (wishes) {
        struct wish *w = wishes;
        wishes = w->next;
        bip_taginit(w->tag, w->n, w->len);
        free(w);
    }
    /* A program that just returns from main says good-bye all the same. Once: atexit cannot be taken back. */
    if (!registered)
        registered = atexit(bip_end) == 0;
}

/* Before bip_init a wish, after it a queue at once. */
void bip_taginit(int tag, int nbufs, int length)
{
    if (the_job) {
        checked(bip_taginit_bytes(the_job, tag, nbufs, bytes(length)));
        return;
    }
    struct wish *w = malloc(sizeof *w);
    if (w == NULL) {
        complain(-1, "no memory");
        return;
    }
    *w = (struct wish){tag, nbufs, length, wishes};
    wishes = w;
}

/* ---------------------------------------------------------------- sending */

/* A length below zero has been complained of in bytes(): -1 then, like any other error that
 * the handler lets pass. */
int bip_tisend(int dst, int tag, int *buf, int length)
{
    return ready() && length >= 0 ? checked(bip_isend_bytes(the_job, dst, tag, buf, bytes(length)))
                                  : (length < 0 ? (int)bytes(length) - 1 : -1);
}

void bip_swait(int id)
{
    if (ready() && id >= 0)
        checked(bip_swait_id(the_job, id, -1));
}

int bip_stest(int id)
{
    return ready() && id >= 0 ? checked(bip_stest_id(the_job, id)) : -1;
}

void bip_tsend(int dst, int tag, int *buf, int length)
{
    bip_swait(bip_tisend(dst, tag, buf, length));
}

/* ---------------------------------------------------------------- receiving */

/* Bytes to words; what is left of the last word keeps what was in the buffer before. */
static int words(size_t len)
{
    return (int)((len + WORD - 1) / WORD);
}

int bip_tirecv(int tag, int *buf, int maxlength)
{
    return ready() && maxlength >= 0 ? checked(bip_irecv_bytes(the_job, tag, buf, bytes(maxlength)))
                                     : (maxlength < 0 ? (int)bytes(maxlength) - 1 : -1);
}

/* Words received, or -1. node may be NULL. */
int bip_rwaitx(int id, int *node)
{
    size_t len = 0;
    if (!ready() || id < 0)
        return -1;
    return checked(bip_rwait_id(the_job, id, &len, node, -1)) < 0 ? -1 : words(len);
}

int bip_rwait(int id)
{
    return bip_rwaitx(id, NULL);
}

/* -1: not yet, so a message of no words, 0, can be told from it. */
int bip_rtestx(int id, int *node)
{
    size_t len = 0;
    if (!ready() || id < 0)
        return -1;
    return checked(bip_rtest_id(the_job, id, &len, node)) == 1 ? words(len) : -1;
}

int bip_rtest(int id)
{
    return bip_rtestx(id, NULL) >= 0;
}

int bip_trecvx(int tag, int *buf, int maxlength, int *node)
{
    return bip_rwaitx(bip_tirecv(tag, buf, maxlength), node);
}

int bip_trecv(int tag, int *buf, int maxlength)
{
    return bip_trecvx(tag, buf, maxlength, NULL);
}

/* ---------------------------------------------------------------- without a tag */

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

int bip_trecvshort(int tag, int *buf, int maxlength, int *node)
{
    size_t len = 0;
    int from = 0;
    if (!ready() || checked(bip_recv_short(the_job, tag, buf, bytes(maxlength), &len, &from)) != 1)
        return -1;
    if (node)
        *node = from;
    return words(len);
}

/* The message where it lies: the program gives it back by bip_tfreemsg. NULL: none, or an
 * error that the handler let pass. */
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

int *bip_tgetmsg(int tag, int *length, int *node)
{
    return get_message(tag, length, node, -1);
}

int *bip_tgetmsgnb(int tag, int *length, int *node)
{
    return get_message(tag, length, node, 0);
}

void bip_tfreemsg(int tag)
{
    if (ready())
        checked(bip_freemsg(the_job, tag));
}
