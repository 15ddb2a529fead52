/* The tables of options and commands, for all three programs. The parser, `weft help`,
 * the man page and the completions are made from them.
 *
 * Adding an option: an id here, a row in option_table.c, and OPTION() in the commands
 * that take it (command_table.c). Where an option means something else in one command,
 * that command has a row of its own with the same id. */
#ifndef CLI_OPTION_TABLE_H
#define CLI_OPTION_TABLE_H

#include <limits.h>

#include "cli/cli.h"

enum weft_cli_option_id {
  WEFT_CLI_OPTION_RANKS,
  WEFT_CLI_OPTION_STAGES_PER_RANK,
  WEFT_CLI_OPTION_MICROBATCHES,
  WEFT_CLI_OPTION_PLACEMENT,
  WEFT_CLI_OPTION_LIST,
  WEFT_CLI_OPTION_MERGE_BW,
  WEFT_CLI_OPTION_WINDOW,
  WEFT_CLI_OPTION_NO_UNSHARD,
  WEFT_CLI_OPTION_NO_REDUCE_GRAD,
  WEFT_CLI_OPTION_TIE_GRAD,
  WEFT_CLI_OPTION_NO_COMM,
  WEFT_CLI_OPTION_SLOTS,
  WEFT_CLI_OPTION_COMM,
  WEFT_CLI_OPTION_CHANNEL,
  WEFT_CLI_OPTION_STAGES,
  WEFT_CLI_OPTION_MAX_FINDINGS,
  WEFT_CLI_OPTION_STEPS,
  WEFT_CLI_OPTION_F,
  WEFT_CLI_OPTION_B,
  WEFT_CLI_OPTION_I,
  WEFT_CLI_OPTION_W,
  WEFT_CLI_OPTION_HOP,
  WEFT_CLI_OPTION_COSTS,
  WEFT_CLI_OPTION_SLOW,
  WEFT_CLI_OPTION_JITTER,
  WEFT_CLI_OPTION_RUNS,
  WEFT_CLI_OPTION_SEED,
  WEFT_CLI_OPTION_MEMORY,
  WEFT_CLI_OPTION_CRITICAL_PATH,
  WEFT_CLI_OPTION_NO_SPLIT,
  WEFT_CLI_OPTION_KEEP_PARTITION,
  WEFT_CLI_OPTION_OBJECTIVE,
  WEFT_CLI_OPTION_EFFORT,
  WEFT_CLI_OPTION_TIME_LIMIT,
  WEFT_CLI_OPTION_THREADS,
  WEFT_CLI_OPTION_PARETO,
  WEFT_CLI_OPTION_GLOBAL_BATCH,
  WEFT_CLI_OPTION_FOR,
  WEFT_CLI_OPTION_TRANSPORT,
  WEFT_CLI_OPTION_PROGRESS,
  WEFT_CLI_OPTION_STAGE,
  WEFT_CLI_OPTION_STALL_LIMIT,
  WEFT_CLI_OPTION_DUMP,
  WEFT_CLI_OPTION_UNCHECKED,
  WEFT_CLI_OPTION_DATA,
  WEFT_CLI_OPTION_LAYERS,
  WEFT_CLI_OPTION_DIM,
  WEFT_CLI_OPTION_HEADS,
  WEFT_CLI_OPTION_CONTEXT,
  WEFT_CLI_OPTION_TIED,
  WEFT_CLI_OPTION_BATCH,
  WEFT_CLI_OPTION_LR,
  WEFT_CLI_OPTION_LR_MIN,
  WEFT_CLI_OPTION_WARMUP,
  WEFT_CLI_OPTION_WEIGHT_DECAY,
  WEFT_CLI_OPTION_CLIP,
  WEFT_CLI_OPTION_ON_DIVERGENCE,
  WEFT_CLI_OPTION_SCHEDULE,
  WEFT_CLI_OPTION_SPLIT,
  WEFT_CLI_OPTION_THREADS_PER_RANK,
  WEFT_CLI_OPTION_PP,
  WEFT_CLI_OPTION_DP,
  WEFT_CLI_OPTION_SHARD,
  WEFT_CLI_OPTION_CHECKPOINT,
  WEFT_CLI_OPTION_CHECKPOINT_EVERY,
  WEFT_CLI_OPTION_CHECKPOINT_KEEP,
  WEFT_CLI_OPTION_RESUME,
  WEFT_CLI_OPTION_EVAL_EVERY,
  WEFT_CLI_OPTION_PROFILE,
  WEFT_CLI_OPTION_LOG,
  WEFT_CLI_OPTION_CURVE,
  WEFT_CLI_OPTION_NO_SAMPLE,
  WEFT_CLI_OPTION_PROMPT,
  WEFT_CLI_OPTION_TOKENS,
  WEFT_CLI_OPTION_TEMPERATURE,
  WEFT_CLI_OPTION_TOP_K,
  WEFT_CLI_OPTION_GRID,
  WEFT_CLI_OPTION_WIDTH,
  WEFT_CLI_OPTION_COLOUR_BY,
  WEFT_CLI_OPTION_DARK,
  WEFT_CLI_OPTION_RANK,
  WEFT_CLI_OPTION_MAX_DIFFERENCES,
  WEFT_CLI_OPTION_LARGE,
  WEFT_CLI_OPTION_ACTIONS,
  WEFT_CLI_OPTION_REPEATS,
  WEFT_CLI_OPTION_QUICK,
  WEFT_CLI_OPTION_MAN,
  WEFT_CLI_OPTION_COMPLETION,
  WEFT_CLI_OPTION_OUTPUT,
  WEFT_CLI_OPTION_JSON,
  WEFT_CLI_OPTION_HELP,
  WEFT_CLI_OPTION_COUNT
};

