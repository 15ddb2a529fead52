/* The NCCL channel models of the verifier and of the simulator against every interleaving of random
 * small programs (support_oracle_nccl.h). For each program and model:
 *   - all interleavings end in the same state, which is also where one maximal run ends;
 *   - the verifier reports a deadlock exactly where not everything is done there, with a cycle of
 *     actions that wait for each other, and the smallest capacity without one;
 *   - under rendezvous the simulator finishes exactly where that run does;
 *   - what completes with blocking rendezvous sends completes under every NCCL model, and so does
 *     what completes with blocking sends over one channel per pair of ranks, with no more slots
 *     (docs/gpu.md has the proof); more slots and finer communicators never make it hang. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_csv.h"
#include "support_draft.h"
#include "support_oracle_nccl.h"
#include "support_random_program.h"

#if defined(__SANITIZE_ADDRESS__)
#define PROGRAMS 400u /* about memory; what is right the other build asks all of them */
#else
#define PROGRAMS 2000u
#endif

struct counts {
  uint64_t complete, stuck, cycles, states, unexplored;
  uint32_t directed_pair, pair_world, slots, blocking; /* programs whose verdict depends on it */
};

static void complain(const struct weft_program *program, const char *model, const char *what,
                     const struct weft_report *report) {
  struct weft_text text = {0};
  weft_program_print(program, &text);
  fail_msg("%s (%s)\n%s%s", what, model, text.data,
           report != NULL && report->finding_count > 0 ? report->findings[0].message : "");
}

static uint32_t least_capacity(const struct oracle *oracle, const struct weft_program *program,
                               struct weft_comm_model model) {
  for (uint64_t capacity = model.capacity; capacity <= program->action_count; capacity++) {
    struct oracle_nccl nccl;
    struct oracle_nccl_run run;
    model.capacity = (uint32_t)capacity;
    oracle_nccl_init(&nccl, oracle, program, model);
    oracle_nccl_run(&nccl, &run);
    const bool complete = run.complete;
    oracle_nccl_run_finish(&run);
    oracle_nccl_finish(&nccl);
    if (complete) {
      return (uint32_t)capacity;
    }
  }
  return WEFT_CAPACITY_UNLIMITED;
}

/* What is wrong with a report; NULL: nothing. */
static const char *judge(const struct weft_program *program, const struct oracle_nccl *nccl,
                         const struct oracle_nccl_run *run, const struct weft_report *report,
                         struct counts *counts) {
  if (report->finding_count > 0 && report->findings[0].rule == WEFT_RULE_CHANNEL_ORDER) {
    return run->complete ? "brute force completes a program with a misordered boundary" : NULL;
  }
  if (!report->liveness_checked) {
    return "liveness was not checked";
  }
  if (report->ok != run->complete) {
    return report->ok ? "a deadlock is not reported" : "a deadlock is reported, and there is none";
  }
  if (report->least_capacity != least_capacity(nccl->oracle, program, nccl->model)) {
    return "the smallest capacity is another one";
  }
  for (size_t k = 0; k < report->finding_count; k++) {
    if (report->findings[k].rule != WEFT_RULE_DEADLOCK) {
      return "a finding other than a deadlock for a sound program";
    }
    const char *complaint = oracle_nccl_replay(nccl, run, &report->findings[k]);
    if (complaint != NULL) {
      return complaint;
    }
    counts->cycles++;
  }
  return NULL;
}

/* The simulator knows no buffers: its transfers begin when both ends have come. */
static bool simulates(const struct weft_program *program, enum weft_channel_model channel) {
  struct weft_sim_options options = weft_sim_options_default();
  struct weft_costs *costs = NULL;
  struct weft_simulation *simulation = NULL;
  struct weft_error error = {0};
  options.channel = channel;
  options.no_events = true;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, &error), WEFT_OK);
  const enum weft_status status =
      weft_simulate(NULL, program, costs, &options, &simulation, &error);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  assert_true(status == WEFT_OK || status == WEFT_ERR_INVALID);
  return status == WEFT_OK;
}

