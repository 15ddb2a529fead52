/* Mutants of every schedule's table and program, and of those of random graphs of stages. Each kind of mutant breaks one
 * thing, and the verifier must report it with the right rule at the right place
 * (support_mutants.c). Where a mutation may be harmless (cells that change
 * places) the oracle decides, and the verifier must agree both ways. */
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
#include "support_mutants.h"
#include "support_oracle.h"
#include "support_oracle_nccl.h"
#include "support_random_graph.h"
#include "support_random_program.h"

/* --- Subjects: valid programs ------------------------------------------------- */

#define SUBJECTS_MAX 512u
#if defined(__SANITIZE_ADDRESS__)
#define MUTANTS_PER_KIND 1u /* about memory; what is right the other build asks all of them */
#else
#define MUTANTS_PER_KIND 5u
#endif
#define SWAPS 4u
#define GRAPHS 24u

struct subject {
  char name[96];
  struct weft_program *program;
  uint32_t *rank_of;
};

static struct subject subjects[SUBJECTS_MAX];
static size_t subject_count;

static void put_subject(struct weft_program *program) {
  assert_in_range(subject_count, 0, SUBJECTS_MAX - 1);
  struct subject *subject = &subjects[subject_count++];
  subject->program = program;
  subject->rank_of = calloc(program->stage_count, sizeof *subject->rank_of);
  assert_non_null(subject->rank_of);
  for (uint32_t rank = 0; rank < program->rank_count; rank++) {
    for (uint64_t at = program->row_begin[rank]; at < program->row_begin[rank + 1]; at++) {
      if (program->actions[at].op == WEFT_OP_F) {
        subject->rank_of[program->actions[at].stage] = rank;
      }
    }
  }
}

static void add_subject(const char *schedule, const struct weft_shape *shape, const char *level,
                        struct weft_program *program) {
  put_subject(program);
  struct subject *subject = &subjects[subject_count - 1];
  (void)snprintf(subject->name, sizeof subject->name, "%s p=%u v=%u m=%u %s", schedule,
                 shape->ranks, shape->stages_per_rank, shape->microbatches, level);
}

/* A table of a random graph, and its program. */
static void add_graph(struct weft_random *random, uint32_t number, struct draft *draft) {
  uint32_t rank_of[16];
  const uint32_t stages = 4 + weft_random_below(random, 8), ranks = 2 + number % 4;
  const struct random_graph_shape shape = random_graph_shape(random, stages);
  struct weft_graph *graph = random_graph(random, &shape);
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_error error = {0};
  random_graph_table(random, graph, ranks, 2 + number % 3, number % 2 == 1, rank_of, draft);
  put_subject(draft_build(draft));
  struct weft_program *program = NULL, *table = subjects[subject_count - 1].program;
  (void)snprintf(subjects[subject_count - 1].name, sizeof subjects[0].name,
                 "graph %" PRIu32 " table", number);
  options.tie_grad = number % 3 == 0 && weft_graph_has_backward(graph, 0);
  options.merge_bw = number % 5 == 0;
  assert_int_equal(weft_lower(NULL, table, &options, &program, &error), WEFT_OK);
  put_subject(program);
  (void)snprintf(subjects[subject_count - 1].name, sizeof subjects[0].name,
                 "graph %" PRIu32 " program", number);
  weft_graph_destroy(graph);
}

static void add_schedule(const struct weft_schedule_info *info, const struct weft_shape *shape) {
  struct weft_program *table = NULL, *program = NULL;
  struct weft_lower_options options = weft_lower_options_default();
  struct weft_error error = {0};
  if (weft_generate(NULL, info->name, shape, &table, &error) != WEFT_OK) {
    assert_int_equal(error.status, WEFT_ERR_USAGE); /* a limit of the recipe */
    return;
  }
  add_subject(info->name, shape, "table", table);
  if (table->level == WEFT_LEVEL_COMMS) {
    return;
  }
  assert_int_equal(weft_lower(NULL, table, &options, &program, &error), WEFT_OK);
  add_subject(info->name, shape, "program", program);
  options.merge_bw = true;
  options.unshard_window = 1;
  assert_int_equal(weft_lower(NULL, table, &options, &program, &error), WEFT_OK);
  add_subject(info->name, shape, "merged program", program);
  options.merge_bw = false;
  options.tie_grad = true;
  assert_int_equal(weft_lower(NULL, table, &options, &program, &error), WEFT_OK);
  add_subject(info->name, shape, "tied program", program);
}

