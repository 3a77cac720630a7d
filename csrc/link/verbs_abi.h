/*
 * The part of libibverbs that viakit uses. The library is loaded at run time (verbs_library.c), and its header is not
 * needed to build viakit. So the structs that both sides read are declared here. Their layout is that of the symbol
 * version IBVERBS_1.1, the same on all 64-bit Linux machines. Sizes and offsets were compared with
 * <infiniband/verbs.h> of rdma-core 44.0 (Debian's libibverbs-dev). Later versions keep them, because programs that
 * were built before must run with the newer library.
 *
 * The library allocates contexts, queues and regions. Those structs are longer than declared here: only their first
 * members are read. Structs that the caller allocates have their full length.
 *
 * Names are viakit's, each member in the place that verbs.h gives it: id is wr_id, pieces is sg_list, and so on. The
 * manual pages ibv_post_send(3), ibv_poll_cq(3) and ibv_modify_qp(3) are the specification. Numbers in work requests
 * and completions are in host order, except for immediate data.
 *
 * Thread rule: libibverbs locks its own objects. viakit does not rely on that: only the NIC's owner uses a NIC's.
 */
#ifndef VIAKIT_VERBS_ABI_H
#define VIAKIT_VERBS_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Objects that viakit passes through and never reads. A protection domain (pd) ties regions and address handles to the
 * queue pairs that may use them. An address handle (ah) holds the resolved path to a host. */
struct ib_device;
struct ib_pd;
struct ib_ah;
struct ib_cq;
struct ib_qp;

/* A global identifier: an IPv6 address, or an IPv4 one as ::ffff:a.b.c.d. */
union ib_gid {
    uint8_t raw[16];
    uint64_t align[2];
};

/* A piece of registered memory: a virtual address of this process, bytes, and the region's lkey. The card checks the
 * piece against the region. With IB_INLINE the library reads the bytes itself and ignores the lkey. */
struct ib_sge {
    uint64_t address;
    uint32_t len, lkey;
};

/* A request to send. The library reads the list and the pieces during post_send only, so both may be on the stack. The
 * memory that the pieces describe belongs to the card until the completion; with IB_INLINE until the call returns. */
struct ib_send_wr {
    uint64_t id; /* the caller's, repeated in the completion */
    struct ib_send_wr *next;
    struct ib_sge *pieces;
    int n_pieces, opcode;
    uint32_t flags; /* IB_SIGNALED, IB_INLINE */
    uint32_t immediate;
    union {
        struct ib_ah *ah; /* datagrams: the destination's host, ... */
        uint64_t remote;  /* RDMA: the address there, ... */
    };
    union {
        uint32_t qpn;  /* ... its queue pair, ... */
        uint32_t rkey; /* ... and the key of that memory */
    };
    uint32_t qkey;                   /* ... and the key of the queue pair */
    uint64_t of_other_operations[9]; /* atomics, memory windows, segmentation: read for their opcodes only */
};

/* A receive slot. The card fills the pieces in order, and its completion returns the slot to the caller. */
struct ib_recv_wr {
    uint64_t id;
    struct ib_recv_wr *next;
    struct ib_sge *pieces;
    int n_pieces;
};

/* A completion. len includes the global route header of a received datagram. If status is not 0, only id, status,
 * vendor_error and qpn are defined (ibv_poll_cq(3)): the opcode cannot show whether a send or a receive failed. */
struct ib_wc {
    uint64_t id;
    int status, opcode;
    uint32_t vendor_error, len, immediate, qpn, source_qpn, flags;
    uint16_t pkey_index, source_lid;
    uint8_t level, path_bits;
};

/* The operations of the short path are not symbols of the library. They are called through this table, whose other
 * entries viakit does not use. None of them blocks.
 *
 * - poll_cq removes at most n completions and returns their number, or a negative value.
 * - req_notify_cq requests one notification, for the next completion that is added after the call.
 * - post_send and post_recv return 0, or an errno value. Then *bad is the first request that was not accepted. Those
 *   before it were accepted. */
struct ib_context {
    struct ib_device *device;
    struct {
        void *unused_before[11];
        int (*poll_cq)(struct ib_cq *cq, int n, struct ib_wc *wc);
        int (*req_notify_cq)(struct ib_cq *cq, int solicited_only);
        void *unused_between[12];
        int (*post_send)(struct ib_qp *qp, struct ib_send_wr *first, struct ib_send_wr **bad);
        int (*post_recv)(struct ib_qp *qp, struct ib_recv_wr *first, struct ib_recv_wr **bad);
        void *unused_after[5];
    } ops;
    int command_fd, async_fd;
};

