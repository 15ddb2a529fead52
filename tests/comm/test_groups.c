/* Groups within a process: the cases that every transport passes (support_groups.h), on
 * threads and loopback, with and without fault injection around; then what is their own: no time
 * passes in virtual time, members that disagree or leave, groups that end while others
 * read, out of memory.
 * Also under ThreadSanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support_fault_injection.h"
#include "support_groups.h"
#include "support_memory.h"

enum { RANKS_MAX = 5 };

/* ---- Worlds ---- */

struct world {
  uint32_t rank_count;
  struct weft_comm *threads;  /* or */
  struct weft_comm *loopback; /* the other */
  struct weft_transport *inner[RANKS_MAX];
  bool has_faults;
  struct conformance_rank ranks[RANKS_MAX];
};

enum world_kind { THREADS, LOOPBACK, FAULTY_THREADS, FAULTY_LOOPBACK, KINDS };

static void open_world(struct world *world, enum world_kind kind, uint32_t rank_count,
                       uint64_t seed) {
  const struct weft_comm_options options = {
      .rank_count = rank_count, .seed = seed, .latency_ticks = 5};
  const struct weft_fault_options faults = {.seed = seed, .delay_max = 10};
  memset(world, 0, sizeof *world);
  world->rank_count = rank_count;
  world->has_faults = kind >= FAULTY_THREADS;
  if (kind % 2 == THREADS) {
    assert_int_equal(
        weft_comm_open(NULL, "threads", &(struct weft_comm_options){.rank_count = rank_count},
                       &world->threads, NULL),
        WEFT_OK);
  } else {
    assert_int_equal(weft_comm_open(NULL, "loopback", &options, &world->loopback, NULL), WEFT_OK);
  }
  for (uint32_t r = 0; r < rank_count; r++) {
    world->inner[r] = world->threads != NULL ? weft_comm_endpoint(world->threads, r)
                                             : weft_comm_endpoint(world->loopback, r);
    world->ranks[r].transport = world->inner[r];
    if (world->has_faults) {
      assert_int_equal(weft_fault_injector_create(NULL, world->inner[r], &faults,
                                                  &world->ranks[r].transport, NULL),
                       WEFT_OK);
    }
  }
}

static void close_world(struct world *world) {
  for (uint32_t r = 0; r < world->rank_count && world->has_faults; r++) {
    world->ranks[r].transport->ops->destroy(world->ranks[r].transport);
  }
  weft_comm_close(world->threads);
  weft_comm_close(world->loopback);
}

static void drive(struct world *world) {
  if (world->threads != NULL) {
    conformance_drive_run(world->threads, world->ranks, world->rank_count);
    return;
  }
  for (uint32_t r = 0; r < world->rank_count; r++) {
    weft_comm_wake(world->loopback, r); /* one case may end without a wait */
  }
  conformance_drive_steps(world->loopback, world->ranks, world->rank_count);
}

static struct weft_group *make_group(struct world *world, uint32_t rank, uint32_t id,
                                     uint32_t size) {
  const uint32_t ranks[RANKS_MAX] = {0, 1, 2, 3, 4};
  struct weft_transport *transport = world->ranks[rank].transport;
  struct weft_group *group = NULL;
  assert_int_equal(transport->ops->group(transport, id, ranks, size, NULL, &group, NULL), WEFT_OK);
  return group;
}

/* ---- Conformance ---- */

static void run_cases(enum world_kind kind, uint32_t rank_count, uint64_t seed) {
  struct world world;
  open_world(&world, kind, rank_count, seed);
  for (uint32_t k = 0; k < groups_case_count(); k++) {
    for (uint32_t r = 0; r < rank_count; r++) {
      groups_case_begin(k, &world.ranks[r]);
    }
    drive(&world);
    for (uint32_t r = 0; r < rank_count; r++) {
      if (world.ranks[r].status != WEFT_OK) {
        fail_msg("'%s' in a world of %u (%d), rank %u: %s", groups_case_name(k), rank_count,
                 (int)kind, r, world.ranks[r].error.message);
      }
    }
  }
  if (world.loopback != NULL) {
    assert_int_equal(conformance_now(world.loopback), 0); /* memory takes no time */
  }
  close_world(&world);
}

