/*
 * loop: NICs of one process. Frames are copied into the receiver's queue and stay in order; none is ever lost. Tests on
 * this link are deterministic, because no wire and no other process takes part.
 *
 * All NICs opened as loop:NAME form one station, whose address is a hash of NAME. A queue is a ring of bytes under a
 * mutex. This is the link to read first, not the fast one. The ring holds records of {length, type, sender} and the
 * frame, padded to 8. A record that would cross the end is preceded by a filler.
 *
 *   head                                      tail              end
 *    | record | frame ... | record | frame ... |     free        |      tail - head bytes are in use
 *    | filler: the next record is at the beginning of the ring   |      positions run free, modulo QUEUE_BYTES on use
 *
 * The senders write `tail` and the records, the receiver writes `head`; both hold the mutex. The receiver reads tail
 * without it, as a cheap test for an empty queue. The value may be stale, which the next read corrects. The receiver
 * never uses a record before it holds the mutex, so a sender may publish the tail first and fill in the record
 * afterwards.
 *
 * Lossless: a frame that does not fit is not accepted (-EAGAIN), so the provider runs its short protocol without
 * retransmission over this link. A receiver that never polls therefore stops its senders. This is back-pressure, not an
 * error.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/exit.h"
#include "base/explain.h"
#include "base/files.h"
#include "base/thread.h"
#include "link/frame_layout.h"
#include "link/link.h"
#include "link/station.h"

/* A power of two, so that free-running positions may wrap at 2^32. */
#define QUEUE_BYTES (1u << 20)
/* Largest header.len, the same as on shm, so that messages are cut into the same pieces on both. */
#define MAX_PAYLOAD 8192
/* Bytes at the end of a queue that frames leave free. The notice that a NIC closed (a record of 16 bytes) can neither
 * wait nor be repeated, because its sender is about to be freed. The slack has room for a thousand notices. */
#define CLOSING_SLACK 16384 /* reserved for notices that a NIC closed */
/* Bytes of a frame with header and block: the size of the copy that a poll delivers from. */
#define MAX_FRAME (MAX_PAYLOAD + 256)

/* The part of a NIC that remains after it is closed. Other NICs may still refer to it as a peer, and its last frames
 * may lie in their queues. Freed when the last loop NIC closes. */
struct link_peer {
    uint8_t address[6];
    uint16_t port;
    struct link_peer *next;
    struct link *link; /* NULL: closed */
};

/* A frame, a filler up to the end of the ring, the notice that `from` has closed. */
enum { RECORD_FRAME, RECORD_FILLER, RECORD_LOST };

struct record {
    uint32_t len; /* bytes of the frame */
    uint32_t type;
    struct link_peer *from;
};

