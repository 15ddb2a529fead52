/* The GPUs of --device cuda; see gpus.h. */
#include "cli/gpus.h"

#include <assert.h>
#include <inttypes.h>

#include <weft/support.h>

#include "cli/io/error_message.h"

enum { GPUS_MAX = 64 };

/* Where each rank is a process: the one GPU of this rank. */
static enum weft_status choose_gpu(const struct weft_cli *cli, const struct weft_cli_job *job,
                                   uint32_t *gpus, struct weft_cuda_options *options,
                                   struct weft_error *error) {
  struct weft_comm_facts facts;
  struct weft_cuda_driver_info driver;
  weft_comm_facts(job->comm, &facts);
  if (options->gpus == NULL) {
    WEFT_TRY(weft_cuda_driver_info(&driver, error));
    gpus[0] = facts.rank_on_host % driver.gpu_count;
  } else {
    driver.gpu_count = options->gpu_count;
    gpus[0] = gpus[facts.rank_on_host % options->gpu_count];
  }
  if (facts.rank_on_host == 0 && driver.gpu_count > 1 && facts.ranks_on_host > driver.gpu_count) {
    weft_cli_print(cli, NULL, "note: %" PRIu32 " ranks share the %" PRIu32 " GPUs of this host",
                   facts.ranks_on_host, driver.gpu_count);
  }
  options->gpus = gpus;
  options->gpu_count = 1;
  options->first_rank = job->transport->rank;
  return WEFT_OK;
}

int weft_cli_open_gpus(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       const struct weft_cli_job *job, uint32_t rank_count,
                       struct weft_cuda **out) {
  assert(cli != NULL && arguments != NULL && out != NULL);
  uint32_t gpus[GPUS_MAX];
  struct weft_error error;
  struct weft_cuda_options options = {
      .partitions = (uint32_t)weft_cli_number(arguments, WEFT_CLI_OPTION_PARTITIONS, 0)};
  *out = NULL;
  if (!weft_cli_is_on_gpus(arguments)) {
    return WEFT_CLI_OK;
  }
  if (job != NULL && options.partitions > 0) {
    return weft_cli_usage(cli, "CUDA's MPS splits a GPU between processes, by its own settings",
                          "--partitions splits GPUs between ranks of one process; here each rank "
                          "is a process");
  }
  if (arguments->given[WEFT_CLI_OPTION_GPUS]) {
    const char *text = arguments->texts[WEFT_CLI_OPTION_GPUS];
    if (!weft_cli_read_numbers(text, INT32_MAX, gpus, GPUS_MAX, &options.gpu_count)) {
      return weft_cli_usage(cli, "--gpus 0,1,3",
                            "--gpus %s is not a list of numbers with commas between them",
                            weft_cli_quoted(text).text);
    }
    options.gpus = gpus;
  }
  if ((job != NULL && choose_gpu(cli, job, gpus, &options, &error) < 0) ||
      weft_cuda_open(cli->allocator, &options, job != NULL ? 1 : rank_count, out, &error) < 0) {
    return weft_cli_fail(cli, NULL, &error);
  }
  if ((job == NULL || job->transport->rank == 0) && weft_cuda_cache_check(&error) < 0) {
    weft_cli_print(cli, error.hint, "%s", error.message);
  }
  return WEFT_CLI_OK;
}
