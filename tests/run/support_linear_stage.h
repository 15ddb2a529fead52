/* A linear stage for tests of the runtime. */
#ifndef SUPPORT_LINEAR_STAGE_H
#define SUPPORT_LINEAR_STAGE_H

#include <weft/run.h>

/* y = x W + b with a squared-error loss on the last stage: for tests and the
 * example. float32; rows x columns; gradients accumulate in the order of calls,
 * each microbatch's contribution computed on its own, so they are the same bit
 * for bit for the same order. Weights depend on stage and seed. */
struct test_linear_stage;
enum weft_status test_linear_stage_create(const struct weft_allocator *allocator, uint32_t stage,
                                          uint32_t width, uint64_t seed,
                                          struct test_linear_stage **out, struct weft_error *error);
void test_linear_stage_destroy(struct test_linear_stage *stage);
struct weft_stage *test_linear_stage_base(struct test_linear_stage *stage);
/* [width * width + width]: weights, then bias. */
float *test_linear_stage_parameters(struct test_linear_stage *stage, uint32_t *count);
float *test_linear_stage_gradients(struct test_linear_stage *stage, uint32_t *count);

#endif
