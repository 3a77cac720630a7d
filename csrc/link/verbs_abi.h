/*
 * The part of libibverbs that viakit uses. The library is loaded at run time (verbs_library.c), and its header is not
 * needed to build viakit. So the structs that both sides read are declared here. Their layout is that of the symbol
 * version IBVERBS_1.1, the same on all 64-bit Linux machines. Sizes and offsets were compared with
 * <infiniband/verbs.h> of rdma-core 44.0 (Debian's libibverbs-dev). Later versions keep them, because programs that
 * were built before must run with the newer library.
 *
 * The library allocates contexts, queues and regions. Those structs are longer than declared here: only their first
 * members are read. Structs that the caller allocates have their full length.
 */
#ifndef VIAKIT_VERBS_ABI_H
#define VIAKIT_VERBS_ABI_H

#include <stddef.h>
#include <stdint.h>

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

/* A piece of registered memory. */
struct ib_sge {
    uint64_t address;
    uint32_t len, lkey;
};

struct ib_send_wr {
    uint64_t id;
    struct ib_send_wr *next;
    struct ib_sge *pieces;
    int n_pieces, opcode;
    uint32_t flags, immediate;
    union {
        struct ib_ah *ah; /* datagrams: the destination's host, ... */
        uint64_t remote;  /* RDMA: the address there, ... */
    };
    union {
        uint32_t qpn;  /* ... its queue pair, ... */
        uint32_t rkey; /* ... and the key of that memory */
    };
    uint32_t qkey; /* ... and the key of the queue pair */
    uint64_t of_other_operations[9];
};

struct ib_recv_wr {
    uint64_t id;
    struct ib_recv_wr *next;
    struct ib_sge *pieces;
    int n_pieces;
};

/* A completion. len includes the global route header of a received datagram. */
struct ib_wc {
    uint64_t id;
    int status, opcode;
    uint32_t vendor_error, len, immediate, qpn, source_qpn, flags;
    uint16_t pkey_index, source_lid;
    uint8_t level, path_bits;
};

/* The operations of the short path are not symbols of the library. They are called through this table, whose other
 * entries viakit does not use. */
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

struct ib_channel {
    struct ib_context *context;
    int fd;
};

struct ib_mr {
    struct ib_context *context;
    struct ib_pd *pd;
    void *address;
    size_t len;
    uint32_t handle, lkey, rkey;
};

struct ib_qp {
    struct ib_context *context;
    void *program_context;
    struct ib_pd *pd;
    struct ib_cq *send_cq, *recv_cq;
    void *srq;
    uint32_t handle, number;
};

struct ib_qp_cap {
    uint32_t send_wrs, recv_wrs, send_pieces, recv_pieces, inline_data;
};

struct ib_qp_init {
    void *program_context;
    struct ib_cq *send_cq, *recv_cq;
    void *srq;
    struct ib_qp_cap cap;
    int type, signal_all;
};

struct ib_ah_attr {
    union ib_gid to;
    uint32_t flow_label;
    uint8_t from_index, hop_limit, traffic_class, reserved;
    uint16_t lid;
    uint8_t level, path_bits, rate, is_global, port, reserved2;
};

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

struct ib_port {
    int state, max_mtu, active_mtu, n_gids;
    uint32_t capabilities, max_message, counters[2];
    uint16_t n_pkeys, lid, manager_lid;
    uint8_t of_infiniband[8];
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

#define IB_GRH_LEN 40 /* bytes in front of each received datagram */

/* The symbols of the library: name, result, parameters. verbs_library.c finds each of them as ibv_NAME. */
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
