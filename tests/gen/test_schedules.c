/* Every schedule of the registry, over many shapes: its table is right, its
 * program cannot hang under any model, and the facts in the registry are true
 * of it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_timing.h"

enum { P_MAX = 7, V_MAX = 3, M_MAX = 17 };

static struct weft_program *generate(const char *name, const struct weft_shape *shape) {
  struct weft_program *table = NULL;
  struct weft_error error;
  if (weft_generate(NULL, name, shape, &table, &error) != WEFT_OK) {
    fail_msg("%s p=%u v=%u m=%u: %s", name, shape->ranks, shape->stages_per_rank,
             shape->microbatches, error.message);
  }
  return table;
}

static struct weft_program *lower(const struct weft_program *table, uint32_t window) {
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_program *program = NULL;
  struct weft_error error;
  options.unshard_window = window;
  if (weft_lower(NULL, table, &options, &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

static void assert_right(const char *name, const struct weft_program *program,
                         struct weft_comm_model model) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  struct weft_error error;
  options.model = model;
  assert_int_equal(weft_verify(NULL, program, &options, &report, &error), WEFT_OK);
  if (!report->ok) {
    fail_msg("%s, %u ranks, %u stages, %u microbatches: rank %u step %llu: %s", name,
             program->rank_count, program->stage_count, program->microbatch_count,
             report->findings[0].location.rank,
             (unsigned long long)report->findings[0].location.step, report->findings[0].message);
  }
  assert_true(report->liveness_checked);
  assert_int_equal(report->stage_count, program->stage_count);
  assert_int_equal(report->microbatch_count, program->microbatch_count);
  weft_report_destroy(report);
}

static bool serves(const struct weft_schedule_info *info, const struct weft_shape *shape) {
  return shape->stages_per_rank >= info->stages_per_rank_min &&
         shape->stages_per_rank <= info->stages_per_rank_max &&
         (strcmp(info->name, "DualPipeV") != 0 || shape->microbatches >= 2 * shape->ranks);
}

/* Calls `visit` for every schedule and shape it serves. */
static unsigned for_each_shape(void (*visit)(const struct weft_schedule_info *,
                                             const struct weft_shape *)) {
  unsigned visited = 0;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    for (uint32_t p = 1; p <= P_MAX && !info->fixed; p++) {
      for (uint32_t v = 1; v <= V_MAX; v++) {
        for (uint32_t m = 1; m <= M_MAX; m++) {
          const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
          if (serves(info, &shape)) {
            visit(info, &shape);
            visited++;
          }
        }
      }
    }
  }
  return visited;
}

static void check_shape(const struct weft_schedule_info *info, const struct weft_shape *shape) {
  static const uint32_t capacities[] = {0, 1, 2, WEFT_CAPACITY_UNLIMITED};
  struct weft_program *table = generate(info->name, shape);
  assert_int_equal(table->rank_count, shape->ranks);
  assert_int_equal(table->stage_count, shape->ranks * shape->stages_per_rank);
  assert_int_equal(table->microbatch_count, shape->microbatches);
  assert_right(info->name, table, (struct weft_comm_model){0, WEFT_CHANNEL_EDGE, false});
  for (uint32_t window = 1; window <= 4; window++) {
    struct weft_program *program = lower(table, window);
    for (unsigned k = 0; k < 4; k++) {
      for (unsigned channel = 0; channel < 3 && (window == 3 || k == 0); channel++) {
        assert_right(
            info->name, program,
            (struct weft_comm_model){capacities[k], (enum weft_channel_model)channel, false});
      }
    }
    weft_program_destroy(program);
  }
  weft_program_destroy(table);
}

static void every_shape_is_right_and_cannot_hang(void **state) {
  (void)state;
  assert_true(for_each_shape(check_shape) > 1500);
}

/* ---- Closed forms ---- */

static unsigned bubbles_checked, peaks_checked;

static void check_bubble(const struct weft_schedule_info *info, const struct weft_shape *shape,
                         const struct weft_program *table, const struct weft_unit_costs *costs) {
  const double work = (double)shape->microbatches * shape->stages_per_rank *
                      (info->trains ? costs->f + costs->i + costs->w : costs->f);
  const double expected = info->bubble_of != NULL ? info->bubble_of(shape, costs) : NAN;
  if (isnan(expected)) {
    return;
  }
  bubbles_checked++;
  const double bubble = time_table(table, costs).makespan - work;
  if (bubble != expected) {
    fail_msg("%s p=%u v=%u m=%u F=%g I=%g W=%g: bubble %g, closed form %g", info->name,
             shape->ranks, shape->stages_per_rank, shape->microbatches, costs->f, costs->i,
             costs->w, bubble, expected);
  }
}

