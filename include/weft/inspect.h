/* Weft inspect: ways to look at a table or a program: the dry run, the grid,
 * the listing, the difference. Each appends text or gives a new program. */
#ifndef WEFT_INSPECT_H
#define WEFT_INSPECT_H

#include <weft/verify.h>

#ifdef __cplusplus
extern "C" {
#endif

/* PyTorch's untimed dry run: the same actions, with bubbles where a rank had to
 * wait. `in` is a program with SEND/RECV (lower a table with send_recv first;
 * UNSHARD, RESHARD, REDUCE_GRAD, TIE_GRAD and overlaps may be there too).
 * WEFT_ERR_INVALID, naming what each rank waits for, when it gets stuck. */
WEFT_API enum weft_status weft_dry_run(const struct weft_allocator *allocator,
                                       const struct weft_program *in, struct weft_program **out,
                                       struct weft_error *error);

/* The step x rank text grid. */
struct weft_grid_options {
  uint64_t step_first, step_count; /* 0, 0: all */
  const uint32_t *ranks;           /* columns to show; NULL: all */
  uint32_t rank_count;
  const struct weft_location *marks; /* cells written as >cell< ; rows end in " <-- ERROR HERE" */
  size_t mark_count;
};
/* NULL options: the full grid without marks, byte-identical with PyTorch's. */
WEFT_API enum weft_status weft_grid_print(const struct weft_program *program,
                                          const struct weft_grid_options *options,
                                          struct weft_text *text, struct weft_error *error);

/* What each instruction of a program is linked to: the other end of its transfer
 * and what it waits for. Borrows the program until destroyed. */
struct weft_links;
WEFT_API enum weft_status weft_links_create(const struct weft_allocator *allocator,
                                            const struct weft_program *program,
                                            struct weft_links **out, struct weft_error *error);
WEFT_API void weft_links_destroy(struct weft_links *links);

/* The record at the other end of a SEND or RECV, the other TIE_GRAD of a TIE_GRAD, or
 * WEFT_MATCH_NONE. */
#define WEFT_MATCH_NONE UINT32_MAX
WEFT_API uint32_t weft_links_peer(const struct weft_links *links, uint64_t record);

/* The records that a record waits for, other than its peer; returns how many.
 * F, B and I wait for the RECV of each of their inputs, else for the action of the
 * stage at the other end that makes it; B, I also, and first, for their F; W for its
 * I; a SEND for what makes its data; REDUCE_GRAD and TIE_GRAD for the stage's last
 * backward. A stage has at most WEFT_SKIP_MAX + 1 edges in one direction. */
#define WEFT_NEEDS_MAX 257
WEFT_API unsigned weft_links_needs(const struct weft_links *links, uint64_t record,
                                   uint64_t needs[WEFT_NEEDS_MAX]);

/* The rank that computes a stage, WEFT_RANK_NONE (weft/ir.h) when none does. */
WEFT_API uint32_t weft_links_owner(const struct weft_links *links, uint32_t stage);

/* The rank whose row holds a record. */
WEFT_API uint32_t weft_program_rank_at(const struct weft_program *program, uint64_t record);

/* Where two programs differ. */
struct weft_difference {
  uint32_t rank;
  uint64_t step_a, step_b;         /* cells; UINT64_MAX where that side has none */
  const struct weft_action *a, *b; /* NULL where that side has none; else into the programs */
};

struct weft_diff {
  size_t difference_count;
  const struct weft_difference *differences;
  uint64_t left_out;  /* beyond differences_max */
  bool graphs_differ; /* other edges between stages, or gradients over other edges */
};

/* Per rank, a shortest edit script (insertions and deletions; a deletion
 * directly followed by an insertion is one changed cell). A row that differs in
 * more than 512 places is compared cell by cell from there on, so time stays
 * linear. An empty row on one side only is a difference without cells. */
WEFT_API enum weft_status weft_diff_create(const struct weft_allocator *allocator,
                                           const struct weft_program *a,
                                           const struct weft_program *b, size_t differences_max,
                                           struct weft_diff **out, struct weft_error *error);
WEFT_API void weft_diff_destroy(struct weft_diff *diff);

#ifdef __cplusplus
}
#endif
#endif
