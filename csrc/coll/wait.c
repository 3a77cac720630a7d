/*
 * Waiting, and the events that end a wait: the awaited data, a rank that died, left or gave up, an interrupt, or a note
 * of a rank in another collective.
 *
 *     a wait     spin (200 polls)  ->  yield, after yield_ns  ->  sleep, after spin_ns (base/wait.h)
 *                every CHECK_NS it calls check_group, which detects the other events:
 *
 *     failure    A rank of the group is dead, or an awaited rank has left: after COLL_GRACE_MS the group is broken. The
 *                grace is for collectives that can still end well, because the missing data is on its way from others.
 *     messages   A rank that gives up notifies all others (ABORT). A rank that has waited for COLL_NOTE_MS sends the
 *                awaited rank a description of its collective (NOTE), and again after twice the time. Waiting ranks
 *                compare notes. If a note has the number of their own collective and differs otherwise, both would
 *                wait for ever. Ranks in different collectives may wait for each other in a circle. One of them then
 *                waits for a rank in another collective, so at least one rank detects the mismatch.
 *     crossing   Ranks in collectives of different groups are compared by the caller (coll_options).
 *
 * Invariant: c->error is set once, by fail_at, and never cleared. From then on every call of the group returns it. The
 * rank that sets it notifies all others, so no rank waits for one that has given up.
 *
 * Control messages are sent from memory of the group that stays until they have left. No rank waits for them. Those of
 * a freed group may still be queued when another group gets its context. So each message carries its group's
 * incarnation.
 */
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "coll/inside.h"
#include "msg/engine.h"

/* CHECK_NS: checking the state of all ranks and two kinds of control messages costs more than polling memory. It is
 * well below the 50 ms within which an interrupt must be noticed. Sleeps are short, because no arrival ends them.
 * Slices of waits for messages may be longer, because an arrival ends those. */
#define CHECK_NS (5 * VK_MS)
#define POLLS_PER_CLOCK 32
#define LEAST_SLEEP (50 * VK_US)
#define LONGEST_SLEEP VK_MS
#define LONGEST_SLICE_MS 100

/* ---------------------------------------------------------------- failures */

/* Record the first error; later ones are ignored. Nothing is sent to ranks that are gone. The abort message is not
 * waited for, so its memory may have to outlive the group (`lent`: coll_free). `cause`: the message of a rank that gave
 * up, which is passed on; NULL: this rank is the first. */
static int fail_at(coll *c, int code, uint64_t number, const struct coll_word *cause)
{
    if (c->error)
        return c->error;
    /* A rank that gives up because of the revocation notifies others, too. */
    if (msg_is_revoked(c->world, c->revocable))
        code = MSG_ERR_REVOKED;
    c->error = code;
    c->error_at = number;
    struct coll_word *word = &c->words->abort; /* coll_break has put its reason there */
    if (cause)
        *word = *cause;
    else
        word->origin = c->rank;
    word->code = code;
    word->number = number;
    word->incarnation = c->now.incarnation;
    word->tag = -1;
    for (int i = 0; i < c->n; i++) {
        msg_request *r = NULL;
        if (i == c->rank || msg_peer_status(c->world, c->ranks[i]) != MSG_PEER_CONNECTED)
            continue;
        if (msg_isend(c->world, c->context, &c->words->abort, sizeof c->words->abort, c->ranks[i], COLL_TAG_ABORT,
                      MSG_STANDARD, &r) != MSG_SUCCESS)
            continue;
        if (!msg_request_peek(c->world, r, NULL))
            c->words->lent = 1;
        /* The request frees itself when the message has left. */
        msg_request_free(c->world, &r);
    }
    return code;
}

int coll_fail(coll *c, int code)
{
    return fail_at(c, code, c->now.number, NULL);
}

int coll_fail_with(coll *c, int rank)
{
    return fail_at(c, c->gave_up[rank], c->abort_words[rank].number, &c->abort_words[rank]);
}

/* True for reasons that hold for every rank of the group: a rank is dead, ranks are in different collectives, or the
 * communicator is revoked. */
static int concerns_all(int64_t code)
{
    return code == MSG_ERR_PROC_FAILED || code == MSG_ERR_COLLECTIVE || code == MSG_ERR_REVOKED;
}

