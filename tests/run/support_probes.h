/* Stages that count what they are asked for, and a pipeline of them on loopback: for tests of
 * what a pipeline does rather than of what is computed. */
#ifndef TESTS_SUPPORT_PROBES_H
#define TESTS_SUPPORT_PROBES_H

#include <weft/run.h>
#include <weft/weft.h>

#include "support_pipelines.h"

enum { STAGES_MAX = 16 };

struct probe {
  struct weft_stage stage;
  uint32_t calls[WEFT_OP_COUNT];
  uint32_t last_backwards, losses, scaled, zeroed;
  uint32_t fail_at;   /* the n-th forward fails, from 1 */
  bool never_returns; /* its forward is in progress forever */
  uint64_t input_bytes, grad_tensors;
  uint32_t touched, progressed; /* calls, and calls of progress that reached the transport */
  const struct probe *partner;  /* of its TIE_GRAD, on another rank */
  bool reached;                 /* its TIE_GRAD has been called */
  uint32_t number;              /* of the stage, where a test needs it */
};

extern const struct weft_stage_ops probe_ops;
extern const struct weft_stage_ops probe_tied_ops; /* with a TIE_GRAD */

struct probe *probe_of(struct weft_stage *stage);
/* As every function of a probe does. */
void probe_progress(struct probe *probe, const struct weft_stage_call *call);

struct bench {
  struct probe probes[STAGES_MAX];
  struct weft_stage *bases[STAGES_MAX];
  struct weft_boundary boundary;
  struct weft_pipeline_options options;
  struct weft_named_source named;
  struct weft_fixed_source fixed;
  struct weft_program *program;
  struct pipelines pipelines;
  struct weft_error error;
};

/* Without a program source, which the others set. */
void bench_init(struct bench *bench, uint32_t stage_count, uint32_t m);
void bench_use_schedule(struct bench *bench, const char *schedule, uint32_t p, uint32_t v,
                        uint32_t m);
void bench_use_program(struct bench *bench, const char *csv);

/* All ranks' pipelines; and on observed endpoints without asynchronous progress, which are
 * asked for states. */
enum weft_status bench_create(struct bench *bench, uint32_t p);
enum weft_status bench_create_watched(struct bench *bench, uint32_t p);
extern uint32_t bench_refreshes; /* how often states were asked for */

enum weft_status bench_step(struct bench *bench, uint32_t m);
void bench_finish(struct bench *bench);

void bench_expect_ok(const struct bench *bench, enum weft_status status);
void bench_expect_message(const struct bench *bench, const char *part);
/* Every rank has the same error; but one may have been done before. */
void bench_expect_agreed(const struct bench *bench);

#endif
