/*
 * A link carries frames between NICs. It may lose, duplicate and reorder frames. The provider above adds reliability
 * (via/data/reliable.c). A link is one .c file (or a few) and exports one symbol: its table of operations. To add a
 * link, fill in such a table and add it to the list of links. The conformance suite runs the same cases on every link
 * and shows what is missing (tests/c/test_conformance.c).
 *
 *   VIPL calls   -->  provider  -- link_ops: send, poll, route ... -->  loop | shm | eth | udp | verbs | sim
 *                         ^                                                |
 *                         +--- link_services: deliver, peer_lost ... ------+
 *
 * Decorators may stand in between. They have the same table: link/fault (injects faults from a seed) and watch/tap.c
 * (records frames). The provider does not distinguish a link from a decorator.
 *
 * Threads: the NIC's present owner (via/own.h) calls every operation, one at a time, except where the
 * operation's contract differs. A link therefore needs no lock for its own state. Only state shared by several NICs
 * needs more: loop's queues, shm's memory, udp's table of names. An operation never blocks: if it cannot proceed, it
 * returns -EAGAIN. Errors are negative errno values. The function that first detects an error explains it (vk_explain).
 * Callers pass it on.
 *
 * Direction of calls: the provider calls the link's table. The link calls the services of its client, which the
 * provider passes in when it opens the link. The link calls deliver() for each frame that arrived, from within the poll
 * operation, and peer_lost() when a peer is gone. Before it returns, deliver() may call send() again (an
 * acknowledgement), and may remove the peer that sent the frame. A link must not rely on state that it read before the
 * call.
 */
#ifndef VIAKIT_LINK_H
#define VIAKIT_LINK_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/explain.h"
#include "link/frame_format.h"
#include "viakit.h"

/* The list of links. To add one, add its name here and export its table as link_NAME (CONTRIBUTING.md, "A link"). */
#define LINKS(X) X(loop) X(shm) X(eth) X(udp) X(verbs) X(sim)

#define LINK_WATCHED 8 /* the most descriptors that a sleeping thread polls for a link */

/* Results of request_all in place of a number of NICs. */
#define LINK_UNKNOWN (-1)
#define LINK_ONLY_US (-2)

struct link_client;
struct link;
/* First member of every link's own struct link. It leads from a link to its client, and so to the state of the
 * decorators, which replace operations of the table and keep the link (link/fault/fault.c, watch/tap.c). */
struct link_base {
    struct link_client *client;
};

/* A route to one NIC (or, on eth, to one station); owned by the link, valid until close. First member of every link's
 * own struct link_peer is the address of its station. */
struct link_peer;

static inline const uint8_t *link_peer_address(const struct link_peer *peer)
{
    return (const uint8_t *)(const void *)peer;
}

/* One frame to send: the header, the block behind it if the frame has one, and references to the payload, which has not
 * been copied. header.len counts all bytes behind the 32 of the header: header_len - 32 + the payload. The link may
 * write header.crc and flags, and nothing else, because the provider rebuilds the frame after -EAGAIN. When send()
 * returns, the struct and its pieces belong to the caller again. */
struct link_frame {
    struct wire_header header;
    union {
        struct wire_write write;
        struct wire_connect connect;
        uint8_t bytes[40 + 2 * WIRE_MAX_DISCRIMINATOR + WIRE_REQUEST_PROOF];
    } block;
    uint32_t header_len; /* 32 plus the used bytes of block */
    uint32_t n_iov;
    uint32_t in_flight; /* link sends of the connection that are not acknowledged; 0 if it is unreliable */
    size_t payload_len; /* sum of iov, bytes */
    const struct iovec *iov;
};

/* Memory that is registered with the link's card; owned by the link. */
struct link_memory;

/* Rights of a peer's VI on memory. */
#define LINK_MAY_WRITE 1u
#define LINK_MAY_READ 2u

/* The result of the service grant. */
struct link_grant {
    struct link_memory *memory;
    uint64_t address, len; /* of the region */
};

