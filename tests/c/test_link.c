/*
 * test_link.c - links by themselves: this program contains no provider. It opens two NICs' links of each kind that
 * needs no privilege, with a client of its own that records what arrives. It sends frames of all lengths from one to
 * the other. The first is a connection request by request_all(), by which the two stations learn of each other. Then
 * comes data by send().
 *
 * A link guarantees little (link/link.h). These links lose no frame while there is room: each frame arrives whole and
 * in order, is counted once on each side, and can be replied to.
 */
#include <errno.h>

#include "base/explain.h"
#include "check.h"
#include "link/link.h"
#include "link/udp.h"

/* check.h needs these functions of the provider, which this program does not contain. */
const char *viakit_last_error(void)
{
    return vk_explanation();
}

const char *viakit_return_name(int code)
{
    return code ? "(error)" : "VIP_SUCCESS";
}

#define LONGEST 4096

/* A client that records. */
struct client {
    struct link_client base; /* first: the services find the struct by it */
    const struct link_ops *ops;
    struct link *link;
    struct link_limits limits;
    uint64_t counters[VIAKIT_N_COUNTERS];
    unsigned n_requests, n_frames, n_lost_peers;
    struct wire_header last;
    uint8_t from[6], bytes[LONGEST];
    size_t len; /* of the payload of `last` */
};

static struct client *of(struct link_client *base)
{
    return (struct client *)(void *)base;
}

static void arrived(struct client *c, const uint8_t from[6], const struct wire_header *header, const void *payload,
                    size_t len)
{
    int kind = header->version_kind & 15;
    memcpy(c->from, from, 6);
    CHECK(len <= sizeof c->bytes);
    if (kind == WIRE_REQUEST) { /* repeated until it came; copies may still be on their way */
        c->n_requests++;
        return;
    }
    CHECK_EQ(kind, WIRE_SEND);
    memcpy(&c->last, header, sizeof c->last);
    memcpy(c->bytes, payload, len);
    c->len = len;
    c->n_frames++;
}

static void deliver(struct link_client *base, const uint8_t from[6], struct link_peer *peer, const void *frame,
                    size_t len)
{
    struct wire_header h;
    (void)peer;
    CHECK(len >= sizeof h);
    memcpy(&h, frame, sizeof h);
    arrived(of(base), from, &h, (const uint8_t *)frame + sizeof h, len - sizeof h);
}

static void deliver_parts(struct link_client *base, const uint8_t from[6], struct link_peer *peer,
                          const struct wire_header *header, const void *payload, size_t len)
{
    (void)peer;
    arrived(of(base), from, header, payload, len);
}

static void *place_ahead(struct link_client *base, const struct wire_header *last, size_t len)
{
    (void)base, (void)last, (void)len;
    return NULL;
}

static void peer_lost(struct link_client *base, struct link_peer *peer)
{
    (void)peer;
    of(base)->n_lost_peers++;
}

static int request_is_open(struct link_client *base, uint32_t request)
{
    (void)base, (void)request;
    return 1;
}

static int no_own_request(struct link_client *base, const struct link_frame *frame)
{
    (void)base, (void)frame;
    return 0;
}

static void ignore_port(struct link_client *base, uint16_t port)
{
    (void)base, (void)port;
}

static int lacks_nothing(struct link_client *base, uint16_t port)
{
    (void)base, (void)port;
    return 0;
}

static void ignore_address(struct link_client *base, const uint8_t address[6])
{
    (void)base, (void)address;
}

static void ignore_time(struct link_client *base, uint64_t at)
{
    (void)base, (void)at;
}

static int need_not_arrive(struct link_client *base, const struct wire_header *h)
{
    (void)base, (void)h;
    return 0;
}

static void ignore_flag(struct link_client *base, int flag)
{
    (void)base, (void)flag;
}

static void ignore_text(struct link_client *base, const char *text)
{
    (void)base, (void)text;
}

static void ignore_loss(struct link_client *base, struct link_peer *peer, const struct link_frame *frame,
                        const char *why)
{
    (void)base, (void)peer, (void)frame, (void)why;
}

