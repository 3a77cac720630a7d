/*
 * Progress, waiting, and the ends of requests.
 *
 * A wait goes through three stages:
 *
 *     polls                     every look one msg_step; the first 200 looks (2 where cores are scarce) without a clock
 *     gives the core away       between looks, after yield_us; at once where this host has more ranks than cores: with
 *                               16 ranks on 2 cores that is 3 times faster than sleeping, with 2 ranks 100 times
 *     sleeps in the kernel      after spin_us; at once while turns are dear, because somebody computes on the cores
 *                               that we would give away (turn.h)
 *
 * A sleep ends when something arrives, and lasts at most half of the time waited so far and 20 ms, so that what
 * no descriptor tells of (an interrupt, another NIC) is noticed soon. Whatever happens, be it for somebody
 * else, sets the time waited back to 0: where messages come, more are likely.
 *
 * Who waits holds the world's lock but for three moments: between two looks (other threads of a world with
 * `threads` are let in), asleep, and while the interrupt callback runs. So a condition may change at each of
 * them, and a pointer to a request that another thread may reap is good only as long as its owner does not.
 *
 * With a progress thread (policy: progress) waiting calls look once and then leave it to the thread, as
 * MPI/Pro did; the price is a switch between threads per message.
 */
#include <errno.h>
#include <time.h>

#include "../base/turn.h"
#include "channel.h"

/* While polling, so many looks share one reading of the clock. LONGEST_SLEEP bounds how late an interrupt or
 * the other NIC is noticed; a shorter sleep than SHORTEST_SLEEP is hardly worth its system calls. */
#define LOOKS_PER_CLOCK 32
#define LONGEST_SLEEP (20 * VK_MS)
#define SHORTEST_SLEEP (100 * VK_US)

/* ---------------------------------------------------------------- progress */

/* Pushes what waits, rank by rank. Pushing can end ranks, and put others on the list, at its front: then *p is no
 * longer the rank in hand, which is met once more behind them. A rank whose queue was emptied elsewhere leaves the
 * list here. */
static void push_busy(msg_world *w)
{
    struct msg_peer **p = &w->busy;
    while (*p) {
        struct msg_peer *peer = *p;
        msg_push_queue(peer);
        if (peer->queue == NULL && *p == peer) {
            *p = peer->busy;
            peer->on_busy_list = 0;
        } else
            p = &(*p)->busy;
    }
}

/* One round of everything: first what has arrived, for it may bring the credits and completions that
 * the rest needs; then queued packets; then RDMA. Lock held. */
int msg_step(msg_world *w)
{
    int n = w->channel ? w->channel->progress(w, w->enough) : 0;
    if (vk_unlikely(w->busy != NULL))
        push_busy(w);
    if (vk_unlikely(w->moving != NULL))
        msg_move(w);
    return n;
}

int msg_progress(msg_world *w)
{
    msg_lock(w);
    int n = msg_step(w);
    msg_unlock(w);
    return n;
}

void msg_set_interrupt(msg_world *w, int (*check)(void *), void *context)
{
    msg_lock(w);
    w->interrupt = check;
    w->interrupt_context = context;
    msg_unlock(w);
}

/* ---------------------------------------------------------------- waiting */

/* Asks the callback; non-zero: end the wait. The lock is given back and taken again. */
static int interrupted(msg_world *w)
{
    int (*check)(void *) = w->interrupt;
    void *context = w->interrupt_context;
    if (check == NULL)
        return 0;
    msg_unlock(w); /* it may take the caller's own locks */
    int stop = check(context);
    msg_lock(w);
    return stop;
}

int msg_interrupted(msg_world *w)
{
    msg_lock(w);
    int stop = interrupted(w);
    msg_unlock(w);
    return stop;
}

/* The progress thread tells when something has completed. n_sleeping spares msg_complete the broadcast where
 * nobody listens; both are touched with the mutex held, so no wake-up falls between the look and the wait. */