static void conformance(void **state) {
  (void)state;
  for (int kind = 0; kind < KINDS; kind++) {
    for (uint32_t p = 1; p <= RANKS_MAX; p++) {
      run_cases((enum world_kind)kind, p, p);
    }
  }
}

static void orders_of_ranks(void **state) {
  (void)state;
  for (uint64_t seed = 10; seed < 18; seed++) {
    run_cases(LOOPBACK, 2 + (uint32_t)(seed % 4), seed);
  }
}

static void failure(void **state) {
  (void)state;
  for (int round = 0; round < 5 * KINDS; round++) {
    for (uint32_t p = 2; p <= RANKS_MAX; p++) {
      struct world world;
      open_world(&world, (enum world_kind)(round % KINDS), p, (uint64_t)round);
      for (uint32_t r = 0; r < p; r++) {
        groups_failure_begin(&world.ranks[r]);
      }
      drive(&world);
      for (uint32_t r = 0; r < p; r++) {
        if (!groups_failure_is_right(&world.ranks[r])) {
          fail_msg("rank %u of %u (%d): %s", r, p, round % KINDS, world.ranks[r].error.message);
        }
      }
      close_world(&world);
    }
  }
}

/* ---- One thread for all ranks ---- */

static void fail_world(struct world *world, uint32_t rank) {
  const struct weft_failure said = {
      .rank = rank, .error = {.status = WEFT_ERR_IO, .message = "the disk is full"}};
  struct weft_transport *transport = world->ranks[rank].transport;
  (transport->ops->fail)(transport, &said);
}

/* test() and start() themselves say the agreed error, without progress(). */
static void failed_world(void **state) {
  (void)state;
  for (int kind = 0; kind < KINDS; kind++) {
    struct world world;
    struct weft_error error;
    float numbers[2] = {1, 2};
    open_world(&world, (enum world_kind)kind, 2, 1);
    struct weft_group *group = make_group(&world, 0, 7, 2);
    struct weft_collective sum = {
        .kind = WEFT_ALL_REDUCE, .from = numbers, .to = numbers, .bytes = sizeof numbers};
    struct weft_collective next = sum;
    assert_int_equal(group->ops->start(group, &sum, &error), WEFT_OK);
    assert_int_equal(group->ops->test(group, &sum, &error), WEFT_IN_PROGRESS);
    fail_world(&world, 1);
    assert_int_equal(group->ops->test(group, &sum, &error), WEFT_ERR_IO);
    assert_string_equal(error.message, "the disk is full");
    assert_int_equal(group->ops->test(group, &sum, &error), WEFT_ERR_IO);
    assert_int_equal(group->ops->start(group, &next, &error), WEFT_ERR_IO);
    struct weft_group *late = make_group(&world, 1, 7, 2);
    assert_int_equal(late->ops->start(late, &next, &error), WEFT_ERR_IO);
    group->ops->destroy(group);
    late->ops->destroy(late);
    close_world(&world);
  }
}

/* What is done stays done, whatever happens then. */
static void done_before_the_failure(void **state) {
  (void)state;
  struct world world;
  struct weft_group *groups[2];
  struct weft_collective sums[2];
  float numbers[2] = {1, 2};
  open_world(&world, LOOPBACK, 2, 1);
  for (uint32_t r = 0; r < 2; r++) {
    groups[r] = make_group(&world, r, 7, 2);
    sums[r] = (struct weft_collective){
        .kind = WEFT_ALL_REDUCE, .from = &numbers[r], .to = &numbers[r], .bytes = 4};
    assert_int_equal(groups[r]->ops->start(groups[r], &sums[r], NULL), WEFT_OK);
  }
  while (groups[0]->ops->test(groups[0], &sums[0], NULL) == WEFT_IN_PROGRESS) {
    (void)groups[1]->ops->test(groups[1], &sums[1], NULL);
  }
  assert_int_equal(groups[1]->ops->test(groups[1], &sums[1], NULL), WEFT_OK);
  fail_world(&world, 1);
  for (uint32_t r = 0; r < 2; r++) {
    assert_int_equal(groups[r]->ops->test(groups[r], &sums[r], NULL), WEFT_OK);
    assert_true(numbers[r] == 3.0f);
    groups[r]->ops->destroy(groups[r]);
  }
  close_world(&world);
}

