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
#define WEFT_MULTIPLY(a, b) ((a) * (b))
#define WEFT_ADD(a, b) ((a) + (b))
#define WEFT_MULTIPLY_F64(a, b) ((a) * (b))
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
#define FOR_THREADS for (uint64_t thread = 0; thread < threads; thread++)

static void linear_forward(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    linear_forward_thread(thread, ADDRESS(float, 0), ADDRESS(const float, 1),
                          ADDRESS(const float, 2), NUMBER(uint64_t, 3), NUMBER(uint64_t, 4),
                          NUMBER(uint64_t, 5));
  }
}

static void linear_backward_input(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    linear_backward_input_thread(thread, ADDRESS(float, 0), ADDRESS(const float, 1),
                                 ADDRESS(const float, 2), NUMBER(uint64_t, 3), NUMBER(uint64_t, 4),
                                 NUMBER(uint64_t, 5));
  }
}

static void linear_backward_weight(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    linear_backward_weight_thread(thread, ADDRESS(float, 0), ADDRESS(const float, 1),
                                  ADDRESS(const float, 2), NUMBER(uint64_t, 3), NUMBER(uint64_t, 4),
                                  NUMBER(uint64_t, 5));
  }
}

static void square_loss(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    square_loss_thread(thread, ADDRESS(double, 0), ADDRESS(const float, 1), ADDRESS(const float, 2),
                       NUMBER(uint64_t, 3));
  }
}

static void subtract(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    subtract_thread(thread, ADDRESS(float, 0), ADDRESS(const float, 1), ADDRESS(const float, 2),
                    NUMBER(uint64_t, 3));
  }
}

static void scale(void *const *parameters, uint64_t threads) {
  FOR_THREADS { scale_thread(thread, ADDRESS(float, 0), NUMBER(double, 1), NUMBER(uint64_t, 2)); }
}

static void add(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    add_thread(thread, ADDRESS(float, 0), ADDRESS(const float, 1), NUMBER(uint64_t, 2));
  }
}

static void add_f64(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    add_f64_thread(thread, ADDRESS(double, 0), ADDRESS(const double, 1), NUMBER(uint64_t, 2));
  }
}

static void add_f16(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    add_f16_thread(thread, ADDRESS(uint16_t, 0), ADDRESS(const uint16_t, 1), NUMBER(uint64_t, 2));
  }
}

static void add_bf16(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    add_bf16_thread(thread, ADDRESS(uint16_t, 0), ADDRESS(const uint16_t, 1), NUMBER(uint64_t, 2));
  }
}

static void add_members(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    add_members_thread(thread, ADDRESS(float, 0), ADDRESS(const float, 1), ADDRESS(const float, 2),
                       NUMBER(uint64_t, 3), NUMBER(uint64_t, 4), NUMBER(uint64_t, 5),
                       NUMBER(uint64_t, 6));
  }
}

static void note(void *const *parameters, uint64_t threads) {
  FOR_THREADS {
    note_thread(thread, ADDRESS(unsigned, 0), NUMBER(uint64_t, 1), ADDRESS(weft_count, 2));
  }
}

static void spin(void *const *parameters, uint64_t threads) {
  FOR_THREADS { spin_thread(thread, NUMBER(uint64_t, 0)); }
}

/* ---- The table ---- */

#define WRITES WEFT_PARAMETER_WRITES
#define READS WEFT_PARAMETER_READS
#define UPDATES WEFT_PARAMETER_UPDATES
#define U64 WEFT_PARAMETER_U64
#define F64 WEFT_PARAMETER_F64

enum {
  LINEAR_FORWARD,
  LINEAR_BACKWARD_INPUT,
  LINEAR_BACKWARD_WEIGHT,
  SQUARE_LOSS,
  SUBTRACT,
  SCALE,
  ADD,
  ADD_F64,
  ADD_F16,
  ADD_BF16,
  ADD_MEMBERS,
  NOTE,
  SPIN,
  KERNELS
};

