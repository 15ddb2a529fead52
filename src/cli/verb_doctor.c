/* `weft doctor`: what this build and machine have, and whether it works. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include <weft/weft.h>

#include "cli/json_writer.h"
#include "cli/message.h"
#include "cli/output_file.h"
#include "cli/verbs.h"

struct machine {
  uint64_t processors;
  uint64_t memory_bytes;
};

/* What a check of one schedule came to; message empty when it works. */
struct check {
  const struct weft_schedule_info *info;
  uint64_t actions;
  enum weft_status status;
  char message[512];
};

enum { CHECKS_MAX = 64 };

static const char *const parts[][2] = {
    {"MPI", "not used by this release"},
#ifdef WEFT_HAS_TRAINER
    {"BLAS", "OpenBLAS, for 'weft train'"},
#else
    {"BLAS", "none; 'weft train' needs libopenblas-dev when it is built"},
#endif
    {"CUDA", "not used by this release"},
};

static uint64_t positive(long value) { return value > 0 ? (uint64_t)value : 0; }

static struct machine look_at_machine(void) {
  return (struct machine){
      .processors = positive(sysconf(_SC_NPROCESSORS_ONLN)),
      .memory_bytes = positive(sysconf(_SC_PHYS_PAGES)) * positive(sysconf(_SC_PAGESIZE))};
}

/* ---- The self-check: generate, lower, verify ---- */

static enum weft_status verify(const struct weft_cli *cli, const struct weft_program *program,
                               struct check *check, struct weft_error *error) {
  struct weft_report *report;
  const enum weft_status status = weft_verify(cli->allocator, program, NULL, &report, error);
  if (status < 0) {
    return status;
  }
  check->actions = program->action_count;
  if (!report->ok) {
    (void)snprintf(check->message, sizeof check->message, "%s", report->findings[0].message);
  }
  weft_report_destroy(report);
  return WEFT_OK;
}

static enum weft_status lower_and_verify(const struct weft_cli *cli,
                                         const struct weft_program *table, struct check *check,
                                         struct weft_error *error) {
  if (table->level == WEFT_LEVEL_COMMS) {
    return verify(cli, table, check, error); /* a fixed table that has its communication */
  }
  struct weft_program *program;
  enum weft_status status = weft_lower(cli->allocator, table, NULL, &program, error);
  if (status == WEFT_OK) {
    status = verify(cli, program, check, error);
    weft_program_destroy(program);
  }
  return status;
}

static void run_check(const struct weft_cli *cli, struct check *check) {
  const struct weft_shape shape = {.ranks = check->info->fixed ? 0 : 4,
                                   .microbatches = check->info->fixed ? 0 : 8};
  struct weft_program *table;
  struct weft_error error;
  check->status = weft_generate(cli->allocator, check->info->name, &shape, &table, &error);
  if (check->status == WEFT_OK) {
    check->status = lower_and_verify(cli, table, check, &error);
    weft_program_destroy(table);
  }
  if (check->status < 0) {
    (void)snprintf(check->message, sizeof check->message, "%s", error.message);
  }
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

static void add_text(struct weft_text *text, const struct check *checks, size_t count, bool ok) {
  const struct machine machine = look_at_machine();
  weft_text_addf(text, "weft %s (headers %s), %s\n\nMachine\n", weft_version(), WEFT_VERSION,
                 compiler_name());
  weft_text_addf(text, "  processors    %" PRIu64 "\n", machine.processors);
  weft_text_addf(text, "  memory        %.1f GiB\n",
                 (double)machine.memory_bytes / (1024.0 * 1024.0 * 1024.0));
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    weft_text_addf(text, "  %-13s %s\n", parts[i][0], parts[i][1]);
  }
  weft_text_addf(text, "\nLimits\n  ranks         %" PRIu32 "\n  stages        %" PRIu32 "\n",
                 WEFT_RANKS_MAX, WEFT_STAGES_MAX);
  weft_text_addf(text, "  microbatches  %" PRIu32 "\n  actions       %" PRIu64 " in a program\n",
                 WEFT_MICROBATCHES_MAX, WEFT_ACTIONS_MAX);
  weft_text_add(text, "\nSelf-check: generate, lower, verify\n");
  for (size_t i = 0; i < count; i++) {
    weft_text_addf(text, "  %-22s ", checks[i].info->name);
    if (checks[i].message[0] == '\0') {
      weft_text_addf(text, "ok, %" PRIu64 " actions\n", checks[i].actions);
    } else {
      weft_text_addf(text, "FAILED: %s\n", checks[i].message);
    }
  }
  weft_text_add(text, ok ? "\nAll works.\n" : "\nSomething does not work; see FAILED above.\n");
}

static void add_json_limits(struct weft_cli_json *json) {
  weft_cli_json_open(json, "limits", '{');
  weft_cli_json_number(json, "ranks", WEFT_RANKS_MAX);
  weft_cli_json_number(json, "stages", WEFT_STAGES_MAX);
  weft_cli_json_number(json, "microbatches", WEFT_MICROBATCHES_MAX);
  weft_cli_json_number(json, "actions", WEFT_ACTIONS_MAX);
  weft_cli_json_close(json, '}');
}

static void add_document(struct weft_text *text, const struct check *checks, size_t count,
                         bool ok) {
  const struct machine machine = look_at_machine();
  struct weft_cli_json json = {.text = text};
  weft_cli_json_open(&json, NULL, '{');
  weft_cli_json_string(&json, "schema", "weft-doctor/1");
  weft_cli_json_boolean(&json, "ok", ok);
  weft_cli_json_string(&json, "version", weft_version());
  weft_cli_json_string(&json, "compiler", compiler_name());
  weft_cli_json_number(&json, "processors", machine.processors);
  weft_cli_json_number(&json, "memory_bytes", machine.memory_bytes);
  weft_cli_json_open(&json, "parts", '{');
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
    weft_cli_json_string(&json, parts[i][0], parts[i][1]);
  }
  weft_cli_json_close(&json, '}');
  add_json_limits(&json);
  weft_cli_json_open(&json, "checks", '[');
  for (size_t i = 0; i < count; i++) {
    weft_cli_json_open(&json, NULL, '{');
    weft_cli_json_string(&json, "schedule", checks[i].info->name);
    weft_cli_json_boolean(&json, "ok", checks[i].message[0] == '\0');
    weft_cli_json_number(&json, "actions", checks[i].actions);
    weft_cli_json_string(&json, "message", checks[i].message);
    weft_cli_json_close(&json, '}');
  }
  weft_cli_json_close(&json, ']');
  weft_cli_json_close(&json, '}');
  weft_cli_json_finish(&json);
}

int weft_cli_verb_doctor(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  struct check checks[CHECKS_MAX];
  const size_t count =
      weft_schedule_count() < CHECKS_MAX ? weft_schedule_count() : (size_t)CHECKS_MAX;
  bool ok = true;
  for (size_t i = 0; i < count; i++) {
    checks[i] = (struct check){.info = weft_schedule_at(i)};
    run_check(cli, &checks[i]);
    if (checks[i].status == WEFT_ERR_MEMORY) {
      return weft_cli_fail_memory(cli);
    }
    ok = ok && checks[i].message[0] == '\0';
  }
  struct weft_text text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    add_document(&text, checks, count, ok);
  } else {
    add_text(&text, checks, count, ok);
  }
  const int status = weft_cli_deliver(cli, arguments, &text, ok ? WEFT_CLI_OK : WEFT_CLI_FOUND_BAD);
  weft_text_finish(&text);
  return status;
}