static const struct link_services services = {
    .deliver = deliver,
    .deliver_parts = deliver_parts,
    .place_ahead = place_ahead,
    .peer_lost = peer_lost,
    .request_is_open = request_is_open,
    .matches_own_request = no_own_request,
    .report_no_address_space = ignore_port,
    .lacks_address_space = lacks_nothing,
    .report_no_nic = ignore_address,
    .timer = ignore_time,
    .must_arrive = need_not_arrive,
    .set_checksum_verified = ignore_flag,
    .discard_arrivals = ignore_flag,
    .report_trouble = ignore_text,
    .remark = ignore_text,
    .note_lost = ignore_loss,
};

static void open_client(struct client *c, const struct link_ops *ops, const char *device)
{
    viakit_nic_options options = {.size = sizeof options};
    memset(c, 0, sizeof *c);
    c->base = (struct link_client){.services = &services, .counters = c->counters};
    c->ops = ops;
    int error = ops->open(&c->base, device, &options, &c->link, &c->limits);
    if (error)
        FAIL("%s:%s does not open: %s (%s)", ops->about.name, device, strerror(-error), vk_explanation());
}

/* Both sides handle what is there. 1, so that it can stand in a condition. */
static int drive(struct client *a, struct client *b)
{
    struct client *both[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        if (both[i]->ops->control)
            both[i]->ops->control(both[i]->link);
        both[i]->ops->poll(both[i]->link, 64);
    }
    return 1;
}

static struct link_frame make_frame(const struct client *from, const struct client *to, int kind, uint32_t psn)
{
    struct link_frame f = {.header_len = sizeof f.header};
    f.header.version_kind = wire_version_kind(kind);
    f.header.dst_port = to->limits.port;
    f.header.src_port = from->limits.port;
    f.header.key = 1;
    f.header.psn = psn;
    return f;
}

#define REPEAT_S \
    0.02 /* requests are repeated, as the provider does: a link may lose them, and limits how many it serves */

/* A request of the form that the provider sends, to all NICs of the station. */
static void request(struct client *a, struct client *b)
{
    struct link_frame f = make_frame(a, b, WIRE_REQUEST, 0);
    f.header_len += sizeof f.block.connect;
    f.header.len = sizeof f.block.connect;
    f.block.connect = (struct wire_connect){.request = 7, .key = 1, .max_payload = 64};
    a->ops->request_all(a->link, b->limits.address, &f);
}

static void meet(struct client *a, struct client *b)
{
    double next = 0;
    WAIT_UNTIL((check_now() >= next ? (request(a, b), next = check_now() + REPEAT_S) : 0, drive(a, b), b->n_requests));
    CHECK(memcmp(b->from, a->limits.address, 6) == 0);
}

static struct link_peer *route(struct client *a, struct client *b)
{
    struct link_peer *peer = NULL;
    WAIT_UNTIL(a->ops->route(a->link, b->limits.address, b->limits.port, &peer) == 0 || !drive(a, b));
    CHECK(peer);
    return peer;
}

/* One attempt; 1 if the link took the frame. */
static int try_send(struct client *a, struct client *b, struct link_peer *peer, uint32_t psn, const struct iovec *iov)
{
    struct link_frame f = make_frame(a, b, WIRE_SEND, psn);
    f.header.len = (uint16_t)iov->iov_len;
    f.n_iov = iov->iov_len != 0;
    f.payload_len = iov->iov_len;
    f.iov = iov;
    int sent = a->ops->send(a->link, peer, &f, 1);
    CHECK(sent == 1 || sent == 0 || sent == -EAGAIN);
    return sent == 1;
}

static void send_and_check(struct client *a, struct client *b, struct link_peer *peer, uint32_t psn, size_t len)
{
    uint8_t payload[LONGEST];
    struct iovec iov = {payload, len};
    unsigned before = b->n_frames;
    for (size_t i = 0; i < len; i++)
        payload[i] = (uint8_t)(psn + i);
    WAIT_UNTIL(try_send(a, b, peer, psn, &iov) || !drive(a, b));
    WAIT_UNTIL(drive(a, b) && b->n_frames > before);
    CHECK_EQ(b->n_frames, before + 1);
    CHECK_EQ(b->last.psn, psn);
    CHECK_EQ(b->len, len);
    CHECK(memcmp(b->bytes, payload, len) == 0);
}

