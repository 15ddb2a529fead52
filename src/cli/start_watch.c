/* Waits for the start of MPI, and no longer than that. */
#include "cli/start_watch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/args/option_parser.h"
#include "cli/io/error_message.h"
#include "cli/launch.h"

enum { LIMIT_S = 120 };
#define LIMIT_MAX_S UINT64_C(100000000)

static _Noreturn void end_process(const struct weft_cli_start_watch *watch) {
  const struct weft_cli_launch launch = weft_cli_launch();
  char who[WEFT_CLI_WHO_SIZE];
  if (watch->refusal != NULL) {
    (void)snprintf(who, sizeof who, "rank %" PRIu32 ": ", launch.rank);
    weft_cli_say_as(watch->cli, who, watch->refusal->words, watch->refusal->size);
    _exit(watch->refusal->status);
  }
  weft_cli_say(watch->cli, "is one of them stopped, or its host out of reach?",
               "rank %" PRIu32 ": MPI has not started after %" PRIu64 " s: not all of the %" PRIu32
               " processes have come",
               launch.rank, watch->limit_s, launch.rank_count);
  _exit(WEFT_CLI_PEER);
}

static void *look(void *argument) {
  struct weft_cli_start_watch *watch = argument;
  const struct timespec limit = {.tv_sec = (time_t)watch->limit_s};
  if (!weft_cli_watch_thread_wait(&watch->thread, limit)) {
    end_process(watch);
  }
  return NULL;
}

void weft_cli_start_watch_begin(struct weft_cli_start_watch *watch, const struct weft_cli *cli,
                                const struct weft_cli_refusal *refusal) {
  const char *said = getenv("WEFT_START_LIMIT");
  uint64_t limit;
  *watch = (struct weft_cli_start_watch){.cli = cli, .refusal = refusal, .limit_s = LIMIT_S};
  if (said != NULL && weft_cli_read_number(said, &limit) == WEFT_CLI_DIGITS_OK) {
    watch->limit_s = limit < LIMIT_MAX_S ? limit : LIMIT_MAX_S;
  }
  if (watch->limit_s > 0) {
    weft_cli_watch_thread_begin(&watch->thread, look, watch);
  }
}

void weft_cli_start_watch_end(struct weft_cli_start_watch *watch) {
  if (watch->limit_s > 0) {
    weft_cli_watch_thread_end(&watch->thread);
  }
}
