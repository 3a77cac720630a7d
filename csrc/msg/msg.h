/*
 * msg.h - messages between the ranks of a job: MPI's point-to-point semantics over any channel.
 *
 * A *world* is one rank's view of its job. A message carries a *context* (the communicator's number), a tag and its
 * source. A receive names all three, or uses MSG_ANY_SOURCE or MSG_ANY_TAG. Matching follows MPI's rules of order. A
 * *channel* (channel.h) carries the messages. A *policy* (policy.h) holds every choice that the engine makes on the
 * way.
 *
 *      Python: viakit.comm, viakit.mpi       csrc/coll: collectives
 *      ------------------------------------------------------------
 *      msg.h     requests, matching, eager, rendezvous, waiting    engine.h match.c protocol.c request.c and more
 *      channel.h packets between two ranks, bulk data              via.c (VIPL), bip.c (BIP), tcp.c; to oneself: send.c
 *
 * The engine is a VI consumer, as MVICH was: it uses only vipl.h and viakit.h from VIA.
 *
 * Return values. Calls return MSG_SUCCESS or one of MSG_ERRORS, and set their results only on success. An error of one
 * operation after its start (truncation, a dead rank) is stored in `error` of its status; the blocking calls return it.
 * msg_last_error() returns a sentence that explains it.
 *
 * Threads. If a world was opened with `threads` = 0, only one thread at a time may use it; the caller ensures this.
 * With 1, any number of threads may. Several worlds in one process may each have their own thread, because no state
 * lies outside worlds.
 *
 * Fork. A world belongs to the process that opened it. In the child, every call on a parent's world returns
 * MSG_ERR_PROCESS (calls without a code: 0, or nothing). It takes no lock, whatever the parent's threads were doing. If
 * an interrupt callback forks, the interrupted call returns MSG_ERR_PROCESS in the child. The child may open its own
 * worlds.
 *
 * Memory. A buffer passed to a non-blocking call belongs to the engine until its request is complete. policy.h lists
 * the bounds on memory. The path of a short message allocates nothing.
 */
#ifndef VIAKIT_MSG_H
#define VIAKIT_MSG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Name, number, text. The numbers are stable, because Python has a table of them. */
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
    X(ERR_CHANNEL, 14, "the channel cannot be opened or used; msg_last_error has the reason")                      \
    X(ERR_MISMATCH, 15, "ranks of this job were started with different policies, versions or byte orders")         \
    X(ERR_EXCHANGE, 16, "the launcher's exchange failed")                                                          \
    X(ERR_PROCESS, 17, "the world belongs to another process (this one was forked from it)")                       \
    X(ERR_NOT_SUPPORTED, 18, "this channel cannot do that")                                                        \
    X(ERR_STATE, 19, "not possible in this state")                                                                 \
    X(ERR_NOT_READY, 20, "a ready send found no posted receive (reported at the receiver, counted, not an error)") \
    X(ERR_INTERNAL, 21, "a rule of the protocol was broken by the other side")                                     \
    X(ERR_COLLECTIVE, 22, "mismatched collectives: ranks do different things, or with different lengths")          \
    X(ERR_REVOKED, 23, "the communicator has been revoked")

typedef enum {
#define MSG_X(name, value, text) MSG_##name = value,
    MSG_ERRORS(MSG_X)
#undef MSG_X
        MSG_N_ERRORS
} msg_error;

const char *msg_error_name(int code); /* "MSG_ERR_TRUNCATE". NULL if the code is undefined. */
const char *msg_error_text(int code); /* One sentence. NULL likewise. */

#define MSG_ANY_SOURCE (-2)
#define MSG_ANY_TAG (-1)
#define MSG_PROC_NULL (-3)    /* Sends to it and receives from it complete at once, with no data. */
#define MSG_MAX_CONTEXT 65535 /* Callers choose contexts. No two live communicators share one. */
#define MSG_ERROR_LEN 256     /* bytes of an error's text, with the final 0; longer texts are cut */
#define MSG_SECRET_LEN 32     /* bytes of a job's secret */
#define MSG_FOREVER INT64_C(-1)

/* Send modes, as MPI's Send, Ssend, Bsend and Rsend. */
typedef enum { MSG_STANDARD = 0, MSG_SYNCHRONOUS = 1, MSG_BUFFERED = 2, MSG_READY = 3 } msg_mode;

