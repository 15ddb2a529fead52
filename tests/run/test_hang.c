/* What is said about ranks that hang: who waits for whom, chains, cycles, every
 * phase, dumps, and what is read back out of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/run.h>

#include "run/hang/hang.h"
#include "support_fault_injection.h"
#include "support_memory.h"
#include "support_rank_states.h"

#define SECOND INT64_C(1000000000)
#define NOBODY UINT32_MAX

/* Tenths of a second, as times are said. */
static int64_t tenths(int64_t count) { return count * (SECOND / 10); }

static struct weft_failure diagnose(struct rank_states *states, uint32_t reporter) {
  struct weft_failure failure = {.rank = 77};
  rank_states_diagnose(&states->transport, NULL, 0, WEFT_COMM_POSTED, reporter, &failure);
  assert_int_equal(failure.error.status, WEFT_ERR_STALLED);
  return failure;
}

static void check(struct rank_states *states, uint32_t reporter, uint32_t culprit,
                  const char *message, const char *hint) {
  const struct weft_failure failure = diagnose(states, reporter);
  assert_string_equal(failure.error.message, message);
  assert_string_equal(failure.error.hint, hint);
  assert_int_equal(failure.rank, culprit);
}

/* ---- The diagnosis ---- */

static void test_neighbour(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 4, "threads");
  rank_state_set(&states, 3, WEFT_PHASE_RECEIVE, "2RECV_F5", 2, "1SEND_F5", tenths(312));
  rank_state_set(&states, 2, WEFT_PHASE_COMPUTE, "1F6", NOBODY, "", tenths(315));
  check(&states, 3, 2,
        "rank 3 has waited 31.2 s in 2RECV_F5 for rank 2, which is in 1F6 since 31.5 s",
        "look at rank 2's stage 1: it has not returned from its forward");
  rank_state_set(&states, 3, WEFT_PHASE_RECEIVE, "2F5", 2, "1SEND_F5", tenths(312));
  check(&states, 3, 2,
        "rank 3 has waited 31.2 s before 2F5 for rank 2, which is in 1F6 since 31.5 s",
        "look at rank 2's stage 1: it has not returned from its forward");
  rank_state_set(&states, 3, WEFT_PHASE_SEND, "2SEND_B1", 2, "1RECV_B1", tenths(312));
  check(&states, 3, 2,
        "rank 3 has waited 31.2 s in 2SEND_B1 for rank 2, which is in 1F6 since 31.5 s",
        "look at rank 2's stage 1: it has not returned from its forward");
  rank_states_finish(&states);
}

static void test_compute_functions(void **state) {
  (void)state;
  static const struct {
    const char *action, *hint;
  } cases[] = {
      {"1B6", "look at rank 0's stage 1: it has not returned from its backward"},
      {"1I6", "look at rank 0's stage 1: it has not returned from its input gradient"},
      {"1W6", "look at rank 0's stage 1: it has not returned from its weight gradient"},
      {"1UNSHARD", "look at rank 0's stage 1: it has not returned from its UNSHARD"},
      {"1REDUCE_GRAD", "look at rank 0's stage 1: it has not returned from its REDUCE_GRAD"},
      {"1TIE_GRAD", "look at rank 0's stage 1: it has not returned from its TIE_GRAD"},
      {"(0F8;7B0)OVERLAP_F_B", "look at rank 0: it has not returned from its OVERLAP_F_B"},
  };
  struct rank_states states;
  rank_states_init(&states, 2, "threads");
  rank_state_set(&states, 1, WEFT_PHASE_RECEIVE, "2RECV_F5", 0, "", tenths(300));
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    rank_state_set(&states, 0, WEFT_PHASE_COMPUTE, cases[k].action, NOBODY, "", tenths(300));
    const struct weft_failure failure = diagnose(&states, 1);
    assert_string_equal(failure.error.hint, cases[k].hint);
    assert_int_equal(failure.rank, 0);
  }
  assert_string_equal(
      diagnose(&states, 1).error.message,
      "rank 1 has waited 30.0 s in 2RECV_F5 for rank 0, which is in OVERLAP_F_B since 30.0 s");
  /* It polls a collective, in which another rank may be stuck. */
  rank_state_set(&states, 0, WEFT_PHASE_COMPUTE, "1B5", NOBODY, "1REDUCE_GRAD", tenths(300));
  check(&states, 1, 0,
        "rank 1 has waited 30.0 s in 2RECV_F5 for rank 0, which waits for its 1REDUCE_GRAD since "
        "30.0 s",
        "look at all ranks of rank 0's 1REDUCE_GRAD: one has not come to it, or not returned");
  rank_state_set(&states, 0, WEFT_PHASE_COMPUTE, "1F6", NOBODY, "", tenths(3));
  assert_string_equal(diagnose(&states, 1).error.hint,
                      "rank 0 is slow rather than stuck: it began this only 0.3 s ago; a larger "
                      "stall_limit gives it time");
  rank_states_finish(&states);
}

