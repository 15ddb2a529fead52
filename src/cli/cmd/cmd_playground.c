/* `weft playground`: opens the page that `make playground` builds and `make install` installs. */
#define _XOPEN_SOURCE 700 /* realpath() */
#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/support.h>

#include "cli/cmd/commands.h"
#include "cli/io/child_process.h"
#include "cli/io/output_file.h"
#include "cli/scoped.h"

#define PAGE "share/weft/playground.html"

enum { OPEN_LIMIT_MS = 15000 };

/* Beside the installed program, or in its build folder. NULL: it is not there. */
static const char *find_page(char path[PATH_MAX]) {
  static const char *const paths[] = {"../" PAGE, PAGE};
  char own[PATH_MAX], wanted[2 * PATH_MAX];
  if (weft_cli_process_file(own, sizeof own) == NULL || strrchr(own, '/') == NULL) {
    return NULL;
  }
  *strrchr(own, '/') = '\0';
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(paths); k++) {
    (void)snprintf(wanted, sizeof wanted, "%s/%s", own, paths[k]);
    if (access(wanted, R_OK) == 0 && realpath(wanted, path) != NULL) {
      return path;
    }
  }
  return NULL;
}

/* -o FILE: a copy of the page. */
static int copy_page(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                     const char *path) {
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  char piece[16384];
  FILE *file = fopen(path, "rb");
  size_t got = file != NULL ? fread(piece, 1, sizeof piece, file) : 0;
  for (; got > 0; got = fread(piece, 1, sizeof piece, file)) {
    weft_text_append(&text, piece, got);
  }
  const bool failed = file == NULL || ferror(file) != 0;
  if (file != NULL) {
    (void)fclose(file);
  }
  if (failed) {
    weft_cli_print(cli, "'make playground' writes it again", "cannot read '%s'",
                   weft_cli_quoted(path).text);
    return WEFT_CLI_IO;
  }
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}

static int print_path(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                      const char *path, int status) {
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  if (arguments->given[WEFT_CLI_OPTION_JSON]) {
    struct weft_json json = weft_json_begin(&text, "weft-playground/1");
    weft_json_string(&json, "path", path);
    weft_json_end(&json);
  } else {
    weft_text_addf(&text, "%s\n", path);
  }
  WEFT_CLI_TRY(weft_cli_write_stdout(cli, &text));
  return status;
}

static bool has_desktop(void) {
  static const char *const variables[] = {"BROWSER", "DISPLAY", "WAYLAND_DISPLAY"};
  for (size_t k = 0; k < WEFT_ARRAY_LENGTH(variables); k++) {
    const char *value = getenv(variables[k]);
    if (value != NULL && value[0] != '\0') {
      return true;
    }
  }
  return false;
}

/* The desktop knows the browser; $BROWSER comes first there too. */
static bool open_page(const char *path) {
  struct weft_cli_child child = {.words = (const char *const[]){"xdg-open", path, NULL},
                                 .limit_ms = OPEN_LIMIT_MS};
  if (!has_desktop()) {
    return false;
  }
  weft_cli_child_run(&child);
  return child.started && !child.timed_out && child.status == 0;
}

int weft_cli_cmd_playground(const struct weft_cli *cli,
                            const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  char buffer[PATH_MAX];
  const char *path = find_page(buffer);
  if (path == NULL) {
    weft_cli_print(
        cli, "'make playground' in Weft's source folder builds it, 'make install' installs it",
        "the page is not here: expected " PAGE " beside this program's folder");
    return WEFT_CLI_UNAVAILABLE;
  }
  if (arguments->given[WEFT_CLI_OPTION_OUTPUT]) {
    return copy_page(cli, arguments, path);
  }
  if (arguments->given[WEFT_CLI_OPTION_PATH] || arguments->given[WEFT_CLI_OPTION_JSON]) {
    return print_path(cli, arguments, path, WEFT_CLI_OK);
  }
  if (open_page(path)) {
    return WEFT_CLI_OK;
  }
  weft_cli_print(cli, "open this file in a browser, here or on any other machine",
                 "no browser could be started here");
  return print_path(cli, arguments, path, WEFT_CLI_UNAVAILABLE);
}
