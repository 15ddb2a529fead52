/* Collectives by their plan: members in one thread exchange what the plan says, round by round, and
 * end with what a plain loop over the members computes, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include <weft/support.h>

#include "comm/group_plan.h"

enum { MEMBERS_MAX = 5, FLOATS_MAX = 64 };

struct member {
  struct weft_collective collective;
  struct weft_group_plan plan;
  float from[MEMBERS_MAX * FLOATS_MAX], to[MEMBERS_MAX * FLOATS_MAX];
  unsigned char scratch[MEMBERS_MAX * FLOATS_MAX * sizeof(float)];
};

static void add_up(const struct weft_group_plan *plan) {
  const struct weft_group_sum range = weft_group_plan_sum(plan);
  for (uint64_t i = 0; i < range.count; i++) {
    float sum = 0;
    for (uint32_t m = 0; m < plan->size; m++) {
      const unsigned char *from = m == plan->member ? range.own : weft_group_plan_part(plan, m);
      float part;
      memcpy(&part, from + i * sizeof part, sizeof part);
      sum = m == 0 ? part : sum + part;
    }
    memcpy(range.to + i * sizeof sum, &sum, sizeof sum);
  }
}

/* Each member sends in its round what the others expect in theirs. */
static void exchange(struct member *members, uint32_t size) {
  for (uint32_t to = 0; to < size; to++) {
    for (uint32_t from = 0; from < size; from++) {
      if (from != to) {
        const struct weft_group_transfer sent = weft_group_plan_transfer(&members[from].plan, to);
        const struct weft_group_transfer got = weft_group_plan_transfer(&members[to].plan, from);
        assert_int_equal(sent.send_bytes, got.receive_bytes);
        memcpy(got.to, sent.from, sent.send_bytes);
      }
    }
  }
}

static uint32_t run_members(struct member *members, uint32_t size) {
  uint32_t rounds = 0;
  for (uint32_t m = 0; m < size; m++) {
    weft_group_plan_begin(&members[m].plan);
  }
  for (;;) {
    const bool more = weft_group_plan_has_round(&members[0].plan);
    for (uint32_t m = 1; m < size; m++) {
      assert_int_equal(weft_group_plan_has_round(&members[m].plan), more);
    }
    if (!more) {
      return rounds;
    }
    exchange(members, size);
    for (uint32_t m = 0; m < size; m++) {
      if (!members[m].plan.gathers) {
        add_up(&members[m].plan);
      }
      weft_group_plan_end_round(&members[m].plan);
    }
    rounds++;
  }
}

/* What is at place i of the whole when all is done. */
static float expect(const struct member *members, uint32_t size, enum weft_collective_kind kind,
                    uint32_t count, uint32_t i) {
  if (kind == WEFT_ALL_GATHER) {
    return members[i / count].from[i % count];
  }
  float sum = members[0].from[i];
  for (uint32_t m = 1; m < size; m++) {
    sum += members[m].from[i];
  }
  return sum;
}

static void check(struct member *members, uint32_t size, enum weft_collective_kind kind,
                  uint32_t count, uint32_t piece) {
  const uint32_t all = kind == WEFT_ALL_REDUCE ? count : size * count;
  struct weft_random random = {.state = size * 1000 + count};
  for (uint32_t m = 0; m < size; m++) {
    struct member *member = &members[m];
    for (uint32_t i = 0; i < MEMBERS_MAX * FLOATS_MAX; i++) {
      member->from[i] = (float)weft_random_share(&random);
      member->to[i] = -1;
    }
    if (kind == WEFT_ALL_GATHER) { /* a member's own share lies in its place */
      memcpy(member->to + m * count, member->from, count * sizeof(float));
    }
    member->collective = (struct weft_collective){
        .kind = kind, .from = member->from, .to = member->to, .bytes = count * sizeof(float)};
    member->plan = (struct weft_group_plan){.collective = &member->collective,
                                            .size = size,
                                            .member = m,
                                            .scratch = member->scratch,
                                            .reduce_bytes = piece * sizeof(float),
                                            .gather_bytes = piece % 2 ? UINT64_MAX : 12};
  }
  const uint32_t rounds = run_members(members, size);
  assert_true(count == 0 ? rounds == 0 : rounds > 0);
  for (uint32_t m = 0; m < size; m++) {
    const uint32_t first = kind == WEFT_REDUCE_SCATTER ? m * count : 0;
    const uint32_t own = kind == WEFT_REDUCE_SCATTER ? count : all;
    for (uint32_t i = 0; i < own; i++) {
      const float expected = expect(members, size, kind, count, first + i);
      assert_memory_equal(&members[m].to[i], &expected, sizeof expected);
    }
    assert_true(members[m].to[own] == -1);
  }
}