typedef struct msg_world msg_world;
typedef struct msg_request
    msg_request; /* One active operation. It comes from a pool, and the call that reports its completion frees it. */
typedef struct msg_message
    msg_message;   /* A message that msg_mprobe removed from the queue, for msg_imrecv to receive. */
struct msg_policy; /* policy.h */

typedef struct {
    int source; /* rank. MSG_PROC_NULL for a receive from it. For a send, the destination. */
    int tag;
    int error;     /* MSG_SUCCESS, or the error of this operation. */
    int cancelled; /* 1: msg_cancel took effect and nothing was received. */
    size_t
        /* Bytes received (of a truncated message, those that fitted) or sent. From a probe: length of the message. */
        len;
    uint64_t id; /* of the request, never 0; unique among those of a world that exist */
} msg_status;

/* ---------------------------------------------------------------- opening and closing */

/* The launcher's allgather of small blobs: writes n_ranks blobs of len bytes into `all`, in the order of ranks.
 * Collective and blocking. Returns 0, or any other value to abort the opening. Called only a few times, while a
 * world opens. */
typedef int (*msg_exchange)(void *context, const void *own, size_t len, void *all);

/* Zero or NULL in a field selects the default. Start from memset 0 and set `size`. Strings are copied. */
typedef struct {
    size_t size; /* sizeof(msg_options) */
    int rank, n_ranks;
    const struct msg_policy *policy; /* copied; NULL: msg_policy_find("via") */
    msg_exchange exchange;           /* may be NULL if n_ranks is 1 */
    void *exchange_context;

    /* Location of this rank. Ranks with equal host strings connect by local_device, others by network_device. */
    const char *host;           /* NULL: derived from the machine's boot id and the network namespace */
    const char *local_device;   /* channel via: "shm:NAME" or "loop:NAME"; NULL: "shm:" and a name made for this job */
    const char *network_device; /* channel via: "eth:IFNAME", "udp:ADDRESS"; NULL: none, all ranks must share a host */
    /* Channel tcp: numeric IPv4 or IPv6 address of this host that the other ranks can reach. NULL: 127.0.0.1 if all
     * ranks share a host, else this host's first address but the loopback's, IPv4 before IPv6. On a host with several
     * networks it may be the wrong one. */
    const char *address;

    int threads;             /* 1: several threads may call at once */
    int64_t open_timeout_ms; /* for connecting to all ranks; default 60 000 */
    /* As for msg_set_interrupt, but from the start: it can also end the opening. */
    int (*interrupt)(void *context);
    void *interrupt_context;

    /* The job's secret: MSG_SECRET_LEN bytes that only its ranks have. Every connection between ranks proves it in
     * both directions before the first message. Copied. NULL only if n_ranks is 1. */
    const unsigned char *secret;
} msg_options;

/* Opens this rank's end of the job and connects it to all other ranks. Collective: returns on all ranks once every
 * pair is connected, or on each with an error. After an error *world is not set and nothing is left behind. error:
 * MSG_ERROR_LEN bytes for a text, or NULL. */
int msg_world_open(const msg_options *options, msg_world **world, char *error);

/* Sends the queued packets, notifies the other ranks, and waits at most timeout_ms (MSG_FOREVER allowed) until each
 * has closed or died. Then disconnects and frees everything, active requests included. The world is gone whatever is
 * returned: MSG_SUCCESS, MSG_TIMEOUT (some ranks had not closed), or MSG_ERR_STATE (active requests were dropped). */
int msg_world_close(msg_world *world, int64_t timeout_ms);

/* The same without notifying other ranks and without waiting: they see this rank die. */
void msg_world_abort(msg_world *world);

int msg_rank(const msg_world *world);
int msg_size(const msg_world *world);
const struct msg_policy *msg_world_policy(const msg_world *world); /* in force: defaults resolved, thresholds final */
const char *msg_last_error(const msg_world *world);                /* of this world's last failed call or operation */

/* Route to peer `rank`: "self", "shm:NAME", "eth:eth0", "tcp 10.0.0.2:4711". "" if the rank does not exist. */
const char *msg_peer_route(const msg_world *world, int rank);

