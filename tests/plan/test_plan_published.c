/* The published rows of arXiv 2401.10241 (tables 5 and 9; one stage per rank): bubble rates with
 * memory for p, 1.5 p and 2 p microbatches, against the published ones for p and 2 p, and against
 * the bound. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include <weft/weft.h>

struct row {
  double hidden, heads; /* of the model */
  uint32_t ranks, microbatches;
  double f, i, w, hop;
  double one, two; /* published: ZB-1p, ZB-2p */
};

static const struct row rows[] = {
    {2304, 24, 8, 24, 18.522, 18.086, 9.337, 0.601, .1585, .0433},
    {2304, 24, 8, 32, 18.513, 18.086, 9.331, 0.626, .1242, .0039},
    {2304, 24, 8, 64, 18.546, 18.097, 9.321, 0.762, .0674, .0026},
    {4096, 32, 8, 24, 29.718, 29.444, 19.927, 0.527, .1323, .0029},
    {4096, 32, 8, 32, 29.802, 29.428, 19.530, 0.577, .1045, .0022},
    {4096, 32, 8, 64, 29.935, 29.621, 19.388, 0.535, .0554, .0010},
    {5120, 40, 16, 48, 11.347, 11.248, 8.132, 0.377, .1397, .0066},
    {5120, 40, 16, 64, 11.307, 11.254, 8.101, 0.379, .1088, .0054},
    {5120, 40, 16, 128, 11.325, 11.308, 8.109, 0.378, .0576, .0028},
    {6144, 48, 32, 96, 10.419, 10.207, 7.715, 0.408, .1421, .0038},
    {6144, 48, 32, 128, 10.408, 10.204, 7.703, 0.408, .1106, .0029},
    {6144, 48, 32, 256, 10.402, 10.248, 7.698, 0.460, .0594, .0018},
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROWS = 3 };
#else
enum { ROWS = sizeof rows / sizeof rows[0] };
#endif

struct rate {
  double found, bound;
  bool optimal;
};

static double bubble(const struct row *row, double span) {
  return 1 - row->microbatches * (row->f + row->i + row->w) / span;
}

static struct rate search(const struct row *row, double memory) {
  struct weft_search_request request = weft_search_request_default();
  struct weft_search_answer *answer = NULL;
  struct weft_simulation *simulation = NULL;
  struct weft_costs *costs = NULL;
  struct weft_error error;
  assert_int_equal(weft_costs_create(NULL, 1, &costs, NULL), WEFT_OK);
  costs->stages[0].f = row->f;
  costs->stages[0].i = row->i;
  costs->stages[0].w = row->w;
  costs->stages[0].b = row->i + row->w;
  /* a sequence of 1,024 */
  costs->stages[0].activation_after_i =
      32 * row->hidden / (34 * row->hidden + 5 * row->heads * 1024);
  costs->hop.latency = row->hop;
  request.ranks = row->ranks;
  request.microbatches = row->microbatches;
  request.stages_per_rank = 1;
  request.costs = costs;
  request.memory_limit = memory;
  request.objective = WEFT_OBJECTIVE_SPAN;
  request.threads = 2;
  if (weft_search(NULL, &request, &answer, &error) != WEFT_OK) {
    fail_msg("%s", error.message);
  }
  assert_int_equal(weft_simulate(NULL, answer->table, costs, NULL, &simulation, NULL), WEFT_OK);
  assert_true(simulation->span == answer->span);
  assert_true(simulation->peak_activation <= memory * (1 + 1e-8));
  const struct rate rate = {.found = bubble(row, answer->span),
                            .bound = bubble(row, answer->bound),
                            .optimal = answer->optimal};
  weft_simulation_destroy(simulation);
  weft_search_answer_destroy(answer);
  weft_costs_destroy(costs);
  return rate;
}

static void print(const struct rate *rate, const char *end) {
  print_message("   %.4f %.4f %c%s", rate->found, rate->bound, rate->optimal ? '*' : ' ', end);
}

static void rows_are_as_good_as_published(void **state) {
  (void)state;
  unsigned optimal = 0, optimal_half = 0;
  print_message(" p    m     1p: found, bound, * optimal   1.5p              2p\n");
  for (size_t n = 0; n < ROWS; n++) {
    const struct row *row = &rows[n];
    const struct rate one = search(row, row->ranks);
    const struct rate half = search(row, 1.5 * row->ranks);
    const struct rate two = search(row, 2.0 * row->ranks);
    print_message("%2u  %3u  ", row->ranks, row->microbatches);
    print(&one, "");
    print(&half, "");
    print(&two, "\n");
    assert_true(one.found < row->one + 0.00005);
    assert_true(two.found < row->two + 0.00005);
    assert_true(two.found - two.bound <= 0.002);
    optimal += one.optimal;
    optimal_half += half.optimal;
  }
  assert_int_equal(optimal, ROWS);
  assert_true(optimal_half + 1 >= ROWS);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_as_good_as_published)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