/* Receive the rank's abort message, if it has arrived. A failure that concerns all ranks (a death, a mismatch) is taken
 * over. For any other reason (an interrupt, no memory) the rank counts as having left. */
int coll_gave_up(coll *c, int rank)
{
    struct coll_word word;
    int source = c->ranks[rank];
    if (rank == c->rank || c->gave_up[rank])
        return c->gave_up[rank];
    do {
        if (!coll_take_control(c->world, c->context, COLL_TAG_ABORT, &word, sizeof word, &source))
            return MSG_SUCCESS;
    } while (word.incarnation != c->now.incarnation);
    word.reason[COLL_REASON_LEN - 1] = 0;
    c->abort_words[rank] = word;
    return c->gave_up[rank] = concerns_all(word.code) ? (int)word.code : MSG_ERR_LEFT;
}

/* Receive messages about this collective from ranks that gave it up, by whatever means they took part. */
static int given_up(coll *c)
{
    struct coll_word word;
    int source = MSG_ANY_SOURCE, tag = COLL_TAG_GIVE_UP | (int)(c->now.number & COLL_GIVE_UP_NUMBERS);
    for (; coll_take_control(c->world, c->context, tag, &word, sizeof word, &source); source = MSG_ANY_SOURCE) {
        word.reason[COLL_REASON_LEN - 1] = 0;
        if (word.incarnation == c->now.incarnation && word.number == c->now.number)
            return fail_at(c, concerns_all(word.code) ? (int)word.code : MSG_ERR_LEFT, c->now.number, &word);
    }
    return MSG_SUCCESS;
}

/* Give up if a rank gave up in this collective or an earlier one. A rank that gave up in a later collective has done
 * its part in this one, which may still end well. */
static int aborted(coll *c)
{
    for (int i = 0; i < c->n; i++) {
        int code = coll_gave_up(c, i);
        if (code != MSG_SUCCESS && c->abort_words[i].number <= c->now.number)
            return coll_fail_with(c, i);
    }
    return given_up(c);
}

/* coll.h lists the collectives for which this is enough. */
int coll_may_retry(const coll *c)
{
    return (c->error == MSG_ERR_LEFT || c->error == MSG_ERR_COLLECTIVE) && c->error_at < c->now.number;
}

/* ---------------------------------------------------------------- notes: ranks in different collectives */

/* True if the caller of coll_create_with has other work to do meanwhile. */
static int others_want(const coll *c)
{
    /* Relaxed: only a hint. The work itself is read under the caller's own lock. */
    return c->meanwhile && vk_load_relaxed(c->wanted);
}

/* A rank that waits for any other one notifies those that it is connected to, and those at a distance of a power of
 * two. Ranks in different collectives stand somewhere side by side on the circle. So one of these two gets a note that
 * differs. */
static int is_near(const coll *c, int rank)
{
    int up = (rank - c->rank + c->n) % c->n, down = c->n - up;
    return (up & (up - 1)) == 0 || (down & (down - 1)) == 0 || vk_load_relaxed(&c->world->peers[c->ranks[rank]].met);
}

/* Send the rank a description of this collective. One note at a time: its buffer is the group's. A note that cannot be
 * sent now is dropped, because compare_notes sends another one later. Does not wait. */
static void send_note(coll *c, int to)
{
    if (to == c->rank || msg_peer_status(c->world, c->ranks[to]) != MSG_PEER_CONNECTED)
        return;
    if (c->words->sending && msg_test(c->world, &c->words->sending, NULL) != MSG_SUCCESS)
        return; /* the last note has not left yet; the next one can wait */
    c->words->note = c->now;
    msg_isend(c->world, c->context, &c->words->note, sizeof c->words->note, c->ranks[to], COLL_TAG_NOTE, MSG_STANDARD,
              &c->words->sending);
}

/* True if a rank is in a different collective under the same number. Notes of later collectives are kept until this
 * rank gets there. A rank that waits in an earlier collective gets a note in return. The note arrives after all data
 * that this rank still owed it for that collective. */
