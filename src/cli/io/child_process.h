/* Runs another command until it ends or a time limit has passed, and keeps what it writes. */
#ifndef CLI_CHILD_PROCESS_H
#define CLI_CHILD_PROCESS_H

#include <weft/base.h>

struct weft_cli_child {
  const char *const *words; /* [..., NULL]; the first is looked up in PATH */
  const char *const *sets;  /* [name, value, ..., NULL] added to its environment, or NULL */
  uint32_t limit_ms;        /* after this it is ended */

  /* The result. */
  bool started; /* false: there is no such command */
  bool timed_out;
  int status;         /* exit status, or 128 + signal */
  char output[16384]; /* both streams together; the rest is dropped */
  size_t output_size;
};

/* Standard input is empty. When it returns, the command and all processes of its process group
 * have ended. */
void weft_cli_child_run(struct weft_cli_child *child);

#endif
