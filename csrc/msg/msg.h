/*
 * msg.h - messages between the ranks of a job: MPI's point-to-point semantics over any channel.
 *
 * A *world* is one rank's view of its job. Messages carry a *context* (the communicator's number), a tag and their
 * source; a receive names all three, or MSG_ANY_SOURCE, or MSG_ANY_TAG, and matching follows MPI's rules of order.
 * How messages travel is the business of a *channel* (channel.h), and every choice that is made on the way stands in
 * one *policy* (policy.h).
 *
 *      Python: viakit.comm, viakit.mpi       csrc/coll: collectives
 *      ------------------------------------------------------------
 *      msg.h     requests, matching, eager, rendezvous, waiting    engine.h match.c protocol.c request.c and more
 *      channel.h packets between two ranks, bulk data              via.c (VIPL), bip.c (BIP), tcp.c; to oneself: send.c
 *
 * The engine is a VI consumer, as MVICH was: of VIA it uses vipl.h and viakit.h and nothing else.
 *
 * Return values. Calls return MSG_SUCCESS or one of MSG_ERRORS and set their results only on success. What goes wrong
 * with one operation after it was started (truncation, a rank that died) stands in its status, `error`; the blocking
 * calls return it. msg_last_error() has a sentence about it.
 *
 * Threads. A world opened with `threads` = 0 is used by one thread at a time (the caller sees to that); with 1 by any
 * number. Several worlds in one process, each with its thread, are fine: there is no state outside worlds. After a
 * fork the child may not use its parent's worlds (MSG_ERR_PROCESS).
 *
 * Memory. A buffer given to a non-blocking call belongs to the engine until its request is complete. Memory bounds
 * are listed at struct msg_policy; nothing is allocated on the path of a short message.
 */
#ifndef VIAKIT_MSG_H
#define VIAKIT_MSG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* name, number, what it says. Numbers are stable: Python has a table of them. */
#define MSG_ERRORS(X)                                                                                              \
    X(SUCCESS, 0, "no error")                                                                                      \
    X(PENDING, 1, "not complete yet")                                                                              \
    X(TIMEOUT, 2, "the deadline passed; the operation goes on")                                                    \
    X(INTERRUPTED, 3, "the interrupt callback ended the wait; the operation goes on")                              \
    X(ERR_ARG, 4, "an argument is invalid")                                                                        \
    X(ERR_RANK, 5, "no such rank in this world")                                                                   \
    X(ERR_TAG, 6, "tags are 0 to 2147483647; MSG_ANY_TAG only for receives and probes")                            \
    X(ERR_CONTEXT, 7, "contexts are 0 to 65535")                                                                   \
    X(ERR_REQUEST, 8, "not an active request of this world")                                                       \
    X(ERR_TRUNCATE, 9, "the message is longer than the receive buffer")                                            \
    X(ERR_BUFFER, 10, "no room in the attached buffer for a buffered send, or none is attached")                   \
    X(ERR_PROC_FAILED, 11, "the other rank has died, or can no longer be reached")                                 \
    X(ERR_LEFT, 12, "the other rank has closed its world")                                                         \
    X(ERR_NO_MEMORY, 13, "memory is exhausted")                                                                    \
    X(ERR_CHANNEL, 14, "the channel cannot be opened or used; msg_last_error says why")                            \
    X(ERR_MISMATCH, 15, "ranks of this job were started with different policies, versions or byte orders")         \
    X(ERR_EXCHANGE, 16, "the launcher's exchange failed")                                                          \
    X(ERR_PROCESS, 17, "the world belongs to another process (this one was forked from it)")                       \
    X(ERR_NOT_SUPPORTED, 18, "this channel cannot do that")                                                        \
    X(ERR_STATE, 19, "not possible in this state")                                                                 \
    X(ERR_NOT_READY, 20, "a ready send found no posted receive (reported at the receiver, counted, not an error)") \
    X(ERR_INTERNAL, 21, "a rule of the protocol was broken by the other side")                                     \
    X(ERR_COLLECTIVE, 22, "mismatched collectives: ranks do different things, or with different lengths")

