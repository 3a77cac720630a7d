/*
 * bip/job.h - BIP for other rooms: a job is an object, lengths are in bytes, and calls return codes.
 *
 *      bip_open        a NIC for the ranks of this host, one for the others; buffers
 *      bip_card        data for the other ranks, which the program that starts the job exchanges
 *      bip_connect     with all ranks' cards: every pair is connected
 *      bip_isend ...   messages
 *      bip_close       sends BYE, and waits until it is acknowledged
 *
 * Threads: one thread at a time uses a job. Functions return a code below zero on error (bip_code), and bip_error(job)
 * returns the text of the last one. Functions that wait take a time in milliseconds, or -1 for no limit, and call
 * options->interrupt about every 20 ms.
 *
 * internal.h describes the protocol, model.h the pipeline's model.
 */
#ifndef BIP_JOB_H
#define BIP_JOB_H

#include <stddef.h>
#include <stdint.h>

#include "bip/model.h"

#define BIP_CODES(X)                                                                            \
    X(ARGUMENT, -2, "a wrong argument")                                                         \
    X(SELF, -3, "a message to oneself")                                                         \
    X(BUSY, -4, "a send is outstanding, or a receive with this tag")                            \
    X(TOO_LONG, -5, "the message is longer than the receive allows")                            \
    X(NOT_POSTED, -6, "strict: a long message came before its receive was posted")              \
    X(PEER, -7, "a rank died")                                                                  \
    X(LEFT, -8, "the rank has left, or all have")                                               \
    X(TIMEOUT, -9, "nothing in the time given; a request goes on, and may be waited for again") \
    X(INTERRUPTED, -10, "the caller's interrupt ended the wait; the same")                      \
    X(DAMAGED, -11, "a sequence number or checksum is wrong, or a message was lost")            \
    X(RESOURCE, -12, "memory, or a call of the NIC, failed")

enum {
    BIP_SUCCESS = 0,
#define BIP_X(name, value, text) BIP_ERR_##name = value,
    BIP_CODES(BIP_X)
#undef BIP_X
};
const char *bip_code_name(int code); /* "TOO_LONG"; NULL if the code is undefined */
const char *bip_code_text(int code);

#define BIP_COUNTERS(X)                                              \
    X(short_sent, "messages into a queue")                           \
    X(short_received, "taken from the queue")                        \
    X(long_sent, "messages by rendezvous")                           \
    X(long_received, "and received")                                 \
    X(packets_sent, "of the pipeline")                               \
    X(bytes_sent, "of messages")                                     \
    X(bytes_received, "of messages")                                 \
    X(queue_full, "sends that found the receiver's queue full")      \
    X(unexpected, "messages that came before their receive")         \
    X(credits_sent, "messages that only reported room in the queue") \
    X(registrations, "buffers registered; found registered already does not count")

typedef enum {
#define BIP_X(name, text) BIP_COUNTER_##name,
    BIP_COUNTERS(BIP_X)
#undef BIP_X
        BIP_N_COUNTERS
} bip_counter;
const char *bip_counter_name(int counter); /* NULL past the end */

#define BIP_ERROR_LEN 512
#define BIP_CARD_LEN 64
#define BIP_SECRET_LEN 32
#define BIP_MAX_RANKS 1024

/* For a layer with its own queues above BIP, such as MPI-BIP: events are reported by callbacks. Short messages are
 * passed in place and leave BIP's queue when the callback returns; BIP does not store them by tag. sent or received
 * is called, with the given cookie, when an operation of bip_isend_noted or bip_irecv_noted has ended; the layer
 * needs no wait. All callbacks are made from within bip_progress, bip_woken and the sends. From there a layer may
 * send short messages, but start nothing else. */
