/* The dry run: PyTorch's own results byte for byte, hand-made programs, programs
 * that get stuck, hostile input, and failing memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/support.h>
#include <weft/weft.h>

#include "support_csv.h"
#include "support_memory.h"

static struct weft_program *communicate(const struct weft_program *table) {
  const struct weft_lower_options options = {.communicate = true, .unshard_window = 3};
  struct weft_error error;
  struct weft_program *program = NULL;
  if (weft_lower(NULL, table, &options, &program, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return program;
}

static struct weft_program *dry_run(const struct weft_program *program) {
  struct weft_error error;
  struct weft_program *out = NULL;
  if (weft_dry_run(NULL, program, &out, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  return out;
}

static void expect_run(const char *in, const char *expected) {
  struct weft_program *program = csv_program(in);
  struct weft_program *out = dry_run(program);
  char *text = csv_text(out);
  assert_string_equal(text, expected);
  free(text);
  weft_program_destroy(out);
  weft_program_destroy(program);
}

/* Expects `in` to get stuck with each of the parts in the message. */
static void expect_stuck(const char *in, const char *const *parts) {
  struct weft_program *program = csv_program(in);
  struct weft_program *out = NULL;
  struct weft_error error;
  assert_int_equal(weft_dry_run(NULL, program, &out, &error), WEFT_ERR_INVALID);
  assert_null(out);
  for (; *parts != NULL; parts++) {
    if (strstr(error.message, *parts) == NULL) {
      fail_msg("\"%s\" does not say \"%s\"", error.message, *parts);
    }
  }
  weft_program_destroy(program);
}

/* Whether `out` is `in` with bubbles put in, and without bubbles at row ends. */
static void assert_only_bubbles_added(const struct weft_program *in,
                                      const struct weft_program *out) {
  assert_int_equal(in->rank_count, out->rank_count);
  for (uint32_t rank = 0; rank < in->rank_count; rank++) {
    uint64_t i = in->row_begin[rank];
    for (uint64_t o = out->row_begin[rank]; o < out->row_begin[rank + 1]; o++) {
      while (i < in->row_begin[rank + 1] && in->actions[i].op == WEFT_OP_IDLE) {
        i++;
      }
      if (out->actions[o].op != WEFT_OP_IDLE) {
        assert_true(i < in->row_begin[rank + 1]);
        assert_memory_equal(&out->actions[o], &in->actions[i++], sizeof *in->actions);
      } else {
        assert_true(o + 1 < out->row_begin[rank + 1]);
      }
    }
    while (i < in->row_begin[rank + 1] && in->actions[i].op == WEFT_OP_IDLE) {
      i++;
    }
    assert_int_equal(i, in->row_begin[rank + 1]);
  }
}

static void check_run(const struct weft_program *program) {
  struct weft_program *out = dry_run(program);
  assert_only_bubbles_added(program, out);
  weft_program_destroy(out);
}

static void check_golden_sim(const char *stem) {
  char name[256];
  (void)snprintf(name, sizeof name, "%s.compute.csv", stem);
  struct weft_program *table = csv_golden(name);
  struct weft_program *program = communicate(table);
  struct weft_program *out = dry_run(program);
  (void)snprintf(name, sizeof name, "tests/golden/%s.sim.csv", stem);
  char *expected = csv_read_file(name);
  char *text = csv_text(out);
  if (strcmp(text, expected) != 0) {
    fail_msg("%s differs", name);
  }
  free(text);
  free(expected);
  weft_program_destroy(out);
  weft_program_destroy(program);
  weft_program_destroy(table);
}

static void test_golden_sims(void **state) {
  (void)state;
  assert_int_equal(csv_each_golden(".sim.csv", check_golden_sim), 88);
}

/* The dry run drops bubbles and puts the same ones back. */
static void check_fixed_point(const char *stem) {
  char name[256];
  (void)snprintf(name, sizeof name, "%s.sim.csv", stem);
  struct weft_program *program = csv_golden(name);
  struct weft_program *out = dry_run(program);
  assert_true(weft_program_equal(program, out));
  weft_program_destroy(out);
  weft_program_destroy(program);
}

