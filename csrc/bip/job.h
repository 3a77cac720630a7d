/*
 * bip/job.h - BIP as the other rooms use it: a job is an object, lengths are bytes, and calls return codes.
 *
 *      bip_open        a NIC for the ranks of this host, one for the others; buffers
 *      bip_card        what the other ranks must know: to be exchanged by whoever starts the job
 *      bip_connect     with all ranks' cards: every pair is connected
 *      bip_isend ...   messages
 *      bip_close       says good-bye, and waits until it has been heard
 *
 * Threads: a job is used by one thread at a time. Functions return a code below zero on error (bip_code), and the
 * text of the last one is bip_error(job). Those that wait take a time in milliseconds, or -1 for ever, and ask
 * options->interrupt about every 20 ms.
 *
 * How messages travel is told in internal.h, the pipeline's model in model.h.
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
    X(INTERRUPTED, -10, "the caller's interrupt said so; the same")                             \
    X(DAMAGED, -11, "a sequence number or checksum is wrong")                                   \
    X(RESOURCE, -12, "memory, or a call of the NIC, failed")

enum {
    BIP_SUCCESS = 0,
#define BIP_X(name, value, text) BIP_ERR_##name = value,
    BIP_CODES(BIP_X)
#undef BIP_X
};
const char *bip_code_name(int code); /* "TOO_LONG"; NULL for no such code */
const char *bip_code_text(int code);

#define BIP_COUNTERS(X)                                             \
    X(short_sent, "messages into a queue")                          \
    X(short_received, "taken from the queue")                       \
    X(long_sent, "messages by rendezvous")                          \
    X(long_received, "and received")                                \
    X(packets_sent, "of the pipeline")                              \
    X(bytes_sent, "of messages")                                    \
    X(bytes_received, "of messages")                                \
    X(queue_full, "sends that found the receiver's queue full")     \
    X(unexpected, "messages that came before their receive")        \
    X(credits_sent, "messages that only told of room in the queue") \
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
#define BIP_MAX_RANKS 1024

/* For a layer with queues of its own above BIP, as MPI-BIP is: it is told what happens instead of asking. Short
 * messages are handed over where they lie and leave BIP's queue when the call returns; they are not kept by tag. What
 * was begun by bip_isend_noted or bip_irecv_noted has ended when sent or received is called, with the cookie it was
 * given; there is nothing to wait for. All of it is called from within bip_progress, bip_woken and the sends; a layer
 * may send short messages from there and begin nothing else. */
typedef struct {
    void (*short_arrived)(void *context, int node, int tag, const void *data, size_t len);
    void (*sent)(void *context, uint64_t cookie, int code);
    void (*received)(void *context, uint64_t cookie, int code);
    void (*lost)(void *context, int node); /* nothing will come from that rank any more, and nothing reach it */
    void *context;
} bip_layer;

/* Zero is "the default". Where a field has an environment variable, that counts if the field is zero; one that is no
 * number of the right size is an error. */
typedef struct {
    size_t size; /* sizeof(bip_options) */
    int rank, n_ranks;
    const char *job;            /* 1..15 bytes that only this job's ranks have in common */
    const char *host;           /* ranks with the same text share a machine; NULL: all do */
    const char *local_device;   /* NULL: "shm:bip-JOB" */
    const char *network_device; /* NULL: there is one host only, or this is an error */
    uint32_t n_slots;           /* of the queue at the receiver, for each other rank; VIAKIT_BIP_SLOTS; default 32 */
    uint64_t small;             /* bytes: longer messages are long; VIAKIT_BIP_SMALL; default: calibrated */
    uint64_t packet;            /* bytes of every packet of the pipeline; VIAKIT_BIP_PACKET; default: by the table */
    int strict;                 /* VIAKIT_BIP_STRICT */
    int checksum;               /* CRC32C of every message from end to end; VIAKIT_BIP_CHECKSUM */
    int blocking;               /* waits sleep after spin_us; 0: they poll, and give the core away after a while */
    int spin_us;                /* 0: 50; below zero: none */
    int one_core;               /* the ranks share a core: give it away at every look that finds nothing */
    uint32_t takeover_us;       /* of all NICs, as in viakit_nic_options; 0: its default */
    int mtu, form, go_back_n, crc_always; /* of the network NIC (viakit_nic_options) */
    const char *faults;                   /* as viakit_parse_faults reads it: on all NICs */
    const bip_table *table;               /* NULL: this machine's calibration, or what is built in */
    int (*interrupt)(void *context);
    void *interrupt_context;
    const bip_layer *layer; /* NULL: none */
} bip_options;

typedef struct bip_job bip_job;

/* May block on the file system. error[BIP_ERROR_LEN] gets the reason. */
int bip_open(const bip_options *options, bip_job **job, char *error);
void bip_card(const bip_job *job, uint8_t card[BIP_CARD_LEN]);
/* cards: n_ranks of BIP_CARD_LEN, in the order of ranks. Blocks for at most timeout_ms. */
int bip_connect(bip_job *job, const uint8_t *cards, int timeout_ms);

