/* Frames of the input's making: right in all but what it says is to be wrong, so that each check of the receiver is
 * reached. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "machine_inside.h"
#include "via/connect/proof.h"
#include "via/limits.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

/* Before and after a frame: replies to unknown peers may not be longer than their frames, and no VI without a
 * connection may receive. */
static void deliver(struct machine *x, uint8_t *frame, size_t len)
{
    struct hollow *h = &x->w->h;
    struct wire_header f;
    uint64_t frames = h->n_sent, bytes = h->bytes_sent;
    int is_answer = h->nic->deferred != NULL; /* an older answer may go with it */
    int connected = x->vi->state == VIP_STATE_CONNECTED;
    uint32_t received = x->vi->recv.done;
    if (len >= sizeof f) {
        memcpy(&f, frame, sizeof f);
        struct via_vi *vi = f.dst_vi < VIA_MAX_VI ? h->nic->vi_by_number[f.dst_vi] : NULL;
        /* A frame with the key of a connection is not that of an unknown peer. */
        is_answer |= vi && (vi->key == f.key || vi->peer_key == f.immediate);
        if (vi && vi == x->w->bystander && (vi->key == f.key || vi->peer_key == f.immediate))
            x->bystander_hit = 1;
    }
    uint64_t n = (uint64_t)hollow_deliver(h, frame, len);
    frames = h->n_sent - frames;
    bytes = h->bytes_sent - bytes;
    HOLLOW_CHECK(connected || x->vi->recv.done == received, "a VI without a connection received something");
    /* Even a peer may not make this side send without measure. */
    HOLLOW_CHECK(frames <= 64 * n, "%lu frames sent because of %lu", (unsigned long)frames, (unsigned long)n);
    HOLLOW_CHECK(is_answer || (frames <= n && bytes <= len * n),
                 "%lu times %zu bytes of an unknown peer were answered by %lu in %lu frames", (unsigned long)n, len,
                 (unsigned long)bytes, (unsigned long)frames);
}

/* Flags and checksum as a link would set them that checks every byte. */
void machine_seal(uint8_t *frame, size_t len)
{
    struct wire_header h;
    memcpy(&h, frame, sizeof h);
    h.flags |= WIRE_FLAG_CRC;
    h.crc = 0;
    h.crc = vk_crc32c(vk_crc32c(0, &h, sizeof h), frame + sizeof h, len - sizeof h);
    memcpy(frame, &h, sizeof h);
}

/* The defect of a frame. */
enum {
    BAD_CRC = 1,
    BAD_KEY = 2,
    BAD_VI = 4,
    BAD_PORT = 8,
    BAD_VERSION = 16,
    BAD_LEN = 32,
    TO_OTHER = 64,
    NO_CRC = 128
};

/* An address in one of the areas or near its ends, or near 2^64; with its handle, the next generation's, or one that is
 * made up. */
uint64_t machine_aim(struct machine *x, VIP_MEM_HANDLE *handle)
{
    uint32_t which = u8(x), offset = u16(x);
    size_t len;
    uint8_t *p = machine_area(x->w, (int)(which & 15) % N_AREAS, &len);
    *handle = x->w->handles[(which & 15) % N_AREAS];
    if (which & 0x10)
        *handle += 0x10000; /* the next generation */
    if (which & 0x20)
        *handle = offset << 16 | which;
    uint64_t base = (uint64_t)(uintptr_t)(which & 0x40 ? p + len : p);
    return (which & 0x80 ? 0 - (uint64_t)offset : base) + (uint64_t)(int64_t)(int16_t)offset;
}

/* The block of an RDMA write: area, offset, length. */
static size_t put_write(struct machine *x, uint8_t *p)
{
    struct wire_write w;
    w.address = machine_aim(x, &w.handle);
    w.len = u16(x);
    if (w.len & 0x8000)
        w.len = (uint32_t)(int16_t)w.len; /* lengths near 4 GiB */
    memcpy(p, &w, sizeof w);
    return sizeof w;
}

