/* What every report must be, however wrong the program: findings sorted from
 * the most basic rule on, each with a place that exists and a message; a lower
 * maximum keeps one of every rule and counts the rest; running out of memory at
 * any allocation is an error and no leak. Programs are valid ones with several
 * mutations on top of each other, and rows by chance. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_csv.h"
#include "support_memory.h"
#include "support_mutants.h"
#include "support_oracle.h"
#include "support_oracle_nccl.h"
#include "support_random_program.h"

#define TRIALS 20000u

/* --- Programs, more or less wrong -------------------------------------------------- */

/* Rows of small numbers: collisions of all kinds, no order whatever. */
static void small_rows(struct weft_random *random, struct draft *draft) {
  const uint32_t ranks = 1 + weft_random_below(random, 4), bound = 1 + weft_random_below(random, 4);
  const uint32_t ops = weft_random_below(random, 2) == 0 ? WEFT_OP_W : WEFT_OP_REDUCE_GRAD + 1;
  draft_reset(draft, ranks);
  for (uint32_t cell = weft_random_below(random, 40); cell > 0; cell--) {
    const uint32_t drawn = weft_random_below(random, ops + 1);
    const enum weft_op op = drawn < WEFT_OP_OVERLAP_F_B ? (enum weft_op)drawn : WEFT_OP_TIE_GRAD;
    const uint32_t rank = weft_random_below(random, ranks);
    const uint32_t stage = op == WEFT_OP_IDLE ? 0 : weft_random_below(random, bound);
    const uint32_t microbatch =
        op >= WEFT_OP_F && op <= WEFT_OP_RECV_B ? weft_random_below(random, bound) : 0;
    draft_append(draft, rank, draft_action(op, stage, microbatch));
  }
}

/* A program with communication and, on top, up to six things broken. */
static void broken_program(struct weft_random *random, struct draft *draft) {
  const struct random_limits limits = {.communicate = random_chance(random, 70),
                                       .graph = random_chance(random, 30),
                                       .cells_two = 26,
                                       .cells_three = 18};
  bool misordered;
  random_program(random, &limits, draft, &misordered);
  for (uint32_t broken = weft_random_below(random, 6); broken > 0; broken--) {
    const uint32_t rank = weft_random_below(random, draft->rank_count);
    struct draft_row *row = &draft->rows[rank];
    if (row->count == 0) {
      continue;
    }
    const size_t index = weft_random_below(random, (uint32_t)row->count);
    struct weft_action *action = &row->records[index];
    const bool plain = action->op != WEFT_OP_IDLE && action->op != WEFT_OP_OVERLAP_F_B;
    const uint32_t stages = draft->graph != NULL ? draft->graph->stage_count : 6;
    if (plain && random_chance(random, 40)) {
      action->stage = (uint16_t)weft_random_below(random, stages);
      action->skip = 0;
    } else if (plain && action->op <= WEFT_OP_RECV_B) {
      action->microbatch = weft_random_below(random, 4);
      action->op = (uint8_t)(1 + weft_random_below(random, WEFT_OP_RECV_B));
      action->skip = 0;
      if ((action->op == WEFT_OP_SEND_F || action->op == WEFT_OP_RECV_B) &&
          random_chance(random, 30)) {
        action->skip = (uint8_t)weft_random_below(random, 4); /* also beyond all stages */
      }
    }
  }
}

static struct weft_program *random_wrong(struct weft_random *random, struct draft *draft) {
  if (random_chance(random, 40)) {
    small_rows(random, draft);
  } else if (random_chance(random, 10)) {
    random_rows(random, 4, 12, draft);
  } else {
    broken_program(random, draft);
  }
  return draft_build(draft);
}

static struct weft_report *verify(const struct weft_program *program, uint32_t model, size_t max) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  struct weft_error error = {0};
  options.model =
      model < ORACLE_MODELS ? oracle_model(model) : oracle_nccl_model(model - ORACLE_MODELS);
  options.findings_max = max;
  options.trace = true;
  const enum weft_status status = weft_verify(NULL, program, &options, &report, &error);
  if (status != WEFT_OK) {
    assert_int_equal(status, WEFT_ERR_LIMIT); /* a shape far beyond the table */
    assert_null(report);
  }
  return report;
}