static void test_chain(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 3, "threads");
  rank_state_set(&states, 0, WEFT_PHASE_RECEIVE, "0B0", 1, "1SEND_B0", tenths(300));
  rank_state_set(&states, 1, WEFT_PHASE_RECEIVE, "1B0", 2, "2SEND_B0", tenths(302));
  rank_state_set(&states, 2, WEFT_PHASE_COMPUTE, "2F0", NOBODY, "", tenths(304));
  check(&states, 0, 2,
        "rank 0 has waited 30.0 s before 0B0 for rank 1, which waits for rank 2, which is in 2F0 "
        "since 30.4 s",
        "look at rank 2's stage 2: it has not returned from its forward");
  rank_states_finish(&states);
}

/* A chain of all ranks to the last one. */
static void set_chain(struct rank_states *states, uint32_t count) {
  for (uint32_t r = 0; r + 1 < count; r++) {
    char action[32];
    (void)snprintf(action, sizeof action, "%uRECV_B0", r);
    rank_state_set(states, r, WEFT_PHASE_RECEIVE, action, r + 1, "", tenths(300));
  }
}

static void test_chain_lengths(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 6, "threads");
  set_chain(&states, 6);
  rank_state_set(&states, 5, WEFT_PHASE_COMPUTE, "5F0", NOBODY, "", tenths(301));
  assert_string_equal(diagnose(&states, 1).error.message,
                      "rank 1 has waited 30.0 s in 1RECV_B0 for rank 2, which waits for rank 3, "
                      "which waits for rank 4, which waits for rank 5, which is in 5F0 since "
                      "30.1 s");
  assert_string_equal(diagnose(&states, 0).error.message,
                      "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which waits for rank 2, "
                      "which waits (through 2 more) for rank 5, which is in 5F0 since 30.1 s");
  assert_string_equal(diagnose(&states, 5).error.message, "rank 5 is in 5F0 since 30.1 s");
  rank_states_finish(&states);
}

static void test_many_ranks(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 1024, "threads");
  set_chain(&states, 1024);
  rank_state_set(&states, 1023, WEFT_PHASE_COMPUTE, "1023F0", NOBODY, "", tenths(301));
  check(&states, 0, 1023,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which waits for rank 2, which waits "
        "(through 1020 more) for rank 1023, which is in 1023F0 since 30.1 s",
        "look at rank 1023's stage 1023: it has not returned from its forward");
  rank_state_set(&states, 1023, WEFT_PHASE_RECEIVE, "1023RECV_F7", 0, "0SEND_F7", tenths(301));
  check(&states, 512, 0,
        "a cycle of 1024 ranks: rank 0 waits in 0RECV_B0 for rank 1; rank 1 waits in 1RECV_B0 "
        "for rank 2; rank 2 waits in 2RECV_B0 for rank 3; and 1021 more",
        "the program can deadlock: verify it to see the cycle");
  rank_states_finish(&states);
}

static void test_cycle(void **state) {
  (void)state;
  static const char hint[] = "the program can deadlock: verify it to see the cycle";
  struct rank_states states;
  rank_states_init(&states, 5, "threads");
  rank_state_set(&states, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 1, "1SEND_B0", tenths(300));
  rank_state_set(&states, 1, WEFT_PHASE_RECEIVE, "1RECV_F1", 0, "0SEND_F1", tenths(300));
  const char *cycle =
      "a cycle: rank 0 waits in 0RECV_B0 for rank 1 (1SEND_B0); rank 1 waits in 1RECV_F1 for "
      "rank 0 (0SEND_F1)";
  check(&states, 0, 0, cycle, hint);
  check(&states, 1, 0, cycle, hint);
  rank_state_set(&states, 4, WEFT_PHASE_RECEIVE, "4F0", 3, "", tenths(295));
  rank_state_set(&states, 3, WEFT_PHASE_SEND, "3SEND_B0", 1, "", tenths(296));
  check(&states, 3, 0,
        "rank 3 has waited 29.6 s in 3SEND_B0 for rank 1, which is in a cycle: rank 0 waits in "
        "0RECV_B0 for rank 1 (1SEND_B0); rank 1 waits in 1RECV_F1 for rank 0 (0SEND_F1)",
        hint);
  check(&states, 4, 0,
        "rank 4 has waited 29.5 s before 4F0 for rank 3, which waits for rank 1, which is in a "
        "cycle: rank 0 waits in 0RECV_B0 for rank 1 (1SEND_B0); rank 1 waits in 1RECV_F1 for "
        "rank 0 (0SEND_F1)",
        hint);
  rank_state_set(&states, 2, WEFT_PHASE_SEND, "2SEND_F0", 2, "3RECV_F0", tenths(300));
  check(&states, 2, 2, "a cycle: rank 2 waits in 2SEND_F0 for itself (3RECV_F0)", hint);
  rank_states_finish(&states);
}

