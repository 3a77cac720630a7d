/*
 * Progress, waiting, and completion of requests.
 *
 * A wait has three stages (base/wait.h):
 *
 *     poll                      One msg_step per poll. The first 200 polls (2 if cores are scarce) read no clock. A wait
 *                               with spin_us -1 polls once.
 *     yield the core            Between polls, after yield_us. At once if this host has more ranks than cores: with
 *                               16 ranks on 2 cores that is 3 times faster than sleeping, with 2 ranks 100 times.
 *     sleep in the kernel       After spin_us. At once while a yield is expensive, because another process computes
 *                               on the cores that a yield would give away.
 *
 * A sleep ends when a packet arrives. It lasts at most half of the time waited so far and at most 20 ms. So events that
 * complete no descriptor (an interrupt, another NIC) are noticed soon. Any event, even for another wait, resets the
 * time waited to 0: where messages arrive, more are likely.
 *
 * A waiting thread holds the world's lock except at three points: between two polls (to admit other threads of a world
 * with `threads`), during a sleep, and while the interrupt callback runs. So a condition may change at each of these
 * points. A pointer to a request is valid only until the thread that owns the request reaps it.
 *
 * With a progress thread (policy: progress=thread) waiting calls poll a few times and then leave progress to the
 * thread, as MPI/Pro did. This costs a switch between threads per message.
 *
 * With progress=signal, data that arrives while the program computes interrupts it, as SIGIO interrupted programs of
 * MP_Lite. A handler cannot do it here: it may run only functions that are safe in handlers. So a thread does, but
 * never while the program is in the library or has just been there. Its calls then wait as without a thread.
 *
 *     the program calls or waits      the thread naps, and looks every SIGNAL_CHECK whether there were calls
 *     the program computes            the thread sleeps in the channel, and serves what arrives
 */
#include <errno.h>
#include <time.h>

#include "base/wait.h"
#include "msg/channel.h"

/* LONGEST_SLEEP bounds the delay until an interrupt or the other NIC is noticed; with CHECK_EVERY it stays within the
 * 50 ms that msg.h promises. A sleep shorter than SHORTEST_SLEEP hardly pays for its system calls. */
#define POLLS_PER_CLOCK 32
#define POLLS_AT_ONCE 64 /* of msg_poll_for: about 2 us on shm */
#define CHECK_EVERY (10 * VK_MS)
#define LONGEST_SLEEP (20 * VK_MS)
#define SHORTEST_SLEEP (100 * VK_US)
#define SIGNAL_CHECK (500 * VK_US)

/* ---------------------------------------------------------------- progress */

/* Pushes queued packets, rank by rank. Pushing can end ranks, and can add others at the front of the list. Then *p
 * is no longer the current rank, which the loop meets once more behind them. A rank whose queue was emptied
 * elsewhere leaves the list here. */
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

/* One round of progress: arrived packets first, because they may bring the credits and completions that the rest
 * needs. Then queued packets, then RDMA. Lock held. */
int msg_step(msg_world *w)
{
    int n = w->channel ? w->channel->progress(w, w->enough) : 0;
    if (vk_unlikely(w->busy != NULL))
        push_busy(w);
    if (vk_unlikely(w->moving != NULL))
        msg_move(w);
    if (vk_unlikely(w->n_revoked))
        msg_discard_revoked(w);
    return n;
}

/* Returns 0 in the child of a fork. */
int msg_progress(msg_world *w)
{
    if (!msg_enter(w))
        return 0;
    int n = msg_step(w);
    msg_unlock(w);
    return n;
}

/* A wait that is in progress in another thread reads the new callback at its next check. */
void msg_set_interrupt(msg_world *w, int (*check)(void *), void *context)
{
    if (!msg_enter(w))
        return;
    w->interrupt = check;
    w->interrupt_context = context;
    msg_unlock(w);
}

/* ---------------------------------------------------------------- waiting */

/* Calls the callback; non-zero ends the wait. The lock is released during the call. The callback may fork (a signal
 * handler of the program). In the child the lock is not acquired again, and the wait ends with MSG_ERR_PROCESS. */
static int interrupted(msg_world *w)
{
    int (*check)(void *) = w->interrupt;
    void *context = w->interrupt_context;
    if (check == NULL)
        return 0;
    msg_unlock(w); /* it may acquire the caller's own locks */
    int stop = check(context);
    if (vk_unlikely(!msg_same_process(w))) {
        w->threads = 0; /* so that the caller's msg_unlock does not touch the mutex either */
        return 1;
    }
    msg_lock(w);
    return stop;
}

/* Returns 1 in the child of a fork, so that a caller's wait ends there. */
int msg_interrupted(msg_world *w)
{
    if (!msg_enter(w))
        return 1;
    int stop = interrupted(w);
    msg_unlock(w);
    return stop;
}

