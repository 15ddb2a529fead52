/* `weft train --schedule auto`: the first schedule, the memory limit, and the report of tuning. */
#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <weft/gen.h>
#include <weft/launch.h>

#include "cli/args/option_parser.h"
#include "cli/io/error_message.h"
#include "cli/scoped.h"
#include "trainer/command/train_auto.h"

/* ---- Free memory ---- */

/* The number behind `label` in a file; UINT64_MAX: there is none, or no such file. */
static uint64_t read_labelled(const char *path, const char *label) {
  FILE *file = fopen(path, "re");
  uint64_t number = UINT64_MAX;
  char line[256];
  const size_t size = strlen(label);
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, label, size) == 0 && sscanf(line + size, "%" SCNu64, &number) == 1) {
      break;
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
  return number;
}

/* The process's group as /proc/self/cgroup has it: "0::/a/b"; "" when it is not so. */
static void find_group(char *group, size_t size) {
  FILE *file = fopen("/proc/self/cgroup", "re");
  char line[PATH_MAX];
  group[0] = '\0';
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, "0::", 3) == 0) {
      line[strcspn(line, "\n")] = '\0';
      (void)snprintf(group, size, "%s", line + 3);
      break;
    }
  }
  if (file != NULL) {
    (void)fclose(file);
  }
}

