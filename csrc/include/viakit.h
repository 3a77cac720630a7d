/*
 * viakit.h - what goes beyond VIPL: links and their options, memory that peers of a host can map, progress,
 * counters, explanations of errors, and hooks for tests. Plain C like vipl.h.
 *
 * Every function returns a VIP_RETURN unless said otherwise, never blocks unless said otherwise, and may be called
 * from any thread.
 */
#ifndef VIAKIT_H
#define VIAKIT_H

#include <stddef.h>

#include "vipl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define VIAKIT_WIRE_VERSION 1 /* of the frames; peers of another version are refused and counted */

/* ---------------------------------------------------------------- NICs
 *
 * Device names: "loop" or "loop:NAME" (NICs of one process that share a NAME see each other), "shm" or "shm:NAME"
 * (processes of one host and one user), "eth:IFNAME" (raw Ethernet on an interface; needs CAP_NET_RAW),
 * "udp:ADDRESS", "udp:IFNAME" or "udp:" (datagrams of the Internet, from this host's address; no privilege), and
 * "udp:...:PORT" for a station other than the usual one at port 34997.
 * VipOpenNic(device) is viakit_open_nic(device, NULL, nic).
 */

typedef enum {
    VIAKIT_FORM_AUTO = 0,  /* small messages as plain frames, long ones as UDP super-frames where the interface can */
    VIAKIT_FORM_PLAIN = 1, /* EtherType 0x88B5 only */
    VIAKIT_FORM_UDP = 2    /* every frame dressed as UDP/IPv4; long messages as super-frames (segmentation offload) */
} viakit_form;

/* What a receiver does with frames that come before their turn, for an earlier one was lost. Each side decides for
 * what it receives; the two need not agree. */
typedef enum {
    VIAKIT_SELECTIVE = 0, /* keep them, name the gaps: only what was lost is sent again */
    VIAKIT_GO_BACK_N =
        1 /* drop them: everything from the lost frame on is sent again. Simple; kept to compare and to learn from */
} viakit_retransmission;

/* What proves that the frames that this NIC sends arrive undamaged (eth, udp). Receivers take either. */
typedef enum {
    VIAKIT_CHECKSUM_AUTO =
        0, /* single frames: CRC32C; super-frames: UDP's checksum, which the interface computes, as for TCP */
    VIAKIT_CHECKSUM_CRC = 1 /* CRC32C over every byte: stronger, and each side reads all data once more */
} viakit_checksum;

/* Zero in any field means "the default". Start from memset 0 or VIAKIT_NIC_OPTIONS_INIT. */
typedef struct {
    size_t size;           /* sizeof(viakit_nic_options) */
    viakit_form form;      /* eth only */
    VIP_UINT32 mtu;        /* eth, udp: bytes of a frame after the Ethernet header; at most the interface's */
    VIP_UINT32 ring_slots; /* receive ring: frames or super-frames it holds, at least */
    VIP_UINT32 window;     /* link sends (frames or super-frames) a reliable VI may have unacknowledged */
    VIP_UINT32 rto_us; /* retransmission time-out until the round trip has been measured; doubles up to half a second */
    VIP_UINT32 max_retries;  /* retransmissions without an answer before the connection is lost */
    VIP_UINT32 ack_delay_us; /* an acknowledgement waits at most so long for a frame to ride on */
    VIP_UINT32 keepalive_ms; /* silence after which a reliable or unreliable peer is probed */
    int spin_us;             /* how long Wait calls spin before they sleep; -1: never spin */
    VIP_UINT32 first_psn;    /* first packet sequence number of a connection is this (tests of wrap); 0: random */
    int no_thread;           /* 1: no progress thread; only calls on the NIC make progress (deterministic tests) */
    int no_cma;              /* 1: shm never uses process_vm_readv/writev */
    int no_map;              /* 1: shm never maps a peer's memory */
    viakit_retransmission retransmission; /* of what this NIC receives */
    viakit_checksum checksum;             /* of what this NIC sends */
    /* The NIC's thread looks so often, at least, whether the program has stopped polling: 50 to 10000, what is beyond
     * counts as these; 0: 400. Each look is a wake-up, so where programs that poll share cores more is better. */
    VIP_UINT32 takeover_us;
} viakit_nic_options;

