/* `weft doctor`: what this build and machine have, and whether it works. */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <weft/cuda.h>
#include <weft/launch.h>
#include <weft/support.h>
#include <weft/weft.h>

#include "cli/cmd/commands.h"
#include "cli/cmd/doctor_mpi.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"

/* The result of checking one schedule; the message is empty when it works. */
struct check {
  const struct weft_schedule_info *info;
  uint64_t actions;
  char message[512];
};

enum { CHECKS_MAX = 64 };

/* Everything that is reported. */
struct findings {
  struct check checks[CHECKS_MAX];
  size_t check_count;
  bool ok;
  uint64_t processors, memory_bytes;
  const struct weft_cli_mpi_findings *mpi;
};

static const char *blas(void) {
  char path[PATH_MAX];
  return weft_cli_process_sibling("weft-train", path, sizeof path) != NULL
             ? "OpenBLAS, for 'weft train'"
             : "none; 'weft train' needs libopenblas-dev when it is built";
}

/* The libraries that transports load at run time. */
static void add_libraries(struct weft_text *text) {
  const struct weft_comm_info *info;
  for (uint32_t k = 0; (info = weft_comm_transport(k)) != NULL; k++) {
    struct weft_error error;
    int version = 0;
    if (info->library == NULL) {
      continue;
    }
    if (weft_comm_library_version(info, &version, &error) == WEFT_OK) {
      weft_text_addf(text, ", %s %d.%d.%d", info->library, version / 10000, version / 100 % 100,
                     version % 100);
    } else {
      weft_text_addf(text, ", no %s (%s)", info->library, error.message);
    }
  }
}

/* "driver for CUDA 13.0, NVRTC 13.0, NCCL 2.28.7; GPU 0: NVIDIA H200, 132 SMs, ..."; or why not. */
static void add_cuda(struct weft_text *text) {
  struct weft_cuda_driver_info driver;
  struct weft_error error;
  if (weft_cuda_driver_info(&driver, &error) < 0) {
    weft_text_addf(text, "none: %s", error.message);
    return;
  }
  weft_text_addf(text, "driver for CUDA %d.%d, ", driver.version / 1000,
                 driver.version % 1000 / 10);
  if (driver.nvrtc_version > 0) {
    weft_text_addf(text, "NVRTC %d.%d", driver.nvrtc_version / 1000,
                   driver.nvrtc_version % 1000 / 10);
  } else {
    weft_text_add(text, "no NVRTC, which the built-in kernels need");
  }
  add_libraries(text);
  if (weft_cuda_cache_check(&error) < 0) {
    weft_text_addf(text, "; %s", error.message);
  }
  for (uint32_t k = 0; k < driver.gpu_count; k++) {
    struct weft_cuda_gpu_info gpu;
    if (weft_cuda_gpu_info(k, &gpu, &error) == WEFT_OK) {
      weft_text_addf(text, "; GPU %" PRIu32 ": %s, %" PRIu32 " SMs, %.0f GiB, capability %u.%u%s",
                     k, gpu.name, gpu.sm_count,
                     (double)gpu.memory_bytes / (1024.0 * 1024.0 * 1024.0), gpu.capability / 10,
                     gpu.capability % 10, gpu.partitions ? "" : ", no partitions");
    }
  }
}

static uint64_t system_number(int name) {
  const long number = sysconf(name);
  return number > 0 ? (uint64_t)number : 0;
}

/* ---- The self-check: generate, lower, verify ---- */

