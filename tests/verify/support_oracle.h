/* The oracle: what a program does, found by running it, with nothing of the
 * verifier in it. The semantics are those of weft/verify.h, word for word:
 *
 *   A rank takes its actions one by one, in order. A RECV is done when its
 *   message is the oldest one on its channel. A SEND is done when its message
 *   has been received (capacity 0), or when fewer than K older messages wait
 *   on its channel (capacity K), or at once (unlimited).
 *
 * In a compute-only table an action is done when the actions that make its
 * inputs are done, wherever they are.
 *
 * Two ways to run: oracle_explore() tries every interleaving of a small
 * program, oracle_run() does one maximal run of a program of any size. Both
 * expect a program whose structure is sound: oracle_fault() says whether each
 * action finds what it needs on its own rank. */
#ifndef TESTS_SUPPORT_ORACLE_H
#define TESTS_SUPPORT_ORACLE_H

#include <weft/verify.h>

/* The models that every test tries: four capacities by three channels. */
#define ORACLE_MODELS 12u
struct weft_comm_model oracle_model(uint32_t index);
/* "rendezvous/edge", "slots:2/rank", "eager/pair", ...; static storage. */
const char *oracle_model_name(uint32_t index);

#define ORACLE_NEEDS_MAX 24u

enum oracle_kind { ORACLE_COMPUTE, ORACLE_SEND, ORACLE_RECV };

/* A place as rank and cell. */
struct oracle_place {
  uint32_t rank;
  uint32_t cell;
};

/* One cell of the program. */
struct oracle_cell {
  enum oracle_kind kind;
  uint32_t message; /* of a SEND or RECV */
  uint32_t need_count;
  struct oracle_place needs[ORACLE_NEEDS_MAX]; /* of a cell of a table: makers of its inputs; of a
                                                * TIE_GRAD: the cell before the other one */
};

/* The edges of a program, of its graph or of the chain that it is without one. */
struct oracle_edge {
  uint32_t from, to;
  bool gradient;
};
struct oracle_edges {
  uint32_t count;
  struct oracle_edge *edges;
};
void oracle_edges_init(struct oracle_edges *edges, const struct weft_program *program);
void oracle_edges_finish(struct oracle_edges *edges);
/* Number of the edge of a SEND or RECV, or ORACLE_NONE. */
uint32_t oracle_edge_of(const struct oracle_edges *edges, const struct weft_action *transfer);
/* Whether an action consumes what comes over an edge, and from which stage. */
bool oracle_consumes(const struct oracle_edge *edge, const struct weft_action *action,
                     uint32_t *stage);
#define ORACLE_NONE UINT32_MAX

/* Records of the cell that begins here. */
static inline uint32_t oracle_cell_records(const struct weft_action *cell) {
  return cell->op == WEFT_OP_OVERLAP_F_B ? 1u + cell->parts : 1u;
}

/* What one SEND hands to one RECV. */
struct oracle_message {
  uint32_t from, to; /* ranks */
  uint32_t edge;     /* the directed stage boundary or edge, numbered */
};

/* A program made ready to run; refers to no memory of the program. */
struct oracle {
  uint32_t rank_count;
  uint32_t *cell_begin; /* [rank_count + 1] into cells */
  struct oracle_cell *cells;
  uint32_t message_count;
  struct oracle_message *messages;
  uint32_t edge_count;
};

/* False when the program's structure is not sound enough to run: a SEND without
 * RECV or the reverse, an input that nobody makes. Free with oracle_finish()
 * when true. */
bool oracle_init(struct oracle *oracle, const struct weft_program *program);
void oracle_finish(struct oracle *oracle);

/* Whether on some rank an action is reached whose data is not on the rank by
 * then (input not received or computed, stage sharded, gradients incomplete),
 * or a shard is handled twice or left behind. The place is the first such cell,
 * rank by rank; a row's end has the number of its cells. Needs every action to
 * be there exactly once. */
bool oracle_fault(const struct weft_program *program, struct oracle_place *place);

/* What exploring found: where all ranks are when nothing more can happen. */
#define ORACLE_EXPLORE_RANKS 3u
#define ORACLE_EXPLORE_MESSAGES 25u
struct oracle_exploration {
  uint32_t states;                         /* different states seen */
  uint32_t ends;                           /* different states without a next one */
  uint32_t ends_complete;                  /* of these, with every rank at its end */
  uint32_t end_cell[ORACLE_EXPLORE_RANKS]; /* of the first end found */
};

/* Every interleaving, each state once. At most 3 ranks and 25 messages. */
struct oracle_exploration oracle_explore(const struct oracle *oracle, struct weft_comm_model model);

/* One maximal run: every rank as far as it can go, until nobody can. */
struct oracle_run {
  bool complete;
  uint32_t *cell;    /* [rank_count] next cell of each rank, counted in its row */
  uint8_t *posted;   /* [rank_count] the next cell is a rendezvous SEND whose message is out */
  uint8_t *received; /* [message_count] */
  uint32_t *channel; /* [message_count] */
  uint32_t *next;    /* [message_count] behind it on its channel */
  uint32_t *oldest;  /* [channels] message or ORACLE_NONE */
  uint32_t *newest;  /* [channels] */
  uint32_t *waiting; /* [channels] messages on it */
};

void oracle_run(const struct oracle *oracle, struct weft_comm_model model, struct oracle_run *run);
void oracle_run_finish(struct oracle_run *run);

/* Whether, where the run ended, `rank` waits for something that only `other`
 * can do (or `rank` itself, when other == rank). */
bool oracle_waits_for(const struct oracle *oracle, const struct oracle_run *run, uint32_t rank,
                      uint32_t other);

/* Length of the shortest cycle of ranks that wait for each other; 0: there is none. */
uint32_t oracle_shortest_cycle(const struct oracle *oracle, const struct oracle_run *run);

/* Checks a deadlock finding against a run under its model: every member of the
 * cycle is where its rank is stuck, and waits for the next member's rank.
 * Returns NULL when all is well, else what is not. */
const char *oracle_replay(const struct weft_program *program, const struct oracle *oracle,
                          const struct oracle_run *run, const struct weft_finding *finding);

#endif
