/*
 * The data path of the shm link: rings and doorbells. shm.h has the memory layout, shm_memory.c maps that memory,
 * shm_copy.c copies directly, shm_control.c and shm_greeting.c connect the NICs. The NIC's owner calls all functions
 * of this file.
 *
 * A message takes one of three ways, from cheap to expensive. via/data/tx.c chooses by the message's length and place:
 *
 *   ring        copied into cells by the sender and out of them by the receiver; below 4 KiB always
 *   mapped      one copy by one side, straight between the programs' memory, where it is in an arena both have mapped
 *   CMA         the same by process_vm_readv/writev ("cross-memory attach"), for any memory, where the kernel allows it
 *
 * Order: in a ring, the frame is stored before its control word (release), and the receiver reads the control word
 * first (acquire). A word of the peer's segment and a cell of a ring are unordered, except where a comment states an
 * order.
 *
 * Sleeping: a receiver sets `sleeping`, has the kernel run a barrier on all processes that use viakit (membarrier), and
 * polls its rings once more. A sender stores its frame and then reads `sleeping`. It needs no fence of its own for
 * that. Either the receiver sees the frame or the sender sees the flag. This is Dekker's store-then-load pattern. One
 * full fence on each side would do as well. But it would cost each sender some 20 ns per message for a receiver that
 * seldom sleeps.
 */
#include "link/shm.h"
#include "base/explain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>

#include "base/cancel.h"
#include "base/copy.h"
#include "base/files.h"
#include "base/membarrier.h"
#include "link/frame_layout.h"

/* From this length on the first line of a frame is stored last (store_body). Measured: 512 B gain 14 %, 256 B lose. */
#define SHM_OTHERS_FIRST 384

/* ---------------------------------------------------------------- sending */

#if defined(__x86_64__) && !VK_TSAN
#include <emmintrin.h>
/* Written once, before main() and before any thread; only read afterwards. */
static int store_16; /* 16-byte stores are atomic */

__attribute__((constructor)) static void detect_processor(void)
{
    __builtin_cpu_init();
    store_16 = __builtin_cpu_supports("avx");
}
#endif

/* Wakes the peer if it sleeps. If several senders do so, one clears the flag and makes the system calls. A counter that
 * is full has rung already. The peer passed its doorbell without blocking mode, but shares the file's flags and can
 * change them at any time (shm_is_doorbell in shm_greeting.c). So the write is made only if the counter has space. */
void shm_doorbell(struct link_peer *peer)
{
    uint64_t one = 1;
    if (peer->station == NULL || !vk_exchange(&peer->station->sleeping, 0))
        return;
    LINK_COUNT(peer->link->client, doorbells, 1);
    LINK_COUNT(peer->link->client, system_calls, 1);
    if (!vk_can_write(peer->event_fd))
        return;
    ssize_t written = vk_write(peer->event_fd, &one, sizeof one);
    (void)written;
    LINK_COUNT(peer->link->client, system_calls, 1);
}

static inline uint32_t cells_for(size_t frame_len)
{
    /* The control word is in the first cell only. The rest of the frame is contiguous across cells. */
    return (uint32_t)((frame_len + SHM_CONTROL + SHM_CELL - 1) / SHM_CELL);
}

/* Reserves n consecutive cells, from peer->tx_at on, or returns NULL if there is no room. Puts a filler over the end of
 * the ring. Only the filler is published: the caller moves tx_at when it has stored its control word. The longest frame
 * with its filler needs 263 cells. At least 769 are published as free when the receiver has read everything
 * (free_cells), so a waiting sender always gets room. */
