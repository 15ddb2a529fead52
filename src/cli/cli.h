/* The command `weft` as a function: everything that it touches of the process
 * (memory, the three descriptors, what is a terminal) comes in through struct
 * weft_cli, so that a test can run a whole command with a failing allocator and
 * pipes. main.c fills it from the real process. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <weft/base.h>

struct weft_cli {
  const struct weft_allocator *allocator; /* NULL: the default one */
  int input;                              /* where "-" is read from */
  int output;                             /* data */
  int messages;                           /* errors, warnings, progress */
  bool input_terminal;
  bool output_terminal;
  bool messages_terminal;
  uint32_t columns;         /* that text should fill: COLUMNS, or the terminal's; 0: unknown */
  bool colour;              /* neither NO_COLOR nor TERM=dumb */
  const char *program_path; /* this command, for `bench` to start; NULL: unknown */
  char **words;             /* of the process, to begin again with; NULL: it cannot */
  const char *who;          /* "rank 2: ", in front of every message; NULL: nothing */
};

/* The exit status of spec'd kinds of outcome (also in `weft help --man`). */
enum weft_cli_exit {
  WEFT_CLI_OK = 0,
  WEFT_CLI_FOUND_BAD = 1,
  WEFT_CLI_USAGE = 2,
  WEFT_CLI_MALFORMED = 65,
  WEFT_CLI_NO_INPUT = 66,
  WEFT_CLI_UNAVAILABLE = 69,
  WEFT_CLI_INTERNAL = 70,
  WEFT_CLI_IO = 74,
  WEFT_CLI_PEER = 75
};

/* Fills `cli` from this process, and makes the process fit to run it: no death
 * by SIGPIPE, and no file ever opened as descriptor 0, 1 or 2. */
void weft_cli_process_init(struct weft_cli *cli, char **argv);

/* Where this command's file is; NULL where that cannot be told. */
const char *weft_cli_process_file(char *buffer, size_t size);

/* Where a program of this name is, in the folder of this one; NULL where that cannot be
 * told, or it is not there. */
const char *weft_cli_process_sibling(const char *name, char *buffer, size_t size);

/* Becomes the program of that name, with the words of this process. Returns only when that
 * cannot be done: the exit status, after having said why. */
int weft_cli_process_become(const struct weft_cli *cli, const char *name);

/* Begins the process again, from the first line of main(). Returns only when that cannot
 * be done. */
void weft_cli_process_again(const struct weft_cli *cli);

/* The same with a variable in its environment, for a library that looks
 * at it when it is loaded. Does nothing when the variable is there already. Returns only
 * when that is so, or cannot be done. */
void weft_cli_process_restart(const struct weft_cli *cli, const char *variable, const char *value);

#endif