static void test_golden_sims_are_fixed_points(void **state) {
  (void)state;
  assert_int_equal(csv_each_golden(".sim.csv", check_fixed_point), 88);
}

/* PyTorch's own simulation rejects these: UNSHARD, REDUCE_GRAD, overlaps. */
static void check_golden_program(const char *stem) {
  char name[256];
  (void)snprintf(name, sizeof name, "%s.comms.csv", stem);
  struct weft_program *program = csv_golden(name);
  check_run(program);
  weft_program_destroy(program);
}

static void test_golden_programs(void **state) {
  (void)state;
  assert_int_equal(csv_each_golden(".comms.csv", check_golden_program), 99);
}

static void check_schedule(const char *name, uint32_t ranks, uint32_t microbatches) {
  const struct weft_shape shape = {.ranks = ranks, .microbatches = microbatches};
  struct weft_program *table = NULL;
  const enum weft_status status = weft_generate(NULL, name, &shape, &table, NULL);
  if (status == WEFT_ERR_USAGE) {
    return; /* a limit of the recipe */
  }
  assert_int_equal(status, WEFT_OK);
  if (table->level == WEFT_LEVEL_COMPUTE) { /* ReorderedB is a program already */
    struct weft_program *program = communicate(table);
    weft_program_destroy(table);
    table = program;
  }
  check_run(table);
  weft_program_destroy(table);
}

/* Every schedule there is, the fixed tables too. */
static void test_every_schedule(void **state) {
  (void)state;
  for (size_t i = 0; i < weft_schedule_count(); i++) {
    for (uint32_t ranks = 1; ranks <= 8; ranks++) {
      for (uint32_t microbatches = 1; microbatches <= 18; microbatches++) {
        check_schedule(weft_schedule_at(i)->name, ranks, microbatches);
      }
    }
  }
}

/* PyTorch's _simulate_comms_compute, line by line: every rank is asked in both
 * sweeps, and what is done is searched in a list per rank. */
enum { PEER_RANKS = 4, PEER_CELLS = 64 };

struct peer {
  const struct weft_program *in;
  uint32_t rank_of[16];
  struct weft_action done[PEER_RANKS][PEER_CELLS];
  size_t done_count[PEER_RANKS];
  uint64_t next[PEER_RANKS];
  struct weft_action rows[PEER_RANKS][PEER_CELLS * PEER_CELLS];
  uint64_t row_sizes[PEER_RANKS];
};

static bool peer_did(const struct peer *peer, int stage_of_rank, enum weft_op op, int stage,
                     uint32_t microbatch) {
  if (stage_of_rank < 0 || stage_of_rank >= (int)peer->in->stage_count || stage < 0 ||
      peer->rank_of[stage_of_rank] == WEFT_RANK_NONE) {
    return false;
  }
  const uint32_t rank = peer->rank_of[stage_of_rank];
  for (size_t i = 0; i < peer->done_count[rank]; i++) {
    const struct weft_action done = peer->done[rank][i];
    if (done.op == op && done.stage == stage && done.microbatch == microbatch) {
      return true;
    }
  }
  return false;
}

static bool peer_ready(const struct peer *peer, struct weft_action action) {
  const int s = action.stage;
  const uint32_t mb = action.microbatch;
  switch (action.op) {
    case WEFT_OP_F:
      return s == 0 || peer_did(peer, s, WEFT_OP_RECV_F, s, mb) ||
             peer_did(peer, s, WEFT_OP_F, s - 1, mb);
    case WEFT_OP_B:
    case WEFT_OP_I:
      return s + 1 == (int)peer->in->stage_count || peer_did(peer, s, WEFT_OP_RECV_B, s, mb) ||
             peer_did(peer, s, WEFT_OP_I, s + 1, mb) || peer_did(peer, s, WEFT_OP_B, s + 1, mb);
    case WEFT_OP_SEND_F: return peer_did(peer, s, WEFT_OP_F, s, mb);
    case WEFT_OP_RECV_F: return peer_did(peer, s - 1, WEFT_OP_SEND_F, s - 1, mb);
    case WEFT_OP_SEND_B:
      return peer_did(peer, s, WEFT_OP_I, s, mb) || peer_did(peer, s, WEFT_OP_B, s, mb);
    case WEFT_OP_RECV_B: return peer_did(peer, s + 1, WEFT_OP_SEND_B, s + 1, mb);
    default: return true;
  }
}

