/*
 * A link carries frames between NICs. It may lose, double and reorder them, and owes nothing else; the provider above
 * makes reliability out of that (via/reliable.c). One link is one .c file (or a few) and exports one symbol: its
 * table of operations. Whoever writes another wire fills in such a table, adds it to the list behind it, and
 * has the conformance suite tell what is missing (tests/c/test_conformance.c: the same cases for every link).
 *
 *   VIPL calls   -->  provider  -- link_ops: send, poll, route ... -->  loop | shm | eth | udp
 *                         ^                                                |
 *                         +--------- link_deliver, link_peer_lost ---------+
 *
 * In between may stand decorators, which have the same table: fault.c (spoils frames by a seed) and via/tap.c
 * (records them). The provider does not know whether it talks to a link or to one of those.
 *
 * Threads: every operation is called by the NIC's present owner (via/own.h), one at a time, except where its contract
 * says otherwise. So a link needs no lock for its own state; only what several NICs share (loop's queues, shm's
 * memory, udp's table of names) needs more. An operation never blocks; one that cannot proceed says -EAGAIN. Errors
 * are negative errno values. The first that finds one explains it (via_explain); who passes it on says nothing more.
 *
 * Who calls whom: the provider calls the table; the link calls back link_deliver() for each frame that arrived, from
 * within its poll operation, and link_peer_lost() when it knows that a peer is gone. link_deliver() may call send()
 * again (an acknowledgement) before it returns, and may end the peer whose frame it is: a link does not rely on what
 * it had in its hands before the call.
 */
#ifndef VIAKIT_LINK_H
#define VIAKIT_LINK_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "viakit.h"
#include "wire.h"

#define LINK_WATCHED 8 /* descriptors that a sleeper watches for a link, at most */

/* Of ask_all, in place of a number. */
#define LINK_UNKNOWN (-1)
#define LINK_ONLY_US (-2)

struct via_nic;
struct link;
/* Every link's own struct link begins so: the way back from a link to its NIC, for decorators that stand before a
 * link of which they know nothing else (via/tap.c). */
struct link_base {
    struct via_nic *nic;
};

struct link_peer; /* a route to one NIC (or, on eth, to one station); owned by the link, valid until close */

/* One frame to send: header (with the block behind it, if any) and the payload where it lies; nothing of it has been
 * copied. header.len counts all bytes behind the 32 of the header, so header_len - 32 + the payload. The link may
 * write header.crc and flags, and nothing else: after -EAGAIN the provider builds the frame anew. The struct and what
 * it points to belong to the caller again when send() returns. */
struct link_frame {
    struct wire_header header;
    union {
        struct wire_write write;
        struct wire_connect connect;
        uint8_t bytes[40 + 2 * WIRE_MAX_DISCRIMINATOR + 8];
    } block;
    uint32_t header_len; /* 32 plus the bytes used of block */
    uint32_t n_iov;
    size_t payload_len; /* sum of iov */
    const struct iovec *iov;
};

/* What a link can do; filled in by open. */
struct link_limits {
    uint8_t address[6];   /* this station */
    uint16_t port;        /* this NIC among those of the station */
    uint32_t mtu;         /* informative: the wire's own unit */
    uint32_t max_payload; /* largest header.len of one frame */
    uint32_t max_batch;   /* frames of equal length that send takes as one super-frame; 1 if it cannot */
    uint32_t short_below; /* messages of fewer bytes may go by send_short; 0: the link has no such operation */
    uint32_t ring_slots;  /* frames (or super-frames) a receiver can hold before they are lost */
    uint32_t
        max_window; /* link sends in flight that a receiver like this one can hold; 0: as many as the provider likes */
    int lossless;   /* neither loses, doubles, nor reorders: -EAGAIN instead of loss */
    int checksum;   /* frames need a checksum */
};

struct link_ops {
    const char *name;

    /* ---- life: files that stay open between calls are opened by vk_file_own() and closed by vk_file_close()
     * (base/files.h), so that no child of a fork keeps them */
    /* Opens the device (text after "name:", may be ""). On success *link is ready and limits is filled in. On failure
     * returns -errno and has said why by via_explain(). */
    int (*open)(struct via_nic *nic, const char *device, const viakit_nic_options *options, struct link **link,
                struct link_limits *limits);

    /* Gives everything back. Peers of the other side learn of it if the link has means to tell. */
    void (*close)(struct link *link);