static inline uint8_t *reserve(struct link_peer *peer, uint32_t n)
{
    uint32_t to_end = SHM_CELLS - (peer->tx_at & SHM_MASK), need = n > to_end ? n + to_end : n;
    if (vk_unlikely((int32_t)(peer->tx_free_until - peer->tx_at) < (int32_t)need)) {
        /* acquire: the receiver has zeroed the cells that it reports as consumed */
        uint32_t until = vk_load_acquire(&peer->tx->consumed) + SHM_CELLS, room = until - peer->tx_at;
        if (room < need || room > SHM_CELLS) /* more than the ring has: the peer's value is invalid and not stored */
            return NULL;
        peer->tx_free_until = until;
    }
    /* release, although a filler hands over no data: the cells behind it must not become visible first. */
    if (vk_unlikely(n > to_end)) {
        vk_store_release((uint64_t *)(void *)peer->tx->cells[peer->tx_at & SHM_MASK],
                         (uint64_t)to_end << 2 | SHM_FILLER);
        peer->tx_at += to_end;
    }
    return peer->tx->cells[peer->tx_at & SHM_MASK];
}

/* Stores header and control word, when everything behind them is stored; the control word last. The receiver polls this
 * very line and can take it away between any two stores, so there should be few of them.
 *
 *    to[0] control | to[1..4] header, 4 words | to[5..7] the first 24 bytes of block or payload: stored already */
static inline void store_header(uint8_t *cell, uint64_t control, const uint64_t header[WIRE_WORDS])
{
    uint64_t *to = (uint64_t *)(void *)cell;
    to[4] = header[3];
#if defined(__x86_64__) && !VK_TSAN
    /* Aligned 16-byte stores are atomic on processors that have AVX, and x86 keeps stores in order. */
    if (vk_likely(store_16)) {
        vk_compiler_barrier();
        _mm_store_si128((__m128i *)(void *)cell + 1, _mm_set_epi64x((long long)header[2], (long long)header[1]));
        vk_compiler_barrier();
        _mm_store_si128((__m128i *)(void *)cell, _mm_set_epi64x((long long)header[0], (long long)control));
        return;
    }
#endif
    /* On other processors: words in any order, except the last. */
    to[3] = header[2];
    to[2] = header[1];
    to[1] = header[0];
    vk_store_release(&to[0], control); /* the frame is visible before its control word */
}

/* Stores a frame of any form and gathers its payload. Returns 1 if stored, 0 if there is no room. */
static inline int send_one(struct link *link, struct link_peer *peer, const struct link_frame *f)
{
    size_t len = f->header_len + f->payload_len;
    uint32_t n = cells_for(len);
    uint64_t header[WIRE_WORDS];
    uint8_t *cell = reserve(peer, n);
    if (vk_unlikely(cell == NULL))
        return 0;
    memcpy(header, &f->header, sizeof header);
    link_lay_out_body(cell + SHM_CONTROL + sizeof header, f);
    /* The compiler keeps the body in front of the control word. The processor does so by store_header: x86 keeps stores
     * in order, and elsewhere its last store is a release. */
    vk_compiler_barrier();
    store_header(cell, (uint64_t)len << 2 | SHM_FRAME, header);
    peer->tx_at += n;
    link_count_copied(link->client, f->payload_len);
    return 1;
}

/* Called after frames were stored: rings the doorbell if the receiver sleeps. A relaxed load suffices. If it returns 0,
 * the fence that the receiver's membarrier runs on this processor comes after the load. That fence makes the earlier
 * stores visible, and only then does the receiver poll its rings. */
static inline void wake_receiver(struct link_peer *peer)
{
    if (vk_unlikely(peer->station == NULL))
        return; /* not greeted yet: HELLO itself wakes the peer */
    if (vk_unlikely(peer->station->needs_fence))
        vk_fence_full(); /* orders the frame's stores before the load of `sleeping` */
    vk_compiler_barrier();
    if (vk_unlikely(vk_load_relaxed(&peer->station->sleeping)))
        shm_doorbell(peer);
}

/* Stores the payload of a frame without a block at `to`, behind the header. The receiver polls the first line of the
 * frame. While a long payload is stored, it would take that line back once more. So the other lines are stored first.
 * For a short payload the second copy takes longer than that. */
static inline void store_body(uint8_t *to, const void *payload, size_t len)
{
    const size_t with_header = SHM_CELL - SHM_CONTROL - sizeof(struct wire_header);
    if (vk_likely(len < SHM_OTHERS_FIRST)) {
        vk_copy_short(to, payload, len);
        return;
    }
    memcpy(to + with_header, (const uint8_t *)payload + with_header, len - with_header);
    vk_compiler_barrier();
    memcpy(to, payload, with_header);
}