/* Runs the rank's next cell if it is ready. */
static bool peer_try(struct peer *peer, uint32_t rank) {
  const struct weft_action *cell = &peer->in->actions[peer->next[rank]];
  const uint32_t records = 1u + cell->parts;
  for (uint32_t i = 0; i < records; i++) {
    if (!peer_ready(peer, cell[i])) {
      return false;
    }
  }
  for (uint32_t i = 0; i < records; i++) {
    peer->done[rank][peer->done_count[rank]++] = cell[i];
    peer->rows[rank][peer->row_sizes[rank]++] = cell[i];
  }
  peer->next[rank] += records;
  return true;
}

static bool peer_step(struct peer *peer) {
  bool progress = false;
  bool waits[PEER_RANKS] = {false};
  for (uint32_t rank = 0; rank < peer->in->rank_count; rank++) {
    if (peer->next[rank] < peer->in->row_begin[rank + 1]) {
      waits[rank] = !peer_try(peer, rank);
      progress |= !waits[rank];
    }
  }
  for (uint32_t rank = 0; rank < peer->in->rank_count; rank++) {
    if (waits[rank] && !peer_try(peer, rank)) {
      peer->rows[rank][peer->row_sizes[rank]++] = (struct weft_action){.op = WEFT_OP_IDLE};
    }
  }
  return progress;
}

static bool peer_is_live(const struct peer *peer) {
  for (uint32_t rank = 0; rank < peer->in->rank_count; rank++) {
    if (peer->next[rank] < peer->in->row_begin[rank + 1]) {
      return true;
    }
  }
  return false;
}

/* The dry run of a program without bubbles, or NULL when it gets stuck. */
static struct weft_program *peer_run(const struct weft_program *in) {
  static struct peer peer;
  static struct weft_action flat[PEER_RANKS * PEER_CELLS * PEER_CELLS];
  memset(&peer, 0, sizeof peer);
  peer.in = in;
  (void)weft_placement_infer(in, peer.rank_of);
  memcpy(peer.next, in->row_begin, in->rank_count * sizeof *peer.next);
  while (peer_is_live(&peer)) {
    if (!peer_step(&peer)) {
      return NULL;
    }
  }
  size_t used = 0;
  for (uint32_t rank = 0; rank < in->rank_count; rank++) {
    memcpy(flat + used, peer.rows[rank], peer.row_sizes[rank] * sizeof *flat);
    used += peer.row_sizes[rank];
  }
  struct weft_program *out = NULL;
  assert_int_equal(weft_program_create(NULL, in->rank_count, peer.row_sizes, flat, &out, NULL),
                   WEFT_OK);
  return out;
}

/* A copy with one cell moved: within its row, or now and then to another rank. */
static struct weft_program *move_cell(const struct weft_program *program,
                                      struct weft_random *random) {
  struct weft_action flat[PEER_RANKS * PEER_CELLS];
  uint64_t row_sizes[PEER_RANKS] = {0};
  const uint32_t ranks = program->rank_count;
  const uint32_t from = weft_random_below(random, ranks);
  const uint32_t to = weft_random_below(random, 8) == 0 ? weft_random_below(random, ranks) : from;
  const uint32_t cell = weft_random_below(random, (uint32_t)weft_program_row_steps(program, from));
  const uint32_t place = weft_random_below(random, (uint32_t)weft_program_row_steps(program, to));
  const struct weft_action *moved = &program->actions[program->row_begin[from]];
  for (uint32_t i = 0; i < cell; i++) {
    moved += 1u + moved->parts;
  }
  size_t used = 0;
  for (uint32_t rank = 0; rank < ranks; rank++) {
    const size_t begin = used;
    uint32_t step = 0;
    for (uint64_t i = program->row_begin[rank]; i < program->row_begin[rank + 1]; step++) {
      const struct weft_action *action = &program->actions[i];
      const uint32_t records = 1u + action->parts;
      if (rank == to && step == place) {
        memcpy(flat + used, moved, (1u + moved->parts) * sizeof *flat);
        used += 1u + moved->parts;
      }
      if (action != moved) {
        memcpy(flat + used, action, records * sizeof *flat);
        used += records;
      }
      i += records;
    }
    row_sizes[rank] = used - begin;
  }
  struct weft_program *out = NULL;
  assert_int_equal(weft_program_create(NULL, ranks, row_sizes, flat, &out, NULL), WEFT_OK);
  return out;
}

