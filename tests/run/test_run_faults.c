/* The whole runtime, simulated with faults: random jobs on the loopback transport
 * (support_trial.h), one fault in each. Whatever happens, it ends, all ranks say
 * the same, the one to blame is named, results that come out are right bit for
 * bit, and no memory is left behind. A seed repeats exactly:
 *
 *   WEFT_SEED=4711 test_run_faults     runs one, and says what happened */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support_trial.h"

#if defined(__SANITIZE_ADDRESS__)
#define SEEDS 4000u /* about memory; the other build runs all of them */
#else
#define SEEDS 20000u
#endif

enum { REPLAY_EVERY = 16, COMPLAINTS_MAX = 8 };

/* How often each fault was drawn, and how often it made the run fail. */
struct tally {
  uint32_t drawn[FAULT_COUNT];
  uint32_t failed[FAULT_COUNT];
  uint64_t turns;
  uint32_t complaints;
};

/* ---- What must be ---- */

static bool names(const struct weft_error *error, uint32_t rank) {
  char name[24];
  (void)snprintf(name, sizeof name, "rank %" PRIu32, rank);
  const char *at = strstr(error->message, name);
  while (at != NULL && at[strlen(name)] >= '0' && at[strlen(name)] <= '9') {
    at = strstr(at + 1, name);
  }
  return at != NULL;
}

/* Every rank that is left ends with the one error, or has nothing left to do. */
static const char *judge_agreement(const struct trial *trial) {
  for (uint32_t r = 0; r < trial->rank_count; r++) {
    const struct trial_rank *rank = &trial->ranks[r];
    if (rank->is_lost) {
      continue;
    }
    if (rank->status == WEFT_OK) {
      if (rank->steps_done != trial->setup->steps) {
        return "a rank ended early without an error";
      }
      continue;
    }
    if (!trial->has_failure) {
      return "a rank failed, and the others did not learn of it";
    }
    if (rank->status != trial->failure.error.status || rank->error.status != rank->status ||
        strcmp(rank->error.message, trial->failure.error.message) != 0 ||
        strcmp(rank->error.hint, trial->failure.error.hint) != 0) {
      return "ranks end with different errors";
    }
  }
  return NULL;
}

static const char *expect_failure(const struct trial *trial, enum weft_status status,
                                  bool to_blame) {
  const struct trial_setup *setup = trial->setup;
  if (trial->failure.error.status != status) {
    return "another status than the fault should give";
  }
  if (!names(&trial->failure.error, setup->victim)) {
    return "the message does not name the rank with the fault";
  }
  return to_blame && trial->failure.rank != setup->victim ? "the wrong rank is to blame" : NULL;
}

/* What damaged it is not known; the message came from there. */
static const char *judge_damage(const struct trial *trial) {
  const char *from = strstr(trial->failure.error.message, "from rank ");
  if (from == NULL || strtoul(from + strlen("from rank "), NULL, 10) != trial->failure.rank) {
    return "the sender is not to blame";
  }
  return expect_failure(trial, WEFT_ERR_PROTOCOL, false);
}

/* Someone failed to get memory: it says so, or it is missed. Who is silent is so
 * between steps, where a rank's main function reports it; within a step the
 * pipeline broadcasts it. */
static const char *judge_memory(const struct trial *trial) {
  const enum weft_status status = trial->failure.error.status;
  if (trial->failure.rank != trial->starved) {
    return "another rank than the one without memory is to blame";
  }
  if (trial->ranks[trial->starved].is_lost) {
    return status == WEFT_ERR_STALLED ? NULL : "a rank that ended silently is not missed";
  }
  return status == WEFT_ERR_MEMORY ? NULL : "another status than memory";
}

/* A message from or to the odd rank cannot fit; or its setup has no such number. */
static const char *judge_microbatches(const struct trial *trial) {
  const enum weft_status status = trial->failure.error.status;
  if (status != WEFT_ERR_PROTOCOL && status != WEFT_ERR_USAGE) {
    return "another status than the fault should give";
  }
  return status == WEFT_ERR_USAGE ? NULL : expect_failure(trial, status, false);
}

static const char *judge_failure(const struct trial *trial) {
  switch (trial->setup->fault) {
    case FAULT_NONE:
    case FAULT_DELAY:
    case FAULT_SLOW_WITHIN: return "it failed without a fault";
    case FAULT_SLOW_BEYOND:
    case FAULT_SLOW_STAGE:
    case FAULT_STAGE_NEVER_ENDS:
    case FAULT_ABSENT:
    case FAULT_DEATH:
    case FAULT_FROZEN: return expect_failure(trial, WEFT_ERR_STALLED, true);
    case FAULT_HEADER:
    case FAULT_PAYLOAD: return judge_damage(trial);
    case FAULT_STAGE_FAILS: return expect_failure(trial, WEFT_ERR_STAGE, true);
    case FAULT_MEMORY_ONCE:
    case FAULT_MEMORY_SILENT:
    case FAULT_MEMORY_GONE: return judge_memory(trial);
    case FAULT_CONFIGURATION:
    case FAULT_PROGRAM: /* of two, nobody knows which is the odd one */
      return expect_failure(trial, WEFT_ERR_PEER, trial->rank_count > 2);
    case FAULT_INTERRUPTED: return expect_failure(trial, WEFT_ERR_CANCELLED, true);
    default: return judge_microbatches(trial);
  }
}

