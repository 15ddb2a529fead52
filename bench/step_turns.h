/* Steps in turns: of several parties, each with a few ranks, one at a time makes a step,
 * and all others are at rest. So what slows a machine down for a second slows all parties
 * alike, which blocks of steps, one after the other, do not see to.
 *
 * A folder has a named pipe forevery rank, on which it is told to go, and one forevery
 * party, on which its ranks say that they are done. Parties are other processes on this
 * machine, and know the path of their pipes. */
#ifndef CLI_STEP_TURNS_H
#define CLI_STEP_TURNS_H

#include <weft/transport.h>

#include "cli/child_process.h"

enum {
  WEFT_CLI_TURN_PARTIES = 2,
  WEFT_CLI_TURN_RANKS = 2, /* of each party */
  WEFT_CLI_TURN_PATH = 256
};

/* ---- Who gives turns ---- */

struct weft_cli_turns {
  char folder[WEFT_CLI_TURN_PATH];
  int go[WEFT_CLI_TURN_PARTIES][WEFT_CLI_TURN_RANKS];
  int done[WEFT_CLI_TURN_PARTIES];
};

/* False, with errno: there is no folder for it. To be closed in any case; once more does no
 * harm. */
bool weft_cli_turns_open(struct weft_cli_turns *turns);
void weft_cli_turns_close(struct weft_cli_turns *turns);

/* What a party has to know. */
void weft_cli_turns_path(const struct weft_cli_turns *turns, uint32_t party,
                         char path[WEFT_CLI_TURN_PATH]);

/* Has a party make a step, and waits until all its ranks are done: *ns is how long that
 * took. False: it has ended instead, or takes longer than its limit. */
bool weft_cli_turns_give(const struct weft_cli_turns *turns, uint32_t party,
                         const struct weft_cli_child *child, uint64_t *ns);

/* Lets a party go, which has made all its steps. */
void weft_cli_turns_let_go(const struct weft_cli_turns *turns, uint32_t party);

/* ---- A rank ---- */

struct weft_cli_turn {
  int go, done; /* the rank's pipes, from its first time on */
};

/* Says that a step is done, unless it is the first time, and waits for the next turn, or to
 * be let go. Ends the process where nobody gives turns any more. `transport` is looked at
 * now and then, since others may wait for a message that has left here half; NULL: not. */
void weft_cli_turn_take(struct weft_cli_turn *turn, const char *path, uint32_t rank, bool is_first,
                        struct weft_transport *transport);
void weft_cli_turn_close(struct weft_cli_turn *turn);

#endif
