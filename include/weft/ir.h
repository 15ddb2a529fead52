/* Weft IR: the schedule language.
 *
 * A pipeline has p ranks, n stages and m microbatches. What a rank does in one
 * training step is a row of actions; one row per rank is a program:
 *
 *     rank 0   0F0  0F1  0B0  0B1           "stage 0, forward, microbatch 0", ...
 *     rank 1        1F0  1B0  1F1  1B1
 *
 * The text form is the one of PyTorch's torch.distributed.pipelining; files
 * are CSV with a row per rank and a cell per step (docs/language.md).
 *
 * In memory an action is 8 bytes and a program is one flat array:
 *
 *      0        1        2               4                              8
 *      +--------+--------+---------------+------------------------------+
 *      |   op   | parts, |     stage     |          microbatch          |
 *      |        | skip   |               |                              |
 *      +--------+--------+---------------+------------------------------+
 *
 * An OVERLAP_F_B is a header record with `parts` set, followed by that many
 * records, its parts; header and parts together are one cell, one step.
 *
 * The other end of a SEND or RECV is the neighbour stage, or, with `skip`, the
 * one that many stages beyond it: 2SEND_F0>5 has a skip of 2. Only pipelines
 * with a graph (weft/graph.h) have such transfers. */
#ifndef WEFT_IR_H
#define WEFT_IR_H

#include <weft/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Limits. Whatever goes beyond is refused with both numbers named. */
#define WEFT_RANKS_MAX UINT32_C(65536)
#define WEFT_MICROBATCHES_MAX UINT32_C(16777216)
#define WEFT_ACTIONS_MAX UINT64_C(268435456) /* records of one program, 2^28 */

#define WEFT_RANK_NONE UINT32_MAX /* the rank of a stage that none computes */

/* One op per line of src/ir/ops.def, in the same order (the compiler checks it). */
enum weft_op {
  WEFT_OP_IDLE = 0,    /* an empty cell: a bubble */
  WEFT_OP_F,           /* forward */
  WEFT_OP_B,           /* full backward: input and weight gradient */
  WEFT_OP_I,           /* gradient with respect to the stage's input */
  WEFT_OP_W,           /* gradient with respect to the stage's weights */
  WEFT_OP_SEND_F,      /* activation of `stage` to stage+1 */
  WEFT_OP_RECV_F,      /* activation of stage-1 for `stage` */
  WEFT_OP_SEND_B,      /* gradient of `stage` to stage-1 */
  WEFT_OP_RECV_B,      /* gradient of stage+1 for `stage` */
  WEFT_OP_UNSHARD,     /* gather the stage's full parameters */
  WEFT_OP_RESHARD,     /* drop them again */
  WEFT_OP_REDUCE_GRAD, /* reduce the stage's gradients over its replicas */
  WEFT_OP_OVERLAP_F_B, /* header: run the next `parts` records together */
  WEFT_OP_TIE_GRAD,    /* sum gradients of weights that the first and last stage share */
  WEFT_OP_COUNT
};

enum weft_op_kind {
  WEFT_KIND_IDLE,
  WEFT_KIND_COMPUTE, /* F B I W */
  WEFT_KIND_SEND,
  WEFT_KIND_RECV,
  WEFT_KIND_SHARD, /* UNSHARD RESHARD REDUCE_GRAD TIE_GRAD */
  WEFT_KIND_GROUP  /* OVERLAP_F_B */
};

/* A row of the op table. */
struct weft_op_info {
  const char *text; /* as written in files; "" for a bubble */
  enum weft_op_kind kind;
  bool has_microbatch;
  const char *summary;   /* one line for listings and the docs */
  const char *waits_for; /* what must have happened before it, in words */

  /* How listings and timelines show it. */
  const char *legend;          /* what its colour means */
  char letter;                 /* its columns in text timelines; '\0': not shown there */
  const char *terminal_colour; /* of those: an SGR sequence, "48;5;74;38;5;16" */
  const char *trace_category;  /* in Chrome traces */
  const char *peer_word;       /* before its peer in listings: "to", "from", "with"; "": no peer */
  uint32_t colour[2];          /* 0xRRGGBB in the light and in the dark theme */
  int16_t shade[2];            /* coloured by stage, of 256: > 0 towards white, < 0 black */
};

/* Never NULL for op < WEFT_OP_COUNT; static storage. */
WEFT_API const struct weft_op_info *weft_op_info(enum weft_op op);

struct weft_action {
  uint8_t op; /* enum weft_op */
  union {
    uint8_t parts; /* of an OVERLAP_F_B header; else 0 */
    uint8_t skip;  /* of a SEND or RECV: stages between its ends */
  };
  uint16_t stage;      /* 0 for IDLE and OVERLAP_F_B */
  uint32_t microbatch; /* 0 where the op has none */
};