/* An RDMA write or read for the link's card. */
#define LINK_CARD_PIECES 8
struct link_piece {
    void *address;
    size_t len;
    struct link_memory *memory;
};
struct link_rdma {
    uint32_t right; /* that the target must grant: LINK_MAY_WRITE or LINK_MAY_READ */
    uint32_t key;   /* of the connection, in frames to the target ... */
    uint16_t vi;    /* ... and the target's VI */
    uint32_t handle;
    uint64_t address, len;           /* of the target's memory */
    const struct link_piece *pieces; /* local memory, len bytes in all, none of them empty */
    int n_pieces;                    /* at most LINK_CARD_PIECES */
    void *owner;                     /* passed to the service rdma_done */
    uint32_t index;
};

/* Operations of a link whose card moves data between registered memory of two processes. Neither process takes part. */
struct link_card {
    /* Registers memory with these rights for peers. The card may refuse: then start() returns -EOPNOTSUPP for the
     * memory. Returns NULL if memory is exhausted. */
    struct link_memory *(*add_memory)(struct link *link, void *address, size_t len, uint32_t rights);

    /* Ends a registration. Waits until no operation of this NIC uses the memory, and delivers frames and completions
     * meanwhile. Afterwards no peer accesses it. */
    void (*drop_memory)(struct link *link, struct link_memory *memory);

    /* Starts an operation. Operations of one peer take effect in the order of their start, and a write stores its last
     * word last. Returns 0 if it has started: rdma_done() follows, from within poll() or cancel(). Returns -EAGAIN if
     * it cannot start yet, and the caller has to try again after the next poll. Returns -EOPNOTSUPP if the card cannot
     * do it, or the target does not grant it: the caller then sends frames. */
    int (*start)(struct link *link, struct link_peer *peer, const struct link_rdma *rdma);

    /* Ends all operations of the peer at once, with errors. The card accesses no memory for them any more. */
    void (*cancel)(struct link *link, struct link_peer *peer);
};

/* Properties of a link, filled in by open. */
struct link_limits {
    uint8_t address[6];   /* address of this station */
    uint16_t port;        /* number of this NIC at its station */
    uint32_t mtu;         /* the wire's own unit in bytes; informative */
    uint32_t max_payload; /* largest header.len of one frame */
    uint32_t max_batch; /* the most frames of equal length that send accepts as one super-frame (1: no super-frames) */
    uint32_t short_below; /* send_short accepts messages of fewer bytes (0: the link has no such operation) */
    uint32_t ring_slots;  /* frames (or super-frames) that a receiver can hold before it loses some */
    uint32_t frame_slots; /* the same if this NIC sends no super-frames (0: ring_slots) */
    uint32_t max_window;  /* the most link sends in flight that a receiver like this one holds (0: no limit) */
    int checksum;         /* frames need a checksum */
    int no_thread;        /* the NIC has no thread, because one would disturb the order of virtual time */

    /* For sleeping threads: data_fd becomes readable when frames arrive after arm() (-1: see watch()), control_fd when
     * the link needs a call of control() (-1: never). */
    int data_fd, control_fd;
};

struct link_ops {
    viakit_link_info about; /* name and properties, which hold for every NIC on the link */

    /* ---- life cycle. Files that stay open between calls are opened with vk_file_own() and closed with vk_file_close()
     * (base/files.h), so that no child of a fork keeps them. */
    /* Opens the device (the text after "name:", may be ""). On success sets *link and fills in limits. On failure
     * returns -errno, explained with vk_explain(). */
    int (*open)(struct link_client *client, const char *device, const viakit_nic_options *options, struct link **link,
                struct link_limits *limits);

    /* Releases everything. Notifies the peers if the link has means to do so. */
    void (*close)(struct link *link);

    /* ---- peers and stations */
    /* Finds the route to (address, port). Returns -EHOSTUNREACH if there is certainly no such NIC. *peer remains the
     * link's. */
    int (*route)(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **peer);

    /* Like route(), for one reply to an unknown peer. The next call may overwrite *peer, so it serves only for a frame
     * that is sent at once. NULL if route() stores nothing on behalf of unknown peers. */
    int (*passing)(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **peer);