#define VIAKIT_NIC_OPTIONS_INIT {sizeof(viakit_nic_options)}

VIPL_EXPORT VIP_RETURN viakit_open_nic(const char *device, const viakit_nic_options *options, VIP_NIC_HANDLE *nic);

/* What a NIC really is, beyond VIP_NIC_ATTRIBUTES. */
typedef struct {
    char link[16];      /* "loop", "shm", "eth", "udp" */
    char device[64];    /* as opened */
    char interface[16]; /* eth, udp: interface name */
    char form[8];       /* eth: "auto", "plain", "udp" */
    VIP_UINT8 address[6];
    VIP_UINT16 port;          /* this NIC among the NICs of its address */
    VIP_UINT32 mtu;           /* of the interface, or of the link */
    VIP_UINT32 max_payload;   /* bytes of a message that one frame carries */
    VIP_UINT32 super_payload; /* bytes of a message that one super-frame carries; max_payload where there are none */
    VIP_UINT32 ring_slots;
    VIP_UINT32 window;
    VIP_UINT64 bytes_registered;  /* now */
    VIP_UINT64 bytes_pinned;      /* now; less than bytes_registered where RLIMIT_MEMLOCK did not allow it */
    VIP_UINT64 bytes_to_map;      /* shm: address space that each peer needs to reach this NIC; elsewhere 0 */
    int lossless;                 /* the link itself neither loses, doubles nor reorders */
    int cma;                      /* 1: process_vm_readv/writev worked with the last peer; 0 refused; -1 untried */
    int thread;                   /* 1: has a progress thread */
    int vis, regions, ptags, cqs; /* live objects of this NIC */
} viakit_nic_info;

VIPL_EXPORT VIP_RETURN viakit_query_nic(VIP_NIC_HANDLE nic, viakit_nic_info *info);

/* HostAddressLen of a remote address that means one NIC: the six bytes that all NICs of a station have in common, and
 * the VIP_UINT16 port of that one (viakit_nic_info) as it lies in memory. VipConnectRequest and VipConnectPeerRequest
 * take it; with six bytes they ask every NIC there. */
#define VIAKIT_NIC_ADDRESS_LEN 8

/* How a VI's connection is doing at this moment. Of an unreliable VI, and where the link itself loses nothing, only
 * the first two fields mean much. */
typedef struct {
    int lossless;                         /* the link loses nothing: no acknowledgements, no retransmission */
    viakit_retransmission retransmission; /* what we do with frames that come early */
    double srtt_us, rttvar_us;  /* the round trip as measured, smoothed, and its variation; 0: not measured yet */
    double rto_us;              /* present retransmission time-out */
    double tail_probe_us;       /* silence after which the last frame is sent once more */
    VIP_UINT32 window;          /* link sends (frames or super-frames) that may be unacknowledged now ... */
    VIP_UINT32 sends_in_flight; /* ... and that are */
    VIP_UINT32 frames_in_flight;
    VIP_UINT32 frames_missing; /* of the peer's, before the furthest that has come */
    VIP_UINT32 reads_open;     /* RDMA reads whose data is not here yet */
    VIP_UINT32 retries;        /* time-outs in a row */
} viakit_vi_info;

VIPL_EXPORT VIP_RETURN viakit_query_vi(VIP_VI_HANDLE vi, viakit_vi_info *info);

/* Drives the NIC once, without blocking: receives what has arrived, sends what may be sent, runs what is due.
 * *n_events (may be NULL) is the number of frames handled. */
VIPL_EXPORT VIP_RETURN viakit_poll(VIP_NIC_HANDLE nic, int *n_events);

