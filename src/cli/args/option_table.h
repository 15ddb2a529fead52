/* The tables of options and commands, for all three programs. The parser, `weft help`,
 * the man page and the completions are made from them.
 *
 * Adding an option: a row in options.def, and OPTION() in the commands that take it
 * (command_table.c). Where an option means something else in one command,
 * that command has a row of its own with the same id. */
#ifndef CLI_OPTION_TABLE_H
#define CLI_OPTION_TABLE_H

#include <limits.h>

#include "cli/cli.h"

#define ROW(ID, ...) WEFT_CLI_OPTION_##ID,
enum weft_cli_option_id {
#include "cli/args/options.def"
  WEFT_CLI_OPTION_COUNT
};
#undef ROW

enum weft_cli_option_kind {
  WEFT_CLI_KIND_FLAG,
  WEFT_CLI_KIND_NUMBER, /* whole, minimum ... maximum */
  WEFT_CLI_KIND_REAL,   /* decimal or a fraction, minimum ... maximum */
  WEFT_CLI_KIND_RATE,   /* the same, or with an exponent: 3e-4 */
  WEFT_CLI_KIND_LIST,   /* may be given again, each time adds; checked by the command */
  WEFT_CLI_KIND_CHOICE, /* one of `choices` */
  WEFT_CLI_KIND_MODEL,  /* one of `choices`, and a number for slots:K */
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

/* Options under a heading of help. */
struct weft_cli_group {
  const char *heading;                       /* NULL: the group behind the last one */
  const struct weft_cli_option *options[20]; /* in the order of help; NULL ends it */
};

struct weft_cli_command {
  const char *name;
  const char *operands; /* as help shows them; "" for none */
  unsigned operands_max;
  /* What completion offers: "file", "schedule", "command", the choices "a|b|c", or "". */
  const char *operand_kind;
  struct weft_cli_group groups[10];
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

/* Option number `index` in the order of help; NULL: there are no more. *heading is the heading
 * before it, or NULL; `heading` may be NULL. */
const struct weft_cli_option *weft_cli_command_option_at(const struct weft_cli_command *command,
                                                         unsigned index, const char **heading);

/* Steps through "a|b|c": the next item's size, and *at moved behind it; 0 at the end. */
size_t weft_cli_choice_next(const char **at, const char **item);

/* The exit statuses in words; NULL text ends it. */
struct weft_cli_exit_text {
  int status;
  const char *text;
};
const struct weft_cli_exit_text *weft_cli_exit_texts(void);

#endif