/* Notifications of completion queues, one event each. fd becomes readable with the first. */
struct ib_channel {
    struct ib_context *context;
    int fd;
};

/* A registered region, with its pages pinned. lkey names it in pieces of this process, rkey in RDMA of peers. */
struct ib_mr {
    struct ib_context *context;
    struct ib_pd *pd;
    void *address;
    size_t len;
    uint32_t handle, lkey, rkey;
};

/* A queue pair. `number` has 24 bits and is unique on its card among those in use. */
struct ib_qp {
    struct ib_context *context;
    void *program_context;
    struct ib_pd *pd;
    struct ib_cq *send_cq, *recv_cq;
    void *srq;
    uint32_t handle, number;
};

/* Capacities: requested ones, which create_qp replaces by the actual ones. These are never smaller. */
struct ib_qp_cap {
    uint32_t send_wrs, recv_wrs;       /* work requests that may be posted and not complete */
    uint32_t send_pieces, recv_pieces; /* of one work request */
    uint32_t inline_data;              /* bytes of one work request */
};

struct ib_qp_init {
    void *program_context;
    struct ib_cq *send_cq, *recv_cq;
    void *srq;
    struct ib_qp_cap cap;
    int type, signal_all; /* signal_all 0: only requests with IB_SIGNALED report their completion */
};

/* A path to a host. On Ethernet it is always global, from an entry of the own GID table to a GID, and has no LID. */
struct ib_ah_attr {
    union ib_gid to;
    uint32_t flow_label;
    uint8_t from_index, hop_limit, traffic_class, reserved;
    uint16_t lid;
    uint8_t level, path_bits, rate, is_global, port, reserved2;
};

/* Attributes of a queue pair, of which modify_qp reads those in its mask. Units:
 *
 *   path_mtu    1 to 5 for 256, 512, 1024, 2048, 4096 bytes          psn         24 bits
 *   timeout     4.096 us * 2^timeout until a packet is repeated      rnr_timer   a code from a table, 1 is 0.01 ms
 *   atomics     RDMA reads that are under way: [0] its own, [1] those of the peer */
struct ib_qp_attr {
    int state, current_state, path_mtu, migration;
    uint32_t qkey, recv_psn, send_psn, destination;
    uint32_t access;
    struct ib_qp_cap cap;
    struct ib_ah_attr ah, alternative;
    uint16_t pkey_index, alternative_pkey_index;
    uint8_t draining[2], atomics[2], rnr_timer, port, timeout, retries, rnr_retries, alternative_port,
        alternative_timeout, reserved;
    uint32_t rate_limit;
};

/* State of a port. The symbol ibv_query_port of a newer library fills in the members up to `flags` only. The caller
 * clears the struct before the call. */
struct ib_port {
    int state, max_mtu, active_mtu, n_gids;          /* the MTUs: 1 to 5, as path_mtu above */
    uint32_t capabilities, max_message, counters[2]; /* max_message: bytes of one work request */
    uint16_t n_pkeys, lid, manager_lid;
    uint8_t of_infiniband[8]; /* of the subnet manager, and the lanes' width and speed */
    uint8_t link_layer, flags;
    uint16_t capabilities2;
    uint32_t reserved[3]; /* room for a later version's members */
};

#if UINTPTR_MAX == UINT64_MAX
_Static_assert(sizeof(struct ib_send_wr) == 128, "rdma-core's layout");
_Static_assert(sizeof(struct ib_recv_wr) == 32, "rdma-core's layout");
_Static_assert(sizeof(struct ib_wc) == 48, "rdma-core's layout");
_Static_assert(sizeof(struct ib_qp_init) == 64, "rdma-core's layout");
_Static_assert(sizeof(struct ib_ah_attr) == 32, "rdma-core's layout");
_Static_assert(sizeof(struct ib_qp_attr) == 144, "rdma-core's layout");
_Static_assert(offsetof(struct ib_context, command_fd) == 264, "rdma-core's layout");
#endif

/* Values of rdma-core's enums. */
enum {
    IB_QP_RC = 2,
    IB_QP_UD = 4,
    IB_WRITE = 0,
    IB_WRITE_IMMEDIATE = 1,
    IB_SEND = 2,
    IB_READ = 4,
    IB_SIGNALED = 2,
    IB_INLINE = 8,
    IB_LOCAL_WRITE = 1,
    IB_REMOTE_WRITE = 2,
    IB_REMOTE_READ = 4,
    IB_FLUSHED = 5,           /* statuses of completions: the queue pair had stopped before, ... */
    IB_RETRIES_EXCEEDED = 12, /* ... the peer did not acknowledge */
    IB_PORT_ACTIVE = 4,
    IB_LAYER_INFINIBAND = 1,
};

