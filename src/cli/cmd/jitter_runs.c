/* Many simulations of one program with varied times, and the percentiles of their makespans. */
#include <assert.h>
#include <stdlib.h>

#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/report/sim_report.h"

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y ? 1 : 0;
}

/* The smallest of the makespans that `percent` of them do not exceed. */
static double percentile(const double *sorted, uint64_t count, uint64_t percent) {
  const uint64_t rank = (count * percent + 99) / 100;
  return sorted[rank > 0 ? rank - 1 : 0];
}

static void summarise(double *makespans, uint64_t runs, struct weft_cli_jitter *jitter) {
  qsort(makespans, (size_t)runs, sizeof makespans[0], compare_doubles);
  double sum = 0;
  for (uint64_t k = 0; k < runs; k++) {
    sum += makespans[k];
  }
  jitter->runs = runs;
  jitter->mean = sum / (double)runs;
  jitter->least = makespans[0];
  jitter->p50 = percentile(makespans, runs, 50);
  jitter->p90 = percentile(makespans, runs, 90);
  jitter->p99 = percentile(makespans, runs, 99);
  jitter->most = makespans[runs - 1];
}

int weft_cli_jitter_run(const struct weft_cli *cli, const struct weft_cli_costs *costs,
                        const char *name, uint64_t runs, struct weft_cli_jitter *jitter) {
  assert(cli != NULL && jitter != NULL);
  double *makespans = weft_array_allocate(cli->allocator, runs, sizeof *makespans);
  if (makespans == NULL) {
    return weft_cli_fail_memory(cli);
  }
  struct weft_sim_options options = costs->options;
  int status = WEFT_CLI_OK;
  for (uint64_t k = 0; k < runs && status == WEFT_CLI_OK; k++) {
    struct weft_error error;
    if (weft_makespan(cli->allocator, costs->program, costs->costs, &options, &makespans[k],
                      &error) < 0) {
      status = weft_cli_fail(cli, name, &error);
    }
    options.seed++;
  }
  if (status == WEFT_CLI_OK) {
    summarise(makespans, runs, jitter);
    jitter->share = options.jitter;
  }
  weft_array_free(cli->allocator, makespans, runs, sizeof *makespans);
  return status;
}
