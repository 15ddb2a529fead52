/* Programs that hang, for real: what the verifier calls a deadlock is stopped by
 * the stall watch, which reports the same cycle; what it calls sound runs to its
 * end; and what is wrong otherwise is refused by the executor or harmless, but
 * never hangs and never crashes. Null stages on the loopback transport. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/run.h>
#include <weft/weft.h>

#include "run/hang/hang.h"
#include "support_csv.h"
#include "support_memory.h"
#include "support_mutants.h"
#include "support_random_program.h"
#include "support_rank_states.h"

#define CORPUS "tests/corpus/hangs"

enum { BUFFERED = 2 }; /* messages, under slots:K */
enum { STALL_LIMIT = 1000, TURNS_MAX = 1000000, MUTANTS_PER_KIND = 3 };

/* Under AddressSanitizer a part of the programs has to do; the other build runs all of these. */
#if defined(__SANITIZE_ADDRESS__)
enum { RANDOM_PROGRAMS = 400 };
#else
enum { RANDOM_PROGRAMS = 3000 };
#endif

/* ---- Running a program ---- */

struct run {
  const struct weft_program *program;
  struct test_memory memory;
  struct weft_comm *world;
  struct weft_pipeline **pipelines; /* [rank_count] */
  enum weft_status *statuses;       /* [rank_count]; WEFT_IN_PROGRESS: it runs */
  struct weft_error *errors;        /* [rank_count] */
  bool has_stopped;                 /* nothing would ever happen again */
  bool has_failure;
  struct weft_failure failure;
  struct rank_states states; /* when it has stopped */
};

/* As a rank's main function would. */
static void tell(struct run *run, uint32_t rank) {
  struct weft_transport *transport = weft_comm_endpoint(run->world, rank);
  struct weft_failure failure = {.rank = rank, .error = run->errors[rank]};
  (transport->ops->fail)(transport, &failure); /* fail() is cmocka's */
  (void)transport->ops->get_failure(transport, &failure);
  run->errors[rank] = failure.error;
  run->statuses[rank] = failure.error.status;
}

static void start_rank(struct run *run, uint32_t rank,
                       const struct weft_pipeline_options *options) {
  const struct weft_batch batch = {.microbatch_count = options->microbatch_count};
  enum weft_status status =
      weft_pipeline_create(&run->memory.allocator, weft_comm_endpoint(run->world, rank), options,
                           &run->pipelines[rank], &run->errors[rank]);
  if (status == WEFT_OK) {
    status = weft_pipeline_begin(run->pipelines[rank], true, &batch, &run->errors[rank]);
  }
  run->statuses[rank] = WEFT_IN_PROGRESS;
  if (status < 0) {
    tell(run, rank);
  }
}

static bool anybody_runs(const struct run *run) {
  for (uint32_t r = 0; r < run->program->rank_count; r++) {
    if (run->statuses[r] == WEFT_IN_PROGRESS) {
      return true;
    }
  }
  return false;
}

static void drive(struct run *run) {
  for (uint32_t turns = 0; anybody_runs(run); turns++) {
    struct weft_error error;
    uint32_t r;
    assert_true(turns < TURNS_MAX);
    if (weft_comm_next(run->world, &r, &error) < 0) {
      run->has_stopped = true;
      return;
    }
    if (run->statuses[r] != WEFT_IN_PROGRESS) {
      continue;
    }
    run->statuses[r] = weft_pipeline_advance(run->pipelines[r], &run->errors[r]);
    if (run->statuses[r] == WEFT_IN_PROGRESS) {
      assert_int_equal(weft_pipeline_wait(run->pipelines[r], &error), WEFT_OK);
    }
  }
}

/* All ranks that did not finish say the same. */
static void check_agreement(const struct run *run) {
  for (uint32_t r = 0; r < run->program->rank_count; r++) {
    if (run->statuses[r] < 0) {
      assert_true(run->has_failure);
      assert_int_equal(run->statuses[r], run->failure.error.status);
      assert_string_equal(run->errors[r].message, run->failure.error.message);
    }
  }
}