/* The commonest message: header in registers, a few bytes of payload, one cache line. Like send_one, without its loops.
 * Returns 1 if accepted, 0 if there is no room. A dead peer accepts every frame: link_peer_lost reports its end. */
static int shm_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                          const void *payload, size_t len)
{
    const size_t header_len = sizeof(struct wire_header);
    if (vk_unlikely(!peer->alive))
        return 1;
    uint32_t n = cells_for(header_len + len);
    uint8_t *cell = reserve(peer, n);
    if (vk_unlikely(cell == NULL))
        return 0;
    store_body(cell + SHM_CONTROL + header_len, payload, len);
    vk_compiler_barrier();
    store_header(cell, (uint64_t)(header_len + len) << 2 | SHM_FRAME, header);
    peer->tx_at += n;
    wake_receiver(peer);
    /* The next cell's line is dirty in the receiver's cache, because the receiver zeroed it. Prefetch it now, off the
     * latency path. The next send then needs an invalidation instead of a transfer. */
    __builtin_prefetch(peer->tx->cells[peer->tx_at & SHM_MASK], 1);
    link_count_copied(link->client, len);
    return 1;
}

/* Link operation. Sends as many frames as fit, in order, then reads `sleeping` once for all of them. */
static int shm_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    int sent = 0;
    if (vk_unlikely(!peer->alive))
        return n; /* the peer is gone; the control socket reports it */
    while (sent < n && send_one(link, peer, &frames[sent]))
        sent++;
    wake_receiver(peer);
    return sent ? sent : -EAGAIN;
}

/* ---------------------------------------------------------------- receiving */

/* Frees the cells that were read: zeroes their first words, and from time to time publishes the position to the sender.
 * This is not done while reading, but when there is nothing to read (or much to free). Stores become visible in order,
 * so a reply would otherwise have to wait until the request's line had been fetched back for writing. */
static void free_cells(struct link_peer *peer)
{
    /* Relaxed: the release of `consumed` below orders these zeroes, and the sender writes no cell before it has read
     * there that the cell is free. */
    for (; peer->rx_freed != peer->rx_at; peer->rx_freed++)
        vk_store_relaxed((uint64_t *)(void *)peer->rx->cells[peer->rx_freed & SHM_MASK], 0);
    if (peer->rx_at - peer->rx_published >= SHM_CELLS / 4) {
        peer->rx_published = peer->rx_at;
        vk_store_release(&peer->rx->consumed, peer->rx_at); /* release: after the zeroes */
    }
}

/* Delivers the frames of one ring, at most `budget` (fillers count too). Returns their number. A frame is delivered in
 * place. The sender may change it meanwhile (link_deliver reads each field once), but later frames cannot overwrite it,
 * because its cells are not free yet. Delivery may remove the peer.
 *
 * The peer sent WELCOME before its first frame, so that greeting is read first. Replies to that frame can then use all
 * three ways at once: the first RDMA write of a connection is a direct copy like those that follow. */
int shm_poll_peer(struct link_peer *peer, int budget)
{
    if (vk_unlikely(!peer->greeted)) {
        shm_receive_greeting(peer);
        if (!peer->alive)
            return 0; /* its greeting was invalid: the ring is no longer mapped */
    }
    struct shm_ring *ring = peer->rx;
    int n = 0;
    while (n < budget) {
        uint8_t *cell = ring->cells[peer->rx_at & SHM_MASK];
        /* Acquire, with the release of store_header: behind a control word the whole frame is there. */
        uint64_t control = vk_load_acquire((uint64_t *)(void *)cell);
        if (vk_likely(control == 0))
            break;
        uint32_t cells, to_end = SHM_CELLS - (peer->rx_at & SHM_MASK);
        if (vk_likely((control & 3) == SHM_FRAME)) {
            uint64_t len = control >> 2;
            cells = cells_for(len);
            if (vk_unlikely(len > SHM_CELLS * SHM_CELL || cells > to_end)) { /* invalid length: the peer is dropped */
                LINK_COUNT(peer->link->client, dropped_malformed, 1);
                shm_drop_peer(peer);
                return n;
            }
            link_deliver(peer->link->client, peer->address, peer, cell + SHM_CONTROL, len);
            if (vk_unlikely(!peer->alive))
                return n + 1; /* removed during delivery: the ring is no longer mapped */
        } else
            cells = to_end;
        peer->rx_at += cells;
        peer->rx_next = (const uint64_t *)(const void *)ring->cells[peer->rx_at & SHM_MASK];
        if (vk_unlikely(peer->rx_at - peer->rx_freed >= SHM_CELLS / 8))
            free_cells(peer);
        n++;
    }
    return n;
}

