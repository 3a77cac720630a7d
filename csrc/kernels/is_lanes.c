/*
 * IS: generate keys, count them, group them by owner, put them at the place of their rank.
 *
 * Counting is one addition in memory per key, at an unpredictable place, so its speed depends on the cache that holds
 * the table. A table of bytes is a quarter of one of 32-bit numbers. Overflow of a byte is detected afterwards and not
 * at each key. An overflow loses 256, so the sum of the table is the number of keys if, and only if, no byte
 * overflowed. Keys are counted in runs so short that bytes do not overflow with the key distribution of IS. If one
 * overflows all the same, that run is counted once more, in 32 bits.
 */
#include "is_lanes.h"

/* Keys per possible value in one run. The sum of four uniform numbers has 8/3 of the mean density at its peak. The most
 * common value thus has about 171 keys, and 255 is 6 standard deviations above. */
#define PER_VALUE 64

/* ---------------------------------------------------------------------------------------------------------------------
 * Keys: the sum of four numbers each
 */

/* x: the state before the first number. shift: 48 - max_log (is.c). */
static void make_keys(uint64_t x, int shift, int32_t *keys, size_t n)
{
    const uint64_t a = KERNELS_RANDOM_A;
    const uint64_t power[] = {a, kernels_random_power(a, 2), kernels_random_power(a, 3), kernels_random_power(a, 4)};
    size_t done = 0;
#if LANES_F64 > 2 /* on vectors of two, emulated products of 64 bits cost more than they save */
    enum { N_VECTORS = 2, STREAMS = N_VECTORS * LANES_F64 };
    vu64 state[N_VECTORS];
    for (int i = 0; i < STREAMS; i++) {
        state[i / LANES_F64][i % LANES_F64] = kernels_random_skip(x, 4 * (uint64_t)i);
    }
    const vu64 p1 = all_u64(power[0]), p2 = all_u64(power[1]), p3 = all_u64(power[2]), p4 = all_u64(power[3]);
    const vu64 jump = all_u64(kernels_random_power(a, 4 * STREAMS));
    for (; n - done >= STREAMS; done += STREAMS) {
        for (int v = 0; v < N_VECTORS; v++) {
            const vu64 s = state[v];
            const vu64 sum =
                (random_next(s, p1) + random_next(s, p2) + random_next(s, p3) + random_next(s, p4)) >> shift;
            state[v] = random_next(s, jump);
            for (int lane = 0; lane < LANES_F64; lane++) {
                keys[done + (size_t)(v * LANES_F64 + lane)] = (int32_t)sum[lane];
            }
        }
    }
    x = kernels_random_skip(x, 4 * done);
#endif
    /* The four products are independent, and the next key depends on one of them only. x needs no mask: bits above 46
     * never reach those below, and each product is masked. */
    for (; done < n; done++) {
        uint64_t sum = 0;
        for (int i = 0; i < 4; i++) {
            sum += x * power[i] & KERNELS_RANDOM_MASK;
        }
        keys[done] = (int32_t)(sum >> shift);
        x *= power[3];
    }
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Counting
 */

/*
 * table[((k - base) >> shift) & mask]++ for each key k. Returns the bitwise OR of all k - base. The mask keeps a key
 * without a count within the table, and the result reveals it. (Checking keys first would take as long as half of the
 * counting, because each key would be waited for twice.) Inlined, so that zero arguments cost nothing.
 */
#define COUNT_INTO(name, type)                                                                                      \
    LANES_INLINE uint32_t name(const int32_t *keys, size_t n, uint32_t base, int shift, uint32_t mask, type *table) \
    {                                                                                                               \
        uint64_t bits = 0;                                                                                          \
        size_t i = 0;                                                                                               \
        for (; i + 4 <= n; i += 4) {                                                                                \
            /* Two keys by one load, since loads are the bottleneck. The order of the halves does not matter. */    \
            const uint64_t a = two_keys(keys + i), b = two_keys(keys + i + 2);                                      \
            const uint32_t k0 = (uint32_t)a - base, k1 = (uint32_t)(a >> 32) - base;                                \
            const uint32_t k2 = (uint32_t)b - base, k3 = (uint32_t)(b >> 32) - base;                                \
            bits |= base == 0 ? a | b : k0 | k1 | k2 | k3;                                                          \
            table[(k0 >> shift) & mask]++;                                                                          \
            table[(k1 >> shift) & mask]++;                                                                          \
            table[(k2 >> shift) & mask]++;                                                                          \
            table[(k3 >> shift) & mask]++;                                                                          \
        }                                                                                                           \
        for (; i < n; i++) {                                                                                        \
            const uint32_t k = (uint32_t)keys[i] - base;                                                            \
            bits |= k;                                                                                              \
            table[(k >> shift) & mask]++;                                                                           \
        }                                                                                                           \
        return (uint32_t)bits | (uint32_t)(bits >> 32);                                                             \
    }

LANES_INLINE uint64_t two_keys(const int32_t *keys)
{
    uint64_t two;
    memcpy(&two, keys, sizeof two);
    return two;
}

COUNT_INTO(into_bytes, uint8_t)
COUNT_INTO(into_words, int32_t)

static uint32_t count_bytes(const int32_t *keys, size_t n, uint32_t base, uint32_t mask, uint8_t *table)
{
    return base == 0 ? into_bytes(keys, n, 0, 0, mask, table) : into_bytes(keys, n, base, 0, mask, table);
}

/* Add a table of bytes to the counts, and set it to zero; return the sum of its bytes. */
static size_t take_bytes(uint8_t *restrict table, size_t m, int32_t *restrict counts)
{
    size_t total = 0;
    for (size_t done = 0; done < m;) {
        const size_t end = m - done < (1 << 16) ? m : done + (1 << 16); /* so that 32 bits hold the sum of a part */
        uint32_t sum = 0;
        for (; done < end; done++) {
            sum += table[done];
            counts[done] += table[done];
        }
        total += sum;
    }
    memset(table, 0, m);
    return total;
}

static int count(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *counts, void *work)
{
    const size_t room = is_room(m);
    const uint32_t mask = (uint32_t)(room - 1);
    if (room == m && m <= IS_SMALL) {
        return into_words(keys, n, (uint32_t)base, 0, mask, counts) > mask ? -1 : 0;
    }
    uint8_t *table = work;
    memset(table, 0, room);
    for (size_t done = 0; done < n;) {
        const size_t now = n - done < PER_VALUE * m ? n - done : PER_VALUE * m;
        /* The OR of all differences is above the mask if any of them is. A key below base is, because its difference
         * wraps. */
        if (count_bytes(keys + done, now, (uint32_t)base, mask, table) > mask) {
            return -1;
        }
        /* Keys in [base + m, base + room) pass the mask. */
        for (size_t i = m; i < room; i++) {
            if (table[i] != 0) {
                return -1;
            }
        }
        if (take_bytes(table, m, counts) != now) {
            /* A byte overflowed, perhaps that of a key without a count. The bytes are in the counts already: subtract
             * them, and count in 32 bits. */
            count_bytes(keys + done, now, (uint32_t)base, mask, table);
            for (size_t i = 0; i < m; i++) {
                counts[i] -= table[i];
            }
            memset(table, 0, room);
            for (size_t i = done; i < done + now; i++) {
                const uint32_t at = (uint32_t)keys[i] - (uint32_t)base;
                if (at >= m) {
                    return -1;
                }
                counts[at]++;
            }
        }
        done += now;
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * Grouping, and putting into place */

/*
 * Keys are grouped by bucket, although only owners are needed. With few destinations, one key would often go to the
 * same place as the previous one. Its store would then have to wait for the previous store.
 */
static int partition(const int32_t *keys, size_t n, int shift, size_t n_buckets, int32_t *out, int32_t *starts)
{
    int32_t next[KERNELS_IS_BUCKETS] = {0};
    /* A negative key is a large unsigned number, which is beyond the last bucket. */
    const uint64_t bits = into_words(keys, n, 0, shift, KERNELS_IS_BUCKETS - 1, next);
    if (bits >> shift >= KERNELS_IS_BUCKETS) {
        return -1;
    }
    for (size_t i = n_buckets; i < KERNELS_IS_BUCKETS; i++) {
        if (next[i] != 0) {
            return -1;
        }
    }
    starts[0] = 0;
    for (size_t i = 0; i < n_buckets; i++) {
        starts[i + 1] = starts[i] + next[i];
        next[i] = starts[i];
    }
    for (size_t i = 0; i < n; i++) {
        out[next[keys[i] >> shift]++] = keys[i];
    }
    return 0;
}

/* Also counts down for a key whose place is outside out, so that each key of a value has a rank of its own. */
static int64_t place(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *cumulative, int32_t first,
                     int32_t *out, size_t len)
{
    int64_t placed = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t at = (uint32_t)keys[i] - (uint32_t)base;
        if (at < m) {
            const int64_t rank = (int64_t)--cumulative[at] - first;
            if (rank >= 0 && (uint64_t)rank < len) {
                out[rank] = keys[i];
                placed++;
            }
        }
    }
    return placed;
}

const struct is_lanes LANES(is_lanes) = {.keys = make_keys, .count = count, .partition = partition, .place = place};