typedef enum { MSG_PEER_CONNECTED = 1, MSG_PEER_LEFT = 2, MSG_PEER_FAILED = 3 } msg_peer_state;
/* A msg_peer_state. MSG_ERR_RANK negated if the rank does not exist. */
int msg_peer_status(msg_world *world, int rank);
/* A number shared by the ranks of one host and by no others. 0 if the rank does not exist. */
uint64_t msg_peer_host(const msg_world *world, int rank);
/* 1: this machine has fewer cores than ranks of the world. Ranks on other hosts that this machine emulates count,
 * too. A process that waits for such a rank should yield the core at once. */
int msg_crowded(const msg_world *world);
/* Number of cores that the ranks of the world on this machine may use together; 1 or more. */
int msg_cores(const msg_world *world);

/* ---------------------------------------------------------------- sending and receiving
 *
 * If the call itself fails (bad rank, tag, context), no operation starts and *request is not set. buf may be NULL if
 * len is 0. All calls accept MSG_PROC_NULL as a rank. */

int msg_isend(msg_world *world, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode,
              msg_request **request);
int msg_irecv(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_request **request);

/* Blocking forms; the shortest path for short messages. They wait without limit, as MPI's do, unless the interrupt
 * callback ends the wait. Then they return MSG_INTERRUPTED: a send may still be delivered, a receive has received
 * nothing, and the buffer belongs to the caller again. They return the operation's error, which also stands in
 * status. status may be NULL. */
int msg_send(msg_world *world, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode);
int msg_recv(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_status *status);

/* Beginnings of the blocking forms, for a caller that holds a lock which it releases before it waits, such as Python's
 * GIL. They neither wait nor call the interrupt callback. MSG_PENDING: nothing was sent or received so far.
 *
 * msg_send_now sends a short message in standard mode. If it returns MSG_PENDING, call msg_send.
 * msg_recv_soon polls for the message for some microseconds. If it returns MSG_PENDING, call msg_recv_rest with the
 * same arguments and with *request, which is NULL if no receive has started. */
int msg_send_now(msg_world *world, int context, const void *buf, size_t len, int dst, int tag);
int msg_recv_soon(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_status *status,
                  msg_request **request);
int msg_recv_rest(msg_world *world, int context, void *buf, size_t len, int src, int tag, msg_status *status,
                  msg_request *request);

/* A buffer for buffered sends. detach waits until all messages in it are sent, and returns it. A message occupies
 * its length and at most MSG_BSEND_OVERHEAD further bytes. NULL with the length MSG_BUFFER_AUTOMATIC stands for memory
 * that the engine allocates for each message. */
#define MSG_BSEND_OVERHEAD 96
#define MSG_BUFFER_AUTOMATIC SIZE_MAX
int msg_buffer_attach(msg_world *world, void *buf, size_t len);
int msg_buffer_detach(msg_world *world, void **buf, size_t *len);

/* ---------------------------------------------------------------- requests
 *
 * A request completes once. The first call that reports this frees it and sets the caller's pointer to NULL. A NULL
 * request counts as complete and has an empty status (source MSG_ANY_SOURCE, tag MSG_ANY_TAG, length 0), as in MPI. */

/* MSG_SUCCESS when complete, else MSG_PENDING. The operation's error is in status->error. Makes progress. */
int msg_test(msg_world *world, msg_request **request, msg_status *status);
/* Waits at most timeout_ms. MSG_SUCCESS, MSG_TIMEOUT or MSG_INTERRUPTED; the last two leave the request active. */
int msg_wait(msg_world *world, msg_request **request, msg_status *status, int64_t timeout_ms);
/* The beginning of msg_wait for a caller that holds a lock, as msg_recv_soon is that of msg_recv: polls for some
 * microseconds. If it returns MSG_PENDING, call msg_wait. */
int msg_wait_soon(msg_world *world, msg_request **request, msg_status *status);
/* Returns 1 if the request is complete, else 0. Neither frees it nor makes progress. (MPI_Request_get_status makes
 * progress first: call msg_progress.) */
int msg_request_peek(const msg_world *world, const msg_request *request, msg_status *status);

/* Withdraws a receive that no message has matched, or a send of which no byte has left yet. The request must still
 * be waited for; `cancelled` in its status shows the result. Returns MSG_SUCCESS even if it is too late. */
int msg_cancel(msg_world *world, msg_request *request);
/* Frees the request when it completes; the caller no longer waits for it (MPI_Request_free). *request becomes NULL. */
int msg_request_free(msg_world *world, msg_request **request);

