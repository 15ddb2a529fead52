/* The built-in kernels on the host: the same source, and a loop in place of the grid. */
#include "device/kernel.h"

#include <assert.h>
#include <string.h>

#include <weft/support.h>

static uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float number;
  memcpy(&number, &bits, sizeof number);
  return number;
}

typedef uint64_t weft_count;
#define WEFT_KERNEL(name, ...) static void name##_thread(weft_count weft_thread, __VA_ARGS__)
#define WEFT_THREAD weft_thread
#define WEFT_ADD(a, b) ((a) + (b))
#define WEFT_ADD_F64(a, b) ((a) + (b))
#define WEFT_BITS(number) bits_of(number)
#define WEFT_FLOAT(bits) float_of(bits)
#define WEFT_INLINE static inline
#define WEFT_CLOCK() ((weft_count)weft_clock_ns())
#define WEFT_PUBLISH(number, value) __atomic_store_n((number), (value), __ATOMIC_RELEASE)

#include "device/cuda/kernels.cu"

/* The k-th parameter, an address or a number. */
#define ADDRESS(type, k) (*(type *const *)parameters[k])
#define NUMBER(type, k) (*(const type *)parameters[k])
/* All threads of a kernel, one after the other. */
#define HOST(name, ...)                                         \
  static void name(void *const *parameters, uint64_t threads) { \
    for (uint64_t thread = 0; thread < threads; thread++) {     \
      name##_thread(thread, __VA_ARGS__);                       \
    }                                                           \
  }
#define SUM(name, type) HOST(name, ADDRESS(type, 0), ADDRESS(const type, 1), NUMBER(uint64_t, 2))

SUM(add, float)
SUM(add_f64, double)
SUM(add_f16, uint16_t)
SUM(add_bf16, uint16_t)
HOST(add_members, ADDRESS(float, 0), ADDRESS(const float, 1), ADDRESS(const float, 2),
     NUMBER(uint64_t, 3), NUMBER(uint64_t, 4), NUMBER(uint64_t, 5), NUMBER(uint64_t, 6))
HOST(note, ADDRESS(unsigned, 0), NUMBER(uint64_t, 1), ADDRESS(weft_count, 2))
HOST(spin, NUMBER(uint64_t, 0))

/* ---- The table ---- */

#define KERNEL(name) \
  { "weft_" #name, name }
static const struct weft_kernel kernels[WEFT_KERNELS] = {
    [WEFT_KERNEL_ADD] = KERNEL(add),
    [WEFT_KERNEL_ADD_F64] = KERNEL(add_f64),
    [WEFT_KERNEL_ADD_F16] = KERNEL(add_f16),
    [WEFT_KERNEL_ADD_BF16] = KERNEL(add_bf16),
    [WEFT_KERNEL_ADD_MEMBERS] = KERNEL(add_members),
    [WEFT_KERNEL_NOTE] = KERNEL(note),
    [WEFT_KERNEL_SPIN] = KERNEL(spin),
};

const struct weft_kernel *weft_kernel_at(uint32_t k) {
  return k < WEFT_KERNELS ? &kernels[k] : NULL;
}

enum weft_status weft_kernel_launch(struct weft_device *device, enum weft_kernel_id kernel,
                                    uint64_t threads, void *const *parameters,
                                    struct weft_stream *stream, struct weft_error *error) {
  assert(kernel < WEFT_KERNELS && threads > 0 && parameters != NULL);
  if (weft_device_is_host(device)) {
    kernels[kernel].host(parameters, threads);
    return WEFT_OK;
  }
  if (device->ops->launch == NULL) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "use stages of your own there",
                     "the built-in stages have no kernels for a %s device", device->ops->name);
  }
  return device->ops->launch(device, kernel, threads, parameters, stream, error);
}
