/*
 * The checksum of a frame that still lies in pieces, for links whose wire can damage it. CRC32C (Castagnoli's
 * polynomial, as in iSCSI and SCTP) finds every error of up to three bits in frames of our lengths, and processors
 * have an instruction for it. Which bytes it covers is said by WIRE_FLAG_CRC (wire.h): all of them, or the header
 * alone.
 *
 * The field itself counts as 0 in the sum; so whoever checks a frame sums the header with a zero in that place
 * (via/rx.c). Sealing is the last thing that is done to a frame before it leaves: a header that is changed afterwards
 * is a damaged one.
 */
#ifndef VIAKIT_SEAL_H
#define VIAKIT_SEAL_H

#include "../base/crc32c.h"
#include "link.h"

/* Sums header, block and payload, in the order in which they leave, and says in the flags that the sum is there. */
static inline void link_seal(struct link_frame *f)
{
    if (f->header.flags & WIRE_FLAG_CRC)
        return; /* has one already: of a frame that was spoilt on purpose afterwards */
    f->header.flags |= WIRE_FLAG_CRC;
    f->header.crc = 0;
    /* The sum of one piece is where that of the next begins: as if they lay in one. */
    uint32_t crc = vk_crc32c(0, &f->header, sizeof f->header);
    if (f->header_len > sizeof f->header)
        crc = vk_crc32c(crc, &f->block, f->header_len - sizeof f->header);
    for (uint32_t i = 0; i < f->n_iov; i++)
        crc = vk_crc32c(crc, f->iov[i].iov_base, f->iov[i].iov_len);
    f->header.crc = crc;
}

/* The same for a frame whose payload UDP's checksum protects: of the header alone, for UDP's sum is weak, and a
 * header that is taken for another does more harm than a wrong byte of data. */
static inline void link_seal_header(struct link_frame *f)
{
    if (f->header.flags & WIRE_FLAG_CRC)
        return;
    f->header.crc = 0;
    f->header.crc = vk_crc32c(0, &f->header, sizeof f->header);
}

/* Puts a short frame at p in one piece, with its sum. The flag that says "there is a sum" is the second byte of the
 * first word; the sum is taken while its field is 0, as the header comes, and put there last. */
static inline void link_seal_short(uint8_t *p, const uint64_t header[WIRE_WORDS], const void *payload, size_t len)
{
    const size_t header_len = sizeof(struct wire_header);
    uint64_t first = header[0] | (uint64_t)WIRE_FLAG_CRC << 8;
    memcpy(p, &first, 8);
    for (int i = 1; i < WIRE_WORDS; i++)
        memcpy(p + 8 * i, &header[i], 8);
    vk_copy_short(p + header_len, payload, len);
    uint32_t crc = vk_crc32c(0, p, header_len + len);
    memcpy(p + offsetof(struct wire_header, crc), &crc, sizeof crc);
}

#endif