/* ---------------------------------------------------------------- memory
 *
 * Memory that peers on the same host can map (shm: then a message is copied once, by memcpy, and an RDMA write needs
 * nothing of its target). On other links it is ordinary page-aligned memory. Not registered: call VipRegisterMem on
 * any part of it. Freed memory must not be registered any more (VIP_ERROR_RESOURCE). VipCloseNic frees what is left. */
VIPL_EXPORT VIP_RETURN viakit_alloc(VIP_NIC_HANDLE nic, size_t len, void **address);
VIPL_EXPORT VIP_RETURN viakit_free(VIP_NIC_HANDLE nic, void *address);

/* ---------------------------------------------------------------- counters
 *
 * One list for a NIC and for a VI; a VI leaves at 0 what only its NIC can know. Free-running, 64 bits. */
#define VIAKIT_COUNTERS(X)                                                                              \
    X(messages_sent, "messages whose last frame was handed to the link (sends and RDMA writes)")        \
    X(messages_received, "messages placed whole (receives and incoming RDMA writes)")                   \
    X(bytes_sent, "payload bytes handed to the link, retransmissions not counted")                      \
    X(bytes_received, "payload bytes placed")                                                           \
    X(rdma_writes_sent, "RDMA writes among messages_sent")                                              \
    X(rdma_reads_sent, "RDMA reads of others' memory whose data is here")                               \
    X(rdma_reads_received, "RDMA reads of this NIC's memory that it answered; not those made directly") \
    X(rdma_writes_received, "RDMA writes among messages_received")                                      \
    X(copies, "times the provider copied payload in user space or by process_vm_*")                     \
    X(bytes_copied, "payload bytes so copied")                                                          \
    X(copies_mapped, "copies straight between registered memory of two processes, through a mapping")   \
    X(copies_cma, "copies straight between two processes by process_vm_readv or process_vm_writev")     \
    X(copies_ring, "copies into or out of a shared-memory ring or frame buffer")                        \
    X(system_calls, "system calls made to move data or to wait")                                        \
    X(frames_sent, "frames handed to the link; a super-frame counts its segments")                      \
    X(super_frames_sent, "super-frames handed to the link")                                             \
    X(frames_received, "frames taken from the link")                                                    \
    X(frames_retransmitted, "data frames sent again")                                                   \
    X(frames_kept_early, "frames kept because they came before an earlier one that was lost")           \
    X(tail_probes, "last frames sent again because nothing was heard for two round trips")              \
    X(timeouts, "retransmission time-outs")                                                             \
    X(acks_sent, "frames sent only to acknowledge")                                                     \
    X(acks_received, "frames received that only acknowledge")                                           \
    X(naks_sent, "negative acknowledgements sent: a gap was seen")                                      \
    X(naks_received, "negative acknowledgements received")                                              \
    X(probes_sent, "keep-alive probes sent")                                                            \
    X(dropped_checksum, "frames dropped: CRC32C wrong")                                                 \
    X(dropped_malformed, "frames dropped: too short, lengths that contradict, unknown kind")            \
    X(dropped_version, "frames dropped: another version of the protocol")                               \
    X(dropped_stranger, "frames dropped: no such port, VI or connection")                               \
    X(dropped_duplicate, "frames dropped: seen before")                                                 \
    X(dropped_out_of_order, "frames dropped: an earlier one is missing, and early ones are not kept")   \
    X(dropped_no_descriptor, "messages dropped: no receive descriptor was posted")                      \
    X(dropped_protection, "messages dropped: remote memory not granted")                                \
    X(dropped_ring_full, "frames dropped by the kernel: receive ring full")                             \
    X(dropped_backlog, "answers dropped: the peer takes none, and too many wait for it already")        \
    X(dropped_filter, "frames dropped on sending by a test's filter")                                   \
    X(fault_dropped, "frames that the faults asked for lost on sending")                                \
    X(fault_duplicated, "frames that they sent twice")                                                  \
    X(fault_reordered, "frames that they let others overtake")                                          \
    X(fault_corrupted, "frames in which they flipped bits")                                             \
    X(fault_delayed, "frames that they sent later: delay, jitter")                                      \
    X(fault_stalled, "frames that met a stall and were sent at its end")                                \
    X(fault_cut_sent, "frames lost on sending because the NIC was cut off (partition)")                 \
    X(fault_cut_received, "frames dropped on arrival because the NIC was cut off (partition)")          \
    X(send_stalls, "times the link could not take a frame at once")                                     \
    X(window_stalls, "times a send waited for the window")                                              \
    X(wakeups, "times a thread slept in the kernel on behalf of the NIC and was woken")                 \
    X(doorbells, "times another process or thread was woken by a system call")                          \
    X(thread_takeovers, "times the NIC's own thread began to drive because nobody polled")              \
    X(polls, "times the link was looked at")                                                            \
    X(lock_waits, "times a thread had to wait because another was driving the NIC")                     \
    X(pin_failures, "registrations whose memory could not be locked (RLIMIT_MEMLOCK)")                  \
    X(async_errors, "asynchronous errors reported to the handler")

