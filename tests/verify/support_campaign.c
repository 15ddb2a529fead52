/* The verifier against brute force (support_campaign.h). What is checked for
 * each program:
 *   - all interleavings end in the same state, which is also where one
 *     maximal run ends;
 *   - the verifier reports a deadlock exactly where that state is not the end
 *     of every rank, and nothing else;
 *   - the reported cycle is a cycle of ranks that are stuck there and wait for
 *     each other, in a table the shortest there is;
 *   - the reported smallest capacity is the first that completes when all are tried;
 *   - what completes with rendezvous completes under every model, and what
 *     completes on coarser channels completes on finer ones. */
#include "support_campaign.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "support_draft.h"
#include "support_oracle.h"
#include "support_random_program.h"

/* The models differ only for programs with communication. */
static uint32_t model_count(const struct weft_program *program) {
  return program->level == WEFT_LEVEL_COMMS ? ORACLE_MODELS : 1;
}

static bool complain(struct campaign *campaign, const struct weft_program *program,
                     const char *model, const char *what, const struct weft_report *report) {
  struct weft_text text = {0};
  weft_program_print(program, &text);
  (void)snprintf(campaign->complaint, sizeof campaign->complaint, "%s (model %s)\n%s%s%s", what,
                 model, text.data != NULL ? text.data : "",
                 report != NULL && report->finding_count > 0 ? "first finding: " : "",
                 report != NULL && report->finding_count > 0 ? report->findings[0].message : "");
  weft_text_finish(&text);
  return false;
}

/* The smallest capacity that completes, by trying them; more than one for each record are never
 * needed. */
static uint32_t least_capacity(const struct weft_program *program, const struct oracle *oracle,
                               struct weft_comm_model model) {
  for (uint64_t capacity = model.capacity; capacity <= program->action_count; capacity++) {
    struct oracle_run run;
    model.capacity = (uint32_t)capacity;
    oracle_run(oracle, model, &run);
    const bool complete = run.complete;
    oracle_run_finish(&run);
    if (complete) {
      return (uint32_t)capacity;
    }
  }
  return WEFT_CAPACITY_UNLIMITED;
}

/* What is wrong with a report, given what really happens; NULL for nothing. */
static const char *judge(const struct weft_program *program, const struct oracle *oracle,
                         const struct oracle_run *run, const struct weft_report *report,
                         struct weft_comm_model model, bool misordered, struct campaign *campaign) {
  const struct weft_finding *deadlock = NULL;
  bool order = false;
  for (size_t number = 0; number < report->finding_count; number++) {
    const struct weft_finding *finding = &report->findings[number];
    if (finding->rule == WEFT_RULE_DEADLOCK) {
      deadlock = deadlock == NULL ? finding : deadlock;
    } else if (finding->rule == WEFT_RULE_CHANNEL_ORDER) {
      order = true;
    } else {
      return "a finding other than a deadlock for a sound program";
    }
  }
  if (report->ok != (report->finding_count == 0)) {
    return "report->ok does not say whether there are findings";
  }
  if (misordered && run->complete) {
    return "brute force completes a program with a misordered boundary";
  }
  if (order != misordered) {
    return order ? "channel.order for boundaries that are in order" : "channel.order not found";
  }
  if (!report->liveness_checked && !order) {
    return "liveness was not checked";
  }
  if (report->liveness_checked && (deadlock != NULL) == run->complete) {
    return run->complete ? "a deadlock is reported, and there is none"
                         : "a deadlock is not reported";
  }
  if (report->liveness_checked) {
    const uint32_t least = least_capacity(program, oracle, model);
    if (report->least_capacity != least) {
      return "the smallest capacity is another one";
    }
    campaign->grown += deadlock != NULL && least != WEFT_CAPACITY_UNLIMITED && least > 1;
  }
  if (deadlock != NULL) {
    campaign->cycles++;
    if (program->level == WEFT_LEVEL_COMPUTE &&
        deadlock->cycle_length != oracle_shortest_cycle(oracle, run)) {
      return "the reported cycle is not the shortest";
    }
    return oracle_replay(program, oracle, run, deadlock);
  }
  return NULL;
}

