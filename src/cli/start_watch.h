/* A thread that ends this process when MPI does not start: it waits for all processes of
 * the job without an end, and one of them may be stopped. */
#ifndef CLI_START_WATCH_H
#define CLI_START_WATCH_H

#include "cli/cli.h"
#include "cli/watch_thread.h"

/* What a process has to say that cannot go on, and the status that it ends with. */
struct weft_cli_refusal {
  int status;
  const char *words; /* whole messages, as weft_cli_say() writes them */
  size_t size;
};

struct weft_cli_start_watch {
  struct weft_cli_watch_thread thread;
  const struct weft_cli *cli;
  const struct weft_cli_refusal *refusal;
  uint64_t limit_s; /* 0: for ever */
};

/* For two minutes, or as many seconds as the variable WEFT_START_LIMIT says. With a refusal
 * (or NULL) that is said in the end. */
void weft_cli_start_watch_begin(struct weft_cli_start_watch *watch, const struct weft_cli *cli,
                                const struct weft_cli_refusal *refusal);
void weft_cli_start_watch_end(struct weft_cli_start_watch *watch);

#endif