/* A copy with two neighbouring cells, if they are single ones, made an overlap:
 * a SEND or RECV in one makes the order within a step matter. */
static struct weft_program *join_cells(const struct weft_program *program,
                                       struct weft_random *random) {
  struct weft_action flat[PEER_RANKS * PEER_CELLS];
  uint64_t row_sizes[PEER_RANKS] = {0};
  const uint32_t rank = weft_random_below(random, program->rank_count);
  const uint64_t begin = program->row_begin[rank];
  const uint64_t size = program->row_begin[rank + 1] - begin;
  const uint64_t at = begin + weft_random_below(random, (uint32_t)size);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    row_sizes[r] = program->row_begin[r + 1] - program->row_begin[r];
  }
  memcpy(flat, program->actions, at * sizeof *flat);
  flat[at] = (struct weft_action){.op = WEFT_OP_OVERLAP_F_B, .parts = 2};
  memcpy(flat + at + 1, program->actions + at, (program->action_count - at) * sizeof *flat);
  row_sizes[rank]++;
  struct weft_program *out = NULL;
  if (weft_program_create(NULL, program->rank_count, row_sizes, flat, &out, NULL) != WEFT_OK) {
    return move_cell(program, random); /* an overlap is there already, or the row's end */
  }
  return out;
}

static bool same_as_peer(const struct weft_program *program) {
  struct weft_program *expected = peer_run(program);
  struct weft_program *out = NULL;
  const enum weft_status status = weft_dry_run(NULL, program, &out, NULL);
  assert_int_equal(status, expected != NULL ? WEFT_OK : WEFT_ERR_INVALID);
  assert_true(expected == NULL || weft_program_equal(out, expected));
  weft_program_destroy(out);
  weft_program_destroy(expected);
  return expected != NULL;
}

static struct weft_program *change(const struct weft_program *program, struct weft_random *random) {
  return weft_random_below(random, 3) == 0 ? join_cells(program, random)
                                           : move_cell(program, random);
}

/* A copy with one to three changes. */
static struct weft_program *scramble(const struct weft_program *program,
                                     struct weft_random *random) {
  struct weft_program *scrambled = change(program, random);
  for (uint32_t more = weft_random_below(random, 3); more > 0; more--) {
    struct weft_program *changed = change(scrambled, random);
    weft_program_destroy(scrambled);
    scrambled = changed;
  }
  return scrambled;
}

static void test_scrambled_programs_as_pytorch(void **state) {
  (void)state;
  static const char *const names[] = {
      "1F1B_p3_v1_m3.comms.csv", "GPipe_p4_v1_m3.comms.csv", "Interleaved1F1B_p2_v2_m2.comms.csv",
      "ZBVZeroBubble_p3_v2_m3.comms.csv", "DualPipeV_p2_v2_m4.comms.csv"};
  enum { ROUNDS = 4000 };
  struct weft_random random = {.state = 11};
  unsigned done = 0;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    struct weft_program *program = csv_golden(names[i]);
    assert_true(same_as_peer(program));
    for (unsigned round = 0; round < ROUNDS; round++) {
      struct weft_program *scrambled = scramble(program, &random);
      done += same_as_peer(scrambled);
      weft_program_destroy(scrambled);
    }
    weft_program_destroy(program);
  }
  assert_in_range(done, ROUNDS, 4 * ROUNDS); /* both kinds were there */
}