    /* Sends a connection request, or its withdrawal (CANCEL), to every NIC of the station. The link sets
     * header.dst_port where it has to. Returns the number of NICs that the request was sent to, or
     *
     * - 0 if the station certainly has no NIC (a reason may have been given with vk_explain),
     * - LINK_UNKNOWN if the link cannot determine how many NICs receive the request,
     * - LINK_ONLY_US if this NIC is the only one of the station; it was not sent the request. */
    int (*request_all)(struct link *link, const uint8_t address[6], struct link_frame *frame);

    /* Returns the largest frame payload that the route to the peer carries in one piece. NULL if it is max_payload for
     * every peer. */
    uint32_t (*payload_to)(struct link *link, struct link_peer *peer);

    /* Resolves a station's name: the index-th address if it has several; `own` is this NIC's address. Returns 0, or
     * -ENOENT with a reason. Called without ownership, because it may block while it queries other machines. NULL if
     * the link's stations have no names of their own. */
    int (*resolve)(const uint8_t own[6], const char *name, unsigned index, uint8_t address[6]);

    /* Returns how many NICs share this station's address, for NOMATCH. */
    int (*count_neighbours)(struct link *link);

    /* ---- the data path */
    /* Sends n frames in order. Frames of one call may travel as one super-frame if all but the last have the same
     * length. Returns the number of accepted frames. An accepted frame is copied or on its way, so its payload may be
     * reused. Returns 0 or -EAGAIN if no frame was accepted, -errno on a lasting fault. The provider then breaks the
     * connections to that peer. */
    int (*send)(struct link *link, struct link_peer *peer, struct link_frame *frames, int n);

    /* The fast path for short messages: one frame without a block, its payload one piece of fewer than short_below
     * bytes. header is complete except for the checksum and its flag. It is passed as words, because a wide load
     * waits for preceding narrow stores to the same bytes. Returns 1 if the frame was accepted, 0 if the caller has
     * to retry. */
    int (*send_short)(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS], const void *payload,
                      size_t len);

    /* Delivers the frames that have arrived, at most budget slots. Returns the number of slots handled. */
    int (*poll)(struct link *link, int budget);

    /* ---- sleeping: arm, sleep on the descriptors, disarm */
    /* arm prepares for a sleep and returns 1 if frames are there already: the caller must not sleep then. disarm ends
     * the sleep. Both may be NULL. */
    int (*arm)(struct link *link);
    void (*disarm)(struct link *link);

    /* For links whose set of receive descriptors is larger or changes. watch is called after arm. It fills in the
     * descriptors to sleep on in place of data_fd, at most LINK_WATCHED, with their events, and returns their number.
     * An fd may be -1. woken is called before disarm with the results of poll(2). Both are NULL if data_fd suffices.
     * The descriptors are valid for one sleep. If the link opens another one meanwhile, it calls link_timer() to wake
     * the sleeping thread. */
    int (*watch)(struct link *link, struct pollfd *fds);
    void (*woken)(struct link *link, const struct pollfd *fds, int n);

    /* Accepts new peers and detects dead ones. NULL if the link has neither. */
    void (*control)(struct link *link);

    /* Returns the time (vk_now(), ns) of the next necessary poll even if no frame arrives, or VK_NEVER. NULL: never.
     * For decorators that hold frames back. If the time moves forward, the link calls link_timer(). */
    uint64_t (*due)(struct link *link);

    /* Adds information that only the link has. May be NULL. */
    void (*info)(struct link *link, viakit_nic_info *info);

    /* ---- for links whose peers share a host; NULL elsewhere ---- */

    /* Allocates and frees memory that peers can map. */
    int (*alloc)(struct link *link, size_t len, void **address);
    int (*free)(struct link *link, void *address);

    /* Allocates the table of registered regions (via/objects/mem.c) where peers can read it. NULL: the table lies in
     * ordinary memory. */
    void *(*region_table)(struct link *link, size_t len);

    /* Returns how the peer can access (address, len) of this process: 0 not at all, 1 through a mapping, 2 with
     * process_vm_*. */
    int (*reach)(struct link *link, struct link_peer *peer, const void *address, size_t len);

    /* Copies from the peer's memory at address into local pieces, in one pass. Returns -errno on failure. */
    int (*fetch)(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *to, int n_to,
                 size_t len);

    /* Writes pieces of local memory into the peer's region (handle, address), if the peer's table grants a VI with tag
     * ptag to write there. The last word is stored last. Returns 0 if done, -EACCES if not granted, -EAGAIN if there is
     * no direct way: the caller then sends frames. */
    int (*place)(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                 const struct iovec *from, int n_from, size_t len);

    /* Reads from the peer's region (handle, address) into pieces of local memory, if the peer's table grants that to a
     * VI with tag ptag. Returns the same values as place. */
    int (*take)(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                const struct iovec *to, int n_to, size_t len);

    /* ---- for links with RDMA by a card; NULL elsewhere ---- */
    const struct link_card *card;
};

