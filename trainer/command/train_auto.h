/* `weft train --schedule auto`: the first schedule, the memory limit, and the report of the
 * schedules that it tries. */
#ifndef GPT_TRAIN_AUTO_H
#define GPT_TRAIN_AUTO_H

#include <weft/support.h>

#include "trainer/command/train_setup.h"

bool weft_train_setup_is_auto(const struct weft_cli_arguments *arguments);

/* Chooses the first schedule: one that works with any number of microbatches, for the given
 * stages. WEFT_CLI_OK, or another exit status after printing what is wrong. */
int weft_train_setup_read_auto(struct weft_train_setup *setup);
/* --memory, or the free memory per rank; after everything else is known. */
void weft_train_setup_read_memory(struct weft_train_setup *setup);

/* A line for the last decision, and one for the end. */
void weft_train_tuning_add(struct weft_text *text, const struct weft_gpt_tuning_report *report);
void weft_train_tuning_add_summary(struct weft_text *text,
                                   const struct weft_gpt_tuning_report *report);
/* The same as an object "tuning" of a step's JSON, and as fields of the last one; NULL:
 * nothing has been planned. */
void weft_train_tuning_add_json(struct weft_json *json,
                                const struct weft_gpt_tuning_report *report);
void weft_train_tuning_add_totals(struct weft_json *json,
                                  const struct weft_gpt_tuning_report *report);

#endif