typedef enum {
#define MSG_X(name, value, text) MSG_##name = value,
    MSG_ERRORS(MSG_X)
#undef MSG_X
        MSG_N_ERRORS
} msg_error;

const char *msg_error_name(int code); /* "MSG_ERR_TRUNCATE"; NULL for no such code */
const char *msg_error_text(int code); /* one sentence; NULL likewise */

#define MSG_ANY_SOURCE (-2)
#define MSG_ANY_TAG (-1)
#define MSG_PROC_NULL (-3)    /* sending there and receiving from there completes at once, with nothing */
#define MSG_MAX_CONTEXT 65535 /* contexts are the caller's to choose; no two communicators alive share one */
#define MSG_ERROR_LEN 256     /* bytes of an error text */
#define MSG_FOREVER INT64_C(-1)

/* Send modes, as MPI's: Send, Ssend, Bsend, Rsend. */
typedef enum { MSG_STANDARD = 0, MSG_SYNCHRONOUS = 1, MSG_BUFFERED = 2, MSG_READY = 3 } msg_mode;

typedef struct msg_world msg_world;
typedef struct msg_request
    msg_request; /* one operation under way; from a pool, freed by the call that reports its end */
typedef struct msg_message
    msg_message;   /* a message taken out of the queue by msg_mprobe, to be received by msg_mrecv */
struct msg_policy; /* policy.h */

typedef struct {
    int source; /* rank; MSG_PROC_NULL for such a receive; of a send: the destination */
    int tag;
    int error;     /* MSG_SUCCESS or what went wrong with this operation */
    int cancelled; /* 1: msg_cancel took effect; nothing was received */
    size_t
        len; /* bytes received (of a truncated message: bytes that fitted), or sent, or, from a probe, of the message */
    uint64_t id; /* of the request; equals msg_request_id() */
} msg_status;

/* ---------------------------------------------------------------- opening and closing */

/* The launcher's allgather of small blobs: writes n_ranks blobs of len bytes into all, in the order of ranks.
 * Collective, blocks, returns 0, or anything else to give up. Called a handful of times while a world opens, never
 * later. */
typedef int (*msg_exchange)(void *context, const void *mine, size_t len, void *all);

/* Zero or NULL in any field means "the default". Start from memset 0 and set `size`. Strings are copied. */
typedef struct {
    size_t size; /* sizeof(msg_options) */
    int rank, n_ranks;
    const struct msg_policy *policy; /* copied; NULL: msg_policy_find("via") */
    msg_exchange exchange;           /* may be NULL where n_ranks is 1 */
    void *exchange_context;

    /* Where this rank is. Ranks with equal host strings reach each other by local_device, others by network_device. */
    const char *host;           /* NULL: made of the machine's boot id and the network namespace */
    const char *local_device;   /* channel via: "shm:NAME" or "loop:NAME"; NULL: "shm:" and a name drawn for this job */
    const char *network_device; /* channel via: "eth:IFNAME", "udp:ADDRESS"; NULL: none, all ranks must share a host */
    const char *address; /* channel tcp: numeric IPv4 or IPv6 address of this host that the others can reach; NULL:
                                 * 127.0.0.1 if all ranks share a host, else the address that routes to the others */

    int threads;             /* 1: calls may come from several threads at once */
    int64_t open_timeout_ms; /* for connecting to all ranks; default 60 000 */
    /* As msg_set_interrupt, from the beginning: it also ends the opening. */
    int (*interrupt)(void *context);
    void *interrupt_context;
} msg_options;

/* Opens this rank's end of the job and connects it to all others: collective, returns on all ranks when every pair is
 * connected, or on each with an error (then *world is not set and nothing is left). error: room for MSG_ERROR_LEN
 * bytes, or NULL. */
int msg_world_open(const msg_options *options, msg_world **world, char *error);