enum weft_cli_option_kind {
  WEFT_CLI_KIND_FLAG,
  WEFT_CLI_KIND_NUMBER, /* whole, minimum ... maximum */
  WEFT_CLI_KIND_REAL,   /* decimal or a fraction, minimum ... maximum */
  WEFT_CLI_KIND_RATE,   /* the same, or with an exponent: 3e-4 */
  WEFT_CLI_KIND_LIST,   /* may be given again, each time adds; checked by the command */
  WEFT_CLI_KIND_CHOICE, /* one of `choices` */
  WEFT_CLI_KIND_MODEL,  /* one of `choices`, checked by the command (slots:K) */
  WEFT_CLI_KIND_FILE,
  WEFT_CLI_KIND_TEXT /* any, but empty */
};

/* The most operands of a command, unless they are a list. */
#define WEFT_CLI_OPERANDS_MAX 16
/* operands_max of a command whose operands are further values of its LIST option. */
#define WEFT_CLI_OPERANDS_LIST UINT_MAX

struct weft_cli_option {
  enum weft_cli_option_id id;
  char letter;      /* '\0': none */
  const char *name; /* without the dashes */
  enum weft_cli_option_kind kind;
  const char *value;   /* what help calls the value; NULL for a flag */
  const char *choices; /* "edge|pair|rank"; NULL where any value goes */
  uint64_t minimum;
  uint64_t maximum; /* more than this is refused by the parser */
  uint64_t limit;   /* what the message about it names: the library's limit */
  const char *summary;
};

enum { WEFT_CLI_COMMAND_OPTIONS_MAX = 48 };

struct weft_cli_command {
  const char *name;
  const char *operands; /* as help shows them; "" for none */
  unsigned operands_max;
  /* What completion offers: "file", "schedule", "command", the choices "a|b|c", or "". */
  const char *operand_kind;
  /* That it takes, in the order of help; NULL ends it. */
  const struct weft_cli_option *options[WEFT_CLI_COMMAND_OPTIONS_MAX];
  const char *summary;
  const char *description; /* paragraphs separated by \n */
  const char *example;
};

/* As most commands take them, by id. */
extern const struct weft_cli_option weft_cli_options[WEFT_CLI_OPTION_COUNT];
const struct weft_cli_option *weft_cli_option_at(enum weft_cli_option_id id);

/* WEFT_COST_MAX as a whole number. */
#define WEFT_CLI_COST_MAX UINT64_C(1000000000000)
#define WEFT_CLI_STEPS_MAX UINT64_C(1000000000) /* of a training */

size_t weft_cli_command_count(void);
const struct weft_cli_command *weft_cli_command_at(size_t index);
/* NULL: there is none of that name. */
const struct weft_cli_command *weft_cli_command_find(const char *name);
/* As this command takes it; NULL: it does not. */
const struct weft_cli_option *weft_cli_command_option(const struct weft_cli_command *command,
                                                      enum weft_cli_option_id id);

/* Steps through "a|b|c": the next item's size, and *at moved behind it; 0 at the end. */
size_t weft_cli_choice_next(const char **at, const char **item);

/* The exit statuses in words; NULL text ends it. */
struct weft_cli_exit_text {
  int status;
  const char *text;
};
const struct weft_cli_exit_text *weft_cli_exit_texts(void);

#endif