/* The longest names and numbers there can be. */
static void test_longest_message(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, WEFT_RANKS_MAX, "threads");
  for (uint32_t r = 0; r < WEFT_RANKS_MAX; r++) {
    rank_state_set(&states, r, WEFT_PHASE_RECEIVE, "", r + 1, "", tenths(300));
    states.items[r].since = INT64_MIN;
    states.items[r].action = packed_action("0RECV_F0") | UINT64_C(0xffffffffffff0000);
    states.items[r].wants = packed_action("0SEND_F0") | UINT64_C(0xffffffffffff0000);
  }
  states.items[WEFT_RANKS_MAX - 1].peer = WEFT_RANKS_MAX - 100;
  const struct weft_failure failure = diagnose(&states, 60000);
  assert_int_equal(failure.rank, WEFT_RANKS_MAX - 100);
  assert_non_null(strstr(failure.error.message, "which is in a cycle of 100 ranks: rank 65436"));
  assert_null(strstr(failure.error.message, "..."));
  assert_non_null(strstr(failure.error.message, " more"));
  rank_states_finish(&states);
}

static void test_phases(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 2, "threads");
  rank_state_set(&states, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 1, "1SEND_B0", tenths(300));
  states.items[0].step = 7;
  check(&states, 0, 1, "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which never joined",
        "see whether rank 1 was started, and whether it ended with an error of its own");
  states.items[1].step = 6;
  states.items[1].since = states.now - tenths(310);
  check(&states, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which has left, 31.0 s ago",
        "see whether rank 1 still runs, and whether it ended with an error of its own");
  rank_state_set(&states, 1, WEFT_PHASE_DONE, "", NOBODY, "", tenths(310));
  check(&states, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which has done its part of step 6",
        "rank 1 has not begun step 7: see what it does between steps, and that all ranks take as "
        "many");
  states.items[1].step = 7;
  check(&states, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which has done its part of step 7",
        "nothing is left that rank 1 would send: see that all ranks run the same program, and "
        "verify it");
  rank_state_set(&states, 1, WEFT_PHASE_FAILED, "1F0", NOBODY, "", tenths(310));
  check(&states, 0, 1, "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which has failed",
        "rank 1's own error says why");
  rank_state_set(&states, 1, WEFT_PHASE_RECEIVE, "1F0", NOBODY, "", tenths(310));
  check(&states, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which waits before 1F0 since 31.0 s, for "
        "no known rank",
        "look at rank 1's row of the program, and verify the program to see whether it can end");
  rank_state_set(&states, 1, WEFT_PHASE_SEND, "", 2, "", tenths(310));
  check(&states, 0, 1,
        "rank 0 has waited 30.0 s in 0RECV_B0 for rank 1, which waits since 31.0 s, for no known "
        "rank",
        "look at rank 1's row of the program, and verify the program to see whether it can end");
  rank_states_finish(&states);
}

/* What a trainer does between steps may need all ranks, and one of them is stopped. */
static void test_stopped_between_steps(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 4, "mpi");
  rank_state_set(&states, 0, WEFT_PHASE_DONE, "", NOBODY, "", tenths(310));
  rank_state_set(&states, 1, WEFT_PHASE_RECEIVE, "1F0", 0, "0SEND_F0", tenths(300));
  rank_state_set(&states, 2, WEFT_PHASE_DONE, "", NOBODY, "", tenths(305));
  rank_state_set(&states, 3, WEFT_PHASE_RECEIVE, "1F0", 2, "0SEND_F0", tenths(300));
  states.items[1].step = states.items[3].step = 2;
  states.items[0].step = states.items[2].step = 1;
  assert_int_equal(diagnose(&states, 3).rank, 2);
  states.items[0].flags = WEFT_RANK_STOPPED;
  check(&states, 3, 0,
        "rank 3 has waited 30.0 s before 1F0 for rank 2, which waits for rank 0, which is stopped, "
        "by a signal or a debugger, since 31.0 s",
        "SIGCONT resumes rank 0's process");
  rank_states_finish(&states);
}

/* Whatever they wait for themselves. */
static void test_stopped_and_silent(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 3, "mpi");
  rank_state_set(&states, 0, WEFT_PHASE_RECEIVE, "0B0", 1, "1SEND_B0", tenths(300));
  rank_state_set(&states, 1, WEFT_PHASE_RECEIVE, "1B0", 2, "2SEND_B0", tenths(302));
  rank_state_set(&states, 2, WEFT_PHASE_COMPUTE, "2F0", NOBODY, "", tenths(304));
  states.items[2].flags = WEFT_RANK_STOPPED;
  check(&states, 0, 2,
        "rank 0 has waited 30.0 s before 0B0 for rank 1, which waits for rank 2, which is stopped, "
        "by a signal or a debugger, in 2F0 since 30.4 s",
        "SIGCONT resumes rank 2's process");
  states.items[1].flags = WEFT_RANK_STOPPED | WEFT_RANK_SILENT;
  check(&states, 0, 1,
        "rank 0 has waited 30.0 s before 0B0 for rank 1, which is stopped, by a signal or a "
        "debugger, before 1B0 since 30.2 s",
        "SIGCONT resumes rank 1's process");
  states.items[1].flags = WEFT_RANK_SILENT;
  check(&states, 0, 1, "rank 0 has waited 30.0 s before 0B0 for rank 1, which does not answer",
        "see whether rank 1's host is up, the network to it too, and whether its process is "
        "stopped or stuck");
  states.items[1].flags = WEFT_RANK_DEAD;
  check(&states, 0, 1, "rank 0 has waited 30.0 s before 0B0 for rank 1, which has died",
        "look for what ended rank 1: memory, a signal");
  states.items[1].flags = ~(uint64_t)15; /* nonsense */
  assert_int_equal(diagnose(&states, 0).rank, 2);
  rank_states_finish(&states);
}