/* Sends what is queued, tells the others, waits at most timeout_ms (MSG_FOREVER allowed) until they close too or are
 * gone, disconnects, frees everything, requests that are still active included. The world is gone whatever is
 * returned: MSG_SUCCESS, MSG_TIMEOUT (others were still there), MSG_ERR_STATE (there were active requests: they were
 * dropped). */
int msg_world_close(msg_world *world, int64_t timeout_ms);

/* The same without a word to anybody and without waiting: others see this rank die. */
void msg_world_abort(msg_world *world);

int msg_rank(const msg_world *world);
int msg_size(const msg_world *world);
const struct msg_policy *msg_world_policy(const msg_world *world); /* in force: defaults resolved, thresholds final */
const char *msg_last_error(const msg_world *world);                /* of this world's last failed call or operation */

/* How peer `rank` is reached: "self", "shm:NAME", "eth:eth0", "tcp 10.0.0.2:4711" ... "" for no such rank. */
const char *msg_peer_route(const msg_world *world, int rank);

typedef enum { MSG_PEER_CONNECTED = 1, MSG_PEER_LEFT = 2, MSG_PEER_FAILED = 3 } msg_peer_state;
int msg_peer_status(msg_world *world, int rank); /* a msg_peer_state; MSG_ERR_RANK negated for no such rank */
/* A number that ranks of one host have in common, and no other; 0 for no such rank. */
uint64_t msg_peer_host(const msg_world *world, int rank);
/* 1: this machine has fewer cores than ranks of the world, those on other hosts that are made of it included. Whoever
 * waits for one of them should give the core away at once. */
int msg_crowded(const msg_world *world);
/* How many cores the ranks of the world on this machine may run on together; 1 or more. */
int msg_cores(const msg_world *world);

/* ---------------------------------------------------------------- sending and receiving
 *
 * Failures of the call itself (bad rank, tag, context): nothing was started, *request is not set. buf may be NULL if
 * len is 0. MSG_PROC_NULL is a rank for all of them.
 */

int msg_isend(msg_world *world, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode,
              msg_request **request);
int msg_irecv(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_request **request);

/* Blocking forms; the shortest way for short messages. They wait for ever, as MPI's do, but for the interrupt
 * callback (MSG_INTERRUPTED: a send may still be delivered, nothing is received; its buffer is the caller's again in
 * both cases). The operation's error is returned and stands in status, which may be NULL. */
int msg_send(msg_world *world, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode);
int msg_recv(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_status *status);
int msg_sendrecv(msg_world *world, int context, const void *sendbuf, size_t send_len, int dst, int send_tag,
                 void *recvbuf, size_t recv_len, int src, int recv_tag, msg_status *status);

/* A buffer for buffered sends; detach waits until all of it is sent and gives it back. A message takes its length
 * and at most MSG_BSEND_OVERHEAD bytes of it. */
#define MSG_BSEND_OVERHEAD 96
int msg_buffer_attach(msg_world *world, void *buf, size_t len);
int msg_buffer_detach(msg_world *world, void **buf, size_t *len);

/* ---------------------------------------------------------------- requests
 *
 * A request ends (is complete) once; the first call that reports this frees it and sets the caller's pointer to NULL.
 * A NULL request counts as complete, with an empty status (source MSG_ANY_SOURCE, tag MSG_ANY_TAG, length 0), as MPI
 * has it. */

/* MSG_SUCCESS when complete, else MSG_PENDING. Whether the operation went well stands in status->error. Makes
 * progress. */
int msg_test(msg_world *world, msg_request **request, msg_status *status);
/* Waits at most timeout_ms. MSG_SUCCESS, MSG_TIMEOUT or MSG_INTERRUPTED; the latter two leave the request active. */
int msg_wait(msg_world *world, msg_request **request, msg_status *status, int64_t timeout_ms);
/* Of n requests: waits for all (statuses may be NULL or has n entries) / for one that is complete: *index (-1 if all
 * are NULL). */
int msg_waitall(msg_world *world, int n, msg_request **requests, msg_status *statuses, int64_t timeout_ms);
int msg_waitany(msg_world *world, int n, msg_request **requests, int *index, msg_status *status, int64_t timeout_ms);
/* Waits for at least one (with timeout_ms 0: looks once): indices and statuses get *n_done entries; -1 if all are
 * NULL. */
