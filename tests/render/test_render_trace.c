/* Chrome traces: the rules of the format (support_trace.h) for every schedule,
 * tables and programs, free and dear transfers; small cases by hand; what the
 * trace says agrees with the simulation; escaping, units, failing memory. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <weft/weft.h>

#include "support_csv.h"
#include "support_graph_timing.h"
#include "support_memory.h"
#include "support_trace.h"

enum { COMPUTE = 1 }; /* the tid of compute */

/* ---- Making traces ---- */

static struct weft_costs *costs_new(void) {
  struct weft_costs *costs = NULL;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, NULL), WEFT_OK);
  costs->of = WEFT_COSTS_OF_STAGE;
  return costs;
}

static struct weft_simulation *simulate(const struct weft_program *program,
                                        const struct weft_costs *costs) {
  struct weft_simulation *simulation = NULL;
  struct weft_error error;
  if (weft_simulate(NULL, program, costs, NULL, &simulation, &error) < 0) {
    fail_msg("%s", error.message);
  }
  return simulation;
}

static void render(const struct weft_simulation *simulation, const struct weft_costs *costs,
                   const char *name, struct weft_text *text) {
  const struct weft_picture picture = {.name = name, .simulation = simulation, .costs = costs};
  struct weft_error error;
  if (weft_render_trace(&picture, NULL, text, &error) < 0) {
    fail_msg("%s", error.message);
  }
}

/* Rendered, and found to follow the rules. */
static struct trace *trace_of(const struct weft_simulation *simulation,
                              const struct weft_costs *costs, const char *name) {
  struct weft_text text = {0};
  char complaint[256];
  render(simulation, costs, name, &text);
  struct trace *trace = trace_check(text.data, text.size, complaint, sizeof complaint);
  if (trace == NULL) {
    fail_msg("%s: %s", name, complaint);
  }
  weft_text_finish(&text);
  return trace;
}

static const struct trace_event *find_slice(const struct trace *trace, const char *name) {
  for (size_t i = 0; i < trace->count; i++) {
    if (trace->events[i].phase == 'X' && strcmp(trace->events[i].name, name) == 0) {
      return &trace->events[i];
    }
  }
  fail_msg("there is no %s", name);
  return NULL;
}

static double number_at(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  assert_true(json_is_number(value));
  return json_number_value(value);
}

static void expect_text(const json_t *object, const char *key, const char *expected) {
  const char *value = json_string_value(json_object_get(object, key));
  assert_non_null(value);
  assert_string_equal(value, expected);
}

/* ---- By hand ---- */

/* F = 1, B = 2 and transfers of 3:
 *     rank 0  0F0 0-1, 0F1 1-2, 0B0 10-12, 0B1 13-15
 *     rank 1  1F0 4-5, 1B0 5-7, 1F1 7-8, 1B1 8-10 */
