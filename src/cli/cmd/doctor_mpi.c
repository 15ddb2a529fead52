/* `weft doctor` without a launcher: which MPIs are installed, and whether they work. */
#include "cli/cmd/doctor_mpi.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli/io/child_process.h"

enum { PING_LIMIT_MS = 10000 };

/* ---- What the two processes write ---- */

/* The rest of the line that begins with `key` and a space; false when there is none. */
static bool find_line(const char *text, const char *key, char *value, size_t size) {
  const size_t key_size = strlen(key);
  for (const char *at = text; at != NULL; at = strchr(at, '\n')) {
    at += *at == '\n' ? 1 : 0;
    if (strncmp(at, key, key_size) == 0 && at[key_size] == ' ') {
      const char *begin = at + key_size + 1;
      (void)snprintf(value, size, "%.*s", (int)strcspn(begin, "\n"), begin);
      return true;
    }
  }
  return false;
}

static uint64_t find_number(const char *text, const char *key) {
  char digits[32];
  uint64_t number;
  return find_line(text, key, digits, sizeof digits) &&
                 weft_cli_read_number(digits, &number) == WEFT_CLI_DIGITS_OK
             ? number
             : 0;
}

static void try_mpi(const char *command, struct weft_cli_mpi_trial *trial) {
  /* Open MPI refuses to work for root without these. */
  static const char *const environment[] = {WEFT_CLI_PING_MARK,
                                            "1",
                                            "OMPI_ALLOW_RUN_AS_ROOT",
                                            "1",
                                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                                            "1",
                                            NULL};
  const char *const doctor[] = {command, "doctor", NULL};
  const char *words[WEFT_CLI_MPI_WORDS_MAX];
  struct weft_cli_child child = {.words = words, .sets = environment, .limit_ms = PING_LIMIT_MS};
  weft_cli_mpi_two_processes(&trial->mpi, false, doctor, words);
  weft_cli_child_run(&child);
  trial->ping.latency_ns = find_number(child.output, "latency_ns");
  trial->ping.bytes_per_s = find_number(child.output, "bytes_per_s");
  (void)find_line(child.output, "library", trial->library, sizeof trial->library);
  (void)find_line(child.output, "threading", trial->threading, sizeof trial->threading);
  (void)find_line(child.output, "binding", trial->binding, sizeof trial->binding);
  trial->without_driver = !child.timed_out && child.status == WEFT_CLI_UNAVAILABLE;
  if (child.timed_out) {
    (void)snprintf(trial->message, sizeof trial->message,
                   "two processes had not exchanged messages after %d s", PING_LIMIT_MS / 1000);
  } else if (!trial->without_driver && (child.status != 0 || trial->ping.latency_ns == 0)) {
    const char *line = child.output + strspn(child.output, "\n- "); /* launchers draw rulers */
    (void)snprintf(trial->message, sizeof trial->message, "ended with status %d: %.*s",
                   child.status, (int)strcspn(line, "\n"), line);
  }
}

void weft_cli_mpi_try(const struct weft_cli *cli, bool quick,
                      struct weft_cli_mpi_trial trials[WEFT_CLI_MPI_COUNT]) {
  char buffer[PATH_MAX];
  const char *command = cli->words != NULL ? weft_cli_process_file(buffer, sizeof buffer) : NULL;
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    trials[k] = (struct weft_cli_mpi_trial){.mpi = command != NULL ? weft_cli_mpi_find(k)
                                                                   : weft_cli_mpi_at(k)};
    trials[k].tested = trials[k].mpi.launcher != NULL && !quick;
    if (trials[k].tested) {
      try_mpi(command, &trials[k]);
    }
  }
}

/* ---- The report ---- */

static void add_line(struct weft_text *text, const char *label, const char *value) {
  if (value[0] != '\0') {
    weft_text_addf(text, "    %-11s %s\n", label, value);
  }
}

static void add_trial(struct weft_text *text, const struct weft_cli_mpi_trial *trial) {
  const struct weft_cli_mpi *mpi = &trial->mpi;
  if (mpi->launcher == NULL) {
    weft_text_addf(text, "  %-13s none found; '%s'\n", mpi->name, mpi->package);
    return;
  }
  if (trial->message[0] != '\0') {
    weft_text_addf(text, "  %-13s FAILED: %s, two processes: %s\n", mpi->name, mpi->launcher,
                   trial->message);
  } else if (trial->without_driver) {
    weft_text_addf(text,
                   "  %-13s there is %s, but no driver for it in this build\n"
                   "    to do       '%s', then build Weft again\n",
                   mpi->name, mpi->launcher, mpi->package);
    return;
  } else {
    weft_text_addf(text, "  %-13s %s\n", mpi->name,
                   trial->tested ? trial->library : "installed; not tested (--quick)");
  }
  add_line(text, "launcher", mpi->launcher);
  add_line(text, "threading", trial->threading);
  add_line(text, "bound to", trial->binding);
  if (trial->ping.latency_ns > 0) {
    weft_text_addf(text, "    %-11s ", "ping-pong");
    weft_cli_ping_add(text, &trial->ping);
    weft_text_add(text, "\n");
  }
}

void weft_cli_mpi_add(struct weft_text *text,
                      const struct weft_cli_mpi_trial trials[WEFT_CLI_MPI_COUNT]) {
  weft_text_add(text, "  launcher      none: this is one process\n");
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    add_trial(text, &trials[k]);
  }
}

static void add_string(struct weft_json *json, const char *key, const char *value) {
  weft_json_string(json, key, value[0] != '\0' ? value : NULL);
}

void weft_cli_mpi_add_json(struct weft_json *json,
                           const struct weft_cli_mpi_trial trials[WEFT_CLI_MPI_COUNT]) {
  weft_json_null(json, "launcher");
  weft_json_open(json, "implementations", '[');
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    const struct weft_cli_mpi_trial *trial = &trials[k];
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "name", trial->mpi.name);
    weft_json_string(json, "launcher", trial->mpi.launcher);
    if (trial->mpi.launcher != NULL && !trial->tested) {
      weft_json_null(json, "driver");
      weft_json_null(json, "ok");
    } else {
      weft_json_boolean(json, "driver", trial->mpi.launcher != NULL && !trial->without_driver);
      weft_json_boolean(json, "ok", trial->message[0] == '\0');
    }
    add_string(json, "message", trial->message);
    add_string(json, "library", trial->library);
    add_string(json, "threading", trial->threading);
    add_string(json, "cores", trial->binding);
    weft_cli_ping_add_json(json, &trial->ping);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}
