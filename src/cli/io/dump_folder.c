#include "cli/io/dump_folder.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <weft/flight.h>
#include <weft/support.h>

#include "cli/io/error_message.h"
#include "cli/io/input_file.h"
#include "cli/scoped.h"

struct dumps {
  const struct weft_cli *cli;
  struct weft_arena arena; /* of names and of the two arrays */
  struct weft_flight_dump *items;
  void **data; /* of the items */
  size_t *capacities;
  size_t count;
};

static void release(struct dumps *dumps) {
  for (size_t k = 0; k < dumps->count; k++) {
    weft_array_free(dumps->cli->allocator, dumps->data[k], dumps->capacities[k], 1);
  }
  weft_arena_finish(&dumps->arena);
}

#define SCOPED_DUMPS WEFT_SCOPED_BY(release) struct dumps

/* "rank0.pkl", "nccl_trace_rank_12", but no hidden file and no "program.csv". */
static int is_dump(const struct dirent *entry) {
  const char *name = entry->d_name;
  const char *dot = strchr(name, '.');
  const size_t stem = dot != NULL ? (size_t)(dot - name) : strlen(name);
  return stem > 0 && name[stem - 1] >= '0' && name[stem - 1] <= '9';
}

static int read_dump(struct dumps *dumps, const char *folder, const char *file) {
  struct weft_text path = {.allocator = dumps->cli->allocator};
  weft_text_addf(&path, "%s/%s", folder, file);
  struct weft_flight_dump *dump = &dumps->items[dumps->count];
  int status = path.failed
                   ? weft_cli_fail_memory(dumps->cli)
                   : weft_cli_read_flight_dump(dumps->cli, path.data, &dumps->data[dumps->count],
                                               &dump->size, &dumps->capacities[dumps->count]);
  weft_text_finish(&path);
  if (status == WEFT_CLI_OK) {
    dump->data = dumps->data[dumps->count];
    dump->name = weft_arena_copy_text(&dumps->arena, file, strlen(file));
    dumps->count++;
    status = dump->name != NULL ? WEFT_CLI_OK : weft_cli_fail_memory(dumps->cli);
  }
  return status;
}

static int read_dumps(struct dumps *dumps, const char *folder, struct dirent **entries,
                      size_t count) {
  dumps->items = weft_arena_allocate(&dumps->arena, count + 1, sizeof *dumps->items);
  dumps->capacities = weft_arena_allocate(&dumps->arena, count + 1, sizeof *dumps->capacities);
  dumps->data = weft_arena_allocate(&dumps->arena, count + 1, sizeof *dumps->data);
  if (dumps->items == NULL || dumps->data == NULL || dumps->capacities == NULL) {
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

int weft_cli_explain_flight(const struct weft_cli *cli, const char *folder,
                            const struct weft_program *program, bool json, struct weft_text *text) {
  assert(cli != NULL && folder != NULL && program != NULL && text != NULL);
  SCOPED_DUMPS dumps = {.cli = cli, .arena = {.allocator = cli->allocator}};
  struct weft_error error;
  WEFT_CLI_TRY(read_folder(&dumps, folder));
  return weft_cli_result(
      cli, folder,
      weft_flight_explain(cli->allocator, program, dumps.items, dumps.count, json, text, &error),
      &error);
}
