/* CRC32C (Castagnoli, reflected polynomial 0x82F63B78), the checksum of iSCSI, SCTP and of viakit's frames. */
#ifndef VIAKIT_CRC32C_H
#define VIAKIT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues crc (0 to begin) over len bytes. Data may be passed in consecutive pieces. Thread-safe, never fails. */
uint32_t vk_crc32c(uint32_t crc, const void *data, size_t len);

/* Computes the same with the plain table, for tests of the fast versions. */
uint32_t vk_crc32c_table(uint32_t crc, const void *data, size_t len);

#endif
