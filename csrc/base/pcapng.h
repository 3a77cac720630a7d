/*
 * The part of pcapng (draft-ietf-opsawg-pcapng) that viakit writes: the blocks of a capture file, built in memory.
 *
 *   section header | interface | interface | packet | packet | ... | statistics
 *
 * Every block is a multiple of four bytes, with its length at both ends. Numbers are in this machine's byte order,
 * which the section header shows. Each function appends one block and returns its length, or returns 0 and appends
 * nothing if it does not fit.
 */
#ifndef VIAKIT_PCAPNG_H
#define VIAKIT_PCAPNG_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Memory of the caller, who writes it to the file and then sets `used` back to 0. */
struct pcapng_buffer {
    uint8_t *bytes;
    size_t used, size;
};

#define PCAPNG_ETHERNET 1 /* link types */
#define PCAPNG_USER0 147

enum { PCAPNG_IN = 1, PCAPNG_OUT = 2 };

/* Appends the head of the file. `application` names the program that wrote it. Texts may be NULL. */
size_t pcapng_section(struct pcapng_buffer *b, const char *application, const char *comment);

/* Appends an interface. Its packets have timestamps in nanoseconds. The number of an interface is its position among
 * those of the section, from 0. snap_len: bytes kept of a packet, at most; 0: all. Texts and mac may be NULL. */
size_t pcapng_interface(struct pcapng_buffer *b, uint16_t link_type, uint32_t snap_len, const char *name,
                        const char *description, const char *comment, const uint8_t mac[6]);

struct pcapng_packet {
    uint32_t interface;
    uint64_t time;           /* ns since 1970 */
    uint32_t len, captured;  /* length of the packet, and bytes in the pieces */
    uint32_t direction;      /* PCAPNG_IN or PCAPNG_OUT (0: omitted) */
    uint64_t lost_before;    /* packets of this interface lost since the preceding one (0: omitted) */
    const char *comment;     /* NULL: no comment */
    const struct iovec *iov; /* the bytes */
    int n_iov;
};

/* Appends a packet. The pieces together must have `captured` bytes. */
size_t pcapng_packet(struct pcapng_buffer *b, const struct pcapng_packet *p);

/* Appends the counters of an interface at a time (ns since 1970): all packets, and those that are not in the file. */
size_t pcapng_statistics(struct pcapng_buffer *b, uint32_t interface, uint64_t time, uint64_t received, uint64_t lost);

#endif