/* One open NIC. */
struct link {
    struct link_client *client;
    struct link_peer *self;
    int event_fd;
    int sleeping;
    uint32_t head, tail; /* free-running byte positions */
    uint8_t *queue;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects all queues and the list */
static struct link_peer *peers;
static uint32_t n_open, last_port;

/* A child of fork() has copies of the queues and none of the threads, and a thread may have held the mutex at that
 * moment. The child therefore begins with no open NIC: the parent's NICs are not the child's. */
static void child_of_fork(void)
{
    pthread_mutex_init(&mutex, NULL);
    peers = NULL;
    n_open = 0;
}

VK_AT_FORK(child_of_fork)

static int loop_open(struct link_client *client, const char *device, const viakit_nic_options *options,
                     struct link **out, struct link_limits *limits)
{
    (void)options;
    struct link *link = calloc(1, sizeof *link);
    struct link_peer *self = calloc(1, sizeof *self);
    uint8_t *queue = malloc(QUEUE_BYTES);
    int fd = vk_file_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (link == NULL || self == NULL || queue == NULL || fd < 0) {
        int error = fd < 0 ? -errno : -ENOMEM;
        vk_explain("loop: %s", strerror(-error));
        vk_file_close(fd);
        free(link);
        free(self);
        free(queue);
        return error;
    }
    *link = (struct link){.client = client, .self = self, .event_fd = fd, .queue = queue};
    station_name_to_address("loop", *device ? device : "0", self->address);
    self->link = link;
    pthread_mutex_lock(&mutex);
    /* 1 to 65535: port 0 in a request means any NIC with a waiting VI (frame_format.h). */
    self->port = (uint16_t)(++last_port % 65535 + 1);
    self->next = peers;
    peers = self;
    n_open++;
    pthread_mutex_unlock(&mutex);
    *limits = (struct link_limits){.port = self->port,
                                   .mtu = MAX_PAYLOAD,
                                   .max_payload = MAX_PAYLOAD,
                                   .max_batch = 8,
                                   .ring_slots = QUEUE_BYTES / MAX_FRAME,
                                   .data_fd = fd,
                                   .control_fd = -1};
    memcpy(limits->address, self->address, 6);
    *out = link;
    return 0;
}

/* Reserves room for a record of n bytes at the tail and leaves `slack` bytes free. Returns NULL if the room does not
 * suffice. Called with the mutex. */
static struct record *reserve(struct link *to, uint32_t n, uint32_t slack)
{
    uint32_t size = ((uint32_t)sizeof(struct record) + n + 7) & ~7u, at = to->tail % QUEUE_BYTES;
    uint32_t filler = at + size > QUEUE_BYTES ? QUEUE_BYTES - at : 0;
    /* Positions run free: tail - head is the number of bytes in use even after they have wrapped at 2^32. A full queue
     * differs from an empty one without an unused byte. */
    if (QUEUE_BYTES - (to->tail - to->head) < size + filler + slack + sizeof(struct record))
        return NULL;
    if (filler) {
        /* A gap shorter than a record's head needs no filler: loop_poll skips it because of its size. */
        if (filler >= sizeof(struct record))
            *(struct record *)(void *)(to->queue + at) =
                (struct record){filler - (uint32_t)sizeof(struct record), RECORD_FILLER, NULL};
        /* The mutex orders the contents of the records. These stores pair only with the receiver's load of tail without
         * the mutex. */
        vk_store_release(&to->tail, to->tail + filler);
    }
    struct record *r = (struct record *)(void *)(to->queue + to->tail % QUEUE_BYTES);
    vk_store_release(&to->tail, to->tail + size); /* the caller fills it in before it releases the mutex */
    return r;
}

/* Called with the mutex. loop_arm checks the queue and sets `sleeping` under the same mutex, so no frame can arrive
 * unnoticed between the two. One doorbell per sleep: the first sender clears the flag. */
static void ring(struct link *to, struct link_client *from)
{
    uint64_t one = 1;
    if (!to->sleeping)
        return;
    to->sleeping = 0;
    ssize_t written = vk_write(to->event_fd, &one, sizeof one);
    (void)written;
    LINK_COUNT(from, doorbells, 1);
}

/* Link operation. The payload is copied into the receiver's queue and may be reused when this returns. */
static int loop_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    int sent = 0;
    if (!vk_exit_lock(&mutex))
        return -EAGAIN;
    /* Read under the mutex: a NIC that closes cannot free its queue while a sender writes into it. */
    struct link *to = peer->link;
    for (; to && sent < n; sent++) {
        struct link_frame *f = &frames[sent];
        uint32_t len = (uint32_t)(f->header_len + f->payload_len);
        struct record *r = reserve(to, len, CLOSING_SLACK);
        if (r == NULL)
            break;
        *r = (struct record){len, RECORD_FRAME, link->self};
        link_lay_out((uint8_t *)(r + 1), f);
        link_count_copied(link->client, f->payload_len);
    }
    if (to && sent)
        ring(to, link->client);
    pthread_mutex_unlock(&mutex);
    if (to == NULL)
        return n; /* closed: the frames are lost, as on any wire */
    return sent ? sent : -EAGAIN;
}

/* Link operation. A frame is copied before it is delivered, because link_deliver() may send (an acknowledgement), which
 * locks the mutex. Fillers do not count as slots. */
