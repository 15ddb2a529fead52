/* `weft show`: a timeline in the terminal or as a file, by the file's ending; and
 * with --grid the grid of steps and ranks. */
#include <assert.h>
#include <string.h>

#include <weft/lower.h>
#include <weft/render.h>
#include <weft/support.h>

#include "cli/args/cost_options.h"
#include "cli/cmd/commands.h"
#include "cli/io/input_file.h"
#include "cli/io/output_file.h"
#include "cli/io/picture_file.h"
#include "cli/report/program_json.h"
#include "cli/scoped.h"

enum { COLUMNS_MIN = 20, COLUMNS_MAX = 10000 };

/* ---- --grid ---- */

static int show_grid(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  WEFT_SCOPED(weft_program) program = NULL;
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, 0, &program));
  WEFT_CLI_CALL(cli, weft_cli_input_name(arguments->operands[0]),
                weft_grid_print(program, NULL, &text, &error));
  weft_cli_print_note(cli, NULL, program);
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}

/* ---- Kinds of pictures ---- */

/* The kind that -o asks for; NO_PICTURE is text. */
static int choose_kind(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                       enum weft_cli_picture *kind) {
  const char *path = weft_cli_output_path(arguments);
  const bool grid = arguments->given[WEFT_CLI_OPTION_GRID];
  *kind = WEFT_CLI_NO_PICTURE;
  if (grid && path != NULL && weft_cli_is_picture(path)) {
    return weft_cli_usage(cli, "leave --grid out to draw a timeline, or give a name such as x.txt",
                          "'%s' is the name of a picture or page, and --grid writes text",
                          weft_cli_quoted(path).text);
  }
  if (grid || path == NULL) {
    return WEFT_CLI_OK;
  }
  *kind = weft_cli_picture_of(path);
  if (*kind != WEFT_CLI_NO_PICTURE) {
    return WEFT_CLI_OK;
  }
  return weft_cli_usage(cli, "without -o the timeline is drawn as text, on standard output",
                        "-o '%s' has an unknown ending: expected a name that ends in .svg "
                        "(picture), .html (page) or .json (Chrome trace)",
                        weft_cli_quoted(path).text);
}

#define KIND_BIT(kind) (1u << (kind))

/* Options without an effect are refused; the grid has none of these. */
static const struct {
  enum weft_cli_option_id option;
  unsigned kinds; /* of timelines that it is for */
  const char *hint;
} restrictions[] = {
    {WEFT_CLI_OPTION_WIDTH, KIND_BIT(WEFT_CLI_NO_PICTURE) | KIND_BIT(WEFT_CLI_SVG),
     "--width is for the timeline in the terminal and for -o x.svg"},
    {WEFT_CLI_OPTION_DARK, KIND_BIT(WEFT_CLI_SVG), "--dark is for -o x.svg"},
    {WEFT_CLI_OPTION_COLOUR_BY, KIND_BIT(WEFT_CLI_SVG) | KIND_BIT(WEFT_CLI_HTML),
     "--colour-by is for -o x.svg and -o x.html"},
    {WEFT_CLI_OPTION_TITLE,
     KIND_BIT(WEFT_CLI_NO_PICTURE) | KIND_BIT(WEFT_CLI_SVG) | KIND_BIT(WEFT_CLI_HTML) |
         KIND_BIT(WEFT_CLI_TRACE),
     "the grid has no title"},
    {WEFT_CLI_OPTION_NO_TITLE, KIND_BIT(WEFT_CLI_NO_PICTURE) | KIND_BIT(WEFT_CLI_SVG),
     "--no-title is for the timeline in the terminal and for -o x.svg"},
    {WEFT_CLI_OPTION_ALL_RANKS, KIND_BIT(WEFT_CLI_NO_PICTURE),
     "--all-ranks is for the timeline in the terminal; files have all ranks"},
};

static int fail_option(const struct weft_cli *cli, const char *option, const char *hint) {
  return weft_cli_usage(cli, hint, "--%s has no effect here", option);
}