static int make_subjects(void **state) {
  (void)state;
  static const struct weft_shape shapes[] = {
      {.ranks = 1, .microbatches = 3},  {.ranks = 2, .microbatches = 4},
      {.ranks = 3, .microbatches = 6},  {.ranks = 4, .microbatches = 8},
      {.ranks = 4, .microbatches = 2},  {.ranks = 4, .stages_per_rank = 3, .microbatches = 5},
      {.ranks = 8, .microbatches = 16},
  };
  for (size_t schedule = 0; schedule < weft_schedule_count(); schedule++) {
    const struct weft_schedule_info *info = weft_schedule_at(schedule);
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++) {
      if (!info->fixed || shapes[k].ranks == 2) {
        add_schedule(info, &shapes[k]);
      }
    }
  }
  struct weft_random random = {.state = 1917};
  struct draft draft = {0};
  for (uint32_t number = 0; number < GRAPHS; number++) {
    add_graph(&random, number, &draft);
  }
  draft_finish(&draft);
  return subject_count > 100 ? 0 : -1;
}

static int drop_subjects(void **state) {
  (void)state;
  for (size_t k = 0; k < subject_count; k++) {
    weft_program_destroy(subjects[k].program);
    free(subjects[k].rank_of);
  }
  return 0;
}

/* All models: the oracle's, then those of NCCL's communicators. */
#define MODELS (ORACLE_MODELS + ORACLE_NCCL_MODELS)

static struct weft_comm_model model_at(uint32_t model) {
  return model < ORACLE_MODELS ? oracle_model(model) : oracle_nccl_model(model - ORACLE_MODELS);
}

static const char *model_name(uint32_t model) {
  return model < ORACLE_MODELS ? oracle_model_name(model)
                               : oracle_nccl_model_name(model - ORACLE_MODELS);
}

