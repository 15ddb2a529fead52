/* SIMD variants of kernels. A kernel is written once, as an inline body over floats; it is
 * compiled for AVX-512, for AVX2 and for the compiler's baseline, and the call picks one by what
 * the processor has. No ifuncs, because of sanitizers.
 *
 * Every sum has 16 lanes, whatever the machine has, and the lanes are added in a fixed order:
 * results depend neither on addresses nor on threads. */
#ifndef GPT_SIMD_H
#define GPT_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define WEFT_GPT_INLINE static inline __attribute__((always_inline))

/* Defines static void name(parameters) from name_body(bool fused, parameters). `fused`
 * is a constant: there is an instruction for a * b + c with one rounding. */
#ifdef __x86_64__
#define WEFT_GPT_VARIANTS(name, parameters, ...)                                              \
  __attribute__((target(                                                                      \
      "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma"))) static void name##_avx512 parameters { \
    name##_body(true, __VA_ARGS__);                                                           \
  }                                                                                           \
  __attribute__((target("avx2,fma"))) static void name##_avx2 parameters {                    \
    name##_body(true, __VA_ARGS__);                                                           \
  }                                                                                           \
  static void name##_baseline parameters { name##_body(false, __VA_ARGS__); }                 \
  static void name parameters {                                                               \
    if (weft_gpt_has_avx512()) {                                                              \
      name##_avx512(__VA_ARGS__);                                                             \
    } else if (weft_gpt_has_avx2()) {                                                         \
      name##_avx2(__VA_ARGS__);                                                               \
    } else {                                                                                  \
      name##_baseline(__VA_ARGS__);                                                           \
    }                                                                                         \
  }

#ifndef WEFT_GPT_WIDEST
#define WEFT_GPT_WIDEST 512 /* bits; tests lower it, to see the other variants */
#endif