/* Whether waiting calls leave progress to the thread. */
static inline int thread_serves(const msg_world *w)
{
    return w->has_thread && w->policy.progress == MSG_PROGRESS_THREAD;
}

/* The progress thread signals completions. n_sleeping spares msg_complete the broadcast while no thread sleeps. Both
 * are accessed with the mutex held, so no wake-up is lost between the check and the wait. */
static void sleep_until_changed(msg_world *w, uint64_t ns)
{
    struct timespec t;
    uint64_t at = vk_now() + ns; /* the condition uses the monotonic clock */
    t.tv_sec = (time_t)(at / VK_SECOND);
    t.tv_nsec = (long)(at % VK_SECOND);
    w->n_sleeping++;
    pthread_cond_timedwait(&w->changed, &w->mutex, &t);
    w->n_sleeping--;
}

/* The lock is released while the channel sleeps, so that other threads can continue. The result of the sleep is
 * handled once the lock is held again. A world of one rank has no channel, and only another thread can end its wait. */
static void sleep_in_kernel(msg_world *w, uint64_t ns)
{
    struct msg_token token = {0};
    MSG_COUNT(w, sleeps, 1);
    if (thread_serves(w) || w->thread_listens) { /* the kernel wakes one thread for an event: the one that listens */
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

/* Releases the lock for a moment. Without `threads` no other thread waits for it. */
static void admit_threads(msg_world *w)
{
    vk_pause();
    if (w->threads) {
        msg_unlock(w);
        msg_lock(w);
    }
}

/* True if a wait does not poll before it sleeps, or before it leaves progress to a thread. */
static int sleeps_at_once(const msg_world *w)
{
    return w->policy.spin_us < 0 || thread_serves(w);
}

/* The long part of a wait. Returns MSG_SUCCESS, MSG_TIMEOUT, MSG_INTERRUPTED or MSG_ERR_PROCESS. done() is called after
 * each step and each sleep, so no event is missed before a time-out is reported. */
static int wait_long(msg_world *w, int (*done)(void *), void *argument, int64_t timeout_ms)
{
    const msg_policy *p = &w->policy;
    uint64_t yield_after = w->crowded ? 0 : (uint64_t)p->yield_us * VK_US;
    struct vk_wait wait = {.deadline = vk_deadline((unsigned long)timeout_ms),
                           .yield_after = p->yield_us < 0 ? VK_NEVER : yield_after,
                           .sleep_after = sleeps_at_once(w) ? 0 : (uint64_t)p->spin_us * VK_US,
                           .check_every = CHECK_EVERY,
                           .polls_per_clock = POLLS_PER_CLOCK};
    wait.free_polls = wait.yield_after && wait.sleep_after ? POLLS_PER_CLOCK - 1 : 0;
    for (;;) {
        int n = msg_step(w);
        if (done(argument))
            return MSG_SUCCESS;
        switch (vk_wait_next(&wait, n)) {
        case VK_WAIT_SPIN:
            if (n == 0)
                admit_threads(w);
            break;
        case VK_WAIT_YIELD:
            msg_unlock(w);
            vk_wait_yield(&wait);
            msg_lock(w);
            MSG_COUNT(w, yields, 1);
            break;
        case VK_WAIT_SLEEP:
            sleep_in_kernel(w, vk_wait_sleep(&wait, 2, SHORTEST_SLEEP, LONGEST_SLEEP));
            if (done(argument))
                return MSG_SUCCESS;
            break;
        case VK_WAIT_CHECK:
            if (interrupted(w))
                return !msg_same_process(w) ? MSG_ERR_PROCESS : done(argument) ? MSG_SUCCESS : MSG_INTERRUPTED;
            break;
        case VK_WAIT_TIMEOUT:
            return MSG_TIMEOUT;
        }
    }
}

/* Returns how many polls of a wait read no clock. */
static int first_polls(const msg_world *w)
{
    if (vk_time_is_virtual() || w->policy.spin_us < 0)
        return 0;
    return w->crowded || thread_serves(w) ? 2 : 200;
}

/* The first stage of a wait, counted instead of timed, so that a reply which is almost here costs no clock reading.
 * wait_long follows. Returns as that. */
static int wait_polling(msg_world *w, int (*done)(void *), void *argument, int64_t timeout_ms)
{
    for (int i = first_polls(w); i > 0; i--) {
        msg_step(w);
        if (done(argument))
            return MSG_SUCCESS;
        admit_threads(w);
    }
    return wait_long(w, done, argument, timeout_ms);
}

/* Not while another thread waits and polls: it holds the lock most of the time. */
int msg_poll_for(msg_world *w, const msg_request *r)
{
    int n = vk_time_is_virtual() || w->n_waiting || w->crowded || sleeps_at_once(w) ? 0 : POLLS_AT_ONCE;
    for (int i = 0; i < n && !r->complete; i++) {
        /* As in msg_wait. A thread that begins to wait polls by itself first. */
        w->enough = w->n_waiting || w->has_thread ? NULL : &r->complete;
        msg_step(w);
        w->enough = NULL;
        if (!r->complete)
            admit_threads(w);
    }
    return r->complete;
}

/* Waits until done(argument). Returns MSG_SUCCESS also if it is true at once. With timeout_ms 0 it makes one step.
 * May release and acquire the lock (see the top of the file). */
int msg_wait_until(msg_world *w, int (*done)(void *), void *argument, int64_t timeout_ms)
{
    if (done(argument))
        return MSG_SUCCESS;
    if (timeout_ms == 0) {
        msg_step(w);
        return done(argument) ? MSG_SUCCESS : MSG_TIMEOUT;
    }
    w->n_waiting++;
    int code = wait_polling(w, done, argument, timeout_ms);
    w->n_waiting--;
    return code;
}

/* For a caller that measures or implements a wait of its own: one sleep, one wake, no polling before it. */
void msg_sleep(msg_world *w, uint64_t ns)
{
    if (!msg_enter(w))
        return;
    sleep_in_kernel(w, ns);
    msg_unlock(w);
}

/* Condition of msg_idle: an event has changed a sum of counters that only grow. */
struct change {
    msg_world *w;
    uint64_t seen;
};

static int has_changed(void *argument)
{
    const struct change *c = argument;
    return c->w->n_completed + c->w->counters[MSG_COUNTER_unexpected] + c->w->counters[MSG_COUNTER_received] != c->seen;
}

/* Completions, unexpected messages and receives are counted, because a collective's own condition can depend on any of
 * these. Returns also after an event that another thread has handled. */
int msg_idle(msg_world *w, int64_t timeout_ms)
{
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    struct change c = {w, w->n_completed + w->counters[MSG_COUNTER_unexpected] + w->counters[MSG_COUNTER_received]};
    int code = msg_wait_until(w, has_changed, &c, timeout_ms);
    msg_unlock(w);
    return code;
}

/* ---------------------------------------------------------------- completion of requests */

static const msg_status empty_status = {.source = MSG_ANY_SOURCE, .tag = MSG_ANY_TAG};

/* Ends a request for its caller: copies its status, frees its place, and sets the caller's pointer to NULL. The
 * error of the request becomes the world's last error, unless a better text was set. */
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

/* Checks that a caller may wait for this request. A place in the pool stays readable as long as the world, so most
 * stale pointers are detected here. A stale pointer to a place in use again is not. */
static int is_active(const msg_world *w, const msg_request *r)
{
    return r->world == w && r->kind != MSG_REQ_FREE && r->kind != MSG_REQ_CARRIER && !(r->flags & MSG_DETACHED);
}

/* Nothing is changed: *request stays as the caller has it. */
static int not_a_request(msg_world *w)
{
    return msg_fail(w, MSG_ERR_REQUEST, "not an active request of this world (it may have been waited for already)");
}

/* A NULL request is complete and empty (MPI 4.1, 3.7.3: null requests). After MSG_TIMEOUT and MSG_INTERRUPTED the
 * request stays active and the caller's. */
int msg_wait(msg_world *w, msg_request **request, msg_status *status, int64_t timeout_ms)
{
    int code = MSG_SUCCESS;
    if (*request == NULL) {
        if (status)
            *status = empty_status;
        return MSG_SUCCESS;
    }
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    if (!is_active(w, *request))
        code = not_a_request(w);
    else if (!(*request)->complete) {
        /* Progress then stops at the packet that completes this request. Packets not yet waited for stay in their
         * buffers, and may find their receives posted later. Not with threads, because other threads would wait for
         * the packets left behind. */
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

/* Never waits for the lock, as msg_recv_soon (recv.c). */
int msg_wait_soon(msg_world *w, msg_request **request, msg_status *status)
{
    int code = MSG_PENDING;
    if (*request == NULL || !msg_try_enter(w))
        return MSG_PENDING;
    if (is_active(w, *request) && msg_poll_for(w, *request)) {
        msg_reap(w, request, status);
        code = MSG_SUCCESS;
    }
    msg_unlock(w);
    return code;
}

/* At most one step of progress: a program that tests in a loop decides itself how long it polls. */
int msg_test(msg_world *w, msg_request **request, msg_status *status)
{
    int code = MSG_SUCCESS;
    if (*request == NULL) {
        if (status)
            *status = empty_status;
        return MSG_SUCCESS;
    }
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
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

int msg_request_peek(const msg_world *w, const msg_request *request, msg_status *status)
{
    /* Acquire, paired with msg_complete's release: a reader of `complete` also sees the status written before it. */
    if (request && !vk_load_acquire(&request->complete))
        return 0;
    if (status)
        *status = request && request->world == w ? request->status : empty_status;
    return 1;
}

/* MPI requires that a cancelled operation either never happened or completes normally (MPI 4.1, 3.8.4). So only
 * operations that the peer cannot have noticed are withdrawn. One kind is a receive in the posted queue. The other is a
 * send of which no byte has left, if it is the last in its rank's queue. The first in the queue may have begun to
 * leave, and sends in the middle are not searched for. Both continue. */
int msg_cancel(msg_world *w, msg_request *r)
{
    int code = MSG_SUCCESS;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    if (r == NULL || !is_active(w, r))
        code = not_a_request(w);
    else if (!r->complete && (r->flags & MSG_ON_POSTED)) {
        msg_unpost(w, r);
        r->status.cancelled = 1;
        r->status.len = 0;
        msg_complete(r, MSG_SUCCESS);
    } else if (!r->complete && r->kind == MSG_REQ_SEND && (r->flags & MSG_QUEUED) && !(r->flags & MSG_ANNOUNCED) &&
               r->out.sent == 0 && r->out.next == NULL && w->peers[r->peer].queue != &r->out) {
        /* The newest of several in the queue: no byte of it can have left. */
        struct msg_peer *peer = &w->peers[r->peer];
        struct msg_out **p = &peer->queue;
        while (*p != &r->out)
            p = &(*p)->next;
        *p = NULL;
        peer->queue_end = p;
        r->flags &= (uint8_t)~MSG_QUEUED;
        msg_release_buffer(r); /* it may have been offered for reading */
        r->status.cancelled = 1;
        msg_complete(r, MSG_SUCCESS);
    }
    msg_unlock(w);
    return code;
}

/* As MPI_Request_free: the operation goes on, and the buffer stays in use until it completes. */
int msg_request_free(msg_world *w, msg_request **request)
{
    int code = MSG_SUCCESS;
    if (*request == NULL)
        return code;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    if (!is_active(w, *request))
        code = not_a_request(w);
    else {
        /* Not complete yet: msg_complete, or the failure of its rank, will free it. */
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

/* Steps until there are no events, wakes sleeping threads, and sleeps itself. While packets or RDMA wait for room it
 * sleeps only briefly, because new room may cause no event. */
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

/* Without the lock, so that the program's calls get it. A signal may end the nap early, which only shortens it. */
static void nap(msg_world *w)
{
    struct timespec t = {0, SIGNAL_CHECK};
    msg_unlock(w);
    nanosleep(&t, NULL);
    msg_lock(w);
}

/* The same for progress=signal. After each nap and each sleep the program may be in a call. Then its polls handle what
 * has arrived. One of its threads may sleep on `changed` because this thread listened. It is woken, to sleep in the
 * channel itself. */
static void *signal_main(void *argument)
{
    msg_world *w = argument;
    struct msg_token token;
    uint64_t seen = 0;
    msg_lock(w);
    while (!w->stop_thread) {
        if (w->n_waiting || w->n_calls != seen) {
            seen = w->n_calls;
            nap(w);
            continue;
        }
        while (!w->stop_thread && msg_step(w) > 0) {}
        if (w->stop_thread)
            break;
        memset(&token, 0, sizeof token);
        uint64_t at_most = w->busy || w->moving ? SHORTEST_SLEEP : LONGEST_SLEEP;
        w->thread_listens = 1;
        msg_unlock(w);
        w->channel->sleep(w, at_most, &token);
        msg_lock(w);
        w->thread_listens = 0;
        w->channel->wake(w, &token);
        if (w->n_sleeping)
            pthread_cond_broadcast(&w->changed);
    }
    msg_unlock(w);
    return NULL;
}

/* The last step of opening: no other thread uses the world yet. Returns MSG_SUCCESS or MSG_ERR_NO_MEMORY. */
int msg_thread_start(msg_world *w)
{
    void *(*run)(void *) = w->policy.progress == MSG_PROGRESS_SIGNAL ? signal_main : thread_main;
    w->has_thread = 1;
    if (pthread_create(&w->thread, NULL, run, w) != 0) {
        w->has_thread = 0;
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no progress thread could be started");
    }
    return MSG_SUCCESS;
}

/* Waits for the thread, at most the LONGEST_SLEEP in which it may be. The flag is set with the lock held, so the thread
 * sees it when it has the lock again. */
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