static void test_waiting_ranks_get_bubbles(void **state) {
  (void)state;
  expect_run(
      "0F0,0SEND_F0,0RECV_B0,0B0\n"
      "1RECV_F0,1F0,1B0,1SEND_B0\n",
      "0F0,0SEND_F0,,,0RECV_B0,0B0\n"
      ",1RECV_F0,1F0,1B0,1SEND_B0\n");
}

/* Rank 0 is asked before rank 1, so only the second sweep can put its RECV into
 * the step of the SEND. */
static void test_second_sweep_fills_a_bubble(void **state) {
  (void)state;
  expect_run(
      "1RECV_F0,1F0\n"
      "0F0,0SEND_F0\n",
      ",1RECV_F0,1F0\n"
      "0F0,0SEND_F0\n");
  /* Ranks 1 and 0 depend on each other's filled cells: only ascending order counts. */
  expect_run(
      "2RECV_F0,2F0\n"
      "1RECV_F0,1F0,1SEND_F0\n"
      "0F0,0SEND_F0\n",
      ",,,2RECV_F0,2F0\n"
      ",1RECV_F0,1F0,1SEND_F0\n"
      "0F0,0SEND_F0\n");
}

static void test_bubbles_of_the_input_are_dropped(void **state) {
  (void)state;
  expect_run(",0F0,,,0SEND_F0,,\n,,,\n1RECV_F0,,1F0,\n", "0F0,0SEND_F0\n\"\"\n,1RECV_F0,1F0\n");
}

static void test_empty_programs(void **state) {
  (void)state;
  expect_run("\"\"\n\"\"\n", "\"\"\n\"\"\n");
  expect_run(",,\n", "\"\"\n");
}

static void test_stages_of_one_rank_need_no_transfer(void **state) {
  (void)state;
  expect_run("0F0,1F0,1I0,0B0,1W0\n", "0F0,1F0,1I0,0B0,1W0\n");
}

static void test_shard_actions_are_always_ready(void **state) {
  (void)state;
  expect_run(
      "0UNSHARD,0F0,0SEND_F0,0RESHARD,0REDUCE_GRAD\n"
      "1UNSHARD,1RECV_F0,1F0,1RESHARD\n",
      "0UNSHARD,0F0,0SEND_F0,0RESHARD,0REDUCE_GRAD\n"
      "1UNSHARD,,1RECV_F0,1F0,1RESHARD\n");
}

static void test_overlap_is_one_cell_and_needs_all_parts(void **state) {
  (void)state;
  expect_run(
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0\n"
      "1RECV_F0,1F0,1RECV_F1,(1F1;1B0)OVERLAP_F_B,1SEND_B0\n",
      "0F0,0SEND_F0,0F1,0SEND_F1,,0RECV_B0,0B0\n"
      ",1RECV_F0,1F0,1RECV_F1,(1F1;1B0)OVERLAP_F_B,1SEND_B0\n");
}

static void test_table_without_transfers(void **state) {
  (void)state;
  struct weft_program *table = csv_program("0F0,0B0\n1F0,1B0\n");
  struct weft_program *out = NULL;
  struct weft_error error;
  assert_int_equal(weft_dry_run(NULL, table, &out, &error), WEFT_ERR_INVALID);
  assert_non_null(strstr(error.hint, "lower it first"));
  weft_program_destroy(table);
}

static void test_stuck_names_rank_step_action_and_cause(void **state) {
  (void)state;
  expect_stuck(
      "0RECV_B0,0F0,0SEND_F0\n"
      "1RECV_F0,1F0,,1B0,1SEND_B0\n",
      (const char *const[]){"after 0 steps",
                            "rank 0, step 0: 0RECV_B0 waits for 1SEND_B0 (rank 1, step 4)",
                            "rank 1, step 0: 1RECV_F0 waits for 0SEND_F0 (rank 0, step 2)", NULL});
}

