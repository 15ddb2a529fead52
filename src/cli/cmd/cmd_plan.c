/* `weft plan`: searches for the best table and reports it with its lower bound; with --pareto the
 * best plans for a range of memory limits; with --global-batch the best use of all ranks. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include <weft/launch.h>
#include <weft/support.h>

#include "cli/cmd/commands.h"
#include "cli/cmd/plan_command.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/picture_file.h"
#include "cli/scoped.h"

/* Name in --for of a table that goes to standard output. */
#define FILE_UNKNOWN "plan.csv"

enum { PARTS_NAMED_MAX = 4096 };

/* A time limit is kept to within so much, unless one order takes longer. */
#define TIME_TOLERANCE 0.1
#define TIME_TOLERANCE_SECONDS 0.05

WEFT_SCOPED_TYPE(weft_choice)
WEFT_SCOPED_TYPE(weft_search_answer)

/* Everything between the command line and the report. */
struct plan_run {
  const struct weft_cli *cli;
  const struct weft_cli_arguments *arguments;
  const char *path; /* of -o; NULL: standard output */
  bool json;
  struct weft_search_request request;
  struct weft_cli_plan_progress progress;
};

/* ---- Output ---- */

static bool is_same_file(const char *a, const char *b) {
  struct stat first, second;
  return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/* The name of the costs beside a table: plan.csv, plan.costs.json. No name where the table goes to
 * a pipe or a device, or where the costs were read from that file. */
static void add_costs_path(struct weft_text *path, const struct plan_run *run) {
  static const char ending[] = ".csv";
  const char *table = run->path, *given = run->arguments->texts[WEFT_CLI_OPTION_COSTS];
  struct stat status;
  if (table == NULL || (stat(table, &status) == 0 && !S_ISREG(status.st_mode))) {
    return;
  }
  const size_t size = strlen(table), cut = sizeof ending - 1;
  const bool is_csv = size > cut && strcmp(table + size - cut, ending) == 0;
  weft_text_append(path, table, is_csv ? size - cut : size);
  weft_text_add(path, ".costs.json");
  if (!path->failed && given != NULL && is_same_file(path->data, given)) {
    path->size = 0;
  }
}

/* Leaves the costs of the plan's stages beside its table, so that others can repeat its numbers. */
static int write_costs(const struct plan_run *run, const struct weft_text *path,
                       const struct weft_costs *costs) {
  WEFT_SCOPED_TEXT text = {.allocator = run->cli->allocator};
  struct weft_json json = {.text = &text};
  weft_costs_print(costs, &json, NULL);
  weft_json_finish(&json);
  if (text.failed || path->failed) {
    return weft_cli_fail_memory(run->cli);
  }
  return path->size > 0 ? weft_cli_write_file(run->cli, path->data, &text) : WEFT_CLI_OK;
}

/* Writes `file` to -o if that is given, with the costs (or NULL) beside it, else to standard output
 * unless there is nothing to write; and `text` to standard output, unless the file is there: both
 * are complete before either is written. */
static int write_both(const struct plan_run *run, const struct weft_text *file,
                      const struct weft_text *costs_path, const struct weft_costs *costs,
                      const struct weft_text *text) {
  if (file->failed || text->failed) {
    return weft_cli_fail_memory(run->cli);
  }
  if (run->path != NULL) {
    WEFT_CLI_TRY(weft_cli_write_file(run->cli, run->path, file));
    WEFT_CLI_TRY(costs != NULL ? write_costs(run, costs_path, costs) : WEFT_CLI_OK);
  } else if (!run->json && file->size > 0) {
    WEFT_CLI_TRY(weft_cli_write_stdout(run->cli, file));
    return weft_cli_write_descriptor(run->cli, run->cli->messages, "standard error", text);
  }
  return weft_cli_write_stdout(run->cli, text);
}

/* The exit status of a search that a signal has ended. */
static int exit_status(const struct plan_run *run, bool stopped) {
  const int number = weft_launch_signal();
  if (number == 0 || !stopped) {
    return WEFT_CLI_OK;
  }
  weft_cli_print(run->cli, NULL, "stopped by %s: this is the best plan so far",
                 weft_launch_signal_name(number));
  return 128 + number;
}

/* Says when the time limit was too short even for one order, its check and what has followed the
 * search since `ended_ns`. */
static void note_least_time(const struct plan_run *run, const struct weft_search_answer *answer,
                            int64_t ended_ns) {
  const double limit = run->request.time_limit;
  const double least = answer->least_seconds + (double)(weft_clock_ns() - ended_ns) * 1e-9;
  if (limit > 0 && least > limit + TIME_TOLERANCE * limit + TIME_TOLERANCE_SECONDS) {
    weft_cli_print(run->cli, NULL,
                   "note: --time-limit %g is too short: one order of %" PRIu64
                   " actions, its check and its output took %.2g s",
                   limit, answer->table->action_count, least);
  }
}

/* ---- One plan ---- */

/* The names in --part-names, which are separated by commas; `names` has room for PARTS_NAMED_MAX,
 * and `text` is cut into them. */
static int split_names(const struct weft_cli *cli, char *text, const char **names,
                       uint32_t *count) {
  for (*count = 0; text != NULL; (*count)++) {
    char *comma = strchr(text, ',');
    if (*count == PARTS_NAMED_MAX || text[0] == '\0' || comma == text) {
      return weft_cli_usage(cli, "for example: --part-names E,t,t,m,L", "--part-names has %s",
                            *count == PARTS_NAMED_MAX ? "too many names" : "an empty name");
    }
    names[*count] = text;
    if (comma != NULL) {
      *comma++ = '\0';
    }
    text = comma;
  }
  return WEFT_CLI_OK;
}

/* --for */
static int find_target(const struct plan_run *run, const struct weft_search_answer *answer,
                       struct weft_target **target) {
  const char *given = run->arguments->texts[WEFT_CLI_OPTION_PART_NAMES];
  const char *names[PARTS_NAMED_MAX];
  WEFT_SCOPED_TEXT copy = {.allocator = run->cli->allocator};
  struct weft_target_request request = {
      .kind = (enum weft_target_kind)run->arguments->choices[WEFT_CLI_OPTION_FOR],
      .table = answer->table,
      .stage_parts = answer->stage_parts,
      .file = run->path != NULL ? run->path : FILE_UNKNOWN};
  if (!run->arguments->given[WEFT_CLI_OPTION_FOR]) {
    return WEFT_CLI_OK;
  }
  if (given != NULL) {
    weft_text_add(&copy, given);
    WEFT_CLI_TRY(copy.failed ? weft_cli_fail_memory(run->cli) : WEFT_CLI_OK);
    WEFT_CLI_TRY(split_names(run->cli, copy.data, names, &request.part_count));
    request.part_names = names;
  }
  WEFT_CLI_CALL(run->cli, NULL, weft_target(run->cli->allocator, &request, target, &error));
  return WEFT_CLI_OK;
}

static int write_answer(const struct plan_run *run, const struct weft_search_answer *answer) {
  const struct weft_search_request *request = &run->request;
  WEFT_SCOPED(weft_target) target = NULL;
  WEFT_SCOPED_TEXT table = {.allocator = run->cli->allocator};
  WEFT_SCOPED_TEXT text = {.allocator = run->cli->allocator};
  WEFT_SCOPED_TEXT costs_path = {.allocator = run->cli->allocator};
  struct weft_cli_plan plan = {
      .request = request,
      .answer = answer,
      .prediction = {.name = answer->schedule,
                     .costs = answer->stage_parts != NULL ? answer->costs : request->costs,
                     .simulation = answer->simulation,
                     .limited = isfinite(request->memory_limit),
                     .memory_limit = request->memory_limit},
      .file = run->path,
      .kind = (enum weft_target_kind)run->arguments->choices[WEFT_CLI_OPTION_FOR]};
  WEFT_CLI_CALL(run->cli, NULL,
                weft_period(run->cli->allocator, answer->table, answer->costs, NULL,
                            &plan.prediction.period, &error));
  WEFT_CLI_TRY(find_target(run, answer, &target));
  plan.target = target;
  weft_program_print(target != NULL && target->table != NULL ? target->table : answer->table,
                     &table);
  add_costs_path(&costs_path, run);
  plan.costs_file = costs_path.size > 0 ? costs_path.data : NULL;
  (run->json ? weft_cli_plan_add_json : weft_cli_plan_add)(&text, &plan);
  WEFT_CLI_TRY(write_both(run, &table, &costs_path, answer->costs, &text));
  return exit_status(run, answer->stopped);
}

static int plan_once(struct plan_run *run) {
  WEFT_SCOPED(weft_search_answer) answer = NULL;
  struct weft_error error;
  const enum weft_status found = weft_search(run->cli->allocator, &run->request, &answer, &error);
  const int64_t ended_ns = weft_clock_ns();
  weft_cli_plan_progress_finish(&run->progress);
  WEFT_CLI_TRY(weft_cli_result(run->cli, NULL, found, &error));
  const int status = write_answer(run, answer);
  note_least_time(run, answer, ended_ns);
  return status;
}

/* ---- The Pareto front ---- */

static int plan_pareto(struct plan_run *run) {
  WEFT_SCOPED_BY(weft_cli_pareto_finish) struct weft_cli_pareto pareto = {.count = 0};
  WEFT_SCOPED_TEXT picture = {.allocator = run->cli->allocator};
  WEFT_SCOPED_TEXT text = {.allocator = run->cli->allocator};
  const int status = weft_cli_pareto_find(run->cli, &run->request, &run->progress, &pareto);
  weft_cli_plan_progress_finish(&run->progress);
  WEFT_CLI_TRY(status);
  if (run->path != NULL) {
    weft_cli_pareto_add_picture(&picture, &pareto, run->path);
  }
  if (run->json) {
    weft_cli_pareto_add_json(&text, &pareto);
  } else {
    weft_cli_pareto_add(&text, &pareto, run->cli->columns);
  }
  WEFT_CLI_TRY(write_both(run, &picture, NULL, NULL, &text));
  return exit_status(run, pareto.stopped);
}

/* ---- The choice ---- */

/* A picture of all candidates, or the table of the best. */
static int write_choice(const struct plan_run *run, struct weft_cli_choice *choice) {
  const struct weft_search_answer *best = choice->choice->candidates[0].answer;
  const bool draws = run->path != NULL && weft_cli_is_picture(run->path);
  WEFT_SCOPED_TEXT costs_path = {.allocator = run->cli->allocator};
  WEFT_SCOPED_TEXT file = {.allocator = run->cli->allocator};
  WEFT_SCOPED_TEXT text = {.allocator = run->cli->allocator};
  if (draws) {
    weft_cli_choice_add_picture(&file, choice, run->path);
  } else if (run->path != NULL) {
    weft_program_print(best->table, &file);
    add_costs_path(&costs_path, run);
    choice->file = run->path;
    choice->costs_file = costs_path.size > 0 ? costs_path.data : NULL;
  }
  if (run->json) {
    weft_cli_choice_add_json(&text, choice);
  } else {
    weft_cli_choice_add(&text, choice, run->cli->columns);
  }
  return write_both(run, &file, &costs_path, draws ? NULL : best->costs, &text);
}

static int plan_choice(struct plan_run *run) {
  WEFT_SCOPED(weft_choice) choice = NULL;
  struct weft_error error;
  const struct weft_choice_request request = {
      .search = run->request,
      .global_batch = weft_cli_number(run->arguments, WEFT_CLI_OPTION_GLOBAL_BATCH, 0)};
  const enum weft_status found = weft_choose(run->cli->allocator, &request, &choice, &error);
  const int64_t ended_ns = weft_clock_ns();
  weft_cli_plan_progress_finish(&run->progress);
  WEFT_CLI_TRY(weft_cli_result(run->cli, NULL, found, &error));
  WEFT_CLI_TRY(write_choice(run, &(struct weft_cli_choice){.request = &request, .choice = choice}));
  note_least_time(run, choice->candidates[0].answer, ended_ns);
  return exit_status(run, choice->stopped);
}

/* ---- The command ---- */

static int check_options(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  static const enum weft_cli_option_id others[] = {WEFT_CLI_OPTION_MICROBATCHES,
                                                   WEFT_CLI_OPTION_PARETO, WEFT_CLI_OPTION_FOR,
                                                   WEFT_CLI_OPTION_KEEP_PARTITION};
  const bool *given = arguments->given;
  const char *path = weft_cli_output_path(arguments);
  if (given[WEFT_CLI_OPTION_PARETO] && given[WEFT_CLI_OPTION_FOR]) {
    return weft_cli_usage(cli, "choose a limit, and give it with --memory",
                          "--for needs one table, and --pareto makes many");
  }
  if (given[WEFT_CLI_OPTION_PART_NAMES] && !given[WEFT_CLI_OPTION_FOR]) {
    return weft_cli_usage(cli, "for example: --for megatron --part-names E,t,t,m,L",
                          "--part-names is about --for, and --for is not there");
  }
  if (given[WEFT_CLI_OPTION_PARETO] && path != NULL && !weft_cli_is_picture(path)) {
    return weft_cli_usage(cli, "for example: -o memory.svg; the table is on standard output",
                          "'%s' ends with neither .svg nor .html: with --pareto, -o draws",
                          weft_cli_quoted(path).text);
  }
  if (!given[WEFT_CLI_OPTION_PARETO] && !given[WEFT_CLI_OPTION_GLOBAL_BATCH] && path != NULL &&
      weft_cli_is_picture(path)) {
    return weft_cli_usage(cli, "for example: -o plan.csv, and then weft show plan.csv -o plan.html",
                          "'%s' is the name of a picture or page, and -o writes the table",
                          weft_cli_quoted(path).text);
  }
  const char *other = weft_cli_first_given(arguments, others, WEFT_ARRAY_LENGTH(others));
  if (given[WEFT_CLI_OPTION_GLOBAL_BATCH] && other != NULL) {
    return weft_cli_usage(cli, "leave one of them out",
                          "--global-batch chooses the pipeline, and --%s is about a given one",
                          other);
  }
  if (given[WEFT_CLI_OPTION_STAGE_RANKS] && !given[WEFT_CLI_OPTION_GRAPH]) {
    return weft_cli_usage(cli, "use --placement for a chain of stages",
                          "--stage-ranks places the stages of a graph, and --graph is not there");
  }
  if (given[WEFT_CLI_OPTION_GRAPH] && given[WEFT_CLI_OPTION_STAGES_PER_RANK]) {
    return weft_cli_usage(cli, "leave it out: the graph has the stages, -p the ranks",
                          "--stages-per-rank makes the stages of a chain, and --graph has its own");
  }
  if (given[WEFT_CLI_OPTION_GRAPH] && given[WEFT_CLI_OPTION_FOR]) {
    return weft_cli_usage(cli, "weft run and the Python package run it",
                          "PyTorch's schedules are for chains: --for does not go with --graph");
  }
  if (given[WEFT_CLI_OPTION_STAGE_RANKS] && given[WEFT_CLI_OPTION_GLOBAL_BATCH]) {
    return weft_cli_usage(cli, "leave one of them out",
                          "--global-batch chooses the ranks, and --stage-ranks gives them");
  }
  if (given[WEFT_CLI_OPTION_STAGE_RANKS] && given[WEFT_CLI_OPTION_PLACEMENT]) {
    return weft_cli_usage(cli, "leave one of them out",
                          "--placement and --stage-ranks both place the stages");
  }
  if (given[WEFT_CLI_OPTION_JSON] && given[WEFT_CLI_OPTION_OUTPUT] && path == NULL) {
    return weft_cli_usage(cli, "give -o a file, or leave it out",
                          "with --json the document goes to standard output, and the table "
                          "cannot go there too");
  }
  return WEFT_CLI_OK;
}

/* --stage-ranks: a rank for each stage of the graph. */
static int read_stage_ranks(const struct weft_cli *cli, const char *text, uint32_t stage_count,
                            uint32_t *rank_of) {
  uint32_t count;
  if (weft_cli_read_numbers(text, WEFT_RANKS_MAX - 1, rank_of, stage_count, &count) &&
      count == stage_count) {
    return WEFT_CLI_OK;
  }
  return weft_cli_usage(cli, "for example: --stage-ranks 0,1,1,2",
                        "--stage-ranks '%s': expected %" PRIu32
                        " numbers of ranks, one for each stage of the graph",
                        weft_cli_quoted(text).text, stage_count);
}

int weft_cli_cmd_plan(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  WEFT_SCOPED_BY(weft_cli_costs_finish) struct weft_cli_costs costs = {.costs = NULL};
  WEFT_SCOPED(weft_graph) graph = NULL;
  WEFT_SCOPED_ARENA arena = {.allocator = cli->allocator};
  const bool *given = arguments->given;
  struct plan_run run = {.cli = cli,
                         .arguments = arguments,
                         .path = weft_cli_output_path(arguments),
                         .json = given[WEFT_CLI_OPTION_JSON]};
  struct weft_search_request *request = &run.request;
  WEFT_CLI_TRY(check_options(cli, arguments));
  WEFT_CLI_TRY(weft_cli_costs_read(cli, arguments, &costs));
  WEFT_CLI_TRY(weft_cli_plan_read_request(cli, arguments, &costs, request));
  WEFT_CLI_TRY(weft_cli_read_graph(cli, arguments, &graph));
  request->graph = graph;
  if (given[WEFT_CLI_OPTION_COSTS_OF] &&
      (given[WEFT_CLI_OPTION_GLOBAL_BATCH] || weft_cli_plan_cuts(request))) {
    return weft_cli_usage(cli, "leave it out", "--costs-of has no effect here: %s",
                          weft_cli_plan_cuts(request)
                              ? "the times of a stage are those of its parts"
                              : "where --global-batch chooses the ranks, times are of a stage");
  }
  if (given[WEFT_CLI_OPTION_STAGE_RANKS]) {
    uint32_t *rank_of = weft_arena_allocate(&arena, graph->stage_count, sizeof *rank_of);
    if (rank_of == NULL) {
      return weft_cli_fail_memory(cli);
    }
    WEFT_CLI_TRY(read_stage_ranks(cli, arguments->texts[WEFT_CLI_OPTION_STAGE_RANKS],
                                  graph->stage_count, rank_of));
    request->rank_of = rank_of;
  }
  if ((given[WEFT_CLI_OPTION_GLOBAL_BATCH] || given[WEFT_CLI_OPTION_PARETO]) &&
      !given[WEFT_CLI_OPTION_EFFORT] && request->time_limit <= 0) {
    request->effort = WEFT_CHOICE_EFFORT;
  }
  weft_launch_signals_begin();
  weft_cli_plan_progress_begin(&run.progress, cli, !run.json, request);
  const int status = given[WEFT_CLI_OPTION_GLOBAL_BATCH] ? plan_choice(&run)
                     : given[WEFT_CLI_OPTION_PARETO]     ? plan_pareto(&run)
                                                         : plan_once(&run);
  weft_launch_signals_end();
  return status;
}