/* ---------------------------------------------------------------- probing */

/* Sets *flag to 1 if a receive with these arguments would match a message that has arrived, else to 0. status
 * receives its source, tag and length. */
int msg_iprobe(msg_world *world, int context, int src, int tag, int *flag, msg_status *status);
int msg_probe(msg_world *world, int context, int src, int tag, msg_status *status, int64_t timeout_ms);
/* The same, and removes the message from the queue, so that no other receive can match it. */
int msg_mprobe(msg_world *world, int context, int src, int tag, msg_message **message, msg_status *status,
               int64_t timeout_ms);
/* Receives the message; *message becomes NULL. */
int msg_imrecv(msg_world *world, msg_message **message, void *buf, size_t len, msg_request **request);

/* Finds an unreceived message of a context whose tag has the bits of `tag` where `mask` has ones, and differs from
 * `tag`. Returns 1 and its status, or 0. For callers with several kinds of messages in one context. */
int msg_probe_other_tag(msg_world *world, int context, int mask, int tag, msg_status *status);

/* Discards unreceived messages of a context whose tag has the bits of `tag` where `mask` has ones; mask 0: all.
 * Their senders are not notified: for them the messages were received. Returns the number discarded. */
int msg_discard(msg_world *world, int context, int mask, int tag);
/* The same for the n contexts from `context` on, which will not be used any more. Also cancels the receives posted
 * there. */
void msg_retire(msg_world *world, int context, int n);

/* ---------------------------------------------------------------- progress and waiting */

/* Makes progress without waiting. Returns the number of events handled. */
int msg_progress(msg_world *world);
/* Waits at most timeout_ms for an event, in a caller's loop that waits for its own condition (collectives). Returns
 * MSG_SUCCESS, MSG_TIMEOUT or MSG_INTERRUPTED. */
int msg_idle(msg_world *world, int64_t timeout_ms);
/* While a call waits, the waiting thread calls check(context) at least every 50 ms. A non-zero result ends the wait.
 * The callback must not call the engine. NULL removes it. */
void msg_set_interrupt(msg_world *world, int (*check)(void *context), void *context);
/* Calls that callback, for a caller's own wait. Non-zero: end the wait. */
int msg_interrupted(msg_world *world);

/* ---------------------------------------------------------------- failures
 *
 * When a rank dies, active operations with it end with MSG_ERR_PROC_FAILED, within a second on one host. Receives
 * from MSG_ANY_SOURCE, present and future, end likewise until the caller calls msg_failures_ack(), because the dead
 * rank might have been their source. All other operations continue. */
int msg_failures(msg_world *world, int *ranks,
                 int room); /* Returns the number of failed ranks; lists at most `room`. */
void msg_failures_ack(msg_world *world);

/* ---------------------------------------------------------------- revocation
 *
 * A scope is the n contexts from `context` on that belong to one communicator, and end when any of its ranks revokes
 * it: pending operations end with MSG_ERR_REVOKED, later ones are refused (revoke.c lists which end when). The id is
 * the same on all its ranks, and differs from that of every other scope of these contexts in the job. */
typedef struct msg_scope {
    struct msg_scope *next;
    msg_world *world; /* NULL: closed. Set it so before the first msg_scope_open. */
    uint64_t id;
    int context, n;
    int revoked; /* 1: it is. May be read at any time. */
} msg_scope;

/* The caller's struct stays in use until msg_scope_close or msg_scopes_end. Opening closes it first. */
int msg_scope_open(msg_world *world, msg_scope *scope, int context, int n, uint64_t id);
void msg_scope_close(msg_scope *scope);
/* Closes all scopes: call it before the world is closed. */
void msg_scopes_end(msg_world *world);
/* Revokes the scope on all ranks of the world that have it open, or open it later. `ranks`: its n ranks, to which the
 * revocation goes directly. Does not wait. */
int msg_revoke(msg_scope *scope, const int *ranks, int n);
/* 1: an open scope that has this context is revoked. */
int msg_is_revoked(msg_world *world, int context);

/* ---------------------------------------------------------------- memory, one-sided writes
 *
 * For programs whose large messages should be copied only once on one host, and for collectives by RDMA write. */

