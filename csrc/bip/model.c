/*
 * The pipeline's model and its table: see model.h. No state, no NIC; callable from any thread.
 *
 * With n bytes in packets of p the time is   start + (n/p - 1) (packet + p byte) + p fill   (bip_model_time). The
 * slowest stage works without a pause, and one packet passes through the others. The derivative vanishes at p = sqrt(n
 * packet / (fill - byte)), so the best packet grows with the square root of the length. Only whole numbers of equal
 * packets exist, so bip_model_best tries the numbers around that one.
 */
#include "bip/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "viakit.h"

/* Returns the size of each packet when n bytes go in the number of packets that p requires. All are of equal size,
 * rounded up to a cache line; only the last may be shorter. p 0: one packet. */
uint64_t bip_equal_packets(uint64_t n, uint64_t p)
{
    if (p == 0 || p >= n)
        return n;
    uint64_t k = (n + p - 1) / p, each = (n + k - 1) / k;
    return (each + 63) & ~(uint64_t)63;
}

/* Returns the seconds for n bytes in packets of p, as above. p is first rounded to equal packets, as in
 * bip_packet(). */
double bip_model_time(const bip_model *m, uint64_t n, uint64_t p)
{
    p = bip_equal_packets(n, p);
    uint64_t k = p ? (n + p - 1) / p : 1;
    return m->start + (double)(k - 1) * (m->packet + (double)p * m->byte) + (double)p * m->fill;
}

/* Returns the best packet for n bytes, at most `most`. If overlap gains nothing (fill <= byte), one packet is best. */
uint64_t bip_model_best(const bip_model *m, uint64_t n, uint64_t most)
{
    double overlap = m->fill - m->byte, ideal = (double)n;
    if (overlap > 0)
        ideal = sqrt((double)n * m->packet / overlap);
    if (ideal < BIP_MIN_PACKET)
        ideal = BIP_MIN_PACKET;
    /* The comparison starts with one packet (or as few as `most` allows), which another size must beat. ideal is a
     * size; around is the corresponding number of packets. */
    uint64_t best = n < most ? n : most, around = ideal >= (double)n ? 1 : (uint64_t)((double)n / ideal);
    double least = bip_model_time(m, n, best);
    for (uint64_t k = around > 1 ? around - 1 : 1; k <= around + 2; k++) {
        uint64_t p = (n + k - 1) / k;
        if (p < BIP_MIN_PACKET || p > most)
            continue;
        double t = bip_model_time(m, n, p);
        if (t < least) {
            least = t;
            best = p;
        }
    }
    return best;
}

/* Each row is exact for its greatest length, and nearly so for half of it, because the best packet grows with the
 * square root. */
void bip_table_make(const bip_model *m, uint64_t small, uint64_t most, bip_table *table)
{
    memset(table, 0, sizeof *table);
    table->small = small;
    for (uint64_t n = 4096; table->n < BIP_TABLE_ROWS && n <= (uint64_t)1 << 30; n *= 2) {
        table->upto[table->n] = n;
        table->packet[table->n++] = bip_model_best(m, n, most);
    }
}

/* Rows are few and ascending. Longer messages use the last row. */
uint64_t bip_table_packet(const bip_table *table, uint64_t n)
{
    uint32_t i = 0;
    if (table->n == 0)
        return n;
    while (i + 1 < table->n && n > table->upto[i])
        i++;
    return table->packet[i];
}

void bip_table_default(const char *link, bip_table *table)
{
    /* Rounded values of one machine. The provider cuts each message into frames and copies them while others are on
     * the wire. So the pipeline is inside a packet, and one packet is best. `viakit calibrate` measures this on
     * other machines. */
    static const bip_model network = {12e-6, 2e-6, 0.35e-9, 0.35e-9};
    static const bip_model memory = {2e-6, 0.5e-6, 0.1e-9, 0.1e-9};
    const viakit_link_info *about = viakit_link_of(link);
    bip_table_make(about && !about->leaves_host ? &memory : &network, 16384, (uint64_t)16 << 20, table);
}

/* Returns 0, or -1: no such file, or no usable table. Invalid lines are skipped, because the file is a cache. */
int bip_table_read(const char *path, bip_table *table)
{
    FILE *file = fopen(path, "re");
    char line[256];
    bip_table t;
    if (file == NULL)
        return -1;
    memset(&t, 0, sizeof t);
    while (fgets(line, sizeof line, file)) {
        uint64_t a = 0, b = 0;
        if (sscanf(line, "small %" SCNu64, &a) == 1)
            t.small = a;
        else if (sscanf(line, "row %" SCNu64 " %" SCNu64, &a, &b) == 2 && t.n < BIP_TABLE_ROWS && b >= BIP_MIN_PACKET &&
                 (t.n == 0 || a > t.upto[t.n - 1])) {
            t.upto[t.n] = a;
            t.packet[t.n++] = b;
        }
    }
    fclose(file);
    /* A file with rows but no limit, or with a limit but no rows, is not used at all. */
    if (t.n == 0 || t.small == 0 || t.small > 65536)
        return -1;
    *table = t;
    return 0;
}

int bip_table_path(const char *link, char *path, size_t room)
{
    const char *given = getenv("VIAKIT_BIP_TABLE"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (given && *given)
        n = snprintf(path, room, "%s", given);
    else if (cache && *cache)
        n = snprintf(path, room, "%s/viakit/bip-%s.txt", cache, link);
    else if (home && *home)
        n = snprintf(path, room, "%s/.cache/viakit/bip-%s.txt", home, link);
    return n > 0 && (size_t)n < room ? 0 : -1;
}