#define LINK_X(name) extern const struct link_ops link_##name;
LINKS(LINK_X)
#undef LINK_X

/* ---- services: the functions that a link needs from above ---- */

struct link_services {
    /* Accepts a frame that has arrived: len bytes at frame, header first, valid during the call. The sender may be able
     * to change them meanwhile, so each field is read once. `from` is the sending station. peer is the route back to
     * it, or NULL if the link has to find it with route(). */
    void (*deliver)(struct link_client *client, const uint8_t from[6], struct link_peer *peer, const void *frame,
                    size_t len);

    /* Like deliver, with header and payload in separate places. A payload that already lies at its destination is not
     * copied. */
    void (*deliver_parts)(struct link_client *client, const uint8_t from[6], struct link_peer *peer,
                          const struct wire_header *header, const void *payload, size_t len);

    /* Frames that follow `last`, which was just delivered, are at hand. Returns the address where their payloads, len
     * bytes in all, may be placed before they are delivered by deliver_parts(), if the message continues there in one
     * piece. Returns NULL if it does not, or if `last` was not accepted. */
    void *(*place_ahead)(struct link_client *client, const struct wire_header *last, size_t len);

    /* The peer is gone for good: connections over it are lost. */
    void (*peer_lost)(struct link_client *client, struct link_peer *peer);

    /* Returns whether the connection request with that number (header block, connect.request) is still open. A link
     * that forwards a request late checks this first, because a request that arrives after its end may use up a waiting
     * VI. */
    int (*request_is_open)(struct link_client *client, uint32_t request);

    /* Returns whether the frame is a peer request that matches one made at this NIC itself. For links on which a NIC
     * sets up the route to itself only on demand. A client's request carries the port if no other NIC accepts it. */
    int (*matches_own_request)(struct link_client *client, const struct link_frame *frame);

    /* Reports that address space (ulimit -v) did not suffice, here or in the other process. The NIC of that port and
     * this one must map memory of each other. That NIC counts as unreachable for half a second, so that
     * requests to it fail at once. lacks_address_space returns whether that is the case; port 0 means any port. */
    void (*report_no_address_space)(struct link_client *client, uint16_t port);
    int (*lacks_address_space)(struct link_client *client, uint16_t port);

    /* Reports that the host of that address is up and has no NIC. Requests to it end with VIP_NO_MATCH. A link calls
     * this if it detects the fact only after request_all() has returned (udp, by ICMP's "port unreachable"). */
    void (*report_no_nic)(struct link_client *client, const uint8_t address[6]);

    /* Returns the time (ns) at which the NIC has something to do even if no frame arrives, or VK_NEVER. */
    uint64_t (*due)(struct link_client *client);

    /* Requests a poll at time `at` (ns), unless an earlier one is due. */
    void (*timer)(struct link_client *client, uint64_t at);

    /* Returns whether the frame belongs to a connection that relies on a lossless link. Such a frame must not be
     * dropped. */
    int (*must_arrive)(struct link_client *client, const struct wire_header *h);

    /* Reports that from now on delivered frames came with a checksum of their own that was verified, so that they need
     * CRC32C only of their headers (frame_format.h). A call with `verified` 0 ends this. */
    void (*set_checksum_verified)(struct link_client *client, int verified);

