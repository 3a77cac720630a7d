/*
 * Sending by UDP sockets: one system call per frame, or per *super-frame*: up to 64 KiB of frames of equal length
 * that the kernel, or the card, cuts into datagrams (UDP_SEGMENT). Where that is refused (an old kernel, a card
 * without checksums, a path narrower than the frames) the frames of a batch go by one sendmmsg. A datagram longer
 * than the path carries is cut by IP: slow, but it works until the connection is made anew.
 *
 * Errors: those that a sending call reports may be about any earlier datagram, for that is how the kernel passes on
 * what ICMP said. They are taken, and the call is made again; nobody is believed dead for one of them (udp_refused
 * counts).
 */
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>

#include "../base/atomic.h"
#include "../base/cancel.h"
#include "../base/copy.h"
#include "../base/crc32c.h"
#include "frame.h"
#include "seal.h"
#include "udp.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define MAX_IOV 1000
#define MAX_BATCH 64         /* frames of one call; the provider builds fewer */
#define SINGLES_FIRST 64     /* sends without super-frames after the path refused one; doubles ... */
#define SINGLES_LONGEST 8192 /* ... up to this */

/* What to do about a send that failed: 1 the datagram is as good as lost, 0 not now, -1 the kernel refuses the form,
 * 2 try again: the error was about an earlier datagram. ECONNREFUSED is ICMP's "port unreachable". On a lane it is
 * about the lane's peer, for no other is written to there; on the common socket it may be anybody's, and the error
 * queue says whose (take_errors in udp_receive.c). */
static int judge(struct link *link, struct link_peer *peer, int error, int is_super)
{
    switch (error) {
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
    case EINTR:
        return 0;
    case ECONNREFUSED:
        if (peer->lane)
            udp_refused(link, &peer->name);
        else
            link->errors = 1;
        return 2;
    case EHOSTUNREACH:
        link->errors |= peer->lane == 0;
        return 2;
    /* What a kernel, a card or a path says that cannot do super-frames; of a single datagram these mean that it is
     * no use to try again. */
    case EINVAL:
    case EMSGSIZE:
    case EIO:
    case EOPNOTSUPP:
    case ENOPROTOOPT:
        return is_super ? -1 : 1;
    default:
        /* EPERM of a firewall, ENETUNREACH, ENETDOWN: if it lasts, the peer does not answer and the connection ends. */
        return 1;
    }
}

/* One datagram or super-frame from pieces. 1 taken, or lost; 0 not now; -1 the form is refused. A lane is connected:
 * there the name is left out. Three tries, for each error of an earlier datagram that was waiting uses one up; after
 * that it counts as lost. */
static int put_message(struct link *link, struct link_peer *peer, struct msghdr *m)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        if (peer->lane == 0) {
            m->msg_name = &peer->name;
            m->msg_namelen = udp_name_len(&peer->name);
        }
        LINK_COUNT(link->nic, system_calls, 1);
        if (vk_sendmsg(link->sockets[peer->lane].fd, m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return 1;
        int verdict = judge(link, peer, errno, m->msg_controllen != 0);
        if (verdict != 2)
            return verdict;
    }
    return 1;
}

/* The same for bytes in one buffer, without a message's vector, which the kernel would have to fetch and check. */
static int put_bytes(struct link *link, struct link_peer *peer, const void *bytes, size_t len)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        int fd = link->sockets[peer->lane].fd;
        LINK_COUNT(link->nic, system_calls, 1);
        ssize_t sent = peer->lane ? vk_send(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL)
                                  : vk_sendto(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL, &peer->name.any,
                                              udp_name_len(&peer->name));
        if (vk_likely(sent >= 0))
            return 1;
        int verdict = judge(link, peer, errno, 0);
        if (verdict != 2)
            return verdict;
    }
    return 1;
}

int udp_put(struct link *link, int fd, const union udp_name *to, const void *bytes, size_t len)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        LINK_COUNT(link->nic, system_calls, 1);
        if (vk_sendto(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL, &to->any, udp_name_len(to)) >= 0)
            return 0;
        if (errno != ECONNREFUSED && errno != EHOSTUNREACH)
            return -errno;
        link->errors = 1; /* about an earlier datagram */
    }
    return -EHOSTUNREACH;
}

/* Link operation. */
int udp_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS], const void *payload,
                   size_t len)
{
    const size_t header_len = sizeof(struct wire_header);
    uint8_t *p = link->small;
    link_seal_short(p, header, payload, len);
    if (put_bytes(link, peer, p, header_len + len) == 0)
        return 0;
    link_count_copied(link->nic, len);
    return 1;
}

/* One frame, one datagram, with a sum over all of it: UDP's own is weak (16 bits), and where it is the only one
 * (super-frames) it is so for the sake of speed. */