/* --- The report by itself ------------------------------------------------------------- */

static void check_place(const struct weft_program *program, const struct weft_location *place) {
  assert_in_range(place->rank, 0, program->rank_count - 1);
  const uint64_t steps = weft_program_row_steps(program, place->rank);
  assert_true(place->step <= steps);
  if (place->action == NULL) {
    return;
  }
  uint64_t record = program->row_begin[place->rank];
  for (uint64_t step = 0; step < place->step; step++) {
    record += draft_records(&program->actions[record]);
  }
  const struct weft_action *cell = &program->actions[record];
  assert_true(place->step < steps);
  assert_true(place->action >= cell && place->action < cell + draft_records(cell));
}

static int compare(const struct weft_finding *a, const struct weft_finding *b) {
  if (a->rule != b->rule) {
    return a->rule < b->rule ? -1 : 1;
  }
  if (a->location.rank != b->location.rank) {
    return a->location.rank < b->location.rank ? -1 : 1;
  }
  return a->location.step < b->location.step ? -1 : a->location.step > b->location.step;
}

static void check_finding(const struct weft_program *program, const struct weft_finding *finding) {
  assert_in_range(finding->rule, 0, WEFT_RULE_COUNT - 1);
  assert_non_null(finding->message);
  assert_true(strlen(finding->message) > 10);
  check_place(program, &finding->location);
  assert_int_equal(finding->rule == WEFT_RULE_DEADLOCK, finding->cycle_length > 0);
  for (size_t k = 0; k < finding->cycle_length; k++) {
    check_place(program, &finding->cycle[k]);
    assert_true(finding->cycle_waits[k][0] != '\0');
  }
}

static uint64_t rules_of(const struct weft_report *report) {
  uint64_t rules = 0;
  for (size_t k = 0; k < report->finding_count; k++) {
    rules |= UINT64_C(1) << report->findings[k].rule;
  }
  return rules;
}

/* Every cell is listed at most once, all of them exactly where nothing waits in the end, and something
 * does after a deadlock. */
static void check_trace(const struct weft_program *program, const struct weft_report *report) {
  uint64_t cells = 0;
  for (uint32_t r = 0; r < program->rank_count; r++) {
    cells += weft_program_row_steps(program, r);
  }
  if (report->moves == NULL) {
    assert_false(report->ok);
    return;
  }
  bool *done = calloc(program->action_count + 1, sizeof *done);
  for (uint64_t k = 0; k < report->move_count + report->wait_count; k++) {
    const struct weft_turn *turn =
        k < report->move_count ? &report->moves[k] : &report->waits[k - report->move_count];
    check_place(program, &turn->location);
    assert_false(done[turn->location.action - program->actions]);
    done[turn->location.action - program->actions] = true;
    assert_true(k < report->move_count || turn->after_rank != WEFT_RANK_NONE);
  }
  free(done);
  assert_int_equal(report->wait_count == 0, report->move_count == cells);
  assert_true(!report->ok || report->wait_count == 0);
  assert_true((rules_of(report) >> WEFT_RULE_DEADLOCK & 1) == 0 || report->wait_count > 0);
}

static void check_report(const struct weft_program *program, const struct weft_report *report) {
  check_trace(program, report);
  assert_int_equal(report->ok, report->finding_count == 0);
  assert_true(!report->ok || report->liveness_checked);
  for (size_t k = 0; k < report->finding_count; k++) {
    check_finding(program, &report->findings[k]);
    assert_true(k == 0 || compare(&report->findings[k - 1], &report->findings[k]) <= 0);
  }
}

/* Fewer findings of the same: every rule is still there, and the first finding
 * of all too. */
static void check_trimmed(const struct weft_program *program, uint32_t model, size_t max,
                          const struct weft_report *full) {
  struct weft_report *trimmed = verify(program, model, max);
  check_report(program, trimmed);
  assert_true(rules_of(trimmed) == rules_of(full));
  assert_int_equal(trimmed->finding_count + trimmed->findings_left_out, full->finding_count);
  size_t rules = 0;
  for (uint64_t left = rules_of(full); left != 0; left &= left - 1) {
    rules++;
  }
  assert_true(trimmed->finding_count <= (max > rules ? max : rules));
  weft_report_destroy(trimmed);
}

