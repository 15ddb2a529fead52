/* A command as a function: everything that it uses of the process (memory, the three descriptors,
 * whether they are terminals) comes in through struct weft_cli, so that a test can run a whole
 * command with a failing allocator and pipes. The main files fill it from the real process. */
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
  uint32_t columns;         /* width of text: COLUMNS, or the terminal's; 0: unknown */
  bool colour;              /* neither NO_COLOR nor TERM=dumb */
  const char *program_path; /* the file of this program; NULL: unknown */
  char **words;             /* argv of the process, to start it again; NULL: it cannot be */
  const char *who;          /* "rank 2: ", in front of every message; NULL: nothing */
};

/* A few words, as an argument of printf. */
struct weft_cli_words {
  char text[256];
};

/* Exit statuses (also in `weft help --man`). */
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

/* Fills `cli` from this process and prepares it: SIGPIPE and SIGXFSZ are ignored, and no
 * file is ever opened as descriptor 0, 1 or 2. */
void weft_cli_process_init(struct weft_cli *cli, char **argv);

/* The path of this program's file; NULL: unknown. */
const char *weft_cli_process_file(char *buffer, size_t size);

/* The path of the program of this name in the same folder; NULL when it is unknown or missing. */
const char *weft_cli_process_sibling(const char *name, char *buffer, size_t size);

/* Replaces this process by the program of that name, with the same arguments. Returns only on
 * failure: the exit status, after printing why. */
int weft_cli_process_become(const struct weft_cli *cli, const char *name);

#endif