static int mismatched(coll *c)
{
    for (int i = 0; i < c->n; i++) {
        struct coll_note word;
        int source = c->ranks[i];
        while (i != c->rank && coll_take_control(c->world, c->context, COLL_TAG_NOTE, &word, sizeof word, &source)) {
            if (word.incarnation == c->now.incarnation)
                c->notes[i] = word;
            if (word.incarnation == c->now.incarnation && word.number < c->now.number)
                send_note(c, i);
        }
        if (c->notes[i].number == c->now.number &&
            memcmp(&c->notes[i], &c->now, offsetof(struct coll_note, oldest)) != 0)
            return 1;
    }
    return 0;
}

/* Classify a word that accompanies data or that a rank publishes. 0: none or no difference. 1: the rank is, or was, in
 * a later collective. -1: it is in a different operation under the same number. The number in `what` has 8 bits, and
 * ranks are never further apart than a few collectives. */
static int compare_what(const coll *c, uint64_t what)
{
    int8_t ahead = (int8_t)(coll_what_number(what) - (uint8_t)c->now.number);
    /* A word of 0 does not occur: coll_begin sets an operation, which is not 0. */
    if (what == 0 || ahead < 0)
        return 0;
    return ahead > 0 ? 1 : coll_what_operation(what) == c->now.operation ? 0 : -1;
}

/* The word of data that this rank has not reached yet: in area 0 or 1 of the shared memory, or (2) in its slots. */
static uint64_t given_by(const coll *c, int rank, int which)
{
    if (which == 2)
        return coll_slots_next(c, rank);
    if (c->shared == NULL || c->node_of[rank] != c->node)
        return 0;
    /* Linear, which is cheap enough: this runs only after a long wait or a failure. */
    int local = 0;
    while (c->locals[local] != rank)
        local++;
    const struct coll_area *a = &c->areas[2 * local + which];
    /* Acquire: `what` was written before `step`. A later step may overwrite it at any time, which serves as well. */
    return vk_load_acquire(&a->step) > c->n_steps ? vk_load_relaxed(&a->what) : 0;
}

/* Data that a broken group still holds stays there. Its number has 8 bits, so it is compared only with collectives soon
 * after the break. No rank was further ahead than its areas and slots allow. */
#define PASSED_MOST 64

/* True if a rank may finish this collective as soon as it has given its data. In all other operations the rank still
 * waits, receives the abort message, and repeats the collective by other means. */
static int only_gives(int operation)
{
    return operation == COLL_BCAST || operation == COLL_REDUCE;
}

int coll_find_completed(const coll *c, uint64_t number)
{
    if (c->error && number - c->error_at > PASSED_MOST)
        return -1;
    for (int i = 0; c->error && i < c->n; i++)
        for (int which = 0; i != c->rank && which < 3; which++) {
            uint64_t what = given_by(c, i, which);
            int8_t ahead = (int8_t)(coll_what_number(what) - (uint8_t)number);
            if (what && (ahead > 0 || (ahead == 0 && only_gives(coll_what_operation(what)))))
                return i;
        }
    return -1;
}

/* True if a rank has passed this collective, although this wait needs something from the rank there. The rank's data
 * precedes the evidence that it has passed. If the wait has not ended two checks later, the collectives mismatch. */
static int left_behind(coll *c, struct coll_wait *p)
{
    int seen = 0, code = 0;
    for (int i = 0; i < c->n && code >= 0; i++) {
        if (i == c->rank)
            continue;
        int awaited = p->awaits && (p->source == i || p->source == COLL_ANY_RANK);
        seen |= awaited && p->behind && c->notes[i].number == c->now.number;
        seen |= awaited &&
                (c->notes[i].number > c->now.number || (c->gave_up[i] && c->abort_words[i].number > c->now.number));
        for (int which = 0; which < 3 && code >= 0; which++) {
            code = compare_what(c, given_by(c, i, which));
            seen |= awaited && code > 0;
        }
    }
    p->ahead += seen;
    return code < 0 || p->ahead > 2;
}

/* True if the caller has found that an awaited rank waits for this one in another group. A barrier needs every rank.
 * Other collectives need the rank of which the wait is certain that it must act, if one is known. Virtual time passes
 * quickly, so its ranks are not compared. */