static void both_ways(const struct link_ops *ops, const char *device)
{
    static struct client a, b;
    snprintf(check_context, sizeof check_context, "%s:%s", ops->about.name, device);
    open_client(&a, ops, device);
    open_client(&b, ops, device);
    CHECK(a.limits.port != b.limits.port);
    CHECK(a.limits.max_payload >= WIRE_LEAST_PAYLOAD);
    meet(&a, &b);
    meet(&b, &a);
    struct link_peer *to_b = route(&a, &b), *to_a = route(&b, &a);
    size_t longest = a.limits.max_payload < LONGEST ? a.limits.max_payload : LONGEST;
    uint32_t psn = 1;
    for (size_t len = 0; len <= longest; len = len < 70                             ? len + 1
                                               : len * 2 > longest && len < longest ? longest
                                                                                    : len * 2) {
        send_and_check(&a, &b, to_b, psn++, len);
        send_and_check(&b, &a, to_a, psn++, len);
    }
    CHECK_EQ(a.n_lost_peers + b.n_lost_peers, 0);
    a.ops->close(a.link);
    b.ops->close(b.link);
}

static void wrong_devices(void)
{
    static const struct {
        const struct link_ops *ops;
        const char *device;
    } wrong[] = {{&link_eth, "no-such-interface"}, {&link_udp, "no such address"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        static struct client c;
        viakit_nic_options options = {.size = sizeof options};
        c.base = (struct link_client){.services = &services, .counters = c.counters};
        snprintf(check_context, sizeof check_context, "%s:%s", wrong[i].ops->about.name, wrong[i].device);
        CHECK(wrong[i].ops->open(&c.base, wrong[i].device, &options, &c.link, &c.limits) < 0);
        CHECK(*vk_explanation());
    }
}

#define LINK_X(name) &link_##name,
static const struct link_ops *const links[] = {LINKS(LINK_X)};

/* Returns whether the six bytes of 2001:db8::i lead back to it. */
static int is_learnt(unsigned i, int learn)
{
    union udp_name name = {.v6.sin6_family = AF_INET6}, found;
    uint8_t address[6];
    memcpy(&name.v6.sin6_addr, (uint8_t[16]){0x20, 0x01, 0x0d, 0xb8, [14] = (uint8_t)(i >> 8), [15] = (uint8_t)i}, 16);
    if (learn)
        udp_learn(&name);
    udp_pack(&name, 1, address);
    return udp_unpack(address, AF_INET6, &found) == 0 && udp_same_host(&name, &found);
}

/* udp keeps the last 1024 IPv6 addresses, however often the table has been filled. A known one replaces none. */
static void learnt_addresses(void)
{
    for (unsigned i = 0; i < 5000; i++) {
        snprintf(check_context, sizeof check_context, "address %u", i);
        CHECK(is_learnt(i, 1));
        CHECK(is_learnt(i, 1));
        CHECK(is_learnt(i < 1024 ? 0 : i - 1023, 0));
        CHECK(i < 1024 || !is_learnt(i - 1024, 0));
    }
}

int main(void)
{
    check_deadline(120);
    char name[40], station[40];
    snprintf(name, sizeof name, "test_link-%d", (int)getpid());
    /* A station of its own: request_all() reaches every NIC of a station, and another program's NIC would reply. */
    snprintf(station, sizeof station, "127.0.0.1:%d", 10000 + (int)(getpid() % 20000));
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (links[i]->about.named_by != VIAKIT_BY_INTERFACE) /* that needs a privilege */
            both_ways(links[i], links[i]->about.named_by == VIAKIT_BY_ADDRESS ? station : name);
    wrong_devices();
    learnt_addresses();
    return 0;
}
