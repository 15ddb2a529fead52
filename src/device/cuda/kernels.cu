/* The built-in kernels: device/kernel.h says what each computes. This file is CUDA for the GPU and C
 * for the host (device/kernel.c), which defines WEFT_KERNEL and the functions that CUDA has. No
 * kernel shares memory between threads, so the order of threads does not matter. */
#ifdef __CUDACC__
#define WEFT_KERNEL(name, ...) extern "C" __global__ void weft_##name(__VA_ARGS__)
#define WEFT_THREAD (blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x)
#define WEFT_ADD(a, b) __fadd_rn((a), (b))
#define WEFT_ADD_F64(a, b) __dadd_rn((a), (b))
#define WEFT_BITS(number) __float_as_uint(number)
#define WEFT_FLOAT(bits) __uint_as_float(bits)
#define WEFT_INLINE static __device__
#define WEFT_PUBLISH(number, value) (__threadfence_system(), *(volatile unsigned *)(number) = (value))
typedef unsigned long long weft_count;
static __device__ weft_count WEFT_CLOCK(void) {
  weft_count now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}
#endif

WEFT_KERNEL(add, float *x, const float *y, weft_count count) {
  const weft_count k = WEFT_THREAD;
  if (k < count) {
    x[k] = WEFT_ADD(x[k], y[k]);
  }
}

WEFT_KERNEL(add_f64, double *x, const double *y, weft_count count) {
  const weft_count k = WEFT_THREAD;
  if (k < count) {
    x[k] = WEFT_ADD_F64(x[k], y[k]);
  }
}

/* Conversions of 16-bit floats, to nearest even. Written out, because not every compiler of the
 * host has these types; so the host has the GPU's bits, but for those of what is no number. */
WEFT_INLINE float from_f16(unsigned half) {
  const unsigned sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << 13;
  if (magnitude >= 0x0f800000u) { /* infinite, or no number */
    return WEFT_FLOAT(sign | magnitude | 0x70000000u);
  }
  if (magnitude < 0x00800000u) { /* subnormal, in units of 2^-24 */
    const float number = WEFT_ADD(WEFT_FLOAT(magnitude | 0x38800000u), -WEFT_FLOAT(0x38800000u));
    return WEFT_FLOAT(sign | WEFT_BITS(number));
  }
  return WEFT_FLOAT(sign | (magnitude + 0x38000000u));
}

WEFT_INLINE unsigned short to_f16(float number) {
  const unsigned bits = WEFT_BITS(number), sign = bits >> 16 & 0x8000u;
  unsigned magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x477ff000u) { /* 65,520 and more */
    return (unsigned short)(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
  }
  if (magnitude < 0x38800000u) { /* 0.5 has 2^-24 as its last bit */
    const unsigned half = 0x3f000000u;
    return (unsigned short)(sign |
                            (WEFT_BITS(WEFT_ADD(WEFT_FLOAT(magnitude), WEFT_FLOAT(half))) - half));
  }
  magnitude += 0xfffu + (magnitude >> 13 & 1u);
  return (unsigned short)(sign | (magnitude - 0x38000000u) >> 13);
}

WEFT_INLINE unsigned short to_bf16(float number) {
  const unsigned bits = WEFT_BITS(number);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return (unsigned short)(bits >> 16 | 0x40u);
  }
  return (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

WEFT_KERNEL(add_f16, unsigned short *x, const unsigned short *y, weft_count count) {
  const weft_count k = WEFT_THREAD;
  if (k < count) {
    x[k] = to_f16(WEFT_ADD(from_f16(x[k]), from_f16(y[k])));
  }
}

WEFT_KERNEL(add_bf16, unsigned short *x, const unsigned short *y, weft_count count) {
  const weft_count k = WEFT_THREAD;
  if (k < count) {
    x[k] = to_bf16(WEFT_ADD(WEFT_FLOAT((unsigned)x[k] << 16), WEFT_FLOAT((unsigned)y[k] << 16)));
  }
}

WEFT_KERNEL(add_members, float *to, const float *own, const float *others, weft_count count,
            weft_count stride, weft_count members, weft_count member) {
  const weft_count k = WEFT_THREAD;
  if (k >= count) {
    return;
  }
  float sum = member == 0 ? own[k] : others[k];
  for (weft_count m = 1; m < members; m++) {
    sum = WEFT_ADD(sum, m == member ? own[k] : others[(m < member ? m : m - 1) * stride + k]);
  }
  to[k] = sum;
}

// NOLINTNEXTLINE(readability-non-const-parameter): WEFT_PUBLISH writes it
WEFT_KERNEL(note, unsigned *number, weft_count value, weft_count *clock) {
  if (WEFT_THREAD == 0) {
    *(volatile weft_count *)clock = WEFT_CLOCK();
    WEFT_PUBLISH(number, (unsigned)value);
  }
}

WEFT_KERNEL(spin, weft_count ns) {
  const weft_count begin = WEFT_CLOCK();
  while (WEFT_THREAD == 0 && WEFT_CLOCK() - begin < ns) {
  }
}