static int crossed(coll *c, const struct coll_wait *p, uint64_t now)
{
    int awaited = p->source;
    if (!c->crossed || now < p->crossed_at || vk_time_is_virtual())
        return 0;
    if (c->now.operation == COLL_BARRIER)
        awaited = -1;
    else if (!p->awaits || p->source == COLL_ANY_RANK)
        return 0;
    return c->crossed(c->meanwhile_context, c->context, &c->now, awaited);
}

/* Read notes every quarter of COLL_NOTE_MS, and send one each time the wait has doubled. A collective that merely takes
 * long then costs a few notes, not one per poll. */
static int compare_notes(coll *c, struct coll_wait *p, uint64_t now)
{
    if (p->note_at == 0) {
        p->note_gap = COLL_NOTE_MS * VK_MS;
        p->note_at = now + p->note_gap;
        p->crossed_at = now + COLL_CROSSED_MS * VK_MS;
    }
    if (now < p->note_at && now < p->compare_at)
        return MSG_SUCCESS;
    p->compare_at = now + COLL_NOTE_MS * VK_MS / 4;
    if (mismatched(c) || left_behind(c, p) || crossed(c, p, now))
        return coll_fail(c, MSG_ERR_COLLECTIVE);
    if (now >= p->note_at) {
        p->note_gap *= 2;
        p->note_at = now + p->note_gap;
        if (p->source >= 0)
            send_note(c, p->source);
        for (int i = 0; i < c->n && p->source == COLL_ANY_RANK; i++)
            if (is_near(c, i))
                send_note(c, i);
    }
    return MSG_SUCCESS;
}

/* Check the group for failures. MSG_SUCCESS: go on waiting. Any other code: the group is broken. The grace period
 * starts at failed_at, when the gone rank was first found. */