static bool check_model(const struct weft_program *program, const struct oracle *oracle,
                        uint32_t number, struct counts *counts) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  struct weft_error error = {0};
  struct oracle_nccl nccl;
  struct oracle_nccl_run run;
  const char *complaint = NULL;
  options.model = oracle_nccl_model(number);
  oracle_nccl_init(&nccl, oracle, program, options.model);
  oracle_nccl_run(&nccl, &run);
  const struct oracle_nccl_exploration found = oracle_nccl_explore(&nccl, &run);
  counts->states += found.states;
  counts->unexplored += found.states == 0;
  if (found.states > 0 && (found.ends != 1 || !found.agrees)) {
    complaint = "interleavings and one run end in different states";
  }
  assert_int_equal(weft_verify(NULL, program, &options, &report, &error), WEFT_OK);
  if (complaint == NULL) {
    complaint = judge(program, &nccl, &run, report, counts);
  }
  if (complaint == NULL && options.model.capacity == 0 &&
      simulates(program, options.model.channel) != run.complete) {
    complaint = "the simulator finishes, or does not, where the run does the opposite";
  }
  if (complaint != NULL) {
    complain(program, oracle_nccl_model_name(number), complaint, report);
  }
  const bool complete = run.complete;
  weft_report_destroy(report);
  oracle_nccl_run_finish(&run);
  oracle_nccl_finish(&nccl);
  return complete;
}

/* What follows from one verdict for another; see the beginning. */
static const char *compare(const bool *blocking, const bool *nccl) {
  for (uint32_t strong = 0; strong < ORACLE_MODELS + ORACLE_NCCL_MODELS; strong++) {
    const bool blocks = strong < ORACLE_MODELS;
    const struct weft_comm_model a =
        blocks ? oracle_model(strong) : oracle_nccl_model(strong - ORACLE_MODELS);
    for (uint32_t weak = 0; weak < ORACLE_NCCL_MODELS; weak++) {
      const struct weft_comm_model b = oracle_nccl_model(weak);
      const bool implied =
          blocks ? a.capacity == 0 || (a.capacity <= b.capacity && a.channel != WEFT_CHANNEL_EDGE)
                 : a.capacity <= b.capacity && a.channel >= b.channel;
      if (implied && (blocks ? blocking[strong] : nccl[strong - ORACLE_MODELS]) && !nccl[weak]) {
        return "completes under a strong model and not under a weaker one";
      }
    }
  }
  return NULL;
}

static void count(const bool *blocking, const bool *nccl, struct counts *counts) {
  bool directed_pair = false, pair_world = false, slots = false;
  for (uint32_t row = 0; row < ORACLE_NCCL_MODELS; row += 3) {
    directed_pair = directed_pair || nccl[row] != nccl[row + 1];
    pair_world = pair_world || nccl[row + 1] != nccl[row + 2];
    for (uint32_t k = 0; k < 3; k++) {
      slots = slots || nccl[k] != nccl[row + k];
    }
  }
  counts->directed_pair += directed_pair;
  counts->pair_world += pair_world;
  counts->slots += slots;
  counts->blocking += blocking[0] != nccl[0];
}

static void check_program(const struct weft_program *program, struct counts *counts) {
  bool blocking[ORACLE_MODELS], nccl[ORACLE_NCCL_MODELS];
  struct oracle oracle;
  assert_true(oracle_init(&oracle, program));
  for (uint32_t model = 0; model < ORACLE_MODELS; model++) {
    struct oracle_run run;
    oracle_run(&oracle, oracle_model(model), &run);
    blocking[model] = run.complete;
    oracle_run_finish(&run);
  }
  for (uint32_t model = 0; model < ORACLE_NCCL_MODELS; model++) {
    nccl[model] = check_model(program, &oracle, model, counts);
    counts->complete += nccl[model];
    counts->stuck += !nccl[model];
  }
  const char *complaint = compare(blocking, nccl);
  if (complaint != NULL) {
    complain(program, "-", complaint, NULL);
  }
  count(blocking, nccl, counts);
  oracle_finish(&oracle);
}