static struct weft_pipeline_options options_for(const struct weft_program *program,
                                                struct weft_fixed_source *source,
                                                struct weft_stage *const *stages,
                                                enum weft_send_model comm, int64_t stall_limit) {
  static const struct weft_boundary boundary = {
      .tensor_count = 1,
      .tensors = {
          {.largest = {.dtype = WEFT_F32, .dim_count = 1, .dims = {1}}, .needs_grad = true}}};
  struct weft_pipeline_options options = weft_pipeline_options_default();
  options.source = weft_source_fixed;
  options.source_context = source;
  options.microbatch_count = program->microbatch_count;
  options.stages = stages;
  options.stage_count = program->stage_count;
  options.boundaries = &boundary;
  options.boundary_count = 1;
  options.comm = comm;
  options.slots = BUFFERED;
  options.stall_limit = stall_limit;
  options.forward_ahead = 0;
  return options;
}

/* Ends with run_finish(). */
static void run_start(struct run *run, const struct weft_program *program,
                      enum weft_send_model comm, int64_t stall_limit, uint64_t seed) {
  struct weft_stage null = {.ops = weft_null_stage_ops()};
  struct weft_stage **stages = calloc(program->stage_count + 1u, sizeof(struct weft_stage *));
  const uint32_t p = program->rank_count;
  struct weft_error error;
  *run = (struct run){.program = program};
  test_memory_init(&run->memory);
  run->pipelines = calloc(p, sizeof(struct weft_pipeline *));
  run->statuses = calloc(p, sizeof *run->statuses);
  run->errors = calloc(p, sizeof *run->errors);
  for (uint32_t s = 0; s < program->stage_count; s++) {
    stages[s] = &null;
  }
  struct weft_fixed_source source = {.allocator = &run->memory.allocator, .program = program};
  const struct weft_pipeline_options options =
      options_for(program, &source, stages, comm, stall_limit);
  const struct weft_comm_options network = {.rank_count = p, .seed = seed};
  assert_int_equal(
      weft_comm_open(&run->memory.allocator, "loopback", &network, &run->world, &error), WEFT_OK);
  for (uint32_t r = 0; r < p; r++) {
    start_rank(run, r, &options);
  }
  drive(run);
  struct weft_transport *transport = weft_comm_endpoint(run->world, 0);
  run->has_failure = transport->ops->get_failure(transport, &run->failure);
  if (run->has_stopped) {
    rank_states_init(&run->states, p, "loopback");
    run->states.now = transport->ops->now(transport);
    for (uint32_t r = 0; r < p; r++) {
      run->states.items[r] = *transport->ops->rank_status(transport, r);
    }
  }
  check_agreement(run);
  for (uint32_t r = 0; r < p; r++) {
    weft_pipeline_destroy(run->pipelines[r]);
  }
  weft_comm_close(run->world);
  free(stages);
}

static void run_finish(struct run *run) {
  if (run->has_stopped) {
    rank_states_finish(&run->states);
  }
  assert_int_equal(run->memory.blocks, 0);
  free(run->pipelines);
  free(run->statuses);
  free(run->errors);
}

static bool is_complete(const struct run *run) { return !run->has_failure && !run->has_stopped; }

/* ---- Verdicts ---- */

static struct weft_report *verify(const struct weft_program *program, enum weft_send_model comm) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  struct weft_error error;
  options.model = (struct weft_comm_model){.capacity = weft_send_model_capacity(comm, BUFFERED),
                                           .channel = WEFT_CHANNEL_EDGE,
                                           .posted = !weft_send_model_info(comm)->row_waits};
  assert_int_equal(weft_verify(NULL, program, &options, &report, &error), WEFT_OK);
  return report;
}

static bool is_deadlock(const struct weft_report *report) {
  return report->finding_count > 0 && report->findings[0].rule == WEFT_RULE_DEADLOCK;
}

static const char *comm_name(enum weft_send_model comm) { return weft_send_model_info(comm)->name; }

static void complain(const char *name, const struct weft_program *program,
                     enum weft_send_model comm, const char *what, const char *message) {
  char *text = csv_text(program);
  print_error("%s, %s: %s\n%s\n%s", name, comm_name(comm), what, message, text);
  free(text);
  fail();
}