/* Polls all rings in turn: one load each if there is nothing to read. rx_next of a dead peer points at a zero, so dead
 * peers need no test. */
static int shm_poll(struct link *link, int budget)
{
    int n = 0;
    for (struct link_peer *p = link->peers; p; p = p->next) {
        /* Relaxed, because shm_poll_peer loads the word again, with acquire. */
        if (vk_unlikely(vk_load_relaxed(p->rx_next)))
            n += shm_poll_peer(p, budget);
        else if (vk_unlikely(p->rx_freed != p->rx_at))
            free_cells(p);
    }
    return n;
}

/* Link operation: prepares to sleep. Returns 1 if a frame is there already. The flag then stays set until disarm, at
 * the cost of one needless doorbell at most. This is the receiver's half of the pattern at the top of the file.
 * wake_receiver() is the sender's. */
static int shm_arm(struct link *link)
{
    vk_store_release(&link->station->sleeping, 1);
    vk_membarrier_global(); /* orders the flag before the poll of the rings, on every processor */
    for (struct link_peer *p = link->peers; p; p = p->next)
        if (p->alive && vk_load_acquire((uint64_t *)(void *)p->rx->cells[p->rx_at & SHM_MASK]))
            return 1;
    return 0;
}

/* Link operation: ends a sleep. */
static void shm_disarm(struct link *link)
{
    uint64_t count;
    /* always: a sender that saw the flag may ring late, and a pending event would end every later sleep at once */
    vk_store_release(&link->station->sleeping, 0);
    ssize_t got = vk_read(link->event_fd, &count, sizeof count);
    (void)got;
}

/* ---------------------------------------------------------------- opening and closing */

/* Link operation. Also for a link that was opened only in part: every field may still be as shm_open_link set it. Peers
 * detect the close by their socket. */
static void shm_close(struct link *link)
{
    shm_drop_arriving(link);
    while (link->peers) {
        struct link_peer *p = link->peers;
        link->peers = p->next;
        /* Publish everything read as free: a sender that finds the ring full then need not wait until it detects the
         * hang-up. No frame is read here any more, so the cells need not be zero. */
        vk_store_release(&p->rx->consumed, p->rx_at);
        p->alive = 0;
        shm_release_peer(p);
        free(p);
    }
    while (link->departed) {
        struct link_peer *p = link->departed;
        link->departed = p->next_departed;
        free(p);
    }
    shm_hang_up(link, link->listener);
    vk_file_close(link->epoll);
    vk_file_close(link->event_fd);
    vk_file_close(link->delayed_fd);
    shm_free_segment(link);
    free(link);
}