static int check_options(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         enum weft_cli_picture kind) {
  const bool grid = arguments->given[WEFT_CLI_OPTION_GRID];
  for (size_t i = 0; i < WEFT_ARRAY_LENGTH(restrictions); i++) {
    const bool fits = !grid && (restrictions[i].kinds & KIND_BIT(kind)) != 0;
    if (arguments->given[restrictions[i].option] && !fits) {
      return fail_option(cli, weft_cli_option_at(restrictions[i].option)->name,
                         restrictions[i].hint);
    }
  }
  const char *time = weft_cli_costs_given(arguments);
  if (time != NULL && grid) {
    return fail_option(cli, time, "the grid has steps and no times; leave out --grid");
  }
  if (arguments->given[WEFT_CLI_OPTION_TITLE] &&
      (arguments->given[WEFT_CLI_OPTION_NO_TITLE] || arguments->operand_count > 1)) {
    return weft_cli_usage(cli,
                          arguments->operand_count > 1
                              ? "two timelines have the names of their files"
                              : "leave out one of them",
                          arguments->operand_count > 1 ? "--title is for one timeline"
                                                       : "--title and --no-title contradict");
  }
  if (arguments->operand_count > 1 && kind != WEFT_CLI_HTML) {
    return weft_cli_usage(cli, "for example: weft show A.csv B.csv -o both.html",
                          "two tables are drawn side by side only in a page, -o x.html");
  }
  return WEFT_CLI_OK;
}

/* ---- What is drawn: tables or programs, read, checked and simulated ---- */

/* Of a longer table transfers could not be seen, and three times the events are more than a page
 * can hold. Without SEND and RECV they take the same time, unless channels are shared. */
#define TRANSFERS_ACTIONS_MAX 2500000u

enum { TIMELINES_MAX = 2 };

/* All that a command line names. */
struct timelines {
  struct weft_cli_costs costs; /* of all of them */
  struct timeline {
    struct weft_program *given;
    struct weft_program *lowered; /* a table with SEND and RECV added; or NULL */
    struct weft_simulation *simulation;
  } list[TIMELINES_MAX];
  struct weft_picture pictures[TIMELINES_MAX];
  size_t count;
};

static void finish_timelines(struct timelines *timelines) {
  for (size_t i = 0; i < timelines->count; i++) {
    weft_simulation_destroy(timelines->list[i].simulation);
    weft_program_destroy(timelines->list[i].lowered);
    weft_program_destroy(timelines->list[i].given);
  }
  weft_cli_costs_finish(&timelines->costs);
}

/* A table gets SEND and RECV, and nothing else, so that transfers can be seen; a program is drawn
 * as it is. The costs are fitted to one program after the other; a simulation stays valid, because
 * the program that it borrows is the timeline's own. */
static int read_timeline(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                         struct timelines *timelines) {
  struct weft_cli_costs *costs = &timelines->costs;
  const unsigned index = (unsigned)timelines->count++;
  struct timeline *timeline = &timelines->list[index];
  const char *name = weft_cli_input_name(arguments->operands[index]);
  WEFT_CLI_TRY(weft_cli_read_operand(cli, arguments, index, &timeline->given));
  WEFT_CLI_TRY(weft_cli_check_valid(cli, timeline->given, name));
  const struct weft_program *drawn = timeline->given;
  if (drawn->level == WEFT_LEVEL_COMPUTE && (drawn->action_count <= TRANSFERS_ACTIONS_MAX ||
                                             costs->options.channel != WEFT_CHANNEL_EDGE)) {
    WEFT_CLI_CALL(cli, name,
                  weft_lower_transfers(cli->allocator, drawn, &timeline->lowered, &error));
    drawn = timeline->lowered;
  }
  WEFT_CLI_TRY(weft_cli_costs_fit(cli, costs, drawn, name));
  WEFT_CLI_CALL(cli, name,
                weft_simulate(cli->allocator, drawn, costs->costs, &costs->options,
                              &timeline->simulation, &error));
  timelines->pictures[index] = (struct weft_picture){
      .name = name, .simulation = timeline->simulation, .costs = costs->costs};
  return WEFT_CLI_OK;
}

