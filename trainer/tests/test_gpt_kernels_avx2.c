/* The tests of kernels once more, with the kernels compiled for AVX2:
 * this machine may have better, and would never take these variants. */
#define WEFT_GPT_WIDEST 256
/* NOLINTBEGIN(bugprone-suspicious-include): that is the point. */
#include "trainer/kernels/adamw.c"
#include "trainer/kernels/attention.c"
#include "trainer/kernels/cross_entropy.c"
#include "trainer/kernels/gelu.c"
#include "trainer/kernels/gemm_avx512.c"
#include "trainer/kernels/gemm_tile.c"
#include "trainer/kernels/layernorm.c"
#include "trainer/kernels/linear.c"
/* After those, which it needs. */
#include "test_gpt_kernels.c"
/* NOLINTEND(bugprone-suspicious-include) */
