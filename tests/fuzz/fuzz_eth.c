/*
 * eth's handling of a slot of one of its rings, with a frame or a super-frame, or with the beginning of a super-frame
 * that waits in the socket's queue. The frames are those of machine.h. The first bytes of the input determine how each
 * arrives:
 *
 *   how: | four ways, taken in turn, of four bytes each | then the input of the machine |
 *   way: | form, and what is wrong | copies, each with the next psn | what is wrong in the queue | what to add to a length |
 *
 * The link's source is compiled into this program.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cancel.h" /* before its function is replaced */

static ssize_t fuzz_recvmsg(int fd, struct msghdr *m, int flags);

#define vk_recvmsg fuzz_recvmsg
#include "link/eth.c"
#include "link/eth_receive.c"
#undef vk_recvmsg

#include "hollow.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "machine.h"
#include "super.h"
#include "via/nic.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define WAYS 4
enum {
    DRESSED = 3, /* either bit */
    OTHERS_ADDRESS = 4,
    OTHER_TYPE = 8,
    NOT_SEALED = 16,
    QUEUED = 32, /* the slot has its beginning only */
    SHORTER = 64,
    RAW = 128
};
/* In the byte of the queue. CHANGED: after the slot was filled. */
enum { NO_ROOM = 1, MISSING = 2, CHANGED = 4, DOWN = 8, LEFT = 16 };
#define CHECKED_ELSEWHERE 1 /* in another byte: the kernel says that UDP's checksum is right, or will be */

static uint8_t ways[WAYS][4];
static unsigned next_way;
static struct link eth;
static uint8_t *block;       /* what lies in the slot ends where this does */
static const uint8_t *queue; /* the super-frame in the socket's queue, NULL: none */
static size_t queue_len;

static unsigned queue_wrong; /* bits of the way's byte */

/* An error of the socket and the super-frame of a slot that was forgotten come before the one that the slot announces. */
static ssize_t fuzz_recvmsg(int fd, struct msghdr *m, int flags)
{
    static uint8_t other[SUPER_SLOT];
    (void)fd;
    (void)flags;
    if (queue_wrong & DOWN) {
        queue_wrong &= ~(unsigned)DOWN;
        errno = ENETDOWN;
        return -1;
    }
    if (queue && queue_wrong & LEFT) {
        queue_wrong &= ~(unsigned)LEFT;
        memcpy(other, queue, queue_len);
        other[queue_len / 2]++;
        other[sizeof(struct ether_header) + IP_UDP_LEN + offsetof(struct wire_header, psn)]++;
        return fuzz_scatter(m, other, queue_len);
    }
    const uint8_t *waiting = queue;
    queue = NULL;
    if (waiting)
        return fuzz_scatter(m, waiting, queue_len);
    errno = EAGAIN;
    return -1;
}

/* Ethernet, and with it IPv4 and UDP if dressed, around what the machine wants to arrive; then the parser. */
static int carry(struct hollow *h, const uint8_t *frame, size_t len)
{
    const uint8_t *way = ways[next_way++ % WAYS];
    int form = way[0], dressed = form & DRESSED;
    /* Copies that fit a super-frame; each has the next sequence number. */
    unsigned n = dressed ? 1 + way[1] % 70 : 1;
    if (n * len > MOST_BYTES - UDP_LEN - IP_LEN)
        n = 1;
    size_t head = sizeof(struct ether_header) + (dressed ? IP_UDP_LEN : 0), all = head + n * len;
    if (form & SHORTER && all > way[3])
        all -= way[3]; /* the end is missing */
    uint8_t *p = block + SUPER_SLOT - all, *whole = malloc(head + n * len);
    if (whole == NULL)
        abort();
    memset(whole, 0, head);
    memcpy(whole, eth.address, 6);
    whole[5] ^= form & OTHERS_ADDRESS ? 1 : 0;
    memcpy(whole + 6, hollow_unknown_peer, 6);
    put16(whole + 12, form & OTHER_TYPE ? 0x0806 : dressed ? ETHERTYPE_IP : WIRE_ETHERTYPE);
    if (dressed) {
        uint32_t udp_len = (uint32_t)(UDP_LEN + n * len);
        whole[14] = 0x45;
        whole[14 + 9] = 17;
        if (form & RAW) /* another length than it has */
            udp_len += (uint32_t)(int8_t)way[3];
        put16(whole + 14 + IP_LEN + 4, udp_len);
        if (way[1] & CHECKED_ELSEWHERE)
            put16(whole + 14 + IP_LEN + 6, 0xFFFF); /* any sum: the kernel has checked it, or will not */
    }
    fuzz_put_copies(whole + head, frame, len, n, !(form & NOT_SEALED));
    eth.client = &h->nic->link_client;
    uint32_t vouched = way[1] & CHECKED_ELSEWHERE ? TP_STATUS_CSUMNOTREADY : 0;
    /* The slot has room for the first segment, and some bytes more. */
    size_t have = dressed && form & QUEUED && all > head + len + way[3] ? head + len + way[3] : all;
    p += all - have;
    memcpy(p, whole, have);
    if (have == all) {
        deliver_slot(&eth, p, all, vouched);
    } else {
        if (way[2] & CHANGED)
            whole[head + (size_t)way[2] * way[3] % (all - head)] ^= way[2];
        queue = way[2] & (NO_ROOM | MISSING) ? NULL : whole;
        queue_len = all;
        queue_wrong = way[2];
        deliver_queued(&eth, p, have, all, vouched | (way[2] & NO_ROOM ? 0 : TP_STATUS_COPY));
        queue = NULL;
    }
    free(whole);
    return (int)n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < sizeof ways)
        return 0;
    if (block == NULL) {
        block = hollow_block(SUPER_SLOT);
        eth.fd = eth.super_fd = eth.stream_fd = -1;
        eth.queued = hollow_block(SUPER_SLOT);
        memcpy(eth.address, "\x02\x66\x75\x7a\x7a\x02", 6);
        machine_carry(carry);
    }
    memcpy(ways, data, sizeof ways);
    next_way = 0;
    machine_run(data + sizeof ways, len - sizeof ways, 1);
    return 0;
}