/* ---- Circles ---- */

/* The verifier's cycle is in the snapshot: the same ranks at the same actions,
 * each waiting for the next. */
static const char *compare_cycle(const struct weft_hang *hang, const struct weft_finding *found) {
  struct weft_rank_state state;
  for (size_t k = 0; k < found->cycle_length; k++) {
    const struct weft_location *member = &found->cycle[k];
    const struct weft_location *next = &found->cycle[(k + 1) % found->cycle_length];
    weft_hang_read(hang, member->rank, &state);
    if (memcmp(&state.action, member->action, sizeof state.action) != 0 ||
        state.cell != member->step) {
      return "a rank of the verifier's cycle is elsewhere";
    }
    if (state.peer != next->rank) {
      return "a rank of the verifier's cycle waits for another one";
    }
  }
  struct weft_failure failure;
  const struct weft_waits_end end =
      weft_hang_diagnose(hang, NULL, 0, WEFT_COMM_POSTED, found->cycle[0].rank, &failure);
  return end.cycle_length != found->cycle_length ? "the report's cycle has another length" : NULL;
}

struct naming {
  const struct weft_hang *hang;
  const char *message;
  uint32_t length;
  uint32_t named, missing;
};

static void look_for_name(void *context, uint32_t rank) {
  struct naming *naming = context;
  struct weft_rank_state state;
  char action[64], words[128];
  weft_hang_read(naming->hang, rank, &state);
  (void)snprintf(words, sizeof words, "rank %" PRIu32 " waits in %s for rank %" PRIu32, rank,
                 weft_action_format(&state.action, action, sizeof action), state.peer);
  if (strstr(naming->message, words) != NULL) {
    naming->named++;
  } else {
    naming->missing++;
  }
}

/* The alarm is about a cycle in the snapshot, and names its ranks with
 * their actions: all of them, or the first three of many. */
static const char *compare_alarm(const struct weft_hang *hang, const struct weft_failure *failure,
                                 const struct weft_finding *found) {
  struct weft_failure own;
  const struct weft_waits_end end =
      weft_hang_diagnose(hang, NULL, 0, WEFT_COMM_POSTED, failure->rank, &own);
  struct naming naming = {
      .hang = hang, .message = failure->error.message, .length = end.cycle_length};
  if (failure->error.status != WEFT_ERR_STALLED) {
    return "it did not end in a stall";
  }
  if (end.cycle_length == 0 || end.culprit != failure->rank) {
    return "the alarm blames a rank that is in no cycle";
  }
  weft_waits_cycle(hang, &end, look_for_name, &naming);
  const bool is_enough = end.cycle_length <= 4 ? naming.missing == 0 : naming.named >= 3;
  if (!is_enough || strstr(failure->error.message, "a cycle") == NULL) {
    return "the alarm does not name the cycle";
  }
  for (size_t k = 0; k < found->cycle_length; k++) {
    if (found->cycle[k].rank == failure->rank) {
      return NULL; /* of several cycles, it is the verifier's */
    }
  }
  return "another cycle";
}

struct tally {
  uint32_t complete, stalled, other_cycle, refused, harmless;
};

static void check_deadlock(const char *name, const struct weft_program *program,
                           enum weft_send_model comm, const struct weft_finding *found,
                           struct tally *tally) {
  struct run stopped, alarmed;
  run_start(&stopped, program, comm, 0, 1);
  if (!stopped.has_stopped) {
    complain(name, program, comm, "the verifier finds a deadlock, and it ends", found->message);
  }
  const struct weft_hang hang = weft_hang_of(&stopped.states.transport);
  const char *what = compare_cycle(&hang, found);
  if (what != NULL) {
    complain(name, program, comm, what, found->message);
  }
  run_start(&alarmed, program, comm, STALL_LIMIT, 2);
  if (!alarmed.has_failure) {
    complain(name, program, comm, "no alarm", found->message);
  }
  what = compare_alarm(&hang, &alarmed.failure, found);
  if (what != NULL && strcmp(what, "another cycle") != 0) {
    complain(name, program, comm, what, alarmed.failure.error.message);
  }
  tally->stalled++;
  tally->other_cycle += what != NULL;
  run_finish(&alarmed);
  run_finish(&stopped);
}

