/*
 * loop: NICs of one process. Frames are copied into the receiver's queue and stay in order; nothing is ever lost.
 * What a test does on it is the same every time, for no wire and no other process has a say.
 *
 * All NICs opened as loop:NAME form one station; its address is made from NAME. A queue is a ring of bytes under a
 * mutex (this is the link to understand the others by, not the fast one): records of {length, type, sender} and the
 * frame, padded to 8; a record that would cross the end is preceded by a filler.
 *
 *   head                                      tail              end
 *    | record | frame ... | record | frame ... |     free        |      tail - head bytes are in use
 *    | filler: the next record is at the beginning of the ring   |      positions run free, modulo QUEUE_BYTES on use
 *
 * Who writes what: `tail` and the records, senders, under the mutex; `head`, the receiver, under the mutex. The
 * receiver looks at tail without it, to find out cheaply that nothing is there: what it sees may be stale, and the
 * next look will tell. It never acts on a record before it has taken the mutex, so a sender may publish the tail
 * first and fill the record in afterwards.
 *
 * Lossless: a frame that finds no room is not taken (-EAGAIN), so the provider runs its short protocol without
 * retransmission over this link. A receiver that never polls therefore stops its senders: that is back-pressure, not
 * an error.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../base/atomic.h"
#include "../base/cancel.h"
#include "../base/files.h"
#include "frame.h"
#include "link.h"

/* A power of two, so that free-running positions may wrap at 2^32. */
#define QUEUE_BYTES (1u << 20)
/* Largest header.len, the same as on shm: messages are cut into the same pieces on both. */
#define MAX_PAYLOAD 8192
/* Bytes at the end of a queue that frames leave alone. The news that a NIC closed (a record of 16 bytes) can neither
 * wait nor be repeated, for whoever brings it is about to be freed; the slack is room for a thousand of them. */
#define CLOSING_SLACK 16384 /* kept for the news that a NIC closed */
/* With header and block: the size of the copy that a poll delivers from. */
#define MAX_FRAME (MAX_PAYLOAD + 256)

/* What stays of a NIC when it is closed: others may still hold it as their peer, and its last frames may lie in their
 * queues. Freed when the last loop NIC closes. */
struct link_peer {
    struct link_peer *next;
    uint8_t address[6];
    uint16_t port;
    struct link *link; /* NULL: closed */
};

/* A frame; nothing, up to the end of the ring; the news that `from` has closed. */
enum { RECORD_FRAME, RECORD_FILLER, RECORD_LOST };

struct record {
    uint32_t len; /* of the frame */
    uint32_t type;
    struct link_peer *from;
};

/* `link` of this file: one open NIC. */
struct link {
    struct via_nic *nic;
    struct link_peer *self;
    int event_fd;
    int sleeping;
    uint32_t head, tail; /* free-running byte positions */
    uint8_t *queue;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* over all queues and the list */
static struct link_peer *peers;
static uint32_t n_open, last_port;

/* A child of fork() has copies of the queues and none of the threads; the mutex may have been held at that moment by
 * one of them. So the child begins with nothing open: the parent's NICs are not the child's. */
static void child_of_fork(void)
{
    pthread_mutex_init(&mutex, NULL);
    peers = NULL;
    n_open = 0;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, child_of_fork);
}

/* 48 bits of FNV-1a over the name, marked as a locally administered address. */
static void name_to_address(const char *kind, const char *name, uint8_t address[6])
{
    /* Offset basis, and below the prime, of the 64-bit FNV-1a hash. */
    uint64_t h = 1469598103934665603ull;
    for (; *kind; kind++)
        h = (h ^ (uint8_t)*kind) * 1099511628211ull;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 1099511628211ull;
    memcpy(address, &h, 6);
    address[0] = (uint8_t)((address[0] & 0xFC) | 0x02);
}

static int loop_open(struct via_nic *nic, const char *device, const viakit_nic_options *options, struct link **out,
                     struct link_limits *limits)
{
    (void)options;
    struct link *link = calloc(1, sizeof *link);
    struct link_peer *self = calloc(1, sizeof *self);
    uint8_t *queue = malloc(QUEUE_BYTES);
    int fd = vk_file_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (link == NULL || self == NULL || queue == NULL || fd < 0) {
        int error = fd < 0 ? -errno : -ENOMEM;
        via_explain("loop: %s", strerror(-error));
        vk_file_close(fd);
        free(link);
        free(self);
        free(queue);
        return error;
    }
    *link = (struct link){.nic = nic, .self = self, .event_fd = fd, .queue = queue};
    name_to_address("loop", *device ? device : "0", self->address);
    self->link = link;
    pthread_mutex_lock(&mutex);
    /* 1 to 65535: port 0 means "whoever waits" (wire.h). */
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
                                   .lossless = 1};
    memcpy(limits->address, self->address, 6);
    *out = link;
    return 0;
}