/* A rank reads nobody's memory before all have arrived, and keeps its own until all
 * have read it. */
static void done_when_all_have_read(void **state) {
  (void)state;
  struct world world;
  struct weft_group *groups[3];
  struct weft_collective gathers[3];
  unsigned char own[3] = {11, 22, 33}, all[3][3] = {{0}};
  open_world(&world, LOOPBACK, 3, 1);
  for (uint32_t r = 0; r < 3; r++) {
    groups[r] = make_group(&world, r, 7, 3);
    gathers[r] = (struct weft_collective){
        .kind = WEFT_ALL_GATHER, .from = &own[r], .to = all[r], .bytes = 1};
  }
  for (uint32_t r = 0; r < 3; r++) {
    assert_int_equal(groups[0]->ops->start(groups[r], &gathers[r], NULL), WEFT_OK);
    if (r < 2) {
      assert_int_equal(groups[r]->ops->test(groups[r], &gathers[r], NULL), WEFT_IN_PROGRESS);
      assert_int_equal(all[r][0], 0);
    }
  }
  assert_int_equal(groups[0]->ops->test(groups[0], &gathers[0], NULL), WEFT_IN_PROGRESS);
  assert_int_equal(all[0][2], 33);
  assert_int_equal(groups[1]->ops->test(groups[1], &gathers[1], NULL), WEFT_IN_PROGRESS);
  assert_int_equal(groups[2]->ops->test(groups[2], &gathers[2], NULL), WEFT_OK);
  assert_int_equal(groups[1]->ops->test(groups[1], &gathers[1], NULL), WEFT_OK);
  assert_int_equal(groups[0]->ops->test(groups[0], &gathers[0], NULL), WEFT_OK);
  for (uint32_t r = 0; r < 3; r++) {
    assert_memory_equal(all[r], own, 3);
    groups[r]->ops->destroy(groups[r]);
  }
  close_world(&world);
}

static void members_that_disagree(void **state) {
  (void)state;
  struct world world;
  struct weft_group *groups[2];
  struct weft_collective sums[2];
  struct weft_error errors[2];
  float numbers[2][4] = {{0}};
  open_world(&world, LOOPBACK, 2, 1);
  for (uint32_t r = 0; r < 2; r++) {
    groups[r] = make_group(&world, r, 7, 2);
    sums[r] = (struct weft_collective){
        .kind = WEFT_ALL_REDUCE, .from = numbers[r], .to = numbers[r], .bytes = 8 + 4 * r};
    assert_int_equal(groups[r]->ops->start(groups[r], &sums[r], NULL), WEFT_OK);
  }
  for (uint32_t r = 0; r < 2; r++) {
    assert_int_equal(groups[r]->ops->test(groups[r], &sums[r], &errors[r]), WEFT_ERR_PROTOCOL);
    assert_string_equal(errors[r].message,
                        "in group 7 rank 0 starts an all-reduce of 8 bytes, and rank 1 an "
                        "all-reduce of 12");
  }
  groups[0]->ops->destroy(groups[0]);
  assert_int_equal(groups[1]->ops->test(groups[1], &sums[1], &errors[1]), WEFT_ERR_PROTOCOL);
  groups[1]->ops->destroy(groups[1]);
  close_world(&world);
}