static void test_handshake(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 4, "threads");
  for (uint32_t r = 0; r < 4; r++) {
    rank_state_set(&states, r, WEFT_PHASE_HANDSHAKE, "", NOBODY, "", tenths(300));
  }
  check(&states, 1, 1, "rank 1 waits in the handshake since 30.0 s, for no known rank",
        "every rank has come to the handshake: look at the network between them");
  states.items[2].flags = WEFT_RANK_STOPPED;
  check(&states, 1, 2,
        "rank 1 has waited 30.0 s in the handshake for rank 2, which is stopped, by a signal or a "
        "debugger, in the handshake since 30.0 s",
        "SIGCONT resumes rank 2's process");
  rank_state_set(&states, 3, WEFT_PHASE_IDLE, "", NOBODY, "", states.now);
  assert_int_equal(diagnose(&states, 1).rank, 3); /* it never joined */
  states.items[2].flags = 0;
  rank_state_set(&states, 3, WEFT_PHASE_IDLE, "", NOBODY, "", states.now);
  check(&states, 1, 3, "rank 1 has waited 30.0 s in the handshake for rank 3, which never joined",
        "see whether rank 3 was started, and whether it ended with an error of its own");
  rank_state_set(&states, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 2, "", tenths(290));
  check(
      &states, 0, 3,
      "rank 0 has waited 29.0 s in 0RECV_B0 for rank 2, which waits for rank 3, which never joined",
      "see whether rank 3 was started, and whether it ended with an error of its own");
  /* The second step's handshake, while rank 2 is still in the first step. */
  for (uint32_t r = 0; r < 4; r++) {
    rank_state_set(&states, r, WEFT_PHASE_HANDSHAKE, "", NOBODY, "", tenths(300));
    states.items[r].step = 2;
  }
  rank_state_set(&states, 2, WEFT_PHASE_COMPUTE, "2W9", NOBODY, "", tenths(330));
  states.items[2].step = 1;
  check(&states, 0, 2,
        "rank 0 has waited 30.0 s in the handshake for rank 2, which is in 2W9 since 33.0 s",
        "look at rank 2's stage 2: it has not returned from its weight gradient");
  rank_state_set(&states, 1, WEFT_PHASE_HANDSHAKE, "", 3, "", tenths(300));
  rank_state_set(&states, 3, WEFT_PHASE_FAILED, "", NOBODY, "", tenths(300));
  assert_int_equal(diagnose(&states, 1).rank, 3);
  rank_states_finish(&states);
}

static void test_ticks_and_odd_times(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 2, "faults(loopback)");
  states.now = 40;
  rank_state_set(&states, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 1, "1SEND_B0", 31);
  rank_state_set(&states, 1, WEFT_PHASE_COMPUTE, "1F0", NOBODY, "", 1);
  assert_string_equal(
      diagnose(&states, 0).error.message,
      "rank 0 has waited 31 ticks in 0RECV_B0 for rank 1, which is in 1F0 since 1 tick");
  states.items[1].since = INT64_MAX; /* from the future */
  states.items[0].since = INT64_MIN;
  assert_string_equal(
      diagnose(&states, 0).error.message,
      "rank 0 has waited 9223372036854775848 ticks in 0RECV_B0 for rank 1, which is in 1F0 since "
      "0 ticks");
  rank_states_finish(&states);
}

/* Invalid states: phases and ops that do not exist, overlaps without sub-actions. */
static void test_nonsense(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 2, "threads");
  rank_state_set(&states, 0, WEFT_PHASE_RECEIVE, "0RECV_B0", 1, "", tenths(300));
  for (uint32_t k = 0; k < 4096; k++) {
    states.items[1].phase = k % 9;
    states.items[1].peer = k % 5;
    states.items[1].action = UINT64_C(0x9e3779b97f4a7c15) * k;
    states.items[1].wants = UINT64_C(0xff51afd7ed558ccd) * k;
    states.items[1].recent_count = k;
    const struct weft_failure failure = diagnose(&states, 0);
    assert_true(failure.rank < 2);
    assert_true(strlen(failure.error.message) > 0);
    assert_true(strlen(failure.error.hint) > 0);
  }
  rank_states_finish(&states);
}