static struct weft_report *verify(const struct weft_program *program, uint32_t model) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  struct weft_error error = {0};
  options.model = model_at(model);
  options.findings_max = 100000;
  if (weft_verify(NULL, program, &options, &report, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return report;
}

/* Prints what there is to know about a disagreement, and fails. */
static void complain(const struct subject *subject, const char *kind, const char *what,
                     const struct weft_program *program, const struct weft_report *report) {
  char *text = csv_text(program), buffer[128];
  fprintf(stderr, "%s: %s: %s\n%s", subject->name, kind, what, text);
  for (size_t k = 0; k < report->finding_count && k < 12; k++) {
    const struct weft_finding *finding = &report->findings[k];
    fprintf(stderr, "  %s at rank %" PRIu32 " step %" PRIu64 " %s: %s\n",
            weft_rule_id(finding->rule), finding->location.rank, finding->location.step,
            finding->location.action != NULL
                ? weft_action_format(finding->location.action, buffer, sizeof buffer)
                : "-",
            finding->message);
  }
  free(text);
  fail();
}

static void subjects_are_valid(void **state) {
  (void)state;
  for (size_t k = 0; k < subject_count; k++) {
    for (uint32_t model = 0; model < MODELS; model++) {
      struct weft_report *report = verify(subjects[k].program, model);
      const bool reordered = strncmp(subjects[k].name, "ReorderedB", 10) == 0;
      if (!report->ok && !(reordered && model < 3)) {
        complain(&subjects[k], "valid", model_name(model), subjects[k].program, report);
      }
      weft_report_destroy(report);
    }
  }
}

/* --- Mutants that are wrong for certain ------------------------------------------ */

static bool found_all(const struct mutant *mutant, const struct weft_report *report,
                      const struct expected **missing) {
  for (uint32_t e = 0; e < mutant->expected_count; e++) {
    bool found = false;
    for (size_t k = 0; k < report->finding_count && !found; k++) {
      found = mutant_matches(&mutant->expected[e], &report->findings[k]);
    }
    if (!found) {
      *missing = &mutant->expected[e];
      return false;
    }
  }
  return true;
}

/* The mutant under the weakest model, of ranks that block and of those that do not: what is wrong
 * must be wrong there too. */
static void check_mutant(const struct subject *subject, const struct mutant_kind *kind,
                         const struct mutant *mutant, uint32_t model) {
  struct weft_program *program = draft_build(&mutant->draft);
  struct weft_report *report = verify(program, model);
  const struct expected *missing = NULL;
  assert_true(mutant->expected_count > 0);
  if (report->ok || !found_all(mutant, report, &missing)) {
    char what[160], action[64];
    (void)snprintf(what, sizeof what, "no %s at rank %" PRIu32 " step %" PRIu64 " %s",
                   missing != NULL ? weft_rule_id(missing->rule) : "finding",
                   missing != NULL ? missing->rank : 0, missing != NULL ? missing->step : 0,
                   missing != NULL && missing->action.op != WEFT_OP_OVERLAP_F_B
                       ? weft_action_format(&missing->action, action, sizeof action)
                       : "");
    complain(subject, kind->name, what, program, report);
  }
  assert_int_equal(report->findings_left_out, 0);
  weft_report_destroy(report);
  weft_program_destroy(program);
}

static void every_mutant_is_rejected(void **state) {
  (void)state;
  struct weft_random random = {.state = 4711};
  struct mutant mutant = {.random = &random};
  uint32_t total = 0;
  for (size_t k = 0; k < mutant_kind_count(); k++) {
    const struct mutant_kind *kind = mutant_kind_at(k);
    uint32_t made = 0;
    for (size_t s = 0; s < subject_count * MUTANTS_PER_KIND; s++) {
      const struct subject *subject = &subjects[s / MUTANTS_PER_KIND];
      if (kind->shape != MUTANT_OF_ANY &&
          (kind->shape == MUTANT_OF_GRAPH) != (subject->program->graph != NULL)) {
        continue;
      }
      draft_copy(&mutant.draft, subject->program);
      mutant.rank_of = subject->rank_of;
      mutant.stage_count = subject->program->stage_count;
      mutant.microbatch_count = subject->program->microbatch_count;
      mutant.expected_count = 0;
      if (kind->make(&mutant)) {
        check_mutant(subject, kind, &mutant, ORACLE_MODELS - 3);
        check_mutant(subject, kind, &mutant, MODELS - 3);
        made++;
      }
    }
    printf("%-24s %" PRIu32 "\n", kind->name, made);
    assert_in_range(made, 2 * MUTANTS_PER_KIND, UINT32_MAX); /* every kind had its chance */
    total += made;
  }
  printf("%zu kinds, %" PRIu32 " mutants\n", mutant_kind_count(), total);
  assert_true(mutant_kind_count() >= 25);
  assert_in_range(total, 500 * MUTANTS_PER_KIND, UINT32_MAX);
  draft_finish(&mutant.draft);
}

/* --- Changes of order, which may be harmless ---------------------------------------- */

struct tally {
  uint32_t harmless, faulty, stuck;
};

/* A finding at the cell, or at the row as a whole when the cell is its end. */
static bool finding_at(const struct weft_report *report, struct oracle_place place) {
  for (size_t k = 0; k < report->finding_count; k++) {
    const struct weft_location *found = &report->findings[k].location;
    if (found->rank == place.rank && (found->step == place.cell || found->action == NULL)) {
      return true;
    }
  }
  return false;
}

static const char *judge_stuck(const struct weft_program *program, const struct oracle *oracle,
                               const struct oracle_run *run, const struct weft_report *report) {
  const struct weft_finding *finding = report->finding_count > 0 ? &report->findings[0] : NULL;
  if (finding == NULL) {
    return "gets stuck, and is accepted";
  }
  if (finding->rule == WEFT_RULE_CHANNEL_ORDER) {
    return NULL;
  }
  return finding->rule == WEFT_RULE_DEADLOCK ? oracle_replay(program, oracle, run, finding)
                                             : "gets stuck, and something else is reported";
}

/* The same with the oracle of NCCL's communicators. */
static const char *judge_nccl(const struct weft_program *program, const struct oracle *oracle,
                              uint32_t model, const struct weft_report *report,
                              struct tally *tally) {
  const struct weft_finding *finding = report->finding_count > 0 ? &report->findings[0] : NULL;
  struct oracle_nccl nccl;
  struct oracle_nccl_run run;
  const char *complaint = NULL;
  oracle_nccl_init(&nccl, oracle, program, model_at(model));
  oracle_nccl_run(&nccl, &run);
  if (run.complete) {
    tally->harmless++;
    complaint = report->ok ? NULL : "is harmless, and is rejected";
  } else if (finding == NULL) {
    complaint = "gets stuck, and is accepted";
  } else {
    tally->stuck++;
    complaint = finding->rule == WEFT_RULE_DEADLOCK ? oracle_nccl_replay(&nccl, &run, finding)
                : finding->rule == WEFT_RULE_CHANNEL_ORDER
                    ? NULL
                    : "gets stuck, and something else is reported";
  }
  oracle_nccl_run_finish(&run);
  oracle_nccl_finish(&nccl);
  return complaint;
}

static const char *judge(const struct weft_program *program, uint32_t model,
                         const struct weft_report *report, struct tally *tally) {
  struct oracle_place place;
  struct oracle oracle;
  struct oracle_run run;
  if (oracle_fault(program, &place)) {
    tally->faulty++;
    return report->ok ? "an action lacks its data, and is accepted"
                      : (finding_at(report, place) ? NULL : "the fault is reported elsewhere");
  }
  assert_true(oracle_init(&oracle, program));
  if (model >= ORACLE_MODELS && program->level == WEFT_LEVEL_COMMS) {
    const char *complaint = judge_nccl(program, &oracle, model, report, tally);
    oracle_finish(&oracle);
    return complaint;
  }
  oracle_run(&oracle, oracle_model(model % ORACLE_MODELS), &run);
  const char *complaint = NULL;
  if (run.complete) {
    tally->harmless++;
    complaint = report->ok ? NULL : "is harmless, and is rejected";
  } else {
    tally->stuck++;
    complaint = judge_stuck(program, &oracle, &run, report);
  }
  oracle_run_finish(&run);
  oracle_finish(&oracle);
  return complaint;
}

/* Begin of a random cell; the row must have one. */
static size_t random_cell(struct weft_random *random, const struct draft_row *row) {
  size_t cells = 0, at = 0;
  for (size_t k = 0; k < row->count; k += draft_records(&row->records[k])) {
    cells++;
  }
  for (size_t skip = weft_random_below(random, (uint32_t)cells); skip > 0; skip--) {
    at += draft_records(&row->records[at]);
  }
  return at;
}

/* Puts a random cell before another one: the next but one (which swaps
 * neighbours), or any. */
static bool move_some_cell(struct weft_random *random, struct draft *draft, bool near) {
  const uint32_t rank = weft_random_below(random, draft->rank_count);
  const struct draft_row *row = &draft->rows[rank];
  if (row->count == 0) {
    return false;
  }
  const size_t from = random_cell(random, row), size = draft_records(&row->records[from]);
  size_t to = random_cell(random, row);
  if (near) {
    to = from + size;
    if (to == row->count) {
      return false;
    }
    to += draft_records(&row->records[to]);
  }
  draft_move(draft, rank, from, size, to);
  return true;
}

static void check_order(const struct subject *subject, struct weft_random *random,
                        struct draft *draft, uint32_t moves, struct tally *tally) {
  const uint32_t model = weft_random_below(random, ORACLE_MODELS + 3);
  draft_copy(draft, subject->program);
  for (uint32_t move = 0; move < moves; move++) {
    if (!move_some_cell(random, draft, moves > 1 || random_chance(random, 60))) {
      return;
    }
  }
  struct weft_program *program = draft_build(draft);
  struct weft_report *report = verify(program, model);
  const char *complaint = judge(program, model, report, tally);
  if (complaint != NULL) {
    complain(subject, model_name(model), complaint, program, report);
  }
  weft_report_destroy(report);
  weft_program_destroy(program);
}

static void order_changes_are_judged_rightly(void **state) {
  (void)state;
  struct weft_random random = {.state = 815};
  struct tally tally = {0};
  struct draft draft = {0};
  for (size_t s = 0; s < subject_count; s++) {
    for (uint32_t k = 0; k < 16 * SWAPS; k++) {
      check_order(&subjects[s], &random, &draft, 1 + k % SWAPS, &tally);
    }
  }
  printf("order changes: %" PRIu32 " harmless, %" PRIu32 " faulty, %" PRIu32 " stuck\n",
         tally.harmless, tally.faulty, tally.stuck);
  const uint32_t all = tally.harmless + tally.faulty + tally.stuck;
  assert_true(tally.harmless * 20 > all && tally.faulty * 20 > all && tally.stuck * 20 > all);
  draft_finish(&draft);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(subjects_are_valid),
      cmocka_unit_test(every_mutant_is_rejected),
      cmocka_unit_test(order_changes_are_judged_rightly),
  };
  return cmocka_run_group_tests(tests, make_subjects, drop_subjects);
}
