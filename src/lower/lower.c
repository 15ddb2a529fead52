/* weft_lower(): the passes in their order, and the pass table. */

#include <assert.h>

#include <weft/support.h>

#include "ir/program.h"
#include "lower/passes.h"

struct weft_lower_options weft_lower_options_default(void) {
  return (struct weft_lower_options){
      .unshard = true, .reduce_grad = true, .communicate = true, .unshard_window = 3};
}

/* ---- The table: each pass alone ---- */

#define WEFT_PASS_ALONE(name, skip_)                                                          \
  static enum weft_status name##_alone(const struct weft_allocator *allocator,                \
                                       const struct weft_program *in,                         \
                                       const struct weft_lower_options *options,              \
                                       struct weft_program **out, struct weft_error *error) { \
    const struct weft_lower_options standard = weft_lower_options_default();                  \
    options = options != NULL ? options : &standard;                                          \
    const struct weft_pass_input input = {allocator, in, skip_, options->unshard_window,      \
                                          options->by_time};                                  \
    return weft_pass_##name(&input, out, error);                                              \
  }

WEFT_PASS_ALONE(merge_bw, WEFT_SKIP_BUBBLES)
WEFT_PASS_ALONE(unshard, WEFT_SKIP_BUBBLES)
WEFT_PASS_ALONE(reduce_grad, WEFT_SKIP_TABLE)
WEFT_PASS_ALONE(tie_grad, WEFT_SKIP_BUBBLES | WEFT_OP_BIT(WEFT_OP_TIE_GRAD))
WEFT_PASS_ALONE(send_recv, WEFT_SKIP_BUBBLES)

static const struct weft_pass passes[] = {
    {"merge_bw", "an I directly followed by its W becomes B", merge_bw_alone},
    {"unshard", "UNSHARD stages before use, RESHARD them after", unshard_alone},
    {"reduce_grad", "REDUCE_GRAD after a stage's last backward", reduce_grad_alone},
    {"tie_grad", "TIE_GRAD of the first and the last stage, after all compute", tie_grad_alone},
    {"send_recv", "SEND and RECV between ranks", send_recv_alone},
};

size_t weft_pass_count(void) { return sizeof passes / sizeof passes[0]; }

const struct weft_pass *weft_pass_at(size_t index) {
  return index < weft_pass_count() ? &passes[index] : NULL;
}

/* ---- weft_lower() ---- */

/* Runs a pass on what the last one made, which *made owns. */
static enum weft_status advance(struct weft_pass_input *input, weft_pass_function *pass,
                                struct weft_program **made, struct weft_error *error) {
  struct weft_program *out;
  WEFT_TRY(pass(input, &out, error));
  weft_program_destroy(*made);
  *made = out;
  input->program = out;
  input->skip = WEFT_SKIP_BUBBLES;
  return WEFT_OK;
}

static enum weft_status run_passes(struct weft_pass_input *input,
                                   const struct weft_lower_options *options,
                                   struct weft_program **made, struct weft_error *error) {
  if (options->merge_bw) {
    WEFT_TRY(advance(input, weft_pass_merge_bw, made, error));
  }
  if (options->unshard || options->reduce_grad) {
    WEFT_TRY(advance(input,
                     !options->reduce_grad ? weft_pass_unshard
                     : options->unshard    ? weft_pass_unshard_reduce
                                           : weft_pass_reduce_grad,
                     made, error));
  }
  if (options->tie_grad) {
    WEFT_TRY(advance(input, weft_pass_tie_grad, made, error));
  }
  if (options->communicate) {
    WEFT_TRY(advance(input, weft_pass_send_recv, made, error));
  }
  return *made == NULL ? advance(input, weft_pass_strip, made, error) : WEFT_OK;
}

static enum weft_status check_table(const struct weft_program *table, const char *hint,
                                    struct weft_error *error) {
  return table->level == WEFT_LEVEL_COMPUTE
             ? WEFT_OK
             : weft_fail(error, WEFT_ERR_INVALID, hint,
                         "this is a program with communication already, not a compute-only table");
}

enum weft_status weft_lower(const struct weft_allocator *allocator,
                            const struct weft_program *table,
                            const struct weft_lower_options *options, struct weft_program **out,
                            struct weft_error *error) {
  WEFT_NEED(table, error);
  WEFT_NEED(out, error);
  assert(weft_program_is_sound(table));
  const struct weft_lower_options standard = weft_lower_options_default();
  options = options != NULL ? options : &standard;
  WEFT_TRY(check_table(table, "lower the compute-only table it was made from", error));
  if (options->unshard_window == 0) {
    return weft_fail(error, WEFT_ERR_USAGE, "use a window of at least 1",
                     "an unshard window of 0 stages: nothing could ever be computed");
  }
  if (options->tie_grad && !weft_graph_has_backward(table->graph, 0)) {
    return weft_fail(error, WEFT_ERR_USAGE, "let an edge from stage 0 carry gradients, or tie none",
                     "stage 0 is frozen: it has no gradient to sum with that of the last stage");
  }
  struct weft_pass_input input = {.allocator = allocator,
                                  .program = table,
                                  .skip = WEFT_SKIP_TABLE,
                                  .window = options->unshard_window,
                                  .by_time = options->by_time};
  struct weft_program *made = NULL;
  const enum weft_status status = run_passes(&input, options, &made, error);
  if (status == WEFT_OK) {
    *out = made;
  } else {
    weft_program_destroy(made);
  }
  return status;
}

enum weft_status weft_lower_transfers(const struct weft_allocator *allocator,
                                      const struct weft_program *table, struct weft_program **out,
                                      struct weft_error *error) {
  static const struct weft_lower_options options = {.communicate = true, .unshard_window = 1};
  return weft_lower(allocator, table, &options, out, error);
}

enum weft_status weft_table_for_pytorch(const struct weft_allocator *allocator,
                                        const struct weft_program *table, struct weft_program **out,
                                        struct weft_error *error) {
  WEFT_NEED(table, error);
  WEFT_NEED(out, error);
  WEFT_TRY(check_table(table,
                       "give the compute-only table it was made from; PyTorch loads a program with "
                       "format=\"compute_comms\"",
                       error));
  const struct weft_pass_input input = {
      .allocator = allocator, .program = table, .skip = WEFT_OP_BIT(WEFT_OP_REDUCE_GRAD)};
  return weft_pass_strip(&input, out, error);
}