static void check_ends(const char *name, const struct weft_program *program,
                       enum weft_send_model comm, bool must_complete, struct tally *tally) {
  struct run run;
  run_start(&run, program, comm, STALL_LIMIT, 3);
  if (run.has_stopped) {
    complain(name, program, comm, "it came to a stop without an alarm", "");
  }
  if (must_complete && !is_complete(&run)) {
    complain(name, program, comm, "the verifier accepts it, and it fails",
             run.failure.error.message);
  }
  tally->complete += must_complete;
  tally->refused += !must_complete && !is_complete(&run);
  tally->harmless += !must_complete && is_complete(&run);
  run_finish(&run);
}

/* Where rows wait for nothing but inputs, a cycle of the verifier has transfers in it that no rank is
 * at: whether the run ends is compared alone. */
static void check_posted(const char *name, const struct weft_program *program,
                         struct tally *tally) {
  const uint32_t harmless = tally->harmless;
  struct weft_report *report = verify(program, WEFT_COMM_POSTED);
  check_ends(name, program, WEFT_COMM_POSTED, report->ok, tally);
  if (is_deadlock(report) && tally->harmless > harmless) {
    complain(name, program, WEFT_COMM_POSTED, "the verifier finds a deadlock, and it ends",
             report->findings[0].message);
  }
  weft_report_destroy(report);
}

/* Where rows wait for transfers: also the same cycle. */
static void check_program(const char *name, const struct weft_program *program,
                          enum weft_send_model comm, struct tally *tally) {
  struct weft_report *report = verify(program, comm);
  if (is_deadlock(report) && program->level == WEFT_LEVEL_COMMS) {
    check_deadlock(name, program, comm, &report->findings[0], tally);
  } else {
    check_ends(name, program, comm, report->ok, tally);
  }
  weft_report_destroy(report);
}

static void print_tally(const struct tally *tally) {
  print_message(
      "%u complete, %u stall in the verifier's cycle (%u alarms about another one), %u "
      "refused, %u harmless\n",
      tally->complete, tally->stalled, tally->other_cycle, tally->refused, tally->harmless);
}

/* ---- Known hangs ---- */

static void known_hangs(void **state) {
  (void)state;
  struct tally tally = {0};
  char *text = csv_read_file(CORPUS "/verdicts.txt");
  char *rest = NULL;
  for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
    char name[64], path[160];
    if (line[0] == '#' || sscanf(line, "%63s |", name) != 1) {
      continue;
    }
    (void)snprintf(path, sizeof path, CORPUS "/%.63s.csv", name);
    char *csv = csv_read_file(path);
    struct weft_program *program = csv_program(csv);
    check_program(name, program, WEFT_COMM_RENDEZVOUS, &tally);
    check_program(name, program, WEFT_COMM_EAGER, &tally);
    check_program(name, program, WEFT_COMM_SLOTS, &tally);
    check_posted(name, program, &tally);
    weft_program_destroy(program);
    free(csv);
  }
  free(text);
  print_tally(&tally);
  assert_true(tally.stalled >= 20 && tally.complete >= 10);
}

/* ---- Random programs ---- */

static void run_random_programs(bool graph) {
  const struct random_limits limits = {
      .communicate = true, .graph = graph, .cells_two = 40, .cells_three = 30};
  struct weft_random random = {.state = 2026};
  struct draft draft = {0};
  struct tally tally = {0};
  for (uint32_t k = 0; k < RANDOM_PROGRAMS; k++) {
    char name[32];
    bool misordered;
    random_program(&random, &limits, &draft, &misordered);
    struct weft_program *program = draft_build(&draft);
    (void)snprintf(name, sizeof name, "random program %u", k);
    check_program(name, program, WEFT_COMM_RENDEZVOUS, &tally);
    check_program(name, program, WEFT_COMM_EAGER, &tally);
    check_program(name, program, WEFT_COMM_SLOTS, &tally);
    check_posted(name, program, &tally);
    weft_program_destroy(program);
  }
  draft_finish(&draft);
  print_tally(&tally);
  assert_true(tally.stalled >= RANDOM_PROGRAMS / 10 && tally.complete >= RANDOM_PROGRAMS / 10);
}