/* What a program holds. REDUCE_GRAD alone does not make it COMMS: PyTorch's
 * GPipe and 1F1B tables carry one on each row. */
enum weft_level {
  WEFT_LEVEL_COMPUTE, /* F B I W, OVERLAP_F_B, bubbles: a schedule table */
  WEFT_LEVEL_COMMS    /* also SEND/RECV, UNSHARD/RESHARD or TIE_GRAD: a program to run */
};

/* A schedule table or a lowered program: plain data, read it freely. Created by
 * weft_program_parse(), weft_generate(), weft_lower() ...; its memory is one
 * object, given back by weft_program_destroy(). */
struct weft_program {
  enum weft_level level;
  uint32_t rank_count;
  uint32_t stage_count;        /* largest stage + 1; with a graph, the graph's */
  uint32_t microbatch_count;   /* largest microbatch + 1 */
  uint64_t action_count;       /* records in `actions` */
  uint64_t action_capacity;    /* records allocated */
  struct weft_action *actions; /* [action_count], rank after rank */
  uint64_t *row_begin; /* [rank_count + 1]: rank r is actions[row_begin[r] .. row_begin[r + 1]) */
  struct weft_graph *graph; /* of the stages, held by the program; NULL: a chain */
  const struct weft_allocator *allocator;
  uint64_t known_hash;         /* weft_program_hash(), once it has been stored here; 0: not yet */
  const uint32_t *known_ranks; /* weft_placement_infer()'s, likewise; borrowed; NULL: not yet */
};

/* NULL is fine. */
WEFT_API void weft_program_destroy(struct weft_program *program);

/* Number of cells (steps) in rank's row: an overlap counts once. */
WEFT_API uint64_t weft_program_row_steps(const struct weft_program *program, uint32_t rank);

/* Gives the program a graph, in place of the one it holds; NULL: a chain.
 * WEFT_ERR_USAGE where the program has more stages than the graph. */
WEFT_API enum weft_status weft_program_set_graph(struct weft_program *program,
                                                 const struct weft_graph *graph,
                                                 struct weft_error *error);

/* Same rows, action for action, and the same edges. */
WEFT_API bool weft_program_equal(const struct weft_program *a, const struct weft_program *b);

/* 64-bit hash of the rows and edges (FNV-1a over op, parts, stage, microbatch and row
 * ends): equal programs hash equal on every machine. */
WEFT_API uint64_t weft_program_hash(const struct weft_program *program);

/* A new program with the given rows: `actions` holds them one after the other,
 * row r has row_sizes[r] records. Everything is copied. WEFT_ERR_USAGE when a
 * record is not well-formed (unknown op, parts beyond the row), WEFT_ERR_LIMIT,
 * WEFT_ERR_MEMORY. */
WEFT_API enum weft_status weft_program_create(const struct weft_allocator *allocator,
                                              uint32_t rank_count, const uint64_t *row_sizes,
                                              const struct weft_action *actions,
                                              struct weft_program **out, struct weft_error *error);

/* CSV in. `name` is what errors call the input (a file name; NULL: "input").
 * Also taken: CRLF, a byte-order mark, a missing last newline, quotes around a
 * cell, blanks around an action, and the older spelling F0_s2 for 2F0. A blank
 * line, or "" alone, is a rank without actions; blank lines at the end are none.
 * All else is WEFT_ERR_FORMAT with line, column, the cell and what was expected. */
WEFT_API enum weft_status weft_program_parse(const struct weft_allocator *allocator,
                                             const char *text, size_t size, const char *name,
                                             struct weft_program **out, struct weft_error *error);

/* CSV out, rows ended by \n, appended to `text` (check weft_text_status()).
 * weft_program_parse() of it gives an equal program; a row that is one bubble
 * becomes a row without cells. */
WEFT_API void weft_program_print(const struct weft_program *program, struct weft_text *text);

/* Whether the rank has anything but bubbles. */
WEFT_API bool weft_program_rank_acts(const struct weft_program *program, uint32_t rank);

/* What is no fault, but seldom meant: "ranks 2 and 3 have no action". Appends nothing where there
 * is nothing to say. */
WEFT_API void weft_program_note(const struct weft_program *program, struct weft_text *text);

/* One cell as text, header and parts: "(0F8;7B0)OVERLAP_F_B". `action` points
 * at the cell's first record. A bubble prints as nothing. */
WEFT_API void weft_action_print(const struct weft_action *action, struct weft_text *text);

/* The same into a fixed buffer, cut with "..." when it does not fit;
 * returns buffer. Size at least 8. */
WEFT_API char *weft_action_format(const struct weft_action *action, char *buffer, size_t size);

#ifdef __cplusplus
}
#endif
#endif
