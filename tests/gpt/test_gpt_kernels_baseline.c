/* The tests of kernels once more, with the kernels compiled for the baseline, without vectors or fused products:
 * this machine may have better, and would never take these variants. */
#define WEFT_GPT_WIDEST 128
/* NOLINTBEGIN(bugprone-suspicious-include): that is the point. */
#include "gpt/kernel_adamw.c"
#include "gpt/kernel_attention.c"
#include "gpt/kernel_gelu.c"
#include "gpt/kernel_linear.c"
#include "gpt/kernel_loss.c"
#include "gpt/kernel_norm.c"
#include "gpt/kernel_tile.c"
#include "gpt/kernel_wide.c"
/* After those, which it needs. */
#include "test_gpt_kernels.c"
/* NOLINTEND(bugprone-suspicious-include) */
