/* Reading a table, a program, costs, a graph or a dump from a file or from standard input. */
#include "cli/io/input_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <weft/run.h>
#include <weft/support.h>

#include "cli/io/text_columns.h"
#include "cli/scoped.h"

#define CHUNK_BYTES ((size_t)1 << 16)
#define READ_BYTES_MAX ((size_t)1 << 20)

/* What is read, for messages, and the size after which an endless input is refused: as the
 * library's parsers have it. */
struct kind {
  const char *content;
  const char *hint;
  const char *size_hint;
  uint64_t bytes_max;
  const char *first; /* the bytes that it can begin with; NULL: any */
};

#define JSON_HINT "give the name of a JSON file"

/* More text than WEFT_ACTIONS_MAX actions take. */
static const struct kind program_kind = {"a table or program",
                                         "give the name of a CSV file, or - for standard input",
                                         "a table has one row per rank; is this the right file?",
                                         UINT64_C(1) << 32, "0123456789FBIW(\",;# \t\r\n\xef"};
static const struct kind costs_kind = {
    "costs in JSON", JSON_HINT, "one entry in stages serves all stages", UINT64_C(64) << 20, NULL};
static const struct kind graph_kind = {"a graph of stages in JSON", JSON_HINT,
                                       "a graph has one entry per edge", UINT64_C(64) << 20, NULL};
static const struct kind hang_kind = {
    "the dump of a run that hangs", JSON_HINT ", or - for standard input",
    "a dump has one line per rank; is this the right file?", UINT64_C(256) << 20, NULL};

struct input {
  const struct weft_cli *cli;
  const struct kind *kind;
  const char *path; /* NULL or "-": standard input */
  char *data;
  size_t size;
  size_t capacity;
  size_t expected; /* of a regular file: its bytes and one, which the last read() needs */
};

bool weft_cli_is_standard_input(const char *path) { return path == NULL || strcmp(path, "-") == 0; }

const char *weft_cli_input_name(const char *path) {
  return weft_cli_is_standard_input(path) ? "standard input" : path;
}

static void release_input(struct input *input) {
  weft_array_free(input->cli->allocator, input->data, input->capacity, 1);
}

#define SCOPED_INPUT WEFT_SCOPED_BY(release_input) struct input

static int grow_input(struct input *input, size_t capacity) {
  char *data = weft_array_resize(input->cli->allocator, input->data, input->capacity, capacity, 1);
  if (data == NULL) {
    return weft_cli_fail_memory(input->cli);
  }
  input->data = data;
  input->capacity = capacity;
  return WEFT_CLI_OK;
}

/* EX_NOINPUT covers a file that is not there and one that may not be read. */
static int fail_open(const struct input *input, int code) {
  const bool no_file = code == ENOENT || code == ENOTDIR || code == EACCES || code == EPERM ||
                       code == ELOOP || code == ENAMETOOLONG || code == EISDIR;
  weft_cli_print(input->cli, input->kind->hint, "cannot open '%s': %s; expected a file with %s",
                 weft_cli_quoted(weft_cli_input_name(input->path)).text, strerror(code),
                 input->kind->content);
  return no_file ? WEFT_CLI_NO_INPUT : WEFT_CLI_IO;
}

static int fail_read(const struct input *input, int code) {
  weft_cli_print(input->cli, "copy it to a file that can be read, and try again",
                 "cannot read '%s': %s", weft_cli_quoted(weft_cli_input_name(input->path)).text,
                 strerror(code));
  return WEFT_CLI_IO;
}

static int fail_size(const struct input *input) {
  weft_cli_print(input->cli, input->kind->size_hint,
                 "'%s' has more than %" PRIu64 " bytes, the limit of an input",
                 weft_cli_quoted(weft_cli_input_name(input->path)).text, input->kind->bytes_max);
  return WEFT_CLI_MALFORMED;
}

/* Whether it can still be what is expected, after a read() at `from`. A NUL byte is no part of any
 * text. */
static bool is_plausible(const struct input *input, size_t from) {
  const struct kind *kind = input->kind;
  return memchr(input->data + from, '\0', input->size - from) == NULL &&
         (kind->first == NULL || strchr(kind->first, input->data[0]) != NULL);
}

/* Reads to the end, or as far as it is plausible, so that /dev/zero and a large file of another
 * kind are refused at once: the parser names the place. */
static int read_all(struct input *input, int fd) {
  for (;;) {
    const size_t twice = input->capacity * 2;
    if (input->size == input->capacity) {
      WEFT_CLI_TRY(grow_input(input, twice > input->expected ? twice : input->expected));
    }
    const size_t room = input->capacity - input->size;
    const ssize_t got =
        read(fd, input->data + input->size, room < READ_BYTES_MAX ? room : READ_BYTES_MAX);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return fail_read(input, errno);
    }
    input->size += (size_t)got;
    if (got == 0 || !is_plausible(input, input->size - (size_t)got)) {
      return WEFT_CLI_OK;
    }
    if (input->size > input->kind->bytes_max) {
      return fail_size(input);
    }
  }
}