static void check_facts(const struct weft_schedule_info *info, const struct weft_shape *shape) {
  static const struct weft_unit_costs costs[] = {{1, 1, 1},   {4, 4, 4},  {10, 12, 7},
                                                 {10, 20, 5}, {20, 7, 7}, {3, 9, 8}};
  struct weft_program *table = generate(info->name, shape);
  for (size_t k = 0; k < sizeof costs / sizeof costs[0]; k++) {
    check_bubble(info, shape, table, &costs[k]);
  }
  const double peak = info->peak_of != NULL ? info->peak_of(shape) : NAN;
  if (!isnan(peak)) {
    peaks_checked++;
    const double measured = time_table(table, &costs[0]).peak / shape->stages_per_rank;
    if (measured != peak) {
      fail_msg("%s p=%u v=%u m=%u: peak %g, closed form %g", info->name, shape->ranks,
               shape->stages_per_rank, shape->microbatches, measured, peak);
    }
  }
  weft_program_destroy(table);
}

static void closed_forms_are_exact(void **state) {
  (void)state;
  (void)for_each_shape(check_facts);
  print_message("closed forms: %u bubbles, %u peaks\n", bubbles_checked, peaks_checked);
  assert_true(bubbles_checked > 2000);
  assert_true(peaks_checked > 1000);
}

/* ---- Facts, names, limits ---- */

static void facts_match_tables(void **state) {
  (void)state;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    const struct weft_schedule_info *info = weft_schedule_at(k);
    const struct weft_shape shape = {.ranks = info->fixed ? 0 : 4,
                                     .microbatches = info->fixed ? 0 : 8};
    struct weft_program *table = generate(info->name, &shape);
    uint32_t rank_of[64];
    bool split = false, backward = false;
    for (uint64_t i = 0; i < table->action_count; i++) {
      split = split || table->actions[i].op == WEFT_OP_I;
      backward = backward || table->actions[i].op == WEFT_OP_I || table->actions[i].op == WEFT_OP_B;
    }
    assert_int_equal(split, info->splits_backward);
    assert_int_equal(backward, info->trains);
    assert_int_equal(weft_placement_infer(table, rank_of), info->placement);
    assert_non_null(info->bubble);
    assert_non_null(info->peak_activation);
    assert_non_null(info->paper);
    assert_non_null(info->limits);
    assert_right(info->name, table, (struct weft_comm_model){0, WEFT_CHANNEL_EDGE, false});
    weft_program_destroy(table);
  }
}

static void forward_only_runs_at_v_placement(void **state) {
  (void)state;
  for (uint32_t p = 1; p <= 6; p++) {
    for (uint32_t v = 1; v <= 4; v++) {
      for (uint32_t m = 1; m <= 15; m++) {
        const struct weft_shape shape = {
            .ranks = p, .stages_per_rank = v, .microbatches = m, .placement = WEFT_PLACEMENT_V};
        struct weft_program *table = generate("ForwardOnly", &shape);
        struct weft_program *program = lower(table, 3);
        assert_right("ForwardOnly", table, (struct weft_comm_model){0, WEFT_CHANNEL_EDGE, false});
        assert_right("ForwardOnly", program, (struct weft_comm_model){0, WEFT_CHANNEL_RANK, false});
        weft_program_destroy(program);
        weft_program_destroy(table);
      }
    }
  }
}

static void names_ignore_case_and_hyphens(void **state) {
  (void)state;
  struct weft_error error;
  assert_string_equal(weft_schedule_find("gpipe", NULL)->name, "GPipe");
  assert_string_equal(weft_schedule_find("zb-h1", NULL)->name, "ZBH1");
  assert_string_equal(weft_schedule_find("INTERLEAVED_ZERO_BUBBLE", NULL)->name,
                      "InterleavedZeroBubble");
  assert_null(weft_schedule_find("interleved1f1b", &error));
  assert_int_equal(error.status, WEFT_ERR_USAGE);
  assert_non_null(strstr(error.hint, "did you mean 'Interleaved1F1B'"));
  assert_null(weft_schedule_find("\x1b[31mred", &error));
  assert_null(strchr(error.message, 0x1b));
}

static void names_of_others_are_known(void **state) {
  (void)state;
  static const char *const pairs[][2] = {
      {"zbv", "ZBVZeroBubble"},
      {"ZB-V", "ZBVZeroBubble"},
      {"AFAB", "GPipe"},
      {"PipeDream-Flush", "1F1B"},
      {"zb1p", "ZBH1"},
      {"BFS", "LoopedBFS"},
      {"1F1B-Interleaved", "Interleaved1F1B"},
      {"VPP", "Interleaved1F1B"},
      {"Schedule1F1B", "1F1B"},
      {"ScheduleGPipe", "GPipe"},
      {"ScheduleZBVZeroBubble", "ZBVZeroBubble"},
      {"ScheduleDualPipeV", "DualPipeV"},
      {"ScheduleLoopedBFS", "LoopedBFS"},
      {"ScheduleInterleaved1F1B", "Interleaved1F1B"},
      {"ScheduleInterleavedZeroBubble", "InterleavedZeroBubble"},
  };
  for (size_t k = 0; k < sizeof pairs / sizeof pairs[0]; k++) {
    const struct weft_schedule_info *info = weft_schedule_find(pairs[k][0], NULL);
    assert_non_null(info);
    assert_string_equal(info->name, pairs[k][1]);
  }
}

