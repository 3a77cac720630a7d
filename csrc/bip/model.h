/*
 * bip/model.h - the pipeline's model, and the table of packet sizes that follows from it.
 *
 * A long message of n bytes goes as k packets of equal size p through s stages (the sender's copy, the wire, the
 * receiver's copy). Every packet costs each stage a fixed time and a time per byte. The slowest stage sets the pace.
 * The others matter only while the pipeline fills and drains:
 *
 *      stage 1   |1|2|3|4|
 *      stage 2     |1|2|3|4|             T(n, p) = start + (k - 1) (packet + p byte) + p fill
 *      stage 3       |1|2|3|4|
 *
 * - start: one-time costs, namely rendezvous, latency, and the stages' overheads for the first packet (seconds)
 * - packet: the slowest stage's time for a packet of no bytes (seconds)
 * - byte: its time per byte (seconds)
 * - fill: the time per byte of all stages together, which is fill / byte stages if they were alike (seconds)
 *
 * Small packets fill the pipeline soon and pay `packet` often; large packets do the reverse. The best size grows with
 * the square root of n: p^2 = n packet / (fill - byte). With one stage (fill = byte) nothing overlaps, and one packet
 * is best.
 */
#ifndef BIP_MODEL_H
#define BIP_MODEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    double start, packet, byte, fill;
} bip_model;

#define BIP_TABLE_ROWS 32
#define BIP_MIN_PACKET 1024

/* Packet sizes by the length of the message: row i is for lengths up to upto[i], the last row for all others. */
typedef struct {
    uint64_t small; /* bytes of the longest short message */
    uint32_t n;
    uint64_t upto[BIP_TABLE_ROWS], packet[BIP_TABLE_ROWS];
} bip_table;

/* Size of each packet but the last, if n bytes are divided into equal packets of about p: a multiple of 64. */
uint64_t bip_equal_packets(uint64_t n, uint64_t p);

double bip_model_time(const bip_model *model, uint64_t n, uint64_t p);

/* Best packet size for n bytes, at most `most`. Tries the numbers of packets around the optimum. */
uint64_t bip_model_best(const bip_model *model, uint64_t n, uint64_t most);

/* Makes rows at powers of two from 4 KiB on, and copies small into the table. */
void bip_table_make(const bip_model *model, uint64_t small, uint64_t most, bip_table *table);

uint64_t bip_table_packet(const bip_table *table, uint64_t n);

/* Table for a link without calibration, by the link's name. */
void bip_table_default(const char *link, bip_table *table);

/* Reads a calibration file: lines "small BYTES" and "row UPTO PACKET". Other lines, and text after #, are ignored
 * here (readers and Python use them). Returns 0, or -1 if the file does not exist or has no usable table. */
int bip_table_read(const char *path, bip_table *table);

/* Path of a link's calibration: VIAKIT_BIP_TABLE, else bip-LINK.txt in $XDG_CACHE_HOME/viakit or ~/.cache/viakit.
 * Returns 0, or -1: no home, or the path is too long. */
int bip_table_path(const char *link, char *path, size_t room);

#endif
