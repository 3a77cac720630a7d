/*
 * viakit.h - the extensions to VIPL: links and their options, memory that peers on the same host can map, progress,
 * counters, explanations of errors, and hooks for tests. Plain C like vipl.h.
 *
 * Unless stated otherwise every function returns a VIP_RETURN, never blocks, and may be called from any thread.
 */
#ifndef VIAKIT_H
#define VIAKIT_H

#include <stddef.h>

#include "vipl.h"

#ifdef __cplusplus
extern "C" {
#endif

#define VIAKIT_WIRE_VERSION 1 /* of the frames; frames of another version are dropped and counted */

/* ---------------------------------------------------------------- NICs
 *
 * A device name is the name of a link, alone or followed by ":" and what the link needs, such as "shm" or "eth:eth0".
 * docs/devices.md describes all of them; viakit_link() lists the links. VipOpenNic(device) is
 * viakit_open_nic(device, NULL, nic). */

/* The meaning of the text behind the colon of a device name. */
typedef enum {
    VIAKIT_BY_NAME = 0,      /* any word: NICs with the same one reach each other */
    VIAKIT_BY_INTERFACE = 1, /* an interface of this host */
    VIAKIT_BY_ADDRESS = 2    /* an address of this host, or an interface that has one */
} viakit_named_by;

/* The properties of a link, which hold for every NIC on it. Programs query these instead of comparing names. The texts
 * live as long as the library. */
typedef struct {
    const char *name;      /* "shm" */
    const char *devices;   /* how its devices are written: "shm, shm:NAME" */
    const char *transport; /* the carrier of its frames, in a few words: "shared memory" */
    int leaves_process;    /* a peer may be another process */
    int leaves_host;       /* a peer may be on another host */
    int lossless;          /* the link neither loses, duplicates nor reorders frames */
    int maps_memory;       /* a peer can map the memory of viakit_alloc: one side copies, and no frame carries data */
    viakit_named_by named_by;
} viakit_link_info;

/* Return the properties of link number 0, 1, ..., or NULL past the last one. */
VIPL_EXPORT const viakit_link_info *viakit_link(int index);

/* Return the properties of the link that this device name selects, also by an alias of the configuration. NULL: no link
 * does, and viakit_last_error() explains it. No NIC is opened; the device need not exist. */
VIPL_EXPORT const viakit_link_info *viakit_link_of(const char *device);

typedef enum {
    VIAKIT_FORM_AUTO = 0,  /* small messages as plain frames, long ones as UDP super-frames if the interface can */
    VIAKIT_FORM_PLAIN = 1, /* EtherType 0x88B5 only */
    VIAKIT_FORM_UDP = 2    /* every frame in UDP/IPv4; long messages as super-frames (segmentation offload) */
} viakit_form;

/* How a receiver handles frames that arrive before an earlier one that was lost. Each side decides for the frames that
 * it receives; the two need not agree. */
typedef enum {
    VIAKIT_SELECTIVE = 0, /* keep them and report the gaps: only lost frames are retransmitted */
    VIAKIT_GO_BACK_N = 1 /* drop them: every frame from the lost one on is retransmitted. For comparison and teaching */
} viakit_retransmission;

/* The checksum that protects the frames that this NIC sends (eth, udp). Receivers accept either. */
typedef enum {
    VIAKIT_CHECKSUM_AUTO = 0, /* single frames: CRC32C. Super-frames: UDP's checksum, computed by the interface */
    VIAKIT_CHECKSUM_CRC = 1   /* CRC32C over every byte: stronger, but each side reads all data once more */
} viakit_checksum;

/* Zero in any field selects the default. Start from memset 0 or VIAKIT_NIC_OPTIONS_INIT. */
typedef struct {
    size_t size;           /* sizeof(viakit_nic_options) */
    viakit_form form;      /* eth only */
    VIP_UINT32 mtu;        /* eth, udp: bytes of a frame after the Ethernet header; at most the interface's */
    VIP_UINT32 ring_slots; /* minimum size of the receive ring, frames or super-frames */
    VIP_UINT32 window;     /* link sends (frames or super-frames) that a reliable VI may have unacknowledged; 0: 64, and
                          more over a long wire */
    VIP_UINT32 rto_us; /* retransmission time-out until the round trip has been measured, doubles up to half a second */
    VIP_UINT32 max_retries;  /* retransmissions without a reply before the connection is lost */
    VIP_UINT32 ack_delay_us; /* an acknowledgement waits at most so long to be piggybacked on a frame */
    VIP_UINT32 keepalive_ms; /* silence after which a reliable or unreliable peer is probed */
    int spin_us;             /* time for which Wait calls spin before they sleep, -1: never spin */
    VIP_UINT32 first_psn;    /* first packet sequence number of each connection (tests of wrap-around), 0: random */
    int no_thread;           /* 1: no progress thread, only calls on the NIC make progress (deterministic tests) */
    int no_cma;              /* 1: shm never uses process_vm_readv/writev */
    int no_map;              /* 1: shm never maps a peer's memory */
    viakit_retransmission retransmission; /* of the frames that this NIC receives */
    viakit_checksum checksum;             /* of the frames that this NIC sends */
    /* Time after which the NIC's thread takes over when the program has stopped polling: 50 to 10000 us, other values
     * are limited to these. 0: 400, and up to 3200 while the program polls. Polls postpone the
     * thread's check before each interval ends. That takes a system call, and sometimes the thread wakes, so a longer
     * interval is better if polling programs share cores. */
    VIP_UINT32 takeover_us;
} viakit_nic_options;

#define VIAKIT_NIC_OPTIONS_INIT {sizeof(viakit_nic_options)}

VIPL_EXPORT VIP_RETURN viakit_open_nic(const char *device, const viakit_nic_options *options, VIP_NIC_HANDLE *nic);

/* The properties of a NIC beyond VIP_NIC_ATTRIBUTES. */
typedef struct {
    char link[16];      /* viakit_link_info.name */
    char device[64];    /* as opened */
    char interface[16]; /* eth, udp: interface name */
    char form[8];       /* eth: "auto", "plain", "udp" */
    VIP_UINT8 address[6];
    VIP_UINT16 port;        /* identifies this NIC among the NICs of its address */
    VIP_UINT32 mtu;         /* of the interface, or of the link */
    VIP_UINT32 max_payload; /* bytes of a message that one frame carries */
    VIP_UINT32
    super_payload; /* bytes of a message that one super-frame carries now; max_payload if the link has none */
    VIP_UINT32 ring_slots;
    VIP_UINT32 window;
    VIP_UINT64 bytes_registered;  /* now */
    VIP_UINT64 bytes_pinned;      /* now; less than bytes_registered if RLIMIT_MEMLOCK did not allow pinning */
    VIP_UINT64 bytes_to_map;      /* shm: address space that each peer needs to reach this NIC; other links: 0 */
    int lossless;                 /* the link itself neither loses, duplicates nor reorders frames */
    int cma;                      /* 1: process_vm_readv/writev worked with the last peer; 0: refused; -1: untried */
    int thread;                   /* 1: has a progress thread */
    int vis, regions, ptags, cqs; /* live objects of this NIC */
    char trouble[160];            /* the link's last lasting fault, as a sentence; "" if it had none */
} viakit_nic_info;

VIPL_EXPORT VIP_RETURN viakit_query_nic(VIP_NIC_HANDLE nic, viakit_nic_info *info);

/* HostAddressLen of a remote address for one NIC: the six bytes that all NICs of a station share, followed by the
 * VIP_UINT16 port of that NIC (viakit_nic_info) in native byte order. VipConnectRequest and VipConnectPeerRequest
 * accept it. With six bytes the request goes to every NIC of the station. */
#define VIAKIT_NIC_ADDRESS_LEN 8

/* The present state of a VI's connection. For an unreliable VI, or on a lossless link, only the first two fields are
 * meaningful. */
typedef struct {
    int lossless;                         /* the link loses nothing: no acknowledgements, no retransmission */
    viakit_retransmission retransmission; /* how this NIC handles out-of-order frames */
    double srtt_us, rttvar_us;            /* smoothed round trip and its variation; 0: not measured yet */
    double rto_us;                        /* present retransmission time-out */
    double tail_probe_us;                 /* silence after which the last frame is retransmitted */
    VIP_UINT32 window;                    /* link sends (frames or super-frames) that may be unacknowledged now ... */
    VIP_UINT32 sends_in_flight;           /* ... and that are */
    VIP_UINT32 frames_in_flight;
    VIP_UINT32 frames_missing; /* missing from the peer, before the furthest that has arrived */
    VIP_UINT32 reads_open;     /* RDMA reads whose data has not arrived yet */
    VIP_UINT32 retries;        /* consecutive time-outs */
} viakit_vi_info;

VIPL_EXPORT VIP_RETURN viakit_query_vi(VIP_VI_HANDLE vi, viakit_vi_info *info);

/* ---------------------------------------------------------------- secrets
 *
 * A VI with a secret connects only with a VI that has the same one. Both sides prove this to each other by keyed
 * BLAKE2s over fresh nonces and everything that the handshake negotiates. A VI is CONNECTED, and receives or sends the
 * first message, only after the other side's proof has been verified. docs/security.md describes what this prevents and
 * what it does not: single data frames carry no proof.
 *
 * secret: len bytes, 16 to 32, which are copied; NULL and 0 remove it. The VI must be idle (VIP_INVALID_STATE). A
 * secret stays with the VI for all its connections, until it is removed or the VI is destroyed.
 *
 * Effects on the calls that connect:
 *
 *   VipConnectAccept       blocks until the client has proven the secret. VIP_REJECT: the request was made without the
 *                          VI's secret (or the VI has none and the client's has). The handle stays valid, so the
 *                          program can pass another VI or reject. VIP_TIMEOUT: the client did not finish within 5
 *                          seconds, or withdrew. The handle is then invalid.
 *   VipConnectRequest      ignores an ACCEPT without proof and continues to wait, until VIP_TIMEOUT if no other
 *                          arrives.
 *   VipConnectPeerRequest  ignores requests, acceptances and refusals without proof and continues to wait.
 *
 * Some frames cannot be proven, because no VI is involved or none is known yet: NOMATCH, REJECT and PENDING for a
 * VipConnectRequest, and CANCEL. A NIC that has received the request can forge them. Forged frames can make a client's
 * attempt fail or a server's VipConnectAccept time out, so that the program has to try again. They can only delay peer
 * requests, and cannot make a connection. */
#define VIAKIT_SECRET_LEAST 16
#define VIAKIT_SECRET_MOST 32
VIPL_EXPORT VIP_RETURN viakit_set_vi_secret(VIP_VI_HANDLE vi, const void *secret, size_t len);

/* ---------------------------------------------------------------- peer requests that no VI matches
 *
 * A peer request is answered only by a VI that has requested its sender. With a handler, a program can create that VI
 * when the request arrives. handler(context, discriminator, len) is called for each peer request that matches no VI. It
 * gets the discriminator that the request has for this side (len bytes, valid during the call). The sender repeats its
 * request, so the handler may be called again for it. It proves nothing about its sender: every process that can send
 * frames to the NIC can cause the call.
 *
 * The handler runs in any thread, as the NIC's owner: it must neither block nor call a function of VIPL or viakit.
 * NULL removes it; afterwards no call of it is in progress. */
typedef void (*viakit_peer_request_handler)(void *context, const VIP_UINT8 *discriminator, size_t len);
VIPL_EXPORT VIP_RETURN viakit_on_peer_request(VIP_NIC_HANDLE nic, void *context, viakit_peer_request_handler handler);

/* Drive the NIC once, without blocking: receive arrived frames, send pending ones, run due timers. *n_events (may be
 * NULL) is the number of frames handled. */
VIPL_EXPORT VIP_RETURN viakit_poll(VIP_NIC_HANDLE nic, int *n_events);

/* ---------------------------------------------------------------- virtual time
 *
 * On the link sim the ranks of a program are those of a described machine (docs/machines.md). When all n_ranks have
 * called viakit_virtual_begin, their clocks start together, and time is virtual until viakit_virtual_end. A rank whose
 * time is virtual already waits for the others, and all go on at the latest of their clocks. Every begin needs
 * an end. */
VIPL_EXPORT VIP_RETURN viakit_virtual_begin(int n_ranks, int rank, VIP_ULONG timeout_ms);
VIPL_EXPORT void viakit_virtual_end(void);

/* Declare that the program computes for so long on the machine: its clock goes on. No effect while time is real. */
VIPL_EXPORT VIP_RETURN viakit_virtual_compute(double seconds);

/* Returns the functions of virtual time, or NULL while time is real. For viakit's own extension, whose rooms above the
 * provider have a copy of them; programs have no use for it. */
VIPL_EXPORT const void *viakit_virtual_table(void);

/* Returns the functions of the streams of described machines, for viakit's own extension as well. */
VIPL_EXPORT const void *viakit_stream_table(void);

/* Return the library's time in ns, and whether it is virtual. */
VIPL_EXPORT VIP_UINT64 viakit_time_ns(void);
VIPL_EXPORT int viakit_time_is_virtual(void);

/* ---------------------------------------------------------------- memory
 *
 * Memory that peers on the same host can map. On shm a message is then copied once, by memcpy, and an RDMA write needs
 * no action of its target. On other links it is ordinary page-aligned memory. It is not registered: call VipRegisterMem
 * on any part of it. Memory that is still registered cannot be freed (VIP_ERROR_RESOURCE). VipCloseNic frees what is
 * left. */
VIPL_EXPORT VIP_RETURN viakit_alloc(VIP_NIC_HANDLE nic, size_t len, void **address);
VIPL_EXPORT VIP_RETURN viakit_free(VIP_NIC_HANDLE nic, void *address);

/* ---------------------------------------------------------------- counters
 *
 * One list for NICs and VIs. In a VI, the counters that only its NIC maintains stay 0. Free-running, 64 bits. */
#define VIAKIT_COUNTERS(X)                                                                              \
    X(messages_sent, "messages whose last frame was handed to the link (sends and RDMA writes)")        \
    X(messages_received, "messages placed whole (receives and incoming RDMA writes)")                   \
    X(bytes_sent, "payload bytes handed to the link, retransmissions not counted")                      \
    X(bytes_received, "payload bytes placed")                                                           \
    X(rdma_writes_sent, "RDMA writes among messages_sent")                                              \
    X(rdma_writes_by_card, "RDMA writes among rdma_writes_sent that the card made, without the target") \
    X(rdma_reads_by_card, "RDMA reads among rdma_reads_sent that the card made, without the target")    \
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
    X(super_frames_refused, "super-frames that the interface refused: sent as single frames")           \
    X(frames_received, "frames received from the link")                                                 \
    X(frames_retransmitted, "data frames sent again")                                                   \
    X(frames_kept_out_of_order, "frames kept because they came before an earlier one that was lost")    \
    X(tail_probes, "last frames sent again because nothing arrived for two round trips")                \
    X(timeouts, "retransmission time-outs")                                                             \
    X(acks_sent, "frames sent only to acknowledge")                                                     \
    X(acks_received, "frames received that only acknowledge")                                           \
    X(naks_sent, "negative acknowledgements sent: a gap was seen")                                      \
    X(naks_received, "negative acknowledgements received")                                              \
    X(probes_sent, "keep-alive probes sent")                                                            \
    X(dropped_checksum, "frames dropped: CRC32C wrong")                                                 \
    X(dropped_malformed, "frames dropped: too short, lengths that contradict, unknown kind")            \
    X(dropped_version, "frames dropped: another version of the protocol")                               \
    X(dropped_unknown_peer, "frames dropped: no such port, VI or connection")                           \
    X(dropped_duplicate, "frames dropped: seen before")                                                 \
    X(dropped_out_of_order, "frames dropped: an earlier one is missing, and later ones are not kept")   \
    X(dropped_no_descriptor, "messages dropped: no receive descriptor was posted")                      \
    X(dropped_protection, "messages dropped: remote memory not granted")                                \
    X(dropped_ring_full, "frames dropped by the kernel: receive ring full")                             \
    X(refused_users, "connections on shm refused: another user, or its user cannot be verified")        \
    X(dropped_backlog, "replies dropped: the peer reads none, and too many wait for it already")        \
    X(dropped_filter, "frames dropped on sending by a test's filter")                                   \
    X(fault_dropped, "frames dropped on sending by injected loss")                                      \
    X(fault_duplicated, "frames sent twice by injected duplication")                                    \
    X(fault_reordered, "frames overtaken by others by injected reordering")                             \
    X(fault_corrupted, "frames with bits flipped by injected corruption")                               \
    X(fault_delayed, "frames sent later by injected delay or jitter")                                   \
    X(fault_stalled, "frames held by an injected stall and sent at its end")                            \
    X(fault_cut_sent, "frames lost on sending because the NIC was cut off (partition)")                 \
    X(fault_cut_received, "frames dropped on arrival because the NIC was cut off (partition)")          \
    X(send_stalls, "times the link could not take a frame at once")                                     \
    X(window_stalls, "times a send waited for the window")                                              \
    X(wakeups, "times a thread slept in the kernel on behalf of the NIC and was woken")                 \
    X(doorbells, "times another process or thread was woken by a system call")                          \
    X(thread_takeovers, "times the NIC's own thread began to drive because the program did not poll")   \
    X(polls, "times the link was polled")                                                               \
    X(lock_waits, "times a thread had to wait because another was driving the NIC")                     \
    X(pin_failures, "registrations whose memory could not be locked (RLIMIT_MEMLOCK)")                  \
    X(async_errors, "asynchronous errors reported to the handler")

typedef enum {
#define VIAKIT_X(name, text) VIAKIT_COUNTER_##name,
    VIAKIT_COUNTERS(VIAKIT_X)
#undef VIAKIT_X
        VIAKIT_N_COUNTERS
} viakit_counter;

/* Copy all counters: values[VIAKIT_N_COUNTERS]. */
VIPL_EXPORT VIP_RETURN viakit_nic_counters(VIP_NIC_HANDLE nic, VIP_UINT64 *values);
VIPL_EXPORT VIP_RETURN viakit_vi_counters(VIP_VI_HANDLE vi, VIP_UINT64 *values);
VIPL_EXPORT const char *viakit_counter_name(int counter); /* NULL past the end */
VIPL_EXPORT const char *viakit_counter_text(int counter);

/* Objects that exist in this process, over all NICs. All are 0 when everything is closed. */
typedef struct {
    VIP_UINT32 nics, vis, cqs, ptags, regions, connections, allocations;
} viakit_live;
VIPL_EXPORT void viakit_live_objects(viakit_live *live);

/* ---------------------------------------------------------------- snapshots
 *
 * The present state of the NIC and all its objects, as a JSON text (docs/inspect.md): VIs with their peers, sequence
 * numbers, queues and oldest descriptors, completion queues, regions, tags, pending connections, counters. The snapshot
 * is consistent: it is copied under the NIC's ownership, which is held only for the copy. It drives and changes
 * nothing.
 *
 * *len is the length of the text without its final zero, even if it does not fit into size bytes. In that case the call
 * returns VIP_ERROR_RESOURCE and the text is truncated: repeat the call with a larger buffer (the text may have grown).
 */
VIPL_EXPORT VIP_RETURN viakit_snapshot(VIP_NIC_HANDLE nic, char *text, size_t size, size_t *len);

/* ---------------------------------------------------------------- names and texts of codes */

/* Return why the last failed call of this thread failed: a sentence with what was given, what is accepted and what to
 * do next. "" before the first failure. VIP_NOT_DONE is not a failure and leaves the text unchanged. Valid until the
 * thread's next failing call. */
VIPL_EXPORT const char *viakit_last_error(void);
VIPL_EXPORT const char *viakit_return_name(int code);     /* "VIP_NO_MATCH"; NULL for an unknown code */
VIPL_EXPORT const char *viakit_return_text(int code);     /* one sentence */
VIPL_EXPORT const char *viakit_error_code_name(int code); /* "VIP_ERROR_CONN_LOST" */
VIPL_EXPORT const char *viakit_error_code_text(int code); /* "Connection lost" */
VIPL_EXPORT const char *viakit_state_name(int state);     /* "VIP_STATE_IDLE" */

/* ---------------------------------------------------------------- waiting
 *
 * While a call of this thread waits, check(context) is called at least every 50 ms. If it returns non-zero, the wait
 * ends with VIP_TIMEOUT and nothing is lost: completed work stays for the next call. (A connection request is
 * withdrawn, and one that has just arrived is refused.) NULL removes the check. The callback may call VIPL, but not
 * VipCloseNic for the NIC that the call waits on. */
VIPL_EXPORT void viakit_set_interrupt(int (*check)(void *context), void *context);

/* ---------------------------------------------------------------- taps
 *
 * A tap records the activity of a NIC: every frame that it sends or receives, with the time in nanoseconds and the
 * reason if the frame was dropped. On request it also records the events of each descriptor. The output is pcapng, for
 * Wireshark and for `viakit trace`. One interface carries the frames, as Ethernet of type 0x88B5 on any link. Another
 * one (link type USER0) carries the events, each a struct viakit_event.
 *
 * Records go into a ring of the NIC, from which a thread of the library writes the file. A full ring loses records,
 * which are counted, and never delays the NIC. NICs of one process that name the same file share it. Times are
 * CLOCK_MONOTONIC plus an offset to 1970, which the file's section comment contains (clock_offset_ns=N).
 *
 * The environment variable VIAKIT_TAP=FILE[,events][,noframes][,snap=BYTES][,ring=BYTES][,limit=BYTES] opens a tap on
 * every NIC of any program. %p in FILE becomes the process number. If FILE is a folder, it gets one file per process.
 * If another live process writes FILE, this process's number is inserted before the suffix. */
typedef struct {
    size_t size;           /* sizeof(viakit_tap_options) */
    VIP_UINT32 snap_len;   /* bytes of each frame to keep, wire header included, 48 at least; 0: all */
    VIP_UINT32 ring_bytes; /* of the ring; 0: 8 MiB */
    int events;            /* 1: also record the events of descriptors */
    int no_frames;         /* 1: no frames */
    VIP_UINT64
    file_bytes; /* approximate limit of the file; later records are counted as lost. 0: no limit */
} viakit_tap_options;

#define VIAKIT_TAP_OPTIONS_INIT {sizeof(viakit_tap_options)}

/* Open the tap of a NIC, which has at most one (else VIP_INVALID_STATE). file is created, or truncated unless a NIC of
 * this process writes it. NULL: no file; viakit_tap_read returns the data instead. options may be NULL. May block on
 * the file system. */
VIPL_EXPORT VIP_RETURN viakit_tap_open(VIP_NIC_HANDLE nic, const char *file, const viakit_tap_options *options);

/* Write what is still in the ring, and close the tap. VIP_INVALID_STATE: the NIC has no tap. VIP_ERROR_RESOURCE: the
 * file could not be written completely (the tap is closed nevertheless). VipCloseNic also closes the tap. May block on
 * the file system. */
VIPL_EXPORT VIP_RETURN viakit_tap_close(VIP_NIC_HANDLE nic);

/* Write everything recorded before the call to the file. May block on the file system. */
VIPL_EXPORT VIP_RETURN viakit_tap_flush(VIP_NIC_HANDLE nic);

/* Return the next bytes of a tap without a file: whole pcapng blocks, as many as fit len. *n is their number of bytes,
 * 0 if nothing new was recorded. VIP_INVALID_PARAMETER: len is too small for the next block. */
VIPL_EXPORT VIP_RETURN viakit_tap_read(VIP_NIC_HANDLE nic, void *buffer, size_t len, size_t *n);

typedef struct {
    char file[512];         /* as opened; "" without a file */
    VIP_UINT64 frames_sent; /* recorded */
    VIP_UINT64 frames_received;
    VIP_UINT64 events;
    VIP_UINT64 lost; /* frames and events dropped because the ring was full, or the file at its limit */
} viakit_tap_info;

VIPL_EXPORT VIP_RETURN viakit_query_tap(VIP_NIC_HANDLE nic, viakit_tap_info *info);

/* The events of a descriptor, apart from its frames. */
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

/* The contents of a packet on a tap's event interface, in native byte order. Fields that a kind does not use are 0. */
typedef struct {
    VIP_UINT8 version; /* 1 */
    VIP_UINT8 kind;    /* viakit_event_kind */
    VIP_UINT16 vi;     /* its number, as in the frames */
    VIP_UINT8 queue;   /* 0 send, 1 receive */
    VIP_UINT8 how;     /* 0: in frames; 1: by reference, the peer fetches; 2: placed in the peer's memory by this NIC */
    VIP_UINT16 control; /* of the descriptor */
    VIP_UINT32 index;   /* the descriptor's number in its queue, free-running */
    VIP_UINT32 psn;
    VIP_UINT32 n_frames;
    VIP_UINT32 len; /* bytes */
    VIP_UINT32 status;
    VIP_UINT32 key;        /* the key in the frames of this VI's peer */
    VIP_UINT64 descriptor; /* its address */
} viakit_event;

/* ---------------------------------------------------------------- faults
 *
 * A NIC can inject faults into the frames that it sends: for tests, for measurements on a bad wire, for teaching. Each
 * side of a connection affects its own frames, on any link. The same seed gives the same faults. The random faults of a
 * frame depend only on the seed, on its kind, and on its number among the frames of that kind since the faults were
 * set. Times (delay, stall, partition) start when the faults are set.
 *
 * Lossless links (loop, shm): connections made while faults are set run the full protocol, with checksums and
 * retransmission. Older connections rely on the lossless link, so their frames are not affected. */

typedef enum {
    VIAKIT_PASS = 0,
    VIAKIT_DROP = 1,
    VIAKIT_DUPLICATE = 2,
    VIAKIT_HOLD = 3,
    VIAKIT_CORRUPT = 4
} viakit_verdict;

/* Selected frames: those with numbers first..last (from 0) among all frames, or among those of one kind. */
typedef struct {
    viakit_verdict verdict;
    VIP_UINT32 kind; /* as in the frame's header (docs/faults.md lists them); 0: any */
    VIP_UINT64 first, last;
} viakit_fault_rule;

#define VIAKIT_MAX_FAULT_RULES 8
#define VIAKIT_FOR_EVER (-1.0)

/* Zero in a field disables that fault. Start from memset 0 or VIAKIT_FAULTS_INIT. */
typedef struct {
    size_t size; /* sizeof(viakit_faults) */
    VIP_UINT64 seed;
    double loss, duplicate, reorder, corrupt; /* probability per frame, 0..1, each drawn independently */
    VIP_UINT32 reorder_distance;              /* a late frame is overtaken by 1..so many others, 0: 3, at most 64 */
    VIP_UINT32 corrupt_bits;                  /* flipped in a corrupted frame, 0: 1 */
    VIP_UINT32 kinds;                         /* the four apply to these kinds only, bits 1 << kind, 0: all */
    double delay_us, jitter_us;               /* each frame later by delay + 0..jitter, delay alone keeps the order */
    double stall_us, stall_every_us;          /* at the end of every period no frame passes for so long */
    double partition_us, partition_after_us;  /* cut off, both ways, for so long (or VIAKIT_FOR_EVER), from then on */
    VIP_UINT64 partition_frames, partition_after_frames; /* the same, counted in frames that this NIC sends */
    VIP_UINT32 n_rules;
    viakit_fault_rule rules[VIAKIT_MAX_FAULT_RULES];
} viakit_faults;

/* All fields, because compilers warn about missing ones. */
/* clang-format off */
#define VIAKIT_FAULTS_INIT \
    {sizeof(viakit_faults), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {{VIAKIT_PASS, 0, 0, 0}}}
/* clang-format on */

/* Set the faults; frames and times are counted from 0. NULL removes them: delayed frames leave at once. A NIC without
 * faults has no extra cost. VIP_INVALID_PARAMETER: a probability outside 0..1, a time below 0, a distance too large. */
VIPL_EXPORT VIP_RETURN viakit_set_faults(VIP_NIC_HANDLE nic, const viakit_faults *faults);
/* Return the faults that were set. *active (may be NULL) is 0 if none are set; *faults is then zeroed except for its
 * size. faults->size gives the space available, so start with VIAKIT_FAULTS_INIT; 0: the whole struct. */
VIPL_EXPORT VIP_RETURN viakit_get_faults(VIP_NIC_HANDLE nic, viakit_faults *faults, int *active);

/* Parse faults:
 * "loss=0.05,dup=1%,reorder=0.05/4,corrupt=0.01/2,delay=200us,jitter=50us,stall=10ms/100ms,partition=2s@5s,
 * kinds=send+write,drop=accept:0-1,seed=7". docs/faults.md has the grammar. "" means no faults. On
 * VIP_INVALID_PARAMETER viakit_last_error() names the invalid word and what is accepted. faults->size gives the space
 * available, as for viakit_get_faults(); text that needs more is refused, too. VIAKIT_FAULT in the environment is
 * parsed like this and set on every NIC that is opened. */
VIPL_EXPORT VIP_RETURN viakit_parse_faults(const char *text, viakit_faults *faults);
/* Format faults as text, which parses to the same. VIP_ERROR_RESOURCE: more than len bytes. */
VIPL_EXPORT VIP_RETURN viakit_format_faults(const viakit_faults *faults, char *text, size_t len);

/* Return the faults of the frame with this number, of this kind, and with this number within its kind: bits 1 <<
 * viakit_verdict, 0 for none. It is the function that the NIC itself uses: random faults depend on seed, kind and
 * number within the kind. A partition counted in frames appears as DROP; times are not considered. */
VIPL_EXPORT unsigned viakit_fault_of(const viakit_faults *faults, VIP_UINT64 index, int kind, VIP_UINT64 index_of_kind);
VIPL_EXPORT const char *viakit_frame_kind_name(int kind); /* "SEND"; NULL for an unknown kind */

/* A filter of the program, instead of viakit_faults. It is called for every frame before the frame is passed to the
 * link (super-frames are then not used), under the NIC's ownership, so it must not call VIPL. HOLD delays one frame
 * until the next one has been sent. index counts frames from 0; the filter is called once for each. kind is the frame's
 * kind on the wire. NULL removes the filter. */
typedef viakit_verdict (*viakit_frame_filter)(void *context, VIP_UINT64 index, int kind, size_t len);
VIPL_EXPORT VIP_RETURN viakit_set_frame_filter(VIP_NIC_HANDLE nic, viakit_frame_filter filter, void *context);

#ifdef __cplusplus
}
#endif

#endif /* VIAKIT_H */
