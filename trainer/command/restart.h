#ifndef TRAINER_RESTART_H
#define TRAINER_RESTART_H

#include "cli/cli.h"

/* Starts this program again, in this process, with a variable in its environment, for a library
 * that reads it when it is loaded. Returns only on failure. */
void weft_train_restart(const struct weft_cli *cli, const char *variable, const char *value);

#endif
