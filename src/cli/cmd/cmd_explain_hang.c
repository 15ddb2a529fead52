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
#include "cli/scoped.h"

/* ---- The dumps of a PyTorch job: files with a number at the end of their names ---- */

/* As for other inputs: see input_file.c. */
#define BYTES_MAX (UINT64_C(256) << 20)

struct dumps {
  const struct weft_cli *cli;
  struct weft_arena *arena; /* of names, data and the array */
  struct weft_flight_dump *items;
  size_t count;
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

/* Reads a file into dump number dumps->count. A file that cannot be read is no reason to end the
 * diagnosis: dump->unread says why. */
static int read_dump(struct dumps *dumps, const char *folder, const char *file) {
  struct weft_arena *arena = dumps->arena;
  struct weft_flight_dump *dump = &dumps->items[dumps->count++];
  WEFT_SCOPED_TEXT path = {.allocator = dumps->cli->allocator};
  struct stat status = {0};
  weft_text_addf(&path, "%s/%s", folder, file);
  dump->name = weft_arena_copy_text(arena, file, strlen(file));
  if (path.failed || dump->name == NULL) {
    return weft_cli_fail_memory(dumps->cli);
  }
  /* A named pipe without a writer would keep open() waiting. */
  const int fd = open(path.data, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  const char *why = fd < 0 || fstat(fd, &status) != 0 ? strerror(errno) : reason_to_skip(&status);
  if (why == NULL) {
    const size_t room = (size_t)status.st_size;
    void *data = weft_arena_allocate(arena, room + 1, 1);
    why = data != NULL ? read_bytes(fd, data, room, &dump->size) : NULL;
    dump->data = data;
  }
  dump->unread = why != NULL ? weft_arena_copy_text(arena, why, strlen(why)) : NULL;
  if (fd >= 0) {
    (void)close(fd);
  }
  return arena->failed_bytes == 0 ? WEFT_CLI_OK : weft_cli_fail_memory(dumps->cli);
}

static int read_dumps(struct dumps *dumps, const char *folder, struct dirent **entries,
                      size_t count) {
  dumps->items = weft_arena_allocate(dumps->arena, count, sizeof *dumps->items);
  if (dumps->items == NULL) {
    return weft_cli_fail_memory(dumps->cli);
  }
  for (size_t k = 0; k < count; k++) {
    WEFT_CLI_TRY(read_dump(dumps, folder, entries[k]->d_name));
  }
  return WEFT_CLI_OK;
}

static int read_folder(struct dumps *dumps, const char *folder) {
  struct dirent **entries = NULL;
  const int count = scandir(folder, &entries, is_dump, alphasort);
  if (count < 0) {
    weft_cli_print(dumps->cli, "make it readable", "cannot read the folder '%s': %s",
                   weft_cli_quoted(folder).text, strerror(errno));
    return WEFT_CLI_NO_INPUT;
  }
  int status = WEFT_CLI_OK;
  if (count == 0) {
    weft_cli_print(dumps->cli, "the dumps are files like rank0.pkl or nccl_trace_rank_0",
                   "the folder '%s' has no file with a number at the end of its name",
                   weft_cli_quoted(folder).text);
    status = WEFT_CLI_NO_INPUT;
  } else {
    status = read_dumps(dumps, folder, entries, (size_t)count);
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
static int explain_folder(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          const char *folder, struct weft_text *text) {
  const char *path = arguments->texts[WEFT_CLI_OPTION_PROGRAM];
  if (path == NULL) {
    return weft_cli_usage(cli, "add --program FILE: the table or program that the job runs",
                          "'%s' is a folder, and which action a rank is in follows only from "
                          "its program",
                          weft_cli_quoted(folder).text);
  }
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_SCOPED_ARENA arena = {.allocator = cli->allocator};
  struct dumps dumps = {.cli = cli, .arena = &arena};
  WEFT_CLI_TRY(weft_cli_read_program(cli, path, &program));
  WEFT_CLI_TRY(read_folder(&dumps, folder));
  WEFT_CLI_CALL(cli, folder,
                weft_flight_explain(cli->allocator, program, dumps.items, dumps.count,
                                    arguments->given[WEFT_CLI_OPTION_JSON], text, &error));
  return WEFT_CLI_OK;
}

int weft_cli_cmd_explain_hang(const struct weft_cli *cli,
                              const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  const char *path = arguments->operands[0] != NULL ? arguments->operands[0] : default_path();
  if (is_folder(path)) {
    WEFT_CLI_TRY(explain_folder(cli, arguments, path, &text));
  } else if (arguments->given[WEFT_CLI_OPTION_PROGRAM]) {
    return weft_cli_usage(cli, "give the folder with the dumps of PyTorch's flight recorder",
                          "--program is for the dumps of a PyTorch job; '%s' is no folder",
                          weft_cli_quoted(weft_cli_input_name(path)).text);
  } else {
    WEFT_CLI_TRY(weft_cli_read_hang(cli, path, arguments->given[WEFT_CLI_OPTION_JSON], &text));
  }
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}
