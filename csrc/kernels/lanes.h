/*
 * Vectors, for files that are compiled once per level of vector instructions (meson.build, `lane_sources`).
 *
 * They use the compiler's own vector types (GCC and Clang alike) and no intrinsics. `a * b + c` of two vectors works
 * element by element, and one source serves SSE2, NEON, AVX2 and AVX-512. If a level lacks an instruction, the compiler
 * emulates it. A comparison gives a vector of integers, with all bits set where it is true. Select by it with
 * select_f64() and its like, since C (unlike C++) has no `?:` on vectors.
 *
 * How a kernel foo is defined. Its public function is declared in kernels.h. In foo_lanes.c, at every level:
 *
 *     static void sum(...) { ... vectors ... }
 *     const struct foo_lanes LANES(foo_lanes) = {.sum = sum};
 *
 * where `struct foo_lanes` of pointers to functions is defined in a header foo_lanes.h, followed by
 *
 *     KERNELS_DECLARE(struct foo_lanes, foo_lanes)
 *
 * In foo.c, compiled once, the public function calls KERNELS_PICK(foo_lanes)->sum(...). Only that table of a *_lanes.c
 * is not static, so the names of two levels never collide.
 */
#ifndef VIAKIT_KERNELS_LANES_H
#define VIAKIT_KERNELS_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __FMA__
#include <immintrin.h>
#endif

#include "kernels.h"

/* ---------------------------------------------------------------------------------------------------------------------
 * Names per level
 */

/* Two macros, so that KERNELS_LEVEL is expanded before it is pasted: sum_avx2. A file that is compiled once has no
 * KERNELS_LEVEL. */
#define LANES_PASTE_(name, level) name##_##level
#define LANES_PASTE(name, level) LANES_PASTE_(name, level)
#ifdef KERNELS_LEVEL
#define LANES(name) LANES_PASTE(name, KERNELS_LEVEL)
#endif

#ifdef KERNELS_X86
#define KERNELS_DECLARE(type, name) extern const type name##_portable, name##_avx2, name##_avx512;
#define KERNELS_PICK(name)                              \
    (kernels_level() == KERNELS_AVX512 ? &name##_avx512 \
     : kernels_level() == KERNELS_AVX2 ? &name##_avx2   \
                                       : &name##_portable)
#else
#define KERNELS_DECLARE(type, name) extern const type name##_portable;
#define KERNELS_PICK(name) (&name##_portable)
#endif

/* ---------------------------------------------------------------------------------------------------------------------
 * Types. A vector has LANES_F64 doubles or LANES_F32 floats.
 */

#if defined( \
    LANES_LONG) /* vectors longer than the machine's: the compiler splits each in two (meson.build, long vectors) */
#define LANES_BYTES 64
#elif defined(__AVX512F__)
#define LANES_BYTES 64
#elif defined(__AVX2__)
#define LANES_BYTES 32
#else
#define LANES_BYTES 16
#endif
#define LANES_F64 (LANES_BYTES / 8)
#define LANES_F32 (LANES_BYTES / 4)

typedef double vf64 __attribute__((vector_size(LANES_BYTES)));
typedef int64_t vi64 __attribute__((vector_size(LANES_BYTES)));
typedef uint64_t vu64 __attribute__((vector_size(LANES_BYTES)));
typedef float vf32 __attribute__((vector_size(LANES_BYTES)));
typedef int32_t vi32 __attribute__((vector_size(LANES_BYTES)));
typedef uint32_t vu32 __attribute__((vector_size(LANES_BYTES)));

#define LANES_INLINE static inline __attribute__((always_inline, unused))

/* ---------------------------------------------------------------------------------------------------------------------
 * Loads and stores, at any address. One number in all lanes. Selection of one of two by a mask.
 */

/* all_: x - 0 is x for every number, whereas x + 0 would lose the sign of -0. select_: a mask has all bits of a lane
 * set, or none. */
#define LANES_DEFINE(suffix, vector, scalar, mask)                     \
    LANES_INLINE vector load_##suffix(const scalar *p)                 \
    {                                                                  \
        vector v;                                                      \
        memcpy(&v, p, sizeof v);                                       \
        return v;                                                      \
    }                                                                  \
    LANES_INLINE void store_##suffix(scalar *p, vector v)              \
    {                                                                  \
        memcpy(p, &v, sizeof v);                                       \
    }                                                                  \
    LANES_INLINE vector all_##suffix(scalar x)                         \
    {                                                                  \
        return x - (vector){0};                                        \
    }                                                                  \
    LANES_INLINE vector select_##suffix(mask m, vector yes, vector no) \
    {                                                                  \
        return (vector)(((mask)yes & m) | ((mask)no & ~m));            \
    }

LANES_DEFINE(f64, vf64, double, vi64)
LANES_DEFINE(i64, vi64, int64_t, vi64)
LANES_DEFINE(u64, vu64, uint64_t, vi64)
LANES_DEFINE(f32, vf32, float, vi32)
LANES_DEFINE(i32, vi32, int32_t, vi32)
LANES_DEFINE(u32, vu32, uint32_t, vi32)
#undef LANES_DEFINE

/* ---------------------------------------------------------------------------------------------------------------------
 * Functions that several kernels use
 */

/* Convert integers in [0, 2^52) to doubles, exactly: they are put below the leading bit of 2^52, which is then
 * subtracted. */
LANES_INLINE vf64 f64_of_u52(vu64 x)
{
    return (vf64)(x | UINT64_C(0x4330000000000000)) - 0x1p52;
}

/* The next state of LANES_F64 streams at once, each times `power`, which is below 2^46 (kernels.h, random numbers). */
LANES_INLINE vu64 random_next(vu64 x, vu64 power)
{
    return x * power & KERNELS_RANDOM_MASK;
}

/* a b + c, rounded once if the level has an instruction for it, else twice. Not for results that must be equal to the
 * bit. */
LANES_INLINE vf64 fused_f64(vf64 a, vf64 b, vf64 c)
{
#if defined(LANES_LONG)
    for (int lane = 0; lane < LANES_F64; lane++) {
        c[lane] = fma(a[lane], b[lane], c[lane]);
    }
    return c;
#elif defined(__AVX512F__)
    return (vf64)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    return (vf64)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

/* Square roots: both compilers emit one instruction for the loop. */
LANES_INLINE vf64 root_f64(vf64 x)
{
    for (int lane = 0; lane < LANES_F64; lane++) {
        x[lane] = sqrt(x[lane]);
    }
    return x;
}

/* The sum of all lanes, in ascending order. Levels with longer vectors add other partial sums, so sums may differ in
 * the last bits between levels. */
LANES_INLINE double sum_f64(vf64 v)
{
    double sum = v[0];
    for (int i = 1; i < LANES_F64; i++) {
        sum += v[i];
    }
    return sum;
}

#endif