/* All interleavings against one maximal run. */
static const char *compare_runs(const struct oracle *oracle, const struct oracle_run *run,
                                const struct oracle_exploration *found) {
  if (found->ends != 1) {
    return "interleavings end in different states";
  }
  if ((found->ends_complete == 1) != run->complete) {
    return "one run and all interleavings disagree on the verdict";
  }
  for (uint32_t rank = 0; rank < oracle->rank_count; rank++) {
    if (found->end_cell[rank] != run->cell[rank]) {
      return "one run and all interleavings end at different places";
    }
  }
  return NULL;
}

static bool check_model(struct campaign *campaign, const struct weft_program *program,
                        const struct oracle *oracle, uint32_t model, bool misordered,
                        bool *complete) {
  struct weft_verify_options options = weft_verify_options_default();
  struct weft_report *report = NULL;
  struct weft_error error = {0};
  struct oracle_run run;
  const char *complaint = NULL;
  options.model = oracle_model(model);
  oracle_run(oracle, options.model, &run);
  const struct oracle_exploration found = oracle_explore(oracle, options.model);
  *complete = run.complete;
  campaign->states += found.states;
  complaint = compare_runs(oracle, &run, &found);
  if (complaint == NULL) {
    complaint = weft_verify(NULL, program, &options, &report, &error) != WEFT_OK
                    ? error.message
                    : judge(program, oracle, &run, report, options.model, misordered, campaign);
  }
  if (complaint != NULL) {
    complain(campaign, program, oracle_model_name(model), complaint, report);
  }
  weft_report_destroy(report);
  oracle_run_finish(&run);
  return complaint == NULL;
}

/* What one model's verdict implies for another's. */
static const char *compare_models(const bool *complete) {
  for (uint32_t strong = 0; strong < ORACLE_MODELS; strong++) {
    for (uint32_t weak = 0; weak < ORACLE_MODELS; weak++) {
      const struct weft_comm_model a = oracle_model(strong), b = oracle_model(weak);
      const bool implied = a.capacity == 0 || (a.capacity <= b.capacity && a.channel >= b.channel);
      if (implied && complete[strong] && !complete[weak]) {
        return "completes under a strong model and not under a weaker one";
      }
    }
  }
  return NULL;
}

/* How often the kind of channel, or its size, made the difference. */
static void count_contrasts(struct campaign *campaign, const bool *complete) {
  bool edge_pair = false, pair_rank = false, one_two = false, two_eager = false;
  for (uint32_t row = 0; row < ORACLE_MODELS; row += 3) {
    edge_pair = edge_pair || complete[row] != complete[row + 1];
    pair_rank = pair_rank || complete[row + 1] != complete[row + 2];
  }
  for (uint32_t channel = 0; channel < 3; channel++) {
    one_two = one_two || complete[3 + channel] != complete[6 + channel];
    two_eager = two_eager || complete[6 + channel] != complete[9 + channel];
  }
  campaign->edge_pair += edge_pair ? 1 : 0;
  campaign->pair_rank += pair_rank ? 1 : 0;
  campaign->one_two += one_two ? 1 : 0;
  campaign->two_eager += two_eager ? 1 : 0;
}