static void test_stuck_on_something_missing(void **state) {
  (void)state;
  expect_stuck("0F0\n1RECV_F0,1F0\n",
               (const char *const[]){"1RECV_F0 waits for 0SEND_F0 (nowhere in the program)", NULL});
  expect_stuck("0F0,0SEND_F0\n1F0\n",
               (const char *const[]){"1F0 waits for 1RECV_F0 (nowhere in the program)", NULL});
  expect_stuck("0F0,0RECV_F0\n",
               (const char *const[]){"0RECV_F0 waits for a stage that does not exist", NULL});
  expect_stuck("0SEND_F0,0F0\n",
               (const char *const[]){"0SEND_F0 waits for 0F0 (rank 0, step 1)", NULL});
  expect_stuck("0B0,1F0,1I0,0SEND_B7\n",
               (const char *const[]){"0B0 waits for 1I0 (rank 0, step 2)", NULL});
  expect_stuck("1F0\n0F0\n2F0,0SEND_F1\n", (const char *const[]){"rank 2", "rank 0", NULL});
}

/* Stage 1 belongs to rank 1, the first that computes it; rank 2 computes with
 * what rank 1 has received, and has to be asked in each step. */
static void test_split_stage(void **state) {
  (void)state;
  expect_run(
      "0F0,0F1,0SEND_F0\n"
      "1RECV_F0,1F0\n"
      "1F0,1B0\n",
      "0F0,0F1,0SEND_F0\n"
      ",,1RECV_F0,1F0\n"
      ",,1F0,1B0\n");
}

/* A RECV on a rank that does not own the stage brings the data to the wrong place. */
static void test_stuck_on_the_wrong_rank(void **state) {
  (void)state;
  expect_stuck("0F0,0SEND_F0\n1F0\n1RECV_F0\n",
               (const char *const[]){"1F0 waits for 1RECV_F0 (rank 2, step 0)", NULL});
}

static void test_stuck_overlap_names_the_part(void **state) {
  (void)state;
  expect_stuck("0F0,(0F1;0B0)OVERLAP_F_B,0SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
               (const char *const[]){"rank 0, step 1: (0F1;0B0)OVERLAP_F_B waits for 0RECV_B0 "
                                     "(nowhere in the program)",
                                     "rank 1, step 0", NULL});
}

static void test_stuck_with_many_ranks_stays_short(void **state) {
  (void)state;
  struct weft_text text = {.allocator = NULL};
  for (unsigned i = 1; i <= 100; i++) {
    weft_text_addf(&text, "%uRECV_F0,%uF0\n", i, i);
  }
  expect_stuck(text.data, (const char *const[]){"and 97 more ranks wait", NULL});
  weft_text_finish(&text);
}

/* A kilobyte must not take more than 8 MiB, whatever its numbers. Gives the
 * message, "" for none. */
static const char *run_in_8_mib(const char *text) {
  static struct weft_error error;
  struct test_memory memory;
  struct weft_program *program = csv_program(text);
  struct weft_program *out = NULL;
  error = (struct weft_error){.status = WEFT_OK};
  test_memory_init(&memory);
  (void)weft_dry_run(&memory.allocator, program, &out, &error);
  assert_true(memory.bytes_peak <= 8u << 20);
  weft_program_destroy(out);
  weft_program_destroy(program);
  assert_int_equal(memory.blocks, 0);
  return error.message;
}

static void test_sparse_programs_are_refused(void **state) {
  (void)state;
  assert_non_null(strstr(run_in_8_mib("0F16777215\n65535B0\n"), "too sparse"));
  assert_non_null(strstr(run_in_8_mib("0F65700\n"), "too sparse"));
  assert_string_equal(run_in_8_mib("0F65535\n"), "");
  assert_non_null(strstr(run_in_8_mib("65535F0\n"), "65535F0 waits for 65535RECV_F0"));
}

static void test_long_bubbles_stay_small(void **state) {
  (void)state;
  struct weft_text text = {.allocator = NULL};
  weft_text_add(&text, "0F0");
  for (unsigned i = 0; i < 100; i++) {
    weft_text_add(&text, ",0F0");
  }
  weft_text_add(&text, ",0SEND_F0\n");
  for (unsigned i = 0; i < 60; i++) {
    weft_text_add(&text, "1RECV_F0\n");
  }
  assert_true(text.size <= 1024);
  assert_string_equal(run_in_8_mib(text.data), "");
  weft_text_finish(&text);
}