static int loop_poll(struct link *link, int budget)
{
    uint64_t aligned[(MAX_FRAME + 7) / 8];
    int n = 0;
    /* acquire: pairs with the senders' release. It only shows that locking the mutex is worthwhile. Only this thread
     * writes head. */
    while (n < budget && vk_load_acquire(&link->tail) != link->head) {
        pthread_mutex_lock(&mutex);
        uint32_t at = link->head % QUEUE_BYTES;
        struct record r = {0, RECORD_FILLER, NULL};
        if (QUEUE_BYTES - at >= sizeof r)
            memcpy(&r, link->queue + at, sizeof r);
        if (r.type == RECORD_FILLER)
            link->head += QUEUE_BYTES - at;
        else {
            memcpy(aligned, link->queue + at + sizeof r, r.len);
            link->head += ((uint32_t)sizeof r + r.len + 7) & ~7u;
        }
        pthread_mutex_unlock(&mutex);
        if (r.type == RECORD_FRAME)
            link_deliver(link->client, r.from->address, r.from, aligned, r.len);
        else if (r.type == RECORD_LOST)
            link_peer_lost(link->client, r.from);
        n += r.type != RECORD_FILLER;
    }
    return n;
}

/* Link operation. The peer's struct outlives its NIC, so the pointer stays valid when the NIC closes. */
static int loop_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **out)
{
    (void)link;
    int error = -EHOSTUNREACH;
    pthread_mutex_lock(&mutex);
    for (struct link_peer *p = peers; p; p = p->next)
        if (p->link && p->port == port && memcmp(p->address, address, 6) == 0) {
            *out = p;
            error = 0;
        }
    pthread_mutex_unlock(&mutex);
    return error;
}

/* Link operation. The request also goes to this NIC, because a process may connect two VIs of one NIC. The list is
 * copied first, because loop_send locks the mutex itself. Frames to a NIC that closes in between are lost, as to any
 * closed peer. */
static int loop_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    struct link_peer *targets[256];
    int n = 0;
    pthread_mutex_lock(&mutex);
    for (struct link_peer *p = peers; p && n < 256; p = p->next)
        if (p->link && memcmp(p->address, address, 6) == 0)
            targets[n++] = p;
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < n; i++) {
        frame->header.dst_port = targets[i]->port;
        loop_send(link, targets[i], frame, 1);
    }
    return n;
}

static int loop_count_neighbours(struct link *link)
{
    int n = 0;
    pthread_mutex_lock(&mutex);
    for (struct link_peer *p = peers; p; p = p->next)
        n += p->link && memcmp(p->address, link->self->address, 6) == 0;
    pthread_mutex_unlock(&mutex);
    return n;
}

/* Link operation. Every other NIC is notified by a record behind the frames that it was sent, so it receives those
 * first. A NIC whose queue has no room for that record is not notified. */
static void loop_close(struct link *link)
{
    pthread_mutex_lock(&mutex);
    /* No sender writes into the queue from here on: senders read peer->link under this mutex. */
    link->self->link = NULL;
    for (struct link_peer *p = peers; p; p = p->next) {
        struct record *r = p->link ? reserve(p->link, 0, 0) : NULL;
        if (r) {
            *r = (struct record){0, RECORD_LOST, link->self};
            ring(p->link, link->client);
        }
    }
    /* No NIC is left that could refer to one of them as its peer. */
    if (--n_open == 0)
        while (peers) {
            struct link_peer *p = peers;
            peers = p->next;
            free(p);
        }
    pthread_mutex_unlock(&mutex);
    vk_file_close(link->event_fd);
    free(link->queue);
    free(link);
}

/* Link operation. Checking the queue and setting `sleeping` are one step under the mutex. So are storing a frame and
 * ringing the doorbell. */
static int loop_arm(struct link *link)
{
    pthread_mutex_lock(&mutex);
    int there = link->head != link->tail;
    link->sleeping = !there;
    pthread_mutex_unlock(&mutex);
    return there;
}

static void loop_disarm(struct link *link)
{
    uint64_t count;
    pthread_mutex_lock(&mutex);
    link->sleeping = 0;
    pthread_mutex_unlock(&mutex);
    /* Reset to zero: a doorbell that rang during the wake-up would end the next sleep at once. */
    ssize_t got = vk_read(link->event_fd, &count, sizeof count);
    (void)got;
}

const struct link_ops link_loop = {
    .about = {.name = "loop", .devices = "loop, loop:NAME", .transport = "one process", .lossless = 1},
    .open = loop_open,
    .close = loop_close,
    .route = loop_route,
    .request_all = loop_request_all,
    .count_neighbours = loop_count_neighbours,
    .send = loop_send,
    .poll = loop_poll,
    .arm = loop_arm,
    .disarm = loop_disarm,
};