/* A request to read, or a piece of what was read. */
static size_t put_read(struct machine *x, uint8_t *p, int is_request, uint32_t next)
{
    if (is_request) {
        struct wire_read r = {0};
        uint32_t len = u16(x), bits = u16(x);
        VIP_MEM_HANDLE handle;
        r.address = machine_aim(x, &handle);
        r.handle = handle;
        r.next = next;
        r.piece = bits >> 12 == 15 ? len & 1023 : CHUNK - 8;
        r.len = len & 0x8000 ? (uint32_t)(int16_t)len : len;
        r.wanted = (uint64_t)bits << (bits & 63) | (bits >> 8);
        memcpy(p, &r, sizeof r);
        return sizeof r;
    }
    struct wire_read_data d = {u8(x) * 8, u16(x)};
    memcpy(p, &d, sizeof d);
    return sizeof d;
}

/* References into "the peer's memory": odd addresses cannot be read. */
static size_t put_references(struct machine *x, uint8_t *p)
{
    uint32_t n = u8(x) & 7;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t len = u16(x);
        struct wire_reference r = {0x1000 + (u8(x) & 1), len & 0x8000 ? (uint64_t)(int64_t)(int16_t)len : len};
        memcpy(p + i * sizeof r, &r, sizeof r);
    }
    return n * sizeof(struct wire_reference);
}

/* Behind the block of a frame between VIs with a secret: a proof that is right for this frame, as far as there is
 * something that it can be right for, or bytes of the input's. `at` holds the two names of a request. */
static size_t put_proof(struct machine *x, uint8_t *at, const struct wire_connect *c, int kind, int right)
{
    const struct via_nic *nic = x->w->h.nic;
    const struct via_secret *secret = &x->vi->proof->secret;
    struct wire_proof proof;
    uint8_t transcript[32];
    memset(&proof, (int)u8(x), sizeof proof);
    struct conn_side peer = {hollow_unknown_peer, PEER_PORT, PEER_VI, c, proof.nonce};
    if (kind == WIRE_REQUEST) {
        if (right && c->wanted_len + c->own_len <= 2)
            conn_proof_request(secret, &peer, (struct conn_names){at, at + c->wanted_len}, proof.mac);
        memcpy(at + 2, &proof, WIRE_REQUEST_PROOF);
        return 2 + WIRE_REQUEST_PROOF;
    }
    if (right && kind == WIRE_ACCEPT && nic->requests && nic->requests->vi->proof) {
        const struct link_frame *request = &nic->requests->frame;
        struct conn_side us = conn_proof_requester(nic, request);
        conn_proof_transcript(secret, &us, conn_proof_names(request), &peer, transcript);
        conn_proof_accept(secret, transcript, proof.mac);
    } else if (right && kind == WIRE_CONFIRM && nic->conns)
        conn_proof_confirm_mac(secret, nic->conns->transcript, c, proof.mac);
    memcpy(at, &proof, sizeof proof);
    return sizeof proof;
}

/* The connection block of requests, acceptances and the like. Fields that the input does not change are valid. */
static size_t put_connect(struct machine *x, uint8_t *p, int kind)
{
    uint32_t what = u8(x), level = u8(x);
    struct via_request *r = x->w->h.nic->requests;
    struct wire_connect c = {.request = r && !(what & 1) ? r->number : 7 + (what >> 6),
                             .key = kind == WIRE_REQUEST || kind == WIRE_ACCEPT || what & 2 ? PEER_KEY : x->vi->key,
                             .first_psn = PEER_PSN,
                             .max_transfer = what & 4 ? u16(x) : MAX_TRANSFER,
                             .qos = what & 8 ? u16(x) : 0,
                             .ptag = level >> 4,
                             .reliability = level & 8 ? (uint16_t)(level & 7) : x->vi->attributes.ReliabilityLevel,
                             .max_payload = what & 16 ? (uint16_t)u16(x) : CHUNK,
                             .rdma_write = 1,
                             .lossless = (level >> 5) & 1,
                             .wanted_len = 1,
                             .own_len = 1};
    uint8_t names[2] = {'f', 'g'};
    if (what & 32) {
        c.wanted_len = (uint8_t)u8(x);
        c.own_len = (uint8_t)u8(x);
        names[0] = (uint8_t)u8(x);
    }
    int proven = x->vi->proof && level & 0x40;
    c.proof = proven ? WIRE_PROOF : 0;
    memcpy(p, &c, sizeof c);
    memcpy(p + sizeof c, names, 2);
    return sizeof c + (proven ? put_proof(x, p + sizeof c, &c, kind, level & 0x80) : 2);
}