static void programs_under_every_nccl_model(void **state) {
  (void)state;
  const struct random_limits limits = {.communicate = true, .cells_two = 20, .cells_three = 14};
  struct weft_random random = {.state = 20261116};
  struct draft draft = {0};
  struct counts counts = {0};
  for (uint32_t k = 0; k < PROGRAMS; k++) {
    bool misordered;
    random_program(&random, &limits, &draft, &misordered);
    struct weft_program *program = draft_build(&draft);
    check_program(program, &counts);
    weft_program_destroy(program);
  }
  draft_finish(&draft);
  printf("%u programs, %" PRIu64 " complete, %" PRIu64 " stuck, %" PRIu64 " cycles, %" PRIu64
         " states, %" PRIu64 " with too many states; by model: directed/pair %" PRIu32
         ", pair/world %" PRIu32 ", slots %" PRIu32 ", blocking/not %" PRIu32 "\n",
         PROGRAMS, counts.complete, counts.stuck, counts.cycles, counts.states, counts.unexplored,
         counts.directed_pair, counts.pair_world, counts.slots, counts.blocking);
  /* The trial is worth something only if both verdicts are common, and models are told apart. */
  assert_true(counts.complete * 10 > counts.complete + counts.stuck);
  assert_true(counts.stuck * 10 > counts.complete + counts.stuck);
  assert_true(counts.directed_pair > PROGRAMS / 100 && counts.pair_world > PROGRAMS / 300);
  assert_true(counts.slots > PROGRAMS / 100 && counts.blocking > PROGRAMS / 100);
  assert_true(counts.unexplored * 20 < counts.complete + counts.stuck);
}

/* Programs small enough to be done in one's head: a letter per model, as oracle_nccl_model()
 * counts them: c completes, s gets stuck. */
static const struct {
  const char *rows, *verdicts;
} small_programs[] = {
    {"0F0,0SEND_F0\n1RECV_F0,1F0\n", "cccccccccccc"},
    /* Both send before they receive: one communicator for both directions hangs, unless a send is
     * buffered. */
    {"0F0,0F1,0SEND_F0,0SEND_F1,2RECV_F0,2F0,2RECV_F1,2F1\n"
     "1RECV_F0,1F0,1SEND_F0,1RECV_F1,1F1,1SEND_F1\n",
     "cssccccccccc"},
    /* A receive that comes too early holds up the send that the other rank needs for it. */
    {"0F0,2RECV_F0,0SEND_F0,2F0\n1RECV_F0,1F0,1SEND_F0\n", "csscsscsscss"},
    /* The same over a third rank: only one communicator for all ranks hangs, buffered or not. */
    {"0F0,3RECV_F0,0SEND_F0,3F0\n1RECV_F0,1F0,1SEND_F0\n2RECV_F0,2F0,2SEND_F0\n", "ccsccsccsccs"},
    /* Sends are enqueued behind compute that needs what they bring about. */
    {"0F0,2RECV_F0,2F0,0SEND_F0\n1RECV_F0,1F0,1SEND_F0\n", "ssssssssssss"},
    /* Two boundaries between the same two ranks, received in another order than sent. */
    {"0F0,0SEND_F0,2RECV_F0,2F0,2B0,0F1,0SEND_F1,2SEND_B0,0RECV_B0,0B0,2RECV_F1,2F1,2B1,"
     "2SEND_B1,0RECV_B1,0B1\n"
     "1RECV_F0,1F0,1SEND_F0,1RECV_B0,1B0,1SEND_B0,1RECV_F1,1F1,1SEND_F1,1RECV_B1,1B1,1SEND_B1\n",
     "ssssssssssss"},
};

static void small_programs_by_hand(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof small_programs / sizeof small_programs[0]; k++) {
    const char *rows = small_programs[k].rows;
    struct weft_program *program = NULL;
    struct weft_error error = {0};
    struct oracle oracle;
    struct counts counts = {0};
    assert_int_equal(weft_program_parse(NULL, rows, strlen(rows), NULL, &program, &error), WEFT_OK);
    assert_true(oracle_init(&oracle, program));
    char verdicts[ORACLE_NCCL_MODELS + 1] = "";
    for (uint32_t model = 0; model < ORACLE_NCCL_MODELS; model++) {
      verdicts[model] = check_model(program, &oracle, model, &counts) ? 'c' : 's';
    }
    assert_string_equal(verdicts, small_programs[k].verdicts);
    oracle_finish(&oracle);
    weft_program_destroy(program);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(small_programs_by_hand),
                                     cmocka_unit_test(programs_under_every_nccl_model)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
