/* A rank's row of a program: the buffers and slots that it needs, and the tables that are
 * filled while it runs. Made once per program, used in every step with it. */
#ifndef RUN_ROW_H
#define RUN_ROW_H

#include <weft/run.h>
#include <weft/support.h>

#include "run/executor/buffer_pool.h"

#define WEFT_RECORD_NONE UINT32_MAX

/* What a rank holds now of an edge of one of its stages, for a microbatch. */
struct weft_port_held {
  struct weft_buffer
      *activation;              /* of an in-edge: posted or arrived; of an out-edge: not yet sent */
  struct weft_buffer *gradient; /* the other way round */
};

/* What it holds for a (stage, microbatch). */
struct weft_held {
  uint32_t slot;
  uint32_t done;                 /* WEFT_OP_BIT of F, B, I, W */
  struct weft_port_held ports[]; /* [port_count of the stage] */
};

/* An edge at one of its ends: a port of the stage there. */
struct weft_row_port {
  uint32_t other;    /* the stage at the other end; WEFT_STAGE_NONE: the input of a source, or the
                        output of a loss */
  uint32_t boundary; /* of options.boundaries, if it has one for each */
  uint32_t near;     /* the edge's other port, in row->ports; WEFT_PORT_NONE: on another rank */
  bool gradient;     /* the graph has gradients on it */
  uint32_t activations, gradients; /* buffers of each kind, at most */
};
#define WEFT_STAGE_NONE UINT32_MAX
#define WEFT_PORT_NONE UINT32_MAX

/* What a row needs of one stage. Its ports are first the in-edges, ascending by stage, then the
 * out-edges, likewise. A source has a port without an edge in front, which holds nothing, and a loss
 * one behind, for its output: so ports[0] is the in-port and ports[1] the out-port of every stage of
 * a chain, of the first and the last one, too, and no action has to ask. */
struct weft_row_stage {
  uint32_t first_backward, last_backward; /* records, or WEFT_RECORD_NONE */
  bool has_backward;
  bool splits;         /* has I or W */
  bool shards;         /* has UNSHARD */
  uint32_t slots;      /* microbatches between forward and last backward, at most */
  uint32_t in_count;   /* at least 1, */
  uint32_t port_count; /* so at least 2 */
  uint32_t first_port; /* of row->ports */
  uint64_t held_at;    /* where its struct weft_held are in row->held, */
  uint64_t held_bytes; /* and how large each is */
};

/* When a record ran; begin < 0: it has not. */
struct weft_row_time {
  int64_t begin;
  int64_t end;
};

struct weft_row {
  struct weft_arena arena;      /* of all but the program */
  struct weft_program *program; /* owned */
  uint64_t hash;
  bool training; /* as asked for */
  uint32_t rank;
  uint64_t begin, end;           /* records of the rank */
  uint32_t sub_actions_max;      /* of a cell, at least 1 */
  uint32_t collectives;          /* UNSHARD, RESHARD, REDUCE_GRAD, TIE_GRAD in the row */
  struct weft_row_stage *stages; /* [own stage, ascending] */
  struct weft_row_port *ports;   /* [port_count]: of all own stages */
  uint32_t port_count;
  unsigned char *held;  /* [own stage, ascending][microbatch]: a struct weft_held each */
  uint64_t held_bytes;  /* of all */
  uint64_t held_count;  /* of (own stage, microbatch) */
  uint32_t *own_stages; /* ascending */
  uint32_t own_count;
  const uint32_t *rank_of;     /* [program->stage_count] */
  uint64_t placement_hash;     /* of rank_of */
  struct weft_row_time *times; /* [end - begin], or NULL */
  uint64_t *saved_at;          /* as held: where a microbatch's call->saved is; NULL: none */
  uint64_t saved_bytes;        /* of the rank (saved_layout.c) */
  struct weft_row *next;
};

/* Takes the program, also when it fails; `rank` is the row. */
enum weft_status weft_row_create(const struct weft_allocator *allocator,
                                 struct weft_program *program, uint32_t rank, bool training,
                                 const struct weft_pipeline_options *options, struct weft_row **out,
                                 struct weft_error *error);
void weft_row_destroy(struct weft_row *row);

/* Whether the rank has a stage, and as its how many-th. */
bool weft_row_find_stage(const struct weft_row *row, uint32_t stage, uint32_t *index);

/* Sets saved_at and saved_bytes, as the rank's own of the stages need it. WEFT_ERR_MEMORY. */
enum weft_status weft_row_lay_out_saved(struct weft_row *row, struct weft_stage *const *stages,
                                        struct weft_error *error);

#endif
