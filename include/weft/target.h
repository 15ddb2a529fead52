/* Weft target: what another framework needs to train with a table or a partition: flags, the table as
 * its loader takes it, the modules of each stage, and what a user has to know.
 *
 *     struct weft_target_request request = {.kind = WEFT_TARGET_TORCHTITAN, .table = answer->table,
 *                                           .stage_parts = answer->stage_parts, .file = "plan.csv"};
 *     struct weft_target *target;
 *     if (weft_target(NULL, &request, &target, &error) == WEFT_OK) {
 *       for (uint32_t k = 0; k < target->flag_count; k++) ...
 *       weft_target_destroy(target);
 *     }
 */
#ifndef WEFT_TARGET_H
#define WEFT_TARGET_H

#include <weft/ir.h>

#ifdef __cplusplus
extern "C" {
#endif

enum weft_target_kind {
  WEFT_TARGET_TORCHTITAN, /* as of its pull request 4121, August 2026 */
  WEFT_TARGET_PYTORCH,    /* torch.distributed.pipelining, without torchtitan */
  WEFT_TARGET_MEGATRON,   /* Megatron-LM: the layout of the layers; it runs its own order only */
  WEFT_TARGETS
};

/* "torchtitan", "pytorch", "megatron". */
WEFT_API const char *weft_target_name(enum weft_target_kind kind);

/* Everything is borrowed for the call. Stages form a chain. */
struct weft_target_request {
  enum weft_target_kind kind;
  const struct weft_program
      *table; /* compute only; Megatron-LM needs none, but then the next two */
  uint32_t ranks;
  uint32_t stage_count;
  /* [stages] how many parts of the model each has, as weft_search() partitions it; NULL: the model is
   * not partitioned, which Megatron-LM needs. */
  const uint32_t *stage_parts;
  /* Of each part. torchtitan: its module, or several: "norm+lm_head". Megatron-LM: E embedding, t
   * layer, m MTP, L loss. NULL: an embedding, layers, and the norm with the head, or the loss. */
  const char *const *part_names; /* [part_count] */
  uint32_t part_count;
  const char *file;               /* where the table is or will be; not for Megatron-LM */
  uint64_t tokens_per_microbatch; /* of torchtitan; 0: the flag is left out */
};

struct weft_target_flag {
  const char *name;  /* "--parallelism.pipeline_parallel_degree" */
  const char *value; /* NULL: none */
  bool is_number;    /* the value is one */
};

struct weft_target {
  struct weft_program *table; /* as the target's loader takes it; NULL: it has its own order */
  struct weft_target_flag *flags;
  uint32_t flag_count;
  const char **notes; /* sentences, without a full stop */
  uint32_t note_count;
  /* Of torchtitan and a model in parts: the modules of all stages, one stage after the other. Else
   * NULL and 0. */
  const char **modules;
  uint32_t *stage_modules; /* [stage_count] how many of them each stage has */
  uint32_t stage_count;
  const char *code;   /* of PyTorch: lines of Python, on each rank with its own stages; else NULL */
  const char *layout; /* of Megatron-LM: "Et|tt|tL", a stage between two bars; else NULL */
};

/* The caller destroys the target. `allocator` may be NULL: the default.
 * WEFT_ERR_INVALID: the target cannot run the table: its stages form a graph, it is no compute-only
 * table, or its placement is not one of the target's.
 * WEFT_ERR_USAGE: stages, parts and names do not match, or the model is not partitioned where it must
 * be. WEFT_ERR_MEMORY. */
WEFT_API enum weft_status weft_target(const struct weft_allocator *allocator,
                                      const struct weft_target_request *request,
                                      struct weft_target **out, struct weft_error *error);
/* NULL is fine. */
WEFT_API void weft_target_destroy(struct weft_target *target);

#ifdef __cplusplus
}
#endif
#endif
