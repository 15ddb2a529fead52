/* `weft train --schedule auto`: what it begins with, the memory that it may have, and what
 * is said of the schedules that it tries. */
#ifndef GPT_TRAIN_AUTO_H
#define GPT_TRAIN_AUTO_H

#include <weft/support.h>

#include "gpt/command/train_setup.h"

bool weft_cli_training_is_auto(const struct weft_cli_arguments *arguments);

/* A schedule to begin with that any number of microbatches has, for the stages that were
 * asked for. WEFT_CLI_OK, or another exit status after having said what is wrong. */
int weft_cli_training_read_auto(struct weft_cli_training *training);
/* --memory, or what is free for each rank; when all else is known. */
void weft_cli_training_read_memory(struct weft_cli_training *training);

/* A line for what has just been decided, and one for the end. */
void weft_cli_tuning_add(struct weft_text *text, const struct weft_gpt_tuning_report *report);
void weft_cli_tuning_add_summary(struct weft_text *text,
                                 const struct weft_gpt_tuning_report *report);
/* The same as an object "tuning" of a step's JSON, and as fields of the last one; NULL:
 * nothing has been planned. */
void weft_cli_tuning_add_json(struct weft_json *json, const struct weft_gpt_tuning_report *report);
void weft_cli_tuning_add_totals(struct weft_json *json,
                                const struct weft_gpt_tuning_report *report);

#endif