typedef struct {
    void (*short_arrived)(void *context, int node, int tag, const void *data, size_t len);
    void (*sent)(void *context, uint64_t cookie, int code);
    void (*received)(void *context, uint64_t cookie, int code);
    void (*lost)(void *context, int node); /* no message from that rank will arrive any more, and none can reach it */
    void *context;
} bip_layer;

/* Zero selects the default. A zero field takes its value from its environment variable, if it has one. A variable
 * that is not a number in range is an error. */
typedef struct {
    size_t size; /* sizeof(bip_options) */
    int rank, n_ranks;
    const char *job;            /* 1 to 15 bytes, shared by this job's ranks and no others */
    const char *host;           /* ranks with equal text share a machine; NULL: all do */
    const char *local_device;   /* NULL: "shm:bip-JOB" */
    const char *network_device; /* NULL: no network. With several hosts this is an error. */
    uint32_t n_slots;           /* Places in the receiver's queue for each other rank. VIAKIT_BIP_SLOTS, default 32. */
    uint64_t small;             /* Limit of short messages in bytes. VIAKIT_BIP_SMALL, default: calibrated. */
    uint64_t packet;            /* Bytes per packet of the pipeline. VIAKIT_BIP_PACKET, default: by the table. */
    int strict;                 /* VIAKIT_BIP_STRICT */
    /* The VIs have the unreliable level: loss and damage are detected, and not repaired. Implies `checksum`. Not with a
     * layer. VIAKIT_BIP_UNRELIABLE. */
    int unreliable;
    int checksum;         /* CRC32C of every message from end to end. VIAKIT_BIP_CHECKSUM. */
    int blocking;         /* Waits sleep after spin_us. 0: they poll, and yield the core after a while. */
    int spin_us;          /* 0: 50. Below zero: none. */
    int one_core;         /* ranks share a core: yield it after each poll without an event */
    uint32_t takeover_us; /* For all NICs, as in viakit_nic_options. 0: its default. */
    int mtu, form, go_back_n, crc_always; /* of the network NIC (viakit_nic_options) */
    const char *faults;                   /* in the format of viakit_parse_faults, for all NICs */
    const bip_table *table;               /* NULL: this machine's calibration, or the built-in table */
    int (*interrupt)(void *context);
    void *interrupt_context;
    const bip_layer *layer; /* NULL: none */
    /* BIP_SECRET_LEN bytes that only the ranks of this job have. Every connection proves it in both directions.
     * Copied. NULL only if n_ranks is 1. */
    const unsigned char *secret;
} bip_options;

typedef struct bip_job bip_job;

/* May block on the file system. error[BIP_ERROR_LEN] receives the reason. */
int bip_open(const bip_options *options, bip_job **job, char *error);
void bip_card(const bip_job *job, uint8_t card[BIP_CARD_LEN]);
/* cards: n_ranks of BIP_CARD_LEN, in the order of ranks. Blocks for at most timeout_ms. */
int bip_connect(bip_job *job, const uint8_t *cards, int timeout_ms);

/* Address space that each other rank of this host needs to map this rank. 0: none. */
uint64_t bip_bytes_to_map(const bip_job *job);
/* Services a connected job while the caller waits elsewhere for other ranks to connect. From any thread, while no
 * other thread uses the job. */
void bip_attend(bip_job *job);
/* Always frees. BIP_ERR_TIMEOUT: the last messages may not have arrived. BIP_ERR_LEFT: a send that was never waited
 * for was dropped, because it had no room or no receive. */
int bip_close(bip_job *job, int timeout_ms);

/* Starts a send and returns its id (1 or more) for stest and swait. len may be 0 with buf NULL. A send that was
 * waited for, or followed by a later one, is complete. An id that no send has had yields ARGUMENT. */
int bip_isend_bytes(bip_job *job, int dst, int tag, const void *buf, size_t len);
int bip_stest_id(bip_job *job, int id); /* 1: complete; 0: not yet; an error ends it, too */
int bip_swait_id(bip_job *job, int id, int timeout_ms);

