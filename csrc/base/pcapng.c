/*
 * The blocks of a pcapng file. The numbers of blocks and options are those of the draft, sections 3.5 and 4.1 to 4.6.
 *
 *     | type | length | fields ... | options, each: code, length, value padded to 4 bytes | end of options | length |
 *
 * The length stands at both ends, so that a file can be read backwards. It counts the whole block, in multiples of 4.
 * Numbers are in this machine's byte order, which the section header shows. Only whole blocks are written. If one does
 * not fit, the buffer is unchanged, and the function returns 0; else it returns the block's length.
 */
#include "base/pcapng.h"

#include <string.h>

enum { SECTION = 0x0A0D0D0A, INTERFACE = 1, STATISTICS = 5, PACKET = 6 };
enum { OPT_END = 0, OPT_COMMENT = 1 };
enum { SHB_OS = 3, SHB_APPLICATION = 4 };
enum { IF_NAME = 2, IF_DESCRIPTION = 3, IF_MAC = 6, IF_TSRESOL = 9 };
enum { EPB_FLAGS = 2, EPB_DROPCOUNT = 4 };
enum { ISB_RECEIVED = 4, ISB_DROPPED = 5 };

#define NANOSECONDS 9 /* if_tsresol: a negative power of ten */

/* A block under construction. Data is appended here, and removed as a whole if the block does not fit. */
struct block {
    struct pcapng_buffer *b;
    size_t start;
    int full;
};

/* Appends data, padded with zeros. After the first piece that does not fit, nothing is appended. */
static void put(struct block *k, const void *data, size_t len)
{
    size_t padded = (len + 3) & ~(size_t)3;
    if (k->full || k->b->size - k->b->used < padded) {
        k->full = 1;
        return;
    }
    if (len)
        memcpy(k->b->bytes + k->b->used, data, len);
    memset(k->b->bytes + k->b->used + len, 0, padded - len);
    k->b->used += padded;
}

/* Two numbers of 16 bits, in the order of the file. */
static void put16(struct block *k, uint16_t low, uint16_t high)
{
    uint16_t both[2] = {low, high};
    put(k, both, sizeof both);
}

static void put32(struct block *k, uint32_t v)
{
    put(k, &v, sizeof v);
}

/* Begins a block: its type, and a place for the length. */
static struct block begin(struct pcapng_buffer *b, uint32_t type)
{
    struct block k = {b, b->used, 0};
    put32(&k, type);
    put32(&k, 0); /* the length, set by end() */
    return k;
}

/* Writes the length at the end and at the beginning. */
static size_t end(struct block *k)
{
    uint32_t len = (uint32_t)(k->b->used - k->start) + 4;
    put32(k, len);
    if (k->full) {
        /* Also removes the pieces that did fit. */
        k->b->used = k->start;
        return 0;
    }
    memcpy(k->b->bytes + k->start + 4, &len, sizeof len);
    return len;
}

/* Appends an option. Its length does not include the padding. */
static void option(struct block *k, uint16_t code, const void *value, size_t len)
{
    put16(k, code, (uint16_t)len);
    put(k, value, len);
}

/* Appends no option for an empty text. Lengths have 16 bits, so long texts are cut. */
static void text_option(struct block *k, uint16_t code, const char *text)
{
    size_t len = text ? strlen(text) : 0;
    if (len)
        option(k, code, text, len < 60000 ? len : 60000);
}

/* The upper half comes first in any byte order. */
static void put_time(struct block *k, uint64_t time)
{
    put32(k, (uint32_t)(time >> 32));
    put32(k, (uint32_t)time);
}

/* The section's length is -1, which means "unknown": blocks will follow, and pipes cannot be rewound. */
size_t pcapng_section(struct pcapng_buffer *b, const char *application, const char *comment)
{
    const uint64_t unknown_length = UINT64_MAX;
    struct block k = begin(b, SECTION);
    put32(&k, 0x1A2B3C4D); /* shows the byte order */
    put16(&k, 1, 0);       /* version */
    put(&k, &unknown_length, sizeof unknown_length);
    text_option(&k, OPT_COMMENT, comment);
    text_option(&k, SHB_OS, "Linux");
    text_option(&k, SHB_APPLICATION, application);
    option(&k, OPT_END, NULL, 0);
    return end(&k);
}

/* if_tsresol makes the times of this interface's packets nanoseconds; a reader would otherwise take them for
 * microseconds. mac NULL: no such option. */
size_t pcapng_interface(struct pcapng_buffer *b, uint16_t link_type, uint32_t snap_len, const char *name,
                        const char *description, const char *comment, const uint8_t mac[6])
{
    const uint8_t resolution = NANOSECONDS;
    struct block k = begin(b, INTERFACE);
    put16(&k, link_type, 0);
    put32(&k, snap_len);
    text_option(&k, OPT_COMMENT, comment);
    text_option(&k, IF_NAME, name);
    text_option(&k, IF_DESCRIPTION, description);
    if (mac)
        option(&k, IF_MAC, mac, 6);
    option(&k, IF_TSRESOL, &resolution, 1);
    option(&k, OPT_END, NULL, 0);
    return end(&k);
}

/* The lengths of the pieces add up to p->captured, for which the room is checked. A packet without options has no
 * end-of-options mark either. */
size_t pcapng_packet(struct pcapng_buffer *b, const struct pcapng_packet *p)
{
    struct block k = begin(b, PACKET);
    put32(&k, p->interface);
    put_time(&k, p->time);
    put32(&k, p->captured);
    put32(&k, p->len);
    /* The data consists of pieces. It is copied here, because put() would pad each piece. */
    size_t data = b->used, padding = -(size_t)p->captured & 3;
    if (k.full || b->size - b->used < p->captured + padding)
        k.full = 1;
    else {
        for (int i = 0; i < p->n_iov; i++) {
            memcpy(b->bytes + data, p->iov[i].iov_base, p->iov[i].iov_len);
            data += p->iov[i].iov_len;
        }
        memset(b->bytes + data, 0, padding);
        b->used += p->captured + padding;
    }
    if (p->comment || p->direction || p->lost_before) {
        text_option(&k, OPT_COMMENT, p->comment);
        if (p->direction)
            option(&k, EPB_FLAGS, &p->direction, sizeof p->direction);
        if (p->lost_before)
            option(&k, EPB_DROPCOUNT, &p->lost_before, sizeof p->lost_before);
        option(&k, OPT_END, NULL, 0);
    }
    return end(&k);
}

size_t pcapng_statistics(struct pcapng_buffer *b, uint32_t interface, uint64_t time, uint64_t received, uint64_t lost)
{
    struct block k = begin(b, STATISTICS);
    put32(&k, interface);
    put_time(&k, time);
    option(&k, ISB_RECEIVED, &received, sizeof received);
    option(&k, ISB_DROPPED, &lost, sizeof lost);
    option(&k, OPT_END, NULL, 0);
    return end(&k);
}