/* One microbatch through 65,536 ranks: rank r idles for 2r steps, which would be
 * more cells than a program may have. */
static void test_too_many_bubbles(void **state) {
  (void)state;
  uint64_t *row_sizes = calloc(WEFT_RANKS_MAX, sizeof *row_sizes);
  struct weft_action *actions = calloc(WEFT_RANKS_MAX * (size_t)3, sizeof *actions);
  if (row_sizes == NULL || actions == NULL) {
    abort();
  }
  size_t used = 0;
  for (uint32_t rank = 0; rank < WEFT_RANKS_MAX; rank++) {
    static const uint8_t ops[] = {WEFT_OP_RECV_F, WEFT_OP_F, WEFT_OP_SEND_F};
    for (size_t i = rank == 0; i < (rank + 1 < WEFT_RANKS_MAX ? 3 : 2); i++) {
      actions[used++] = (struct weft_action){.op = ops[i], .stage = (uint16_t)rank};
      row_sizes[rank]++;
    }
  }
  struct weft_program *program = NULL, *out = NULL;
  struct weft_error error;
  assert_int_equal(weft_program_create(NULL, WEFT_RANKS_MAX, row_sizes, actions, &program, &error),
                   WEFT_OK);
  assert_int_equal(weft_dry_run(NULL, program, &out, &error), WEFT_ERR_LIMIT);
  assert_non_null(strstr(error.message, "268435456"));
  assert_null(out);
  weft_program_destroy(program);
  free(actions);
  free(row_sizes);
}

static void test_every_failing_allocation(void **state) {
  (void)state;
  struct weft_program *program = csv_golden("DualPipeV_p4_v2_m8.comms.csv");
  enum weft_status status = WEFT_ERR_MEMORY;
  uint64_t fail_at = 0;
  while (status == WEFT_ERR_MEMORY) {
    struct test_memory memory;
    struct weft_program *out = NULL;
    struct weft_error error;
    test_memory_init(&memory);
    memory.fail_at = ++fail_at;
    status = weft_dry_run(&memory.allocator, program, &out, &error);
    assert_true(status == WEFT_OK || (status == WEFT_ERR_MEMORY && out == NULL));
    assert_true(status == WEFT_OK || error.status == status);
    weft_program_destroy(out);
    assert_int_equal(memory.blocks, 0);
    assert_int_equal(memory.bytes, 0);
  }
  assert_true(fail_at > 4);
  weft_program_destroy(program);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_golden_sims),
      cmocka_unit_test(test_golden_sims_are_fixed_points),
      cmocka_unit_test(test_golden_programs),
      cmocka_unit_test(test_every_schedule),
      cmocka_unit_test(test_scrambled_programs_as_pytorch),
      cmocka_unit_test(test_waiting_ranks_get_bubbles),
      cmocka_unit_test(test_second_sweep_fills_a_bubble),
      cmocka_unit_test(test_bubbles_of_the_input_are_dropped),
      cmocka_unit_test(test_empty_programs),
      cmocka_unit_test(test_stages_of_one_rank_need_no_transfer),
      cmocka_unit_test(test_shard_actions_are_always_ready),
      cmocka_unit_test(test_overlap_is_one_cell_and_needs_all_parts),
      cmocka_unit_test(test_table_without_transfers),
      cmocka_unit_test(test_stuck_names_rank_step_action_and_cause),
      cmocka_unit_test(test_stuck_on_something_missing),
      cmocka_unit_test(test_split_stage),
      cmocka_unit_test(test_stuck_on_the_wrong_rank),
      cmocka_unit_test(test_stuck_overlap_names_the_part),
      cmocka_unit_test(test_stuck_with_many_ranks_stays_short),
      cmocka_unit_test(test_sparse_programs_are_refused),
      cmocka_unit_test(test_long_bubbles_stay_small),
      cmocka_unit_test(test_too_many_bubbles),
      cmocka_unit_test(test_every_failing_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
