/* Making programs: for the modules that produce them (reader, generators,
 * passes, dry run). */
#ifndef IR_PROGRAM_H
#define IR_PROGRAM_H

#include <weft/ir.h>

/* A program with row_begin filled and everything else of it for the caller to
 * write: actions are uninitialised, level and counts are set by
 * weft_program_seal(). WEFT_ERR_LIMIT above WEFT_RANKS_MAX or WEFT_ACTIONS_MAX. */
enum weft_status weft_program_allocate(const struct weft_allocator *allocator, uint32_t rank_count,
                                       const uint64_t *row_sizes, struct weft_program **out,
                                       struct weft_error *error);

/* What holds of every program, whoever made it; for asserts. */
static inline bool weft_program_is_sound(const struct weft_program *program) {
  return program->row_begin[0] == 0 &&
         program->row_begin[program->rank_count] == program->action_count &&
         (program->graph == NULL || program->graph->stage_count == program->stage_count);
}

/* The step of a record of a rank's row: how many cells begin before its own. */
uint64_t weft_program_step_at(const struct weft_program *program, uint32_t rank, uint64_t record);

/* Records of the longest row. */
uint64_t weft_program_longest_row(const struct weft_program *program);

/* The most records with an op of the set (ir/action.h) in any row. */
size_t weft_program_most_in_row(const struct weft_program *program, uint32_t ops);

/* Whether an op of the set occurs. */
bool weft_program_has(const struct weft_program *program, uint32_t ops);

/* Level, stage and microbatch count, read off the actions. */
void weft_program_seal(struct weft_program *program);

/* The same without a scan, for passes that know: the counts of `like`. */
void weft_program_seal_like(struct weft_program *program, const struct weft_program *like,
                            enum weft_level level);

#endif