/* A wrong suggestion is worse than none; and no hint names a command. */
static void suggestions_are_like_what_was_typed(void **state) {
  (void)state;
  static const char *const hints[][2] = {
      {"zb", "did you mean 'ZBH1' or 'ZBVZeroBubble'?"},
      {"dual", "did you mean 'DualPipeV'?"},
      {"interleaved", "did you mean 'Interleaved1F1B' or 'InterleavedZeroBubble'?"},
      {"gpip", "did you mean 'GPipe'?"},
      {"gpine", "did you mean 'GPipe'?"},
      {"eagr1f1b", "did you mean 'Eager1F1B'?"},
      {"ScheduleZBVZeroBuble", "did you mean 'ZBVZeroBubble'?"},
      {"zero-bubble", "did you mean 'InterleavedZeroBubble' or 'ZBVZeroBubble'?"},
      {"Foo", ""},
      {"weft", ""},
      {"nope", ""},
      {"", ""},
      {"x", ""},
      {"schedule", ""},
      {"V-Half", "it is not here by name; search for a plan on a V placement with a memory limit"},
      {"v_min", "it is not here by name; search for a plan on a V placement with a memory limit"},
      {"Hanayo", "it is not here by name; search for a plan on a V placement"},
  };
  struct weft_error error;
  for (size_t k = 0; k < sizeof hints / sizeof hints[0]; k++) {
    assert_null(weft_schedule_find(hints[k][0], &error));
    assert_string_equal(error.hint, hints[k][1]);
  }
  assert_null(weft_schedule_find("DualPipe", &error));
  assert_non_null(strstr(error.hint, "two copies of the model"));
  assert_null(weft_schedule_find("Chimera", &error));
  assert_non_null(strstr(error.hint, "two copies of the model"));
}

static enum weft_status refuse(const char *name, uint32_t p, uint32_t v, uint32_t m,
                               struct weft_error *error) {
  const struct weft_shape shape = {.ranks = p, .stages_per_rank = v, .microbatches = m};
  struct weft_program *table = NULL;
  const enum weft_status status = weft_generate(NULL, name, &shape, &table, error);
  weft_program_destroy(table);
  return status;
}

static void limits_name_the_nearest_values(void **state) {
  (void)state;
  struct weft_error error;
  assert_int_equal(refuse("DualPipeV", 4, 2, 7, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.message, "m >= 2p"));
  assert_non_null(strstr(error.hint, "m = 8"));
  assert_non_null(strstr(error.hint, "p = 3"));
  assert_int_equal(refuse("DualPipeV", 4, 3, 8, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.hint, "v = 2"));
  assert_int_equal(refuse("1F1B", 4, 2, 8, &error), WEFT_ERR_USAGE);
  assert_non_null(strstr(error.hint, "v = 1"));
  assert_int_equal(refuse("1F1B", 0, 1, 8, &error), WEFT_ERR_USAGE);
  assert_int_equal(refuse("1F1B", 4, 1, 0, &error), WEFT_ERR_USAGE);
  assert_int_equal(refuse("VShaped", 3, 0, 1, &error), WEFT_ERR_USAGE);
  assert_int_equal(refuse("1F1B", 1000000, 1, 1000000, &error), WEFT_ERR_LIMIT);
  assert_non_null(strstr(error.message, "2000001000000"));
  assert_non_null(strstr(error.message, "268435456"));
  assert_int_equal(refuse("Interleaved1F1B", UINT32_MAX, UINT32_MAX, UINT32_MAX, &error),
                   WEFT_ERR_LIMIT);
  assert_int_equal(refuse("GPipe", WEFT_STAGES_MAX + 1, 1, 1, &error), WEFT_ERR_LIMIT);
  assert_int_equal(refuse("GPipe", WEFT_STAGES_MAX, 1, 1, &error), WEFT_OK);
  assert_int_equal(refuse("GPipe", 1, 1, WEFT_MICROBATCHES_MAX + 1, &error), WEFT_ERR_LIMIT);
  assert_int_equal(refuse("GPipe", 1, 1, WEFT_MICROBATCHES_MAX, &error), WEFT_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_shape_is_right_and_cannot_hang),
      cmocka_unit_test(closed_forms_are_exact),
      cmocka_unit_test(facts_match_tables),
      cmocka_unit_test(forward_only_runs_at_v_placement),
      cmocka_unit_test(names_ignore_case_and_hyphens),
      cmocka_unit_test(names_of_others_are_known),
      cmocka_unit_test(suggestions_are_like_what_was_typed),
      cmocka_unit_test(limits_name_the_nearest_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