/* ---- Dumps ---- */

static void fill_three(struct rank_states *states) {
  rank_states_init(states, 3, "threads");
  rank_state_set(states, 0, WEFT_PHASE_RECEIVE, "0B0", 1, "1SEND_B0", tenths(300));
  rank_state_set(states, 1, WEFT_PHASE_SEND, "1SEND_B0", 2, "0RECV_B0", tenths(305));
  rank_state_set(states, 2, WEFT_PHASE_COMPUTE, "(2F0;2B1)OVERLAP_F_B", NOBODY, "", tenths(310));
  states->items[0].step = states->items[1].step = states->items[2].step = 7;
  states->items[0].cell = 12;
  rank_state_note(states, 0, "0F0", 5, 6);
  rank_state_note(states, 0, "0SEND_F0", 6, 7);
  for (int k = 0; k < 40; k++) { /* more than the ring holds */
    char action[16];
    (void)snprintf(action, sizeof action, "2F%d", k);
    rank_state_note(states, 2, action, k, k + 1);
  }
}

static void set_failure(struct rank_states *states, uint32_t rank, const char *message,
                        const char *hint) {
  states->has_failed = true;
  states->failure = (struct weft_failure){.rank = rank, .error = {.status = WEFT_ERR_STAGE}};
  (void)snprintf(states->failure.error.message, sizeof states->failure.error.message, "%s",
                 message);
  (void)snprintf(states->failure.error.hint, sizeof states->failure.error.hint, "%s", hint);
}

static struct weft_text dump(struct rank_states *states) {
  struct weft_text text = {.allocator = NULL};
  struct weft_error error;
  assert_int_equal(weft_hang_dump(&states->transport, &text, &error), WEFT_OK);
  return text;
}

static void check_explained(struct rank_states *states, const char *expected) {
  struct weft_text text = dump(states), words = {.allocator = NULL};
  struct weft_error error = {.message = ""};
  if (weft_hang_explain(text.data, text.size, "test", &words, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  assert_string_equal(words.data, expected);
  weft_text_finish(&text);
  weft_text_finish(&words);
}

static void test_explained_chain(void **state) {
  (void)state;
  struct rank_states states;
  fill_three(&states);
  check_explained(&states,
                  "rank 0: waits before 0B0 for rank 1 (1SEND_B0), since 30.0 s; step 7, cell 12; "
                  "before that 0SEND_F0\n"
                  "rank 1: waits in 1SEND_B0 for rank 2 (0RECV_B0), since 30.5 s; step 7, cell 0\n"
                  "rank 2: is in OVERLAP_F_B, since 31.0 s; step 7, cell 0; before that 2F39\n"
                  "\n"
                  "verdict: rank 1 has waited 30.5 s in 1SEND_B0 for rank 2, which is in "
                  "OVERLAP_F_B since 31.0 s\n"
                  "culprit: rank 2\n"
                  "hint: look at rank 2: it has not returned from its OVERLAP_F_B\n");
  set_failure(&states, 1, "rank 1, 1B0: the stage failed", "");
  states.items[1].phase = WEFT_PHASE_FAILED;
  states.items[0].phase = WEFT_PHASE_DONE;
  states.items[2].phase = WEFT_PHASE_IDLE;
  states.items[2].flags = WEFT_RANK_DEAD;
  check_explained(
      &states,
      "rank 0: has done its part, since 30.0 s; step 7, cell 12; before that 0SEND_F0\n"
      "rank 1: has failed, since 30.5 s; step 7, cell 0\n"
      "rank 2: dead; its last status: is idle, since 31.0 s; step 7, cell 0; before that 2F39\n"
      "\n"
      "verdict: rank 1, 1B0: the stage failed\n"
      "culprit: rank 1\n");
  rank_states_finish(&states);
}

static void test_explained_flags(void **state) {
  (void)state;
  struct rank_states states;
  fill_three(&states);
  states.items[0].flags = WEFT_RANK_STOPPED;
  states.items[2].flags = WEFT_RANK_SILENT;
  check_explained(
      &states,
      "rank 0: stopped; waits before 0B0 for rank 1 (1SEND_B0), since 30.0 s; step 7, "
      "cell 12; before that 0SEND_F0\n"
      "rank 1: waits in 1SEND_B0 for rank 2 (0RECV_B0), since 30.5 s; step 7, cell 0\n"
      "rank 2: silent; is in OVERLAP_F_B, since 31.0 s; step 7, cell 0; before that "
      "2F39\n"
      "\n"
      "verdict: rank 1 has waited 30.5 s in 1SEND_B0 for rank 2, which does not answer\n"
      "culprit: rank 2\n"
      "hint: see whether rank 2's host is up, the network to it too, and whether its "
      "process is stopped or stuck\n");
  rank_states_finish(&states);
}

static void test_explained_cycle(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 3, "loopback");
  states.now = 100;
  rank_state_set(&states, 2, WEFT_PHASE_RECEIVE, "2RECV_F1", 1, "1SEND_F1", 60);
  rank_state_set(&states, 1, WEFT_PHASE_RECEIVE, "1RECV_B0", 2, "2SEND_B0", 50);
  check_explained(
      &states,
      "rank 0: is idle\n"
      "rank 1: waits in 1RECV_B0 for rank 2 (2SEND_B0), since 50 ticks; step 0, cell 0\n"
      "rank 2: waits in 2RECV_F1 for rank 1 (1SEND_F1), since 60 ticks; step 0, cell 0\n"
      "\n"
      "verdict: a cycle: rank 1 waits in 1RECV_B0 for rank 2 (2SEND_B0); rank 2 waits "
      "in 2RECV_F1 for rank 1 (1SEND_F1)\n"
      "cycle: ranks 1 2\n"
      "hint: the program can deadlock: verify it to see the cycle\n");
  rank_states_finish(&states);
}

static void test_explained_nothing(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 2, "threads");
  rank_state_set(&states, 1, WEFT_PHASE_HANDSHAKE, "", NOBODY, "", tenths(5));
  check_explained(
      &states,
      "rank 0: is idle\n"
      "rank 1: waits in the handshake, since 0.5 s; step 0, cell 0\n"
      "\n"
      "verdict: rank 1 has waited 0.5 s in the handshake for rank 0, which never joined\n"
      "culprit: rank 0\n"
      "hint: see whether rank 0 was started, and whether it ended with an error of its "
      "own\n");
  states.items[1].phase = WEFT_PHASE_IDLE;
  check_explained(&states,
                  "rank 0: is idle\n"
                  "rank 1: is idle\n"
                  "\n"
                  "verdict: no rank waits for another\n"
                  "culprit: unknown\n"
                  "hint: if this was no hang, there is nothing to do\n");
  rank_states_finish(&states);
}