static uint64_t left_in_group(const char *group) {
  char path[2 * PATH_MAX];
  (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", group);
  const uint64_t most = read_labelled(path, ""); /* "max" is no number */
  (void)snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", group);
  const uint64_t used = read_labelled(path, "");
  return most == UINT64_MAX || used == UINT64_MAX ? UINT64_MAX : (most > used ? most - used : 0);
}

/* Bytes that this process can still allocate without swapping; 0: not known. Linux reports what is
 * available; containers limit it by control groups (version 2): that of the process and all above
 * it. */
static uint64_t free_memory(void) {
  const uint64_t available = read_labelled("/proc/meminfo", "MemAvailable:");
  char group[PATH_MAX];
  uint64_t least = available < UINT64_MAX / 1024 ? available * 1024 : UINT64_MAX;
  find_group(group, sizeof group);
  for (;;) { /* up to the root, which is "" */
    const uint64_t left = left_in_group(group);
    char *slash = strrchr(group, '/');
    least = left < least ? left : least;
    if (slash == NULL) {
      break;
    }
    *slash = '\0';
  }
  return least != UINT64_MAX ? least : 0;
}

/* Of all GPUs that are used; 0: not known. */
static uint64_t gpu_memory(const struct weft_cli_arguments *arguments) {
  const char *list = arguments->texts[WEFT_CLI_OPTION_GPUS];
  struct weft_cuda_driver_info driver;
  struct weft_cuda_gpu_info gpu;
  struct weft_error error;
  if (weft_cuda_driver_info(&driver, &error) < 0 || weft_cuda_gpu_info(0, &gpu, &error) < 0) {
    return 0;
  }
  uint64_t count = list != NULL ? 1 : driver.gpu_count;
  for (; list != NULL && *list != '\0'; list++) {
    count += *list == ',';
  }
  return count * gpu.memory_bytes;
}

#define MEBIBYTE 1048576.0

/* Of the free memory: the rest is for other processes and for what is not counted. */
#define FREE_SHARE 0.9

/* ---- The beginning ---- */

bool weft_train_setup_is_auto(const struct weft_cli_arguments *arguments) {
  assert(arguments != NULL);
  const char *schedule = arguments->texts[WEFT_CLI_OPTION_SCHEDULE];
  return schedule != NULL && strcmp(schedule, "auto") == 0;
}

static const char *first_schedule(uint64_t v) {
  return v == 1 ? "1F1B" : v == 2 ? "ZBVZeroBubble" : "Interleaved1F1B";
}

int weft_train_setup_read_auto(struct weft_train_setup *setup) {
  assert(setup != NULL);
  const struct weft_cli_arguments *arguments = setup->arguments;
  struct weft_gpt_trainer_options *options = &setup->options;
  const uint64_t v = weft_cli_number(arguments, WEFT_CLI_OPTION_STAGES_PER_RANK, 1);
  WEFT_SCOPED(weft_program) program = NULL;
  struct weft_error error;
  options->tunes = options->times_layers = true;
  options->schedule = first_schedule(v);
  options->ranks = weft_train_setup_ranks(setup);
  options->stages_per_rank = (uint32_t)v;
  const struct weft_shape shape = {.ranks = options->ranks,
                                   .stages_per_rank = options->stages_per_rank,
                                   .microbatches = options->training.microbatches};
  WEFT_CLI_TRY(weft_cli_result(
      setup->cli, NULL,
      weft_generate(setup->cli->allocator, options->schedule, &shape, &program, &error), &error));
  setup->stage_count = program->stage_count;
  return WEFT_CLI_OK;
}

void weft_train_setup_read_memory(struct weft_train_setup *setup) {
  assert(setup != NULL);
  const struct weft_cli_arguments *arguments = setup->arguments;
  struct weft_gpt_trainer_options *options = &setup->options;
  const struct weft_launch_info launch = weft_launch_info();
  if (!options->tunes) {
    return;
  }
  if (arguments->given[WEFT_CLI_OPTION_MEMORY]) {
    options->memory_limit = weft_cli_real(arguments, WEFT_CLI_OPTION_MEMORY, 0);
    return;
  }
  const double ranks = setup->job != NULL ? launch.ranks_on_host
                                          : (double)options->ranks * (double)options->replicas;
  const uint64_t bytes = setup->cuda != NULL ? gpu_memory(arguments) : free_memory();
  options->memory_free = FREE_SHARE * (double)bytes / MEBIBYTE / fmax(ranks, 1);
}

/* ---- What is said ---- */

static void add_times(struct weft_text *text, const char *format, double ms) {
  if (isfinite(ms)) {
    weft_text_addf(text, format, ms);
  }
}

static void add_trial(struct weft_text *text, const struct weft_gpt_tuning_report *report) {
  weft_text_addf(text, "%s promises %.1f %% less than %s", report->schedule,
                 100 * report->promised_gain, report->before_schedule);
  add_times(text, ": %.2f ms", report->promised_ms);
  add_times(text, " instead of %.2f ms", report->before_ms);
  weft_text_addf(text, "; planned in %.2f s, needs %.1f", report->planning_seconds, report->memory);
  add_times(text, " of %.1f", report->memory_limit);
  weft_text_add(text, " MiB on a rank\n");
}

void weft_train_tuning_add(struct weft_text *text, const struct weft_gpt_tuning_report *report) {
  assert(text != NULL && report != NULL);
  weft_text_addf(text, "schedule after step %" PRIu64 ": ", report->step);
  switch (report->news) {
    case WEFT_GPT_TUNING_TRIES: add_trial(text, report); return;
    case WEFT_GPT_TUNING_STAYED:
      weft_text_addf(text, "nothing found that promises to be faster than %s", report->schedule);
      add_times(text, ", which takes %.2f ms", report->before_ms);
      break;
    case WEFT_GPT_TUNING_KEPT:
      weft_text_addf(text, "%s stays", report->schedule);
      add_times(text, ": %.2f ms", report->after_ms);
      add_times(text, " instead of %.2f ms", report->before_ms);
      add_times(text, ", %.1f %% less", 100 * report->gain);
      break;
    case WEFT_GPT_TUNING_RETURNED:
      weft_text_addf(text, "%s is back: %s took %.2f ms instead of %.2f ms", report->schedule,
                     report->before_schedule, report->after_ms, report->before_ms);
      break;
    case WEFT_GPT_TUNING_DRIFTED:
      weft_text_addf(text, "steps of %s take another time than expected: measuring again",
                     report->schedule);
      break;
  }
  weft_text_add(text, "\n");
}

void weft_train_tuning_add_summary(struct weft_text *text,
                                   const struct weft_gpt_tuning_report *report) {
  assert(text != NULL && report != NULL);
  weft_text_addf(text, "schedule         %s, after %" PRIu32 " plan%s", report->schedule,
                 report->plans, report->plans == 1 ? "" : "s");
  add_times(text, ": %.1f %% less time in the pipeline", 100 * report->gain);
  add_times(text, " (promised %.1f %%)", 100 * report->promised_gain);
  weft_text_add(text, "\n");
}

static void add_numbers(struct weft_json *json, const struct weft_gpt_tuning_report *report) {
  const double nothing = NAN;
  weft_json_real(json, "before_ms", report != NULL ? report->before_ms : nothing);
  weft_json_real(json, "promised_ms", report != NULL ? report->promised_ms : nothing);
  weft_json_real(json, "after_ms", report != NULL ? report->after_ms : nothing);
  weft_json_real(json, "promised_gain", report != NULL ? report->promised_gain : nothing);
  weft_json_real(json, "gain", report != NULL ? report->gain : nothing);
}

void weft_train_tuning_add_json(struct weft_json *json,
                                const struct weft_gpt_tuning_report *report) {
  assert(report != NULL);
  static const char *const names[] = {"stayed", "tries", "kept", "returned", "drifted"};
  weft_json_open(json, "tuning", '{');
  weft_json_string(json, "news", names[report->news]);
  weft_json_number(json, "step", report->step);
  weft_json_string(json, "before", report->before_schedule);
  weft_json_string(json, "schedule", report->schedule);
  add_numbers(json, report);
  weft_json_real(json, "memory", report->memory);
  weft_json_real(json, "memory_limit", report->memory_limit);
  weft_json_real(json, "planning_s", report->planning_seconds);
  weft_json_close(json, '}');
}

void weft_train_tuning_add_totals(struct weft_json *json,
                                  const struct weft_gpt_tuning_report *report) {
  weft_json_number(json, "replanned", report != NULL ? report->plans : 0);
  weft_json_number(json, "switched", report != NULL ? report->switches : 0);
  weft_json_number(json, "returned", report != NULL ? report->returns : 0);
  add_numbers(json, report);
}
