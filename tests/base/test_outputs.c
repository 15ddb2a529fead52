/* What base.h says of every function with an output: after a failure it is as it was before. Each
 * function that makes an object is called with memory that runs out at each allocation in turn, and
 * with input that it refuses. */
#include <assert.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/comm.h>
#include <weft/compare.h>
#include <weft/run.h>
#include <weft/source.h>
#include <weft/spec.h>
#include <weft/target.h>
#include <weft/weft.h>

#include "support_memory.h"

/* What the calls take; made once. */
static struct weft_program *table, *lowered;
static struct weft_costs *costs;
static const struct weft_edge edges[] = {{.from = 0, .to = 1}};

typedef enum weft_status call(const struct weft_allocator *allocator, bool good, void **out,
                              struct weft_error *error);

/* A call that gives back what it made. */
#define CALL(type, function, destroy, ...)                                                   \
  static enum weft_status call_##function(const struct weft_allocator *allocator, bool good, \
                                          void **out, struct weft_error *error) {            \
    struct type *made = *out;                                                                \
    const enum weft_status status = function(__VA_ARGS__, &made, error);                     \
    *out = made;                                                                             \
    if (status == WEFT_OK) {                                                                 \
      destroy(made);                                                                         \
    }                                                                                        \
    return status;                                                                           \
  }

#define TEXT(good_text) allocator, good ? (good_text) : "?", strlen(good ? (good_text) : "?"), "x"
#define SHAPE(p) (&(const struct weft_shape){.ranks = (p), .stages_per_rank = 1, .microbatches = 4})
static const struct weft_action one[] = {{.op = WEFT_OP_F}};

CALL(weft_program, weft_generate, weft_program_destroy, allocator, "1F1B", SHAPE(good ? 2 : 0))
CALL(weft_program, weft_program_create, weft_program_destroy, allocator,
     good ? 1 : WEFT_RANKS_MAX + 1, (const uint64_t[]){1}, one)
CALL(weft_program, weft_program_parse, weft_program_destroy, TEXT("0F0,0B0\n1F0,1B0\n"))
CALL(weft_program, weft_lower, weft_program_destroy, allocator, good ? table : lowered, NULL)
CALL(weft_program, weft_lower_transfers, weft_program_destroy, allocator, good ? table : lowered)
CALL(weft_program, weft_table_for_pytorch, weft_program_destroy, allocator, good ? table : lowered)
CALL(weft_program, weft_dry_run, weft_program_destroy, allocator, good ? lowered : NULL)
CALL(weft_program, weft_source_forward_only, weft_program_destroy, allocator, good ? table : NULL,
     4, NULL)
CALL(weft_program, weft_source_named, weft_program_destroy,
     &(struct weft_named_source){
         .allocator = allocator, .schedule = good ? "1F1B" : "?", .ranks = 2},
     4, true)
CALL(weft_program, weft_source_fixed, weft_program_destroy,
     &(struct weft_fixed_source){.allocator = allocator, .program = lowered}, good ? 4 : 5, true)
CALL(weft_graph, weft_graph_create, weft_graph_destroy, allocator, good ? 2 : 1, edges, 1, NULL)
CALL(weft_graph, weft_graph_parse, weft_graph_destroy,
     TEXT("{\"schema\": \"weft-graph/1\", \"stages\": 2, \"edges\": [{\"from\": 0, \"to\": 1}]}"))
CALL(weft_costs, weft_costs_create, weft_costs_destroy, allocator, good ? 2 : 0)
CALL(weft_costs, weft_costs_parse, weft_costs_destroy,
     TEXT("{\"schema\": \"weft-costs/1\", \"stages\": [{\"f\": 2}]}"))
CALL(weft_links, weft_links_create, weft_links_destroy, allocator, good ? lowered : NULL)
CALL(weft_diff, weft_diff_create, weft_diff_destroy, allocator, table, good ? lowered : NULL, 5)
CALL(weft_report, weft_verify, weft_report_destroy, allocator, good ? lowered : NULL, NULL)
CALL(weft_simulation, weft_simulate, weft_simulation_destroy, allocator, good ? lowered : NULL,
     costs, NULL)
CALL(weft_comparison, weft_compare, weft_comparison_destroy, allocator,
     &(const struct weft_compare_request){.ranks = 2,
                                          .stages_per_rank = 1,
                                          .microbatches = good ? 4 : 0,
                                          .costs = costs,
                                          .memory_limit = 1e9})
CALL(weft_target, weft_target, weft_target_destroy, allocator,
     &(const struct weft_target_request){
         .kind = WEFT_TARGET_PYTORCH, .table = good ? table : lowered, .file = "x"})
CALL(weft_comm, weft_comm_open, weft_comm_close, allocator, good ? "loopback" : "?",
     &(const struct weft_comm_options){.rank_count = 2})

static const struct {
  const char *name;
  call *run;
} calls[] = {
#define ENTRY(function) \
  { #function, call_##function }
    ENTRY(weft_generate),        ENTRY(weft_program_create),
    ENTRY(weft_program_parse),   ENTRY(weft_lower),
    ENTRY(weft_lower_transfers), ENTRY(weft_table_for_pytorch),
    ENTRY(weft_dry_run),         ENTRY(weft_source_forward_only),
    ENTRY(weft_source_named),    ENTRY(weft_source_fixed),
    ENTRY(weft_graph_create),    ENTRY(weft_graph_parse),
    ENTRY(weft_costs_create),    ENTRY(weft_costs_parse),
    ENTRY(weft_links_create),    ENTRY(weft_diff_create),
    ENTRY(weft_verify),          ENTRY(weft_simulate),
    ENTRY(weft_compare),         ENTRY(weft_target),
    ENTRY(weft_comm_open),
};

static void outputs_are_as_they_were_after_a_failure(void **state) {
  (void)state;
  char mark;
  for (size_t k = 0; k < sizeof calls / sizeof calls[0]; k++) {
    struct test_memory memory;
    enum weft_status status = WEFT_ERR_MEMORY;
    for (uint64_t fail_at = 1; status != WEFT_OK; fail_at++) {
      void *out = &mark;
      test_memory_init(&memory);
      memory.fail_at = fail_at;
      status = calls[k].run(&memory.allocator, true, &out, NULL);
      if (status != WEFT_OK && (status != WEFT_ERR_MEMORY || out != &mark)) {
        fail_msg("%s, allocation %d fails: status %d, output %s", calls[k].name, (int)fail_at,
                 (int)status, out == &mark ? "kept" : "changed");
      }
      assert_int_equal(memory.blocks, 0);
    }
    void *out = &mark;
    test_memory_init(&memory);
    status = calls[k].run(&memory.allocator, false, &out, NULL);
    if (status >= 0 || out != &mark) {
      fail_msg("%s: status %d, output %s", calls[k].name, (int)status,
               out == &mark ? "kept" : "changed");
    }
    assert_int_equal(memory.blocks, 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(outputs_are_as_they_were_after_a_failure),
  };
  assert(weft_generate(NULL, "1F1B", SHAPE(2), &table, NULL) == WEFT_OK);
  assert(weft_lower(NULL, table, NULL, &lowered, NULL) == WEFT_OK);
  assert(weft_costs_create(NULL, 1, &costs, NULL) == WEFT_OK);
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  weft_costs_destroy(costs);
  weft_program_destroy(lowered);
  weft_program_destroy(table);
  return failed;
}