typedef enum {
#define VIAKIT_X(name, text) VIAKIT_COUNTER_##name,
    VIAKIT_COUNTERS(VIAKIT_X)
#undef VIAKIT_X
        VIAKIT_N_COUNTERS
} viakit_counter;

/* Copies all counters: values[VIAKIT_N_COUNTERS]. */
VIPL_EXPORT VIP_RETURN viakit_nic_counters(VIP_NIC_HANDLE nic, VIP_UINT64 *values);
VIPL_EXPORT VIP_RETURN viakit_vi_counters(VIP_VI_HANDLE vi, VIP_UINT64 *values);
VIPL_EXPORT const char *viakit_counter_name(int counter); /* NULL past the end */
VIPL_EXPORT const char *viakit_counter_text(int counter);

/* Objects that exist in this process, over all NICs; all zero when everything was closed. */
typedef struct {
    VIP_UINT32 nics, vis, cqs, ptags, regions, connections, allocations;
} viakit_live;
VIPL_EXPORT void viakit_live_objects(viakit_live *live);

/* ---------------------------------------------------------------- snapshots
 *
 * What the NIC and everything on it is doing at this moment, as a JSON text (docs/inspect.md): VIs with their peers,
 * sequence numbers, queues and oldest descriptors, completion queues, regions, tags, connections in the making,
 * counters. It is taken in one piece, under the NIC's ownership but for no longer than copying takes; nothing is
 * driven or changed.
 *
 * *len is the length of the text without its final zero, also when it does not fit into size bytes: then the answer is
 * VIP_ERROR_RESOURCE, the text is cut, and a larger buffer will do (a moment later there may be more to tell). */
VIPL_EXPORT VIP_RETURN viakit_snapshot(VIP_NIC_HANDLE nic, char *text, size_t size, size_t *len);

/* ---------------------------------------------------------------- words for codes */

/* Why the last call of this thread that failed did so: a sentence that says what was given, what would have been
 * right and what to do next. "" before the first that failed. VIP_NOT_DONE is an answer and no failure: it leaves the
 * text as it is. Valid until the thread's next failing call. */
VIPL_EXPORT const char *viakit_last_error(void);
VIPL_EXPORT const char *viakit_return_name(int code);     /* "VIP_NO_MATCH"; NULL for no such code */
VIPL_EXPORT const char *viakit_return_text(int code);     /* one sentence */
VIPL_EXPORT const char *viakit_error_code_name(int code); /* "VIP_ERROR_CONN_LOST" */
VIPL_EXPORT const char *viakit_error_code_text(int code); /* "Connection lost" */
VIPL_EXPORT const char *viakit_state_name(int state);     /* "VIP_STATE_IDLE" */