static int check_group(coll *c, struct coll_wait *p, uint64_t now)
{
    int gone = MSG_SUCCESS, code;
    if (msg_interrupted(c->world))
        return coll_fail(c, MSG_INTERRUPTED);
    msg_progress(c->world);
    if (msg_is_revoked(c->world, c->revocable))
        return coll_fail(c, MSG_ERR_REVOKED);
    for (int i = 0; i < c->n && gone != MSG_ERR_PROC_FAILED; i++) {
        int state = msg_peer_status(c->world, c->ranks[i]);
        if (state == MSG_PEER_FAILED)
            gone = MSG_ERR_PROC_FAILED;
        else if (state == MSG_PEER_LEFT && !p->message && (p->source == COLL_ANY_RANK || p->source == i))
            /* A wait for messages learns of a departure from its request. */
            gone = MSG_ERR_LEFT; /* other ranks may rightly have left by now */
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

/* The kernel compares 32 bits. Words only grow, and no rank sleeps through 2^32 increments. */
static const uint32_t *low_half(const uint64_t *word)
{
    return (const uint32_t *)word + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

void coll_wake(const uint64_t *word)
{
    syscall(SYS_futex, low_half(word), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Sleep at most ns, which is below a second: until the NIC's interrupt, for this time, or until the word changes. If
 * the word no longer has the value that was seen, the kernel returns at once. */
static void nap(const coll *c, const struct coll_wait *p, uint64_t ns)
{
    struct timespec t = {0, (long)ns};
    if (p->asleep) {
        msg_sleep(c->world, ns);
        return;
    }
    if (!p->word || c->all_fit) {
        nanosleep(&t, NULL);
        return;
    }
    vk_add(p->sleepers, 1); /* before the kernel reads the word: coll_publish */
    syscall(SYS_futex, low_half(p->word), FUTEX_WAIT, (uint32_t)p->seen, &t, NULL, 0);
    vk_add(p->sleepers, -1);
}

/* With more ranks than cores the awaited rank may need this very core: yield at once. A rank that sleeps on a word
 * waits for all ranks of the node. One that yields its core to a computing process delays them all. Therefore they
 * share costly_until. If one rank finds that yielding is expensive, all stop yielding, and try again at the same
 * time. */
static void begin_wait(const coll *c, struct coll_wait *p)
{
    p->ladder = (struct vk_wait){.deadline = VK_NEVER,
                                 .yield_after = c->crowded ? 0 : c->yield_ns,
                                 .sleep_after = p->asleep ? 0 : c->spin_ns,
                                 .check_every = CHECK_NS,
                                 .costly_until = p->word ? &c->shared->costly_until : NULL,
                                 .polls_per_clock = POLLS_PER_CLOCK};
}

/* A write to memory wakes no sleeper, so a sleep is short: 1/16 of the time waited so far. While yields are expensive
 * it is 1/8, because each poll disturbs the process that computes on this core. */
static uint64_t length_of_nap(const coll *c, const struct coll_wait *p)
{
    if (others_want(c))
        return LEAST_SLEEP;
    if (p->asleep) /* an arrival ends it */
        return CHECK_NS;
    int costly = p->ladder.now - p->ladder.began < c->spin_ns;
    return p->word ? LONGEST_SLEEP : vk_wait_sleep(&p->ladder, costly ? 8 : 16, LEAST_SLEEP, LONGEST_SLEEP);
}

/* The long part of a poll: everything except the quick pause. */
int coll_pause_long(coll *c, struct coll_wait *p)
{
    coll_release(c);
    if (p->ladder.polls_per_clock == 0)
        begin_wait(c, p);
    enum vk_wait_step step = vk_wait_next(&p->ladder, 0);
    /* Progress before the step, so that a message that has arrived is handled before a sleep. */
    if (p->polls % 8 == 0 || step == VK_WAIT_SLEEP || vk_time_is_virtual())
        msg_progress(c->world);
    if (vk_unlikely(others_want(c)) && (p->polls % POLLS_PER_CLOCK == 0 || step == VK_WAIT_SLEEP))
        c->meanwhile(c->meanwhile_context);
    if (step == VK_WAIT_CHECK)
        return check_group(c, p, p->ladder.now);
    if (step == VK_WAIT_SLEEP)
        nap(c, p, length_of_nap(c, p));
    else if (step == VK_WAIT_YIELD)
        vk_wait_yield(&p->ladder);
    else
        vk_pause();
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- waiting for messages */

/* Waits in slices of 10 ms, because the abort message may arrive at any time. */
void coll_give_up(coll *c, msg_request **request, int to)
{
    uint64_t deadline = vk_now() + COLL_LET_FINISH_MS * VK_MS;
    if (*request == NULL)
        return;
    coll_release(c);
    msg_cancel(c->world, *request);
    while (msg_wait(c->world, request, NULL, 10) != MSG_SUCCESS)
        if (vk_now() > deadline || (to >= 0 && coll_gave_up(c, to))) { /* it will not fetch the data any more */
            msg_request_free(c->world, request);
            return;
        }
}

/* Wait in slices of growing length, and call check_group between them. On failure the request is given up: the buffer
 * belongs to the caller again when this returns. */
int coll_finish(coll *c, msg_request **request, msg_status *status, int who, int sending)
{
    /* A request for a message fails by itself when its sender has left. */
    struct coll_wait p = {.source = who, .message = 1, .awaits = !sending};
    msg_status own;
    status = status ? status : &own;
    coll_release(c);
    for (int64_t slice = 10;;) {
        /* Short slices while the caller has other work: `meanwhile` is called between them. */
        int code = msg_wait(c->world, request, status, others_want(c) ? 1 : slice);
        if (code == MSG_SUCCESS)
            return status->error == MSG_SUCCESS
                       ? MSG_SUCCESS
                       : coll_fail(c, status->error == MSG_ERR_TRUNCATE ? MSG_ERR_COLLECTIVE : status->error);
        if (vk_unlikely(others_want(c)))
            c->meanwhile(c->meanwhile_context);
        if (code == MSG_TIMEOUT)
            code = check_group(c, &p, vk_now());
        else
            coll_fail(c, code);
        if (code != MSG_SUCCESS) {
            coll_give_up(c, request, sending ? who : COLL_ANY_RANK);
            return c->error;
        }
        slice = 2 * slice < LONGEST_SLICE_MS ? 2 * slice : LONGEST_SLICE_MS;
    }
}

/* Post the receive first, so that two ranks that exchange find each other's receives posted. A message of another
 * length is a mismatch; a longer one is detected by truncation. */
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
        coll_give_up(c, &in, COLL_ANY_RANK);
    }
    return code;
}