/* Link operation. The device is the station's name, by default "0". Only NICs of the same name meet. */
static int shm_open_link(struct link_client *client, const char *device, const viakit_nic_options *options,
                         struct link **out, struct link_limits *limits)
{
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    *link = (struct link){.client = client,
                          .listener = -1,
                          .epoll = -1,
                          .event_fd = -1,
                          .delayed_fd = -1,
                          .segment_fd = -1,
                          .cma_seen = -1,
                          .no_map = options->no_map,
                          .no_cma = options->no_cma};
    /* Where Yama requires it, permit peers to use process_vm_*. Elsewhere the call fails without harm. */
    if (!link->no_cma)
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    int error = shm_make_segment(link);
    if (error)
        vk_explain(error == -ENOMEM ? "shm: no shared memory: %s; is address space limited (ulimit -v)?"
                                    : "shm: no shared memory: %s",
                   strerror(-error));
    if (error == 0 && (link->event_fd = vk_file_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) < 0) {
        error = -errno;
        vk_explain("shm: %s", strerror(errno));
    }
    if (error == 0)
        error = shm_listen(link, *device ? device : "0");
    if (error) {
        shm_close(link);
        return error;
    }
    *limits = (struct link_limits){.port = link->port,
                                   .mtu = SHM_MAX_PAYLOAD,
                                   .max_payload = SHM_MAX_PAYLOAD,
                                   .max_batch = 8,
                                   .short_below = SHM_SHORT_BELOW,
                                   .ring_slots = SHM_CELLS,
                                   .data_fd = link->event_fd,  /* rung by senders */
                                   .control_fd = link->epoll}; /* callers, greetings, ends of peers */
    memcpy(limits->address, link->address, 6);
    *out = link;
    return 0;
}

/* Link operation: finds a peer, or calls the NIC. Returns -EHOSTUNREACH if no NIC has that port, -EAGAIN if its queue
 * of callers is full. */
static int shm_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **out)
{
    if (memcmp(address, link->address, 6) != 0)
        return -EHOSTUNREACH; /* all peers belong to this station, and ports have no meaning elsewhere */
    for (struct link_peer *p = link->peers; p; p = p->next)
        if (p->alive && p->port == port) {
            *out = p;
            return 0;
        }
    return shm_call(link, port, out);
}

/* Sends to every NIC of the station. This NIC calls itself only if one of its own VIs matches: two VIs of one NIC may
 * be connected, but other NICs need not poll two more rings. A NIC whose queue of callers is full has not received the
 * request, but it exists. A NIC that lacks address space will not receive it. */
static int shm_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    uint16_t ports[512];
    int is_own = memcmp(address, link->address, 6) == 0, n = is_own ? shm_ports(link, ports, 511) : 0, n_sent = 0,
        full = 0;
    int lacking = 0;
    if (is_own && link_matches_own_request(link->client, frame))
        ports[n++] = link->port;
    for (int i = 0; i < n; i++) {
        struct link_peer *peer;
        if (link_lacks_address_space(link->client, ports[i])) {
            lacking = 1;
            continue;
        }
        int error = shm_route(link, address, ports[i], &peer);
        full |= error == -EAGAIN;
        if (error)
            continue;
        frame->header.dst_port = ports[i];
        if (shm_send(link, peer, frame, 1) == 1)
            n_sent++;
        else
            full = 1;
    }
    if (full)
        return LINK_UNKNOWN;
    if (n_sent == 0)
        return lacking || shm_explain_absence(link) || !is_own ? 0 : LINK_ONLY_US;
    return n_sent;
}

/* Link operation: the count includes this NIC. */
static int shm_count_neighbours(struct link *link)
{
    uint16_t ports[512];
    return shm_ports(link, ports, 512) + 1;
}

static void shm_info(struct link *link, viakit_nic_info *info)
{
    info->cma = link->no_cma ? 0 : link->cma_seen;
    /* Two pairs of rings: both sides may call at the same moment. */
    info->bytes_to_map = link->segment_len + 2 * sizeof(struct shm_rings);
}

const struct link_ops link_shm = {
    .about = {.name = "shm",
              .devices = "shm, shm:NAME",
              .transport = "shared memory",
              .leaves_process = 1,
              .lossless = 1,
              .maps_memory = 1},
    .open = shm_open_link,
    .close = shm_close,
    .route = shm_route,
    .request_all = shm_request_all,
    .count_neighbours = shm_count_neighbours,
    .send = shm_send,
    .send_short = shm_send_short,
    .poll = shm_poll,
    .arm = shm_arm,
    .disarm = shm_disarm,
    .control = shm_control,
    .info = shm_info,
    .alloc = shm_alloc,
    .free = shm_free,
    .region_table = shm_region_table,
    .reach = shm_reach,
    .fetch = shm_fetch,
    .place = shm_place,
    .take = shm_take,
};
