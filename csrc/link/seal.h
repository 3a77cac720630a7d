/*
 * The checksum of a frame that still lies in pieces, for links whose wire can damage it. CRC32C (Castagnoli's
 * polynomial, as in iSCSI and SCTP) detects every error of up to three bits in frames of these lengths, and processors
 * have an instruction for it. WIRE_FLAG_CRC (frame_format.h) selects the bytes that it covers: the whole frame, or the
 * header alone.
 *
 * The field itself counts as 0 in the sum, so a receiver sums the header with a zero in that place (via/data/rx.c).
 * Sealing is the last change to a frame before it is sent. A header that is changed later counts as damaged.
 */
#ifndef VIAKIT_SEAL_H
#define VIAKIT_SEAL_H

#include "base/crc32c.h"
#include "link/link.h"

/* Sums header, block and payload, in the order of the wire, and sets the flag for a full checksum. */
static inline void link_seal(struct link_frame *f)
{
    if (f->header.flags & WIRE_FLAG_CRC)
        return; /* the frame has a checksum already: it was corrupted on purpose afterwards */
    f->header.flags |= WIRE_FLAG_CRC;
    f->header.crc = 0;
    /* Begin the sum of each piece with that of the preceding one. The result is the sum of the pieces joined. */
    uint32_t crc = vk_crc32c(0, &f->header, sizeof f->header);
    if (f->header_len > sizeof f->header)
        crc = vk_crc32c(crc, &f->block, f->header_len - sizeof f->header);
    for (uint32_t i = 0; i < f->n_iov; i++)
        crc = vk_crc32c(crc, f->iov[i].iov_base, f->iov[i].iov_len);
    f->header.crc = crc;
}

/* Seals a frame whose payload UDP's checksum protects. The sum covers the header alone. It is needed because UDP's
 * checksum is weak, and a header mistaken for another does more harm than a wrong byte of data. */
static inline void link_seal_header(struct link_frame *f)
{
    if (f->header.flags & WIRE_FLAG_CRC)
        return;
    f->header.crc = 0;
    f->header.crc = vk_crc32c(0, &f->header, sizeof f->header);
}

/* Writes a short frame to p in one piece, with its checksum. The flag that announces the checksum is the second byte of
 * the first word. The field is 0, as in the given header, while the sum is computed. The sum is stored last. */
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