/* States of a queue pair, and the attributes that a change must set (ibv_modify_qp(3)):
 *
 *   RESET --> INIT   receives can be posted   UD: PKEY, PORT, QKEY   RC: PKEY, PORT, ACCESS
 *         --> RTR    it receives              UD: none               RC: AH, PATH_MTU, DESTINATION, RECV_PSN,
 *                                                                        DEST_ATOMICS, RNR_TIMER
 *         --> RTS    it also sends            UD: SEND_PSN           RC: SEND_PSN, ATOMICS, TIMEOUT, RETRIES,
 *                                                                        RNR_RETRIES
 *
 * An error moves it to another state, in which all requests complete with IB_FLUSHED. No call repairs it here. */
enum { IB_INIT = 1, IB_RTR = 2, IB_RTS = 3 };
enum {
    IB_SET_STATE = 1 << 0,
    IB_SET_ACCESS = 1 << 3,
    IB_SET_PKEY = 1 << 4,
    IB_SET_PORT = 1 << 5,
    IB_SET_QKEY = 1 << 6,
    IB_SET_AH = 1 << 7,
    IB_SET_PATH_MTU = 1 << 8,
    IB_SET_TIMEOUT = 1 << 9,
    IB_SET_RETRIES = 1 << 10,
    IB_SET_RNR_RETRIES = 1 << 11,
    IB_SET_RECV_PSN = 1 << 12,
    IB_SET_ATOMICS = 1 << 13,
    IB_SET_RNR_TIMER = 1 << 15,
    IB_SET_SEND_PSN = 1 << 16,
    IB_SET_DEST_ATOMICS = 1 << 17,
    IB_SET_DESTINATION = 1 << 20,
};

#define IB_GRH_LEN 40 /* bytes in front of each received datagram: the length of an IPv6 header, whose format it has */

/* The symbols of the library: name, result, parameters. verbs_library.c finds each of them as ibv_NAME. Functions that
 * return a pointer return NULL and set errno on failure. The others return 0 or an errno value, except get_cq_event,
 * which returns -1 and sets errno. create_*, alloc_*, reg_mr and modify_qp are system calls and may block for a short
 * time. destroy_cq blocks until each event that get_cq_event returned is acknowledged. */
#define IB_CALLS(X)                                                                                        \
    X(get_device_list, struct ib_device **, (int *n))                                                      \
    X(free_device_list, void, (struct ib_device * *list))                                                  \
    X(get_device_name, const char *, (struct ib_device * device))                                          \
    X(open_device, struct ib_context *, (struct ib_device * device))                                       \
    X(close_device, int, (struct ib_context * context))                                                    \
    X(query_port, int, (struct ib_context * context, uint8_t port, struct ib_port *result))                \
    X(alloc_pd, struct ib_pd *, (struct ib_context * context))                                             \
    X(dealloc_pd, int, (struct ib_pd * pd))                                                                \
    X(reg_mr, struct ib_mr *, (struct ib_pd * pd, void *address, size_t len, int access))                  \
    X(dereg_mr, int, (struct ib_mr * mr))                                                                  \
    X(create_comp_channel, struct ib_channel *, (struct ib_context * context))                             \
    X(destroy_comp_channel, int, (struct ib_channel * channel))                                            \
    X(create_cq, struct ib_cq *,                                                                           \
      (struct ib_context * context, int n, void *program_context, struct ib_channel *channel, int vector)) \
    X(destroy_cq, int, (struct ib_cq * cq))                                                                \
    X(get_cq_event, int, (struct ib_channel * channel, struct ib_cq * *cq, void **program_context))        \
    X(ack_cq_events, void, (struct ib_cq * cq, unsigned n))                                                \
    X(create_qp, struct ib_qp *, (struct ib_pd * pd, struct ib_qp_init * init))                            \
    X(modify_qp, int, (struct ib_qp * qp, struct ib_qp_attr * attr, int mask))                             \
    X(destroy_qp, int, (struct ib_qp * qp))                                                                \
    X(create_ah, struct ib_ah *, (struct ib_pd * pd, struct ib_ah_attr * attr))                            \
    X(destroy_ah, int, (struct ib_ah * ah))

struct ib_library {
#define IB_X(name, result, parameters) result(*name) parameters;
    IB_CALLS(IB_X)
#undef IB_X
};

#endif
