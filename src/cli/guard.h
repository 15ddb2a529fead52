/* A guard around a rank that a launcher of MPI has started.
 *
 * When a process of a job dies, the launcher ends all the others within milliseconds,
 * some by SIGKILL: nobody could say any more what has happened. So the process that the
 * launcher watches is only a guard. It starts this command once more, and that one is
 * the rank; when it is killed, the guard stays for a moment, in which the other ranks
 * notice, say what they know, and end the job themselves.
 *
 *     launcher ── guard ── rank 0       the rank ends when its guard does;
 *              └─ guard ── rank 1       the guard ends as its rank did */
#ifndef CLI_GUARD_H
#define CLI_GUARD_H

#include "cli/cli.h"

#define WEFT_CLI_GO_ON (-1)

/* Before anything is done that a process cannot do twice. Returns WEFT_CLI_GO_ON in the
 * process that is to do the work, which is this one where no launcher is. Returns in the
 * guard when the rank has ended, with the exit status to end with. */
int weft_cli_guard(const struct weft_cli *cli);

#endif
