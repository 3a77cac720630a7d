/*
 * bench/clock.c - the clock that takes one stamp per message.
 *
 * A stamp by clock_gettime costs some 25 ns, more than the transfer of a cache line from core to core. The processor's
 * own counter costs less than half and needs no system. It is used where it is invariant (it counts at one rate in all
 * states of the core, even asleep). It is calibrated against CLOCK_MONOTONIC_RAW, which is never slewed.
 *
 *      base                                     now
 *      (ticks0, raw0) ------ >= 10 ms ------ (ticks1, raw1)        ns per tick = (raw1 - raw0) / (ticks1 - ticks0)
 *
 * The base is taken once per process, so the ratio becomes more accurate with the age of the process. Each reading is
 * accurate to about 50 ns, which gives 5e-6 after 10 ms.
 */
#include "bench/bench.h"

#include <pthread.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Written once, by init, before the first tick is read. */
bool bench_clock_counter;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t base_ticks, base_raw; /* both clocks at the first use in the process */

/* The slow clock, in nanoseconds since the machine started. */
static uint64_t raw_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Read both clocks at one moment. A few tries are made; the one with the shortest time between the two readings of the
 * slow clock is used. */
static void read_both(uint64_t *ticks, uint64_t *raw)
{
    uint64_t best = UINT64_MAX;
    for (int try = 0; try < 16; try ++) {
        uint64_t before = raw_ns();
        uint64_t stamp = bench_ticks();
        uint64_t after = raw_ns();
        if (after - before < best) {
            best = after - before;
            *ticks = stamp;
            *raw = before + (after - before) / 2;
        }
    }
}

/* Only such a counter measures time: others stop in a sleeping core, or follow its frequency. */
static bool counter_is_invariant(void)
{
#if defined(__x86_64__)
    /* CPUID 8000_0007h, EDX bit 8: the time stamp counter runs at one rate in all power states. */
    unsigned a, b, c, d;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & (1u << 8));
#elif defined(__aarch64__)
    return true; /* the generic timer is invariant by definition */
#else
    return false;
#endif
}

/* bench_clock_counter is set first, because read_both() reads ticks by it. */
static void init(void)
{
    bench_clock_counter = counter_is_invariant();
    read_both(&base_ticks, &base_raw);
}

void bench_clock_init(void)
{
    pthread_once(&once, init);
}

/* A loop that reads the clock: it needs the processor and no memory, as computing does that stays in registers. */
uint64_t bench_compute(uint64_t ticks)
{
    uint64_t begin = bench_ticks(), now;
    if (vk_time_is_virtual()) {
        vk_charge(VK_CHARGE_TIME, ticks / 1000); /* ticks are picoseconds */
        return bench_ticks() - begin;
    }
    do {
        now = bench_ticks();
    } while (now - begin < ticks);
    return now - begin;
}

double bench_ns_per_tick(void)
{
    if (vk_time_is_virtual())
        return 1e-3;
    bench_clock_init();
    if (!bench_clock_counter)
        return 1.0;
    uint64_t ticks, raw;
    /* At least 10 ms after the base, for a sufficiently accurate ratio. Only the first call of a process may have to
     * wait. */
    do {
        read_both(&ticks, &raw);
    } while (raw - base_raw < 10000000u);
    return (double)(raw - base_raw) / (double)(ticks - base_ticks);
}

const char *bench_clock_name(void)
{
    if (vk_time_is_virtual())
        return "virtual";
    bench_clock_init();
#if defined(__x86_64__)
    return bench_clock_counter ? "tsc" : "CLOCK_MONOTONIC_RAW";
#else
    return bench_clock_counter ? "cntvct" : "CLOCK_MONOTONIC_RAW";
#endif
}
