/* The kernels of the linear stage: linear_kernels.h says what each computes. This file is CUDA for
 * the GPU and C for the host (linear_kernels.c), which defines KERNEL and the functions that CUDA
 * has. Sums have one order and no fused multiply-add, so they have the same bits on both. */
#ifdef __CUDACC__
#define KERNEL(name, ...) extern "C" __global__ void weft_linear_##name(__VA_ARGS__)
#define THREAD (blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x)
#define MULTIPLY(a, b) __fmul_rn((a), (b))
#define ADD(a, b) __fadd_rn((a), (b))
#define MULTIPLY_F64(a, b) __dmul_rn((a), (b))
#define ADD_F64(a, b) __dadd_rn((a), (b))
typedef unsigned long long number;
#endif

KERNEL(forward, float *y, const float *x, const float *w, number rows, number in, number out) {
  const number k = THREAD;
  if (k >= rows * out) {
    return;
  }
  const number r = k / out, o = k % out;
  float sum = 0;
  for (number i = 0; i < in; i++) {
    sum = ADD(sum, MULTIPLY(x[r * in + i], w[o * in + i]));
  }
  y[k] = sum;
}

KERNEL(backward_input, float *dx, const float *dy, const float *w, number rows, number in,
       number out) {
  const number k = THREAD;
  if (k >= rows * in) {
    return;
  }
  const number r = k / in, i = k % in;
  float sum = 0;
  for (number o = 0; o < out; o++) {
    sum = ADD(sum, MULTIPLY(dy[r * out + o], w[o * in + i]));
  }
  dx[k] = sum;
}

KERNEL(backward_weight, float *dw, const float *dy, const float *x, number rows, number in,
       number out) {
  const number k = THREAD;
  if (k >= out * in) {
    return;
  }
  const number o = k / in, i = k % in;
  float sum = dw[k];
  for (number r = 0; r < rows; r++) {
    sum = ADD(sum, MULTIPLY(dy[r * out + o], x[r * in + i]));
  }
  dw[k] = sum;
}

KERNEL(square_loss, double *loss, const float *y, const float *target, number count) {
  if (THREAD > 0) {
    return;
  }
  double sum = *loss;
  for (number k = 0; k < count; k++) {
    const double d = (double)y[k] - (double)target[k];
    sum = ADD_F64(sum, MULTIPLY_F64(0.5, MULTIPLY_F64(d, d)));
  }
  *loss = sum;
}

KERNEL(subtract, float *d, const float *y, const float *target, number count) {
  const number k = THREAD;
  if (k < count) {
    d[k] = ADD(y[k], -target[k]);
  }
}

KERNEL(scale, float *x, double factor, number count) {
  const number k = THREAD;
  if (k < count) {
    x[k] = MULTIPLY(x[k], (float)factor);
  }
}

KERNEL(add, float *x, const float *y, number count) {
  const number k = THREAD;
  if (k < count) {
    x[k] = ADD(x[k], y[k]);
  }
}