/* A fixed table that has its communication is verified as it is. */
static enum weft_status lower_and_verify(const struct weft_cli *cli, struct check *check,
                                         struct weft_error *error) {
  const struct weft_shape shape = {.ranks = check->info->fixed ? 0 : 4,
                                   .microbatches = check->info->fixed ? 0 : 8};
  WEFT_SCOPED(weft_program) table = NULL;
  WEFT_SCOPED(weft_program) lowered = NULL;
  WEFT_SCOPED(weft_report) report = NULL;
  WEFT_TRY(weft_generate(cli->allocator, check->info->name, &shape, &table, error));
  if (table->level != WEFT_LEVEL_COMMS) {
    WEFT_TRY(weft_lower(cli->allocator, table, NULL, &lowered, error));
  }
  const struct weft_program *program = lowered != NULL ? lowered : table;
  WEFT_TRY(weft_verify(cli->allocator, program, NULL, &report, error));
  check->actions = program->action_count;
  if (!report->ok) {
    (void)snprintf(check->message, sizeof check->message, "%s", report->findings[0].message);
  }
  return WEFT_OK;
}

/* ---- Output ---- */

static const char *compiler_name(void) {
#if defined(__clang__)
  return "clang " __clang_version__;
#elif defined(__GNUC__)
  return "gcc " __VERSION__;
#else
  return "unknown";
#endif
}

static void add_checks(struct weft_text *text, const struct findings *findings) {
  weft_text_add(text, "\nSelf-check: generate, lower, verify\n");
  for (size_t i = 0; i < findings->check_count; i++) {
    const struct check *check = &findings->checks[i];
    weft_text_addf(text, "  %-22s ", check->info->name);
    if (check->message[0] == '\0') {
      weft_text_addf(text, "ok, %" PRIu64 " actions\n", check->actions);
    } else {
      weft_text_addf(text, "FAILED: %s\n", check->message);
    }
  }
}

static void add_text(struct weft_text *text, const struct findings *findings) {
  weft_text_addf(text, "weft %s (headers %s), %s\n\nMachine\n", weft_version(), WEFT_VERSION,
                 compiler_name());
  weft_text_addf(text, "  processors    %" PRIu64 "\n", findings->processors);
  weft_text_addf(text, "  memory        %.1f GiB\n",
                 (double)findings->memory_bytes / (1024.0 * 1024.0 * 1024.0));
  weft_text_addf(text, "  BLAS          %s\n  CUDA          ", blas());
  add_cuda(text);
  weft_text_add(text, "\n");
  weft_text_addf(text, "\nLimits\n  ranks         %" PRIu32 "\n  stages        %" PRIu32 "\n",
                 WEFT_RANKS_MAX, WEFT_STAGES_MAX);
  weft_text_addf(text, "  microbatches  %" PRIu32 "\n  actions       %" PRIu64 " in a program\n",
                 WEFT_MICROBATCHES_MAX, WEFT_ACTIONS_MAX);
  weft_text_add(text, "\nMPI\n");
  weft_cli_mpi_add(text, findings->mpi);
  add_checks(text, findings);
  weft_text_add(text,
                findings->ok ? "\nAll works.\n" : "\nSomething does not work; see FAILED above.\n");
}

static void add_json_checks(struct weft_json *json, const struct findings *findings) {
  weft_json_open(json, "checks", '[');
  for (size_t i = 0; i < findings->check_count; i++) {
    const struct check *check = &findings->checks[i];
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "schedule", check->info->name);
    weft_json_boolean(json, "ok", check->message[0] == '\0');
    weft_json_number(json, "actions", check->actions);
    weft_json_string(json, "message", check->message);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}

static void add_json(struct weft_text *text, const struct findings *findings) {
  struct weft_json json = weft_json_begin(text, "weft-doctor/1");
  weft_json_boolean(&json, "ok", findings->ok);
  weft_json_string(&json, "version", weft_version());
  weft_json_string(&json, "compiler", compiler_name());
  weft_json_number(&json, "processors", findings->processors);
  weft_json_number(&json, "memory_bytes", findings->memory_bytes);
  weft_json_open(&json, "parts", '{');
  weft_json_string(&json, "BLAS", blas());
  WEFT_SCOPED_TEXT cuda = {.allocator = text->allocator};
  add_cuda(&cuda);
  weft_json_string(&json, "CUDA", cuda.data != NULL ? cuda.data : "");
  weft_json_close(&json, '}');
  weft_json_open(&json, "mpi", '{');
  weft_cli_mpi_add_json(&json, findings->mpi);
  weft_json_close(&json, '}');
  weft_json_open(&json, "limits", '{');
  weft_json_number(&json, "ranks", WEFT_RANKS_MAX);
  weft_json_number(&json, "stages", WEFT_STAGES_MAX);
  weft_json_number(&json, "microbatches", WEFT_MICROBATCHES_MAX);
  weft_json_number(&json, "actions", WEFT_ACTIONS_MAX);
  weft_json_close(&json, '}');
  add_json_checks(&json, findings);
  weft_json_end(&json);
}