/* Memory that ranks of this host can map (channel via; else ordinary memory). msg_world_close frees the remainder. */
int msg_alloc(msg_world *world, size_t len, void **memory);
int msg_free(msg_world *world, void *memory);

/* Removes this range from the registration cache. Call it before memory returns to the system, if other ranks must
 * no longer be able to write to it. Not needed for correctness (policy.h, `cache_bytes`). */
void msg_forget(msg_world *world, const void *buf, size_t len);

/* Description of a range here that another rank needs to write into it. It is plain data, to be sent to that rank by
 * any means. */
typedef struct {
    uint64_t address, len;
    uint32_t handle[2]; /* for ranks of this host, for others */
} msg_exposed;
/* Lets all ranks write into [buf, buf+len) until msg_hide. MSG_ERR_NOT_SUPPORTED on channels without RDMA. */
int msg_expose(msg_world *world, void *buf, size_t len, msg_exposed *exposed);
int msg_hide(msg_world *world, const msg_exposed *exposed);
/* Writes len bytes to target at `offset` of a range that it has exposed.
 * - The target sees the last word last. It need not call the engine if it is on another host, or if the range is
 *   memory from msg_alloc. Otherwise it should call msg_progress now and then while it waits.
 * - A write or message to one rank does not overtake an earlier write to it.
 * - A write may overtake messages that wait until the target has room for them, because it needs no help from the
 *   target.
 * - It completes (buf reusable) like a send. If request is NULL, buf may be reused at once, for len <=
 *   MSG_PUT_SHORT; a longer write needs a request. */
#define MSG_PUT_SHORT 256
int msg_put(msg_world *world, const void *buf, size_t len, int target, const msg_exposed *exposed, uint64_t offset,
            msg_request **request);

/* As msg_put without a request, for 1 to MSG_PUT_SHORT bytes, but the target is notified of the write: the last RDMA
 * write carries immediate data, which consumes a receive of the target. So it waits, like a message, until the target
 * has one posted. The target counts the notices of each rank, modulo 2^32, as part of its progress. The data of a
 * counted write is in its memory. */
int msg_put_notified(msg_world *world, const void *buf, size_t len, int target, const msg_exposed *exposed,
                     uint64_t offset);
uint32_t msg_notices(const msg_world *world, int source);
/* Sleeps in the kernel, without polling first, until a packet arrives or for at most ns: the NIC's interrupt wakes this
 * rank. Handles what has arrived. An interrupt callback is not called. */
void msg_sleep(msg_world *world, uint64_t ns);

/* Incremented in the child of each fork. State kept beside a world compares it with the value at creation. */
extern unsigned msg_fork_epoch;

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
    X(shared, "rendezvous of which this rank wrote a part, and the receiver read the other")      \
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
    X(throttled, "times a sender was stopped from sending eagerly: the unexpected queue is full") \
    X(cache_hits, "registrations found in the cache")                                             \
    X(cache_misses, "registrations made")                                                         \
    X(cache_evictions, "registrations given up to stay within the bound")                         \
    X(cache_bytes_now, "bytes registered by the cache at present")                                \
    X(allocations, "times the engine took memory from the system")                                \
    X(requests_now, "requests that exist at present")                                             \
    X(ready_missed, "ready sends that found no posted receive")                                   \
    X(sleeps, "times a wait slept in the kernel")                                                 \
    X(yields, "times a wait gave the core away")                                                  \
    X(puts, "one-sided writes")                                                                   \
    X(notices, "one-sided writes of others that used a receive here")                             \
    X(gets, "one-sided reads")                                                                    \
    X(active_sent, "active messages sent")                                                        \
    X(active_received, "active messages handled on arrival")                                      \
    X(connections, "ranks that this rank has connected to")

typedef enum {
#define MSG_X(name, text) MSG_COUNTER_##name,
    MSG_COUNTERS(MSG_X)
#undef MSG_X
        MSG_N_COUNTERS
} msg_counter;

void msg_counters(msg_world *world, uint64_t *values); /* values[MSG_N_COUNTERS] */
const char *msg_counter_name(int counter);             /* NULL past the end */
/* Sums of the counters of the channel's NICs: values[VIAKIT_N_COUNTERS] of viakit.h. Returns 1, or 0 if the channel
 * reports none. */
int msg_nic_counters(msg_world *world, uint64_t *values);

#ifdef __cplusplus
}
#endif

#endif /* VIAKIT_MSG_H */
