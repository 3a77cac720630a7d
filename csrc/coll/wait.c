/*
 * Waiting, and what ends it: what was waited for, a rank that died or left, one that gave up, an
 * interrupt, or the news that ranks are in different collectives.
 *
 *     a wait     pause (200 looks)  ->  give the core away, after yield_ns  ->  sleep, after spin_ns
 *                every CHECK_NS of it coll_check asks for the rest:
 *
 *     failure    a rank of the group is dead (or gone, and waited for): after COLL_GRACE_MS the group is broken. The
 *                grace is for collectives that can still end well, because what is missing is on its way from others
 *     words      who gives up tells all others (ABORT). Who has waited for COLL_NOTE_MS tells the rank that it waits
 *                for what it is doing (NOTE), and again after twice the time. A rank that waits compares: a note with
 *                the number of its own collective and anything else in it means that both will wait for ever. In every
 *                circle of ranks that wait for each other because they do different things, one waits for another that
 *                does something else, so one of them sees it.
 *
 * Invariant: c->error is set once, by coll_fail_at, and never cleared; from then on every call of the group
 * returns it. Whoever sets it tells all others, so no rank waits for one that has given up.
 *
 * Words are sent from memory of the group that stays until they have left. Nobody waits for them, so those of a
 * group that is gone may lie about in its context when another gets that: each word bears its group's birth.
 */
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../base/turn.h"
#include "inside.h"

/* CHECK_NS: a look at the state of all ranks and at two kinds of words costs more than a look at memory; well
 * within the 50 ms in which an interrupt is to be noticed. Sleeps are short, for no arrival ends them; slices
 * of waits for messages may be longer, for those are woken. */
#define CHECK_NS (5 * VK_MS)
#define LEAST_SLEEP (50 * VK_US)
#define LONGEST_SLEEP VK_MS
#define LONGEST_SLICE_MS 100
/* ---------------------------------------------------------------- failures */

/* The first error counts. To ranks that are gone nothing is sent; nobody waits for the word to leave, so its
 * memory may have to outlive the group (`lent`: coll_free). */
int coll_fail_at(coll *c, int code, uint64_t number)
{
    if (c->error)
        return c->error;
    c->error = code;
    c->error_at = number;
    c->words->abort = (struct coll_abort){code, number, c->now.birth};
    for (int i = 0; i < c->n; i++) {
        msg_request *r = NULL;
        if (i == c->rank || msg_peer_status(c->world, c->ranks[i]) != MSG_PEER_CONNECTED)
            continue;
        if (msg_isend(c->world, c->context, &c->words->abort, sizeof c->words->abort, c->ranks[i], COLL_TAG_ABORT,
                      MSG_STANDARD, &r) != MSG_SUCCESS)
            continue;
        if (!msg_request_peek(c->world, r, NULL))
            c->words->lent = 1;
        msg_request_free(c->world, &r);
    }
    return code;
}

/* Looks for the rank's word; 0 as long as there is none. What it gave up for is ours as well if it concerns all
 * (a death, a mismatch); that it was interrupted or had no memory is its own affair, and to us it has left. */
int coll_gave_up(coll *c, int rank)
{
    struct coll_abort word = {0, 0, 0};
    int there = 0;
    if (rank == c->rank || c->gave_up[rank])
        return c->gave_up[rank];
    do {
        if (msg_iprobe(c->world, c->context, c->ranks[rank], COLL_TAG_ABORT, &there, NULL) != MSG_SUCCESS || !there)
            return MSG_SUCCESS;
        msg_recv(c->world, c->context, &word, sizeof word, c->ranks[rank], COLL_TAG_ABORT, NULL);
    } while (word.birth != c->now.birth);
    int grave = word.code == MSG_ERR_PROC_FAILED || word.code == MSG_ERR_COLLECTIVE;
    c->gave_up_at[rank] = word.number;
    return c->gave_up[rank] = grave ? (int)word.code : MSG_ERR_LEFT;
}

/* Somebody's word that it gave up: then we do, if it did so in our collective or an earlier one. Who gave up in
 * a later one has done its part in ours, which may still end well. */
static int aborted(coll *c)
{
    for (int i = 0; i < c->n; i++) {
        int code = coll_gave_up(c, i);
        if (code != MSG_SUCCESS && c->gave_up_at[i] <= c->now.number)
            return coll_fail_at(c, code, c->gave_up_at[i]);
    }
    return MSG_SUCCESS;
}

/* coll.h says for which collectives this is enough. */
int coll_may_repeat(const coll *c)
{
    return c->error == MSG_ERR_LEFT && c->error_at < c->now.number;
}

/* ---------------------------------------------------------------- who does what */

static void send_note(coll *c, int to)
{
    if (to == c->rank || msg_peer_status(c->world, c->ranks[to]) != MSG_PEER_CONNECTED)
        return;
    if (c->words->sending && msg_test(c->world, &c->words->sending, NULL) != MSG_SUCCESS)
        return; /* the last one has not left: there is no hurry */
    c->words->note = c->now;
    msg_isend(c->world, c->context, &c->words->note, sizeof c->words->note, c->ranks[to], COLL_TAG_NOTE, MSG_STANDARD,
              &c->words->sending);
}