static void reports_are_well_formed(void **state) {
  (void)state;
  struct weft_random random = {.state = 5};
  struct draft draft = {0};
  uint64_t rules = 0;
  for (uint32_t trial = 0; trial < TRIALS; trial++) {
    struct weft_program *program = random_wrong(&random, &draft);
    const uint32_t model = weft_random_below(&random, ORACLE_MODELS + ORACLE_NCCL_MODELS);
    struct weft_report *report = verify(program, model, 1000000);
    if (report != NULL) {
      check_report(program, report);
      rules |= rules_of(report);
      check_trimmed(program, model, 1, report);
      check_trimmed(program, model, 1 + weft_random_below(&random, 12), report);
    }
    weft_report_destroy(report);
    weft_program_destroy(program);
  }
  draft_finish(&draft);
  assert_true(rules == (UINT64_C(1) << WEFT_RULE_COUNT) - 1); /* every rule fired */
}

/* --- Memory --------------------------------------------------------------------------------- */

static void every_allocation_may_fail(void **state) {
  (void)state;
  struct weft_random random = {.state = 6};
  struct draft draft = {0};
  for (uint32_t trial = 0; trial < TRIALS / 40; trial++) {
    struct weft_program *program = random_wrong(&random, &draft);
    enum weft_status status = WEFT_ERR_MEMORY;
    for (uint64_t fail_at = 1; status == WEFT_ERR_MEMORY; fail_at++) {
      struct test_memory memory;
      struct weft_report *report = NULL;
      struct weft_error error = {0};
      test_memory_init(&memory);
      memory.fail_at = fail_at;
      const struct weft_verify_options options = {.findings_max = 100, .trace = true};
      status = weft_verify(&memory.allocator, program, &options, &report, &error);
      assert_true((status == WEFT_OK) == (report != NULL));
      assert_int_equal(status, error.status);
      weft_report_destroy(report);
      assert_int_equal(memory.blocks, 0);
      assert_true(fail_at < 1000);
    }
    weft_program_destroy(program);
  }
  draft_finish(&draft);
}

/* --- Options ----------------------------------------------------------------------------------- */

static bool has_rule(const struct weft_program *program, const struct weft_verify_options *options,
                     enum weft_rule rule) {
  struct weft_report *report = NULL;
  struct weft_error error = {0};
  assert_int_equal(weft_verify(NULL, program, options, &report, &error), WEFT_OK);
  const bool has = (rules_of(report) >> rule & 1) != 0;
  weft_report_destroy(report);
  return has;
}

/* Given numbers count, whatever the table suggests. */
static void given_numbers_count(void **state) {
  (void)state;
  struct weft_program *program = csv_program("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  struct weft_verify_options options = weft_verify_options_default();
  assert_false(has_rule(program, NULL, WEFT_RULE_COVERAGE_FORWARD));
  options.microbatch_count = 3;
  assert_true(has_rule(program, &options, WEFT_RULE_COVERAGE_FORWARD));
  assert_true(has_rule(program, &options, WEFT_RULE_COVERAGE_BACKWARD));
  options.microbatch_count = 1;
  assert_true(has_rule(program, &options, WEFT_RULE_RANGE_MICROBATCH));
  options.microbatch_count = 0;
  options.stage_count = 3;
  assert_true(has_rule(program, &options, WEFT_RULE_COVERAGE_FORWARD));
  options.stage_count = 1;
  assert_true(has_rule(program, &options, WEFT_RULE_RANGE_STAGE));
  weft_program_destroy(program);
}

static void rules_have_ids(void **state) {
  (void)state;
  for (unsigned a = 0; a < WEFT_RULE_COUNT; a++) {
    assert_true(weft_rule_id((enum weft_rule)a)[0] != '\0');
    for (unsigned b = 0; b < a; b++) {
      assert_string_not_equal(weft_rule_id((enum weft_rule)a), weft_rule_id((enum weft_rule)b));
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reports_are_well_formed),
      cmocka_unit_test(every_allocation_may_fail),
      cmocka_unit_test(given_numbers_count),
      cmocka_unit_test(rules_have_ids),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