static void member_that_leaves(void **state) {
  (void)state;
  struct world world;
  struct weft_group *groups[3];
  struct weft_collective sums[3];
  struct weft_error error;
  float numbers[3] = {1, 2, 3};
  open_world(&world, LOOPBACK, 3, 1);
  for (uint32_t r = 0; r < 3; r++) {
    groups[r] = make_group(&world, r, 7, 3);
    sums[r] = (struct weft_collective){
        .kind = WEFT_ALL_REDUCE, .from = &numbers[r], .to = &numbers[r], .bytes = 4};
    assert_int_equal(groups[r]->ops->start(groups[r], &sums[r], NULL), WEFT_OK);
  }
  groups[0]->ops->destroy(groups[0]);
  for (uint32_t r = 1; r < 3; r++) {
    assert_int_equal(groups[r]->ops->test(groups[r], &sums[r], &error), WEFT_ERR_PEER);
    assert_non_null(strstr(error.message, "a member of group 7"));
    assert_int_equal(groups[r]->ops->start(groups[r], &sums[r], &error), WEFT_ERR_PEER);
    groups[r]->ops->destroy(groups[r]);
  }
  close_world(&world);
}

static void ids(void **state) {
  (void)state;
  struct world world;
  struct weft_group *other = NULL;
  struct weft_error error;
  const uint32_t falling[] = {1, 0};
  open_world(&world, THREADS, 3, 1);
  struct weft_group *first = make_group(&world, 0, 64, 2);
  struct weft_group *collides = make_group(&world, 0, 128, 2); /* on the same list */
  struct weft_transport *zero = world.ranks[0].transport, *one = world.ranks[1].transport;
  assert_int_equal(zero->ops->group(zero, 64, falling, 2, NULL, &other, &error), WEFT_ERR_USAGE);
  assert_int_equal(one->ops->group(one, 64, falling, 2, NULL, &other, &error), WEFT_ERR_USAGE);
  assert_string_equal(error.message,
                      "rank 1 creates group 64 of 2 ranks, and others have created it of "
                      "2 or of other ones");
  const uint32_t rising[] = {0, 1};
  assert_int_equal(zero->ops->group(zero, 64, rising, 2, NULL, &other, &error), WEFT_ERR_USAGE);
  assert_string_equal(error.message, "rank 0 is in group 64 already");
  first->ops->destroy(first);
  first = make_group(&world, 0, 64, 2); /* once it is gone, the id is free */
  first->ops->destroy(first);
  collides->ops->destroy(collides);
  close_world(&world);
}

static void out_of_memory(void **state) {
  (void)state;
  const uint32_t ranks[] = {0, 1};
  uint64_t failures = 0;
  for (uint64_t fail_at = 1;; fail_at++) {
    struct test_memory memory;
    struct weft_comm *world = NULL;
    struct weft_group *group = NULL;
    test_memory_init(&memory);
    assert_int_equal(weft_comm_open(&memory.allocator, "threads",
                                    &(struct weft_comm_options){.rank_count = 2}, &world, NULL),
                     WEFT_OK);
    memory.fail_at = memory.calls + fail_at;
    struct weft_transport *transport = weft_comm_endpoint(world, 0);
    const enum weft_status status =
        transport->ops->group(transport, 1, ranks, 2, NULL, &group, NULL);
    memory.fail_at = 0;
    if (status == WEFT_OK) {
      group->ops->destroy(group);
    } else {
      assert_int_equal(status, WEFT_ERR_MEMORY);
      assert_null(group);
      failures++;
    }
    weft_comm_close(world);
    assert_int_equal(memory.blocks, 0);
    if (status == WEFT_OK) {
      break;
    }
  }
  assert_in_range(failures, 3, 10); /* marks, the group, the barrier */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(conformance),
      cmocka_unit_test(orders_of_ranks),
      cmocka_unit_test(failure),
      cmocka_unit_test(failed_world),
      cmocka_unit_test(done_before_the_failure),
      cmocka_unit_test(done_when_all_have_read),
      cmocka_unit_test(members_that_disagree),
      cmocka_unit_test(member_that_leaves),
      cmocka_unit_test(ids),
      cmocka_unit_test(out_of_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