/* Does a rank do something else under the same number? Notes of later collectives are kept until we are there. */
static int mismatched(coll *c)
{
    for (int i = 0; i < c->n; i++) {
        struct coll_note word = {.number = 0};
        int there = 1;
        while (i != c->rank && there &&
               msg_iprobe(c->world, c->context, c->ranks[i], COLL_TAG_NOTE, &there, NULL) == MSG_SUCCESS && there) {
            msg_recv(c->world, c->context, &word, sizeof word, c->ranks[i], COLL_TAG_NOTE, NULL);
            if (word.birth == c->now.birth)
                c->notes[i] = word;
        }
        if (c->notes[i].number == c->now.number && memcmp(&c->notes[i], &c->now, sizeof c->now) != 0)
            return 1;
    }
    return 0;
}

/* Reads notes every quarter of COLL_NOTE_MS, and sends one each time the wait has grown to twice its length: a
 * collective that merely takes long costs a few words, and not one per look. */
static int compare_notes(coll *c, struct coll_patience *p, uint64_t now)
{
    if (p->note_at == 0) {
        p->note_gap = COLL_NOTE_MS * VK_MS;
        p->note_at = now + p->note_gap;
    }
    if (now < p->note_at && now < p->compare_at)
        return MSG_SUCCESS;
    p->compare_at = now + COLL_NOTE_MS * VK_MS / 4;
    if (mismatched(c))
        return coll_fail(c, MSG_ERR_COLLECTIVE);
    if (now >= p->note_at) {
        p->note_gap *= 2;
        p->note_at = now + p->note_gap;
        if (p->source >= 0)
            send_note(c, p->source);
        for (int i = 0; i < c->n && p->source == COLL_ANYBODY; i++)
            send_note(c, i);
    }
    return MSG_SUCCESS;
}

/* MSG_SUCCESS: go on waiting; else the group is broken. failed_at is when the gone rank was
 * first seen, so that the grace runs from there. */
int coll_check(coll *c, struct coll_patience *p, uint64_t now)
{
    int gone = MSG_SUCCESS, code;
    p->checked = now;
    if (msg_interrupted(c->world))
        return coll_fail(c, MSG_INTERRUPTED);
    msg_progress(c->world);
    for (int i = 0; i < c->n && gone != MSG_ERR_PROC_FAILED; i++) {
        int state = msg_peer_status(c->world, c->ranks[i]);
        if (state == MSG_PEER_FAILED)
            gone = MSG_ERR_PROC_FAILED;
        else if (state == MSG_PEER_LEFT && !p->message && (p->source == COLL_ANYBODY || p->source == i))
            /* A wait for messages is told by its request. */
            gone = MSG_ERR_LEFT; /* of other ranks it may be the right moment to leave */
    }
    if ((code = aborted(c)) != MSG_SUCCESS)
        return code;
    if (gone == MSG_SUCCESS)
        return compare_notes(c, p, now);
    if (p->failed_at == 0)
        p->failed_at = now;
    return now - p->failed_at >= COLL_GRACE_MS * VK_MS ? coll_fail(c, gone) : MSG_SUCCESS;
}

/* ---------------------------------------------------------------- waiting for memory */

/* The caller of coll_create_with has something to do meanwhile. */
static int others_want(const coll *c)
{
    /* Relaxed: a hint that something is wanted; whoever does it orders what he reads himself. */
    return c->meanwhile && vk_load_relaxed(c->wanted);
}