/* Address space that this rank costs each other rank of its host once they connect; 0: none. */
uint64_t bip_bytes_to_map(const bip_job *job);
/* Once connected, for as long as the caller waits elsewhere for others to be: from any thread, while no other uses
 * the job. */
void bip_attend(bip_job *job);
/* Always frees. BIP_ERR_TIMEOUT: what was sent last may not have arrived. BIP_ERR_LEFT: a send that nobody had waited
 * for was given up, because there was no room for it, or no receive. */
int bip_close(bip_job *job, int timeout_ms);

/* A send; the returned id (1 or more) is for stest and swait. len may be 0 with buf NULL. One that was waited for, or
 * that a later one followed, is done; an id that no send has had is ARGUMENT. */
int bip_isend_bytes(bip_job *job, int dst, int tag, const void *buf, size_t len);
int bip_stest_id(bip_job *job, int id); /* 1: done; 0: not yet; an error ends it, too */
int bip_swait_id(bip_job *job, int id, int timeout_ms);

/* A receive from anybody; the returned id is for rtest, rwait and rcancel, and is gone when one of the first two has
 * said 1 or an error other than TIMEOUT and INTERRUPTED. */
int bip_irecv_bytes(bip_job *job, int tag, void *buf, size_t max_len);
int bip_rtest_id(bip_job *job, int id, size_t *len, int *node); /* 1: here; 0: not yet */
int bip_rwait_id(bip_job *job, int id, size_t *len, int *node, int timeout_ms);
/* Takes a receive back. BIP_ERR_BUSY: data is on its way into the buffer already; wait for it. */
int bip_rcancel_id(bip_job *job, int id);

/* ---- for a layer */

/* A short message of two parts, together at most bip_small(): 1 it is on its way, and both parts may be used again; 0
 * the receiver's queue is full, or all buffers are under way; below zero: the rank is gone. An outstanding send does
 * not hinder it. */
int bip_send_parts(bip_job *job, int dst, int tag, const void *head, size_t head_len, const void *data, size_t len);
/* Long messages: longer than bip_small(). As bip_isend_bytes and bip_irecv_bytes, but their end is told. */
int bip_isend_noted(bip_job *job, int dst, int tag, const void *buf, size_t len, uint64_t cookie);
int bip_irecv_noted(bip_job *job, int tag, void *buf, size_t max_len, uint64_t cookie);
/* Registers a buffer for messages to or from that rank and keeps it so until bip_release; NULL: not now, or not at
 * all. */
void *bip_reserve(bip_job *job, int rank, const void *buf, size_t len);
void bip_release(void *reserved);
/* Forgets registrations of memory that is to go. */
void bip_forget(bip_job *job, const void *buf, size_t len);
/* Does something of ours wait for an acknowledgement, which no completion queue tells of? */
int bip_unsettled(const bip_job *job);
/* Sleeps until something arrives by a NIC (0 local, 1 network; one that is there), at most ms, and touches nothing of
 * the job: other threads may use it meanwhile. What it returns goes to bip_woken. */
void *bip_doze(const bip_job *job, int nic, int ms);
void bip_woken(bip_job *job, void *what);
int bip_has_nic(const bip_job *job, int nic);

/* ---- */

/* A short message that is here: 1; 0: none, or a long one. */
int bip_recv_short(bip_job *job, int tag, void *buf, size_t max_len, size_t *len, int *node);
/* One in its place in the queue, until bip_freemsg. 1; 0: none; ARGUMENT: the next message of this tag is a long one.
 * timeout 0: look once. */
int bip_getmsg(bip_job *job, int tag, const void **buf, size_t *len, int *node, int timeout_ms);
int bip_freemsg(bip_job *job, int tag);
/* A queue of the tag's own. Any time; grows only. */
int bip_taginit_bytes(bip_job *job, int tag, int n, size_t len);

/* What can be done at once is done. Number of things handled. */
int bip_progress(bip_job *job);
/* Sleeps until something may have come, for at most ms. */
void bip_idle(bip_job *job, int ms);

const char *bip_error(const bip_job *job);
int bip_rank(const bip_job *job);
int bip_n_ranks(const bip_job *job);
size_t bip_small(const bip_job *job, int dst); /* bytes of the longest short message to that rank */
size_t bip_packet(const bip_job *job, int dst, size_t len);
/* Bytes of all queues and buffers: does not grow with the number of messages. */
size_t bip_memory(const bip_job *job);
void bip_counters(const bip_job *job, uint64_t values[BIP_N_COUNTERS]);
/* Its device, "shm:bip-JOB"; NULL for oneself. */
const char *bip_link(const bip_job *job, int rank);
/* The NIC by which that rank is reached, for whoever wants to know more (a VIP_NIC_HANDLE); NULL for oneself. */
void *bip_nic(const bip_job *job, int rank);

#endif