/* A regular file gets a buffer of its size once its beginning is plausible. */
static int make_room(struct input *input, int fd) {
  struct stat status;
  size_t capacity = CHUNK_BYTES;
  if (fstat(fd, &status) == 0) {
    if (S_ISDIR(status.st_mode)) {
      return fail_open(input, EISDIR);
    }
    if (S_ISREG(status.st_mode) && (uint64_t)status.st_size > input->kind->bytes_max) {
      return fail_size(input);
    }
    if (S_ISREG(status.st_mode) && status.st_size > 0) {
      input->expected = (size_t)status.st_size + 1;
      capacity = input->expected < READ_BYTES_MAX ? input->expected : READ_BYTES_MAX;
    }
  }
  return grow_input(input, capacity);
}

static int open_input(const struct input *input, int *fd) {
  const struct weft_cli *cli = input->cli;
  if (weft_cli_is_standard_input(input->path)) {
    *fd = cli->input;
    if (cli->input_terminal) {
      weft_cli_print(cli, NULL, "reading %s from the terminal; end it with Ctrl-D",
                     input->kind->content);
    }
    return WEFT_CLI_OK;
  }
  do {
    *fd = open(input->path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  } while (*fd < 0 && errno == EINTR);
  return *fd >= 0 ? WEFT_CLI_OK : fail_open(input, errno);
}

/* The whole text. */
static int read_text(struct input *input) {
  int fd;
  WEFT_CLI_TRY(open_input(input, &fd));
  int status = make_room(input, fd);
  if (status == WEFT_CLI_OK) {
    status = read_all(input, fd);
  }
  if (!weft_cli_is_standard_input(input->path)) {
    (void)close(fd);
  }
  return status;
}

/* WEFT_CLI_OK, or after printing the failure with its place in the text. */
static int check_parsed(const struct input *input, enum weft_status status,
                        const struct weft_error *error) {
  if (status >= 0) {
    return WEFT_CLI_OK;
  }
  struct weft_error malformed = *error;
  /* Edges that form no graph: the input is no table, and its name is in the message. */
  malformed.status = status == WEFT_ERR_INVALID ? WEFT_ERR_FORMAT : status;
  return weft_cli_fail_text(input->cli, weft_cli_input_name(input->path), input->data, input->size,
                            &malformed);
}

/* Reads a file of one kind with its parser. */
#define READ_AND_PARSE(cli_, kind_, path_, parse, out)                         \
  do {                                                                         \
    SCOPED_INPUT input = {.cli = (cli_), .kind = (kind_), .path = (path_)};    \
    struct weft_error error;                                                   \
    WEFT_CLI_TRY(read_text(&input));                                           \
    return check_parsed(&input,                                                \
                        parse(input.cli->allocator, input.data, input.size,    \
                              weft_cli_input_name(input.path), (out), &error), \
                        &error);                                               \
  } while (0)

int weft_cli_read_program(const struct weft_cli *cli, const char *path, struct weft_program **out) {
  assert(cli != NULL && out != NULL);
  READ_AND_PARSE(cli, &program_kind, path, weft_program_parse, out);
}

int weft_cli_read_costs(const struct weft_cli *cli, const char *path, struct weft_costs **out) {
  assert(cli != NULL && out != NULL);
  READ_AND_PARSE(cli, &costs_kind, path, weft_costs_parse, out);
}

int weft_cli_read_graph(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                        struct weft_graph **out) {
  assert(cli != NULL && arguments != NULL && out != NULL);
  *out = NULL;
  if (!arguments->given[WEFT_CLI_OPTION_GRAPH]) {
    return WEFT_CLI_OK;
  }
  READ_AND_PARSE(cli, &graph_kind, arguments->texts[WEFT_CLI_OPTION_GRAPH], weft_graph_parse, out);
}

/* ---- A program with the graph of --graph ---- */

static int fail_edges(const struct weft_cli *cli, const char *name, const char *graph_name,
                      const struct weft_graph *row, const struct weft_graph *graph) {
  struct weft_edge edge = weft_edge_make(0, 0);
  bool in_row = false;
  const bool differ = weft_graph_difference(row, graph, &edge, &in_row);
  assert(differ); /* no stage is without edges */
  (void)differ;
  return weft_cli_usage(cli, "leave --graph out, or give the graph that the table was made for",
                        "the row #graph of %s and the graph of %s differ: only %s has the edge "
                        "%" PRIu32 ">%" PRIu32 "%s",
                        weft_cli_quoted(name).text, weft_cli_quoted(graph_name).text,
                        in_row ? "the row" : "the graph", (uint32_t)edge.from, (uint32_t)edge.to,
                        edge.gradient ? "" : " without a gradient");
}

static int apply_graph(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       const char *name, struct weft_program *program) {
  WEFT_SCOPED(weft_graph) graph = NULL;
  struct weft_error error;
  const bool has_row = weft_graph_stage_count(program->graph) > 0;
  if (!arguments->given[WEFT_CLI_OPTION_GRAPH]) {
    return WEFT_CLI_OK;
  }
  WEFT_CLI_TRY(weft_cli_read_graph(cli, arguments, &graph));
  const char *graph_name = weft_cli_input_name(arguments->texts[WEFT_CLI_OPTION_GRAPH]);
  if (has_row && !weft_graph_equal(program->graph, graph)) {
    return fail_edges(cli, name, graph_name, program->graph, graph);
  }
  /* A table with the row may lack stages, which verification reports; another graph is a mistake. */
  if (program->stage_count < graph->stage_count && !has_row) {
    return weft_cli_usage(cli, "use the graph that the table was made for",
                          "%s: %s, and a graph of %" PRIu32, weft_cli_quoted(name).text,
                          weft_cli_count(program->stage_count, "stage").text, graph->stage_count);
  }
  return weft_cli_result(cli, name, weft_program_set_graph(program, graph, &error), &error);
}

int weft_cli_read_operand(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          unsigned index, struct weft_program **out) {
  const char *path = arguments->operands[index];
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_CLI_TRY(weft_cli_read_program(cli, path, &program));
  WEFT_CLI_TRY(apply_graph(cli, arguments, weft_cli_input_name(path), program));
  *out = program;
  program = NULL;
  return WEFT_CLI_OK;
}

#define HANG_HINT                                                                           \
  "give the weft-hang.json that 'weft run' has written, or the folder with the dumps of a " \
  "PyTorch job and --program with its table"

static bool is_table(const struct input *input) {
  WEFT_SCOPED(weft_program) program = NULL;
  return weft_program_parse(input->cli->allocator, input->data, input->size, NULL, &program,
                            NULL) == WEFT_OK;
}

int weft_cli_read_hang(const struct weft_cli *cli, const char *path, bool json,
                       struct weft_text *text) {
  assert(cli != NULL && text != NULL);
  SCOPED_INPUT input = {.cli = cli, .kind = &hang_kind, .path = path};
  const char *name = weft_cli_input_name(path);
  struct weft_error error;
  WEFT_CLI_TRY(read_text(&input));
  if (is_table(&input)) {
    weft_cli_print(cli, HANG_HINT, "%s: a table or program, expected the dump of a run that hangs",
                   weft_cli_quoted(name).text);
    return WEFT_CLI_MALFORMED;
  }
  const enum weft_status status = (json ? weft_hang_explain_json : weft_hang_explain)(
      input.data, input.size, name, text, &error);
  if (status == WEFT_ERR_FORMAT) { /* the library's hint names a function */
    (void)snprintf(error.hint, sizeof error.hint, "%s", HANG_HINT);
  }
  return check_parsed(&input, status, &error);
}

int weft_cli_fail_finding(const struct weft_cli *cli, const char *name,
                          const struct weft_report *report, const char *hint, bool counts) {
  assert(cli != NULL && report->finding_count > 0);
  const struct weft_finding *finding = &report->findings[0];
  const uint64_t more = report->finding_count - 1 + report->findings_left_out;
  char rest[48] = "";
  if (counts && more > 0) {
    (void)snprintf(rest, sizeof rest, ", and %" PRIu64 " more finding%s", more,
                   weft_cli_plural(more));
  }
  weft_cli_print(cli, hint, "%s: rank %" PRIu32 " step %" PRIu64 ": %s [%s]%s",
                 weft_cli_quoted(name).text, finding->location.rank, finding->location.step,
                 finding->message, weft_rule_id(finding->rule), rest);
  return WEFT_CLI_FOUND_BAD;
}

int weft_cli_check_valid(const struct weft_cli *cli, const struct weft_program *program,
                         const char *name) {
  assert(cli != NULL && program != NULL);
  struct weft_verify_options options = weft_verify_options_default();
  WEFT_SCOPED(weft_report) report = NULL;
  options.model.capacity = WEFT_CAPACITY_UNLIMITED;
  options.findings_max = 1;
  WEFT_CLI_CALL(cli, name, weft_verify(cli->allocator, program, &options, &report, &error));
  return report->ok
             ? WEFT_CLI_OK
             : weft_cli_fail_finding(
                   cli, name, report,
                   "'weft verify --comm eager' lists everything that is wrong with it", false);
}