/* A hand-made program may leave a rank without stages. */
static bool has_stages(const struct trial_setup *setup, uint32_t rank) {
  for (uint32_t s = 0; s < setup->program->stage_count; s++) {
    if (setup->rank_of[s] == rank) {
      return true;
    }
  }
  return false;
}

/* Whether the fault has surely struck, and must have shown. */
static bool must_fail(const struct trial *trial) {
  const struct trial_setup *setup = trial->setup;
  const struct fault_stage *stage = &trial->stages[setup->victim_stage];
  switch (setup->fault) {
    case FAULT_SLOW_STAGE:
    case FAULT_STAGE_FAILS:
    case FAULT_STAGE_NEVER_ENDS: return stage->calls >= setup->when;
    case FAULT_MEMORY_ONCE:
    case FAULT_MEMORY_GONE: return trial->was_out_of_memory && trial->world != NULL;
    case FAULT_CONFIGURATION:
    case FAULT_PROGRAM:
    case FAULT_ABSENT: return trial->rank_count > 1;
    case FAULT_OTHER_MICROBATCHES: return trial->rank_count > 1 && has_stages(setup, setup->victim);
    case FAULT_INTERRUPTED: return trial->ranks[setup->victim].questions >= setup->when;
    default: return false;
  }
}

static const char *judge(const struct trial *trial) {
  if (trial->complaint[0] != '\0') {
    return trial->complaint;
  }
  const char *complaint = judge_agreement(trial);
  if (complaint == NULL && trial->has_failure) {
    complaint = judge_failure(trial);
  }
  if (complaint == NULL && !trial->has_failure && must_fail(trial)) {
    complaint = "the fault did not show";
  }
  return complaint;
}

/* ---- Seeds ---- */

static void describe_trial(const struct trial_setup *setup, const struct trial *trial,
                           const char *what) {
  print_message("seed %" PRIu64
                ": %s\n  %s, %s, %u steps; fault: %s, rank %u, stage %u, no. %" PRIu64 ", %" PRId64
                "\n  %" PRIu64 " turns, hash %016" PRIx64 "\n",
                setup->seed, what, setup->name, weft_send_model_info(setup->comm)->name,
                setup->steps, trial_fault_name(setup->fault), setup->victim, setup->victim_stage,
                setup->when, setup->amount, trial->turns, trial->hash);
  for (uint32_t r = 0; r < trial->rank_count; r++) {
    const struct trial_rank *rank = &trial->ranks[r];
    print_message("  rank %u: %s after %u steps%s: %s\n", r, weft_status_name(rank->status),
                  rank->steps_done, rank->is_lost ? ", lost" : "",
                  rank->status < 0 ? rank->error.message : "");
  }
  if (trial->has_failure) {
    print_message("  agreed, rank %u: %s\n", trial->failure.rank, trial->failure.error.message);
  }
  print_message("  again: WEFT_SEED=%" PRIu64 "\n", setup->seed);
}

/* A slow rank raises no alarm as long as nobody waits for the limit: the longest
 * wait is measured first, without one. */
static void run_once(struct trial *trial, const struct trial_setup *setup) {
  int64_t limit = -1;
  if (setup->fault == FAULT_SLOW_WITHIN) {
    trial_run(trial, setup, 0);
    limit = trial->longest_wait + 1;
  }
  trial_run(trial, setup, limit);
}

static bool run_seed(uint64_t seed, bool talk, struct tally *tally) {
  static struct trial trial, again; /* large */
  struct trial_setup setup;
  trial_draw(&setup, seed, FAULT_COUNT);
  run_once(&trial, &setup);
  const char *complaint = judge(&trial);
  tally->drawn[setup.fault]++;
  tally->failed[setup.fault] += trial.has_failure;
  tally->turns += trial.turns;
  if (complaint != NULL || talk || seed % REPLAY_EVERY == 0) {
    run_once(&again, &setup);
    if (again.hash != trial.hash || again.turns != trial.turns) {
      describe_trial(&setup, &again, "a second run is not the same");
      tally->complaints++;
    }
  }
  if (complaint != NULL || talk) {
    describe_trial(&setup, &trial, complaint != NULL ? complaint : "as it should be");
  }
  tally->complaints += complaint != NULL;
  trial_setup_finish(&setup);
  return complaint == NULL;
}

static void every_seed_ends_well(void **state) {
  (void)state;
  const char *chosen = getenv("WEFT_SEED");
  struct tally tally = {{0}, {0}, 0, 0};
  if (chosen != NULL) {
    assert_true(run_seed(strtoull(chosen, NULL, 10), true, &tally));
    return;
  }
  for (uint64_t seed = 0; seed < SEEDS && tally.complaints < COMPLAINTS_MAX; seed++) {
    (void)run_seed(seed, false, &tally);
  }
  for (uint32_t fault = 0; fault < FAULT_COUNT; fault++) {
    print_message("%-22s %5u runs, %5u failed\n", trial_fault_name((enum trial_fault)fault),
                  tally.drawn[fault], tally.failed[fault]);
  }
  print_message("%u seeds, %" PRIu64 " turns\n", SEEDS, tally.turns);
  assert_int_equal(tally.complaints, 0);
  for (uint32_t fault = FAULT_SLOW_BEYOND; fault < FAULT_COUNT; fault++) {
    assert_true(tally.failed[fault] * 4 > tally.drawn[fault]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_seed_ends_well)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
