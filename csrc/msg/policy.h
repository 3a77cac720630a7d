/*
 * policy.h - every choice that the message engine makes, as one struct with a name.
 *
 * The libraries of the papers are entries of a table (policy.c) with their sources. A program copies an entry, changes
 * fields, and passes it to msg_world_open. No code of the engine depends on a policy's name.
 *
 * Opening a world fills the fields that are MSG_CALIBRATED ("calibrated" in text): from the result that `viakit
 * calibrate` has stored for the link, or from built-in values (calibration.h). In the policies `via`, `bip` and `tcp`
 * these are the thresholds. The policies of the papers' libraries have no such field.
 *
 * All fields but the strings are int64_t, so that they can be set by name: from the call, from the environment variable
 * VIAKIT_MSG ("mpich-p4,socket_buffer=262144"), or from a file. Sizes are bytes; text may use the suffixes K, M and G.
 *
 * Upper bounds on the memory of a rank, for n ranks:
 *     pools      (n - 1) * (credits + 4) * (eager limit + 64). Credits are reduced to keep this within pool_bytes,
 *                but not below 8 per rank (channel via). With connect=first only ranks that have met have buffers.
 *                Channel tcp has only socket buffers.
 *     unexpected unexpected_bytes, the data in flight when the senders received XOFF, and an envelope of 256 bytes per
 *                message. In flight are at most credits * eager limit per sender; on tcp its socket buffers and 64 KiB.
 *                Beyond it, senders keep their data and only announce it.
 *     requests   320 bytes for each that exists at a time, in blocks of 64 KiB that are kept
 *     cache      cache_bytes of registered memory (the user's own, not a copy)
 */
#ifndef VIAKIT_MSG_POLICY_H
#define VIAKIT_MSG_POLICY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the data of a long message is transferred once its receive is posted. */
typedef enum {
    MSG_RPUT = 0, /* The receiver sends its address, the sender writes (RDMA write) and sends FIN. */
    MSG_RGET = 1, /* The sender sends its address, the receiver reads (RDMA read) and sends FIN. RPUT if it cannot. */
    MSG_R3 = 2    /* Copied segments through the eager buffers. On tcp: the data follows on the stream. */
} msg_rendezvous;

typedef enum {
    MSG_PROGRESS_CALLER = 0, /* only calls of the program make progress */
    MSG_PROGRESS_THREAD = 1, /* a thread of the world makes progress, too */
    MSG_PROGRESS_SIGNAL =
        /* Arriving or departing data interrupts the program (SIGIO) while it computes. Here a thread does this work,
         * which sleeps while the program is in the library (wait.c). */
    2
} msg_progress_kind;

typedef enum {
    MSG_ROUTE_DIRECT = 0, /* from rank to rank */
    MSG_ROUTE_DAEMON = 1  /* through the daemons of both hosts (lamd, pvmd): channel tcp only */
} msg_route;

typedef enum {
    MSG_CONNECT_FIRST = 0, /* log2 of the ranks at the start, others when a rank first needs them: channel via */
    MSG_CONNECT_ALL = 1    /* each rank to all others at the start, as MVICH did */
} msg_connect;

