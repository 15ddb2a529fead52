/* Reading the words of the command line by the option table. */
#ifndef CLI_OPTION_PARSER_H
#define CLI_OPTION_PARSER_H

#include <weft/comm.h>

#include "cli/args/option_table.h"

#define WEFT_CLI_LIST_MAX 1024

struct weft_cli_arguments {
  const struct weft_cli_command *command;
  bool given[WEFT_CLI_OPTION_COUNT];
  const char *texts[WEFT_CLI_OPTION_COUNT]; /* the value as written */
  uint64_t numbers[WEFT_CLI_OPTION_COUNT];  /* of NUMBER options; of MODEL: the capacity */
  double reals[WEFT_CLI_OPTION_COUNT];      /* of REAL and RATE options */
  unsigned choices[WEFT_CLI_OPTION_COUNT];  /* of CHOICE and MODEL: index into their list */
  const char *list[WEFT_CLI_LIST_MAX]; /* values of the LIST option; a command has at most one */
  unsigned list_count;
  const char *operands[WEFT_CLI_OPERANDS_MAX];
  unsigned operand_count;
};

/* Reads `count` words after the command. Returns WEFT_CLI_OK, or another exit
 * status after printing what is wrong. Borrows the words. */
int weft_cli_parse(const struct weft_cli *cli, const struct weft_cli_command *command, int count,
                   char **words, struct weft_cli_arguments *arguments);

/* The option's number, or `otherwise` when it was not given. */
uint64_t weft_cli_number(const struct weft_cli_arguments *arguments, enum weft_cli_option_id id,
                         uint64_t otherwise);

/* A whole decimal number, digits only; returns NULL, or what is wrong with it: "is negative". */
const char *weft_cli_read_number(const char *text, uint64_t *number);

/* Reads `text` as the number of an option called `name`; prints what is wrong with it and
 * returns WEFT_CLI_USAGE when it is not in minimum ... maximum. `limit` is the upper end that
 * the message names. */
int weft_cli_read_bounded(const struct weft_cli *cli, const char *name, const char *text,
                          uint64_t minimum, uint64_t maximum, uint64_t limit, uint64_t *number);

/* Numbers up to `most` with commas between them, as many as there is room for at most; false: it is
 * something else. */
bool weft_cli_read_numbers(const char *text, uint32_t most, uint32_t *numbers, uint32_t room,
                           uint32_t *count);

/* The name of the first of these options that was given; NULL: none was. */
const char *weft_cli_first_given(const struct weft_cli_arguments *arguments,
                                 const enum weft_cli_option_id *ids, size_t count);

/* The option's number, or `otherwise` when it was not given. */
double weft_cli_real(const struct weft_cli_arguments *arguments, enum weft_cli_option_id id,
                     double otherwise);
/* --stall-limit in nanoseconds, at least one where it is not 0: that means no limit. */
int64_t weft_cli_stall_limit(const struct weft_cli_arguments *arguments, double otherwise);

/* A number from minimum to maximum: digits, a decimal ("0.25") or a fraction ("1/3"); with
 * `exponents`, where they are usual, "3e-4" too. Prints what is wrong and returns WEFT_CLI_USAGE
 * otherwise. */
int weft_cli_read_real(const struct weft_cli *cli, const char *name, const char *text,
                       bool exponents, double minimum, double maximum, double *number);

/* --transport; by default threads, but where a launcher has started several processes, these are
 * the ranks. */
const struct weft_comm_info *weft_cli_chosen_transport(const struct weft_cli_arguments *arguments);

/* --device cuda */
bool weft_cli_is_on_gpus(const struct weft_cli_arguments *arguments);

/* WEFT_CLI_USAGE, having reported it, when --device and the transport do not go together, or when
 * an option that is for other transports or devices is given. */
int weft_cli_check_transport(const struct weft_cli *cli, const struct weft_cli_arguments *arguments,
                             const struct weft_comm_info *transport);

/* ---- The nearest of several names to a mistyped one ---- */

/* Remembers the best candidate so far; zero-initialise `best`, set `wanted`. */
struct weft_cli_suggestion {
  const char *wanted;
  size_t wanted_size;
  const char *best; /* NULL: none is near enough */
  size_t distance;
};

void weft_cli_suggestion_init(struct weft_cli_suggestion *suggestion, const char *wanted,
                              size_t wanted_size);
void weft_cli_suggestion_offer(struct weft_cli_suggestion *suggestion, const char *name,
                               size_t name_size);

#endif
