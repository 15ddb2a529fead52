/* Weft sim: how long a program takes, where it idles and why, and what memory
 * it needs, before anything runs.
 *
 *     struct weft_simulation *sim;
 *     weft_simulate(NULL, program, costs, NULL, &sim, &error);
 *     printf("%g, %g %% idle\n", sim->makespan, 100 * sim->bubble_ratio);
 *
 * Times are exact: costs become whole ticks (sim->ticks_per_unit of them to the
 * costs' unit), which is possible for integers and for decimals of up to nine
 * digits behind the point; other numbers are rounded to a billionth. */
#ifndef WEFT_SIM_H
#define WEFT_SIM_H

#include <weft/costs.h>
#include <weft/event.h>
#include <weft/verify.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Why a rank was idle. */
enum weft_idle_cause {
  WEFT_IDLE_START,    /* before its first compute action, but for WEFT_IDLE_UNSHARD */
  WEFT_IDLE_FORWARD,  /* the activation it needs was not made, or under way */
  WEFT_IDLE_GRADIENT, /* the gradient likewise */
  WEFT_IDLE_CHANNEL,  /* it was made, but its transfer had to wait for the channel */
  WEFT_IDLE_UNSHARD,  /* parameters were being gathered */
  WEFT_IDLE_END,      /* after its last action */
  WEFT_IDLE_CAUSES
};

/* "start", "forward", ... */
WEFT_API const char *weft_idle_cause_name(enum weft_idle_cause cause);

/* Times in the costs' unit, sizes in the costs' sizes. */
struct weft_rank_times {
  double busy;
  double idle; /* makespan - busy */
  double first_start;
  double last_end;
  double span; /* last_end - first_start */
  double idle_by_cause[WEFT_IDLE_CAUSES];
  double peak_activation; /* activations alone */
  double peak_memory;     /* activations, parameters and gradients together */
  double peak_at;         /* when the activations peak first */
  double peak_parameters; /* of its stages together: a stage's are full from the start of its
                             UNSHARD to the end of its RESHARD; in a program without, always */
  double peak_gradients;  /* likewise: full from the start of its first backward to the end of
                             its REDUCE_GRAD */
  uint32_t
      receive_buffers_peak;  /* messages that have arrived or are arriving and are not consumed */
  double message_bytes_peak; /* of a simulated graph: their bytes, and those of what a stage of the
                                rank has made for another one, until it is consumed; in the unit of
                                the hop's bytes. 0 for chains and measured times */
};

struct weft_simulation {
  const struct weft_program *program; /* borrowed */
  double ticks_per_unit;
  double makespan;               /* first start on any rank to last end on any */
  double span;                   /* the largest over ranks */
  double bubble_ratio;           /* idle share of ranks x makespan */
  double span_bubble_ratio;      /* 1 - busy / span of the rank with the largest span */
  double peak_activation;        /* the largest over ranks */
  struct weft_rank_times *ranks; /* [rank_count] */
  struct weft_event *events; /* [event_count], rank after rank, each in program order, or NULL */
  uint64_t event_count;
  const uint64_t *event_begin; /* [rank_count + 1] into events */
  int64_t *arrivals; /* of a table with a graph, which has no RECVs: [channel][microbatch] when
                        messages arrive, activations over edge e on channel 2e, gradients on
                        2e + 1. Else, and without events, NULL */
};

struct weft_sim_options {
  enum weft_channel_model channel; /* default edge */
  const double *rank_factors; /* [rank_count] compute takes this many times as long; NULL: all 1 */
  double jitter;              /* standard deviation of an action's time, as a share of it; 0 */
  uint64_t seed;
  bool no_events; /* no list of events: events is NULL and event_count 0. All numbers are the
                     same, in a tenth of the memory */
};

WEFT_API struct weft_sim_options weft_sim_options_default(void);

/* Whether so much memory fits into a limit, rounding aside. */
WEFT_API bool weft_memory_fits(double memory, double limit);

/* Simulates a table (data crosses ranks as it is made) or a program. Shared
 * channels (all but edge) need a program with SEND and RECV. WEFT_ERR_INVALID,
 * naming who waits for what, when it cannot finish. */
WEFT_API enum weft_status weft_simulate(const struct weft_allocator *allocator,
                                        const struct weft_program *program,
                                        const struct weft_costs *costs,
                                        const struct weft_sim_options *options,
                                        struct weft_simulation **out, struct weft_error *error);
WEFT_API void weft_simulation_destroy(struct weft_simulation *simulation);

/* The makespan alone, as fast as it gets: for searches. */
WEFT_API enum weft_status weft_makespan(const struct weft_allocator *allocator,
                                        const struct weft_program *program,
                                        const struct weft_costs *costs,
                                        const struct weft_sim_options *options, double *makespan,
                                        struct weft_error *error);

/* Time per step when steps follow each other without a barrier. */
WEFT_API enum weft_status weft_period(const struct weft_allocator *allocator,
                                      const struct weft_program *program,
                                      const struct weft_costs *costs,
                                      const struct weft_sim_options *options, double *period,
                                      struct weft_error *error);

/* The chain of actions that decides the makespan: event numbers, first to last.
 * Each begins when the one before it has ended, or when the transfer of what that
 * one made has; a gap between them is that transfer, and its wait for a channel
 * that others occupied. The caller gives room for `room` numbers; *count is how
 * many there are in all. WEFT_ERR_USAGE when the simulation has no events. */
WEFT_API enum weft_status weft_critical_path(const struct weft_allocator *allocator,
                                             const struct weft_simulation *simulation,
                                             uint64_t *events, uint64_t room, uint64_t *count,
                                             struct weft_error *error);

/* A rank's activation memory over time: a step function, `size` from `at` on.
 * Ascending in time. The caller gives room; *count is how many there are: none
 * when the simulation has no events. */
struct weft_memory_point {
  double at;
  double size;
};
WEFT_API void weft_memory_curve(const struct weft_simulation *simulation,
                                const struct weft_costs *costs, uint32_t rank,
                                struct weft_memory_point *points, uint64_t room, uint64_t *count);

/* ---- Measured timelines ---- */

/* The same of what a run really did, from its events (weft_pipeline_events()):
 * for the renderers, and to compare with a prediction. Events come in any order of ranks,
 * those of a rank in program order; the first begin on any rank becomes 0. Idle
 * time has the simulator's causes; a delay that nothing explains counts with the
 * direction of the action after it. `costs` give sizes; their times do not
 * matter. With the events of weft_simulate() it gives the same numbers, if channels
 * were edges and, for a table, transfers free. WEFT_ERR_USAGE when events are
 * missing, with their number, or out of order. */
WEFT_API enum weft_status weft_simulation_measured(
    const struct weft_allocator *allocator, const struct weft_program *program,
    const struct weft_costs *costs, const struct weft_event *events, uint64_t event_count,
    double ticks_per_unit, struct weft_simulation **out, struct weft_error *error);

#ifdef __cplusplus
}
#endif
#endif
