/* The asynchronous models of the verifier and of the simulator against every interleaving of random
 * small programs (support_nccl_campaign.h). For each program and model:
 *   - all interleavings end in the same state, which is also where one maximal run ends;
 *   - the verifier reports a deadlock exactly where not everything is done there, with a cycle of
 *     actions that wait for each other, and the smallest capacity without one;
 *   - under rendezvous the simulator finishes exactly where that run does;
 *   - what completes with blocking rendezvous sends completes under every one of them, and under
 *     NCCL's so does what completes with blocking sends over one channel per pair of ranks, with no
 *     more slots (proven below); more slots, finer channels and finer communicators never make it
 *     hang. */
#include "support_nccl_campaign.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_draft.h"
#include "support_oracle_nccl.h"
#include "support_random_program.h"

/* ---- Why a program that passes runs over NCCL ----
 *
 * docs/gpu.md ("NCCL's order", "Resident blocks") has the claims in short.
 *
 * Claim: let a program complete with blocking rendezvous sends, which is what plain weft verify
 * proves. Let every rank enqueue its transfers in the order of its row, on one communicator for
 * all ranks, one per pair of ranks or one per directed pair. Let a transfer wait on the device
 * for any actions before it in its row, and for nothing else but its peer; and compute for any
 * compute and any RECVs before it in its row. Then all transfers of the step have one total
 * order that agrees with every rank's row, hence with every communicator's queue. And every
 * action is done, however many hardware queues the streams of a rank share, if blocks find room
 * (below) and no two processes share a queue.
 *
 * The order. Take a run of the blocking program to its end. In it a rank takes an action when
 * all before it in its row are done, and SEND and RECV of a message are done together. Order the
 * transfers by the moment at which their message is taken. A transfer that comes before another
 * one in some rank's row is done before the rank reaches the other one, whose message is not
 * taken before both ranks have reached it; so it comes first in the order as well.
 *
 * Every action is done. Put all actions of that run into the order in which they were done, SEND
 * and RECV of a message side by side. All that an action of the enqueued program waits for comes
 * earlier: actions before it in its row, and what shares a queue with it, since each rank
 * enqueues in the order of its row. Take the first action that is not done. If it is compute,
 * all that it waits for is done, so it runs. If it is a transfer, everything before it and
 * before its partner is done, in their rows and all their queues; so both run, and the message
 * passes. By induction all are done.
 *
 * In a graph. Claim: let the program complete with blocking rendezvous sends, or with one
 * communicator for all ranks. Let each rank's graph have the compute of its row as a chain, the
 * SENDs and RECVs of its row as a chain, an edge from the compute to every SEND of its result,
 * one from every RECV to the compute that needs it, and any others from an action of the row to
 * a later one. Let each device put the nodes into queues in any one order that agrees with the
 * edges, each queue taking its nodes in that order. Then all nodes are done, if blocks find
 * room.
 *
 * Suppose that nothing moves. On each rank that is not done, take the first node of
 * its order that is not done: it is at the head of its queue, and all that it waits for is done.
 * It is not compute, because that would run; so it is a transfer that waits for its peer, and by
 * the chain the rank's first transfer that is not done. In the total order from above, take the
 * first transfer that is not done. It is the first undone one on both of its ranks; so both ends
 * run, and it is done, a contradiction. (In a graph of stages a result may have several SENDs.
 * Over a network, NCCL adds a host call before a transfer's kernel; it ends by itself and counts
 * as compute.)
 *
 * Room for blocks. Claim: let the transfers of a rank be kernels that spin until their peers run
 * too, as NCCL's are, with at most b(c) blocks for each channel or group c of the rank. If on
 * every GPU the sum of b(c) over all channels and groups of its ranks is less than the number of
 * its multiprocessors, and every other kernel ends, then no transfer waits forever for room.
 *
 * A spinning block holds at most one multiprocessor's room, and a channel or
 * group has one transfer at a time, because its transfers are in one stream. So at least one
 * multiprocessor is always free of spinning blocks, and other kernels end and leave it again and
 * again. Take the first transfer, in the order in which the program was proven to finish under
 * rendezvous, that is not done. It is ready on all its ranks, and its blocks hold a
 * multiprocessor or reach the free one. Then all ends run, and it is done. By induction all are.
 * With the sum equal to the number of multiprocessors the claim fails: later transfers may hold
 * them all. The transport cuda has no transfer that spins. */

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
                         struct nccl_counts *counts) {
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

bool nccl_check_model(const struct weft_program *program, const struct oracle *oracle,
                      uint32_t number, struct nccl_counts *counts) {
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
          blocks ? a.capacity == 0 ||
                       (a.capacity <= b.capacity &&
                        (b.posted ? a.channel >= b.channel : a.channel != WEFT_CHANNEL_EDGE))
                 : a.capacity <= b.capacity && a.channel >= b.channel &&
                       (a.posted || !b.posted || b.channel != WEFT_CHANNEL_RANK);
      if (implied && (blocks ? blocking[strong] : nccl[strong - ORACLE_MODELS]) && !nccl[weak]) {
        return "completes under a strong model and not under a weaker one";
      }
    }
  }
  return NULL;
}

static void count(const bool *blocking, const bool *nccl, struct nccl_counts *counts) {
  bool directed_pair = false, pair_world = false, slots = false;
  for (uint32_t row = 0; row < 12; row += 3) { /* NCCL's */
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

static void check_program(const struct weft_program *program, struct nccl_counts *counts) {
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
    nccl[model] = nccl_check_model(program, &oracle, model, counts);
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

void nccl_campaign(uint64_t seed, uint32_t programs, bool graph, struct nccl_counts *counts) {
  const struct random_limits limits = {
      .communicate = true, .graph = graph, .cells_two = 20, .cells_three = 14};
  struct weft_random random = {.state = seed};
  struct draft draft = {0};
  *counts = (struct nccl_counts){0};
  for (uint32_t k = 0; k < programs; k++) {
    bool misordered;
    random_program(&random, &limits, &draft, &misordered);
    struct weft_program *program = draft_build(&draft);
    check_program(program, counts);
    weft_program_destroy(program);
  }
  draft_finish(&draft);
  printf(
      "%" PRIu32 " programs, %" PRIu64 " complete, %" PRIu64 " stuck, %" PRIu64 " cycles, %" PRIu64
      " states, %" PRIu64 " with too many states; by model: directed/pair %" PRIu32
      ", pair/world %" PRIu32 ", slots %" PRIu32 ", blocking/not %" PRIu32 "\n",
      programs, counts->complete, counts->stuck, counts->cycles, counts->states, counts->unexplored,
      counts->directed_pair, counts->pair_world, counts->slots, counts->blocking);
  /* The trial is worth something only if both verdicts are common, and models are told apart. */
  assert_true(counts->complete * 10 > counts->complete + counts->stuck);
  assert_true(counts->stuck * 10 > counts->complete + counts->stuck);
  assert_true(counts->directed_pair > programs / 100 && counts->pair_world > programs / 300);
  assert_true(counts->slots > programs / 100 && counts->blocking > programs / 100);
  assert_true(counts->unexplored * 20 < counts->complete + counts->stuck);
}