/* ---- The command ---- */

static int check_schedules(const struct weft_cli *cli, struct findings *findings) {
  findings->check_count =
      weft_schedule_count() < CHECKS_MAX ? weft_schedule_count() : (size_t)CHECKS_MAX;
  for (size_t i = 0; i < findings->check_count; i++) {
    struct check *check = &findings->checks[i];
    struct weft_error error;
    *check = (struct check){.info = weft_schedule_at(i)};
    const enum weft_status status = lower_and_verify(cli, check, &error);
    if (status == WEFT_ERR_MEMORY) {
      return weft_cli_fail_memory(cli);
    }
    if (status < 0) {
      (void)snprintf(check->message, sizeof check->message, "%s", error.message);
    }
    findings->ok = findings->ok && check->message[0] == '\0';
  }
  return WEFT_CLI_OK;
}

static int write_report(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        const struct weft_cli_mpi_findings *mpi) {
  struct findings findings = {
      .ok = true,
      .mpi = mpi,
      .processors = system_number(_SC_NPROCESSORS_ONLN),
      .memory_bytes = system_number(_SC_PHYS_PAGES) * system_number(_SC_PAGESIZE)};
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    findings.ok = findings.ok && mpi->trials[k].message[0] == '\0';
  }
  WEFT_CLI_TRY(check_schedules(cli, &findings));
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  (arguments->given[WEFT_CLI_OPTION_JSON] ? add_json : add_text)(&text, &findings);
  return weft_cli_write_output(cli, arguments, &text,
                               findings.ok ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
}

/* Rank 0 reports. */
static int report_job(const struct weft_cli_job *job, const struct weft_cli_arguments *arguments,
                      const struct weft_cli_mpi_findings *mpi) {
  if (job->transport->rank != 0) {
    return WEFT_CLI_OK;
  }
  if (!weft_cli_mpi_is_trial()) {
    return write_report(&job->cli, arguments, mpi);
  }
  WEFT_SCOPED_TEXT text = {.allocator = job->cli.allocator};
  weft_cli_mpi_add_lines(&text, mpi);
  return weft_cli_write_output(&job->cli, arguments, &text, WEFT_CLI_OK);
}

static int examine_job(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  const struct weft_comm_options options = weft_comm_options_default();
  WEFT_SCOPED_ARENA arena = {.allocator = cli->allocator};
  struct weft_cli_mpi_findings mpi;
  struct weft_cli_job job;
  int status = weft_cli_job_begin(&job, cli, "mpi", &options);
  if (status == WEFT_CLI_OK) {
    status = weft_cli_job_agree(&job, WEFT_CLI_OK);
  }
  if (status == WEFT_CLI_OK) {
    status = weft_cli_mpi_examine(&job, &arena, &mpi);
  }
  if (status == WEFT_CLI_OK) {
    status = report_job(&job, arguments, &mpi);
  }
  return weft_cli_job_end(&job, status);
}

int weft_cli_cmd_doctor(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  struct weft_cli_mpi_findings mpi = {.rank_count = 0};
  if (cli->words != NULL && weft_launch_info().launcher != NULL) {
    return examine_job(cli, arguments);
  }
  weft_cli_mpi_try(cli, arguments->given[WEFT_CLI_OPTION_QUICK], &mpi);
  return write_report(cli, arguments, &mpi);
}