static bool check_program(struct campaign *campaign, const struct weft_program *program,
                          bool misordered) {
  bool complete[ORACLE_MODELS] = {false};
  struct oracle oracle;
  if (!oracle_init(&oracle, program)) {
    return complain(campaign, program, "-", "the random program is not sound", NULL);
  }
  bool good = true;
  uint32_t completing = 0, models = 0;
  for (; models < model_count(program) && good; models++) {
    good = check_model(campaign, program, &oracle, models, misordered, &complete[models]);
    completing += complete[models] ? 1 : 0;
  }
  const char *complaint =
      good && program->level == WEFT_LEVEL_COMMS ? compare_models(complete) : NULL;
  if (complaint != NULL) {
    good = complain(campaign, program, "-", complaint, NULL);
  }
  campaign->complete += completing;
  campaign->stuck += model_count(program) - completing;
  campaign->differing += completing > 0 && completing < model_count(program) ? 1 : 0;
  if (program->level == WEFT_LEVEL_COMMS) {
    count_contrasts(campaign, complete);
  }
  campaign->misordered += misordered ? 1 : 0;
  oracle_finish(&oracle);
  return good;
}

/* The generator says only that it did not keep the boundaries in order; whether
 * two sides do differ is read off the rows. */
static bool is_misordered(const struct draft *draft) {
  for (uint32_t rank = 0; rank < draft->rank_count; rank++) {
    const struct draft_row *row = &draft->rows[rank];
    for (size_t first = 0; first < row->count; first++) {
      const struct weft_action *a = &row->records[first];
      for (size_t second = first + 1; second < row->count; second++) {
        const struct weft_action *b = &row->records[second];
        struct draft_site site_a, site_b;
        if ((a->op == WEFT_OP_SEND_F || a->op == WEFT_OP_SEND_B) && b->op == a->op &&
            b->stage == a->stage && b->skip == a->skip &&
            draft_find(draft, draft_partner(*a), &site_a) &&
            draft_find(draft, draft_partner(*b), &site_b) && site_a.index > site_b.index) {
          return true;
        }
      }
    }
  }
  return false;
}

/* Models under which the program completes, a bit each. */
static uint32_t signature(const struct weft_program *program) {
  struct oracle oracle;
  uint32_t bits = 0;
  if (!oracle_init(&oracle, program)) {
    return 0;
  }
  for (uint32_t model = 0; model < ORACLE_MODELS; model++) {
    struct oracle_run run;
    oracle_run(&oracle, oracle_model(model), &run);
    bits |= run.complete ? 1u << model : 0;
    oracle_run_finish(&run);
  }
  oracle_finish(&oracle);
  return bits;
}

/* Programs that all models judge alike, and those that only lack a buffer, are
 * what chance makes most of; a share of them is enough, so that the trial has
 * room for those in which the size or the kind of the channels matters. */
static uint32_t keep_percent(uint32_t bits) {
  const uint32_t all = (1u << ORACLE_MODELS) - 1, buffered = all - 7;
  if (bits == 0 || bits == all) {
    return 5;
  }
  return bits == buffered ? 25 : 100;
}

static struct weft_program *draw_program(struct weft_random *random,
                                         const struct random_limits *limits, struct draft *draft,
                                         bool *misordered) {
  for (;;) {
    random_program(random, limits, draft, misordered);
    struct weft_program *program = draft_build(draft);
    if (!limits->communicate || random_chance(random, keep_percent(signature(program)))) {
      *misordered = *misordered && is_misordered(draft);
      return program;
    }
    weft_program_destroy(program);
  }
}

bool campaign_run(struct campaign *campaign) {
  const struct random_limits limits = {.communicate = campaign->communicate,
                                       .graph = campaign->graph,
                                       .cells_two = 26,
                                       .cells_three = 18};
  struct weft_random random = {.state = campaign->seed};
  struct draft draft = {0};
  bool good = true;
  for (uint32_t number = 0; number < campaign->programs && good; number++) {
    bool misordered;
    struct weft_program *program = draw_program(&random, &limits, &draft, &misordered);
    for (uint64_t i = 0; i < program->action_count; i++) {
      campaign->skips +=
          program->actions[i].op != WEFT_OP_OVERLAP_F_B && program->actions[i].skip > 0;
    }
    good = check_program(campaign, program, misordered);
    weft_program_destroy(program);
  }
  draft_finish(&draft);
  return good;
}