static void sleep_until_changed(msg_world *w, uint64_t ns)
{
    struct timespec t;
    uint64_t at = vk_now() + ns; /* the condition's clock is the monotonic one */
    t.tv_sec = (time_t)(at / VK_SECOND);
    t.tv_nsec = (long)(at % VK_SECOND);
    w->n_sleeping++;
    pthread_cond_timedwait(&w->changed, &w->mutex, &t);
    w->n_sleeping--;
}

/* Without the lock in the channel, so that other threads can go on; what the sleep brought is handled when it
 * is held again. A world of one rank has no channel, and only another thread can end its wait. */
static void sleep_in_kernel(msg_world *w, uint64_t ns)
{
    struct msg_token token = {0};
    MSG_COUNT(w, sleeps, 1);
    if (w->has_thread) {
        sleep_until_changed(w, ns);
        return;
    }
    msg_unlock(w);
    if (w->channel)
        w->channel->sleep(w, ns, &token);
    else {
        struct timespec t = {0, (long)(ns < LONGEST_SLEEP ? ns : LONGEST_SLEEP)};
        nanosleep(&t, NULL);
    }
    msg_lock(w);
    if (w->channel)
        w->channel->wake(w, &token);
}

/* Unlocked for an instant. Without `threads` there is nobody to let in. */
static void let_threads_in(msg_world *w)
{
    vk_pause();
    if (w->threads) {
        msg_unlock(w);
        msg_lock(w);
    }
}

/* vk_yield also measures how long the core was gone: that is what vk_yield_pays judges by. */
static void let_others_run(msg_world *w, uint64_t now)
{
    msg_unlock(w);
    vk_yield(now);
    msg_lock(w);
    MSG_COUNT(w, yields, 1);
}

/* The long part of a wait: MSG_SUCCESS, MSG_TIMEOUT or MSG_INTERRUPTED. Four times are kept:
 * when it began, when something last happened (idle_since), when the callback was last asked
 * (checked), and the deadline. done() is asked after each step and after each sleep, so
 * nothing that happened is missed before a time-out is reported. */
static int wait_long(msg_world *w, int (*done)(void *), void *argument, int64_t timeout_ms)
{
    uint64_t began = vk_now(), now = began;
    uint64_t deadline = timeout_ms < 0 ? VK_NEVER : began + (uint64_t)timeout_ms * VK_MS, checked = began;
    uint64_t idle_since = began;
    uint64_t spin = w->policy.spin_us < 0 || w->has_thread ? 0 : (uint64_t)w->policy.spin_us * VK_US;
    uint64_t yield_after = w->policy.yield_us < 0 ? VK_NEVER : w->crowded ? 0 : (uint64_t)w->policy.yield_us * VK_US;
    int yield = yield_after == 0;
    for (unsigned looks = 1;; looks++) {
        int n = msg_step(w);
        if (done(argument))
            return MSG_SUCCESS;
        /* The quick path: nothing came, and it is not yet time to look at the clock. */
        if (!yield && n == 0 && looks % LOOKS_PER_CLOCK) {
            let_threads_in(w);
            continue;
        }
        now = vk_now();
        if (n)
            idle_since = now;
        if (now >= deadline)
            return MSG_TIMEOUT;
        /* 10 ms between two questions and at most 20 ms asleep: within the 50 ms that msg.h promises. */
        if (now - checked > 10 * VK_MS) {
            checked = now;
            /* The lock was given back meanwhile. What is found done now is over: a condition that tries something
             * (send.c: was_taken) must not be asked again once it has said yes. */
            if (interrupted(w))
                return done(argument) ? MSG_SUCCESS : MSG_INTERRUPTED;
        }
        if (n)
            continue;
        yield = now - idle_since >= yield_after;
        /* Who has just begun to wait sleeps shortly, who has waited long sleeps long: half of it again. */
        if (now - idle_since >= spin || (yield && !vk_yield_pays(now))) {
            uint64_t ns = (now - idle_since) / 2;
            ns = ns < SHORTEST_SLEEP ? SHORTEST_SLEEP : ns > LONGEST_SLEEP ? LONGEST_SLEEP : ns;
            sleep_in_kernel(w, deadline - now < ns ? deadline - now : ns);
            if (done(argument))
                return MSG_SUCCESS;
        } else if (yield)
            let_others_run(w, now);
        else
            let_threads_in(w);
    }
}