static void random_programs(void **state) {
  (void)state;
  run_random_programs(false);
}

static void random_programs_of_graphs(void **state) {
  (void)state;
  run_random_programs(true);
}

/* ---- Mutants ---- */

struct subject {
  char name[64];
  struct weft_program *program;
  uint32_t *rank_of;
};

static bool make_subject(struct subject *subject, const struct weft_schedule_info *info, uint32_t p,
                         uint32_t m) {
  struct weft_lower_options lower = weft_lower_options_default();
  struct weft_named_source source = {.schedule = info->name, .ranks = p, .lower = &lower};
  lower.merge_bw = m % 2 == 0;
  if (weft_source_named(&source, m, true, &subject->program, NULL) != WEFT_OK) {
    return false;
  }
  (void)snprintf(subject->name, sizeof subject->name, "%s p=%u m=%u", info->name, p, m);
  subject->rank_of = calloc(subject->program->stage_count, sizeof *subject->rank_of);
  (void)weft_placement_infer(subject->program, subject->rank_of);
  return true;
}

/* What only the verifier sees: parameters and gradients on other replicas, and
 * overlaps that are none. All else is wrong data or a hang, and is refused. */
static bool is_let_through(const struct mutant_kind *kind) {
  static const char *const names[] = {"overlap_of_one", "overlap_of_others", "drop_unshard",
                                      "drop_reshard", "drop_reduce_grad"};
  for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
    if (strcmp(kind->name, names[k]) == 0) {
      return true;
    }
  }
  return false;
}

static void check_mutant(const char *name, const struct draft *draft, struct tally *tally) {
  struct weft_program *program = draft_build(draft);
  for (uint32_t comm = 0; comm < WEFT_SEND_MODEL_COUNT; comm++) {
    struct weft_report *report = verify(program, (enum weft_send_model)comm);
    check_ends(name, program, (enum weft_send_model)comm, report->ok, tally);
    weft_report_destroy(report);
  }
  weft_program_destroy(program);
}

static uint32_t mutate_subject(const struct subject *subject, struct weft_random *random,
                               struct tally *tally) {
  struct mutant mutant = {.random = random};
  uint32_t made = 0;
  for (size_t k = 0; k < mutant_kind_count() * MUTANTS_PER_KIND; k++) {
    const struct mutant_kind *kind = mutant_kind_at(k / MUTANTS_PER_KIND);
    char name[160];
    if (kind->shape == MUTANT_OF_GRAPH) {
      continue; /* the subjects are chains */
    }
    draft_copy(&mutant.draft, subject->program);
    mutant.rank_of = subject->rank_of;
    mutant.stage_count = subject->program->stage_count;
    mutant.microbatch_count = subject->program->microbatch_count;
    mutant.expected_count = 0;
    if (kind->make(&mutant)) {
      (void)snprintf(name, sizeof name, "%s, %s", subject->name, kind->name);
      const uint32_t harmless = tally->harmless;
      check_mutant(name, &mutant.draft, tally);
      if (tally->harmless != harmless && !is_let_through(kind)) {
        fail_msg("%s: the executor lets it through", name);
      }
      made++;
    }
  }
  draft_finish(&mutant.draft);
  return made;
}

static void mutants_end(void **state) {
  (void)state;
  struct weft_random random = {.state = 4711};
  struct tally tally = {0};
  uint32_t made = 0;
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    for (uint32_t p = 1; p <= 4; p++) {
      struct subject subject;
      if (make_subject(&subject, weft_schedule_at(k), p, p + 3)) {
        made += mutate_subject(&subject, &random, &tally);
        free(subject.rank_of);
        weft_program_destroy(subject.program);
      }
    }
  }
  print_message("%u mutants in three modes\n", made);
  print_tally(&tally);
  assert_true(made >= 2000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_hangs), cmocka_unit_test(random_programs),
      cmocka_unit_test(random_programs_of_graphs), cmocka_unit_test(mutants_end)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