/* ---------------------------------------------------------------- waiting
 *
 * While a call of this thread waits, check(context) is called at least every 50 ms; when it returns non-zero the wait
 * ends with VIP_TIMEOUT and nothing lost: what completed meanwhile is there for the next call (a connection request
 * is withdrawn, and one that had just come is refused). NULL removes it. The callback may call VIPL, but not
 * VipCloseNic for the NIC that the call waits on. */
VIPL_EXPORT void viakit_set_interrupt(int (*check)(void *context), void *context);

/* ---------------------------------------------------------------- taps
 *
 * A tap writes down what a NIC does: every frame that it hands to its link and takes from it, with the time in
 * nanoseconds and, where it was dropped, why; and, if asked, the events in the life of each descriptor. The output is
 * pcapng, for Wireshark and for `viakit trace`: one interface for the frames, dressed as Ethernet of type 0x88B5
 * whatever the link is, and one (link type USER0) for the events, each a struct viakit_event.
 *
 * What is recorded goes into a ring of the NIC, from which a thread of the library writes the file; a full ring loses
 * records, counted, and never holds the NIC up. NICs of one process that name the same file share it. Times are
 * CLOCK_MONOTONIC, moved to 1970 by an offset that the file's section comment tells (clock_offset_ns=N).
 *
 * The environment variable VIAKIT_TAP=FILE[,events][,noframes][,snap=BYTES][,ring=BYTES][,limit=BYTES] opens a tap on
 * every NIC of a program that knows nothing of taps. %p in FILE becomes the process number; a FILE that is a folder
 * gets one file per process; and where another living process writes FILE, its number is put before the suffix. */
typedef struct {
    size_t size;           /* sizeof(viakit_tap_options) */
    VIP_UINT32 snap_len;   /* bytes of each frame to keep, wire header included, 48 at least; 0: all */
    VIP_UINT32 ring_bytes; /* of the ring; 0: 8 MiB */
    int events;            /* 1: the life of descriptors as well */
    int no_frames;         /* 1: no frames */
    VIP_UINT64
    file_bytes; /* the file grows no longer than this, give or take; what comes then is counted as lost. 0: no bound */
} viakit_tap_options;

#define VIAKIT_TAP_OPTIONS_INIT {sizeof(viakit_tap_options)}

/* Opens the tap of a NIC, which has at most one (else VIP_INVALID_STATE). file is created, or emptied if no NIC of
 * this process writes it; NULL: there is no file, and viakit_tap_read gives what would be in it. options may be NULL.
 * May block on the file system. */
VIPL_EXPORT VIP_RETURN viakit_tap_open(VIP_NIC_HANDLE nic, const char *file, const viakit_tap_options *options);

/* Writes what is still in the ring, and closes. VIP_INVALID_STATE if there is no tap; VIP_ERROR_RESOURCE if the file
 * could not be written whole (the tap is closed all the same). VipCloseNic closes the tap, too. May block on the file
 * system. */
VIPL_EXPORT VIP_RETURN viakit_tap_close(VIP_NIC_HANDLE nic);

/* Writes what was recorded before the call to the file. May block on the file system. */
VIPL_EXPORT VIP_RETURN viakit_tap_flush(VIP_NIC_HANDLE nic);

/* The next bytes of a tap without a file: whole pcapng blocks, as many as fit len; *n is their number of bytes, 0 if
 * nothing new was recorded. VIP_INVALID_PARAMETER if not even the next block fits. */
VIPL_EXPORT VIP_RETURN viakit_tap_read(VIP_NIC_HANDLE nic, void *buffer, size_t len, size_t *n);

typedef struct {
    char file[512];         /* as it was opened; "" if there is none */
    VIP_UINT64 frames_sent; /* recorded */
    VIP_UINT64 frames_received;
    VIP_UINT64 events;
    VIP_UINT64 lost; /* frames and events that found the ring full, or the file at its bound */
} viakit_tap_info;