/* field, default, description */
#define MSG_POLICY_FIELDS(X)                                                                                           \
    X(eager_limit, 16384, "messages up to so many bytes are sent at once, with their data; longer ones by rendezvous") \
    X(eager_limit_local, 8192, "the same between ranks of one host (channel via); -1: as eager_limit")                 \
    X(rendezvous, MSG_RPUT, "how longer ones go: 0 rput, 1 rget, 2 r3")                                                \
    X(rendezvous_local, -1, "the same between ranks of one host; -1: as rendezvous")                                   \
    X(request_data, 0, "bytes of its data that the request (RTS) of a longer one carries, if it goes by r3")           \
    X(rdma_from, 0, "rendezvous of fewer bytes go by copied segments (r3), regardless of `rendezvous`")                \
    X(share_from, -1, "messages of so many bytes between ranks of one host may be copied by both; -1: none")           \
    X(piece, 67108864, "RDMA moves at most so many bytes at a time; at most MaxTransferSize")                          \
    X(credits, 64, "eager buffers that a rank keeps ready for each other rank (via)")                                  \
    X(pool_bytes, 8388608, "bound of all eager buffers of a rank (via); see above")                                    \
    X(unexpected_bytes, 67108864, "data of unexpected messages a rank keeps before it makes senders hold theirs")      \
    X(synchronous, 0, "1: every send is complete only when its receive has been matched")                              \
    X(copy_send, 0, "1: data is packed into a buffer of the library before it is sent")                                \
    X(copy_recv, 0, "1: data is received into a buffer of the library, also where a receive is posted")                \
    X(convert, 0, "1: messages are in network byte order: each end passes over the data")                              \
    X(progress, MSG_PROGRESS_CALLER, "who moves messages: 0 calls of the program, 1 a thread, 2 signals")              \
    X(route, MSG_ROUTE_DIRECT, "0 from rank to rank, 1 through daemons (tcp)")                                         \
    X(daemon_bytes, 8192, "bytes of data in a packet of the daemons; at most 8192 (tcp)")                              \
    X(daemon_packets, 0, "packets of a stream under way, counted by their bytes; 0: as many as 64 KiB hold (tcp)")     \
    X(socket_buffer, 0, "SO_SNDBUF and SO_RCVBUF (tcp); 0: the kernel's; -1: its most; -3: the eager limit and 24")    \
    X(nodelay, 1, "TCP_NODELAY (tcp)")                                                                                 \
    X(spin_us, 2000, "how long a wait polls before it sleeps in the kernel; -1: sleeps at once")                       \
    X(yield_us, 30, "how long a wait polls before it gives the core away between looks; 0 at once; -1 never")          \
    X(cache_bytes, 1073741824, "bound of the registration cache; 0: register for each message and forget")             \
    X(cache_entries, 1024, "bound of its entries")                                                                     \
    X(reliability, 2, "reliability level of the VIs: 2 reliable delivery, 4 reliable reception (via)")                 \
    X(connect, MSG_CONNECT_FIRST, "when ranks connect (via): 0 when they first meet, 1 all at the start")

#define MSG_DAEMON_BYTES 8192   /* the most of daemon_bytes */
#define MSG_DAEMON_WINDOW 65536 /* bytes of a stream that daemons may have under way */
#define MSG_CALIBRATED (-2)
#define MSG_BUFFERS_FOLLOW (-3) /* socket buffers as long as the longest eager message and LAM's envelope of 24 bytes */

#define MSG_POLICY_NAME_LEN 32
#define MSG_POLICY_SOURCE_LEN 400

typedef struct msg_policy {
    size_t size; /* sizeof(struct msg_policy) */
    char name[MSG_POLICY_NAME_LEN];
    char channel[16];                   /* "via", "bip", "tcp" */
    char source[MSG_POLICY_SOURCE_LEN]; /* description of the library, and its source */
#define MSG_X(field, value, text) int64_t field;
    MSG_POLICY_FIELDS(MSG_X)
#undef MSG_X
} msg_policy;

/* The table: entry at index i, NULL past the end. */
const msg_policy *msg_policy_at(int i);
const msg_policy *msg_policy_find(const char *name); /* NULL: no such name */

/* Sets a field from text: a number ("16K"), or a word for fields that have words ("rget", "thread", "daemon").
 * Returns 0, or -1 and a sentence in error (MSG_ERROR_LEN bytes, or NULL): also for a number that the field may not
 * have. `channel` and `name` can be set, too. */
int msg_policy_set(msg_policy *policy, const char *field, const char *value, char *error);
/* Returns 0 if the policy is complete, each field has a valid value and no two contradict each other, else -1 and a
 * sentence in error, as msg_policy_set. msg_world_open calls it. */
int msg_policy_check(const msg_policy *policy, char *error);
/* Applies "NAME" or "NAME,field=value,..." or "field=value,..." to *policy. *policy changes only on success. */
int msg_policy_parse(msg_policy *policy, const char *text, char *error);

/* Fields by index, for listings; NULL past the end. */
const char *msg_policy_field_name(int i);
int64_t msg_policy_get(const msg_policy *policy, int i);

#ifdef __cplusplus
}
#endif

#endif /* VIAKIT_MSG_POLICY_H */
