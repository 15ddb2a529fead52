/* The linear stage's kernels on the host: the same source, and a loop in place of the grid. */
#include "bench/linear/linear_kernels.h"

typedef uint64_t number;
#define KERNEL(name, ...) static void name##_thread(number thread, __VA_ARGS__)
#define THREAD thread
#define MULTIPLY(a, b) ((a) * (b))
#define ADD(a, b) ((a) + (b))
#define MULTIPLY_F64(a, b) ((a) * (b))
#define ADD_F64(a, b) ((a) + (b))

#include "bench/linear/linear_kernels.cu"

/* The k-th parameter, an address or a number. */
#define TO(type, k) (*(type *const *)parameters[k])
#define FROM(k) (*(const float *const *)parameters[k])
#define COUNT(k) (*(const uint64_t *)parameters[k])
#define HOST(name, ...)                                         \
  static void name(void *const *parameters, uint64_t threads) { \
    for (uint64_t thread = 0; thread < threads; thread++) {     \
      name##_thread(thread, __VA_ARGS__);                       \
    }                                                           \
  }

HOST(forward, TO(float, 0), FROM(1), FROM(2), COUNT(3), COUNT(4), COUNT(5))
HOST(backward_input, TO(float, 0), FROM(1), FROM(2), COUNT(3), COUNT(4), COUNT(5))
HOST(backward_weight, TO(float, 0), FROM(1), FROM(2), COUNT(3), COUNT(4), COUNT(5))
HOST(square_loss, TO(double, 0), FROM(1), FROM(2), COUNT(3))
HOST(subtract, TO(float, 0), FROM(1), FROM(2), COUNT(3))
HOST(scale, TO(float, 0), *(const double *)parameters[1], COUNT(2))
HOST(add, TO(float, 0), FROM(1), COUNT(2))

const char *const weft_linear_kernel_names[WEFT_LINEAR_KERNELS] = {
    [WEFT_LINEAR_FORWARD] = "weft_linear_forward",
    [WEFT_LINEAR_BACKWARD_INPUT] = "weft_linear_backward_input",
    [WEFT_LINEAR_BACKWARD_WEIGHT] = "weft_linear_backward_weight",
    [WEFT_LINEAR_SQUARE_LOSS] = "weft_linear_square_loss",
    [WEFT_LINEAR_SUBTRACT] = "weft_linear_subtract",
    [WEFT_LINEAR_SCALE] = "weft_linear_scale",
    [WEFT_LINEAR_ADD] = "weft_linear_add",
};

void (*const weft_linear_kernel_hosts[WEFT_LINEAR_KERNELS])(void *const *parameters,
                                                            uint64_t threads) = {
    [WEFT_LINEAR_FORWARD] = forward,
    [WEFT_LINEAR_BACKWARD_INPUT] = backward_input,
    [WEFT_LINEAR_BACKWARD_WEIGHT] = backward_weight,
    [WEFT_LINEAR_SQUARE_LOSS] = square_loss,
    [WEFT_LINEAR_SUBTRACT] = subtract,
    [WEFT_LINEAR_SCALE] = scale,
    [WEFT_LINEAR_ADD] = add,
};
