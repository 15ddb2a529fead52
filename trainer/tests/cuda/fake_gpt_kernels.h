/* The trainer's kernels on the host, for the fake driver. */
#ifndef FAKE_GPT_KERNELS_H
#define FAKE_GPT_KERNELS_H

#include "fake_cuda.h"

/* NULL after the last. */
const struct fake_cuda_kernel *fake_gpt_kernel_at(uint32_t k);

#endif
