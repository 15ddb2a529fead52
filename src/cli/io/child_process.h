/* Another command, run to its end or to a time limit, and what it wrote. */
#ifndef CLI_CHILD_PROCESS_H
#define CLI_CHILD_PROCESS_H

#include <sys/types.h>

#include <weft/base.h>

struct weft_cli_child {
  const char *const *words; /* [..., NULL]; the first is looked for in PATH */
  const char *const *sets;  /* [name, value, ..., NULL] of its environment, or NULL */
  uint32_t limit_ms;        /* then it is ended */

  bool started; /* false: there is no such command */
  bool timed_out;
  int status;         /* exit status, or 128 + signal */
  char output[16384]; /* both streams together; what is more is dropped */
  size_t output_size;

  /* Its own, while it runs. */
  pid_t pid;
  int fd; /* what it writes */
  uint64_t begin_ns;
};

/* Nothing of it is left when this returns, so long as it does not hide from its process
 * group. Standard input is empty. */
void weft_cli_child_run(struct weft_cli_child *child);

/* The same in two halves. In between it runs beside the caller, and `fd` hangs up when all
 * of it has ended; what it writes stays there for finish(), which waits for its end, or for
 * the limit since start(). To be finished in any case. */
void weft_cli_child_start(struct weft_cli_child *child);
void weft_cli_child_finish(struct weft_cli_child *child);

#endif