static void tell_place(struct weft_transport *transport, uint32_t rank, char *buffer, size_t size) {
  assert_in_range(rank, 0, transport->rank_count - 1);
  snprintf(buffer, size, "node%u, process %u", rank + 1, 100 + rank);
}

/* Where ranks are processes, the culprit is named with its location, and no other rank. */
static void test_culprit_has_a_place(void **state) {
  (void)state;
  struct rank_states states;
  struct weft_failure failure;
  struct weft_transport *injector;
  const struct weft_fault_options calm = {.delay_max = 0};
  rank_states_init(&states, 3, "mpi");
  states.ops.location = tell_place;
  rank_state_set(&states, 0, WEFT_PHASE_RECEIVE, "0B0", 1, "1SEND_B0", tenths(300));
  rank_state_set(&states, 1, WEFT_PHASE_RECEIVE, "1B0", 2, "2SEND_B0", tenths(302));
  states.items[2].flags = WEFT_RANK_SILENT;
  rank_states_diagnose(&states.transport, NULL, 0, WEFT_COMM_POSTED, 0, &failure);
  assert_string_equal(failure.error.message,
                      "rank 0 has waited 30.0 s before 0B0 for rank 1, which waits for "
                      "rank 2 (node3, process 102), which does not answer");
  assert_int_equal(weft_fault_injector_create(weft_allocator_default(), &states.transport, &calm,
                                              &injector, NULL),
                   WEFT_OK);
  rank_states_diagnose(injector, NULL, 0, WEFT_COMM_POSTED, 2, &failure);
  assert_string_equal(failure.error.message, "rank 2 (node3, process 102) does not answer");
  injector->ops->destroy(injector);
  rank_states_finish(&states);
}

/* A dump refreshes copies of other ranks' status first. */
static void come_late(struct weft_transport *transport, int64_t until) {
  struct rank_states *states = (struct rank_states *)(void *)transport;
  assert_int_equal(until, states->now + SECOND / 2);
  rank_state_set(states, 1, WEFT_PHASE_COMPUTE, "1F6", NOBODY, "", tenths(1));
}

static void test_states_are_refreshed(void **state) {
  (void)state;
  struct rank_states states;
  struct weft_text text = {0};
  struct weft_error error;
  rank_states_init(&states, 2, "mpi");
  states.ops.refresh_status = come_late;
  assert_int_equal(weft_hang_dump(&states.transport, &text, &error), WEFT_OK);
  assert_non_null(strstr(text.data, "1F6"));
  weft_text_finish(&text);
  rank_states_finish(&states);
}