    /* ---- peers and stations */
    /* Finds the way to (address, port). Returns -EHOSTUNREACH if there is certainly no such NIC. *peer stays the
     * link's. */
    int (*route)(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **peer);

    /* The same for one answer to a stranger: the peer may be overwritten by the next call, so it is for a frame that
     * is sent at once. NULL where route() keeps nothing that a stranger could make it keep. */
    int (*passing)(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **peer);

    /* Hands a connection request, or (CANCEL) its withdrawal, to every NIC of the station (header.dst_port is set by
     * the link where it must be). Returns how many NICs were asked, 0 if there is certainly none (it may have said
     * more about that by via_explain), LINK_UNKNOWN if the link cannot know how many hear it, LINK_ONLY_US if the
     * station is this NIC alone, which was not asked. */
    int (*ask_all)(struct link *link, const uint8_t address[6], struct link_frame *frame);

    /* The largest payload of a frame that the way to the peer carries in one piece; NULL where that is max_payload
     * for all. */
    uint32_t (*payload_to)(struct link *link, struct link_peer *peer);

    /* The station of that name, the index-th if it has several; `own` is this NIC's. 0, or -ENOENT with a reason.
     * Called without ownership: it may block while it asks other machines. NULL if stations have no names of their
     * own. */
    int (*resolve)(const uint8_t own[6], const char *name, unsigned index, uint8_t address[6]);

    /* How many NICs share this station's address, for NOMATCH. */
    int (*count_neighbours)(struct link *link);

    /* ---- the data's way */
    /* Sends n frames, in order. Frames of one call may travel as one super-frame if all but the last have the same
     * length. Returns how many were taken (they are copied or on their way: the payload may be reused), 0 or -EAGAIN
     * if none, -errno on a lasting fault. */
    int (*send)(struct link *link, struct link_peer *peer, struct link_frame *frames, int n);

    /* The short way for what most messages are: one frame, no block behind the header, one piece of fewer than
     * short_below bytes. header is complete but for the checksum and its flag, as words: narrow stores followed by a
     * wide load of the same bytes would wait for all stores before them. 1 taken, 0 not now. */
    int (*send_short)(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS], const void *payload,
                      size_t len);

    /* Delivers what has arrived, at most budget slots. Returns the number of slots handled. */
    int (*poll)(struct link *link, int budget);

    /* ---- sleeping: arm, sleep on the descriptors, disarm */
    /* File descriptors for sleepers. data_fd becomes readable when frames arrive *after arm*; control_fd (or -1)
     * when the link's own affairs need control(). Called once, after open. */
    void (*descriptors)(struct link *link, int *data_fd, int *control_fd);

    /* About to sleep: returns 1 if something is there already (then do not sleep). disarm: awake again. May be NULL. */
    int (*arm)(struct link *link);
    void (*disarm)(struct link *link);

    /* For links that receive by several descriptors, or by changing ones: those to sleep on in place of data_fd, at
     * most LINK_WATCHED of them, with their events; fd may be -1. Returns their number. Called after arm. woken,
     * before disarm: what poll(2) said of them. They belong together; NULL: data_fd is all there is. The descriptors
     * are good for one sleep: one that is opened meanwhile is told of by link_timer(). */
    int (*watch)(struct link *link, struct pollfd *fds);
    void (*woken)(struct link *link, const struct pollfd *fds, int n);

    /* Accepts new peers, notices dead ones. NULL if the link has no such affairs. */
    void (*control)(struct link *link);

    /* When poll is to be called next although nothing may have arrived, as vk_now() counts; VK_NEVER. NULL: never.
     * For decorators that keep frames; link_timer() says so when it becomes sooner. */
    uint64_t (*due)(struct link *link);

    /* The station a peer belongs to, for captures. */
    void (*peer_address)(const struct link_peer *peer, uint8_t address[6]);

    /* Adds what only the link knows. May be NULL. */
    void (*info)(struct link *link, viakit_nic_info *info);

    /* ---- for links whose peers share a host; NULL elsewhere ---- */

    /* Memory that peers can map. */
    int (*alloc)(struct link *link, size_t len, void **address);
    int (*free)(struct link *link, void *address);

    /* The table of registered regions (via/mem.c) lies here, so that peers can look into it; NULL: ordinary memory. */
    void *(*region_table)(struct link *link, size_t len);

    /* Can (address, len) of this process be reached by the peer, and how? 0 no, 1 through a mapping, 2 by
     * process_vm_*. */
    int (*reach)(struct link *link, struct link_peer *peer, const void *address, size_t len);

    /* Copies from the peer's memory at address into local pieces, in one pass. -errno on failure. */
    int (*fetch)(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *to, int n_to,
                 size_t len);

    /* Writes pieces of local memory into the region (handle, address) of the peer, if its table grants it to a VI
     * with tag ptag; the last word is stored last. 0 done; -EACCES not granted; -EAGAIN no direct way (send frames
     * instead). */
    int (*place)(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                 const struct iovec *from, int n_from, size_t len);

    /* Reads from the region (handle, address) of the peer into pieces of local memory, if its table grants that to a
     * VI with tag ptag. Returns what place returns. */
    int (*take)(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                const struct iovec *to, int n_to, size_t len);
};

