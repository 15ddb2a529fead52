/* The GPU's side of trainer/model/compute.h. Matrix products are cublasLt's (trainer/cublaslt/cublaslt.h), all
 * else are kernels of our own, the .cu files of this folder, compiled on the machine. */
#ifndef GPT_COMPUTE_CUDA_H
#define GPT_COMPUTE_CUDA_H

#include <weft/cuda.h>

#include "trainer/model/compute.h"

/* For sizes. */
const struct weft_gpt_compute_ops *weft_gpt_compute_cuda_ops(void);

/* For a rank of `gpus`, and microbatches of at most that many sequences. `peer`: that of another rank on the same GPU, with which it shares what
 * products need, or NULL; one thread makes and destroys them. WEFT_ERR_UNAVAILABLE without cublasLt or NVRTC, or on a GPU without bf16;
 * WEFT_ERR_USAGE: the kernels cannot do this model, or such microbatches. */
enum weft_status weft_gpt_compute_cuda_create(const struct weft_allocator *allocator,
                                              struct weft_cuda *gpus, uint32_t rank,
                                              const struct weft_gpt_config *config,
                                              uint64_t sequences_max, struct weft_gpt_compute *peer,
                                              struct weft_gpt_compute **out,
                                              struct weft_error *error);
/* NULL is fine. */
void weft_gpt_compute_cuda_destroy(struct weft_gpt_compute *compute);

#endif