static const struct weft_kernel kernels[KERNELS] = {
    [LINEAR_FORWARD] = {"weft_linear_forward",
                        6,
                        {WRITES, READS, READS, U64, U64, U64},
                        linear_forward},
    [LINEAR_BACKWARD_INPUT] = {"weft_linear_backward_input",
                               6,
                               {WRITES, READS, READS, U64, U64, U64},
                               linear_backward_input},
    [LINEAR_BACKWARD_WEIGHT] = {"weft_linear_backward_weight",
                                6,
                                {UPDATES, READS, READS, U64, U64, U64},
                                linear_backward_weight},
    [SQUARE_LOSS] = {"weft_square_loss", 4, {UPDATES, READS, READS, U64}, square_loss},
    [SUBTRACT] = {"weft_subtract", 4, {WRITES, READS, READS, U64}, subtract},
    [SCALE] = {"weft_scale", 3, {UPDATES, F64, U64}, scale},
    [ADD] = {"weft_add", 3, {UPDATES, READS, U64}, add},
    [ADD_F64] = {"weft_add_f64", 3, {UPDATES, READS, U64}, add_f64},
    [ADD_F16] = {"weft_add_f16", 3, {UPDATES, READS, U64}, add_f16},
    [ADD_BF16] = {"weft_add_bf16", 3, {UPDATES, READS, U64}, add_bf16},
    [ADD_MEMBERS] = {"weft_add_members",
                     7,
                     {WRITES, READS, READS, U64, U64, U64, U64},
                     add_members},
    [NOTE] = {"weft_note", 3, {WRITES, U64, WRITES}, note},
    [SPIN] = {"weft_spin", 1, {U64}, spin},
};

const struct weft_kernel *weft_kernel_at(uint32_t k) { return k < KERNELS ? &kernels[k] : NULL; }
const struct weft_kernel *weft_kernel_linear_forward(void) { return &kernels[LINEAR_FORWARD]; }
const struct weft_kernel *weft_kernel_linear_backward_input(void) {
  return &kernels[LINEAR_BACKWARD_INPUT];
}
const struct weft_kernel *weft_kernel_linear_backward_weight(void) {
  return &kernels[LINEAR_BACKWARD_WEIGHT];
}
const struct weft_kernel *weft_kernel_square_loss(void) { return &kernels[SQUARE_LOSS]; }
const struct weft_kernel *weft_kernel_subtract(void) { return &kernels[SUBTRACT]; }
const struct weft_kernel *weft_kernel_scale(void) { return &kernels[SCALE]; }
const struct weft_kernel *weft_kernel_add(void) { return &kernels[ADD]; }
const struct weft_kernel *weft_kernel_add_f64(void) { return &kernels[ADD_F64]; }
const struct weft_kernel *weft_kernel_add_f16(void) { return &kernels[ADD_F16]; }
const struct weft_kernel *weft_kernel_add_bf16(void) { return &kernels[ADD_BF16]; }
const struct weft_kernel *weft_kernel_add_members(void) { return &kernels[ADD_MEMBERS]; }
const struct weft_kernel *weft_kernel_note(void) { return &kernels[NOTE]; }
const struct weft_kernel *weft_kernel_spin(void) { return &kernels[SPIN]; }

enum weft_status weft_kernel_launch(struct weft_device *device, const struct weft_kernel *kernel,
                                    uint64_t threads, void *const *parameters,
                                    struct weft_stream *stream, struct weft_error *error) {
  assert(kernel != NULL && threads > 0);
  if (weft_device_is_host(device)) {
    kernel->host(parameters, threads);
    return WEFT_OK;
  }
  if (device->ops->launch == NULL) {
    return weft_fail(error, WEFT_ERR_UNAVAILABLE, "use stages of your own there",
                     "the built-in stages have no kernels for a %s device", device->ops->name);
  }
  return device->ops->launch(device, (uint32_t)(kernel - kernels), threads, parameters, stream,
                             error);
}