int msg_waitsome(msg_world *world, int n, msg_request **requests, int *n_done, int *indices, msg_status *statuses,
                 int64_t timeout_ms);
/* Complete? 1 or 0, without freeing it and without progress (MPI_Request_get_status makes progress first:
 * msg_progress). */
int msg_request_peek(const msg_world *world, const msg_request *request, msg_status *status);
uint64_t msg_request_id(const msg_request *request);

/* Withdraws a receive that no message has matched, or a send of which nothing has left yet. The request still has to
 * be waited for; its status says whether it was `cancelled`. MSG_SUCCESS also where it is too late. */
int msg_cancel(msg_world *world, msg_request *request);
/* The request is freed when it ends; nobody will ask for it (MPI_Request_free). *request becomes NULL. */
int msg_request_free(msg_world *world, msg_request **request);

/* ---------------------------------------------------------------- probing */

/* Is there a message that a receive with these arguments would get? *flag 1 or 0; status has source, tag and length. */
int msg_iprobe(msg_world *world, int context, int src, int tag, int *flag, msg_status *status);
int msg_probe(msg_world *world, int context, int src, int tag, msg_status *status, int64_t timeout_ms);
/* The same, and takes the message out of the queue, so that nobody else can receive it. *message NULL if there is
 * none. */
int msg_improbe(msg_world *world, int context, int src, int tag, msg_message **message, msg_status *status);
int msg_mprobe(msg_world *world, int context, int src, int tag, msg_message **message, msg_status *status,
               int64_t timeout_ms);
/* Receives it; *message becomes NULL. */
int msg_imrecv(msg_world *world, msg_message **message, void *buf, size_t len, msg_request **request);
int msg_mrecv(msg_world *world, msg_message **message, void *buf, size_t len, msg_status *status);

/* Throws away what has come under a context and nobody has received: messages whose tag has the bits of `tag` where
 * `mask` has ones; mask 0: all. Their senders are told nothing: to them they were received. Returns how many there
 * were. */
int msg_discard(msg_world *world, int context, int mask, int tag);
/* The same for n contexts from `context` on that will not be used any more, and cancels the receives that are posted
 * there. */
void msg_retire(msg_world *world, int context, int n);

/* ---------------------------------------------------------------- progress and waiting */

/* Does what can be done without waiting; returns the number of things that happened. */
int msg_progress(msg_world *world);
/* Waits until something has happened, at most timeout_ms: for loops of the caller's that wait for a condition of
 * their own (collectives). MSG_SUCCESS, MSG_TIMEOUT, MSG_INTERRUPTED. */
int msg_idle(msg_world *world, int64_t timeout_ms);
/* While a call waits, check(context) is called at least every 50 ms by the waiting thread; non-zero ends the wait. It
 * must not call the engine. NULL removes it. */
void msg_set_interrupt(msg_world *world, int (*check)(void *context), void *context);
/* For waits of the caller's own: asks that callback. Non-zero: end the wait. */
int msg_interrupted(msg_world *world);

/* ---------------------------------------------------------------- failures
 *
 * A rank that dies: operations under way with it end with MSG_ERR_PROC_FAILED, within a second on one host; receives
 * from MSG_ANY_SOURCE that are posted or will be posted end so, too, until msg_failures_ack() says that the caller
 * knows (nobody can know whose message they waited for). Everything else goes on. */
int msg_failures(msg_world *world, int *ranks,
                 int room); /* number of ranks known to have died; at most room are listed */
void msg_failures_ack(msg_world *world);

/* ---------------------------------------------------------------- memory, one-sided writes
 *
 * For programs that want their large messages copied once on one host, and for collectives by RDMA write. */

/* Memory that ranks of this host can map (channel via; elsewhere ordinary memory). msg_world_close frees what is
 * left. */
int msg_alloc(msg_world *world, size_t len, void **memory);
int msg_free(msg_world *world, void *memory);