extern const struct link_ops link_loop, link_shm, link_eth, link_udp;

/* ---- what the provider offers to links (via/rx.c, via/conn.c, via/error.c) ---- */

/* A frame arrived: len bytes at frame (header first, valid during the call; the sender may be able to change them
 * meanwhile, so each field is read once). from is the station it came from, peer the way back or NULL if the link
 * finds it by route(). */
void link_deliver(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const void *frame, size_t len);

/* The same where header and payload lie apart. A payload that lies where it has to go is not copied. */
void link_deliver_parts(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                        const struct wire_header *header, const void *payload, size_t len);

/* Frames that follow `last`, which was just delivered, are at hand: may their payloads, len bytes in all, be put
 * where they go before they are delivered (by link_deliver_parts)? The place, if the message goes on there in one
 * piece; NULL if it does not, or last was not taken. */
void *link_place_ahead(struct via_nic *nic, const struct wire_header *last, size_t len);

/* The peer is gone for good: connections over it are lost. */
void link_peer_lost(struct via_nic *nic, struct link_peer *peer);

/* Is the connection request of that number (header block, connect.request) still open? A link that passes it on
 * later asks first: one that comes after its end may be matched with somebody who then waits for nothing. */
int link_still_asking(struct via_nic *nic, uint32_t request);

/* Is this a peer request that somebody at this NIC itself has made the opposite of? For links on which a NIC has no way
 * to itself before it needs one. Those of clients come with its port, when nobody else takes them. */
int link_wanted_here(struct via_nic *nic, const struct link_frame *frame);

/* Address space was missing, here or there, for the memory that the NIC of that port and this one must see of each
 * other (ulimit -v). For half a second that NIC counts as out of reach, so that whoever asks it is told and does not
 * wait. */
void link_no_room(struct via_nic *nic, uint16_t port);
int link_lacks_room(const struct via_nic *nic, uint16_t port); /* 0: any port */

/* There is certainly no NIC at that address: requests for it need not wait. */
void link_nobody_there(struct via_nic *nic, const uint8_t address[6]);

/* Poll is wanted at `at` (ns), if not sooner. */
void link_timer(struct via_nic *nic, uint64_t at);

/* Does the frame belong to a connection that relies on the link's losing nothing? Then nobody may lose it. */
int link_must_arrive(struct via_nic *nic, const struct wire_header *h);

/* From now on (until vouched is 0) what is delivered came with a checksum of its own that was found right, so frames
 * need CRC32C only of their headers (wire.h). */
void link_vouch(struct via_nic *nic, int vouched);

/* While deaf, link_deliver drops and counts what is delivered, as if it had never arrived (a partition). */
void link_deafen(struct via_nic *nic, int deaf);

/* What a decorator says to captures (via/tap.c); nothing happens where there is no tap. Texts must live as long as
 * the library. A frame was lost on purpose: it is shown all the same. A remark stands at each frame handed to the
 * link from now on, until the next remark; NULL: none. */
void link_remark(struct via_nic *nic, const char *remark);
void link_note_lost(struct via_nic *nic, struct link_peer *peer, const struct link_frame *frame, const char *why);

/* The NIC's counters, to add to: an array of VIAKIT_N_COUNTERS. */
uint64_t *link_counters(struct via_nic *nic);
#define LINK_COUNT(nic, name, n) (link_counters(nic)[VIAKIT_COUNTER_##name] += (uint64_t)(n))

/* Says why a call failed, for viakit_last_error(); printf-like. */
void via_explain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* 0 if the kernel has membarrier for what is asked (see via/own.h), else -1. */
int via_membarrier_register(void);
void via_membarrier_global(void);

#endif