/* To be finished in any case. */
static int read_timelines(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          struct timelines *timelines) {
  if (arguments->operand_count == 2 && strcmp(arguments->operands[0], "-") == 0 &&
      strcmp(arguments->operands[1], "-") == 0) {
    return weft_cli_usage(cli, "give one of the two as a file",
                          "standard input can be read only once");
  }
  WEFT_CLI_TRY(weft_cli_costs_read(cli, arguments, &timelines->costs));
  do {
    WEFT_CLI_TRY(read_timeline(cli, arguments, timelines));
  } while (timelines->count < arguments->operand_count);
  return WEFT_CLI_OK;
}

/* ---- Drawing ---- */

/* Text is as wide as the terminal, if that is known and within reason. */
static uint32_t choose_width(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                             enum weft_cli_picture kind) {
  if (arguments->given[WEFT_CLI_OPTION_WIDTH]) {
    return (uint32_t)arguments->numbers[WEFT_CLI_OPTION_WIDTH];
  }
  if (kind != WEFT_CLI_NO_PICTURE || cli->columns == 0) {
    return 0;
  }
  return cli->columns < COLUMNS_MIN   ? COLUMNS_MIN
         : cli->columns > COLUMNS_MAX ? COLUMNS_MAX
                                      : cli->columns;
}

static int show_timelines(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                          enum weft_cli_picture kind) {
  WEFT_SCOPED_BY(finish_timelines) struct timelines timelines = {.count = 0};
  WEFT_SCOPED_TEXT text = {.allocator = cli->allocator};
  struct weft_render_options options = weft_render_options_default();
  WEFT_CLI_TRY(read_timelines(cli, arguments, &timelines));
  const bool nameless = arguments->operand_count == 0 || strcmp(arguments->operands[0], "-") == 0;
  if (nameless && (kind == WEFT_CLI_NO_PICTURE || kind == WEFT_CLI_SVG)) {
    timelines.pictures[0].name = NULL; /* "standard input" is no title */
  }
  if (arguments->given[WEFT_CLI_OPTION_TITLE]) {
    timelines.pictures[0].name = arguments->texts[WEFT_CLI_OPTION_TITLE];
  } else if (arguments->given[WEFT_CLI_OPTION_NO_TITLE] && kind == WEFT_CLI_NO_PICTURE) {
    timelines.pictures[0].name = NULL;
  }
  options.bare = arguments->given[WEFT_CLI_OPTION_NO_TITLE];
  options.all_ranks = arguments->given[WEFT_CLI_OPTION_ALL_RANKS];
  for (size_t k = 0; k < timelines.count; k++) {
    weft_cli_print_note(cli, timelines.count > 1 ? timelines.pictures[k].name : NULL,
                        timelines.pictures[k].simulation->program);
  }
  options.width = choose_width(cli, arguments, kind);
  options.colour = kind == WEFT_CLI_NO_PICTURE && weft_cli_colours_data(cli, arguments);
  options.dark = arguments->given[WEFT_CLI_OPTION_DARK];
  options.colour_by =
      arguments->choices[WEFT_CLI_OPTION_COLOUR_BY] == 1 ? WEFT_COLOUR_BY_STAGE : WEFT_COLOUR_BY_OP;
  WEFT_CLI_CALL(
      cli, NULL,
      weft_cli_render(kind, timelines.pictures, timelines.count, &options, &text, &error));
  return weft_cli_write_output(cli, arguments, &text, WEFT_CLI_OK);
}

int weft_cli_cmd_show(const struct weft_cli *cli, const struct weft_cli_arguments *arguments) {
  assert(cli != NULL && arguments != NULL);
  enum weft_cli_picture kind;
  WEFT_CLI_TRY(choose_kind(cli, arguments, &kind));
  WEFT_CLI_TRY(check_options(cli, arguments, kind));
  return arguments->given[WEFT_CLI_OPTION_GRID] ? show_grid(cli, arguments)
                                                : show_timelines(cli, arguments, kind);
}
