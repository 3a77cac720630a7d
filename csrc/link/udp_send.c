/*
 * Sending by UDP sockets: one system call per frame, or per *super-frame*: up to 64 KiB of frames of equal length that
 * the kernel or the card cuts into datagrams (UDP_SEGMENT). If that is refused (an old kernel, a card without
 * checksums, a path narrower than the frames), the frames of a batch are sent with one sendmmsg. IP fragments a
 * datagram that is longer than the path allows. This is slow, but works until the connection is made anew.
 *
 * Errors: a sending call may report an ICMP error about any earlier datagram. Such an error is cleared, and the call is
 * repeated. A single error does not mean that the peer is gone (udp_refused counts them).
 *
 *   frames of one length, several, the path accepts super-frames      send_super    one sendmsg, one message
 *   the same, but the path or the kernel refused one lately            send_many     one sendmmsg, n messages
 *   one frame                                                          send_single   one send or sendmsg
 *
 * Only the NIC's owner calls these functions. None blocks: if the socket's send buffer is full, the frames are not
 * accepted, and the provider tries again. The kernel copies all bytes before a call returns, so payloads stay the
 * caller's, and link->small can be used again at once.
 */
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/copy.h"
#include "base/crc32c.h"
#include "link/frame_layout.h"
#include "link/seal.h"
#include "link/udp.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define MAX_IOV 1000         /* below the kernel's UIO_MAXIOV, 1024: a longer vector is refused with EMSGSIZE */
#define MAX_BATCH 64         /* the most frames of one call (the provider builds fewer) */
#define SINGLES_FIRST 64     /* sends without super-frames after the path refused one, doubled each time ... */
#define SINGLES_LONGEST 8192 /* ... up to this */

/* Classifies the error of a failed send: 1 the datagram is lost, 0 retry later, -1 the kernel refuses the form, 2 try
 * again at once, because the error was about an earlier datagram. ECONNREFUSED is ICMP's "port unreachable". On a lane
 * it is about the lane's peer, the only destination there. On the unconnected socket the error queue has the
 * destination (take_errors in udp_receive.c). */
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
    /* Errors of a kernel, card or path without support for super-frames. A single datagram would fail again. */
    case EINVAL:
    case EMSGSIZE:
    case EIO:
    case EOPNOTSUPP:
    case ENOPROTOOPT:
        return is_super ? -1 : 1;
    default:
        /* EPERM of a firewall, ENETUNREACH, ENETDOWN: if it lasts, the peer does not reply and the connection ends. */
        return 1;
    }
}

/* Sends one datagram or super-frame from pieces. Returns 1 if it was accepted or is lost, 0 for a later retry, -1 if
 * the form is refused. A lane is connected, so its messages carry no name. There are three tries, because each pending
 * error of an earlier datagram uses up one. After that the datagram counts as lost. */
static int put_message(struct link *link, struct link_peer *peer, struct msghdr *m)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        if (peer->lane == 0) {
            m->msg_name = &peer->name;
            m->msg_namelen = udp_name_len(&peer->name);
        }
        LINK_COUNT(link->client, system_calls, 1);
        if (vk_sendmsg(link->sockets[peer->lane].fd, m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return 1;
        int verdict = judge(link, peer, errno, m->msg_controllen != 0);
        if (verdict != 2)
            return verdict;
    }
    return 1;
}

/* Like put_message for bytes in one buffer, without a vector, which the kernel would have to copy and check. Never -1,
 * because a single datagram has no other form. */
static int put_bytes(struct link *link, struct link_peer *peer, const void *bytes, size_t len)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        int fd = link->sockets[peer->lane].fd;
        LINK_COUNT(link->client, system_calls, 1);
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

/* An error of an earlier datagram is cleared, and the call repeated. */
int udp_put(struct link *link, int fd, const union udp_name *to, const void *bytes, size_t len)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        LINK_COUNT(link->client, system_calls, 1);
        if (vk_sendto(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL, &to->any, udp_name_len(to)) >= 0)
            return 0;
        if (errno != ECONNREFUSED && errno != EHOSTUNREACH)
            return -errno;
        link->errors = 1; /* about an earlier datagram */
    }
    return -EHOSTUNREACH;
}

/* Link operation. The frame gets a CRC32C over all of it, as in send_single(). */
int udp_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS], const void *payload,
                   size_t len)
{
    const size_t header_len = sizeof(struct wire_header);
    uint8_t *p = link->small;
    link_seal_short(p, header, payload, len);
    if (put_bytes(link, peer, p, header_len + len) == 0)
        return 0;
    link_count_copied(link->client, len);
    return 1;
}

/* Sends one frame as one datagram with a CRC32C over all of it, because UDP's own checksum is weak (16 bits). Only
 * super-frames rely on UDP's alone, for the sake of speed. */
static int send_single(struct link *link, struct link_peer *peer, struct link_frame *f)
{
    link_seal(f);
    if (vk_likely(f->payload_len <= UDP_SMALL)) { /* header and payload in one buffer */
        uint8_t *end = link_lay_out(link->small, f);
        link_count_copied(link->client, f->payload_len);
        return put_bytes(link, peer, link->small, (size_t)(end - link->small));
    }
    struct iovec iov[MAX_IOV];
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = link_gather(f, iov)};
    return put_message(link, peer, &m);
}

/* Returns how many of the frames can travel together. */
static int run_length(const struct link *link, const struct link_frame *frames, int n)
{
    return link_run_length(frames, n < MAX_BATCH ? n : MAX_BATCH, link->super_bytes, MAX_IOV);
}

/* Seals a frame and lists its pieces. Returns their number. */
static size_t lay_out(const struct link *link, struct link_frame *f, struct iovec *iov)
{
    link->crc_always ? link_seal(f) : link_seal_header(f); /* every datagram has UDP's checksum as well */
    return link_gather(f, iov);
}

/* Sends all frames with one call. The segment length is passed as a control message, because it differs from call to
 * call. Only super-frames have a control message, so put_message() recognizes them by it. All or none: the result holds
 * for each frame. */
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
        LINK_COUNT(link->client, super_frames_sent, 1);
        peer->next_singles = 0;
    }
    return sent;
}

/* Sends the frames without segmentation: one datagram each, with one call. Returns how many were accepted, in order; it
 * may be a part of them. */
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
    LINK_COUNT(link->client, system_calls, 1);
    /* An error is reported for the first datagram only. An error of a later one just ends the count. */
    int sent = vk_sendmmsg(link->sockets[peer->lane].fd, m, (unsigned)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0)
        return sent;
    return judge(link, peer, errno, 0) !=
           0; /* the first datagram is lost, or an earlier datagram's error has been cleared */
}

/* The path or the kernel refused a super-frame: send single datagrams for a while, longer each time. The path may
 * change, so super-frames are tried again after 64 sends, 128, and so on. A success resets next_singles to 0. */
static void go_without(struct link_peer *peer)
{
    peer->next_singles = peer->next_singles ? peer->next_singles * 2 : SINGLES_FIRST;
    if (peer->next_singles > SINGLES_LONGEST)
        peer->next_singles = SINGLES_LONGEST;
    peer->singles = peer->next_singles;
}

/* Link operation. Sends runs of equal frames together, in the way that works for the peer at present; others alone. */
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