static int send_single(struct link *link, struct link_peer *peer, struct link_frame *f)
{
    link_seal(f);
    if (vk_likely(f->payload_len <= UDP_SMALL)) { /* header and payload in one buffer */
        uint8_t *end = link_lay_out(link->small, f);
        link_count_copied(link->nic, f->payload_len);
        return put_bytes(link, peer, link->small, (size_t)(end - link->small));
    }
    struct iovec iov[MAX_IOV];
    size_t n = 2;
    iov[0] = (struct iovec){&f->header, sizeof f->header};
    iov[1] = (struct iovec){&f->block, f->header_len - sizeof f->header};
    for (uint32_t i = 0; i < f->n_iov && n < MAX_IOV; i++)
        iov[n++] = f->iov[i];
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    return put_message(link, peer, &m);
}

/* How many of the frames go together. */
static int run_length(const struct link *link, const struct link_frame *frames, int n)
{
    return link_run_length(frames, n < MAX_BATCH ? n : MAX_BATCH, link->super_bytes, MAX_IOV);
}

/* Header, block and payload of each frame, one behind the other. Returns the pieces used. */
static size_t lay_out(const struct link *link, struct link_frame *f, struct iovec *iov)
{
    size_t k = 0;
    link->crc_always ? link_seal(f) : link_seal_header(f); /* every datagram has UDP's as well */
    iov[k++] = (struct iovec){&f->header, sizeof f->header};
    if (f->header_len > sizeof f->header)
        iov[k++] = (struct iovec){&f->block, f->header_len - sizeof f->header};
    for (uint32_t i = 0; i < f->n_iov; i++)
        iov[k++] = f->iov[i];
    return k;
}

/* One call for all of them; the length to cut at goes along as a control message, for it differs from call to call.
 * Only such messages have one, so put_message() can tell super-frames by it. All or none: what it returns holds for
 * each frame. */
static int send_super(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    struct iovec iov[MAX_IOV];
    union {
        struct cmsghdr head;
        uint8_t room[CMSG_SPACE(sizeof(uint16_t))];
    } control;
    /* The length of each datagram but the last. */
    uint16_t segment = (uint16_t)(frames[0].header_len + frames[0].payload_len);
    size_t k = 0;
    for (int i = 0; i < n; i++)
        k += lay_out(link, &frames[i], iov + k);
    memset(&control, 0, sizeof control);
    control.head =
        (struct cmsghdr){.cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof segment)};
    memcpy(CMSG_DATA(&control.head), &segment, sizeof segment);
    struct msghdr m = {
        .msg_iov = iov, .msg_iovlen = k, .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof segment)};
    int sent = put_message(link, peer, &m);
    if (sent == 1) {
        LINK_COUNT(link->nic, super_frames_sent, 1);
        peer->next_singles = 0;
    }
    return sent;
}

/* The same without segmentation: a datagram each, by one call. Returns how many were taken. A part may be taken, in
 * order. */
static int send_many(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    struct iovec iov[MAX_IOV];
    struct mmsghdr m[MAX_BATCH];
    size_t k = 0;
    memset(m, 0, (size_t)n * sizeof *m);
    for (int i = 0; i < n; i++) {
        m[i].msg_hdr.msg_iov = iov + k;
        m[i].msg_hdr.msg_iovlen = lay_out(link, &frames[i], iov + k);
        k += m[i].msg_hdr.msg_iovlen;
        if (peer->lane == 0) {
            m[i].msg_hdr.msg_name = &peer->name;
            m[i].msg_hdr.msg_namelen = udp_name_len(&peer->name);
        }
    }
    LINK_COUNT(link->nic, system_calls, 1);
    /* An error is reported for the first datagram only; one further back just ends the count. */
    int sent = vk_sendmmsg(link->sockets[peer->lane].fd, m, (unsigned)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0)
        return sent;
    return judge(link, peer, errno, 0) !=
           0; /* an error concerns the first: lost, or what concerned an earlier one is out of the way */
}

/* The path, or the kernel, refused a super-frame: without them for a while, and longer each time. The path may
 * change, so it is tried again: after 64 sends, 128, and so on, until one goes through and next_singles is 0 again. */
static void go_without(struct link_peer *peer)
{
    peer->next_singles = peer->next_singles ? peer->next_singles * 2 : SINGLES_FIRST;
    if (peer->next_singles > SINGLES_LONGEST)
        peer->next_singles = SINGLES_LONGEST;
    peer->singles = peer->next_singles;
}

/* Link operation. Runs of equal frames go together, in whichever way works for the peer just now; all others alone. */
int udp_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    int done = 0;
    while (done < n) {
        int run = n - done == 1 ? 1 : run_length(link, frames + done, n - done), sent;
        if (run == 1)
            sent = send_single(link, peer, frames + done);
        else if (link->super_frames && peer->singles == 0) {
            sent = send_super(link, peer, frames + done, run);
            if (sent < 0) {
                go_without(peer);
                continue;
            }
            sent *= run;
        } else {
            peer->singles -= peer->singles != 0;
            sent = send_many(link, peer, frames + done, run);
        }
        if (sent <= 0)
            break;
        done += sent;
    }
    return done ? done : -EAGAIN;
}