/* Room for a record of n bytes at the tail that leaves `slack` free, NULL if there is none. Called with the mutex. */
static struct record *reserve(struct link *to, uint32_t n, uint32_t slack)
{
    uint32_t size = ((uint32_t)sizeof(struct record) + n + 7) & ~7u, at = to->tail % QUEUE_BYTES;
    uint32_t filler = at + size > QUEUE_BYTES ? QUEUE_BYTES - at : 0;
    /* Positions run free, so tail - head is what is in use even after they have wrapped at 2^32, and a full queue is
     * told from an empty one without a byte that must stay unused. */
    if (QUEUE_BYTES - (to->tail - to->head) < size + filler + slack + sizeof(struct record))
        return NULL;
    if (filler) {
        /* Fewer bytes than a record's head say by their number alone that nothing is there (loop_poll). */
        if (filler >= sizeof(struct record))
            *(struct record *)(void *)(to->queue + at) =
                (struct record){filler - (uint32_t)sizeof(struct record), RECORD_FILLER, NULL};
        /* The mutex orders what the records hold. These stores pair only with the receiver's look at tail without
         * it. */
        vk_store_release(&to->tail, to->tail + filler);
    }
    struct record *r = (struct record *)(void *)(to->queue + to->tail % QUEUE_BYTES);
    vk_store_release(&to->tail, to->tail + size); /* filled in by the caller before the mutex is let go */
    return r;
}

/* Called with the mutex, as loop_arm looks and sets `sleeping` under it: there is no moment between "nothing is
 * there" and "asleep" into which a frame could fall. One bell per sleep: the first sender takes the flag away. */
static void ring(struct link *to, struct via_nic *from)
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
    pthread_mutex_lock(&mutex);
    /* Read under the mutex: a NIC that closes cannot free its queue while we write into it. */
    struct link *to = peer->link;
    for (; to && sent < n; sent++) {
        struct link_frame *f = &frames[sent];
        uint32_t len = (uint32_t)(f->header_len + f->payload_len);
        struct record *r = reserve(to, len, CLOSING_SLACK);
        if (r == NULL)
            break;
        *r = (struct record){len, RECORD_FRAME, link->self};
        link_lay_out((uint8_t *)(r + 1), f);
        link_count_copied(link->nic, f->payload_len);
    }
    if (to && sent)
        ring(to, link->nic);
    pthread_mutex_unlock(&mutex);
    if (to == NULL)
        return n; /* closed: frames into the void, like on any wire */
    return sent ? sent : -EAGAIN;
}

/* Link operation. A frame is copied out before it is delivered, for link_deliver() may send (an acknowledgement),
 * which takes the mutex. Fillers do not count as slots. */
static int loop_poll(struct link *link, int budget)
{
    uint64_t aligned[(MAX_FRAME + 7) / 8];
    int n = 0;
    /* acquire: pairs with the senders' release, and says no more than that a look under the mutex pays. head is our
     * own. */
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
            link_deliver(link->nic, r.from->address, r.from, aligned, r.len);
        else if (r.type == RECORD_LOST)
            link_peer_lost(link->nic, r.from);
        n += r.type != RECORD_FILLER;
    }
    return n;
}

/* Link operation. The peer's struct outlives its NIC, so the pointer stays good when that closes. */
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

/* Link operation. Our own NIC is asked, too: a process may connect two VIs of one NIC. The list is copied first, for
 * loop_send takes the mutex itself; whoever closes in between takes the frame as any closed peer does: into the
 * void. */
static int loop_ask_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    struct link_peer *asked[256];
    int n = 0;
    pthread_mutex_lock(&mutex);
    for (struct link_peer *p = peers; p && n < 256; p = p->next)
        if (p->link && memcmp(p->address, address, 6) == 0)
            asked[n++] = p;
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < n; i++) {
        frame->header.dst_port = asked[i]->port;
        loop_send(link, asked[i], frame, 1);
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

/* Link operation. Every other NIC is told by a record behind the frames that it was sent, so it gets those first.
 * One whose queue has no room even for that is not told. */
static void loop_close(struct link *link)
{
    pthread_mutex_lock(&mutex);
    /* Nobody may write into the queue from here on: senders look at peer->link under this mutex. */
    link->self->link = NULL;
    for (struct link_peer *p = peers; p; p = p->next) {
        struct record *r = p->link ? reserve(p->link, 0, 0) : NULL;
        if (r) {
            *r = (struct record){0, RECORD_LOST, link->self};
            ring(p->link, link->nic);
        }
    }
    /* Nobody is left who could hold one of them as his peer. */
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

static void loop_descriptors(struct link *link, int *data_fd, int *control_fd)
{
    *data_fd = link->event_fd;
    *control_fd = -1;
}

/* Link operation. To look and to declare oneself asleep is one step under the mutex; so is to store a frame and to
 * ring. */
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
    /* Back to zero: a bell that rang while we woke up would end the next sleep at once. */
    ssize_t got = vk_read(link->event_fd, &count, sizeof count);
    (void)got;
}

static void loop_peer_address(const struct link_peer *peer, uint8_t address[6])
{
    memcpy(address, peer->address, 6);
}

const struct link_ops link_loop = {
    .name = "loop",
    .open = loop_open,
    .close = loop_close,
    .route = loop_route,
    .ask_all = loop_ask_all,
    .count_neighbours = loop_count_neighbours,
    .send = loop_send,
    .poll = loop_poll,
    .peer_address = loop_peer_address,
    .descriptors = loop_descriptors,
    .arm = loop_arm,
    .disarm = loop_disarm,
};
