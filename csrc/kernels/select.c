/*
 * Which level of vector instructions runs: the best that the machine has, found at the first call, or what somebody
 * set.
 */
#include <stdatomic.h>

#include "kernels.h"

#define UNKNOWN (-1)

static atomic_int chosen = UNKNOWN;

const char *kernels_level_name(int level)
{
    static const char *const names[] = {
        [KERNELS_PORTABLE] = "portable", [KERNELS_AVX2] = "avx2", [KERNELS_AVX512] = "avx512"};
    return level >= 0 && level < KERNELS_N_LEVELS ? names[level] : NULL;
}

int kernels_level_best(void)
{
#ifdef KERNELS_X86
    /* This asks the operating system, too: registers that it does not save at a switch cannot be used. */
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) {
        return KERNELS_PORTABLE;
    }
#ifdef LANES_LONG
    return KERNELS_AVX512; /* which is made of AVX2, to be tested */
#endif
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw")) {
        return KERNELS_AVX512;
    }
    return KERNELS_AVX2;
#else
    return KERNELS_PORTABLE;
#endif
}

int kernels_level(void)
{
    /* Relaxed: two threads that both find nothing chosen choose the same. */
    int level = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (level == UNKNOWN) {
        level = kernels_level_best();
        atomic_store_explicit(&chosen, level, memory_order_relaxed);
    }
    return level;
}

int kernels_level_set(int level)
{
    if (level < 0 || level > kernels_level_best()) {
        return -1;
    }
    atomic_store_explicit(&chosen, level, memory_order_relaxed);
    return 0;
}