/* The kernel compares 32 bits; words only grow, and nobody sleeps through 2^32 of them. */
static const uint32_t *low_half(const uint64_t *word)
{
    return (const uint32_t *)word + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

void coll_wake(const uint64_t *word)
{
    syscall(SYS_futex, low_half(word), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void nap(const coll *c, const struct coll_patience *p, uint64_t ns)
{
    struct timespec t = {0, (long)(ns < LEAST_SLEEP ? LEAST_SLEEP : ns > LONGEST_SLEEP ? LONGEST_SLEEP : ns)};
    if (!p->word || c->all_fit) {
        nanosleep(&t, NULL);
        return;
    }
    vk_add(p->sleepers, 1); /* before the kernel looks at the word: coll_tell */
    syscall(SYS_futex, low_half(p->word), FUTEX_WAIT, (uint32_t)p->seen, &t, NULL, 0);
    vk_add(p->sleepers, -1);
}

/* Who sleeps on a word waits with all ranks of the node. One that gives its core away to somebody who computes keeps
 * all of them waiting, so what one finds dear, all do; and they try again together. */
static int yield_pays(const coll *c, const struct coll_patience *p, uint64_t now)
{
    return now >= vk_load_relaxed(p->word ? &c->shared->dear_until : &vk_turns_dear_until);
}

static uint64_t yield(const coll *c, const struct coll_patience *p, uint64_t now)
{
    uint64_t after = vk_yield(now), until = vk_load_relaxed(&vk_turns_dear_until);
    if (vk_unlikely(until > after && p->word && until > vk_load_relaxed(&c->shared->dear_until)))
        vk_store_relaxed(&c->shared->dear_until, until);
    return after;
}

/* The long part of a look at memory: everything but the quick pause. Memory that is written to wakes
 * nobody, so a sleep is short: a small part of the time waited so far (1/16), or, when turns of the
 * scheduler are dear (turn.h), a larger one (1/8), for then whoever computes on this core is
 * disturbed by each look. The clock is read every 32 looks. */
int coll_pause_long(coll *c, struct coll_patience *p)
{
    uint64_t now = p->now;
    if (p->began == 0) {
        now = p->began = p->checked = vk_now();
        /* With more ranks than cores who we wait for may need this very core: no polling. */
        p->stage = c->crowded;
    }
    if (p->looks % 8 == 0 || p->stage == 2)
        msg_progress(c->world);
    if (p->stage == 1 && !yield_pays(c, p, now))
        p->stage = 2;
    if (p->looks % 32 == 0 || p->stage == 2) {
        now = vk_now();
        uint64_t waited = now - p->began;
        p->stage = waited >= c->spin_ns ? 2 : c->crowded || waited >= c->yield_ns;
        if (vk_unlikely(others_want(c)))
            c->meanwhile(c->meanwhile_context);
        if (now - p->checked >= CHECK_NS) {
            int code = coll_check(c, p, now);
            if (code != MSG_SUCCESS)
                return code;
        }
        if (p->stage == 2 || (p->stage == 1 && !yield_pays(c, p, now))) {
            int dear = p->stage == 1;
            p->stage = 2;
            nap(c, p, others_want(c) ? 0 : p->word ? LONGEST_SLEEP : dear ? waited / 8 : waited / 16);
            return MSG_SUCCESS;
        }
    }
    if (p->stage == 1)
        p->now = yield(c, p, now);
    else
        vk_pause();
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- waiting for messages */

void coll_give_up(coll *c, msg_request **request, int to)
{
    uint64_t deadline = vk_now() + COLL_LET_FINISH_MS * VK_MS;
    if (*request == NULL)
        return;
    msg_cancel(c->world, *request);
    while (msg_wait(c->world, request, NULL, 10) != MSG_SUCCESS)
        if (vk_now() > deadline || (to >= 0 && coll_gave_up(c, to))) { /* he will not ask for it any more */
            msg_request_free(c->world, request);
            return;
        }
}

/* Waits in slices, longer and longer, and between them asks coll_check. On failure the request is
 * given up: the buffer is the caller's again when this returns. */
int coll_finish(coll *c, msg_request **request, msg_status *status, int who, int sending)
{
    struct coll_patience p = {.source = who, .message = 1}; /* messages know by themselves when their sender has left */
    msg_status own;
    status = status ? status : &own;
    for (int64_t slice = 10;;) {
        int code = msg_wait(c->world, request, status, others_want(c) ? 1 : slice);
        if (code == MSG_SUCCESS)
            return status->error == MSG_SUCCESS
                       ? MSG_SUCCESS
                       : coll_fail(c, status->error == MSG_ERR_TRUNCATE ? MSG_ERR_COLLECTIVE : status->error);
        if (vk_unlikely(others_want(c)))
            c->meanwhile(c->meanwhile_context);
        if (code == MSG_TIMEOUT)
            code = coll_check(c, &p, vk_now());
        else
            coll_fail(c, code);
        if (code != MSG_SUCCESS) {
            coll_give_up(c, request, sending ? who : COLL_ANYBODY);
            return c->error;
        }
        slice = 2 * slice < LONGEST_SLICE_MS ? 2 * slice : LONGEST_SLICE_MS;
    }
}

/* The receive is posted first, so that two ranks that exchange find each other's. A message of another
 * length is a mismatch; a longer one is noticed by truncation. */
int coll_sendrecv(coll *c, int tag, const void *sendbuf, size_t send_len, int dst, void *recvbuf, size_t recv_len,
                  int src)
{
    msg_world *w = c->world;
    msg_request *in = NULL, *out = NULL;
    msg_status status;
    int code = MSG_SUCCESS;
    if (src != MSG_PROC_NULL)
        code = msg_irecv(w, c->context, recvbuf, recv_len, c->ranks[src], tag, &in);
    if (code == MSG_SUCCESS && dst != MSG_PROC_NULL)
        code = msg_isend(w, c->context, sendbuf, send_len, c->ranks[dst], tag, MSG_STANDARD, &out);
    if (code != MSG_SUCCESS)
        coll_fail(c, code);
    if (code == MSG_SUCCESS && out)
        code = coll_finish(c, &out, NULL, dst, 1);
    if (code == MSG_SUCCESS && in) {
        code = coll_finish(c, &in, &status, src, 0);
        if (code == MSG_SUCCESS && status.len != recv_len)
            code = coll_fail(c, MSG_ERR_COLLECTIVE);
    }
    if (code != MSG_SUCCESS) {
        coll_give_up(c, &out, dst);
        coll_give_up(c, &in, COLL_ANYBODY);
    }
    return code;
}
