/* Stages that take the time the costs say: what `weft run` and `weft bench run`
 * execute. */
#ifndef CLI_TIMED_STAGES_H
#define CLI_TIMED_STAGES_H

#include <weft/costs.h>
#include <weft/run.h>
#include <weft/support.h>

#include "cli/cli.h"

enum weft_cli_stage_kind {
  WEFT_CLI_STAGE_SLEEP, /* in the order of --stage's choices */
  WEFT_CLI_STAGE_SPIN,
  WEFT_CLI_STAGE_NULL,
  WEFT_CLI_STAGE_VIRTUAL, /* on loopback */
  WEFT_CLI_STAGE_DEVICE   /* on a device */
};

struct weft_cli_stages {
  struct weft_arena arena; /* of the arrays */
  uint32_t count;
  double longest;                   /* time of an action */
  bool overlaps;                    /* an overlap takes a time of its own */
  struct weft_cost_stage *timed;    /* [count] */
  struct weft_cost_stage *together; /* [count]: overlaps, by the stage of their F */
  struct weft_stage **bases;        /* [count] */
};

/* How the costs become the transport's time. */
struct weft_cli_time_scale {
  double per_unit;       /* nanoseconds or ticks */
  const double *factors; /* [rank_count] of --slow, or NULL */
};

/* WEFT_CLI_OK, or another exit status after printing why; then there is nothing to finish, but it
 * may be finished, as may one that is all zero. The program must have stages. */
int weft_cli_stages_init(struct weft_cli_stages *stages, const struct weft_cli *cli,
                         const struct weft_program *program, const struct weft_costs *costs,
                         enum weft_cli_stage_kind kind, const struct weft_cli_time_scale *scale);
void weft_cli_stages_finish(struct weft_cli_stages *stages);

/* For weft_pipeline_set_function(OVERLAP_F_B) where `overlaps`: the context is
 * the struct weft_cli_stages. */
enum weft_status weft_cli_stages_overlap(void *context, const struct weft_custom_call *call,
                                         struct weft_error *error);

#endif
