/*
 * Waiting, and what ends it: what was waited for, a rank that died or left, one that gave up, an interrupt, or the news that ranks are in
 * different collectives.
 *
 *   words      who gives up tells all others (ABORT). Who has waited for COLL_NOTE_MS tells the rank that it waits for what it is
 *              doing (NOTE), and again after twice the time. A rank that waits compares: a note with the number of its own
 *              collective and anything else in it means that both will wait for ever. In every circle of ranks that wait for each other
 *              because they do different things, one waits for another that does something else, so one of them sees it.
 *
 * Words are sent from memory of the group that stays until they have left.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../base/turn.h"
#include "inside.h"

#define CHECK_NS (5 * VK_MS)
#define LEAST_SLEEP (50 * VK_US)
#define LONGEST_SLEEP VK_MS
#define LONGEST_SLICE_MS 100
/* ---------------------------------------------------------------- failures */

int coll_fail_at(coll *c, int code, uint64_t number)
{
    if (c->error)
        return c->error;
    c->error = code;
    c->error_at = number;
    c->words->abort = (struct coll_abort){code, number};
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

int coll_gave_up(coll *c, int rank)
{
    struct coll_abort word = {0, 0};
    int there = 0;
    if (rank == c->rank || c->gave_up[rank])
        return c->gave_up[rank];
    if (msg_iprobe(c->world, c->context, c->ranks[rank], COLL_TAG_ABORT, &there, NULL) != MSG_SUCCESS || !there)
        return MSG_SUCCESS;
    msg_recv(c->world, c->context, &word, sizeof word, c->ranks[rank], COLL_TAG_ABORT, NULL);
    int grave = word.code == MSG_ERR_PROC_FAILED || word.code == MSG_ERR_COLLECTIVE;
    c->gave_up_at[rank] = word.number;
    return c->gave_up[rank] = grave ? (int)word.code : MSG_ERR_LEFT;
}

/* Somebody's word that it gave up: then we do. Who gave up in a later collective has done its part in ours, which may still end well. */
static int aborted(coll *c)
{
    for (int i = 0; i < c->n; i++) {
        int code = coll_gave_up(c, i);
        if (code != MSG_SUCCESS && c->gave_up_at[i] <= c->now.number)
            return coll_fail_at(c, code, c->gave_up_at[i]);
    }
    return MSG_SUCCESS;
}

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
        int there = 1;
        while (i != c->rank && there &&
               msg_iprobe(c->world, c->context, c->ranks[i], COLL_TAG_NOTE, &there, NULL) == MSG_SUCCESS && there)
            msg_recv(c->world, c->context, &c->notes[i], sizeof c->notes[i], c->ranks[i], COLL_TAG_NOTE, NULL);
        if (c->notes[i].number == c->now.number && memcmp(&c->notes[i], &c->now, sizeof c->now) != 0)
            return 1;
    }
    return 0;
}

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

static int others_want(const coll *c)
{
    return c->meanwhile && vk_load_relaxed(c->wanted);
}

static void nap(uint64_t ns)
{
    struct timespec t = {0, (long)(ns < LEAST_SLEEP ? LEAST_SLEEP : ns > LONGEST_SLEEP ? LONGEST_SLEEP : ns)};
    nanosleep(&t, NULL);
}

/* Memory that is written to wakes nobody, so a sleep is short: a small part of the time waited so far, or, when turns of the scheduler are
 * dear (turn.h), a larger one, for then whoever computes on this core is disturbed by each look. */
int coll_pause_long(coll *c, struct coll_patience *p)
{
    uint64_t now = p->now;
    if (p->began == 0) {
        now = p->began = p->checked = vk_now();
        p->stage = c->crowded;
    }
    if (p->looks % 8 == 0 || p->stage == 2)
        msg_progress(c->world);
    if (p->stage == 1 && !vk_yield_pays(now))
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
        if (p->stage == 2 || (p->stage == 1 && !vk_yield_pays(now))) {
            int dear = p->stage == 1;
            p->stage = 2;
            nap(others_want(c) ? 0 : dear ? waited / 8 : waited / 16);
            return MSG_SUCCESS;
        }
    }
    if (p->stage == 1)
        p->now = vk_yield(now);
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
