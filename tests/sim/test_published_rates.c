/* The published bubble rates of 1F1B and ZB-1p (arXiv 2401.10241, Table 5, from
 * the profiles of its Table 9) come out of our own tables to four decimals.
 * ZB-1p at the memory of 1F1B is the order of ZB-H1. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <weft/weft.h>

struct profile {
  const char *model;
  uint32_t ranks, microbatches;
  double f, i, w, hop; /* ms */
  double rate_1f1b, rate_zb1p;
};

static const struct profile profiles[] = {
    {"1.5B", 8, 24, 18.522, 18.086, 9.337, 0.601, .2431, .1585},
    {"1.5B", 8, 32, 18.513, 18.086, 9.331, 0.626, .1985, .1242},
    {"1.5B", 8, 64, 18.546, 18.097, 9.321, 0.762, .1240, .0674},
    {"6.2B", 8, 24, 29.718, 29.444, 19.927, 0.527, .2347, .1323},
    {"6.2B", 8, 32, 29.802, 29.428, 19.530, 0.577, .1898, .1045},
    {"6.2B", 8, 64, 29.935, 29.621, 19.388, 0.535, .1091, .0554},
    {"14.6B", 16, 48, 11.347, 11.248, 8.132, 0.377, .2552, .1397},
    {"14.6B", 16, 64, 11.307, 11.254, 8.101, 0.379, .2082, .1088},
    {"14.6B", 16, 128, 11.325, 11.308, 8.109, 0.378, .1251, .0576},
    {"28.3B", 32, 96, 10.419, 10.207, 7.715, 0.408, .2646, .1421},
    {"28.3B", 32, 128, 10.408, 10.204, 7.703, 0.408, .2168, .1106},
    {"28.3B", 32, 256, 10.402, 10.248, 7.698, 0.460, .1352, .0594},
};
enum { PROFILES = sizeof profiles / sizeof profiles[0] };

/* As the program of a lowering, with SEND and RECV, or as the bare table. */
static struct weft_program *program_of(const struct profile *profile, const char *schedule,
                                       bool lowered) {
  const struct weft_shape shape = {.ranks = profile->ranks, .microbatches = profile->microbatches};
  struct weft_program *table = NULL, *program = NULL;
  struct weft_error error;
  if (weft_generate(NULL, schedule, &shape, &table, &error) < 0) {
    fail_msg("%s", error.message);
  }
  if (!lowered) {
    return table;
  }
  if (weft_lower(NULL, table, NULL, &program, &error) < 0) {
    fail_msg("%s", error.message);
  }
  weft_program_destroy(table);
  return program;
}

static struct weft_simulation *simulate(const struct profile *profile,
                                        const struct weft_program *program) {
  struct weft_stage_costs stage = {.f = profile->f,
                                   .i = profile->i,
                                   .w = profile->w,
                                   .b = profile->i + profile->w,
                                   .overlap_f_b = -1,
                                   .activation = 1,
                                   .activation_after_i = 1};
  const struct weft_costs costs = {
      .unit = "ms", .stage_count = 1, .stages = &stage, .hop = {.latency = profile->hop}};
  struct weft_simulation *simulation = NULL;
  struct weft_error error;
  if (weft_simulate(NULL, program, &costs, NULL, &simulation, &error) < 0) {
    fail_msg("%s", error.message);
  }
  return simulation;
}

static void check_rate(const struct profile *profile, const char *schedule, double published) {
  const double work = profile->microbatches * (profile->f + profile->i + profile->w);
  for (int lowered = 0; lowered < 2; lowered++) {
    struct weft_program *program = program_of(profile, schedule, lowered);
    struct weft_simulation *simulation = simulate(profile, program);
    const double rate = 1 - work / simulation->span;
    if (fabs(round(rate * 1e4) / 1e4 - published) > 1e-9) {
      fail_msg("%s of %s p = %u m = %u: %.6f, published is %.4f", schedule, profile->model,
               profile->ranks, profile->microbatches, rate, published);
    }
    /* Every rank works the same, so the two definitions agree. */
    assert_true(fabs(simulation->span_bubble_ratio - rate) < 1e-9);
    assert_true(simulation->makespan >= simulation->span);
    assert_true(simulation->peak_activation == profile->ranks);
    weft_simulation_destroy(simulation);
    weft_program_destroy(program);
  }
}

static void test_1f1b(void **state) {
  (void)state;
  for (size_t i = 0; i < PROFILES; i++) {
    check_rate(&profiles[i], "1F1B", profiles[i].rate_1f1b);
  }
}

static void test_zb_1p(void **state) {
  (void)state;
  for (size_t i = 0; i < PROFILES; i++) {
    check_rate(&profiles[i], "ZBH1", profiles[i].rate_zb1p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_1f1b), cmocka_unit_test(test_zb_1p)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