WEFT_GPT_INLINE bool weft_gpt_has_avx2(void) {
  return WEFT_GPT_WIDEST >= 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
WEFT_GPT_INLINE bool weft_gpt_has_avx512(void) {
  return WEFT_GPT_WIDEST >= 512 && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && weft_gpt_has_avx2();
}
#else
#ifdef __FP_FAST_FMAF
#define WEFT_GPT_FUSED true
#else
#define WEFT_GPT_FUSED false
#endif
#define WEFT_GPT_VARIANTS(name, parameters, ...) \
  static void name parameters { name##_body(WEFT_GPT_FUSED, __VA_ARGS__); }
#endif

WEFT_GPT_INLINE float weft_gpt_multiply_add(bool fused, float a, float b, float c) {
  return fused ? __builtin_fmaf(a, b, c) : a * b + c;
}

/* ---- exp, for a loop over floats: no branch, no call ---- */

#define WEFT_GPT_EXP_MIN -87.33f /* below: 0 */
#define WEFT_GPT_EXP_MAX 88.72f  /* above: as here, about the largest float */

/* exp(x) = 2^n exp(r) with |r| <= ln 2 / 2, for x in the range above; the polynomial is
 * that of Moshier's Cephes (expf), within 1 ulp there. n is rounded by a sum with
 * 1.5 * 2^23, whose low bits are then n. No number gives no number. */
WEFT_GPT_INLINE float weft_gpt_exp_within(bool fused, float x) {
  const float magic = 12582912.0f;
  const float shifted = weft_gpt_multiply_add(fused, x, 1.44269504f, magic);
  const float n = shifted - magic;
  float r = weft_gpt_multiply_add(fused, n, -0.693359375f, x);
  r = weft_gpt_multiply_add(fused, n, 2.12194440e-4f, r);
  float p = weft_gpt_multiply_add(fused, r, 1.9875691500e-4f, 1.3981999507e-3f);
  p = weft_gpt_multiply_add(fused, p, r, 8.3334519073e-3f);
  p = weft_gpt_multiply_add(fused, p, r, 4.1665795894e-2f);
  p = weft_gpt_multiply_add(fused, p, r, 1.6666665459e-1f);
  p = weft_gpt_multiply_add(fused, p, r, 5.0000001201e-1f);
  p = weft_gpt_multiply_add(fused, p, r * r, r) + 1.0f;
  uint32_t bits, shift;
  memcpy(&bits, &p, sizeof bits);
  memcpy(&shift, &shifted, sizeof shift);
  bits += shift << 23; /* the bits of 1.5 * 2^23 above n's are shifted out */
  memcpy(&p, &bits, sizeof p);
  return p;
}

/* For x below 88, as in a softmax; and for any x. What comes of numbers too small is
 * thrown away, so they need no limit. */
WEFT_GPT_INLINE float weft_gpt_exp_below(bool fused, float x) {
  const float p = weft_gpt_exp_within(fused, x);
  return x < WEFT_GPT_EXP_MIN ? 0.0f : p;
}
WEFT_GPT_INLINE float weft_gpt_exp(bool fused, float x) {
  return weft_gpt_exp_below(fused, x > WEFT_GPT_EXP_MAX ? WEFT_GPT_EXP_MAX : x);
}

/* ---- Sums over 16 lanes ---- */

#define WEFT_GPT_SIMD_WIDTH 16
typedef float weft_gpt_simd __attribute__((vector_size(WEFT_GPT_SIMD_WIDTH * sizeof(float))));
typedef int32_t weft_gpt_lane_bits
    __attribute__((vector_size(WEFT_GPT_SIMD_WIDTH * sizeof(float))));

/* By address only: how such vectors are passed differs between variants. */
WEFT_GPT_INLINE void weft_gpt_simd_load(weft_gpt_simd *lanes, const float *x) {
  memcpy(lanes, x, sizeof *lanes);
}
/* The last `count` < 16, the other lanes 0. */
WEFT_GPT_INLINE void weft_gpt_simd_load_some(weft_gpt_simd *lanes, const float *x, uint64_t count) {
  float some[WEFT_GPT_SIMD_WIDTH] = {0};
  for (uint64_t i = 0; i < count; i++) {
    some[i] = x[i];
  }
  memcpy(lanes, some, sizeof *lanes);
}
/* Lane i gets the one that lies half of the first 16, 8, 4, 2 lanes further, for i < half. */
#define WEFT_GPT_OTHER_HALF(v, half)                                                     \
  __builtin_shufflevector(v, v, (half), 1 % (half) + (half), 2 % (half) + (half),        \
                          3 % (half) + (half), 4 % (half) + (half), 5 % (half) + (half), \
                          6 % (half) + (half), 7 % (half) + (half), 8, 9, 10, 11, 12, 13, 14, 15)

/* Always (i, i + 8), then (i, i + 4), (i, i + 2), (i, i + 1). */
WEFT_GPT_INLINE float weft_gpt_simd_sum(const weft_gpt_simd *lanes) {
  weft_gpt_simd s = *lanes;
  s += WEFT_GPT_OTHER_HALF(s, 8);
  s += WEFT_GPT_OTHER_HALF(s, 4);
  s += WEFT_GPT_OTHER_HALF(s, 2);
  s += WEFT_GPT_OTHER_HALF(s, 1);
  return s[0];
}

/* The larger of each two; of a number and none, the number. */
WEFT_GPT_INLINE void weft_gpt_simd_max(weft_gpt_simd *max, const weft_gpt_simd *x) {
  const weft_gpt_lane_bits larger = *x > *max;
  *max = (weft_gpt_simd)(((weft_gpt_lane_bits)*x & larger) | ((weft_gpt_lane_bits)*max & ~larger));
}

WEFT_GPT_INLINE float weft_gpt_simd_largest(const weft_gpt_simd *lanes) {
  weft_gpt_simd max = *lanes, other = WEFT_GPT_OTHER_HALF(max, 8);
  weft_gpt_simd_max(&max, &other);
  other = WEFT_GPT_OTHER_HALF(max, 4);
  weft_gpt_simd_max(&max, &other);
  other = WEFT_GPT_OTHER_HALF(max, 2);
  weft_gpt_simd_max(&max, &other);
  other = WEFT_GPT_OTHER_HALF(max, 1);
  weft_gpt_simd_max(&max, &other);
  return max[0];
}

/* Sum, and largest of x and start, over an array. */
WEFT_GPT_INLINE float weft_gpt_array_sum(uint64_t count, const float *x) {
  weft_gpt_simd sum = {0}, part;
  uint64_t i = 0;
  for (; i + WEFT_GPT_SIMD_WIDTH <= count; i += WEFT_GPT_SIMD_WIDTH) {
    weft_gpt_simd_load(&part, x + i);
    sum += part;
  }
  if (i < count) {
    weft_gpt_simd_load_some(&part, x + i, count - i);
    sum += part;
  }
  return weft_gpt_simd_sum(&sum);
}
WEFT_GPT_INLINE float weft_gpt_array_max(uint64_t count, const float *x, float start) {
  weft_gpt_simd max = start - (weft_gpt_simd){0}, part;
  uint64_t i = 0;
  for (; i + WEFT_GPT_SIMD_WIDTH <= count; i += WEFT_GPT_SIMD_WIDTH) {
    weft_gpt_simd_load(&part, x + i);
    weft_gpt_simd_max(&max, &part);
  }
  float largest = weft_gpt_simd_largest(&max);
  for (; i < count; i++) {
    largest = x[i] > largest ? x[i] : largest;
  }
  return largest;
}

#endif
