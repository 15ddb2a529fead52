/* `weft explain-hang`: the dump of a run that hangs. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/flight.h>
#include <weft/support.h>

#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/progress_line.h"
#include "cli/scoped.h"

/* ---- The dumps of a PyTorch job: files with a number at the end of their names ---- */

/* As for other inputs: see input_file.c. */
#define BYTES_MAX (UINT64_C(256) << 20)

struct dumps {
  const struct weft_cli *cli;
  const char *folder;
  struct weft_arena data; /* of the dump that is looked at */
  struct weft_cli_progress_line line;
  size_t count, loaded;
};

/* "rank0.pkl", "nccl_trace_rank_12", but no hidden file and no "program.csv". */
static int is_dump(const struct dirent *entry) {
  const char *name = entry->d_name;
  const char *dot = strchr(name, '.');
  const size_t stem = dot != NULL ? (size_t)(dot - name) : strlen(name);
  return stem > 0 && name[stem - 1] >= '0' && name[stem - 1] <= '9';
}

/* Why a file is not read, in words that follow its name; NULL: it can be. */
static const char *reason_to_skip(const struct stat *status) {
  if (S_ISDIR(status->st_mode)) {
    return "is a folder";
  }
  if (S_ISFIFO(status->st_mode)) {
    return "is a named pipe"; /* PyTorch makes them: TORCH_NCCL_DEBUG_INFO_PIPE_FILE */
  }
  if (!S_ISREG(status->st_mode)) {
    return "is no regular file";
  }
  return (uint64_t)status->st_size > BYTES_MAX ? "has more than 256 MiB" : NULL;
}

/* Reads as many bytes as the file had when it was opened. */
static const char *read_bytes(int fd, char *data, size_t room, size_t *size) {
  *size = 0;
  while (*size < room) {
    const ssize_t got = read(fd, data + *size, room - *size);
    if (got < 0 && errno != EINTR) {
      return strerror(errno);
    }
    if (got == 0) {
      break;
    }
    *size += got > 0 ? (size_t)got : 0;
  }
  return NULL;
}

static void show_progress(struct dumps *dumps) {
  dumps->loaded++;
  if (weft_cli_progress_line_is_wanted(dumps->cli) && weft_cli_progress_line_is_due(&dumps->line)) {
    WEFT_SCOPED_TEXT text = {.allocator = dumps->cli->allocator};
    weft_text_addf(&text, "%3zu %%  dump %zu of %zu", 100 * dumps->loaded / dumps->count,
                   dumps->loaded, dumps->count);
    weft_cli_progress_line_update(&dumps->line, &text);
  }
}

/* Reads the file of a dump. One that cannot be read is no reason to end the diagnosis:
 * dump->unread says why. */
static void load_dump(void *context, struct weft_flight_dump *dump) {
  struct dumps *dumps = context;
  WEFT_SCOPED_TEXT path = {.allocator = dumps->cli->allocator};
  struct stat status = {0};
  show_progress(dumps);
  weft_arena_finish(&dumps->data);
  weft_text_addf(&path, "%s/%s", dumps->folder, dump->name);
  errno = ENOMEM;
  /* A named pipe without a writer would keep open() waiting. */
  const int fd = path.failed ? -1 : open(path.data, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  const char *why = fd < 0 || fstat(fd, &status) != 0 ? strerror(errno) : reason_to_skip(&status);
  if (why == NULL) {
    const size_t room = (size_t)status.st_size;
    void *data = weft_arena_allocate(&dumps->data, room + 1, 1);
    why = data != NULL ? read_bytes(fd, data, room, &dump->size) : "out of memory";
    dump->data = data;
  }
  dump->unread = why;
  if (fd >= 0) {
    (void)close(fd);
  }
}

static int explain_dumps(const struct weft_cli *cli, const struct weft_program *program,
                         const char *folder, struct dirent **entries, size_t count, bool json,
                         struct weft_text *text) {
  WEFT_SCOPED_ARENA arena = {.allocator = cli->allocator};
  struct dumps dumps = {.cli = cli,
                        .folder = folder,
                        .data = {.allocator = cli->allocator},
                        .line = {.cli = cli},
                        .count = count};
  struct weft_flight_dump *items = weft_arena_allocate(&arena, count, sizeof *items);
  struct weft_error error;
  if (items == NULL) {
    return weft_cli_fail_memory(cli);
  }
  for (size_t k = 0; k < count; k++) {
    items[k] =
        (struct weft_flight_dump){.name = entries[k]->d_name, .load = load_dump, .context = &dumps};
  }
  const enum weft_status status =
      weft_flight_explain(cli->allocator, program, items, count, json, text, &error);
  weft_cli_progress_line_clear(&dumps.line);
  weft_arena_finish(&dumps.data);
  return weft_cli_result(cli, folder, status, &error);
}

static int explain_folder(const struct weft_cli *cli, const struct weft_program *program,
                          const char *folder, bool json, struct weft_text *text) {
  struct dirent **entries = NULL;
  const int count = scandir(folder, &entries, is_dump, alphasort);
  if (count < 0) {
    weft_cli_print(cli, "make it readable", "cannot read the folder '%s': %s",
                   weft_cli_quoted(folder).text, strerror(errno));
    return WEFT_CLI_NO_INPUT;
  }
  int status = WEFT_CLI_NO_INPUT;
  if (count == 0) {
    weft_cli_print(cli, "the dumps are files like rank0.pkl or nccl_trace_rank_0",
                   "the folder '%s' has no file with a number at the end of its name",
                   weft_cli_quoted(folder).text);
  } else {
    status = explain_dumps(cli, program, folder, entries, (size_t)count, json, text);
  }
  for (int k = 0; k < count; k++) {
    free(entries[k]);
  }
  free(entries);
  return status;
}

/* ---- The command ---- */

/* Without a file: what is piped or redirected to the command, else what 'weft run' writes. */
static const char *default_path(void) {
  struct stat input;
  const bool is_given = fstat(STDIN_FILENO, &input) == 0 && !S_ISCHR(input.st_mode);
  return is_given ? NULL : "weft-hang.json";
}

static bool is_folder(const char *path) {
  struct stat status;
  return path != NULL && stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* The dumps of PyTorch's flight recorder. */
static int explain_job(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       const char *folder, struct weft_text *text) {
  const char *path = arguments->texts[WEFT_CLI_OPTION_PROGRAM];
  if (path == NULL) {
    return weft_cli_usage(cli, "add --program FILE: the table or program that the job runs",
                          "'%s' is a folder, and which action a rank is in follows only from "
                          "its program",
                          weft_cli_quoted(folder).text);
  }
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_CLI_TRY(weft_cli_read_program(cli, path, &program));
  return explain_folder(cli, program, folder, arguments->given[WEFT_CLI_OPTION_JSON], text);
}

int weft_cli_cmd_explain_hang(const struct weft_cli *cli,
                              const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  const char *path = arguments->operands[0] != NULL ? arguments->operands[0] : default_path();
  if (is_folder(path)) {
    WEFT_CLI_TRY(explain_job(cli, arguments, path, &text));
  } else if (arguments->given[WEFT_CLI_OPTION_PROGRAM]) {
    return weft_cli_usage(cli, "give the folder with the dumps of PyTorch's flight recorder",
                          "--program is for the dumps of a PyTorch job; '%s' is no folder",
                          weft_cli_quoted(weft_cli_input_name(path)).text);
  } else {
    WEFT_CLI_TRY(weft_cli_read_hang(cli, path, arguments->given[WEFT_CLI_OPTION_JSON], &text));
  }
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}