/* Waits until done(argument); MSG_SUCCESS also if it is true at once, and with timeout_ms 0 after one step. May
 * give the lock back and take it again (see the top of the file). */
int msg_wait_until(msg_world *w, int (*done)(void *), void *argument, int64_t timeout_ms)
{
    if (done(argument))
        return MSG_SUCCESS;
    if (timeout_ms == 0) {
        msg_step(w);
        return done(argument) ? MSG_SUCCESS : MSG_TIMEOUT;
    }
    /* short waits never look at the clock */
    for (int i = w->crowded || w->has_thread ? 2 : 200; i > 0; i--) {
        msg_step(w);
        if (done(argument))
            return MSG_SUCCESS;
        let_threads_in(w);
    }
    return wait_long(w, done, argument, timeout_ms);
}

/* For msg_idle: "something has happened" is a sum of counters that only grow. */
struct change {
    msg_world *w;
    uint64_t seen;
};

static int has_changed(void *argument)
{
    const struct change *c = argument;
    return c->w->n_completed + c->w->counters[MSG_COUNTER_unexpected] + c->w->counters[MSG_COUNTER_received] != c->seen;
}

int msg_idle(msg_world *w, int64_t timeout_ms)
{
    msg_lock(w);
    struct change c = {w, w->n_completed + w->counters[MSG_COUNTER_unexpected] + w->counters[MSG_COUNTER_received]};
    int code = msg_wait_until(w, has_changed, &c, timeout_ms);
    msg_unlock(w);
    return code;
}

/* ---------------------------------------------------------------- requests end */

static const msg_status empty_status = {.source = MSG_ANY_SOURCE, .tag = MSG_ANY_TAG};

/* The end of a request for its caller: its status is handed out, its place is free, the caller's pointer NULL.
 * What went wrong with it becomes the world's last error, if nobody has explained it better. */
void msg_reap(msg_world *w, msg_request **request, msg_status *status)
{
    msg_request *r = *request;
    if (r->status.error)
        msg_fail_plain(w, r->status.error);
    if (status)
        *status = r->status;
    msg_request_put(w, r);
    *request = NULL;
}

int msg_is_complete(void *request)
{
    return ((msg_request *)request)->complete;
}

/* Is this pointer a request that a caller may wait for? A place in the pool stays readable for ever, so a stale
 * pointer is most times found out here, but not one whose place has a new owner. */
static int is_active(const msg_world *w, const msg_request *r)
{
    return r->world == w && r->kind != MSG_REQ_FREE && r->kind != MSG_REQ_CARRIER && !(r->flags & MSG_DETACHED);
}

static int not_a_request(msg_world *w)
{
    return msg_fail(w, MSG_ERR_REQUEST, "not an active request of this world (it may have been waited for already)");
}

int msg_wait(msg_world *w, msg_request **request, msg_status *status, int64_t timeout_ms)
{
    int code = MSG_SUCCESS;
    if (*request == NULL) {
        if (status)
            *status = empty_status;
        return MSG_SUCCESS;
    }
    msg_lock(w);
    if (!is_active(w, *request))
        code = not_a_request(w);
    else if (!(*request)->complete) {
        /* Progress then stops at the packet that completes this request: what nobody waits for yet
         * stays in its buffer, and may find its receive posted when it is looked at. With threads
         * others would wait for what is left lying. */
        if (!w->threads)
            w->enough = &(*request)->complete;
        code = msg_wait_until(w, msg_is_complete, *request, timeout_ms);
        w->enough = NULL;
    }
    if (code == MSG_SUCCESS)
        msg_reap(w, request, status);
    msg_unlock(w);
    return code;
}