    /* While `discard` is set, deliver drops and counts every frame. This simulates a partition. */
    void (*discard_arrivals)(struct link_client *client, int discard);

    /* Reports the link's last lasting fault, as a sentence for viakit_query_nic, snapshots and the default error
     * handler. The text is copied. */
    void (*report_trouble)(struct link_client *client, const char *text);

    /* Returns the rights that the connection of VI number `vi` grants the peer on the memory of `handle`, and sets
     * *grant if there are any. The memory is registered with the card if necessary. Returns -1 if there is no such
     * connection: it gets no answer. */
    int (*grant)(struct link_client *client, const struct link_peer *peer, uint16_t vi, uint32_t key, uint32_t handle,
                 struct link_grant *grant);

    /* Reports the end of an operation of the link's card. error: 0, or -errno if it may have taken effect in part. The
     * caller then repeats it by frames. */
    void (*rdma_done)(struct link_client *client, void *owner, uint32_t index, int error);

    /* Notes of decorators for captures (watch/tap.c); without a tap they have no effect. Texts must live as long as the
     * library. remark attaches a text to each frame that is handed to the link until the next remark; NULL removes it.
     * note_lost records a frame that was dropped on purpose. */
    void (*remark)(struct link_client *client, const char *remark);
    void (*note_lost)(struct link_client *client, struct link_peer *peer, const struct link_frame *frame,
                      const char *why);
};

/* The link's view of a NIC. The provider embeds it in its own struct, sets both members before it opens the link, and
 * finds its struct by the member's offset. No entry of the table is NULL. */
struct link_client {
    const struct link_services *services;
    uint64_t *counters;  /* [VIAKIT_N_COUNTERS], incremented by the link */
    struct fault *fault; /* the decorator that injects faults; NULL: none (link/fault/fault.h) */
};

#define LINK_COUNT(client, name, n) ((client)->counters[VIAKIT_COUNTER_##name] += (uint64_t)(n))

/* Calls of the services, as declared in the table. `client` is evaluated twice. */
#define LINK_CALL(client, service, ...) ((client)->services->service((client), __VA_ARGS__))
#define link_deliver(client, ...) LINK_CALL(client, deliver, __VA_ARGS__)
#define link_deliver_parts(client, ...) LINK_CALL(client, deliver_parts, __VA_ARGS__)
#define link_place_ahead(client, ...) LINK_CALL(client, place_ahead, __VA_ARGS__)
#define link_peer_lost(client, ...) LINK_CALL(client, peer_lost, __VA_ARGS__)
#define link_request_is_open(client, ...) LINK_CALL(client, request_is_open, __VA_ARGS__)
#define link_matches_own_request(client, ...) LINK_CALL(client, matches_own_request, __VA_ARGS__)
#define link_report_no_address_space(client, ...) LINK_CALL(client, report_no_address_space, __VA_ARGS__)
#define link_lacks_address_space(client, ...) LINK_CALL(client, lacks_address_space, __VA_ARGS__)
#define link_report_no_nic(client, ...) LINK_CALL(client, report_no_nic, __VA_ARGS__)
#define link_timer(client, ...) LINK_CALL(client, timer, __VA_ARGS__)
#define link_must_arrive(client, ...) LINK_CALL(client, must_arrive, __VA_ARGS__)
#define link_set_checksum_verified(client, ...) LINK_CALL(client, set_checksum_verified, __VA_ARGS__)
#define link_discard_arrivals(client, ...) LINK_CALL(client, discard_arrivals, __VA_ARGS__)
#define link_grant(client, ...) LINK_CALL(client, grant, __VA_ARGS__)
#define link_rdma_done(client, ...) LINK_CALL(client, rdma_done, __VA_ARGS__)
#define link_remark(client, ...) LINK_CALL(client, remark, __VA_ARGS__)
#define link_note_lost(client, ...) LINK_CALL(client, note_lost, __VA_ARGS__)

/* Formats the text like printf and reports it; texts longer than LINK_TROUBLE bytes are cut (trouble.c). */
#define LINK_TROUBLE 160
void link_trouble(struct link_client *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
