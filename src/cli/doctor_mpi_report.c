/* What `weft doctor` says about the MPIs of this machine. */
#include "cli/doctor_mpi.h"

bool weft_cli_mpi_works(const struct weft_cli_mpi *mpi) { return mpi->message[0] == '\0'; }

static void add_line(struct weft_text *text, const char *label, const char *value) {
  if (value[0] != '\0') {
    weft_text_addf(text, "    %-11s %s\n", label, value);
  }
}

static void add_mpi(struct weft_text *text, const struct weft_cli_mpi *mpi) {
  if (mpi->launcher == NULL) {
    weft_text_addf(text, "  %-13s none found; '%s'\n", mpi->name, mpi->package);
    return;
  }
  if (!weft_cli_mpi_works(mpi)) {
    weft_text_addf(text, "  %-13s FAILED: %s, two processes: %s\n", mpi->name, mpi->launcher,
                   mpi->message);
  } else if (mpi->without_driver) {
    weft_text_addf(text, "  %-13s there is %s, but no driver for it in this build\n", mpi->name,
                   mpi->launcher);
  } else {
    weft_text_addf(text, "  %-13s %s\n", mpi->name, mpi->library);
  }
  add_line(text, "launcher", mpi->without_driver ? "" : mpi->launcher);
  add_line(text, "threading", mpi->threading);
  add_line(text, "UCX", mpi->ucx);
  add_line(text, "single copy", mpi->copying);
  add_line(text, "bound to", mpi->binding);
  if (mpi->ping.latency_ns > 0) {
    weft_text_addf(text, "    %-11s ", "ping-pong");
    weft_cli_ping_add(text, &mpi->ping);
    weft_text_add(text, "\n");
  }
}

void weft_cli_mpi_add(struct weft_text *text, const struct weft_cli_mpi found[WEFT_CLI_MPI_COUNT],
                      const char *no_copy) {
  weft_text_addf(
      text, "  launcher      none: this is one process\n  single copy   %s%s\n",
      no_copy[0] == '\0' ? "a process can read another one's memory" : "not here: ", no_copy);
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    add_mpi(text, &found[k]);
  }
}

static void add_string(struct weft_json *json, const char *key, const char *value) {
  if (value == NULL || value[0] == '\0') {
    weft_json_null(json, key);
  } else {
    weft_json_string(json, key, value);
  }
}

void weft_cli_mpi_add_json(struct weft_json *json,
                           const struct weft_cli_mpi found[WEFT_CLI_MPI_COUNT],
                           const char *no_copy) {
  weft_json_null(json, "launcher");
  weft_json_boolean(json, "single_copy", no_copy[0] == '\0');
  weft_json_open(json, "implementations", '[');
  for (size_t k = 0; k < WEFT_CLI_MPI_COUNT; k++) {
    const struct weft_cli_mpi *mpi = &found[k];
    weft_json_open(json, NULL, '{');
    weft_json_string(json, "name", mpi->name);
    add_string(json, "launcher", mpi->launcher);
    weft_json_boolean(json, "driver", mpi->launcher != NULL && !mpi->without_driver);
    weft_json_boolean(json, "ok", weft_cli_mpi_works(mpi));
    add_string(json, "message", mpi->message);
    add_string(json, "library", mpi->library);
    add_string(json, "threading", mpi->threading);
    add_string(json, "ucx", mpi->ucx);
    add_string(json, "single_copy_setting", mpi->copying);
    add_string(json, "cores", mpi->binding);
    weft_cli_ping_add_json(json, &mpi->ping);
    weft_json_close(json, '}');
  }
  weft_json_close(json, ']');
}