/* Any status can be dumped and read back, whatever it holds. */
static void test_nonsense_dumped(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 2, "threads");
  for (uint32_t k = 0; k < 512; k++) {
    uint64_t bits = UINT64_C(0x9e3779b97f4a7c15) * (k + 1);
    for (uint32_t r = 0; r < 2; r++) {
      unsigned char *bytes = (unsigned char *)&states.items[r];
      for (size_t i = 0; i < sizeof states.items[r]; i++) {
        bits = bits * UINT64_C(6364136223846793005) + 1442695040888963407u;
        bytes[i] = (unsigned char)(bits >> 56);
      }
      states.items[r].phase %= 9;
      states.items[r].peer %= 3;
    }
    struct weft_text text = dump(&states), words = {.allocator = NULL};
    struct weft_error error = {.message = ""};
    if (weft_hang_explain(text.data, text.size, "test", &words, &error) != WEFT_OK) {
      fail_msg("%s", error.message);
    }
    weft_text_finish(&text);
    weft_text_finish(&words);
  }
  rank_states_finish(&states);
}

static void test_many_ranks_explained(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 1024, "threads");
  set_chain(&states, 1024);
  rank_state_set(&states, 1023, WEFT_PHASE_RECEIVE, "1023RECV_F7", 0, "0SEND_F7", tenths(301));
  struct weft_text text = dump(&states), words = {.allocator = NULL};
  struct weft_error error;
  assert_int_equal(weft_hang_explain(text.data, text.size, "test", &words, &error), WEFT_OK);
  assert_non_null(strstr(words.data, "verdict: a cycle of 1024 ranks: rank 0 waits"));
  assert_non_null(strstr(words.data, "cycle: ranks 0 1 2 "));
  assert_non_null(strstr(words.data, " 1022 1023\n"));
  weft_text_finish(&text);
  weft_text_finish(&words);
  rank_states_finish(&states);
}

/* ---- Malformed dumps ---- */

#define HEAD "{\"schema\": \"weft-hang/2\", \"diagnosis\": " DIAGNOSIS ", "
#define DIAGNOSIS \
  "{\"culprit\": null, \"cycle\": [], \"message\": \"no rank waits\", \"hint\": \"\"}"
#define RANK "{\"rank\": 0, \"says\": \"is idle\"}"

/* A dump of one rank in which `from` has become `to`. */
static char *changed(const char *from, const char *to) {
  static const char whole[] = HEAD "\"ranks\": [" RANK "]}";
  const char *at = strstr(whole, from);
  const size_t size = sizeof whole + strlen(to);
  char *text = malloc(size);
  assert_non_null(at);
  assert_non_null(text);
  (void)snprintf(text, size, "%.*s%s%s", (int)(at - whole), whole, to, at + strlen(from));
  return text;
}

static void check_refused(const char *from, const char *to, const char *expected) {
  struct weft_text words = {.allocator = NULL};
  struct weft_error error = {.message = ""};
  char *text = changed(from, to);
  assert_int_equal(weft_hang_explain(text, strlen(text), "d.json", &words, &error),
                   WEFT_ERR_FORMAT);
  if (strstr(error.message, expected) == NULL) {
    fail_msg("expected \"%s\" in: %s", expected, error.message);
  }
  assert_int_equal(strncmp(error.message, "d.json:", 7), 0);
  assert_true(error.line > 0 && error.hint[0] != '\0');
  assert_null(words.data);
  free(text);
}

static void test_malformed(void **state) {
  (void)state;
  static const struct {
    const char *from, *to, *expected;
  } cases[] = {
      {"weft-hang/2", "weft-hang/1",
       "not a dump: its schema is not \"weft-hang/2\"; what another version of Weft has written is "
       "explained by that version"},
      {"\"schema\": \"weft-hang/2\", ", "", "not a dump: Object item not found: schema"},
      {"\"schema\": \"weft-hang/2\"", "\"schema\": \"weft-hang/2\", \"schema\": \"weft-hang/2\"",
       "not JSON: duplicate object key"},
      {"{\"culprit\"", "7, \"was\": {\"culprit\"", "not a dump: Expected object, got integer"},
      {"\"culprit\": null", "\"culprit\": -1",
       "diagnosis.culprit is the number of a rank, or null, and .cycle a list of ranks"},
      {"\"culprit\": null", "\"culprit\": 65536", "diagnosis.culprit is the number"},
      {"\"culprit\": null, ", "", "not a dump: Object item not found: culprit"},
      {"\"cycle\": []", "\"cycle\": {}", ".cycle a list of ranks"},
      {"\"cycle\": []", "\"cycle\": [0, 1.5]", ".cycle a list of ranks"},
      {"\"no rank waits\"", "null", "not a dump: Expected string, got null"},
      {"\"hint\": \"\"", "\"hints\": \"\"", "not a dump: Object item not found: hint"},
      {"[" RANK "]", "[]", "ranks is a list with 1 to 65536 ranks"},
      {"[" RANK "]", "{}", "ranks is a list with 1 to 65536 ranks"},
      {"[" RANK "]", "[1]", "each of ranks has a text `says`"},
      {"\"is idle\"", "99999999999999999999", "not JSON: too big integer"},
      {"\"is idle\"", "[]", "each of ranks has a text `says`"},
      {"\"says\": \"is idle\"", "\"said\": 1", "each of ranks has a text `says`"},
      {"}]}", "}", "not JSON"},
  };
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
    check_refused(cases[k].from, cases[k].to, cases[k].expected);
  }
}

