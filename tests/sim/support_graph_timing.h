/* Random graphs with tables for them, and when everything happens in such a table or program, by
 * other means than the simulator's: all times begin at 0, and every rule that says "not before"
 * pushes them on until none has anything left to say. */
#ifndef SUPPORT_GRAPH_TIMING_H
#define SUPPORT_GRAPH_TIMING_H

#include <weft/support.h>
#include <weft/weft.h>

/* A graph of up to 8 stages, with frozen stages and edges of all sizes. */
struct weft_graph *any_graph(struct weft_random *random);

/* Every action of the graph's stages once, on up to 4 ranks, in an order that can be run, with B
 * or with I and W, now and then with overlaps. It holds the graph. */
struct weft_program *any_graph_table(struct weft_random *random, const struct weft_graph *graph);

/* Costs of each stage and of the hop; all times are multiples of a half. */
struct weft_costs *any_costs(struct weft_random *random, uint32_t stage_count);

struct timed_record {
  int64_t begin; /* in halves of the costs' unit */
  int64_t end;
};

struct timed_program {
  bool finishes;                /* the rest is meaningless if not */
  struct timed_record *records; /* [action_count] */
  int64_t *idle;                /* [rank_count][WEFT_IDLE_CAUSES] without start and end */
  uint32_t *buffers;            /* [rank_count] receive buffers in use at once */
  double *bytes;                /* [rank_count] of messages that wait at once */
  double *peaks;                /* [rank_count] activations held at once */
};

struct timed_program time_program(const struct weft_program *program,
                                  const struct weft_costs *costs, enum weft_channel_model scope);
void timed_program_finish(struct timed_program *timed);

/* Fail the test where they cannot. Lowered without UNSHARD, RESHARD and REDUCE_GRAD. */
struct weft_program *parse_text(const char *csv);
struct weft_program *lower_plainly(const struct weft_program *table);

#endif