/* A frame that is right but for what `bad` says. Flags are the input's own; what follows the header goes by the
 * kind. */
void machine_op_frame(struct machine *x)
{
    static uint8_t frame[HOLLOW_FRAME_MAX];
    uint32_t kind = u8(x), bad = u8(x), flags = u8(x), shift = u8(x), len = u8(x);
    struct via_vi *to = bad & TO_OTHER ? x->other : x->vi;
    struct wire_header h = {.version_kind = wire_version_kind((int)(kind & 15)),
                            .flags = (uint8_t)(flags & ~WIRE_FLAG_CRC),
                            .dst_port = x->w->h.nic->limits.port,
                            .dst_vi = to->number,
                            .src_port = PEER_PORT,
                            .src_vi = PEER_VI,
                            .key = to->key,
                            .immediate = kind & 0x10 ? to->peer_key : u8(x)};
    /* turn: distances from the expected number, and from what was sent, in -8..7 */
    h.psn = to->expected_psn + (uint32_t)((int32_t)((shift & 15) ^ 8) - 8);
    h.ack = (kind & 0x20 ? to->high_psn : to->una_psn) + (uint32_t)((int32_t)((shift >> 4) ^ 8) - 8);
    size_t n = sizeof h;
    if (kind & 0x40)
        len = u16(x) & 2047;
    memset(frame + n, 0xEE, 16);
    if ((kind & 15) == WIRE_WRITE && flags & WIRE_FLAG_FIRST)
        n += put_write(x, frame + n);
    if ((kind & 15) == WIRE_READ) { /* stands outside the sequence: psn is the number of a request, from 0 on */
        h.psn = shift & 15;
        if (flags & WIRE_FLAG_FIRST || !(flags & WIRE_FLAG_LAST) || (len && len != WIRE_READ_DENIED)) /* or no data */
            n += put_read(x, frame + n, flags & WIRE_FLAG_FIRST, to->expected_psn + (h.ack - to->una_psn));
    }
    if ((kind & 15) >= WIRE_REQUEST)
        n += put_connect(x, frame + n, (int)(kind & 15));
    else if (flags & WIRE_FLAG_REFERENCE)
        n += put_references(x, frame + n);
    else {
        memset(frame + n, (int)shift, len);
        n += len;
    }
    h.len = (uint16_t)(n - sizeof h);
    if (bad & BAD_KEY && shift >> 4 == 14) /* as an idle VI remembers its peer */
        h.src_port = h.src_vi = 0, h.key = 0;
    else if (bad & BAD_KEY)
        h.key ^= 1u << (shift & 31);
    if (bad & BAD_VI)
        h.dst_vi = (uint16_t)u16(x);
    if (bad & BAD_PORT)
        h.dst_port = (uint16_t)(shift & 1 ? 0 : h.dst_port + shift);
    if (bad & BAD_VERSION)
        h.version_kind ^= (uint8_t)(0x10 << (shift & 3));
    if (bad & BAD_LEN)
        h.len = (uint16_t)(h.len + (int8_t)u8(x));
    memcpy(frame, &h, sizeof h);
    /* Links that check are given frames that are sealed, others frames that are not; NO_CRC turns it round. */
    if ((x->w->h.kind == HOLLOW_ETHERNET) != !!(bad & NO_CRC) && (size_t)h.len + sizeof h <= sizeof frame)
        machine_seal(frame, sizeof h + h.len);
    if (bad & BAD_CRC)
        frame[shift % n] ^= 1;
    deliver(x, frame, n);
}

/* Bytes as they come: mostly dropped at the first check, but for frames that no field of above can make. */
void machine_op_raw(struct machine *x)
{
    static uint8_t frame[256];
    uint32_t len = u8(x);
    for (uint32_t i = 0; i < len; i++)
        frame[i] = (uint8_t)u8(x);
    deliver(x, frame, len);
}