/* The registration cache forgets what it knows about this range. To be called before memory is given back to the
 * system that other ranks must not be able to write to any more; not needed for correctness (policy.h,
 * `cache_bytes`). */
void msg_forget(msg_world *world, const void *buf, size_t len);

/* What another rank needs in order to write into a range here: plain bytes, to be sent to it by any means. */
typedef struct {
    uint64_t address, len;
    uint32_t handle[2]; /* for ranks of this host, for others */
} msg_exposed;
/* Lets all ranks write into [buf, buf+len) until it is hidden again. MSG_ERR_NOT_SUPPORTED on channels without RDMA. */
int msg_expose(msg_world *world, void *buf, size_t len, msg_exposed *exposed);
int msg_hide(msg_world *world, const msg_exposed *exposed);
/* Writes len bytes to target at offset of a range that it has exposed. The target sees the last word last, and need
 * not call anything if it is on another host, or if the range is memory from msg_alloc; otherwise it should call
 * msg_progress now and then while it waits. A write or message to one rank does not overtake a write that was started
 * before it. A write may overtake messages that wait until the target has room for them: it asks for no help of the
 * target's. Complete (buf reusable) like a send. request NULL: buf may be reused at once, for len <= MSG_PUT_SHORT;
 * longer ones need a request. */
#define MSG_PUT_SHORT 256
int msg_put(msg_world *world, const void *buf, size_t len, int target, const msg_exposed *exposed, uint64_t offset,
            msg_request **request);

/* ---------------------------------------------------------------- counters */

#define MSG_COUNTERS(X)                                                                           \
    X(sent, "messages sent")                                                                      \
    X(received, "messages received")                                                              \
    X(bytes_sent, "payload bytes of them")                                                        \
    X(bytes_received, "payload bytes of them")                                                    \
    X(eager_sent, "messages sent at once, with their data")                                       \
    X(rendezvous_sent, "messages announced first")                                                \
    X(rput, "rendezvous done by RDMA write")                                                      \
    X(rget, "rendezvous done by RDMA read")                                                       \
    X(r3, "rendezvous done by copied or streamed segments")                                       \
    X(unexpected, "messages that arrived before their receive")                                   \
    X(unexpected_now, "messages in the unexpected queue at present")                              \
    X(unexpected_bytes_now, "bytes of data that they hold at present")                            \
    X(unexpected_bytes_most, "the most that it ever was")                                         \
    X(posted_now, "receives in the posted queue at present")                                      \
    X(match_steps, "comparisons made in looking for matches")                                     \
    X(match_lookups, "times a match was looked for")                                              \
    X(copies, "times the engine copied payload")                                                  \
    X(bytes_copied, "payload bytes so copied")                                                    \
    X(credits_explicit, "messages sent only to return credits")                                   \
    X(credit_stalls, "times a send waited because the receiver had no buffer free")               \
    X(throttled, "times a sender was told to stop sending eagerly: the unexpected queue is full") \
    X(cache_hits, "registrations found in the cache")                                             \
    X(cache_misses, "registrations made")                                                         \
    X(cache_evictions, "registrations given up to stay within the bound")                         \
    X(cache_bytes_now, "bytes registered by the cache at present")                                \
    X(allocations, "times the engine took memory from the system")                                \
    X(requests_now, "requests that exist at present")                                             \
    X(ready_missed, "ready sends that found no posted receive")                                   \
    X(sleeps, "times a wait slept in the kernel")                                                 \
    X(yields, "times a wait gave the core away")                                                  \
    X(puts, "one-sided writes")

typedef enum {
#define MSG_X(name, text) MSG_COUNTER_##name,
    MSG_COUNTERS(MSG_X)
#undef MSG_X
        MSG_N_COUNTERS
} msg_counter;

void msg_counters(msg_world *world, uint64_t *values); /* values[MSG_N_COUNTERS] */
const char *msg_counter_name(int counter);             /* NULL past the end */
const char *msg_counter_text(int counter);

#ifdef __cplusplus
}
#endif

#endif /* VIAKIT_MSG_H */