static void members_end_with_what_a_loop_computes(void **state) {
  (void)state;
  static const enum weft_collective_kind kinds[] = {WEFT_ALL_GATHER, WEFT_REDUCE_SCATTER,
                                                    WEFT_ALL_REDUCE};
  static const uint32_t pieces[] = {1, 2, 7, FLOATS_MAX};
  struct member *members = calloc(MEMBERS_MAX, sizeof *members);
  assert_non_null(members);
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(kinds); k++) {
    for (uint32_t size = 1; size <= MEMBERS_MAX; size++) {
      for (uint32_t count = 0; count <= FLOATS_MAX - 1; count += 1 + count / 3) {
        for (size_t p = 0; p < WEFT_ARRAY_LENGTH(pieces); p++) {
          check(members, size, kinds[k], count, pieces[p]);
        }
      }
    }
  }
  free(members);
}

static void shares_are_the_whole(void **state) {
  (void)state;
  for (uint32_t size = 1; size <= 9; size++) {
    for (uint64_t bytes = 0; bytes <= 80; bytes += sizeof(float)) {
      uint64_t end = 0;
      for (uint32_t m = 0; m < size; m++) {
        const struct weft_span share = weft_group_share(WEFT_ALL_REDUCE, bytes, size, m);
        assert_int_equal(share.begin, end);
        assert_int_equal(share.bytes % sizeof(float), 0);
        end = share.begin + share.bytes;
      }
      assert_int_equal(end, bytes);
    }
  }
}

static void what_no_group_does_is_said(void **state) {
  (void)state;
  struct weft_error error;
  struct weft_collective one = {.kind = (enum weft_collective_kind)7, .bytes = 8};
  assert_int_equal(weft_group_check(&one, 2, &error), WEFT_ERR_USAGE);
  assert_string_equal(error.message, "a collective of kind 7, which does not exist");
  one = (struct weft_collective){.kind = WEFT_REDUCE_SCATTER, .bytes = 6};
  assert_int_equal(weft_group_check(&one, 2, &error), WEFT_ERR_USAGE);
  assert_string_equal(error.message, "a reduce-scatter of 6 bytes, which are not whole floats");
  one = (struct weft_collective){.kind = WEFT_ALL_GATHER, .bytes = UINT64_MAX / 2};
  assert_int_equal(weft_group_check(&one, 2, &error), WEFT_ERR_USAGE);
  uint32_t member = 0;
  static const uint32_t ranks[] = {4, 2, 0}, twice[] = {1, 2, 1}, far[] = {1, 9};
  assert_int_equal(weft_group_find_member(NULL, 2, 5, 3, ranks, 3, &member, &error), WEFT_OK);
  assert_int_equal(member, 1);
  assert_int_equal(weft_group_find_member(NULL, 3, 5, 3, ranks, 3, &member, &error),
                   WEFT_ERR_USAGE);
  assert_string_equal(error.message, "rank 3 creates group 3 of 3 ranks and is none of them");
  assert_int_equal(weft_group_find_member(NULL, 1, 5, 3, twice, 3, &member, &error),
                   WEFT_ERR_USAGE);
  assert_string_equal(error.message, "group 3 has rank 1 again at place 2");
  assert_int_equal(weft_group_find_member(NULL, 1, 5, 3, far, 2, &member, &error), WEFT_ERR_USAGE);
  assert_string_equal(error.message, "group 3 has rank 9 in a world of 5");
}

static void the_queue_keeps_the_order(void **state) {
  (void)state;
  struct weft_group_queue queue = {.first = NULL};
  struct weft_collective a = {.bytes = 1}, b = {.bytes = 2}, c = {.bytes = 3};
  assert_true(weft_group_queue_add(&queue, &a));
  assert_false(weft_group_queue_add(&queue, &b));
  weft_group_queue_pop(&queue);
  assert_true(weft_group_is_done(&a) && !weft_group_is_done(&b));
  assert_false(weft_group_queue_add(&queue, &c));
  assert_ptr_equal(queue.first, &b);
  weft_group_queue_pop(&queue);
  weft_group_queue_pop(&queue);
  assert_true(queue.first == NULL && queue.last == NULL && weft_group_is_done(&c));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(members_end_with_what_a_loop_computes),
                                     cmocka_unit_test(shares_are_the_whole),
                                     cmocka_unit_test(what_no_group_does_is_said),
                                     cmocka_unit_test(the_queue_keeps_the_order)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