int msg_test(msg_world *w, msg_request **request, msg_status *status)
{
    int code = MSG_SUCCESS;
    if (*request == NULL) {
        if (status)
            *status = empty_status;
        return MSG_SUCCESS;
    }
    msg_lock(w);
    if (!is_active(w, *request))
        code = not_a_request(w);
    else {
        if (!(*request)->complete)
            msg_step(w);
        if ((*request)->complete)
            msg_reap(w, request, status);
        else
            code = MSG_PENDING;
    }
    msg_unlock(w);
    return code;
}

struct set {
    msg_world *w;
    msg_request **requests;
    int n, at;     /* all: those before `at` are complete */
    uint64_t seen; /* any: completions when last looked */
};

/* Goes on where it stopped last: what is complete stays so until it is reaped. */
static int all_complete(void *argument)
{
    struct set *s = argument;
    while (s->at < s->n && (s->requests[s->at] == NULL || s->requests[s->at]->complete))
        s->at++;
    return s->at == s->n;
}

/* Only after something has completed is it worth looking. */
static int any_complete(void *argument)
{
    struct set *s = argument;
    if (s->seen == s->w->n_completed)
        return 0;
    s->seen = s->w->n_completed;
    for (s->at = 0; s->at < s->n; s->at++)
        if (s->requests[s->at] && s->requests[s->at]->complete)
            return 1;
    return 0;
}

/* All active or NULL? Returns how many are active, or -1. */
static int count_active(msg_world *w, int n, msg_request **requests)
{
    int active = 0;
    for (int i = 0; i < n; i++)
        if (requests[i]) {
            if (!is_active(w, requests[i])) {
                not_a_request(w);
                return -1;
            }
            active++;
        }
    return active;
}

int msg_waitall(msg_world *w, int n, msg_request **requests, msg_status *statuses, int64_t timeout_ms)
{
    struct set s = {w, requests, n, 0, 0};
    msg_lock(w);
    /* All or nothing: after a time-out none has been reaped, and the caller may wait for the same set again. */
    int code = count_active(w, n, requests) < 0 ? MSG_ERR_REQUEST : msg_wait_until(w, all_complete, &s, timeout_ms);
    for (int i = 0; code == MSG_SUCCESS && i < n; i++) {
        if (requests[i])
            msg_reap(w, &requests[i], statuses ? &statuses[i] : NULL);
        else if (statuses)
            statuses[i] = empty_status;
    }
    msg_unlock(w);
    return code;
}

int msg_waitany(msg_world *w, int n, msg_request **requests, int *index, msg_status *status, int64_t timeout_ms)
{
    msg_lock(w);
    /* `seen` is another number than n_completed, so the first look is a real one. */
    struct set s = {w, requests, n, 0, w->n_completed - 1};
    int active = count_active(w, n, requests), code = active < 0 ? MSG_ERR_REQUEST : MSG_SUCCESS;
    if (active > 0 && (code = msg_wait_until(w, any_complete, &s, timeout_ms)) == MSG_SUCCESS) {
        *index = s.at;
        msg_reap(w, &requests[s.at], status);
    } else if (active == 0) {
        *index = -1;
        if (status)
            *status = empty_status;
    }
    msg_unlock(w);
    return code;
}

int msg_waitsome(msg_world *w, int n, msg_request **requests, int *n_done, int *indices, msg_status *statuses,
                 int64_t timeout_ms)
{
    msg_lock(w);
    struct set s = {w, requests, n, 0, w->n_completed - 1};
    int active = count_active(w, n, requests), code = active < 0 ? MSG_ERR_REQUEST : MSG_SUCCESS, done = 0;
    if (active > 0)
        code = msg_wait_until(w, any_complete, &s, timeout_ms);
    if (active > 0 && (code == MSG_SUCCESS || (code == MSG_TIMEOUT && timeout_ms == 0))) {
        code = MSG_SUCCESS;
        for (int i = 0; i < n; i++)
            if (requests[i] && requests[i]->complete) {
                indices[done] = i;
                msg_reap(w, &requests[i], statuses ? &statuses[done] : NULL);
                done++;
            }
    }
    if (code == MSG_SUCCESS)
        *n_done = active == 0 ? -1 : done;
    msg_unlock(w);
    return code;
}

