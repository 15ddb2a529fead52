/* The tests of kernels once more, with the kernels compiled for the baseline, without vectors or fused products:
 * this machine may have better, and would never take these variants. */
#define WEFT_GPT_WIDEST 128
/* NOLINTBEGIN(bugprone-suspicious-include): that is the point. */
#include "gpt/kernels/adamw.c"
#include "gpt/kernels/attention.c"
#include "gpt/kernels/cross_entropy.c"
#include "gpt/kernels/gelu.c"
#include "gpt/kernels/gemm_avx512.c"
#include "gpt/kernels/gemm_tile.c"
#include "gpt/kernels/layernorm.c"
#include "gpt/kernels/linear.c"
/* After those, which it needs. */
#include "test_gpt_kernels.c"
/* NOLINTEND(bugprone-suspicious-include) */