VIPL_EXPORT VIP_RETURN viakit_query_tap(VIP_NIC_HANDLE nic, viakit_tap_info *info);

/* Stations in the life of a descriptor, apart from its frames. */
#define VIAKIT_EVENTS(X)                                                                                          \
    X(POSTED, 1, "the program posted a descriptor: index, descriptor, len, control")                              \
    X(DOORBELL, 2, "the NIC began to send it: index, the psn of its first frame, the number of its frames, how")  \
    X(PLACED, 3, "bytes reached their final address: psn of the frame that brought them, len; index on receives") \
    X(ACKNOWLEDGED, 4, "the peer has everything before psn")                                                      \
    X(COMPLETED, 5, "a descriptor was completed: index, descriptor, status, len")                                 \
    X(REAPED, 6, "the program took it back: index, descriptor, status")

typedef enum {
    VIAKIT_EVENT_NONE = 0
#define VIAKIT_X(name, value, text) , VIAKIT_EVENT_##name = value
    VIAKIT_EVENTS(VIAKIT_X)
#undef VIAKIT_X
} viakit_event_kind;

/* What a packet on a tap's interface for events holds, in the machine's byte order. What a kind does not name is 0. */
typedef struct {
    VIP_UINT8 version;  /* 1 */
    VIP_UINT8 kind;     /* viakit_event_kind */
    VIP_UINT16 vi;      /* its number, as in the frames */
    VIP_UINT8 queue;    /* 0 send, 1 receive */
    VIP_UINT8 how;      /* 0 in frames, 1 by reference: the peer fetches, 2 placed in the peer's memory by us */
    VIP_UINT16 control; /* of the descriptor */
    VIP_UINT32 index;   /* the descriptor's number in its queue, free-running */
    VIP_UINT32 psn;
    VIP_UINT32 n_frames;
    VIP_UINT32 len; /* bytes */
    VIP_UINT32 status;
    VIP_UINT32 key;        /* by which the frames of this VI's peer prove themselves */
    VIP_UINT64 descriptor; /* its address */
} viakit_event;

/* ---------------------------------------------------------------- faults
 *
 * A NIC can be told to treat badly what it sends: for tests, for measuring what a protocol makes of a bad wire, for
 * teaching. Each side of a connection spoils its own frames, on any link. Same seed, same faults: what chance does to
 * a frame depends on the seed, on its kind, and on its number among the frames of that kind sent since the faults
 * were set; on nothing else. Times (delay, stall, partition) run from the moment the faults were set.
 *
 * Links that lose nothing (loop, shm): connections made while faults are set run the full protocol, with checksums
 * and retransmission. Older ones rely on the link and keep its promise: nothing happens to their frames. */

typedef enum {
    VIAKIT_PASS = 0,
    VIAKIT_DROP = 1,
    VIAKIT_DUPLICATE = 2,
    VIAKIT_HOLD = 3,
    VIAKIT_CORRUPT = 4
} viakit_verdict;

/* Frames chosen one by one: those with numbers first..last (from 0) among all frames, or among those of one kind. */
typedef struct {
    viakit_verdict verdict;
    VIP_UINT32 kind; /* as in the frame's header (docs/faults.md lists them); 0: any */
    VIP_UINT64 first, last;
} viakit_fault_rule;

#define VIAKIT_MAX_FAULT_RULES 8
#define VIAKIT_FOR_EVER (-1.0)

