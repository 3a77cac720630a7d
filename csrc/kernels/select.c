/*
 * The level of vector instructions that runs: the machine's best, determined at the first call, or the level that the
 * caller set.
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
    /* This includes the operating system's support: registers that it does not save at a switch cannot be used. */
    __builtin_cpu_init();
    /* Every feature that meson.build lets the compiler use at a level must be checked here. */
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2")) {
        return KERNELS_PORTABLE;
    }
#ifdef LANES_LONG
    return KERNELS_AVX512; /* which is emulated with AVX2, for tests */
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
    /* Relaxed: two threads that both find no choice make the same one. */
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
    /* Kernels that run meanwhile in other threads finish at the level at which they began. */
    atomic_store_explicit(&chosen, level, memory_order_relaxed);
    return 0;
}