int msg_request_peek(const msg_world *w, const msg_request *request, msg_status *status)
{
    /* Acquire, with msg_complete's release: who sees `complete` sees the status that was written before it. */
    if (request && !vk_load_acquire(&request->complete))
        return 0;
    if (status)
        *status = request && request->world == w ? request->status : empty_status;
    return 1;
}

uint64_t msg_request_id(const msg_request *request)
{
    return request ? request->id : 0;
}

/* MPI wants a cancelled operation to end either as if it had never been, or as if nobody had
 * cancelled it. So only what the other side cannot know of is withdrawn: a receive in the posted
 * queue; a send none of whose bytes has left, the last of its rank's queue. The first of the queue
 * may have begun; one in the middle is not looked for. Both go on. */
int msg_cancel(msg_world *w, msg_request *r)
{
    int code = MSG_SUCCESS;
    msg_lock(w);
    if (r == NULL || !is_active(w, r))
        code = not_a_request(w);
    else if (!r->complete && (r->flags & MSG_ON_POSTED)) {
        msg_unpost(w, r);
        r->status.cancelled = 1;
        r->status.len = 0;
        msg_complete(r, MSG_SUCCESS);
    } else if (!r->complete && r->kind == MSG_REQ_SEND && (r->flags & MSG_QUEUED) && !(r->flags & MSG_ANNOUNCED) &&
               r->out.sent == 0 && r->out.next == NULL && w->peers[r->peer].queue != &r->out) {
        /* the youngest of several in the queue: nothing of it can have left */
        struct msg_peer *peer = &w->peers[r->peer];
        struct msg_out **p = &peer->queue;
        while (*p != &r->out)
            p = &(*p)->next;
        *p = NULL;
        peer->queue_end = p;
        r->flags &= (uint8_t)~MSG_QUEUED;
        msg_let_go(r); /* it may have been offered for reading */
        r->status.cancelled = 1;
        msg_complete(r, MSG_SUCCESS);
    }
    msg_unlock(w);
    return code;
}

int msg_request_free(msg_world *w, msg_request **request)
{
    int code = MSG_SUCCESS;
    if (*request == NULL)
        return code;
    msg_lock(w);
    if (!is_active(w, *request))
        code = not_a_request(w);
    else {
        /* Not complete yet: msg_complete, or the end of its rank, frees it when the time comes. */
        if ((*request)->complete)
            msg_request_put(w, *request);
        else
            (*request)->flags |= MSG_DETACHED;
        *request = NULL;
    }
    msg_unlock(w);
    return code;
}

/* ---------------------------------------------------------------- the progress thread */

/* Steps until nothing happens, tells who sleeps, and sleeps itself. With packets or RDMA waiting for room
 * it sleeps shortly: no event may tell that there is room. */
static void *thread_main(void *argument)
{
    msg_world *w = argument;
    struct msg_token token;
    msg_lock(w);
    while (!w->stop_thread) {
        uint64_t before = w->n_completed;
        while (!w->stop_thread && msg_step(w) > 0) {}
        if (w->n_sleeping && w->n_completed != before)
            pthread_cond_broadcast(&w->changed);
        if (w->stop_thread)
            break;
        memset(&token, 0, sizeof token);
        uint64_t at_most = w->busy || w->moving ? SHORTEST_SLEEP : LONGEST_SLEEP;
        msg_unlock(w);
        w->channel->sleep(w, at_most, &token);
        msg_lock(w);
        w->channel->wake(w, &token);
    }
    msg_unlock(w);
    return NULL;
}

int msg_thread_start(msg_world *w)
{
    w->has_thread = 1;
    if (pthread_create(&w->thread, NULL, thread_main, w) != 0) {
        w->has_thread = 0;
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no progress thread could be started");
    }
    return MSG_SUCCESS;
}

void msg_thread_stop(msg_world *w)
{
    if (!w->has_thread)
        return;
    msg_lock(w);
    w->stop_thread = 1;
    msg_unlock(w);
    pthread_join(w->thread, NULL);
    w->has_thread = 0;
}
