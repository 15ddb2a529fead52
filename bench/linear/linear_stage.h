/* The linear stage: y = x w', a matrix product without a library, for what is compared bit for bit
 * on the host and on GPUs (weft bench gpu, tests/device). Its kernels are its own, in
 * linear_kernels.cu; all else is public. */
#ifndef LINEAR_STAGE_H
#define LINEAR_STAGE_H

#include <weft/cuda.h>
#include <weft/run.h>

/* The loss of a stage that is one is half the sum of squared differences to the target. Tensors are
 * f32: inputs [rows][in], outputs and targets [rows][out]. In a graph x is the sum of the inputs, in
 * their order, and all outputs are y. It has the same bits on every device. */
struct weft_linear_stage {
  struct weft_stage stage;
  struct weft_device *device;        /* of the pipeline */
  struct weft_cuda_kernels *kernels; /* NULL: on the host */
  uint64_t in, out;
  float *weights, *grads; /* [out][in], on the device */
};

/* On the device of a rank; NULL `cuda`: on the host. Weights are drawn from the seed. */
enum weft_status weft_linear_stage_init(struct weft_linear_stage *stage, struct weft_cuda *cuda,
                                        uint32_t rank, uint64_t in, uint64_t out, uint64_t seed,
                                        struct weft_error *error);
/* Before its `cuda` is closed. */
void weft_linear_stage_finish(struct weft_linear_stage *stage);
/* Copies the weights or gradients to the host, [out][in]. After a step. */
enum weft_status weft_linear_stage_read(const struct weft_linear_stage *stage, bool grads,
                                        float *host, struct weft_error *error);

#endif