static void test_too_many_ranks(void **state) {
  (void)state;
  struct weft_text text = {.allocator = NULL}, words = {.allocator = NULL};
  struct weft_error error;
  weft_text_add(&text, HEAD "\"ranks\": [1");
  for (uint32_t r = 0; r < WEFT_RANKS_MAX; r++) {
    weft_text_add(&text, ",1");
  }
  weft_text_add(&text, "]}");
  assert_int_equal(weft_hang_explain(text.data, text.size, NULL, &words, &error), WEFT_ERR_FORMAT);
  assert_non_null(strstr(error.message, "ranks is a list with 1 to 65536 ranks"));
  for (uint32_t r = 0; r < WEFT_RANKS_MAX * 80; r++) {
    weft_text_append(&text, ",", 1);
  }
  assert_int_equal(weft_hang_explain(text.data, text.size, NULL, &words, &error), WEFT_ERR_LIMIT);
  weft_text_finish(&text);
}

/* A dump of as many ranks as there can be is within the limit of its reader: 80 commas a rank. */
static void test_longest_line(void **state) {
  (void)state;
  struct rank_states states;
  rank_states_init(&states, 2, "threads");
  for (uint32_t r = 0; r < 2; r++) {
    for (int k = 0; k < WEFT_STATUS_RECENT; k++) {
      rank_state_note(&states, r, "0F0", k, k + 1);
    }
    rank_state_set(&states, r, WEFT_PHASE_RECEIVE, "0RECV_B0", 1 - r, "1SEND_B0", tenths(300));
    states.items[r].flags = WEFT_RANK_STOPPED;
  }
  struct weft_text text = dump(&states);
  const char *begin = strchr(text.data, '\n'), *end = strchr(begin + 1, '\n');
  uint32_t commas = 0;
  for (const char *at = begin; at < end; at++) {
    commas += *at == ',';
  }
  assert_in_range(commas, 16 * 3 + 9, 80 - 4); /* on_device and gpu, and the cycle, come on top */
  weft_text_finish(&text);
  rank_states_finish(&states);
}

/* ---- Memory ---- */

static void test_memory(void **state) {
  (void)state;
  struct rank_states states;
  fill_three(&states);
  set_failure(&states, 2, "a message", "a hint");
  struct weft_text whole = dump(&states);
  enum weft_status status = WEFT_ERR_MEMORY;
  for (uint64_t n = 1; status == WEFT_ERR_MEMORY; n++) {
    struct test_memory memory;
    struct weft_error error = {.status = WEFT_OK};
    test_memory_init(&memory);
    memory.fail_at = n;
    struct weft_text text = {.allocator = &memory.allocator};
    status = weft_hang_dump(&states.transport, &text, &error);
    assert_int_equal(error.status, status);
    weft_text_finish(&text);
    assert_int_equal(memory.blocks, 0);
    assert_true(n < 100);
  }
  assert_int_equal(status, WEFT_OK);
  status = WEFT_ERR_MEMORY;
  for (uint64_t n = 1; status == WEFT_ERR_MEMORY; n++) {
    struct test_memory memory;
    struct weft_error error = {.status = WEFT_OK};
    test_memory_init(&memory);
    memory.fail_at = n;
    struct weft_text text = {.allocator = &memory.allocator};
    status = weft_hang_explain(whole.data, whole.size, "t", &text, &error);
    assert_int_equal(error.status, status);
    weft_text_finish(&text);
    assert_int_equal(memory.blocks, 0);
    assert_true(n < 100);
  }
  assert_int_equal(status, WEFT_OK);
  weft_text_finish(&whole);
  rank_states_finish(&states);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_neighbour),
      cmocka_unit_test(test_compute_functions),
      cmocka_unit_test(test_chain),
      cmocka_unit_test(test_chain_lengths),
      cmocka_unit_test(test_many_ranks),
      cmocka_unit_test(test_cycle),
      cmocka_unit_test(test_longest_message),
      cmocka_unit_test(test_phases),
      cmocka_unit_test(test_stopped_between_steps),
      cmocka_unit_test(test_stopped_and_silent),
      cmocka_unit_test(test_culprit_has_a_place),
      cmocka_unit_test(test_handshake),
      cmocka_unit_test(test_ticks_and_odd_times),
      cmocka_unit_test(test_nonsense),
      cmocka_unit_test(test_explained_chain),
      cmocka_unit_test(test_explained_flags),
      cmocka_unit_test(test_explained_cycle),
      cmocka_unit_test(test_explained_nothing),
      cmocka_unit_test(test_states_are_refreshed),
      cmocka_unit_test(test_nonsense_dumped),
      cmocka_unit_test(test_many_ranks_explained),
      cmocka_unit_test(test_malformed),
      cmocka_unit_test(test_too_many_ranks),
      cmocka_unit_test(test_longest_line),
      cmocka_unit_test(test_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