static void test_table_by_hand(void **state) {
  (void)state;
  struct weft_program *program = csv_program("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  struct weft_costs *costs = costs_new();
  costs->hop.latency = 3;
  struct weft_simulation *simulation = simulate(program, costs);
  struct trace *trace = trace_of(simulation, costs, "by hand");

  const struct trace_event *slice = find_slice(trace, "PP:0B0");
  assert_int_equal(slice->pid, 0);
  assert_int_equal(slice->tid, COMPUTE);
  assert_int_equal(slice->begin, 10000000);
  assert_int_equal(slice->end, 12000000);
  assert_string_equal(slice->cat, "backward");
  assert_true(number_at(slice->args, "stage") == 0);
  assert_true(number_at(slice->args, "microbatch") == 0);
  assert_true(number_at(slice->args, "idle_before") == 8);
  expect_text(slice->args, "op", "B");
  expect_text(slice->args, "cause", "gradient");
  expect_text(slice->args, "waited_for", "1B0 on rank 1");

  slice = find_slice(trace, "PP:1F0");
  assert_int_equal(slice->begin, 4000000);
  assert_true(number_at(slice->args, "idle_before") == 4);
  expect_text(slice->args, "cause", "start");
  assert_null(json_object_get(find_slice(trace, "PP:1B0")->args, "idle_before"));

  /* 0F0 -> 1F0, 0F1 -> 1F1, and the gradients back. */
  size_t flows = 0;
  for (size_t i = 0; i < trace->count; i++) {
    const struct trace_event *event = &trace->events[i];
    if (event->phase == 's') {
      const struct trace_event *end = trace_other_end(trace, event);
      assert_int_equal(event->tid, COMPUTE);
      assert_int_equal(end->tid, COMPUTE);
      assert_int_equal(event->pid + end->pid, 1);
      const char *from = trace_around(trace, event->pid, COMPUTE, event->begin)->name;
      const char *to = trace_around(trace, end->pid, COMPUTE, end->begin)->name;
      assert_string_equal(from + 4, to + 4); /* "PP:0F1" and "PP:1F1" */
      flows++;
    }
  }
  assert_int_equal(flows, 4);
  trace_free(trace);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* A channel that a message occupies for 4, so the second one waits. */
static void test_program_by_hand(void **state) {
  (void)state;
  struct weft_program *program = csv_program(
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RESHARD\n"
      "1RECV_F0,1RECV_F1,1F0,1F1\n");
  struct weft_costs *costs = costs_new();
  costs->hop = (struct weft_hop_costs){.latency = 1, .bytes = 8, .bytes_per_unit = 2};
  costs->stages[0].unshard = 2;
  struct weft_simulation *simulation = simulate(program, costs);
  struct trace *trace = trace_of(simulation, costs, "by hand");

  const struct trace_event *first = find_slice(trace, "PP:0SEND_F0");
  const struct trace_event *second = find_slice(trace, "PP:0SEND_F1");
  assert_int_equal(first->begin, 3000000);
  assert_int_equal(first->end, 8000000);
  assert_int_equal(second->begin, 7000000); /* while the first is still under way */
  assert_int_equal(second->end, 12000000);
  assert_int_equal(first->pid, 0);
  assert_int_not_equal(first->tid, COMPUTE);
  assert_int_not_equal(first->tid, second->tid);
  assert_string_equal(first->cat, "send");
  assert_string_equal(find_slice(trace, "PP:1RECV_F1")->cat, "receive");
  assert_int_equal(find_slice(trace, "PP:1RECV_F1")->pid, 1);
  assert_string_equal(find_slice(trace, "PP:0UNSHARD")->cat, "collective");
  assert_int_equal(find_slice(trace, "PP:0UNSHARD")->end, 2000000);
  assert_int_equal(find_slice(trace, "PP:0UNSHARD")->tid, find_slice(trace, "PP:0RESHARD")->tid);
  /* 9 to 12: the message was made at 4, and its transfer waited until 7. */
  expect_text(find_slice(trace, "PP:1F1")->args, "cause", "forward");
  expect_text(find_slice(trace, "PP:1F1")->args, "waited_for", "1RECV_F1 on rank 1");
  trace_free(trace);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* An overlap is one slice with the name of the cell. */
static void test_overlap(void **state) {
  (void)state;
  struct weft_program *program = csv_program("0F0,1F0,(0F1;1B0)OVERLAP_F_B,1F1,1B1,0B0,0B1\n");
  struct weft_costs *costs = costs_new();
  struct weft_simulation *simulation = simulate(program, costs);
  struct trace *trace = trace_of(simulation, costs, "overlap");
  const struct trace_event *slice = find_slice(trace, "PP:(0F1;1B0)OVERLAP_F_B");
  assert_int_equal(slice->begin, 2000000);
  assert_int_equal(slice->end, 5000000);
  assert_string_equal(slice->cat, "overlap");
  size_t slices = 0;
  for (size_t i = 0; i < trace->count; i++) {
    slices += trace->events[i].phase == 'X';
  }
  assert_int_equal(slices, 7);
  trace_free(trace);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* ---- Every schedule ---- */

static bool is_group_or_compute(const char *cat) {
  return strncmp(cat, "backward", 8) == 0 || strcmp(cat, "forward") == 0 ||
         strcmp(cat, "overlap") == 0;
}

struct rank_facts {
  double idle[WEFT_IDLE_CAUSES]; /* sums of idle_before */
  double busy;                   /* compute, in milliseconds */
  double peak;                   /* of the counter */
  double last;                   /* its last value */
};

static void note_gap(const struct trace_event *event, struct rank_facts *facts) {
  if (json_object_get(event->args, "idle_before") == NULL) {
    return;
  }
  const char *cause = json_string_value(json_object_get(event->args, "cause"));
  const double idle = number_at(event->args, "idle_before");
  assert_non_null(cause);
  assert_true(idle > 0);
  for (unsigned i = 0; i < WEFT_IDLE_CAUSES; i++) {
    if (strcmp(cause, weft_idle_cause_name(i)) == 0) {
      facts->idle[i] += idle;
      return;
    }
  }
  fail_msg("cause %s", cause);
}

static void note_event(const struct trace_event *event, struct rank_facts *facts) {
  if (event->phase == 'X' && is_group_or_compute(event->cat)) {
    assert_int_equal(event->tid, COMPUTE);
    facts->busy += (double)(event->end - event->begin) / 1e6;
    note_gap(event, facts);
  } else if (event->phase == 'X') {
    assert_int_not_equal(event->tid, COMPUTE);
    note_gap(event, facts); /* a collective ends the idle time at the start */
  } else if (event->phase == 'C') {
    facts->last = number_at(event->args, "activation");
    facts->peak = fmax(facts->peak, facts->last);
  }
}

static void check_rank(const struct weft_simulation *simulation, uint32_t rank,
                       const struct rank_facts *facts, bool trains) {
  const struct weft_rank_times *times = &simulation->ranks[rank];
  double idle = 0;
  for (unsigned i = 0; i < WEFT_IDLE_CAUSES; i++) {
    idle += facts->idle[i];
  }
  assert_true(fabs(facts->busy - times->busy) < 1e-3);
  assert_true(fabs(idle + times->idle_by_cause[WEFT_IDLE_END] - times->idle) < 1e-6);
  assert_true(fabs(facts->idle[WEFT_IDLE_START] - times->idle_by_cause[WEFT_IDLE_START]) < 1e-6);
  assert_true(fabs(facts->peak - times->peak_activation) < 1e-6);
  assert_true(!trains || fabs(facts->last) < 1e-9);
}

/* What the trace says is what the simulation found. */
static void check_facts(const struct trace *trace, const struct weft_simulation *simulation,
                        bool trains) {
  const struct weft_program *program = simulation->program;
  struct rank_facts *facts = calloc(program->rank_count, sizeof *facts);
  uint64_t sends = 0, cells = 0, flows = 0, slices = 0;
  assert_non_null(facts);
  for (uint64_t i = 0; i < program->action_count; i++) {
    i += program->actions[i].op == WEFT_OP_OVERLAP_F_B ? program->actions[i].parts : 0u;
    cells += program->actions[i].op != WEFT_OP_IDLE;
    sends += weft_op_info(program->actions[i].op)->kind == WEFT_KIND_SEND;
  }
  for (size_t i = 0; i < trace->count; i++) {
    const struct trace_event *event = &trace->events[i];
    assert_true(event->pid < program->rank_count);
    slices += event->phase == 'X';
    flows += event->phase == 's';
    note_event(event, &facts[event->pid]);
  }
  assert_int_equal(slices, cells);
  assert_true(sends == 0 || flows == sends);
  assert_true(flows > 0 || program->rank_count == 1);
  for (uint32_t r = 0; r < program->rank_count; r++) {
    check_rank(simulation, r, &facts[r], trains);
  }
  free(facts);
}

static void check_program(const struct weft_program *program, const char *name, bool trains) {
  static const struct weft_hop_costs hops[] = {{0, 0, 0}, {0.5, 0, 0}, {0.25, 3, 2}, {7, 1, 8}};
  for (size_t i = 0; i < sizeof hops / sizeof hops[0]; i++) {
    struct weft_costs *costs = costs_new();
    costs->hop = hops[i];
    costs->stages[0].unshard = i == 2 ? 0.75 : 0;
    costs->stages[0].reduce_grad = i == 2 ? 1.25 : 0;
    costs->stages[0].activation_after_i = 0.5;
    struct weft_simulation *simulation = simulate(program, costs);
    struct trace *trace = trace_of(simulation, costs, name);
    check_facts(trace, simulation, trains);
    trace_free(trace);
    weft_simulation_destroy(simulation);
    weft_costs_destroy(costs);
  }
}

static void check_schedule(const struct weft_schedule_info *info, const struct weft_shape *shape) {
  struct weft_program *table = NULL, *program = NULL;
  struct weft_error error;
  if (weft_generate(NULL, info->name, shape, &table, &error) < 0) {
    assert_int_equal(error.status, WEFT_ERR_USAGE); /* a limit of the recipe */
    return;
  }
  if (weft_lower(NULL, table, NULL, &program, &error) < 0) {
    fail_msg("%s", error.message);
  }
  check_program(table, info->name, info->trains);
  check_program(program, info->name, info->trains);
  weft_program_destroy(program);
  weft_program_destroy(table);
}

static void test_every_schedule(void **state) {
  (void)state;
  static const struct weft_shape shapes[] = {
      {.ranks = 1, .microbatches = 3},
      {.ranks = 2, .microbatches = 4},
      {.ranks = 4, .microbatches = 8},
      {.ranks = 5, .microbatches = 12},
  };
  for (size_t k = 0; k < weft_schedule_count(); k++) {
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
      check_schedule(weft_schedule_at(k), &shapes[i]);
    }
  }
}

/* Every edge has tracks of its own, and every input of an action its own flow. */
static void test_random_graphs(void **state) {
  (void)state;
  for (uint64_t seed = 0; seed < 60; seed++) {
    struct weft_random random = {.state = seed};
    struct weft_graph *graph = any_graph(&random);
    struct weft_program *table = any_graph_table(&random, graph), *program = NULL;
    struct weft_error error;
    assert_int_equal(weft_lower(NULL, table, NULL, &program, &error), WEFT_OK);
    bool crosses = false, every_rank = true;
    for (uint32_t r = 0; r < table->rank_count; r++) {
      every_rank = every_rank && table->row_begin[r] < table->row_begin[r + 1];
    }
    for (uint64_t i = 0; i < program->action_count; i++) {
      crosses = crosses || weft_op_info(program->actions[i].op)->kind == WEFT_KIND_SEND;
    }
    if (crosses && every_rank) {
      check_program(table, "table", true);
      check_program(program, "program", true);
    }
    weft_program_destroy(program);
    weft_program_destroy(table);
    weft_graph_destroy(graph);
  }
}

static void test_graph_by_hand(void **state) {
  (void)state;
  struct weft_program *program = csv_program(
      "#graph,0>1,0>2,1>2\n0F0,0SEND_F0,0SEND_F0>2,0RECV_B0,0RECV_B0<2,0B0\n"
      "1RECV_F0,1F0,2RECV_F0<0,2F0,2B0,2SEND_B0>0,1B0,1SEND_B0\n");
  struct weft_costs *costs = costs_new();
  struct weft_simulation *simulation = simulate(program, costs);
  struct weft_picture picture = {"graph", simulation, costs, NULL};
  struct weft_text text = {0};
  struct weft_error error;
  assert_int_equal(weft_render_trace(&picture, NULL, &text, &error), WEFT_OK);
  assert_non_null(strstr(text.data, "\"name\":\"send activation 0 to 2\""));
  assert_non_null(strstr(text.data, "\"name\":\"receive gradient 2 to 0\""));
  assert_non_null(strstr(text.data, "\"microbatch\":0,\"other_stage\":2"));
  assert_non_null(strstr(text.data, "\"waited_for\":\"0RECV_B0 on rank 0 over the edge 0>1\""));
  weft_text_finish(&text);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* Without waits for channels or parameters, forward and gradient are what the
 * simulation makes of them too. */
static void test_causes_agree(void **state) {
  (void)state;
  static const char *const names[] = {"1F1B", "Interleaved1F1B", "ZBVZeroBubble", "DualPipeV"};
  const struct weft_shape shape = {.ranks = 4, .microbatches = 8};
  for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
    struct weft_program *table = NULL;
    assert_int_equal(weft_generate(NULL, names[k], &shape, &table, NULL), WEFT_OK);
    struct weft_costs *costs = costs_new();
    costs->hop.latency = 0.5;
    struct weft_simulation *simulation = simulate(table, costs);
    struct trace *trace = trace_of(simulation, costs, names[k]);
    struct rank_facts facts[4] = {0};
    for (size_t i = 0; i < trace->count; i++) {
      note_event(&trace->events[i], &facts[trace->events[i].pid]);
    }
    for (uint32_t r = 0; r < 4; r++) {
      for (unsigned cause = WEFT_IDLE_START; cause < WEFT_IDLE_END; cause++) {
        assert_true(fabs(facts[r].idle[cause] - simulation->ranks[r].idle_by_cause[cause]) < 1e-9);
      }
    }
    trace_free(trace);
    weft_simulation_destroy(simulation);
    weft_costs_destroy(costs);
    weft_program_destroy(table);
  }
}

/* ---- Text from outside ---- */

static void test_escaping(void **state) {
  (void)state;
  static const char name[] = "a\"b\\c\nd\x01\x7f\xff</script><!--\xe2\x82\xac.csv";
  struct weft_program *program = csv_program("0F0,0B0\n");
  struct weft_costs *costs = costs_new();
  (void)snprintf(costs->unit, sizeof costs->unit, "%s", "\"},\n\xc3");
  struct weft_simulation *simulation = simulate(program, costs);
  struct weft_text text = {0};
  char complaint[256];
  render(simulation, costs, name, &text);
  assert_null(strstr(text.data, "</script"));
  assert_null(strstr(text.data, "<!--"));
  struct trace *trace = trace_check(text.data, text.size, complaint, sizeof complaint);
  assert_non_null(trace);
  const json_t *other = json_object_get(trace->root, "otherData");
  expect_text(other, "name", "a\"b\\c\\x0ad\\x01\\x7f\\xff</script><!--\xe2\x82\xac.csv");
  expect_text(other, "unit", "\"},\\x0a\\xc3");
  expect_text(other, "note", "times are of a stage");
  trace_free(trace);
  weft_text_finish(&text);

  trace = trace_of(simulation, costs, NULL); /* nameless */
  expect_text(json_object_get(trace->root, "otherData"), "name", "");
  trace_free(trace);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* ---- Time ---- */

static void test_units(void **state) {
  (void)state;
  static const struct {
    const char *unit;
    int64_t ns;
  } units[] = {{"s", 1500000000}, {"ms", 1500000}, {"us", 1500},
               {"ns", 2},         {"", 1500000},   {"fortnight", 1500000}};
  struct weft_program *program = csv_program("0F0,0B0\n");
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    struct weft_costs *costs = costs_new();
    (void)snprintf(costs->unit, sizeof costs->unit, "%s", units[i].unit);
    costs->stages[0].f = 1.5;
    struct weft_simulation *simulation = simulate(program, costs);
    struct trace *trace = trace_of(simulation, costs, units[i].unit);
    assert_int_equal(find_slice(trace, "PP:0F0")->end, units[i].ns);
    assert_int_equal(find_slice(trace, "PP:0B0")->begin, units[i].ns);
    trace_free(trace);
    weft_simulation_destroy(simulation);
    weft_costs_destroy(costs);
  }
  weft_program_destroy(program);
}

static void test_too_long(void **state) {
  (void)state;
  struct weft_program *program = csv_program("0F0,0B0\n");
  struct weft_costs *costs = costs_new();
  (void)snprintf(costs->unit, sizeof costs->unit, "%s", "s");
  costs->stages[0].f = 1e12;
  struct weft_simulation *simulation = simulate(program, costs);
  const struct weft_picture picture = {.simulation = simulation, .costs = costs};
  struct weft_text text = {0};
  struct weft_error error;
  assert_int_equal(weft_render_trace(&picture, NULL, &text, &error), WEFT_ERR_LIMIT);
  assert_non_null(strstr(error.message, "nanoseconds"));
  assert_true(error.hint[0] != '\0');
  assert_int_equal(text.size, 0);
  weft_text_finish(&text);
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* ---- Memory ---- */

static void test_failing_allocation(void **state) {
  (void)state;
  struct weft_program *program = csv_program(
      "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  struct weft_costs *costs = costs_new();
  struct weft_simulation *simulation = simulate(program, costs);
  const struct weft_picture picture = {.name = "x", .simulation = simulation, .costs = costs};
  for (uint64_t n = 1;; n++) {
    struct test_memory memory;
    struct weft_error error = {0};
    test_memory_init(&memory);
    memory.fail_at = n;
    struct weft_text text = {.allocator = &memory.allocator};
    const enum weft_status status = weft_render_trace(&picture, NULL, &text, &error);
    weft_text_finish(&text);
    assert_int_equal(memory.blocks, 0);
    if (memory.calls < n) {
      assert_int_equal(status, WEFT_OK);
      assert_true(n > 5);
      break;
    }
    assert_int_equal(status, WEFT_ERR_MEMORY);
    assert_int_equal(error.status, WEFT_ERR_MEMORY);
  }
  weft_simulation_destroy(simulation);
  weft_costs_destroy(costs);
  weft_program_destroy(program);
}

/* ---- The checker ---- */

#define NAMES                                                                               \
  "{\"ph\":\"M\",\"pid\":0,\"tid\":1,\"name\":\"process_name\",\"args\":{\"name\":\"r\"}}," \
  "{\"ph\":\"M\",\"pid\":0,\"tid\":1,\"name\":\"thread_name\",\"args\":{\"name\":\"t\"}}"
#define SLICE(ts, dur)                                                                         \
  ",{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"name\":\"x\",\"cat\":\"c\",\"ts\":" ts ",\"dur\":" dur \
  ",\"args\":{}}"
#define FLOW(ph, id, ts)                                                                          \
  ",{\"ph\":\"" ph "\",\"pid\":0,\"tid\":1,\"name\":\"d\",\"cat\":\"c\",\"ts\":" ts ",\"id\":" id \
  ",\"bp\":\"e\"}"
#define COUNTER(ts) \
  ",{\"ph\":\"C\",\"pid\":0,\"tid\":1,\"name\":\"m\",\"ts\":" ts ",\"args\":{\"a\":1}}"

/* What is wrong is called wrong: a checker that never complains checks nothing. */
static void test_checker(void **state) {
  (void)state;
  static const struct {
    const char *events;
    const char *complaint; /* NULL: fine */
  } cases[] = {
      {NAMES SLICE("0", "2") SLICE("2", "1") FLOW("s", "1", "0.5") FLOW("f", "1", "2"), NULL},
      {NAMES COUNTER("0") COUNTER("1"), NULL},
      {NAMES SLICE("0", "2") SLICE("1.5", "1"), "overlap"},
      {NAMES SLICE("0", "2") SLICE("0.5", "1"), "overlap"},
      {NAMES SLICE("0", "2") FLOW("s", "1", "0.5"), "odd number"},
      {NAMES SLICE("0", "2") FLOW("s", "1", "1") FLOW("f", "2", "1"), "no other end"},
      {NAMES SLICE("0", "2") FLOW("s", "1", "1") FLOW("s", "1", "1"), "no other end"},
      {NAMES SLICE("0", "2") FLOW("s", "1", "1") FLOW("f", "1", "0"), "do not fit"},
      {NAMES SLICE("0", "2") FLOW("f", "1", "1") FLOW("s", "1", "1"), "out of order"},
      {NAMES FLOW("s", "1", "0") SLICE("0", "2") FLOW("f", "1", "1"), "out of order"},
      {NAMES SLICE("0", "2") FLOW("s", "1", "1") FLOW("f", "1", "3"), "lies in no slice"},
      {NAMES SLICE("0", "2") FLOW("s", "1", "0") FLOW("f", "1", "1") FLOW("s", "1", "0")
           FLOW("f", "1", "1"),
       "no other end"},
      {NAMES COUNTER("1") COUNTER("1"), "stands still"},
      {NAMES COUNTER("1") COUNTER("0"), "stands still"},
      {NAMES "," NAMES, "names"},
      {"{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"name\":\"x\",\"cat\":\"c\",\"ts\":0,\"dur\":1,"
       "\"args\":{}}",
       "0 names"},
      {NAMES ",{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"name\":\"x\",\"cat\":\"c\",\"ts\":0}", "dur"},
      {NAMES ",{\"ph\":\"X\",\"tid\":1,\"name\":\"x\"}", "pid"},
      {NAMES ",{\"ph\":\"B\",\"pid\":0,\"tid\":1,\"name\":\"x\"}", "phase B"},
      {NAMES ",{\"ph\":\"C\",\"pid\":0,\"tid\":0,\"name\":\"x\"}", "tid 0"},
      {NAMES "," SLICE("0", "1"), "line 1"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[2048], complaint[256] = "";
    (void)snprintf(text, sizeof text, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[%s]}",
                   cases[i].events);
    struct trace *trace = trace_check(text, strlen(text), complaint, sizeof complaint);
    if ((trace == NULL) != (cases[i].complaint != NULL) ||
        (trace == NULL && strstr(complaint, cases[i].complaint) == NULL)) {
      fail_msg("case %zu: \"%s\"", i, complaint);
    }
    trace_free(trace);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_table_by_hand),
      cmocka_unit_test(test_program_by_hand),
      cmocka_unit_test(test_overlap),
      cmocka_unit_test(test_every_schedule),
      cmocka_unit_test(test_random_graphs),
      cmocka_unit_test(test_graph_by_hand),
      cmocka_unit_test(test_causes_agree),
      cmocka_unit_test(test_escaping),
      cmocka_unit_test(test_units),
      cmocka_unit_test(test_too_long),
      cmocka_unit_test(test_failing_allocation),
      cmocka_unit_test(test_checker),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