/* Starts a receive from any rank and returns its id for rtest, rwait and rcancel. The id ends when rtest or rwait
 * returns 1, or an error other than TIMEOUT and INTERRUPTED. */
int bip_irecv_bytes(bip_job *job, int tag, void *buf, size_t max_len);
int bip_rtest_id(bip_job *job, int id, size_t *len, int *node); /* 1: received; 0: not yet */
int bip_rwait_id(bip_job *job, int id, size_t *len, int *node, int timeout_ms);
/* Returns the error that ends waits for any rank: one has died, a message was lost, or all have left. 0: none. */
int bip_receive_error(bip_job *job);
/* Withdraws a receive. BIP_ERR_BUSY: data is already arriving in the buffer; wait for it. */
int bip_rcancel_id(bip_job *job, int id);

/* ---- for a layer */

/* Sends a short message of two parts, together at most bip_small(). An outstanding send does not delay it. Returns:
 * - 1: sent, and both parts may be reused.
 * - 0: the receiver's queue is full, or all buffers are in use.
 * - below zero: the rank is gone. */
int bip_send_parts(bip_job *job, int dst, int tag, const void *head, size_t head_len, const void *data, size_t len);
/* Long messages, above bip_small(). As bip_isend_bytes and bip_irecv_bytes, but completion is reported by callback. */
int bip_isend_noted(bip_job *job, int dst, int tag, const void *buf, size_t len, uint64_t cookie);
int bip_irecv_noted(bip_job *job, int tag, void *buf, size_t max_len, uint64_t cookie);
/* Registers a buffer for messages to or from that rank until bip_release. NULL: not now, or not possible. */
void *bip_reserve(bip_job *job, int rank, const void *buf, size_t len);
void bip_release(void *reserved);
/* Drops registrations of memory that is about to be freed. */
void bip_forget(bip_job *job, const void *buf, size_t len);
/* Returns 1 if an operation waits for an acknowledgement, which no completion queue reports. */
int bip_unsettled(const bip_job *job);
/* Sleeps at most ms until a packet arrives. It changes nothing in the job, so other threads may use the job meanwhile.
 * Pass the result to bip_woken. */
void *bip_sleep_unlocked(bip_job *job, uint64_t ms);
void bip_woken(bip_job *job, void *what);

/* ---- */

/* Receives a short message that has arrived. Returns 1, or 0: none, or a long one. */
int bip_recv_short(bip_job *job, int tag, void *buf, size_t max_len, size_t *len, int *node);
/* Returns a message in place in the queue, until bip_freemsg. Returns 1; 0: none; ARGUMENT: the next message of this
 * tag is a long one. timeout 0: poll once. */
int bip_getmsg(bip_job *job, int tag, const void **buf, size_t *len, int *node, int timeout_ms);
int bip_freemsg(bip_job *job, int tag);
/* Creates a separate queue for the tag. At any time; it can only grow. */
int bip_taginit_bytes(bip_job *job, int tag, int n, size_t len);

/* Makes all possible progress without waiting. Returns the number of events handled. */
int bip_progress(bip_job *job);
/* Sleeps at most ms, until a packet may have arrived. */
void bip_idle(bip_job *job, int ms);

const char *bip_error(const bip_job *job);
size_t bip_small(const bip_job *job, int dst); /* bytes of the longest short message to that rank */
size_t bip_packet(const bip_job *job, int dst, size_t len);
/* Bytes of all queues and buffers. It does not grow with the number of messages. */
size_t bip_memory(const bip_job *job);
void bip_counters(const bip_job *job, uint64_t values[BIP_N_COUNTERS]);
/* Device of the connection, "shm:bip-JOB". NULL for this rank itself. */
const char *bip_link(const bip_job *job, int rank);
/* NIC that connects that rank (a VIP_NIC_HANDLE), for further queries. NULL for this rank itself. */
void *bip_nic(const bip_job *job, int rank);

#endif