/* Zero in any field: not that. Start from memset 0 or VIAKIT_FAULTS_INIT. */
typedef struct {
    size_t size; /* sizeof(viakit_faults) */
    VIP_UINT64 seed;
    double loss, duplicate, reorder, corrupt; /* chance of each frame, 0..1, each kind drawn for itself */
    VIP_UINT32 reorder_distance;              /* a late frame is overtaken by 1..so many others; 0: 3; at most 64 */
    VIP_UINT32 corrupt_bits;                  /* flipped in a corrupted frame; 0: 1 */
    VIP_UINT32 kinds;                         /* the four chances are for these kinds only, bits 1 << kind; 0: all */
    double delay_us, jitter_us;               /* each frame later by delay + 0..jitter; this alone keeps the order */
    double stall_us, stall_every_us;          /* at the end of every period no frame passes for so long */
    double partition_us, partition_after_us;  /* cut off, both ways, for so long (or VIAKIT_FOR_EVER), from then on */
    VIP_UINT64 partition_frames, partition_after_frames; /* the same, counted in frames that this NIC sends */
    VIP_UINT32 n_rules;
    viakit_fault_rule rules[VIAKIT_MAX_FAULT_RULES];
} viakit_faults;

/* All fields, for compilers warn of those that are left out. */
/* clang-format off */
#define VIAKIT_FAULTS_INIT \
    {sizeof(viakit_faults), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {{VIAKIT_PASS, 0, 0, 0}}}
/* clang-format on */

/* From now on; frames and times are counted anew. NULL heals: what was kept goes out at once. A NIC without faults
 * pays nothing for this. VIP_INVALID_PARAMETER: a chance outside 0..1, a time below 0, a distance too large. */
VIPL_EXPORT VIP_RETURN viakit_set_faults(VIP_NIC_HANDLE nic, const viakit_faults *faults);
/* What was set; *active (may be NULL) is 0 if nothing is, and then *faults is zeroed but for its size. faults->size
 * says what there is room for, so begin with VIAKIT_FAULTS_INIT; 0: for all. */
VIPL_EXPORT VIP_RETURN viakit_get_faults(VIP_NIC_HANDLE nic, viakit_faults *faults, int *active);

/* Text to faults:
 * "loss=0.05,dup=1%,reorder=0.05/4,corrupt=0.01/2,delay=200us,jitter=50us,stall=10ms/100ms,partition=2s@5s,
 * kinds=send+write,drop=accept:0-1,seed=7"; docs/faults.md has the grammar. "" is no faults. VIP_INVALID_PARAMETER
 * says in viakit_last_error() which word is wrong and what would be right. faults->size says what there is room for,
 * as of viakit_get_faults(); what the text says beyond that is refused, too. The environment's VIAKIT_FAULT is set so
 * on every NIC opened. */
VIPL_EXPORT VIP_RETURN viakit_parse_faults(const char *text, viakit_faults *faults);
/* Faults to text, which parses to the same. VIP_ERROR_RESOURCE: more than len bytes. */
VIPL_EXPORT VIP_RETURN viakit_format_faults(const viakit_faults *faults, char *text, size_t len);

/* What happens to the frame with this number, of this kind, the so many-th of its kind: bits 1 << viakit_verdict, 0
 * for nothing. The very function that decides: chances go by seed, kind and number of that kind. A partition counted
 * in frames shows as DROP, times do not show. */
VIPL_EXPORT unsigned viakit_fault_of(const viakit_faults *faults, VIP_UINT64 index, int kind, VIP_UINT64 index_of_kind);
VIPL_EXPORT const char *viakit_frame_kind_name(int kind); /* "SEND"; NULL for no such kind */

/* A decision of the program's own, instead of viakit_faults: called for every frame before it is handed to the link
 * (super-frames are then not used), under the NIC's ownership: it must not call VIPL. HOLD keeps one frame back until
 * the next one has been sent. index counts frames from 0; each is asked about once. kind is the frame's kind on the
 * wire. NULL removes the filter. */
typedef viakit_verdict (*viakit_frame_filter)(void *context, VIP_UINT64 index, int kind, size_t len);
VIPL_EXPORT VIP_RETURN viakit_set_frame_filter(VIP_NIC_HANDLE nic, viakit_frame_filter filter, void *context);

#ifdef __cplusplus
}
#endif

#endif /* VIAKIT_H */
